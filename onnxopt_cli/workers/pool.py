"""Pools of workers: a pool distributes the cases of a backend, one at a time to each worker."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import EncodeError

from onnxopt_cli.backends.conversation import TICK_SECONDS
from onnxopt_cli.backends.host import (
    Incident,
    Request,
    Response,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.result import NOT_SENT, Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import total_bytes
from onnxopt_cli.errors import (
    BackendUnavailable,
    OnnxoptError,
    UnusableOutput,
    UsageError,
)
from onnxopt_cli.workers.interruption import INTERRUPTED_REASON, Interruption
from onnxopt_cli.workers.private_folder import sweep_folders
from onnxopt_cli.workers.processes import HAS_WORKERS
from onnxopt_cli.workers.worker import State, Worker

# A worker is replaced after this number of cases, to limit the effect of slow leaks of backends.
# Closed workers, which run only code of onnxopt, are not replaced.
_CASES_PER_WORKER = 2000
# If outputs that the runner has not read yet have more bytes than this, a pool assigns only the
# request whose response the runner awaits. Otherwise, the outputs of later requests might exhaust
# the memory.
_MAX_UNREAD_BYTES = 64 << 20
# The pool gives up after this number of workers in a row that did not start, or that ended before
# they had responded to any case.
_MAX_FAILED_STARTS = 3


class WorkerLoop:
    """The event loop for the workers of all pools.

    Raises:
        UsageError: if this system has no workers.
    """

    def __init__(self) -> None:
        if not HAS_WORKERS:
            raise UsageError(
                "on this system backends cannot have processes of their own",
                hint="--isolation none runs them in this process",
            )
        sweep_folders()
        self.selector = selectors.DefaultSelector()
        self.pools: list[Pool] = []

    def run_once(self, seconds: float = TICK_SECONDS) -> None:
        """Wait for events of workers, and let each pool handle them."""
        self.selector.select(seconds)
        for pool in self.pools:
            pool.advance()

    def close(self) -> None:
        """Kill all workers."""
        for pool in self.pools:
            pool.kill()
        self.selector.close()


@dataclass(eq=False, slots=True)
class Job:
    """A request that a worker of a pool has to run.

    Attributes:
        request: the request.
        result: the response, or the reason why it is missing; None until either is known.
        unread_bytes: size of the outputs in bytes; 0 once the runner has read the outputs.
        earlier_breach: the fault by which a worker ended while it ran this request, if an earlier
            case may have caused the fault; else None.
    """

    request: Request
    result: Response | str | None = None
    unread_bytes: int = 0
    earlier_breach: Incident | None = None


@dataclass(eq=False)
class Pool:
    """Runs a backend in worker processes; the first worker starts immediately.

    Attributes:
        specification: the specification of the backend.
        worker: starts another worker.
        jobs: the largest number of workers.
        loop: the event loop of the workers.
        interruption: set when the user interrupts the run.
        version: the implementation and its version, once the backend is ready.
    """

    specification: Specification
    worker: Callable[[], Worker]
    jobs: int
    loop: WorkerLoop
    interruption: Interruption
    version: str = ""
    _ready: bool = False
    _queue: deque[Job] = field(default_factory=deque)
    _running: dict[Worker, Job] = field(default_factory=dict)
    _workers: list[Worker] = field(default_factory=list)
    _incidents: list[Incident] = field(default_factory=list)
    _failed_starts: int = 0
    _unread_bytes: int = 0
    _awaited: Job | None = None
    _refusal: OnnxoptError | None = None

    def __post_init__(self) -> None:
        self.name = self.specification.name_in_results
        self.ahead = 2 * self.jobs
        self.loop.pools.append(self)
        self._workers.append(self.worker())

    def ready(self) -> None:
        """Wait until the backend has started.

        Raises:
            UsageError: if the backend does not exist.
            BackendUnavailable: if the backend does not start.
        """
        while not self._ready:
            if self._refusal is not None:
                raise self._refusal
            if self.interruption.signal:
                raise KeyboardInterrupt
            self.loop.run_once()

    def submit(self, request: Request) -> Callable[[], Response | str]:
        """Queue a request.

        Returns:
            A function that waits for the response and returns it, or the reason why it is missing.
        """
        job = Job(request)
        self._queue.append(job)
        self.loop.run_once(0)

        def wait() -> Response | str:
            self._awaited = job
            while job.result is None:
                if self.interruption.signal:
                    return INTERRUPTED_REASON
                self.loop.run_once()
            self._unread_bytes -= job.unread_bytes
            self._awaited, job.unread_bytes = None, 0
            return job.result

        return wait

    def renew(self) -> None:
        """Replace all workers by one new worker. The caller must ensure that no case is queued."""
        self._end_workers()
        self._workers.append(self.worker())

    def finish(self) -> list[Incident]:
        """Shut all workers down; return their faults that belong to no case."""
        self._end_workers()
        return self._incidents

    def kill(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def advance(self) -> None:
        """Collect the results of the workers, and assign queued cases to workers."""
        for worker in self._workers:
            worker.poll()
            self._collect(worker)
        self._workers = [worker for worker in self._workers if worker.state is not State.GONE]
        while job := self._next_job():
            free = next((worker for worker in self._workers if worker.free), None)
            if free is None:
                break
            self._queue.remove(job)
            self._assign(free, job)
        if self._refusal is not None:
            for job in self._queue:
                job.result = f"the backend could not be started again: {self._refusal.message}"
            self._queue.clear()
        if self._queue and not self.interruption.signal:
            self._start_another()

    def _next_job(self) -> Job | None:
        """Return the queued request to assign next; None if no request may be assigned."""
        if self._unread_bytes <= _MAX_UNREAD_BYTES:
            return self._queue[0] if self._queue else None
        return self._awaited if self._awaited in self._queue else None

    def _collect(self, worker: Worker) -> None:
        if worker.version is not None and not self._ready:
            self.version = worker.version
            self._ready = True
        if worker.free and worker.version != self.version:
            worker.give_up(
                Outcome.PROTOCOL,
                f"the worker reports the version {worker.version!r}; "
                f"the first worker reported {self.version!r}",
            )
        if worker.response is not None:
            job, self._failed_starts = self._running.pop(worker), 0
            breach = job.earlier_breach
            if breach and not _recurs(breach, worker.response):
                # The new worker has run the same case without the fault, so an earlier case caused
                # the fault.
                self._incidents.append(breach)
            job.unread_bytes = total_bytes(worker.response.outputs or ())
            self._unread_bytes += job.unread_bytes
            job.result, worker.response = worker.response, None
            is_used_up = worker.case_count >= _CASES_PER_WORKER and not worker.closed
            if worker.free and is_used_up:
                worker.end()
        if worker.state is State.GONE:
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        """Remove a worker that has ended: queue its case again, or record its fault."""
        incident, job = worker.incident, self._running.pop(worker, None)
        if job is not None:
            job.earlier_breach = incident
            self._queue.appendleft(job)
        elif incident is not None:
            self._incidents.append(incident)
        refusal = worker.refusal
        if incident is not None and incident.place != "teardown" and not worker.has_responded:
            refusal = BackendUnavailable(incident.message)
        if refusal is not None:
            self._failed_starts += 1
            if not self._ready or self._failed_starts == _MAX_FAILED_STARTS:
                self._refusal = refusal

    def _assign(self, worker: Worker, job: Job) -> None:
        try:
            is_sent = worker.submit(job.request, job.request.model.SerializeToString())
        except (ValueError, EncodeError, UnusableOutput) as error:
            job.result = f"{NOT_SENT}{printable(str(error))}"
            return
        if is_sent:
            job.request.started()
            self._running[worker] = job
        else:
            self._queue.appendleft(job)

    def _start_another(self) -> None:
        ending = {State.ENDING, State.GONE}
        active = [worker for worker in self._workers if worker.state not in ending]
        starting = sum(worker.state is State.STARTING for worker in active)
        if len(active) < self.jobs and starting < len(self._queue):
            try:
                self._workers.append(self.worker())
            except OSError:
                if not active:
                    raise
                # The system allows no more processes or open files, so continue with the existing
                # workers.
                self.jobs = len(active)

    def _end_workers(self) -> None:
        self._queue.clear()
        for worker in self._workers:
            if worker.state is State.IDLE:
                worker.end()
            elif worker.state is not State.ENDING:
                worker.kill()
        while self._workers and not self.interruption.signal:
            self.loop.run_once()
        self.kill()


def _recurs(fault: Incident, response: Response) -> bool:
    """Return whether the fault of a worker occurs again in a new worker."""
    if fault.outcome is Outcome.PROTOCOL:
        return response.failure is Outcome.PROTOCOL
    return (fault.outcome, fault.message) == (response.failure, response.message)
