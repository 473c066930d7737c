"""The GitHub Action: its scripts run, and ``onnxopt run`` accepts their arguments."""

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
    return next(entry for entry in load(ACTION)["runs"]["steps"] if entry.get("name") == name)


def arguments_of_step(tmp_path, name, program, inputs):
    """Run the script of a step as GitHub does; return the arguments that it passes to a program."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = programs / program
    stand_in.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$CALLED"\nexit 7\n')
    stand_in.chmod(0o755)
    defaults = {key: entry.get("default", "") for key, entry in load(ACTION)["inputs"].items()}
    values = {f"inputs.{key}": value for key, value in (defaults | inputs).items()}
    values["runner.temp"] = str(tmp_path)
    values["steps.place.outputs.folder"] = str(tmp_path / "onnxopt" / "1")
    env = {
        key: re.sub(r"\$\{\{ (.+?) \}\}", lambda match: values[match[1]], text)
        for key, text in step(name)["env"].items()
    }
    done = subprocess.run(
        [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        env={
            **env,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLED": str(tmp_path / "arguments_of_step"),
            "GITHUB_OUTPUT": str(tmp_path / "outputs_of_step"),
            "GITHUB_ACTION_PATH": str(ACTION.parent),
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 7, done.stderr
    return (tmp_path / "arguments_of_step").read_text().split("\0")[:-1]


def options_of_run(tmp_path, **inputs):
    run, *arguments = arguments_of_step(tmp_path, "Run onnxopt", "onnxopt", inputs)
    assert run == "run"
    # A subcommand inherits the names of its help option from the context of the command group.
    # There is no such context here, so the names are passed as an argument.
    names = ["-h", "--help"]
    return command.make_context("onnxopt run", arguments, help_option_names=names).params


def test_command_accepts_the_default_inputs_of_the_action(tmp_path):
    options = options_of_run(tmp_path, backend="onnxruntime")
    assert options["backends"] == ("onnxruntime",)
    assert options["targets"] == ("spec", "conformance", "pairwise", "large")
    assert {report.partition("=")[0] for report in options["reports"]} == {
        "html",
        "junit",
        "json",
        "github",
    }
    assert str(options["artifacts"]).startswith(str(tmp_path))
    assert (tmp_path / "outputs_of_step").read_text() == "code=7\n"


def test_inputs_of_several_lines_become_separate_arguments(tmp_path):
    options = options_of_run(
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


def test_input_is_never_executed_as_a_script(tmp_path):
    hostile = '"; touch owned; $(touch owned) `touch owned` *'
    assert options_of_run(tmp_path, backend=hostile)["backends"] == (hostile,)
    assert not (tmp_path / "owned").exists()
    for entry in load(ACTION)["runs"]["steps"]:
        assert "${{" not in entry.get("run", "")


def test_action_installs_its_own_checkout(tmp_path):
    arguments = arguments_of_step(
        tmp_path, "Install onnxopt", "python", {"backend": "x", "requirements": "a==1\nb>2"}
    )
    assert arguments[:3] == ["-m", "pip", "install"]
    assert (REPOSITORY / "pyproject.toml").samefile(f"{arguments[3]}/pyproject.toml")
    assert arguments[4:] == ["a==1", "b>2"]


def test_report_is_uploaded_even_if_the_run_fails():
    upload = step("Upload the report")
    assert upload["if"] == "always()"
    assert upload["with"]["path"] == step("Run onnxopt")["env"]["REPORT"]
    # The report needs a name even if a later step fails, so the first step chooses the name.
    assert load(ACTION)["runs"]["steps"][0]["id"] == "place"


def places(tmp_path, *uses):
    """Return the outputs of the first step for each use of the action.

    Args:
        uses: for each use, the inputs ``report`` and ``folder``.
    """
    outputs = []
    for report, folder in uses:
        output = tmp_path / "output"
        output.unlink(missing_ok=True)
        subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c",
             load(ACTION)["runs"]["steps"][0]["run"]],
            env={"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(output), "REPORT": report,
                 "FOLDER": folder, "TEMPORARY": str(tmp_path)},
            check=True,
        )  # fmt: skip
        outputs.append(dict(line.split("=", 1) for line in output.read_text().splitlines()))
    return outputs


def test_each_use_in_a_job_has_a_separate_folder_and_artifact(tmp_path):
    uses = [(report, "") for report in ("report", "report", "other", "a\nname=owned")]
    outputs = places(tmp_path, *uses)
    assert [values["name"] for values in outputs] == ["report", "report-2", "other-3", "a-4"]
    folders = {values["folder"] for values in outputs}
    assert len(folders) == 4
    assert all(Path(folder).is_dir() for folder in folders)


def test_input_sets_the_folder_of_a_use(tmp_path):
    uses = [("a", "out/first"), ("a", "my out/second\nname=owned"), ("a", "")]
    first, second, third = places(tmp_path, *uses)
    assert (first["folder"], second["folder"]) == ("out/first", "my out/second")
    assert third["folder"].startswith(str(tmp_path))
    assert len({values["name"] for values in (first, second, third)}) == 3


def test_used_actions_have_pinned_versions_and_known_inputs():
    jobs = load(WORKFLOW)["jobs"].values()
    steps = [*load(ACTION)["runs"]["steps"], *(entry for job in jobs for entry in job["steps"])]
    used = {entry["uses"] for entry in steps if "uses" in entry}
    onnxopt_action = "./.github/actions/onnxopt"
    assert onnxopt_action in used
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", name) for name in used - {onnxopt_action})
    inputs = [entry["with"] for entry in steps if entry.get("uses") == onnxopt_action]
    assert all(set(names) <= set(load(ACTION)["inputs"]) for names in inputs)


def nox_sessions():
    """Return the names of the sessions in the noxfile."""
    tree = ast.parse((REPOSITORY / "noxfile.py").read_text(encoding="utf-8"))
    return {
        function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        and any(ast.unparse(line).startswith("nox.session") for line in function.decorator_list)
    }


def test_workflow_of_the_project_runs_every_check():
    sessions, commands = [], []
    for job in load(WORKFLOW)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {}).get("session", [])
        for command_line in (step["run"] for step in job["steps"] if "run" in step):
            commands.append(command_line)
            if match := re.match(r"python -m nox -s (.+?)(?: --|$)", command_line):
                names = match[1].replace("${{ matrix.session }}", " ".join(matrix))
                sessions += names.split()
    # No job runs "newest", because the matrix already contains the newest Python. No job runs
    # "coverage", because that session checks nothing.
    assert set(sessions) == nox_sessions() - {"newest", "coverage"}
    assert ".ci/run" in commands
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


def test_every_output_of_the_action_is_written_by_a_step():
    action = load(ACTION)
    scripts = {step["id"]: step["run"] for step in action["runs"]["steps"] if "id" in step}
    for output in action["outputs"].values():
        reference = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", output["value"])
        assert f"{reference[2]}=%s" in scripts[reference[1]]


def test_document_names_the_inputs_outputs_and_files_of_the_action():
    text = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
    section = text[text.index("On GitHub, one step") : text.index("On other CI systems")]
    action = load(ACTION)
    example = yaml.safe_load(re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1])[1]["with"]
    assert set(example) <= set(action["inputs"])
    assert {name for name, entry in action["inputs"].items() if entry.get("required")} == {
        "backend"
    }
    suites = re.search(r"`cases` defaults to the suites (.*?)\.\n", section)[1]
    assert re.findall(r"`(\w+)`", suites) == action["inputs"]["cases"]["default"].split()
    several = re.search(r"- (.*?) take one entry per line", section)[1]
    per_line = {
        name for name, entry in action["inputs"].items() if "one per line" in entry["description"]
    }
    assert set(re.findall(r"`(\w+)`", several)) == per_line
    outputs = re.search(r"The outputs (.*?) serve later steps", section, re.DOTALL)[1]
    files = re.search(r"\(with (.*?)\)", outputs)[1]
    assert set(re.findall(r"`([\w-]+)`", outputs.replace(files, ""))) == set(action["outputs"])
    written = set(re.findall(r"\$REPORT/([\w.]+)", step("Run onnxopt")["run"]))
    assert {name.rstrip("/") for name in re.findall(r"`([\w./]+)`", files)} == written
