"""The option ``unsupported=REGEX``, which recognises errors about unsupported features."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
from exec_commands import spec
from isolated import run_to_end, write_cases
from onnx import TensorProto, helper
from places import PLUGINS

from onnxopt_cli.backends.specification import parse_specification

REJECTED = """\
  - name: rejected
    rejects: true
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.1, T: 1, X: [1.0, 2.0], G: [0.5, -0.5, 1.0], V: [0.25, 0.0]}
"""


def plugin(name, pattern=None):
    option = "" if pattern is None else f",unsupported={pattern}"
    return f"python:{PLUGINS / 'own_errors.py'}:{name}{option}"


@pytest.fixture
def demo(workplace):
    """Return a folder with one case of Momentum."""
    write_cases(workplace, {"plain": 0.1})
    return workplace


@pytest.fixture
def run(onnxopt, demo):
    """Return a function that runs the case on a backend, by default in this process.

    The function returns the result of the case, with the exit code of the run as ``code``.
    """

    def call(backend, *options, isolation="none"):
        options = (*options, "--isolation", isolation, "--report", "json=r.json")
        answer = onnxopt("run", "demo.yaml", "-b", backend, *options)
        assert Path("r.json").exists(), answer.text
        results = json.loads(Path("r.json").read_text())["results"]
        by_name = {result["case"].rpartition("/")[2]: result for result in results}
        return by_name["plain"] | {"code": answer.code}

    return call


@pytest.mark.parametrize(
    ("backend", "isolation"),
    [
        (plugin("NoTraining", "no kernel"), "none"),
        (
            plugin(
                "NoTraining", r"^RuntimeFault: .*\n?.*kernel for [A-Z]\w{1,9}, it's not 'known'$"
            ),
            "none",
        ),
        pytest.param(
            plugin("NoTraining", "something else|no kernel"), "process", marks=pytest.mark.slow
        ),
        (plugin("Panics", "^Panic"), "none"),
        (plugin("States"), "process"),
        (plugin("StatesCompiled"), "none"),
        (plugin("States", "something else"), "none"),
    ],
)
def test_recognised_error_is_unsupported_and_model_is_lowered(run, backend, isolation):
    result = run(backend, "--lower", "never", isolation=isolation)
    assert result["outcome"] == "unsupported"
    assert "no kernel for Momentum" in result["message"]
    result = run(backend, isolation=isolation)
    assert (result["outcome"], result["lowered"], result["code"]) == ("pass", True, 0)


def test_recognised_error_names_no_operator_to_remember(run, demo):
    write_cases(demo, {"first": 0.5, "plain": 0.1})
    result = run(plugin("LacksHalfOfIt", "no kernel"), "-j", "1")
    assert (result["outcome"], result["lowered"]) == ("pass", False)
    results = json.loads(Path("r.json").read_text())["results"]
    assert [result["lowered"] for result in results] == [True, False]


@pytest.mark.parametrize("name", ["NoTraining", "HasAMethod"])
def test_unrecognised_error_stays_an_error(run, name):
    assert run(plugin(name, "no colonel"))["outcome"] == "error"
    assert run(plugin(name))["outcome"] == "error"


@pytest.mark.parametrize(
    ("backend", "outcome"),
    [
        (plugin("RunsOutOfMemory", "."), "oom"),
        pytest.param(plugin("SaysBadAlloc", "."), "oom", marks=pytest.mark.slow),
        (plugin("EndsTheInterpreter", "."), "error"),
        (plugin("Dies"), "crash"),
        pytest.param(plugin("Sleeps"), "timeout", marks=pytest.mark.slow),
        (spec("dies", "marker") + ",unsupported=.", "crash"),
        pytest.param(
            spec("hangs", "marker", timeout=2) + ",unsupported=.", "timeout", marks=pytest.mark.slow
        ),
    ],
)
def test_process_that_ends_hangs_or_exhausts_memory_is_never_unsupported(run, backend, outcome):
    assert run(backend, "--timeout", "3", isolation="process")["outcome"] == outcome


@pytest.mark.parametrize("isolation", [pytest.param("process", marks=pytest.mark.slow), "none"])
def test_slow_pattern_is_stopped_and_reported(run, isolation):
    result = run(plugin("Floods", "(a+)+b"), "--timeout", "30", isolation=isolation)
    assert result["outcome"] == "error"
    assert "REGEX was stopped after 1 s" in result["message"]


def test_only_the_beginning_of_a_long_message_is_searched(run):
    assert run(plugin("Floods", " no kernel"))["outcome"] == "error"
    assert run(plugin("Floods", "^RuntimeError: a{3000}"))["outcome"] == "unsupported"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_unsupported_model_does_not_count_as_rejected(demo):
    text = (demo / "demo.yaml").read_text()
    (demo / "demo.yaml").write_text(text + REJECTED)
    backend = plugin("States")
    answer = run_to_end(demo, backend, "--lower", "never")
    assert answer.outcomes == {"plain": "unsupported", "rejected": "unsupported"}


@pytest.mark.parametrize(
    ("stated", "answer", "outcome"),
    [
        ({"unsupported": "shapes"}, "error", "unsupported"),
        ({"unsupported": "colonel"}, "error", "error"),
    ],
)
def test_command_states_pattern_in_hello(run, stated, answer, outcome, tmp_path):
    script = tmp_path / "stating.py"
    text = (PLUGINS / "exec" / "identity.py").read_text()
    text = text.replace('"devices": ["CPU"],', f'"devices": ["CPU"], **{stated!r},')
    text = text.replace('"ai.onnx": [18, 20]', '"ai.onnx.preview.training": [1, 1]')
    text = text.replace('return {"unsupported": "only Identity is known"}',
                        f'return {{"{answer}": "shapes, I think"}}')  # fmt: skip
    text = text.replace("(given,) = request", "given, *_ = request")
    script.write_text(text)
    result = run(spec(command=script), "--lower", "never")
    assert (result["outcome"], result["message"]) == (outcome, "shapes, I think")
    option = run(spec(command=script) + ",unsupported=I think", "--lower", "never")
    assert option["outcome"] == "unsupported"


@pytest.mark.parametrize("name", ["onnxruntime", "onnx-reference"])
def test_built_in_backends_accept_patterns_of_unsupported_messages(run, name):
    if name == "onnxruntime":
        pytest.importorskip("onnxruntime")
    assert run(f"{name},unsupported=of no use")["outcome"] in {"pass", "fail"}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("(a", "at character 1"),
        ("abc[", "at character 4"),
        ("a{99999999999}", "not a regular expression"),
        ("", "matches an empty text"),
        ("x*", "matches an empty text"),
        ("a" * 1001, "longer than 1000"),
        ("a,device=CPU", r"write a comma of the REGEX as \x2c"),
        ("a,unsupported=b", r"write a comma of the REGEX as \x2c"),
    ],
)
@pytest.mark.parametrize("backend", [plugin("NoTraining"), spec(), "onnxruntime"])
def test_invalid_pattern_is_usage_error(onnxopt, demo, backend, written, words):
    answer = onnxopt("run", "demo.yaml", "-b", f"{backend},unsupported={written}")
    assert answer.code == 2
    assert words in " ".join(answer.text.split())


@pytest.mark.parametrize("name", ["StatesNonsense", "StatesATuple"])
def test_plugin_with_invalid_pattern_does_not_start(onnxopt, demo, name):
    answer = onnxopt("run", "demo.yaml", "-b", plugin(name))
    assert answer.code == 4
    assert "its attribute unsupported" in answer.text


@pytest.mark.parametrize("stated", ["(", 7, ["a"], ""])
def test_command_with_invalid_pattern_does_not_start(onnxopt, demo, stated):
    words = json.dumps({"unsupported": stated})
    answer = onnxopt("run", "demo.yaml", "-b", spec(f"hello={words}"), "--isolation", "none")
    assert answer.code == 4
    assert '"unsupported"' in answer.text


@pytest.mark.parametrize(
    ("text", "options", "remainder"),
    [
        ("python:a.py:B,device=X,unsupported=a, b: 'c\", d", "a, b: 'c\", d", "a.py"),
        ("exec:./a --b,timeout=5,unsupported=it's, 'x", "it's, 'x", ("./a", "--b")),
        ("exec:./a 'x,unsupported=y'", None, ("./a", "x,unsupported=y")),
        ("exec:./a 'x,unsupported=y',unsupported=z\"", 'z"', ("./a", "x,unsupported=y")),
        ("onnxruntime,unsupported=a,b", "a,b", "onnxruntime"),
    ],
)
def test_pattern_extends_to_the_end_with_quotes_and_commas(text, options, remainder):
    specification = parse_specification(text)
    assert specification.options.get("unsupported") == options
    assert remainder in {specification.source, specification.command, specification.name}


MISSING = {
    "a file": "python:./none.py:Backend",
    "a folder": "python:./:Backend",
    "a module": "python:no_such_module:Backend",
    "an attribute": plugin("NoTrainings"),
    "a class without an interface": plugin("RuntimeFault"),
    "a program": "exec:./none",
    "a file that is not a program": "exec:./demo.yaml",
}


@pytest.mark.parametrize("what", MISSING)
def test_missing_backend_exits_with_4(onnxopt, demo, what):
    assert onnxopt("run", "demo.yaml", "--isolation", "none", "-b", MISSING[what]).code == 4


@pytest.mark.parametrize(
    "command",
    [["run", "demo.yaml", "-b"], ["fuzz", "--examples", "5", "-b"], ["backends", "check"]],
)
@pytest.mark.parametrize("what", ["a file", "an attribute", "a program"])
def test_missing_backend_exits_with_4_in_workers_of_every_command(onnxopt, demo, what, command):
    assert onnxopt(*command, MISSING[what]).code == 4


@pytest.mark.parametrize(
    "backend", ["nmpy", "python:a.py", "python:..a:B", "exec:", plugin("NoTraining,speed=1")]
)
@pytest.mark.parametrize("command", [["run", "demo.yaml", "-b"], ["backends", "check"]])
def test_malformed_specification_is_usage_error(onnxopt, demo, backend, command):
    assert onnxopt(*command, backend).code == 2


def test_default_domain_is_imported_in_a_copy_of_the_model(run, onnxopt):
    assert run(plugin("NeedsDefaultDomain"))["outcome"] == "pass"
    assert onnxopt("generate", "spec", "--format", "onnx", "-o", "spec").code == 0
    model = next(Path("spec").rglob("model.onnx"))
    opsets = onnx.load(model).opset_import
    assert [opset.domain for opset in opsets] == ["ai.onnx.preview.training"]
    before = model.read_bytes()
    backend = plugin("NeedsDefaultDomain")
    assert onnxopt("run", model.parent, "-b", backend, "--isolation", "none").code == 0
    assert model.read_bytes() == before


def test_missing_import_of_used_default_domain_is_not_repaired():
    from onnxopt_cli.backends.host import _importing_default

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    imports = [helper.make_opsetid("com.acme", 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [value], [output]), opset_imports=imports
    )
    assert _importing_default(model) is model


@pytest.mark.parametrize("version", range(4, 15))
def test_imported_version_fits_the_ir_version(version):
    from onnxopt_cli.backends.host import _importing_default

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([], "g", [value], [value])
    imports = [helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=version)
    completed = _importing_default(model)
    onnx.checker.check_model(completed, full_check=True)
    added = completed.opset_import[-1]
    assert added.domain == ""
    assert helper.find_min_ir_version_for([added]) == version
    assert len(model.opset_import) == 1
