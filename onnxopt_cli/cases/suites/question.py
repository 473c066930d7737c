"""A case as its author writes it down, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnxopt_cli.cases.values.tensor_random import RandomTensor
from onnxopt_cli.cases.yaml.written_steps import WrittenSteps
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.operator import AttributeValue, Operator

#: A tensor, or how to draw one.
Given = Array | RandomTensor


@dataclass(frozen=True, slots=True)
class Question:
    """What a case asks of an implementation; the formula knows the answer.

    Attributes:
        name: the case's name in its file.
        about: what it is there to catch, one sentence.
        operator: the operator.
        inputs: the node's inputs by the operator's names, in the specification's order.
        attributes: those that the node gives; it leaves out the others.
        source: where the numbers come from.
        tags: words to select by.
        notes: a comment above the case.
        onnx_names: names of the node's inputs in an ONNX directory, where they are other ones.
        rejects: True if a right implementation must refuse it; then there is no answer.
        steps: of a trajectory; the answer is then left to the formula.
    """

    name: str
    about: str
    operator: Operator
    inputs: Mapping[str, Given]
    attributes: Mapping[str, AttributeValue]
    source: str = ""
    tags: Sequence[str] = ()
    notes: str = ""
    onnx_names: Sequence[str] = field(default_factory=tuple)
    rejects: bool = False
    steps: WrittenSteps | None = None
