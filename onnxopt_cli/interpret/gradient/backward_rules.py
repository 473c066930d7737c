"""The rules of differentiation: gradients of a node's inputs, given the gradients of its outputs.

A rule returns the name of the gradient of each input, or None for an input without a gradient. In
the rules, ``g`` is the gradient of the output, x is the first input, and y is the output. The rules
for convolution and pooling use a table of the elements in each window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from math import pi, prod, sqrt
from typing import TypeAlias

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.gradient.backward_pass import (
    DifferentiatedNode,
    broadcast_axes,
    places_of,
    unsupported,
)

Rule: TypeAlias = Callable[[DifferentiatedNode], Sequence[str | None]]
_Unary: TypeAlias = Callable[[DifferentiatedNode, str, str, str], str]

# From this version on, Softmax and LogSoftmax normalize over a single axis. Earlier versions
# normalize over the stated axis and all later axes together.
_SINGLE_AXIS_VERSION = 13
_MATRIX_RANK = 2


class _Windows:
    """The elements of a tensor (N, C, ...) in each window of a convolution or pool.

    Args:
        node: the node.
        kernel: the spatial shape of the kernel.

    Attributes:
        x: the input.
        batch, channels: the first two dimensions of x.
        positions: the number of elements in a channel of x.
        offsets: the number of elements in a window.
        windows: the number of windows in a channel.
        table: for each offset (row) and window (column), the index of an element in its channel;
            ``positions`` for an element of the padding.
        inside: for each offset and window, whether the element belongs to the tensor.
        padded: for each offset and window, whether the element belongs to the tensor or its
            padding. With ``ceil_mode``, windows may extend beyond the padding.
    """

    def __init__(self, node: DifferentiatedNode, kernel: Sequence[int]) -> None:
        self.node, self.x = node, node.inputs[0]
        self.batch, self.channels, *spatial = node.shape(self.x)
        output = node.shape(node.outputs[0])[2:]
        rank = len(spatial)
        strides = node.attributes.get("strides", [1] * rank)
        dilations = node.attributes.get("dilations", [1] * rank)
        before, after = _pads(node, spatial, output, kernel)
        axes = []
        for axis in range(rank):
            starts = np.arange(output[axis]) * strides[axis] - before[axis]
            axes.append(np.arange(kernel[axis])[:, None] * dilations[axis] + starts)
        self.positions = prod(spatial)
        self.offsets, self.windows = prod(kernel), prod(output)
        table = np.zeros((self.offsets, self.windows), np.int64)
        self.inside = np.ones(table.shape, bool)
        self.padded = np.ones(table.shape, bool)
        for row, offset in enumerate(product(*map(range, kernel))):
            for column, window in enumerate(product(*map(range, output))):
                place = [axes[axis][offset[axis], window[axis]] for axis in range(rank)]
                limits = zip(place, spatial, after, strict=True)
                self.padded[row, column] = all(at < size + end for at, size, end in limits)
                self.inside[row, column] = all(
                    0 <= at < size for at, size in zip(place, spatial, strict=True)
                )
                if self.inside[row, column]:
                    table[row, column] = np.ravel_multi_index(place, spatial)
        self.table = np.where(self.inside, table, self.positions)

    def columns(self) -> str:
        """Append nodes for a tensor (N, C, offsets, windows) of the elements in each window."""
        backward = self.node.backward
        flat = backward.reshaped(self.x, (self.batch, self.channels, self.positions))
        zero = self.node.like(np.zeros((self.batch, self.channels, 1)), self.x)
        padded = self.node.call("Concat", flat, zero, axis=2)
        return self.node.call("Gather", padded, backward.integers(self.table), axis=2)

    def scattered(self, columns: str) -> str:
        """Append nodes that sum, for each element, the gradients in all windows that contain it.

        Args:
            columns: gradients of the elements in each window, (N, C, offsets, windows).
        """
        backward = self.node.backward
        sources = np.where(self.inside, self.table, -1)
        places = places_of(sources, self.positions)
        flat = backward.reshaped(columns, (self.batch, self.channels, self.offsets * self.windows))
        zero = self.node.like(np.zeros((self.batch, self.channels, 1)), self.x)
        padded = self.node.call("Concat", flat, zero, axis=2)
        gradients_of_places = self.node.call("Gather", padded, backward.integers(places), axis=2)
        summed = backward.summed(gradients_of_places, [3], keepdims=False)
        return backward.reshaped(summed, self.node.shape(self.x))


def _pads(
    node: DifferentiatedNode, spatial: Sequence[int], output: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the padding before and after each spatial axis."""
    rank = len(spatial)
    automatic = node.attributes.get("auto_pad", b"NOTSET").decode()
    if automatic == "NOTSET":
        pads = [*node.attributes.get("pads", [0] * (2 * rank))]
        return pads[:rank], pads[rank:]
    if automatic == "VALID":
        return [0] * rank, [0] * rank
    strides = node.attributes.get("strides", [1] * rank)
    dilations = node.attributes.get("dilations", [1] * rank)
    before, after = [], []
    for axis in range(rank):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        total = max(0, (output[axis] - 1) * strides[axis] + extent - spatial[axis])
        smaller, larger = total // 2, total - total // 2
        before.append(smaller if automatic == "SAME_UPPER" else larger)
        after.append(larger if automatic == "SAME_UPPER" else smaller)
    return before, after


def _convolution(node: DifferentiatedNode) -> Sequence[str | None]:
    w, y, backward = node.inputs[1], node.outputs[0], node.backward
    maps, depth, *kernel = node.shape(w)
    windows = _Windows(node, kernel)
    groups = node.attributes.get("group", 1)
    grouped = (windows.batch, groups, depth * windows.offsets, windows.windows)
    g = backward.reshaped(node.gradient, (windows.batch, groups, maps // groups, windows.windows))
    columns = backward.reshaped(windows.columns(), grouped)
    weights = backward.reshaped(w, (1, groups, maps // groups, depth * windows.offsets))
    turned = node.call("Transpose", weights, perm=[0, 1, 3, 2])
    by_columns = backward.reshaped(
        node.call("MatMul", turned, g),
        (windows.batch, windows.channels, windows.offsets, windows.windows),
    )
    by_weights = node.call("MatMul", g, node.call("Transpose", columns, perm=[0, 1, 3, 2]))
    summed = backward.summed(by_weights, [0], keepdims=False)
    gradients: list[str | None] = [
        windows.scattered(by_columns),
        backward.reshaped(summed, node.shape(w)),
    ]
    if node.optional_value(2) is not None:
        axes = [0, *range(2, len(node.shape(y)))]
        gradients.append(backward.summed(node.gradient, axes, keepdims=False))
    return gradients


def _average_pool(node: DifferentiatedNode) -> Sequence[str | None]:
    windows = _Windows(node, node.attributes["kernel_shape"])
    includes = node.attributes.get("count_include_pad", 0)
    counted = windows.padded if includes else windows.inside
    counts = np.maximum(counted.sum(axis=0), 1)
    backward = node.backward
    g = backward.reshaped(node.gradient, (windows.batch, windows.channels, 1, windows.windows))
    shares = node.call("Div", g, node.like(counts, windows.x))
    columns_shape = (windows.batch, windows.channels, windows.offsets, windows.windows)
    return [windows.scattered(backward.expanded(shares, columns_shape))]


def _max_pool(node: DifferentiatedNode) -> Sequence[str | None]:
    if any(node.outputs[1:]):
        raise unsupported(node.node, "with its indices")
    windows = _Windows(node, node.attributes["kernel_shape"])
    x = node.value(windows.x)
    channels = windows.batch * windows.channels
    flat = np.asarray(x, np.float64).reshape(channels, windows.positions)
    lowest = np.full((channels, 1), -np.inf)
    columns = np.concatenate([flat, lowest], axis=1)[:, windows.table]
    largest = columns.argmax(axis=1)
    within = windows.table[largest, np.arange(windows.windows)]
    sources: Array = within + np.arange(channels)[:, None] * windows.positions
    return [node.gathered(node.flat_outputs(), sources, windows.x)]


def _global_average_pool(node: DifferentiatedNode) -> Sequence[str | None]:
    x = node.inputs[0]
    shape = node.shape(x)
    shares = node.call("Div", node.gradient, node.like(prod(shape[2:]), x))
    return [node.backward.expanded(shares, shape)]


def _global_max_pool(node: DifferentiatedNode) -> Sequence[str | None]:
    x, y = node.inputs[0], node.outputs[0]
    chosen = node.call("Equal", x, y)
    return [node.call("Where", chosen, node.gradient, node.like(0, x))]


def _unary(derivative: _Unary) -> Rule:
    """Return the rule of an elementwise operator with one input.

    Args:
        derivative: takes the node, g, x and y, and returns the gradient of x.
    """

    def rule(node: DifferentiatedNode) -> Sequence[str | None]:
        x, y = node.inputs[0], node.outputs[0]
        return [derivative(node, node.gradient, x, y)]

    return rule


def _square(node: DifferentiatedNode, name: str) -> str:
    return node.call("Mul", name, name)


def _where_positive(
    node: DifferentiatedNode, x: str, positive: str, otherwise: str | None = None
) -> str:
    """Append a Where node that selects ``positive`` if x > 0, else ``otherwise`` (default zero)."""
    is_positive = node.call("Greater", x, node.like(0, x))
    return node.call("Where", is_positive, positive, otherwise or node.like(0, x))


def _one_minus(node: DifferentiatedNode, name: str, like: str) -> str:
    return node.call("Sub", node.like(1, like), name)


def _exponential_unit(alpha: float, scale: float, width: str = "") -> _Unary:
    """Return the function for the gradient of Elu, Selu or Celu.

    Args:
        alpha: the default of the attribute alpha.
        scale: the default of the attribute gamma.
        width: the name of the attribute by which x is divided; empty for Elu and Selu.
    """

    def derivative(node: DifferentiatedNode, g: str, x: str, _y: str) -> str:
        steepness = float(node.attributes.get("alpha", alpha))
        gamma = float(node.attributes.get("gamma", scale))
        negative = node.call("Min", x, node.like(0, x))
        if width:
            negative = node.call("Div", negative, node.like(steepness, x))
            steepness = 1.0
        slope = node.times(node.call("Exp", negative), node.like(np.float32(gamma * steepness), x))
        positive = node.times(g, node.like(np.float32(gamma), x)) if gamma != 1 else g
        return _where_positive(node, x, positive, node.times(g, slope))

    return derivative


def _leaky_relu(node: DifferentiatedNode, g: str, x: str, _y: str) -> str:
    alpha = node.like(np.float32(node.attributes.get("alpha", np.float32(0.01))), x)
    return _where_positive(node, x, g, node.times(g, alpha))


def _hard_sigmoid(node: DifferentiatedNode, g: str, x: str, y: str) -> str:
    alpha = node.like(np.float32(node.attributes.get("alpha", np.float32(0.2))), x)
    inside = node.call(
        "And",
        node.call("Greater", y, node.like(0, x)),
        node.call("Less", y, node.like(1, x)),
    )
    return node.call("Where", inside, node.times(g, alpha), node.like(0, x))


def _thresholded_relu(node: DifferentiatedNode, g: str, x: str, _y: str) -> str:
    alpha = node.like(np.float32(node.attributes.get("alpha", 1.0)), x)
    return node.call("Where", node.call("Greater", x, alpha), g, node.like(0, x))


def _error_function(node: DifferentiatedNode, g: str, x: str, _y: str) -> str:
    bell = node.call("Exp", node.call("Neg", _square(node, x)))
    return node.times(g, node.times(bell, node.like(2 / sqrt(pi), x)))


def _over_root(node: DifferentiatedNode, g: str, square: str) -> str:
    return node.call("Div", g, node.call("Sqrt", square))


def _zero(node: DifferentiatedNode, _g: str, x: str, _y: str) -> str:
    return node.zeros(x)


_UNARY: Mapping[str, _Unary] = {
    "Identity": lambda _, g, _x, _y: g,
    "Neg": lambda n, g, _x, _y: n.call("Neg", g),
    "Abs": lambda n, g, x, _y: n.times(g, n.call("Sign", x)),
    "Exp": lambda n, g, _x, y: n.times(g, y),
    "Log": lambda n, g, x, _y: n.call("Div", g, x),
    "Sqrt": lambda n, g, _x, y: n.call("Div", g, n.call("Add", y, y)),
    "Reciprocal": lambda n, g, _x, y: n.call("Neg", n.times(g, _square(n, y))),
    "Tanh": lambda n, g, x, y: n.times(g, _one_minus(n, _square(n, y), x)),
    "Sigmoid": lambda n, g, x, y: n.times(n.times(g, y), _one_minus(n, y, x)),
    "Softplus": lambda n, g, x, _y: n.times(g, n.call("Sigmoid", x)),
    "Softsign": lambda n, g, x, _y: n.call(
        "Div", g, _square(n, n.call("Add", n.like(1, x), n.call("Abs", x)))
    ),
    "Relu": lambda n, g, x, _y: _where_positive(n, x, g),
    "LeakyRelu": _leaky_relu,
    "Elu": _exponential_unit(1.0, 1.0),
    "Celu": _exponential_unit(1.0, 1.0, "alpha"),
    "Selu": _exponential_unit(1.67326319217681884765625, 1.05070102214813232421875),
    "HardSigmoid": _hard_sigmoid,
    "ThresholdedRelu": _thresholded_relu,
    "Erf": _error_function,
    "Sin": lambda n, g, x, _y: n.times(g, n.call("Cos", x)),
    "Cos": lambda n, g, x, _y: n.call("Neg", n.times(g, n.call("Sin", x))),
    "Tan": lambda n, g, x, y: n.times(g, n.call("Add", n.like(1, x), _square(n, y))),
    "Asin": lambda n, g, x, _y: _over_root(n, g, _one_minus(n, _square(n, x), x)),
    "Acos": lambda n, g, x, _y: n.call("Neg", _over_root(n, g, _one_minus(n, _square(n, x), x))),
    "Atan": lambda n, g, x, _y: n.call("Div", g, n.call("Add", n.like(1, x), _square(n, x))),
    "Sinh": lambda n, g, x, _y: n.times(g, n.call("Cosh", x)),
    "Cosh": lambda n, g, x, _y: n.times(g, n.call("Sinh", x)),
    "Asinh": lambda n, g, x, _y: _over_root(n, g, n.call("Add", _square(n, x), n.like(1, x))),
    "Acosh": lambda n, g, x, _y: _over_root(n, g, n.call("Sub", _square(n, x), n.like(1, x))),
    "Atanh": lambda n, g, x, _y: n.call("Div", g, _one_minus(n, _square(n, x), x)),
    **dict.fromkeys(("Ceil", "Floor", "Round", "Sign"), _zero),
}


def _cast(node: DifferentiatedNode) -> Sequence[str | None]:
    x, y = node.inputs[0], node.outputs[0]
    if not node.is_differentiable(x) or not node.is_differentiable(y):
        return [None]
    return [node.backward.cast(node.gradient, node.value(x).dtype)]


def _cast_like(node: DifferentiatedNode) -> Sequence[str | None]:
    return [*_cast(node), None]


def _broadcast(node: DifferentiatedNode, gradients: Sequence[str | None]) -> list[str | None]:
    """Append sums of gradients over the axes along which each input was broadcast."""
    shape = node.shape(node.outputs[0])
    return [
        gradient and node.reduced(gradient, shape, name)
        for gradient, name in zip(gradients, node.inputs, strict=True)
    ]


def _add(node: DifferentiatedNode) -> Sequence[str | None]:
    return _broadcast(node, [node.gradient] * len(node.inputs))


def _subtract(node: DifferentiatedNode) -> Sequence[str | None]:
    return _broadcast(node, [node.gradient, node.call("Neg", node.gradient)])


def _multiply(node: DifferentiatedNode) -> Sequence[str | None]:
    a, b = node.inputs
    return _broadcast(node, [node.times(node.gradient, b), node.times(node.gradient, a)])


def _divide(node: DifferentiatedNode) -> Sequence[str | None]:
    _, b = node.inputs
    by_dividend = node.call("Div", node.gradient, b)
    by_divisor = node.call("Neg", node.times(by_dividend, node.outputs[0]))
    # The gradient of the divisor is -g a / b^2, computed as -(g / b) (a / b).
    return _broadcast(node, [by_dividend, by_divisor])


def _power(node: DifferentiatedNode) -> Sequence[str | None]:
    base, exponent = node.inputs
    g, dtype = node.gradient, node.value(base).dtype
    less = node.call("Sub", exponent, node.like(1, exponent))
    factor = exponent
    if node.value(exponent).dtype != dtype:
        factor = node.backward.cast(exponent, dtype)
    gradients: list[str | None] = [
        node.times(g, factor, node.call("Pow", base, less)),
        None,
    ]
    if node.is_differentiable(exponent):
        by_exponent = node.times(g, node.outputs[0], node.call("Log", base))
        if node.value(exponent).dtype != dtype:
            by_exponent = node.backward.cast(by_exponent, node.value(exponent).dtype)
        gradients[1] = by_exponent
    return _broadcast(node, gradients)


def _extremum(node: DifferentiatedNode) -> Sequence[str | None]:
    y = node.outputs[0]
    zero = node.like(0, y)
    chosen = [node.call("Equal", name, y) for name in node.inputs]
    return _broadcast(node, [node.call("Where", is_y, node.gradient, zero) for is_y in chosen])


def _mean(node: DifferentiatedNode) -> Sequence[str | None]:
    count = node.like(len(node.inputs), node.outputs[0])
    return _broadcast(node, [node.call("Div", node.gradient, count)] * len(node.inputs))


def _where(node: DifferentiatedNode) -> Sequence[str | None]:
    condition, y = node.inputs[0], node.outputs[0]
    zero = node.like(0, y)
    yes = node.call("Where", condition, node.gradient, zero)
    no = node.call("Where", condition, zero, node.gradient)
    return [None, *_broadcast(node, [None, yes, no])[1:]]


def _prelu(node: DifferentiatedNode) -> Sequence[str | None]:
    x, slope = node.inputs
    by_x = _where_positive(node, x, node.gradient, node.times(node.gradient, slope))
    negative = node.call("Min", x, node.like(0, x))
    return _broadcast(node, [by_x, node.times(node.gradient, negative)])


def _clip(node: DifferentiatedNode) -> Sequence[str | None]:
    x, y = node.inputs[0], node.outputs[0]
    zero = node.like(0, x)
    gradients: list[str | None] = [
        node.call("Where", node.call("Equal", x, y), node.gradient, zero)
    ]
    for place, comparison in ((1, "Less"), (2, "Greater")):
        if node.optional_value(place) is not None:
            beyond = node.call(comparison, x, node.inputs[place])
            part = node.call("Where", beyond, node.gradient, zero)
            gradients += [None] * (place - len(gradients))
            gradients.append(node.reduced(part, node.shape(y), node.inputs[place]))
    return gradients


def _dropout(node: DifferentiatedNode) -> Sequence[str | None]:
    training = node.optional_value(2)
    if training is not None and bool(training):
        raise unsupported(node.node, "in training mode")
    return [node.gradient]


def _transposed(node: DifferentiatedNode, name: str, rank: int) -> str:
    return node.call("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


def _matmul(node: DifferentiatedNode) -> Sequence[str | None]:
    a, b = node.inputs
    a_shape, b_shape = node.shape(a), node.shape(b)
    backward, g = node.backward, node.gradient
    # Vectors are treated as matrices of one row or one column.
    a_matrix = (1, *a_shape) if len(a_shape) == 1 else a_shape
    b_matrix = (*b_shape, 1) if len(b_shape) == 1 else b_shape
    batch = np.broadcast_shapes(a_matrix[:-2], b_matrix[:-2])
    left_matrix = backward.reshaped(a, a_matrix) if a_matrix != a_shape else a
    right_matrix = backward.reshaped(b, b_matrix) if b_matrix != b_shape else b
    y_matrix = (*batch, a_matrix[-2], b_matrix[-1])
    if node.shape(node.outputs[0]) != y_matrix:
        g = backward.reshaped(g, y_matrix)
    gradients = []
    for name, matrix, factors in (
        (a, a_matrix, (g, _transposed(node, right_matrix, len(b_matrix)))),
        (b, b_matrix, (_transposed(node, left_matrix, len(a_matrix)), g)),
    ):
        batched_shape = (*batch, *matrix[-2:])
        gradient = node.call("MatMul", *factors)
        axes = broadcast_axes(matrix[:-2], batch)
        summed = backward.summed(gradient, axes, keepdims=True)
        own_shape = node.shape(name)
        gradients.append(
            backward.reshaped(summed, own_shape) if batched_shape != own_shape else summed
        )
    return gradients


def _gemm(node: DifferentiatedNode) -> Sequence[str | None]:
    a, b = node.inputs[:2]
    g, attributes = node.gradient, node.attributes
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    scaled = g if alpha == 1 else node.times(g, node.like(np.float32(alpha), a))
    turns_a, turns_b = attributes.get("transA", 0), attributes.get("transB", 0)

    def product(left: str, right: str, turn_left: int, turn_right: int) -> str:
        first = _transposed(node, left, _MATRIX_RANK) if turn_left else left
        second = _transposed(node, right, _MATRIX_RANK) if turn_right else right
        return node.call("MatMul", first, second)

    by_a = product(b, scaled, turns_b, 1) if turns_a else product(scaled, b, 0, not turns_b)
    by_b = product(scaled, a, 1, turns_a) if turns_b else product(a, scaled, not turns_a, 0)
    gradients: list[str | None] = [by_a, by_b]
    if node.optional_value(2) is not None:
        weighted = g if beta == 1 else node.times(g, node.like(np.float32(beta), a))
        gradients.append(node.reduced(weighted, node.shape(node.outputs[0]), node.inputs[2]))
    return gradients


def _einsum(node: DifferentiatedNode) -> Sequence[str | None]:
    equation = node.attributes["equation"].decode().replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    if not arrow:
        letters = operands.replace(",", "")
        result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise unsupported(node.node, f"for the equation {equation}")
    gradients: list[str | None] = []
    for place, (name, term) in enumerate(zip(node.inputs, terms, strict=True)):
        other_terms = [t for at, t in enumerate(terms) if at != place]
        kept_letters = "".join(letter for letter in term if letter in result + "".join(other_terms))
        product = f"{','.join([result, *other_terms])}->{kept_letters}"
        factors = [other for at, other in enumerate(node.inputs) if at != place]
        gradient = node.call("Einsum", node.gradient, *factors, equation=product)
        shape = node.shape(name)
        # The forward pass sums over the letters that occur only in this operand. The gradient is
        # therefore constant along the axes of these letters.
        sizes = [
            size if letter in kept_letters else 1 for letter, size in zip(term, shape, strict=True)
        ]
        if kept_letters != term:
            gradient = node.backward.expanded(node.backward.reshaped(gradient, sizes), shape)
        gradients.append(gradient)
    return gradients


def _reduced_axes(node: DifferentiatedNode) -> list[int]:
    """Return the axes of a reduction, given as an attribute or as an input."""
    rank = len(node.shape(node.inputs[0]))
    axes = node.attributes.get("axes")
    if axes is None:
        axes = node.optional_value(1)
    if axes is None or not len(axes):
        return [] if node.attributes.get("noop_with_empty_axes", 0) else [*range(rank)]
    return sorted(int(axis) % rank for axis in axes)


class _Reduction:
    """A reduction, with its output and gradient reshaped so that they broadcast to the input.

    Attributes:
        x: the input.
        axes: the reduced axes.
        shape: the input's shape.
        y: the output; each reduced axis is kept with length 1.
        g: the gradient of the output, with the shape of y.
        count: the number of input elements from which each element of y is computed.
    """

    def __init__(self, node: DifferentiatedNode) -> None:
        self.node, self.x, self.axes = node, node.inputs[0], _reduced_axes(node)
        self.shape = node.shape(self.x)
        kept_shape = [1 if axis in self.axes else size for axis, size in enumerate(self.shape)]
        self.g, self.y = node.gradient, node.outputs[0]
        if self.axes and not node.attributes.get("keepdims", 1):
            self.g = node.backward.reshaped(self.g, kept_shape)
            self.y = node.backward.reshaped(self.y, kept_shape)
        self.count = prod(self.shape[axis] for axis in self.axes)

    def spread(self, name: str) -> list[str | None]:
        """Return the gradients of the inputs if the gradient of x is constant along reduced axes.

        Args:
            name: the gradient of x, with length 1 along the reduced axes.
        """
        return self.gradients(self.node.backward.expanded(name, self.shape))

    def gradients(self, name: str) -> list[str | None]:
        """Return the gradients of the inputs, given that of x. Inputs for axes have no gradient."""
        return [name] + [None] * (len(self.node.inputs) - 1)


def _reduce_sum(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    return reduction.spread(reduction.g)


def _reduce_mean(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    return reduction.spread(node.call("Div", reduction.g, node.like(reduction.count, reduction.x)))


def _reduce_extremum(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    chosen = node.call("Equal", reduction.x, reduction.y)
    gradient = node.call("Where", chosen, reduction.g, node.like(0, reduction.x))
    return reduction.gradients(gradient)


def _reduce_product(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    scaled = node.times(reduction.g, reduction.y)
    return reduction.gradients(node.call("Div", scaled, reduction.x))


def _reduce_square(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    doubled = node.call("Add", reduction.x, reduction.x)
    return reduction.gradients(node.times(reduction.g, doubled))


def _reduce_l1(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    return reduction.gradients(node.times(reduction.g, node.call("Sign", reduction.x)))


def _reduce_l2(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    direction = node.call("Div", reduction.x, reduction.y)
    return reduction.gradients(node.times(reduction.g, direction))


def _reduce_log_sum(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    total = node.backward.summed(reduction.x, reduction.axes, keepdims=True)
    return reduction.spread(node.call("Div", reduction.g, total))


def _reduce_log_sum_exp(node: DifferentiatedNode) -> Sequence[str | None]:
    reduction = _Reduction(node)
    share = node.call("Exp", node.call("Sub", reduction.x, reduction.y))
    return reduction.gradients(node.times(reduction.g, share))


def _softmax_axes(node: DifferentiatedNode) -> list[int]:
    rank = len(node.shape(node.inputs[0]))
    if node.backward.opset < _SINGLE_AXIS_VERSION:
        return [*range(node.attributes.get("axis", 1) % rank, rank)]
    return [node.attributes.get("axis", -1) % rank]


def _softmax(node: DifferentiatedNode) -> Sequence[str | None]:
    y, g = node.outputs[0], node.gradient
    mean = node.backward.summed(node.times(g, y), _softmax_axes(node), keepdims=True)
    return [node.times(y, node.call("Sub", g, mean))]


def _log_softmax(node: DifferentiatedNode) -> Sequence[str | None]:
    y, g = node.outputs[0], node.gradient
    total = node.backward.summed(g, _softmax_axes(node), keepdims=True)
    return [node.call("Sub", g, node.times(node.call("Exp", y), total))]


def _cumulative_sum(node: DifferentiatedNode) -> Sequence[str | None]:
    attributes = {
        "exclusive": node.attributes.get("exclusive", 0),
        "reverse": 1 - node.attributes.get("reverse", 0),
    }
    return [node.call("CumSum", node.gradient, node.inputs[1], **attributes), None]


def _moved(node: DifferentiatedNode, places: Sequence[int] | None = None) -> list[str | None]:
    """Return the gradients of a node that copies elements of its inputs to its outputs.

    The node is computed for inputs whose elements are numbered. The numbers in the outputs show
    which elements the node copies.

    Args:
        node: the node.
        places: the positions of the inputs whose elements are copied; None for all inputs.
    """
    chosen_places = range(len(node.inputs)) if places is None else places
    operands = [node.optional_value(place) for place in range(len(node.inputs))]
    # Number the elements from 1 on, because Pad adds zeros.
    first_numbers: dict[int, int] = {}
    number = 1
    for place in chosen_places:
        if place < len(node.inputs) and node.is_differentiable(node.inputs[place]):
            shape = node.shape(node.inputs[place])
            numbers = np.arange(number, number + prod(shape), dtype=np.float64)
            operands[place] = numbers.reshape(shape)
            first_numbers[place] = number
            number += prod(shape)
    sources = _numbered_outputs(node, operands)
    gradients: list[str | None] = [None] * len(node.inputs)
    flat = node.flat_outputs()
    for place, first in first_numbers.items():
        name = node.inputs[place]
        is_own = (sources >= first) & (sources < first + prod(node.shape(name)))
        indices = np.where(is_own, sources - first, -1)
        gradients[place] = node.gathered(flat, indices, name)
    return gradients


def _numbered_outputs(node: DifferentiatedNode, operands: Sequence[Array | None]) -> Array:
    """Return all elements of the differentiable outputs as a vector, given numbered operands."""
    outputs = node.outputs_for(operands)
    parts = [
        np.asarray(output, np.float64).reshape(-1)
        for name, output in zip(filter(None, node.outputs), outputs, strict=True)
        if node.is_differentiable(name)
    ]
    return np.concatenate(parts).astype(np.int64)


def _scattered(node: DifferentiatedNode) -> Sequence[str | None]:
    if node.attributes.get("reduction", b"none") != b"none":
        raise unsupported(node.node, "with a reduction")
    return _moved(node, (0, 2))


def _top_values(node: DifferentiatedNode) -> Sequence[str | None]:
    x = node.inputs[0]
    shape = node.shape(x)
    axis = node.attributes.get("axis", -1) % len(shape)
    numbers = np.arange(prod(shape)).reshape(shape)
    if len(node.outputs) < 2 or not node.outputs[1]:  # noqa: PLR2004 - values and indices
        raise unsupported(node.node, "without its indices")
    sources = np.take_along_axis(numbers, node.value(node.outputs[1]), axis)
    return [node.gathered(node.flat_outputs(), sources, x), None]


#: The rules by operator.
RULES: Mapping[str, Rule] = {
    **{name: _unary(derivative) for name, derivative in _UNARY.items()},
    **dict.fromkeys(("Add", "Sum"), _add),
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
    "Pow": _power,
    **dict.fromkeys(("Max", "Min"), _extremum),
    "Mean": _mean,
    "Where": _where,
    "PRelu": _prelu,
    "Clip": _clip,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "ReduceSum": _reduce_sum,
    "ReduceMean": _reduce_mean,
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce_extremum),
    "ReduceProd": _reduce_product,
    "ReduceSumSquare": _reduce_square,
    "ReduceL1": _reduce_l1,
    "ReduceL2": _reduce_l2,
    "ReduceLogSum": _reduce_log_sum,
    "ReduceLogSumExp": _reduce_log_sum_exp,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "CumSum": _cumulative_sum,
    **dict.fromkeys(
        (
            *("DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
            *("Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze"),
            *("Tile", "Transpose", "Trilu", "Unsqueeze"),
        ),
        partial(_moved, places=(0,)),
    ),
    "Concat": _moved,
    "Pad": partial(_moved, places=(0, 2)),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scattered),
    "TopK": _top_values,
    "Conv": _convolution,
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
}
