"""Operators as onnx's reference lacks them, and coordinates that move where we say so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.readings.conditioned.replaced import replaced

# In these modes coordinates are quotients by the scale, and exact if that is a power of two.
_QUOTIENTS = frozenset({"half_pixel", "pytorch_half_pixel", "asymmetric"})
# Of numbers of so few binary digits after the point GridSample's are exact in any order.
_FEW_DIGITS = 2.0**12
_WHOLE = 1e-9


@cache
def operators() -> list[type]:
    """Return what is run in place of the reference's operators."""
    from onnx.reference.ops import op_grid_sample, op_scan, op_scatter_elements

    class GridSample(op_grid_sample.GridSample):
        """With coordinates as precise as the grid: the reference's are always float32."""

        op_domain = ""

        def _gs_denormalize_coordinates(self, n: Array, dims: Any, align_corners: bool) -> Array:
            wide = [self._gs_denormalize(*it, align_corners) for it in zip(n, dims, strict=False)]
            return np.array(wide, n.dtype)

    class Scan(op_scan.Scan):
        """With what Scan was at first: of batches, behind lengths that are left out."""

        op_domain = ""

        def _run(self, *given: Any, **rest: Any) -> tuple[Any, ...]:
            run: Any = super()._run
            if given[0] is not None or any(getattr(self, "directions", None) or ()):
                return tuple(run(*given, **rest))
            found = [run(*it, **rest) for it in zip(*given[1:], strict=True)]
            return tuple(map(np.stack, zip(*found, strict=True)))

    class Scatter(op_scatter_elements.ScatterElements):
        """The earlier name of ScatterElements."""

        op_domain = ""

    return [GridSample, Scan, Scatter]


#: The operand of an operator that says where to look.
GRIDS = {"GridSample": 1, "RoiAlign": 1}


def sizes(op_type: str, grid: Array) -> Array:
    """Return by how many roundings coordinates are off that come from those of an operand."""
    with np.errstate(all="ignore"):
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
        # In double whole numbers are missed by little, by which the reference goes astray.
        found = np.where(np.abs(found - np.rint(found)) < _WHOLE, np.rint(found), found)
        exact = picks and mode in _QUOTIENTS and np.frexp(scale)[0] == 0.5  # noqa: PLR2004
        # In two modes the first coordinate is 0 however it is computed.
        least = mode not in {"asymmetric", "align_corners"}
        return found if exact else found + move(least + np.abs(found)), outside

    return replaced(op_resize, _compute_x_ori=moved)
