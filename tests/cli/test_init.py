"""The command ``onnxopt init`` writes the files of a project."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
import yaml
from commands import unbroken
from demo import write_demo

from onnxopt_cli import load_configuration
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.cli import group

SETTINGS, EXPECTED = Path("onnxopt.toml"), Path("onnxopt-expected.yaml")
WORKFLOW = Path(".github/workflows/onnxopt.yml")
FILES = (SETTINGS, EXPECTED, WORKFLOW)


def test_files_written_to_an_empty_folder_suffice_for_a_run(workplace, onnxopt):
    answer = onnxopt("init")
    assert (answer.code, answer.err) == (0, "")
    *written, following, _ = unbroken(answer.out).splitlines()
    assert written == [f"wrote {path}" for path in FILES]
    assert following == "next: onnxopt run --profile ci"
    assert "onnxopt-expected.yaml" in onnxopt("config", "--profile", "ci").out
    assert onnxopt("run", "spec", "--profile", "ci", "--isolation", "none").code == 0


def test_known_failures_of_the_backend_can_be_recorded(workplace, onnxopt):
    write_demo(workplace)
    update = unbroken(onnxopt("init", "-b", "python:vendor.py:OffAtC").out).splitlines()[-1]
    run = ("run", "demo.yaml", "--profile", "ci", "--isolation", "none", "--no-explain")
    assert onnxopt(*run).code == 1
    _, *options = shlex.split(update.partition(": onnxopt ")[2])
    assert onnxopt(*run, *options).code == 1
    assert yaml.safe_load(EXPECTED.read_text())["expect"][0]["case"] == "demo/demo/c"
    assert onnxopt(*run).code == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python:ci/my_backend.py:Backend", "my_backend"),
        ("python:my.package.backend:make.it,device=CUDA:1,env.DEBUG=1", "my_package_backend"),
        ('python:b.py:Backend,python=venv/bin/python,unsupported=no "x", or y', "b"),
        ("exec:./build/adapter --fast 'a b',timeout=10", "adapter"),
        ("exec:run.sh --mode=a,b", "run_sh"),
        ("onnxruntime,intra_op_num_threads=2", "onnxruntime"),
        ("onnx-reference", "onnx-reference"),
    ],
)
def test_settings_name_the_same_backend(workplace, onnxopt, text, name):
    answer = onnxopt("init", "-b", text)
    assert answer.code == 0, answer.err
    configured = parse_specification(load_configuration().backend(name))
    expected = parse_specification(text)
    # The configuration makes paths relative to its folder, so their spelling may differ.
    assert configured.options == expected.options
    assert configured.attribute == expected.attribute
    assert configured.name == expected.name
    assert Path(configured.source) == Path(expected.source)
    assert [*map(Path, configured.command)] == [*map(Path, expected.command)]
    assert name in onnxopt("config").out


def test_name_in_the_specification_is_the_name_in_the_settings(workplace, onnxopt):
    assert onnxopt("init", "-b", "acme=python:b.py:Backend,device=CPU").code == 0
    configured = parse_specification(load_configuration().backend("acme"))
    assert configured == parse_specification("acme=python:./b.py:Backend,device=CPU")


@pytest.mark.parametrize("text", ["python:3d.py:Backend", "exec:./_-", f"python:{'x' * 70}:y"])
def test_name_that_the_settings_would_not_accept_is_replaced(workplace, onnxopt, text):
    assert onnxopt("init", "-b", text).code == 0
    assert parse_specification(load_configuration().backend("backend")).label == "backend"


@pytest.mark.parametrize("backend", ["python:mine.py:Backend", "adapter:./mine.py"])
def test_missing_file_of_the_backend_is_mentioned(workplace, onnxopt, backend):
    answer = onnxopt("init", "-b", backend)
    assert answer.code == 0
    assert "mine.py does not exist yet" in answer.err
    (workplace / "mine.py").write_text("")
    assert onnxopt("init", "-b", backend, "--force").err == ""


def test_workflow_runs_the_profile_with_known_options(workplace, onnxopt):
    requirements = ("--requirement", "a>=1", "--requirement", "./b c.whl")
    onnxopt("init", "-b", "onnxruntime", *requirements)
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    scripts = [shlex.split(step["run"], comments=True) for step in job["steps"] if "run" in step]
    install, run = scripts
    assert install[:4] == ["python", "-m", "pip", "install"]
    assert install[4].startswith("onnxopt[ort]==")
    assert install[5:] == ["a>=1", "./b c.whl"]
    assert run[:2] == ["onnxopt", "run"]
    # A subcommand inherits the names of its help option from the context of the command group.
    # There is no such context here, so the names are passed as an argument.
    names = ["-h", "--help"]
    command = group.get_command(click.Context(group), "run")
    options = command.make_context("onnxopt run", run[2:], help_option_names=names).params
    (upload,) = (step for step in job["steps"] if "upload-artifact" in step.get("uses", ""))
    assert run[2:4] == ["--profile", "ci"]
    assert str(options["artifacts"]).startswith(upload["with"]["path"])
    assert upload["if"] == "always()"
    assert onnxopt("config", "--profile", "ci").code == 0


@pytest.mark.parametrize(
    ("direct_url", "noted"), [(None, False), ('{"url": "file:///checkout", "dir_info": {}}', True)]
)
def test_workflow_notes_that_onnxopt_is_not_from_an_index(
    workplace, onnxopt, monkeypatch, direct_url, noted
):
    metadata = workplace / "onnxopt-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxopt\nVersion: 0.1.0\n")
    if direct_url:
        (metadata / "direct_url.json").write_text(direct_url)
    monkeypatch.syspath_prepend(workplace)
    assert onnxopt("init").code == 0
    text = WORKFLOW.read_text()
    assert ("did not come from a package index" in text) == noted
    (job,) = yaml.safe_load(text)["jobs"].values()
    assert "pip install onnxopt==" in job["steps"][2]["run"]


def test_workflow_of_a_folder_in_a_repository_is_at_its_root(workplace, onnxopt, monkeypatch):
    folder = workplace / "parts" / "a b"
    folder.mkdir(parents=True)
    (workplace / ".git").mkdir()
    (folder / "pyproject.toml").write_text('[project]\nname = "acme"\n')
    monkeypatch.chdir(folder)
    assert "wrote ../../.github/workflows/onnxopt.yml" in onnxopt("init").out
    (job,) = yaml.safe_load((workplace / WORKFLOW).read_text())["jobs"].values()
    assert job["defaults"]["run"]["working-directory"] == "parts/a b"
    assert job["steps"][-1]["with"]["path"] == "parts/a b/onnxopt-report"
    # The workflow installs the project's package, so that the backend can import it.
    assert job["steps"][2]["run"].split()[-1] == "."
    assert SETTINGS.is_file()
    assert EXPECTED.is_file()


@pytest.mark.parametrize("existing", [*FILES, Path("pyproject.toml")])
def test_existing_file_is_replaced_only_by_force(workplace, onnxopt, existing):
    existing.parent.mkdir(parents=True, exist_ok=True)
    text = "[tool.onnxopt]\ntimeout = 3\n"
    existing.write_text(text)
    answer = onnxopt("init")
    assert (answer.code, answer.out) == (2, "")
    assert f": {existing}\n" in answer.err
    assert existing.read_text() == text
    assert [path for path in FILES if path.exists()] == [path for path in FILES if path == existing]
    assert onnxopt("init", "--force").code == 0
    assert all(path.exists() for path in FILES)
    assert (existing.read_text() == text) == (existing not in FILES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-b", "python:x"), "names no attribute"),
        (("-b", "onnxruntim"), "did you mean onnxruntime?"),
        (("-b", "numpy", "--name", "a b"), "'a b' cannot be the name of a backend"),
        (("-b", "adapter:openvin"), "did you mean openvino?"),
        (("-b", "numpy", "--name", "1st"), "'1st' cannot be the name of a backend"),
        (("--requirement", "a\nrun: b"), "is not a requirement for pip"),
    ],
)
def test_wrong_argument_writes_nothing(workplace, onnxopt, options, message):
    answer = onnxopt("init", *options)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert [*workplace.iterdir()] == []


@pytest.mark.parametrize("place", [".github", ".github/workflows"])
def test_nothing_is_written_through_a_link_that_leaves_the_project(
    workplace, onnxopt, monkeypatch, place
):
    elsewhere = workplace / "elsewhere"
    elsewhere.mkdir()
    link = workplace / "project" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    monkeypatch.chdir(workplace / "project")
    answer = onnxopt("init", "--force")
    assert answer.code == 2
    assert ".github/workflows is outside of the project" in " ".join(answer.err.split())
    assert not [*elsewhere.iterdir()]
    assert not SETTINGS.exists()


def test_link_within_the_project_is_followed(workplace, onnxopt):
    (workplace / "ci").mkdir()
    (workplace / ".github").symlink_to("ci")
    assert onnxopt("init").code == 0
    assert (workplace / "ci/workflows/onnxopt.yml").is_file()


def test_no_file_is_left_if_one_cannot_be_written(workplace, onnxopt):
    WORKFLOW.mkdir(parents=True)
    answer = onnxopt("init", "--force")
    assert (answer.code, "cannot write" in answer.err) == (2, True)
    assert [path.name for path in workplace.iterdir()] == [".github"]
    WORKFLOW.rmdir()
    WORKFLOW.parent.rmdir()
    WORKFLOW.parent.touch()
    answer = onnxopt("init", "--force")
    assert (answer.code, "cannot create .github/workflows: " in answer.err) == (2, True)
    assert [path.name for path in workplace.iterdir()] == [".github"]
