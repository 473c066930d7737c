"""Case templates of nodes that a backend must reject, because the nodes violate the signature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from onnxopt_cli.cases.case_template import Author
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TypedAttribute
from onnxopt_cli.operators.operator import Attribute, AttributeValue

#: Types of scalars. A type that the operator does not allow must be rejected.
_SCALAR_TYPES = ("int32", "uint64", "int16", "uint32", "float32", "float64", "int64", "float16")


def refusals(author: Author) -> Iterator[CaseTemplate]:
    """Yield shapes and attribute values that must be rejected."""
    ordinary = author.template("refused", "", shapes=[(3,)])
    pair = author.template("refused", "", shapes=[(3,), (3,)], turn=False)
    valid = dict(ordinary.attributes)
    refused = partial(rejected, ordinary)
    yield from _shape_refusals(author, ordinary, pair)
    for name, limits in author.limits.items():
        low, high = (max(0.5, abs(limit) / 1000) for limit in limits)
        beyond = {"low": limits[0] - low, "high": limits[1] + high, "nan": math.nan}
        for word, value in beyond.items():
            about = f"{name} = {value:g}: it must not be clipped or replaced."
            attributes = valid | {name: (value,) if name in author.each else value}
            yield refused(f"refuses_{word}_{name}", about, attributes=attributes)
        if name in author.each:
            about = f"{name} of the second tensor is too large: every value must be checked."
            attributes = valid | {name: (limits[1], beyond["high"])}
            yield rejected(pair, f"refuses_second_high_{name}", about, attributes=attributes)
    for name in author.each:
        number = author.within(name, 0.5)
        about = f"{name} has two numbers for one tensor: none of them may be ignored."
        attributes = valid | {name: (number, number)}
        yield refused(f"refuses_two_of_{name}", about, attributes=attributes)
    for name, right in author.settings[0].items():
        about = f"{name} has an invalid value: it must not be replaced by a valid one."
        wrong = {
            "unknown": "bogus", "longer": f"{right}s", "capital": right.capitalize(),
            "empty": "", "shorter": right[:-1], "initial": right[0], "upper": right.upper(),
            "space_before": f" {right}", "space_after": f"{right} ",
        }  # fmt: skip
        for word, text in wrong.items():
            attributes = valid | {name: text}
            yield refused(f"refuses_{word}_{name}", about, attributes=attributes)
    for item in author.operator.attributes:
        if item.required:
            about = f"{item.name} is missing and has no default: no value may be assumed."
            remaining = {name: value for name, value in valid.items() if name != item.name}
            yield refused(f"refuses_no_{item.name}", about, attributes=remaining)


def type_refusals(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield types, numbers and names that the signature forbids.

    Args:
        author: creates the operator's templates.
        thorough: whether each tensor is tested with every forbidden type, or with one of them.
    """
    ordinary = author.template("refused", "", shapes=[(3,)], turn=False)
    yield from _attribute_refusals(author, ordinary)
    yield from _input_refusals(author, ordinary, thorough=thorough)
    yield from _number_refusals(author, ordinary)


def _attribute_refusals(author: Author, ordinary: CaseTemplate) -> Iterator[CaseTemplate]:
    valid, refused = dict(ordinary.attributes), partial(rejected, ordinary)
    for word in ("unknown", f"{(author.numeric or ['rate'])[0]}_2"):
        about = f"An unknown attribute {word}: it must not be ignored."
        yield refused(f"refuses_attribute_{word}", about, attributes=valid | {word: 0.5})
    for item in author.operator.attributes:
        about = f"{item.name} has a wrong type: it must not be converted."
        wrong: AttributeValue = 1.0 if item.choices else "half"
        yield refused(f"refuses_type_of_{item.name}", about, attributes=valid | {item.name: wrong})
        for word, value in _wrong_types(item):
            about = f"{item.name} is an attribute of type {word}: it must not be converted."
            name = f"refuses_{word.lower()}_{item.name}"
            yield refused(name, about, attributes=valid | {item.name: value})
        if not item.each and not item.choices:
            two = valid | {item.name: (0.5, 0.25)}
            about = f"{item.name} is a list: none of its numbers may be chosen."
            yield refused(f"refuses_list_{item.name}", about, attributes=two)


def _wrong_types(item: Attribute) -> Iterator[tuple[str, Any]]:
    """Yield the names of types that an attribute does not have, each with a value of the type."""
    if item.choices:
        yield "STRINGS", TypedAttribute("STRINGS", (item.choices[0],))
        return
    yield "INT", TypedAttribute("INT", 1)
    if item.each:
        yield "FLOAT", TypedAttribute("FLOAT", 50.0)
        yield "INTS", TypedAttribute("INTS", (50,))


def _input_refusals(
    author: Author, ordinary: CaseTemplate, *, thorough: bool
) -> Iterator[CaseTemplate]:
    operator, inputs = author.operator, ordinary.inputs
    refused = partial(rejected, ordinary)
    for scalar in operator.scalars:
        value = np.asarray(inputs[scalar.name])
        for dtype in [type_name for type_name in _SCALAR_TYPES if type_name not in scalar.dtypes]:
            about = f"{scalar.name} is of type {dtype}: it must not be converted."
            converted = {**inputs, scalar.name: np.maximum(value, 1).astype(dtype)}
            yield refused(f"refuses_{dtype}_{scalar.name}", about, inputs=converted)
        about = f"{scalar.name} has no element: no value may be assumed."
        empty = {**inputs, scalar.name: np.zeros((0,), value.dtype)}
        yield refused(f"refuses_no_{scalar.name}", about, inputs=empty)
    forbidden = [name for name in ("float16", "int32", "int64") if name not in operator.dtypes]
    for place, tensor in enumerate(operator.tensors):
        first = place % max(len(forbidden), 1)
        for dtype in forbidden if thorough else forbidden[first : first + 1]:
            about = f"{tensor} is of type {dtype}: it must not be converted."
            converted = {**inputs, tensor: np.asarray(inputs[tensor]).astype(dtype)}
            yield refused(f"refuses_{dtype}_{tensor}", about, inputs=converted)


def _number_refusals(author: Author, ordinary: CaseTemplate) -> Iterator[CaseTemplate]:
    operator = author.operator
    pair = author.template("refused", "", shapes=[(3,), (3,)], turn=False)
    more = {f"left_over_{tensor}": np.full(3, 0.5, np.float32) for tensor in operator.tensors[1:]}
    for number in range(1, 1 + len(more)):
        some = dict([*more.items()][:number])
        about = f"{number} more inputs than the operator takes: none may be ignored."
        inputs = {**ordinary.inputs, **some}
        yield rejected(ordinary, f"refuses_left_over_{number}", about, inputs=inputs)
        about = f"{number} more inputs than two tensors take: none may be ignored."
        inputs = {**pair.inputs, **some}
        yield rejected(pair, f"refuses_left_over_{number}_of_two", about, inputs=inputs)
    if operator.scalars:
        about = "No tensor: the node must be rejected."
        scalars = {scalar.name: ordinary.inputs[scalar.name] for scalar in operator.scalars}
        yield rejected(ordinary, "refuses_no_tensors", about, inputs=scalars)
    third = author.template("refused", "", shapes=[(3,), (3,), (3,)], turn=False)
    for name, (word, count) in product(author.each, (("two", 2), ("four", 4))):
        about = f"{name} has {word} numbers for three tensors: none may be added or ignored."
        attributes = dict(third.attributes) | {name: (author.within(name, 0.5),) * count}
        yield rejected(third, f"refuses_{word}_of_{name}_for_three", about, attributes=attributes)


def _shape_refusals(
    author: Author, ordinary: CaseTemplate, pair: CaseTemplate
) -> Iterator[CaseTemplate]:
    inputs = ordinary.inputs
    if author.stepped:
        first, last, (*_, second) = author.first, author.stepped[-1], pair.inputs
        wide, higher = (np.full(shape, 0.5, np.float32) for shape in ((2, 3), (1, 3)))
        short = {name: value for name, value in inputs.items() if name != last}
        about = f"{last} is missing: no value may be assumed."
        yield rejected(ordinary, "refuses_short", about, inputs=short)
        about = f"{last} would enlarge {first}: {first}'s shape must not change."
        yield rejected(ordinary, "refuses_enlarging", about, inputs={**inputs, last: wide})
        about = f"{last} has an additional dimension of 1: {first}'s rank must not change."
        yield rejected(ordinary, "refuses_rank", about, inputs={**inputs, last: higher})
        about = f"{second} would enlarge {first}2: every tensor must be checked."
        enlarged = {**pair.inputs, second: wide}
        yield rejected(pair, "refuses_enlarging_second", about, inputs=enlarged)
    for scalar in author.operator.scalars:
        about = f"{scalar.name} has two elements: none of them may be chosen."
        two = {**inputs, scalar.name: np.resize(np.asarray(inputs[scalar.name]), 2)}
        yield rejected(ordinary, f"refuses_two_{scalar.name}", about, inputs=two)


def rejected(template: CaseTemplate, name: str, about: str, **changed: Any) -> CaseTemplate:
    """Return a template that a backend must reject, with the given fields changed."""
    tags = ("conformance", "refusal")
    return replace(template, name=name, about=about, tags=tags, rejects=True, **changed)
