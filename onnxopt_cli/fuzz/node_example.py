"""Examples of one node of an operator with a formula, right or with a broken signature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.yaml.file import read_yaml_text
from onnxopt_cli.cases.yaml.writer import WrittenCase, yaml_text
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.formula.operator import AttributeValue, Operator
from onnxopt_cli.fuzz.choices import (
    SHAPES,
    Shape,
    Source,
    draw_attributes,
    draw_narrow_shape,
    draw_scalar,
    draw_tensor,
    has_result,
)
from onnxopt_cli.readings.evaluate import nonnegative_tensors

#: First part of the ids of kept cases.
SUITE = "fuzz"
#: Name of the only case in a file.
NAME = "found"


Inputs = dict[str, Array]
Attributes = dict[str, AttributeValue]

_GROUPS = (1, 1, 1, 2, 3)
#: About one example in so many breaks the signature.
_BREACHES = 8


@dataclass(frozen=True, slots=True, eq=False)
class NodeExample:
    """A node with its inputs; the formula knows the answer.

    It has what :class:`~onnxopt_cli.fuzz.graph_example.GraphExample` has for several nodes.

    Attributes:
        operator: the node's operator.
        attributes: those that the node gives.
        inputs: by the operator's names.
        breach: one of :func:`breaches` of this node, which is what is asked; or nothing.
    """

    operator: Operator
    attributes: Attributes
    inputs: Inputs
    breach: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """The operator under test, by its name."""
        return (self.operator.name,)

    @property
    def subject(self) -> str:
        """The operator's name."""
        return self.operator.name

    def content(self) -> Content:
        """Return what ``onnxopt run`` would read from the file."""
        if self.breach:
            # Only what a file can say is an example.
            cases, problems = read_yaml_text(self._text("", ""), Path(f"{NAME}.yaml"))
            assert not problems, problems  # noqa: S101 - what we write, we read
            return cases[0].read()
        model = formula_model(
            self.operator, self.attributes, list(self.inputs.values()), graph_name=NAME
        )
        return Content(model, self.inputs, None)

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the files of a case, by name: here one.

        Args:
            stem: what all names begin with.
            about: what happened, one sentence.
            source: what found it.
        """
        return {f"{stem}.yaml": self._text(about, source).encode()}

    def _text(self, about: str, source: str) -> str:
        attributes, inputs = self.attributes, self.inputs
        if self.breach:
            attributes, inputs = breaches(self)[self.breach]
        written = WrittenCase(
            name=NAME,
            operator=self.operator,
            about=about,
            source=source,
            inputs=inputs,
            attributes=attributes,
            rejects=bool(self.breach),
        )
        return yaml_text([written], suite=SUITE)


def draw_node(source: Source, operator: Operator) -> NodeExample:
    """Draw a node that a right backend accepts, or, now and then, one that it must refuse."""
    node = draw_right_node(source, operator, source.choice(_GROUPS))
    if source.rarely(_BREACHES):
        return replace(node, breach=source.choice([*breaches(node)]))
    return node


def breaches(node: NodeExample) -> dict[str, tuple[Attributes, Inputs]]:
    """Return the ways to break a node's signature, in words, each with what breaks it."""
    operator, attributes, inputs = node.operator, node.attributes, node.inputs
    found: dict[str, Attributes] = {}
    for item in operator.attributes:
        if item.choices:
            found[f"{item.name} has an unknown value"] = attributes | {item.name: "bogus"}
    for item in operator.attributes:
        if item.limits:
            beyond = attributes | {item.name: 1 + item.limits[1] + abs(item.limits[1])}
            found[f"{item.name} is beyond its limits"] = beyond
    # Who refuses to go without one of them refuses to go without another.
    for name in [item.name for item in operator.attributes if item.required][:1]:
        others = {key: value for key, value in attributes.items() if key != name}
        found[f"{name} is left out"] = others
    found["an attribute is unknown"] = attributes | {"bogus": 0.5}
    broken = {name: (given, inputs) for name, given in found.items()}
    if len(operator.tensors) > 1:
        last, (name, tensor) = operator.tensors[-1], list(inputs.items())[-1]
        fewer = {key: value for key, value in inputs.items() if key != name}
        broken[f"a {last} is missing"] = (attributes, fewer)
        # One more dimension than any first tensor has.
        shape = (2,) * (1 + max(array.ndim for array in inputs.values()))
        larger = inputs | {name: np.zeros(shape, tensor.dtype)}
        broken[f"a {last} would enlarge {operator.tensors[0]}"] = (attributes, larger)
    name, tensor = list(inputs.items())[len(operator.scalars)]
    integer = inputs | {name: np.zeros(tensor.shape, np.int32)}
    broken[f"{operator.tensors[0]} is an integer"] = (attributes, integer)
    return broken


def draw_right_node(
    source: Source, operator: Operator, groups: int, shape: Shape | None = None
) -> NodeExample:
    """Draw a node with a finite result.

    Args:
        source: of the choices.
        operator: the node's operator.
        groups: number of its groups of tensors.
        shape: of the first tensor of each; None to draw it.
    """
    attributes = draw_attributes(source, operator, groups)
    inputs = [draw_scalar(source, scalar) for scalar in operator.scalars]
    if not has_result(operator, attributes, inputs):
        source.reject()
    shapes = [source.choice(SHAPES) if shape is None else shape for _ in range(groups)]
    dtypes = [DTYPES[name] for name in operator.dtypes]
    common = source.choice([*dtypes, None]) if len(dtypes) > 1 else dtypes[0]
    nonnegative = nonnegative_tensors(operator)
    narrow = source.rarely()
    for name in operator.tensors:
        for first in shapes:
            wide = not narrow or name == operator.tensors[0]
            own = first if wide else draw_narrow_shape(source, first)
            dtype = source.choice(dtypes) if common is None else common
            inputs.append(draw_tensor(source, own, dtype, nonnegative=name in nonnegative))
    names = operator.input_names(groups)
    return NodeExample(operator, attributes, dict(zip(names, inputs, strict=True)))
