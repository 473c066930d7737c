"""Known mistakes of operators without a formula, for the explanation of failures.

The known mistakes of an operator are the mutants that follow from its schema, further mistakes that
any operator may have, and the mistakes that are listed for single operators, such as another
rounding, convention or order of gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
import onnx
from onnx import defs

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.layer_mistakes import LAYER_MISTAKES
from onnxopt_cli.mutation.node_mutants import (
    Change,
    MutantKind,
    NodeMutant,
    choices,
    node_mutants,
    with_default,
)
from onnxopt_cli.mutation.tensor_mistakes import TENSOR_MISTAKES


@cache
def node_mistakes(domain: str, op_type: str, opset: int) -> Mapping[str, NodeMutant]:
    """Return the known mistakes of an operator by name, the more likely ones first.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        opset: the version of the domain.

    Raises:
        onnx.defs.SchemaError: if there is no such operator.
    """
    schema = defs.get_schema(op_type, opset, domain)
    of_schema = node_mutants(domain, op_type, opset)
    likely = {MutantKind.ATTRIBUTE_IGNORED, MutantKind.INPUT_IGNORED}
    mistakes: dict[str, NodeMutant] = {}
    for mistake in (
        *(_own_mistakes(schema) if not domain else ()),
        *(mutant for mutant in of_schema if mutant.kind in likely),
        *_attribute_mistakes(schema),
        *_output_mistakes(),
        *(mutant for mutant in of_schema if mutant.kind not in likely),
    ):
        mistakes.setdefault(mistake.name, mistake)
    return mistakes


def _own_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    """Yield the mistakes of an operator of ai.onnx that do not follow from its schema."""
    for operators, name, about, change in (*TENSOR_MISTAKES, *LAYER_MISTAKES):
        if schema.name in operators:
            yield NodeMutant(name, MutantKind.VALUES, about, change)


def _attribute_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    kinds = {name: attribute_type(entry) for name, entry in sorted(schema.attributes.items())}
    for name, kind in kinds.items():
        options = choices(schema.name, name) if kind == "STRING" else ()
        for choice, read_choice in permutations(options, 2):
            yield NodeMutant(
                f"{name} {choice} read as {read_choice}",
                MutantKind.ATTRIBUTE_VALUE,
                f"The value {choice} of the attribute {name} is read as {read_choice}.",
                partial(_read_as, name, choice.encode(), read_choice.encode()),
            )
        if kind == "FLOAT" or (kind == "INT" and not schema.attributes[name].required):
            yield from _number_mistakes(name, is_integer=kind == "INT")
    for name in kinds:
        other_default = _other_default(schema, name)
        if other_default is not None:
            yield NodeMutant(
                f"default of {name} changed",
                MutantKind.ATTRIBUTE_DEFAULT,
                f"If the attribute {name} is omitted, {_text(other_default)} is used.",
                partial(with_default, name, other_default),
            )
    for first, second in combinations(kinds, 2):
        if kinds[first] == kinds[second] and kinds[first] in {"INT", "INTS", "FLOAT"}:
            yield NodeMutant(
                f"{first} and {second} exchanged",
                MutantKind.ATTRIBUTE_VALUE,
                f"The attributes {first} and {second} are exchanged.",
                partial(_attributes_exchanged, first, second),
            )


def _number_mistakes(name: str, *, is_integer: bool) -> Iterator[NodeMutant]:
    """Yield mistakes in which an attribute is a fixed integer, or limited to a range."""
    changes: dict[str, Change] = {}
    if is_integer:
        values = (-1, 0, 1) if name == "axis" else (0, 1)
        changes = {f"always {value}": partial(_always, name, value) for value in values}
    else:
        changes = {text: partial(_limited, name, limit) for text, limit in _LIMITS.items()}
    for text, change in changes.items():
        about = f"The attribute {name} is {text}."
        yield NodeMutant(f"{name} {text}", MutantKind.ATTRIBUTE_VALUE, about, change)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else f"{value:g}"


def _other_default(schema: defs.OpSchema, name: str) -> Any:
    """Return a wrong default of an attribute; None if it has no default, or only one value."""
    entry = schema.attributes[name]
    if entry.required or not entry.default_value.type:
        return None
    default = onnx.helper.get_attribute_value(entry.default_value)
    if isinstance(default, bytes):
        other_choices = [
            choice for choice in choices(schema.name, name) if choice != default.decode()
        ]
        return other_choices[0].encode() if other_choices else None
    if isinstance(default, float):
        return 1.25 * default + 0.125
    if isinstance(default, int):
        if default == 0:
            return -1 if name == "axis" else 1
        return 0 if default == 1 else default + 1
    return None


def _read_as(name: str, given: bytes, read: bytes, node: BoundNode) -> BoundNode | None:
    return node.with_attribute(name, read) if node.attribute(name) == given else None


def _always(name: str, value: int, node: BoundNode) -> BoundNode | None:
    return None if node.attribute(name) == value else node.with_attribute(name, value)


#: Ranges to which programs limit numbers, and functions that limit a number to them.
_LIMITS: dict[str, Callable[[float], float]] = {
    "raised to at least 0": lambda number: max(number, 0.0),
    "raised to at least 1": lambda number: max(number, 1.0),
    "limited to at most 1": lambda number: min(number, 1.0),
}


def _limited(name: str, limit: Callable[[float], float], node: BoundNode) -> BoundNode | None:
    value = node.attribute(name)
    if value is None or limit(value) == value:
        return None
    return node.with_attribute(name, limit(value))


def _attributes_exchanged(first: str, second: str, node: BoundNode) -> BoundNode | None:
    left, right = node.attribute(first), node.attribute(second)
    if left == right or left is None or right is None:
        return None
    return node.with_attribute(first, right).with_attribute(second, left)


def _output_mistakes() -> Iterator[NodeMutant]:
    """Yield mistakes in the outputs: their type, signs, or special values."""
    for name in ("float32", "float64", "float16", "int64", "int32", "uint8", "bool"):
        yield NodeMutant(
            f"first output of type {name}",
            MutantKind.TYPE,
            f"The first output has the type {name}.",
            finish=partial(_first_changed, partial(_of_type, np.dtype(name))),
        )
    changes: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "outputs without sign": ("The outputs are the magnitudes of the correct ones.", _magnitude),
        "outputs negated": ("The outputs have the opposite sign.", _negated),
        "outputs transposed": ("The last two axes of the outputs are exchanged.", _transposed),
        "NaN outputs are 0": ("Outputs that should be NaN are 0.", _nan_as_zero),
        "infinite outputs are finite": (
            "Outputs that should be infinite are the largest finite number.", _finite,
        ),
        "outputs with one more axis": (
            "The outputs have an additional first axis of length 1.", lambda array: array[None],
        ),
        "scalar outputs have an axis": (
            "Outputs that should be scalars have an axis of length 1.",
            lambda array: array.reshape(1) if array.ndim == 0 else array,
        ),
    }  # fmt: skip
    for name, (about, change) in changes.items():
        finish = partial(_each_changed, change)
        yield NodeMutant(name, MutantKind.VALUES, about, finish=finish)


def _first_changed(change: Callable[[Array], Array], outputs: Sequence[Value]) -> list[Value]:
    first, *further = outputs
    return [change(first) if isinstance(first, np.ndarray) else first, *further]


def _each_changed(change: Callable[[Array], Array], outputs: Sequence[Value]) -> list[Value]:
    return [change(value) if isinstance(value, np.ndarray) else value for value in outputs]


def _of_type(dtype: np.dtype[Any], array: Array) -> Array:
    return array if array.dtype == object else array.astype(dtype)


def _magnitude(array: Array) -> Array:
    return np.abs(array) if _is_float(array) or array.dtype.kind == "i" else array


def _negated(array: Array) -> Array:
    if array.dtype == bool:
        return ~array
    return -array if _is_float(array) or array.dtype.kind == "i" else array


def _transposed(array: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)) if array.ndim > 1 else array


def _nan_as_zero(array: Array) -> Array:
    return np.where(np.isnan(array), array.dtype.type(0), array) if _is_float(array) else array


def _finite(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    largest = np.finfo(array.dtype).max
    return np.where(np.isinf(array), np.copysign(largest, array), array)


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"
