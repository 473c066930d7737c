"""Plugins with the interface ``run(model, inputs)``."""

from __future__ import annotations

from unittest import SkipTest

import neighbour
import numpy as np

from onnxopt_cli.errors import Unsupported


class Negate:
    def run(self, model, inputs):
        assert isinstance(inputs, dict)
        assert model.graph.node[0].op_type == "Neg"
        return neighbour.negate(inputs["x"])


class StaticNegate:
    def __init__(self):
        raise AssertionError("run needs no instance")

    @staticmethod
    def run(_model, inputs):
        return [-inputs["x"]]


instance = Negate()


class Raises:
    """A backend that raises the error given to its constructor."""

    def __init__(self, error):
        self.error = error

    def run(self, _model, _inputs):
        raise self.error


says_not_implemented = Raises(NotImplementedError("no Neg\x1b[31m"))
says_skip = Raises(SkipTest("no Neg"))
says_unsupported = Raises(Unsupported("no Neg", operator="ai.onnx:Neg"))
fails = Raises(ZeroDivisionError("broken"))
exits = Raises(SystemExit(3))


class Vandal:
    """A backend that empties the model and the dictionary of inputs."""

    def run(self, model, inputs):
        del model.graph.node[:]
        inputs.clear()
        return [np.zeros(3, np.float32)]


def alone(_model, inputs, _precise=False):
    return [-inputs["x"]]
