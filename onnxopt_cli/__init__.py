"""Conformance tester for ONNX operators."""

__version__ = "0.1.0"
