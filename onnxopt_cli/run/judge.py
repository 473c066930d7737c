"""One case on one backend: run it, judge it, say what happened."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from onnxopt_cli.backends.lowering import Answer, Lowering, run_model
from onnxopt_cli.backends.protocol import Backend
from onnxopt_cli.compare import compare_outputs
from onnxopt_cli.core.case import Case, Content
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import exception_text
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import InvalidCase, OnnxoptError, Unsupported
from onnxopt_cli.operators.nodes import operator_names
from onnxopt_cli.run.expectation import Expectation, Judging, expect
from onnxopt_cli.run.inputs import changed_inputs, copy_inputs

#: Outputs of failing cases that are larger are not kept.
_KEPT_BYTES = 1 << 20


def judge_case(
    case: Case, backends: Sequence[Backend], lowering: Lowering, judging: Judging
) -> tuple[Result, ...]:
    """Run a case on every backend and judge what each returns.

    The case is read once, and let go afterwards. Nothing that a case or a backend does raises,
    except KeyboardInterrupt.
    """
    try:
        content = case.read()
        expectation = None if content.rejects else expect(content, str(case.location), judging)
    except InvalidCase as error:
        return tuple(
            _result(case, backend, None, Outcome.INVALID, str(error)) for backend in backends
        )
    if expectation is not None and expectation.contradictions:
        return tuple(
            _result(
                case,
                backend,
                content,
                Outcome.INVALID,
                "the stored outputs contradict the operator's formula beyond any rounding: "
                "the case is wrong, not the backend",
                diffs=expectation.contradictions,
            )
            for backend in backends
        )
    return tuple(
        _judge(case, content, expectation, backend, lowering, judging) for backend in backends
    )


def _judge(
    case: Case,
    content: Content,
    expectation: Expectation | None,
    backend: Backend,
    lowering: Lowering,
    judging: Judging,
) -> Result:
    inputs = copy_inputs(content.inputs)
    started = perf_counter()
    try:
        answer = run_model(backend, content.model, inputs, lowering)
    except KeyboardInterrupt:
        raise
    except Unsupported as error:
        return _result(case, backend, content, Outcome.UNSUPPORTED, error.message)
    except BaseException as error:  # noqa: BLE001 - a backend may raise anything
        message = error.message if isinstance(error, OnnxoptError) else exception_text(error)
        outcome = Outcome.PASS if content.rejects else Outcome.ERROR
        return _result(case, backend, content, outcome, message, perf_counter() - started)
    seconds = perf_counter() - started
    changed = changed_inputs(content.inputs, inputs)
    if expectation is None:
        message = "accepted what a right backend must refuse"
        return _result(case, backend, content, Outcome.FAIL, message, seconds, answer)
    diffs = compare_outputs(
        expectation.outputs,
        answer.outputs,
        expectation.tolerances.__getitem__,
        signed_zeros=judging.signed_zeros,
    )
    message = f"inputs changed: {', '.join(changed)}" if changed else ""
    agrees = not changed and all(diff.agrees for diff in diffs)
    outcome = Outcome.PASS if agrees else Outcome.FAIL
    return _result(case, backend, content, outcome, message, seconds, answer, diffs, expectation)


def _result(
    case: Case,
    backend: Backend,
    content: Content | None,
    outcome: Outcome,
    message: str = "",
    seconds: float = 0.0,
    answer: Answer | None = None,
    diffs: tuple[Diff, ...] = (),
    expectation: Expectation | None = None,
) -> Result:
    return Result(
        case=case.id,
        location=case.location,
        operators=case.operators or (operator_names(content.model) if content else ()),
        backend=backend.name,
        outcome=outcome,
        lowered=answer is not None and answer.lowered,
        message=message,
        diffs=diffs,
        weak={} if expectation is None else expectation.weak,
        returned=_kept(answer.outputs) if answer and outcome is Outcome.FAIL else (),
        seconds=seconds,
    )


def _kept(outputs: list[Value]) -> tuple[Value, ...]:
    """Return a backend's outputs, for an explanation; nothing where they are too large to keep."""
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    small = sum(array.nbytes for array in arrays) <= _KEPT_BYTES
    # A backend may return the same buffer at its next call.
    return tuple(array.copy() for array in arrays) if small and len(arrays) == len(outputs) else ()
