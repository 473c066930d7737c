"""The mistake readings: implementations that are wrong on purpose."""
