"""The reference oracle: expected results and condition estimates of models without a formula.

A model is not trusted, because it may loop forever or exhaust the memory. Therefore onnx's
reference runs the model in a worker with the limits of a backend. If the estimate exceeds a limit,
the outputs are judged by ONNX's default tolerance, and the result states the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnx

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import (
    contradicts,
    inferred_output,
    input_fault,
    model_fault,
    structure_fits,
)
from onnxopt_cli.config.run_config import Judging, ToleranceRule
from onnxopt_cli.core.compare import compare_outputs, largest_share
from onnxopt_cli.core.result import ABSOLUTE_ONLY, Diff, Outcome
from onnxopt_cli.core.text import clipped
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Branch,
    ErrorBound,
    NumberText,
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
from onnxopt_cli.operators.call import breaks_signature
from onnxopt_cli.oracle.expected import (
    Expected,
    PendingExpected,
    stored_outputs,
    tolerance_override,
)
from onnxopt_cli.oracle.number_texts import number_texts

if TYPE_CHECKING:
    from onnxopt_cli.oracle.estimate.condition_estimate import Reading
    from onnxopt_cli.oracle.estimate.conditioned_outputs import ConditionedOutput
    from onnxopt_cli.oracle.oracle_cache import OracleCache

# Kinds of outputs that have rounding errors. Outputs of other kinds must equal the expected
# outputs.
_ROUNDED = {NumberKind.FLOAT, NumberKind.COMPLEX}
# A stored output counts as rounded for printing if all its elements have fewer than this number of
# decimals.
_MAX_PRINTED_DECIMALS = 6
_MAX_STRUCTURE_CHARS = 200
_CONTRADICTION = (
    "the stored outputs differ from onnx's corrected reference in double precision by more than "
    "rounding: one of the two is wrong"
)
_TIMED_OUT = f"its condition estimate ends in {Outcome.TIMEOUT}"
_MISSING_OUTPUTS = "store the outputs in a test directory"
_MORE_TIME = "allow more time with --timeout"
_MISSING_OPERATOR = "define the operator in a file for --operators"
#: The backend that runs in the oracle's workers.
REFERENCE_WORKER = "python:onnxopt_cli.oracle.reference_in_worker:ConditionedReference"
#: The key in a model's metadata for the arithmetic that a backend declares by the option ``math``.
DECLARED = "onnxopt.math"


class ReferenceResponse(Protocol):
    """The response of a worker of the reference oracle."""

    @property
    def outputs(self) -> list[Value] | None:
        """The outputs in the graph's order; None after a failure."""

    @property
    def failure(self) -> Outcome | None:
        """The kind of failure; None if the worker returned outputs."""

    @property
    def message(self) -> str:
        """The reason for the failure."""


#: Submits a model and its inputs, and returns a function that waits for the response. If the
#: response is missing, that function returns the reason as a text.
Submit = Callable[[onnx.ModelProto, Mapping[str, Value]], Callable[[], ReferenceResponse | str]]


@dataclass
class ReferenceOracle:
    """An oracle that computes outputs and tolerances by condition estimates.

    Attributes:
        judging: how outputs are judged.
        workers: returns the function that submits models. The first call starts a worker. None if
            the oracle has no workers.
    """

    judging: Judging
    workers: Callable[[], Submit] | None = None
    _cache: OracleCache | None = None

    def open_cache(self) -> OracleCache:
        """Return the cache.

        Open the cache before any backend starts: the keys of its entries contain a digest of the
        code, and a backend could change the code.
        """
        if self._cache is None:
            # The import is late because runs of the NumPy reference on formulas do not need the
            # module.
            from onnxopt_cli.oracle.oracle_cache import OracleCache

            self._cache = OracleCache()
        return self._cache

    @property
    def estimates(self) -> bool:
        """Whether the settings require condition estimates."""
        by_rule = self.judging.tolerance in (None, ToleranceRule.CONDITIONED)
        return by_rule and tolerance_override(self.judging) is None

    def expected(self, problem: Problem, math: str = "") -> Expected | PendingExpected | None:
        """Submit the condition estimate of a case's outputs to a worker.

        Args:
            problem: the problem of the case.
            math: the ``math`` option of the backend.

        Returns:
            One of three objects: a function that waits for the estimate and returns the expected
            result; the expected result itself, if the case is invalid or its outputs are random, so
            that no estimate is needed; or None, if all outputs are stored and none needs an
            estimate.
        """
        stored = stored_outputs(problem, self.judging)
        if stored.invalid:
            return stored
        names = self._estimated_names(stored)
        if self.workers is None or (problem.stored is not None and not names):
            return None
        # The import is late because runs in which every case has a formula do not need the module.
        from onnxopt_cli.oracle.distributions import drawn

        if distributions := drawn(problem.model, problem.inputs):
            if problem.stored is None:
                return _uncomputed(problem, "its values are random")
            tolerances = {name: distributions[name] for name in names}
            return replace(stored, tolerances={**stored.tolerances, **tolerances})
        from onnxopt_cli.oracle.oracle_cache import estimate_key

        estimates = self.open_cache()
        model = _declaring(problem.model, math)
        key = estimate_key(model, problem.inputs)
        cached = estimates.get(key)
        if cached is not None:
            return cache(partial(_completed, problem, stored, names, cached))
        pending = self.workers()(model, problem.inputs)

        def completed() -> Expected:
            response = pending()
            if isinstance(response, str):
                return _completed(problem, stored, names, response)
            if response.outputs is None:
                reason = f"its condition estimate ends in {response.failure}: {response.message}"
                return _completed(problem, stored, names, reason)
            estimates.put(key, response.outputs)
            return _completed(problem, stored, names, response.outputs)

        return cache(completed)

    def known(self, problem: Problem) -> Expected | None:
        """Return the expected result of a case if its estimate is in the cache; otherwise None."""
        from onnxopt_cli.oracle.oracle_cache import estimate_key

        stored = stored_outputs(problem, self.judging)
        estimate = self.open_cache().get(estimate_key(problem.model, problem.inputs))
        if stored.invalid or estimate is None:
            return None
        return _completed(problem, stored, self._estimated_names(stored), estimate)

    def _estimated_names(self, stored: Expected) -> list[str]:
        """Return the names of the stored outputs that need a condition estimate."""
        everything = self.judging.tolerance is ToleranceRule.CONDITIONED
        return [
            name
            for name in stored.outputs
            if self.estimates
            and not isinstance(tolerance := stored.tolerances[name], NumberText)
            and (everything or tolerance is ONNX_DEFAULT)
        ]

    def close(self) -> None:
        """Write the cache for later runs."""
        if self._cache is not None:
            self._cache.close()


def estimated_here(problem: Problem) -> Expected:
    """Return the expected result of a trusted case with stored outputs and without a formula.

    The condition is estimated in this process, so the model must be trusted.
    """
    from onnxopt_cli.oracle.reference_in_worker import ConditionedReference

    stored = dict(problem.stored or {})
    texts = number_texts(problem.model, problem.inputs)
    expected = Expected(stored, {name: texts.get(name) or ONNX_DEFAULT for name in stored})
    estimate = ConditionedReference().run(problem.model, problem.inputs)
    return _completed(problem, expected, [name for name in stored if name not in texts], estimate)


def _declaring(model: onnx.ModelProto, math: str) -> onnx.ModelProto:
    """Return a model whose metadata declare the arithmetic of a backend and no other arithmetic."""
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    if not math and DECLARED not in metadata:
        return model
    declaring = onnx.ModelProto()
    declaring.CopyFrom(model)
    onnx.helper.set_model_props(declaring, {**metadata, DECLARED: math})
    return declaring


def _readings(estimate: Sequence[Value] | str, outputs: int) -> list[Reading]:
    """Return the readings of an estimate; if it is missing, one reading that states the reason."""
    from onnxopt_cli.oracle.estimate.condition_estimate import Reading
    from onnxopt_cli.oracle.estimate.conditioned_outputs import ConditionedOutput
    from onnxopt_cli.oracle.reference_in_worker import readings

    if isinstance(estimate, str):
        reason = estimate
    else:
        try:
            by_reading = readings(estimate)
            counts = {len(reading.conditioned_outputs) for reading in by_reading}
            if counts == {outputs}:
                return by_reading
            reason = f"onnx's reference yields {max(counts, default=0)} outputs"
        except ValueError as error:
            reason = str(error)
    return [Reading((), [ConditionedOutput(reason=reason)] * outputs)]


def _uncomputed(problem: Problem, reason: str, name: str = "") -> Expected:
    """Return the expected result of a case whose outputs are not stored and cannot be computed.

    The case is at fault if its node breaks the signature of an operator, if onnx rejects its model
    or inputs, or if onnx's corrected reference rejects the operands of a node. Otherwise, the
    result states that onnxopt cannot compute the outputs.
    """
    model, inputs = problem.model, problem.inputs
    output = f"the output {name!r}" if name else "an output"
    message = f"expected result: {output} cannot be computed: {reason}"
    from onnxopt_cli.oracle.estimate.condition_estimate import REJECTED
    from onnxopt_cli.oracle.estimate.reference_values import UNIMPLEMENTED

    if breaks_signature(model, inputs):
        return Expected({}, {}, message)
    if fault := model_fault(model) or input_fault(model, inputs):
        return Expected({}, {}, f"{message}; onnx rejects the model: {fault}")
    if reason.startswith(REJECTED):
        return Expected({}, {}, f"{message}; if the operands are valid, {_MISSING_OUTPUTS}")
    remedy = _MISSING_OUTPUTS
    if reason.startswith(UNIMPLEMENTED):
        remedy = f"{_MISSING_OPERATOR}, or {_MISSING_OUTPUTS}"
    elif reason.startswith(_TIMED_OUT):
        remedy = f"{_MORE_TIME}, or {_MISSING_OUTPUTS}"
    return Expected({}, {}, unknown=f"{message}; {remedy}")


def _completed(
    problem: Problem, expected: Expected, names: list[str], estimate: Sequence[Value] | str
) -> Expected:
    """Return an expected result with the condition estimate of some outputs.

    A reading is the result for one answer to each question that published sources answer
    differently. A stored output that agrees with any reading does not contradict the reference. An
    output that the case does not store gets the value of the first reading.

    Args:
        problem: the case's problem.
        expected: the expected result without an estimate.
        names: names of the outputs with an estimate.
        estimate: the estimate; if it is missing, the reason.
    """
    from onnxopt_cli.oracle.excluded_inputs import EXCLUDED

    readings = _readings(estimate, len(expected.outputs))
    for conditioned_output in readings[0].conditioned_outputs:
        if conditioned_output.reason.startswith(EXCLUDED):
            return Expected({}, {}, conditioned_output.reason)
    return _of_readings(problem, expected, names, readings)


def _of_readings(
    problem: Problem, expected: Expected, names: list[str], readings: Sequence[Reading]
) -> Expected:
    """Return an expected result with the estimates of all readings; see :func:`_completed`."""
    first, *further = readings
    if problem.stored is None:
        outputs: dict[str, Value] = {}
        for name, conditioned_output in zip(
            expected.outputs, first.conditioned_outputs, strict=True
        ):
            if reason := _unusable_output(problem, name, conditioned_output):
                return _uncomputed(problem, reason, name)
            outputs[name] = conditioned_output.right[0][0]
        expected = replace(expected, outputs=outputs)
    completed = _of_reading(problem, expected, names, first.conditioned_outputs)
    by_reading: list[Expected | None] = []
    if further:
        by_reading = [
            _whole_reading(expected, names, reading.conditioned_outputs)
            for reading in (first, *further)
        ]
        agrees = any(result is not None and _agrees(expected, result) for result in by_reading)
        if by_reading[0] and agrees:
            completed = by_reading[0]
    alternatives: list[Expected] = []
    for reading, result in zip((first, *further), (completed, *by_reading[1:]), strict=True):
        if result is None:
            continue
        note = f"contested: reading 2 of 2 ({'; '.join(reading.second)})" if reading.second else ""
        if reading.second:
            alternatives.append(replace(result, note=note, contested=True))
        if reading.identities_used:
            identities = f"{ABSOLUTE_ONLY} ({'; '.join(reading.identities_used)})"
            note = "; ".join(filter(None, (note, identities)))
            reformulated = _reformulated(result, reading.conditioned_outputs)
            contested = bool(reading.second)
            alternatives.append(replace(reformulated, note=note, contested=contested))
    return replace(completed, alternatives=tuple(alternatives))


def _unusable_output(problem: Problem, name: str, conditioned_output: ConditionedOutput) -> str:
    """Return why an estimate yields no expected output; empty if the estimate yields one.

    Some operators of onnx's reference return a type or shape other than the one that onnx infers.
    """
    if not conditioned_output.right:
        return conditioned_output.reason
    value = conditioned_output.right[0][0]
    inferred = inferred_output(problem.model, problem.inputs, name)
    if inferred is None or not contradicts(value, inferred):
        return ""
    return f"onnx's reference yields {describe(value)}, and onnx infers another type or shape"


def _reformulated(expected: Expected, conditioned_outputs: Sequence[ConditionedOutput]) -> Expected:
    """Return an expected result with tolerances that allow for the accepted reformulations."""
    tolerances = {
        name: _error_bound(conditioned_output.reformulated, conditioned_output.units)
        if conditioned_output.reformulated and isinstance(expected.tolerances[name], ErrorBound)
        else expected.tolerances[name]
        for name, conditioned_output in zip(expected.outputs, conditioned_outputs, strict=True)
    }
    return replace(expected, tolerances=tolerances)


def _whole_reading(
    expected: Expected, names: list[str], conditioned_outputs: Sequence[ConditionedOutput]
) -> Expected | None:
    """Return the expected result of one reading, without regard to stored outputs.

    The result is None if any output has no estimate.
    """
    outputs, tolerances = dict(expected.outputs), dict(expected.tolerances)
    for name, conditioned_output in zip(expected.outputs, conditioned_outputs, strict=True):
        if name in names:
            if conditioned_output.reason:
                return None
            outputs[name] = conditioned_output.right[0][0]
            tolerances[name] = _error_bound(
                conditioned_output.right, conditioned_output.units, conditioned_output.labels
            )
    return replace(expected, outputs=outputs, tolerances=tolerances)


def _agrees(expected: Expected, reading: Expected) -> bool:
    """Return whether each stored output agrees with a reading, or is rounded for printing."""
    return all(
        not isinstance(value, np.ndarray)
        or not _is_wrong(value, stored, reading.tolerances[name])
        or _is_printed(value, stored)
        for (name, stored), value in zip(
            expected.outputs.items(), reading.outputs.values(), strict=True
        )
    )


def _of_reading(
    problem: Problem,
    expected: Expected,
    names: list[str],
    conditioned_outputs: Sequence[ConditionedOutput],
) -> Expected:
    """Return an expected result with the estimate of one reading.

    A stored output contradicts the reference if it differs from the reference's output by more than
    the tolerance of the case. If the difference is within this tolerance, but larger than rounding,
    backends are judged by the tolerance of the case, and its ``reason`` states why.
    """
    outputs, tolerances = dict(expected.outputs), dict(expected.tolerances)
    contradictions: list[Diff] = []
    for (name, stored), conditioned_output in zip(
        expected.outputs.items(), conditioned_outputs, strict=True
    ):
        if name not in names:
            continue
        stated, reason = expected.tolerances[name], conditioned_output.reason
        if not _has_structure(stored, conditioned_output):
            reason = _reference_fault(problem, name, conditioned_output)
            if not reason:
                contradictions.append(_other_structure(name, stored, conditioned_output))
        elif not reason:
            value, tolerance = conditioned_output.right[0][0], stated
            is_rounded = kind_of(value.dtype) in _ROUNDED
            if is_rounded or len(conditioned_output.right) > 1:
                tolerance = _error_bound(
                    conditioned_output.right, conditioned_output.units, conditioned_output.labels
                )
            differs = _is_wrong(value, stored, tolerance) and not _is_reformulation(
                value, stored, conditioned_output
            )
            contradicts_stated = differs and is_rounded and _is_wrong(value, stored, stated)
            if differs and not contradicts_stated and not _is_printed(value, stored):
                reason = "the stored output differs from onnx's reference by more than rounding"
            else:
                outputs[name], tolerances[name] = value, tolerance
                if contradicts_stated:
                    contradictions += compare_outputs(
                        {name: value}, [stored], tolerances.__getitem__
                    )
        if reason and isinstance(stated, Relative):
            tolerances[name] = replace(stated, reason=reason)
    return Expected(
        outputs,
        tolerances,
        invalid=_CONTRADICTION if contradictions else "",
        contradictions=tuple(contradictions),
    )


def _has_structure(stored: Value, conditioned_output: ConditionedOutput) -> bool:
    """Return whether a stored output has the types and shapes of the reference's output."""
    if conditioned_output.right:
        return describe(stored) == describe(conditioned_output.right[0][0])
    return (
        conditioned_output.structure is None or structure_of(stored) == conditioned_output.structure
    )


def _reference_fault(problem: Problem, name: str, conditioned_output: ConditionedOutput) -> str:
    """Return why the structure of the reference's output is wrong; empty if it seems right.

    The structure is wrong if it contradicts the type and shape that onnx infers, but the structure
    of the stored output does not.
    """
    if not conditioned_output.right:
        types = {output.name: output.type for output in problem.model.graph.output}
        fits = structure_fits(conditioned_output.structure, types[name])
        return "" if fits else "onnx's reference yields no value of the declared type"
    inferred = inferred_output(problem.model, problem.inputs, name)
    if inferred is None or contradicts((problem.stored or {}).get(name), inferred):
        return ""
    value = conditioned_output.right[0][0]
    return f"onnx's reference yields {describe(value)}" if contradicts(value, inferred) else ""


def _other_structure(name: str, stored: Value, conditioned_output: ConditionedOutput) -> Diff:
    if conditioned_output.right:
        return Diff(
            name, describe(conditioned_output.right[0][0]), structure=f"is {describe(stored)}"
        )
    expected, actual = (
        clipped(json.dumps(structure), _MAX_STRUCTURE_CHARS)
        for structure in (conditioned_output.structure, structure_of(stored))
    )
    return Diff(name, expected, structure=f"consists of {actual}")


def _error_bound(
    right: Sequence[tuple[Array, Array]], units: float, labels: Sequence[str] = ()
) -> ErrorBound:
    branch = None
    labelled = zip(right, [*labels, *[""] * len(right)], strict=False)
    for (expected, limit), label in reversed(list(labelled)):
        branch = Branch(expected, limit, branch, label)
    assert branch is not None  # noqa: S101 - an output without a reason has a result
    return ErrorBound(branch.at, units, Provenance.CONDITIONED)


def _is_wrong(expected: Array, stored: Value, tolerance: Tolerance) -> bool:
    return largest_share({"": expected}, [stored], lambda _: tolerance) > 1


def _is_reformulation(
    expected: Array, stored: Value, conditioned_output: ConditionedOutput
) -> bool:
    """Return whether a stored output agrees with an output that is computed by identities."""
    if not conditioned_output.reformulated:
        return False
    bound = _error_bound(conditioned_output.reformulated, conditioned_output.units)
    return not _is_wrong(expected, stored, bound)


def _is_printed(expected: Array, stored: Value) -> bool:
    """Return whether a stored output has few decimals, and its last decimal is off by at most 1."""
    if not isinstance(stored, np.ndarray) or stored.dtype not in (np.float32, np.float64):
        return False
    return any(
        (np.round(stored, digits) == stored).all()
        and not _is_wrong(expected, stored, Relative(0.0, 10.0**-digits, Provenance.ONNX))
        for digits in range(_MAX_PRINTED_DECIMALS)
    )
