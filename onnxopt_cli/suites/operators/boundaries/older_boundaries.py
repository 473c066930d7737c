"""Nodes at boundaries of older operator versions, whose definitions differ from the newest ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
