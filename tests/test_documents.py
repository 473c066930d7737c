"""Documents have valid links, existing files and functions, and the actual output of commands."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import shlex

import pytest
from commands import run_command
from places import REPOSITORY

import onnxopt_cli as onnxopt

README = (REPOSITORY / "README.md").read_text()
PYTHON_FUNCTIONS = (REPOSITORY / "docs" / "python.md").read_text().partition("## ")[0]
DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]


def test_readme_is_short():
    assert README.count("\n") <= 150


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_are_valid(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def anchors_of(path):
    """Return the anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_headings_are_valid(path):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
        document = path.parent / target if target else path
        assert anchor in anchors_of(document), f"{target}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_of_the_project_exist(path):
    names = re.findall(r"`((?:onnxopt_cli|tests|scripts|[a-z]+)/[\w/]+\.py)`", path.read_text())
    folders = (REPOSITORY, REPOSITORY / "onnxopt_cli")
    missing = [name for name in names if not any((folder / name).exists() for folder in folders)]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "parameters"),
    re.findall(r"(?:^\||, )\s*`(\w+)\(([^`]*)\)`(?=.* \|$)", PYTHON_FUNCTIONS, re.MULTILINE),
    ids=lambda text: text.partition(",")[0],
)
def test_functions_of_the_api_have_the_documented_parameters(name, parameters):
    accepted = inspect.signature(getattr(onnxopt, name)).parameters
    assert set(re.findall(r"[a-z]\w*", parameters)) <= set(accepted)


FENCED = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = {
    f"{path.name} {index}": (path, text)
    for path in DOCUMENTS
    for index, (language, text) in enumerate(FENCED.findall(path.read_text()))
    if language in {"sh", "bash", "console"}
}
INSTALLS = "installs a copy and runs all tests; .ci/run runs the same line"
NOT_RUN = {
    "README.md 1": INSTALLS,
    "README.md 2": INSTALLS,
    "CONTRIBUTING.md 0": INSTALLS,
    "mutation-analysis.md 0": "takes minutes; .ci/run runs it, and tests/analysis for one operator",
    "operators.md 1": "tests/operators/test_operator_files.py runs it and checks the output",
    "python.md 2": "tests/api/test_pytest_plugin.py runs it",
    "security.md 0": "needs Docker",
    "training.md 0": "takes minutes; tests/run/test_workload.py runs its parts",
}
#: A command that contains one of these texts exits with code 1; other commands, with code 0.
FAILING = (
    "third_step.yaml",
    "python:ci/my_backend.py",
    "--tolerance onnx",
    "fuzz -b onnx-reference",
)
#: For some blocks: options that select a few cases, to save time.
FEWER = {
    "ci.md 1": ("-k", "/momentum/m", "-k", "/momentum/T_", "-k", "pairwise/momentum/pair_1"),
    "mutation-analysis.md 1": ("--operator", "Softmax"),
}
#: The backend in the examples of the documents. Its error is explained quickly.
BACKEND = """
from onnxopt_cli.backends.reference import NumpyBackend

class Backend:
    def run(self, model, inputs):
        outputs = NumpyBackend().prepare(model).run(inputs)
        wrong = model.graph.node[0].op_type == "Momentum"
        return [output.astype("float64") for output in outputs] if wrong else outputs
"""


def commands_of(text):
    """Yield each command of a block, and the output that the block shows below it."""
    if text.startswith("$ "):
        for part in text.removeprefix("$ ").split("\n$ "):
            command, _, output = part.partition("\n")
            yield command, output
    else:
        for line in text.replace("\\\n", " ").splitlines():
            yield line, ""


def pattern_of(output):
    """Return a pattern that matches an output.

    Times may differ, and a line of dots matches any text.
    """
    # The time of explanations is optional, because it is not printed after a short search.
    time = r"[\d.]+ (?:s\b(?:, [\d.]+ s of it explaining)?|examples/s)"
    parts = re.split(r"^\.\.\.$", output, flags=re.MULTILINE)
    patterns = [
        time.join(re.escape(text.strip()) for text in re.split(time, " ".join(part.split())))
        for part in parts
    ]
    return ".*".join(patterns).replace(f"{time}", rf"\ *{time}\ *")


def test_excluded_blocks_exist():
    assert set(NOT_RUN) < set(BLOCKS)


def test_numbers_of_examined_mutants_are_the_sums_of_the_tables():
    text = (REPOSITORY / "docs/equivalent-mutants.md").read_text()
    introduction = text.partition("## ")[0]
    groups = re.findall(r"^\| (\d+): .* \| (.*) \|$", text, re.MULTILINE)
    kinds = {"not equivalent": 0, "not defined": 0, "not applied": 0, "not tested": 0, "": 0}
    for number, reason in groups:
        kinds[next(kind for kind in kinds if reason.startswith(kind))] += int(number)
    unchecked = kinds["not applied"] + kinds["not tested"]
    for number in (sum(kinds.values()), kinds[""], unchecked):
        assert re.search(rf"\b{number:,} mutants", introduction)
    for kind in ("not equivalent", "not defined"):
        assert re.search(rf'\b{kinds[kind]} mutants .*"{kind}"', introduction)
    script = runpy.run_path(str(REPOSITORY / "scripts/audit_operators.py"))
    assert script["not_equivalent"](text).total() == kinds["not equivalent"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in NOT_RUN])
def test_commands_print_the_documented_output(name, tmp_path):
    document, text = BLOCKS[name]
    # Create the files that the document shows or assumes.
    (tmp_path / "cases").symlink_to(REPOSITORY / "cases")
    for folder in ("ci", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "ci" / "my_backend.py").write_text(BACKEND)
    (tmp_path / "ci" / "expected.yaml").write_text("onnxopt-expect: 1\n")
    files = {"python": "my_backend.py", "yaml": "third_step.yaml"}
    for language, content in FENCED.findall(document.read_text()):
        if language in files:
            (tmp_path / files[language]).write_text(content)
    for command, output in commands_of(text):
        words = shlex.split(command, comments=True)
        if words[:2] == ["pip", "install"]:
            continue
        assert words[0] == "onnxopt"
        done = run_command(
            *words[1:], *FEWER.get(name, ()), cwd=tmp_path, env={**os.environ, "COLUMNS": "80"}
        )
        fails = any(part in command for part in FAILING)
        assert done.returncode == fails, f"{command}\n{done.stdout}{done.stderr}"
        printed = " ".join(done.stdout.split())
        assert re.fullmatch(pattern_of(output), printed) or not output, done.stdout
        for path in re.findall(r"out/[\w./]+", command):
            assert (tmp_path / path).exists(), path
