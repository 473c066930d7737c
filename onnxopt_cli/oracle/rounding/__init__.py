"""Roundings: where nodes round, the errors they may have, and how the errors are injected."""
