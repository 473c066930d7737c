"""Interpretations of a formula: calls of the same function with different kinds of operands."""
