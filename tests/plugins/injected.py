"""Plugins with one injected mistake each, which ``onnxopt fuzz`` should find."""

from __future__ import annotations

import os
import time

import numpy as np

from onnxopt_cli.backends.reference import NumpyBackend


class Right:
    def run(self, model, inputs):
        return NumpyBackend().prepare(model).run(inputs)


class WrongBeyondFive(Right):
    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        if _counts(inputs, lambda count: count > 5):
            outputs[0] = outputs[0] + outputs[0].dtype.type(1)
        return outputs


class WrongType(Right):
    def run(self, model, inputs):
        return [np.asarray(output, np.float64) for output in super().run(model, inputs)]


class DiesOfEmptiness(Right):
    def run(self, model, inputs):
        if any(value.size == 0 for value in inputs.values()):
            os._exit(11)
        return super().run(model, inputs)


class HangsAtThree(Right):
    def run(self, model, inputs):
        if _counts(inputs, lambda count: count == 3):
            time.sleep(60)
        return super().run(model, inputs)


class WrongTypeAndShape(Right):
    def run(self, model, inputs):
        first, *states = super().run(model, inputs)
        if len(model.graph.node) > 1:
            return [first, *states]
        rate = inputs["R"]
        if rate.dtype == np.float64:
            first = first.astype(np.float64)
        if rate.ndim:
            first = first.reshape(1, *first.shape)
        return [first, *states]


class DiesAtNaN(Right):
    def run(self, model, inputs):
        if any(np.isnan(value).any() for name, value in inputs.items() if name[0] != "R"):
            os.abort()
        return super().run(model, inputs)


class DiesAtLargeElements(Right):
    def run(self, model, inputs):
        if any((value > 100).any() for name, value in inputs.items() if name[0] == "G"):
            os.abort()
        return super().run(model, inputs)


class TakesAnyMode(Right):
    def run(self, model, inputs):
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "mode" and attribute.s == b"bogus":
                    attribute.s = b"nesterov"
        return super().run(model, inputs)


class DiesAtUnknownMode(Right):
    def run(self, model, inputs):
        if any(
            attribute.s == b"bogus" for node in model.graph.node for attribute in node.attribute
        ):
            os.abort()
        return super().run(model, inputs)


class NeverReturns(Right):
    def run(self, model, inputs):
        time.sleep(300)
        return super().run(model, inputs)


class WrongInCompany(Right):
    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        if len(model.graph.node) > 1:
            outputs[-1] = outputs[-1] + outputs[-1].dtype.type(1)
        return outputs


def _counts(inputs, test):
    return any(value.dtype.kind == "i" and test(value.item()) for value in inputs.values())
