"""Frozen data that all other parts share; no behaviour beyond describing itself."""
