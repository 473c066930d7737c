"""The option ``python``, which runs a plugin in another interpreter with its own packages."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import PLUGINS, REPOSITORY

CASE = """\
onnxopt: 1
suite: demo
operator: Identity
opset: 14
cases:
  - name: first
    inputs: {input: [1.5, -2.0]}
    outputs: {output: [1.5, -2.0]}
"""
#: An interpreter with the oldest supported packages; it exists only where CI has created it.
OLDEST = os.environ.get("ONNXOPT_OLDEST_PYTHON", "")


def elsewhere(name, python=sys.executable):
    return f"python:{PLUGINS / 'elsewhere.py'}:{name},python={python}"


@pytest.fixture
def run(workplace, onnxopt):
    (workplace / "demo.yaml").write_text(CASE)

    def call(name, *options, python=sys.executable):
        return onnxopt("run", "demo.yaml", "-b", elsewhere(name, python), *options)

    return call


@pytest.mark.parametrize("name", ["Copies", pytest.param("ReturnsLists", marks=pytest.mark.slow)])
def test_plugin_in_another_interpreter_conforms(run, name):
    answer = run(name)
    assert answer.code == 0, answer.text


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        pytest.param("WritesIntoItsInput", "fail", "inputs changed: input", marks=pytest.mark.slow),
        ("LacksAKernel", "unsupported", "no kernel for this"),
        pytest.param("Exits", "error", "SystemExit: 0", marks=pytest.mark.slow),
        ("Dies", "crash", "ended with exit code 7"),
        ("Raises", "error", r"ValueError: odd \x1b[31m"),
        pytest.param("RunsOutOfMemory", "oom", "MemoryError", marks=pytest.mark.slow),
    ],
)
def test_behaviour_in_another_interpreter_is_reported_as_in_this_one(run, name, outcome, words):
    answer = run(name)
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", answer.out).split())
    assert answer.code == 1
    assert f"1 {outcome} in" in text
    assert words in text


@pytest.mark.slow
def test_plugin_in_another_interpreter_follows_the_rules(onnxopt):
    answer = onnxopt("backends", "check", elsewhere("Copies"))
    assert answer.code == 0, answer.text


@pytest.mark.parametrize(
    ("name", "python", "words"),
    [
        ("Copies", "./no-such-python", "does not exist"),
        ("Nowhere", sys.executable, "has no Nowhere"),
        ("Copies,device=TPU", sys.executable, "has no option device"),
    ],
)
def test_missing_plugin_or_interpreter_does_not_start(run, name, python, words):
    name, comma, option = name.partition(",")
    answer = run(name, python=f"{python}{comma}{option}")
    assert answer.code == 4
    assert words in " ".join(answer.err.split())


def test_missing_onnx_in_interpreter_is_reported(run, workplace):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "empty"], check=True)
    answer = run("Copies", python="empty/bin/python")
    assert answer.code == 4
    assert "No module named" in answer.err
    assert "the interpreter needs Python 3.9" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.skipif(not OLDEST, reason="ONNXOPT_OLDEST_PYTHON names no interpreter")
def test_oldest_interpreter_works_without_our_packages(run):
    answer = run("Copies", python=OLDEST)
    assert answer.code == 0, answer.text
    assert "ValueError: []" in run("SeesOurs", python=OLDEST).out


@pytest.mark.skipif(not OLDEST, reason="ONNXOPT_OLDEST_PYTHON names no interpreter")
def test_runtimes_that_cannot_share_an_environment_run_side_by_side(workplace, onnxopt):
    backends = ("-b", "onnxruntime", "-b", elsewhere("AnotherRuntime", OLDEST))
    (workplace / "demo.yaml").write_text(CASE)
    answer = onnxopt("run", "demo.yaml", *backends)
    assert answer.code == 0, answer.text
    assert answer.out.count("1 pass") == 2
    answer = onnxopt("run", "demo.yaml", "-b", elsewhere("AnotherRuntime"))
    assert answer.code == 1
    assert "1 error" in answer.out


def imported(path, seen):
    """Return the files of onnxopt that loading a file imports, directly or indirectly."""
    for node in ast.parse(path.read_text()).body:
        module = node.module if isinstance(node, ast.ImportFrom) else ""
        module_path = REPOSITORY / f"{(module or '').replace('.', '/')}.py"
        if (
            (module or "").startswith("onnxopt_cli.")
            and module_path.is_file()
            and module_path not in seen
        ):
            imported(module_path, seen | {module_path})
            seen.add(module_path)
            imported(module_path, seen)
    return seen


def test_modules_for_other_interpreters_support_python_3_9():
    package = REPOSITORY / "onnxopt_cli"
    files = {package / "backends/exec/other_interpreter.py"}
    for name in ("core/codec.py", "backends/plugin.py", "backends/specification.py"):
        files |= imported(package / name, {package / name})
    assert package / "errors.py" in files
    for path in files:
        tree = ast.parse(Path(path).read_text(), feature_version=(3, 9))
        newer = [
            keyword.arg
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            for keyword in node.keywords
            if keyword.arg in {"slots", "strict", "kw_only"}
        ]
        assert newer == [], f"{path}: Python 3.9 has no {newer[0]}"
