"""Generators of operators that use or return indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.suites.operators.node_draft import ANY, NUMBERS, NodeDraft

_STYLES = ("plain", "special")
_REDUCTIONS = (None, "add", "mul", "max", "min", "none")


def _gather(draft: NodeDraft, *, elements: bool = False) -> None:
    shape = draft.shape(1, 4)
    axis = draft.axis(len(shape))
    draft.add(draft.tensor(draft.dtype(0), shape, styles=_STYLES))
    index = draft.dtype(1, ("int64", "int32"))
    if elements:
        picked = tuple(draft.integer(1, size) for size in shape)
        picked = tuple(
            draft.size() if place == axis % len(shape) else size
            for place, size in enumerate(picked)
        )
    else:
        picked = draft.shape(0, 3)
    indices = draft.index_tensor(index, picked, shape[axis])
    draft.add(np.abs(indices) % shape[axis] if not draft.since(11) else indices)
    draft.set("axis", axis if axis or draft.maybe() else None)


def _gather_nd(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    batch_dims = draft.integer(0, len(shape) - 1) if draft.has("batch_dims") else 0
    depth = draft.integer(1, len(shape) - batch_dims)
    draft.add(draft.tensor(draft.dtype(0), shape, styles=_STYLES))
    picked = (*shape[:batch_dims], *draft.shape(0, 2))
    draft.add(_nd_indices(draft, shape[batch_dims:], picked, depth))
    draft.set("batch_dims", batch_dims if batch_dims or draft.maybe() else None)


def _nd_indices(
    draft: NodeDraft, shape: tuple[int, ...], picked: tuple[int, ...], depth: int
) -> Array:
    columns = [draft.index_tensor(np.dtype(np.int64), picked, shape[i]) for i in range(depth)]
    return np.stack(columns, axis=-1)


def _reduction(draft: NodeDraft) -> str:
    """Choose the reduction of a scatter operator."""
    options = _REDUCTIONS if draft.since(18) else (*_REDUCTIONS[:3], "none")
    chosen = draft.choice(options) if draft.has("reduction") else None
    draft.set("reduction", chosen)
    return chosen or "none"


def _scatter_elements(draft: NodeDraft) -> None:
    reduction = _reduction(draft)
    shape = draft.shape(1, 3)
    axis = draft.axis(len(shape))
    place = axis % len(shape)
    among = ANY if reduction == "none" else ("float32", "int64", "int32", "float64", "float16")
    dtype = draft.dtype(0, among)
    styles = ("plain",) if reduction != "none" else _STYLES
    draft.add(draft.tensor(dtype, shape, styles=styles))
    index = draft.dtype(1, ("int64", "int32"))
    if reduction == "none":
        # Without a reduction, no index may occur more than once.
        picked = tuple(draft.integer(1, size) for size in shape)
        ranks = draft.state().random_sample((*picked[:place], shape[place], *picked[place + 1 :]))
        order = np.argsort(ranks, axis=place, kind="stable")
        indices = np.take(order, range(picked[place]), axis=place)
        if draft.maybe() and draft.since(11):  # version 11 allows negative indices
            indices = indices - shape[place]
    else:
        picked = tuple(
            draft.size() if i == place else draft.integer(1, size) for i, size in enumerate(shape)
        )
        indices = draft.index_tensor(index, picked, shape[place])
    draft.add(indices.astype(index))
    draft.add(draft.tensor(dtype, picked, styles=styles))
    draft.set("axis", axis if axis or draft.maybe() else None)


def _scatter_nd(draft: NodeDraft) -> None:
    reduction = _reduction(draft)
    shape = draft.shape(1, 3)
    depth = draft.integer(1, len(shape))
    among = ANY if reduction == "none" else ("float32", "int64", "int32", "float64", "float16")
    dtype = draft.dtype(0, among)
    styles = ("plain",) if reduction != "none" else _STYLES
    draft.add(draft.tensor(dtype, shape, styles=styles))
    if reduction == "none":
        places = list(np.ndindex(*shape[:depth]))
        count = draft.integer(1, len(places))
        order = draft.state().permutation(len(places))[:count]
        indices = np.array([places[i] for i in order], np.int64).reshape(count, depth)
        picked: tuple[int, ...] = (count,)
        if draft.maybe() and draft.since(11):  # version 11 allows negative indices
            indices = indices - np.array(shape[:depth], np.int64)
    else:
        picked = draft.shape(1, 2)
        indices = _nd_indices(draft, shape, picked, depth)
    draft.add(indices)
    draft.add(draft.tensor(dtype, (*picked, *shape[depth:]), styles=styles))


def _one_hot(draft: NodeDraft) -> None:
    depth = draft.choice((3, 1, 2, 4, 5, 9, 200))
    index = draft.dtype(0, ("int64", "int32", "float32", "uint8"))
    shape = draft.shape(1, 3)
    low = 0 if index.kind == "u" else -depth
    indices = draft.state().randint(low, depth + draft.choice((0, 2)), shape)
    # The operator truncates indices that have a fraction.
    fraction = draft.choice((0.0, 0.75)) if index.kind == "f" else 0.0
    draft.add((indices + np.copysign(fraction, indices)).astype(index))
    depth_type = draft.dtype(1, ("int64", "int32", "float32"))
    draft.add(np.array(depth if draft.maybe() else [depth], depth_type))
    draft.add(draft.tensor(draft.dtype(2, (*NUMBERS, "bool")), (2,), styles=("plain", "halves")))
    draft.attribute("axis", (None, *range(-len(shape) - 1, len(shape) + 1)))


def _compress(draft: NodeDraft) -> None:
    shape = draft.shape(1, 3)
    axis = draft.choice([None, *range(-len(shape), len(shape))])
    if axis is not None and not draft.since(11):  # version 11 allows negative axes
        axis %= len(shape)
    length = int(np.prod(shape)) if axis is None else shape[axis]
    draft.add(draft.tensor(draft.dtype(0), shape, styles=_STYLES))
    # The condition may be shorter than the axis.
    draft.add(draft.tensor(np.dtype(bool), (draft.integer(1, length),)))
    draft.set("axis", axis)


def _nonzero(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, (*NUMBERS, "bool"))
    shape = draft.shape(1, 4)
    values = draft.tensor(
        dtype, shape, low=-1 if dtype.kind != "u" else 0, high=1, styles=("halves",)
    )
    if dtype.kind in "iu" and dtype.itemsize > 1 and draft.maybe():
        # The lowest byte of each element is 0.
        values = values * dtype.type(256)
    if dtype.kind == "f" and draft.maybe(3):
        # NaN is considered nonzero.
        values = draft.tensor(dtype, shape, styles=("nan",))
    draft.add(values)


def _unique(draft: NodeDraft) -> None:
    shape = draft.shape(1, 3)
    dtype = draft.dtype(0, ("float32", "int64", "string", "float64", "int8", "uint8", "bool"))
    draft.attribute("axis", (None, *range(-len(shape), len(shape))))
    draft.attribute("sorted", (None, 0, 1))
    low, high = (None, None) if dtype_name(dtype) in ("string", "bool") else (0, 2)
    draft.add(draft.tensor(dtype, shape, low=low, high=high, styles=("halves",)))
    draft.outputs = [
        True,
        *([True] * 3 if draft.maybe() else [False, draft.maybe(), draft.maybe()]),
    ]
    while not draft.outputs[-1]:
        draft.outputs.pop()


def _tensor_scatter(draft: NodeDraft) -> None:
    rank = draft.choice((4, 3))
    shape = [draft.size(1, 3) for _ in range(rank)]
    axis = draft.integer(1, rank - 1)
    shape[axis] = draft.integer(2, 5)
    mode = draft.choice((None, "circular", "linear"))
    update = list(shape)
    update[axis] = draft.integer(1, shape[axis])
    last = shape[axis] - (1 if mode == "circular" else update[axis])
    dtype = draft.dtype(0, NUMBERS)
    draft.add(draft.tensor(dtype, tuple(shape), styles=_STYLES))
    draft.add(draft.tensor(dtype, tuple(update), styles=_STYLES))
    starts = [draft.integer(0, last) for _ in range(shape[0])]
    draft.optional(lambda: np.array(starts, np.int64))
    draft.set("mode", mode)
    draft.set("axis", axis - rank if draft.maybe() or axis != rank - 2 else None)


#: Generators by operator.
INDEXING: Mapping[str, Callable[[NodeDraft], None]] = {
    "Gather": _gather,
    "GatherElements": partial(_gather, elements=True),
    "GatherND": _gather_nd,
    **dict.fromkeys(("ScatterElements", "Scatter"), _scatter_elements),
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "Compress": _compress,
    "NonZero": _nonzero,
    "Unique": _unique,
    "TensorScatter": _tensor_scatter,
}
