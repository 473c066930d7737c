"""Where cases run: in this process, or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import onnx

from onnxopt_cli.backends.lowering import Kept, LoweringMode
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import UsageError
from onnxopt_cli.isolation.interruption import Interruption
from onnxopt_cli.isolation.processes import Limits
from onnxopt_cli.isolation.response import Aside, Response, keeping, respond, tear_down
from onnxopt_cli.readings.single_node import sole_operator

if TYPE_CHECKING:
    from onnxopt_cli.isolation.pool import Pool, Switchboard


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
        name: the backend as the user asked for it; its results go by it, whatever it calls itself.
        version: the implementation and its version, once it is ready; empty if unknown. It is what
            the backend says of itself, for people to read.
    """

    name: str
    version: str

    @property
    def ahead(self) -> int:
        """How many cases are worth submitting before the first has its result."""

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
        isolation: where; None for in workers, except what our own reference computes by a formula.
        lowering: when they are given primitive operators.
        limits: what each worker may use.
        jobs: number of workers of each backend.
    """

    isolation: Isolation | None = None
    lowering: LoweringMode = LoweringMode.AUTO
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
        UsageError: if a backend's specification is none, or two ask for the same backend.
        BackendUnavailable: if a backend in this process does not start.
    """
    texts = [text.strip() for text in backends]
    _require_distinct(texts)
    with ExitStack() as stack:

        @cache
        def switchboard() -> Switchboard:
            # Not worth importing for our own reference on its own formulas.
            from onnxopt_cli.isolation.pool import Switchboard

            return stack.enter_context(closing(Switchboard()))

        def pool(text: str) -> Pool:
            from onnxopt_cli.isolation.pool import Pool

            return Pool(
                text, setting.lowering, setting.limits, setting.jobs, switchboard(), interruption
            )

        def executor(text: str) -> Executor:
            ours = parse_specification(text).name == "numpy"
            if setting.isolation is Isolation.PROCESS or (setting.isolation is None and not ours):
                return pool(text)
            here = InProcess(text, setting.lowering, interruption)
            return here if setting.isolation else OwnReference(here, partial(pool, text))

        yield list(map(executor, texts))


def _require_distinct(texts: Sequence[str]) -> None:
    """Refuse a backend that is asked for twice, also in another spelling of the same.

    Spaces around a name or between the words of a command, and the order of options, make no other
    backend. A path that is written in two ways does: each result has its own key all the same.
    """
    known: list[tuple[str, object]] = []
    for text in texts:
        asked = replace(parse_specification(text), text="")
        for other, specification in known:
            if specification == asked:
                raise UsageError(
                    f"the same backend is asked for twice: {printable(other)} and "
                    f"{printable(text)}",
                    hint="give each backend once; --jobs runs more of its cases at a time",
                )
        known.append((text, asked))


class InProcess:
    """A backend in the runner's own process: if it crashes, so does the runner."""

    ahead = 1

    def __init__(self, text: str, lowering: LoweringMode, interruption: Interruption) -> None:
        self._text = text
        self._backend = resolve_backend(text)
        self._lowering = lowering
        self._interruption = interruption
        self._kept: Kept | None = None
        self.name = text
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
        """End it; return what went wrong then. All else outside of cases it did to this process."""
        trouble = tear_down(self._backend)
        if trouble is None:
            return []

        return [Aside("teardown", *trouble)]


@dataclass(frozen=True, slots=True)
class _Later:
    run: Callable[[], Response | str]

    def result(self) -> Response | str:
        return self.run()


class OwnReference:
    """Our own reference: formulas it computes in this process, all other models in workers.

    A formula takes as much time and memory as its inputs let expect, and its nodes are checked
    before. Any other model may loop without end or make terabytes out of a few bytes.

    Args:
        here: it in this process.
        open_pool: starts it in workers; called when there is a model for them.
    """

    def __init__(self, here: InProcess, open_pool: Callable[[], Pool]) -> None:
        self._here = here
        self._open_pool = open_pool
        self._pool: Pool | None = None
        self.name = here.name
        self.version = here.version

    @property
    def ahead(self) -> int:
        """As many as the workers have use for, once there are any."""
        return self._pool.ahead if self._pool else self._here.ahead

    def ready(self) -> None:
        """Do nothing: it has started as far as is known to be needed."""

    def submit(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, Value],
        started: Callable[[], None],
        *,
        keep: bool = False,
    ) -> Pending:
        """Have a case run in the place that is right for its model."""
        if sole_operator(model) is not None:
            return self._here.submit(model, inputs, started, keep=keep)
        if self._pool is None:
            self._pool = self._open_pool()
        return self._pool.submit(model, inputs, started, keep=keep)

    def renew(self) -> None:
        """Make the backend anew in both places."""
        self._here.renew()
        if self._pool is not None:
            self._pool.renew()

    def finish(self) -> list[Aside]:
        """End it in both places; return what it did outside of any case."""
        return [*self._here.finish(), *(self._pool.finish() if self._pool else ())]
