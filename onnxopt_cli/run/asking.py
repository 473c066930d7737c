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

from onnxopt_cli.cases.onnx.model_check import (
    contradicts,
    inferred_output,
    structure_fits,
)
from onnxopt_cli.config.run_config import Judging, ToleranceRule
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.compare import compare_outputs, largest_share
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.result import ABSOLUTE_ONLY
from onnxopt_cli.core.text import clipped
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Branch,
    Budget,
    Provenance,
    Relative,
    Tolerance,
)
from onnxopt_cli.core.values import Array, NumberKind, Value, describe, kind_of, structure_of
from onnxopt_cli.isolation.response import Order, Response
from onnxopt_cli.run.answer_key import Alternative, AnswerKey, tolerance_override

if TYPE_CHECKING:
    from onnxopt_cli.readings.conditioned.conditioned import Judgement, Reading
    from onnxopt_cli.run.answers import Answers

# Integers and booleans are equal where nothing else is right.
_ROUNDED = {NumberKind.FLOAT, NumberKind.COMPLEX}
# What is published in print has no more after the point.
_FEW_DIGITS = 6
# Characters of what a sequence consists of.
_MAX_STRUCTURE_CHARS = 200
#: Has a model run; what is returned waits for the response, or says why there is none.
Submit = Callable[[Order], Callable[[], Response | str]]
#: What a worker of ours runs.
ASKED = "python:onnxopt_cli.readings.conditioned.in_worker:Asked"
#: Under this key a model's metadata tell workers of ours what mathematics is declared.
DECLARED = "onnxopt.math"


@dataclass
class Asker:
    """Asks models; the first question starts a worker.

    Attributes:
        judging: how the user wants outputs to be judged.
        workers: returns what has a model asked, and starts a worker the first time; None as long
            as nobody can be asked.
    """

    judging: Judging
    workers: Callable[[], Submit] | None = None
    _answers: Answers | None = None

    def see_what_is_kept(self) -> None:
        """Look up what earlier runs have asked, while no backend can have written it."""
        if self._answers is None and self._may_ask:
            # Not worth importing for our own reference on its own formulas.
            from onnxopt_cli.run.answers import Answers

            self._answers = Answers()

    @property
    def _may_ask(self) -> bool:
        by_rule = self.judging.tolerance in (None, ToleranceRule.CONDITIONED)
        return by_rule and tolerance_override(self.judging) is None

    def ask(
        self, content: Content, key: AnswerKey, math: str = ""
    ) -> Callable[[], AnswerKey] | None:
        """Ask what is right of a case's outputs.

        Args:
            content: the case's content.
            key: what is known without asking.
            math: the mathematics that the backend declares.

        Returns:
            What waits for the answer and completes the key; None if there is nothing to ask.
        """
        if not self._may_ask:
            return None
        everything = self.judging.tolerance is ToleranceRule.CONDITIONED
        wanted = [it for it in key.outputs if everything or key.tolerances[it] is ONNX_DEFAULT]
        has_formula = key.formula is not None or content.trajectory is not None
        if not wanted or has_formula or self.workers is None:
            return None
        # Not worth importing where every case has a formula.
        from onnxopt_cli.readings.conditioned.distributions import drawn

        laws = drawn(content.model, content.inputs)
        if laws:
            chosen = {name: laws[name] for name in wanted}
            return lambda: replace(key, tolerances={**key.tolerances, **chosen})
        from onnxopt_cli.run.answers import question_key

        self.see_what_is_kept()
        answers = self._answers
        assert answers is not None  # noqa: S101 - seen just now
        model = _declaring(content.model, math)
        question = question_key(model, content.inputs)
        known = answers.get(question)
        if known is not None:
            return lambda: _completed(content, key, wanted, known)
        pending = self.workers()(Order(model, content.inputs))

        def completed() -> AnswerKey:
            response = pending()
            if isinstance(response, str):
                return _completed(content, key, wanted, response)
            if response.outputs is None:
                reason = f"asking ends in {response.failure}: {response.message}"
                return _completed(content, key, wanted, reason)
            answers.put(question, response.outputs)
            return _completed(content, key, wanted, response.outputs)

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
    from onnxopt_cli.readings.conditioned.conditioned import Judgement, Reading
    from onnxopt_cli.readings.conditioned.in_worker import readings

    if isinstance(answer, str):
        reason = answer
    else:
        try:
            found = readings(answer)
            counts = {len(it.judgements) for it in found}
            if counts == {outputs}:
                return found
            reason = f"onnx's reference yields {max(counts, default=0)} outputs"
        except ValueError as error:
            reason = str(error)
    return [Reading((), [Judgement(reason=reason)] * outputs)]


def _completed(
    content: Content, key: AnswerKey, wanted: list[str], answer: Sequence[Value] | str
) -> AnswerKey:
    """Return a key with what was answered to a question; or with why nothing was.

    Stored outputs that agree with any reading contradict nothing.
    """
    first, *others = _readings(answer, len(key.outputs))
    found = _of_reading(content, key, wanted, first.judgements)
    pure = [_whole_reading(key, wanted, it.judgements) for it in (first, *others)] if others else []
    if pure and pure[0] and any(it is not None and _agrees(key, it) for it in pure):
        found = pure[0]
    alternatives: list[Alternative] = []
    for reading, other in zip((first, *others), (found, *pure[1:]), strict=True):
        if other is None:
            continue
        note = f"contested: reading 2 of 2 ({'; '.join(reading.second)})" if reading.second else ""
        if reading.second:
            alternatives.append(Alternative(note, other, contested=True))
        if reading.laws:
            rough = f"{ABSOLUTE_ONLY} ({'; '.join(reading.laws)})"
            note = "; ".join(filter(None, (note, rough)))
            wider = _reformulated(other, reading.judgements)
            alternatives.append(Alternative(note, wider, contested=bool(reading.second)))
    return replace(found, alternatives=tuple(alternatives))


def _reformulated(key: AnswerKey, judgements: Sequence[Judgement]) -> AnswerKey:
    """Return a key that allows what identities make of its operators."""
    tolerances = {
        name: _budget(judgement.reformulated, judgement.units)
        if judgement.reformulated and isinstance(key.tolerances[name], Budget)
        else key.tolerances[name]
        for name, judgement in zip(key.outputs, judgements, strict=True)
    }
    return replace(key, tolerances=tolerances)


def _whole_reading(
    key: AnswerKey, wanted: list[str], judgements: Sequence[Judgement]
) -> AnswerKey | None:
    """Return a key by one reading alone, whatever is stored; None if it does not say all."""
    outputs, tolerances = dict(key.outputs), dict(key.tolerances)
    for name, judgement in zip(key.outputs, judgements, strict=True):
        if name in wanted:
            if judgement.reason:
                return None
            outputs[name] = judgement.right[0][0]
            tolerances[name] = _budget(judgement.right, judgement.units, judgement.labels)
    return replace(key, outputs=outputs, tolerances=tolerances)


def _agrees(key: AnswerKey, reading: AnswerKey) -> bool:
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
    content: Content, key: AnswerKey, wanted: list[str], judgements: Sequence[Judgement]
) -> AnswerKey:
    outputs, tolerances = dict(key.outputs), dict(key.tolerances)
    contradictions: list[Diff] = []
    for (name, stored), judgement in zip(key.outputs.items(), judgements, strict=True):
        if name not in wanted:
            continue
        own, reason = key.tolerances[name], judgement.reason
        if not _alike(stored, judgement):
            reason = _reference_fault(content, name, judgement)
            contradictions += [_other_structure(name, stored, judgement)] * (not reason)
        elif not reason:
            expected, tolerance = judgement.right[0][0], own
            rounded = kind_of(expected.dtype) in _ROUNDED
            if rounded or len(judgement.right) > 1:
                tolerance = _budget(judgement.right, judgement.units, judgement.labels)
            off = _wrong(expected, stored, tolerance)
            if off and judgement.reformulated:
                off = _wrong(expected, stored, _budget(judgement.reformulated, judgement.units))
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


def _alike(stored: Value, judgement: Judgement) -> bool:
    """Tell whether what is stored has the types and shapes that onnx's reference yields."""
    if judgement.right:
        return describe(stored) == describe(judgement.right[0][0])
    return judgement.structure is None or structure_of(stored) == judgement.structure


def _reference_fault(content: Content, name: str, judgement: Judgement) -> str:
    """Return in words that onnx's reference, not what is stored, contradicts onnx's inference.

    Returns:
        Empty if the inference says nothing of the kind: then what is stored is wrong, or the
        reference, and so is the case.
    """
    if not judgement.right:
        declared = {it.name: it.type for it in content.model.graph.output}[name]
        fits = structure_fits(judgement.structure, declared)
        return "" if fits else "onnx's reference yields no value of the declared type"
    inferred = inferred_output(content.model, content.inputs, name)
    if inferred is None or contradicts((content.expected or {}).get(name), inferred):
        return ""
    found = judgement.right[0][0]
    return f"onnx's reference yields {describe(found)}" if contradicts(found, inferred) else ""


def _other_structure(name: str, stored: Value, judgement: Judgement) -> Diff:
    if judgement.right:
        return Diff(name, describe(judgement.right[0][0]), structure=f"is {describe(stored)}")
    wanted, found = (
        clipped(json.dumps(it), _MAX_STRUCTURE_CHARS)
        for it in (judgement.structure, structure_of(stored))
    )
    return Diff(name, wanted, structure=f"consists of {found}")


def _budget(
    right: Sequence[tuple[Array, Array]], units: float, labels: Sequence[str] = ()
) -> Budget:
    branch = None
    labelled = zip(right, [*labels, *[""] * len(right)], strict=False)
    for (expected, limit), label in reversed(list(labelled)):
        branch = Branch(expected, limit, branch, label)
    assert branch is not None  # noqa: S101 - there is one where there is no reason
    return Budget(branch.at, units, Provenance.CONDITIONED)


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
