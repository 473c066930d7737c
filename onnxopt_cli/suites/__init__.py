"""The suites of cases that are a part of onnxopt."""
