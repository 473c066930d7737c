"""Generators of operators that change shapes or move whole blocks of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.suites.operators.node_draft import (
    ANY,
    NUMBERS,
    NodeDraft,
    Shape,
)

_STYLES = ("plain", "special")


def _add(draft: NodeDraft, shape: Shape, among: Sequence[str] = ANY) -> None:
    draft.add(draft.tensor(draft.dtype(len(draft.inputs), among), shape, styles=_STYLES))


def _integers(draft: NodeDraft, values: Sequence[int]) -> None:
    draft.add(np.array(values, np.int64))


def _reshape(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    _add(draft, shape)
    count = prod(shape)
    target: list[int] = []
    remaining = count
    for _ in range(draft.integer(0, 3)):
        factors = [n for n in (1, 2, 3, 4, 6) if remaining % n == 0]
        target.append(draft.choice(factors))
        remaining //= target[-1]
    target.append(remaining)
    place = draft.integer(0, len(target) - 1)
    target.insert(place, target.pop())
    form = draft.choice(("plain", "inferred", "copied", "empty"))
    if form == "inferred":
        target[place] = -1
    elif form == "copied":
        # In the target shape, 0 stands for the length of the input's dimension.
        target = [0 if i < len(shape) and shape[i] == n else n for i, n in enumerate(target)]
    elif form == "empty" and draft.has("allowzero"):
        draft.inputs[0] = draft.tensor(DTYPES["float32"], (0, *shape))
        draft.set("allowzero", 1)
        target = [*target, 0]
        target = [abs(n) for n in target]
    _integers(draft, target)
    if form != "empty":
        draft.attribute("allowzero", (None, 0))


def _flatten(draft: NodeDraft) -> None:
    shape = draft.shape(0, 4)
    _add(draft, shape)
    least = -len(shape) if draft.since(11) else 0  # version 11 allows negative axes
    axis = draft.integer(least, len(shape))
    draft.attribute("axis", (axis, None) if shape else (axis,))


def _transpose(draft: NodeDraft) -> None:
    shape = draft.shape(0, 4)
    _add(draft, shape)
    order = [axis % max(len(shape), 1) for axis in draft.axes(len(shape), len(shape))]
    draft.attribute("perm", (order, None))


def _axes(draft: NodeDraft, axes: Sequence[int]) -> None:
    """Set axes: as an attribute in early versions, as an input in later versions."""
    if draft.has("axes"):
        if not draft.since(11):  # version 11 allows negative axes
            draft.require(min(axes, default=0) >= 0)
        draft.set("axes", list(axes))
    else:
        _integers(draft, axes)


def _squeeze(draft: NodeDraft) -> None:
    shape = tuple(1 if draft.maybe() else size for size in draft.shape(1, 4))
    _add(draft, shape)
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if draft.maybe(4) or not ones:
        return
    chosen = [ones[place] for place in draft.axes(len(ones), 1)]
    if draft.has("axes"):
        # Early versions do not define the meaning of axes that are not in ascending order.
        chosen.sort()
    _axes(draft, [axis - len(shape) if draft.maybe(3) else axis for axis in chosen])


def _unsqueeze(draft: NodeDraft) -> None:
    shape = draft.shape(0, 3)
    _add(draft, shape)
    count = draft.choice((1, 2))
    rank = len(shape) + count
    _axes(draft, draft.axes(rank, count, count))


def _concat(draft: NodeDraft) -> None:
    shape = list(draft.shape(1, 4))
    axis = draft.axis(len(shape))
    for _ in range(draft.choice((2, 3, 1))):
        shape[axis] = draft.integer(0, 3)
        draft.add(draft.tensor(draft.dtype(0), tuple(shape), styles=_STYLES))
    draft.require(any(isinstance(x, np.ndarray) and x.size for x in draft.inputs))
    draft.set("axis", axis)


def _tile(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    _add(draft, shape)
    _integers(draft, [draft.integer(0, 3) if draft.maybe(9) else draft.size(1, 3) for _ in shape])


def _expand(draft: NodeDraft) -> None:
    target = draft.shape(1, 4)
    narrow = draft.narrowed(target)
    _add(draft, narrow)
    # If an element of the target shape is 1, the input's dimension keeps its length.
    shape = list(target)
    for place in range(1, len(narrow) + 1):
        if draft.maybe(4):
            shape[-place] = 1
    _integers(draft, shape)


def _pad(draft: NodeDraft) -> None:
    modes = ["constant", "reflect", "edge"]
    wraps = draft.since(19)  # version 19 added the mode wrap
    mode = draft.choice([*modes, "wrap"] if wraps else modes)
    shape = draft.shape(1, 4, smallest=2)
    rank = len(shape)
    dtype = draft.dtype(0, (*NUMBERS, "bool"))
    draft.set("mode", mode if mode != "constant" or draft.maybe() else None)
    has_axes = draft.since(18) and draft.maybe(3)  # version 18 added axes
    axes = draft.axes(rank) if has_axes else list(range(rank))
    largest = [min(shape[axis] - 1, 2) for axis in axes]
    least = -1 if mode == "constant" else 0
    pads = [draft.integer(least, most) for _ in range(2) for most in largest]
    draft.require(any(pads))
    draft.add(draft.tensor(dtype, shape, styles=_STYLES))
    if draft.has("pads"):
        draft.set("pads", pads)
        draft.float_attribute("value", (None, 1.5, -2.0))
        return
    _integers(draft, pads)
    value = draft.tensor(dtype, (), styles=("plain", "special"))
    draft.add(value if mode == "constant" and draft.maybe() else None)
    draft.add(np.array(axes, draft.choice((np.int64, np.int32))) if has_axes else None)


def _shape(draft: NodeDraft) -> None:
    shape = draft.shape(0, 4, smallest=0)
    _add(draft, shape)
    draft.attribute("start", (None, *range(-6, 6)))
    draft.attribute("end", (None, *range(-6, 6)))


def _size(draft: NodeDraft) -> None:
    _add(draft, draft.shape(0, 4, smallest=0))


def _constant(draft: NodeDraft) -> None:
    forms = [name for name in draft.schema.attributes if name != "sparse_value"]
    form = draft.choice(sorted(forms))
    if form == "value":
        dtype = DTYPES[draft.choice(draft.returned(0))]
        draft.set(form, tensor_of(draft.tensor(dtype, draft.shape(0, 3), styles=_STYLES)))
        return
    count = draft.integer(1, 4)
    if "string" in form:
        values = [str(word) for word in draft.tensor(DTYPES["string"], (count,)).tolist()]
    else:
        name = "int64" if "int" in form else "float32"
        values = draft.tensor(DTYPES[name], (count,), styles=("wide", "plain")).tolist()
    draft.set(form, values if form.endswith("s") else values[0])


def _constant_of_shape(draft: NodeDraft) -> None:
    _integers(draft, draft.shape(0, 4, smallest=0))
    dtype = DTYPES[draft.choice(draft.returned(0))]
    if draft.maybe(4):
        return
    draft.set("value", tensor_of(draft.tensor(dtype, (1,), styles=_STYLES)))


def _blocks(draft: NodeDraft, *, to_depth: bool) -> None:
    block = draft.choice((2, 3, 1))
    batch, channels, height, width = (draft.size(1, 3) for _ in range(4))
    draft.set("blocksize", block)
    if to_depth:
        shape = (batch, channels, height * block, width * block)
    else:
        shape = (batch, channels * block * block, height, width)
    draft.attribute("mode", (None, "CRD", "DCR"))
    _add(draft, shape, ("float32", "float64", "int64", "int32", "float16", "uint8", "bool"))


def _center_crop_pad(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    axes = draft.axes(len(shape))
    has_axes = draft.maybe()
    _add(draft, shape, ("float32", "int64", "float64", "int32", "bool", "float16"))
    sizes = [draft.integer(1, 7) for _ in (axes if has_axes else shape)]
    draft.add(np.array(sizes, DTYPES[draft.choice(("int64", "int32"))]))
    draft.set("axes", axes if has_axes else None)


def _eye_like(draft: NodeDraft) -> None:
    shape = (draft.size(), draft.size())
    _add(draft, shape, ("float32", "int64", "float64", "int32", "bool"))
    draft.attribute("k", (None, 1, -1, 2, -3))
    draft.attribute("dtype", (None, 1, 7, 11, 6))


def _trilu(draft: NodeDraft) -> None:
    _add(draft, draft.shape(2, 4))
    draft.attribute("upper", (None, 0, 1))
    offsets = (0, 1, -1, 2, -2, 6, -6)
    draft.optional(lambda: np.array(draft.choice(offsets), np.int64))


def _reverse_sequence(draft: NodeDraft) -> None:
    shape = draft.shape(2, 4)
    batch_axis = draft.choice((1, 0))
    lengths = [draft.integer(1, shape[1 - batch_axis]) for _ in range(shape[batch_axis])]
    _add(draft, shape)
    _integers(draft, lengths)
    if not batch_axis or draft.maybe():
        draft.set("batch_axis", batch_axis)
        draft.set("time_axis", 1 - batch_axis)


def _split(draft: NodeDraft) -> None:
    shape = list(draft.shape(1, 4))
    axis = draft.axis(len(shape))
    if not draft.since(11):  # version 11 allows negative axes
        axis %= len(shape)
    count = draft.choice((2, 3, 1))
    sizes = [draft.integer(0, 3) for _ in range(count)]
    is_equal = draft.maybe(3)
    if is_equal:
        sizes = [draft.integer(1, 3)] * count
        if draft.has("num_outputs") and draft.maybe():
            # The last chunk may be smaller than the others.
            sizes[-1] = draft.integer(1, sizes[0])
    shape[axis] = sum(sizes)
    _add(draft, tuple(shape))
    draft.set("axis", axis if axis or draft.maybe() else None)
    draft.outputs = [True] * count
    if is_equal:
        draft.set("num_outputs", count)
        draft.require(not draft.has("num_outputs") or -(-sum(sizes) // count) == sizes[0])
        draft.require(draft.has("num_outputs") or len(set(sizes)) == 1)
    elif draft.has("split"):
        draft.set("split", sizes)
    else:
        _integers(draft, sizes)


def _slice(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    axes = draft.axes(len(shape))
    if not draft.since(10):  # earlier: no negative axes
        axes = [axis % len(shape) for axis in axes]
    names_axes = draft.maybe(4)
    if not names_axes:
        axes = list(range(draft.integer(1, len(shape))))
    # In exported models, the largest integers represent the end of an axis.
    far = (2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32 + 1)
    index = DTYPES["int64"] if draft.has("starts") else draft.dtype(1, ("int64", "int32"))
    bounds = (0, 1, -1, 2, -2, 3, -4, 99, -99, *(far if index == np.int64 else far[:2]))
    starts = [draft.choice(bounds) for _ in axes]
    ends = [draft.choice((99, *bounds)) for _ in axes]
    _add(draft, shape)
    if draft.has("starts"):
        draft.set("starts", starts)
        draft.set("ends", ends)
        draft.set("axes", axes if names_axes else None)
        return
    steps = [draft.choice((1, 2, -1, -2, 3)) for _ in axes]
    for values in (starts, ends):
        draft.add(np.array(values, index))
    draft.add(np.array(axes, index) if names_axes else None)
    draft.add(np.array(steps, index) if draft.maybe() else None)


def _col2im(draft: NodeDraft) -> None:
    rank = draft.choice((2, 1))
    kernel = [draft.size(1, 3) for _ in range(rank)]
    dilations = [draft.size(1, 2) for _ in range(rank)]
    strides = [draft.size(1, 2) for _ in range(rank)]
    pads = [draft.integer(0, 1) for _ in range(2 * rank)]
    image = [draft.size(3, 5) for _ in range(rank)]
    blocks = [
        (image[i] + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    draft.require(min(blocks) > 0)
    channels, batch = draft.size(1, 2), draft.size(1, 2)
    shape = (batch, channels * prod(kernel), prod(blocks))
    draft.add(draft.tensor(draft.dtype(0, ("float32", "float64")), shape))
    _integers(draft, image)
    _integers(draft, kernel)
    for name, values, default in (
        ("dilations", dilations, 1),
        ("pads", pads, 0),
        ("strides", strides, 1),
    ):
        if set(values) != {default} or draft.maybe():
            draft.set(name, values)


#: Generators by operator.
SHAPE: Mapping[str, Callable[[NodeDraft], None]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Tile": _tile,
    "Expand": _expand,
    "Pad": _pad,
    "Shape": _shape,
    "Size": _size,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": partial(_blocks, to_depth=False),
    "SpaceToDepth": partial(_blocks, to_depth=True),
    "CenterCropPad": _center_crop_pad,
    "EyeLike": _eye_like,
    "Trilu": _trilu,
    "ReverseSequence": _reverse_sequence,
    "Split": _split,
    "Slice": _slice,
    "Col2Im": _col2im,
}
