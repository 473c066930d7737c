"""Nodes that a right backend accepts and that tell whether it computes anything at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.suites.author import Author
from onnxopt_cli.cases.yaml.formula_case import group_count
from onnxopt_cli.core.values import DTYPES, Array, Value, dtype_name
from onnxopt_cli.errors import NodeError
from onnxopt_cli.formula.call import Attributes, attribute_value, bind, complete_attributes
from onnxopt_cli.formula.operator import AttributeValue, Operator, Scalar
from onnxopt_cli.readings.evaluate import evaluate

_SHAPE = (3,)
# What makes other inputs of the same ones: no tensor changes its sign.
_FACTOR = 1.25
# So many elements are looked at before all are.
_FIRST = 64


@dataclass(frozen=True, slots=True)
class PlainNode:
    """A node with inputs, whose right results differ from its inputs.

    Attributes:
        model: the model of the node.
        inputs: by name, in the node's order.
        expected: the right outputs, in the node's order.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Sequence[Array]


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
    for built in _attempts(_Given(operator, node, inputs)):
        try:
            pair = _plain(operator, *built), _plain(operator, *_changed(*built))
        except NodeError:
            continue
        if computes(pair, [node.expected for node in pair]):
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
        copied = any(
            is_an_input(value, node.inputs)
            for value, node in zip((first, second), pair, strict=True)
        )
        if right.size and np.isfinite(right).all() and not alike and not copied:
            return True
    return False


def is_trivial(outputs: Sequence[Value], inputs: Mapping[str, Value]) -> bool:
    """Tell whether outputs may come from a backend that computes nothing.

    Each of them is empty, zero, NaN, or an input.
    """
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    return len(arrays) == len(outputs) and all(
        _is_blank(value) or is_an_input(value, inputs) for value in arrays
    )


def is_an_input(value: Array, inputs: Mapping[str, Value]) -> bool:
    """Tell whether a tensor has the elements of an input, of any shape, or broadcast to its own."""
    return any(
        isinstance(given, np.ndarray)
        and given.dtype == value.dtype
        and (shaped := _shaped(given, value)) is not None
        and _same(value, shaped)
        for given in inputs.values()
    )


def _shaped(given: Array, value: Array) -> Array | None:
    """Give a tensor another's shape, if it has as many elements or can be broadcast to it."""
    if given.size == value.size:
        return given.reshape(value.shape)
    return np.broadcast_to(given, value.shape) if _broadcasts(given.shape, value.shape) else None


def _is_blank(value: Array) -> bool:
    def blank(part: Array) -> bool:
        return not part.any() or bool((part != part).all())  # noqa: PLR0124 - NaN of any type

    flat = value.reshape(-1)
    return blank(flat[:_FIRST]) and blank(flat)


def _same(one: Array, other: Array) -> bool:
    """Tell whether all elements are equal; NaN, of any type, equals NaN."""

    def same(first: Array, second: Array) -> bool:
        alike = (first == second) | ((first != first) & (second != second))  # noqa: PLR0124
        return bool(alike.all())

    first, second = one.reshape(-1), other.reshape(-1)
    return same(first[:_FIRST], second[:_FIRST]) and same(first, second)


_Built = tuple[Mapping[str, AttributeValue], list[Array], list[list[Array]]]


@dataclass(frozen=True, slots=True)
class _Given:
    """A node, taken apart as far as it can be.

    Attributes:
        attributes: those that the signature allows.
        operands: the inputs by the operator's names.
        groups: the number of tensors that are optimized.
    """

    operator: Operator
    node: onnx.NodeProto
    inputs: Mapping[str, Value]
    attributes: dict[str, AttributeValue] = field(init=False)
    operands: dict[str, Value] = field(init=False)
    groups: int = field(init=False)

    def __post_init__(self) -> None:
        operator, node = self.operator, self.node
        names = list(node.input)
        groups = group_count(operator, names)
        if not set(names) & set(operator.input_names(groups)):
            groups = max(1, (len(names) - len(operator.scalars)) // len(operator.tensors))
            names = operator.input_names(groups)
        values = [self.inputs.get(name) for name in node.input]
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "operands", dict(zip(names, values, strict=False)))
        object.__setattr__(self, "attributes", dict(_allowed(operator, node, groups)))

    def dtype(self, name: str, allowed: Sequence[str]) -> np.dtype[np.generic]:
        """Return the element type of an input, if that is allowed."""
        value = self.operands.get(name)
        own = dtype_name(value.dtype) if isinstance(value, np.ndarray) else ""
        return DTYPES[own if own in allowed else allowed[0]]


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


def _attempts(given: _Given) -> Iterator[_Built]:
    operator, author = given.operator, Author(given.operator)
    ordinary: Attributes = author.ordinary | {
        name: choices[0] for name, choices in author.choices.items()
    }
    kept = dict(given.attributes)
    missing = {it.name: ordinary[it.name] for it in operator.attributes if it.required}
    yield missing | kept, _scalars(given, keep=True), _tensors(given, author, keep=True)
    yield missing | kept, _scalars(given, keep=False), _tensors(given, author, keep=False)
    yield ordinary, _scalars(given, keep=False), _tensors(given, author, keep=False)


def _scalars(given: _Given, *, keep: bool) -> list[Array]:
    found = []
    for scalar in given.operator.scalars:
        value = given.operands.get(scalar.name)
        dtype = given.dtype(scalar.name, scalar.dtypes)
        fits = isinstance(value, np.ndarray) and value.dtype == dtype and value.size == 1
        found.append(value if keep and fits else _ordinary_scalar(given.operator, scalar, dtype))
    return [it for it in found if isinstance(it, np.ndarray)]


def _ordinary_scalar(operator: Operator, scalar: Scalar, dtype: np.dtype[np.generic]) -> Array:
    question = Author(operator).ask("", "")
    value = question.inputs[scalar.name]
    assert isinstance(value, np.ndarray)  # noqa: S101 - nothing was asked to be drawn
    return value.astype(dtype)


def _tensors(given: _Given, author: Author, *, keep: bool) -> list[list[Array]]:
    """Return the tensors of each group."""
    operator, groups = given.operator, given.groups
    numbered = operator.input_names(groups)[len(operator.scalars) :]
    rows: list[list[Array]] = []
    for group in range(groups):
        row: list[Array] = []
        for place, name in enumerate(operator.tensors):
            own = numbered[place * groups + group]
            value, dtype = given.operands.get(own), given.dtype(own, operator.dtypes)
            shape = row[0].shape if row else _SHAPE
            fits = (
                keep
                and isinstance(value, np.ndarray)
                and value.dtype == dtype
                and (not row or _broadcasts(value.shape, shape))
            )
            # Computing with an array without dimensions gives a number.
            row.append(np.asarray(value if fits else author.tensor(name, group, shape), dtype))
        rows.append(row)
    return rows


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _changed(
    attributes: Mapping[str, AttributeValue],
    scalars: list[Array],
    rows: list[list[Array]],
) -> _Built:
    with np.errstate(all="ignore"):
        return (
            attributes,
            scalars,
            [[np.asarray(it * _FACTOR, it.dtype) for it in row] for row in rows],
        )


def _plain(
    operator: Operator,
    attributes: Mapping[str, AttributeValue],
    scalars: list[Array],
    rows: list[list[Array]],
) -> PlainNode:
    operands = [*scalars, *(row[place] for place in range(len(operator.tensors)) for row in rows)]
    call = bind(operator, operands, complete_attributes(operator, attributes))
    model = formula_model(operator, attributes, operands, graph_name="plain")
    names = operator.input_names(len(rows))
    return PlainNode(model, dict(zip(names, operands, strict=True)), evaluate(call))
