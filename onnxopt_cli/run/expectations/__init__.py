"""Expectation files: parsing and updating them, and comparing results with them."""
