"""Logs of runs: writing, reading, resuming, merging."""
