"""The search for failures on the workers of a cluster.

Workers only look whether a portion of the examples has a failure that is not known yet. Where one
does, the portion is searched from here, on whichever worker answers: so each failure is made
smaller once, and what is found depends neither on the number of workers nor on who saw what first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from onnxopt_cli.core.record_json import explanation_from_json, explanation_to_json
from onnxopt_cli.errors import BackendUnavailable
from onnxopt_cli.fuzz.findings import FailureKind, Finding, Findings
from onnxopt_cli.fuzz.search import Portions, Search, Task, chosen_operators
from onnxopt_cli.isolation.interruption import Interruption
from onnxopt_cli.run.executors import Executor, Setting

if TYPE_CHECKING:
    from onnxopt_cli.run.remote import Remote


class SearchElsewhere(Search):
    """A search by all workers of a cluster."""

    def _rounds(self) -> Iterator[Finding]:
        from onnxopt_cli.cluster.crew import Lost

        remote = cast("Remote", self._executor)
        portions = Portions(self._task, self.tried)

        def stop() -> bool:
            return bool(self._interruption.signal) or monotonic() >= self._end

        def told() -> Iterator[bool]:
            sent = _Sent(self._task, self.findings, portions)
            for found in remote.spread(f"{__name__}:hunt", sent, lambda _, it: bool(it), stop):
                if isinstance(found, Lost):
                    raise BackendUnavailable(f"lost with their machines: {'; '.join(found)}")
                yield found

        yield from self._portions(portions, told())


class _Sent(Sequence[dict[str, Any]]):
    """The portions, each with what is known when it is sent."""

    def __init__(self, task: Task, findings: Findings, portions: Portions) -> None:
        self._task, self._findings, self._portions = task, findings, portions

    def __len__(self) -> int:
        return len(self._portions.numbers)

    def __getitem__(self, place: Any) -> Any:
        task, number = self._task, self._portions.numbers[place]
        return {
            "operators": [it.name for it in task.operators],
            "single_nodes": task.single_nodes,
            "seed": task.seed,
            "number": number,
            "size": self._portions.size(number),
            "known": [
                [*astuple(kind), explanation and explanation_to_json(explanation)]
                for kind, explanation in list(self._findings.all.items())
            ],
        }


def hunt(executors: Sequence[Executor], portion: Mapping[str, Any]) -> bool:
    """Tell, on a worker, whether a portion has a failure that is not known.

    Args:
        executors: the backend alone.
        portion: of :class:`Portions`.
    """
    (executor,) = executors
    with tempfile.TemporaryDirectory() as memory:
        task = Task(
            chosen_operators(portion["operators"]),
            executor.name,
            Setting(),
            portion["seed"],
            examples=None,
            seconds=None,
            memory=Path(memory),
            single_nodes=portion["single_nodes"],
        )
        search = Search(task, executor, Interruption())
        for *kind, explanation in portion["known"]:
            known = explanation and explanation_from_json(explanation)
            search.findings.all[FailureKind(*kind)] = known
        return search.has_new(portion["number"], portion["size"])
