"""Condition estimates of models."""
