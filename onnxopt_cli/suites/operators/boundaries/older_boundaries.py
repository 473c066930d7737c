"""Nodes at boundaries of older operator versions, whose definitions differ from the newest ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    REDUCTIONS,
    Generator,
    distinct,
    fixed_node,
    int64s,
)


def older_boundaries() -> Iterator[tuple[str, int, str, Generator]]:
    """Yield the operator, the version, the name and the generator of each node of this module."""
    # Before version 14, a zero in the shape always copies a dimension.
    yield (
        "Reshape",
        13,
        "copied_empty",
        fixed_node(np.zeros((2, 0, 3), np.float32), int64s(0, 0, 3)),
    )
    for version in (5, 13):
        copied = fixed_node(distinct(2, 3), int64s(0, -1))
        yield "Reshape", version, "copied_inferred", copied
    # Before version 18, the axes of a reduction are an attribute.
    for name in ("Max", "Min"):
        for dtype in ("float32", "int32", "int8"):
            empty = fixed_node(np.zeros((0, 3), DTYPES[dtype]), axes=[0])
            yield f"Reduce{name}", 13, f"no_rows_{dtype}", empty
    for name in ("LogSum", "LogSumExp"):
        empty = fixed_node(np.zeros((0, 3), np.float32), axes=[0])
        yield f"Reduce{name}", 13, "no_rows", empty
    # An empty list of axes selects all axes, as if the attribute were omitted.
    for name in REDUCTIONS:
        version = 11 if name == "Sum" else 13
        reduction = fixed_node(distinct(2, 3) + 10, axes=[], keepdims=0)
        yield f"Reduce{name}", version, "no_axes", reduction
    # Before version 11, an omitted bound of Clip is the largest finite float32.
    for dtype, largest in (("float32", 3e38), ("float64", 5e38)):
        x = np.array([largest, 1e38, -1e38, -largest, 0.5], DTYPES[dtype])
        yield "Clip", 6, f"no_bounds_{dtype}", fixed_node(x)
    # Before version 14, training is not an attribute; the means are not called input_mean.
    means, variances = (np.array(row, np.float32) for row in ((8, 0, -9, np.inf), (1, 0, 2, 0.5)))
    scales, shifts = (np.array(row, np.float32) for row in ((1, 2, 0.5, -1), (0, 1, -1, 0.5)))
    far = fixed_node(distinct(2, 4, 3), scales, shifts, means, variances, epsilon=0.01)
    yield "BatchNormalization", 7, "far_means", far
    wide = np.array([1.5, 1e30, -500.0, 0.1], np.float32)
    yield "Cast", 19, "unsaturated", fixed_node(wide, to=TensorProto.FLOAT8E4M3FN, saturate=0)
    between = np.array([1.5, 3.0, 0.3, 1e30], np.float32)
    nearest = fixed_node(between, to=TensorProto.FLOAT8E8M0, round_mode="nearest")
    yield "Cast", 24, "nearest_power", nearest
    # Since version 7, a slope of one axis is aligned with the last axis.
    yield "PRelu", 7, "slope_of_last_axis", fixed_node(distinct(2, 3, 3), distinct(3) / 2)
    image = distinct(1, 1, 2, 3)
    for stem, factors in (("far", (7.5, 1.0)), ("fine", (1.5001, 1.0))):
        factors_of_axes = np.array([1, 1, *factors], np.float32)
        yield "Upsample", 9, stem, fixed_node(image, factors_of_axes, mode="linear")
