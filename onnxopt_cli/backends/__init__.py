"""Backends: resolve a specification, submit requests, check the rules for backends."""
