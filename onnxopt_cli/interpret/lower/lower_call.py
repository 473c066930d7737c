"""Lower one node: call its formula with symbols, which record primitive ONNX nodes.

If the formula calls a NumPy function with a symbol, NumPy's dispatch passes the call to the symbol.
The vocabulary defines the ONNX node for each NumPy function.

Types combine as in NumPy, with one additional rule. Integers, booleans and constants are *weak*. An
expression is weak if all its operands are weak. A weak expression is computed in double. In an
operation with an operand that is not weak, it is rounded to the type of this operand. Thus
``1 - beta**T`` is computed in double, but its product with a float32 tensor is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE
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
from onnxopt_cli.operators.call import Call, Shape


def lower_call(
    call: Call[GraphTensor], outputs: Sequence[str], new_name: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """Return primitive nodes that replace the node of a call.

    The operators of the returned nodes have the same meaning in every opset from 13 on. Expressions
    that several groups share are computed once. The docstring of this module states the type of
    each operation. Each output is rounded to its own element type. If an operand of unknown shape
    does not broadcast to the first tensor of its group, the nodes fail at run time.

    Args:
        call: the node's operator, attributes and tensors.
        outputs: the names of the node's outputs; empty names are skipped.
        new_name: takes an op_type and returns a similar name that does not occur in the model.

    Raises:
        NotImplementedError: if the formula uses a NumPy function that the vocabulary lacks.
        TypeError: if the formula branches by the value of an operand.
    """
    recorder = Recorder(new_name)

    def tensor(operand: GraphTensor) -> Symbol:
        weak = operand.dtype.kind in "biu"
        return Symbol(recorder, operand.name, operand.dtype, operand.shape, weak=weak)

    def scalar(operand: GraphTensor) -> Symbol:
        if operand.shape == ():
            return tensor(operand)
        symbol, empty_shape = tensor(operand), recorder.constant(np.zeros(0, dtype=np.int64))
        return recorder.node("Reshape", symbol, empty_shape, shape=(), weak=symbol.weak)

    results = call.apply(scalar, tensor, WIDEST_TYPE.type)
    return recorder.finish(
        {
            name: _shaped_like(as_dtype(recorder, result, like.dtype), tensor(first)).name
            for name, (result, like, first) in zip(outputs, results, strict=True)
            if name
        }
    )


def _shaped_like(result: Symbol, first: Symbol) -> Symbol:
    """Record nodes that give a result the shape of the first tensor of its group."""
    if result.shape == first.shape and first.shape is not None and None not in first.shape:
        return result
    node = result.recorder.node
    shape = node("Shape", first, dtype=np.dtype(np.int64), shape=None)
    # If the result does not broadcast to the shape of the first tensor, Expand returns a larger
    # shape. Reshape then fails, because the numbers of elements differ.
    return node("Reshape", node("Expand", result, shape), shape, shape=first.shape)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of a graph.

    Attributes:
        name: the name in the graph.
        dtype: the element type.
        shape: the shape, with None for unknown dimensions; None if the rank is unknown.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None


def typed_tensors(graph: onnx.GraphProto) -> dict[str, GraphTensor]:
    """Return the tensors whose element type a graph declares, by name; subgraphs are ignored."""
    declared: list[tuple[str, int, Shape | None]] = [
        (tensor.name, tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer
    ]
    declared += [
        (sparse.values.name, sparse.values.data_type, tuple(sparse.dims))
        for sparse in graph.sparse_initializer
    ]
    for value in (*graph.value_info, *graph.output, *graph.input):
        # If the value is not a tensor, `tensor_type` is empty, and its element type is UNDEFINED.
        tensor_type = value.type.tensor_type
        shape = None
        if tensor_type.HasField("shape"):
            shape = tuple(
                dimension.dim_value
                if dimension.HasField("dim_value") and dimension.dim_value >= 0
                else None
                for dimension in tensor_type.shape.dim
            )
        declared.append((value.name, tensor_type.elem_type, shape))
    tensors = {}
    for name, elem_type, shape in declared:
        # The element type may be UNDEFINED, or may come from a later version of ONNX.
        with suppress(KeyError):
            tensors[name] = GraphTensor(name, helper.tensor_dtype_to_np_dtype(elem_type), shape)
    return tensors


_BOOL = np.dtype(np.bool_)
_INTEGER = np.dtype(np.int64)
#: The type of an operation whose operands are all weak.
_WEAK = np.dtype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Symbol(Joining):
    """A symbol, which represents a tensor of the graph under construction.

    Attributes:
        recorder: records the nodes of operations on this symbol.
        name: the tensor's name.
        dtype: the element type.
        shape: the shape, with None for unknown dimensions; None if the rank is unknown.
        weak: whether an operation converts the tensor to the type of the other operand.
    """

    recorder: Recorder
    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    weak: bool = False

    def applied(self, _function: Any, row: Row, inputs: Sequence[Any]) -> Any:
        """Record the nodes of a NumPy function of symbols, and return its result."""
        return _record(self.recorder, row, inputs)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "operands have no values yet: write np.where instead of if, and & instead of and"
        )


def as_dtype(recorder: Recorder, operand: Any, dtype: np.dtype[Any]) -> Symbol:
    """Return a symbol or a number converted to a type."""
    if not isinstance(operand, Symbol):
        with np.errstate(all="ignore"):
            return recorder.constant(np.asarray(operand).astype(dtype))
    if operand.dtype == dtype:
        return operand
    return recorder.node("Cast", operand, dtype=dtype, to=helper.np_dtype_to_tensor_dtype(dtype))


def _typed(recorder: Recorder, operands: Sequence[Any], dtype: np.dtype[Any]) -> list[Symbol]:
    return [as_dtype(recorder, operand, dtype) for operand in operands]


def _record(recorder: Recorder, row: Row, operands: Sequence[Any]) -> Any:
    """Record the nodes of a NumPy function; at least one operand is a symbol."""
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
    # Lower a mean to a sum and a quotient, because ONNX does not define ReduceMean of an empty
    # tensor.
    op_type = "ReduceSum" if row.mean else row.node
    result = recorder.node(op_type, operand, shape=(), weak=operand.weak, keepdims=0)
    if row.mean:
        return result / recorder.node("Size", operand, dtype=_INTEGER, shape=(), weak=True)
    # ONNX does not define the maximum or minimum of elements that include NaN.
    return result + _nan_if_any(operand) if row.is_extreme else result


def _percentile(recorder: Recorder, operand: Symbol, percent: Any) -> Symbol:
    """Record a percentile, as :func:`~onnxopt_cli.operators.percentile.percentile` defines it.

    The rank is computed in double. TopK does not define the order of NaN. NaN is therefore replaced
    by zero for TopK, and added to the result at the end. TopK returns no element of an empty
    tensor, so an infinite element is appended first.
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
        # Sort all elements, because compilers may require a constant number of elements to sort.
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
    is_exact = (fraction == 0) | (a == b)
    interpolated = a + (b - a) * as_dtype(recorder, fraction, dtype)
    result: Symbol = np.where(is_exact, a, interpolated)
    return result + _nan_if_any(flat)


def _nan_if_any(operand: Symbol) -> Symbol:
    """Record a scalar that is NaN if any element is NaN, and zero otherwise."""
    recorder, dtype = operand.recorder, operand.dtype
    is_nan = recorder.node("IsNaN", operand, dtype=_BOOL)
    zero = as_dtype(recorder, 0, dtype)
    nan_or_zero = recorder.node("Where", is_nan, operand, zero, dtype=dtype)
    return recorder.node("ReduceSum", nan_or_zero, shape=(), weak=operand.weak, keepdims=0)


def _common_dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    typed = [operand.dtype for operand in operands if not _is_weak(operand)]
    return np.result_type(*typed) if typed else _WEAK


def _is_weak(operand: Any) -> bool:
    return not isinstance(operand, Symbol) or operand.weak


def _dtype(operand: Any) -> np.dtype[Any]:
    return operand.dtype if isinstance(operand, Symbol) else np.asarray(operand).dtype


def _broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    known_shapes = [shape for shape in shapes if shape is not None]
    if len(known_shapes) < len(shapes):
        return None
    rank = max(map(len, known_shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in known_shapes]
    return tuple(_dimension(sizes) for sizes in zip(*padded, strict=True))


def _dimension(sizes: Sequence[int | None]) -> int | None:
    # If a known size is not 1, each unknown size must be 1 or that size at run time.
    fixed = [size for size in sizes if size not in (None, 1)]
    if fixed:
        return fixed[0]
    return None if None in sizes else 1


def _product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of a product of matrices or vectors; None if it is unknown."""
    if a is None or b is None or max(len(a), len(b)) > 2:  # noqa: PLR2004 - a matrix's rank
        return None
    return (*a[:-1], *(b[1:] if len(b) > 1 else ()))


class Recorder:
    """Records the nodes that replace one node.

    Args:
        new_name: takes an op_type and returns a similar name that does not occur in the model.
    """

    def __init__(self, new_name: Callable[[str], str]) -> None:
        self._new_name = new_name
        # The recorded nodes. Each key is the serialized node without its outputs. Constants are
        # thus compared bitwise: NaN equals NaN, and 0.0 differs from -0.0.
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
        """Record a node if no equal node exists, and return the output of the recorded node.

        Args:
            op_type: the operator.
            inputs: the inputs.
            dtype: the type of the result; by default, the type of the first input.
            shape: the shape of the result, None if unknown; by default, the broadcast shape.
            weak: whether the result is weak.
            attributes: attributes of the operator.
        """
        input_names = [symbol.name for symbol in inputs]
        node = helper.make_node(op_type, input_names, [], **attributes)
        node = self._nodes.setdefault(node.SerializeToString(deterministic=True), node)
        if not node.name:
            node.name = self._new_name(op_type)
            # The second output of TopK, the indices, is not used.
            unused = [self._new_name("TopK_indices")] if op_type == "TopK" else []
            node.output.extend([node.name, *unused])
        if shape is ...:
            shape = _broadcast([symbol.shape for symbol in inputs])
        return Symbol(self, node.name, dtype or inputs[0].dtype, shape, weak=weak)

    def constant(self, value: Array) -> Symbol:
        """Record a constant if no equal constant exists, and return the recorded constant."""
        tensor = numpy_helper.from_array(value)
        return self.node("Constant", dtype=value.dtype, shape=value.shape, value=tensor)

    def finish(self, outputs: Mapping[str, str]) -> list[onnx.NodeProto]:
        """Return the recorded nodes on which the outputs depend.

        Args:
            outputs: for each output name in the graph, the symbol of the output.
        """
        needed = set(outputs.values())
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self._nodes.values()):
            if node.name in needed:
                needed.update(node.input)
                nodes.insert(0, node)
        computed = {node.name for node in nodes}
        renamed: dict[str, str] = {}
        copies = []
        for name, recorded in outputs.items():
            if recorded in computed and recorded not in renamed:
                renamed[recorded] = name
            else:
                # The output is an input of the node, or it has the same value as another output.
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
