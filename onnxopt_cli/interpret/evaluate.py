"""Evaluate a formula in a wide type, and round each output once to its own type.

Large tensors are computed block by block. If a formula has reductions, such as sums, the formula
runs on each block up to the first reduction. The operands of the reduction are collected from all
blocks and reduced. Given the result, the formula runs on each block again, up to the next reduction
or to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import chain, count, product
from threading import Lock
from typing import Any

import numpy as np

from onnxopt_cli.core.blocks import (
    LARGE_ELEMENTS,
    in_blocks,
    joined,
)
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import UsageError
from onnxopt_cli.interpret.vocabulary import (
    OF_NOTHING,
    VOCABULARY,
    Joining,
    MatrixProduct,
    Percentile,
    Reduction,
    Row,
    Shorthand,
    product_of,
)
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator


def _widest() -> np.dtype[Any]:
    """Return a floating-point type with more digits than double.

    Raises:
        UsageError: if this machine has no such type.
    """
    longdouble = np.dtype(np.longdouble)
    if np.finfo(longdouble).eps < np.finfo(np.float64).eps:
        return longdouble
    try:
        from numpy_quaddtype import QuadPrecDType
    except ImportError as error:
        message = f"this machine has no floating-point type wider than double: {error}"
        raise UsageError(message, hint="pip install numpy-quaddtype") from error
    return QuadPrecDType()


#: The type in which expected values are computed: long double, or quadruple precision on machines
#: on which long double is not wider than double.
WIDEST_TYPE = _widest()


def evaluate(
    call: Call[Array], dtype: np.dtype[Any] = WIDEST_TYPE, attributes: np.dtype[Any] | None = None
) -> list[Array]:
    """Return the outputs of a node, with their dtypes and shapes.

    By default, the outputs are the expected values. The operands are exact, every operation is
    performed in :data:`WIDEST_TYPE`, and only the result is rounded. To save time, most elements of
    large tensors of narrow types are computed in double (:func:`_mostly_in_double`).

    Args:
        call: the operator, attributes and inputs.
        dtype: the type of the computation.
        attributes: the type to which attributes are rounded; by default ``dtype``.
    """

    def exact(number: float) -> Any:
        return widen(np.asarray(number), dtype)

    def compute(call: Call[Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [
                rounded(result, like.dtype, np.shape(first))
                for result, like, first in call.apply(
                    lambda scalar: widen(scalar.reshape(()), dtype),
                    partial(widen, dtype=dtype),
                    (attributes or dtype).type if dtype.kind == "f" else exact,
                )
            ]

    if not has_blocks(call):
        return compute(call)
    reference = dtype == WIDEST_TYPE != enough_for(call) and attributes is None
    # Do not compute formulas with reductions in double: rounding could change the comparison of an
    # element with the result of a reduction.
    reference = reference and is_elementwise(call.operator)
    part_of = partial(_mostly_in_double, compute) if reference else compute
    return call.by_group(lambda group: _computed_in_blocks(in_parts(group), part_of))


class _Complete(np.ndarray):
    """An array whose class replaces NumPy functions that fail or return wrong results.

    The replaced functions are reductions of empty tensors, and clip and matmul in quadruple
    precision.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        function = product_of if ufunc is np.matmul else getattr(ufunc, method)
        arrays = [
            np.asarray(operand) if isinstance(operand, _Complete) else operand for operand in inputs
        ]
        if "out" in options:
            options["out"] = tuple(map(np.asarray, options["out"]))
        return np.asarray(function(*arrays, **options)).view(_Complete)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        if isinstance(row := VOCABULARY.get(function), Shorthand):
            return row.written(*inputs)
        # A reduction of an empty tensor, for which NumPy's function may fail.
        if function in OF_NOTHING and not self.size:
            return self.dtype.type(OF_NOTHING[function])
        result = super().__array_function__(function, types, inputs, options)
        return result.view(_Complete) if isinstance(result, np.ndarray) else result


def _mostly_in_double(
    compute: Callable[[Call[Array]], list[Array]], call: Call[Array]
) -> list[Array]:
    """Return the result of ``compute`` for flat tensors; most elements are computed in double.

    The error bound of a computation in double is 2^-29 of the error bound in float32. A tie is the
    midpoint between two numbers of the output's type. The error in double changes the rounded
    result only if the result is near a tie. Elements near a tie are computed again in the wide
    type. In other elements, the error reaches a tie only if a cancellation loses 20 bits. An ulp is
    then less than a millionth of the element's limit, so the difference does not matter.
    """
    double = np.dtype(np.float64)
    outputs, unsure = [], np.zeros(call.groups[0][0].shape, bool)
    with np.errstate(all="ignore"):
        for result, like, first in call.apply(
            lambda scalar: scalar.reshape(()).astype(double),
            lambda tensor: tensor.astype(double),
            double.type,
        ):
            value = np.broadcast_to(np.asarray(result, double), first.shape)
            outputs.append(rounded(value, like.dtype, first.shape))
            unsure |= _near_tie(value, like.dtype)
    if (places := np.flatnonzero(unsure)).size:
        for output, values in zip(outputs, compute(call.at(places)), strict=True):
            output[places] = values
    return outputs


def _near_tie(value: Array, dtype: np.dtype[Any]) -> Array:
    """Return a mask of the doubles within 2^-9 ulp of a midpoint between two numbers of a type.

    The mask is also true for all subnormal numbers, because they have fewer digits than normal
    numbers.
    """
    lost = np.finfo(np.float64).nmant - np.finfo(dtype).nmant
    middle, reach, digits = 1 << lost - 1, 1 << lost - 9, (1 << lost) - 1
    bits = np.ascontiguousarray(value).view(np.int64) + (reach - middle)
    bits &= digits
    near: Array = bits < 2 * reach
    size = np.abs(value)
    tiny = np.finfo(dtype).smallest_normal
    return near if size.min(initial=tiny) >= tiny else near | ((size < tiny) & (size > 0))


def enough_for(call: Call[Array]) -> np.dtype[Any]:
    """Return the narrowest type in which the error bounds of a call's outputs can be computed."""
    double = np.dtype(np.float64)
    floats = [array.dtype for array in call.inputs if array.dtype.kind == "f"]
    return double if all(dtype.itemsize < double.itemsize for dtype in floats) else WIDEST_TYPE


def widen(tensor: Array, dtype: np.dtype[Any] = WIDEST_TYPE) -> Array:
    """Return the tensor converted to the type of the computation."""
    wide = tensor.astype(dtype)
    return wide if wide.size and dtype.kind == "f" else wide.view(_Complete)


def rounded(result: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Round a formula's result to an output's dtype and give it the output's shape."""
    result = np.asarray(result)
    return (result if result.shape == shape else np.broadcast_to(result, shape)).astype(dtype)


@cache
def nonnegative_tensors(operator: Operator) -> tuple[str, ...]:
    """Return the names of the tensors whose negative elements make the formula's result NaN."""
    # Try both T = 1 and T = 3, because some formulas ignore the state in the first step.
    counts = {scalar.name: 3.0 for scalar in operator.scalars if "int64" in scalar.dtypes}
    return tuple(
        name
        for name in operator.tensors
        if any(undefined_at(operator, values) for values in ({name: -1.0}, {name: -1.0, **counts}))
    )


def undefined_at(operator: Operator, values: Mapping[str, float]) -> bool:
    """Return whether an output of the formula is NaN for the given values of operands.

    Operands without a value have defaults: 0 for tensors and 1 for scalars. The default of an
    attribute is the midpoint of its limits, or 0.5 if it has none.
    """
    numbers = dict.fromkeys((item.name for item in operator.scalars), 1.0)
    numbers |= dict.fromkeys(operator.tensors, 0.0)
    numbers |= {item.name: sum(item.limits or (0.0, 1.0)) / 2 for item in operator.attributes}
    operands: dict[str, Any] = {
        name: np.float64(value) for name, value in (numbers | dict(values)).items()
    }
    operands |= {item.name: item.choices[0] for item in operator.attributes if item.choices}
    with np.errstate(all="ignore"):
        return any(np.isnan(result) for result in operator.formula(**operands))


def has_blocks(call: Call[Any]) -> bool:
    """Return whether a call is large and can be computed block by block.

    If the formula has reductions, two further conditions apply. All tensors must have the same
    dtype and shape, because the operands of a reduction are not broadcast. All elements must be
    finite, because with infinities the results of reformulations may differ.
    """
    large = any(np.size(group[0]) >= LARGE_ELEMENTS for group in call.groups)
    if not large or _rows(call.operator) is None:
        return False
    return is_elementwise(call.operator) or all(
        tensor.dtype == group[0].dtype
        and tensor.shape == group[0].shape
        and np.isfinite(tensor).all()
        for group in call.groups
        for tensor in group
    )


def in_parts(group: Call[Array]) -> Call[Array]:
    """Return a call of one group in a form that can be computed for any subset of its elements."""
    if is_elementwise(group.operator) or not np.size(group.groups[0][0]):
        return group
    return Part(group.operator, group.attributes, group.scalars, group.groups, whole=group)


def _computed_in_blocks(
    call: Call[Array], compute: Callable[[Call[Array]], Sequence[Array]]
) -> list[Array]:
    """Compute a call of one group block by block.

    Args:
        call: a result of :func:`in_parts`.
        compute: takes a call of flat tensors with any number of elements, and returns its flat
            outputs.
    """
    first = call.groups[0][0]
    blocks = in_blocks(lambda places: compute(call.at(places)), first.size)
    return [output.reshape(first.shape) for output in joined(blocks, first.size)]


@lru_cache
def is_elementwise(operator: Operator) -> bool:
    """Return whether each output element depends only on input elements at the same index."""
    rows = _rows(operator)
    return rows is not None and not any(isinstance(row, Reduction | Percentile) for row in rows)


@lru_cache
def _rows(operator: Operator) -> list[Row] | None:
    """Return the rows of the vocabulary that a formula uses, determined by tracing the formula.

    None if the formula cannot be computed block by block, because it carries scalars, multiplies
    matrices, or raises an exception.
    """
    if any(map(operator.carries, operator.outputs)):
        return None
    rows: list[Row] = []
    operand = _Traced(rows)
    names = [*(scalar.name for scalar in operator.scalars), *operator.tensors]
    choices = {
        attribute.name: attribute.choices for attribute in operator.attributes if attribute.choices
    }
    try:
        for chosen in product(*choices.values()):
            attributes: dict[str, Any] = {
                attribute.name: operand for attribute in operator.attributes
            }
            attributes |= dict(zip(choices, chosen, strict=True))
            operator.formula(*(operand for _ in names), **attributes)
    except Exception:  # noqa: BLE001 - a mutant may raise any exception
        return None
    return None if any(isinstance(row, MatrixProduct) for row in rows) else rows


class _Traced(Joining):
    """An operand that records the operations on itself."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __bool__(self) -> bool:
        raise TypeError("the formula branches by the value of an operand")

    def applied(self, _function: Any, row: Row, _inputs: Sequence[Any]) -> Any:
        """Record a row of the vocabulary, and return an operand that records further operations."""
        self._rows.append(row)
        return self


Make = Callable[[Any], Any]

_reducing = Lock()


@dataclass(frozen=True, slots=True)
class Part(Call[Array]):
    """Some elements of a call of one group.

    A reduction of the formula nevertheless includes all elements of the call.

    Attributes:
        whole: the whole call, a Call[Array].
        expressions: a unique object for each expression of the formula. The keys are the function
            and the expressions of its operands.
        reduced: by expression, the results of the reductions that are already computed. Formulas
            that differ only after a reduction, such as mutants, share its result.
    """

    whole: Any = None
    expressions: dict[object, object] = field(default_factory=dict)
    reduced: dict[object, Any] = field(default_factory=dict)

    def expression(self, *parts: object) -> object:
        """Return the object that identifies an expression; it is the same in all threads."""
        return self.expressions.setdefault(parts, object())

    def apply(self, scalar: Make, tensor: Make, number: Make) -> list[tuple[Any, Array, Array]]:
        """Call the formula like :meth:`Call.apply`; reductions include all elements of the call."""
        whole_call = replace(self.whole, operator=self.operator)

        def results(call: Call[Array]) -> list[tuple[Any, Array, Array]]:
            place = count()

            def made(make: Make, value: Any) -> _Operand:
                operand = make(value)
                # Operands of all kinds of arrays, including subclasses of ndarray, share their
                # expressions.
                interpretation = type(operand) if isinstance(operand, Joining) else None
                dtype = np.result_type(getattr(operand, "value", operand))
                return _Operand(operand, self.expression(next(place), interpretation, dtype), self)

            makers = (partial(made, make) for make in (scalar, tensor, number))
            outputs = Call.apply(call, *makers)
            return [(_plain(result), like, first) for result, like, first in outputs]

        def reduced_of(places: slice) -> Any:
            try:
                return results(whole_call.at(places))
            except _ReductionReached as reached:
                return reached.args[2]

        while True:
            try:
                return results(self)
            except _ReductionReached as reached:
                function, expression, _ = reached.args
                with _reducing:
                    if expression not in self.reduced:
                        size = np.size(whole_call.groups[0][0])
                        blocks = in_blocks(reduced_of, size)
                        # Further operands, such as a percent, are equal in all blocks.
                        first, *further = next(blocks)
                        parts = chain([first], (part for part, *_ in blocks))
                        elements = _joined(first, parts, size)
                        self.reduced[expression] = function(elements, *further)


class _ReductionReached(Exception):
    """Raised if the formula needs the result of a reduction that is not yet computed.

    The arguments are the function, its expression, and its operands in one block.
    """


class _Operand(Joining):
    """An operand of any interpretation, together with the expression that has its value."""

    def __init__(self, operand: Any, expression: object, part: Part) -> None:
        self.operand, self.expression, self.part = operand, expression, part

    @property
    def dtype(self) -> Any:
        """The operand's type."""
        return self.operand.dtype

    def astype(self, dtype: Any) -> _Operand:
        """Return the operand rounded to a type."""
        expression = self.part.expression("astype", np.dtype(dtype), self.expression)
        return _Operand(self.operand.astype(dtype), expression, self.part)

    def applied(self, function: Callable[..., Any], row: Row, inputs: Sequence[Any]) -> Any:
        """Return the result of a function; the result of a reduction includes all elements."""
        expression = self.part.expression(function, *map(_expression, inputs))
        operands = list(map(_plain, inputs))
        if not isinstance(row, Reduction | Percentile):
            result = function(*operands)
        elif expression in self.part.reduced:
            result = self.part.reduced[expression]
        else:
            raise _ReductionReached(function, expression, operands)
        return _Operand(result, expression, self.part)


def _plain(operand: Any) -> Any:
    return operand.operand if isinstance(operand, _Operand) else operand


def _expression(operand: Any) -> object:
    # The key of a constant consists of its type and repr, because 1 == 1.0 and NaN != NaN.
    return operand.expression if isinstance(operand, _Operand) else (type(operand), repr(operand))


def _joined(first: Any, blocks: Iterable[Any], size: int) -> Any:
    """Return the operand for all elements, given its blocks; a scalar is equal in all blocks."""
    if hasattr(first, "joined"):
        return first.joined(blocks, size)
    return joined(((block,) for block in blocks), size)[0] if np.ndim(first) else first
