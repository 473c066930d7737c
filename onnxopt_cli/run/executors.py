"""Where cases run: in this process, or in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

from onnxopt_cli.backends.host import (
    Host,
    Incident,
    Request,
    Response,
    is_formula,
)
from onnxopt_cli.backends.specification import Specification, parse_specification
from onnxopt_cli.config.run_config import (
    Execution,
    Isolation,
    Judging,
    Limits,
    LoweringMode,
)
from onnxopt_cli.core.result import NOT_STARTED
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendUnavailable, UsageError
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.processes import (
    HAS_WORKERS,
    allowed_memory,
    resident,
    weakness,
)

if TYPE_CHECKING:
    from onnxopt_cli.oracle.reference_oracle import ReferenceOracle, Submit
    from onnxopt_cli.run.remote import Remote
    from onnxopt_cli.workers.cluster.dask_client import Cluster
    from onnxopt_cli.workers.pool import Pool, WorkerLoop


_SERVED = "onnxopt_cli.run.served:open_run"
# A worker of a cluster may take this multiple of a case's time limits.
_PATIENCE = 30
#: Waits for the response to a submitted case; text is the reason why there is no response.
Pending: TypeAlias = Callable[[], Response | str]


class Executor(Protocol):
    """Runs cases on one backend, in this process, in workers or on other machines.

    Attributes:
        name: the specification of the backend, which identifies its results.
        ahead: number of cases to submit before the result of the first is awaited.
        version: the implementation and its version as the backend reports them, once it is ready;
            empty if unknown.
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

    def submit(self, request: Request) -> Pending:
        """Begin to run a case."""

    def renew(self) -> None:
        """Restart the backend and so discard the state of earlier cases; no case is pending."""

    def finish(self) -> list[Incident]:
        """Shut the backend down, and return its failures outside of any case."""


def weak_isolation(execution: Execution, backends: Sequence[str]) -> str:
    """Return a message if this machine isolates backends less than others; else an empty one."""
    ours = execution.isolation is None and set(backends) == {"numpy"}
    isolated = not ours and execution.isolation is not Isolation.NONE
    return f"isolation is {lacking}" if isolated and (lacking := weakness()) else ""


@contextmanager
def open_executors(
    backends: Sequence[str],
    execution: Execution,
    interruption: Interruption,
    reference_oracle: ReferenceOracle | None = None,
    cluster: Cluster | None = None,
) -> Iterator[list[Executor]]:
    """Start backends, and end all of their processes afterwards.

    They start at the same time, in the background: wait for each with ``ready``.

    Args:
        backends: their specifications.
        execution: how to run them.
        interruption: set when the user wants the run to end.
        reference_oracle: asks models in workers beside those of the backends, however these are
            isolated.
        cluster: the machines on which they run; None for this one.

    Raises:
        UsageError: if a backend's specification is not valid, or two ask for the same backend, or
            they are to have processes of their own and cannot.
    """
    # A worker cannot have more than the system allows.
    limits = replace(execution.limits, memory=allowed_memory(execution.limits.memory))
    execution = replace(execution, limits=limits)
    asked = [parse_specification(text.strip()) for text in backends]
    for place, one in enumerate(asked):
        # Spaces around a name or between the words of a command, and the order of options, make no
        # other backend. A path that is written in two ways does: each result has its own key.
        if one in asked[:place]:
            raise UsageError(
                f"the same backend is asked for twice: {printable(asked[asked.index(one)].text)} "
                f"and {printable(one.text)}",
                hint="give each backend once; --jobs runs more of its cases at a time",
            )
    with ExitStack() as stack:

        @cache
        def loop() -> WorkerLoop:
            # Not worth importing for our own reference on its own formulas.
            from onnxopt_cli.workers.pool import WorkerLoop

            return stack.enter_context(closing(WorkerLoop()))

        def pool(text: str, how: Execution = execution, *, closed: bool = False) -> Pool:
            from onnxopt_cli.workers.pool import Pool
            from onnxopt_cli.workers.worker import Worker

            given = text, how.lowering, how.limits, loop().selector
            worker = partial(Worker, *given, closed=closed)
            return Pool(text, worker, how.jobs, loop(), interruption)

        remote = cluster and _open_remote(cluster, asked, execution, reference_oracle)
        executors: list[Executor] = [*stack.enter_context(remote)] if remote and asked else []
        for one in asked[len(executors) :]:
            ours = execution.isolation is None and one.name == "numpy"
            isolated = HAS_WORKERS or execution.isolation is not None
            if ours or execution.isolation is Isolation.NONE or not isolated:
                elsewhere = partial(pool, one.text) if ours and HAS_WORKERS else None
                executors.append(_in_process(one.text, execution, interruption, elsewhere))
            else:
                executors.append(pool(one.text))

        @cache
        def asked_submit() -> Submit:
            from onnxopt_cli.oracle.reference_oracle import REFERENCE_WORKER

            assert reference_oracle is not None  # noqa: S101 - it is what asks
            stack.callback(reference_oracle.close)
            never = LoweringMode.NEVER
            if not HAS_WORKERS:
                return InProcess(REFERENCE_WORKER, never, interruption, None).submit
            asking = replace(execution, lowering=never, limits=_limits_of_asking(execution.limits))
            return pool(REFERENCE_WORKER, asking, closed=True).submit

        if reference_oracle is not None:
            reference_oracle.workers = asked_submit
        yield executors


def _in_process(
    text: str,
    execution: Execution,
    interruption: Interruption,
    open_pool: Callable[[], Pool] | None,
) -> InProcess | NotStarted:
    try:
        return InProcess(text, execution.lowering, interruption, open_pool)
    except BackendUnavailable as error:
        return NotStarted(text, error)


@contextmanager
def _open_remote(
    cluster: Cluster,
    asked: Sequence[Specification],
    execution: Execution,
    reference_oracle: ReferenceOracle | None,
) -> Iterator[list[Remote]]:
    """Start backends on the workers of a cluster."""
    from onnxopt_cli.run.remote import Remote
    from onnxopt_cli.workers.cluster.dask_client import WorkerGroup

    if execution.isolation is Isolation.NONE:
        raise UsageError("on a cluster backends have processes of their own: no --isolation none")
    names = [it.text for it in asked]
    judging = reference_oracle.judging if reference_oracle else Judging()
    terms = names, replace(execution, jobs=1), judging
    # More than a case can take that is asked for other nodes and cases, too.
    patience = _PATIENCE * (
        execution.limits.startup_timeout + execution.limits.timeout * len(asked)
    )
    with closing(WorkerGroup(cluster, _SERVED, terms, patience)) as workers:
        yield [Remote(names, place, workers) for place in range(len(names))]


def _limits_of_asking(limits: Limits) -> Limits:
    from onnxopt_cli.workers.worker_process import forks

    # What this process holds is in a fork of it, too.
    ours = resident(os.getpid()) if limits.memory and forks() else 0
    return replace(limits, memory=limits.memory + ours)


class NotStarted:
    """A backend that failed to start: none of its cases runs.

    Args:
        text: the specification of the backend.
        error: the error of its start.
    """

    def __init__(self, text: str, error: BackendUnavailable) -> None:
        self.name = text
        self.version = ""
        self.ahead = 1
        self._error = error

    def ready(self) -> None:
        """Raise the error of its start.

        Raises:
            BackendUnavailable: always.
        """
        raise self._error

    def submit(self, _: Request) -> Pending:
        """Return the reason why the case does not run."""
        reason = f"{NOT_STARTED}{self._error.message}"
        return lambda: reason

    def renew(self) -> None:
        """Do nothing."""

    def finish(self) -> list[Incident]:
        """Return no incident: the backend did not run."""
        return []


class NotHereError(Exception):
    """Workers are needed in a process that only runs and judges formulas."""


def not_here() -> NoReturn:
    """Refuse to start workers.

    Raises:
        NotHereError: always.
    """
    raise NotHereError


class InProcess:
    """A backend in the runner's own process: if it crashes, so does the runner.

    Args:
        text: the specification of the backend.
        lowering: when the backend is given primitive operators.
        interruption: set when the user wants the run to end.
        open_pool: starts it in workers, for all models but a single node with a formula, or a loop
            of ours around one; None to run everything here. A formula takes as much time and memory
            as its inputs let expect, and its nodes are checked before; any other model may loop
            without end or make terabytes out of a few bytes.
    """

    def __init__(
        self,
        text: str,
        lowering: LoweringMode,
        interruption: Interruption,
        open_pool: Callable[[], Pool] | None,
    ) -> None:
        self._start = partial(Host, text, lowering)
        self._host = self._start()
        self._interruption = interruption
        self._open_pool = open_pool
        self._pool: Pool | None = None
        self.ahead = 1
        self.name = text
        self.version = self._host.version

    @property
    def ours(self) -> bool:
        """True if only formulas run in this process, on the backend ``numpy``."""
        return self._open_pool is not None

    def apart(self) -> InProcess:
        """Return a copy for a process that must not start workers."""
        other = copy(self)
        vars(other)["_open_pool"] = not_here
        return other

    def ready(self) -> None:
        """Do nothing: workers start when a case needs them."""

    def submit(self, request: Request) -> Pending:
        """Begin to run a case in a worker, or return a function that runs it here."""
        isolated = not request.formula_loop and not is_formula(request)
        if isolated and self._open_pool is not None:
            self._pool = self._pool or self._open_pool()
            self.ahead = self._pool.ahead
            return self._pool.submit(request)

        def run() -> Response | str:
            if self._interruption.signal:
                return "interrupted"
            request.started()
            return self._host.respond(request)

        return run

    def renew(self) -> None:
        """Create the backend again, as far as that is possible within one process."""
        self._host = self._start()
        if self._pool is not None:
            self._pool.renew()

    def finish(self) -> list[Incident]:
        """End the backend, and return a failure of its teardown."""
        trouble = self._host.close()
        found = [Incident("teardown", *trouble)] if trouble else []
        return [*found, *(self._pool.finish() if self._pool else ())]
