"""Asking models without a formula of ours what is right of their outputs, in workers of ours.

A model is not to be trusted: it may loop without end or fill the memory. So onnx's reference runs
it in a process of its own, under the limits of a backend's. What it takes too long or too much to
ask is judged by ONNX's tolerance, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from onnxopt_cli.backends.host import Request, Response
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import (
    contradicts,
    inferred_output,
    structure_fits,
)
from onnxopt_cli.config.run_config import Judging, ToleranceRule
from onnxopt_cli.core.compare import compare_outputs, largest_share
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.result import ABSOLUTE_ONLY
from onnxopt_cli.core.text import clipped
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Branch,
    ErrorBound,
    Provenance,
    Relative,
    Tolerance,
)
from onnxopt_cli.core.values import (
    Array,
    NumberKind,
    Value,
    describe,
    kind_of,
    structure_of,
)
from onnxopt_cli.oracle.expected import (
    Alternative,
    Expected,
    tolerance_override,
)

if TYPE_CHECKING:
    from onnxopt_cli.oracle.condition_estimate import ConditionedOutput, Reading
    from onnxopt_cli.oracle.oracle_cache import OracleCache

# Integers and booleans are equal where nothing else is right.
_ROUNDED = {NumberKind.FLOAT, NumberKind.COMPLEX}
# What is published in print has no more after the point.
_FEW_DIGITS = 6
# Characters of what a sequence consists of.
_MAX_STRUCTURE_CHARS = 200
#: Has a model run; what is returned waits for the response, or says why there is none.
Submit = Callable[[Request], Callable[[], Response | str]]
#: What a worker of ours runs.
REFERENCE_WORKER = "python:onnxopt_cli.oracle.reference_in_worker:ConditionedReference"
#: Under this key a model's metadata tell workers of ours what mathematics is declared.
DECLARED = "onnxopt.math"


@dataclass
class ReferenceOracle:
    """Asks models; the first question starts a worker.

    Attributes:
        judging: how the user wants outputs to be judged.
        workers: returns what has a model asked, and starts a worker the first time; None as long
            as nobody can be asked.
    """

    judging: Judging
    workers: Callable[[], Submit] | None = None
    _answers: OracleCache | None = None

    def open_cache(self) -> None:
        """Look up what earlier runs have asked, while no backend can have written it."""
        if self._answers is None and self._may_ask:
            # Not worth importing for our own reference on its own formulas.
            from onnxopt_cli.oracle.oracle_cache import OracleCache

            self._answers = OracleCache()

    @property
    def _may_ask(self) -> bool:
        by_rule = self.judging.tolerance in (None, ToleranceRule.CONDITIONED)
        return by_rule and tolerance_override(self.judging) is None

    def ask(self, problem: Problem, key: Expected, math: str = "") -> Callable[[], Expected] | None:
        """Ask what is right of a case's outputs.

        Args:
            problem: the case's problem.
            key: what is known without asking.
            math: the mathematics that the backend declares.

        Returns:
            What waits for the answer and completes the key; None if there is nothing to ask.
        """
        if not self._may_ask:
            return None
        everything = self.judging.tolerance is ToleranceRule.CONDITIONED
        wanted = [it for it in key.outputs if everything or key.tolerances[it] is ONNX_DEFAULT]
        has_formula = key.formula is not None or problem.trajectory is not None
        if not wanted or has_formula or self.workers is None:
            return None
        # Not worth importing where every case has a formula.
        from onnxopt_cli.oracle.distributions import drawn

        identities_used = drawn(problem.model, problem.inputs)
        if identities_used:
            chosen = {name: identities_used[name] for name in wanted}
            return lambda: replace(key, tolerances={**key.tolerances, **chosen})
        from onnxopt_cli.oracle.oracle_cache import question_key

        self.open_cache()
        answers = self._answers
        assert answers is not None  # noqa: S101 - seen just now
        model = _declaring(problem.model, math)
        question = question_key(model, problem.inputs)
        known = answers.get(question)
        if known is not None:
            return lambda: _completed(problem, key, wanted, known)
        pending = self.workers()(Request(model, problem.inputs))

        def completed() -> Expected:
            response = pending()
            if isinstance(response, str):
                return _completed(problem, key, wanted, response)
            if response.outputs is None:
                reason = f"asking ends in {response.failure}: {response.message}"
                return _completed(problem, key, wanted, reason)
            answers.put(question, response.outputs)
            return _completed(problem, key, wanted, response.outputs)

        return completed

    def close(self) -> None:
        """Let later runs find what has been asked."""
        if self._answers is not None:
            self._answers.close()


def _declaring(model: onnx.ModelProto, math: str) -> onnx.ModelProto:
    """Return a model whose metadata declare a backend's mathematics, whatever they say."""
    if not math and not any(it.key == DECLARED for it in model.metadata_props):
        return model
    declaring = onnx.ModelProto()
    declaring.CopyFrom(model)
    said = {it.key: it.value for it in model.metadata_props}
    onnx.helper.set_model_props(declaring, {**said, DECLARED: math})
    return declaring


def _readings(answer: Sequence[Value] | str, outputs: int) -> list[Reading]:
    """Return what an answer says of each output, by each reading; or why there is none, of each."""
    from onnxopt_cli.oracle.condition_estimate import ConditionedOutput, Reading
    from onnxopt_cli.oracle.reference_in_worker import readings

    if isinstance(answer, str):
        reason = answer
    else:
        try:
            found = readings(answer)
            counts = {len(it.conditioned_outputs) for it in found}
            if counts == {outputs}:
                return found
            reason = f"onnx's reference yields {max(counts, default=0)} outputs"
        except ValueError as error:
            reason = str(error)
    return [Reading((), [ConditionedOutput(reason=reason)] * outputs)]


def _completed(
    problem: Problem, key: Expected, wanted: list[str], answer: Sequence[Value] | str
) -> Expected:
    """Return a key with what was answered to a question; or with why nothing was.

    Stored outputs that agree with any reading contradict nothing.
    """
    first, *others = _readings(answer, len(key.outputs))
    found = _of_reading(problem, key, wanted, first.conditioned_outputs)
    pure = (
        [_whole_reading(key, wanted, it.conditioned_outputs) for it in (first, *others)]
        if others
        else []
    )
    if pure and pure[0] and any(it is not None and _agrees(key, it) for it in pure):
        found = pure[0]
    alternatives: list[Alternative] = []
    for reading, other in zip((first, *others), (found, *pure[1:]), strict=True):
        if other is None:
            continue
        note = f"contested: reading 2 of 2 ({'; '.join(reading.second)})" if reading.second else ""
        if reading.second:
            alternatives.append(Alternative(note, other, contested=True))
        if reading.identities_used:
            rough = f"{ABSOLUTE_ONLY} ({'; '.join(reading.identities_used)})"
            note = "; ".join(filter(None, (note, rough)))
            wider = _reformulated(other, reading.conditioned_outputs)
            alternatives.append(Alternative(note, wider, contested=bool(reading.second)))
    return replace(found, alternatives=tuple(alternatives))


def _reformulated(key: Expected, conditioned_outputs: Sequence[ConditionedOutput]) -> Expected:
    """Return a key that allows what identities make of its operators."""
    tolerances = {
        name: _error_bound(conditioned_output.reformulated, conditioned_output.units)
        if conditioned_output.reformulated and isinstance(key.tolerances[name], ErrorBound)
        else key.tolerances[name]
        for name, conditioned_output in zip(key.outputs, conditioned_outputs, strict=True)
    }
    return replace(key, tolerances=tolerances)


def _whole_reading(
    key: Expected, wanted: list[str], conditioned_outputs: Sequence[ConditionedOutput]
) -> Expected | None:
    """Return a key by one reading alone, whatever is stored; None if it does not say all."""
    outputs, tolerances = dict(key.outputs), dict(key.tolerances)
    for name, conditioned_output in zip(key.outputs, conditioned_outputs, strict=True):
        if name in wanted:
            if conditioned_output.reason:
                return None
            outputs[name] = conditioned_output.right[0][0]
            tolerances[name] = _error_bound(
                conditioned_output.right, conditioned_output.units, conditioned_output.labels
            )
    return replace(key, outputs=outputs, tolerances=tolerances)


def _agrees(key: Expected, reading: Expected) -> bool:
    """Tell whether all stored outputs agree with a reading, or are rounded for print."""
    return all(
        not isinstance(expected, np.ndarray)
        or not _wrong(expected, stored, reading.tolerances[name])
        or _of_few_digits(expected, stored)
        for (name, stored), expected in zip(
            key.outputs.items(), reading.outputs.values(), strict=True
        )
    )


def _of_reading(
    problem: Problem,
    key: Expected,
    wanted: list[str],
    conditioned_outputs: Sequence[ConditionedOutput],
) -> Expected:
    outputs, tolerances = dict(key.outputs), dict(key.tolerances)
    contradictions: list[Diff] = []
    for (name, stored), conditioned_output in zip(
        key.outputs.items(), conditioned_outputs, strict=True
    ):
        if name not in wanted:
            continue
        own, reason = key.tolerances[name], conditioned_output.reason
        if not _alike(stored, conditioned_output):
            reason = _reference_fault(problem, name, conditioned_output)
            contradictions += [_other_structure(name, stored, conditioned_output)] * (not reason)
        elif not reason:
            expected, tolerance = conditioned_output.right[0][0], own
            rounded = kind_of(expected.dtype) in _ROUNDED
            if rounded or len(conditioned_output.right) > 1:
                tolerance = _error_bound(
                    conditioned_output.right, conditioned_output.units, conditioned_output.labels
                )
            off = _wrong(expected, stored, tolerance)
            if off and conditioned_output.reformulated:
                off = _wrong(
                    expected,
                    stored,
                    _error_bound(conditioned_output.reformulated, conditioned_output.units),
                )
            far = off and rounded and _wrong(expected, stored, own)
            if off and not far and not _of_few_digits(expected, stored):
                reason = "what is stored and what onnx's reference yields differ beyond roundings"
            else:
                outputs[name], tolerances[name] = expected, tolerance
                if far:
                    diffs = compare_outputs({name: expected}, [stored], tolerances.__getitem__)
                    contradictions += diffs
        if reason and isinstance(own, Relative):
            tolerances[name] = replace(own, reason=reason)
    return replace(
        key, outputs=outputs, tolerances=tolerances, contradictions=tuple(contradictions)
    )


def _alike(stored: Value, conditioned_output: ConditionedOutput) -> bool:
    """Tell whether what is stored has the types and shapes that onnx's reference yields."""
    if conditioned_output.right:
        return describe(stored) == describe(conditioned_output.right[0][0])
    return (
        conditioned_output.structure is None or structure_of(stored) == conditioned_output.structure
    )


def _reference_fault(problem: Problem, name: str, conditioned_output: ConditionedOutput) -> str:
    """Return in words that onnx's reference, not what is stored, contradicts onnx's inference.

    Returns:
        Empty if the inference says nothing of the kind: then what is stored is wrong, or the
        reference, and so is the case.
    """
    if not conditioned_output.right:
        declared = {it.name: it.type for it in problem.model.graph.output}[name]
        fits = structure_fits(conditioned_output.structure, declared)
        return "" if fits else "onnx's reference yields no value of the declared type"
    inferred = inferred_output(problem.model, problem.inputs, name)
    if inferred is None or contradicts((problem.stored or {}).get(name), inferred):
        return ""
    found = conditioned_output.right[0][0]
    return f"onnx's reference yields {describe(found)}" if contradicts(found, inferred) else ""


def _other_structure(name: str, stored: Value, conditioned_output: ConditionedOutput) -> Diff:
    if conditioned_output.right:
        return Diff(
            name, describe(conditioned_output.right[0][0]), structure=f"is {describe(stored)}"
        )
    wanted, found = (
        clipped(json.dumps(it), _MAX_STRUCTURE_CHARS)
        for it in (conditioned_output.structure, structure_of(stored))
    )
    return Diff(name, wanted, structure=f"consists of {found}")


def _error_bound(
    right: Sequence[tuple[Array, Array]], units: float, labels: Sequence[str] = ()
) -> ErrorBound:
    branch = None
    labelled = zip(right, [*labels, *[""] * len(right)], strict=False)
    for (expected, limit), label in reversed(list(labelled)):
        branch = Branch(expected, limit, branch, label)
    assert branch is not None  # noqa: S101 - there is one where there is no reason
    return ErrorBound(branch.at, units, Provenance.CONDITIONED)


def _wrong(expected: Array, stored: Value, tolerance: Tolerance) -> bool:
    return largest_share({"": expected}, [stored], lambda _: tolerance) > 1


def _of_few_digits(expected: Array, stored: Value) -> bool:
    """Tell whether what is stored has few decimal digits, and is off by one of the last at most."""
    if not isinstance(stored, np.ndarray) or stored.dtype not in (np.float32, np.float64):
        return False
    return any(
        (np.round(stored, digits) == stored).all()
        and not _wrong(expected, stored, Relative(0.0, 10.0**-digits, Provenance.ONNX))
        for digits in range(_FEW_DIGITS)
    )
