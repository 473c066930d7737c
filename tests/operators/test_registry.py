"""Imports register no operators, and a command removes its operators when it ends."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from copy import copy

import pytest
from onnx import defs

from onnxopt_cli.errors import UsageError
from onnxopt_cli.operators.registry import VARIABLE, Registry, registry

FILE = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
from onnxopt_cli.operators.operator import FLOATS, Attribute, Operator, Scalar

def half(R, X, *, alpha):
    return (X - R * alpha * X,)

HALF = Operator(
    name="Half", domain="made.here", version=1, formula=half, about="Halves.", source="Here.",
    scalars=(Scalar("R", FLOATS),), tensors=("X",), outputs={"X_new": "X"},
    attributes=(Attribute("alpha", 0.5),),
)
"""
IMPORT_ALL = """
import copyreg, importlib, pkgutil
import onnx
import onnxopt_cli
for module in pkgutil.walk_packages(onnxopt_cli.__path__, "onnxopt_cli."):
    if not module.name.endswith("__main__") and "skeletons" not in module.name:
        importlib.import_module(module.name)
assert not [kind for kind in copyreg.dispatch_table if kind.__module__.startswith("onnxopt_cli")]
assert not onnx.defs.has("AdmmUpdate", "onnxopt.pruning")
assert not onnx.defs.has("Half", "made.here")
"""
REGISTER = """
from onnxopt_cli.operators.registry import Registry
Registry.builtin().register_schemas()
assert onnx.defs.has("AdmmUpdate", "onnxopt.pruning")
assert not onnx.defs.has("Half", "made.here")
"""
USE = """
from onnxopt_cli.operators.registry import registry
registry().register_schemas()
assert onnx.defs.has("Half", "made.here")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "half.py"
    path.write_text(FILE)
    return path


def ran(file):
    return file.with_suffix(".ran").exists()


def run_program(text, file):
    environment = {**os.environ, VARIABLE: str(file)}
    subprocess.run([sys.executable, "-c", text], check=True, env=environment, timeout=120)


@pytest.mark.slow
def test_importing_a_module_registers_and_runs_nothing(file):
    run_program(IMPORT_ALL + REGISTER, file)
    assert not ran(file)


@pytest.mark.slow
def test_registry_loads_the_files_of_the_environment(file):
    run_program(IMPORT_ALL + USE, file)
    assert ran(file)


def test_registry_in_use_restores_variable_and_schemas(file, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    made = Registry.builtin()
    (half,) = made.add_file(file)
    with made.in_use():
        assert registry() is made
        assert os.environ[VARIABLE] == str(file)
        assert copy(half) is half
        made.register_schemas()
        assert defs.has("Half", "made.here")
    assert registry().named("Half") is None
    assert VARIABLE not in os.environ
    assert not defs.has("Half", "made.here")
    with pytest.raises(pickle.PicklingError, match="Half differs"):
        pickle.dumps(half)


def test_file_is_added_once_and_invalid_files_are_rejected(file, tmp_path):
    made = Registry.builtin()
    count = len(made.operators)
    assert len(made.add_file(file)) == 1
    assert made.files == [file]
    assert made.find("made.here", "Half") is made.named("hALF")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UsageError, match="defines no operator"):
        made.add_file(tmp_path / "empty.py")
    assert (len(made.operators), made.files) == (count + 1, [file])


def test_command_removes_the_operators_of_its_files(file, onnxopt):
    assert onnxopt("show", "Half", "--operators", file).code == 0
    assert onnxopt("show", "Half").code == 2
    assert str(file) not in os.environ.get(VARIABLE, "")
