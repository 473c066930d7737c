"""Corrections of operators that move data, such as Slice, Pad and Unique."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array, is_string
from onnxopt_cli.oracle.patching import replaces

# The first version of Dropout whose mask is boolean.
_BOOLEAN_MASK_VERSION = 10


@replaces("op_gather_elements.gather_numpy")
def _gathered(_original: Any, data: Array, axis: int, indices: Array) -> Array:
    """Gather along an axis.

    Along all other axes, there may be fewer indices than elements.
    """
    part = [slice(size) for size in indices.shape]
    part[axis] = slice(None)
    return np.take_along_axis(data[tuple(part)], indices, axis)


@replaces("op_gathernd._gather_nd_impl")
def _gathered_slices(original: Any, data: Array, indices: Array, batch_dims: int) -> Any:
    """Gather any number of slices, including no slice."""
    shape = (*indices.shape[:-1], *data.shape[batch_dims + indices.shape[-1] :])
    if 0 in shape:
        return (np.zeros(shape, data.dtype),)
    return original(data, indices, batch_dims)


@replaces("op_flatten.Flatten._run")
def _flattened(node: Any, _original: Any, x: Array, **_: Any) -> tuple[Array]:
    """Flatten the axes before ``axis`` into one axis, and the other axes into another axis."""
    return (x.reshape(prod(x.shape[: node.axis]), prod(x.shape[node.axis :])),)


@replaces("op_slice._slice")
def _sliced(
    original: Any, data: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Array:
    """Clamp the start of a backward slice to 0 if it precedes element 0."""
    if steps is not None:
        starts = list(np.ravel(starts).tolist())
        sliced_axes = range(len(starts)) if axes is None else np.ravel(axes).tolist()
        for place, (axis, step) in enumerate(zip(sliced_axes, np.ravel(steps), strict=True)):
            length, start = data.shape[axis], starts[place]
            if step < 0 and length:
                starts[place] = max(start + length if start < 0 else start, 0)
    return np.asarray(original(data, starts, ends, axes, steps))


@replaces("op_sequence_insert.sequence_insert_reference_implementation")
def _inserted(
    original: Any, sequence: Sequence[Any], tensor: Array, position: Any = None
) -> list[Any]:
    """Insert at the end of a sequence of n tensors if the position is n.

    The reference reduces the position modulo n. It therefore inserts at the front, and divides by
    zero if the sequence is empty.
    """
    if position is None:
        return list(original(sequence, tensor))
    inserted = list(sequence)
    place = int(np.ravel(position)[0])
    inserted.insert(place if place >= 0 else place + len(inserted), tensor)
    return inserted


@replaces("op_pad._pad_impl")
def _padded_or_cut(
    original: Any, data: Array, pads: Any, mode: Any, constant_values: Any = 0.0, axes: Any = None
) -> Array:
    """Remove elements where padding is negative, then pad. Texts are padded with empty texts."""
    if is_string(data.dtype) and not is_string(np.asarray(constant_values).dtype):
        constant_values = ""
    stated, part = np.reshape(pads, (2, -1)), [slice(None)] * data.ndim
    padded_axes = range(data.ndim) if axes is None else axes
    for axis, (before, after) in zip(padded_axes, stated.T, strict=True):
        part[axis] = slice(max(-before, 0), data.shape[axis] - max(-after, 0))
    positive = np.maximum(stated, 0).ravel().tolist()
    return np.asarray(original(data[tuple(part)], positive, mode, constant_values, axes))


@replaces("op_unique.Unique._run")
def _unique(
    node: Any, original: Any, x: Array, axis: Any = None, **kwargs: Any
) -> tuple[Array, ...]:
    """Compute first occurrences along the axis, even if the values are the only output.

    The reference computes first occurrences along the first axis instead, and only if the node also
    outputs the indices. Therefore the correction moves the axis to the front and requests all
    outputs.
    """
    with_all_outputs = SimpleNamespace(onnx_node=SimpleNamespace(output=("Y", "i", "inverse", "n")))
    if axis is None or np.isnan(axis):
        outputs = original(with_all_outputs, x.ravel(), 0, **kwargs)
    else:
        y, *indices = original(with_all_outputs, np.moveaxis(x, int(axis), 0), 0, **kwargs)
        outputs = (np.moveaxis(y, 0, int(axis)), *indices)
    return tuple(outputs[: len(node.onnx_node.output)])


@replaces("op_shape.Shape_15._run")
def _shape_between(
    _node: Any, _original: Any, x: Array, end: Any = None, start: Any = None
) -> tuple[Array]:
    """Clamp start and end to the axes of the input."""
    last = None if end is None or np.isnan(end) else int(end)
    return (np.array(x.shape[int(start or 0) : last], np.int64),)


@replaces("op_squeeze.Squeeze_1._run")
def _squeezed(_node: Any, _original: Any, x: Array, axes: Any = None) -> tuple[Array]:
    """Accept the axes in any order. They refer to the axes of the input."""
    return (np.squeeze(x, tuple(axes) if axes is not None and len(axes) else None),)


@replaces("op_unsqueeze.Unsqueeze_1._run")
def _unsqueezed(_node: Any, _original: Any, x: Array, axes: Any) -> tuple[Array]:
    """Accept the axes in any order. They refer to the axes of the output."""
    return (np.expand_dims(x, tuple(axes)),)


@replaces("op_one_hot.OneHot._run")
def _one_hot(
    _node: Any, _original: Any, indices: Array, depth: Array, values: Array, axis: int = -1
) -> tuple[Array]:
    """Cast indices and depth to integers first, and select the values without arithmetic."""
    places, length = indices.astype(np.int64), int(np.asarray(depth).item())
    places = np.expand_dims(np.where(places < 0, places + length, places), axis)
    shape = [1] * places.ndim
    shape[axis] = length
    off, on = values[:1], values[1:]
    return (np.where(places == np.arange(length).reshape(shape), on, off).astype(values.dtype),)


@replaces("op_non_max_suppression.NonMaxSuppression._run")
def _suppressed(
    node: Any,
    original: Any,
    boxes: Array,
    scores: Array,
    max_boxes: Any = None,
    overlap: Any = None,
    *score_threshold: Any,
    **kwargs: Any,
) -> Any:
    """Accept limits of rank 0. An omitted number of boxes or overlap threshold is 0."""
    limits = [np.zeros(1, np.int64) if max_boxes is None else max_boxes]
    limits += [np.zeros(1, boxes.dtype) if overlap is None else overlap, *score_threshold]
    flat = (None if limit is None else np.reshape(limit, -1) for limit in limits)
    return original(node, boxes, scores, *flat, **kwargs)


@replaces("op_dropout.Dropout_7._run")
def _dropout(node: Any, original: Any, x: Array, *args: Any, **kwargs: Any) -> Any:
    """In versions before 10, return the mask in the type of the input."""
    outputs = original(node, x, *args, **kwargs)
    early = node.run_params["opsets"][""] < _BOOLEAN_MASK_VERSION
    return tuple(output.astype(x.dtype) for output in outputs) if early else outputs
