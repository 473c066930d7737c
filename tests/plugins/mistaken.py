"""Backends with known mistakes, unknown mistakes, wrong optimizations, or only errors."""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace

import numpy as np
from onnx import numpy_helper

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.operators.call import sole_call
from onnxopt_cli.operators.rewrite import rewrite


class Right:
    def run(self, model, inputs):
        return NumpyBackend().prepare(model).run(inputs)


class Refusing:
    """A backend that rejects every model."""

    def run(self, _model, _inputs):
        raise ValueError("nothing runs here")


class InsideTheRoot(Right):
    """A backend that computes Adam with epsilon inside the square root."""

    def wrong(self, model, inputs):
        changes = {"np.sqrt(H_new) + epsilon": "np.sqrt(H_new + epsilon)"}
        change = Implementation("wrong", change=lambda formula: rewrite(formula, changes))
        return change.run(sole_call(model, inputs))

    def run(self, model, inputs):
        return self.wrong(model, inputs)


class InManyWays(InsideTheRoot):
    """A backend like InsideTheRoot that also fails in ways which explanations must ignore."""

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
    """A backend that adds epsilon inside the root only for T = 2, unlike every known mistake."""

    def run(self, model, inputs):
        if int(inputs["T"]) == 2:
            return self.wrong(model, inputs)
        return super(InsideTheRoot, self).run(model, inputs)


class StandardAfterTheFirst(Right):
    """A backend that ignores the mode nesterov of Momentum from the second tensor on."""

    def run(self, model, inputs):
        call = sole_call(model, inputs)
        standard = replace(call, attributes={**call.attributes, "mode": "standard"})
        pairs = zip(evaluate(call), evaluate(standard), strict=True)
        count = len(call.groups)
        return [
            right if place % count == 0 else wrong for place, (right, wrong) in enumerate(pairs)
        ]


class PrunesAllAtHundred(Right):
    """A backend of AdmmUpdate that prunes every finite element if percent is 100."""

    def run(self, model, inputs):
        call = sole_call(model, inputs)
        outputs, count, percents = evaluate(call), len(call.groups), call.attributes["percent"]
        for group, (W, _, U) in enumerate(call.groups):
            if percents[group % len(percents)] == 100:
                Z_new, U_new = outputs[group], outputs[count + group]
                finite = np.isfinite(Z_new)
                outputs[group] = np.where(finite, Z_new.dtype.type(0), Z_new)
                outputs[count + group] = np.where(finite, W + U, U_new).astype(U_new.dtype)
        return outputs


class CountsRuns(Right):
    """A backend that uses the number of its runs as T."""

    def __init__(self):
        self.runs = 0

    def run(self, model, inputs):
        self.runs += 1
        return super().run(model, {**inputs, "T": np.array(self.runs)})


class ReturnsInNodeOrder(Right):
    """A backend that returns outputs in the node's order, even if the graph's order differs."""

    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        by_name = dict(zip((info.name for info in model.graph.output), outputs, strict=True))
        return [by_name.get(name, outputs[0]) for name in model.graph.node[0].output]


class ReadsAttributesByPosition(Right):
    """A backend of Momentum that expects the numbers in the alphabetical order of their names."""

    def run(self, model, inputs):
        copy = deepcopy(model)
        numbers = [each for each in copy.graph.node[0].attribute if each.name != "mode"]
        names = sorted(number.name for number in numbers)
        for number, name in zip(numbers, names, strict=True):
            number.name = name
        return super().run(copy, inputs)


class RefusesBroadcasting(InsideTheRoot):
    """A backend like InsideTheRoot that also rejects broadcasting."""

    def run(self, model, inputs):
        if len({inputs[name].shape for name in "XGVH"}) > 1:
            raise ValueError("shapes differ")
        return self.wrong(model, inputs)


class Strange(Right):
    """A backend with an unknown mistake."""

    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        return [output + np.sin(output).astype(output.dtype) / 3 for output in outputs]


class Optimized:
    """A backend that changes the graph of a model before it runs the model."""

    def run(self, model, inputs):
        changed = deepcopy(model)
        self.optimize(changed.graph)
        return NumpyBackend().prepare(changed).run(inputs)


class TransposesCancel(Optimized):
    """A backend that removes two consecutive Transpose nodes even if they do not cancel."""

    def optimize(self, graph):
        producers = {output: node for node in graph.node for output in node.output}
        for node in graph.node:
            before = producers.get(node.input[0]) if node.op_type == "Transpose" else None
            if before is not None and before.op_type == "Transpose":
                node.op_type = "Identity"
                node.input[0] = before.input[0]
                del node.attribute[:]


class ZeroAbsorbs(Optimized):
    """A backend that replaces a product with zero if a factor is a constant zero."""

    def optimize(self, graph):
        zeros = {
            tensor.name for tensor in graph.initializer if not numpy_helper.to_array(tensor).any()
        }
        for node in graph.node:
            if node.op_type == "Mul" and not zeros.isdisjoint(node.input):
                x = next((name for name in node.input if name not in zeros), node.input[0])
                zero = next(name for name in node.input if name in zeros)
                node.op_type = "Where"
                node.input[:] = ["never", x, zero]
        never = numpy_helper.from_array(np.array(False), "never")
        graph.initializer.append(never)


class PrunesTinyElements(Right):
    """A backend whose MagnitudePrune also prunes all elements below 1e-30."""

    def run(self, model, inputs):
        call = sole_call(model, inputs)
        outputs, count = evaluate(call), len(call.groups)
        for place, (W,) in enumerate(call.groups):
            for at in (place, count + place):
                outputs[at] = np.where(np.abs(W) < 1e-30, outputs[at].dtype.type(0), outputs[at])
        return outputs
