"""What the documents say holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from places import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]


def test_the_readme_fits_on_a_few_screens():
    assert README.count("\n") <= 150


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_of_ours_that_are_named_are_there(path):
    named = re.findall(r"`((?:onnxopt_cli|tests|scripts|[a-z]+)/[\w/]+\.py)`", path.read_text())
    places = (REPOSITORY, REPOSITORY / "onnxopt_cli")
    assert [it for it in named if not any((place / it).exists() for place in places)] == []


def block(language):
    section = README[README.index("## A first failure") :]
    return re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)[1]


def test_the_first_failure_of_the_readme_is_what_one_sees(tmp_path):
    (tmp_path / "my_backend.py").write_text(block("python"))
    (tmp_path / "third_step.yaml").write_text(block("yaml"))
    command, _, shown = block("console").partition("\n")
    done = subprocess.run(
        [sys.executable, "-m", "onnxopt_cli", *command.split()[2:]], cwd=tmp_path, text=True,
        capture_output=True, check=False, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 1

    def timeless(text):
        lines = (line.rstrip() for line in text.strip().splitlines())
        # How long it took is said in a second part only where explaining took long.
        return [
            re.sub(r" in [\d.]+ s\b(, [\d.]+ s of it explaining)?", " in N s", line)
            for line in lines
        ]

    assert timeless(done.stdout) == timeless(shown)
