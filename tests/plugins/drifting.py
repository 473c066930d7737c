"""Backends with an error in one step that accumulates over a trajectory."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.errors import Unsupported


def computed(model, inputs):
    return NumpyBackend().prepare(model).run(inputs)


class Drifting:
    """X_new is too large by a factor of 1.0001."""

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


class WideAfterTwo:
    """From T = 3 on, X_new is a double."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        return [x.astype(np.float64) if inputs["T"] >= 3 else x, *states]


class WithoutLoop:
    """A backend that does not support Loop, and rejects a model that it has prepared before."""

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
