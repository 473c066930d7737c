"""Reports on a run: pure functions from results to tables and documents."""
