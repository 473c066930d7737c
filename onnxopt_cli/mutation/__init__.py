"""Mutants of formulas and the catalogue of known mistakes."""
