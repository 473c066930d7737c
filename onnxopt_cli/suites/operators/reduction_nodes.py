"""Generators of operators that combine the elements along axes: sums, products, maxima, sorting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.suites.operators.node_draft import FLOATS, NUMBERS, NodeDraft, Shape

_TYPES = (
    *("float32", "float64", "int64", "int32", "float16", "uint64", "uint32", "bfloat16"),
    *("int8", "uint8"),
)
_LARGEST_TERM = 1009
_PLAIN_STYLES = ("plain", "halves", "wide")
# Element types of MatMul, Gemm and Einsum.
_PRODUCT_TYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16", "uint32", "uint64")

_EQUATIONS: Sequence[tuple[str, tuple[Shape, ...]]] = (
    ("ij,jk->ik", ((2, 3), (3, 4))),
    ("ij,jk", ((2, 3), (3, 4))),
    ("ba,cb", ((2, 3), (4, 2))),
    ("ij->ji", ((2, 3),)),
    ("ij->", ((2, 3),)),
    ("ij->j", ((2, 3),)),
    ("ii->i", ((3, 3),)),
    ("ii", ((3, 3),)),
    ("iji->j", ((3, 2, 3),)),
    ("i,i->", ((4,), (4,))),
    ("i,j->ij", ((2,), (3,))),
    ("bij,bjk->bik", ((2, 2, 3), (2, 3, 2))),
    ("bij, bjk", ((2, 2, 3), (2, 3, 2))),
    ("...ij,...jk->...ik", ((2, 2, 3), (1, 3, 2))),
    ("...i->...", ((2, 3, 2),)),
    ("i...->...i", ((2, 3, 2),)),
    ("...ii->...i", ((2, 3, 3),)),
    ("i,ij,j->", ((2,), (2, 3), (3,))),
    ("ij,kj->ik", ((2, 3), (4, 3))),
    ("bn,anm,bm->ba", ((2, 3), (4, 3, 2), (2, 2))),
    ("Aa,aB->BA", ((2, 3), (3, 4))),
    ("...,...->...", ((2, 1), (1, 3))),
)


def _reduce(
    draft: NodeDraft,
    *,
    low: float | None = None,
    high: float | None = None,
    styles: Sequence[str] = _PLAIN_STYLES,
    among: Sequence[str] = _TYPES,
    overflows: bool = True,
) -> None:
    dtype = draft.dtype(0, among)
    shape = draft.shape(1, 4)
    x = draft.tensor(dtype, shape, low=low, high=high, styles=styles)
    if dtype.kind in "iu" and not overflows and dtype.itemsize > 1:
        # The specification does not define the results of some reductions in case of overflow.
        x = np.fmod(x, dtype.type(_LARGEST_TERM))
    draft.add(x)
    draft.attribute("keepdims", (None, 0, 1))
    if draft.has("axes"):
        draft.attribute("axes", (draft.axes(len(shape)), None))
        return
    draft.attribute("noop_with_empty_axes", (None, 1, 0))
    kind = draft.choice(("axes", "omitted", "empty"))
    if kind != "omitted":
        axes = draft.axes(len(shape)) if kind == "axes" else []
        draft.add(np.array(axes, np.int64))


def _arg(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, NUMBERS)
    shape = draft.shape(1, 4)
    # Multiples of 1/2 are drawn, so that ties occur.
    draft.add(draft.tensor(dtype, shape, styles=("halves", "plain", "negative", "wide")))
    draft.attribute("axis", (draft.axis(len(shape)), None))
    draft.attribute("keepdims", (None, 0, 1))
    draft.attribute("select_last_index", (None, 1, 0))


def _cumulate(draft: NodeDraft, *, product: bool = False) -> None:
    among = ("float32", "int32", "float64", "int64", "float16", "uint32", "uint64", "bfloat16")
    dtype = draft.dtype(0, among)
    shape = draft.shape(1, 3)
    styles = ("halves", "plain") if product else ("plain", "halves", "wide")
    if dtype_name(dtype) in FLOATS:
        styles = (*styles, "special")
    draft.add(draft.tensor(dtype, shape, styles=styles))
    axis = draft.axis(len(shape))
    draft.add(np.array(axis, draft.dtype(1, ("int64", "int32"))))
    draft.attribute("exclusive", (None, 1, 0))
    draft.attribute("reverse", (None, 1, 0))


def _softmax(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, FLOATS)
    shape = draft.shape(1, 4)
    styles = ("plain", "halves", "negative")
    x = draft.tensor(dtype, shape, styles=styles)
    if draft.maybe():
        x = (x.astype(np.float64) * 8 + draft.choice((0, 60, -60))).astype(dtype)
    draft.add(x)
    least = 0 if not draft.since(13) and not draft.since(11) else -len(shape)
    # In early versions, the default axis is 1.
    draft.attribute("axis", (draft.integer(least, len(shape) - 1), *([None] * (len(shape) > 1))))


def _top_k(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32", "int64", "float64", "int32", "float16", "uint8"))
    shape = draft.shape(1, 3)
    axis = draft.axis(len(shape))
    largest_count = shape[axis]
    k = draft.integer(1, largest_count)
    draft.add(draft.tensor(dtype, shape, styles=("halves", "plain", "negative", "wide")))
    if not draft.since(10):
        draft.set("k", k)
    else:
        draft.add(np.array([k], np.int64))
    draft.attribute("axis", (axis, None) if axis in (-1, len(shape) - 1) else (axis,))
    draft.attribute("largest", (None, 0, 1))
    draft.attribute("sorted", (None, 1))


def _matmul(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _PRODUCT_TYPES)
    rows, inner, columns = draft.size(), draft.size(), draft.size()
    first: Shape = (rows, inner)
    second: Shape = (inner, columns)
    batch = draft.shape(0, 2)
    form = draft.choice(("matrices", "batches", "broadcast", "vector", "column", "vectors"))
    if form == "batches":
        first, second = (*batch, *first), (*batch, *second)
    elif form == "broadcast":
        first, second = (*draft.narrowed(batch), *first), (*batch, *second)
        if draft.maybe():
            first, second = (*batch, rows, inner), (*draft.narrowed(batch), inner, columns)
    elif form == "vector":
        first, second = (inner,), (*batch, *second)
    elif form == "column":
        first, second = (*batch, *first), (inner,)
    elif form == "vectors":
        first, second = (inner,), (inner,)
    for shape in (first, second):
        draft.add(draft.tensor(dtype, shape, styles=("plain", "halves")))


def _gemm(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _PRODUCT_TYPES)
    rows, inner, columns = draft.size(), draft.size(), draft.size()
    is_float = dtype_name(dtype) in FLOATS
    scales = (None, 0.5, 2.0, -1.5, 0.0) if is_float else (None, 2.0, 0.0)
    draft.float_attribute("alpha", scales)
    draft.float_attribute("beta", scales)
    first = draft.attribute("transA", (None, 1, 0))
    second = draft.attribute("transB", (None, 1, 0))
    styles = ("plain", "halves")
    for shape, transposed in (((rows, inner), first), ((inner, columns), second)):
        draft.add(draft.tensor(dtype, shape[::-1] if transposed else shape, styles=styles))
    shapes: Sequence[Shape] = (
        *((rows, columns), (columns,), (1, columns), (rows, 1), (1,), (), (1, 1)),
    )
    if draft.schema.min_input > 2 or not draft.maybe(4):  # noqa: PLR2004 - C is the third input
        draft.add(draft.tensor(dtype, draft.choice(shapes), styles=styles))


def _einsum(draft: NodeDraft) -> None:
    equation, shapes = draft.choice(_EQUATIONS)
    draft.set("equation", equation)
    dtype = draft.dtype(0, ("float32", "float64", "int32", "int64", "float16"))
    for shape in shapes:
        draft.add(draft.tensor(dtype, shape, styles=("plain", "halves")))


def _det(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32", "float64"))
    size = draft.size(1, 4)
    draft.add(draft.tensor(dtype, (*draft.shape(0, 2), size, size), styles=("plain", "halves")))


def _range(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32", "int64", "float64", "int32", "int16"))
    step: float = draft.choice((1, 2, -1, 3, -3, 9)) / (2 if dtype.kind == "f" else 1)
    # The larger offset is beyond the range of int16.
    offset = draft.choice((0, 0, 1003 if dtype == np.int16 else 100_003))
    start: float = draft.integer(-5, 5) + offset
    count = draft.integer(0, 6)
    partial_step = draft.choice((0.0, 0.5)) if dtype.kind == "f" else 0.0
    if dtype.kind == "f" and draft.maybe():
        # The limit is far from every element, so that rounding does not change the number of
        # elements.
        start, step, partial_step = start + 0.3, step * 1.1, 0.5
    limit = start + step * count - step * partial_step
    for value in (start, limit, step):
        draft.add(np.array(value, dtype))


#: Generators by operator.
REDUCTION: Mapping[str, Callable[[NodeDraft], None]] = {
    "ReduceMax": partial(_reduce, styles=("negative", "plain", "wide", "halves")),
    "ReduceMin": partial(_reduce, styles=("plain", "negative", "wide", "halves")),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMean"), partial(_reduce, overflows=False)),
    "ReduceSum": _reduce,
    "ReduceSumSquare": partial(_reduce, styles=("plain", "halves")),
    "ReduceProd": partial(_reduce, styles=("halves", "plain")),
    "ReduceLogSum": partial(_reduce, low=0.0625, high=9.0, among=FLOATS),
    "ReduceLogSumExp": partial(_reduce, styles=("plain", "halves", "negative"), among=FLOATS),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "CumSum": _cumulate,
    "CumProd": partial(_cumulate, product=True),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "Hardmax": _softmax,
    "TopK": _top_k,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Det": _det,
    "Range": _range,
}
