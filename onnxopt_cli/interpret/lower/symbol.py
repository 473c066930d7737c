"""The operand that records ONNX nodes instead of computing.

It joins in through NumPy's own dispatch: whatever a formula asks of NumPy is looked up in the
vocabulary.

Types follow NumPy, with one rule more. Integers, booleans, constants, and what is computed from
these alone, are *weak*: computed in double, then rounded to the type of what they meet. So
``1 - beta**T`` keeps its bits under float32, and does not turn float32 tensors into double ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.vocabulary import (
    Choice,
    Comparison,
    Elementwise,
    Joining,
    Logical,
    MatrixProduct,
    Percentile,
    Reduction,
    Row,
)
from onnxopt_cli.operators.call import Shape

_BOOL = np.dtype(np.bool_)
_INTEGER = np.dtype(np.int64)
#: What weak operands are computed in when none of them is typed.
_WEAK = np.dtype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Symbol(Joining):
    """A tensor of the graph under construction.

    Attributes:
        recorder: takes the nodes that operations on this symbol need.
        name: the tensor's name.
        dtype: its element type.
        shape: its shape as far as known.
        weak: True if it takes the type of what it meets.
    """

    recorder: Recorder
    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    weak: bool = False

    def applied(self, _function: Any, row: Row, inputs: Sequence[Any]) -> Any:
        """Record a function of NumPy."""
        return _record(self.recorder, row, inputs)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "write np.where instead of if, and & instead of and: no operand has a value yet"
        )


def as_dtype(recorder: Recorder, operand: Any, dtype: np.dtype[Any]) -> Symbol:
    """Return a symbol or a number in the given type, rounded there if need be."""
    if not isinstance(operand, Symbol):
        with np.errstate(all="ignore"):
            return recorder.constant(np.asarray(operand).astype(dtype))
    if operand.dtype == dtype:
        return operand
    return recorder.node("Cast", operand, dtype=dtype, to=helper.np_dtype_to_tensor_dtype(dtype))


def _typed(recorder: Recorder, operands: Sequence[Any], dtype: np.dtype[Any]) -> list[Symbol]:
    return [as_dtype(recorder, operand, dtype) for operand in operands]


def _record(recorder: Recorder, row: Row, operands: Sequence[Any]) -> Any:
    """Record the nodes of a function of NumPy; at least one operand is a symbol."""
    typed = partial(_typed, recorder)
    common, weak = _common_dtype(operands), all(map(_is_weak, operands))
    match row:
        case Percentile():
            return _percentile(recorder, *operands)
        case Reduction():
            return _reduced(recorder, row, *operands)
        case MatrixProduct():
            a, b = typed(operands, common)
            return recorder.node(row.node, a, b, shape=_product_shape(a.shape, b.shape), weak=weak)
        case Choice():
            condition, *branches = operands
            common, weak = _common_dtype(branches), all(map(_is_weak, branches))
            chosen = as_dtype(recorder, condition, _BOOL), *typed(branches, common)
            return recorder.node(row.node, *chosen, dtype=common, weak=weak)
        case Comparison():
            integers = all(np.issubdtype(_dtype(operand), np.integer) for operand in operands)
            compared = typed(operands, _INTEGER if integers else common)
            return recorder.node(row.node, *compared, dtype=_BOOL, weak=True)
        case Logical():
            if any(_dtype(operand) != _BOOL for operand in operands):
                raise TypeError(f"{row.node} is recorded for booleans only")
            return recorder.node(row.node, *typed(operands, _BOOL), weak=True)
        case Elementwise():
            return recorder.node(row.node, *typed(operands, common), weak=weak)


def _reduced(recorder: Recorder, row: Reduction, operand: Symbol) -> Any:
    # ONNX does not say what ReduceMean is of no elements.
    op_type = "ReduceSum" if row.mean else row.node
    result = recorder.node(op_type, operand, shape=(), weak=operand.weak, keepdims=0)
    if row.mean:
        return result / recorder.node("Size", operand, dtype=_INTEGER, shape=(), weak=True)
    # ONNX does not say what is the largest of some numbers and NaN.
    return result + _nan_if_any(operand) if row.is_extreme else result


def _percentile(recorder: Recorder, operand: Symbol, percent: Any) -> Symbol:
    """Record a percentile, as :func:`~onnxopt_cli.operators.percentile.percentile` defines it.

    The rank is computed in double. TopK sorts in no order that NaN has a place in: it gets zero for
    NaN, which then is added to the result. And it gets an infinite element more, so that there is
    one to take where the tensor is empty.
    """
    dtype, node = operand.dtype, recorder.node

    def integers(*numbers: int) -> Symbol:
        return recorder.constant(np.array(numbers, _INTEGER))

    zero = as_dtype(recorder, 0, dtype)
    flat = node("Reshape", operand, integers(-1), shape=(None,))
    is_nan = node("IsNaN", flat, dtype=_BOOL)
    numbers = node("Where", is_nan, zero, flat, dtype=dtype)
    padded = node("Concat", numbers, recorder.constant(np.array([np.inf], dtype)), axis=0)
    if operand.shape is None or None in operand.shape:
        size = node("Reshape", node("Size", flat, dtype=_INTEGER, shape=()), integers(1))
        count = node("Add", size, integers(1))
        last = node("Max", node("Sub", size, integers(1)), integers(0))
    else:
        # Compilers want to know how many they are to sort.
        elements = math.prod(size or 0 for size in operand.shape)
        count, last = integers(elements + 1), integers(max(elements - 1, 0))
    ordered = node("TopK", padded, count, axis=0, largest=0)
    rank = as_dtype(recorder, last, _WEAK) * percent / 100
    floor = node("Floor", rank)
    lower = as_dtype(recorder, floor, _INTEGER)
    upper = node("Min", node("Add", lower, integers(1)), last)
    ends: list[Any] = [
        node("Reshape", node("Gather", ordered, index), integers(), shape=())
        for index in (lower, upper)
    ]
    a, b = ends
    fraction = node("Reshape", node("Sub", rank, floor), integers(), shape=())
    whole = (fraction == 0) | (a == b)
    between = a + (b - a) * as_dtype(recorder, fraction, dtype)
    either: Symbol = np.where(whole, a, between)
    return either + _nan_if_any(flat)


def _nan_if_any(operand: Symbol) -> Symbol:
    """Record NaN where an element is NaN, else zero."""
    recorder, dtype = operand.recorder, operand.dtype
    is_nan = recorder.node("IsNaN", operand, dtype=_BOOL)
    found = recorder.node("Where", is_nan, operand, as_dtype(recorder, 0, dtype), dtype=dtype)
    return recorder.node("ReduceSum", found, shape=(), weak=operand.weak, keepdims=0)


def _common_dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    typed = [operand.dtype for operand in operands if not _is_weak(operand)]
    return np.result_type(*typed) if typed else _WEAK


def _is_weak(operand: Any) -> bool:
    return not isinstance(operand, Symbol) or operand.weak


def _dtype(operand: Any) -> np.dtype[Any]:
    return operand.dtype if isinstance(operand, Symbol) else np.asarray(operand).dtype


def _broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_dimension(sizes) for sizes in zip(*padded, strict=True))


def _dimension(sizes: Sequence[int | None]) -> int | None:
    # Beside a known size other than 1, an unknown one is equal to it, or 1, or an error.
    fixed = [size for size in sizes if size not in (None, 1)]
    if fixed:
        return fixed[0]
    return None if None in sizes else 1


def _product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of a product of matrices and vectors; None where it is not known."""
    if a is None or b is None or max(len(a), len(b)) > 2:  # noqa: PLR2004 - a matrix's rank
        return None
    return (*a[:-1], *(b[1:] if len(b) > 1 else ()))


class Recorder:
    """Records the nodes that replace one node.

    Args:
        new_name: returns a name that is free in the model, and like the op_type it is given.
    """

    def __init__(self, new_name: Callable[[str], str]) -> None:
        self._new_name = new_name
        # By what they are without their outputs: constants differ if their bits do, NaN is one
        # constant, and 0.0 and -0.0 are two.
        self._nodes: dict[bytes, onnx.NodeProto] = {}

    def node(
        self,
        op_type: str,
        *inputs: Symbol,
        dtype: np.dtype[Any] | None = None,
        shape: Shape | EllipsisType | None = ...,
        weak: bool = False,
        **attributes: Any,
    ) -> Symbol:
        """Return what an operator yields, recorded where it is not yet.

        Args:
            op_type: the operator.
            inputs: its inputs.
            dtype: the type of the result; that of the first input if not given.
            shape: of the result, None if unknown; what the inputs are broadcast to if not given.
            weak: whether the result takes the type of what it meets.
            attributes: of the operator.
        """
        node = helper.make_node(op_type, [it.name for it in inputs], [], **attributes)
        node = self._nodes.setdefault(node.SerializeToString(deterministic=True), node)
        if not node.name:
            node.name = self._new_name(op_type)
            # Of its two outputs, values and indices, the first is the one that is used.
            others = [self._new_name("TopK_indices")] if op_type == "TopK" else []
            node.output.extend([node.name, *others])
        if shape is ...:
            shape = _broadcast([it.shape for it in inputs])
        return Symbol(self, node.name, dtype or inputs[0].dtype, shape, weak=weak)

    def constant(self, value: Array) -> Symbol:
        """Return a constant, recorded where it is not yet."""
        tensor = numpy_helper.from_array(value)
        return self.node("Constant", dtype=value.dtype, shape=value.shape, value=tensor)

    def finish(self, outputs: Mapping[str, str]) -> list[onnx.NodeProto]:
        """Return the nodes that the outputs need.

        Args:
            outputs: for each name that the graph knows, the recorded name of what it shall hold.
        """
        wanted = set(outputs.values())
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self._nodes.values()):
            if node.name in wanted:
                wanted.update(node.input)
                nodes.insert(0, node)
        computed = {node.name for node in nodes}
        renamed: dict[str, str] = {}
        copies = []
        for name, recorded in outputs.items():
            if recorded in computed and recorded not in renamed:
                renamed[recorded] = name
            else:
                # An input handed through, or one value under two names.
                copies.append((recorded, name))
        for node in nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        return nodes + [
            helper.make_node(
                "Identity", [renamed.get(source, source)], [name], name=self._new_name("Identity")
            )
            for source, name in copies
        ]
