"""Known mistakes of operators without a formula, for the explanation of failures.

The known mistakes of an operator come from three sources:

- mutants that follow from the operator's schema;
- other mistakes that any operator may have;
- mistakes that are listed for single operators, such as a wrong rounding or order of gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
    ComputeNode,
    MutantKind,
    NodeMutant,
    Recomputed,
    choices,
    node_mutants,
    with_default,
)
from onnxopt_cli.mutation.output_mistakes import output_mistakes
from onnxopt_cli.mutation.tensor_mistakes import TENSOR_MISTAKES


@cache
def node_mistakes(domain: str, op_type: str, opset: int) -> Mapping[str, NodeMutant]:
    """Return the known mistakes of an operator by name, the more likely mistakes first.

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
        *_index_mistakes(schema),
        *output_mistakes(schema),
        *_version_mistakes(schema),
        *(mutant for mutant in of_schema if mutant.kind not in likely),
        *_rounding_mistakes(schema),
    ):
        mistakes.setdefault(mistake.name, mistake)
    return mistakes


def mistakes_in_versions(
    domain: str, op_type: str, versions: Iterable[int]
) -> dict[str, NodeMutant]:
    """Return, by name, the known mistakes of an operator in several versions.

    A parameter may be an attribute in one version and an input in another version. Mistakes in this
    parameter have the same names in both versions. A returned mistake therefore looks up the
    version of the node, and computes the node with the mistake of this name in that version.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        versions: versions of the operator.
    """
    mistakes: dict[str, NodeMutant] = {}
    for version in versions:
        for name, mistake in node_mistakes(domain, op_type, version).items():
            of_every_version = Recomputed(partial(_in_own_version, name))
            mistakes.setdefault(name, replace(mistake, change=of_every_version, finish=None))
    return mistakes


def _in_own_version(name: str, node: BoundNode, compute: ComputeNode) -> Sequence[Value] | None:
    schema = node.schema
    mistake = node_mistakes(schema.domain, schema.name, schema.since_version).get(name)
    return mistake.outputs_of(node, compute) if mistake else None


def _own_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    """Yield those mistakes of an operator of ai.onnx that do not follow from the schema."""
    for operators, name, about, change in (*TENSOR_MISTAKES, *LAYER_MISTAKES):
        if schema.name in operators:
            yield NodeMutant(name, MutantKind.VALUES, about, change)


def _version_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    """Yield mistakes that compute a node as in the newest version of its operator."""
    newest = defs.get_schema(schema.name, schema.domain).since_version
    if newest <= schema.since_version:
        return
    for name, defaults in (
        ("", "with the defaults of that version"),
        (" with the defaults of its own", "but with the defaults of its own version"),
    ):
        yield NodeMutant(
            f"as in version {newest}{name}",
            MutantKind.VERSION,
            f"The node is computed as in opset version {newest}, {defaults}.",
            partial(_in_later_version, newest, keeps_defaults=bool(name)),
            version=newest,
        )


def _in_later_version(version: int, node: BoundNode, *, keeps_defaults: bool) -> BoundNode | None:
    """Return the node in a later version, in which an attribute may have become an input."""
    if node.schema.since_version >= version:
        return None
    schema = defs.get_schema(node.node.op_type, version, node.schema.domain)
    if schema.deprecated:
        return None
    stated = dict(node.attributes)
    if keeps_defaults:
        defaults = {name: node.attribute(name) for name in node.schema.attributes}
        stated = {name: value for name, value in defaults.items() if value is not None} | stated
    attributes = {name: value for name, value in stated.items() if name in schema.attributes}
    later = replace(node, opset=version, attributes=attributes)
    # Attributes that are inputs in the later version become inputs.
    for index, formal in enumerate(schema.inputs):
        value = stated.get(_RENAMED.get((schema.name, formal.name), formal.name))
        if formal.name in schema.attributes or value is None:
            continue
        missing = index + 1 - len(later.names)
        padded = replace(later, names=(*later.names, *[""] * missing))
        later = padded.with_operand(index, _as_input(value, node.operand(0)))
    return later


# Attributes that became inputs with another name in a later version. A key is an operator and the
# name of the input. The value is the name of the attribute.
_RENAMED = {("TopK", "K"): "k", ("Pad", "constant_value"): "value"}


def _as_input(value: Any, first: Array | None) -> Array:
    """Return the value of an attribute as an input; a float gets the type of the first input."""
    if isinstance(value, float) and first is not None:
        return np.array(value).astype(first.dtype)
    # A count, such as K of TopK, becomes a vector of one element.
    return np.atleast_1d(np.array(value))


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


# Types of inputs that are counts, axes or positions.
_INDEX_TYPES = frozenset({"tensor(int32)", "tensor(int64)"})
# Mistakes in inputs that are counts, axes or positions: the description and the change of each
# mistake, by its name. {} stands for the name of the input.
_INDEX_CHANGES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "{} one too large": ("The input {} is too large by 1.", lambda array: _shifted(array, 1)),
    "{} one too small": ("The input {} is too small by 1.", lambda array: _shifted(array, -1)),
    "negative {} one too large": (
        "Negative values of the input {} are too large by 1.",
        lambda array: np.where(array < 0, _shifted(array, 1), array),
    ),
    "negative {} one too small": (
        "Negative values of the input {} are too small by 1.",
        lambda array: np.where(array < 0, _shifted(array, -1), array),
    ),
}  # fmt: skip


def _index_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    """Yield mistakes in inputs that are counts, axes or positions."""
    for place, formal in enumerate(schema.inputs):
        if not _INDEX_TYPES.issuperset(formal.types):
            continue
        for name, (about, change) in _INDEX_CHANGES.items():
            yield NodeMutant(
                name.format(formal.name),
                MutantKind.VALUES,
                about.format(formal.name),
                partial(_with_operand_changed, place, change),
            )


def _rounding_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    """Yield mistakes in which a floating-point input is rounded up or down to integers.

    :func:`node_mutants` yields other roundings to integers, which often have the same effect.
    """
    for place, formal in enumerate(schema.inputs):
        if not {"tensor(float)", "tensor(double)", "tensor(float16)"} & {*formal.types}:
            continue
        for direction, change in (("up", np.ceil), ("down", np.floor)):
            about = f"The values of the input {formal.name} are rounded {direction} to integers."
            name = f"{formal.name} rounded {direction} to integers"
            yield NodeMutant(name, MutantKind.TYPE, about, partial(_with_rounded, place, change))


def _with_rounded(
    place: int, change: Callable[[Array], Array], node: BoundNode
) -> BoundNode | None:
    value = node.operand(place)
    is_float = value is not None and value.dtype.kind == "f"
    return _with_operand_changed(place, change, node) if is_float else None


def _shifted(array: Array, step: int) -> Array:
    """Add a step to integers, except where the sum would leave the range of their type."""
    limits = np.iinfo(array.dtype)
    return np.where(array == (limits.max if step > 0 else limits.min), array, array + step)


def _with_operand_changed(
    place: int, change: Callable[[Array], Array], node: BoundNode
) -> BoundNode | None:
    value = node.operand(place)
    if value is None or np.array_equal(changed := np.asarray(change(value)), value):
        return None
    return node.with_operand(place, changed.astype(value.dtype))


def _number_mistakes(name: str, *, is_integer: bool) -> Iterator[NodeMutant]:
    """Yield mistakes in which an attribute has a fixed value, or is limited to a range."""
    changes: dict[str, Change] = {}
    if is_integer:
        values = (-1, 0, 1) if name == "axis" else (0, 1)
        changes = {f"always {value}": partial(_always, name, value) for value in values}
        changes["raised to at least 0"] = partial(_limited, name, _at_least_0)
    else:
        changes = {text: partial(_limited, name, limit) for text, limit in _LIMITS.items()}
    for text, change in changes.items():
        about = f"The attribute {name} is {text}."
        yield NodeMutant(f"{name} {text}", MutantKind.ATTRIBUTE_VALUE, about, change)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else f"{value:g}"


def _other_default(schema: defs.OpSchema, name: str) -> Any:
    """Return a wrong default of an attribute; None if it has no default or no other choice."""
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


def _at_least_0(number: int) -> int:
    return max(number, 0)


#: Changes that a wrong implementation may make to a number, by name.
_LIMITS: dict[str, Callable[[float], float]] = {
    "raised to at least 0": lambda number: max(number, 0.0),
    "raised to at least 1": lambda number: max(number, 1.0),
    "limited to at most 1": lambda number: min(number, 1.0),
    "read without its sign": abs,
}


def _limited(name: str, limit: Callable[[Any], Any], node: BoundNode) -> BoundNode | None:
    value = node.attribute(name)
    if value is None or limit(value) == value:
        return None
    return node.with_attribute(name, limit(value))


def _attributes_exchanged(first: str, second: str, node: BoundNode) -> BoundNode | None:
    left, right = node.attribute(first), node.attribute(second)
    if left == right or left is None or right is None:
        return None
    return node.with_attribute(first, right).with_attribute(second, left)
