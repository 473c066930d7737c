"""Examples of one node of an operator with a formula."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.yaml.file import read_yaml_text
from onnxopt_cli.cases.yaml.writer import WrittenCase, yaml_text
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.formula.operator import AttributeValue, Operator
from onnxopt_cli.fuzz.breaches import Breach, breaches
from onnxopt_cli.fuzz.example import NAME, SUITE
from onnxopt_cli.fuzz.settings import draw_attributes, draw_scalar, has_result
from onnxopt_cli.fuzz.source import Source, rarely
from onnxopt_cli.fuzz.tensors import Shape, draw_narrow_shape, draw_shape, draw_tensor
from onnxopt_cli.readings.evaluate import nonnegative_tensors

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
