"""Examples of one node of an operator with a formula, right or with a broken signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.yaml.file import read_yaml_text
from onnxopt_cli.cases.yaml.writer import WrittenCase, yaml_text
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.formula.operator import AttributeValue, Operator
from onnxopt_cli.fuzz.choices import (
    Shape,
    Source,
    draw_attributes,
    draw_narrow_shape,
    draw_scalar,
    draw_shape,
    draw_tensor,
    has_result,
    rarely,
)
from onnxopt_cli.readings.evaluate import nonnegative_tensors

#: First part of the ids of kept cases.
SUITE = "fuzz"
#: Name of the only case in a file.
NAME = "found"


class Example(Protocol):
    """A model and its inputs."""

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators under test."""

    @property
    def subject(self) -> str:
        """The only operator, or what stands for several."""

    @property
    def breach(self) -> str:
        """How the signature is broken, in words; empty if a right backend accepts it."""

    def content(self) -> Content:
        """Return what ``onnxopt run`` would read from the files."""

    def files(self, stem: str, about: str, source: str) -> Mapping[str, bytes]:
        """Return the files of a case, by name.

        Args:
            stem: what all names begin with.
            about: what happened, one sentence.
            source: what found it.
        """


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


_GROUPS = (1, 1, 1, 2, 3)
#: About one example in so many breaks the signature.
_BREACHES = 8


@dataclass(frozen=True, slots=True, eq=False)
class NodeExample:
    """A node with its inputs; the formula knows the answer.

    Attributes:
        operator: the node's operator.
        attributes: those that the node gives.
        inputs: by the operator's names.
        broken: how the signature is then broken; None if it is not.
    """

    operator: Operator
    attributes: dict[str, AttributeValue]
    inputs: dict[str, Array]
    broken: Breach | None = None

    @property
    def operators(self) -> tuple[str, ...]:
        """The operator's name alone."""
        return (self.operator.name,)

    @property
    def subject(self) -> str:
        """The operator's name."""
        return self.operator.name

    @property
    def breach(self) -> str:
        """How the signature is broken, in words; empty if it is not."""
        return "" if self.broken is None else self.broken.name

    def content(self) -> Content:
        """Return what ``onnxopt run`` would read from the file."""
        if self.broken is not None:
            # Only what a file can say is an example.
            cases, problems = read_yaml_text(self._text("", ""), Path(f"{NAME}.yaml"))
            assert not problems, problems  # noqa: S101 - what we write, we read
            return cases[0].read()
        model = formula_model(
            self.operator, self.attributes, list(self.inputs.values()), graph_name=NAME
        )
        return Content(model, self.inputs, None)

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the case file."""
        return {f"{stem}.yaml": self._text(about, source).encode()}

    def _text(self, about: str, source: str) -> str:
        attributes, inputs = self.attributes, self.inputs
        if self.broken is not None:
            attributes, inputs = self.broken.apply(attributes, inputs)
        written = WrittenCase(
            name=NAME,
            about=about,
            source=source,
            inputs=inputs,
            attributes=attributes,
            rejects=self.broken is not None,
        )
        return yaml_text([written], suite=SUITE, operator=self.operator)


def draw_node(source: Source, operator: Operator) -> NodeExample:
    """Draw a node that a right backend accepts, or, now and then, one that it must refuse."""
    groups = source.choice(_GROUPS)
    attributes = draw_attributes(source, operator, groups)
    scalars = {scalar.name: draw_scalar(source, scalar) for scalar in operator.scalars}
    if not has_result(operator, attributes, scalars):
        source.reject()
    tensors = draw_groups(source, operator, [draw_shape(source) for _ in range(groups)])
    names = operator.input_names(groups)[len(scalars) :]
    inputs = scalars | dict(zip(names, tensors, strict=True))
    broken = source.choice(breaches(operator)) if rarely(source, _BREACHES) else None
    return NodeExample(operator, attributes, inputs, broken)


def draw_groups(source: Source, operator: Operator, shapes: list[Shape]) -> list[Array]:
    """Draw the tensors of a node in its order, given the shape of each group's first one."""
    dtypes = [DTYPES[name] for name in operator.dtypes]
    common = source.choice([*dtypes, None]) if len(dtypes) > 1 else dtypes[0]
    nonnegative = nonnegative_tensors(operator)
    narrow = rarely(source)
    tensors = []
    for name in operator.tensors:
        for shape in shapes:
            wide = not narrow or name == operator.tensors[0]
            own = shape if wide else draw_narrow_shape(source, shape)
            dtype = source.choice(dtypes) if common is None else common
            tensors.append(draw_tensor(source, own, dtype, nonnegative=name in nonnegative))
    return tensors
