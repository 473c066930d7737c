"""Cases on a machine of a cluster: found among what was sent, run and judged as anywhere."""

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
from onnxopt_cli.core.record_json import result_to_json
from onnxopt_cli.errors import OnnxoptError
from onnxopt_cli.run.executors import refuse_workers
from onnxopt_cli.run.runner import delegated_results, open_plan
from onnxopt_cli.run.vacuity import VacuityCheck
from onnxopt_cli.suites.collect import collect
from onnxopt_cli.workers.cluster.sidecar import Handler, placed
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.worker_messages import pack_response, read_request

# Case files whose cases are kept.
_FILES = 64


@contextmanager
def open_run(
    terms: tuple[Sequence[str], Execution, Judging], tree: Path
) -> Iterator[tuple[Any, Handler]]:
    """Open backends whose cases run and are judged here.

    Args:
        terms: the backends, how they run, and how their outputs are judged.
        tree: where the files of cases stand.
    """
    backends, execution, judging = terms
    with open_plan(backends, execution, judging, Interruption()) as opened:
        for backend in opened.backends:
            backend.ready()
        # Only the client has all cases, and looks among them for one that shows more.
        plan = replace(opened, vacuity=VacuityCheck(_AtTheClient()))
        executors = plan.backends

        def answer(asked: Any, payload: memoryview) -> bytes:
            match asked:
                case {"request": "cases", "items": items}:
                    found = [found_case(tree, execution.limits.memory, *it) for it in items]
                    rows = [it and delegated_results(plan, it) for it in found]
                    return json.dumps([it and [*map(result_to_json, it)] for it in rows]).encode()
                case {"request": str(request), "items": items} if ":" in request:
                    # What is made of backends elsewhere than here.
                    module, _, name = request.partition(":")
                    function = getattr(import_module(module), name)
                    return json.dumps([function(executors, it) for it in items]).encode()
                case {"request": "run", "backend": int(at)}:
                    given = {name: asked[name] for name in ("expected_bytes", "formula_loop")}
                    submitted = replace(read_request(asked, payload), **given)
                    response = executors[at].submit(submitted)()
                    if isinstance(response, str):
                        return json.dumps({"stopped": response}).encode() + b"\n"
                    more = {"leak": response.leak, "printed": response.printed}
                    frames = pack_response(0, response)
                    return b"".join([json.dumps(more).encode(), b"\n", *frames])
                case {"request": "renew", "backend": int(at)}:
                    executors[at].renew()
                case {"request": "finish", "backend": int(at)}:
                    return json.dumps([*map(astuple, executors[at].finish())]).encode()
            return b"[]"

        yield [it.version for it in executors], answer


class _AtTheClient:
    """The cases that are not here; who looks for one leaves that to the client."""

    def __iter__(self) -> Iterator[Case]:
        refuse_workers()


def found_case(tree: Path, memory: int, name: str, path: str) -> Case | None:
    """Find a case by its id, and the path of its file at the client or none."""
    place = placed(tree, path) if path else Path(name.partition("/")[0])
    return _cases(place, memory).get(name)


@lru_cache(_FILES)
def _cases(place: Path, memory: int) -> Mapping[str, Case]:
    try:
        return {case.id: case for case in collect([str(place)], memory).cases}
    except OnnxoptError:
        return {}
