"""Backends that are commands: requests and responses over pipes."""
