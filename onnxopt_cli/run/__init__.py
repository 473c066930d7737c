"""Running cases: expected results, responses of backends, outcomes, logs and expectations."""
