"""Read, validate and write YAML case files."""
