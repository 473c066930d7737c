"""Backends on the workers of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from onnxopt_cli.backends.host import (
    Incident,
    Request,
    Response,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.cases.case import Case, unanswered
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record import result_from_json
from onnxopt_cli.core.result import NOT_SENT, Outcome, Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    BackendUnavailable,
    ProtocolBreach,
    UnusableOutput,
)
from onnxopt_cli.workers.cluster.dask_client import (
    LostError,
    WorkerGroup,
    real_place,
)
from onnxopt_cli.workers.interruption import INTERRUPTED_REASON
from onnxopt_cli.workers.worker_messages import pack_request, read_response

_LOST = "its machine was lost in each attempt: "


class Remote:
    """A backend on every worker of a cluster.

    The method :meth:`rows` runs and judges cases on all workers in parallel. All other requests,
    for example those of a rerun or an explanation, go to a single worker, one after another.

    Args:
        specifications: the specifications of all backends of the workers.
        place: the index of this backend among the specifications.
        workers: the workers.

    Attributes:
        workers: the workers. Other modules may also send requests to them.
    """

    def __init__(
        self, specifications: Sequence[Specification], place: int, workers: WorkerGroup
    ) -> None:
        self._names = [specification.name_in_results for specification in specifications]
        self.specification, self.name = specifications[place], self._names[place]
        self.version = ""
        self.ahead = 1
        self._place = place
        self.workers = workers

    def ready(self) -> None:
        """Wait until a worker has started the backend.

        Raises:
            UsageError: if the backend does not exist, or if the workers disagree on its version.
            BackendUnavailable: if the backend does not start, or if no worker appears.
        """
        self.workers.ready()
        match self.workers.hello:
            case [*versions] if len(versions) == len(self._names):
                self.version = printable(str(versions[self._place]))
            case _:
                raise BackendUnavailable("the workers sent an invalid list of their backends")

    def submit(self, request: Request) -> Callable[[], Response | str]:
        """Start to run a model on a worker."""
        try:
            message, values = pack_request(request, request.model.SerializeToString())
        except UnusableOutput as error:
            reason = f"{NOT_SENT}{error.message}"
            return lambda: reason
        fields = {
            "backend": self._place,
            "expected_bytes": request.expected_bytes,
            "formula_loop": request.formula_loop,
        }
        frames = values.message({**message, **fields})
        request.started()
        pending = self.workers.request(b"".join(frames))

        def wait() -> Response | str:
            try:
                answer = pending()
            except LostError as error:
                return Response(failure=Outcome.CRASH, message=_LOST + str(error))
            return INTERRUPTED_REASON if answer is None else _response(answer, request)

        return wait

    def renew(self) -> None:
        """Restart the backend's process before the next model."""
        self.workers.request(json.dumps({"request": "renew", "backend": self._place}).encode())()

    def finish(self) -> list[Incident]:
        """Shut the backend down on all workers, and return its failures outside of any case."""
        message = json.dumps({"request": "finish", "backend": self._place}).encode()
        incidents = []
        for answer in self.workers.everyone(message):
            try:
                incidents += [
                    Incident(str(stage), Outcome(outcome), printable(str(message), lines=True))
                    for stage, outcome, message in read_json(answer)
                ]
            except (ValueError, TypeError):
                fault = "a machine sent an invalid message"
                incidents.append(Incident("teardown", Outcome.PROTOCOL, fault))
        return incidents

    def rows(self, cases: Sequence[Case]) -> Generator[tuple[Result, ...] | None]:
        """Yield the results of each case in order, one for each backend of the workers.

        Yields:
            The results; None for a case that only this process can judge.
        """
        items, files = case_references(cases)
        names = self._names

        def read(index: int, answer: Any) -> tuple[Result, ...] | None:
            if answer is None:
                return None
            results = tuple(map(result_from_json, answer))
            case_id, _ = items[index]
            if [(result.case, result.backend) for result in results] != [
                (case_id, name) for name in names
            ]:
                raise ValueError("results of another case")
            return results

        rows = self.workers.spread("cases", items, read, files.__getitem__)
        for case, row in zip(cases, rows, strict=False):
            if isinstance(row, LostError):
                reason = _LOST + printable(str(row))
                yield tuple(unanswered(case, name, reason, Outcome.CRASH) for name in names)
            else:
                yield row


def case_references(cases: Sequence[Case]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return each case's id and file path, and the paths of all files that each case needs.

    The path is empty for a case of a built-in suite, because each worker has these suites.
    """
    files = [sorted(map(real_place, case.files())) for case in cases]
    references = [
        (case.id, real_place(case.location.path) if paths else "")
        for case, paths in zip(cases, files, strict=True)
    ]
    return references, files


def _response(answer: bytes, request: Request) -> Response | str:
    """Return the parsed response of a worker; the worker is not trusted."""
    try:
        head, _, body = answer.partition(b"\n")
        match read_json(head):
            case {"stopped": str(reason)}:
                return printable(reason)
            case {"leak": str(leak), "printed": str(printed)}:
                line, _, payload = body.partition(b"\n")
                message = {
                    name: value
                    for name, value in read_json(line).items()
                    if name not in {"id", "bytes"}
                }
                response = read_response(message, memoryview(payload), request.inputs)
                return replace(response, leak=leak, printed=printed)
    except (ValueError, AttributeError) as error:
        fault = f"sent an invalid message: {printable(str(error))}"
    except ProtocolBreach as breach:
        fault = breach.message
    else:
        fault = "sent an invalid message"
    return Response(failure=Outcome.PROTOCOL, message=f"the machine {fault}")
