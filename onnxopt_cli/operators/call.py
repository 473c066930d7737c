"""A node's inputs and attributes sorted into calls of the formula, checked once for all operators.

The operands may be anything with a dtype and a shape: arrays for evaluation, symbols for lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import onnx
from onnx import AttributeProto, helper

from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.operator import (
    Attribute,
    AttributeValue,
    Operator,
)

#: A static shape; a dimension or the whole may be unknown to symbols.
Shape = tuple[int | None, ...]
Attributes = Mapping[str, AttributeValue]


class Operand(Protocol):
    """The properties of an operand that the checks need."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    @property
    def shape(self) -> Shape | None:
        """Shape; None where even the rank is unknown."""


T = TypeVar("T", bound=Operand)
S = TypeVar("S", bound=Operand)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One node, ready for any interpretation.

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
                # One number for all groups, or one for each.
                name: number(value[index % len(value)] if isinstance(value, tuple) else value)
                if not isinstance(value, str)
                else value
                for name, value in self.attributes.items()
            }
            results = operator.formula(*scalars.values(), *map(tensor, group), **attributes)
            for (name, like), result in zip(operator.outputs.items(), results, strict=True):
                if operator.carries(name):
                    scalars[like], yields[name] = result, [result]
                else:
                    yields[name].append(result)
        inputs, places = self.inputs, operator.places(len(self.groups))
        yielded = chain.from_iterable(yields.values())
        return [
            (result, inputs[like], inputs[base])
            for result, (like, base) in zip(yielded, places, strict=True)
        ]

    @property
    def sources(self) -> list[tuple[T, T]]:
        """For each output, the inputs that have its element type and its shape."""
        inputs, places = self.inputs, self.operator.places(len(self.groups))
        return [(inputs[like], inputs[base]) for like, base in places]

    @property
    def size(self: Call[Array]) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for group in self.groups for tensor in group)

    @property
    def inputs(self) -> tuple[T, ...]:
        """The node's inputs in its order."""
        members = zip(*self.groups, strict=True)
        return (*self.scalars, *(tensor for tensors in members for tensor in tensors))

    def with_inputs(self, inputs: Sequence[S]) -> Call[S]:
        """Return the call with other inputs in the place of the node's, in its order."""
        scalars, tensors = inputs[: len(self.scalars)], inputs[len(self.scalars) :]
        count, call = len(self.groups), cast(Any, self)
        groups = tuple(tuple(tensors[group::count]) for group in range(count))
        return replace(call, scalars=tuple(scalars), groups=groups)

    def at(self: Call[Array], places: slice | Array) -> Call[Array]:
        """Return the only group at some flat places of its first tensor, as flat tensors."""
        ((first, *_),) = self.groups
        return replace(
            self, groups=(tuple(_flat(tensor, first.shape)[places] for tensor in self.groups[0]),)
        )

    def group(self, index: int) -> Call[T]:
        """Return the call of one group alone."""
        attributes = {
            name: value[index % len(value)] if isinstance(value, tuple) else value
            for name, value in self.attributes.items()
        }
        return replace(self, groups=(self.groups[index],), attributes=attributes)

    @property
    def in_a_row(self: Call[Array]) -> Call[Array]:
        """A call of one group, which contains the elements of all groups one after the other."""
        full = [[_flat(tensor, group[0].shape) for tensor in group] for group in self.groups]
        joined = tuple(np.concatenate(tensors) for tensors in zip(*full, strict=True))
        return replace(self.group(0), groups=(joined,))

    def apart(self: Call[Array], outputs: Sequence[Array]) -> list[Array]:
        """Return the outputs of all groups, given the concatenated outputs of the call."""
        firsts = [first for first, *_ in self.groups]
        ends = np.cumsum([first.size for first in firsts])[:-1]
        return [
            part.reshape(first.shape)
            for output in outputs
            for part, first in zip(np.split(output, ends), firsts, strict=True)
        ]

    def by_group(self, compute: Callable[[Call[T]], list[R]]) -> list[R]:
        """Compute the node's outputs group by group; at once if something is carried over them."""
        if any(map(self.operator.carries, self.operator.outputs)):
            return compute(self)
        single = [compute(self.group(index)) for index in range(len(self.groups))]
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
        attributes: from :func:`~onnxopt_cli.operators.call.node_attributes` or
            :func:`~onnxopt_cli.operators.call.complete_attributes`.
        outputs: number of outputs of the node, if there is a node.
        omitted: names of the attributes that the node leaves to their defaults, where known.

    Raises:
        NodeError: if number, element type or shape of an input breaks the signature.
    """
    present = [value for value in inputs if value is not None]
    if len(present) < len(inputs):
        missing = next(place for place, value in enumerate(inputs) if value is None)
        raise NodeError(f"{operator.name}: input {missing} is left out; none is optional")
    count, size = len(operator.scalars), len(operator.tensors)
    if len(present) < count:
        names = " and ".join(scalar.name for scalar in operator.scalars)
        raise NodeError(f"{operator.name} takes {names} first; {len(present)} inputs were given")
    number, rest = divmod(len(present) - count, size)
    if rest or not number:
        raise NodeError(
            f"{operator.name} takes {size} tensors for each one it optimizes "
            f"({', '.join(operator.tensors)}); {len(present) - count} were given",
            hint=f"give {', then '.join(f'all {name}' for name in operator.tensors)}",
        )
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
    _check_operands(operator, present, number)
    groups = tuple(tuple(present[count + group :: number]) for group in range(number))
    return Call(operator, attributes, tuple(present[:count]), groups, omitted)


def _flat(tensor: Array, shape: tuple[int, ...]) -> Any:
    """Return the elements of a tensor that broadcasts to a shape, in order, without a copy."""
    return tensor.reshape(-1) if tensor.shape == shape else np.broadcast_to(tensor, shape).flat


def _check_operands(operator: Operator, operands: Sequence[Operand], groups: int) -> None:
    """Refuse wrong element types, scalars of many elements, and tensors that do not broadcast."""
    names, count = operator.input_names(groups), len(operator.scalars)
    for place, (name, operand) in enumerate(zip(names, operands, strict=True)):
        scalar = place < count
        allowed = operator.scalars[place].dtypes if scalar else operator.dtypes
        dtype = dtype_name(operand.dtype)
        if dtype not in allowed:
            raise NodeError(f"{operator.name}: {name} is {dtype}; allowed: {', '.join(allowed)}")
        # A scalar has one element; a tensor must not enlarge the first of its group.
        first = place if scalar else count + (place - count) % groups
        first_shape = operands[first].shape
        if operand.shape is None or first_shape is None:
            continue
        if not scalar and operand.shape == first_shape:
            continue
        if scalar and any(size not in (None, 1) for size in operand.shape):
            raise NodeError(
                f"{operator.name}: {name} must have one element; its shape is {_text(first_shape)}"
            )
        padded = (1,) * (len(first_shape) - len(operand.shape)) + operand.shape
        if len(padded) > len(first_shape) or any(
            length not in (1, size) and None not in (length, size)
            for length, size in zip(padded, first_shape, strict=True)
        ):
            raise NodeError(
                f"{operator.name}: {name} of shape {_text(operand.shape)} does not broadcast to "
                f"{names[first]}'s shape {_text(first_shape)}"
            )


def _text(shape: Shape) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def node_attributes(operator: Operator, node: onnx.NodeProto) -> Attributes:
    """Read a node's attributes, with the defaults of those it leaves out.

    Raises:
        NodeError: if one is unknown, missing, given twice or of the wrong type.
    """
    given: dict[str, object] = {}
    kinds = {attribute.name: attribute.kind for attribute in operator.attributes}
    for attribute in node.attribute:
        kind = kinds.get(attribute.name, attribute.type)
        if attribute.name in given:
            wrong = "is given twice"
        elif attribute.ref_attr_name:
            wrong = (
                f"refers to a function's attribute {attribute.ref_attr_name}, whose value is not "
                "known here"
            )
        elif attribute.type != kind:
            wanted, found = map(AttributeProto.AttributeType.Name, (kind, attribute.type))
            wrong = f"must be a {wanted}; it is of type {found}"
        else:
            value = helper.get_attribute_value(attribute)
            given[attribute.name] = (
                value.decode("utf-8", "replace") if type(value) is bytes else value
            )
            continue
        raise NodeError(f"{operator.name}: attribute {attribute.name} {wrong}")
    return complete_attributes(operator, given)


def complete_attributes(operator: Operator, given: Mapping[str, object]) -> Attributes:
    """Check attributes against the signature, round numbers to float32 and fill in defaults.

    Raises:
        NodeError: if one is unknown, missing or of the wrong type; says which are known.
    """
    by_name = {attribute.name: attribute for attribute in operator.attributes}
    for name in given:
        if name not in by_name:
            raise NodeError(
                f"{operator.name} has no attribute {name}",
                hint="it has " + ", ".join(sorted(by_name)),
            )
    return {
        name: attribute_value(operator, attribute, given.get(name))
        for name, attribute in by_name.items()
    }


def attribute_value(operator: Operator, attribute: Attribute, given: object) -> AttributeValue:
    """Return an attribute's value as the formula takes it; the default for None.

    Raises:
        NodeError: if it is of the wrong type, out of range, or missing and required.
    """
    where = f"{operator.name}: attribute {attribute.name}"
    if given is None:
        if attribute.default is None:
            raise NodeError(f"{where} is required")
        return (attribute.default,) if attribute.each else attribute.default
    if attribute.each:
        numbers = given if isinstance(given, (list, tuple)) else [given]
        if not numbers:
            raise NodeError(f"{where} has no number")
        return tuple(_number(attribute, item, where) for item in numbers)
    if attribute.choices:
        if given not in attribute.choices:
            raise NodeError(f"{where} is {given!r}; allowed are {' and '.join(attribute.choices)}")
        return str(given)
    return _number(attribute, given, where)


def _number(attribute: Attribute, given: object, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise NodeError(f"{where} must be a number; it is {given!r}")
    try:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(given))
    except OverflowError:
        # An integer beyond the range of double.
        rounded = math.inf
    if math.isinf(rounded) and abs(given) != math.inf:
        raise NodeError(f"{where} is {given!r}, out of float32's range")
    least, largest = attribute.limits or (-math.inf, math.inf)
    if attribute.limits and not least <= rounded <= largest:
        raise NodeError(f"{where} is {given!r}; it must lie between {least:g} and {largest:g}")
    return rounded
