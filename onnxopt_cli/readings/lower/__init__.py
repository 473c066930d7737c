"""The lowering reading: a formula as primitive nodes."""
