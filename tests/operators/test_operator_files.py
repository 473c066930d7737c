"""Operator files of users: the example in docs/operators.md, other operators, and errors."""

from __future__ import annotations

import json
import os
import re
import shlex

import pytest
from commands import run_command
from places import PLUGINS, REPOSITORY

from onnxopt_cli.errors import UsageError
from onnxopt_cli.operators.operator_file import read_operators
from onnxopt_cli.suites.catalogue import suite_names

pytestmark = pytest.mark.slow

DOCUMENT = (REPOSITORY / "docs" / "operators.md").read_text()
(LION,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
COMMANDS = [
    line.removeprefix("$ onnxopt ")
    for block in re.findall(r"```console\n(.*?)```", DOCUMENT, re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "lion.py").write_text(LION)
    return tmp_path


@pytest.fixture
def call(place, onnxopt, monkeypatch):
    """Return a function that runs a command in the folder with given environment variables."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")

    def run(command, **variables):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return onnxopt(*shlex.split(command))

    return run


@pytest.mark.isolated
def test_commands_of_the_document_work_on_its_operator(place, call):
    assert len(COMMANDS) == 8
    outputs = {}
    for command in COMMANDS:
        # A quarter of an audit takes less time, and still contains implementations of every kind.
        done = call(f"{command} --shard 1/4" if command.startswith("audit") else command)
        assert done.code == 0, f"{command}\n{done.out}{done.err}"
        outputs[command.partition(" --operators")[0]] = done.out
    assert "company/lion/defaults" in outputs["list company"]
    assert "sign(blend)" in outputs["show Lion"]
    assert " lowered" in outputs["run company -b onnxruntime --lower always"]
    rejected = re.findall(r"(\d+) of (\d+)", outputs["audit company"])
    assert [a for a, _ in rejected] == [b for _, b in rejected]
    assert len(rejected) == 3
    assert (place / "cases" / "company" / "lion.yaml").is_file()


WRONG = """\
import numpy as np
class Backend:
    def run(self, model, inputs):
        R, X, G, M = inputs.values()
        a = {item.name: np.float32(item.f) for item in model.graph.node[0].attribute}
        blend = a["beta1"] * M + (1 - a["beta1"]) * G
        return [X - R * (blend + a["decay"] * X), a["beta2"] * M + (1 - a["beta2"]) * G]
"""


@pytest.mark.isolated
def test_known_mistake_of_a_backend_is_named(place, call):
    (place / "wrong.py").write_text(WRONG)
    done = call("run company -k orders -b python:wrong.py:Backend -q --operators lion.py",
    )  # fmt: skip
    assert done.code == 1
    assert "step by the blend" in done.out


def test_formula_that_fails_on_some_inputs_is_named_with_its_line(place, call):
    fails = '    if beta1 == 0:\n        raise ValueError("no beta1")\n    blend = '
    (place / "lion.py").write_text(LION.replace("    blend = ", fails))
    done = call("list company --operators lion.py")
    assert done.code == 2
    assert re.search(r"error: .*lion.py:16:\s+Lion: ValueError: no beta1", done.err), done.err


def test_file_in_the_environment_variable_is_checked_like_an_option(place, call):
    (place / "lion.py").write_text(LION.replace("return X_new, M_new", "raise SystemExit(0)"))
    done = call("list company", ONNXOPT_OPERATORS=str(place / "lion.py"))
    assert done.code == 2
    assert "lion.py:18: Lion: SystemExit" in done.err


def test_files_in_the_environment_variable_are_loaded_for_one_command(place, call):
    done = call("list --operator Lion", ONNXOPT_OPERATORS=str(place / "lion.py"))
    assert "company/lion/" in done.out
    assert call("show Lion").code == 2


@pytest.mark.parametrize("name", ["rmsprop", "lamb"])
def test_operators_with_norms_and_clipped_roots_run_and_are_lowered(call, name):
    file = PLUGINS / "operators" / f"{name}.py"
    for options in ("", "-b onnxruntime --lower always"):
        done = call(f"run optimizers -q --shard 1/6 {options} --operators {shlex.quote(str(file))}")
        assert done.code == 0, done.out + done.err
        assert "Warning" not in done.err


def test_names_of_existing_suites_are_reserved(tmp_path):
    for name in suite_names():
        # A file is executed only once.
        path = tmp_path / f"{name}.py"
        path.write_text(LION.replace('name="Lion"', f'name="Lion", suite="{name}"'))
        with pytest.raises(UsageError, match=f"the suite name {name} is reserved"):
            read_operators(path, [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    formula=lion,\n", "", r"lion.py:21 does not run: TypeError.*'formula'"),
        ("import numpy as np", "import numpy as", r"lion.py:1 does not run: SyntaxError"),
        ("import numpy as np", "import nowhere", r"lion.py:1 does not run: .*nowhere"),
        ("def lion(R, X, G,", "def lion(R, G, X,", r"lion.py:13: Lion: .* takes R, G, X, M"),
        ("beta2, decay):", "beta2):", r"lion.py:13: Lion: the formula takes beta1, beta2 after"),
        ('"np.sign(blend)": "blend"', '"np.sign(mix)": "mix"', r"'step by the blend': lion has no"),
        ("np.sign(blend) +", "np.sinh(blend) +", r"(?s)lion.py:16: Lion: .*numpy\.sinh"),
        ('{"X_new": "X"', '{"X_new": "Y"', r"the output X_new is like Y, which is no"),
        ("return X_new, M_new", "return X_new", r"returns a value, .* of 2: return X_new, M_new"),
        ("return X_new, M_new", "return X_new, M_new, R", r"returns 3 values, expected"),
        ('name="Lion"', 'name="adam"', r"an operator of this name already exists"),
        ("LION = Operator", "LION = dict", r"lion.py defines no operator"),
        ('Scalar("R", FLOATS)', '"R"', r"lion.py:13: Lion: AttributeError"),
        ('Scalar("R", FLOATS)', 'Scalar("R", ("float9",))', r"float9 is not an element type"),
        ('("X", "G", "M")', '("X", "X1", "M")', r"X1 is also the name of a tensor X"),
        ('("beta1", 0.9)', '("beta1", 0.9, limits=(0, 0.5))', r"default 0.9, which is outside"),
        ('("beta1", 0.9)', '("beta1", 1e60)', r"does not run: .*1e\+60 exceeds the range"),
        ('("decay", 0.0)', '("decay", "a", choices=("a", "b"))', r"decay: a string attribute"),
        ("np.sign(blend)", "(G if R > 0 else M)", r"lion.py:16: Lion: .*np\.where instead of if"),
        ("np.sign(blend)", "np.where((G > 0) and (M > 0), G, M)", r"lion.py:16: .*& instead of"),
        ("np.sign(blend)", "np.random.rand()", r"lion.py:13: Lion: .*returns other values"),
        ("return X_new, M_new", "raise SystemExit(0)", r"lion.py:18: Lion: SystemExit: 0"),
        ('"X_new": "X"', '"X": "X"', r"X: an output has the name of an input"),
        ('(Scalar("R", FLOATS),)', 'Scalar("R", FLOATS)', r"scalars is not a tuple"),
        ('blend)": "blend"', 'blend)": "blnd"', r"'step by the blend' does not run: .*'blnd'"),
        ('"np.sign(blend)": "blend"}', '}, defaults={"beta": 1}', r"unknown attribute beta$"),
        ('"np.sign(blend)": "blend"', "", r"lion.py:13: Lion: .*blend' changes nothing"),
        ('Scalar("R", FLOATS)', 'Scalar("R", ("float32",))', r"R: the types of a scalar"),
        ('Scalar("R", FLOATS)', 'Scalar("R", ("float16",))', r"R: the types of a scalar"),
        ('("beta1", 0.9)', '("beta1", 0.9, limits=(1, 0))', r"lion.py:30 .*ascending"),
        ('("beta1", 0.9)', '("beta1", 0.9, limits=(0, np.inf))', r"finite ascending float32"),
        ('name="Lion"', 'name="Lion", suite="../x"', r"the suite '../x' does not consist of words"),
    ],
)  # fmt: skip
def test_error_in_a_file_is_reported_with_its_line(place, call, old, new, message):
    assert old in LION
    text = LION.replace(old, new)
    if "sinh" in new:
        text = text.replace("np.sign(blend)", "np.sinh(blend)")
    (place / "lion.py").write_text(text)
    done = call("show Lion --operators lion.py")
    assert done.code == 2
    assert re.search(message, " ".join(done.err.split())), done.err


@pytest.mark.parametrize(("added", "code"), [("np.log(1 - X)", 0), ("np.log(X * 0 - 1)", 2)])
def test_formula_that_is_never_finite_is_reported(place, call, added, code):
    (place / "lion.py").write_text(LION.replace("blend = ", f"blend = 0 * {added} + "))
    done = call("fuzz -b numpy --operator Lion --examples 20 --operators lion.py")
    assert done.code == code, done.err
    assert code == 0 or "found no inputs of Lion with a finite result" in done.err


def test_formulas_may_have_limits_branches_and_loops(place, call):
    text = LION.replace('("decay", 0.0)', '("decay", 0.1, limits=(0.0, 1.0))')
    text = text.replace("np.sign(blend)", "np.sign(blend) * min(decay, 0.3)")
    loop = "    for _ in range(2):\n        M_new = M_new * 0.5 if beta2 > 0.5 else M_new\n"
    (place / "lion.py").write_text(text.replace("    return X_new", f"{loop}    return X_new"))
    for options in ("", "-b onnxruntime --lower always"):
        done = call(f"run company -q --shard 1/6 {options} --operators lion.py")
        assert done.code == 0, done.out + done.err
    done = call("audit company/lion --shard 1/12 --operators lion.py")
    assert "internal error" not in done.err
    assert re.search(r"reformulations +(\d+) of \1  accepted", done.out), done.out


def test_path_with_a_colon_is_rejected(place, call):
    (place / "a:b").mkdir()
    (place / "a:b" / "lion.py").write_text(LION)
    done = call("list company --operators a:b/lion.py")
    assert (done.code, "the path must not contain :" in done.err) == (2, True)


SIGNS = """\
import numpy as np
from onnxopt_cli.operators.operator import FLOATS, Attribute, KnownMistake, Operator, Scalar

def signs(R, S, X, G, *, low, high, share):
    return (np.where(X * high >= G * low, R - S, S - R * share),)

SIGNS = Operator(
    name="Signs", domain="my.company", version=1, formula=signs,
    scalars=(Scalar("R", FLOATS), Scalar("S", FLOATS)), tensors=("X", "G"),
    outputs={"X_new": "X"}, about="Tells signs.", source="https://example.org",
    attributes=(
        Attribute("low", 0.25, limits=(1e-12, 0.9999)),
        Attribute("high", limits=(-2, -1)),
        Attribute("share", 0.5, limits=(0, 1e30)),
    ),
    known_mistakes=(KnownMistake("exchanged", "R and S.", replace={"R - S": "S - R"}),),
)
"""
NO_LIMITS = """\
import numpy as np

class Backend:
    def run(self, model, inputs):
        (node,) = model.graph.node
        a = {item.name: item.f for item in node.attribute}
        # Only the kinds of attributes are looked at.
        if not {"high"} <= set(a) <= {"low", "high", "share"}:
            raise ValueError("attributes")
        if any(item.floats for item in node.attribute):
            raise ValueError("attributes")
        R, S, X, G = inputs.values()
        R, S = R.reshape(()), S.reshape(())
        low, high, share = a.get("low", 0.25), a["high"], a.get("share", 0.5)
        X_new = np.where(X * high >= G * low, R - S, S - R * share)
        return [np.broadcast_to(X_new, X.shape).astype(X.dtype)]
"""


def test_operator_with_two_rates_that_depends_on_signs_is_supported(place, call):
    (place / "signs.py").write_text(SIGNS)
    (place / "backend.py").write_text(NO_LIMITS)
    for command in ("run company -q", "fuzz -b numpy --operator Signs --examples 40"):
        done = call(f"{command} --operators signs.py")
        assert done.code == 0, done.out + done.err
        assert "Warning" not in done.err
    done = call("audit company --shard 1/4 --operators signs.py")
    assert re.search(r"known mistakes +(\d+) of \1 ", done.out), done.out
    # The backend does not check limits, so it fails exactly the cases that exceed limits.
    done = call(
        "run company -b python:backend.py:Backend --no-explain --operators signs.py"
        " --report json=out.json",
    )
    results = json.loads((place / "out.json").read_text())["results"]
    wrong = [result["case"].rpartition("/")[2] for result in results if result["outcome"] == "fail"]
    limits = ("low", "high", "nan")
    names = {
        f"refuses_{name_of_limit}_{name}"
        for name_of_limit in limits
        for name in ("low", "high", "share")
    }
    assert {name for name in wrong if name.startswith("refuses")} >= names, done.out


CLIPPED = """\
import numpy as np
from onnxopt_cli.operators.operator import FLOATS, Attribute, Operator, Scalar

def clipped(S, X, G, *, most):
    S_new = S + np.sum(G * G)
    return S_new, X - G * np.minimum(1.0, most / (np.sqrt(S_new) + 1e-6))

CLIPPED = Operator(
    name="Clipped", domain="my.company", version=1, formula=clipped,
    scalars=(Scalar("S", FLOATS),), tensors=("X", "G"), outputs={"S_new": "S", "X_new": "X"},
    attributes=(Attribute("most", 1.0),), about="Clips.", source="https://example.org",
)
"""


def test_output_may_be_a_carried_scalar(place, call):
    (place / "clipped.py").write_text(CLIPPED)
    for command in ("generate company -o mine", "run mine -b numpy -b onnxruntime -q"):
        done = call(f"{command} --operators clipped.py")
        assert done.code == 0, done.out + done.err


CAPITALS = """
from onnxopt_cli.operators.operator import Attribute, Operator

def scale(X, *, gain, GAIN):
    return (gain * X + GAIN,)

SCALE = Operator(
    name="Scale", domain="my.capitals", version=1, formula=scale,
    scalars=(), tensors=("X",), outputs={"X_new": "X"},
    attributes=(Attribute("gain", 0.5), Attribute("GAIN", 0.25)), about="", source="",
)
"""


def test_names_that_differ_only_in_case_have_separate_directories(place, call):
    (place / "capitals.py").write_text(CAPITALS)
    operators = "--operators capitals.py"
    done = call(f"generate capitals --format onnx -o mine {operators}")
    assert done.code == 0, done.out + done.err
    names = [path.name for path in (place / "mine/capitals").iterdir()]
    assert f"; {len(names)} cases" in done.out
    assert len({name.lower() for name in names}) == len(names)
    assert {"test_scale_gain_zero", "test_scale_GAIN_zero_2"} < set(names)
    assert f"{len(names)} pass" in call(f"run mine {operators}").out


def test_mean_of_an_empty_tensor_agrees_with_numpy(place, call):
    (place / "clipped.py").write_text(CLIPPED.replace("np.sum", "np.mean"))
    done = call("run company -q -b onnxruntime --lower always --operators clipped.py")
    assert done.code == 0, done.out + done.err


AVERAGE = """\
from onnxopt_cli.operators.operator import Attribute, Operator

def average(X, E, *, decay):
    return (decay * E + (1 - decay) * X,)

AVERAGE = Operator(
    name="Average", domain="my.company", version=1, formula=average, scalars=(),
    tensors=("X", "E"), outputs={"E_new": "E"}, attributes=(Attribute("decay", 0.9),),
    about="Averages.", source="https://example.org",
)
"""


def test_suite_contains_a_case_with_a_double_state_and_zeros(place, call):
    (place / "average.py").write_text(AVERAGE)
    done = call("audit company --operators average.py")
    assert done.code == 0, done.out + done.err


def test_proposed_commands_name_the_file_of_the_operator(place, call):
    (place / "backend.py").write_text(WRONG)
    options = "-b python:backend.py:Backend --operators lion.py"
    done = call(f"fuzz --operator Lion --examples 60 {options} --no-explain")
    assert "-b python:backend.py:Backend --operators lion.py" in done.out
    done = call(f"run company -k orders {options}")
    assert re.search(r"onnxopt show Lion --mistake .* --operators lion.py", done.out)


def test_warning_of_numpy_for_an_empty_mean_is_hidden(place, call):
    (place / "lion.py").write_text(LION.replace("np.sign(blend)", "(blend - np.mean(blend))"))
    done = call("run company -q --operators lion.py")
    assert (done.code, done.err) == (0, "")


def test_empty_maximum_and_division_by_zero_decay_are_correct(place, call):
    step = "(blend * (1 / beta1) - np.max(blend))"
    (place / "lion.py").write_text(LION.replace("np.sign(blend)", step))
    for options in (
        "run company -q -k empty -k beta2",
        "run company -q -k empty -k beta2 -b onnxruntime --lower always",
    ):
        done = call(f"{options} --operators lion.py")
        assert done.code == 0, done.out + done.err
    done = call("audit company/lion/empty company/lion/beta2_alone --operators lion.py")
    assert re.search(r"reformulations +(\d+) of \1  accepted", done.out), done.out


def test_operator_of_another_domain_may_have_the_name_of_an_operator_of_onnx(place, call):
    (place / "lion.py").write_text(LION.replace('name="Lion"', 'name="Shrink"'))
    backends = "-b numpy -b onnxruntime -b onnx-reference"
    done = call(f"run onnx-node -k shrink -q {backends} --operators lion.py")
    assert done.code == 0, done.out + done.err
    done = call("run company -q -b onnxruntime --lower always --operators lion.py")
    assert done.code == 0, done.out + done.err


EVERY_FEW_STEPS = """\
import numpy as np
from onnxopt_cli.operators.operator import Attribute, Operator, Scalar


def lookahead(K, X, S, *, alpha, k):
    due = K / k == np.floor(K / k)
    S_new = np.where(due, S + alpha * (X - S), S)
    return np.where(due, S_new, X), S_new


LOOKAHEAD = Operator(
    name="Lookahead",
    domain="company",
    version=1,
    formula=lookahead,
    scalars=(Scalar("K", ("int64",)),),
    tensors=("X", "S"),
    outputs={"X_new": "X", "S_new": "S"},
    attributes=(Attribute("alpha", 0.5), Attribute("k", 5.0)),
    about="Now and then.",
    source="https://arxiv.org/abs/1907.08610",
)
"""


def test_probe_uses_a_step_in_which_the_operator_computes(place, call):
    (place / "lookahead.py").write_text(EVERY_FEW_STEPS)
    done = call("run company -k refuses -q --operators lookahead.py")
    assert done.code == 0, done.out
    assert re.search(r"[1-9]\d* pass in", done.out)


def test_formula_without_a_docstring_is_shown_completely(place, call):
    docstring = re.search(r'    """.*"""\n', LION).group()
    (place / "lion.py").write_text(LION.replace(docstring, "    # Blended first.\n"))
    done = call("show Lion --operators lion.py")
    assert re.search(r"# Blended first\.\s+blend = beta1", done.out), done.out
    done = call("show Lion --mistake 'step by the blend' --operators lion.py")
    assert "blend = beta1" in done.out


def test_missing_file_is_named(call):
    done = call("run --operators nowhere.py")
    assert done.code == 2
    assert "no operator file nowhere.py" in done.err


def test_log_of_another_formula_is_not_resumed(place, call):
    command = "run company -k double --operators lion.py"
    assert call(f"{command} --log run.jsonl").code == 0
    assert call(f"{command} --resume run.jsonl").code == 0
    (place / "lion.py").write_text(LION.replace("(1 - beta2) * G", "G * (1 - beta2)"))
    done = call(f"{command} --resume run.jsonl")
    assert done.code == 2
    assert "lion.py" in done.err


def test_entry_point_of_a_package_adds_operators(place):
    folder = place / "site"
    (folder / "lions-1.dist-info").mkdir(parents=True)
    (folder / "lions-1.dist-info" / "METADATA").write_text("Name: lions\nVersion: 1\n")
    (folder / "lions-1.dist-info" / "entry_points.txt").write_text(
        "[onnxopt.operators]\nlion = lions\n"
    )
    (folder / "lions.py").write_text(LION)
    path = os.pathsep.join([str(folder), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": path}
    listed = run_command("list", "--operator", "Lion", cwd=place, env=environment)
    assert "company/lion/" in listed.stdout
    (folder / "lions.py").write_text("import nowhere")
    failed = run_command("list", cwd=place, env=environment)
    assert failed.returncode == 2
    assert "lion = lions" in failed.stderr


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("np.sum(blend, axis=1)", "a formula cannot use numpy.sum with axis; it can use"),
        ("np.sort(blend)", "a formula cannot use numpy.sort; it can use"),
        ("blend.sum()", "a formula calls functions: np.sum(...)"),
    ],
)
def test_function_that_a_formula_cannot_use_is_named(place, call, expression, message):
    text = LION.replace("M_new = beta2", f"M_new = 0 * {expression} + beta2", 1)
    assert text != LION
    (place / "lion.py").write_text(text)
    done = call("list company --operators lion.py")
    assert done.code == 2
    text = " ".join(done.err.split())
    assert message in text
    assert "matmul" not in text
