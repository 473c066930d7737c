"""The rules for convolution and pooling, which use a table of the elements in each window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.gradient.backward_pass import (
    DifferentiatedNode,
    places_of,
    unsupported,
)


class _Windows:
    """The elements of a tensor (N, C, ...) in each window of a convolution or pool.

    Args:
        node: the node.
        kernel: the spatial shape of the kernel.

    Attributes:
        x: the input.
        batch, channels: the first two dimensions of x.
        positions: number of elements of a channel of x.
        offsets: number of elements of a window.
        windows: number of windows in a channel.
        table: for each offset (row) and window (column), the index of the element in its channel;
            ``positions`` for an element of the padding.
        inside: for each offset and window, whether the element belongs to the tensor.
        padded: for each offset and window, whether the element belongs to the tensor or its
            padding; with ``ceil_mode``, windows may exceed both.
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
        """Append the elements in each window as a tensor of shape (N, C, offsets, windows)."""
        backward = self.node.backward
        flat = backward.reshaped(self.x, (self.batch, self.channels, self.positions))
        zero = self.node.like(np.zeros((self.batch, self.channels, 1)), self.x)
        padded = self.node.call("Concat", flat, zero, axis=2)
        return self.node.call("Gather", padded, backward.integers(self.table), axis=2)

    def scattered(self, columns: str) -> str:
        """Append, for each element, the sum of its gradients in all windows that contain it.

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


#: The rules by operator.
WINDOW_RULES: Mapping[str, Callable[[DifferentiatedNode], Sequence[str | None]]] = {
    "Conv": _convolution,
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
}
