"""Adapters: plugin files with the packages that they need, and environments with these packages."""
