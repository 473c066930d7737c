"""Search for failures on this machine or on the workers of a cluster.

A worker of a cluster only reports whether a portion of the examples contains a failure of a new
kind. If it does, this process searches the portion again, and shrinks the failure, with examples
that run on any worker. Therefore each failure is shrunk once, and the findings depend neither on
the number of workers nor on the order of their responses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from onnxopt_cli.config.run_config import Execution
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.record_json import explanation_from_json, explanation_to_json
from onnxopt_cli.errors import BackendUnavailable, UsageError
from onnxopt_cli.fuzz.driver import Task
from onnxopt_cli.fuzz.findings import FailureKind, Findings
from onnxopt_cli.fuzz.search import (
    Portions,
    Search,
    chosen_operators,
)
from onnxopt_cli.run.executors import (
    Executor,
    open_executors,
    weak_isolation,
)
from onnxopt_cli.workers.cluster.dask_client import LostError
from onnxopt_cli.workers.interruption import Interruption

if TYPE_CHECKING:
    from onnxopt_cli.run.remote import Remote


@contextmanager
def open_search(
    task: Task,
    interruption: Interruption,
    tell: Callable[[str], None] = lambda _: None,
    open_progress: OpenProgress = hide_progress,
) -> Iterator[Search]:
    """Start the backend and yield a search; shut the backend down afterwards.

    Args:
        task: the examples, the backend and the limits of the search.
        interruption: set when the user interrupts the search.
        tell: called with each warning, before the search begins.
        open_progress: opens a progress display while an adapter is installed.

    Raises:
        UsageError: if the backend specification is invalid, or hypothesis is not installed.
        BackendUnavailable: if the backend does not start.
    """
    limits = task.execution.limits
    if task.seconds is not None:
        limits = replace(limits, timeout=min(limits.timeout, task.seconds))
    execution = replace(task.execution, limits=limits, jobs=1)
    opened = open_executors(
        [task.backend], execution, interruption, cluster=task.cluster, open_progress=open_progress
    )
    with opened as (executor,):
        if find_spec("hypothesis") is None:
            raise UsageError("fuzzing needs hypothesis", hint='pip install "onnxopt[fuzz]"')
        if weak := weak_isolation(execution, [task.backend]):
            tell(weak)
        executor.ready()
        kind = ClusterSearch if task.cluster else Search
        yield kind(task, executor, interruption)


class ClusterSearch(Search):
    """A search by all workers of a cluster."""

    def _may_have_new(self, portions: Portions) -> Iterator[bool]:
        workers = cast("Remote", self._executor).workers
        sent = _Requests(self._task, self.findings, portions, self._end)

        def stop() -> bool:
            return monotonic() >= self._end

        function = f"{__name__}:has_new"
        for is_new in workers.spread(function, sent, lambda _, value: bool(value), stop=stop):
            if isinstance(is_new, LostError):
                raise BackendUnavailable(f"workers lost with their machines: {is_new}")
            yield is_new


class _Requests(Sequence[dict[str, Any]]):
    """Requests to search the portions of a task.

    A request is created when it is sent, with the failures known and the time left at that moment.
    """

    def __init__(self, task: Task, findings: Findings, portions: Portions, end: float) -> None:
        self._task, self._findings, self._portions, self._end = task, findings, portions, end

    def __len__(self) -> int:
        return len(self._portions.numbers)

    def __getitem__(self, place: Any) -> Any:
        task, number = self._task, self._portions.numbers[place]
        return {
            "operators": [*(operator.name for operator in task.operators), *task.generated],
            "single_nodes": task.single_nodes,
            "graphs": task.graphs,
            "seed": task.seed,
            "number": number,
            "size": self._portions.size(number),
            "seconds": None if task.seconds is None else self._end - monotonic(),
            "known": [
                [*astuple(kind), explanation and explanation_to_json(explanation)]
                for kind, explanation in list(self._findings.all.items())
            ],
        }


def has_new(executors: Sequence[Executor], portion: Mapping[str, Any]) -> bool:
    """Return, on a worker, whether a portion contains a failure of a new kind.

    Args:
        executors: one executor, that of the backend.
        portion: the request, an element of :class:`_Requests`.
    """
    (executor,) = executors
    with tempfile.TemporaryDirectory() as memory:
        chosen = chosen_operators(portion["operators"])
        task = Task(
            chosen.operators,
            executor.specification.given,
            Execution(),
            portion["seed"],
            examples=None,
            seconds=portion["seconds"],
            memory=Path(memory),
            generated=chosen.generated,
            single_nodes=portion["single_nodes"],
            graphs=portion["graphs"],
        )
        search = Search(task, executor, Interruption())
        for *kind, explanation in portion["known"]:
            search.findings.all[FailureKind(*kind)] = explanation and explanation_from_json(
                explanation
            )
        return search.has_new(portion["number"], portion["size"])
