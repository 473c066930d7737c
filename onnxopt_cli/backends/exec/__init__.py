"""Backends that are commands: a conversation over pipes."""
