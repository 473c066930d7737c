"""Asking a backend again: whether a failing case is flaky, and how other nodes come out."""

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
from onnxopt_cli.workers.interruption import Interruption

if TYPE_CHECKING:
    from onnxopt_cli.workers.cluster.dask_client import Cluster

#: Runs cases in order on a backend that has been restarted before the first.
Restarted = Callable[[Sequence[Case]], list[Result]]

# After these a worker is another one: what came before has no effect on what comes after.
_DEADLY = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM, Outcome.LEAK})

_VERBS = {Outcome.PASS: "passes", Outcome.FAIL: "fails", Outcome.CRASH: "crashes"}


class RunInterrupted(Exception):
    """The user wants the run to end."""


#: Asks a backend, given by its name, for the outputs of a model; None where it returns none.
Questioning = Callable[[str, onnx.ModelProto, Mapping[str, Array]], Sequence[Array] | None]


@contextmanager
def questioning(
    interruption: Interruption, execution: Execution, cluster: Cluster | None
) -> Iterator[Questioning]:
    """Yield a function that asks a backend for the outputs of a model.

    A backend is started again when it is first asked.
    """
    with ExitStack() as stack:

        @cache
        def executor(backend: str) -> Executor:
            one_worker = replace(execution, jobs=1)
            opened = open_executors([backend], one_worker, interruption, cluster=cluster)
            (found,) = stack.enter_context(opened)
            found.ready()
            return found

        def ask(
            backend: str, model: onnx.ModelProto, inputs: Mapping[str, Array]
        ) -> Sequence[Array] | None:
            with suppress(OnnxoptError):
                response = executor(backend).submit(Request(model, inputs))()
                outputs = None if isinstance(response, str) else response.outputs
                arrays = [it for it in outputs or () if isinstance(it, np.ndarray)]
                return arrays if outputs and len(arrays) == len(outputs) else None
            return None

        yield ask


def node_question(call: Call[Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a node as a model of its own, with its inputs."""
    given = {name: it for name, it in call.attributes.items() if name not in call.omitted}
    model = formula_model(call.operator, given, call.inputs, graph_name="further")
    names = call.operator.input_names(len(call.groups))
    return model, dict(zip(names, call.inputs, strict=True))


@contextmanager
def restarted_backend(
    plan: Plan, backend: str, execution: Execution, cluster: Cluster | None
) -> Iterator[Restarted]:
    """Yield a function that runs cases in order, on a backend that is newly started at each call.

    The function raises RunInterrupted where the user wants the run to end.

    Args:
        plan: how to judge, and what interrupts.
        backend: the backend as the user asked for it.
        execution: how to run it.
        cluster: the machines on which it runs; None for this one.

    Raises:
        BackendUnavailable: if the backend does not start again.
    """
    # A plan of its own: nothing of this is in the log but what comes of it.
    one_worker = replace(execution, jobs=1)
    opened = open_plan([backend], one_worker, plan.judging, plan.interruption, cluster)
    with opened as fresh:
        alone = replace(fresh, vacuity=plan.vacuity)
        (executor,) = alone.backends
        executor.ready()
        used = False

        def restarted(cases: Sequence[Case]) -> list[Result]:
            nonlocal used
            if used:
                executor.renew()
            used = True
            results = [run_case(alone, case)[0] for case in cases]
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
    """Yield each suspect that is worth another run, with what makes it flaky if something does.

    Each runs alone, several times; then in the order of the run, to see whether the cases before
    it make the difference. Where they do, the one that does is looked for.

    Args:
        cases: what ran, in its order.
        results: what came out on one backend, by id of the case.
        suspects: those of the results that do not conform.
        restarted: runs cases on that backend.
        times: how often each runs alone, at least once.
    """
    by_id = {case.id: case for case in cases}
    doubtful: list[tuple[Result, Outcome]] = []
    for result in suspects:
        if result.outcome in SETTLED:
            continue
        alone = [restarted([by_id[result.case]])[0].outcome for _ in range(times)]
        if len(set(alone)) > 1:
            yield replace(result, flaky=_share([result.outcome, *alone]))
        else:
            doubtful.append((result, alone[0]))
    if not doubtful:
        return
    calm = [case for case in cases if results[case.id].outcome not in _DEADLY]
    place = {name: index for index, name in enumerate(by_id)}
    last = max(place[result.case] for result, _ in doubtful)
    once = restarted([case for case in calm if place[case.id] <= last])
    together = {result.case: result.outcome for result in once}
    culprits: list[Case] = []
    for result, outcome in doubtful:
        before = [case for case in calm if place[case.id] < place[result.case]]
        case = by_id[result.case]
        found = together.get(result.case, outcome)
        if result.case not in together and outcome is not result.outcome:
            # What ends the process would take away what the others ran in, so it runs on its own.
            found = restarted([*before, case])[-1].outcome
        if found is not outcome:
            text = _dependence(before, case, found, restarted, culprits)
            yield replace(result, flaky=text)
        elif outcome is not result.outcome:
            yield replace(result, flaky=_share([result.outcome, *[outcome] * times]))
        else:
            yield result


def _dependence(
    before: Sequence[Case], case: Case, outcome: Outcome, restarted: Restarted, culprits: list[Case]
) -> str:
    """Say after which case alone a case has the outcome that it has in order."""

    def same_after(prefix: Sequence[Case]) -> bool:
        return restarted([*prefix, case])[-1].outcome is outcome

    verb = _VERBS.get(outcome, f"ends in {outcome}")
    earlier = {other.id for other in before}
    for known in culprits:
        if known.id in earlier and same_after([known]):
            return f"{verb} only after {printable(known.id)}"
    if not same_after(before):
        return f"{verb} only now and then"
    # It is so after the culprit and what follows it, and not after what follows it alone.
    later = range(1, len(before))
    culprit = before[bisect_left(later, True, key=lambda at: not same_after(before[at:]))]
    if not same_after([culprit]):
        return f"{verb} only after {printable(culprit.id)} and others before it"
    culprits.append(culprit)
    return f"{verb} only after {printable(culprit.id)}"


def _share(outcomes: Sequence[Outcome]) -> str:
    passed = sum(outcome is Outcome.PASS for outcome in outcomes)
    others = sorted({outcome.value for outcome in outcomes} - {Outcome.PASS.value})
    text = f"{passed} of {len(outcomes)} passed"
    return f"{text}; the others: {', '.join(others)}" if len(others) > 1 else text
