"""Explanations of failures: known mistakes, changed formulas, and failure conditions."""
