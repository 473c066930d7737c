"""Compute norms of doubles if the powers of the elements leave the range of doubles.

The square of 3e200 is infinite in double, although the norm of (3e200, 4e200) is 5e200. Libraries
therefore scale the elements, as BLAS does in ``dnrm2``. The exact run of the condition estimate
cannot use a type wider than double. This module therefore scales the elements by powers of two,
which is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.core.values import Array

_Compute = Callable[..., tuple[Any, ...]]
# Operators that return a norm.
_NORMS = frozenset({"GlobalLpPool", "LpPool", "ReduceL2"})
_DEFAULT_POWER = 2
# If a sum of powers is between 2^-900 and 2^900, all significant terms are within the range.
_LARGEST_EXPONENT = 900
_DEFAULT_AXIS = -1


def scaled(node: Any, compute: _Compute) -> _Compute:
    """Return a function that computes a node in double, with powers that stay within the range.

    Args:
        node: the node.
        compute: computes the outputs of the node by the formula of the specification.
    """
    operator = node.op_type
    if operator not in _NORMS and operator != "LpNormalization":
        return compute
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    # In version 1 of LpPool and GlobalLpPool, p is a float.
    power = attributes.get("p", _DEFAULT_POWER)
    if power <= 0:
        return compute
    if operator == "LpNormalization":
        return partial(_of_scaled_lines, compute, attributes.get("axis", _DEFAULT_AXIS))
    return partial(_of_scaled_elements, compute, max(1, int(_LARGEST_EXPONENT / power)))


def _of_scaled_lines(compute: _Compute, axis: int, x: Array) -> tuple[Any, ...]:
    """Normalize lines after scaling each of them so that its elements are at most 1.

    The scaling does not change the normalized elements.
    """
    exponents = np.frexp(np.abs(x).max(axis=axis, keepdims=True, initial=0.0))[1]
    return compute(np.ldexp(x, -exponents))


def _of_scaled_elements(compute: _Compute, most: int, x: Array, *further: Any) -> tuple[Any, ...]:
    """Compute norms at several scales; for each norm, choose a scale at which no power overflows.

    Args:
        compute: computes the norms.
        most: the largest binary exponent of a norm whose p-th power is within the range.
        x: the elements.
        further: further operands.
    """
    outputs = compute(x, *further)
    size = np.abs(x[np.isfinite(x) & (x != 0)])
    if not size.size:
        return outputs
    least, largest = np.frexp([size.min(), size.max()])[1]
    if -most < least and largest + np.log2(size.size) < most:
        return outputs
    (norm,) = outputs
    for shift in [*range(most, most - least, most), *range(-most, -most - largest, -most)]:
        (shifted,) = compute(np.ldexp(x, shift), *further)
        lost = (norm == 0) | np.isinf(norm) | (np.abs(np.frexp(norm)[1]) > most)
        usable = (shifted != 0) & np.isfinite(shifted) & (np.abs(np.frexp(shifted)[1]) <= most)
        norm = np.where(lost & usable, np.ldexp(shifted, -shift), norm)
    return (norm,)
