"""Coordinates that move where we say so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.rounding.patched_functions import replaced

# In these modes coordinates are quotients by the scale, and exact if that is a power of two.
_QUOTIENTS = frozenset({"half_pixel", "pytorch_half_pixel", "asymmetric"})
# Of numbers of so few binary digits after the point GridSample's are exact in any order.
_FEW_DIGITS = 2.0**12
# And so are cubic weights in float32, of so few. Else they are off by a share of their terms.
_FEW_OF_A_CUBE = 2.0**6
_SHARE_OF_TERMS = 1 / 16

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
    """Let onnx's reference resize with moved coordinates, and cubic weights, meanwhile.

    Args:
        move: moves each of an array by a share.
        picks: whether it picks elements, and does not compute with coordinates.
    """
    from onnx.reference.ops import op_grid_sample, op_resize

    # Nothing public yields coordinates.
    kept: Any = op_resize._compute_x_ori  # noqa: SLF001
    weights: Any = op_resize._cubic_coeffs  # noqa: SLF001
    grid_sample: Any = op_grid_sample.GridSample
    in_place = grid_sample._gs_get_cubic_coeffs  # noqa: SLF001

    def moved(mode: str, y: Array, scale: float, *rest: Any) -> tuple[Array, Any]:
        found, outside = kept(mode, y, scale, *rest)
        exact = picks and mode in _QUOTIENTS and np.frexp(scale)[0] == 0.5  # noqa: PLR2004
        # In two modes the first coordinate is 0 however it is computed.
        least = mode not in {"asymmetric", "align_corners"}
        return found if exact else found + move(least + np.abs(found)), outside

    def moved_weights(ratio: float, scale: float | None = None, A: float = -0.75) -> Array:
        found: Array = weights(ratio, scale, A)
        return found + move(_terms(ratio, abs(A)))

    def moved_in_place(node: Any, ratio: float, coeffs: Array) -> None:
        in_place(node, ratio, coeffs)
        coeffs += move(_terms(ratio, 0.75))

    return replaced(
        (op_resize, "_compute_x_ori", moved),
        (op_resize, "_cubic_coeffs", moved_weights),
        (grid_sample, "_gs_get_cubic_coeffs", moved_in_place),
    )


@lru_cache(4096)
def _terms(ratio: float, a: float) -> Array:
    """Return a share of the magnitudes that each of the four cubic weights adds up."""
    if ratio * _FEW_OF_A_CUBE % 1 == 0:
        return np.zeros(4)
    x = np.array([1 + ratio, ratio, 1 - ratio, 2 - ratio])
    far, near = a * (x**3 + 5 * x**2 + 8 * x + 4), (a + 2) * x**3 + (a + 3) * x**2 + 1
    return _SHARE_OF_TERMS * np.where([True, False, False, True], far, near)
