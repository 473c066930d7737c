"""Breaches of an operator's signature, which a right backend refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.operator import AttributeValue, Operator

T = TypeVar("T")
Inputs = dict[str, Array]
Attributes = dict[str, AttributeValue]
_Apply = Callable[[Attributes, Inputs], tuple[Attributes, Inputs]]


@dataclass(frozen=True, slots=True)
class Breach:
    """One way to break a signature.

    Attributes:
        name: what is wrong, in words.
        apply: breaks attributes and inputs, both by name.
    """

    name: str
    apply: _Apply


@cache
def breaches(operator: Operator) -> tuple[Breach, ...]:
    """Return the ways in which a node of the operator may break its signature."""
    found = [
        Breach(f"{item.name} has an unknown value", _attribute(item.name, "bogus"))
        for item in operator.attributes
        if item.choices
    ]
    found += [
        Breach(f"{item.name} is beyond its limits", _attribute(item.name, 2 * item.limits[1]))
        for item in operator.attributes
        if item.limits
    ]
    required = [item.name for item in operator.attributes if item.required]
    # Who refuses to go without one of them refuses to go without another.
    found += [Breach(f"{name} is left out", _without_attribute(name)) for name in required[:1]]
    found.append(Breach("an attribute is unknown", _attribute("bogus", 0.5)))
    if len(operator.tensors) > 1:
        last = operator.tensors[-1]
        found.append(Breach(f"a {last} is missing", _without_last))
        found.append(Breach(f"a {last} would enlarge {operator.tensors[0]}", _enlarged))
    found.append(Breach(f"{operator.tensors[0]} is an integer", _integer(len(operator.scalars))))
    return tuple(found)


def _attribute(name: str, value: float | str) -> _Apply:
    return lambda attributes, inputs: (attributes | {name: value}, inputs)


def _without_attribute(name: str) -> _Apply:
    return lambda attributes, inputs: (_without(attributes, name), inputs)


def _without_last(attributes: Attributes, inputs: Inputs) -> tuple[Attributes, Inputs]:
    return attributes, _without(inputs, list(inputs)[-1])


def _enlarged(attributes: Attributes, inputs: Inputs) -> tuple[Attributes, Inputs]:
    name, tensor = list(inputs.items())[-1]
    # One more dimension than any first tensor has.
    larger = np.zeros((2,) * (1 + max(array.ndim for array in inputs.values())), tensor.dtype)
    return attributes, inputs | {name: larger}


def _integer(place: int) -> _Apply:
    def apply(attributes: Attributes, inputs: Inputs) -> tuple[Attributes, Inputs]:
        name = list(inputs)[place]
        return attributes, inputs | {name: np.zeros(inputs[name].shape, np.int32)}

    return apply


def _without(mapping: Mapping[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in mapping.items() if key != name}
