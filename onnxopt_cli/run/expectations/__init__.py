"""Expectation files: parsing, editing, updating, and the standing of results."""
