"""Pools limit the outputs that wait to be read, and replace workers of backends."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest

from onnxopt_cli.backends.host import Request, Response
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.pool import Pool, WorkerLoop
from onnxopt_cli.workers.worker import State

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs workers")


class ImmediateWorker:
    """A worker without a process; it responds to each request with 40 MiB, without delay."""

    def __init__(self, *, closed=False):
        self.version, self.state = "1", State.IDLE
        self.response = self.refusal = self.incident = None
        self.case_count = 0
        self.closed = closed

    @property
    def free(self):
        return self.response is None

    def submit(self, _request, _model):
        self.case_count += 1
        self.response = Response([[np.broadcast_to(np.float32(0), (10 << 20,))]])
        return True

    def poll(self):
        pass

    def kill(self):
        self.state = State.GONE

    end = kill


def test_unread_outputs_delay_all_requests_except_the_awaited_one():
    started = []
    loop = WorkerLoop()
    pool = Pool(parse_specification("numpy"), ImmediateWorker, 1, loop, Interruption())
    waits = [
        pool.submit(
            Request(onnx.ModelProto(), {}, started=lambda number=number: started.append(number))
        )
        for number in range(8)
    ]
    for _ in waits:
        loop.run_once(0)
    assert started == [0, 1]
    assert waits[5]().outputs
    assert started == [0, 1, 5]
    responses = [wait() for wait in waits]
    assert all(response.outputs for response in responses)
    assert sorted(started) == [*range(8)]
    loop.close()


@pytest.mark.parametrize(("closed", "count"), [(False, 4), (True, 1)])
def test_only_workers_of_backends_are_replaced_after_a_number_of_cases(monkeypatch, closed, count):
    monkeypatch.setattr("onnxopt_cli.workers.pool._CASES_PER_WORKER", 1)
    started = []

    def start():
        started.append(ImmediateWorker(closed=closed))
        return started[-1]

    loop = WorkerLoop()
    pool = Pool(parse_specification("numpy"), start, 1, loop, Interruption())
    for _ in range(4):
        assert pool.submit(Request(onnx.ModelProto(), {}))().outputs
    assert len(started) == count
    loop.close()
