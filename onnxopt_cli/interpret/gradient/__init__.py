"""The operator Gradient, expanded to nodes that compute derivatives in reverse mode."""
