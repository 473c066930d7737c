"""The reading of models without a formula of ours: how far roundings move exact answers."""
