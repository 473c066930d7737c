"""Runs as files: written, read, resumed, merged."""
