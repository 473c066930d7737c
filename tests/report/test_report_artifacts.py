"""``--artifacts`` writes failing cases as ONNX test directories."""

from __future__ import annotations

import shlex
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from report_records import HOSTILE, record, result
from two_cases import BACKEND, CASE

from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.oracle.oracles import Oracles
from onnxopt_cli.report.artifacts import check_folder, write_artifacts
from onnxopt_cli.report.view.run_view import RunView

OFF = "python:vendor.py:Off"
IN_PROCESS = ("--isolation", "none", "--no-explain")
ACCEPTS_EVERYTHING = """\
import numpy as np


class AcceptsEverything:
    def run(self, model, inputs):
        return [np.ones(1, np.float32)] * 2
"""


@pytest.fixture
def demo(workplace):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "vendor.py").write_text(BACKEND)
    return workplace


def tensor(path):
    return numpy_helper.to_array(onnx.load_tensor(path))


def test_failing_case_is_written_with_actual_and_expected_outputs(demo, onnxopt):
    answer = onnxopt(
        "run", "demo.yaml", "-k", "plain", "-b", OFF, *IN_PROCESS, "--artifacts", "out"
    )
    assert answer.code == 1
    (folder,) = (demo / "out" / "python_vendor.py_Off").iterdir()
    assert folder.name == "test_demo-demo-plain"
    onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)
    data = folder / "test_data_set_0"
    difference = tensor(data / "actual_0.pb") - tensor(data / "output_0.pb")
    assert np.allclose(difference, 0.25, atol=1e-6)
    assert np.array_equal(tensor(data / "actual_1.pb"), tensor(data / "output_1.pb"))
    readme = (folder / "README.txt").read_text()
    assert "fail: demo/demo/plain" in readme
    assert "2 of 2 off" in readme
    command = shlex.split(readme.split("again:\n")[1])
    assert onnxopt(*command[1:], *IN_PROCESS).code == 1


def test_written_directories_reproduce_the_failures(demo, onnxopt):
    onnxopt("run", "demo.yaml", "-b", OFF, *IN_PROCESS, "--artifacts", "out")
    rerun = onnxopt("run", "out", "-b", OFF, *IN_PROCESS)
    assert "2 fail" in rerun.out
    assert onnxopt("run", "out", *IN_PROCESS).code == 0


def test_passing_cases_are_not_written(demo, onnxopt):
    assert onnxopt("run", "demo.yaml", "--artifacts", "out").code == 0
    assert list((demo / "out").iterdir()) == []


def test_case_on_which_the_backend_raises_has_no_actual_outputs(demo, onnxopt):
    onnxopt("run", "demo.yaml", "-k", "plain", "-b", "python:vendor.py:Raises", "--artifacts", "a")
    names = {path.name for path in (demo / "a").rglob("*") if path.is_file()}
    assert {"README.txt", "model.onnx", "input_0.pb", "output_0.pb"} <= names
    assert not any(name.startswith("actual") for name in names)


def test_rejection_case_is_written_without_expected_outputs(demo, onnxopt):
    refused = CASE.split("  - name: nesterov", maxsplit=1)[0].replace("V: [0.25, 0.0]", "V: [0.25]")
    refused = refused.replace("X: [1.0, 2.0]", "X: [1.0]") + "    rejects: true\n"
    (demo / "demo.yaml").write_text(refused)
    (demo / "vendor.py").write_text(ACCEPTS_EVERYTHING)
    answer = onnxopt(
        "run", "demo.yaml", "-b", "python:vendor.py:AcceptsEverything", "--artifacts", "out"
    )
    assert answer.code == 1, answer.text
    names = {path.name for path in (demo / "out").rglob("*") if path.is_file()}
    assert {"refused_model.onnx", "input_0.pb", "actual_0.pb"} <= names
    assert "output_0.pb" not in names
    assert onnxopt("run", "out", "-b", "python:vendor.py:AcceptsEverything").code == 5


def test_nonempty_folder_is_not_changed(demo, onnxopt):
    (demo / "out").mkdir()
    (demo / "out" / "mine").write_text("precious")
    answer = onnxopt("run", "demo.yaml", "-b", OFF, "--artifacts", "out")
    assert answer.code == 2
    assert "out is not empty" in answer.err
    assert "demo/demo/plain" not in answer.out
    assert [path.name for path in (demo / "out").iterdir()] == ["mine"]


def test_uncreatable_folder_is_an_error_before_the_run(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "--artifacts", "demo.yaml")
    assert answer.code == 2
    assert "cannot write demo.yaml" in answer.err
    assert answer.out == ""


def test_names_of_cases_cannot_escape_the_folder_or_collide(tmp_path):
    folder = tmp_path / "in" / "out"
    folder.parent.mkdir()
    check_folder(folder)
    names = [*HOSTILE, "..", ".", "/", "//etc", "C:\\x", "a/b", "a-b", "A-B", "", "x" * 5000]
    results = [result(name, backend, Outcome.ERROR) for name in names for backend in names]
    assert write_artifacts(folder, RunView(record(*results)), {}, Oracles(Judging())) == len(
        results
    )
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == len(results)
    assert all(path.is_relative_to(folder) and path.name == "README.txt" for path in written)
    assert all(len(path.relative_to(folder).parts) == 3 for path in written)
    # File systems may ignore case, so the names must differ in more than case.
    assert len({str(path).lower() for path in written}) == len(written)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the size of files")
def test_directory_that_cannot_be_completed_is_removed(demo, onnxopt):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The model exceeds this limit, so writing it fails. Python ignores the signal SIGXFSZ.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        answer = onnxopt("run", "demo.yaml", "-b", OFF, *IN_PROCESS, "--artifacts", "failing")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert answer.code == 2
    assert "File too large" in answer.err
    assert not [path for path in (demo / "failing").rglob("*") if path.is_file()]
