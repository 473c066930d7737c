"""Code that another user may have written does not run, unless the user has named it."""

from __future__ import annotations

import json
import os

import pytest

PLUGIN = "open('ran', 'w').close()\n\ndef run(model, inputs):\n    raise ValueError\n"
OTHER_USER = 54321
SITE_PACKAGES = "venv/lib/python3.11/site-packages"


@pytest.fixture
def foreign(monkeypatch):
    """Give files to another user."""

    def give(*paths):
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, OTHER_USER, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)

    return give


@pytest.fixture
def place(workplace):
    (workplace / "onnxopt.toml").write_text(
        'timeout = 30\ntargets = ["spec/adam"]\n[backends.mine]\nbackend = "python:be.py:run"\n'
    )
    (workplace / "be.py").write_text(PLUGIN)
    return workplace


def requires_refusal(answer, place, name):
    assert answer.code == 2
    said = " ".join(answer.err.split())
    assert name in said
    assert "ONNXOPT_CONFIG=" in said
    assert not (place / "ran").exists()


def test_ones_own_file_is_taken(place, onnxopt):
    assert onnxopt("run", "-b", "mine", "-q", "--isolation", "none").code == 1
    assert (place / "ran").exists()


@pytest.mark.parametrize("name", ["onnxopt.toml", "pyproject.toml"])
@pytest.mark.parametrize("what", ["file", "folder", "link", "target"])
def test_a_file_of_another_user_is_refused_and_taken_if_it_is_named(
    place, onnxopt, monkeypatch, foreign, name, what
):
    if name == "pyproject.toml":
        text = (place / "onnxopt.toml").read_text().replace("[backends", "[tool.onnxopt.backends")
        (place / name).write_text(f"[tool.onnxopt]\n{text}")
        (place / "onnxopt.toml").unlink()
    if what in {"link", "target"}:
        (place / "elsewhere").mkdir()
        (place / name).rename(place / "elsewhere" / name)
        (place / name).symlink_to(f"elsewhere/{name}")
    foreign(
        {
            "file": place / name,
            "folder": place,
            "link": place / name,
            "target": place / "elsewhere" / name,
        }[what]
    )
    answer = onnxopt("run", "-b", "mine", "-q", "--isolation", "none")
    requires_refusal(answer, place, name)
    assert f"uid {OTHER_USER}" in answer.err or os.geteuid() == OTHER_USER
    monkeypatch.setenv("ONNXOPT_CONFIG", name)
    assert onnxopt("run", "-b", "mine", "-q", "--isolation", "none").code == 1
    assert (place / "ran").exists()
    monkeypatch.setenv("ONNXOPT_CONFIG", "")
    assert onnxopt("run", "spec/adam", "-q").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
@pytest.mark.parametrize("what", ["be.py", "helper.py", "operators.py", "python", "command"])
def test_code_of_another_user_that_a_file_names_is_refused(place, onnxopt, foreign, what):
    (place / what).write_text("x = 1\n")
    text = (place / "onnxopt.toml").read_text()
    if what == "be.py":
        (place / what).write_text(PLUGIN)
    elif what == "helper.py":
        (place / "be.py").write_text(f"import helper\n{PLUGIN}")
    elif what == "operators.py":
        text = f'operators = ["{what}"]\n{text}'
    elif what == "python":
        text += 'python = "python"\n'
    else:
        text = text.replace("python:be.py:run", f"exec:./{what} x")
    (place / "onnxopt.toml").write_text(text)
    foreign(place / what)
    requires_refusal(onnxopt("run", "-b", "mine", "-q", "--isolation", "none"), place, what)


@pytest.fixture
def layout(place):
    """Write a configuration with one backend, and files that mark that they ran."""

    def write(backend, *files, **options):
        lines = ["[backends.mine]", f"backend = {json.dumps(backend)}"]
        lines += [f"{name} = {value}" for name, value in options.items()]
        text = "\n".join(['targets = ["spec/adam"]', *lines])
        (place / "onnxopt.toml").write_text(text.replace("HERE", str(place)))
        for file in files:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(PLUGIN)
            (place / file).chmod(0o755)

    return write


FOREIGN_CODE = {
    "bytecode of a plugin": ("python:be.py:run", {}, "__pycache__/be.cpython-311.pyc"),
    "bytecode for another interpreter": ("python:be.py:run", {}, "__pycache__/be.pypy39.opt-1.pyc"),
    "module": ("python:evil:run", {}, "evil.py"),
    "package": ("python:evil.part:run", {}, "evil/part.py"),
    "module beside a package": ("python:mine.part:run", {}, "helper.py"),
    "module that a command runs": ("exec:python3 -m evil", {}, "evil.py"),
    "module that a command runs, joined": ("exec:env python3 -umevil", {}, "evil.py"),
    "main module of a folder": ("exec:python3 folder", {}, "folder/__main__.py"),
    "file of a folder": ("exec:make -C folder", {}, "folder/Makefile"),
    "program": ("exec:evil", {"PATH": "HERE/bin:/usr/bin"}, "bin/evil"),
    "folder of programs": ("exec:evil", {"PATH": "HERE/bin:/usr/bin"}, "bin"),
    "module of a path": ("exec:python3 be.py", {"PYTHONPATH": "HERE/lib"}, "lib/sitecustomize.py"),
    "package of a path": ("exec:python3 be.py", {"PYTHONPATH": "HERE/lib"}, "lib/numpy"),
    "library of a path": (
        "exec:./be.py",
        {"LD_LIBRARY_PATH": "/usr/lib:HERE/lib"},
        "lib/libc.so.6",
    ),
    "library that is loaded first": ("exec:./be.py", {"LD_PRELOAD": "HERE/a.so HERE/b.so"}, "b.so"),
    "start of an interpreter": ("exec:venv/bin/python be.py", {}, f"{SITE_PACKAGES}/evil.pth"),
    "configuration of an interpreter": ("exec:venv/bin/python be.py", {}, "venv/pyvenv.cfg"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
@pytest.mark.parametrize("what", FOREIGN_CODE)
def test_code_of_another_user_that_stands_elsewhere_is_refused(
    layout, place, onnxopt, foreign, what
):
    backend, environment, given = FOREIGN_CODE[what]
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in environment.items())
    files = [given] if "." in given or "Makefile" in given else [f"{given}/__init__.py"]
    files = ["bin/evil"] if given.startswith("bin") else files
    layout(backend, "mine/part.py", "venv/bin/python", *files, environment=f"{{{pairs}}}")
    assert onnxopt("list", "spec/adam").code == 0
    foreign(place / given)
    requires_refusal(onnxopt("run", "-b", "mine", "-q"), place, given.rpartition("/")[2])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
def test_the_start_of_the_interpreter_of_a_plugin_is_of_its_code(layout, place, onnxopt, foreign):
    given = f"{SITE_PACKAGES}/usercustomize.py"
    layout("python:be.py:run", given, "venv/bin/python", python='"venv/bin/python"')
    foreign(place / given)
    requires_refusal(onnxopt("run", "-b", "mine", "-q"), place, "usercustomize.py")


def test_bytecode_in_a_folder_to_which_everybody_may_write_is_refused(place, onnxopt):
    (place / "__pycache__").mkdir()
    assert onnxopt("list", "spec/adam").code == 0
    (place / "__pycache__").chmod(0o1777)
    requires_refusal(onnxopt("list", "spec/adam"), place, "__pycache__ holds code")


def test_ones_own_code_is_taken_wherever_it_stands(layout, place, onnxopt):
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    environment = (
        '{PATH = "HERE/bin:/bin:/usr/bin", PYTHONPATH = "HERE/lib::", BASH_ENV = "/dev/null"}'
    )
    layout("python:evil:run", "evil.py", "lib/helper.py", "bin/tool", environment=environment)
    assert onnxopt("run", "-b", "mine", "-q", "--isolation", "none").code == 1
    assert (place / "ran").exists()
    (place / "ran").unlink()
    layout(
        f"exec:python3 -m evil --cache {shared} -m 5", environment='{MODEL_PATH = "HERE/shared"}'
    )
    onnxopt("run", "-b", "mine", "-q")
    assert (place / "ran").exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_what_everybody_may_change_is_refused(place, onnxopt, mode):
    (place / "sub").mkdir()
    (place / "onnxopt.toml").chmod(0o666)
    requires_refusal(onnxopt("run", "-q"), place, "onnxopt.toml")
    (place / "onnxopt.toml").chmod(0o644)
    place.chmod(mode)
    if mode == 0o777:
        requires_refusal(onnxopt("run", "-q"), place, "onnxopt.toml")
        return
    # As in /tmp, others can put files beside it, but not in its place.
    assert onnxopt("run", "-q").code == 0
    os.link(place / "onnxopt.toml", place / "sub" / "onnxopt.toml")
    requires_refusal(onnxopt("run", "-q"), place, "hard link")


def test_a_file_above_counts_in_a_repository_alone(place, onnxopt, monkeypatch):
    below = place / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    def taken():
        return "spec/adam" in onnxopt("config").out

    assert not taken()
    (place / ".git").mkdir()
    assert taken()
    # Anybody could have made one of it.
    place.chmod(0o1777)
    assert not taken()
    place.chmod(0o755)
    assert taken()
    (place / "a" / ".git").write_text("gitdir: ../.git/modules/a\n")
    assert not taken()


def test_a_project_file_without_measure_is_named_and_not_read(workplace, onnxopt):
    with (workplace / "pyproject.toml").open("wb") as file:
        file.truncate(40 << 30)
    answer = onnxopt("run", "spec/adam")
    assert answer.code == 2
    assert "pyproject.toml has 42949672960 bytes" in " ".join(answer.err.split())
