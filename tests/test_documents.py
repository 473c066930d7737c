"""What the documents say holds."""

from __future__ import annotations

import inspect
import os
import re
import shlex

import pytest
from forked import run_command
from places import REPOSITORY

import onnxopt_cli as onnxopt

README = (REPOSITORY / "README.md").read_text()
PYTHON_FUNCTIONS = (REPOSITORY / "docs" / "python.md").read_text().partition("## ")[0]
DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]


def test_the_readme_fits_on_a_few_screens():
    assert README.count("\n") <= 150


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def anchors_of(path):
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_headings_lead_to_one(path):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
        document = path.parent / target if target else path
        assert anchor in anchors_of(document), f"{target}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_of_ours_that_are_named_are_there(path):
    named = re.findall(r"`((?:onnxopt_cli|tests|scripts|[a-z]+)/[\w/]+\.py)`", path.read_text())
    places = (REPOSITORY, REPOSITORY / "onnxopt_cli")
    assert [it for it in named if not any((place / it).exists() for place in places)] == []


@pytest.mark.parametrize(
    ("name", "parameters"),
    re.findall(r"(?:^\||, )\s*`(\w+)\(([^`]*)\)`(?=.* \|$)", PYTHON_FUNCTIONS, re.MULTILINE),
    ids=lambda text: text.partition(",")[0],
)
def test_functions_of_the_api_take_the_parameters_that_are_named(name, parameters):
    accepted = inspect.signature(getattr(onnxopt, name)).parameters
    assert set(re.findall(r"[a-z]\w*", parameters)) <= set(accepted)


FENCED = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = {
    f"{path.name} {place}": (path, text)
    for path in DOCUMENTS
    for place, (language, text) in enumerate(FENCED.findall(path.read_text()))
    if language in {"sh", "bash", "console"}
}
INSTALLS = "installs a copy and runs all tests, which .ci/run does with this very line"
NOT_RUN = {
    "README.md 1": INSTALLS,
    "README.md 2": INSTALLS,
    "CONTRIBUTING.md 0": INSTALLS,
    "mutation-analysis.md 0": "minutes of auditing; .ci/run does it, tests/analysis one operator",
    "operators.md 1": "tests/operators/test_operator_files.py runs it and looks at what it says",
    "python.md 2": "tests/api/test_pytest_plugin.py does it",
    "security.md 0": "a container; Docker is not everywhere",
    "training.md 0": "minutes of training; tests/run/test_workload.py runs its parts",
}
#: Of what a document shows as an example of what fails.
FAILING = (
    "third_step.yaml",
    "python:ci/my_backend.py",
    "--tolerance onnx",
    "fuzz -b onnx-reference",
)
#: Added to what a document asks of whole suites: with a few of their cases it does all the same.
FEWER = {
    "ci.md 1": ("-k", "/momentum/m", "-k", "/momentum/T_", "-k", "pairwise/momentum/pair_1"),
    "mutation-analysis.md 1": ("--operator", "Softmax"),
}
#: A backend as the documents' readers have one, whose mistake is soon explained.
BACKEND = """
from onnxopt_cli.backends.reference import NumpyBackend

class Backend:
    def run(self, model, inputs):
        outputs = NumpyBackend().prepare(model).run(inputs)
        wrong = model.graph.node[0].op_type == "Momentum"
        return [output.astype("float64") for output in outputs] if wrong else outputs
"""


def commands_of(text):
    """Yield each command, and what the block shows below it."""
    if text.startswith("$ "):
        for part in text.removeprefix("$ ").split("\n$ "):
            command, _, shown = part.partition("\n")
            yield command, shown
    else:
        for line in text.replace("\\\n", " ").splitlines():
            yield line, ""


def pattern_of(shown):
    """Return what matches the words, whatever times they say, and anything for a line of dots."""
    # How long it took is said in a second part only where explaining took long.
    spent = r"[\d.]+ (?:s\b(?:, [\d.]+ s of it explaining)?|examples/s)"
    parts = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    words = [
        spent.join(re.escape(" ".join(it.split())) for it in re.split(spent, part))
        for part in parts
    ]
    return ".*".join(words).replace(f"{spent}", rf"\ *{spent}\ *")


def test_every_block_that_is_not_run_is_there():
    assert set(NOT_RUN) < set(BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in NOT_RUN])
def test_the_commands_of_a_document_do_what_it_shows(name, tmp_path):
    document, text = BLOCKS[name]
    # The files that the document shows, and those that it takes for granted.
    (tmp_path / "cases").symlink_to(REPOSITORY / "cases")
    for folder in ("ci", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "ci" / "my_backend.py").write_text(BACKEND)
    (tmp_path / "ci" / "expected.yaml").write_text("onnxopt-expect: 1\n")
    files = {"python": "my_backend.py", "yaml": "third_step.yaml"}
    for language, content in FENCED.findall(document.read_text()):
        if language in files:
            (tmp_path / files[language]).write_text(content)
    for command, shown in commands_of(text):
        words = shlex.split(command, comments=True)
        if words[:2] == ["pip", "install"]:
            continue
        assert words[0] == "onnxopt"
        done = run_command(
            *words[1:], *FEWER.get(name, ()), cwd=tmp_path, env={**os.environ, "COLUMNS": "80"}
        )
        fails = any(part in command for part in FAILING)
        assert done.returncode == fails, f"{command}\n{done.stdout}{done.stderr}"
        said = " ".join(done.stdout.split())
        assert re.fullmatch(pattern_of(shown), said) or not shown, done.stdout
        for path in re.findall(r"out/[\w./]+", command):
            assert (tmp_path / path).exists(), path
