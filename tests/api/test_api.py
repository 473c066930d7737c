"""The Python API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from places import PLUGINS, REPOSITORY

import onnxopt_cli as onnxopt

EXAMPLES = re.findall(
    r"```python\n(.*?)```", (REPOSITORY / "docs" / "python.md").read_text(), re.DOTALL
)
WRONG = f"python:{PLUGINS / 'mistaken.py'}:InsideTheRoot"
IN_PROCESS = onnxopt.Execution(isolation=onnxopt.Isolation.NONE)


@pytest.mark.slow
def test_example_of_the_document_prints_failures(tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[0].replace("onnxruntime", WRONG))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "conformance/adam/" in done.stdout
    assert "X_new" in done.stdout
    assert done.stderr == ""


def test_string_of_a_case_is_its_id():
    # With pytest-xdist, names of tests must be equal in all processes.
    assert [str(case) for case in onnxopt.load_cases("spec", operators=["Adam"])] == [
        "spec/adam/adam", "spec/adam/adam_multiple",
    ]  # fmt: skip


@pytest.mark.slow
def test_examples_pass_strict_type_checking(tmp_path):
    # The project's configuration is strict, except that it omits warn-return-any. Each file sets
    # this option itself. If the command line set it, mypy would check all of onnxopt again.
    for index, text in enumerate(EXAMPLES):
        (tmp_path / f"example{index}.py").write_text(f"# mypy: warn-return-any\n{text}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", REPOSITORY / ".mypy_cache",
         *tmp_path.iterdir()],
        capture_output=True, text=True, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_results_are_in_the_order_of_the_cases():
    cases = onnxopt.load_cases("spec")
    results = list(onnxopt.run(cases, "numpy", "onnx-reference"))
    assert [(result.case, result.backend) for result in results] == [
        (case.id, backend) for case in cases for backend in ("numpy", "onnx-reference")
    ]
    assert all(result.conforms for result in results)


def test_configuration_file_is_read_only_on_request(tmp_path, monkeypatch):
    (tmp_path / "onnxopt.toml").write_text(f'[backends.mine]\nbackend = "{WRONG}"\n')
    monkeypatch.chdir(tmp_path)
    case = onnxopt.load_cases("spec/adam/adam_multiple")[0]
    with pytest.raises(onnxopt.OnnxoptError, match="unknown backend 'mine'"):
        onnxopt.check(case, "mine", execution=IN_PROCESS)
    with pytest.raises(onnxopt.NotConformingError):
        onnxopt.check(case, onnxopt.load_configuration().backend("mine"), execution=IN_PROCESS)
    (tmp_path / "onnxopt.toml").write_text("[backends.mine]\n")
    with pytest.raises(onnxopt.OnnxoptError, match=r"toml:1: backends.mine names no backend"):
        onnxopt.load_configuration("onnxopt.toml")


def test_closed_run_ends_its_backend(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "import os, pathlib\n"
        f"pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\n"
        "class Backend:\n    def run(self, model, inputs):\n        return []\n"
    )
    results = onnxopt.run(onnxopt.load_cases("spec"), f"python:{tmp_path / 'plugin.py'}:Backend")
    assert [result.outcome for result in islice(results, 1)] == [onnxopt.Outcome.FAIL]
    results.close()
    (process,) = (int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_check_raises_with_the_differences_and_keeps_the_backend(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(PLUGINS)!r})\n"
        "from mistaken import InsideTheRoot\n"
        f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n"
        "class Backend(InsideTheRoot):\n    pass\n"
    )
    backend = f"python:{tmp_path / 'plugin.py'}:Backend"
    failing = onnxopt.load_cases("spec/adam/adam_multiple", "conformance/adam/T_2")
    for case in failing:
        with pytest.raises(AssertionError, match=r"_new.*\n.*4 times the error bound") as raised:
            onnxopt.check(case, backend)
        assert isinstance(raised.value, onnxopt.NotConformingError)
        assert raised.value.result.case == case.id
        # The traceback contains only the line of the test.
        visible_entries = raised.traceback.filter(raised)
        assert [entry.path for entry in visible_entries] == [Path(__file__)]
    assert len(failing) > 1
    assert (tmp_path / "starts").read_text() == "x"


def test_check_accepts_expectations(tmp_path):
    (case,) = onnxopt.load_cases("spec/adam/adam_multiple")
    expected = tmp_path / "expected.yaml"
    expected.write_text(
        f"onnxopt-expect: 1\nexpect:\n  - {{case: {case.id}, outcome: fail, reason: known}}\n"
    )
    result = onnxopt.check(case, WRONG, execution=IN_PROCESS, expect=[expected])
    assert (result.outcome, result.standing) == (onnxopt.Outcome.FAIL, onnxopt.Standing.EXPECTED)
    with pytest.raises(onnxopt.NotConformingError):
        onnxopt.check(case, "numpy", expect=[expected])
    expected.write_text("onnxopt-expect: 1\nsuites: [spec@99]\n")
    with pytest.raises(onnxopt.UsageError, match="spec@99 is required"):
        onnxopt.check(case, execution=IN_PROCESS, expect=[str(expected)])


def test_failures_are_explained():
    cases = onnxopt.load_cases("conformance", patterns=["conformance/adam/T_*"])
    results = list(onnxopt.run(cases, WRONG, execution=IN_PROCESS))
    (explanation,) = onnxopt.explain(results, cases)
    assert explanation.known_mistakes == ("epsilon inside the square root",)


def test_audit_yields_a_score_for_each_operator():
    (score,) = onnxopt.audit(onnxopt.load_cases("pruning", operators=["AdmmGradient"])[:3])
    assert score.operator.name == "AdmmGradient"
    assert score.survivors
    assert not score.false_alarms


def test_fuzzing_finds_failures_of_a_wrong_backend_only():
    finding = next(onnxopt.fuzz(WRONG, operators=["Adam"], examples=50, execution=IN_PROCESS))
    assert finding.result.outcome is onnxopt.Outcome.FAIL
    assert list(onnxopt.fuzz("numpy", operators=["Adam"], examples=20)) == []


def test_generated_suite_equals_the_committed_files():
    files = dict(onnxopt.generate("spec"))
    for name, content in files.items():
        assert (REPOSITORY / "cases" / name).read_bytes() == content


def run_with(**options):
    return list(onnxopt.run(onnxopt.load_cases("spec"), execution=onnxopt.Execution(**options)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: onnxopt.load_cases("nowhere"), "no such path, suite or case"),
        (lambda: onnxopt.load_cases("spec", operators=["Adan"]), "Adan"),
        (lambda: onnxopt.load_cases("spec", patterns=["nothing"]), "no case is selected"),
        (lambda: list(onnxopt.run(onnxopt.load_cases("spec"), "nothing")), "unknown backend"),
        (lambda: list(onnxopt.fuzz("numpy", operators=["Adan"])), "Adan"),
        (lambda: list(onnxopt.generate("nothing")), "unknown suite"),
        (lambda: list(onnxopt.generate("spec", "json")), "expected yaml or onnx"),
        (lambda: run_with(isolation="nome"), "isolation='nome': expected process or none"),
        (lambda: run_with(jobs=0), "jobs=0: expected a whole number of at least 1"),
        (lambda: run_with(limits=onnxopt.Limits(memory="1GiB")), "expected a number of bytes"),
        (lambda: onnxopt.Shard(0, 3), "invalid --shard 0/3"),
        (lambda: list(onnxopt.fuzz("numpy", examples=0)), "expected examples >= 1"),
    ],
)
def test_misspelt_argument_is_named(call, message):
    with pytest.raises(onnxopt.OnnxoptError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: list(onnxopt.run("spec")),
        lambda: list(onnxopt.run(onnxopt.load_cases("spec"), ["numpy"])),
        lambda: onnxopt.check("spec/adam/adam"),
        lambda: onnxopt.check(onnxopt.load_cases("spec")[0], ["numpy"]),
        lambda: onnxopt.explain("run.jsonl"),
    ],
)
def test_argument_of_a_wrong_type_is_named(call):
    with pytest.raises(TypeError, match=r"expected .+, found (str|list)$"):
        call()


def test_enumerations_accept_strings_and_lists_accept_one_string():
    (case,) = onnxopt.load_cases("spec", patterns="spec/adam/adam", operators="Adam")
    settings = (
        onnxopt.Judging(tolerance="onnx"),
        onnxopt.Execution(isolation="none", lowering="never"),
    )
    (result,) = onnxopt.run([case], judging=settings[0], execution=settings[1])
    assert {diff.tolerance.rtol for diff in result.diffs} == {1e-3}
