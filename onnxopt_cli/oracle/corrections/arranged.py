"""Operators that arrange data, as the specification has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.corrections.replacements import instead_of

# Since then the mask of Dropout is boolean.
_BOOLEAN_MASK = 10


@instead_of("op_gather_elements.gather_numpy")
def _gathered(_kept: Any, data: Array, axis: int, indices: Array) -> Array:
    """Gather along any axis of any length, where there may be fewer indices along the others."""
    within = [slice(size) for size in indices.shape]
    within[axis] = slice(None)
    return np.take_along_axis(data[tuple(within)], indices, axis)


@instead_of("op_pad._pad_impl")
def _padded_or_cut(
    kept: Any, data: Array, pads: Any, mode: Any, constant_values: Any = 0.0, axes: Any = None
) -> Array:
    """Cut off what a negative number says, then pad."""
    given, within = np.reshape(pads, (2, -1)), [slice(None)] * data.ndim
    for axis, (before, after) in zip(
        range(data.ndim) if axes is None else axes, given.T, strict=True
    ):
        within[axis] = slice(max(-before, 0), data.shape[axis] - max(-after, 0))
    added = np.maximum(given, 0).ravel().tolist()
    return np.asarray(kept(data[tuple(within)], added, mode, constant_values, axes))


@instead_of("op_unique.Unique._run")
def _in_order(node: Any, kept: Any, x: Array, axis: Any = None, **rest: Any) -> tuple[Array, ...]:
    """Take what is unique from where it was found, along any axis."""
    whole = axis is None or np.isnan(axis)
    y, *others = kept(node, x.ravel() if whole else np.moveaxis(x, int(axis), 0), 0, **rest)
    return (y if whole else np.moveaxis(y, 0, int(axis)), *others)


@instead_of("op_shape.Shape_15._run")
def _shape_between(
    _node: Any, _kept: Any, x: Array, end: Any = None, start: Any = None
) -> tuple[Array]:
    """Take ends beyond either side for the sides."""
    last = None if end is None or np.isnan(end) else int(end)
    return (np.array(x.shape[int(start or 0) : last], np.int64),)


@instead_of("op_squeeze.Squeeze_1._run")
def _squeezed(_node: Any, _kept: Any, x: Array, axes: Any = None) -> tuple[Array]:
    """Take axes for those of the input, in whatever order they come."""
    return (np.squeeze(x, tuple(axes) if axes is not None and len(axes) else None),)


@instead_of("op_unsqueeze.Unsqueeze_1._run")
def _unsqueezed(_node: Any, _kept: Any, x: Array, axes: Any) -> tuple[Array]:
    """Take axes for those of the output, in whatever order they come."""
    return (np.expand_dims(x, tuple(axes)),)


@instead_of("op_one_hot.OneHot._run")
def _one_hot(
    _node: Any, _kept: Any, indices: Array, depth: Array, values: Array, axis: int = -1
) -> tuple[Array]:
    """Cast indices and depth to integers first; take the values as they are."""
    places, length = indices.astype(np.int64), int(np.asarray(depth).item())
    places = np.expand_dims(np.where(places < 0, places + length, places), axis)
    shape = [1] * places.ndim
    shape[axis] = length
    off, on = values
    return (np.where(places == np.arange(length).reshape(shape), on, off).astype(values.dtype),)


@instead_of("op_non_max_suppression.NonMaxSuppression._run")
def _suppressed(
    node: Any,
    kept: Any,
    boxes: Array,
    scores: Array,
    most: Any = None,
    overlap: Any = None,
    *score: Any,
    **rest: Any,
) -> Any:
    """Know what is left out: no box, and no overlap; numbers may have no axis."""
    limits = [np.zeros(1, np.int64) if most is None else most]
    limits += [np.zeros(1, boxes.dtype) if overlap is None else overlap, *score]
    flat = (None if it is None else np.reshape(it, -1) for it in limits)
    return kept(node, boxes, scores, *flat, **rest)


@instead_of("op_dropout.Dropout_7._run")
def _with_mask_of_its_type(node: Any, kept: Any, x: Array, *given: Any, **rest: Any) -> Any:
    """Return a mask of the input's type, as it was before version 10."""
    outputs = kept(node, x, *given, **rest)
    old = node.run_params["opsets"][""] < _BOOLEAN_MASK
    return tuple(it.astype(x.dtype) for it in outputs) if old else outputs
