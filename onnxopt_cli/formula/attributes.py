"""A node's attributes checked against its operator's signature, with defaults filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import AttributeProto

from onnxopt_cli.errors import NodeError
from onnxopt_cli.formula.operator import Attribute, AttributeValue, Operator

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
