"""A network for scikit-learn's digits that is trained and pruned by ONNX graphs."""
