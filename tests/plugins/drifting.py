"""Backends whose outputs are wrong in a trajectory, and backends with unusual behaviour."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.errors import Unsupported


def computed(model, inputs):
    return NumpyBackend().prepare(model).run(inputs)


class Drifting:
    """A backend whose X_new is too large by a factor of 1.0001 in each step."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        return [x * np.float32(1.0001), *states]


class LateDrifting:
    """A backend whose X_new has a wrong element if T is at least 37."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        if inputs["T"] >= 37:
            x[1] += np.float32(0.01)
        return [x, *states]


class WideAfterTwo:
    """A backend that returns X_new in double if T is at least 3."""

    def run(self, model, inputs):
        x, *states = computed(model, inputs)
        return [x.astype(np.float64) if inputs["T"] >= 3 else x, *states]


class WithoutLoop:
    """A backend that does not support Loop."""

    def run(self, model, inputs):
        if any(node.op_type == "Loop" for node in model.graph.node):
            raise Unsupported("no Loop here")
        return computed(model, inputs)


class SameBuffer:
    """A backend that returns the same arrays at every call, with new content."""

    def __init__(self):
        self.kept = {}

    def run(self, model, inputs):
        outputs = computed(model, inputs)
        for index, output in enumerate(outputs):
            self.kept.setdefault(index, np.empty_like(output))[...] = output
        return list(self.kept.values())
