"""Examples of one node of an operator with a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxopt_cli.cases.node_model import formula_model
from onnxopt_cli.cases.yaml_file import read_yaml_text
from onnxopt_cli.cases.yaml_writer import WrittenCase, yaml_text
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.operators.operator import AttributeValue, Operator
from onnxopt_cli.readings.domain import nonnegative_tensors
from onnxopt_cli.run.fuzzing.breaches import breaches
from onnxopt_cli.run.fuzzing.example import NAME, SUITE
from onnxopt_cli.run.fuzzing.settings import draw_attributes, draw_scalar, has_result
from onnxopt_cli.run.fuzzing.source import Source, rarely
from onnxopt_cli.run.fuzzing.tensors import Shape, draw_narrow_shape, draw_shape, draw_tensor

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
        breach: how the signature is broken, in words; empty if it is not.
    """

    operator: Operator
    attributes: Mapping[str, AttributeValue]
    inputs: Mapping[str, Array]
    breach: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """The operator's name alone."""
        return (self.operator.name,)

    @property
    def subject(self) -> str:
        """The operator's name."""
        return self.operator.name

    def content(self) -> Content:
        """Return what ``onnxopt run`` would read from the file."""
        if self.breach:
            # Only what a file can say is an example.
            cases, problems = read_yaml_text(self._text(""), Path(f"{NAME}.yaml"))
            assert not problems, problems  # noqa: S101 - what we write, we read
            return cases[0].read()
        model = formula_model(
            self.operator, self.attributes, list(self.inputs.values()), graph_name=NAME
        )
        return Content(model, self.inputs, None)

    def files(self, stem: str, about: str) -> dict[str, bytes]:
        """Return the case file."""
        return {f"{stem}.yaml": self._text(about).encode()}

    def _text(self, about: str) -> str:
        written = WrittenCase(
            name=NAME,
            about=about,
            inputs=self.inputs,
            attributes=self.attributes,
            rejects=bool(self.breach),
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
    if not rarely(source, _BREACHES):
        return NodeExample(operator, attributes, inputs)
    breach = source.choice(breaches(operator))
    broken_attributes, broken_inputs = breach.apply(attributes, inputs)
    return NodeExample(operator, broken_attributes, broken_inputs, breach.name)


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
