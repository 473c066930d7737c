"""Reformulations: correct implementations that round differently, which must be accepted.

Most reformulations compute the formula in machine arithmetic, in which every operation is rounded.
NumPy's dispatch passes each operation of the formula to an operand, and the operand passes it to an
arithmetic. The arithmetic performs the operation on arrays of machine types, possibly in an unusual
way. For example, it may multiply by a reciprocal instead of dividing. Types combine as in NumPy:
attributes are plain numbers and take the type of the other operand. ONNX Runtime can also compute
the formula by running its lowered graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.lib.mixins import NDArrayOperatorsMixin
from onnx import helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE, evaluate, is_elementwise, rounded
from onnxopt_cli.interpret.implementation import Compute, Implementation
from onnxopt_cli.interpret.lower.lower_call import GraphTensor, lower_call
from onnxopt_cli.interpret.lower.lower_model import OLDEST_OPSET
from onnxopt_cli.interpret.vocabulary import OF_NOTHING, power_by_squaring
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator

Operation = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Arithmetic:
    """An arithmetic: a way to perform the operations of a formula.

    Attributes:
        operations: for each replaced NumPy function, the function that computes its result instead.
        finish: a function that is applied to every operand and every result.
        fused: whether a product remains unrounded if it is an operand of a sum or difference.
    """

    operations: Mapping[Operation, Operation] = field(default_factory=dict)
    finish: Callable[[Any], Any] = lambda value: value
    fused: bool = False

    def operate(self, function: Operation, operands: Sequence[Any]) -> Machine:
        """Perform an operation on operands, each a :class:`Machine` or a plain number."""
        values = [self.finish(_value(operand)) for operand in operands]
        if function is np.where and np.ndim(values[0]) == 0 and _are_numbers(values[1:]):
            # Do not call np.where, because it would convert the chosen plain number to an array.
            return Machine(values[1] if values[0] else values[2], self)
        if function in OF_NOTHING and not np.size(values[0]):
            return Machine(values[0].dtype.type(OF_NOTHING[function]), self)
        if _are_numbers(values):
            return Machine(self.finish(_of_numbers(function, values)), self)
        value = self.finish(self.operations.get(function, function)(*values))
        if self.fused and function is np.multiply:
            return Machine(value, self, unrounded=np.multiply(*map(_widened, values)))
        if self.fused and function in (np.add, np.subtract):
            value = _fused(function, operands, values, value)
        return Machine(value, self)


@dataclass(frozen=True, eq=False)
class Machine(NDArrayOperatorsMixin):
    """An array of a machine type, or a plain number.

    Attributes:
        value: the array or number.
        arithmetic: the arithmetic that performs operations on the operand.
        unrounded: if the value is a product in fused arithmetic, the product in a wider type; else
            None.
    """

    value: Any
    arithmetic: Arithmetic
    unrounded: Any = None

    def __bool__(self) -> bool:
        return bool(self.value)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The machine type."""
        return np.asarray(self.value).dtype

    def astype(self, dtype: Any) -> Machine:
        """Return the operand rounded to a type."""
        return Machine(np.asarray(self.value, dtype), self.arithmetic)

    def __array_ufunc__(self, ufunc: np.ufunc, _: str, *inputs: Any) -> Machine:
        return self.arithmetic.operate(ufunc, inputs)

    def __array_function__(
        self, function: Operation, _: Any, inputs: Sequence[Any], __: Any
    ) -> Machine:
        return self.arithmetic.operate(function, inputs)


def computed(
    arithmetic: Arithmetic, number: Callable[[float], Any] = float
) -> Callable[[Call[Array]], list[Array]]:
    """Return a function that computes a node in a given arithmetic.

    R and the tensors keep their types. T is converted to the type of R.

    Args:
        arithmetic: the arithmetic.
        number: converts an attribute to an operand.
    """

    def compute(call: Call[Array]) -> list[Array]:
        rate = scalar_dtype(call)
        with np.errstate(all="ignore"):
            results = call.apply(
                lambda scalar: Machine(scalar.reshape(()).astype(rate), arithmetic),
                lambda tensor: Machine(tensor, arithmetic),
                lambda value: Machine(number(value), arithmetic),
            )
            return [
                rounded(_value(result), like.dtype, first.shape) for result, like, first in results
            ]

    return compute


def scalar_dtype(call: Call[Array]) -> np.dtype[Any]:
    """Return the type of the first float scalar, in which scalars are computed."""
    floats = (scalar.dtype for scalar in call.scalars if scalar.dtype.kind == "f")
    return next(floats, np.dtype(np.float64))


def added_in_order(values: Any) -> Any:
    """Add the elements one after the other."""
    return np.add.accumulate(np.ravel(values))[-1] if np.size(values) else np.sum(values)


def added_in_reverse(values: Any) -> Any:
    """Add the elements one after the other, from the last to the first."""
    return added_in_order(np.ravel(values)[::-1])


def added_by_size(values: Any) -> Any:
    """Add the elements one after the other, in ascending order."""
    flat = np.ravel(values)
    return added_in_order(flat[np.argsort(np.abs(flat), kind="stable")])


def added_in_lanes(values: Any) -> Any:
    """Add every eighth element to the same sum, then add the eight sums, as vector units do."""
    flat = np.ravel(values)
    return added_in_order(np.array([added_in_order(flat[lane::8]) for lane in range(8)]))


def added_in_double(values: Any) -> Any:
    """Add in double, and round the sum."""
    return np.sum(values, dtype=np.float64).astype(np.asarray(values).dtype)


def reciprocal_quotient(a: Any, b: Any) -> Any:
    """Multiply by the rounded reciprocal."""
    return a * (1 / np.asarray(b))


def power_rounded_once(a: Any, b: Any) -> Any:
    """Compute a power in the wide type, and round it."""
    return np.power(np.asarray(a, WIDEST_TYPE), np.asarray(b, WIDEST_TYPE)).astype(
        np.result_type(a, b)
    )


def power_squared(a: Any, b: Any) -> Any:
    """Compute powers with integer exponents by repeated squaring, as compilers do."""
    dtype = np.result_type(a, b)
    exponent = np.asarray(b)
    if not np.all((exponent == np.floor(exponent)) & (np.abs(exponent) < 2.0**63)):
        return np.power(a, b)
    return power_by_squaring(np.asarray(a, dtype), exponent.astype(np.int64))


def root_by_reciprocal(a: Any) -> Any:
    """Compute a root as ``a * (1 / sqrt(a))``, with a correctly rounded reciprocal root."""
    dtype = np.asarray(a).dtype
    return _root(a, (1 / np.sqrt(np.asarray(a, WIDEST_TYPE))).astype(dtype))


def root_by_newton(a: Any) -> Any:
    """Compute a root as ``a * (1 / sqrt(a))``, where one Newton step yields the reciprocal root.

    The Newton step begins with an estimate that has half the digits of the type.
    """
    dtype = np.asarray(a).dtype
    digits = np.finfo(dtype).nmant // 2 + 3
    fraction, exponent = np.frexp((1 / np.sqrt(np.asarray(a, WIDEST_TYPE))).astype(dtype))
    estimate = np.ldexp(np.rint(np.ldexp(fraction, digits)), exponent - digits)
    half = dtype.type(0.5)
    step = (dtype.type(1.5) - (half * a * estimate) * estimate) * estimate
    return _root(a, step)


def flushed(value: Any) -> Any:
    """Replace subnormal numbers by zero."""
    array = np.asarray(value)
    if type(value) is float or array.dtype.kind != "f":
        return value
    zero = np.copysign(array.dtype.type(0), array)
    return np.where(np.abs(array) < np.finfo(array.dtype).smallest_normal, zero, array)


def _root(a: Any, reciprocal: Any) -> Any:
    # For 0 and infinity, a * reciprocal would be 0 * infinity, which is NaN.
    return np.where((a > 0) & (a < np.inf), a * reciprocal, np.sqrt(a))


def _value(operand: Any) -> Any:
    return operand.value if isinstance(operand, Machine) else operand


def _are_numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are Python numbers, which take the type of other operands."""
    return all(type(value) in (bool, int, float) for value in values)


def _of_numbers(function: Operation, values: Sequence[Any]) -> Any:
    """Apply a function to plain numbers, and return a plain number.

    NumPy performs the operation. The result is therefore infinite or NaN where Python would raise
    an error.
    """
    return np.asarray(function(*values)).item()


def _widened(value: Any) -> Any:
    narrow = np.asarray(value).dtype == np.float32
    return np.asarray(value, np.float64 if narrow else WIDEST_TYPE)


def _fused(ufunc: np.ufunc, operands: Sequence[Any], values: Sequence[Any], value: Any) -> Any:
    """Return a sum or difference, without rounding an operand that is a product.

    If both operands are products, only the first product stays unrounded, as in a fused
    multiply-add.
    """
    for position, operand in enumerate(operands):
        if isinstance(operand, Machine) and operand.unrounded is not None:
            wide = list(map(_widened, values))
            wide[position] = operand.unrounded
            return ufunc(*wide).astype(np.asarray(value).dtype)
    return value


#: The oldest IR version that supports the oldest opset version of lowered models.
_IR_VERSION = 7


def computed_by_onnxruntime(call: Call[Array]) -> list[Array]:
    """Compute a node by its lowered graph on ONNX Runtime, with one thread of the CPU."""
    symbols = [
        GraphTensor(f"input_{place}", array.dtype, array.shape)
        for place, array in enumerate(call.inputs)
    ]
    model = _lowered(call.with_inputs(symbols))
    feeds = {symbol.name: array for symbol, array in zip(symbols, call.inputs, strict=True)}
    return list(_session(model.SerializeToString(deterministic=True)).run(None, feeds))


def _lowered(call: Call[GraphTensor]) -> onnx.ModelProto:
    outputs = [
        GraphTensor(f"output_{at}", like.dtype, first.shape)
        for at, (like, first) in enumerate(call.sources)
    ]
    fresh = count()
    nodes = lower_call(
        call, [output.name for output in outputs], lambda stem: f"{stem}_{next(fresh)}"
    )
    declared = [*map(_declared, call.inputs)], [*map(_declared, outputs)]
    graph = helper.make_graph(nodes, call.operator.name, *declared)
    opsets = [helper.make_opsetid("", OLDEST_OPSET)]
    return helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=opsets)


def _declared(tensor: GraphTensor) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(tensor.dtype)
    return helper.make_tensor_value_info(tensor.name, element, tensor.shape)


@lru_cache(maxsize=64)
def _session(model: bytes) -> Any:
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    # Without optimization: the optimizer removes multiplications by doubles that round to 1 in
    # float32, such as 1 - 1e-8.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@cache
def reformulations(operator: Operator) -> tuple[Implementation, ...]:
    """Return all reformulations of an operator, with unique names.

    The reformulations are the formula itself in each arithmetic, and each rewritten formula in some
    of the arithmetics.
    """
    return tuple(_all_reformulations(operator))


def _all_reformulations(operator: Operator) -> Iterator[Implementation]:
    for name, (about, compute) in _ARITHMETICS.items():
        if compute is _BLOCKS and not is_elementwise(operator):
            continue
        yield Implementation(name, about, compute=compute)
    for package, (name, about, compute) in _FOREIGN.items():
        if find_spec(package):
            yield Implementation(name, about, compute=compute)
    if "sum" in operator.formula.__code__.co_names:
        for name, add_up in _SUMS.items():
            yield Implementation(
                name,
                inspect.getdoc(add_up) or "",
                compute=computed(Arithmetic({np.sum: add_up})),
            )
    for form in operator.reformulations:
        for name, compute in _ARITHMETICS_OF_REFORMULATIONS.items():
            replaced = "; ".join(f"{new} for {old}" for old, new in form.replace.items())
            yield Implementation(
                f"{form.name}, {name}",
                f"Computes {replaced}.",
                form.seen_in,
                change=form.written_where_accurate,
                compute=compute,
            )


def _with_scalars_in(
    choose: Callable[[Call[Array], Sequence[Array]], np.dtype[Any]], compute: Compute
) -> Compute:
    """Return a function that converts the float scalars of a call before it computes the call.

    Args:
        choose: takes a call and the tensors of one of its groups, and returns the type of the
            scalars.
        compute: computes the converted call.
    """

    def convert_and_compute(call: Call[Array], dtype: np.dtype[Any]) -> list[Array]:
        output_types = set(call.operator.outputs.values())
        # An output may have the type of a scalar, as loss_new has the type of loss. The digits of
        # the scalar are then part of the result, so the scalar may be widened, but not narrowed.
        scalars = tuple(
            scalar.astype(
                np.result_type(dtype, scalar.dtype) if item.name in output_types else dtype
            )
            if scalar.dtype.kind == "f"
            else scalar
            for item, scalar in zip(call.operator.scalars, call.scalars, strict=True)
        )
        outputs = compute(replace(call, scalars=scalars))
        return [
            output.astype(like.dtype)
            for output, (like, _) in zip(outputs, call.sources, strict=True)
        ]

    def converted(call: Call[Array]) -> list[Array]:
        dtypes = {choose(call, group) for group in call.groups}
        if len(dtypes) == 1:
            return convert_and_compute(call, *dtypes)
        return call.by_group(lambda part: convert_and_compute(part, choose(part, part.groups[0])))

    return converted


def _widest_type(call: Call[Array], group: Sequence[Array]) -> np.dtype[Any]:
    floats = [scalar.dtype for scalar in call.scalars if scalar.dtype.kind == "f"]
    return np.result_type(*floats, *group)


def _with_typed_attributes(call: Call[Array]) -> list[Array]:
    dtype = np.result_type(*call.groups[0])
    return computed(Arithmetic(), dtype.type)(call)


def _by_blocks(call: Call[Array]) -> list[Array]:
    """Compute a group in blocks of equal size and a remainder, as a vectorized loop does."""
    first = call.groups[0][0]
    starts = range(0, max(first.size, 1), _BLOCK)
    blocks = [_OWN_TYPES(call.at(slice(start, start + _BLOCK))) for start in starts]
    return [np.concatenate(parts).reshape(first.shape) for parts in zip(*blocks, strict=True)]


def _group_by_group(compute: Compute) -> Compute:
    return lambda call: call.by_group(compute)


_OWN_TYPES = computed(Arithmetic())
_RECIPROCAL = computed(Arithmetic({np.divide: reciprocal_quotient}))
_FUSED = computed(Arithmetic(fused=True))
_BLOCK = 1000
_BLOCKS = _group_by_group(_by_blocks)

_SUMS: Mapping[str, Callable[[Any], Any]] = {
    "added in order": added_in_order,
    "added in reverse": added_in_reverse,
    "added by rising magnitude": added_by_size,
    "added in eight lanes": added_in_lanes,
    "added in double": added_in_double,
}

_ARITHMETICS: dict[str, tuple[str, Compute]] = {
    "in the inputs' types": (
        "Rounds every operation to the type of its operands; powers of T have R's type.",
        _OWN_TYPES,
    ),
    "attributes in the tensors' type": (
        "Also rounds expressions with only attributes, such as 1 - alpha, to the tensors' type.",
        _group_by_group(_with_typed_attributes),
    ),
    "scalars in double": (
        "Computes expressions that contain only R and T in double.",
        _with_scalars_in(lambda _call, _group: np.dtype(np.float64), _OWN_TYPES),
    ),
    "scalars in the tensor's type": (
        "Rounds R to the type of X first.",
        _with_scalars_in(lambda _call, group: group[0].dtype, _OWN_TYPES),
    ),
    "in double": (
        "Computes in double, and rounds only the outputs to their types.",
        partial(evaluate, dtype=np.dtype(np.float64)),
    ),
    "in the widest type": (
        "Computes in the widest type, and rounds only the outputs to their types.",
        evaluate,
    ),
    "in blocks": ("Computes a thousand elements at a time.", _BLOCKS),
    "reciprocals": (
        "Multiplies by rounded reciprocals instead of dividing.",
        _RECIPROCAL,
    ),
    "reciprocal roots": (
        "Computes roots as a * rsqrt(a) with a correctly rounded rsqrt.",
        computed(Arithmetic({np.sqrt: root_by_reciprocal})),
    ),
    "reciprocal roots by Newton": (
        "Computes roots as a * rsqrt(a) with an rsqrt of half the digits and one Newton step.",
        computed(Arithmetic({np.sqrt: root_by_newton, np.divide: reciprocal_quotient})),
    ),
    "fused multiply-add": (
        "Does not round a product before it is added.",
        _FUSED,
    ),
    "powers rounded once": (
        "Rounds the exact powers of T to R's type.",
        computed(Arithmetic({np.power: power_rounded_once})),
    ),
    "powers by squaring": (
        "Computes powers by repeated squaring in R's type, as compilers do for integer exponents.",
        computed(Arithmetic({np.power: power_squared})),
    ),
    "subnormals flushed": (
        "Replaces subnormal operands and results by zero.",
        computed(Arithmetic(finish=flushed)),
    ),
}

_FOREIGN: dict[str, tuple[str, str, Compute]] = {
    "onnxruntime": (
        "lowered, on ONNX Runtime",
        "Computes the graph of primitive operators.",
        computed_by_onnxruntime,
    ),
}

# If R is narrower than the tensors, it is first converted to their type. A reformulation may
# combine R with an attribute where the formula does not. Without the conversion, the result would
# be rounded to the type of R.
_ARITHMETICS_OF_REFORMULATIONS = {
    "R in the widest type": _with_scalars_in(_widest_type, _OWN_TYPES),
    "reciprocals": _with_scalars_in(_widest_type, _RECIPROCAL),
    "fused multiply-add": _with_scalars_in(_widest_type, _FUSED),
}
