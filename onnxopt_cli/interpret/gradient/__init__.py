"""The operator Gradient: nodes that compute derivatives in reverse mode."""
