"""Lowering: the interpretation of a formula as primitive ONNX nodes."""
