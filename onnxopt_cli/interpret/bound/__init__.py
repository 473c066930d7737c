"""The error bound of formulas: the tolerance that is derived from a formula and its inputs."""
