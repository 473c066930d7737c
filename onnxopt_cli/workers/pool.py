"""Workers that share the cases of one backend, one case in flight each."""

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
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    BackendUnavailable,
    OnnxoptError,
    UnusableOutput,
    UsageError,
)
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.private_folder import sweep_folders
from onnxopt_cli.workers.processes import HAS_WORKERS
from onnxopt_cli.workers.worker import State, Worker

# A worker is replaced after so many cases, so that what grows slowly does not grow for ever.
_CASES_PER_WORKER = 1000
# A backend that has started once, and then so many times in a row does not, or not for long enough
# to answer a case, is given up.
_STARTS = 3


class WorkerLoop:
    """Where the workers of all pools are waited for.

    Raises:
        UsageError: if this system has no workers.
    """

    def __init__(self) -> None:
        if not HAS_WORKERS:
            raise UsageError(
                "on this system backends cannot have processes of their own",
                hint="--isolation none runs them in this one",
            )
        sweep_folders()
        self.selector = selectors.DefaultSelector()
        self.pools: list[Pool] = []

    def run_once(self, seconds: float = TICK_SECONDS) -> None:
        """Wait for something to happen, and see to it."""
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
    """A case that a pool is to run.

    Attributes:
        request: the case.
        result: the response, or in words why there will be none; None until either is known.
        earlier_breach: what went wrong in an earlier worker that had the case, perhaps because of
            another case.
    """

    request: Request
    result: Response | str | None = None
    earlier_breach: Incident | None = None


@dataclass(eq=False)
class Pool:
    """A backend in worker processes, of which the first is started at once.

    Attributes:
        name: the backend as the user asked for it.
        worker: starts one more of them.
        jobs: how many there may be.
        loop: where they are waited for.
        interruption: set when the user wants the run to end.
        version: the implementation and its version, once it is ready.
    """

    name: str
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
    _refusal: OnnxoptError | None = None

    def __post_init__(self) -> None:
        self.ahead = 2 * self.jobs
        self.loop.pools.append(self)
        self._workers.append(self.worker())

    def ready(self) -> None:
        """Wait until the backend has started.

        Raises:
            UsageError: if there is no such backend.
            BackendUnavailable: if it does not start.
        """
        while not self._ready:
            if self._refusal is not None:
                raise self._refusal
            if self.interruption.signal:
                raise KeyboardInterrupt
            self.loop.run_once()

    def submit(self, request: Request) -> Callable[[], Response | str]:
        """Queue a case; what is returned waits for its response, or says why there is none."""
        job = Job(request)
        self._queue.append(job)
        self.loop.run_once(0)

        def wait() -> Response | str:
            while job.result is None:
                if self.interruption.signal:
                    return "interrupted"
                self.loop.run_once()
            return job.result

        return wait

    def renew(self) -> None:
        """Let the next case meet a fresh worker; nothing may be queued."""
        self._end_workers()
        self._workers.append(self.worker())

    def finish(self) -> list[Incident]:
        """Shut all workers down; return what they did outside of any case."""
        self._end_workers()
        return self._incidents

    def kill(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def advance(self) -> None:
        """Take what the workers have done, and give them what there is to do."""
        for worker in self._workers:
            worker.poll()
            self._collect(worker)
        self._workers = [worker for worker in self._workers if worker.state is not State.GONE]
        while self._queue and (free := next((it for it in self._workers if it.free), None)):
            self._assign(free, self._queue.popleft())
        if self._refusal is not None:
            for job in self._queue:
                job.result = f"the backend could not be started again: {self._refusal.message}"
            self._queue.clear()
        if self._queue and not self.interruption.signal:
            self._start_another()

    def _collect(self, worker: Worker) -> None:
        if worker.version is not None and not self._ready:
            self.version = worker.version
            self._ready = True
        if worker.free and worker.version != self.version:
            said = f"says that it is {worker.version!r}; when it started first it was"
            worker.give_up(Outcome.PROTOCOL, f"the worker {said} {self.version!r}")
        if worker.response is not None:
            job, self._failed_starts = self._running.pop(worker), 0
            before = job.earlier_breach
            if before and (before.outcome, worker.response.failure) != (Outcome.PROTOCOL,) * 2:
                # In a worker of its own the case breaks no protocol: something before it did.
                self._incidents.append(before)
            job.result, worker.response = worker.response, None
            if worker.free and worker.asked >= _CASES_PER_WORKER:
                worker.end()
        if worker.state is State.GONE:
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        """See to what a worker that has gone leaves: its case, and what it did outside of any."""
        incident, job = worker.incident, self._running.pop(worker, None)
        if job is not None:
            job.earlier_breach = incident
            self._queue.appendleft(job)
        elif incident is not None:
            self._incidents.append(incident)
        refusal = worker.refusal
        if incident is not None and incident.place != "teardown" and not worker.with_expected:
            refusal = BackendUnavailable(incident.message)
        if refusal is not None:
            self._failed_starts += 1
            if not self._ready or self._failed_starts == _STARTS:
                self._refusal = refusal

    def _assign(self, worker: Worker, job: Job) -> None:
        try:
            asked = worker.ask(job.request, job.request.model.SerializeToString())
        except (ValueError, EncodeError, UnusableOutput) as error:
            job.result = f"the case cannot be sent to a worker: {printable(str(error))}"
            return
        if asked:
            job.request.started()
            self._running[worker] = job
        else:
            self._queue.appendleft(job)

    def _start_another(self) -> None:
        left = {State.ENDING, State.GONE}
        at_work = [worker for worker in self._workers if worker.state not in left]
        starting = sum(worker.state is State.STARTING for worker in at_work)
        if len(at_work) < self.jobs and starting < len(self._queue):
            try:
                self._workers.append(self.worker())
            except OSError:
                if not at_work:
                    raise
                # The system allows no more processes or open files; those at work go on.
                self.jobs = len(at_work)

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
