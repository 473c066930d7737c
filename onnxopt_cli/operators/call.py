"""A node's inputs and attributes sorted into calls of the formula, checked once for all operators.

The operands may be anything with a dtype and a shape: arrays for evaluation, symbols for lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import onnx

from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.operator import Attribute, Operator

#: A static shape; a dimension or the whole may be unknown to symbols.
Shape = tuple[int | None, ...]


class Operand(Protocol):
    """What the checks need to know of an operand."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    @property
    def shape(self) -> Shape | None:
        """Shape; None where even the rank is unknown."""


T = TypeVar("T", bound=Operand)

Attributes = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One node, ready to be computed in any reading.

    Attributes:
        operator: whose formula it is.
        attributes: every attribute by name, numbers being exact float32 values.
        scalars: the shared inputs.
        groups: the tensors of each group, in the operator's order.
        omitted: names of the attributes that the node leaves to their defaults.
    """

    operator: Operator
    attributes: Attributes
    scalars: tuple[T, ...]
    groups: tuple[tuple[T, ...], ...]
    omitted: frozenset[str] = frozenset()

    def apply(
        self, scalar: Callable[[T], Any], tensor: Callable[[T], Any], number: Callable[[float], Any]
    ) -> list[tuple[Any, T, T]]:
        """Call the formula for every group with operands made by the given functions.

        Returns:
            For each output in the node's order: what the formula yielded, the tensor that has its
            element type, and the tensor that has its shape.
        """
        scalars = [scalar(value) for value in self.scalars]
        attributes = {
            name: value if isinstance(value, str) else number(value)
            for name, value in self.attributes.items()
        }
        yields = [
            self.operator.formula(*scalars, *map(tensor, group), **attributes)
            for group in self.groups
        ]
        tensors = self.operator.tensors
        return [
            (results[position], group[tensors.index(like)], group[0])
            for position, like in enumerate(self.operator.outputs.values())
            for results, group in zip(yields, self.groups, strict=True)
        ]


def bind(
    operator: Operator,
    inputs: Sequence[T | None],
    attributes: Attributes,
    outputs: int | None = None,
    *,
    omitted: frozenset[str] = frozenset(),
) -> Call[T]:
    """Sort a node's inputs into scalars and groups.

    Args:
        operator: the node's operator.
        inputs: the node's inputs in order, None for one that is left out.
        attributes: from :func:`node_attributes` or :func:`complete_attributes`.
        outputs: number of outputs of the node, if there is a node.
        omitted: names of the attributes that the node leaves to their defaults, where known.

    Raises:
        NodeError: if number, element type or shape of an input breaks the signature.
    """
    present = _require_all(operator, inputs)
    count = len(operator.scalars)
    scalars, tensors = tuple(present[:count]), present[count:]
    size = len(operator.tensors)
    layout = ", ".join(operator.tensors)
    if not tensors or len(tensors) % size:
        raise NodeError(
            f"{operator.name} takes {size} tensors for each one it optimizes ({layout}); "
            f"{len(tensors)} were given",
            hint=f"give all {operator.tensors[0]} first, then all {operator.tensors[1]}, and so on",
        )
    number = len(tensors) // size
    if outputs is not None and outputs != number * len(operator.outputs):
        raise NodeError(
            f"{operator.name} with {number} optimized tensor{'s' * (number > 1)} has "
            f"{number * len(operator.outputs)} outputs; the node has {outputs}"
        )
    names = operator.input_names(number)
    for scalar, name, value in zip(operator.scalars, names, scalars, strict=False):
        _check_dtype(operator, name, value, scalar.dtypes)
        if value.shape is not None and None not in value.shape and _size(value.shape) != 1:
            raise NodeError(
                f"{operator.name}: {name} must have one element; its shape is {_text(value.shape)}"
            )
    for name, value in zip(names[count:], tensors, strict=True):
        _check_dtype(operator, name, value, operator.dtypes)
    groups = tuple(tuple(tensors[group::number]) for group in range(number))
    for group, members in enumerate(groups):
        for position, value in enumerate(members[1:], start=1):
            first, name = names[count + group], names[count + position * number + group]
            _check_broadcast(operator, first, members[0].shape, name, value.shape)
    return Call(operator, attributes, scalars, groups, omitted)


def node_attributes(operator: Operator, node: onnx.NodeProto) -> Attributes:
    """Read a node's attributes, with the defaults of those it leaves out.

    Raises:
        NodeError: if one is unknown, missing, given twice or of the wrong type.
    """
    given: dict[str, float | str] = {}
    for attribute in node.attribute:
        if attribute.name in given:
            raise NodeError(f"{operator.name}: attribute {attribute.name} is given twice")
        if attribute.ref_attr_name:
            raise NodeError(
                f"{operator.name}: attribute {attribute.name} refers to a function's attribute "
                f"{attribute.ref_attr_name}, whose value is not known here"
            )
        value = onnx.helper.get_attribute_value(attribute)
        given[attribute.name] = value.decode("utf-8", "replace") if type(value) is bytes else value
        if type(value) is not float and type(value) is not bytes:
            kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
            raise NodeError(
                f"{operator.name}: attribute {attribute.name} must be a FLOAT or a STRING; "
                f"it is of type {kind}"
            )
    return complete_attributes(operator, given)


def complete_attributes(operator: Operator, given: Mapping[str, object]) -> Attributes:
    """Check attributes against the signature, round numbers to float32 and fill in defaults.

    Raises:
        NodeError: if one is unknown, missing or of the wrong type; says which are known.
    """
    known = {attribute.name for attribute in operator.attributes}
    for name in given:
        if name not in known:
            raise NodeError(
                f"{operator.name} has no attribute {name}",
                hint="it has " + ", ".join(sorted(known)),
            )
    return {
        attribute.name: _attribute_value(operator, attribute, given.get(attribute.name))
        for attribute in operator.attributes
    }


def _attribute_value(operator: Operator, attribute: Attribute, given: object) -> float | str:
    if given is None:
        if attribute.default is None:
            raise NodeError(f"{operator.name}: attribute {attribute.name} is required")
        return attribute.default
    if attribute.choices:
        if given not in attribute.choices:
            raise NodeError(
                f"{operator.name}: attribute {attribute.name} is {given!r}; "
                f"allowed are {' and '.join(attribute.choices)}"
            )
        return str(given)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise NodeError(
            f"{operator.name}: attribute {attribute.name} must be a number; it is {given!r}"
        )
    with np.errstate(over="ignore"):
        rounded = float(np.float32(given))
    if math.isinf(rounded) and not math.isinf(given):
        raise NodeError(
            f"{operator.name}: attribute {attribute.name} is {given!r}, out of float32's range"
        )
    return rounded


def _require_all(operator: Operator, inputs: Sequence[T | None]) -> list[T]:
    present = [value for value in inputs if value is not None]
    if len(present) < len(inputs):
        missing = next(index for index, value in enumerate(inputs) if value is None)
        raise NodeError(f"{operator.name}: input {missing} is left out; none is optional")
    if len(present) < len(operator.scalars):
        names = " and ".join(scalar.name for scalar in operator.scalars)
        raise NodeError(f"{operator.name} takes {names} first; {len(present)} inputs were given")
    return present


def _check_dtype(operator: Operator, name: str, value: Operand, allowed: tuple[str, ...]) -> None:
    found = dtype_name(value.dtype)
    if found not in allowed:
        raise NodeError(f"{operator.name}: {name} is {found}; allowed: {', '.join(allowed)}")


def _check_broadcast(
    operator: Operator, first: str, shape: Shape | None, name: str, other: Shape | None
) -> None:
    """Refuse an operand that would enlarge the tensor that it is broadcast to."""
    if shape is None or other is None:
        return
    padded = (1,) * (len(shape) - len(other)) + other
    fits = len(padded) == len(shape) and all(
        mine is None or theirs is None or theirs in (1, mine)
        for mine, theirs in zip(shape, padded, strict=True)
    )
    if not fits:
        raise NodeError(
            f"{operator.name}: {name} of shape {_text(other)} does not broadcast to "
            f"{first}'s shape {_text(shape)}"
        )


def _size(shape: Shape) -> int:
    return math.prod(dimension or 0 for dimension in shape)


def _text(shape: Shape) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
