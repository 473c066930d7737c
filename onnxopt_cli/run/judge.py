"""One case: what is asked of a backend, and what its response means."""

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

#: Outputs of failing cases that are larger, or more, are not kept.
KEPT_BYTES = 2 << 20
_KEPT_OUTPUTS = 1000
# Of inputs that a backend changed no more are named.
_MOST_LISTED = 10
_LONGEST_FAULT = 300
_ONNX = {"", "ai.onnx"}


@dataclass(frozen=True, slots=True)
class LoadedCase:
    """A case that has been read.

    Attributes:
        case: the case.
        problem: its problem; None if there is none to ask with.
        key: what must come back; None if no backend can be asked, or must refuse the case, or it is
            not known yet.
        invalid: why no backend can be asked, or empty.
        outcome: what that amounts to.
        contradictions: stored outputs that the formula rejects.
    """

    case: Case
    problem: Problem | None
    key: Expected | None = None
    invalid: str = ""
    outcome: Outcome = Outcome.INVALID
    contradictions: tuple[Diff, ...] = ()


def load_case(case: Case) -> LoadedCase:
    """Read a case; one that is wrong in itself is an answer too."""
    try:
        return LoadedCase(case, case.load())
    except InvalidCase as error:
        return LoadedCase(case, None, invalid=error.message)


def with_expected(
    loaded_case: LoadedCase, judging: Judging, asked: Callable[[], Expected] | None = None
) -> LoadedCase:
    """Return a case with what must come back, invalid if its case contradicts itself.

    Args:
        loaded_case: what was read.
        judging: how the user wants outputs to be judged.
        asked: returns the key that asking has completed; None where nothing was asked.
    """
    case, problem = loaded_case.case, loaded_case.problem
    if problem is None:
        return loaded_case
    if problem.must_reject:
        if not _is_right(problem):
            return loaded_case
        why = "says that it must be refused, but nothing in it breaks the operator's signature"
        return replace(loaded_case, invalid=f"{why}: the case is wrong, not the backend")
    try:
        key = asked() if asked else expected_result(problem, case.location, judging)
    except InvalidCase as error:
        return LoadedCase(case, None, invalid=error.message)
    except MemoryError:
        return starved(case)
    if not key.contradictions:
        return replace(loaded_case, key=key)
    right, wrong = "the operator's formula", "the case is wrong, not the backend"
    if not key.formula:
        right = "what onnx's reference yields in double, corrected where it contradicts the "
        right += "specification,"
        wrong = "one of the two is wrong"
    why = f"the stored outputs contradict {right} beyond any rounding: {wrong}"
    return replace(loaded_case, key=None, invalid=why, contradictions=key.contradictions)


def _is_right(problem: Problem) -> bool:
    """Tell whether a model is a node of ours, and neither it nor what it is fed is wrong."""
    graph = problem.model.graph
    call = problem.call
    if call is None or model_fault(problem.model):
        return False
    # A graph may declare something else than there is.
    fed = {name: np.asarray(it) for name, it in problem.inputs.items()}
    declared = [tensor_info(name, it.dtype, it.shape) for name, it in fed.items()]
    types = [it.type.tensor_type.elem_type for it in graph.output]
    right = [helper.np_dtype_to_tensor_dtype(like.dtype) for like, _ in call.sources]
    return [*graph.input] == declared and types == right


def starved(case: Case) -> LoadedCase:
    """Return the case of a case that cannot be asked, or judged, for want of memory."""
    return LoadedCase(case, None, invalid=f"{OUT_OF_MEMORY} to judge it", outcome=Outcome.OOM)


def invalid_result(loaded_case: LoadedCase, backend: str) -> Result:
    """Return the result of a case that cannot be asked."""
    outcome, diffs = loaded_case.outcome, loaded_case.contradictions
    return _result(loaded_case, backend, outcome, loaded_case.invalid, Response(), diffs, {})


def judge(loaded_case: LoadedCase, backend: str, response: Response, judging: Judging) -> Result:
    """Say what a backend's response to a case means.

    Args:
        loaded_case: a valid case.
        backend: the backend's name.
        response: what it did.
        judging: how the user wants outputs to be judged.
    """
    problem, key = loaded_case.problem, loaded_case.key
    assert problem is not None  # noqa: S101 - a valid case has some
    diffs: tuple[Diff, ...] = ()
    said = [response.message]
    curve: Mapping[int, float] = {}
    note = ""
    if response.failure is Outcome.SKIP and not (
        # A worker may have been told to lie: only what breaks the signature is never asked.
        problem.must_reject and breaks_signature(problem.model, problem.inputs)
    ):
        outcome, said = Outcome.PROTOCOL, ["says that a case does not apply which does"]
    elif problem.must_reject and response.failure is None:
        outcome, said = Outcome.FAIL, ["accepted what a right backend must refuse"]
    elif problem.must_reject and response.failure is Outcome.ERROR:
        outcome = Outcome.PASS
    elif response.failure is not None or response.outputs is None or key is None:
        outcome = response.failure or Outcome.ERROR
        # A crash may be that of onnx, which workers call to lower a model.
        doubtful = outcome in {Outcome.ERROR, Outcome.CRASH}
        if doubtful and (fault := model_fault(problem.model)):
            outcome, said = Outcome.INVALID, [f"the model does not pass onnx's check: {fault}"]
    else:
        diffs, note = _compared(key, response.outputs, judging)
        agrees = not response.changed and all(diff.agrees for diff in diffs)
        outcome = Outcome.PASS if agrees else Outcome.FAIL
        if response.changed:
            said = [f"inputs changed: {some_of(response.changed, _MOST_LISTED)}"]
        if problem.trajectory is not None:
            # Not worth importing for cases of one step.
            from onnxopt_cli.run.stepwise import course

            curve, words = course(problem.trajectory.recorded, key, response.outputs, diffs)
            said.append(words)
        # A trajectory that ended early says why itself: its outputs are not of the shape expected.
        if not (response.message or agrees):
            said.insert(0, wrong_outputs(diffs, tuple(curve)))
    if response.leak and outcome is Outcome.PASS:
        outcome = Outcome.LEAK
    message = "; ".join(filter(None, (*said, response.leak)))
    return _result(loaded_case, backend, outcome, message, response, diffs, curve, note)


def _compared(
    key: Expected, outputs: Sequence[Value], judging: Judging
) -> tuple[tuple[Diff, ...], str]:
    """Compare outputs with what is right by each reading, and say by which they are."""
    found: list[tuple[Diff, ...]] = []
    contested = False
    for way in (Alternative("", key, contested=False), *key.alternatives):
        diffs = compare_outputs(
            way.key.outputs,
            outputs,
            way.key.tolerances.__getitem__,
            signed_zeros=judging.signed_zeros,
            examine=judging.examine,
        )
        if all(diff.agrees for diff in diffs):
            return diffs, "; ".join(filter(None, (way.note, accepted_results(diffs))))
        contested |= way.contested
        if not way.contested:
            found.append(diffs)
    # What is wrong by all of them is shown beside what the first reading leaves wrong at least.
    least = min(found, key=lambda diffs: sum(diff.mismatches for diff in diffs))
    return least, "contested: by no reading of 2" if contested else ""


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
        printed="" if outcome in _SILENT else response.printed,
        note=note,
    )


_SILENT = frozenset({Outcome.PASS, Outcome.SKIP, Outcome.UNSUPPORTED})


def _kept(outputs: Sequence[Value] | None) -> tuple[Value, ...]:
    """Return a backend's outputs, for an explanation; nothing where they are too large to keep."""
    outputs = outputs or ()
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    if not len(arrays) == len(outputs) <= _KEPT_OUTPUTS or sum(map(_size, arrays)) > KEPT_BYTES:
        return ()
    # A backend may return the same buffer at its next call.
    return tuple(array.copy() for array in arrays)


def _size(array: Array) -> int:
    """Return the bytes of an array, those of its strings included."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype == object else 0)
