"""Requests reach the backend on a worker unchanged, and responses reach the client."""

import json
import resource
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt_cli.backends.host import Request, Response
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.errors import UsageError
from onnxopt_cli.run import served
from onnxopt_cli.run.remote import Remote
from onnxopt_cli.run.runner import Plan
from onnxopt_cli.workers.cluster.sidecar import Sidecar, placed

MODEL = '<ir_version: 10, opset_import: ["": 20]> g (float[2] X) => (float[2] Y) { Y = Neg(X) }'


class Recorder:
    """A backend that records the requests it receives."""

    version = ""

    def __init__(self):
        self.requests = []

    def ready(self):
        pass

    def submit(self, request):
        self.requests.append(request)
        return lambda: Response([-request.inputs["X"]], seconds=0.5)


def test_request_reaches_the_backend_of_a_worker_unchanged(monkeypatch, tmp_path):
    backend = Recorder()

    @contextmanager
    def opened(*_):
        yield Plan([], [backend])

    monkeypatch.setattr(served, "open_plan", opened)
    setting = SimpleNamespace(limits=SimpleNamespace(memory=0))
    with served.open_run((["mine"], setting, None), tmp_path) as (_, respond):

        def send(frames):
            head, _, payload = frames.partition(b"\n")
            return lambda: respond(json.loads(head), memoryview(payload))

        model = parser.parse_model(MODEL)
        inputs = {"X": np.array([1, 2], np.float32)}
        request = Request(
            model, inputs, keep=True, collect=True, expected_bytes=2**30, formula_loop=True
        )
        specifications = [parse_specification("mine")]
        response = Remote(specifications, 0, SimpleNamespace(request=send)).submit(request)()
    np.testing.assert_array_equal(response.outputs[0], [-1, -2])
    (received,) = backend.requests
    settings = ("keep", "collect", "expected_bytes", "formula_loop")
    assert [getattr(received, name) for name in settings] == [
        getattr(request, name) for name in settings
    ]
    assert isinstance(received.model, onnx.ModelProto)
    assert received.model == model


@pytest.fixture
def sidecar(monkeypatch, tmp_path):
    worker = SimpleNamespace(local_directory=str(tmp_path))
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(get_worker=lambda: worker))
    return Sidecar("run", b"")


def test_files_whose_paths_differ_by_a_colon_stay_apart(sidecar, tmp_path):
    contents = {"1": b"first", "2": b"second"}
    wanted_files = {"/cases/a:b.yaml": ("1", 0o600), "/cases/ab.yaml": ("2", 0o600)}
    assert sidecar.deliver(wanted_files, contents) == set()
    tree = tmp_path / "onnxopt" / "run"
    assert [placed(tree, path).read_bytes() for path in wanted_files] == [b"first", b"second"]
    assert placed(tree, "/cases/a:b.yaml").name == "a:b.yaml"
    assert placed(tree, r"C:\cases\a.yaml").is_relative_to(tree)


def test_full_disk_leaves_no_incomplete_file_in_the_store(sidecar):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    wanted_files = {"/a.yaml": ("1", 0o600)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(UsageError, match="cannot write"):
            sidecar.deliver(wanted_files, {"1": b"x" * 20})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sidecar.deliver(wanted_files, {}) == {"1"}
