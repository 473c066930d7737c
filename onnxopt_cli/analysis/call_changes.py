"""Changes of a single property of a call, such as an attribute, a type, a shape or a value class.

Each change leaves everything else equal. The changed calls need not be valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from onnxopt_cli.analysis.counterfactuals import SingleChange
from onnxopt_cli.analysis.node_changes import (
    ANY_INPUT,
    changes_without,
    constants,
    is_same,
    limited_magnitudes,
    without_values,
)
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.interpret.evaluate import nonnegative_tensors
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import AttributeValue

_Changes: TypeAlias = Iterator[SingleChange[Call[Array]]]
# Values of a scalar or attribute, by the kind of number.
_COUNTS = (0, 1, 2, 10)
_NUMBERS = (0.0, 1.0)
# Values of an attribute with limits, as fractions of the interval between the limits.
_SHARES = (0.25, 0.5, 0.75, 0.0, 1.0)
_LENGTHS = (1024, 64, 16, 8, 4)


def single_changes_of_call(call: Call[Array], kept: int) -> _Changes:
    """Yield the changes of a call, the most specific first.

    Args:
        call: the call.
        kept: the index of the group that remains if the others are left out.
    """
    names = call.operator.tensors
    with np.errstate(all="ignore"):
        for place, name in enumerate(names):
            yield from _values(call, place, name, without_values)
        if len(call.groups) > 1:
            yield SingleChange("number of tensors", "there is only one tensor", call.group(kept))
        yield from _types(call)
        yield from _attributes(call)
        # If a scalar is 0, the step often has no effect, so that most faults disappear.
        yield from _scalars(call)
        for place, name in enumerate(names):
            tensors = [group[place] for group in call.groups]
            for aspect, text, changed in _in_all(tensors, partial(limited_magnitudes, name)):
                yield SingleChange(aspect, text, _with_tensors(call, place, changed))
        yield from _in_all_operands(call)
        yield from _shapes(call)
        for place, name in enumerate(names):
            yield from _values(call, place, name, constants)


def _values(
    call: Call[Array],
    place: int,
    name: str,
    changes_of: Callable[[Array], Iterator[tuple[str, Array]]],
) -> _Changes:
    """Yield changes of the values of an operand, for example without NaN.

    Args:
        call: the call.
        place: the position of the operand among the tensors of a group.
        name: the name of the operand.
        changes_of: returns the changes of a tensor, each with a text in which {} is the name.
    """
    tensors = [group[place] for group in call.groups]
    is_nonnegative = name in nonnegative_tensors(call.operator)

    def changes(tensor: Array) -> Iterator[tuple[str, str, Array]]:
        for text, changed in changes_of(tensor) if tensor.size else ():
            if not (is_nonnegative and np.signbit(changed).any()):
                yield text, text.format(name), changed

    for _, text, changed in _in_all(tensors, changes):
        yield SingleChange(text, text, _with_tensors(call, place, changed))


def _in_all_operands(call: Call[Array]) -> _Changes:
    """Yield changes after which no operand has values of a class, or large or small numbers."""
    tensors = [tensor for group in call.groups for tensor in group if tensor.size]
    if len(tensors) < sum(map(len, call.groups)):
        return
    width = len(call.operator.tensors)
    has_nonnegative = bool(nonnegative_tensors(call.operator))
    for aspect, text, changed in _in_all(tensors, partial(changes_without, ANY_INPUT)):
        if has_nonnegative and "positive" in text:
            continue
        groups = tuple(
            tuple(changed[first : first + width]) for first in range(0, len(changed), width)
        )
        yield SingleChange(aspect, text, replace(call, groups=groups))


def _in_all(
    tensors: Sequence[Array], changes: Callable[[Array], Iterator[tuple[str, str, Array]]]
) -> Iterator[tuple[str, str, list[Array]]]:
    """Yield each change of any of several tensors, applied to all tensors that it changes.

    Args:
        tensors: the tensors.
        changes: returns the changes of a tensor: the aspect, the text and the changed tensor.
    """
    aspects: dict[str, str] = {}
    changed_by_text: dict[str, dict[int, Array]] = {}
    for number, tensor in enumerate(tensors):
        for aspect, text, changed in changes(tensor):
            if not is_same(changed, tensor):
                aspects[text] = aspect
                changed_by_text.setdefault(text, {})[number] = changed
    for text, changed_tensors in changed_by_text.items():
        merged = [changed_tensors.get(number, tensor) for number, tensor in enumerate(tensors)]
        yield aspects[text], text, merged


def _with_tensors(call: Call[Array], place: int, tensors: Sequence[Array]) -> Call[Array]:
    groups = [
        (*group[:place], tensor, *group[place + 1 :])
        for group, tensor in zip(call.groups, tensors, strict=True)
    ]
    return replace(call, groups=tuple(groups))


def _attributes(call: Call[Array]) -> _Changes:
    for item in call.operator.attributes:
        value = call.attributes[item.name]
        values: list[tuple[str, AttributeValue]] = []
        if item.choices:
            values += [(f"{item.name} is {choice}", choice) for choice in item.choices]
        elif isinstance(value, tuple):
            low, high = item.limits or (0.0, 1.0)
            if len(value) > 1:
                values.append((f"{item.name} has one value", value[:1]))
            for share in _SHARES:
                number = low + share * (high - low)
                values.append((f"all values of {item.name} are {number:g}", (number,) * len(value)))
        else:
            values += [(f"{item.name} is {number:g}", number) for number in _NUMBERS]
            values.append((f"{item.name} is not negative", abs(float(value))))
        for text, new in values:
            if new != value:
                attributes = {**call.attributes, item.name: new}
                omitted = call.omitted - {item.name}
                changed = replace(call, attributes=attributes, omitted=omitted)
                yield SingleChange(item.name, text, changed)


def _scalars(call: Call[Array]) -> _Changes:
    """Yield changes of the value, type or rank of a scalar."""
    for place, (item, scalar) in enumerate(zip(call.operator.scalars, call.scalars, strict=True)):
        is_float = scalar.dtype.kind == "f"
        changes: list[tuple[str, Array]] = [
            (f"{item.name} is {number:g}", np.full_like(scalar, number))
            for number in (_NUMBERS if is_float else _COUNTS)
        ]
        changes.append((f"{item.name} is not negative", np.asarray(np.abs(scalar))))
        if is_float:
            changes += [
                (f"{item.name} is {name}", scalar.astype(DTYPES[name])) for name in item.dtypes
            ]
        changes.append((f"{item.name} has no axes", scalar.reshape(())))
        for text, changed in changes:
            if not is_same(changed, scalar):
                scalars = (*call.scalars[:place], changed, *call.scalars[place + 1 :])
                yield SingleChange(item.name, text, replace(call, scalars=scalars))


def _types(call: Call[Array]) -> _Changes:
    for name in call.operator.dtypes:
        groups = tuple(
            tuple(tensor.astype(DTYPES[name]) for tensor in group) for group in call.groups
        )
        if any(tensor.dtype != DTYPES[name] for group in call.groups for tensor in group):
            yield SingleChange("types", f"all tensors are {name}", replace(call, groups=groups))
    first = [group[0].dtype for group in call.groups]
    if any(
        t.dtype != dtype for group, dtype in zip(call.groups, first, strict=True) for t in group
    ):
        groups = tuple(
            tuple(tensor.astype(group[0].dtype) for tensor in group) for group in call.groups
        )
        text = f"all operands have the type of {call.operator.tensors[0]}"
        yield SingleChange("types", text, replace(call, groups=groups))


def _shapes(call: Call[Array]) -> _Changes:
    full = tuple(
        tuple(np.ascontiguousarray(np.broadcast_to(tensor, group[0].shape)) for tensor in group)
        for group in call.groups
    )
    shapes = [tensor.shape for group in call.groups for tensor in group]
    if shapes != [tensor.shape for group in full for tensor in group]:
        text = f"all operands have the shape of {call.operator.tensors[0]}"
        yield SingleChange("shapes", text, replace(call, groups=full))
    if any(len(shape) > 1 for shape in shapes):
        flat = tuple(tuple(tensor.reshape(-1) for tensor in group) for group in full)
        yield SingleChange("rank", "all tensors have one axis", replace(call, groups=flat))
    if any(len(shape) != 2 for shape in shapes):  # noqa: PLR2004 - two axes
        columns = tuple(tuple(tensor.reshape(-1, 1) for tensor in group) for group in full)
        yield SingleChange("rank", "all tensors have two axes", replace(call, groups=columns))
    for limit in _LENGTHS:
        if any(length > limit for shape in shapes for length in shape):
            short = tuple(
                tuple(tensor[(slice(limit),) * tensor.ndim] for tensor in group)
                for group in call.groups
            )
            text = f"no axis is longer than {limit}"
            yield SingleChange("lengths", text, replace(call, groups=short))
