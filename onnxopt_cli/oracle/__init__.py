"""Expected results: from formulas, from onnx's reference with condition estimates, or stored."""
