"""Coordinates that move where we say so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.readings.conditioned.replaced import replaced

# In these modes coordinates are quotients by the scale, and exact if that is a power of two.
_QUOTIENTS = frozenset({"half_pixel", "pytorch_half_pixel", "asymmetric"})
# Of numbers of so few binary digits after the point GridSample's are exact in any order.
_FEW_DIGITS = 2.0**12

#: The operand of an operator that says where to look.
GRIDS = {"GridSample": 1, "RoiAlign": 1}


def sizes(op_type: str, grid: Array) -> Array:
    """Return by how many roundings coordinates are off that come from those of an operand."""
    few = (grid * _FEW_DIGITS) % 1 == 0
    exact = few & (op_type == "GridSample") | ~np.isfinite(grid)
    return np.where(exact, 0.0, np.maximum(1.0, np.abs(grid)))


def moved_coordinates(
    move: Callable[[Array], Array], *, picks: bool = False
) -> AbstractContextManager[None]:
    """Let onnx's reference resize with moved coordinates meanwhile.

    Args:
        move: moves each of an array by a share.
        picks: whether it picks elements, and does not compute with coordinates.
    """
    from onnx.reference.ops import op_resize

    # Nothing public yields coordinates.
    kept: Any = op_resize._compute_x_ori  # noqa: SLF001

    def moved(mode: str, y: Array, scale: float, *rest: Any) -> tuple[Array, Any]:
        found, outside = kept(mode, y, scale, *rest)
        exact = picks and mode in _QUOTIENTS and np.frexp(scale)[0] == 0.5  # noqa: PLR2004
        # In two modes the first coordinate is 0 however it is computed.
        least = mode not in {"asymmetric", "align_corners"}
        return found if exact else found + move(least + np.abs(found)), outside

    return replaced((op_resize, "_compute_x_ori", moved))
