"""Generators of operators for images and signals: resampling, boxes, Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx.defs import OpSchema

from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape

_FLOATS = ("float32", "float64")
_STYLES = ("plain", "halves")
_MODES = ("linear", "nearest", "cubic")
_TRANSFORMATIONS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
_ROUNDINGS = (None, "round_prefer_ceil", "floor", "ceil", "round_prefer_floor")
_WINDOW_DTYPES = (None, 1, 11, 10)


def _leave_out(draft: NodeDraft) -> None:
    """Leave out an input of Resize.

    In early versions, the input is an empty tensor instead.
    """
    formal = draft.schema.inputs[len(draft.inputs)]
    is_optional = formal.option == OpSchema.FormalParameterOption.Optional
    draft.add(None if is_optional else np.zeros(0, np.float32))


def _resize(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32", "float64", "float16", "uint8", "int8", "int32", "int64"))
    rank = draft.choice((2, 1))
    lengths = [draft.size(2, 5) for _ in range(rank)]
    shape = (draft.size(1, 2), draft.size(1, 2), *lengths)
    if not draft.since(11):
        _upsample(draft, dtype, shape)
        return
    mode = draft.choice(_MODES)
    draft.set("mode", mode if mode != "nearest" or draft.maybe() else None)
    _require_exact(draft, dtype, mode)
    options = [None, *_TRANSFORMATIONS, "tf_crop_and_resize"]
    if draft.since(19):  # version 19 added half_pixel_symmetric
        options.append("half_pixel_symmetric")
    transformation = draft.attribute("coordinate_transformation_mode", options)
    draft.set("nearest_mode", draft.choice(_ROUNDINGS) if mode == "nearest" else None)
    if mode == "cubic":
        draft.float_attribute("cubic_coeff_a", (None, -0.5, -0.25))
        draft.attribute("exclude_outside", (None, 1, 0))
    if mode != "nearest" and transformation != "tf_crop_and_resize":
        draft.attribute("antialias", (None, 1, 0))
    has_axes = draft.has("axes") and draft.maybe(3)
    axes = list(range(2, 2 + rank)) if has_axes else list(range(2 + rank))
    targets = [draft.integer(1, 7) for _ in lengths]
    if has_axes and draft.maybe():
        axes, targets, lengths = axes[::-1], targets[::-1], lengths[::-1]
    draft.set("axes", axes if has_axes else None)
    fixed_sizes = [] if has_axes else list(shape[:2])
    draft.add(draft.tensor(dtype, shape, styles=(*_STYLES, "wide")))
    if transformation == "tf_crop_and_resize":
        start = [0.0] * len(fixed_sizes) + [draft.choice((0.0, 0.25, -0.125)) for _ in lengths]
        end = [1.0] * len(fixed_sizes) + [draft.choice((1.0, 0.75, 1.25)) for _ in lengths]
        draft.add(np.array([*start, *end], np.float32))
        draft.float_attribute("extrapolation_value", (None, 2.5))
    else:
        _leave_out(draft)
    if draft.maybe():
        _leave_out(draft)
        draft.add(np.array([*fixed_sizes, *targets], np.int64))
        if transformation != "tf_crop_and_resize" and has_axes:
            draft.attribute("keep_aspect_ratio_policy", (None, "not_larger", "not_smaller"))
        return
    # Implementations disagree on whether the scales apply to the cropped image or to the whole
    # image.
    draft.require(transformation != "tf_crop_and_resize")
    # Output lengths are integers, because the specification does not say how a fraction is rounded.
    factors = [target / length for target, length in zip(targets, lengths, strict=True)]
    scales = np.array([*[1.0] * len(fixed_sizes), *factors], np.float32)
    products = scales[len(fixed_sizes) :].astype(np.float64) * lengths
    draft.require((products == targets).all())
    draft.add(scales)


def _upsample(draft: NodeDraft, dtype: np.dtype[Any], shape: Shape) -> None:
    """Draw the input, the scales and the mode of Upsample, or of Resize of version 10."""
    mode = draft.choice((None, "nearest", "linear"))
    draft.set("mode", mode)
    _require_exact(draft, dtype, mode or "nearest")
    factors = [draft.choice((2, 3, 1)) for _ in shape[2:]]
    scales = np.array([1, 1, *factors], np.float32)
    # Infinities would be multiplied by interpolation weights, which may be zero.
    styles = (*_STYLES, "wide") if mode == "linear" else (*_STYLES, "special", "wide")
    draft.add(draft.tensor(dtype, shape, styles=styles))
    if draft.has("scales"):
        draft.set("scales", scales.tolist())
    else:
        draft.add(scales)


def _require_exact(draft: NodeDraft, dtype: np.dtype[Any], mode: str) -> None:
    """Reject interpolated integers: the specification does not say how they are rounded."""
    draft.require(dtype.kind not in "iu" or mode == "nearest")


def _grid_sample(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _FLOATS)
    rank = draft.choice((2, 3)) if draft.since(20) else 2  # version 20 allows any rank
    lengths, targets = (
        [draft.size(2, 4) for _ in range(rank)],
        [draft.size(1, 3) for _ in range(rank)],
    )
    batch, channels = draft.size(1, 2), draft.size(1, 2)
    early = not draft.since(20)
    names = ("bilinear", "nearest", "bicubic") if early else ("linear", "nearest", "cubic")
    mode = draft.choice(names if rank == 2 else names[:2])  # noqa: PLR2004 - cubic has rank 2
    draft.set("mode", mode)
    draft.attribute("padding_mode", (None, "border", "reflection", "zeros"))
    draft.attribute("align_corners", (None, 1, 0))
    draft.add(draft.tensor(dtype, (batch, channels, *lengths), styles=_STYLES))
    grid = draft.tensor(draft.dtype(1, _FLOATS), (batch, *targets, rank), low=-1.3, high=1.3)
    draft.add(grid)


def _affine_grid(draft: NodeDraft) -> None:
    rank = draft.choice((2, 3))
    batch = draft.size(1, 2)
    theta = draft.tensor(draft.dtype(0, _FLOATS), (batch, rank, rank + 1), styles=_STYLES)
    draft.add(theta)
    draft.add(np.array([batch, draft.size(1, 2), *(draft.size(2, 4) for _ in range(rank))]))
    draft.attribute("align_corners", (None, 1, 0))


def _non_max_suppression(draft: NodeDraft) -> None:
    batch, count, classes = draft.size(1, 2), draft.integer(2, 6), draft.size(1, 2)
    random = draft.state()
    centered = draft.attribute("center_point_box", (None, 1, 0))
    corners = random.randint(0, 9, (batch, count, 2)) / 4.0
    sizes = random.randint(2, 9, (batch, count, 2)) / 4.0
    boxes = np.concatenate([corners, sizes if centered else corners + sizes], axis=-1)
    if not centered and draft.maybe():
        # The two corners of a box may be the ends of either diagonal.
        boxes = boxes[..., [2, 1, 0, 3]]
    order = random.permutation(batch * classes * count).reshape(batch, classes, count)
    # Coordinates and scores may have any sign and magnitude.
    boxes = boxes * draft.choice((1.0, 8.0)) - draft.choice((0.0, 2.5))
    scores = order / order.size * draft.choice((1.0, 1.0, 9.0)) - draft.choice((0.0, 0.0, 0.75))
    draft.add(boxes.astype(np.float32))
    draft.add(scores.astype(np.float32))
    draft.add(np.array([draft.integer(1, count)], np.int64))
    draft.optional(lambda: np.array([draft.choice((0.3, 0.6, 0.0, 1.0))], np.float32))
    draft.optional(lambda: np.array([draft.choice((0.3, 0.55))], np.float32))


_ONE_SIDED_INVERSE_VERSION = 20


def _dft(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _FLOATS)
    onesided = draft.maybe()
    # Versions before _ONE_SIDED_INVERSE_VERSION do not define the inverse of a one-sided transform.
    inverse = (not onesided or draft.since(_ONE_SIDED_INVERSE_VERSION)) and draft.maybe()
    rank = draft.integer(1, 2)
    lengths = [draft.integer(1, 7) for _ in range(rank)]
    place = draft.integer(0, rank - 1) + 1
    axis = place - (rank + 2) if draft.maybe() else place
    if onesided and inverse:
        # Unless the node states the length of the result, the transform needs at least two
        # elements.
        lengths[place - 1] += 1
    is_resized = draft.maybe() and not (onesided and inverse)
    length = draft.integer(1, 9) if is_resized else lengths[place - 1]
    is_real = not inverse if onesided else draft.maybe()
    draft.set("onesided", 1 if onesided else draft.choice((None, 0)))
    draft.set("inverse", 1 if inverse else draft.choice((None, 0)))
    draft.add(draft.tensor(dtype, (draft.size(1, 2), *lengths, 1 if is_real else 2)))
    draft.add(np.array(length, np.int64) if length != lengths[place - 1] else None)
    if draft.has("axis"):
        draft.set("axis", None if axis == 1 and draft.maybe() else axis)
    elif axis != -2 or draft.maybe():  # noqa: PLR2004 - the default axis
        draft.add(np.array(axis, np.int64))


def _stft(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _FLOATS)
    frame = draft.choice((4, 3, 5, 8))
    step = draft.size(1, 4)
    length = frame + step * draft.integer(0, 3) + draft.integer(0, 1)
    is_complex = draft.maybe(3)
    if is_complex:
        draft.set("onesided", 0)
    else:
        draft.attribute("onesided", (None, 0, 1))
    draft.add(draft.tensor(dtype, (draft.size(1, 2), length, 2 if is_complex else 1)))
    draft.add(np.array(step, np.int64))
    if draft.maybe():
        # Flat-top windows have negative values, and some windows have values above 1.
        draft.add(draft.tensor(dtype, (frame,), low=-0.25, high=draft.choice((1.0, 9.0))))
        draft.optional(lambda: np.array(frame, np.int64))
    elif draft.maybe(4):
        # If neither a window nor a frame length is given, the frame is the whole signal.
        draft.omit()
    else:
        draft.omit()
        draft.add(np.array(frame, np.int64))


def _window(draft: NodeDraft) -> None:
    # The formula of symmetric windows divides by zero if the window has one element.
    draft.attribute("periodic", (None, 0, 1))
    draft.attribute("output_datatype", _WINDOW_DTYPES)
    draft.add(np.array(draft.integer(2, 12), draft.dtype(0, ("int64", "int32"))))


def _mel_weight_matrix(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("int64", "int32"))
    bins, length, rate = draft.integer(1, 6), draft.choice((16, 32, 9)), draft.choice((8192, 16000))
    draft.attribute("output_datatype", (None, 11))
    for value in (bins, length, rate):
        draft.add(np.array(value, dtype))
    edge = draft.dtype(3, ("float32", "float64"))
    draft.add(np.array(draft.choice((0.0, 125.0, 300.0)), edge))
    draft.add(np.array(draft.choice((4000.0, 3500.0, rate / 2)), edge))


#: Generators by operator.
IMAGE: Mapping[str, Callable[[NodeDraft], None]] = {
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
    "NonMaxSuppression": _non_max_suppression,
    "DFT": _dft,
    "STFT": _stft,
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), _window),
    "MelWeightMatrix": _mel_weight_matrix,
}
