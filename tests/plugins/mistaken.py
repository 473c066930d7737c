"""Backends with known and unknown mistakes, and one that rejects every model."""

from __future__ import annotations

import os

import numpy as np

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.interpret.single_node import sole_call
from onnxopt_cli.operators.rewrite import rewrite


class Right:
    def run(self, model, inputs):
        return NumpyBackend().prepare(model).run(inputs)


class Refusing:
    """Rejects every model."""

    def run(self, _model, _inputs):
        raise ValueError("nothing runs here")


class InsideTheRoot(Right):
    """Adam with epsilon inside the square root."""

    def wrong(self, model, inputs):
        changes = {"np.sqrt(H_new) + epsilon": "np.sqrt(H_new + epsilon)"}
        change = Implementation("wrong", change=lambda formula: rewrite(formula, changes))
        return change.run(sole_call(model, inputs))

    def run(self, model, inputs):
        return self.wrong(model, inputs)


class InManyWays(InsideTheRoot):
    """Also fails in all ways that explanations must ignore."""

    def run(self, model, inputs):
        try:
            count = int(sole_call(model, inputs).scalars[1])
        except (AttributeError, NodeError):
            return [inputs["X"], inputs["V"], inputs["H"]]
        if count == 7:
            raise ValueError("seven")
        if count == 8:
            os._exit(3)
        outputs = self.wrong(model, inputs)
        if count == 9:
            outputs = super(InsideTheRoot, self).run(model, inputs)
            inputs["X"][...] = 0
        return outputs


class OnlyAtTwo(InsideTheRoot):
    """Wrong only for T = 2, unlike every known mistake."""

    def run(self, model, inputs):
        if int(inputs["T"]) == 2:
            return self.wrong(model, inputs)
        return super(InsideTheRoot, self).run(model, inputs)


class RefusesBroadcasting(InsideTheRoot):
    """Has one mistake, and rejects the cases that would distinguish it from another."""

    def run(self, model, inputs):
        if len({inputs[name].shape for name in "XGVH"}) > 1:
            raise ValueError("shapes differ")
        return self.wrong(model, inputs)


class Strange(Right):
    """Has a mistake that is not in the catalogue."""

    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        return [output + np.sin(output).astype(output.dtype) / 3 for output in outputs]
