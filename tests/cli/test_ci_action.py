"""The GitHub Action: its script is run, and the real command takes the arguments it makes."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from places import REPOSITORY

from onnxopt_cli.cli.run_command import command

ACTION = REPOSITORY / ".github" / "actions" / "onnxopt" / "action.yml"
WORKFLOW = REPOSITORY / ".github" / "workflows" / "ci.yml"

BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="the scripts are bash")


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def step(name):
    return next(it for it in load(ACTION)["runs"]["steps"] if it.get("name") == name)


def called(tmp_path, name, program, inputs):
    """Run a step's script as GitHub does, with a stand-in program; the arguments it got."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = programs / program
    stand_in.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$CALLED"\nexit 7\n')
    stand_in.chmod(0o755)
    defaults = {key: it.get("default", "") for key, it in load(ACTION)["inputs"].items()}
    values = {f"inputs.{key}": it for key, it in (defaults | inputs).items()}
    values["runner.temp"] = str(tmp_path)
    values["steps.place.outputs.folder"] = str(tmp_path / "onnxopt" / "1")
    env = {
        key: re.sub(r"\$\{\{ (.+?) \}\}", lambda it: values[it[1]], text)
        for key, text in step(name)["env"].items()
    }
    done = subprocess.run(
        [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        env={
            **env,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLED": str(tmp_path / "called"),
            "GITHUB_ACTION_PATH": str(ACTION.parent),
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 7, done.stderr
    return (tmp_path / "called").read_text().split("\0")[:-1]


def parsed(tmp_path, **inputs):
    run, *arguments = called(tmp_path, "Run onnxopt", "onnxopt", inputs)
    assert run == "run"
    # As below the group: click keeps the names of the help option from the first use.
    names = ["-h", "--help"]
    return command.make_context("onnxopt run", arguments, help_option_names=names).params


def test_the_command_takes_what_the_action_gives_it_by_default(tmp_path):
    options = parsed(tmp_path, backend="onnxruntime")
    assert options["backends"] == ("onnxruntime",)
    assert options["targets"] == ("spec", "conformance", "pairwise", "large")
    assert {it.partition("=")[0] for it in options["reports"]} == {
        "html",
        "junit",
        "json",
        "github",
    }
    assert str(options["artifacts"]).startswith(str(tmp_path))


def test_every_input_reaches_the_command_line_by_line(tmp_path):
    options = parsed(
        tmp_path,
        backend="numpy\npython:my backend.py:Backend\n",
        cases="my cases/\n-odd/\n",
        expect="a.yaml\nb c.yaml",
        arguments="--lower\nnever",
    )
    assert options["backends"] == ("numpy", "python:my backend.py:Backend")
    assert options["targets"] == ("my cases/", "-odd/")
    assert tuple(map(str, options["expect"])) == ("a.yaml", "b c.yaml")
    assert options["lowering"] == "never"


def test_an_input_is_never_read_as_a_script(tmp_path):
    hostile = '"; touch owned; $(touch owned) `touch owned` *'
    assert parsed(tmp_path, backend=hostile)["backends"] == (hostile,)
    assert not (tmp_path / "owned").exists()
    for it in load(ACTION)["runs"]["steps"]:
        assert "${{" not in it.get("run", "")


def test_the_action_installs_what_stands_beside_it(tmp_path):
    arguments = called(
        tmp_path, "Install onnxopt", "python", {"backend": "x", "requirements": "a==1\nb>2"}
    )
    assert arguments[:3] == ["-m", "pip", "install"]
    root = re.fullmatch(r"(.+)\[html\]", arguments[3])[1]
    assert (REPOSITORY / "pyproject.toml").samefile(f"{root}/pyproject.toml")
    assert arguments[4:] == ["a==1", "b>2"]


def test_the_report_is_uploaded_even_if_the_run_fails():
    upload = step("Upload the report")
    assert upload["if"] == "always()"
    assert upload["with"]["path"] == step("Run onnxopt")["env"]["REPORT"]
    # A step that fails before it must not leave it without a name.
    assert load(ACTION)["runs"]["steps"][0]["id"] == "place"


def test_each_use_in_a_job_has_a_folder_and_an_artifact_of_its_own(tmp_path):
    found = []
    for report in ("report", "report", "other", "a\nname=owned"):
        output = tmp_path / "output"
        output.unlink(missing_ok=True)
        subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c",
             load(ACTION)["runs"]["steps"][0]["run"]],
            env={"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(output), "REPORT": report,
                 "TEMPORARY": str(tmp_path)},
            check=True,
        )  # fmt: skip
        found.append(dict(line.split("=", 1) for line in output.read_text().splitlines()))
    assert [it["name"] for it in found] == ["report", "report-2", "other-3", "a-4"]
    assert len({it["folder"] for it in found}) == 4
    assert all(Path(it["folder"]).is_dir() for it in found)


def test_every_action_used_is_of_a_pinned_version_and_every_input_exists():
    jobs = load(WORKFLOW)["jobs"].values()
    steps = [*load(ACTION)["runs"]["steps"], *(it for job in jobs for it in job["steps"])]
    used = {it["uses"] for it in steps if "uses" in it}
    own = "./.github/actions/onnxopt"
    assert own in used
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", it) for it in used - {own})
    given = [it["with"] for it in steps if it.get("uses") == own]
    assert all(set(it) <= set(load(ACTION)["inputs"]) for it in given)


def nox_sessions():
    """Return the names of the functions in the noxfile that are sessions."""
    tree = ast.parse((REPOSITORY / "noxfile.py").read_text(encoding="utf-8"))
    return {
        function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        and any(ast.unparse(line).startswith("nox.session") for line in function.decorator_list)
    }


def test_the_project_s_own_workflow_runs_every_check():
    sessions, commands = [], []
    for job in load(WORKFLOW)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {}).get("session", [])
        for command_line in (step["run"] for step in job["steps"] if "run" in step):
            commands.append(command_line)
            if match := re.match(r"python -m nox -s (.+?)(?: --|$)", command_line):
                names = match[1].replace("${{ matrix.session }}", " ".join(matrix))
                sessions += names.split()
    # The workflow tests the newest Python in its matrix, and coverage is no check.
    assert set(sessions) == nox_sessions() - {"newest", "coverage"}
    assert ".ci/run" in commands
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


def test_every_output_of_the_action_is_written_by_a_step():
    action = load(ACTION)
    scripts = {step["id"]: step["run"] for step in action["runs"]["steps"] if "id" in step}
    for output in action["outputs"].values():
        reference = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", output["value"])
        assert f"{reference[2]}=%s" in scripts[reference[1]]
