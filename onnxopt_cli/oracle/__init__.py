"""Expected results: computed by formulas or onnx's reference, or read from stored outputs."""
