"""Confirm derivatives of reverse mode by difference quotients of the differentiated function.

The function that a Gradient node differentiates runs on onnx's reference in double. It runs at
points on both sides of the node's inputs, at several distances h in decreasing order. An element of
a derivative is confirmed if two conditions hold at one of the distances. The central difference
quotient agrees with the element, and the difference between the slopes on both sides is small or
decreases with h. At a kink, such as Relu at 0 or a tie of Max, the difference between the slopes
does not decrease. The derivative is undefined at a kink, so no implementation is wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.interpret.gradient.reverse_mode import (
    DifferentiatedGraph,
    expand_gradients,
    is_gradient,
    node_inputs,
    nodes_before,
)
from onnxopt_cli.oracle.evaluator import ReferenceModel, native_outputs
from onnxopt_cli.oracle.patching import corrected

# The distances h, relative to the magnitude of the element.
_DISTANCES = tuple(2.0**-exponent for exponent in (5, 8, 11, 14, 17))
# A confirmed derivative has at most this relative difference from the difference quotient.
_AGREEMENT = 1e-6
# The difference is relative to the magnitude of the derivative, but at least to _SMALL_SHARE times
# the largest derivative in the tensor. The roundings of the function hide smaller derivatives.
_SMALL_SHARE = 1e-6
# The rounding error of the function, relative to its outputs.
_NOISE = 2.0**-46
# The slopes on both sides of a point count as equal if their relative difference is below this
# limit.
_SAME_SLOPE = 1e-5
# If the difference quotients of all single elements need more than this number of node visits,
# quotients along random directions are computed instead.
_MAX_VISITS = 40_000
_RANDOM_DIRECTIONS = 8


def unconfirmed_elements(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> dict[str, Array]:
    """Return masks of the elements of derivatives that difference quotients do not confirm.

    Args:
        model: a model with Gradient nodes.
        inputs: its inputs.

    Returns:
        For each output of the graph, a mask of its unconfirmed elements. For an output that no
        Gradient node computes, the mask is a scalar: whether the output depends on any unconfirmed
        element.

    Raises:
        NodeError: if a derivative cannot be computed.
        Exception: any exception that the reference raises.
    """
    functions = [_Function(model, node) for node in model.graph.node if is_gradient(node)]
    with corrected():
        values = _wide_values(model, inputs, functions)
        masks: dict[str, Array] = {}
        for function in functions:
            masks |= function.unconfirmed(values)
    outputs = [output.name for output in model.graph.output]
    return {name: masks[name] for name in outputs if name in masks} | {
        name: np.array(_depends_on_unconfirmed(model, name, masks))
        for name in outputs
        if name not in masks
    }


def with_inconclusive_elements(
    right: Sequence[tuple[Array, Array]], unconfirmed: Array
) -> tuple[tuple[Array, Array], ...]:
    """Return correct values and tolerances, with infinite tolerances for unconfirmed elements."""
    return tuple((value, np.where(unconfirmed, np.inf, limit)) for value, limit in right)


def _depends_on_unconfirmed(model: onnx.ModelProto, name: str, masks: Mapping[str, Array]) -> bool:
    producers = {output: node for node in model.graph.node for output in node.output}
    before = nodes_before([name], producers, stop=[*masks])
    read = {source for node in before for source in node_inputs(node)}
    return any(mask.any() for source, mask in masks.items() if source in read)


def _wide_values(
    model: onnx.ModelProto, inputs: Mapping[str, Value], functions: Sequence[_Function]
) -> dict[str, Any]:
    """Return the inputs and the derivatives of differentiated functions, computed in double."""
    names = list(dict.fromkeys(name for function in functions for name in function.tensors))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    expanded = expand_gradients(probe, inputs, native_outputs)
    outputs = ReferenceModel(expanded, wide=True).run(inputs)
    return dict(zip(names, outputs, strict=True))


@dataclass(frozen=True, eq=False)
class _Direction:
    """A direction in which the inputs of a function move.

    Attributes:
        name: the tensor that moves.
        step: the movement of the tensor at distance 1.
        elements: the flat index of the element that moves, or a slice of all elements for a random
            direction.
    """

    name: str
    step: Array
    elements: slice | int


class _Function:
    """The function that a Gradient node differentiates, as a model of its own."""

    def __init__(self, model: onnx.ModelProto, gradient: onnx.NodeProto) -> None:
        names = [value.name for value in (*model.graph.input, *model.graph.initializer)]
        other_nodes = [node for node in model.graph.node if node is not gradient]
        graph = DifferentiatedGraph(gradient, other_nodes, names)
        computed = {output for node in graph.nodes for output in node.output if output}
        read = [
            *graph.substitutes,
            graph.y,
            *(n for node in graph.nodes for n in node_inputs(node)),
        ]
        # A function without nodes returns its input, so the result y counts as a value that is
        # read.
        self._free = [name for name in dict.fromkeys(read) if name not in computed]
        self._graph, self._model, self._gradient = graph, model, gradient
        constant_tensors = [name for name in self._free if name not in graph.substitutes]
        results = [name for name in gradient.output if name]
        self.tensors = list(dict.fromkeys([*gradient.input, *constant_tensors, *results]))

    def _as_model(self) -> onnx.ModelProto:
        nodes = self._graph.nodes
        graph = helper.make_graph(
            [*nodes, helper.make_node("Identity", [self._graph.y], ["differentiated_y"])],
            "function",
            [onnx.ValueInfoProto(name=name) for name in self._free],
            [onnx.ValueInfoProto(name="differentiated_y")],
        )
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.CopyFrom(graph)
        return model

    def unconfirmed(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Return a mask of the unconfirmed elements of each output of the Gradient node."""
        nested = any(map(is_gradient, self._graph.nodes))
        point = {name: values[self._graph.substitutes.get(name, name)] for name in self._free}
        model = self._as_model()
        if nested:
            # The inner Gradient node of a second derivative is confirmed separately.
            model = expand_gradients(model, point, native_outputs)
        function = ReferenceModel(model, wide=True)
        (y,) = function.run(point)
        masks: dict[str, Array] = {}
        for name, output in zip(self._graph.xs, self._gradient.output, strict=False):
            if not output:
                continue
            derivative = values[output]
            mask = np.zeros(derivative.size, bool)
            for direction in _directions(name, point[name], len(model.graph.node)):
                if not _is_confirmed(function, point, y, direction, derivative):
                    mask[direction.elements] = True
            masks[output] = mask.reshape(derivative.shape)
        return masks


def _directions(name: str, x: Array, nodes: int) -> Iterator[_Direction]:
    """Yield one direction per element of a small tensor, or random directions of a large tensor."""
    finite = np.where(np.isfinite(x), np.abs(x), 0.0)
    typical = float(finite.max(initial=0.0)) or 1.0
    sizes = np.where(finite > 0, finite, typical)
    if 2 * len(_DISTANCES) * nodes * x.size <= _MAX_VISITS:
        for index in range(x.size):
            step = np.zeros(x.size)
            step[index] = sizes.reshape(-1)[index]
            yield _Direction(name, step.reshape(x.shape), index)
        return
    random = np.random.default_rng(prod(x.shape))
    for _ in range(_RANDOM_DIRECTIONS):
        yield _Direction(name, sizes * random.choice([-1.0, 1.0], x.shape), slice(None))


def _is_confirmed(
    function: ReferenceModel,
    point: Mapping[str, Any],
    y: Array,
    direction: _Direction,
    derivative: Array,
) -> bool:
    """Return whether difference quotients along a direction confirm a derivative."""
    terms = derivative * direction.step
    # Elements that do not move have a step of zero. Their derivatives may be infinite.
    stated = float(np.sum(np.where(direction.step != 0, terms, 0.0)))
    if not np.isfinite(stated):
        return False
    largest = np.abs(derivative[np.isfinite(derivative)]).max(initial=0.0)
    scale = max(abs(stated), _SMALL_SHARE * largest * float(np.abs(direction.step).max()))
    central_before, gap_before = np.inf, 0.0
    for distance in _DISTANCES:
        slopes, noise = [], 0.0
        for sign in (1, -1):
            moved = point[direction.name] + sign * distance * direction.step
            (moved_y,) = function.run({**point, direction.name: moved})
            moved_y = np.asarray(moved_y, np.float64)
            # Values that remain NaN or infinite do not depend on the direction.
            same = (moved_y == y) | (np.isnan(moved_y) & np.isnan(y))
            change = np.where(same, 0.0, moved_y - y)
            slopes.append(float(change.sum()) * sign / distance)
            noise += _NOISE * float(np.abs(moved_y[~same]).sum()) / distance
        central, gap = sum(slopes) / 2, abs(slopes[0] - slopes[1])
        if not np.isfinite(central + noise):
            continue
        # The error of a central difference is proportional to the square of the distance.
        extrapolated = (64 * central - central_before) / 63
        agrees = any(
            abs(estimate - stated) <= _AGREEMENT * scale + noise
            for estimate in (central, extrapolated)
        )
        smooth = gap <= max(_SAME_SLOPE * scale + noise, gap_before / 4)
        if agrees and smooth:
            return True
        central_before, gap_before = central, gap
    return False
