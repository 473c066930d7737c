"""A run's results as something to read: pure functions from results to tables and documents."""
