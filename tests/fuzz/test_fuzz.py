"""Searches that find, shrink and keep failures of backends with an injected error."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
import yaml
from made_operators import operator_of
from onnx.defs import get_schema
from places import PLUGINS

from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.config.run_config import Execution, Isolation, Limits, LoweringMode
from onnxopt_cli.fuzz import drawn_examples, findings, random_graph, search
from onnxopt_cli.fuzz.choices import Source
from onnxopt_cli.fuzz.drawn_examples import GeneratedExample, draw_node
from onnxopt_cli.fuzz.driver import Task
from onnxopt_cli.fuzz.findings import VALUES, attempt
from onnxopt_cli.interpret.bound.bounded_value import Bounded
from onnxopt_cli.operators.registry import Registry, registry
from onnxopt_cli.run.executors import InProcess, refuse_workers
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.workers.interruption import Interruption

INJECTED = PLUGINS / "injected.py"
COUNTING_BACKEND = """
from pathlib import Path
from onnxopt_cli.backends.resolve import resolve_backend

class Counting:
    def run(self, model, inputs):
        with Path("count").open("a") as file:
            file.write(".")
        return resolve_backend("numpy").prepare(model).run(inputs)
"""

# The backend drops all attributes. This is its only mistake, because the corrected reference uses
# the right default of each version.
WITHOUT_ATTRIBUTES = """
from onnxopt_cli.oracle.evaluator import native_outputs

class WithoutAttributes:
    def run(self, model, inputs):
        del model.graph.node[0].attribute[:]
        return native_outputs(model, inputs)
"""


# For some examples, 'X_new clipped to [-1, 1]' has the same effect as this mistake.
LIMITED_RATE = """
from onnxopt_cli.backends.resolve import resolve_backend

class LimitedRate:
    def run(self, model, inputs):
        rate = inputs["R"].clip(max=1)
        return resolve_backend("numpy").prepare(model).run({**inputs, "R": rate})
"""


def injected(name):
    return f"python:{INJECTED}:{name}"


def kept_cases(folder):
    """Return the case of each kept file, by the stem of the file name."""
    files = sorted(Path(folder).glob("*.yaml"))
    return {path.stem: yaml.safe_load(path.read_text())["cases"][0] for path in files}


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


@pytest.fixture
def fuzz(onnxopt, workplace):
    def call(backend, *options, explain=False):
        # By default, skip the search for known mistakes, which would take most of the time.
        if not explain:
            options = (*options, "--no-explain")
        return onnxopt("fuzz", "-b", backend, "--operator", "Momentum", *options)

    return call


@pytest.mark.slow
def test_shards_partition_the_examples(fuzz):
    tried = []
    for part in ("1/2", "2/2"):
        answer = fuzz(injected("WrongBeyondFive"), "--isolation", "none", "--examples", "280",
                      "--shard", part, "-o", part[0])  # fmt: skip
        tried += map(int, re.findall(r"in (\d+) examples", answer.out))
        assert answer.code == 1
        assert kept_cases(part[0])["momentum_wrong_numbers"]["inputs"]["T"] == 6
    # The first shard tries more examples, because it also tries the invalid nodes.
    assert sum(tried) == 280
    assert tried[0] > tried[1] > 0
    assert fuzz("numpy", "--shard", "3/2").code == 2


def test_failure_above_a_threshold_shrinks_to_the_threshold(fuzz, onnxopt):
    backend = injected("WrongBeyondFive")
    answer = fuzz(backend, "--isolation", "none", "--examples", "40")
    assert answer.code == 1, answer.text
    assert "fail Momentum  X_new: 1 of 1 element is off" in answer.out
    assert "1 distinct failure in 40 examples, seed 0" in answer.out
    (case,) = kept_cases("fuzz").values()
    assert case["inputs"] == {"R": 1.0, "T": 6, "X": 0.0, "G": 0.0, "V": 0.0}
    assert case["about"].startswith("Found by fuzzing: X_new: 1 of 1 element is off: ")
    assert case["source"] == f"onnxopt fuzz --operator Momentum -b {backend} --seed 0"
    again = onnxopt("run", "fuzz", "-b", backend, "--isolation", "none", "--no-explain")
    assert again.code == 1
    assert "X_new  float32[]  1 of 1 off" in again.out


def test_proposed_run_of_a_folder_with_the_name_of_a_suite_names_the_folder(fuzz):
    options = ("--isolation", "none", "--examples", "20", "-o", "spec")
    answer = fuzz(injected("WrongType"), *options)
    assert "run them again: onnxopt run ./spec -b" in answer.out


def test_explanations_can_be_disabled(fuzz):
    run = (injected("WrongType"), "--isolation", "none", "--examples", "20")
    for option in (["--no-explain"], ["--explain-time", "0"]):
        answer = fuzz(*run, *option, explain=True)
        assert "X_new is float64[], expected float32[]; V_new is float64[]" in answer.out
        assert "consistent" not in answer.out
        assert "onnxopt run examines the kept cases" not in answer.out


@pytest.mark.parametrize("options", [(), ("--graphs",)])
def test_missing_backend_is_a_usage_error(onnxopt, workplace, options):
    answer = onnxopt("fuzz", *options, "--examples", "3")
    assert answer.code == 2
    assert "no backend to test" in answer.err


def test_operators_can_be_excluded(onnxopt, workplace):
    run = ("fuzz", "-b", injected("WrongType"), "--isolation", "none", "--examples", "40")
    names = [op.name for op in registry().operators if op.name not in ("Adam", "Momentum")]
    excluded = [word for name in names for word in ("--exclude-operator", name)]
    answer = onnxopt(*run, *excluded, "--exclude-operator", "adam", "--no-explain")
    assert "fail Momentum" in answer.out
    assert "Ad" not in answer.out
    (case,) = kept_cases("fuzz").values()
    assert case["source"].count("--exclude-operator ") == len(names) + 1
    answer = onnxopt(*run, *excluded, "--operator", "Adam", "--exclude-operator", "Adam")
    assert answer.code == 5
    assert "every operator is excluded" in answer.err
    answer = onnxopt(*run, "--exclude-operator", "Lion")
    assert (answer.code, "no operator 'Lion'" in answer.err) == (2, True)


def test_known_mistake_is_named_and_reported_once(fuzz, onnxopt):
    backend = injected("WrongType")
    answer = fuzz(backend, "--isolation", "none", "--examples", "20", explain=True)
    assert answer.code == 1
    assert "X_new is float64[], expected float32[]; V_new is float64[], " in answer.out
    assert "consistent with 'results returned in double'" in answer.out
    assert "onnxopt run examines the kept cases" in answer.out
    assert list(kept_cases("fuzz")) == ["momentum_float64_for_float32"]
    run = ("run", "fuzz", "--isolation", "none", "--no-explain")
    assert onnxopt(*run, "-b", backend).code == 1
    assert onnxopt(*run).code == 0


@pytest.mark.slow
@pytest.mark.isolated
def test_crash_is_shrunk_to_its_cause(fuzz, onnxopt):
    backend = injected("DiesOfEmptiness")
    answer = fuzz(backend, "--examples", "60")
    assert answer.code == 1
    assert "crash Momentum  the worker ended with exit code 11" in answer.out
    (case,) = kept_cases("fuzz").values()
    assert case["inputs"] == {"R": 1.0, "T": 0, "X": [], "G": [], "V": []}
    again = onnxopt("run", "fuzz", "-b", backend)
    assert again.code == 1
    assert "crash" in again.out


@pytest.mark.slow
@pytest.mark.isolated
def test_hang_is_shrunk_with_a_timeout_for_each_attempt(fuzz, onnxopt):
    backend = injected("HangsAtThree")
    answer = fuzz(backend, "--examples", "60", "--timeout", "0.5")
    assert answer.code == 1
    assert "timeout Momentum" in answer.out
    (case,) = kept_cases("fuzz").values()
    assert case["inputs"] == {"R": 1.0, "T": 3, "X": 0.0, "G": 0.0, "V": 0.0}
    assert onnxopt("run", "fuzz", "-b", backend, "--timeout", "0.5", "--no-explain").code == 1


@pytest.mark.slow
@pytest.mark.isolated
def test_crash_at_nan_is_shrunk_to_nan(fuzz):
    answer = fuzz(injected("DiesAtNaN"), "--examples", "60")
    assert answer.code == 1, answer.text
    (case,) = kept_cases("fuzz").values()
    assert sorted(map(str, case["inputs"].values())) == ["0", "0.0", "0.0", "1.0", "nan"]


@pytest.mark.slow
@pytest.mark.isolated
def test_crash_at_one_element_is_shrunk_to_that_element(fuzz, onnxopt):
    backend = injected("DiesAtLargeElements")
    answer = fuzz(backend, "--examples", "30")
    assert "crash Momentum  the worker was killed by SIGABRT" in answer.out
    (case,) = kept_cases("fuzz").values()
    assert case["inputs"].pop("G") > 100
    assert case["inputs"] == {"R": 1.0, "T": 0, "X": 0.0, "V": 0.0}
    assert onnxopt("run", "fuzz", "-b", backend).code == 1


@pytest.mark.slow
def test_wrong_type_and_wrong_shape_are_two_failures(fuzz):
    answer = fuzz(injected("WrongTypeAndShape"), "--isolation", "none", "--examples", "150")
    assert "2 distinct failures" in answer.out
    cases = kept_cases("fuzz")
    assert list(cases) == ["momentum_another_shape", "momentum_float64_for_float32"]
    # The summary lists both failures, because their causes differ.
    listed = answer.out.partition("2 distinct failures")[2]
    assert sorted(re.findall(r"momentum_\w+", listed)) == list(cases)
    assert re.search(r"Momentum, .+: [12] \(momentum_", listed), listed
    assert cases["momentum_another_shape"]["inputs"]["R"] == [1.0]
    typed = cases["momentum_float64_for_float32"]["inputs"]["R"]
    assert typed == {"dtype": "float64", "data": 1.0}


def test_accepted_invalid_node_is_kept_as_a_case_to_reject(fuzz, onnxopt):
    # Seven examples are just sufficient to try every invalid node.
    answer = fuzz(injected("TakesAnyMode"), "--isolation", "none", "--examples", "7")
    message = "accepted a model that must be rejected: mode has an unknown value"
    assert f"fail Momentum  {message}" in answer.out
    (case,) = kept_cases("fuzz").values()
    assert case["rejects"] is True
    assert case["attributes"]["mode"] == "bogus"
    assert onnxopt("run", "fuzz").code == 0


@pytest.mark.isolated
def test_crash_at_an_invalid_node_is_reported(fuzz):
    answer = fuzz(injected("DiesAtUnknownMode"), "--examples", "7")
    assert "crash Momentum  the worker was killed by SIGABRT: mode has an unknown" in answer.out
    (case,) = kept_cases("fuzz").values()
    assert case["rejects"] is True
    assert case["attributes"]["mode"] == "bogus"


@pytest.mark.slow
@pytest.mark.isolated
def test_hanging_backend_is_not_tried_with_every_invalid_node(fuzz):
    answer = fuzz(injected("NeverReturns"), "--examples", "7", "--timeout", "0.5")
    (case,) = kept_cases("fuzz").values()
    assert "rejects" not in case, answer.out


@pytest.mark.slow
def test_model_of_several_nodes_is_kept_beside_its_case(onnxopt, workplace):
    backend = injected("WrongInCompany")
    options = ("--isolation", "none", "--no-explain")
    answer = onnxopt("fuzz", "-b", backend, *options, "--examples", "200")
    assert "fail several nodes" in answer.out
    ((stem, case),) = kept_cases("fuzz").items()
    assert case["model"] == f"{stem}.onnx"
    single = onnxopt(
        "fuzz", "-b", backend, *options, "--examples", "200", "--single-nodes", "-o", "a"
    )
    assert single.code == 0, single.out
    again = onnxopt("run", "fuzz", "-b", backend, *options)
    assert again.code == 1
    assert onnxopt("run", "fuzz", *options).code == 0
    assert onnxopt("run", "fuzz", "-b", "onnxruntime", *options).code == 0


def test_seed_reproduces_the_kept_files(fuzz):
    backend = injected("WrongBeyondFive")
    options = ("--isolation", "none", "--examples", "30", "--seed", "3")
    answers = [fuzz(backend, *options, "-o", folder) for folder in ("one", "two", "three")]
    # The first run may differ: it loads modules whose constants hypothesis tries in later runs.
    assert contents("two") == contents("three")
    assert answers[1].out.splitlines()[0] == answers[2].out.splitlines()[0]


def test_earlier_failures_are_replayed_and_files_are_not_overwritten(fuzz):
    backend = injected("WrongType")
    fuzz(backend, "--isolation", "none", "--examples", "20")
    before = contents("fuzz")
    answer = fuzz(backend, "--isolation", "none", "--examples", "1", "--seed", "9")
    assert "(seen before)" in answer.out
    assert contents("fuzz") == before
    (path,) = Path("fuzz").glob("*.yaml")
    path.write_text(path.read_text() + "# mine\n")
    fuzz(backend, "--isolation", "none", "--examples", "1")
    assert path.read_text().endswith("# mine\n")
    assert len(contents("fuzz")) == 2


def test_file_created_during_the_search_is_not_replaced(fuzz):
    backend = injected("WrongType")
    fuzz(backend, "--isolation", "none", "--examples", "20")
    (path,) = Path("fuzz").glob("*.yaml")
    path.unlink()
    # Path.exists() is false for a dangling link, so the search notices the link only when it
    # creates the file.
    path.symlink_to("nowhere.yaml")
    answer = fuzz(backend, "--isolation", "none", "--examples", "20")
    assert answer.code == 1
    assert path.is_symlink()
    assert path.with_stem(f"{path.stem}_2").is_file()


def test_correct_backend_yields_no_case(fuzz):
    answer = fuzz("numpy", "--examples", "40")
    assert answer.code == 0
    assert "0 distinct failures in 40 examples" in answer.out
    assert not kept_cases("fuzz")


def test_outputs_equal_to_the_expected_outputs_need_no_error_bound():
    operands = set()

    def formula(T, X, Y):
        operands.add(type(X))
        return (X + T * Y,)

    executor = InProcess(
        parse_specification("numpy"), LoweringMode.AUTO, Limits(), Interruption(), refuse_workers
    )
    # Pretend that the workers for models of several nodes have started.
    executor.ahead = 4
    operator = operator_of(formula, 1)
    with Registry([operator]).in_use():
        assert not attempt(draw_node(Source(), operator), executor).failed
    assert operands
    assert Bounded not in operands


def test_failure_while_the_worker_ends_is_counted(fuzz):
    hostile = PLUGINS / "hostile.py"
    answer = fuzz(f"python:{hostile}:DiesAtTeardown", "--examples", "5", "--isolation", "process")
    assert answer.code == 1
    assert "crash worker/teardown" in answer.out
    assert "0 distinct failures in 5 examples, 1 failure outside of the examples" in answer.out


def test_time_limit_ends_the_search(fuzz):
    answer = fuzz("numpy", "--time", "0.5")
    assert answer.code == 0
    assert "0 distinct failures" in answer.out


def test_reported_number_of_examples_is_the_number_of_runs(fuzz, workplace):
    (workplace / "counts.py").write_text(COUNTING_BACKEND)
    answer = fuzz("python:counts.py:Counting", "--time", "1", "--isolation", "none")
    (count,) = re.findall(r"in (\d+) examples", answer.out)
    assert int(count) == len((workplace / "count").read_text()), answer.text


@pytest.mark.isolated
def test_hang_is_ended_soon_after_the_time_limit(fuzz):
    began = monotonic()
    answer = fuzz(injected("HangsAtThree"), "--time", "1")
    assert answer.code == 1
    assert "not respond within 1 s" in answer.out
    assert monotonic() - began < 9


@pytest.mark.slow
def test_ctrl_c_ends_the_search_and_keeps_findings(workplace):
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", "fuzz", "-b", injected("WrongType"),
         "--operator", "Momentum", "--time", "600"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert any("kept as" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert re.search("interrupted; 1 distinct failure in [1-9]", out), out
    assert list(kept_cases("fuzz")) == ["momentum_float64_for_float32"]


def test_missing_hypothesis_is_an_error_with_a_hint(fuzz, monkeypatch):
    monkeypatch.setattr(search, "find_spec", lambda _: None)
    answer = fuzz("numpy")
    assert answer.code == 2
    assert 'pip install "onnxopt[fuzz]"' in answer.err


def test_operator_without_a_generator_is_rejected_with_the_reason(onnxopt):
    answer = onnxopt("fuzz", "-b", "numpy", "--operator", "Bernoulli")
    assert answer.code == 2
    reason = "operators with random results, such as Bernoulli"
    assert f"no examples can be generated for {reason}" in answer.err


def test_unknown_operator_is_wrong_usage(onnxopt, workplace):
    answer = onnxopt("fuzz", "-b", "numpy", "--operator", "Adma")
    assert answer.code == 2
    assert "Adma" in answer.err


def test_backend_that_does_not_start_ends_the_search(onnxopt, workplace):
    assert onnxopt("fuzz", "-b", "onnxruntime,provider=Nowhere").code == 4


def test_explanation_of_a_finding_keeps_to_the_time_limit(fuzz, monkeypatch):
    limits = []

    def explain(*_, seconds, query_seconds, **__):
        limits.append(seconds + query_seconds)
        return []

    monkeypatch.setattr(findings, "explain", explain)
    options = ("--isolation", "none", "--examples", "20", "--explain-time", "3")
    fuzz(injected("WrongType"), *options, explain=True)
    assert limits == [3]


@pytest.mark.slow
def test_further_inputs_refute_a_mistake_that_agrees_with_all_examples(onnxopt, workplace):
    (workplace / "limited.py").write_text(LIMITED_RATE)
    backend = ("-b", "python:limited.py:LimitedRate", "--isolation", "none")
    answer = onnxopt("fuzz", *backend, "--operator", "Adagrad", "--examples", "300")
    assert "X_new clipped to" not in answer.out
    assert "consistent with the change 'R limited to at most 1': 2 of 2" in answer.out


@pytest.mark.slow
def test_mistakes_of_onnx_reference_are_found_and_named(onnxopt, workplace):
    reference = ("-b", "onnx-reference", "--isolation", "none")
    answer = onnxopt("fuzz", *reference, "--operator", "Adam", "--examples", "60")
    text = " ".join(answer.out.split())
    shapes, doubles = (
        text.partition(f"kept as fuzz/{stem}")[0].rpartition("fail Adam")[2]
        for stem in ("adam_another_shape", "adam_float64_for_float32")
    )
    assert "as in onnx.reference" in shapes
    assert "as in onnx.reference" in doubles
    assert "'several tensors returned in float32', as in onnx.reference" in text
    # The explanations of Momentum's findings are tested in tests/test_documents.py, because
    # docs/mutation-analysis.md shows them.
    onnxopt("fuzz", *reference, "--operator", "Momentum", "--examples", "7", "--no-explain")
    cases = kept_cases("fuzz")
    assert {"adam_float64_for_float32", "adam_float32_for_float64"} <= set(cases)
    assert "bogus" in [case.get("attributes", {}).get("mode") for case in cases.values()]
    onnxopt("run", "fuzz", *reference, "-q", "--no-explain", "--report", "json=run.json")
    again = json.loads(Path("run.json").read_text())["results"]
    assert [result["outcome"] for result in again] == ["fail"] * len(cases)
    assert onnxopt("run", "fuzz", "--isolation", "none").code == 0


def softmax(shape, **attributes):
    values = [np.zeros(shape, np.float32)]
    return GeneratedExample(
        GeneratedNode(get_schema("Softmax", 13, ""), attributes, values, [True])
    )


def test_failures_at_different_axes_are_of_the_same_kind():
    assert softmax((2, 3), axis=0).traits == softmax((2, 3, 4), axis=1).traits
    assert softmax((2, 3)).traits < softmax((2, 3), axis=0).traits


def test_shrinking_removes_an_optional_attribute():
    assert [example.node.attributes for example in search.smaller(softmax((2, 3), axis=0))] == [{}]


@pytest.mark.slow
def test_operator_without_a_formula_has_one_finding_for_one_mistake(workplace, onnxopt):
    (workplace / "last.py").write_text(WITHOUT_ATTRIBUTES)
    options = ["--operator", "Softmax", "--examples", "60"]
    assert onnxopt("fuzz", "-b", "python:last.py:WithoutAttributes", *options).code == 1
    assert [list(case["attributes"]) for case in kept_cases("fuzz").values()] == [["axis"]]


def test_shown_number_of_examples_never_decreases(workplace):
    shown_counts = []
    execution = Execution(isolation=Isolation.NONE)
    task = Task(
        search.chosen_operators(["Momentum"]).operators,
        injected("WrongBeyondFive"),
        execution,
        seed=0,
        examples=60,
        seconds=None,
        memory=workplace / "examples",
        tried=shown_counts.append,
    )
    with search.open_search(task, Interruption()) as opened:
        assert [finding.kind.description for finding in opened.run()] == [VALUES]
    assert shown_counts == sorted(shown_counts)


@pytest.mark.slow
def test_failures_of_an_onnx_operator_are_found_and_kept(workplace, onnxopt):
    (workplace / "leaky.py").write_text(WITHOUT_ATTRIBUTES)
    backend = "python:leaky.py:WithoutAttributes"
    run = onnxopt("fuzz", "-b", backend, "--operator", "LeakyRelu", "--examples", "60")
    assert run.code == 1
    assert [list(case["attributes"]) for case in kept_cases("fuzz").values()] == [["alpha"]]
    assert onnxopt("run", "fuzz", "-b", backend).code == 1
    assert onnxopt("run", "fuzz", "-b", "onnx-reference").code == 0


@pytest.mark.parametrize(
    ("module", "words"),
    [(drawn_examples, ["--operator", "Relu"]), (random_graph, ["--graphs"])],
)
def test_lack_of_processes_is_not_blamed_on_the_operator(
    workplace, onnxopt, monkeypatch, module, words
):
    def lacking(_):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(module, "model_fault", lacking)
    answer = onnxopt("fuzz", "-b", "numpy", "--isolation", "none", "--examples", "2", *words)
    assert answer.code == 2
    assert "system error: Resource temporarily unavailable" in answer.text
