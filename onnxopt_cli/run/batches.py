"""Batches of small cases, for backends that take seconds to compile a model (option ``batch=N``).

The models of up to N cases are joined into one model. If the backend fails to run a joined model,
each half of the batch runs again, down to single cases. If outputs from a batch are wrong, the
runner runs their case again, without other cases. Thus, no case fails because of another case in
its batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from onnxopt_cli.backends.host import Incident, Request, Response
from onnxopt_cli.backends.joined_models import (
    join_models,
    joined_name,
    joining_key,
    operators_of,
)
from onnxopt_cli.core.result import NOT_SENT, Outcome
from onnxopt_cli.core.values import total_bytes
from onnxopt_cli.run.executors import Executor, Pending

# The largest number of bytes of the inputs and expected outputs of a case in a batch. Larger cases
# run alone.
_MAX_CASE_BYTES = 1 << 20
# If the cases that await a response have more bytes than this, no further batch is submitted.
_MAX_BYTES_AHEAD = 64 << 20


@dataclass(eq=False)
class _Batch:
    """Requests that run as one joined request.

    Attributes:
        requests: the requests of single cases.
        pending: waits for the response to the joined request; None until it is submitted.
        responses: for each request, a response or the reason for its absence; empty until the
            backend has responded.
    """

    requests: list[Request] = field(default_factory=list)
    pending: Pending | None = None
    responses: list[Response | str] = field(default_factory=list)


def in_batches(executor: Executor) -> Executor:
    """Return an executor; it runs cases in batches if the backend has the option ``batch``."""
    size = executor.specification.batch
    return executor if size == 1 else BatchExecutor(executor, size)


class BatchExecutor:
    """Runs small cases on a backend in batches.

    Args:
        executor: the backend.
        size: the largest number of cases in a batch.
    """

    def __init__(self, executor: Executor, size: int) -> None:
        self.specification = executor.specification
        self.name, self.version = executor.name, executor.version
        self._executor = executor
        self._size = size
        self._open: dict[Hashable, _Batch] = {}
        # For each model that failed alone, the set of its operators. Other models with the same set
        # of operators do not join a batch.
        self._failed_alone: set[frozenset[tuple[str, str]]] = set()
        self._bytes_ahead = 0
        self.ahead = size * executor.ahead

    def ready(self) -> None:
        """Wait until the backend has started."""
        self._executor.ready()
        self.version = self._executor.version

    def renew(self) -> None:
        """Restart the backend while no case is pending."""
        self._executor.renew()

    def finish(self) -> list[Incident]:
        """Shut the backend down, and return its failures outside of any case."""
        return self._executor.finish()

    def submit(self, request: Request) -> Pending:
        """Add a case to a batch, or start to run the case alone."""
        request_bytes = total_bytes(request.inputs.values()) + request.expected_bytes
        key = None
        if request.joinable and request_bytes <= _MAX_CASE_BYTES:
            key = joining_key(request.model)
        self._count_ahead(request_bytes)
        if key is None or operators_of(request.model) in self._failed_alone:
            wait: Pending = partial(self._response_alone, request, self._executor.submit(request))
        else:
            batch = self._open.setdefault(key, _Batch())
            wait = partial(self._response, batch, len(batch.requests))
            batch.requests.append(request)
            if len(batch.requests) >= self._size:
                self._send(batch)
        return partial(self._arrived, wait, request_bytes)

    def _arrived(self, wait: Pending, request_bytes: int) -> Response | str:
        self._count_ahead(-request_bytes)
        return wait()

    def _count_ahead(self, request_bytes: int) -> None:
        self._bytes_ahead += request_bytes
        full = self._bytes_ahead > _MAX_BYTES_AHEAD
        self.ahead = self._executor.ahead * (1 if full else self._size)

    def _send(self, batch: _Batch) -> Pending:
        self._open = {key: other for key, other in self._open.items() if other is not batch}
        batch.pending = self._submit_together(batch.requests)
        return batch.pending

    def _submit_together(self, requests: Sequence[Request]) -> Pending:
        return self._executor.submit(requests[0] if len(requests) == 1 else _joined(requests))

    def _response(self, batch: _Batch, place: int) -> Response | str:
        """Wait for the response to one request of a batch."""
        pending = batch.pending or self._send(batch)
        if not batch.responses:
            batch.responses = self._responses(batch.requests, pending)
        return batch.responses[place]

    def _responses(self, requests: Sequence[Request], pending: Pending) -> list[Response | str]:
        """Return the response to each request. If a joined request failed, run each half again."""
        if len(requests) == 1:
            return [self._response_alone(requests[0], pending)]
        response = pending()
        if isinstance(response, str):
            if not response.startswith(NOT_SENT):
                # The run or the backend has ended, so no request can run again.
                return [response] * len(requests)
        elif parts := _parts(requests, response):
            return [*parts]
        middle = len(requests) // 2
        halves = requests[:middle], requests[middle:]
        submitted = [(half, self._submit_together(half)) for half in halves]
        responses: list[Response | str] = []
        for half, half_pending in submitted:
            responses += self._responses(half, half_pending)
        failure = _failure(response)
        is_limit = failure in {Outcome.TIMEOUT, Outcome.OOM}
        if is_limit and failure not in map(_failure, responses):
            # The batch was too large: it exceeded a limit of time or memory, but no smaller part
            # of it did.
            self._size = min(self._size, middle)
        return responses

    def _response_alone(self, request: Request, pending: Pending) -> Response | str:
        response = pending()
        # A case that the backend must reject is not joinable, because its failure is the correct
        # response.
        if request.joinable and _failure(response) is not None:
            self._failed_alone.add(operators_of(request.model))
        return response


def _joined(requests: Sequence[Request]) -> Request:
    def started() -> None:
        for request in requests:
            request.started()

    return Request(
        join_models([request.model for request in requests]),
        {
            joined_name(index, name): value
            for index, request in enumerate(requests)
            for name, value in request.inputs.items()
        },
        started,
        expected_bytes=sum(request.expected_bytes for request in requests),
    )


def _parts(requests: Sequence[Request], response: Response) -> list[Response]:
    """Split the response to a joined request into single responses; empty after a failure."""
    counts = [len(request.model.graph.output) for request in requests]
    outputs = response.outputs
    if outputs is None or len(outputs) != sum(counts):
        return []
    if response.lowered or response.changed or response.leak:
        return []
    seconds = response.seconds / len(requests)
    remaining = iter(outputs)
    return [
        replace(
            response,
            outputs=[*islice(remaining, count)],
            seconds=seconds,
            batch=len(requests),
        )
        for count in counts
    ]


def _failure(response: Response | str) -> Outcome | None:
    return response.failure if isinstance(response, Response) else None
