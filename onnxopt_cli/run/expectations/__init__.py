"""What a vendor expects of a run, and what its results amount to."""
