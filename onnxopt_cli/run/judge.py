"""Judges a backend's response to a case by the case's expected result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxopt_cli.backends.host import Response
from onnxopt_cli.cases.case import Case, Problem, case_content
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.cases.select import capabilities
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.compare import compare_outputs, element_shares
from onnxopt_cli.core.result import (
    HARMLESS,
    INCONCLUSIVE,
    Diff,
    Outcome,
    Result,
    accepted_results,
    wrong_outputs,
)
from onnxopt_cli.core.text import some_of
from onnxopt_cli.core.tolerance import ErrorBound, Provenance
from onnxopt_cli.core.values import Array, Value, describe
from onnxopt_cli.errors import OUT_OF_MEMORY
from onnxopt_cli.operators.call import breaks_signature
from onnxopt_cli.operators.nodes import operator_names
from onnxopt_cli.oracle.accumulation import (
    EXAMINED,
    AccumulationFinding,
    accumulation_finding,
)
from onnxopt_cli.oracle.expected import Expected

#: If a case is skipped because of a limit of onnxopt, the reason begins with this text.
LIMIT = "limit of onnxopt: "
#: The outputs of a failing case are kept if they have at most this number of bytes together, and if
#: there are at most _KEPT_OUTPUTS of them.
KEPT_BYTES = 2 << 20
_KEPT_OUTPUTS = 1000
_MAX_LISTED_INPUTS = 10
_INPUTS_CHANGED = "inputs changed: "


def unjudged_result(
    case: Case, problem: Problem | None, expected: Expected, backend: str
) -> Result:
    """Return the result of a case that is invalid, or skipped because of a limit of onnxopt.

    Args:
        case: the case.
        problem: the model and values of the case; None if the case cannot be loaded.
        expected: the expected result, which states the reason.
        backend: the backend's name.
    """
    if expected.unknown:
        return _result(case, problem, backend, Outcome.SKIP, f"{LIMIT}{expected.unknown}")
    diffs = expected.contradictions
    return _result(case, problem, backend, Outcome.INVALID, expected.invalid, diffs=diffs)


def out_of_memory_result(case: Case, backend: str) -> Result:
    """Return the result of a case that cannot be loaded or judged because memory is exhausted."""
    return _result(case, None, backend, Outcome.OOM, f"{OUT_OF_MEMORY} to judge it")


# Outputs may contain any values, so arithmetic on them may overflow.
@np.errstate(all="ignore")
def judge(
    case: Case,
    problem: Problem,
    expected: Expected,
    backend: str,
    response: Response,
    judging: Judging,
    math: str = "",
) -> Result:
    """Return the result of a backend's response to a case.

    Args:
        case: the case.
        problem: its problem.
        expected: its expected result, which the case does not contradict.
        backend: the backend's name.
        response: the backend's response.
        judging: how outputs are judged.
        math: the arithmetic that the backend declares; empty if it declares none.
    """
    diffs: tuple[Diff, ...] = ()
    messages = [response.message]
    curve: Mapping[int, float] = {}
    note = ""
    if response.failure is Outcome.SKIP and not (
        # A case may be skipped only if its node violates the signature of its operator. A hostile
        # worker could claim to have skipped any case.
        problem.must_reject and breaks_signature(problem.model, problem.inputs)
    ):
        outcome, messages = Outcome.PROTOCOL, ["skipped a case that applies to it"]
    elif problem.must_reject and response.failure is None:
        outcome, messages = Outcome.FAIL, ["accepted a model that must be rejected"]
    elif problem.must_reject and response.failure is Outcome.ERROR:
        outcome = Outcome.PASS
    elif response.failure is not None or response.outputs is None:
        outcome = response.failure or Outcome.ERROR
        # The crash may have occurred in onnx, which workers call to lower a model.
        doubtful = outcome in {Outcome.ERROR, Outcome.CRASH}
        if doubtful and (fault := model_fault(problem.model)):
            outcome, messages = Outcome.INVALID, [f"the model does not pass onnx's check: {fault}"]
    else:
        accepted, diffs, note = _compared(expected, response.outputs, judging)
        outcome, note, remark = _agreement(problem, accepted, response, diffs, note, math)
        messages.append(remark)
        agrees = outcome is not Outcome.FAIL
        if response.changed:
            messages = [f"{_INPUTS_CHANGED}{some_of(response.changed, _MAX_LISTED_INPUTS)}"]
        if problem.trajectory is not None:
            curve, summary = _course(problem.trajectory.recorded, expected, response.outputs, diffs)
            messages.append(summary)
        # If a trajectory ended early, the message of the response says more than the wrong shapes
        # of its outputs.
        if not (response.message or agrees):
            messages.insert(0, wrong_outputs(diffs, tuple(curve)))
    if response.leak and outcome is Outcome.PASS:
        outcome = Outcome.LEAK
    message = "; ".join(filter(None, (*messages, response.leak)))
    return _result(case, problem, backend, outcome, message, response, diffs, curve, note)


def _compared(
    expected: Expected, outputs: Sequence[Value], judging: Judging
) -> tuple[Expected, tuple[Diff, ...], str]:
    """Return the correct result that matches the outputs, the diffs from it, and a note.

    A case has several correct results if its specification is ambiguous. If none of them matches,
    return the one with the fewest wrong elements. Correct results of a contested second reading of
    the specification are then not considered.
    """
    mismatching: list[tuple[Expected, tuple[Diff, ...]]] = []
    contested = False
    for alternative in (expected, *expected.alternatives):
        diffs = compare_outputs(
            alternative.outputs,
            outputs,
            alternative.tolerances.__getitem__,
            signed_zeros=judging.signed_zeros,
            examine=judging.examine,
        )
        if all(diff.agrees for diff in diffs):
            note = "; ".join(filter(None, (alternative.note, accepted_results(diffs))))
            return alternative, diffs, note
        contested |= alternative.contested
        if not alternative.contested:
            mismatching.append((alternative, diffs))
    nearest, diffs = min(
        mismatching, key=lambda compared: sum(diff.mismatches for diff in compared[1])
    )
    return nearest, diffs, "contested: matches neither reading" if contested else ""


def _agreement(
    problem: Problem,
    expected: Expected,
    response: Response,
    diffs: Sequence[Diff],
    note: str,
    math: str,
) -> tuple[Outcome, str, str]:
    """Return the outcome of compared outputs, a note, and the reason for the outcome, if any.

    Outputs within their tolerances may still have a systematic error, which leads to a failure or a
    note. An element is inconclusive if its tolerance is at least half of its value, unless the
    backend returned exactly the expected value. If all elements are inconclusive, the case is
    skipped.
    """
    if response.changed or not all(diff.agrees for diff in diffs):
        return Outcome.FAIL, note, ""
    if problem.trajectory is not None:
        return Outcome.PASS, note, ""
    notes, reason = [note], ""
    outcome = Outcome.PASS
    if any(diff.inconclusive for diff in diffs) and (count := _inconclusive(expected, response)):
        elements = sum(diff.elements for diff in diffs)
        notes.append(
            f"{INCONCLUSIVE}the tolerance reaches half of the value "
            f"in {count} of {elements} elements"
        )
        if count == elements:
            outcome, reason = Outcome.SKIP, notes[-1]
    if finding := _accumulation(problem, expected, response, math):
        if finding.fails:
            outcome, reason = Outcome.FAIL, finding.text
        else:
            notes.append(finding.text)
    return outcome, "; ".join(filter(None, notes)), reason


def _inconclusive(expected: Expected, response: Response) -> int:
    """Return the number of inconclusive elements that differ from the expected value."""
    count = 0
    for (name, right), output in zip(expected.outputs.items(), response.outputs or (), strict=True):
        bound = expected.tolerances[name]
        if isinstance(bound, ErrorBound) and isinstance(right, np.ndarray):
            left, actual = right.reshape(-1), np.asarray(output).reshape(-1)
            equal = (left == actual) | ((left != left) & (actual != actual))  # noqa: PLR0124 - NaN
            count += int(np.count_nonzero(bound.at(np.flatnonzero(~equal)).inconclusive))
    return count


def _accumulation(
    problem: Problem, expected: Expected, response: Response, math: str
) -> AccumulationFinding | None:
    """Return a systematic error of the sums of a node; None if no error is found.

    Outputs are not examined if the backend declares its arithmetic, or if the tolerances are not
    condition estimates.
    """
    nodes = problem.model.graph.node
    if len(nodes) != 1 or nodes[0].op_type not in EXAMINED or math:
        return None
    is_conditioned = all(
        isinstance(tolerance, ErrorBound) and tolerance.provenance is Provenance.CONDITIONED
        for tolerance in expected.tolerances.values()
    )
    if not is_conditioned:
        return None
    return accumulation_finding(problem.model, problem.inputs, response.outputs or ())


def _course(
    recorded: Sequence[int], expected: Expected, actual: Sequence[Value], diffs: Sequence[Diff]
) -> tuple[Mapping[int, float], str]:
    """Measure the error of stacked outputs in each recorded step.

    Args:
        recorded: the recorded steps, in the order of the rows.
        expected: the expected result.
        actual: the outputs of the backend, in the graph's order.
        diffs: the comparison of each output with the expected output.

    Returns:
        The largest error / tolerance of each recorded step, and a message. The ratio is infinite if
        an element with a tolerance of zero has an error. The ratios are empty if an output has
        the wrong type or shape. The message states the first step that exceeds the tolerance, and
        the first step with an inconclusive element.
    """
    largest, places = _largest_errors(len(recorded), expected, actual)
    messages = []
    exceeding = np.flatnonzero(largest > 1)
    if exceeding.size:
        first = exceeding[0]
        messages.append(f"first exceeded the tolerance in step {recorded[first]}, {places[first]}")
    if expected.derive is not None and any(diff.inconclusive for diff in diffs):
        masks = [output.branch.inconclusive for output in expected.derive().values()]
        rows = [mask.reshape(len(recorded), -1).any(axis=1) for mask in masks]
        step = recorded[int(np.argmax(np.any(rows, axis=0)))]
        messages.append(f"the case is partly inconclusive from step {step} on")
    return dict(zip(recorded, largest.tolist(), strict=False)), "; ".join(messages)


def _largest_errors(
    step_count: int, expected: Expected, actual: Sequence[Value]
) -> tuple[Array, list[str]]:
    """Return the largest error / tolerance of each step, and its element, such as ``X_new[4]``.

    Both return values are empty if an output has the wrong type or shape.
    """
    largest = np.zeros(step_count)
    places: list[str] = [""] * step_count
    for (name, right), value in zip(expected.outputs.items(), actual, strict=False):
        if not isinstance(right, np.ndarray) or not isinstance(value, np.ndarray):
            return np.zeros(0), []
        if describe(right) != describe(value):
            return np.zeros(0), []
        errors = element_shares(right, value, expected.tolerances[name]).reshape(step_count, -1)
        if not errors.size:
            continue
        elements = np.argmax(errors, axis=1)
        row_errors = errors[np.arange(step_count), elements]
        for row in np.flatnonzero(row_errors > largest):
            index = [*map(int, np.unravel_index(elements[row], right.shape[1:]))]
            places[row] = f"{name}{index or ''}"
        largest = np.maximum(largest, row_errors)
    return largest, places


def _result(
    case: Case,
    problem: Problem | None,
    backend: str,
    outcome: Outcome,
    message: str,
    response: Response | None = None,
    diffs: tuple[Diff, ...] = (),
    curve: Mapping[int, float] | None = None,
    note: str = "",
) -> Result:
    response = response or Response()
    return Result(
        case=case.id,
        location=case.location,
        operators=case.operators or (operator_names(problem.model) if problem else ()),
        backend=backend,
        outcome=outcome,
        lowered=response.lowered,
        opset=response.opset,
        batch=response.batch,
        message=message,
        diffs=diffs,
        curve=curve or {},
        returned=_kept(response.outputs) if outcome is Outcome.FAIL else (),
        seconds=response.seconds,
        capabilities=capabilities(problem) if problem else (),
        printed="" if outcome in _OUTPUT_HIDDEN else response.printed,
        note=note,
        content=case_content(case, problem) if problem and outcome not in HARMLESS else None,
    )


def other_defect(result: Result) -> str:
    """Return a failure's message without the description of wrong outputs; possibly empty.

    The remaining message reports a model that should have been rejected, a changed input, or a
    leak.
    """
    steps = tuple(result.curve)
    remainder = result.message.removeprefix(wrong_outputs(result.diffs, steps)).removeprefix("; ")
    # The message of a trajectory also summarizes the wrong steps. The summary does not report a
    # separate defect.
    return remainder if not steps or remainder.startswith(_INPUTS_CHANGED) else ""


# For these outcomes of a case, the text that the backend printed is not kept.
_OUTPUT_HIDDEN = frozenset({Outcome.PASS, Outcome.SKIP, Outcome.UNSUPPORTED})


def _kept(outputs: Sequence[Value] | None) -> tuple[Value, ...]:
    """Return a copy of a backend's outputs for explanations; empty if they are too large."""
    outputs = outputs or ()
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    if not len(arrays) == len(outputs) <= _KEPT_OUTPUTS or sum(map(_size, arrays)) > KEPT_BYTES:
        return ()
    # A backend may reuse the same buffer for its next outputs.
    return tuple(array.copy() for array in arrays)


def _size(array: Array) -> int:
    """Return the number of bytes of an array, including those of its strings."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype == object else 0)
