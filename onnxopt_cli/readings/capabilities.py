"""What a case asks of a backend beyond one node with float32 tensors, as its content shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from onnxopt_cli.core.case import Content
from onnxopt_cli.core.values import Value, dtype_name
from onnxopt_cli.readings.single_node import sole_operator

#: The capabilities, in the order in which they are shown.
CAPABILITIES = {
    "double": "tensors of doubles",
    "mixed-types": "floating-point inputs of unlike types",
    "many-tensors": "several optimized tensors in a node",
    "broadcasting": "tensors of a shape unlike the first one's",
    "refusals": "refusing what breaks the signature",
    "not-finite": "NaN and infinity in inputs, attributes or stored outputs",
    "large-counts": "counts beyond 2^24, which float32 cannot hold",
    "empty": "tensors without elements",
    "large": "more than 10,000 elements",
}
_EXACT_COUNT = 2**24
_LARGE = 10_000


def capabilities(content: Content) -> tuple[str, ...]:
    """Return the capabilities that a case needs, in the order of :data:`CAPABILITIES`."""
    arrays = _arrays(list(content.inputs.values()))
    if content.trajectory is not None:
        arrays += _arrays(list(content.trajectory.series.values()))
    stored = _arrays(list((content.expected or {}).values()))
    floats = {dtype_name(it.dtype) for it in arrays if "float" in dtype_name(it.dtype)}
    counts = [it for it in arrays if it.dtype == np.int64 and it.size == 1]
    elements = sum(it.size for it in arrays)
    numbers = [it.f for node in content.model.graph.node for it in node.attribute]
    found = {
        "double": any(it.dtype == np.float64 for it in (*arrays, *stored)),
        "mixed-types": len(floats) > 1,
        "refusals": content.rejects,
        "not-finite": not all(map(_finite, (*arrays, *stored, np.array(numbers)))),
        "large-counts": any(np.any(np.abs(it.astype(float)) > _EXACT_COUNT) for it in counts),
        "empty": any(it.size == 0 for it in arrays),
        "large": elements > _LARGE,
        **_of_groups(content),
    }
    return tuple(name for name in CAPABILITIES if found.get(name))


def _of_groups(content: Content) -> Mapping[str, bool]:
    model, inputs = content.model, content.inputs
    if content.trajectory is not None:
        model, inputs = (
            content.trajectory.model,
            content.trajectory.inputs(
                1, content.trajectory.state, lambda array: array, lambda _, like: like
            ),
        )
    operator = None if content.rejects else sole_operator(model)
    if operator is None:
        return {}
    names = model.graph.node[0].input[len(operator.scalars) :]
    number = len(names) // len(operator.tensors)
    shapes = {name: it.shape for name, it in inputs.items() if isinstance(it, np.ndarray)}
    unlike = any(
        shapes[name] != shapes[first]
        for name, first in zip(names, cycle(names[:number]), strict=False)
        if name in shapes and first in shapes
    )
    return {"many-tensors": number > 1, "broadcasting": unlike}


def _arrays(values: Sequence[Value]) -> list[Any]:
    """Return the tensors among values, and those in sequences and maps."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, np.ndarray):
            found.append(value)
        elif isinstance(value, (list, dict)):
            found += _arrays(list(value.values() if isinstance(value, dict) else value))
    return found


def _finite(array: Any) -> bool:
    return "float" not in dtype_name(array.dtype) or bool(np.isfinite(array).all())
