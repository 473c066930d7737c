"""Nodes with equal operands, and nodes with negative, descending or outer axes of a cube.

An implementation may simplify a node whose operands are equal. All axes of a cube have the same
length, so a wrong axis does not change the shape of the result.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    fixed_node,
    int64s,
)

_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min")


def boundary_operands() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _equal_operands()
    yield from _shifts()
    yield from _rows_below_zero()
    yield from _ignored_first_class()
    yield from _negative_axes()
    yield from _descending_axes()
    yield from _apart_axes()


def _equal_operands() -> Iterator[tuple[str, str, Generator]]:
    """Yield operands that are equal, some of whose elements are negative."""
    stem = "equal_operands"
    floats = np.array([-2.0, 3.0, -0.75, 0.5], np.float32)
    for operator in (*_ARITHMETIC, *_COMPARISONS):
        yield operator, stem, fixed_node(floats, floats)
    yield "Mod", stem, fixed_node(floats, floats, fmod=1)
    yield "Pow", stem, fixed_node(np.abs(floats), np.abs(floats))
    integers = np.array([-7, 5, -1, 11], np.int32)
    for operator in ("Sub", "Mul", "Div", "Mod"):
        yield operator, f"{stem}_int32", fixed_node(integers, integers)
    for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield operator, stem, fixed_node(integers, integers)
    truths = np.array([True, False])
    for operator in ("And", "Or", "Xor"):
        yield operator, stem, fixed_node(truths, truths)
    square = distinct(3, 3)
    yield "MatMul", stem, fixed_node(square, square)
    yield "Gemm", stem, fixed_node(square, square, square)
    yield "Einsum", stem, fixed_node(square, square, equation="ij,kj->ik")


def _shifts() -> Iterator[tuple[str, str, Generator]]:
    """Yield shifts of unsigned numbers by all their bits, and by more bits than they have."""
    for dtype in ("uint8", "uint32"):
        kind = DTYPES[dtype]
        bits = np.iinfo(kind).bits
        numbers = np.array([3, np.iinfo(kind).max, 5, 1], kind)
        counts = np.array([bits, bits + 1, 2 * bits, 1], kind)
        for direction in ("LEFT", "RIGHT"):
            stem = f"all_bits_out_{dtype}_{direction.lower()}"
            yield "BitShift", stem, fixed_node(numbers, counts, direction=direction)


def _rows_below_zero() -> Iterator[tuple[str, str, Generator]]:
    """Yield rows whose exponentials are all 0 in float32."""
    stem = "far_below_zero"
    rows = np.array([[-800, -801, -803], [-120, -121.5, -120.25]], np.float32)
    for operator in ("Softmax", "LogSoftmax"):
        yield operator, stem, fixed_node(rows, axis=-1)
    yield "ReduceLogSumExp", stem, fixed_node(rows, int64s(1))
    loss = fixed_node(rows, int64s(1, 2), reduction="none", outputs=2)
    yield "SoftmaxCrossEntropyLoss", stem, loss
    queries = rows[:, :1].reshape(1, 1, 2, 1) / 64
    keys = (distinct(3) / 16 + 64).reshape(1, 1, 3, 1)
    attended = fixed_node(queries, keys, distinct(1, 1, 3, 2), scale=1.0, outputs=1)
    yield "Attention", stem, attended


def _ignored_first_class() -> Iterator[tuple[str, str, Generator]]:
    """Yield losses that ignore the class 0."""
    scores = distinct(2, 3, 2) - 7
    targets = int64s([0, 1], [2, 0])
    weights = np.array([5.0, 0.5, 2.0], np.float32)
    for operator in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        yield operator, "ignored_first_class", fixed_node(scores, targets, ignore_index=0)
        weighted = fixed_node(scores, targets, weights, ignore_index=0)
        yield operator, "ignored_first_class_weighted", weighted


def _negative_axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield negative axes of cubes together with other attributes and inputs."""
    cube = distinct(3, 3, 3)
    for axis, count in ((-1, 3), (-2, 2)):
        parts = fixed_node(cube, axis=axis, num_outputs=count, outputs=count)
        yield "Split", f"cube_axis_{-axis}_from_end_{count}_parts", parts
    stem = "cube_axis_2_from_end"
    yield "SplitToSequence", stem, fixed_node(cube, axis=-2, keepdims=0)
    yield "SplitToSequence", f"{stem}_parts", fixed_node(cube, np.array(2), axis=-2)
    table = int64s([2, 0], [1, 1])
    yield "Gather", f"{stem}_table", fixed_node(cube, table, axis=-2)
    yield "TopK", f"{stem}_smallest", fixed_node(cube, int64s(2), axis=-2, largest=0)
    backward = fixed_node(cube, np.array(-2), exclusive=1, reverse=1)
    yield "CumSum", f"{stem}_backward", backward
    bias, scales = distinct(3, 3), distinct(3, 3) + 1
    yield "LayerNormalization", stem, fixed_node(cube, scales, bias, axis=-2)
    updates = distinct(3, 3, 3) / 2
    places = np.broadcast_to(int64s(2, 0, 2)[:, None], cube.shape).copy()
    added = fixed_node(cube, places, updates, axis=-2, reduction="add")
    yield "ScatterElements", f"{stem}_added", added


def _descending_axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes with axes in descending order; these axes have the same length."""
    square, cube = distinct(3, 3), distinct(3, 3, 3)
    for stem, axes in (("descending", (2, 0)), ("mixed", (-1, 1))):
        yield "Unsqueeze", f"square_{stem}_axes", fixed_node(square, int64s(*axes))
    thin = cube.reshape(3, 1, 3, 1, 3)
    yield "Squeeze", "cube_descending_axes", fixed_node(thin, int64s(-2, 1))
    for operator in ("ReduceMax", "ReduceSum"):
        reduced = fixed_node(cube, int64s(-1, 0), keepdims=0)
        yield operator, "cube_descending_axes", reduced
    starts, ends, steps = int64s(2, 0), int64s(0, 3), int64s(-1, 2)
    yield "Slice", "cube_descending_axes", fixed_node(cube, starts, ends, int64s(-1, 0), steps)


def _apart_axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes whose axes are the first and the last axis of a cube."""
    cube, stem = distinct(3, 3, 3), "cube_outer_axes"
    axes = int64s(0, 2)
    yield "Slice", stem, fixed_node(cube, int64s(1, 0), int64s(3, 2), axes)
    yield "Pad", stem, fixed_node(cube, int64s(1, 0, 0, 2), np.float32(9), axes)
    yield "CenterCropPad", stem, fixed_node(cube, int64s(1, 5), axes=[0, 2])
    yield "MeanVarianceNormalization", stem, fixed_node(cube, axes=[0, 2])
    yield "Unsqueeze", stem, fixed_node(cube[0], axes)
    thin = cube.reshape(1, 3, 1, 9)
    yield "Squeeze", stem, fixed_node(thin, axes)
    scales = np.array([2.0, 0.5], np.float32)
    yield "Resize", stem, fixed_node(distinct(4, 4, 4), None, scales, axes=[0, 2])
