"""Running cases: what is expected, what the backend did, what that means."""
