"""What a backend is asked, and what it did with that, before anybody judges it."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from traceback import walk_tb

import numpy as np
import onnx

from onnxopt_cli.backends.lowering import ModelRunner
from onnxopt_cli.backends.reference import NumpyBackend, compute_node
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.unsupported import error_text, out_of_memory
from onnxopt_cli.config.run_config import LoweringMode
from onnxopt_cli.core.result import SETTLED, Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import (
    BackendDied,
    BackendDiedEarlier,
    BackendHangs,
    NotApplicable,
    OnnxoptError,
    ProtocolBreach,
    Unsupported,
)
from onnxopt_cli.interpret.single_node import sole_operator
from onnxopt_cli.operators.call import Call

# Bytes that are compared at once.
_BLOCK = 1 << 20
_OUTCOMES: Mapping[type[OnnxoptError], Outcome] = {
    Unsupported: Outcome.UNSUPPORTED,
    NotApplicable: Outcome.SKIP,
    BackendDied: Outcome.CRASH,
    BackendHangs: Outcome.TIMEOUT,
    ProtocolBreach: Outcome.PROTOCOL,
}
#: What a backend may do instead of returning, as far as its own process sees it.
FAILURES = frozenset({*_OUTCOMES.values(), Outcome.OOM, Outcome.ERROR})


@dataclass(frozen=True, slots=True)
class Order:
    """A case that a backend is to run.

    Attributes:
        model: the model.
        inputs: a value for every input of the graph that must be fed.
        started: called when it starts.
        keep: whether the prepared model is to be kept for orders with the same model.
        collect: whether garbage is to be collected before the answer, so that what is left is
            left for good.
        returned: bytes that the outputs of a right backend have, where that is known.
        own: the inputs once more, in memory that the backend may write into; None to copy them.
        ours: True if the model is a loop of ours around a formula, of as many steps as the case
            says.
        call: the call of the formula of which the model is one node, if it is; for backends in
            this process.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    started: Callable[[], None] = lambda: None
    keep: bool = False
    collect: bool = False
    returned: int = 0
    own: Mapping[str, Value] | None = None
    ours: bool = False
    call: Call[Array] | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What a backend did with a case.

    Attributes:
        outputs: what it returned, in the graph's order; None if it returned nothing.
        failure: what happened instead; None if it returned.
        message: why, in words; empty if it returned.
        lowered: True if it was given primitive operators.
        earlier: True if the backend's own process had ended before it was given the case.
        changed: names of inputs that it wrote into.
        leak: what it left behind, in words; empty if nothing.
        seconds: wall time in the backend.
        printed: the end of what it wrote to stdout and stderr, where that was kept.
    """

    outputs: list[Value] | None = None
    failure: Outcome | None = None
    message: str = ""
    lowered: bool = False
    earlier: bool = False
    changed: tuple[str, ...] = ()
    leak: str = ""
    seconds: float = 0.0
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """What a backend did that is no case's fault.

    Attributes:
        place: ``teardown`` or ``between-cases``.
        outcome: what it amounts to.
        message: what it did, in words.
    """

    place: str
    outcome: Outcome
    message: str


def is_formula(order: Order) -> bool:
    """Return whether the model of an order is one node of an operator with a formula."""
    return order.call is not None or sole_operator(order.model) is not None


class Host:
    """A backend in this process: its cases, and its end.

    Args:
        text: the backend as the user asked for it.
        lowering: when it is given primitive operators.

    Raises:
        UsageError: if there is no such backend.
        BackendUnavailable: if it does not start.
    """

    def __init__(self, text: str, lowering: LoweringMode) -> None:
        self._backend = resolve_backend(text)
        self._runner = ModelRunner(self._backend, lowering)
        is_numpy = isinstance(self._backend, NumpyBackend)
        self._computes_calls = is_numpy and lowering is not LoweringMode.ALWAYS
        self.version = self._backend.version

    def respond(self, order: Order) -> Response:
        """Run a case; whatever the backend raises, except KeyboardInterrupt, is an answer."""
        own = order.inputs
        # Our own formulas write into nothing.
        if not (isinstance(self._backend, NumpyBackend) and is_formula(order)):
            own = order.own or {name: _copy(value) for name, value in order.inputs.items()}
        started = perf_counter()
        try:
            outputs: list[Value]
            if self._computes_calls and order.call is not None:
                outputs, lowered = compute_node(order.model, order.call), False
            else:
                outputs, lowered = self._runner.run(order.model, own, keep=order.keep)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a backend may raise anything
            failure, seconds = _failure(error), perf_counter() - started
            lowered = self._runner.lowered and failure not in SETTLED
            place = _place() if failure is Outcome.ERROR else ""
            text = error_text(error)
            earlier = isinstance(error, BackendDiedEarlier)
            return Response(None, failure, text, lowered, earlier, seconds=seconds, printed=place)
        seconds = perf_counter() - started
        given = () if own is order.inputs else order.inputs.items()
        changed = tuple(name for name, it in given if not same_bits(it, own.get(name)))
        return Response(outputs, lowered=lowered, changed=changed, seconds=seconds)

    def close(self) -> tuple[Outcome, str] | None:
        """End what the backend has started; return what went wrong, and it in words, if it did."""
        try:
            self._backend.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            return _failure(error), error_text(error)
        return None


#: Files in these folders are nobody's backend under development.
_INSTALLED = (str(Path(__file__).parents[1]), *sysconfig.get_paths().values())


def _place() -> str:
    """Say where in the user's own code the error being handled was raised, if it was."""
    # An exception of the backend's may say anything of its traceback.
    traceback = sys.exc_info()[2]
    frames = ((it.f_code.co_filename, line) for it, line in walk_tb(traceback))
    own = [it for it in frames if not it[0].startswith(("<", *_INSTALLED))]
    return f"raised at {printable(own[-1][0])}:{own[-1][1]}" if own else ""


def _failure(error: BaseException) -> Outcome:
    for kind, outcome in _OUTCOMES.items():
        if isinstance(error, kind):
            return outcome
    return Outcome.OOM if out_of_memory(error) else Outcome.ERROR


def _copy(value: Value) -> Value:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return None if value is None else np.array(value, order="C")


def same_bits(before: Value, after: Value) -> bool:
    """Tell whether values agree in every bit, and in structure."""
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(same_bits, before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(
            same_bits(value, after[key]) for key, value in before.items()
        )
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return before is None and after is None
    if before.dtype != after.dtype or before.shape != after.shape:
        return False
    if before.dtype == object:
        return bool(np.array_equal(before, after))
    # Bits, not values: NaN equals itself here, and 0.0 does not equal -0.0.
    mine, theirs = (np.ascontiguousarray(it).reshape(-1).view(np.uint8) for it in (before, after))
    return all(
        np.array_equal(mine[start : start + _BLOCK], theirs[start : start + _BLOCK])
        for start in range(0, mine.size, _BLOCK)
    )
