"""Backends that make an error in one step, which accumulates over a trajectory."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.errors import Unsupported


def computed(model, inputs):
    return NumpyBackend().prepare(model).run(inputs)


class Drifting:
    """Returns an X_new that is too large by a factor of 1.0001."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        return [x * np.float32(1.0001), *states]


class LateDrifting:
    """Returns an X_new with a wrong element, from T = 37 on."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        if inputs["T"] >= 37:
            x[1] += np.float32(0.01)
        return [x, *states]


class WideAfterTwo:
    """Returns X_new as a double, from T = 3 on."""

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
    """Returns the same array at every call."""

    def __init__(self):
        self.kept = {}

    def run(self, model, inputs):
        outputs = computed(model, inputs)
        for index, output in enumerate(outputs):
            self.kept.setdefault(index, np.empty_like(output))[...] = output
        return list(self.kept.values())
