"""Testing a backend against what onnxopt asks of backends, rule by rule."""
