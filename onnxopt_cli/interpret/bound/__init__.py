"""The bound interpretation: how far any honest evaluation of a formula can be off."""
