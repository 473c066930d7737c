"""Check a node against its operator's signature, and group its operands to call the formula.

An operand is any object with a dtype and a shape: an array for evaluation, a symbol for lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from onnxopt_cli.core.values import Array, Value, dtype_name
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.operator import (
    Attribute,
    AttributeValue,
    Operator,
)
from onnxopt_cli.operators.registry import registry

#: A static shape; a dimension is None if it is unknown.
Shape = tuple[int | None, ...]
Attributes = Mapping[str, AttributeValue]


class Operand(Protocol):
    """The properties of an operand that the checks of a signature need."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    @property
    def shape(self) -> Shape | None:
        """The shape of the operand; None if the rank is unknown."""


T = TypeVar("T", bound=Operand)
S = TypeVar("S", bound=Operand)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """The operands of one node, for any interpretation of the operator's formula.

    Attributes:
        operator: the node's operator.
        attributes: values of all attributes by name. Numbers are exact float32 values. A tuple has
            either one number for all groups, or one number for each group.
        scalars: the inputs that all groups share.
        groups: the tensors of each group, in the operator's order.
        omitted: names of the attributes that the node omits; they have their default values.
    """

    operator: Operator
    attributes: Attributes
    scalars: tuple[T, ...]
    groups: tuple[tuple[T, ...], ...]
    omitted: frozenset[str] = frozenset()

    def apply(
        self, scalar: Callable[[T], Any], tensor: Callable[[T], Any], number: Callable[[float], Any]
    ) -> list[tuple[Any, T, T]]:
        """Call the formula for every group, with operands converted by the given functions.

        Args:
            scalar: function that converts a scalar.
            tensor: function that converts a tensor.
            number: function that converts a numeric attribute.

        Returns:
            Three items for each output, in the node's order: the result of the formula, the input
            with the element type of the output, and the input with the shape of the output.
        """
        operator = self.operator
        scalars = {
            item.name: scalar(value)
            for item, value in zip(operator.scalars, self.scalars, strict=True)
        }
        results_by_output: dict[str, list[Any]] = {name: [] for name in operator.outputs}
        for index, group in enumerate(self.groups):
            attributes = {
                name: value if isinstance(value, str) else number(value)
                for name, value in self._group_attributes(index).items()
            }
            results = operator.formula(*scalars.values(), *map(tensor, group), **attributes)
            for (name, like), result in zip(operator.outputs.items(), results, strict=True):
                if operator.carries(name):
                    # The next group receives the result of this group as its scalar.
                    scalars[like], results_by_output[name] = result, [result]
                else:
                    results_by_output[name].append(result)
        all_results = chain.from_iterable(results_by_output.values())
        return [
            (result, like, base)
            for result, (like, base) in zip(all_results, self.sources, strict=True)
        ]

    @property
    def sources(self) -> list[tuple[T, T]]:
        """For each output, two inputs: one with its element type, and one with its shape."""
        inputs, places = self.inputs, self.operator.places(len(self.groups))
        return [(inputs[like], inputs[base]) for like, base in places]

    @property
    def size(self: Call[Array]) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for group in self.groups for tensor in group)

    @property
    def inputs(self) -> tuple[T, ...]:
        """The node's inputs in the node's order."""
        members = zip(*self.groups, strict=True)
        return (*self.scalars, *(tensor for tensors in members for tensor in tensors))

    def with_inputs(self, inputs: Sequence[S]) -> Call[S]:
        """Return the call with other inputs, given in the node's order."""
        scalars, tensors = inputs[: len(self.scalars)], inputs[len(self.scalars) :]
        count, call = len(self.groups), cast(Any, self)
        groups = tuple(tuple(tensors[group::count]) for group in range(count))
        return replace(call, scalars=tuple(scalars), groups=groups)

    def at(self: Call[Array], places: slice | Array) -> Call[Array]:
        """Return a call of one group whose flat tensors contain only some elements.

        Args:
            places: flat indices into the first tensor of the call's only group.
        """
        ((first, *_),) = self.groups
        return replace(
            self, groups=(tuple(_flat(tensor, first.shape)[places] for tensor in self.groups[0]),)
        )

    def group(self, index: int) -> Call[T]:
        """Return a call that contains only one of the groups."""
        attributes = self._group_attributes(index)
        return replace(self, groups=(self.groups[index],), attributes=attributes)

    def _group_attributes(self, index: int) -> dict[str, float | str]:
        """Return the attributes for one group; a tuple is replaced by its number for the group."""
        return {
            # The number in a tuple of length 1 applies to all groups.
            name: value[index % len(value)] if isinstance(value, tuple) else value
            for name, value in self.attributes.items()
        }

    @property
    def concatenated(self: Call[Array]) -> Call[Array]:
        """The call with all groups joined, in order, into one group of flat tensors."""
        full = [[_flat(tensor, group[0].shape) for tensor in group] for group in self.groups]
        joined = tuple(np.concatenate(tensors) for tensors in zip(*full, strict=True))
        return replace(self.group(0), groups=(joined,))

    def split(self: Call[Array], outputs: Sequence[Array]) -> list[Array]:
        """Return the outputs of all groups, given the outputs of :attr:`concatenated`."""
        firsts = [first for first, *_ in self.groups]
        ends = np.cumsum([first.size for first in firsts])[:-1]
        return [
            part.reshape(first.shape)
            for output in outputs
            for part, first in zip(np.split(output, ends), firsts, strict=True)
        ]

    def by_group(self, compute: Callable[[Call[T]], list[R]]) -> list[R]:
        """Compute the node's outputs for each group separately, if the groups are independent.

        If an output is carried from group to group, the groups are not independent. Then
        ``compute`` is called once, with all groups.
        """
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
    """Divide a node's inputs into scalars and groups of tensors.

    Args:
        operator: the node's operator.
        inputs: the node's inputs in order; None for an omitted input.
        attributes: values of all attributes, from :func:`node_attributes` or
            :func:`complete_attributes`.
        outputs: number of outputs of the node; None if the number need not be checked.
        omitted: names of the attributes that the node omits, if they are known.

    Raises:
        NodeError: if the number of inputs, or the element type or shape of an input, breaks the
            signature.
    """
    present = [value for value in inputs if value is not None]
    if len(present) < len(inputs):
        missing = next(place for place, value in enumerate(inputs) if value is None)
        raise NodeError(f"{operator.name}: input {missing} is omitted, but no input is optional")
    count, size = len(operator.scalars), len(operator.tensors)
    if len(present) < count:
        names = " and ".join(scalar.name for scalar in operator.scalars)
        raise NodeError(f"{operator.name} takes {names} first; {len(present)} inputs were given")
    number, rest = divmod(len(present) - count, size)
    if rest or not number:
        raise NodeError(
            f"{operator.name} takes {size} tensors ({', '.join(operator.tensors)}) for each "
            f"optimized tensor; the node has {len(present) - count}",
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
                f"{operator.name}: {attribute} has {len(values)} numbers; expected one for all "
                f"tensors, or one for each of the {number} tensors"
            )
    _check_operands(operator, present, number)
    groups = tuple(tuple(present[count + group :: number]) for group in range(number))
    return Call(operator, attributes, tuple(present[:count]), groups, omitted)


def _flat(tensor: Array, shape: tuple[int, ...]) -> Any:
    """Broadcast a tensor to a shape, and return the elements in order, without a copy."""
    return tensor.reshape(-1) if tensor.shape == shape else np.broadcast_to(tensor, shape).flat


def _check_operands(operator: Operator, operands: Sequence[Operand], groups: int) -> None:
    """Raise NodeError for a wrong element type, a scalar of several elements, or a wrong shape."""
    names, count = operator.input_names(groups), len(operator.scalars)
    for place, (name, operand) in enumerate(zip(names, operands, strict=True)):
        scalar = place < count
        allowed = operator.scalars[place].dtypes if scalar else operator.dtypes
        dtype = dtype_name(operand.dtype)
        if dtype not in allowed:
            raise NodeError(f"{operator.name}: {name} is {dtype}; allowed: {', '.join(allowed)}")
        # A scalar has one element. A tensor must broadcast to the shape of the first tensor of its
        # group.
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
    """Return the values of all attributes of a node; omitted attributes have their defaults.

    Raises:
        NodeError: if an attribute is unknown, missing, given twice or of the wrong type.
    """
    given: dict[str, object] = {}
    kinds = {attribute.name: attribute.kind for attribute in operator.attributes}
    for attribute in node.attribute:
        kind = kinds.get(attribute.name, attribute.type)
        if attribute.name in given:
            wrong = "is given twice"
        elif attribute.ref_attr_name:
            wrong = (
                f"refers to a function's attribute {attribute.ref_attr_name}, whose value is "
                "unknown"
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
        NodeError: if an attribute is unknown, missing or of the wrong type.
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
    """Return the value of an attribute for the formula: a float32 number, a tuple or a string.

    Args:
        operator: the operator, for messages.
        attribute: the attribute.
        given: the attribute's value in the node; None if the node omits the attribute. Then the
            default applies.

    Raises:
        NodeError: if the value has the wrong type or is out of range, or if a required value is
            missing.
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
        # The integer is beyond the range of double.
        rounded = math.inf
    if math.isinf(rounded) and abs(given) != math.inf:
        raise NodeError(f"{where} is {given!r}, out of float32's range")
    least, largest = attribute.limits or (-math.inf, math.inf)
    if attribute.limits and not least <= rounded <= largest:
        raise NodeError(f"{where} is {given!r}; it must lie between {least:g} and {largest:g}")
    return rounded


def sole_operator(model: onnx.ModelProto) -> Operator | None:
    """Return the operator of a model's only node, if this operator has a formula.

    Returns None for any other model.
    """
    graph = model.graph
    if len(graph.node) != 1 or model.functions:
        return None
    node = graph.node[0]
    operator = registry().find(node.domain, node.op_type)
    # The graph may list the outputs in another order than the node.
    outputs = sorted(output.name for output in graph.output)
    if operator is None or outputs != sorted(filter(None, node.output)):
        return None
    imported = [(entry.domain, entry.version) for entry in model.opset_import]
    return operator if (operator.domain, operator.version) in imported else None


def sole_call(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Call[Array] | None:
    """Bind the inputs of a model for which :func:`sole_operator` returns an operator.

    Returns None for any other model.

    Raises:
        NodeError: if the node or the inputs break the operator's signature.
    """
    operator = sole_operator(model)
    return None if operator is None else bind_node(operator, model, inputs)


def bind_node(
    operator: Operator, model: onnx.ModelProto, inputs: Mapping[str, Value]
) -> Call[Array]:
    """Bind the inputs of a model that consists of one node of a given operator.

    Raises:
        NodeError: if the node or the inputs break the operator's signature.
    """
    node = model.graph.node[0]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    operands: list[Array | None] = []
    for name in node.input:
        if name in inputs:
            value = inputs[name]
            if value is None or isinstance(value, (list, dict)):
                raise NodeError(f"{operator.name}: input {name} must be a tensor")
            operands.append(value)
        elif name in constants:
            operands.append(numpy_helper.to_array(constants[name]))
        else:
            operands.append(None)
    present = {attribute.name for attribute in node.attribute}
    return bind(
        operator,
        operands,
        node_attributes(operator, node),
        len(node.output),
        omitted=frozenset(attribute.name for attribute in operator.attributes) - present,
    )


def breaks_signature(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> bool:
    """Return whether a model is one node that breaks its operator's signature."""
    try:
        sole_call(model, inputs)
    except NodeError:
        return True
    return False
