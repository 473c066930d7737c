"""The loop of a run: load, submit, judge and review each case on each backend."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from onnxopt_cli.backends.host import Request, Response
from onnxopt_cli.cases.case import Case, Problem, case_content, unanswered
from onnxopt_cli.config.run_config import Execution, Judging
from onnxopt_cli.core.process_control import claimed
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.result import (
    OUTSIDE_CASES,
    Outcome,
    Result,
    with_shared,
    worse,
)
from onnxopt_cli.core.values import Array, Value, describe, total_bytes
from onnxopt_cli.errors import BeyondLimit, Fault, InvalidCase
from onnxopt_cli.interpret.bound.chained_nodes import Trajectory, derived_array
from onnxopt_cli.oracle.expected import Expected, PendingExpected
from onnxopt_cli.oracle.oracles import Oracles, resolved
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle
from onnxopt_cli.run.batches import in_batches
from onnxopt_cli.run.executors import (
    Executor,
    InProcess,
    NeedsWorkersError,
    Pending,
    open_executors,
    refuse_workers,
)
from onnxopt_cli.run.judge import (
    LIMIT,
    judge,
    out_of_memory_result,
    unjudged_result,
)
from onnxopt_cli.run.vacuity import ProbeNotRunError, VacuityCheck
from onnxopt_cli.workers.forked_processes import parallel
from onnxopt_cli.workers.interruption import INTERRUPTED_REASON, Interruption

if TYPE_CHECKING:
    from onnxopt_cli.run.remote import Remote
    from onnxopt_cli.workers.cluster.dask_client import Cluster

# A run forks only if it has at least this number of cases. For fewer cases, forking would take
# longer than it saves.
_MIN_PARALLEL_CASES = 20
# Cases are distributed to forked processes in about this number of chunks.
_CHUNK_COUNT = 1000
# The largest number of groups of cases in a chunk.
_MAX_CHUNK_GROUPS = 32
# While a worker is starting, at most this number of cases wait for an earlier case.
_MAX_CASES_AHEAD = 500
# While an earlier case is running, later cases are submitted up to these limits on their bytes and
# their number. A slow case thus does not leave other workers idle.
_MAX_BYTES_AHEAD, _SMALL_CASES_AHEAD = 32 << 20, 100
# The largest number of bytes of a case in a forked process. Larger cases run in the main process,
# one at a time.
_PARALLEL_MAX_BYTES = 16 << 20
# These outcomes may depend on other cases that run at the same time. The main process runs such
# cases again.
_REPEATED_OUTCOMES = frozenset({Outcome.INVALID, Outcome.OOM, Outcome.NOT_RUN})


@dataclass(frozen=True, slots=True)
class Plan:
    """The cases, the opened backends, and everything that is needed to judge results.

    Attributes:
        cases: the cases, in order.
        backends: the backends under test; each case runs on all of them.
        problems: the faults of case files that contain no valid case.
        judging: how outputs are judged.
        max_fail: the run stops after this number of cases that do not conform; 0 for no limit.
        failed: the number of cases that already failed in the log from which the run resumes.
        started: is called with a case's id and a backend's name, just before the backend runs the
            case.
        review: compares a result with the expectations. It takes the result and its case; the case
            is None if the result concerns no case.
        interruption: set when the user interrupts the run.
        vacuity: detects passes that a backend without any computation would also get.
        oracle: returns the expected results.
        judges: the number of processes that run and judge cases of formulas; with 1, only this
            process does so.
        remote: runs and judges cases on other machines; None to run them on this machine.
    """

    cases: Sequence[Case]
    backends: Sequence[Executor]
    problems: Sequence[Fault] = ()
    judging: Judging = field(default_factory=Judging)
    max_fail: int = 0
    failed: int = 0
    started: Callable[[str, str], None] = lambda _case, _backend: None
    review: Callable[[Result, Case | None], Result] = lambda result, _case: result
    interruption: Interruption = field(default_factory=Interruption)
    vacuity: VacuityCheck = field(default_factory=VacuityCheck)
    oracle: Oracles = field(default_factory=lambda: Oracles(Judging()))
    judges: int = 1
    remote: Remote | None = None


@contextmanager
def open_plan(
    backends: Sequence[str],
    execution: Execution,
    judging: Judging,
    interruption: Interruption,
    cluster: Cluster | None = None,
    open_progress: OpenProgress = hide_progress,
) -> Iterator[Plan]:
    """Start backends and yield a plan without cases; end their processes afterwards.

    The arguments are those of :func:`onnxopt_cli.run.executors.open_executors`.

    Raises:
        UsageError: if the specification of a backend is invalid, or if two specifications name the
            same backend.
    """
    reference_oracle = ReferenceOracle(judging)
    if reference_oracle.estimates and set(backends) != {"numpy"}:
        reference_oracle.open_cache()
    started = open_executors(
        backends, execution, interruption, reference_oracle, cluster, open_progress
    )
    with started as opened:
        yield Plan(
            (),
            opened if cluster else [*map(in_batches, opened)],
            judging=judging,
            interruption=interruption,
            oracle=Oracles(judging, reference_oracle),
            judges=1 if cluster else execution.jobs,
            remote=cast("Remote", opened[0]) if cluster and opened else None,
        )


def run(plan: Plan) -> Generator[tuple[Result, ...]]:
    """Yield the results of each case, one for each backend, in the order of the cases.

    Later cases are submitted before the results of earlier cases are yielded, so that no worker is
    idle. After ``max_fail`` failed cases, or when the user interrupts the run, the remaining cases
    are yielded as not run. Cases that workers have already run before an interrupt are still
    judged. Failures of workers outside of any case are yielded last.
    """
    remaining, failed = deque(plan.cases), plan.failed
    with closing(_submitted_ahead(plan)) as submissions:
        while not (stopped := _reason_to_stop(plan, failed)) and remaining:
            submission = next(submissions, None)
            if submission is None:
                # A signal has just arrived.
                continue
            results = _row(plan, remaining.popleft(), submission)
            failed += _fails(results)
            yield results
        if stopped == INTERRUPTED_REASON:
            # The workers may have run cases that were submitted ahead.
            for submission in submissions:
                yield _row(plan, remaining.popleft(), submission)
    for case in remaining:
        yield tuple(
            plan.review(unanswered(case, executor.name, stopped), case)
            for executor in plan.backends
        )
    if not stopped and (incidents := tuple(_incidents(plan))):
        yield incidents


def _row(
    plan: Plan, case: Case, submission: _Submission | tuple[Result, ...]
) -> tuple[Result, ...]:
    if isinstance(submission, _Submission):
        return _judged(plan, submission)
    return _received(plan, case, submission)


def run_case(plan: Plan, case: Case) -> tuple[Result, ...]:
    """Run one case and return its results. The case need not be in the plan."""
    return _judged(plan, _submit(plan, case))


@dataclass(frozen=True, slots=True)
class _Submission:
    """A case, and the responses for which to wait; an invalid case is not submitted.

    Attributes:
        case: the case.
        problem: the model and values of the case; None if the case cannot be loaded.
        expected: for each backend, the expected result, which may be pending; empty if memory is
            exhausted.
        responses: for each backend, a function that waits for the response; empty if the case is
            not submitted.
        skipped: the reason why the case is skipped; empty if it is not skipped.
    """

    case: Case
    problem: Problem | None
    expected: tuple[Expected | PendingExpected, ...]
    responses: tuple[Pending, ...] = ()
    skipped: str = ""

    @property
    def held_bytes(self) -> int:
        """The bytes of the inputs and expected outputs, as far as they are known."""
        if self.problem is None:
            return 0
        outputs = _known_outputs(self.problem, self.expected)
        return total_bytes([*self.problem.inputs.values(), *outputs.values()])


def _submitted_ahead(plan: Plan) -> Generator[_Submission | tuple[Result, ...]]:
    """Submit the cases in order, ahead of judging, and yield a submission for each case.

    After an interruption, no further case is submitted.

    Yields:
        A submission to the backends of this process, or the results from another process.
    """
    parallel_judges = plan.judges > 1 and len(plan.cases) >= _MIN_PARALLEL_CASES
    finished = _finished_rows(plan) if plan.remote or parallel_judges else None
    cases = iter(plan.cases)
    window: deque[_Submission | tuple[Result, ...]] = deque()
    submitted_count = submitted_bytes = 0
    with closing(finished) if finished else nullcontext():
        while True:
            # A submission holds all values of a case in memory, so the number of pending
            # submissions is limited. Finished rows of results are small.
            while submitted_count <= (ahead := _ahead(plan, submitted_bytes)):
                if plan.interruption.signal:
                    break
                is_waiting = finished and window and isinstance(window[0], _Submission)
                if len(window) >= (_MAX_CASES_AHEAD if is_waiting else ahead):
                    break
                case = next(cases, None)
                if case is None:
                    break
                row = next(finished, None) if finished else None
                entry = row or _submit(plan, case)
                window.append(entry)
                if isinstance(entry, _Submission):
                    submitted_count += 1
                    submitted_bytes += entry.held_bytes
            if not window:
                return
            entry = window.popleft()
            if isinstance(entry, _Submission):
                submitted_count -= 1
                submitted_bytes -= entry.held_bytes
            yield entry


def _ahead(plan: Plan, submitted_bytes: int) -> int:
    """Return the number of cases to submit ahead of judging, given the bytes of pending cases."""
    ahead = max((executor.ahead for executor in plan.backends), default=1)
    # If the workers run only one case at a time, an early submission would only be held longer.
    is_parallel = ahead > 1 and not plan.remote
    small = submitted_bytes <= _MAX_BYTES_AHEAD
    return max(ahead, _SMALL_CASES_AHEAD) if is_parallel and small else ahead


def _submit(plan: Plan, case: Case) -> _Submission:
    """Load a case, get its expected result, and submit it to every backend."""
    with _noted(case):
        responses: tuple[Pending, ...] = ()
        try:
            problem = case.load()
            # If the inputs are large, submit the case before computing the expected result, so that
            # both are computed at the same time.
            is_large = total_bytes(problem.inputs.values()) > _PARALLEL_MAX_BYTES
            is_late = is_large and problem.stored is not None
            expected = () if is_late else _expected(plan, problem)
            if any(isinstance(result, Expected) and result.unusable for result in expected):
                return _Submission(case, problem, expected)
            output_bytes = total_bytes(_known_outputs(problem, expected).values())
            responses = tuple(_responses(plan, case, problem, output_bytes))
            if is_late:
                expected = _expected(plan, problem)
        except BeyondLimit as error:
            return _Submission(case, None, (), responses, f"{LIMIT}{error.message}")
        except InvalidCase as error:
            invalid = Expected({}, {}, error.message)
            return _Submission(case, None, (invalid,) * len(plan.backends), responses)
        except MemoryError:
            return _Submission(case, None, (), responses)
        return _Submission(case, problem, expected, responses)


def _expected(plan: Plan, problem: Problem) -> tuple[Expected | PendingExpected, ...]:
    """Return for each backend the expected result, which may be pending."""
    maths = [executor.specification.math for executor in plan.backends]
    by_math = {math: plan.oracle.expected(problem, math) for math in dict.fromkeys(maths)}
    return tuple(by_math[math] for math in maths)


def _known_outputs(
    problem: Problem, expected: Sequence[Expected | PendingExpected]
) -> Mapping[str, Value]:
    """Return the computed outputs; while the expected result is pending, the stored outputs."""
    computed = [result.outputs for result in expected if isinstance(result, Expected)]
    return computed[0] if computed else problem.stored or {}


def _responses(plan: Plan, case: Case, problem: Problem, expected_bytes: int) -> Iterator[Pending]:
    """Yield for each backend a function that waits for its response."""
    for executor in plan.backends:
        started = partial(plan.started, case.id, executor.name)
        if problem.stepwise:
            yield partial(_run_stepwise, executor, problem, started)
        else:
            yield executor.submit(_request(problem, started, expected_bytes))


def _request(problem: Problem, started: Callable[[], None], expected_bytes: int) -> Request:
    is_loop = problem.trajectory is not None
    return Request(
        problem.model,
        problem.inputs,
        started,
        expected_bytes=expected_bytes,
        formula_loop=is_loop,
        call=None if is_loop else problem.call,
        joinable=not (is_loop or problem.must_reject),
    )


def _run_stepwise(
    executor: Executor, problem: Problem, started: Callable[[], None]
) -> Response | str:
    """Run the steps of a trajectory, and return the stacked outputs of the recorded steps.

    The outputs of one step are inputs of the next step. The run ends at the first step whose
    outputs are missing, or cannot be inputs of the next step.

    Args:
        executor: the backend, which should keep the prepared model for the next step.
        problem: a trajectory, whose model computes one step.
        started: called when the first step starts.
    """
    trajectory, call = problem.trajectory, problem.call
    assert trajectory is not None and call is not None  # noqa: S101, PT018 - problem.stepwise
    recorded = set(trajectory.recorded)
    names = [value.name for value in trajectory.model.graph.output]
    rows: list[list[Array]] = []
    state: Mapping[str, Array] = trajectory.state
    total = Response([])
    for step in range(1, trajectory.count + 1):
        inputs = trajectory.inputs(step, state, lambda array: array, derived_array)
        step_call = call.with_inputs([*inputs.values()])
        request = Request(trajectory.model, inputs, keep=True, call=step_call)
        response = executor.submit(replace(request, started=started) if step == 1 else request)()
        if isinstance(response, str):
            return response
        total = _total(total, response)
        if response.outputs is None:
            return replace(total, message=f"step {step}: {response.message}")
        outputs, fault = _usable_arrays(response.outputs, names, trajectory, state)
        if fault:
            # Return the outputs as a single step, so that the diff shows that their shape is wrong.
            rows_of_step = [value[np.newaxis, ...] for value in outputs]
            return replace(total, outputs=[*rows_of_step], message=f"step {step}: {fault}")
        named = dict(zip(names, outputs, strict=True))
        # A backend may reuse the same buffer for its next outputs.
        state = {target: named[name].copy() for name, target in trajectory.feedback.items()}
        if step in recorded:
            rows.append([value.copy() for value in outputs])
    return replace(total, outputs=[_stacked(values) for values in zip(*rows, strict=True)])


def _total(total: Response, response: Response) -> Response:
    """Return the response to a step, with the time and the faults of all steps until then."""
    return replace(
        response,
        lowered=total.lowered or response.lowered,
        changed=tuple(dict.fromkeys((*total.changed, *response.changed))),
        leak=total.leak or response.leak,
        seconds=total.seconds + response.seconds,
    )


def _usable_arrays(
    outputs: list[Value], names: list[str], trajectory: Trajectory, state: Mapping[str, Array]
) -> tuple[list[Array], str]:
    """Return the outputs that are tensors, and why the next step cannot use them (or "")."""
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    if len(outputs) != len(names):
        return arrays, f"returned {len(outputs)} outputs, expected {len(names)}"
    if len(arrays) != len(outputs):
        return arrays, "returned an output that is not a tensor"
    for name, value in zip(names, arrays, strict=True):
        like = state.get(trajectory.feedback.get(name, ""))
        if like is not None and (value.dtype, value.shape) != (like.dtype, like.shape):
            return arrays, f"{name} is {describe(value)}, expected {describe(like)}"
    return arrays, ""


def _stacked(rows: Sequence[Array]) -> Value:
    alike = all((row.dtype, row.shape) == (rows[0].dtype, rows[0].shape) for row in rows)
    return np.stack(rows) if alike else list(rows)


def _judged(plan: Plan, submission: _Submission) -> tuple[Result, ...]:
    """Wait for the responses to a case, judge them, and compare the results with expectations."""
    with _noted(submission.case):
        results = [_result(plan, submission, index) for index in range(len(plan.backends))]
        return tuple(plan.review(result, submission.case) for result in results)


def _result(plan: Plan, submission: _Submission, index: int) -> Result:
    """Judge the response of one backend, and check whether a pass is vacuous."""
    case, problem, executor = submission.case, submission.problem, plan.backends[index]
    if submission.skipped:
        return unanswered(case, executor.name, submission.skipped, Outcome.SKIP)
    try:
        expected = _resolved(plan, submission.expected[index]) if submission.expected else None
        # Wait for the response even if the case is invalid, because a busy worker cannot be shut
        # down.
        response = submission.responses[index]() if submission.responses else "not submitted"
        if expected is None:
            return out_of_memory_result(case, executor.name)
        if expected.unusable or problem is None:
            return unjudged_result(case, problem, expected, executor.name)
        if isinstance(response, str):
            return unanswered(case, executor.name, response)
        math = executor.specification.math
        result = judge(case, problem, expected, executor.name, response, plan.judging, math)
        if response.batch and result.outcome is not Outcome.PASS:
            # Other cases of a batch may have caused the failure of this case.
            return _result_alone(plan, submission, index)
        if result.outcome is not Outcome.PASS:
            return result
        reason = plan.vacuity.reason(executor, problem, response)
    except MemoryError:
        return out_of_memory_result(case, executor.name)
    except (ProbeNotRunError, _EstimateNotRunError) as stop:
        return unanswered(case, executor.name, str(stop))
    if not reason:
        return result
    content = case_content(case, problem)
    return replace(result, outcome=Outcome.VACUOUS, message=reason, content=content)


class _EstimateNotRunError(Exception):
    """A condition estimate did not run, so its case cannot be judged."""


def _resolved(plan: Plan, expected: Expected | PendingExpected) -> Expected | None:
    """Wait for an expected result; return None if there is not enough memory.

    Raises:
        _EstimateNotRunError: if a signal may have ended the condition estimate. Without the
            estimate, the outputs would be judged by the default tolerance.
    """
    result = None
    with suppress(MemoryError):
        result = resolved(expected)
    if plan.interruption.signal and not isinstance(expected, Expected):
        raise _EstimateNotRunError(INTERRUPTED_REASON)
    return result


def _result_alone(plan: Plan, submission: _Submission, index: int) -> Result:
    """Run a case on one backend again, outside of any batch, and judge the response."""
    case, problem, executor = submission.case, submission.problem, plan.backends[index]
    assert problem is not None  # noqa: S101 - the case has run
    started = partial(plan.started, case.id, executor.name)
    # The outputs of cases in batches are small, so their size does not matter.
    pending = executor.submit(replace(_request(problem, started, 0), joinable=False))
    responses = (*submission.responses[:index], pending, *submission.responses[index + 1 :])
    return _result(plan, replace(submission, responses=responses), index)


@contextmanager
def _noted(case: Case) -> Iterator[None]:
    """Add the case's id to an exception that the ``with`` block raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at case {case.id}")
        raise


def _reason_to_stop(plan: Plan, failed: int) -> str:
    """Return the reason why no further case may start; empty if a case may start."""
    if plan.interruption.signal:
        return INTERRUPTED_REASON
    if 0 < plan.max_fail <= failed:
        return f"stopped after {failed} case{'s' * (failed > 1)} that did not conform"
    return ""


def _fails(results: Sequence[Result]) -> bool:
    """Return whether a case counts towards ``max_fail``: a backend ran it, and it failed."""
    return any(not result.conforms and not result.not_started for result in results)


def _finished_rows(plan: Plan) -> Generator[tuple[Result, ...] | None]:
    """Return, for each case, the results from other machines or forked processes.

    A row is None if the main process must run the case.
    """
    return plan.remote.rows(plan.cases) if plan.remote else _forked(plan)


def _forked(plan: Plan) -> Generator[tuple[Result, ...] | None]:
    """Yield the results of each case from a forked process.

    None is yielded for a case that the main process must run. Forked processes run only formulas on
    the backend ``numpy``, and compute expected results. All other backends run in their own
    processes, which must not know the expected results.
    """
    formula_backends = [
        executor.without_workers()
        for executor in plan.backends
        if isinstance(executor, InProcess) and executor.runs_only_formulas
    ]
    # A program that uses onnxopt as a library may have threads, and a process with threads must not
    # fork.
    if len(formula_backends) < len(plan.backends) or not claimed():
        return
    reference_oracle = ReferenceOracle(plan.judging, refuse_workers)
    forked_plan = Plan(
        (),
        formula_backends,
        judging=plan.judging,
        vacuity=plan.vacuity,
        oracle=Oracles(plan.judging, reference_oracle),
    )
    # A trajectory has two cases with the same location in a file, one for each way to run it. All
    # cases with the same location run in one process, so that the error bounds of a trajectory are
    # derived only once.
    groups = [[*group] for _, group in groupby(plan.cases, attrgetter("location"))]
    chunk = min(_MAX_CHUNK_GROUPS, max(1, len(groups) // _CHUNK_COUNT))
    work = partial(_rows_in_fork, forked_plan, os.getpid())
    for rows in parallel(work, groups, plan.judges, chunk, lambda: plan.interruption.signal):
        yield from rows


def _rows_in_fork(
    plan: Plan, parent: int, cases: Sequence[Case]
) -> list[tuple[Result, ...] | None]:
    """Run and judge cases in a forked process. None stands for a case that the parent must run."""
    is_fork = os.getpid() != parent
    return [_row_of_small_case(plan, case) if is_fork else None for case in cases]


def _row_of_small_case(plan: Plan, case: Case) -> tuple[Result, ...] | None:
    try:
        # Several large cases that run at the same time might exhaust the memory.
        file_bytes = sum(
            stamp[2] if stamp else Path(path).stat().st_size for path, stamp in case.files().items()
        )
        if file_bytes > _PARALLEL_MAX_BYTES:
            return None
        problem = case.load()
        if total_bytes(problem.inputs.values()) > _PARALLEL_MAX_BYTES:
            return None
    except (InvalidCase, OSError):
        return None
    return delegated_results(plan, replace(case, load=lambda: problem))


def delegated_results(plan: Plan, case: Case) -> tuple[Result, ...] | None:
    """Run a case on behalf of another process; return None if that process must run it itself."""
    try:
        results = run_case(plan, case)
    except NeedsWorkersError:
        return None
    repeated = any(result.outcome in _REPEATED_OUTCOMES for result in results)
    return None if repeated else results


def _received(plan: Plan, case: Case, results: tuple[Result, ...]) -> tuple[Result, ...]:
    """Review results from another process, and replace their strings by equal, existing strings."""
    reviewed = []
    for executor, result in zip(plan.backends, results, strict=True):
        plan.started(case.id, executor.name)
        shared_result = with_shared(
            result,
            case=case.id,
            location=case.location,
            operators=case.operators or result.operators,
            backend=executor.name,
        )
        reviewed.append(plan.review(shared_result, case))
    return tuple(reviewed)


def _incidents(plan: Plan) -> Iterator[Result]:
    """Yield a result for each stage outside of cases (such as teardown) that failed."""
    for executor in plan.backends:
        # Several workers may fail in the same stage. Keep the worst failure.
        by_place: dict[str, Result] = {}
        for incident in executor.finish():
            case_id, location = f"{OUTSIDE_CASES}/{incident.place}", plan.cases[-1].location
            outcome, message = incident.outcome, incident.message
            result = Result(case_id, location, (), executor.name, outcome, message=message)
            earlier = by_place.get(incident.place)
            by_place[incident.place] = worse(earlier, plan.review(result, None))
        yield from by_place.values()
