"""Two cases of Momentum, with correct and wrong backends for them."""

CASE = """\
onnxopt: 1
suite: demo
operator: Momentum
cases:
  - name: plain
    about: One ordinary step.
    tags: [ordinary]
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.1, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}
  - name: nesterov
    attributes: {alpha: 0.9, beta: 1.0, mode: nesterov, norm_coefficient: 0.0}
    inputs: {R: 0.1, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}
"""

BACKEND = """\
import numpy as np
from onnxopt_cli.backends.resolve import resolve_backend

NUMPY = resolve_backend("numpy")


class Right:
    def run(self, model, inputs):
        return NUMPY.prepare(model).run(inputs)


class Off(Right):
    def run(self, model, inputs):
        first, *rest = super().run(model, inputs)
        return [first + np.float32(0.25), *rest]


class Double(Right):
    def run(self, model, inputs):
        return [output.astype(np.float64) for output in super().run(model, inputs)]


class Short(Right):
    def run(self, model, inputs):
        return super().run(model, inputs)[:1]


class Scribbler(Right):
    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        inputs["X"] += 1
        return outputs


class Raises:
    def run(self, model, inputs):
        raise ValueError("no \\x1b[31m luck [/x]")


class Traces:
    def run(self, model, inputs):
        frames = "\\n".join(f"  at frame {number}" for number in range(900))
        raise RuntimeError(f"cannot compile\\n{frames}\\nInternalError: the cause")


class Exits:
    def run(self, model, inputs):
        raise SystemExit(0)


class Unable:
    def run(self, model, inputs):
        raise NotImplementedError("Momentum is not known here")
"""
