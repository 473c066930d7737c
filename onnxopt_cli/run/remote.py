"""Backends on the workers of a cluster, as the runner sees them."""

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
from onnxopt_cli.cases.case import Case, unanswered
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record_json import result_from_json
from onnxopt_cli.core.result import Outcome, Result
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
from onnxopt_cli.workers.worker_messages import pack_request, read_response

_LOST = "it was lost with its machine each time: "


class Remote:
    """A backend on every worker of a cluster.

    Cases run and are judged there, many at a time: :meth:`rows`. What else is asked of the backend,
    by a rerun or to explain a failure, one worker is asked in order.

    Args:
        names: the backends of the workers as the user asked for them.
        place: its place among them.
        workers: the workers.

    Attributes:
        workers: the same, for whoever has other work for them.
    """

    def __init__(self, names: Sequence[str], place: int, workers: WorkerGroup) -> None:
        self.name = names[place]
        self.version = ""
        self.ahead = 1
        self._names, self._place = names, place
        self.workers = workers

    def ready(self) -> None:
        """Wait until a worker has started it.

        Raises:
            UsageError: if there is no such backend, or the workers do not agree.
            BackendUnavailable: if it does not start, or no worker comes.
        """
        self.workers.ready()
        match self.workers.hello:
            case [*versions] if len(versions) == len(self._names):
                self.version = printable(str(versions[self._place]))
            case _:
                raise BackendUnavailable("the workers do not say which backends they have")

    def submit(self, request: Request) -> Callable[[], Response | str]:
        """Have a model run on a worker."""
        try:
            message, values = pack_request(request, request.model.SerializeToString())
        except UnusableOutput as error:
            said = f"the case cannot be sent to a worker: {error.message}"
            return lambda: said
        more = {
            "backend": self._place,
            "expected_bytes": request.expected_bytes,
            "formula_loop": request.formula_loop,
        }
        frames = values.message({**message, **more})
        request.started()
        pending = self.workers.ask(b"".join(frames))

        def wait() -> Response | str:
            try:
                answer = pending()
            except LostError as error:
                return Response(failure=Outcome.CRASH, message=_LOST + str(error))
            return "interrupted" if answer is None else _response(answer, request)

        return wait

    def renew(self) -> None:
        """Let the next model meet a fresh process."""
        self.workers.ask(json.dumps({"request": "renew", "backend": self._place}).encode())()

    def finish(self) -> list[Incident]:
        """Shut it down everywhere; return what it did outside of any case, in words."""
        message = json.dumps({"request": "finish", "backend": self._place}).encode()
        incidents = []
        for answer in self.workers.everyone(message):
            try:
                incidents += [
                    Incident(str(where), Outcome(outcome), printable(str(what), lines=True))
                    for where, outcome, what in read_json(answer)
                ]
            except (ValueError, TypeError):
                said = "a machine sent what is not an answer"
                incidents.append(Incident("teardown", Outcome.PROTOCOL, said))
        return incidents

    def rows(self, cases: Sequence[Case]) -> Generator[tuple[Result, ...] | None]:
        """Yield the results of cases, one for each of the workers' backends, in order.

        Yields:
            None for a case that no worker can judge by itself.
        """
        items, files = sent(cases)
        names = self._names

        def read(place: int, answer: Any) -> tuple[Result, ...] | None:
            if answer is None:
                return None
            row = tuple(map(result_from_json, answer))
            if [(it.case, it.backend) for it in row] != [(items[place][0], it) for it in names]:
                raise ValueError("results of another case")
            return row

        found = self.workers.spread("cases", items, read, files.__getitem__)
        for case, row in zip(cases, found, strict=False):
            if isinstance(row, LostError):
                why = _LOST + printable(str(row))
                yield tuple(unanswered(case, name, why, Outcome.CRASH) for name in names)
            else:
                yield row


def sent(cases: Sequence[Case]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return how a worker finds cases, each by its id and its file or none; and all their files."""
    files = [sorted(map(real_place, case.files())) for case in cases]
    pairs = zip(cases, files, strict=True)
    return [(it.id, real_place(it.location.path) if mine else "") for it, mine in pairs], files


def _response(answer: bytes, request: Request) -> Response | str:
    """Return what a worker says of a model; it is taken apart as strictly as on one machine."""
    try:
        head, _, rest = answer.partition(b"\n")
        match read_json(head):
            case {"stopped": str(why)}:
                return printable(why)
            case {"leak": str(leak), "printed": str(printed)}:
                line, _, payload = rest.partition(b"\n")
                message = read_json(line)
                message = {name: it for name, it in message.items() if name not in {"id", "bytes"}}
                response = read_response(message, memoryview(payload), request.inputs)
                return replace(response, leak=leak, printed=printed)
    except (ValueError, AttributeError) as error:
        what = f"sent {printable(str(error))}"
    except ProtocolBreach as breach:
        what = breach.message
    else:
        what = "sent what is not an answer"
    return Response(failure=Outcome.PROTOCOL, message=f"the machine {what}")
