"""Nodes with integers that do not fit into 32 bits, or into fewer bits.

Examples are positions and counts beyond the range of an axis, lengths above 127, categories that
differ only in their upper bits, and numbers whose lower bits are zero. An implementation that
converts the integers to a narrower type returns wrong elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.boundary_types import loop
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    fixed_node,
    int64s,
)

# The smallest positive integer whose lower 32 bits are all zero.
_WORD = 2**32
# Two pairs of categories; the categories of each pair have the same lower 32 bits.
_CATEGORIES = (5, _WORD + 5, -1, _WORD - 1)
_TEXTS = ("a", "b", "c", "d")


def boundary_integers() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _positions()
    yield from _categories()
    yield from _zero_words()
    yield from _shapes()
    yield from _lengths()
    yield from _places()
    yield from _ignored_targets()
    yield from _features()
    yield from _unsigned()


def _positions() -> Iterator[tuple[str, str, Generator]]:
    """Yield positions and counts that are limited to the length of an axis."""
    classes = np.array([_WORD + 1, 1, -_WORD, 0, 2], np.int64)
    values = np.array([-1.5, 2.0], np.float32)
    yield "OneHot", "beyond_32_bits", fixed_node(classes, np.array(3), values)
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    for stem, k in (("above", _WORD), ("below", -_WORD - 1)):
        for upper in (0, 1):
            draw = fixed_node(x, np.array(k), upper=upper)
            yield "Trilu", f"{stem}_{'upper' if upper else 'lower'}_32_bits", draw
        yield "EyeLike", f"{stem}_32_bits", fixed_node(x, k=k)
    for stem, bounds in (("end", {"end": _WORD + 1}), ("start", {"start": -_WORD - 1})):
        yield "Shape", f"{stem}_beyond_32_bits", fixed_node(x, **bounds)
    yield "Loop", "trips_beyond_32_bits", partial(loop, trips=_WORD + 1, condition=True)
    corners = [[0.0, 0.0, 1.0, 1.0], [2.0, 2.0, 3.0, 3.0], [4.0, 4.0, 5.0, 5.0]]
    scores = np.array([[[0.9, 0.8, 0.7]]], np.float32)
    boxes = np.array([corners], np.float32)
    limited = fixed_node(boxes, scores, np.array([_WORD + 1]))
    yield "NonMaxSuppression", "limit_beyond_32_bits", limited
    shifted = np.array([5, 7], np.uint64)
    counts = np.array([_WORD + 1, 300], np.uint64)
    yield "BitShift", "counts_beyond_32_bits", fixed_node(shifted, counts, direction="LEFT")


def _categories() -> Iterator[tuple[str, str, Generator]]:
    """Yield categories, keys and missing values that equal others in the lower 32 bits."""
    keys = [*_CATEGORIES]
    x = np.array([*_CATEGORIES, _WORD + 6], np.int64)
    encoder = fixed_node(x, keys_int64s=keys, values_strings=[*_TEXTS], default_string="z")
    yield "LabelEncoder", "keys_beyond_32_bits", encoder
    mapper = fixed_node(x, cats_int64s=keys, cats_strings=[*_TEXTS], default_string="z")
    yield "CategoryMapper", "categories_beyond_32_bits", mapper
    yield "OneHotEncoder", "categories_beyond_32_bits", fixed_node(x, cats_int64s=keys, zeros=1)
    rows = np.array([[_WORD, 0], [1, _WORD], [2 * _WORD, -_WORD]], np.int64)
    imputer = fixed_node(rows, imputed_value_int64s=[7, 2**40 + 1], replaced_value_int64=_WORD)
    yield "Imputer", "missing_beyond_32_bits", imputer
    vectorizer: dict[str, Any] = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2],
        "pool_int64s": [5, _WORD + 5, 5, _WORD + 5],
    }
    grams = np.array([5, _WORD + 5, _WORD + 5, 5, 5, 2 * _WORD + 5], np.int64)
    yield "TfIdfVectorizer", "pool_beyond_32_bits", fixed_node(grams, **vectorizer)


def _zero_words() -> Iterator[tuple[str, str, Generator]]:
    """Yield nonzero numbers whose lower bits are all zero."""
    for dtype, values in (
        ("int64", (_WORD, 0, -(2**63), 256, 2**48)),
        ("uint64", (_WORD, 0, 2**63, 256, 2**48)),
        ("int32", (2**16, 0, -(2**31), 256, 2**24)),
        ("uint32", (2**16, 0, 2**31, 256, 2**24)),
        ("int16", (256, 0, -(2**15), 512, 0)),
        ("uint16", (256, 0, 2**15, 512, 0)),
    ):
        x: Array = np.array(values, DTYPES[dtype])
        yield "Cast", f"zero_words_{dtype}_bool", fixed_node(x, to=TensorProto.BOOL)
        if dtype.endswith("64"):
            yield "CastLike", f"zero_words_{dtype}_bool", fixed_node(x, np.zeros(1, bool))
        yield "NonZero", f"zero_words_{dtype}", fixed_node(x)


def _shapes() -> Iterator[tuple[str, str, Generator]]:
    """Yield tensors whose last axis is longer than 2^24, and whose first axis has the length 0."""
    stem, length = "axis_beyond_24_bits", 2**24 + 1
    shape, empty = int64s(0, length), np.zeros((0, 1), np.float32)
    yield "ConstantOfShape", stem, fixed_node(shape)
    yield "Expand", stem, fixed_node(empty, shape)
    yield "Pad", stem, fixed_node(empty, int64s(0, 0, 0, length))
    yield "Reshape", stem, fixed_node(empty[:, 0], shape, allowzero=1)
    yield "Tile", stem, fixed_node(empty, int64s(1, length))
    parts = fixed_node(np.zeros((0, length + 2), np.int8), int64s(length, 2), axis=1, outputs=2)
    yield "Split", stem, parts
    wide = np.zeros((0, length + 9), np.int8)
    for place, bounds in (("start", (length, length + 9)), ("end", (0, length))):
        sliced = fixed_node(wide, *map(int64s, bounds), int64s(1))
        yield "Slice", f"{place}_beyond_24_bits", sliced
    values = np.array([-1.5, 2.0], np.float32)
    yield "OneHot", stem, fixed_node(int64s(), np.array(length), values)


def _lengths() -> Iterator[tuple[str, str, Generator]]:
    """Yield lengths and steps that do not fit into 8 bits, 32 bits or a float32."""
    for operator in ("BlackmanWindow", "HammingWindow", "HannWindow"):
        yield operator, "size_beyond_8_bits", fixed_node(np.array(300))
    mel = "MelWeightMatrix"
    low = np.float32(0)
    for stem, counts, high in (
        ("bins_beyond_8_bits", (200, 1024, 44100), 20000),
        ("length_beyond_8_bits", (4, 300, 8192), 4000),
        ("rate_beyond_32_bits", (3, 64, _WORD + 8000), 2e9),
    ):
        yield mel, stem, fixed_node(*map(np.int64, counts), low, np.float32(high))
    for stem, start, limit, delta in (
        ("8", 0, 1000, 300),
        ("24", 0, 2**25 + 10, 2**24 + 1),
        ("32", 0, 2**34, _WORD + 1),
    ):
        bounds = map(np.int64, (start, limit, delta))
        yield "Range", f"delta_beyond_{stem}_bits", fixed_node(*bounds)
    row = distinct(4)
    stem = "length_beyond_8_bits"
    yield "DFT", stem, fixed_node(row.reshape(1, 4, 1), np.array(256))
    signal = distinct(1, 266, 1)
    yield "STFT", stem, fixed_node(signal, np.array(5), None, np.array(256))
    step = fixed_node(signal[:, :5].copy(), np.array(_WORD + 1), None, np.array(2))
    yield "STFT", "step_beyond_32_bits", step
    stem = "length_beyond_8_bits"
    yield "CenterCropPad", stem, fixed_node(row, int64s(200))
    yield "Pad", stem, fixed_node(row, int64s(200, 130))
    yield "Tile", stem, fixed_node(row, int64s(200))
    table = distinct(203)
    yield "Split", stem, fixed_node(table, int64s(200, 3), outputs=2)
    yield "SplitToSequence", stem, fixed_node(table, np.array(200))
    yield "TopK", stem, fixed_node(np.arange(203, dtype=np.float32) * 89 % 203, int64s(200))
    columns = distinct(1, 136, 5)
    yield "Col2Im", stem, fixed_node(columns, int64s(1, 140), int64s(1, 136))
    pooled = np.array([[[1.5, -2.0, 3.0]]], np.float32)
    places = int64s(5, 0, 3).reshape(pooled.shape)
    unpooled = fixed_node(pooled, places, int64s(1, 1, 200), kernel_shape=[2], strides=[2])
    yield "MaxUnpool", stem, unpooled


def _places() -> Iterator[tuple[str, str, Generator]]:
    """Yield positions, sequence lengths and limits above 127."""
    stem = "place_beyond_8_bits"
    items: list[Any] = [np.array([k], np.float32) for k in range(140)]
    place = np.array(136)
    for operator in ("SequenceAt", "SequenceErase"):
        yield operator, stem, fixed_node(items, place)
    yield "SequenceInsert", stem, fixed_node(items, items[3], place)
    table = np.arange(200, dtype=np.float32)
    yield "GatherND", stem, fixed_node(table, int64s([136], [8]))
    cache = table.reshape(1, 1, 200, 1)
    yield "TensorScatter", stem, fixed_node(cache, -cache[:, :, :2], int64s(136))
    angles = np.stack([np.cos(table), np.sin(table)])[..., None]
    rotated = fixed_node(distinct(1, 1, 2, 2), *angles, int64s([136, 8]))
    yield "RotaryEmbedding", stem, rotated
    keys = distinct(1, 1, 140, 2)
    query = keys[:, :, 7:9].copy()
    valid = fixed_node(query, keys, -keys, None, None, None, int64s(136))
    yield "Attention", "length_beyond_8_bits", valid
    for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        steps, weights = distinct(300, 1, 3), distinct(1, 2 * gates, 3) / 4
        recurrent = distinct(1, 2 * gates, 2) / 8
        lengths = np.array([200], np.int32)
        sequence = fixed_node(steps, weights, recurrent, None, lengths, hidden_size=2, outputs=2)
        yield operator, "length_beyond_8_bits", sequence
    left_edges = np.arange(140, dtype=np.float32) * 2
    zeros = np.zeros_like(left_edges)
    boxes = np.stack([zeros, left_edges, zeros + 1, left_edges + 1], axis=1)[None]
    scores = (140 - np.arange(140, dtype=np.float32)) / 256
    many = fixed_node(boxes, scores.reshape(1, 1, 140), int64s(136))
    yield "NonMaxSuppression", "limit_beyond_8_bits", many


def _ignored_targets() -> Iterator[tuple[str, str, Generator]]:
    """Yield losses that ignore a target whose lower 32 bits are those of a class."""
    scores, ignored = distinct(3, 4, 2) / 4, _WORD + 1
    targets = int64s([1, ignored], [2, 3], [ignored, 0])
    for operator in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        loss = fixed_node(scores, targets, ignore_index=ignored)
        yield operator, "ignored_beyond_32_bits", loss


def _features() -> Iterator[tuple[str, str, Generator]]:
    """Yield features whose upper bits determine the result."""
    stem = "features_beyond_32_bits"
    x = int64s([_WORD + 5, 3], [2, -_WORD - 7])
    yield "Scaler", stem, fixed_node(x, offset=[0.0, 1.0], scale=[0.5, 2.0])
    yield "FeatureVectorizer", stem, fixed_node(x, -x, inputdimensions=[2, 2])
    weights: dict[str, Any] = {"coefficients": [0.5, -2.0], "intercepts": [1.0]}
    yield "LinearRegressor", stem, fixed_node(x, **weights)
    classes: dict[str, Any] = {"coefficients": [0.5, -2.0, 1.0, 0.25], "intercepts": [1.0, 0.0]}
    classifier = fixed_node(x, classlabels_ints=[4, 9], outputs=2, **classes)
    yield "LinearClassifier", stem, classifier
    machine = fixed_node(
        x,
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 0.0],
        coefficients=[0.75, -0.5],
        rho=[0.125],
    )
    yield "SVMRegressor", stem, machine
    classified = fixed_node(
        np.array([[-1.5, -2.0], [0.5, 1.0], [-2.0, 2.0]], np.float32),
        kernel_type="RBF",
        kernel_params=[0.25, 0.0, 3.0],
        support_vectors=[0.5, 1.0, -1.0, 2.0, 1.0, -2.5],
        coefficients=[1.0, -0.5, 0.25, 0.5, -0.75, 1.0],
        vectors_per_class=[1, 1, 1],
        rho=[-0.25, -0.25, 0.125],
        classlabels_ints=[_WORD + 5, 5, 2**40 + 1],
        outputs=2,
    )
    yield "SVMClassifier", "labels_beyond_32_bits", classified
    trees = fixed_node(
        x,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_featureids=[0, 0, 0],
        nodes_values=[100.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, -2.0],
        n_targets=1,
    )
    yield "TreeEnsembleRegressor", stem, trees


def _unsigned() -> Iterator[tuple[str, str, Generator]]:
    """Yield unsigned numbers that int64 and double cannot represent, which remain unchanged."""
    stem = "unsigned_beyond_32_bits"
    numbers = np.array([2**63 + 5, 3, 2**64 - 1], np.uint64)
    square = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.uint64)
    axis = int64s(0)
    yield "Identity", stem, fixed_node(numbers)
    yield "OptionalGetElement", stem, fixed_node(numbers)
    yield "SequenceInsert", stem, fixed_node([numbers, numbers - 1], numbers - 2)
    yield "Split", stem, fixed_node(numbers, num_outputs=2, outputs=2)
    yield "SplitToSequence", stem, fixed_node(numbers)
    yield "Unique", stem, fixed_node(numbers, outputs=4)
    yield "OneHot", stem, fixed_node(int64s(1, 0), np.array(2), numbers[:2])
    yield "ReverseSequence", stem, fixed_node(numbers.reshape(3, 1), int64s(3))
    places = int64s(2, 0)
    yield "ScatterElements", stem, fixed_node(numbers, places, numbers[:2] - 1)
    yield "CumProd", stem, fixed_node(numbers[:1], np.array(0))
    # Each row beside the numbers leaves them unchanged.
    for name, neutral in (("Max", 0), ("Min", 2**64 - 1), ("Sum", 0), ("Prod", 1), ("L1", 0)):
        rows = np.stack([numbers, np.full(3, neutral, np.uint64)])
        yield f"Reduce{name}", stem, fixed_node(rows, axis)
    yield "MatMul", stem, fixed_node(square, numbers.reshape(3, 1))
    yield "Gemm", stem, fixed_node(square, numbers.reshape(3, 1))
    yield "Einsum", stem, fixed_node(square, numbers, equation="ij,j->i")
    image = numbers.reshape(1, 1, 3)
    doubled = np.array([1, 1, 2], np.float32)
    yield "Resize", stem, fixed_node(image, None, doubled, mode="nearest")
