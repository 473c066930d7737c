"""What a backend did with a model and inputs, before anybody judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import onnx

from onnxopt_cli.backends.lowering import Kept, LoweringMode, run_model
from onnxopt_cli.backends.protocol import Backend, Closable
from onnxopt_cli.backends.unsupported import error_text, out_of_memory
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import (
    BackendDied,
    BackendHangs,
    NotApplicable,
    ProtocolBreach,
    Unsupported,
)

_OUTCOMES: Mapping[type[BaseException], Outcome] = {
    Unsupported: Outcome.UNSUPPORTED,
    NotApplicable: Outcome.SKIP,
    BackendDied: Outcome.CRASH,
    BackendHangs: Outcome.TIMEOUT,
    ProtocolBreach: Outcome.PROTOCOL,
    MemoryError: Outcome.OOM,
}


@dataclass(frozen=True, slots=True)
class Response:
    """What a backend did with a case.

    Attributes:
        outputs: what it returned, in the graph's order; None if it returned nothing.
        failure: what happened instead; None if it returned.
        message: why, in words; empty if it returned.
        lowered: True if it was given primitive operators.
        changed: names of inputs that it wrote into.
        leak: what it left behind, in words; empty if nothing.
        seconds: wall time in the backend.
        printed: the end of what it wrote to stdout and stderr, where that was kept.
    """

    outputs: list[Value] | None = None
    failure: Outcome | None = None
    message: str = ""
    lowered: bool = False
    changed: tuple[str, ...] = ()
    leak: str = ""
    seconds: float = 0.0
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Aside:
    """What a backend did that is no case's fault.

    Attributes:
        place: ``teardown`` or ``between-cases``.
        outcome: what it amounts to.
        message: what it did, in words.
    """

    place: str
    outcome: Outcome
    message: str


def respond(
    backend: Backend,
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    lowering: LoweringMode,
    kept: Kept | None = None,
) -> Response:
    """Run a model on a backend; whatever that raises, except KeyboardInterrupt, is an answer.

    Args:
        backend: the backend.
        model: the model.
        inputs: what it is fed.
        lowering: when it is given primitive operators.
        kept: from :func:`keeping`, if the model runs again and again.
    """
    own = copy_inputs(inputs)
    started = perf_counter()
    try:
        answer = run_model(backend, model, own, lowering, kept)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a backend may raise anything
        seconds = perf_counter() - started
        return Response(failure=_failure(error), message=error_text(error), seconds=seconds)
    seconds = perf_counter() - started
    changed = tuple(changed_inputs(inputs, own))
    return Response(answer.outputs, lowered=answer.lowered, changed=changed, seconds=seconds)


def tear_down(backend: Backend) -> tuple[Outcome, str] | None:
    """End what a backend has started; return what went wrong, if anything did, and it in words."""
    if not isinstance(backend, Closable):
        return None
    try:
        backend.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return _failure(error), error_text(error)
    return None


def keeping(kept: Kept | None, model: onnx.ModelProto) -> Kept:
    """Return what is kept of a model that runs again and again; nothing yet of another one."""
    known = kept is not None and (kept.model is model or kept.model == model)
    return kept if kept is not None and known else Kept(model)


def _failure(error: BaseException) -> Outcome:
    for kind, outcome in _OUTCOMES.items():
        if isinstance(error, kind):
            return outcome
    return Outcome.OOM if out_of_memory(error) else Outcome.ERROR


def copy_inputs(inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Return inputs that share no memory with the given ones, tensors in C order."""
    return {name: _copy(value) for name, value in inputs.items()}


def changed_inputs(before: Mapping[str, Value], after: Mapping[str, Value]) -> list[str]:
    """Return the names of inputs that differ in any bit, or in structure."""
    return [name for name, value in before.items() if not _same(value, after.get(name))]


def _copy(value: Value) -> Value:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return None if value is None else np.array(value, order="C")


def _same(before: Value, after: Value) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        pairs = zip(before, after, strict=False)
        return len(before) == len(after) and all(_same(*pair) for pair in pairs)
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(
            _same(value, after[key]) for key, value in before.items()
        )
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return before is None and after is None
    if before.dtype != after.dtype or before.shape != after.shape:
        return False
    if before.dtype == object:
        return bool(np.array_equal(before, after))
    # Bits, not values: NaN equals itself here, and 0.0 does not equal -0.0.
    return before.tobytes() == after.tobytes()
