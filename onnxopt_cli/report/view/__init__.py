"""What reports show of a run: counts, causes and details, derived once for all formats."""
