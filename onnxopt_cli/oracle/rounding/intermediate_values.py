"""Perturbed intermediate values of nodes: activations of recurrent cells, coordinates, weights.

The error of a gate or candidate of a recurrent cell is not relative to its value, but to the range
of its activation function, which is 1. In the sum ``(1 - z) * h + z * H`` of a GRU, the error of z
is multiplied by the distance of h from H. Therefore the activations are perturbed, not the outputs.

ONNX Runtime and tract clamp the operand of sigmoid and tanh, and approximate the functions by
rational functions. If the operand is not clamped, the error is at most 4u. If the operand is
clamped, the result differs from the limit of the function: in tract 0.23.9, sigmoid(22) is 1 - 8u
and tanh(22) is 1 - 10u.

If a node interpolates, the error of a coordinate is multiplied by the difference of neighbouring
elements. If a node selects elements, an error of a coordinate may select another element. Therefore
the coordinates of both kinds of nodes are perturbed.

An ensemble of trees adds weights and base values, which are attributes. If the sum is close to
zero, its error comes from the partial sums and is proportional to the weights. The operands only
choose the weights. Therefore the weights are perturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.corrections import grids, recurrent
from onnxopt_cli.oracle.corrections.windows import regular_coordinates
from onnxopt_cli.oracle.patching import reference_modules, replaced

# The largest distance between a saturated activation and its limit, in roundings.
_SATURATION = 32.0
# If an activation is not saturated, it moves by this share of a rounding. A tolerance of 16 units
# is then 4 roundings.
_INTERIOR_SHARE = 1 / 4
# The lower limits of the activations that runtimes clamp. The upper limits are 1.
_LEAST_ACTIVATIONS = {"sigmoid": 0.0, "tanh": -1.0}
# Activations that add no constants. Their errors are relative to their values, even near 0.
_RELATIVE_ACTIVATIONS = frozenset({"leakyrelu", "relu", "thresholdedrelu"})

# Modes of Resize in which a coordinate is the quotient of a position and the scale. The quotient is
# exact if the scale is a power of two.
_QUOTIENT_MODES = frozenset({"half_pixel", "pytorch_half_pixel", "asymmetric"})
# If the grid of GridSample or the offset of DeformConv has at most 12 binary digits after the
# point, coordinates are exact in any order of operations.
_EXACT_GRID = 2.0**12
# Cubic weights are exact in float32 if the ratio (the fractional part of a coordinate) has at most
# 6 binary digits after the point, and the coefficient a has at most 3.
_EXACT_RATIO, _EXACT_COEFFICIENT = 2.0**6, 2.0**3
# Otherwise, the scale of a weight's error is _WEIGHT_SHARE times the sum of the magnitudes of the
# weight's terms. If a weight is computed as a x^3 - 5 a x^2 + 8 a x - 4 a, its terms have errors of
# 3, 2, 1 and 0 roundings, and the partial sums round as well. Together, these are at most 2
# roundings of the sum of the magnitudes. A tolerance of 16 units is 3 roundings of this sum,
# because the runs do not move all weights of an element in the directions of their errors.
_WEIGHT_SHARE = 3 / 8
# A coordinate of RoiAlign is (1 - t) a + t b, where a and b are the edges of a region. The error of
# the coordinate is at most 8 roundings. The edges are scaled and shifted, which contributes 2 (1 -
# t) + 2 t. The distance between the edges is computed and divided, which contributes 3 t. The
# additions contribute 3. The tolerance is 16 units of half a rounding, that is, 8 roundings.
_REGION_SHARE = 1 / 2

# The modules of onnx's reference that implement the operators of trees.
_TREE_MODULES = {
    "TreeEnsemble": "op_tree_ensemble",
    "TreeEnsembleClassifier": "op_tree_ensemble_classifier",
    "TreeEnsembleRegressor": "op_tree_ensemble_regressor",
}
# The names of the attributes that contain weights of trees begin with these texts.
_BASE = "base_values"
_WEIGHTS = (_BASE, "class_weights", "leaf_weights", "target_weights")
# Values of aggregate_function that select a single weight. In TreeEnsemble, the attribute is a
# number.
_SELECTING_AGGREGATES = frozenset({b"MIN", b"MAX", 2, 3})
# Values of post_transform that return the sums unchanged. In TreeEnsemble, the attribute is a
# number.
_NO_TRANSFORM = (b"NONE", 0)

#: For each operator, the index of the operand that contains the coordinates.
GRIDS = {"GridSample": 1, "RoiAlign": 1}
#: The index of the operand of DeformConv that contains the offsets from regular coordinates.
OFFSETS = 2


def moved_activations(
    roundoff: float, move: Callable[[Array], Array]
) -> AbstractContextManager[None]:
    """Perturb the activations of a GRU in a ``with`` block.

    Args:
        roundoff: the unit roundoff of the model's type.
        move: takes activations and returns their movements, each of at most one rounding of 1.
    """
    cell = reference_modules().op_gru.CommonGRU
    exact_activation = recurrent.activated

    def moved(value: Array, least: float) -> Array:
        distance = np.minimum(np.abs(value - least), np.abs(1 - value))
        saturated = distance <= _SATURATION * roundoff
        return value + move(value) * np.where(saturated, 1.0, _INTERIOR_SHARE)

    def moved_sigmoid(node: Any, operand: Array, exact: Any = cell.f) -> Array:
        return moved(exact(node, operand), 0.0)

    def moved_tanh(node: Any, operand: Array, exact: Any = cell.g) -> Array:
        return moved(exact(node, operand), -1.0)

    def moved_activation(name: str, x: Array, alpha: float, beta: float) -> Array:
        value = exact_activation(name, x, alpha, beta)
        if name in _LEAST_ACTIVATIONS:
            return moved(value, _LEAST_ACTIVATIONS[name])
        scale = np.abs(value)
        if name == "affine":
            scale = np.abs(value - beta) + np.abs(beta)
        elif name not in _RELATIVE_ACTIVATIONS:
            scale = np.maximum(1.0, scale)
        return value + move(value) * _INTERIOR_SHARE * scale

    return replaced(
        (cell, "f", moved_sigmoid),
        (cell, "g", moved_tanh),
        (recurrent, "activated", moved_activation),
    )


def summed_weights(node: onnx.NodeProto) -> int:
    """Return the number of terms in each sum of an ensemble of trees; 0 if no weights are added."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if attributes.get("aggregate_function") in _SELECTING_AGGREGATES:
        return 0
    trees = attributes.get("tree_roots") or attributes.get("nodes_treeids") or ()
    return len({*trees}) + any(name.startswith(_BASE) for name in attributes)


def rounds_partial_sums(node: onnx.NodeProto) -> bool:
    """Return whether an ensemble of trees rounds intermediate sums of weights."""
    transforms = (item for item in node.attribute if item.name == "post_transform")
    transformed = any(helper.get_attribute_value(item) not in _NO_TRANSFORM for item in transforms)
    # A sum of two terms is rounded once. If the sum is an output,
    # perturbing the output covers this rounding.
    return summed_weights(node) > (1 if transformed else 2)


def moved_weights(op_type: str, move: Callable[[Array], Array]) -> AbstractContextManager[None]:
    """Perturb the weights and base values of an ensemble of trees in a ``with`` block.

    Args:
        op_type: the operator.
        move: takes weights and returns their movements.
    """
    modules = reference_modules().aionnxml
    owner = getattr(getattr(modules, _TREE_MODULES[op_type]), op_type)
    original = owner._run  # noqa: SLF001 - no public method takes the attributes

    def run(node: Any, *operands: Any, **attributes: Any) -> Any:
        # The reference passes the attributes in an order that differs between processes.
        for name, value in sorted(attributes.items()):
            if name.startswith(_WEIGHTS) and value is not None:
                weights = np.asarray(value, np.float64)
                attributes[name] = weights + move(weights)
        return original(node, *operands, **attributes)

    return replaced((owner, "_run", run))


def coordinate_errors(op_type: str, grid: Array) -> Array:
    """Return the errors of the coordinates that a node computes from a grid, in roundings."""
    if op_type == "RoiAlign":
        return np.where(np.isfinite(grid), _REGION_SHARE * np.maximum(1.0, np.abs(grid)), 0.0)
    is_exact = (grid * _EXACT_GRID) % 1 == 0
    return np.where(is_exact | ~np.isfinite(grid), 0.0, np.maximum(1.0, np.abs(grid)))


def offset_coordinates(attributes: Mapping[str, Any], weights: Array, offsets: Array) -> Array:
    """Return the magnitudes of the coordinates of DeformConv, with 0 for each exact coordinate.

    Args:
        attributes: attributes of the node.
        weights: the weights, of rank 4.
        offsets: the offsets; the result has the same shape.
    """
    kernel, shape = weights.shape[2:], offsets.shape[2:]
    regular = regular_coordinates(attributes, kernel, shape)
    coordinates = offsets.reshape(len(offsets), -1, *regular.shape) + regular
    is_exact = (offsets * _EXACT_GRID) % 1 == 0
    return np.where(is_exact, 0.0, np.abs(coordinates).reshape(offsets.shape))


def moved_coordinates(
    error: Callable[[Array], Array], *, selects: bool = False
) -> AbstractContextManager[None]:
    """Perturb coordinates and cubic weights of onnx's reference in a ``with`` block.

    Args:
        error: takes magnitudes and returns the absolute errors, which are proportional to them.
        selects: whether the node selects elements by coordinates rather than interpolating.
    """
    from onnx.reference.ops import op_resize

    # No public function returns coordinates.
    exact_coordinates: Any = op_resize._compute_x_ori  # noqa: SLF001
    exact_weights: Any = op_resize._cubic_coeffs  # noqa: SLF001
    exact_antialiased: Any = op_resize._cubic_coeffs_antialias  # noqa: SLF001
    exact_grid_weights = grids.cubic_weights
    # Whether the ratios of the axis that is interpolated are exact in float32, and have few digits.
    has_short_ratios = False

    def moved(mode: str, y: Array, scale: float, *args: Any) -> tuple[Array, Any]:
        nonlocal has_short_ratios
        x, outside = exact_coordinates(mode, y, scale, *args)
        power_of_two = np.frexp(scale)[0] == 0.5  # noqa: PLR2004
        is_exact = mode in _QUOTIENT_MODES and power_of_two
        has_short_ratios = is_exact and _have_few_digits(x).all()
        if selects and is_exact:
            return x, outside
        # In these two modes, no offset is added, so the first coordinate is exactly 0.
        offset = mode not in {"asymmetric", "align_corners"}
        return x + error(offset + np.abs(x)), outside

    def moved_weights(ratio: float, scale: float | None = None, A: float = -0.75) -> Array:
        weights: Array = exact_weights(ratio, scale, A)
        # The ratio is that of a moved coordinate, and has many digits.
        return weights + error(_weight_scale(0.0 if has_short_ratios else ratio, abs(A)))

    def moved_antialiased(ratio: float, scale: float, A: float = -0.75) -> Array:
        weights: Array = exact_antialiased(ratio, scale, A)
        # The filter is stretched. The weights are divided by their sum, which is about 1 / shrink.
        shrink = min(scale, 1.0)
        places = np.arange(1 - len(weights) // 2, 1 + len(weights) // 2)
        distances = np.abs(shrink * (places - ratio))
        return weights + error(_WEIGHT_SHARE * shrink * _cubic_terms(distances, abs(A)))

    def moved_grid_weights(ratios: Array) -> Array:
        return exact_grid_weights(ratios) + error(_weight_scales(ratios, 0.75))

    return replaced(
        (op_resize, "_compute_x_ori", moved),
        (op_resize, "_cubic_coeffs", moved_weights),
        (op_resize, "_cubic_coeffs_antialias", moved_antialiased),
        (grids, "cubic_weights", moved_grid_weights),
    )


@lru_cache(4096)
def _weight_scale(ratio: float, a: float) -> Array:
    """Return the result of :func:`_weight_scales` for a single ratio."""
    return _weight_scales(np.float64(ratio), a)


def _weight_scales(ratios: Any, a: float) -> Array:
    """Return the scale of the error of each of four cubic weights.

    The scale is _WEIGHT_SHARE times the sum of |t| over the terms t of a weight. The result has a
    new last axis, along which the four weights lie.
    """
    x = np.stack([1 + ratios, ratios, 1 - ratios, 2 - ratios], axis=-1)
    exact = _have_few_digits(ratios) & (a * _EXACT_COEFFICIENT % 1 == 0)
    return np.where(exact[..., None], 0.0, _WEIGHT_SHARE * _cubic_terms(x, a))


def _have_few_digits(ratios: Any) -> Any:
    """Return, for each ratio, whether cubic weights that are computed from it are exact."""
    return np.asarray(ratios * _EXACT_RATIO % 1 == 0)


def _cubic_terms(x: Array, a: float) -> Array:
    """Return the sum of the magnitudes of the terms of each cubic weight.

    Args:
        x: the distances of pixels from a point, in units of the filter; not negative.
        a: the magnitude of the coefficient.
    """
    outer, inner = a * (x**3 + 5 * x**2 + 8 * x + 4), (a + 2) * x**3 + (a + 3) * x**2 + 1
    return np.select([x <= 1, x <= 2], [inner, outer], 0.0)  # noqa: PLR2004 - the radius
