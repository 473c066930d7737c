"""Values of cases, and how files and ONNX messages represent them."""
