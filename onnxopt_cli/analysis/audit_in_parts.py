"""Split an audit: among the machines of a cluster, or into shards whose files are joined later.

Each part tests some of the implementations on all cases.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
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
from onnxopt_cli.analysis.node_audit import NodeTrial, implementation_names
from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record import (
    number_from_json,
    number_to_json,
    value_from_json,
    value_to_json,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import BackendUnavailable, UsageError
from onnxopt_cli.run.remote import case_references
from onnxopt_cli.run.served import sent_case
from onnxopt_cli.run.session import VERSIONS
from onnxopt_cli.workers.cluster.dask_client import (
    Cluster,
    LostError,
    WorkerGroup,
)
from onnxopt_cli.workers.cluster.sidecar import Handler

# Largest number of bytes in a shard's file.
_MAX_SHARD_BYTES = 1 << 28
#: An operator, a kind of implementation, and the name of an implementation. The name is empty for
#: the kind INCONCLUSIVE.
_OutcomeKey: TypeAlias = tuple[str, str, str]
#: The arguments of a cluster's worker: references to the cases of each operator, the judging
#: settings, and whether the audit is thorough.
_WorkerArguments: TypeAlias = tuple[Mapping[str, Sequence[tuple[str, str]]], Judging, bool]


def outcomes(
    cluster: Cluster,
    cases: Sequence[Case],
    trials: Mapping[str, Sequence[AuditedCase]],
    judging: Judging,
    tasks: Sequence[Task],
    *,
    thorough: bool,
) -> Generator[Verdict | Sequence[Inconclusive]]:
    """Run tasks on the workers of a cluster, and yield their outcomes in order.

    Args:
        cluster: the machines.
        cases: the cases.
        trials: the result of :func:`find_trials` for the cases.
        judging: how outputs are judged.
        tasks: the implementations, grouped by operator.
        thorough: as in :func:`audit`.

    Raises:
        BackendUnavailable: if the cluster is lost, or if two machines are lost while they run the
            same implementation.
    """
    operators = {trial.case: name for name, own_trials in trials.items() for trial in own_trials}
    items: dict[str, list[tuple[str, str]]] = {name: [] for name in trials}
    files: dict[str, list[str]] = {name: [] for name in trials}
    for case, item, paths in zip(cases, *case_references(cases), strict=True):
        if name := operators.get(case.id):
            items[name].append(item)
            files[name] += [path for path in paths if path not in files[name][-1:]]
    opener = f"{__name__}:open_audit"
    with closing(WorkerGroup(cluster, opener, (items, judging, thorough))) as workers:
        workers.ready()
        # A worker gets tasks of as few operators as possible. For each operator, the worker must
        # derive the error bounds of all cases, and this takes long.
        answers = workers.spread(
            "outcomes",
            tasks,
            lambda index, answer: _outcome_of_task(answer, tasks[index]),
            lambda index: files[tasks[index][0]],
            part=lambda index: tasks[index][0],
        )
        for task, result in zip(tasks, answers, strict=True):
            if isinstance(result, LostError):
                raise BackendUnavailable(f"implementation {task}: lost with its machine: {result}")
            yield result


@contextmanager
def open_audit(arguments: _WorkerArguments, tree: Path) -> Iterator[tuple[Any, Handler]]:
    """Yield a handler that runs tasks of an audit on a machine of a cluster."""
    items, judging, thorough = arguments

    @cache
    def trials(name: str) -> dict[str, list[AuditedCase]]:
        cases = [sent_case(tree, 0, *item) for item in items[name]]
        return find_trials([case for case in cases if case is not None], judging)[0]

    def answer(request: Any, _: memoryview) -> bytes:
        results = [outcome(task, trials(task[0]), thorough=thorough) for task in request["items"]]
        return json.dumps(results, default=verdict_to_json).encode()

    yield [], answer


def read_shards(paths: Sequence[Path]) -> dict[Path, AuditShard]:
    """Read the shards of an audit.

    Args:
        paths: files written by ``onnxopt audit --shard --json``.

    Raises:
        UsageError: if a file is not a shard, or was made with other versions.
    """
    shards = {path: _read_shard(path) for path in paths}
    for path, shard in shards.items():
        differences = [
            f"{name} ({shard.versions.get(name, 'none')}, here {version})"
            for name, version in VERSIONS.items()
            if shard.versions.get(name) != version
        ]
        if differences:
            raise UsageError(
                printable(f"{path} was made with other versions: {', '.join(differences)}"),
                hint="create and join all shards with the same versions on similar machines",
            )
    return shards


def joined(
    shards: Mapping[Path, AuditShard],
    trials: Mapping[str, Sequence[AuditedCase]],
    tasks: Sequence[Task],
    *,
    node_trials: Mapping[str, Sequence[NodeTrial]],
) -> Iterator[Verdict | Sequence[Inconclusive]]:
    """Yield the outcomes of tasks, in order, from the shards of an audit.

    Args:
        shards: all shards of the audit, by the path of their file.
        trials: the cases; they must be the same as in the shards.
        tasks: all tasks of the audit.
        node_trials: the cases of operators without a formula.

    Raises:
        UsageError: if a shard belongs to another audit, or if no shard has the outcome of a task.
    """
    outcomes_by_name: dict[_OutcomeKey, Any] = {}
    digests = {name: digest(own_trials) for name, own_trials in trials.items() if own_trials}
    digests |= {name: digest(own_trials) for name, own_trials in node_trials.items()}
    for path, shard in shards.items():
        if shard.digests != digests:
            raise UsageError(
                f"{printable(str(path))} is an audit of other cases or other expected outputs",
                hint="join shards of the same audit, with the cases of that audit",
            )
        for key, data in shard.outcomes.items():
            if key[1] == INCONCLUSIVE:
                outcomes_by_name.setdefault(key, []).extend(data)
            else:
                outcomes_by_name[key] = data
    for task in tasks:
        operator, kind, index = task
        name = about = ""
        if operator in node_trials and kind != INCONCLUSIVE:
            name = implementation_names(kind, node_trials[operator])[index]
        elif kind != INCONCLUSIVE:
            name, about = implementation(task).name, implementation(task).about
        try:
            data = outcomes_by_name[operator, kind, name]
            yield _outcome_from_json(data, kind, name, about)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            raise UsageError(
                f"no shard contains the result of {operator}, {name}",
                hint="give all shards of the audit: --join 1.json --join 2.json ...",
            ) from None


@dataclass(frozen=True, slots=True)
class AuditShard:
    """A shard of an audit, as read from its file.

    Attributes:
        versions: the versions of the packages that made the shard.
        digests: for each operator, a digest of its cases.
        outcomes: the outcomes of the shard's tasks in JSON.
    """

    versions: Mapping[str, Any]
    digests: Mapping[str, Any]
    outcomes: Mapping[_OutcomeKey, Any]


def _read_shard(path: Path) -> AuditShard:
    """Read a file written by ``onnxopt audit --shard --json``.

    Raises:
        UsageError: if the file is not a shard.
    """
    outcomes: dict[_OutcomeKey, Any] = {}
    try:
        document = read_json(read_regular_file(path, _MAX_SHARD_BYTES), _MAX_SHARD_BYTES)
        digests = {score["operator"]: score["asked"] for score in document["operators"]}
        for score in document["operators"]:
            name = score["operator"]
            outcomes[name, INCONCLUSIVE, ""] = [
                (entry["case"], entry["output"], entry["elements"])
                for entry in score["inconclusive"]
            ]
            for kind in KINDS:
                for verdict in score[kind]:
                    if "excess" in verdict:
                        outcomes[name, kind, verdict["name"]] = verdict
        return AuditShard({**document.get("versions", {})}, digests, outcomes)
    except (Malformed, ValueError) as error:
        problem = f"is not a shard of an audit: {error}"
    except (KeyError, TypeError, AttributeError):
        problem = "is not a shard of an audit"
    hint = "audit --shard I/N --json FILE writes one"
    raise UsageError(printable(f"{path} {problem}"), hint=hint)


def digest(trials: Sequence[AuditedCase | NodeTrial]) -> str:
    """Return a hash of the nodes, inputs and expected outputs of cases."""
    cases_hash = blake2b(digest_size=16)
    for trial in trials:
        if isinstance(trial, NodeTrial):
            cases_hash.update(trial.digest().encode())
            continue
        call = trial.call
        node = [trial.case, *sorted(call.attributes.items()), sorted(call.omitted)]
        cases_hash.update(repr(node).encode("utf-8", "backslashreplace"))
        for value in (*call.scalars, *(tensor for group in call.groups for tensor in group)):
            cases_hash.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        for output in trial.expected.outputs.values():
            cases_hash.update(json.dumps(value_to_json(output)).encode())
    return cases_hash.hexdigest()


def _outcome_of_task(data: Any, task: Task) -> Verdict | Sequence[Inconclusive]:
    """Parse the outcome of a task, whose operator must have a formula."""
    if task[1] == INCONCLUSIVE:
        return _outcome_from_json(data, INCONCLUSIVE, "", "")
    audited = implementation(task)
    return _outcome_from_json(data, task[1], audited.name, audited.about)


def _outcome_from_json(
    data: Any, kind: str, name: str, about: str
) -> Verdict | Sequence[Inconclusive]:
    """Parse the outcome of a task: a verdict, or the inconclusive elements."""
    if kind == INCONCLUSIVE:
        return [(str(case), str(output), int(elements)) for case, output, elements in data]
    distinguishing = data["apart"]
    if distinguishing is not None:
        attributes, inputs = distinguishing
        values = {str(name): value_from_json(value) for name, value in inputs.items()}
        distinguishing = (
            {
                name: value if isinstance(value, list) else number_from_json(value)
                for name, value in attributes.items()
            },
            {name: value for name, value in values.items() if isinstance(value, np.ndarray)},
        )
    excess = tuple(
        ratio if ratio is None else float(number_from_json(ratio)) for ratio in data["excess"]
    )
    return Verdict(
        name,
        about or str(data.get("about", "")),
        excess,
        bool(data["equivalent"]),
        distinguishing,
        str(data.get("kind", "")),
        bool(data.get("stillborn")),
        int(data.get("inputs", 0)),
    )


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as a JSON object, without the implementation's name."""
    distinguishing = None
    if verdict.distinguishing is not None:
        attributes, inputs = verdict.distinguishing
        distinguishing = [
            {name: _attribute_to_json(value) for name, value in attributes.items()},
            {name: value_to_json(value) for name, value in inputs.items()},
        ]
    excess = [*map(number_to_json, verdict.excess)]
    return {"excess": excess, "equivalent": verdict.equivalent, "apart": distinguishing}


def _attribute_to_json(value: Any) -> Any:
    """Return an attribute's value as JSON: a number, text or a list of them."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return [_attribute_to_json(item) for item in value]
    return number_to_json(value) if isinstance(value, int | float | str) else str(value)
