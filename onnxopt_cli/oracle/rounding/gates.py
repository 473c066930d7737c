"""Gates of recurrent cells, with perturbed activations.

The error of a gate or candidate is relative to the range of its activation, 1, not to its value.
The sum ``(1 - z) * h + z * H`` of a GRU multiplies the error of z by the distance of h from H.
Therefore the activations are perturbed, not the outputs.

ONNX Runtime and tract approximate sigmoid and tanh by rational functions of a clamped operand.
Their error is at most 4u if the operand is not clamped. The result for a clamped operand is not
exactly 0 or 1: in tract 0.23.9, sigmoid of 22 is 1 - 8u, and tanh of 22 is 1 - 10u.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import reference_modules, replaced

# An activation is saturated if its distance from its limit is at most this number of roundings.
_SATURATION = 32.0
# The share of a rounding by which an activation moves that is not saturated. With a tolerance of 16
# units, 4 roundings are accepted.
_INTERIOR_SHARE = 1 / 4


def moved_activations(
    roundoff: float, move: Callable[[Array], Array]
) -> AbstractContextManager[None]:
    """Perturb the activations of a GRU in a block.

    Args:
        roundoff: the unit roundoff of the model's type.
        move: returns the movements of activations, of at most one rounding of the number 1.
    """
    cell = reference_modules().op_gru.CommonGRU

    def moved(activation: Callable[[Any, Array], Array], low: float) -> Callable[..., Array]:
        def moved_activation(node: Any, operand: Array) -> Array:
            value = activation(node, operand)
            distance = np.minimum(np.abs(value - low), np.abs(1 - value))
            saturated = distance <= _SATURATION * roundoff
            return value + move(value) * np.where(saturated, 1.0, _INTERIOR_SHARE)

        return moved_activation

    return replaced((cell, "f", moved(cell.f, 0.0)), (cell, "g", moved(cell.g, -1.0)))
