"""The formula on numbers: computed in a wide type, rounded once to each output's type."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call

#: The widest float that NumPy computes in here: 80 bits on x86, double on some other machines.
WIDE = np.dtype(np.longdouble)


def evaluate(
    call: Call[Array], dtype: np.dtype[Any] = WIDE, attributes: np.dtype[Any] | None = None
) -> list[Array]:
    """Return the node's outputs, each in its own dtype and the shape of its group's first tensor.

    R's, T's and the tensors' values and the float32 attributes enter exactly; every operation is
    carried out in :data:`WIDE`; only the result is rounded. What is computed in another dtype, or
    has its attributes in another one, is one more implementation, and no reference.
    """
    with np.errstate(all="ignore"):
        return [
            rounded(result, like.dtype, np.shape(first))
            for result, like, first in call.apply(
                lambda scalar: scalar.reshape(()).astype(dtype),
                lambda tensor: tensor.astype(dtype),
                (attributes or dtype).type,
            )
        ]


def widen(tensor: Array) -> Array:
    """Return the tensor in the wide type."""
    return tensor.astype(WIDE)


def one_element(tensor: Array) -> Array:
    """Return a tensor of one element, of whatever rank, as a wide scalar."""
    return tensor.reshape(()).astype(WIDE)


def rounded(result: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Round a formula's result to an output's dtype and give it the output's shape."""
    return np.broadcast_to(np.asarray(result), shape).astype(dtype)
