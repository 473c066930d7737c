"""Case files."""
