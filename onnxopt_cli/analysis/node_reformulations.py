"""Correct implementations of operators without a formula that round differently.

No suite may reject a correct implementation that rounds differently. Each reformulation computes a
node in another order of operations. Reformulations use the same types as runtimes: values of 16-bit
types are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mutants import Compute
from onnxopt_cli.operators.nodes import subgraphs

#: A function that computes the outputs of a node in another way. The function may call the
#: operator's own computation. It returns None for a node that the reformulation does not cover.
Form = Callable[[BoundNode, Compute], Sequence[Value] | None]


@dataclass(frozen=True, slots=True)
class NodeReformulation:
    """A correct implementation of an operator without a formula.

    Attributes:
        name: identifies the reformulation among the reformulations of its operator.
        about: description in one sentence.
        form: computes the outputs of a node.
    """

    name: str
    about: str
    form: Form

    def outputs(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], compute: Compute
    ) -> Sequence[Value] | None:
        """Return the outputs of a node; None if the reformulation does not cover it."""
        with np.errstate(all="ignore"):
            return self.form(BoundNode.of(model, inputs), compute)


def node_reformulations(op_type: str) -> tuple[NodeReformulation, ...]:
    """Return the reformulations of an operator."""
    forms = [] if op_type in _TYPED else [*_ANY_OPERATOR]
    forms += _FORMS.get(op_type, [])
    return tuple(NodeReformulation(name, about, form) for name, about, form in forms)


# --- any operator ---

# Operators whose results are random or depend on the types of the inputs.
_TYPED = frozenset(
    {"BitCast", "Bernoulli", "Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike",
     "IsInf", "Loop", "If", "Scan", "Multinomial", "RandomNormalLike", "RandomUniformLike",
     "SequenceMap"}
)  # fmt: skip


def _in_wider_type(wide: str, node: BoundNode, compute: Compute) -> Sequence[Value] | None:
    """Compute in a wider type, and round the outputs once."""
    narrow = {"float32": ("float16", "bfloat16"), "float64": ("float32",)}[wide]
    floating_types = {
        value.dtype.name
        for value in node.operands
        if isinstance(value, np.ndarray) and (value.dtype.kind in "fV")
    }
    if len(floating_types) != 1 or not floating_types <= {*narrow}:
        return None
    # A node with subgraphs is left out, because the types in the subgraphs would have to change.
    if any(True for _ in subgraphs(node.node)):
        return None
    # A node with an attribute that determines the type of an output is also left out.
    if {"dtype", "to", "output_dtype", "stash_type"} & node.attributes.keys():
        return None
    # The attribute output_datatype determines the type of an output even by its default.
    if node.attribute("output_datatype") is not None:
        return None
    original = next(
        value.dtype
        for value in node.operands
        if isinstance(value, np.ndarray) and value.dtype.name in floating_types
    )
    for index in range(len(node.names)):
        array = node.operand(index)
        if array is not None and array.dtype == original:
            node = node.with_operand(index, array.astype(wide))
    outputs = compute(*node.as_model())
    if not all(isinstance(value, np.ndarray) for value in outputs):
        return None
    return [
        value.astype(original) if isinstance(value, np.ndarray) and value.dtype == wide else value
        for value in outputs
    ]


_Entry = tuple[str, str, Form]
_ANY_OPERATOR: tuple[_Entry, ...] = (
    (
        "16 bits in float32",
        "Operands of 16 bits are computed in float32, and the outputs are rounded once.",
        partial(_in_wider_type, "float32"),
    ),
    (
        "float32 in double",
        "Operands in float32 are computed in double, and the outputs are rounded once.",
        partial(_in_wider_type, "float64"),
    ),
)

# --- other orders of summation ---


def _reversed_products(node: BoundNode, compute: Compute) -> Sequence[Value] | None:
    a, b = node.operand(0), node.operand(1)
    if a is None or b is None or not a.ndim or not b.ndim:
        return None
    if node.node.op_type == "Gemm":
        first, second = int(not node.attribute("transA")), int(bool(node.attribute("transB")))
    elif node.node.op_type == "Conv":
        if node.attribute("group") != 1:
            return None
        first, second = 1, 1
    else:
        first, second = -1, max(-b.ndim, -2)
    node = node.with_operand(0, np.flip(a, first)).with_operand(1, np.flip(b, second))
    return compute(*node.as_model())


def _reversed_reduction(node: BoundNode, compute: Compute) -> Sequence[Value] | None:
    x, stated = node.operand(0), node.operand(1)
    if x is None:
        return None
    axes = node.attribute("axes") if stated is None else stated.tolist()
    if not axes:
        if node.attribute("noop_with_empty_axes"):
            return None
        axes = range(x.ndim)
    outputs = compute(*node.with_operand(0, np.flip(_work(x), tuple(axes))).as_model())
    return [np.asarray(value).astype(x.dtype) for value in outputs]


def _reversed_operands(node: BoundNode, compute: Compute) -> Sequence[Value] | None:
    values = [value for value in node.operands if isinstance(value, np.ndarray)]
    if len(values) != len(node.names):
        return None
    return compute(*node.with_names(node.names[::-1]).as_model())


_REVERSED_TERMS = ("terms in reverse order", "The terms are summed in reverse order.")

# --- algorithms of runtimes ---


def _work(array: Array) -> Array:
    """Convert an array to the type in which runtimes compute: float32 for 16-bit types."""
    return array.astype(np.float32) if array.dtype.itemsize <= np.dtype("f2").itemsize else array


def _online_softmax(node: BoundNode, _compute: Compute) -> Sequence[Value] | None:
    """Compute Softmax in a single pass that updates the largest value and the sum."""
    x = node.operand(0)
    if x is None or not x.size or node.opset < _SINGLE_AXIS_VERSION:
        return None
    axis = node.attribute("axis")
    rows = np.moveaxis(_work(x), axis, 0)
    largest, total = rows[0], np.ones_like(rows[0])
    for row in rows[1:]:
        new = np.maximum(largest, row)
        total = total * np.exp(largest - new) + np.exp(row - new)
        largest = new
    return [np.moveaxis(np.exp(rows - largest) / total, 0, axis).astype(x.dtype)]


_SINGLE_AXIS_VERSION = 13


def _welford(node: BoundNode, _compute: Compute) -> Sequence[Value] | None:
    """Compute LayerNormalization; the mean and variance are updated with each element."""
    x, scale, bias = node.operand(0), node.operand(1), node.operand(2)
    if x is None or scale is None or not x.size or x.dtype == np.float64:
        return None
    axis = node.attribute("axis") % x.ndim
    rows = _work(x).reshape(*x.shape[:axis], -1)
    mean, squares = np.zeros_like(rows[..., 0]), np.zeros_like(rows[..., 0])
    for count, column in enumerate(np.moveaxis(rows, -1, 0), start=1):
        distance = column - mean
        mean = mean + distance / rows.dtype.type(count)
        squares = squares + distance * (column - mean)
    variance = squares / rows.dtype.type(rows.shape[-1])
    root = np.sqrt(variance + rows.dtype.type(node.attribute("epsilon")))
    normal = ((rows - mean[..., None]) / root[..., None]).reshape(x.shape)
    result = normal * _work(scale) + (0 if bias is None else _work(bias))
    shape = (*x.shape[:axis], *[1] * (x.ndim - axis))
    outputs = (result.astype(x.dtype), mean.reshape(shape), (1 / root).reshape(shape))
    # An omitted output has an empty name.
    return [output for output, name in zip(outputs, node.node.output, strict=False) if name]


def _folded(node: BoundNode, _compute: Compute) -> Sequence[Value] | None:
    """Compute BatchNormalization with one factor and one addend for each channel."""
    arrays = [node.operand(index) for index in range(5)]
    if len(node.node.output) > 1 or node.opset < _INFERENCE_VERSION:
        return None
    if any(array is None for array in arrays):
        return None
    x, *parameters = (_work(array) for array in arrays if array is not None)
    shape = (-1, *[1] * (x.ndim - 2))
    scale, bias, mean, variance = (array.reshape(shape) for array in parameters)
    factor = scale / np.sqrt(variance + variance.dtype.type(node.attribute("epsilon")))
    return [(x * factor + (bias - mean * factor)).astype(node.values[node.names[0]].dtype)]  # type: ignore[union-attr]


_INFERENCE_VERSION = 9


def _im2col(node: BoundNode, _compute: Compute) -> Sequence[Value] | None:
    """Compute Conv as a matrix product; a row has the elements of a window."""
    x, w, bias = node.operand(0), node.operand(1), node.operand(2)
    if x is None or w is None or node.attribute("group") != 1:
        return None
    if node.attribute("auto_pad") not in {None, b"NOTSET"}:
        return None
    rank = x.ndim - 2
    pads = node.attribute("pads") or [0] * 2 * rank
    strides = node.attribute("strides") or [1] * rank
    dilations = node.attribute("dilations") or [1] * rank
    widths = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    padded = np.pad(_work(x), widths)
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, tuple(range(2, x.ndim)))
    steps = tuple(slice(None, None, step) for step in (*strides, *dilations))
    windows = np.moveaxis(windows[(slice(None), slice(None), *steps)], 1, 1 + rank)
    columns = windows.reshape(*windows.shape[: 1 + rank], -1)
    y = np.moveaxis(columns @ _work(w).reshape(w.shape[0], -1).T, -1, 1)
    if bias is not None:
        y = y + _work(bias).reshape(-1, *[1] * rank)
    return [y.astype(x.dtype)]


def _reciprocal_mean(node: BoundNode, _compute: Compute) -> Sequence[Value] | None:
    """Compute GlobalAveragePool as sums times the reciprocal of the number of terms."""
    x = node.operand(0)
    if x is None or x.dtype.kind not in "fV" or not x.size:
        return None
    axes = tuple(range(2, x.ndim))
    count = int(np.prod(x.shape[2:]))
    wide = _work(x)
    total = wide.sum(axis=axes, keepdims=True)
    return [(total * wide.dtype.type(1 / count)).astype(x.dtype)]


def _scaled_first(node: BoundNode, compute: Compute) -> Sequence[Value] | None:
    """Compute Gemm, but multiply A by alpha before the matrix product."""
    a = node.operand(0)
    if a is None or a.dtype.kind != "f":
        return None
    scaled = node.with_operand(0, a * a.dtype.type(node.attribute("alpha")))
    return compute(*scaled.with_attribute("alpha", 1.0).as_model())


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_FORMS: Mapping[str, list[_Entry]] = {
    **{name: [(*_REVERSED_TERMS, _reversed_reduction)] for name in _REDUCTIONS},
    "Sum": [(*_REVERSED_TERMS, _reversed_operands)],
    "Mean": [(*_REVERSED_TERMS, _reversed_operands)],
    "MatMul": [(*_REVERSED_TERMS, _reversed_products)],
    "Gemm": [
        (*_REVERSED_TERMS, _reversed_products),
        ("alpha first", "A is multiplied by alpha before the product.", _scaled_first),
    ],
    "Conv": [
        (*_REVERSED_TERMS, _reversed_products),
        ("im2col", "The windows are gathered into a matrix, which is multiplied.", _im2col),
    ],
    "Softmax": [
        ("online", "The largest value and the sum are updated in one pass.", _online_softmax)
    ],
    "LayerNormalization": [
        ("Welford", "Mean and variance are updated with each element.", _welford)
    ],
    "BatchNormalization": [
        (
            "folded",
            "Scale, bias, mean and variance are folded into one factor and one term.",
            _folded,
        )
    ],
    "GlobalAveragePool": [
        ("reciprocal", "The sum is multiplied by the reciprocal of the count.", _reciprocal_mean)
    ],
}
