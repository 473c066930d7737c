"""Interpretations of a formula: the same function, called with different operands."""
