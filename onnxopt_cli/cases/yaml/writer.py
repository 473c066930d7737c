"""Cases as the text of a YAML case file, for suites that are generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxopt_cli.cases.values.tensor_notation import (
    list_tokens,
    mapping_tokens,
    number_text,
    tensor_tokens,
    text_token,
)
from onnxopt_cli.cases.values.tensor_random import RandomTensor
from onnxopt_cli.cases.yaml.formula_case import default_dtype, group_count
from onnxopt_cli.cases.yaml.lines import comment, tolerance_tokens, words, wrapped
from onnxopt_cli.cases.yaml.written_steps import WrittenSteps, notation_tokens
from onnxopt_cli.core.tolerance import Relative, Ulps
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.operator import AttributeValue, Operator

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class WrittenCase:
    """A case of an operator with a formula, to be written.

    Attributes:
        name: unique in its file.
        inputs: by the operator's names; random data stay a notation.
        attributes: those that the node has; floats are written as the float32 they become.
        outputs: what is expected; None leaves it to the formula.
        about: what the case asks, one sentence.
        source: where the numbers come from.
        tags: words to select by.
        tolerance: for all outputs; None leaves it to be derived.
        rejects: True if a right backend must refuse the case.
        notes: a comment above the case.
        steps: of a trajectory; None for a single step.
    """

    name: str
    inputs: Mapping[str, Array | RandomTensor]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    outputs: Mapping[str, Array] | None = None
    about: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    tolerance: Relative | Ulps | None = None
    rejects: bool = False
    notes: str = ""
    steps: WrittenSteps | None = None


def yaml_text(
    cases: Sequence[WrittenCase],
    *,
    suite: str,
    operator: Operator,
    about: str = "",
    notes: str = "",
) -> str:
    """Write a case file; reading it gives the same cases, every array to the last bit.

    Args:
        cases: in the order of the file, at least one.
        suite: first part of their ids.
        operator: of all of them.
        about: what the file is for.
        notes: a comment at the top.
    """
    lines = [
        *comment(notes, ""),
        "onnxopt: 1",
        f"suite: {suite}",
        f"operator: {operator.name}",
        *words("", "about", about),
        "cases:",
    ]
    for number, case in enumerate(cases):
        lines += [""] * (number > 0)
        lines += _case_lines(case, operator)
    return "\n".join(lines) + "\n"


def _case_lines(case: WrittenCase, operator: Operator) -> list[str]:
    indent = " " * 4
    lines = [
        *comment(case.notes, "  "),
        f"  - name: {case.name}",
        *words(indent, "about", case.about),
        *words(indent, "source", case.source),
    ]
    if case.tags:
        lines += wrapped(f"{indent}tags: ", list_tokens([[tag] for tag in case.tags]))
    if case.rejects:
        lines.append(f"{indent}rejects: true")
    if case.attributes:
        fields = {name: _attribute_tokens(value) for name, value in case.attributes.items()}
        lines += wrapped(f"{indent}attributes: ", mapping_tokens(fields))
    lines += _tensor_lines(
        "inputs", case.inputs, {name: default_dtype(operator, name) for name in case.inputs}
    )
    if case.steps is not None:
        lines += _steps_lines(case.steps)
    if case.outputs is not None:
        lines += _tensor_lines("outputs", case.outputs, _output_dtypes(case, operator))
    if case.tolerance is not None:
        lines += wrapped(f"{indent}tolerance: ", tolerance_tokens(case.tolerance))
    return lines


def _tensor_lines(
    title: str,
    tensors: Mapping[str, Array | RandomTensor],
    defaults: Mapping[str, np.dtype[Any]],
) -> list[str]:
    lines = [f"    {title}:"]
    for name, tensor in tensors.items():
        lines += wrapped(f"      {name}: ", tensor_tokens(tensor, defaults[name]))
    return lines


def _steps_lines(steps: WrittenSteps) -> list[str]:
    lines = ["    steps:", f"      count: {steps.count}", "      inputs:"]
    for name, notation in steps.inputs.items():
        lines += wrapped(f"        {name}: ", notation_tokens(notation))
    return lines


def _output_dtypes(case: WrittenCase, operator: Operator) -> dict[str, np.dtype[Any]]:
    groups = group_count(operator, case.inputs)
    names = operator.input_names(groups)
    return {
        name: case.inputs[names[like]].dtype
        for name, (like, _) in zip(
            operator.output_names(groups), operator.places(groups), strict=True
        )
    }


def _attribute_tokens(value: AttributeValue) -> list[str]:
    if isinstance(value, tuple):
        return list_tokens([[_attribute_text(item)] for item in value])
    return [_attribute_text(value)]


def _attribute_text(value: float | str) -> str:
    if isinstance(value, str):
        return text_token(value)
    return number_text(value if isinstance(value, int) else float(_FLOAT32.type(value)), _FLOAT32)
