"""Nodes at the boundaries of operators, which random draws seldom contain."""
