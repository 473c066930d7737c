"""Change an operator's formula to explain failures that no known mistake reproduces.

A change alters the value of one expression of the formula: an operand, an intermediate result, or a
part of one. There are three ways to alter the value:

- A function such as rounding to float32 is applied.
- A constant is used. With this constant, the formula returns the same wrong value as the backend
  for one element.
- The value of another tensor of the node is taken.

The automatic mutants of the formula are also changes.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE, evaluate, is_elementwise, widen
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.mutants import mutants, name_mutants
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.rewrite import Formula, compile_tree, formula_tree

#: A function that returns the altered value of an expression. Its arguments are the value, and the
#: first tensor of the group for which the formula is evaluated. A group consists of the operands
#: that belong to one optimized tensor.
Alteration = Callable[[Any, Any], Any]

_HOOK = "altered_value"
#: Two values count as equal if they differ by at most this number of machine epsilons.
_EQUAL_EPSILONS = 8.0
#: First digits and decimal exponents of the constants that are tried for each expression.
_DIGITS = (1.0, 2.0, 5.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0)
_EXPONENTS = range(-12, 10)
_SPECIAL_CONSTANTS = (
    0.25, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.5, 15.0, 25.0, 65504.0, 65535.0, 127.0, 128.0,
    255.0, 256.0, 512.0, 1024.0, 32767.0, 32768.0, 2.0**31, 2.0**32, 3.4e38, 6e-8, 1 / 3,
)  # fmt: skip
#: Constants that are tried if the formula must be evaluated separately for each constant.
_FEW_CONSTANTS = (
    0.0, 0.5, 1.0, 2.0, 0.01, 0.1, 5.0, 10.0, 20.0, 25.0, 50.0, 75.0, 80.0, 90.0, 95.0, 99.0, 100.0,
    1000.0, 1e4, 1e-3, 1e-6, -1.0,
)  # fmt: skip
#: Largest number of constants that are kept for each expression and wrong element.
_MAX_FITTING = 2
#: Numbers of elements after which a wrong reduction may stop.
_LENGTHS = (1, 2, 4, 8, 10, 16, 32, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096, 10000)


class FailingNode(Protocol):
    """A node and the wrong outputs that a backend returned for it."""

    @property
    def call(self) -> Call[Array]:
        """The node."""

    @property
    def right(self) -> Sequence[Branch]:
        """The expected outputs with their tolerances."""

    @property
    def returned(self) -> Sequence[Array]:
        """The outputs of the backend."""


@dataclass(frozen=True, eq=False)
class _Place:
    """An expression of a formula.

    Attributes:
        text: the expression in words.
        name: the name of the expression if it is an operand or attribute; empty for others.
        formula: given an alteration of the expression, returns the altered formula.
    """

    text: str
    name: str
    formula: Callable[[Alteration], Formula]


def formula_changes(operator: Operator, failing: Sequence[FailingNode]) -> Iterator[Implementation]:
    """Yield changes of a formula, the plainest first.

    Args:
        operator: the operator of the formula.
        failing: failing cases, from which constants are determined.
    """
    places = _places(operator)
    integers = {scalar.name for scalar in operator.scalars if "int64" in scalar.dtypes}
    for place in places:
        rows = _INTEGER_CHANGES | _CHANGES if place.name in integers else _CHANGES
        for text, alteration in rows.items():
            yield _changed(text.format(place.text), place, alteration)
    yield from mutants(operator)
    yield from name_mutants(operator)
    for place in places:
        for text, alteration in _fitted_changes(operator, place, failing):
            yield _changed(text, place, alteration)
    for place in places:
        for text, choose in _OTHER_TENSORS.items():
            yield Implementation(
                text.format(place.text),
                "The value is that of another tensor of the node.",
                compute=partial(_with_other_tensor, place, choose),
            )
    for text, alteration in _REDUCTION_CHANGES.items():
        for place in places:
            yield _changed(text.format(place.text), place, alteration)


def _changed(text: str, place: _Place, alteration: Alteration) -> Implementation:
    def change(_: Formula) -> Formula:
        return place.formula(alteration)

    return Implementation(text, "One expression of the formula has another value.", change=change)


# Changes of a value. Each function takes the value of an expression, and the first tensor of the
# group for which the formula is evaluated.


def _in_type(dtype: Any) -> Alteration:
    return lambda value, _: np.asarray(value).astype(dtype).astype(WIDEST_TYPE)


def _as_integer(dtype: Any) -> Alteration:
    return lambda value, _: np.asarray(value).astype(np.int64).astype(dtype).astype(WIDEST_TYPE)


def _finite(dtype: Any) -> Alteration:
    largest = float(np.finfo(dtype).max)
    return lambda value, _: np.clip(np.where(np.isnan(value), 0, value), -largest, largest)


def _filled(value: Any, x: Any) -> Any:
    return np.broadcast_to(np.asarray(value), np.shape(x))


def _by_columns(value: Any, x: Any) -> Any:
    full = _filled(value, x)
    return full.reshape(-1, order="F").reshape(full.shape)


def _first(length: int) -> Alteration:
    return lambda value, _: np.ravel(value)[:length]


def _broadcast_from_left(value: Any, x: Any) -> Any:
    """Align the dimensions of a tensor with the first dimensions of another, if possible."""
    shape, full = np.shape(value), np.shape(x)
    if len(shape) < len(full) and shape == full[: len(shape)]:
        return np.reshape(value, shape + (1,) * (len(full) - len(shape)))
    return value


_CHANGES: dict[str, Alteration] = {
    "{} rounded to float32": _in_type(np.float32),
    "{} taken as 0": lambda value, _: np.zeros_like(value),
    "magnitude of {}": lambda value, _: np.abs(value),
    "{} negated": lambda value, _: -value,
    "{} raised to at least 0": lambda value, _: np.maximum(value, 0),
    "{} limited to at most 0": lambda value, _: np.minimum(value, 0),
    "{} clipped to [0, 1]": lambda value, _: np.clip(value, 0, 1),
    "{} truncated to integers": lambda value, _: np.trunc(value),
    "{} rounded down to integers": lambda value, _: np.floor(value),
    "{} rounded up to integers": lambda value, _: np.ceil(value),
    "{} rounded to integers": lambda value, _: np.rint(value),
    "NaN in {} taken as 0": lambda value, _: np.where(np.isnan(value), 0, value),
    "NaN in {} taken as 0, infinity as the largest double": _finite(np.float64),
    "NaN in {} taken as 0, infinity as the largest float32": _finite(np.float32),
    "NaN and infinity in {} taken as 0": lambda value, _: np.where(np.isfinite(value), value, 0),
    "root of {}": lambda value, _: np.sqrt(value),
    "{} squared": lambda value, _: value * value,
    "{} rounded to float16": _in_type(np.float16),
    "{} rounded to bfloat16": _in_type(ml_dtypes.bfloat16),
    "{} averaged over the tensor": lambda value, _: np.mean(value),
    "{} in column-major order": _by_columns,
    "{} broadcast from the first dimension": _broadcast_from_left,
    "{} in reverse order": lambda value, x: np.flip(_filled(value, x)),
}
_INTEGER_CHANGES: dict[str, Alteration] = {
    f"{{}} read as {dtype.__name__}": _as_integer(dtype)
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)
}
_CONSTANT_CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "{} taken as {c:.6g}": lambda value, constant: np.zeros_like(value) + constant,
    "{} raised to at least {c:.6g}": np.maximum,
    "{} limited to at most {c:.6g}": np.minimum,
    "{} clipped to [-{c:.6g}, {c:.6g}]": lambda value, constant: np.clip(
        value, -np.abs(constant), np.abs(constant)
    ),
    "{} times {c:.6g}": lambda value, constant: value * constant,
    "{} plus {c:.6g}": lambda value, constant: value + constant,
}
_REDUCTION_CHANGES: dict[str, Alteration] = {
    "NaN left out of {}": lambda value, _: np.ravel(value)[~np.isnan(np.ravel(value))],
    **{f"only the first {length} elements of {{}}": _first(length) for length in _LENGTHS},
}

# Values of other tensors. Each function takes the values of an expression in all groups, and the
# number of a group. It returns the value that the expression gets in this group instead of its own.


def _of_all(values: Sequence[Array], _: int) -> Array:
    return np.concatenate([np.ravel(value) for value in values])


_OTHER_TENSORS: dict[str, Callable[[Sequence[Array], int], Array]] = {
    "{} of the first tensor used for all": lambda values, _: values[0],
    "{} of the last tensor used for all": lambda values, _: values[-1],
    "{} of the tensor before": lambda values, group: values[max(group - 1, 0)],
    "{} of the next tensor": lambda values, group: values[min(group + 1, len(values) - 1)],
    "{} of several tensors in reverse order": lambda values, group: values[-1 - group],
    "{} of all tensors together": _of_all,
}


def _with_other_tensor(
    place: _Place, choose: Callable[[Sequence[Array], int], Array], call: Call[Array]
) -> list[Array]:
    """Compute a node, but take the value of an expression from another tensor of the node.

    If the shapes differ, the value is repeated or truncated to fit.

    Raises:
        ValueError: if the formula is not evaluated once for each tensor.
    """
    values: list[Array] = []

    def record(value: Any, _: Any) -> Any:
        values.append(np.asarray(value))
        return value

    evaluate(_with_formula(call, place.formula(record)))
    if len(values) != len(call.groups):
        raise ValueError("the formula is evaluated in parts")
    groups = iter(range(len(values)))

    def exchange(_: Any, x: Any) -> Any:
        group = next(groups)
        chosen, own = choose(values, group), values[group]
        if not chosen.size:
            return own
        if choose is _of_all or chosen.shape == own.shape:
            return chosen
        return np.resize(chosen, np.shape(x))

    return evaluate(_with_formula(call, place.formula(exchange)))


def _with_formula(call: Call[Array], formula: Formula) -> Call[Array]:
    return replace(call, operator=replace(call.operator, formula=formula))


# Constants ----------------------------------------------------------------------------------------


@cache
def _constants() -> Array:
    """Return constants, the plainest first."""
    numbers = [0.0]
    for digit in _DIGITS:
        powers = sorted(_EXPONENTS, key=abs)
        numbers += [float(f"{digit:g}e{exponent}") for exponent in powers]
    numbers += _SPECIAL_CONSTANTS
    signed = dict.fromkeys(number for number in numbers for number in (number, -number))
    return _wide([*signed])


def _wide(numbers: Any) -> Array:
    return widen(np.asarray(numbers))


def _fitted_changes(
    operator: Operator, place: _Place, failing: Sequence[FailingNode]
) -> Iterator[tuple[str, Alteration]]:
    """Yield changes with constants; for elementwise operators, each reproduces a wrong element."""
    elementwise = is_elementwise(operator)
    for text, change in _CONSTANT_CHANGES.items():
        chosen: dict[float, None] = {}
        if elementwise:
            for node in failing:
                chosen |= dict.fromkeys(_fitting_constants(place, change, node))
        else:
            chosen = dict.fromkeys(_FEW_CONSTANTS)
        if "clipped" in text:
            chosen = dict.fromkeys(constant for constant in chosen if constant > 0)
        for constant in chosen:
            yield text.format(place.text, c=constant), partial(_with_constant, change, constant)


def _with_constant(change: Callable[[Any, Any], Any], constant: float, value: Any, _: Any) -> Any:
    return change(value, _wide(constant))


def _fitting_constants(
    place: _Place, change: Callable[[Any, Any], Any], node: FailingNode
) -> list[float]:
    """Return the plainest constants with which the formula reproduces a wrong element of a node."""
    wrong_element = _wrong_element(node)
    if wrong_element is None:
        return []
    output, group, element = wrong_element
    call = node.call
    single = call.group(group).at(np.array([element]))
    constants = _constants()
    formula = place.formula(lambda value, _: change(value, constants))
    try:
        with np.errstate(all="ignore"):
            results = _with_formula(single, formula).apply(
                lambda scalar: widen(scalar.reshape(())), widen, _wide
            )
    except Exception:  # noqa: BLE001 - a changed formula may raise any exception
        return []
    index = output * len(call.groups) + group
    right, returned = node.right[index], node.returned[index].reshape(-1)[element]
    with np.errstate(all="ignore"):
        values = np.broadcast_to(results[output][0], constants.shape).astype(returned.dtype)
        limit = _EQUAL_EPSILONS * np.finfo(returned.dtype).eps * np.abs(returned)
        limit = limit + right.limit.reshape(-1)[element]
        error = abs(returned - right.expected.reshape(-1)[element])
        fits = (np.abs(values - returned) <= limit) & (limit < error)
    return [float(constant) for constant in constants[fits][:_MAX_FITTING]]


def _wrong_element(node: FailingNode) -> tuple[int, int, int] | None:
    """Return the output, group and flat index of the element with the largest finite error."""
    groups = len(node.call.groups)
    largest_share = 0.0
    most_wrong: tuple[int, int, int] | None = None
    for index, (branch, returned) in enumerate(zip(node.right, node.returned, strict=False)):
        expected = branch.expected
        if (expected.dtype, expected.shape) != (returned.dtype, returned.shape):
            continue
        if not expected.size:
            continue
        with np.errstate(all="ignore"):
            share = np.abs(np.ravel(returned).astype(np.float64) - np.ravel(expected)) / (
                np.ravel(branch.limit) + np.abs(np.ravel(expected)) * np.finfo(np.float32).eps
            )
            share[~np.isfinite(share)] = 0
        element = int(np.argmax(share))
        if share[element] > largest_share:
            largest_share = float(share[element])
            output, group = divmod(index, groups)
            most_wrong = output, group, element
    return most_wrong


# Places -------------------------------------------------------------------------------------------


@lru_cache
def _places(operator: Operator) -> tuple[_Place, ...]:
    """Return the operands, attributes, intermediate results and other expressions of a formula."""
    tree = formula_tree(operator.formula)
    tree.body = tree.body[ast.get_docstring(tree) is not None :]
    x = operator.tensors[0]
    attributes = [attribute.name for attribute in operator.attributes if not attribute.choices]
    names = [*operator.input_names(1), *attributes]
    whole_values: list[_Place] = []
    body = tree.body
    for name in names:
        assignment = ast.Assign(
            [ast.Name(name, ast.Store())], _hooked(ast.Name(name, ast.Load()), x)
        )
        tree.body = [assignment, *body]
        whole_values.append(_place(name, name, tree, operator.formula))
    tree.body = body
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    compound: list[_Place] = []
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.Assign | ast.Return) or statement.value is None:
            continue
        target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        for node, put, whole_name in _expressions(statement, operator):
            text = ast.unparse(node)
            if isinstance(node, ast.Name):
                # A name that is used only once is skipped, because the assigned expression has
                # already been yielded. The assignment of an intermediate result also counts as a
                # use.
                least_uses = 2 if node.id in names else 3
                if uses[node.id] < least_uses:
                    continue
                text = f"{text} in {target}" if target else f"returned {text}"
            elif whole_name:
                text = whole_name
            put(_hooked(node, x))
            place = _place(text, "", tree, operator.formula)
            put(node)
            (whole_values if whole_name else compound).append(place)
    by_text: dict[str, _Place] = {}
    for place in (*whole_values, *compound):
        by_text.setdefault(place.text, place)
    return tuple(by_text.values())


def _hooked(node: ast.expr, x: str) -> ast.Call:
    return ast.Call(ast.Name(_HOOK, ast.Load()), [node, ast.Name(x, ast.Load())], [])


def _place(text: str, name: str, tree: ast.FunctionDef, like: Formula) -> _Place:
    return _Place(text, name, _maker(ast.unparse(ast.fix_missing_locations(tree)), like))


def _maker(source: str, like: Formula) -> Callable[[Alteration], Formula]:
    """Return a function that, given an alteration, returns a formula that calls it.

    Args:
        source: the code of the formula, with calls of ``_HOOK``.
        like: the formula whose globals the new formula uses.
    """
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)  # noqa: S101 - the unparsed tree of a function
    (outer,) = ast.parse(f"def make({_HOOK}):\n    return {function.name}").body
    assert isinstance(outer, ast.FunctionDef)  # noqa: S101 - parsed from the line above
    outer.body.insert(0, function)
    return compile_tree(outer, like)


def _expressions(
    statement: ast.Assign | ast.Return, operator: Operator
) -> Iterator[tuple[ast.expr, Callable[[ast.expr], None], str]]:
    """Yield each numeric expression of a statement, a function that replaces it, and a name.

    The name is that of the output or intermediate result to which the expression is assigned. For a
    part of an expression, the name is empty.
    """
    value = statement.value
    assert value is not None  # noqa: S101 - checked by the caller
    wholes = {}
    if isinstance(statement, ast.Assign):
        wholes[id(value)] = ast.unparse(statement.targets[0])
    elif isinstance(value, ast.Tuple):
        outputs = zip(value.elts, operator.outputs, strict=False)
        wholes = {id(element): f"returned {name}" for element, name in outputs}
    pending: list[tuple[ast.expr, Callable[[ast.expr], None]]] = [
        (value, partial(setattr, statement, "value"))
    ]
    while pending:
        node, put = pending.pop(0)
        if not isinstance(node, ast.Tuple | ast.Constant | ast.Compare):
            yield node, put, wholes.get(id(node), "")
        for field in ("args",) if isinstance(node, ast.Call) else node._fields:
            child = getattr(node, field)
            if isinstance(child, list):
                pending += [
                    (item, partial(child.__setitem__, place))
                    for place, item in enumerate(child)
                    if isinstance(item, ast.expr)
                ]
            elif isinstance(child, ast.expr):
                pending.append((child, partial(setattr, node, field)))
