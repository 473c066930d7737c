"""Wrong implementations of any operator that leave the results' types and shapes to NumPy.

They compute with the inputs as they are, and branch where the formula chooses by a scalar: types
and shapes of R and T that are not those of the tensors get into the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.readings.evaluate import one_element, widen
from onnxopt_cli.readings.implementation import Compute, Implementation

#: Chooses a result's type: NumPy's, that of its tensor, number of tensors in the node.
_ChooseType = Callable[[np.dtype[Any], np.dtype[Any], int], np.dtype[Any]]


def wrong_promotion() -> Iterator[Implementation]:
    """Yield the implementations; some may equal the formula on every input."""
    yield Implementation(
        "NumPy's types and shapes returned",
        "Nothing is cast: what R and T broadcast and promote to comes back.",
        compute=_with_types(lambda promoted, _own, _tensors: promoted),
    )
    yield Implementation(
        "NumPy's shapes returned",
        "Results are cast to their tensors' types; what R and T broadcast to comes back.",
        compute=_with_types(lambda _promoted, own, _tensors: own),
    )
    yield Implementation(
        "NumPy's shapes returned, several tensors in float32",
        "One tensor comes back in NumPy's type.",
        compute=_with_types(
            lambda promoted, _own, tensors: np.dtype(np.float32) if tensors > 1 else promoted
        ),
    )


def _with_types(choose: _ChooseType) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        # Attributes are float32 as they are, and so is what follows from them alone.
        exact = call.apply(one_element, widen, np.float32)
        promoted = call.apply(_branching, _branching, np.float32)
        return [
            np.broadcast_to(np.asarray(value), np.shape(as_numpy)).astype(
                choose(np.asarray(as_numpy).dtype, own.dtype, len(call.groups))
            )
            for (value, own, _), (as_numpy, _, _) in zip(exact, promoted, strict=True)
        ]

    return compute


class _Branching(np.ndarray[Any, Any]):
    """An array that takes one branch of a choice by a single condition, as a program does."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and np.size(args[0]) == 1:
            return args[1] if np.all(args[0]) else args[2]
        return super().__array_function__(function, types, args, kwargs)


def _branching(array: Array) -> _Branching:
    return array.view(_Branching)
