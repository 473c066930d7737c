"""Executors, which run cases on backends: in this process, in workers, or on other machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

import onnx

from onnxopt_cli.backends.host import (
    Host,
    Incident,
    Request,
    Response,
    is_formula,
)
from onnxopt_cli.backends.plugin import require_plugin_file
from onnxopt_cli.backends.protocol import start_problem
from onnxopt_cli.backends.resolve import require_known_name
from onnxopt_cli.backends.specification import (
    Specification,
    parse_specification,
    split_label,
)
from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.config.run_config import (
    Execution,
    Isolation,
    Judging,
    Limits,
    LoweringMode,
)
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.result import NOT_STARTED, Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import BackendUnavailable, OnnxoptError, UsageError
from onnxopt_cli.operators.call import Call
from onnxopt_cli.workers.interruption import INTERRUPTED_REASON, Interruption
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
# The time limit for a case on a worker of a cluster, as a multiple of the backends' time limits.
# The worker needs more time than the backends, because it also submits probes and judges outputs.
_CLUSTER_TIMEOUT_FACTOR = 30
#: A function that waits for the response to a submitted case. If the response is missing, the
#: function returns the reason.
Pending: TypeAlias = Callable[[], Response | str]
#: A function that runs a model on the backend with a given name. It returns the outputs or, if the
#: backend returned none, the outcome.
ModelRunner = Callable[[str, onnx.ModelProto, Mapping[str, Value]], Sequence[Value] | Outcome]


class Executor(Protocol):
    """Runs cases on one backend, in this process, in workers or on other machines.

    Attributes:
        specification: the specification of the backend.
        name: the user's name for the backend, or the text of the specification. The name identifies
            the results of the backend.
        ahead: the number of cases to submit before waiting for the first response.
        version: the implementation and its version, as the backend reports them once it is ready;
            empty if unknown.
    """

    specification: Specification
    name: str
    version: str
    ahead: int

    def ready(self) -> None:
        """Wait until the backend has started.

        Raises:
            UsageError: if the backend does not exist.
            BackendUnavailable: if the backend does not start.
        """

    def submit(self, request: Request) -> Pending:
        """Start to run a case."""

    def renew(self) -> None:
        """Restart the backend while no case is pending, to discard the state of earlier cases."""

    def finish(self) -> list[Incident]:
        """Shut the backend down, and return its failures outside of any case."""


def weak_isolation(execution: Execution, backends: Sequence[str]) -> str:
    """Return a warning if this system cannot isolate backends completely, else an empty string."""
    unnamed = {split_label(text)[1] for text in backends}
    is_numpy_alone = execution.isolation is None and unnamed == {"numpy"}
    isolated = not is_numpy_alone and execution.isolation is not Isolation.NONE
    return f"isolation is {limits}" if isolated and (limits := weakness()) else ""


@contextmanager
def open_executors(
    backends: Sequence[str],
    execution: Execution,
    interruption: Interruption,
    reference_oracle: ReferenceOracle | None = None,
    cluster: Cluster | None = None,
    open_progress: OpenProgress = hide_progress,
) -> Iterator[list[Executor]]:
    """Start backends, and end all of their processes afterwards.

    Backends start in the background. :meth:`Executor.ready` waits for a backend. If the environment
    of an adapter does not exist, it is created before the backends start.

    Args:
        backends: the specifications of the backends.
        execution: how to run them.
        interruption: set when the user interrupts the run.
        reference_oracle: the oracle of models without a formula; None if no case needs the oracle.
            Its workers are separate processes even if the backends are not isolated.
        cluster: the machines on which the backends run; None for this machine.
        open_progress: opens a progress display for the installation of adapters.

    Raises:
        UsageError: if the specification of a backend is invalid, if two specifications name the
            same backend, or if a backend must run in its own processes and this system does not
            support that.
    """
    # A worker cannot have more memory than the operating system allows.
    limits = replace(execution.limits, memory=allowed_memory(execution.limits.memory))
    execution = replace(execution, limits=limits)
    specifications = distinct_specifications(backends)
    with ExitStack() as stack:
        pools = _Pools(interruption, stack)
        executors: list[Executor] = []
        if cluster and specifications:
            remote = _open_remote(cluster, specifications, execution, reference_oracle)
            executors += stack.enter_context(remote)
        for specification in specifications[len(executors) :]:
            if failure := _installation_failure(specification, interruption, open_progress):
                executors.append(NotStarted(specification, failure))
            else:
                executors.append(_open_here(specification, execution, interruption, pools))
        if reference_oracle is not None:
            start = partial(_start_reference, reference_oracle, execution, interruption, pools)
            reference_oracle.workers = cache(start)
        yield executors


@contextmanager
def open_model_runner(
    backends: Sequence[Executor],
    execution: Execution,
    interruption: Interruption,
    cluster: Cluster | None,
) -> Iterator[ModelRunner]:
    """Yield a function that runs models on backends.

    The function starts a backend when the backend is first used. After a failed start, it does not
    try again.
    """
    texts = {backend.name: backend.specification.given for backend in backends}
    with ExitStack() as stack:

        @cache
        def executor(backend: str) -> Executor | None:
            one_worker = replace(execution, jobs=1)
            with suppress(OnnxoptError):
                opened = open_executors([texts[backend]], one_worker, interruption, cluster=cluster)
                (started,) = stack.enter_context(opened)
                started.ready()
                return started
            return None

        def run_model(
            backend: str, model: onnx.ModelProto, inputs: Mapping[str, Value]
        ) -> Sequence[Value] | Outcome:
            started = executor(backend)
            return Outcome.NOT_RUN if started is None else run_on(started, model, inputs)

        yield run_model


def run_on(
    executor: Executor, model: onnx.ModelProto, inputs: Mapping[str, Value]
) -> Sequence[Value] | Outcome:
    """Run a model; return the outputs or, if the backend returns none, the outcome."""
    with suppress(OnnxoptError):
        response = executor.submit(Request(model, inputs))()
        if isinstance(response, str):
            return Outcome.NOT_RUN
        if response.failure:
            return response.failure
        return response.outputs or Outcome.PROTOCOL
    return Outcome.NOT_RUN


def call_model(call: Call[Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model of a single node that performs a call, and the inputs of the model."""
    attributes = {
        name: value for name, value in call.attributes.items() if name not in call.omitted
    }
    model = formula_model(call.operator, attributes, call.inputs, graph_name="further")
    names = call.operator.input_names(len(call.groups))
    return model, dict(zip(names, call.inputs, strict=True))


class _Pools:
    """Starts pools of workers.

    :func:`open_executors` ends the pools.

    Args:
        interruption: set when the user interrupts the run.
        stack: ends the pools when it is closed.
    """

    def __init__(self, interruption: Interruption, stack: ExitStack) -> None:
        self.stack = stack
        self._interruption = interruption

    @cached_property
    def _loop(self) -> WorkerLoop:
        # Imported late: runs of the backend numpy need no workers, and start faster without this
        # module.
        from onnxopt_cli.workers.pool import WorkerLoop

        return self.stack.enter_context(closing(WorkerLoop()))

    def start(
        self, specification: Specification, execution: Execution, *, closed: bool = False
    ) -> Pool:
        """Start the first worker of a backend. Further workers start when cases need them.

        Args:
            specification: the specification of the backend.
            execution: how to run it.
            closed: whether other processes are prevented from inspecting the workers.
        """
        from onnxopt_cli.workers.pool import Pool
        from onnxopt_cli.workers.worker import Worker

        worker = partial(
            Worker,
            specification.given,
            execution.lowering,
            _limits_of(specification, execution.limits),
            self._loop.selector,
            closed=closed,
        )
        return Pool(specification, worker, execution.jobs, self._loop, self._interruption)


def _open_here(
    specification: Specification, execution: Execution, interruption: Interruption, pools: _Pools
) -> Executor:
    """Open a backend on this machine, in workers or in this process."""
    is_numpy = execution.isolation is None and specification.name == "numpy"
    isolated = HAS_WORKERS or execution.isolation is not None
    if is_numpy or execution.isolation is Isolation.NONE or not isolated:
        has_pool = is_numpy and HAS_WORKERS
        open_pool = partial(pools.start, specification, execution) if has_pool else None
        return _in_process(specification, execution, interruption, open_pool)
    return pools.start(specification, execution)


def _start_reference(
    reference_oracle: ReferenceOracle,
    execution: Execution,
    interruption: Interruption,
    pools: _Pools,
) -> Submit:
    """Start the workers of the reference oracle; return the function that submits models."""
    from onnxopt_cli.oracle.reference_oracle import REFERENCE_WORKER

    pools.stack.callback(reference_oracle.close)
    specification = parse_specification(REFERENCE_WORKER)
    never = LoweringMode.NEVER
    executor: Executor
    if HAS_WORKERS:
        limits = _reference_limits(execution.limits)
        execution = replace(execution, lowering=never, limits=limits)
        executor = pools.start(specification, execution, closed=True)
    else:
        executor = InProcess(specification, never, execution.limits, interruption, None)
    return lambda model, inputs: executor.submit(Request(model, inputs))


def distinct_specifications(backends: Sequence[str]) -> list[Specification]:
    """Parse the specifications of backends.

    Specifications that differ only in spaces, or in the order of options, are equal. Two spellings
    of a path are different backends, because the text of the specification identifies the results
    of a backend.

    Raises:
        UsageError: if a specification is malformed, or if two specifications are equal or have the
            same name.
    """
    specifications: list[Specification] = []
    names: set[str] = set()
    for text in backends:
        specification = parse_specification(text.strip())
        if specification in specifications:
            first = specifications[specifications.index(specification)]
            raise UsageError(
                f"the same backend is given twice: {printable(first.given)} "
                f"and {printable(specification.given)}",
                hint="give each backend once; --jobs runs several of its cases at a time",
            )
        name = specification.name_in_results
        if name in names:
            raise UsageError(
                f"two backends have the name {printable(name)}",
                hint="give each a different name, as in -b NAME=BACKEND",
            )
        names.add(name)
        specifications.append(specification)
    return specifications


def require_backends(
    backends: Sequence[str], interruption: Interruption, open_progress: OpenProgress
) -> None:
    """Require that the names of all backends are known, and that at least one backend exists.

    A plugin is missing if its file does not exist. An adapter is missing if its environment cannot
    be created. No code of a backend is executed.

    Args:
        backends: the specifications of the backends.
        interruption: set when the user interrupts the run.
        open_progress: opens a progress display for the installation of adapters.

    Raises:
        UsageError: if a specification is invalid, or names an unknown backend.
        BackendUnavailable: if all backends are missing.
    """
    specifications = distinct_specifications(backends)
    for specification in specifications:
        require_known_name(specification)
    missing = []
    # Check adapters last. If a backend of another kind exists, no adapter is installed here. A
    # failed installation would be repeated when the backends are opened.
    for specification in sorted(specifications, key=lambda named: bool(named.adapter)):
        try:
            require_plugin_file(specification)
        except BackendUnavailable as error:
            missing.append(error)
            continue
        failure = _installation_failure(specification, interruption, open_progress)
        if failure is None:
            return
        missing.append(failure)
    if missing:
        raise missing[0]


def _installation_failure(
    specification: Specification, interruption: Interruption, open_progress: OpenProgress
) -> BackendUnavailable | None:
    """Create the environment of an adapter unless it exists; return an error, if any."""
    if not specification.adapter:
        return None
    # Imported late, because few runs have an adapter.
    from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment

    try:
        environment = AdapterEnvironment.of(specification)
        if environment.packages() is None:
            with interruption.at_once():
                environment.create(open_progress)
    except BackendUnavailable as error:
        return error
    return None


def _in_process(
    specification: Specification,
    execution: Execution,
    interruption: Interruption,
    open_pool: Callable[[], Pool] | None,
) -> InProcess | NotStarted:
    try:
        return InProcess(
            specification, execution.lowering, execution.limits, interruption, open_pool
        )
    except BackendUnavailable as error:
        return NotStarted(specification, error)


@contextmanager
def _open_remote(
    cluster: Cluster,
    specifications: Sequence[Specification],
    execution: Execution,
    reference_oracle: ReferenceOracle | None,
) -> Iterator[list[Remote]]:
    """Start backends on the workers of a cluster."""
    from onnxopt_cli.run.remote import Remote
    from onnxopt_cli.workers.cluster.dask_client import WorkerGroup

    if execution.isolation is Isolation.NONE:
        raise UsageError("--isolation none is not available on a cluster")
    texts = [specification.given for specification in specifications]
    judging = reference_oracle.judging if reference_oracle else Judging()
    arguments = texts, replace(execution, jobs=1), judging
    limits = [_limits_of(specification, execution.limits) for specification in specifications]
    timeout = _CLUSTER_TIMEOUT_FACTOR * (
        max(each.startup_timeout for each in limits) + sum(each.timeout for each in limits)
    )
    with closing(WorkerGroup(cluster, _SERVED, arguments, timeout)) as workers:
        yield [Remote(specifications, place, workers) for place in range(len(texts))]


def _limits_of(specification: Specification, limits: Limits) -> Limits:
    """Return the limits of a backend's workers, which the backend's option ``timeout`` may raise.

    For a backend that is a command, the option limits the time for each response of the command.
    A case may need several responses.
    """
    seconds = specification.timeout or 0
    return replace(
        limits,
        timeout=max(limits.timeout, seconds),
        startup_timeout=max(limits.startup_timeout, seconds),
    )


def _reference_limits(limits: Limits) -> Limits:
    from onnxopt_cli.workers.worker import forks

    # A forked worker inherits the memory of this process; this memory counts towards the limit of
    # the worker.
    inherited = resident(os.getpid()) if limits.memory and forks() else 0
    return replace(limits, memory=limits.memory + inherited)


class NotStarted:
    """A backend that failed to start, so that none of its cases run.

    Args:
        specification: the specification of the backend.
        error: the error that prevented the start.
    """

    def __init__(self, specification: Specification, error: BackendUnavailable) -> None:
        self.specification, self.name = specification, specification.name_in_results
        self.version = ""
        self.ahead = 1
        self._error = error

    def ready(self) -> None:
        """Raise the error that prevented the start.

        Raises:
            BackendUnavailable: always.
        """
        raise self._error

    def submit(self, _: Request) -> Pending:
        """Return the reason why the case does not run."""
        # Remove the name of the backend from the reason, because the result already contains it.
        problem = start_problem(self._error, self.name, self.specification.text)
        return lambda: f"{NOT_STARTED}{problem}"

    def renew(self) -> None:
        """Do nothing."""

    def finish(self) -> list[Incident]:
        """Return no failures, because the backend did not run."""
        return []


class NeedsWorkersError(Exception):
    """A case needs a worker, but this process must not start workers."""


def refuse_workers() -> NoReturn:
    """Refuse to start workers.

    Raises:
        NeedsWorkersError: always.
    """
    raise NeedsWorkersError


class InProcess:
    """A backend in the process of the runner. If the backend crashes, so does the runner.

    Args:
        specification: the specification of the backend.
        lowering: the condition under which the backend gets primitive operators.
        limits: the time limits of a backend that is a command.
        interruption: set when the user interrupts the run.
        open_pool: starts workers; None to run all models in this process. Workers run all models
            except single nodes with a formula and their trajectories. These nodes are checked
            first, and the size of their inputs limits the time and memory that the formula takes.
            Any other model may loop endlessly or allocate terabytes.
    """

    def __init__(
        self,
        specification: Specification,
        lowering: LoweringMode,
        limits: Limits,
        interruption: Interruption,
        open_pool: Callable[[], Pool] | None,
    ) -> None:
        self._start = partial(Host, specification, lowering, limits)
        self._host = self._start()
        self._interruption = interruption
        self._open_pool = open_pool
        self._pool: Pool | None = None
        self.ahead = 1
        self.specification, self.name = specification, specification.name_in_results
        self.version = self._host.version

    @property
    def runs_only_formulas(self) -> bool:
        """True if this process runs only formulas, and workers run all other models."""
        return self._open_pool is not None

    def without_workers(self) -> InProcess:
        """Return a copy of the executor for a process that must not start workers."""
        executor = copy(self)
        vars(executor)["_open_pool"] = refuse_workers
        return executor

    def ready(self) -> None:
        """Do nothing, because workers start when a case needs them."""

    def runs_here(self, request: Request) -> bool:
        """Return whether this process, not a worker, runs a case."""
        return self._open_pool is None or request.formula_loop or is_formula(request)

    def submit(self, request: Request) -> Pending:
        """Start to run a case in a worker, or return a function that runs it in this process."""
        if self._open_pool is not None and not self.runs_here(request):
            self._pool = self._pool or self._open_pool()
            self.ahead = self._pool.ahead
            return self._pool.submit(request)

        def run() -> Response | str:
            if self._interruption.signal:
                return INTERRUPTED_REASON
            request.started()
            return self._host.respond(request)

        return run

    def renew(self) -> None:
        """Create the backend again.

        The new backend shares all imported modules, and any state in them, with the previous
        backend.
        """
        self._host = self._start()
        if self._pool is not None:
            self._pool.renew()

    def finish(self) -> list[Incident]:
        """End the backend, and return a failure of its teardown, if any."""
        failure = self._host.close()
        incidents = [Incident("teardown", *failure)] if failure else []
        return [*incidents, *(self._pool.finish() if self._pool else ())]
