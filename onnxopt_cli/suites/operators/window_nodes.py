"""Generators of convolutions, pools and other operators with sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from onnxopt_cli.core.values import Value, dtype_name
from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape

_TYPES = ("float32", "float64", "float16")
_MODERATE = 2.0**14
_STYLES = ("plain", "halves", "wide", "plain", "special")


@dataclass(frozen=True)
class Windows:
    """The windows of a node.

    Attributes:
        sizes: the lengths of the windows.
        strides: the distances between the starts of successive windows.
        dilations: the distances between successive elements of a window.
        pads: the padding before each axis, then after each; None for automatic padding.
        lengths: the lengths of the input's axes.
    """

    sizes: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int] | None
    lengths: Sequence[int]


def _windows(
    draft: NodeDraft,
    *,
    dilates: bool = True,
    kernel_attribute: bool = True,
    pools: bool = False,
    max_rank: int = 3,
    automatic: bool = True,
) -> Windows:
    """Choose windows, and set the attributes that describe the windows."""
    rank = draft.choice([rank for rank in (2, 1, 3) if rank <= max_rank])
    sizes = [draft.size(1, 3) for _ in range(rank)]
    strides = [1] * rank
    if draft.maybe():
        strides = [draft.size(1, 3) for _ in range(rank)]
        draft.set("strides", strides)
    elif draft.maybe(4):
        draft.set("strides", strides)
    dilations = [1] * rank
    if dilates and draft.has("dilations") and draft.maybe():
        dilations = [draft.size(1, 2) for _ in range(rank)]
        draft.set("dilations", dilations)
    extents = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    modes = ["pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"]
    mode = draft.choice(modes if automatic else modes[:2])
    pads: list[int] | None = [0] * (2 * rank)
    if mode == "pads":
        # A window must contain at least one element of the input.
        limit = [min(extent - 1, 2) for extent in (sizes if pools else extents)]
        pads = [draft.integer(0, most) for _ in range(2) for most in limit]
        draft.set("pads", pads)
    elif mode != "none":
        draft.set("auto_pad", mode)
        if mode.startswith("SAME"):
            pads = None
    lengths = [draft.integer(extent, extent + 3) for extent in extents]
    if kernel_attribute:
        draft.set("kernel_shape", sizes)
    return Windows(sizes, strides, dilations, pads, lengths)


def _conv(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    is_explicit = draft.maybe()
    windows = _windows(draft, kernel_attribute=is_explicit)
    group = draft.choice((1, 2, 3))
    within, outputs = draft.size(1, 2), draft.size(1, 2) * group
    draft.set("group", group if group > 1 or draft.maybe() else None)
    batch = draft.size(1, 2)
    draft.add(draft.tensor(dtype, (batch, within * group, *windows.lengths), styles=_STYLES))
    draft.add(draft.tensor(dtype, (outputs, within, *windows.sizes), styles=_STYLES))
    draft.optional(lambda: draft.tensor(dtype, (outputs,), styles=_STYLES))
    if "dilations" in draft.attributes:
        # onnx's reference fills dilated weights with zeros, whose products with infinities are NaN.
        draft.inputs = [_moderate(value) for value in draft.inputs]


def _moderate(value: Value) -> Value:
    """Return a copy of a tensor; ones replace the elements whose products may overflow."""
    if not isinstance(value, np.ndarray):
        return value
    size = np.abs(value.astype(np.float64))
    return np.where(size < _MODERATE, value, np.ones_like(value))


def _conv_transpose(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    rank = draft.choice((2, 1))
    sizes = [draft.size(1, 3) for _ in range(rank)]
    strides = [draft.size(1, 3) if draft.maybe() else 1 for _ in range(rank)]
    dilations = [draft.size(1, 2) if draft.maybe(3) else 1 for _ in range(rank)]
    lengths = [draft.size(2, 4) for _ in range(rank)]
    extents = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    if max(strides) > 1 or draft.maybe():
        draft.set("strides", strides)
    if max(dilations) > 1:
        draft.set("dilations", dilations)
    form = draft.choice(
        ("none", "pads", "output_padding", "output_shape", "SAME_UPPER", "SAME_LOWER", "VALID")
    )
    if form in ("pads", "output_padding"):
        pads = [draft.integer(0, min(extent - 1, 1)) for _ in range(2) for extent in extents]
        draft.set("pads", pads)
        if form == "output_padding":
            draft.set("output_padding", [draft.integer(0, stride - 1) for stride in strides])
    elif form == "output_shape":
        full = [
            stride * (length - 1) + extent
            for stride, length, extent in zip(strides, lengths, extents, strict=True)
        ]
        shape = [size - draft.integer(0, min(2, size - 1)) for size in full]
        # If an output axis is shorter than the input axis, onnx's shape inference fails.
        draft.require(all(size >= length for size, length in zip(shape, lengths, strict=True)))
        draft.set("output_shape", shape)
        draft.attribute("auto_pad", (None, "SAME_UPPER", "SAME_LOWER"))
    elif form != "none":
        draft.require(
            not form.startswith("SAME")
            or all(extent >= stride for extent, stride in zip(extents, strides, strict=True))
        )
        draft.set("auto_pad", form)
    if draft.maybe():
        draft.set("kernel_shape", sizes)
    group = draft.choice((1, 2))
    within, outputs = draft.size(1, 2), draft.size(1, 2)
    draft.set("group", group if group > 1 else None)
    batch = draft.size(1, 2)
    draft.add(draft.tensor(dtype, (batch, within * group, *lengths), styles=_STYLES))
    draft.add(draft.tensor(dtype, (within * group, outputs, *sizes), styles=_STYLES))
    draft.optional(lambda: draft.tensor(dtype, (outputs * group,), styles=_STYLES))


def _conv_integer(draft: NodeDraft) -> None:
    windows = _windows(draft, kernel_attribute=draft.maybe(), max_rank=2)
    group = draft.choice((1, 2))
    within, outputs = draft.size(1, 2), draft.size(1, 2) * group
    draft.set("group", group if group > 1 else None)
    x, w = draft.dtype(0, ("uint8", "int8")), draft.dtype(1, ("uint8", "int8"))
    shape = (draft.size(1, 2), within * group, *windows.lengths)
    draft.add(draft.tensor(x, shape, styles=("wide", "plain")))
    draft.add(draft.tensor(w, (outputs, within, *windows.sizes), styles=("wide", "plain")))
    draft.optional(lambda: draft.tensor(x, (), styles=("plain", "wide")))
    w_shape: Shape = (outputs,) if draft.maybe() else ()
    draft.optional(lambda: draft.tensor(w, w_shape, styles=("plain", "wide")))


def quantized_scale(draft: NodeDraft, shape: Shape = ()) -> np.ndarray:
    """Choose scales. Some scales are powers of two, so that quotients can be ties."""
    if draft.maybe():
        return 2.0 ** draft.state().randint(-3, 4, shape).astype(np.float32)
    return draft.tensor(np.dtype(np.float32), shape, low=0.0625, high=draft.choice((0.5, 8.0)))


def _qlinear_conv(draft: NodeDraft) -> None:
    windows = _windows(draft, kernel_attribute=draft.maybe(), max_rank=2)
    group = draft.choice((1, 2))
    within, outputs = draft.size(1, 2), draft.size(1, 2) * group
    draft.set("group", group if group > 1 else None)
    x = draft.dtype(0, ("uint8", "int8"))
    w = draft.dtype(3, (dtype_name(x), "int8")) if x.kind == "u" else x
    channel: Shape = (outputs,) if draft.maybe() else ()
    shape = (draft.size(1, 2), within * group, *windows.lengths)
    draft.add(draft.tensor(x, shape, styles=("wide", "plain")))
    draft.add(quantized_scale(draft))
    draft.add(draft.tensor(x, (), styles=("plain",)))
    draft.add(draft.tensor(w, (outputs, within, *windows.sizes), styles=("wide", "plain")))
    draft.add(quantized_scale(draft, channel))
    draft.add(
        draft.tensor(w, channel, styles=("plain",)) if w.kind == "u" else np.zeros(channel, w)
    )
    draft.add(np.array(2.0 ** draft.integer(-2, 4), np.float32))
    draft.add(draft.tensor(x, (), styles=("plain", "wide")))
    draft.optional(lambda: draft.tensor(np.dtype(np.int32), (outputs,), styles=("plain",)))


def _last_window_overlaps(windows: Windows, axis: int) -> bool:
    """Return whether the last window begins before the end of the input.

    Versions of the specification differ on whether the output contains a window that begins in the
    padding after the input.
    """
    assert windows.pads is not None  # noqa: S101 - padding is stated
    length, before = windows.lengths[axis], windows.pads[axis]
    extent = (windows.sizes[axis] - 1) * windows.dilations[axis] + 1
    room = length + before + windows.pads[axis + len(windows.sizes)] - extent
    return -(-room // windows.strides[axis]) * windows.strides[axis] < length + before


def _pool(draft: NodeDraft, *, among: Sequence[str] = _TYPES) -> None:
    dtype = draft.dtype(0, among)
    windows = _windows(draft, pools=True)
    stated = draft.attributes.get("auto_pad", "NOTSET")
    if stated == "NOTSET" and draft.attribute("ceil_mode", (None, 1, 0)):
        draft.require(
            all(_last_window_overlaps(windows, axis) for axis in range(len(windows.sizes)))
        )
    draft.attribute("count_include_pad", (None, 1, 0))
    draft.attribute("p", (None, 1, 3, 2))
    shape = (draft.size(1, 2), draft.size(1, 3), *windows.lengths)
    draft.add(draft.tensor(dtype, shape, styles=("negative", "plain", "halves", "wide", "special")))


def _max_pool(draft: NodeDraft) -> None:
    _pool(draft, among=("float32", "float64", "uint8", "int8", "float16"))
    if len(draft.schema.outputs) > 1 and draft.maybe():
        draft.outputs = [True, True]
        draft.attribute("storage_order", (None, 1, 0))
    else:
        draft.outputs = [True]


def _global_pool(draft: NodeDraft, *, style: str = "plain") -> None:
    shape = draft.shape(3, 5)
    draft.add(
        draft.tensor(
            draft.dtype(0, _TYPES), shape, styles=(style, "plain", "halves", "wide", "special")
        )
    )
    draft.attribute("p", (None, 1, 3))


def _max_unpool(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    rank = draft.choice((2, 1))
    sizes = [draft.size(1, 3) for _ in range(rank)]
    strides = [draft.size(1, 3) for _ in range(rank)]
    lengths = [draft.size(1, 3) for _ in range(rank)]
    full = [
        (n - 1) * stride + size for n, stride, size in zip(lengths, strides, sizes, strict=True)
    ]
    pads = [draft.integer(0, (size - 1) // 2) for size in 2 * sizes]
    if any(pads):
        draft.set("pads", pads)
        full = [n - pads[axis] - pads[axis + rank] for axis, n in enumerate(full)]
    shape = (draft.size(1, 2), draft.size(1, 2), *lengths)
    count, space = prod(lengths), prod(full)
    draft.require(count <= space)
    random = draft.state()
    # Indices are counted through all batches and channels, so the first index of each channel is a
    # multiple of the number of elements in a channel.
    offsets = range(shape[0] * shape[1])
    picked = [random.permutation(space)[:count] + space * place for place in offsets]
    draft.set("kernel_shape", sizes)
    draft.set("strides", strides if max(strides) > 1 or draft.maybe() else None)
    draft.add(draft.tensor(dtype, shape, styles=_STYLES))
    draft.add(np.stack(picked).reshape(shape).astype(np.int64))


def _lrn(draft: NodeDraft) -> None:
    shape = draft.shape(3, 4)
    draft.add(draft.tensor(draft.dtype(0, _TYPES), shape, styles=("plain", "halves")))
    draft.set("size", draft.integer(1, 5))
    draft.float_attribute("alpha", (None, 0.5, 0.0625, 2.0))
    draft.float_attribute("beta", (None, 0.5, 1.25, 2.0))
    draft.float_attribute("bias", (None, 0.5, 2.0))


def _deform_conv(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32", "float64"))
    sizes, strides = [draft.size(1, 2) for _ in range(2)], [draft.size(1, 2) for _ in range(2)]
    dilations = [draft.size(1, 2) for _ in range(2)]
    pads = [draft.integer(0, 1) for _ in range(4)]
    lengths = [draft.integer(3, 4) for _ in range(2)]
    out = [
        (lengths[i] + pads[i] + pads[i + 2] - dilations[i] * (sizes[i] - 1) - 1) // strides[i] + 1
        for i in range(2)
    ]
    group, offset_group = draft.choice((1, 2)), draft.choice((1, 2))
    channels, outputs = 2 * draft.size(1, 2), 2 * draft.size(1, 2)
    batch = draft.size(1, 2)
    kernel = prod(sizes)
    draft.set("kernel_shape", sizes if draft.maybe() else None)
    for name, values, default in (
        ("strides", strides, 1),
        ("dilations", dilations, 1),
        ("pads", pads, 0),
    ):
        draft.set(name, values if set(values) != {default} else None)
    draft.set("group", group if group > 1 else None)
    draft.set("offset_group", offset_group if offset_group > 1 else None)
    draft.add(draft.tensor(dtype, (batch, channels, *lengths), styles=_STYLES))
    draft.add(draft.tensor(dtype, (outputs, channels // group, *sizes), styles=_STYLES))
    offsets = (batch, offset_group * kernel * 2, *out)
    draft.add(draft.tensor(dtype, offsets, low=-1.0, high=1.0))
    draft.optional(lambda: draft.tensor(dtype, (outputs,), styles=_STYLES))
    mask = (batch, offset_group * kernel, *out)
    draft.optional(lambda: draft.tensor(dtype, mask, low=0.0, high=1.0))


def _regions(draft: NodeDraft, extent: float) -> np.ndarray:
    """Draw the boxes (x1, y1, x2, y2) of regions."""
    count = draft.size(1, 3)
    random = draft.state()
    corners = random.randint(0, int(extent * 4), (count, 2, 2)) / 4.0
    return np.concatenate([corners.min(1), corners.max(1) + 0.75], axis=1)


def _roi_align(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32", "float64"))
    batch, channels = draft.size(1, 3), draft.size(1, 2)
    height, width = draft.integer(3, 6), draft.integer(3, 6)
    scale = draft.float_attribute("spatial_scale", (None, 0.5, 0.25, 2.0)) or 1.0
    regions = (_regions(draft, 5.0) / scale).astype(dtype)
    draft.add(draft.tensor(dtype, (batch, channels, height, width), styles=_STYLES))
    draft.add(regions)
    draft.add(draft.state().randint(0, batch, len(regions)).astype(np.int64))
    draft.attribute("output_height", (2, 1, 3, None))
    draft.attribute("output_width", (2, 1, 3, None))
    draft.attribute("sampling_ratio", (2, 1, 3, None))
    draft.attribute("mode", (None, "avg", "max"))
    draft.attribute("coordinate_transformation_mode", (None, "output_half_pixel", "half_pixel"))


def _causal_conv(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    batch, channels, length, size = (
        draft.size(1, 2),
        draft.size(1, 3),
        draft.size(),
        draft.size(1, 4),
    )
    draft.attribute("activation", (None, "silu", "swish", "none"))
    draft.add(draft.tensor(dtype, (batch, channels, length), styles=_STYLES))
    draft.add(draft.tensor(dtype, (channels, 1, size), styles=_STYLES))
    draft.optional(lambda: draft.tensor(dtype, (channels,), styles=_STYLES))
    draft.optional(lambda: draft.tensor(dtype, (batch, channels, size - 1), styles=_STYLES))
    draft.outputs = [True, True]


#: Generators by operator.
WINDOWS: Mapping[str, Callable[[NodeDraft], None]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "MaxPool": _max_pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalMaxPool": partial(_global_pool, style="negative"),
    "GlobalAveragePool": _global_pool,
    "GlobalLpPool": _global_pool,
    "MaxUnpool": _max_unpool,
    "LRN": _lrn,
    "DeformConv": _deform_conv,
    "RoiAlign": _roi_align,
    "CausalConvWithState": _causal_conv,
}
