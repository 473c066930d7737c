"""Where cases run: in this process, or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import onnx

from onnxopt_cli.backends.lowering import Kept, Lowering
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.core.values import Value
from onnxopt_cli.run.interruption import Interruption
from onnxopt_cli.run.limits import Limits
from onnxopt_cli.run.response import Response, keeping, respond

if TYPE_CHECKING:
    from onnxopt_cli.run.worker import Aside


class Isolation(StrEnum):
    """Where backends run."""

    PROCESS = "process"
    NONE = "none"


class Pending(Protocol):
    """A case that was submitted."""

    def result(self) -> Response | str:
        """Return the response, waiting for it; or in words why there is none."""


class Executor(Protocol):
    """A backend, and the place where it runs.

    Attributes:
        name: the backend as the user asked for it.
        version: the implementation and its version, once it is ready; empty if unknown.
        ahead: how many cases are worth submitting before the first has its result.
    """

    name: str
    version: str
    ahead: int

    def ready(self) -> None:
        """Wait until the backend has started.

        Raises:
            UsageError: if there is no such backend.
            BackendUnavailable: if it does not start.
        """

    def submit(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, Value],
        started: Callable[[], None],
        *,
        keep: bool = False,
    ) -> Pending:
        """Have a case run; ``started`` is called when it does.

        With ``keep`` the prepared model is kept for the next time that the same one is submitted.
        """

    def renew(self) -> None:
        """Forget what earlier cases may have left in the backend; none may be pending."""

    def finish(self) -> list[Aside]:
        """End the backend in peace; return what it did outside of any case, in words."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How backends are run.

    Attributes:
        isolation: where; None for in workers, except our own reference.
        lowering: when they are given primitive operators.
        limits: what each worker may use.
        jobs: number of workers of each backend.
    """

    isolation: Isolation | None = None
    lowering: Lowering = Lowering.AUTO
    limits: Limits = field(default_factory=Limits)
    jobs: int = 1


@contextmanager
def open_executors(
    backends: Sequence[str], setting: Setting, interruption: Interruption
) -> Iterator[list[Executor]]:
    """Start backends, and leave no process of theirs behind.

    They start side by side while the caller does other things; ask each whether it is ready.

    Args:
        backends: as the user asks for them.
        setting: how to run them.
        interruption: set when the user wants the run to end.

    Raises:
        UsageError: if a backend's specification is none.
        BackendUnavailable: if a backend in this process does not start.
    """
    isolated = [_isolated(text, setting.isolation) for text in backends]
    if not any(isolated):
        yield [InProcess(text, setting.lowering, interruption) for text in backends]
        return
    # Not worth importing for our own reference.
    from onnxopt_cli.run.pool import Pool, Switchboard

    switchboard = Switchboard()
    try:
        yield [
            Pool(text, setting.lowering, setting.limits, setting.jobs, switchboard, interruption)
            if apart
            else InProcess(text, setting.lowering, interruption)
            for text, apart in zip(backends, isolated, strict=True)
        ]
    finally:
        switchboard.close()


def _isolated(text: str, isolation: Isolation | None) -> bool:
    specification = parse_specification(text)
    if isolation is None:
        return specification.name != "numpy"
    return isolation is Isolation.PROCESS


class InProcess:
    """A backend in this process, which shares its fate."""

    ahead = 1

    def __init__(self, text: str, lowering: Lowering, interruption: Interruption) -> None:
        self._text = text
        self._backend = resolve_backend(text)
        self._lowering = lowering
        self._interruption = interruption
        self._kept: Kept | None = None
        self.name = self._backend.name
        self.version = self._backend.version

    def ready(self) -> None:
        """Do nothing: it has started."""

    def submit(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, Value],
        started: Callable[[], None],
        *,
        keep: bool = False,
    ) -> Pending:
        """Have a case run when its result is asked for."""

        def run() -> Response | str:
            if self._interruption.signal:
                return "interrupted"
            started()
            self._kept = keeping(self._kept, model) if keep else None
            return respond(self._backend, model, inputs, self._lowering, self._kept)

        return _Later(run)

    def renew(self) -> None:
        """Make the backend anew, as far as that is possible within one process."""
        self._backend = resolve_backend(self._text)
        self._kept = None

    def finish(self) -> list[Aside]:
        """Return nothing: what it did outside of cases, it did to this process."""
        return []


@dataclass(frozen=True, slots=True)
class _Later:
    run: Callable[[], Response | str]

    def result(self) -> Response | str:
        return self.run()
