"""Nodes at the boundaries of operators' definitions, which random draws seldom contain."""
