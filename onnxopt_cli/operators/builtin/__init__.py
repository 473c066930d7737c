"""The operators that come with onnxopt: one module for each."""
