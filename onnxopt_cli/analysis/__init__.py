"""Mutation analysis of suites, and explanations of failures."""
