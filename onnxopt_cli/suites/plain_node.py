"""Nodes that a right backend accepts and that tell whether it computes anything at all."""

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
    from onnxopt_cli.suites.case_template import Author

_SHAPE = (3,)
# What makes other inputs of the same ones: no tensor changes its sign.
_FACTOR = 1.25
_STEPS = (0, 1, 10)
# So many elements are looked at before all are.
_FIRST = 64


class PlainNode(NamedTuple):
    """A node with inputs, whose right results differ from its inputs.

    Attributes:
        model: the model of the node.
        inputs: by name, in the node's order.
        expected: the right outputs, in the node's order.
        rounded: the outputs where every operation is rounded to the node's types; small numbers may
            have been lost in large ones.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Sequence[Array]
    rounded: Sequence[Array]


def plain_pair(
    operator: Operator, node: onnx.NodeProto, inputs: Mapping[str, Value]
) -> tuple[PlainNode, PlainNode] | None:
    """Return a node as like a given one as can be, once with its inputs and once with others.

    None if the operator has none whose right results must be computed.

    What breaks the signature, or makes the right results trivial (nothing, constants, inputs), is
    replaced by something ordinary: attributes and inputs one by one, and if that does not help all
    values, keeping element types and the number of tensors.

    Args:
        operator: of the node.
        node: of the operator, right or wrong.
        inputs: what it is fed, right or wrong, as far as that is known.
    """
    from onnxopt_cli.suites.case_template import Author

    author, names = Author(operator), list(node.input)
    groups = group_count(operator, names)
    if not set(names) & set(operator.input_names(groups)):
        groups = max(1, (len(names) - len(operator.scalars)) // len(operator.tensors))
        names = operator.input_names(groups)
    given = {
        name: value
        for name, own in zip(names, node.input, strict=False)
        if isinstance(value := inputs.get(own), np.ndarray)
    }
    ordinary: Attributes = {**author.ordinary, **author.settings[0]}
    kept = {
        attribute.name: ordinary[attribute.name]
        for attribute in operator.attributes
        if attribute.required
    }
    kept.update(_allowed(operator, node, groups))
    scalars = {scalar.name for scalar in operator.scalars}
    # Some operators do something in certain steps only.
    attempts: list[tuple[Attributes, bool, int | None]] = [
        (kept, True, None),
        (kept, False, None),
        *((ordinary, False, count) for count in (None, *_STEPS)),
    ]
    # What depends on signs alone does not change where everything grows.
    for factor, (attributes, keep, count) in product((_FACTOR, -_FACTOR), attempts):
        try:
            operands = _operands(author, given, groups, count, keep=keep)
            with np.errstate(all="ignore"):
                others = operands | {
                    name: np.asarray(value * factor, value.dtype)
                    for name, value in operands.items()
                    if name not in scalars
                }
            pair = _plain(operator, attributes, operands), _plain(operator, attributes, others)
        except NodeError:
            continue
        wide, narrow = [it.expected for it in pair], [it.rounded for it in pair]
        if computes(pair, wide) and computes(pair, narrow):
            return pair
    return None


def computes(pair: tuple[PlainNode, PlainNode], returned: Sequence[Sequence[Value]]) -> bool:
    """Tell whether what came back from both nodes can only have been computed.

    At least one output is no input and differs between the two nodes. Its numbers may be wrong.
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
    """Tell whether outputs may come from a backend that computes nothing.

    Each of them is empty, zero, NaN, or an input.
    """
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    return len(arrays) == len(outputs) and all(
        all(not it.any() or (it != it).all() for it in (value.reshape(-1)[:_FIRST], value))  # noqa: PLR0124 - any NaN
        or is_an_input(value, inputs)
        for value in arrays
    )


def is_an_input(value: Array, inputs: Mapping[str, Value]) -> bool:
    """Tell whether a tensor has the elements of an input, of any shape, or broadcast to its own."""
    return any(
        isinstance(given, np.ndarray) and given.dtype == value.dtype and _same(value, given)
        for given in inputs.values()
    )


def _same(one: Array, other: Array) -> bool:
    """Tell whether all elements are equal, in order or broadcast; NaN, of any type, equals NaN."""
    if one.size and other.size:
        # Where they are not, the first ones mostly tell.
        mine, theirs = one.item(0), other.item(0)
        if mine != theirs and (mine == mine or theirs == theirs):  # noqa: PLR0124 - not NaN
            return False
    if one.size != other.size:
        if not broadcasts(other.shape, one.shape):
            return False
        other = np.broadcast_to(other, one.shape)
    for part in (slice(_FIRST), slice(None)):
        first, second = one.reshape(-1)[part], other.reshape(-1)[part]
        alike = (first == second) | ((first != first) & (second != second))  # noqa: PLR0124
        if not alike.all():
            return False
    return True


def _allowed(
    operator: Operator, node: onnx.NodeProto, groups: int
) -> Iterator[tuple[str, AttributeValue]]:
    given = {it.name: it for it in node.attribute}
    for attribute in operator.attributes:
        if attribute.name in given:
            try:
                value = onnx.helper.get_attribute_value(given[attribute.name])
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                right = attribute_value(operator, attribute, text)
            except (NodeError, ValueError):  # onnx's ValueError is of an attribute without a type
                continue
            if not isinstance(right, tuple) or len(right) in (1, groups):
                yield attribute.name, right


def _operands(
    author: Author, given: Mapping[str, Array], groups: int, count: int | None, *, keep: bool
) -> dict[str, Array]:
    """Return inputs by the operator's names, those that are given if they fit and are kept.

    Counts are ``count``, if there is one.
    """
    operator = author.operator
    names = operator.input_names(groups)
    ordinary = author.ask("", "").inputs
    operands: dict[str, Array] = {}
    for scalar in operator.scalars:
        value, dtype = _typed(given.get(scalar.name), scalar.dtypes)
        fits = keep and value is not None and value.size == 1
        counts = count is not None and "int64" in scalar.dtypes
        own = count if counts else value if fits else ordinary[scalar.name]
        operands[scalar.name] = np.asarray(own, dtype)
    for place, name in enumerate(names[len(operator.scalars) :]):
        group, tensor = place % groups, operator.tensors[place // groups]
        value, dtype = _typed(given.get(name), operator.dtypes)
        # That of the group's first tensor.
        shape = operands[names[len(operator.scalars) + group]].shape if place >= groups else None
        fits = shape is None or (value is not None and broadcasts(value.shape, shape))
        if value is None or not (keep and fits):
            value = author.tensor(tensor, group, _SHAPE if shape is None else shape)
        # Computing with an array without dimensions gives a number.
        operands[name] = np.asarray(value, dtype)
    return operands


def _typed(
    value: Array | None, allowed: Sequence[str]
) -> tuple[Array | None, np.dtype[np.generic]]:
    """Return a value if its type is allowed, and that type or the first one that is."""
    if value is not None and dtype_name(value.dtype) in allowed:
        return value, value.dtype
    return None, DTYPES[allowed[0]]


def _plain(operator: Operator, attributes: Attributes, operands: Mapping[str, Array]) -> PlainNode:
    tensors = [(name, it.dtype, it.shape, it.tobytes()) for name, it in operands.items()]
    return _plain_of(operator, tuple(attributes.items()), tuple(tensors))


# Refusals of one operator mostly have the same plain nodes.
@lru_cache(maxsize=64)
def _plain_of(
    operator: Operator,
    given: tuple[tuple[str, AttributeValue], ...],
    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...], bytes], ...],
) -> PlainNode:
    attributes = dict(given)
    operands = {
        name: np.frombuffer(data, dtype).reshape(shape) for name, dtype, shape, data in tensors
    }
    inputs = list(operands.values())
    call = bind(operator, inputs, complete_attributes(operator, attributes))
    model = formula_model(operator, attributes, inputs, graph_name="plain")
    return PlainNode(model, operands, evaluate(call), computed(Arithmetic())(call))
