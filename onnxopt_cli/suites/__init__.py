"""The suites that onnxopt writes."""
