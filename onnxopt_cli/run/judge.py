"""Judging one case: loading it, its expected result, and the outcome of a backend's response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

from onnxopt_cli.backends.host import Response
from onnxopt_cli.backends.lowering import breaks_signature
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.cases.onnx.node_model import tensor_info
from onnxopt_cli.cases.select import capabilities
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.core.diff import (
    Diff,
    accepted_results,
    wrong_outputs,
)
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import some_of
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import OUT_OF_MEMORY, InvalidCase
from onnxopt_cli.operators.nodes import operator_names
from onnxopt_cli.oracle.expected import (
    Alternative,
    Expected,
    expected_result,
)

#: Outputs of a failing case are kept only if their total size and number are within these limits.
KEPT_BYTES = 2 << 20
_KEPT_OUTPUTS = 1000
_MAX_LISTED_INPUTS = 10


@dataclass(frozen=True, slots=True)
class LoadedCase:
    """A loaded case, with its expected result once that is known.

    Attributes:
        case: the case.
        problem: its problem; None if the case is invalid.
        expected: the expected result; None if the case is invalid, if a backend must reject it, or
            before the result is computed.
        invalid: why the case cannot run; empty if it can.
        outcome: the outcome of a case that cannot run.
        contradictions: stored outputs that the formula rejects.
    """

    case: Case
    problem: Problem | None
    expected: Expected | None = None
    invalid: str = ""
    outcome: Outcome = Outcome.INVALID
    contradictions: tuple[Diff, ...] = ()


def load_case(case: Case) -> LoadedCase:
    """Load a case; the returned case is marked as invalid if it cannot be loaded."""
    try:
        return LoadedCase(case, case.load())
    except InvalidCase as error:
        return LoadedCase(case, None, invalid=error.message)


def with_expected(
    loaded_case: LoadedCase, judging: Judging, completed: Callable[[], Expected] | None = None
) -> LoadedCase:
    """Return a case with its expected result; invalid if the case contradicts it.

    Args:
        loaded_case: the case.
        judging: how outputs are judged.
        completed: waits for the expected result of the reference oracle; None to use the formula
            or the stored outputs.
    """
    case, problem = loaded_case.case, loaded_case.problem
    if problem is None:
        return loaded_case
    if problem.must_reject:
        if not _is_valid(problem):
            return loaded_case
        reason = "expects a rejection, but its node and inputs match the operator's signature"
        return replace(loaded_case, invalid=f"{reason}: the case is wrong, not the backend")
    try:
        if completed:
            expected = completed()
        else:
            expected = expected_result(problem, case.location, judging)
    except InvalidCase as error:
        return LoadedCase(case, None, invalid=error.message)
    except MemoryError:
        return out_of_memory_case(case)
    if not expected.contradictions:
        return replace(loaded_case, expected=expected)
    if expected.formula:
        source, verdict = "the operator's formula", "the case is wrong, not the backend"
    else:
        source = "onnx's corrected reference in double precision"
        verdict = "one of the two is wrong"
    reason = f"the stored outputs differ from {source} by more than rounding: {verdict}"
    contradictions = expected.contradictions
    return replace(loaded_case, expected=None, invalid=reason, contradictions=contradictions)


def _is_valid(problem: Problem) -> bool:
    """Return whether a model is a valid node of an operator with a formula, with valid inputs."""
    graph = problem.model.graph
    call = problem.call
    if call is None or model_fault(problem.model):
        return False
    # The types that a graph declares may differ from those of its inputs and outputs.
    arrays = {name: np.asarray(value) for name, value in problem.inputs.items()}
    declared = [tensor_info(name, array.dtype, array.shape) for name, array in arrays.items()]
    output_types = [output.type.tensor_type.elem_type for output in graph.output]
    correct_types = [helper.np_dtype_to_tensor_dtype(like.dtype) for like, _ in call.sources]
    return [*graph.input] == declared and output_types == correct_types


def out_of_memory_case(case: Case) -> LoadedCase:
    """Return a case that cannot be loaded or judged because memory is exhausted."""
    return LoadedCase(case, None, invalid=f"{OUT_OF_MEMORY} to judge it", outcome=Outcome.OOM)


def invalid_result(loaded_case: LoadedCase, backend: str) -> Result:
    """Return the result of a case that cannot run."""
    outcome, diffs = loaded_case.outcome, loaded_case.contradictions
    return _result(loaded_case, backend, outcome, loaded_case.invalid, Response(), diffs, {})


def judge(loaded_case: LoadedCase, backend: str, response: Response, judging: Judging) -> Result:
    """Return the result of a backend's response to a case.

    Args:
        loaded_case: a valid case.
        backend: the backend's name.
        response: its response.
        judging: how outputs are judged.
    """
    problem, expected = loaded_case.problem, loaded_case.expected
    assert problem is not None  # noqa: S101 - a valid case has a problem
    diffs: tuple[Diff, ...] = ()
    messages = [response.message]
    curve: Mapping[int, float] = {}
    note = ""
    if response.failure is Outcome.SKIP and not (
        # A hostile worker may claim a skip; only a node that breaks the signature may be skipped.
        problem.must_reject and breaks_signature(problem.model, problem.inputs)
    ):
        outcome, messages = Outcome.PROTOCOL, ["skipped a case that applies to it"]
    elif problem.must_reject and response.failure is None:
        outcome, messages = Outcome.FAIL, ["accepted a model that must be rejected"]
    elif problem.must_reject and response.failure is Outcome.ERROR:
        outcome = Outcome.PASS
    elif response.failure is not None or response.outputs is None or expected is None:
        outcome = response.failure or Outcome.ERROR
        # The crash may be in onnx, which workers call to lower a model.
        doubtful = outcome in {Outcome.ERROR, Outcome.CRASH}
        if doubtful and (fault := model_fault(problem.model)):
            outcome, messages = Outcome.INVALID, [f"the model does not pass onnx's check: {fault}"]
    else:
        diffs, note = _compared(expected, response.outputs, judging)
        agrees = not response.changed and all(diff.agrees for diff in diffs)
        outcome = Outcome.PASS if agrees else Outcome.FAIL
        if response.changed:
            messages = [f"inputs changed: {some_of(response.changed, _MAX_LISTED_INPUTS)}"]
        if problem.trajectory is not None:
            # Importing it would delay runs without trajectories.
            from onnxopt_cli.run.stepwise import course

            curve, summary = course(problem.trajectory.recorded, expected, response.outputs, diffs)
            messages.append(summary)
        # The message of a trajectory that ended early is more specific than its outputs' shapes.
        if not (response.message or agrees):
            messages.insert(0, wrong_outputs(diffs, tuple(curve)))
    if response.leak and outcome is Outcome.PASS:
        outcome = Outcome.LEAK
    message = "; ".join(filter(None, (*messages, response.leak)))
    return _result(loaded_case, backend, outcome, message, response, diffs, curve, note)


def _compared(
    expected: Expected, outputs: Sequence[Value], judging: Judging
) -> tuple[tuple[Diff, ...], str]:
    """Compare outputs with each correct result; return the diffs, and a note on the match.

    If no correct result matches, the diffs are those of the nearest uncontested result.
    """
    mismatching: list[tuple[Diff, ...]] = []
    contested = False
    for alternative in (Alternative("", expected, contested=False), *expected.alternatives):
        diffs = compare_outputs(
            alternative.expected.outputs,
            outputs,
            alternative.expected.tolerances.__getitem__,
            signed_zeros=judging.signed_zeros,
            examine=judging.examine,
        )
        if all(diff.agrees for diff in diffs):
            return diffs, "; ".join(filter(None, (alternative.note, accepted_results(diffs))))
        contested |= alternative.contested
        if not alternative.contested:
            mismatching.append(diffs)
    nearest = min(mismatching, key=lambda diffs: sum(diff.mismatches for diff in diffs))
    return nearest, "contested: matches neither reading" if contested else ""


def _result(
    loaded_case: LoadedCase,
    backend: str,
    outcome: Outcome,
    message: str,
    response: Response,
    diffs: tuple[Diff, ...],
    curve: Mapping[int, float],
    note: str = "",
) -> Result:
    case, problem = loaded_case.case, loaded_case.problem
    return Result(
        case=case.id,
        location=case.location,
        operators=case.operators or (operator_names(problem.model) if problem else ()),
        backend=backend,
        outcome=outcome,
        lowered=response.lowered,
        message=message,
        diffs=diffs,
        curve=curve,
        returned=_kept(response.outputs) if outcome is Outcome.FAIL else (),
        seconds=response.seconds,
        capabilities=capabilities(problem) if problem else (),
        printed="" if outcome in _OUTPUT_HIDDEN else response.printed,
        note=note,
    )


# The text that a backend prints is not kept with these outcomes.
_OUTPUT_HIDDEN = frozenset({Outcome.PASS, Outcome.SKIP, Outcome.UNSUPPORTED})


def _kept(outputs: Sequence[Value] | None) -> tuple[Value, ...]:
    """Return a copy of a backend's outputs for explanations; empty if they are too large."""
    outputs = outputs or ()
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    if not len(arrays) == len(outputs) <= _KEPT_OUTPUTS or sum(map(_size, arrays)) > KEPT_BYTES:
        return ()
    # A backend may return the same buffer at its next call.
    return tuple(array.copy() for array in arrays)


def _size(array: Array) -> int:
    """Return the number of bytes of an array and of its strings."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype == object else 0)
