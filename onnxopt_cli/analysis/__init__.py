"""How good cases are, and which mistake explains failures."""
