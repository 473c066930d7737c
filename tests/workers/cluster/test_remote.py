"""What a worker of a cluster is asked for a backend is what it is asked on one machine."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import onnx
from onnx import parser

from onnxopt_cli.run import served
from onnxopt_cli.run.remote import Remote
from onnxopt_cli.run.runner import Plan
from onnxopt_cli.workers.response import Order, Response

MODEL = '<ir_version: 10, opset_import: ["": 20]> g (float[2] X) => (float[2] Y) { Y = Neg(X) }'


class Recorder:
    """A backend that keeps what it was asked."""

    version = ""

    def __init__(self):
        self.orders = []

    def ready(self):
        pass

    def submit(self, order):
        self.orders.append(order)
        return lambda: Response([-order.inputs["X"]], seconds=0.5)


def test_an_order_reaches_the_backend_of_a_worker_as_it_was_given(monkeypatch, tmp_path):
    backend = Recorder()

    @contextmanager
    def opened(*_):
        yield Plan([], [backend])

    monkeypatch.setattr(served, "open_plan", opened)
    setting = SimpleNamespace(limits=SimpleNamespace(memory=0))
    with served.open_run((["mine"], setting, None), tmp_path) as (_, answer):

        def ask(frames):
            head, _, payload = frames.partition(b"\n")
            return lambda: answer(json.loads(head), memoryview(payload))

        model = parser.parse_model(MODEL)
        inputs = {"X": np.array([1, 2], np.float32)}
        order = Order(model, inputs, keep=True, collect=True, returned=2**30, ours=True)
        response = Remote(["mine"], 0, SimpleNamespace(ask=ask)).submit(order)()
    np.testing.assert_array_equal(response.outputs[0], [-1, -2])
    (asked,) = backend.orders
    same = ("keep", "collect", "returned", "ours")
    assert [getattr(asked, it) for it in same] == [getattr(order, it) for it in same]
    assert isinstance(asked.model, onnx.ModelProto)
    assert asked.model == model
