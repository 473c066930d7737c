"""Nodes with integers that do not fit into 32 bits, or into fewer bits.

Examples are positions and counts beyond the range of an axis, categories that differ only in their
upper bits, and numbers whose lower bits are zero. An implementation that converts the integers to a
narrower type returns wrong elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.boundary_types import loop
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import Generator, fixed_node

# The smallest positive integer whose lower 32 bits are all zero.
_WORD = 2**32
# Two pairs of categories; the categories of each pair have the same lower 32 bits.
_CATEGORIES = (5, _WORD + 5, -1, _WORD - 1)
_TEXTS = ("a", "b", "c", "d")


def boundary_integers() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each boundary node."""
    yield from _positions()
    yield from _categories()
    yield from _zero_words()


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
