"""Backends that others write in Python."""
