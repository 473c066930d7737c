"""The content of reports: counts, causes and details of a run, derived once for all formats."""
