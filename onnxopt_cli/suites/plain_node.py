"""Nodes that a correct backend accepts and whose results show whether it computes at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.tensors.declared import broadcasts
from onnxopt_cli.cases.yaml.formula_case import group_count
from onnxopt_cli.core.values import (
    DTYPES,
    Array,
    Value,
    dtype_name,
)
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.arithmetic import Arithmetic, computed
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import (
    Attributes,
    attribute_value,
    bind,
    complete_attributes,
)
from onnxopt_cli.operators.operator import AttributeValue, Operator

if TYPE_CHECKING:
    from onnxopt_cli.cases.case_template import Author

_SHAPE = (3,)
# Factor of the inputs of the second node of a pair. It is positive, so that signs do not change.
_FACTOR = 1.25
_STEPS = (0, 1, 10)
# Number of elements that are compared first, since different tensors usually differ in them.
_FIRST_ELEMENTS = 64


class PlainNode(NamedTuple):
    """A node with inputs, whose correct outputs differ from its inputs.

    Attributes:
        model: the model of the node.
        inputs: the inputs by name, in the node's order.
        expected: the correct outputs, in the node's order.
        rounded: the outputs with every operation rounded to the node's types, in which large
            numbers may have absorbed small ones.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Sequence[Array]
    rounded: Sequence[Array]


def plain_pair(
    operator: Operator, node: onnx.NodeProto, inputs: Mapping[str, Value]
) -> tuple[PlainNode, PlainNode] | None:
    """Return a nontrivial node similar to the given one, with its own and with scaled inputs.

    Attributes and inputs that violate the signature are replaced by ordinary ones. If the correct
    outputs are still trivial (empty, constant or equal to inputs), all values are replaced, but not
    the element types and the number of tensors.

    Args:
        operator: the operator of the node.
        node: a valid or invalid node of the operator.
        inputs: the known inputs, valid or invalid.

    Returns:
        The pair of nodes; None if no such node has nontrivial outputs.
    """
    from onnxopt_cli.cases.case_template import Author

    author, names = Author(operator), list(node.input)
    groups = group_count(operator, names)
    if not set(names) & set(operator.input_names(groups)):
        groups = max(1, (len(names) - len(operator.scalars)) // len(operator.tensors))
        names = operator.input_names(groups)
    arrays = {
        name: value
        for name, node_input in zip(names, node.input, strict=False)
        if isinstance(value := inputs.get(node_input), np.ndarray)
    }
    ordinary: Attributes = {**author.ordinary, **author.settings[0]}
    similar = {
        attribute.name: ordinary[attribute.name]
        for attribute in operator.attributes
        if attribute.required
    }
    similar.update(_allowed(operator, node, groups))
    scalars = {scalar.name for scalar in operator.scalars}
    # Some operators change their tensors only at certain T.
    attempts: list[tuple[Attributes, bool, int | None]] = [
        (similar, True, None),
        (similar, False, None),
        *((ordinary, False, count) for count in (None, *_STEPS)),
    ]
    # Outputs that depend on signs only do not change under a positive factor.
    for factor, (attributes, keep, count) in product((_FACTOR, -_FACTOR), attempts):
        try:
            operands = _operands(author, arrays, groups, count, keep=keep)
            with np.errstate(all="ignore"):
                scaled = operands | {
                    name: np.asarray(value * factor, value.dtype)
                    for name, value in operands.items()
                    if name not in scalars
                }
            pair = _plain(operator, attributes, operands), _plain(operator, attributes, scaled)
        except NodeError:
            continue
        expected, rounded = [node.expected for node in pair], [node.rounded for node in pair]
        if computes(pair, expected) and computes(pair, rounded):
            return pair
    return None


def computes(pair: tuple[PlainNode, PlainNode], returned: Sequence[Sequence[Value]]) -> bool:
    """Return whether a backend must have computed the outputs that it returned for both nodes.

    This holds if at least one output differs from all inputs and between the two nodes. The values
    need not be correct.
    """
    for right, first, second in zip(pair[0].expected, *returned, strict=False):
        if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
            continue
        alike = first.shape == second.shape and _same(first, second)
        copied = is_an_input(first, pair[0].inputs) or is_an_input(second, pair[1].inputs)
        if right.size and np.isfinite(right).all() and not alike and not copied:
            return True
    return False


def is_trivial(outputs: Sequence[Value], inputs: Mapping[str, Value]) -> bool:
    """Return whether a backend that computes nothing could return these outputs.

    This holds if each of them is empty, zero, NaN, or equal to an input.
    """
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    return len(arrays) == len(outputs) and all(
        (_is_zero_or_nan(value.reshape(-1)[:_FIRST_ELEMENTS]) and _is_zero_or_nan(value))
        or is_an_input(value, inputs)
        for value in arrays
    )


def _is_zero_or_nan(array: Array) -> bool:
    return not array.any() or bool((array != array).all())  # noqa: PLR0124 - NaN of any type


def is_an_input(value: Array, inputs: Mapping[str, Value]) -> bool:
    """Return whether a tensor has the elements of an input, in any shape or broadcast to it."""
    return any(
        isinstance(array, np.ndarray) and array.dtype == value.dtype and _same(value, array)
        for array in inputs.values()
    )


def _same(array: Array, reference: Array) -> bool:
    """Return whether elements equal a reshaped or broadcast reference; NaN equals NaN."""
    if array.size and reference.size:
        # Different tensors usually differ in the first element.
        first, second = array.item(0), reference.item(0)
        if first != second and (first == first or second == second):  # noqa: PLR0124 - not NaN
            return False
    if array.size != reference.size:
        if not broadcasts(reference.shape, array.shape):
            return False
        reference = np.broadcast_to(reference, array.shape)
    for part in (slice(_FIRST_ELEMENTS), slice(None)):
        left, right = array.reshape(-1)[part], reference.reshape(-1)[part]
        alike = (left == right) | ((left != left) & (right != right))  # noqa: PLR0124 - NaN
        if not alike.all():
            return False
    return True


def _allowed(
    operator: Operator, node: onnx.NodeProto, groups: int
) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the node's attributes that the signature allows."""
    node_attributes = {attribute.name: attribute for attribute in node.attribute}
    for attribute in operator.attributes:
        if attribute.name in node_attributes:
            try:
                value = onnx.helper.get_attribute_value(node_attributes[attribute.name])
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                right = attribute_value(operator, attribute, text)
            except (NodeError, ValueError):  # onnx raises ValueError for an attribute without type
                continue
            if not isinstance(right, tuple) or len(right) in (1, groups):
                yield attribute.name, right


def _operands(
    author: Author, arrays: Mapping[str, Array], groups: int, count: int | None, *, keep: bool
) -> dict[str, Array]:
    """Return a valid input for each of the operator's names.

    Args:
        author: provides the ordinary inputs.
        arrays: the inputs of the original node, by the operator's names.
        groups: the number of tensors that the node optimizes.
        count: the value of T; None for that of the node.
        keep: whether to keep the original inputs that are valid, instead of their types only.
    """
    operator = author.operator
    names = operator.input_names(groups)
    ordinary = author.template("", "").inputs
    operands: dict[str, Array] = {}
    for scalar in operator.scalars:
        value, dtype = _typed(arrays.get(scalar.name), scalar.dtypes)
        fits = keep and value is not None and value.size == 1
        counts = count is not None and "int64" in scalar.dtypes
        number = count if counts else value if fits else ordinary[scalar.name]
        operands[scalar.name] = np.asarray(number, dtype)
    for place, name in enumerate(names[len(operator.scalars) :]):
        group, tensor = place % groups, operator.tensors[place // groups]
        value, dtype = _typed(arrays.get(name), operator.dtypes)
        # The shape of the group's first tensor.
        shape = operands[names[len(operator.scalars) + group]].shape if place >= groups else None
        fits = shape is None or (value is not None and broadcasts(value.shape, shape))
        if value is None or not (keep and fits):
            value = author.tensor(tensor, group, _SHAPE if shape is None else shape)
        # Arithmetic on arrays without dimensions returns NumPy scalars.
        operands[name] = np.asarray(value, dtype)
    return operands


def _typed(
    value: Array | None, allowed: Sequence[str]
) -> tuple[Array | None, np.dtype[np.generic]]:
    """Return a value and its type if that type is allowed, else None and the first allowed type."""
    if value is not None and dtype_name(value.dtype) in allowed:
        return value, value.dtype
    return None, DTYPES[allowed[0]]


def _plain(operator: Operator, attributes: Attributes, operands: Mapping[str, Array]) -> PlainNode:
    tensors = [
        (name, array.dtype, array.shape, array.tobytes()) for name, array in operands.items()
    ]
    return _plain_of(operator, tuple(attributes.items()), tuple(tensors))


# Cached, since most refusal cases of an operator lead to the same nodes.
@lru_cache(maxsize=64)
def _plain_of(
    operator: Operator,
    attribute_items: tuple[tuple[str, AttributeValue], ...],
    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...], bytes], ...],
) -> PlainNode:
    attributes = dict(attribute_items)
    operands = {
        name: np.frombuffer(data, dtype).reshape(shape) for name, dtype, shape, data in tensors
    }
    inputs = list(operands.values())
    call = bind(operator, inputs, complete_attributes(operator, attributes))
    model = formula_model(operator, attributes, inputs, graph_name="plain")
    return PlainNode(model, operands, evaluate(call), computed(Arithmetic())(call))
