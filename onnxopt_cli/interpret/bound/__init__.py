"""The error bound of formulas, from which derived tolerances follow."""
