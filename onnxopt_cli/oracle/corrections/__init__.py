"""Operators of onnx's reference as the specification has them, by subject."""
