"""The bound reading: how far any honest evaluation of a formula can be off."""
