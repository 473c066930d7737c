"""Data types that all packages share, and their comparison, encoding, printing and storage."""
