"""Nodes whose tensors have few or many axes.

Examples are an axis after the sixth one, vectors where most nodes have matrices, and zero points
with as many axes as their tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    REDUCTIONS,
    Generator,
    distinct,
    distinct_bytes,
    fixed_node,
    int64s,
)


def boundary_ranks() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _eighth_axis()
    yield from _five_axes()
    yield from _zero_points()
    yield from _vectors()
    yield from _empty()


def _eighth_axis() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes that select only the eighth axis of a tensor, or the eighth diagonal."""
    stem = "eighth_axis"
    x = distinct(1, 2, 1, 1, 1, 1, 2, 3)
    for name in REDUCTIONS:
        positive = np.abs(x) + 1 if name == "LogSum" else x
        yield f"Reduce{name}", stem, fixed_node(positive, int64s(7))
    yield "Squeeze", stem, fixed_node(x.reshape(1, 1, 1, 1, 2, 2, 3, 1), int64s(7))
    yield "Unsqueeze", stem, fixed_node(x, int64s(7))
    yield "Pad", stem, fixed_node(x, int64s(1, 2), None, int64s(7))
    long = distinct(1, 1, 1, 1, 1, 1, 2, 12)
    yield "Slice", stem, fixed_node(long, int64s(8), int64s(11), int64s(7))
    for operator in ("CumSum", "CumProd"):
        yield operator, stem, fixed_node(x, np.array(7))
    yield "DFT", stem, fixed_node(distinct(1, 1, 1, 1, 1, 1, 2, 4, 1), None, np.array(7))
    for upper in (0, 1):
        square = fixed_node(distinct(10, 10), np.array(8 - 16 * (1 - upper)), upper=upper)
        yield "Trilu", f"eighth_diagonal_{'upper' if upper else 'lower'}", square


def _five_axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield tensors of five axes for operators whose other nodes have at most four axes."""
    stem = "five_axes"
    x = distinct(3, 1, 2, 1, 2)
    yield "BitCast", stem, fixed_node(x, to=TensorProto.INT32)
    yield "Cast", stem, fixed_node(x, to=TensorProto.INT32)
    yield "CastLike", stem, fixed_node(x, int64s(0))
    yield "Clip", stem, fixed_node(x, np.float32(-2), np.float32(3))
    yield "Shrink", stem, fixed_node(x, lambd=2.5, bias=0.25)
    yield "ConcatFromSequence", stem, fixed_node([x, x / 2], axis=2)
    yield "ConstantOfShape", stem, fixed_node(int64s(*x.shape))
    yield "Det", stem, fixed_node(distinct(3, 1, 2, 2, 2))
    yield "OneHot", stem, fixed_node(np.abs(x).astype(np.int64), np.array(4), int64s(2, 7), axis=2)
    yield "OptionalGetElement", stem, fixed_node(x)
    yield "SequenceAt", stem, fixed_node([x, -x], np.array(1))
    yield "SplitToSequence", stem, fixed_node(x, np.array(1), axis=2)
    yield "Unique", stem, fixed_node(np.round(x / 8), axis=2, outputs=4)
    places = np.broadcast_to(int64s([1, 0]).reshape(1, 1, 2, 1, 1), x.shape).copy()
    yield "Scatter", stem, fixed_node(x, places, -x, axis=2)
    yield "Binarizer", stem, fixed_node(x, threshold=0.5)
    texts = np.array([f"{number:g} a" for number in x.ravel()], object).reshape(x.shape)
    yield "RegexFullMatch", stem, fixed_node(texts, pattern="-.*")
    yield "StringSplit", stem, fixed_node(texts, outputs=2)
    labels: dict[str, Any] = {"cats_strings": ["3 a", "-5 a"], "cats_int64s": [5, 7]}
    yield "CategoryMapper", stem, fixed_node(texts, **labels)
    keys: dict[str, Any] = {"keys_strings": ["3 a", "-5 a"], "values_int64s": [5, 7]}
    yield "LabelEncoder", stem, fixed_node(texts, **keys)


def _zero_points() -> Iterator[tuple[str, str, Generator]]:
    """Yield zero points and scales of each row and column in a batch of quantized matrices."""
    a, b = distinct_bytes(2, 3, 4), distinct_bytes(2, 4, 5)[..., ::-1].copy()
    rows = np.array([3, 70, 9, 41, 0, 90], np.uint8).reshape(2, 3, 1)
    columns = np.arange(5, 105, 10, dtype=np.uint8).reshape(2, 1, 5)
    yield "MatMulInteger", "batch_zero_points", fixed_node(a, b, rows, columns)
    row_scales, column_scales = (
        (values.astype(np.float32) + 20) / 1024 for values in (rows, columns)
    )
    scale, zero = np.float32(4), np.uint8(100)
    batch = (a, row_scales, rows, b, column_scales, columns, scale, zero)
    yield "QLinearMatMul", "batch_scales", fixed_node(*batch)
    squares = (
        *(a[0, :2, :2].copy(), row_scales[0, :2, 0].copy(), rows[0, :2, 0].copy()),
        *(b[0, :2, :2].copy(), column_scales[0, 0, :2].copy(), columns[0, 0, :2].copy()),
    )
    yield "QLinearMatMul", "two_rows_two_columns", fixed_node(*squares, scale, zero)


def _vectors() -> Iterator[tuple[str, str, Generator]]:
    """Yield vectors, and tensors of indices with two axes."""
    a, b = distinct_bytes(4), distinct_bytes(4, 3)[:, ::-1].copy()
    zeros = np.array([1, 70, 9], np.uint8)
    yield "MatMulInteger", "vector_first", fixed_node(a, b, np.array([5], np.uint8), zeros)
    quarter, zero = np.float32(0.25), np.uint8(50)
    result = (np.float32(8), np.uint8(100))
    first = (a, quarter, zero, b, np.array([0.5, 0.25, 1], np.float32), zeros, *result)
    yield "QLinearMatMul", "vector_first", fixed_node(*first)
    second = (b.T.copy(), quarter, zero, a, quarter, np.uint8(30), *result)
    yield "QLinearMatMul", "vector_second", fixed_node(*second)
    row = np.array([1.0, -2.0, 3.0, 4.0], np.float32)
    for norm in ("MAX", "L1", "L2"):
        yield "Normalizer", f"vector_{norm.lower()}", fixed_node(np.abs(row), norm=norm)
    for zeros_flag in (0, 1):
        categories = fixed_node(int64s([5, 5]), cats_int64s=[5], zeros=zeros_flag)
        yield "OneHotEncoder", f"single_category_{zeros_flag}", categories
    texts = np.array(["a", "a"], object)
    yield "OneHotEncoder", "single_text", fixed_node(texts, cats_strings=["a"])
    doubles = np.array([16777217.0, 3.9])
    yield "OneHotEncoder", "precise_float64", fixed_node(doubles, cats_int64s=[16777217, 3])
    x = distinct(3, 4)
    extractor = "ArrayFeatureExtractor"
    yield extractor, "indices_in_rows", fixed_node(x, int64s([1, 3], [0, 2]))
    yield extractor, "indices_in_one_row", fixed_node(x, int64s([2, 0, 3]))
    yield extractor, "one_axis_indices_in_rows", fixed_node(row, int64s([1, 3], [0, 2]))
    texts = np.array(["a", "b"], object)
    yield "Pad", "texts_default", fixed_node(texts, int64s(1, 1))
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.7001], [0, 0, 1, 0.3]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7]]], np.float32)
    scalars = fixed_node(boxes, scores, np.array(3), np.float32(0.7))
    yield "NonMaxSuppression", "scalar_limits", scalars


def _empty() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows, convolutions and maxima of no elements."""
    for operator in ("BlackmanWindow", "HammingWindow", "HannWindow"):
        yield operator, "empty", fixed_node(np.array(0))
    steps = np.zeros((2, 3, 0), np.float32)
    kernel = distinct(3, 1, 4)
    convolution = "CausalConvWithState"
    yield convolution, "no_steps", fixed_node(steps, kernel, outputs=2)
    state = distinct(2, 3, 3)
    yield convolution, "no_steps_state", fixed_node(steps, kernel, None, state, outputs=2)
    for name in ("Max", "Min"):
        for dtype in (bool, np.int8, np.uint8):
            x = np.zeros((0, 3), dtype)
            yield f"Reduce{name}", f"no_rows_{x.dtype.name}", fixed_node(x, int64s(0))
