"""The audit of a suite in parts, implementation by implementation: by a cluster, or in shards."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.analysis.audit import (
    INCONCLUSIVE,
    KINDS,
    AuditedCase,
    Inconclusive,
    Task,
    Verdict,
    find_trials,
    implementation,
    outcome,
)
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record_json import (
    number_from_json,
    number_to_json,
    value_from_json,
    value_to_json,
)
from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.errors import BackendUnavailable, UsageError
from onnxopt_cli.run.remote import sent
from onnxopt_cli.run.served import found_case
from onnxopt_cli.run.session import VERSIONS
from onnxopt_cli.workers.cluster.dask_client import (
    Cluster,
    LostError,
    WorkerGroup,
)
from onnxopt_cli.workers.cluster.sidecar import Handler

# Bytes of a shard.
_MAX_FILE_BYTES = 1 << 28
_Terms: TypeAlias = tuple[Mapping[str, Sequence[tuple[str, str]]], Judging, bool]


def outcomes(
    cluster: Cluster,
    cases: Sequence[Case],
    trials: Mapping[str, Sequence[AuditedCase]],
    judging: Judging,
    tasks: Sequence[Task],
    *,
    thorough: bool,
) -> Generator[Verdict | Sequence[Inconclusive]]:
    """Yield what comes of tasks on the workers of a cluster, in order.

    Args:
        cluster: the machines.
        cases: the cases.
        trials: what :func:`find_trials` makes of them.
        judging: how outputs are judged.
        tasks: the implementations, those of an operator side by side.
        thorough: as :func:`audit` has it.

    Raises:
        BackendUnavailable: if the cluster is lost, or two machines with the same implementation.
    """
    operators = {trial.case: name for name, mine in trials.items() for trial in mine}
    items: dict[str, list[tuple[str, str]]] = {name: [] for name in trials}
    files: dict[str, list[str]] = {name: [] for name in trials}
    for case, item, paths in zip(cases, *sent(cases), strict=True):
        if name := operators.get(case.id):
            items[name].append(item)
            files[name] += [path for path in paths if path not in files[name][-1:]]
    opener = f"{__name__}:open_audit"
    with closing(WorkerGroup(cluster, opener, (items, judging, thorough))) as workers:
        workers.ready()
        # The limits of an operator's cases take long to derive, and each worker needs them.
        answers = workers.spread(
            "outcomes",
            tasks,
            lambda place, answer: _outcome_from_json(answer, tasks[place]),
            lambda place: files[tasks[place][0]],
            part=lambda place: tasks[place][0],
        )
        for task, found in zip(tasks, answers, strict=True):
            if isinstance(found, LostError):
                raise BackendUnavailable(f"implementation {task}: lost with its machine: {found}")
            yield found


@contextmanager
def open_audit(terms: _Terms, tree: Path) -> Iterator[tuple[Any, Handler]]:
    """Put implementations to cases on a machine of a cluster."""
    items, judging, thorough = terms

    @cache
    def trials(name: str) -> dict[str, list[AuditedCase]]:
        cases = [found_case(tree, 0, *it) for it in items[name]]
        return find_trials([it for it in cases if it is not None], judging)[0]

    def answer(asked: Any, _: memoryview) -> bytes:
        found = (outcome(it, trials(it[0]), thorough=thorough) for it in asked["items"])
        return json.dumps([*found], default=verdict_to_json).encode()

    yield [], answer


def joined(
    paths: Sequence[Path], trials: Mapping[str, Sequence[AuditedCase]], tasks: Sequence[Task]
) -> Iterator[Verdict | Sequence[Inconclusive]]:
    """Yield what came of tasks in the shards of an audit, in order.

    Args:
        paths: what ``onnxopt audit --shard --json`` has written, one file for each shard.
        trials: the cases, which must be those of the shards.
        tasks: all of the audit.

    Raises:
        UsageError: naming the file that is none, or of other cases, or what no file has.
    """
    known: dict[tuple[str, str, str], Any] = {}
    ours = {name: digest(mine) for name, mine in trials.items() if mine}
    for path in paths:
        try:
            document = read_json(read_regular_file(path, _MAX_FILE_BYTES), _MAX_FILE_BYTES)
            there = document.get("versions", {})
            apart = [
                f"{name} ({there.get(name, 'none')}, here {version})"
                for name, version in VERSIONS.items()
                if there.get(name) != version
            ]
            asked = {it["operator"]: it["asked"] for it in document["operators"]}
            for score in document["operators"]:
                inconclusive = [
                    (it["case"], it["output"], it["elements"]) for it in score["inconclusive"]
                ]
                known.setdefault((score["operator"], INCONCLUSIVE, ""), []).extend(inconclusive)
                for kind in KINDS:
                    found = {(score["operator"], kind, it["name"]): it for it in score[kind]}
                    known |= {key: it for key, it in found.items() if "excess" in it}
        except (Malformed, ValueError, KeyError, TypeError, AttributeError) as error:
            said = printable(f"{path} is not a shard of an audit: {exception_text(error)}")
            raise UsageError(said, hint="audit --shard I/N --json FILE writes one") from None
        if apart:
            raise UsageError(
                printable(f"{path} was made with other versions: {', '.join(apart)}"),
                hint="make all shards, and join them, with the same versions on like machines",
            )
        if asked != ours:
            raise UsageError(
                f"{printable(str(path))} is an audit of other cases, or of other outputs",
                hint="join the shards of one audit, with the cases of that audit",
            )
    for task in tasks:
        operator, kind, _ = task
        name = "" if kind == INCONCLUSIVE else implementation(task).name
        try:
            yield _outcome_from_json(known[operator, kind, name], task)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(
                f"no shard says what becomes of {operator}, {name}",
                hint="give all shards of the audit: --join 1.json --join 2.json ...",
            ) from None


def digest(trials: Sequence[AuditedCase]) -> str:
    """Return a hash of what cases ask, and of what they expect."""
    found = blake2b(digest_size=16)
    for trial in trials:
        call = trial.call
        given = [trial.case, *sorted(call.attributes.items()), sorted(call.omitted)]
        found.update(repr(given).encode("utf-8", "backslashreplace"))
        for value in (*call.scalars, *(it for mine in call.groups for it in mine)):
            found.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        for output in trial.key.outputs.values():
            found.update(json.dumps(value_to_json(output)).encode())
    return found.hexdigest()


def _outcome_from_json(data: Any, task: Task) -> Verdict | Sequence[Inconclusive]:
    """Return the outcome of a task: a verdict, or what is inconclusive."""
    if task[1] == INCONCLUSIVE:
        return [(str(case), str(output), int(elements)) for case, output, elements in data]
    one, apart = implementation(task), data["apart"]
    if apart is not None:
        inputs = {str(name): value_from_json(it) for name, it in apart[1].items()}
        arrays = {name: it for name, it in inputs.items() if isinstance(it, np.ndarray)}
        attributes = {name: number_from_json(it) for name, it in apart[0].items()}
        apart = attributes, arrays
    excess = tuple(it if it is None else float(number_from_json(it)) for it in data["excess"])
    return Verdict(one.name, one.about, excess, bool(data["equivalent"]), apart)


def verdict_to_json(of: Verdict) -> dict[str, Any]:
    """Return all of a verdict but the name of the implementation as a JSON object."""
    apart = of.apart and [
        {name: number_to_json(it) for name, it in of.apart[0].items()},
        {name: value_to_json(it) for name, it in of.apart[1].items()},
    ]
    excess = [*map(number_to_json, of.excess)]
    return {"excess": excess, "equivalent": of.equivalent, "apart": apart}
