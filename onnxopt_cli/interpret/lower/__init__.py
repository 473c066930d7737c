"""The lowering interpretation: a formula as primitive nodes."""
