"""Backends that compute one step wrongly, of which a trajectory makes a drift."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.readings.mistakes.deviate import deviations
from onnxopt_cli.readings.single_node import sole_call


def computed(model, inputs):
    return NumpyBackend().prepare(model).run(inputs)


class Drifting:
    """X_new is a ten-thousandth too large."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        return [x * np.float32(1.0001), *states]


class LateDrifting:
    """From T = 37 on, one element of X_new is wrong."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        if inputs["T"] >= 37:
            x[1] += np.float32(0.01)
        return [x, *states]


class WrongEpsilon:
    """Epsilon is added after bias correction."""

    def run(self, model, inputs):
        call = sole_call(model, inputs)
        name = "epsilon added after bias correction"
        return next(it for it in deviations(call.operator) if it.name == name).run(call)


class WideAfterTwo:
    """From T = 3 on X_new is in double."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        return [x.astype(np.float64) if inputs["T"] >= 3 else x, *states]


class WithoutLoop:
    """Knows no Loop, and refuses a model that it has prepared before."""

    def run(self, model, inputs):
        if any(node.op_type == "Loop" for node in model.graph.node):
            raise Unsupported("no Loop here")
        return computed(model, inputs)


class SameBuffer:
    """Returns the same memory at every call."""

    def __init__(self):
        self.kept = {}

    def run(self, model, inputs):
        outputs = computed(model, inputs)
        for index, output in enumerate(outputs):
            self.kept.setdefault(index, np.empty_like(output))[...] = output
        return list(self.kept.values())
