"""The audit of a suite by the workers of a cluster, implementation by implementation."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.cluster.bench import Handler
from onnxopt_cli.cluster.crew import Cluster, Crew, Lost
from onnxopt_cli.core.case import Case
from onnxopt_cli.core.record_json import (
    number_from_json,
    number_to_json,
    value_from_json,
    value_to_json,
)
from onnxopt_cli.errors import BackendUnavailable
from onnxopt_cli.grade.audit import AuditedCase, Task, Verdict, find_trials, implementation, verdict
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.run.answer_key import JudgeOptions
from onnxopt_cli.run.remote import sent
from onnxopt_cli.run.served import found_case

_Terms: TypeAlias = tuple[Sequence[tuple[str, str]], JudgeOptions, bool]


def verdicts(
    cluster: Cluster,
    cases: Sequence[Case],
    judging: JudgeOptions,
    tasks: Sequence[Task],
    *,
    thorough: bool,
) -> Generator[Verdict]:
    """Yield what becomes of implementations on the workers of a cluster, in order.

    Raises:
        BackendUnavailable: if the cluster is lost, or two machines with the same implementation.
    """
    items, files = sent(cases)
    needed = [path for mine in files for path in mine]

    def read(place: int, answer: Any) -> Verdict:
        one = implementation(tasks[place])
        excess = tuple(map(_share, answer["excess"]))
        apart = answer["apart"]
        if apart is not None:
            inputs = {str(name): value_from_json(it) for name, it in apart[1].items()}
            arrays = {name: it for name, it in inputs.items() if isinstance(it, np.ndarray)}
            attributes = {name: number_from_json(it) for name, it in apart[0].items()}
            apart = attributes, arrays
        return Verdict(one.name, one.about, excess, bool(answer["equivalent"]), apart)

    crew = Crew(cluster, f"{__name__}:open_audit", (items, judging, thorough))
    try:
        crew.ready()
        named = [(operator.name, kind, index) for operator, kind, index in tasks]
        for task, found in zip(
            named, crew.spread("verdicts", named, read, lambda _: needed), strict=True
        ):
            if isinstance(found, Lost):
                what = "; ".join(found)
                raise BackendUnavailable(f"implementation {task}: lost with its machine: {what}")
            yield found
    finally:
        crew.close()


@contextmanager
def open_audit(terms: _Terms, tree: Path) -> Iterator[tuple[Any, Handler]]:
    """Put implementations to cases on a machine of a cluster."""
    items, judging, thorough = terms

    @cache
    def trials() -> dict[str, list[AuditedCase]]:
        cases = [found_case(tree, 0, *it) for it in items]
        return find_trials([it for it in cases if it is not None], judging)[0]

    def answer(asked: Any, _: memoryview) -> bytes:
        by_name = {operator.name: operator for operator in OPERATORS}
        tasks = [(by_name[name], kind, index) for name, kind, index in asked["items"]]
        return json.dumps(
            [_said(verdict(it, trials(), thorough=thorough)) for it in tasks]
        ).encode()

    yield [], answer


def _share(number: Any) -> float | None:
    return None if number is None else float(number_from_json(number))


def _said(of: Verdict) -> dict[str, Any]:
    apart = None
    if of.apart is not None:
        attributes, inputs = of.apart
        given = {name: number_to_json(it) for name, it in attributes.items()}
        apart = [given, {name: value_to_json(it) for name, it in inputs.items()}]
    excess = [*map(number_to_json, of.excess)]
    return {"excess": excess, "equivalent": of.equivalent, "apart": apart}
