"""Corrections of onnx's reference where it deviates from the specification, by subject."""
