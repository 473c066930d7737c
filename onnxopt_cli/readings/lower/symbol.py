"""The operand that records ONNX nodes instead of computing.

It joins in through NumPy's own dispatch: whatever a formula asks of NumPy is looked up in the two
tables at the end of this file. An operation is added by a line there.

Types follow NumPy, with one rule more. Integers, booleans, constants, and what is computed from
these alone, are *weak*: computed in double, then rounded to the type of what they meet. So
``1 - beta**T`` keeps its bits under float32, and does not turn float32 tensors into double ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import onnx
from numpy.lib.mixins import NDArrayOperatorsMixin
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Shape
from onnxopt_cli.formula.percentile import percentile

_BOOL = np.dtype(np.bool_)
_INTEGER = np.dtype(np.int64)
#: What weak operands are computed in when none of them is typed.
_WEAK = np.dtype(np.float64)


class Symbol(NDArrayOperatorsMixin):
    """A tensor of the graph under construction.

    Attributes:
        recorder: takes the nodes that operations on this symbol need.
        name: the tensor's name.
        dtype: its element type.
        shape: its shape as far as known.
        weak: True if it takes the type of what it meets.
    """

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        dtype: np.dtype[Any],
        shape: Shape | None,
        *,
        weak: bool = False,
    ) -> None:
        self.recorder = recorder
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.weak = weak

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Symbol:
        """Record an arithmetic operation or a comparison."""
        rule = _UFUNCS.get(ufunc)
        if rule is None or method != "__call__" or options:
            raise _not_in_table(ufunc.__name__)
        return rule(self.recorder, *inputs)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Symbol:
        """Record any other function of NumPy."""
        rule = _FUNCTIONS.get(func)
        if rule is None:
            raise _not_in_table(func.__name__)
        return rule(self.recorder, *args, **kwargs)

    def __bool__(self) -> NoReturn:
        raise TypeError("a symbol has no value yet: write np.where instead of if")


Rule: TypeAlias = Callable[..., Symbol]


def as_dtype(recorder: Recorder, operand: Any, dtype: np.dtype[Any]) -> Symbol:
    """Return a symbol or a number in the given type, rounded there if need be."""
    if not isinstance(operand, Symbol):
        with np.errstate(all="ignore"):
            value = np.asarray(operand).astype(dtype)
        return Symbol(recorder, recorder.constant(value), dtype, value.shape)
    if operand.dtype == dtype:
        return operand
    name = recorder.node("Cast", operand.name, to=helper.np_dtype_to_tensor_dtype(dtype))
    return Symbol(recorder, name, dtype, operand.shape)


def _arithmetic(op_type: str) -> Rule:
    def rule(recorder: Recorder, *operands: Any) -> Symbol:
        return _record(recorder, op_type, operands, _common_dtype(operands))

    return rule


def _comparison(op_type: str) -> Rule:
    def rule(recorder: Recorder, *operands: Any) -> Symbol:
        integers = all(np.issubdtype(_dtype(operand), np.integer) for operand in operands)
        dtype = _INTEGER if integers else _common_dtype(operands)
        return _record(recorder, op_type, operands, dtype, result=_BOOL)

    return rule


def _logical(op_type: str) -> Rule:
    def rule(recorder: Recorder, *operands: Any) -> Symbol:
        if any(_dtype(operand) != _BOOL for operand in operands):
            raise TypeError(f"{op_type} is recorded for booleans only")
        return _record(recorder, op_type, operands, _BOOL)

    return rule


def _square(recorder: Recorder, operand: Any) -> Symbol:
    return _arithmetic("Mul")(recorder, operand, operand)


def _not_equal(recorder: Recorder, *operands: Any) -> Symbol:
    return _logical("Not")(recorder, _comparison("Equal")(recorder, *operands))


def _clip(_: Recorder, operand: Any, least: Any, most: Any) -> Any:
    return np.minimum(np.maximum(operand, least), most)


def _where(recorder: Recorder, condition: Any, x: Any, y: Any) -> Symbol:
    dtype = _common_dtype((x, y))
    choice = as_dtype(recorder, condition, _BOOL)
    branches = [as_dtype(recorder, operand, dtype) for operand in (x, y)]
    return _result(recorder, "Where", [choice, *branches], dtype, weak=_all_weak((x, y)))


def _matmul(recorder: Recorder, *operands: Any) -> Symbol:
    dtype = _common_dtype(operands)
    symbols = [as_dtype(recorder, operand, dtype) for operand in operands]
    name = recorder.node("MatMul", *(symbol.name for symbol in symbols))
    shapes = [symbol.shape for symbol in symbols]
    return Symbol(recorder, name, dtype, _product_shape(*shapes), weak=_all_weak(operands))


def _product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of a product of matrices and vectors; None where it is not known."""
    if a is None or b is None or max(len(a), len(b)) > 2:  # noqa: PLR2004 - a matrix's rank
        return None
    return (*a[:-1], *(b[1:] if len(b) > 1 else ()))


def _reduction(op_type: str) -> Rule:
    def rule(recorder: Recorder, operand: Symbol) -> Symbol:
        name = recorder.node(op_type, operand.name, keepdims=0)
        return Symbol(recorder, name, operand.dtype, (), weak=operand.weak)

    return rule


def _percentile(recorder: Recorder, operand: Symbol, percent: Any) -> Symbol:
    """Record a percentile, as :func:`~onnxopt_cli.formula.percentile.percentile` defines it.

    The rank is computed in double. TopK sorts in no order that NaN has a place in: it gets zero for
    NaN, which then is added to the result. And it gets an infinite element more, so that there is
    one to take where the tensor is empty.
    """
    dtype = operand.dtype

    def node(op_type: str, *inputs: str, dtype: np.dtype[Any] = dtype, **attributes: Any) -> Symbol:
        return Symbol(recorder, recorder.node(op_type, *inputs, **attributes), dtype, ())

    def integers(*numbers: int) -> str:
        return recorder.constant(np.array(numbers, _INTEGER))

    zero = as_dtype(recorder, 0, dtype)
    flat = node("Reshape", operand.name, integers(-1))
    is_nan = node("IsNaN", flat.name, dtype=_BOOL)
    numbers = node("Where", is_nan.name, zero.name, flat.name)
    nan = node("ReduceSum", recorder.node("Where", is_nan.name, flat.name, zero.name), keepdims=0)
    size = node("Reshape", recorder.node("Size", flat.name), integers(1), dtype=_INTEGER)
    infinity = recorder.constant(np.array([np.inf], dtype))
    padded = recorder.node("Concat", numbers.name, infinity, axis=0)
    count = recorder.node("Add", size.name, integers(1))
    ordered = recorder.node("TopK", padded, count, axis=0, largest=0)
    last = node("Max", recorder.node("Sub", size.name, integers(1)), integers(0), dtype=_INTEGER)
    rank = as_dtype(recorder, last, _WEAK) * percent / 100
    floor = node("Floor", rank.name, dtype=_WEAK)
    lower = as_dtype(recorder, floor, _INTEGER)
    upper = node("Min", recorder.node("Add", lower.name, integers(1)), last.name, dtype=_INTEGER)
    a, b = (
        node("Reshape", recorder.node("Gather", ordered, index.name), integers())
        for index in (lower, upper)
    )
    fraction = node("Reshape", recorder.node("Sub", rank.name, floor.name), integers(), dtype=_WEAK)
    whole = (fraction == 0) | (a == b)
    between = a + (b - a) * as_dtype(recorder, fraction, dtype)
    return _where(recorder, whole, a, between) + nan


def _record(
    recorder: Recorder,
    op_type: str,
    operands: Sequence[Any],
    dtype: np.dtype[Any],
    result: np.dtype[Any] | None = None,
) -> Symbol:
    symbols = [as_dtype(recorder, operand, dtype) for operand in operands]
    weak = result == _BOOL or _all_weak(operands)
    return _result(recorder, op_type, symbols, result or dtype, weak=weak)


def _result(
    recorder: Recorder,
    op_type: str,
    operands: Sequence[Symbol],
    dtype: np.dtype[Any],
    *,
    weak: bool,
) -> Symbol:
    name = recorder.node(op_type, *(operand.name for operand in operands))
    shape = _broadcast([operand.shape for operand in operands])
    return Symbol(recorder, name, dtype, shape, weak=weak)


def _common_dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    typed = [operand.dtype for operand in operands if not _is_weak(operand)]
    return np.result_type(*typed) if typed else _WEAK


def _all_weak(operands: Sequence[Any]) -> bool:
    return all(_is_weak(operand) for operand in operands)


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


def _not_in_table(function: str) -> TypeError:
    return TypeError(f"no ONNX operator is known for numpy.{function}: add it in {__name__}")


_UFUNCS: dict[np.ufunc, Rule] = {
    np.add: _arithmetic("Add"),
    np.subtract: _arithmetic("Sub"),
    np.multiply: _arithmetic("Mul"),
    np.divide: _arithmetic("Div"),
    np.power: _arithmetic("Pow"),
    np.negative: _arithmetic("Neg"),
    np.absolute: _arithmetic("Abs"),
    np.sqrt: _arithmetic("Sqrt"),
    np.exp: _arithmetic("Exp"),
    np.log: _arithmetic("Log"),
    np.tanh: _arithmetic("Tanh"),
    np.sign: _arithmetic("Sign"),
    np.floor: _arithmetic("Floor"),
    np.ceil: _arithmetic("Ceil"),
    np.reciprocal: _arithmetic("Reciprocal"),
    np.matmul: _matmul,
    np.square: _square,
    np.maximum: _arithmetic("Max"),
    np.minimum: _arithmetic("Min"),
    np.greater: _comparison("Greater"),
    np.greater_equal: _comparison("GreaterOrEqual"),
    np.less: _comparison("Less"),
    np.less_equal: _comparison("LessOrEqual"),
    np.equal: _comparison("Equal"),
    np.not_equal: _not_equal,
    np.logical_and: _logical("And"),
    np.logical_or: _logical("Or"),
    np.logical_xor: _logical("Xor"),
    np.logical_not: _logical("Not"),
    np.bitwise_and: _logical("And"),
    np.bitwise_or: _logical("Or"),
    np.bitwise_xor: _logical("Xor"),
    np.invert: _logical("Not"),
}

_FUNCTIONS: dict[Callable[..., Any], Rule] = {
    np.where: _where,
    np.sum: _reduction("ReduceSum"),
    np.mean: _reduction("ReduceMean"),
    np.max: _reduction("ReduceMax"),
    np.min: _reduction("ReduceMin"),
    np.clip: _clip,
    percentile: _percentile,
}


class Recorder:
    """Records the nodes that replace one node.

    Args:
        fresh: returns a name that is free in the model, and readable from the op_type it is given.
    """

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self._fresh = fresh
        self._nodes: list[onnx.NodeProto] = []
        self._known: dict[object, str] = {}

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Return the name of what an operator yields, recorded where it is not yet."""
        key = (op_type, inputs, tuple(sorted(attributes.items())))
        return self._once(key, op_type, inputs, attributes)

    def constant(self, value: Array) -> str:
        """Return the name of a constant, recorded where it is not yet."""
        # Bits, not values: NaN is one constant, and 0.0 and -0.0 are two.
        key = (value.dtype, value.shape, value.tobytes())
        return self._once(key, "Constant", (), {"value": numpy_helper.from_array(value)})

    def finish(self, outputs: Mapping[str, str]) -> list[onnx.NodeProto]:
        """Return the nodes that the outputs need.

        Args:
            outputs: for each name that the graph knows, the recorded name of what it shall hold.
        """
        mine = {node.output[0] for node in self._nodes}
        renamed: dict[str, str] = {}
        copies = []
        for name, recorded in outputs.items():
            if recorded in mine and recorded not in renamed:
                renamed[recorded] = name
            else:
                # An input handed through, or one value under two names.
                copies.append((recorded, name))
        nodes = self._needed(set(outputs.values()))
        for node in nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        return nodes + [
            helper.make_node(
                "Identity", [renamed.get(source, source)], [name], name=self._fresh("Identity")
            )
            for source, name in copies
        ]

    def _once(
        self, key: object, op_type: str, inputs: tuple[str, ...], attributes: Mapping[str, Any]
    ) -> str:
        if key not in self._known:
            name = self._fresh(op_type)
            node = helper.make_node(op_type, inputs, [name], name=name, **attributes)
            # Of its two outputs, values and indices, the first is the one that is used.
            node.output.extend([self._fresh(f"{op_type}_indices")] if op_type == "TopK" else [])
            self._nodes.append(node)
            self._known[key] = name
        return self._known[key]

    def _needed(self, wanted: set[str]) -> list[onnx.NodeProto]:
        kept = []
        for node in reversed(self._nodes):
            if node.output[0] in wanted:
                wanted.update(node.input)
                kept.append(node)
        return kept[::-1]
