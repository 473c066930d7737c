"""The requests that a worker serves for a cluster's client: run and judge cases, run models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Execution, Judging
from onnxopt_cli.core.record import result_to_json
from onnxopt_cli.errors import OnnxoptError
from onnxopt_cli.run.executors import refuse_workers
from onnxopt_cli.run.runner import delegated_results, open_plan
from onnxopt_cli.run.vacuity import VacuityCheck
from onnxopt_cli.suites.collect import collect
from onnxopt_cli.workers.cluster.sidecar import Handler, placed
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.worker_messages import pack_response, read_request

_MAX_CACHED_FILES = 64


@contextmanager
def open_run(
    settings: tuple[Sequence[str], Execution, Judging], tree: Path
) -> Iterator[tuple[Any, Handler]]:
    """Start backends. Yield their versions, and a function that answers the client's requests.

    Args:
        settings: the backends, how they run, and how their outputs are judged.
        tree: the folder with the case files that the client has sent.
    """
    backends, execution, judging = settings
    with open_plan(backends, execution, judging, Interruption()) as opened:
        for backend in opened.backends:
            backend.ready()
        # The vacuity check selects probes from all cases, and only the client has all cases.
        plan = replace(opened, vacuity=VacuityCheck(_CasesAtClient()))
        executors = plan.backends

        def answer(message: Any, payload: memoryview) -> bytes:
            match message:
                case {"request": "cases", "items": items}:
                    cases = [sent_case(tree, execution.limits.memory, *item) for item in items]
                    rows = [case and delegated_results(plan, case) for case in cases]
                    return json.dumps(
                        [results and [*map(result_to_json, results)] for results in rows]
                    ).encode()
                case {"request": str(request), "items": items} if ":" in request:
                    # The request names the function of another module that serves the request.
                    module, _, name = request.partition(":")
                    function = getattr(import_module(module), name)
                    return json.dumps([function(executors, item) for item in items]).encode()
                case {"request": "run", "backend": int(index)}:
                    options = {name: message[name] for name in ("expected_bytes", "formula_loop")}
                    submitted = replace(read_request(message, payload), **options)
                    response = executors[index].submit(submitted)()
                    if isinstance(response, str):
                        return json.dumps({"stopped": response}).encode() + b"\n"
                    head = {"leak": response.leak, "printed": response.printed}
                    frames = pack_response(0, response)
                    return b"".join([json.dumps(head).encode(), b"\n", *frames])
                case {"request": "renew", "backend": int(index)}:
                    executors[index].renew()
                case {"request": "finish", "backend": int(index)}:
                    return json.dumps([*map(astuple, executors[index].finish())]).encode()
            return b"[]"

        yield [executor.version for executor in executors], answer


class _CasesAtClient:
    """Stands in for the client's cases, which a worker would need as probes.

    Iterating raises NeedsWorkersError. The client then runs the case that needs a probe itself.
    """

    def __iter__(self) -> Iterator[Case]:
        refuse_workers()


def sent_case(tree: Path, memory: int, case_id: str, path: str) -> Case | None:
    """Return the case that has the given id; None if no such case exists.

    Args:
        tree: the folder with the case files that the client has sent.
        memory: the largest number of bytes of a case; 0 for no limit.
        case_id: the id of the case.
        path: the path of the case's file at the client; empty for a case of a built-in suite.
    """
    target = placed(tree, path) if path else Path(case_id.partition("/")[0])
    return _cases(target, memory).get(case_id)


@lru_cache(_MAX_CACHED_FILES)
def _cases(target: Path, memory: int) -> Mapping[str, Case]:
    try:
        return {case.id: case for case in collect([str(target)], memory).cases}
    except OnnxoptError:
        return {}
