"""Examples of one node of an operator with a formula, valid or with a broken signature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.yaml.case_file import read_yaml_text
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, yaml_text
from onnxopt_cli.core.values import DTYPES, Array
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
from onnxopt_cli.interpret.evaluate import nonnegative_tensors
from onnxopt_cli.operators.operator import AttributeValue, Operator

#: First part of the ids of cases that are written for findings.
SUITE = "fuzz"
#: Name of the only case in the file of a finding.
NAME = "found"


Inputs = dict[str, Array]
Attributes = dict[str, AttributeValue]

_GROUPS = (1, 1, 1, 2, 3)
# About one example in this number breaks the signature.
_EXAMPLES_PER_BREACH = 8


@dataclass(frozen=True, slots=True, eq=False)
class NodeExample:
    """A node with its inputs, whose expected outputs follow from the formula.

    The interface is that of :class:`~onnxopt_cli.fuzz.graph_example.GraphExample`.

    Attributes:
        operator: the node's operator.
        attributes: attributes of the node.
        inputs: inputs by the operator's names.
        breach: the key in :func:`breaches` of the way to break this node's signature; empty for a
            valid node.
    """

    operator: Operator
    attributes: Attributes
    inputs: Inputs
    breach: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """The name of the operator under test."""
        return (self.operator.name,)

    @property
    def subject(self) -> str:
        """The operator's name."""
        return self.operator.name

    def problem(self) -> Problem:
        """Return the problem that ``onnxopt run`` reads from the case's file."""
        if self.breach:
            # Reading the written text ensures that a case file can represent the example.
            cases, problems = read_yaml_text(self._text("", ""), Path(f"{NAME}.yaml"))
            assert not problems, problems  # noqa: S101 - the writer's text is valid
            return cases[0].load()
        model = formula_model(
            self.operator, self.attributes, list(self.inputs.values()), graph_name=NAME
        )
        return Problem(model, self.inputs, None)

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the files of the case by name; for this kind of example, a single file.

        Args:
            stem: stem of the file names.
            about: description of the failure in one sentence.
            source: the command that found the failure.
        """
        return {f"{stem}.yaml": self._text(about, source).encode()}

    def _text(self, about: str, source: str) -> str:
        attributes, inputs = self.attributes, self.inputs
        if self.breach:
            attributes, inputs = breaches(self)[self.breach]
        written = CaseTemplate(
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
    """Draw a node; about one in eight is invalid, and must be rejected by a correct backend."""
    node = draw_right_node(source, operator, source.choice(_GROUPS))
    if source.rarely(_EXAMPLES_PER_BREACH):
        return replace(node, breach=source.choice([*breaches(node)]))
    return node


def breaches(node: NodeExample) -> dict[str, tuple[Attributes, Inputs]]:
    """Return attributes and inputs that break a node's signature, by description."""
    operator, attributes, inputs = node.operator, node.attributes, node.inputs
    wrong_attributes: dict[str, Attributes] = {}
    for item in operator.attributes:
        if item.choices:
            changed = attributes | {item.name: "bogus"}
            wrong_attributes[f"{item.name} has an unknown value"] = changed
    for item in operator.attributes:
        if item.limits:
            changed = attributes | {item.name: 1 + item.limits[1] + abs(item.limits[1])}
            wrong_attributes[f"{item.name} is beyond its limits"] = changed
    # One missing attribute is enough: a backend that detects it most likely detects the others.
    for name in [item.name for item in operator.attributes if item.required][:1]:
        changed = {key: value for key, value in attributes.items() if key != name}
        wrong_attributes[f"{name} is left out"] = changed
    wrong_attributes["an attribute is unknown"] = attributes | {"bogus": 0.5}
    broken = {breach: (changed, inputs) for breach, changed in wrong_attributes.items()}
    if len(operator.tensors) > 1:
        last, (name, tensor) = operator.tensors[-1], list(inputs.items())[-1]
        fewer = {key: value for key, value in inputs.items() if key != name}
        broken[f"a {last} is missing"] = (attributes, fewer)
        # This shape has more dimensions than every input.
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
        source: source of the choices.
        operator: the node's operator.
        groups: number of groups of tensors.
        shape: shape of the first tensor of each group; None to draw it.
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
            tensor_shape = first if wide else draw_narrow_shape(source, first)
            dtype = source.choice(dtypes) if common is None else common
            tensor = draw_tensor(source, tensor_shape, dtype, nonnegative=name in nonnegative)
            inputs.append(tensor)
    names = operator.input_names(groups)
    return NodeExample(operator, attributes, dict(zip(names, inputs, strict=True)))
