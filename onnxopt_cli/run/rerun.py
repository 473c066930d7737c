"""Running cases again to see whether a failure is flaky, and running other models."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx

from onnxopt_cli.backends.host import Request
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.config.run_config import Execution
from onnxopt_cli.core.result import (
    SETTLED,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import OnnxoptError
from onnxopt_cli.operators.call import Call
from onnxopt_cli.run.executors import Executor, open_executors
from onnxopt_cli.run.runner import (
    Plan,
    open_plan,
    run_case,
)

if TYPE_CHECKING:
    from onnxopt_cli.workers.cluster.dask_client import Cluster

#: Restarts a backend, runs cases on it in order, and returns their results.
Restarted = Callable[[Sequence[Case]], list[Result]]

# After these outcomes the worker is replaced, so earlier cases have no effect on later ones.
_WORKER_ENDS = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM, Outcome.LEAK})

_VERBS = {Outcome.PASS: "passes", Outcome.FAIL: "fails", Outcome.CRASH: "crashes"}


class RunInterrupted(Exception):
    """The user has interrupted the run."""


#: Returns the outputs of a model on a backend, given by its name; None if the backend fails.
ModelRunner = Callable[[str, onnx.ModelProto, Mapping[str, Array]], Sequence[Array] | None]


@contextmanager
def open_model_runner(
    plan: Plan, execution: Execution, cluster: Cluster | None
) -> Iterator[ModelRunner]:
    """Yield a function that runs models on backends of a plan.

    It starts a backend again on first use, and does not retry if that fails.
    """
    texts = {backend.name: backend.specification.given for backend in plan.backends}
    with ExitStack() as stack:

        @cache
        def executor(backend: str) -> Executor | None:
            one_worker = replace(execution, jobs=1)
            with suppress(OnnxoptError):
                opened = open_executors(
                    [texts[backend]], one_worker, plan.interruption, cluster=cluster
                )
                (started,) = stack.enter_context(opened)
                started.ready()
                return started
            return None

        def run_model(
            backend: str, model: onnx.ModelProto, inputs: Mapping[str, Array]
        ) -> Sequence[Array] | None:
            started = executor(backend)
            if started is None:
                return None
            with suppress(OnnxoptError):
                response = started.submit(Request(model, inputs))()
                outputs = None if isinstance(response, str) else response.outputs
                arrays = [value for value in outputs or () if isinstance(value, np.ndarray)]
                return arrays if outputs and len(arrays) == len(outputs) else None
            return None

        yield run_model


def call_model(call: Call[Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return the model of a single node that performs a call, and its inputs."""
    attributes = {
        name: value for name, value in call.attributes.items() if name not in call.omitted
    }
    model = formula_model(call.operator, attributes, call.inputs, graph_name="further")
    names = call.operator.input_names(len(call.groups))
    return model, dict(zip(names, call.inputs, strict=True))


@contextmanager
def restarted_backend(
    plan: Plan, backend: str, execution: Execution, cluster: Cluster | None
) -> Iterator[Restarted]:
    """Yield a function that runs cases in order on a backend, and restarts it before each call.

    The function raises RunInterrupted if the user interrupts the run.

    Args:
        plan: the plan of the run.
        backend: the backend, as it is given to ``-b``.
        execution: how to run the backend.
        cluster: the machines on which the backend runs; None for this one.

    Raises:
        BackendUnavailable: if the backend does not start again.
    """
    # This plan does not write to the log; the caller logs the result of the rerun.
    one_worker = replace(execution, jobs=1)
    opened = open_plan([backend], one_worker, plan.judging, plan.interruption, cluster)
    with opened as fresh:
        rerun_plan = replace(fresh, vacuity=plan.vacuity)
        (executor,) = rerun_plan.backends
        executor.ready()
        is_used = False

        def restarted(cases: Sequence[Case]) -> list[Result]:
            nonlocal is_used
            if is_used:
                executor.renew()
            is_used = True
            results = [run_case(rerun_plan, case)[0] for case in cases]
            if plan.interruption.signal:
                raise RunInterrupted
            return results

        yield restarted


def run_again(
    cases: Sequence[Case],
    results: Mapping[str, Result],
    suspects: Sequence[Result],
    restarted: Restarted,
    times: int,
) -> Iterator[Result]:
    """Yield each suspect whose outcome may change, with the reason if it is flaky.

    Each suspect runs alone, several times, and then after the cases before it. If its outcome
    depends on the cases before it, a search finds the case that changes it.

    Args:
        cases: the cases of the run, in order.
        results: their results on one backend, by the case's id.
        suspects: those of the results that do not conform.
        restarted: runs cases on that backend.
        times: how often each suspect runs alone, at least once.
    """
    by_id = {case.id: case for case in cases}
    # The suspects whose outcome is the same each time they run alone, with that outcome.
    stable_alone: list[tuple[Result, Outcome]] = []
    for result in suspects:
        if result.outcome in SETTLED:
            continue
        outcomes = [restarted([by_id[result.case]])[0].outcome for _ in range(times)]
        if len(set(outcomes)) > 1:
            yield replace(result, flaky=_share([result.outcome, *outcomes]))
        else:
            stable_alone.append((result, outcomes[0]))
    if not stable_alone:
        return
    harmless = [case for case in cases if results[case.id].outcome not in _WORKER_ENDS]
    place = {name: index for index, name in enumerate(by_id)}
    last = max(place[result.case] for result, _ in stable_alone)
    rerun = restarted([case for case in harmless if place[case.id] <= last])
    in_order = {result.case: result.outcome for result in rerun}
    culprits: list[Case] = []
    for result, outcome in stable_alone:
        before = [case for case in harmless if place[case.id] < place[result.case]]
        case = by_id[result.case]
        outcome_in_order = in_order.get(result.case, outcome)
        if result.case not in in_order and outcome is not result.outcome:
            # The case ended its worker, so it was left out of the common rerun.
            outcome_in_order = restarted([*before, case])[-1].outcome
        if outcome_in_order is not outcome:
            text = _dependence(before, case, outcome_in_order, restarted, culprits)
            yield replace(result, flaky=text)
        elif outcome is not result.outcome:
            yield replace(result, flaky=_share([result.outcome, *[outcome] * times]))
        else:
            yield result


def _dependence(
    before: Sequence[Case], case: Case, outcome: Outcome, restarted: Restarted, culprits: list[Case]
) -> str:
    """Return, in words, after which earlier case a case has the outcome of the run in order."""

    def same_after(prefix: Sequence[Case]) -> bool:
        return restarted([*prefix, case])[-1].outcome is outcome

    verb = _VERBS.get(outcome, f"ends in {outcome}")
    earlier_ids = {earlier_case.id for earlier_case in before}
    for culprit in culprits:
        if culprit.id in earlier_ids and same_after([culprit]):
            return f"{verb} only after {printable(culprit.id)}"
    if not same_after(before):
        return f"{verb} only in some runs"
    # The shortest part of the earlier cases, up to the last of them, after which the outcome is the
    # same begins with the culprit.
    starts = range(1, len(before))
    culprit = before[bisect_left(starts, True, key=lambda start: not same_after(before[start:]))]
    if not same_after([culprit]):
        return f"{verb} only after {printable(culprit.id)} and others before it"
    culprits.append(culprit)
    return f"{verb} only after {printable(culprit.id)}"


def _share(outcomes: Sequence[Outcome]) -> str:
    passed = sum(outcome is Outcome.PASS for outcome in outcomes)
    failures = sorted({outcome.value for outcome in outcomes} - {Outcome.PASS.value})
    text = f"{passed} of {len(outcomes)} passed"
    return f"{text}; the others: {', '.join(failures)}" if len(failures) > 1 else text
