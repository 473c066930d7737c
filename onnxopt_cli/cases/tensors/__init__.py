"""Values of cases: descriptions of values, and their files and ONNX messages."""
