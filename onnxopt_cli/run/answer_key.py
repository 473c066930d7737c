"""What must come back from a case, how far off it may be, whether the case contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from onnxopt_cli.core.case import Content
from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.tolerance import ONNX_DEFAULT, Tolerance
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import InvalidCase, NodeError, Problem
from onnxopt_cli.readings.bound.bound import FACTOR, DerivedOutput, bound
from onnxopt_cli.readings.single_node import sole_call


class ToleranceRule(StrEnum):
    """Which tolerance applies to all cases, whatever they say themselves."""

    DERIVED = "derived"
    ONNX = "onnx"


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """How the user wants outputs to be judged.

    Attributes:
        override: a tolerance from the command line, before all others.
        rule: a rule from the command line, before what cases say.
        factor: multiple of the rounding bound that a derived tolerance allows.
        signed_zeros: whether 0.0 and -0.0 differ.
    """

    override: Tolerance | None = None
    rule: ToleranceRule | None = None
    factor: float = FACTOR
    signed_zeros: bool = False


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The outputs to come, judged by their tolerances.

    Attributes:
        outputs: the expected values by name, in the graph's order.
        tolerances: a tolerance for each of them.
        contradictions: stored outputs that the formula rejects; not empty if the case is wrong.
        weak: number of elements that the case cannot judge, by output.
        weak_from: the first step of a trajectory that has such elements; None if there is none.
    """

    outputs: Mapping[str, Value]
    tolerances: Mapping[str, Tolerance]
    contradictions: tuple[Diff, ...] = ()
    weak: Mapping[str, int] = field(default_factory=dict)
    weak_from: int | None = None


def answer_key(content: Content, where: str, judging: JudgeOptions) -> AnswerKey:
    """Say what must come back from a case that a right backend accepts.

    Args:
        content: the case's content.
        where: the case's location, for messages.
        judging: how the user wants outputs to be judged.

    Raises:
        InvalidCase: if node and inputs break the operator's signature, or nothing says what the
            outputs are.
    """
    names = [output.name for output in content.model.graph.output]
    try:
        judgements = _judgements(content, names, judging.factor)
    except NodeError as error:
        raise InvalidCase([Problem(where, error.message)], hint=error.hint) from error
    if content.expected is None and not judgements:
        what = "the outputs are not given, and the model is not one node of an operator of ours"
        raise InvalidCase([Problem(where, what)])
    outputs: dict[str, Value] = {}
    tolerances: dict[str, Tolerance] = {}
    contradictions: list[Diff] = []
    for name in names:
        own = content.output_tolerances.get(name, content.tolerance)
        judgement = judgements.get(name)
        derived = None if judgement is None else judgement.budget
        tolerances[name] = _strongest(own, derived, judging)
        if content.expected is not None and name in content.expected:
            outputs[name] = content.expected[name]
        if judgement is None or derived is None:
            continue
        if name in outputs:
            contradictions += _contradiction(name, judgement.expected, outputs[name], derived, own)
        if name not in outputs or tolerances[name] is derived:
            # The budget lies around the formula's value, not around one that was stored rounded.
            outputs[name] = judgement.expected
    weak = {name: judgement.weak for name, judgement in judgements.items() if judgement.weak}
    weak_from = _first_weak(content, judgements)
    return AnswerKey(outputs, tolerances, tuple(contradictions), weak, weak_from)


def _judgements(content: Content, names: list[str], factor: float) -> Mapping[str, DerivedOutput]:
    """Return what the formula says of each output; nothing where no formula of ours applies."""
    if content.trajectory is not None:
        # Not worth importing for cases of one step.
        from onnxopt_cli.readings.bound.chained import bound_trajectory

        return bound_trajectory(content.trajectory, factor)
    call = sole_call(content.model, content.inputs)
    return {} if call is None else dict(zip(names, bound(call, factor), strict=True))


def _first_weak(content: Content, judgements: Mapping[str, DerivedOutput]) -> int | None:
    """Return the first step of a trajectory of which not everything can be judged."""
    if content.trajectory is None:
        return None
    recorded = content.trajectory.recorded
    rows = [it.weak_elements.reshape(len(recorded), -1).any(axis=1) for it in judgements.values()]
    weak = np.flatnonzero(np.any(rows, axis=0))
    return recorded[weak[0]] if weak.size else None


def _strongest(
    own: Tolerance | None, derived: Tolerance | None, judging: JudgeOptions
) -> Tolerance:
    if judging.override is not None:
        return judging.override
    if judging.rule is ToleranceRule.ONNX:
        return ONNX_DEFAULT
    if judging.rule is ToleranceRule.DERIVED and derived is not None:
        return derived
    return own or derived or ONNX_DEFAULT


def _contradiction(
    name: str, formula: Value, stored: Value, derived: Tolerance, own: Tolerance | None
) -> list[Diff]:
    """Compare a stored output with the formula's; a tolerance that accepts it is enough."""
    diffs: tuple[Diff, ...] = ()
    for tolerance in (derived, own):
        if tolerance is not None:
            diffs = compare_outputs({name: formula}, [stored], {name: tolerance}.__getitem__)
            if all(diff.agrees for diff in diffs):
                return []
    return [diff for diff in diffs if not diff.agrees]
