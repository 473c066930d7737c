"""Search for failures of a backend: examples drawn by hypothesis, shrunk and explained."""
