"""Fuzzing: search for failures of a backend with examples that hypothesis draws and shrinks."""
