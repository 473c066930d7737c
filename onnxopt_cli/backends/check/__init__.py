"""Check a backend against the rules that onnxopt relies on."""
