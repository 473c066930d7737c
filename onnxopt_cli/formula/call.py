"""A node's inputs and attributes sorted into calls of the formula, checked once for all operators.

The operands may be anything with a dtype and a shape: arrays for evaluation, symbols for lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto

from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.errors import NodeError
from onnxopt_cli.formula.operator import Attribute, AttributeValue, Operator

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
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One node, ready to be computed in any reading.

    Attributes:
        operator: whose formula it is.
        attributes: every attribute by name, numbers being exact float32 values; a tuple has one
            number for all groups or one for each.
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
            For each output in the node's order: what the formula yielded, the input that has its
            element type, and the input that has its shape.
        """
        operator = self.operator
        scalars = {
            item.name: scalar(value)
            for item, value in zip(operator.scalars, self.scalars, strict=True)
        }
        yields: dict[str, list[Any]] = {name: [] for name in operator.outputs}
        for index, group in enumerate(self.groups):
            attributes = {
                name: value if isinstance(value, str) else number(_of_group(value, index))
                for name, value in self.attributes.items()
            }
            results = operator.formula(*scalars.values(), *map(tensor, group), **attributes)
            for (name, like), result in zip(operator.outputs.items(), results, strict=True):
                if operator.carries(name):
                    scalars[like], yields[name] = result, [result]
                else:
                    yields[name].append(result)
        inputs = self.inputs
        return [
            (result, inputs[like], inputs[base])
            for result, (like, base) in zip(
                chain.from_iterable(yields.values()),
                operator.places(len(self.groups)),
                strict=True,
            )
        ]

    @property
    def inputs(self) -> tuple[T, ...]:
        """The node's inputs in its order."""
        members = zip(*self.groups, strict=True)
        return (*self.scalars, *(tensor for tensors in members for tensor in tensors))

    def by_group(self, compute: Callable[[Call[T]], list[R]]) -> list[R]:
        """Compute the node's outputs group by group; at once if something is carried over them."""
        if any(map(self.operator.carries, self.operator.outputs)):
            return compute(self)
        single = [
            compute(
                replace(
                    self,
                    groups=(group,),
                    attributes={
                        name: (_of_group(value, index),) if isinstance(value, tuple) else value
                        for name, value in self.attributes.items()
                    },
                )
            )
            for index, group in enumerate(self.groups)
        ]
        return [output for outputs in zip(*single, strict=True) for output in outputs]


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
        attributes: from :func:`~onnxopt_cli.formula.call.node_attributes` or
            :func:`~onnxopt_cli.formula.call.complete_attributes`.
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
    expected = len(operator.output_names(number))
    if outputs is not None and outputs != expected:
        raise NodeError(
            f"{operator.name} with {number} optimized tensor{'s' * (number > 1)} has "
            f"{expected} output{'s' * (expected > 1)}; the node has {outputs}"
        )
    for attribute, values in attributes.items():
        if isinstance(values, tuple) and len(values) not in (1, number):
            raise NodeError(
                f"{operator.name}: {attribute} has {len(values)} numbers; it takes one for all "
                f"tensors, or one for each of {number}"
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


def _of_group(value: float | tuple[float, ...], index: int) -> float:
    if isinstance(value, tuple):
        return value[index] if len(value) > 1 else value[0]
    return value


Attributes = Mapping[str, AttributeValue]


def node_attributes(operator: Operator, node: onnx.NodeProto) -> Attributes:
    """Read a node's attributes, with the defaults of those it leaves out.

    Raises:
        NodeError: if one is unknown, missing, given twice or of the wrong type.
    """
    given: dict[str, object] = {}
    kinds = {
        attribute.name: AttributeProto.FLOATS
        if attribute.each
        else AttributeProto.STRING
        if attribute.choices
        else AttributeProto.FLOAT
        for attribute in operator.attributes
    }
    for attribute in node.attribute:
        if attribute.name in given:
            raise NodeError(f"{operator.name}: attribute {attribute.name} is given twice")
        if attribute.ref_attr_name:
            raise NodeError(
                f"{operator.name}: attribute {attribute.name} refers to a function's attribute "
                f"{attribute.ref_attr_name}, whose value is not known here"
            )
        kind = kinds.get(attribute.name, attribute.type)
        if attribute.type != kind:
            raise NodeError(
                f"{operator.name}: attribute {attribute.name} must be a "
                f"{AttributeProto.AttributeType.Name(kind)}; it is of type "
                f"{AttributeProto.AttributeType.Name(attribute.type)}"
            )
        value = onnx.helper.get_attribute_value(attribute)
        given[attribute.name] = value.decode("utf-8", "replace") if type(value) is bytes else value
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
        attribute.name: attribute_value(operator, attribute, given.get(attribute.name))
        for attribute in operator.attributes
    }


def attribute_value(operator: Operator, attribute: Attribute, given: object) -> AttributeValue:
    """Return an attribute's value as the formula takes it; the default for None.

    Raises:
        NodeError: if it is of the wrong type, out of range, or missing and required.
    """
    if given is None:
        if attribute.default is None:
            raise NodeError(f"{operator.name}: attribute {attribute.name} is required")
        return (attribute.default,) if attribute.each else attribute.default
    if attribute.each:
        numbers = given if isinstance(given, (list, tuple)) else [given]
        if not numbers:
            raise NodeError(f"{operator.name}: attribute {attribute.name} has no number")
        return tuple(_number(operator, attribute, item) for item in numbers)
    if attribute.choices:
        if given not in attribute.choices:
            raise NodeError(
                f"{operator.name}: attribute {attribute.name} is {given!r}; "
                f"allowed are {' and '.join(attribute.choices)}"
            )
        return str(given)
    return _number(operator, attribute, given)


def _number(operator: Operator, attribute: Attribute, given: object) -> float:
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
    if attribute.limits is not None:
        least, largest = attribute.limits
        if not least <= rounded <= largest:
            raise NodeError(
                f"{operator.name}: attribute {attribute.name} is {given!r}; it must lie between "
                f"{least:g} and {largest:g}"
            )
    return rounded
