"""Code that another user can change runs only if the user of the command has named it."""

from __future__ import annotations

import json
import os

import pytest

PLUGIN = "open('ran', 'w').close()\n\ndef run(model, inputs):\n    raise ValueError\n"
OTHER_USER = 54321
SITE_PACKAGES = "venv/lib/python3.11/site-packages"


@pytest.fixture
def foreign(monkeypatch):
    """Return a function that makes files belong, or appear to belong, to another user."""

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


def require_rejection(answer, place, name):
    assert answer.code == 2
    message = " ".join(answer.err.split())
    assert name in message
    assert "ONNXOPT_CONFIG=" in message
    assert not (place / "ran").exists()


def test_own_configuration_file_is_used(place, onnxopt):
    assert onnxopt("run", "-b", "mine", "-q", "--isolation", "none").code == 1
    assert (place / "ran").exists()


@pytest.mark.parametrize("name", ["onnxopt.toml", "pyproject.toml"])
@pytest.mark.parametrize("kind", ["file", "folder", "link", "target"])
def test_file_of_another_user_is_used_only_if_it_is_named(
    place, onnxopt, monkeypatch, foreign, name, kind
):
    if name == "pyproject.toml":
        text = (place / "onnxopt.toml").read_text().replace("[backends", "[tool.onnxopt.backends")
        (place / name).write_text(f"[tool.onnxopt]\n{text}")
        (place / "onnxopt.toml").unlink()
    if kind in {"link", "target"}:
        (place / "elsewhere").mkdir()
        (place / name).rename(place / "elsewhere" / name)
        (place / name).symlink_to(f"elsewhere/{name}")
    foreign(
        {
            "file": place / name,
            "folder": place,
            "link": place / name,
            "target": place / "elsewhere" / name,
        }[kind]
    )
    answer = onnxopt("run", "-b", "mine", "-q", "--isolation", "none")
    require_rejection(answer, place, name)
    assert f"uid {OTHER_USER}" in answer.err or os.geteuid() == OTHER_USER
    monkeypatch.setenv("ONNXOPT_CONFIG", name)
    assert onnxopt("run", "-b", "mine", "-q", "--isolation", "none").code == 1
    assert (place / "ran").exists()
    monkeypatch.setenv("ONNXOPT_CONFIG", "")
    assert onnxopt("run", "spec/adam", "-q").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
@pytest.mark.parametrize("kind", ["be.py", "helper.py", "operators.py", "python", "command"])
def test_code_of_another_user_that_a_file_names_is_rejected(place, onnxopt, foreign, kind):
    (place / kind).write_text("x = 1\n")
    text = (place / "onnxopt.toml").read_text()
    if kind == "be.py":
        (place / kind).write_text(PLUGIN)
    elif kind == "helper.py":
        (place / "be.py").write_text(f"import helper\n{PLUGIN}")
    elif kind == "operators.py":
        text = f'operators = ["{kind}"]\n{text}'
    elif kind == "python":
        text += 'python = "python"\n'
    else:
        text = text.replace("python:be.py:run", f"exec:./{kind} x")
    (place / "onnxopt.toml").write_text(text)
    foreign(place / kind)
    require_rejection(onnxopt("run", "-b", "mine", "-q", "--isolation", "none"), place, kind)


@pytest.fixture
def layout(place):
    """Return a function that configures a backend whose code creates a file ``ran``."""

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
    "module that a plugin may import": ("python:be.py:run", {}, "evil.py"),
    "module that a script may import": ("exec:python3 be.py", {}, "evil.py"),
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
    "library that is loaded first": (
        "python:be.py:run",
        {"LD_PRELOAD": "HERE/a.so HERE/b.so"},
        "b.so",
    ),
    "start of an interpreter": ("exec:venv/bin/python be.py", {}, f"{SITE_PACKAGES}/evil.pth"),
    "option of an interpreter": ("exec:be.py", {"NODE_OPTIONS": "--require=./evil.js"}, "evil.js"),
    "option without a suffix": ("python:be.py:run", {"NODE_OPTIONS": "-v -r ./evil"}, "evil.js"),
    "address in an option": ("exec:be.py", {"NODE_OPTIONS": "--import=file://HERE/x.js"}, "x.js"),
    "agent": ("exec:be.py", {"JAVA_TOOL_OPTIONS": "-javaagent:evil.jar=x"}, "evil.jar"),
    "option for env": ("exec:env 'NODE_OPTIONS=-r ./evil' be.py", {}, "evil.js"),
    "folder of modules": ("python:be.py:run", {"RUBYOPT": "-I./lib -revil"}, "lib/evil.rb"),
    "start file": ("exec:be.py", {"LUA_INIT": "@evil.lua"}, "evil.lua"),
    "option of a command": ("exec:node -r./evil be.py", {}, "evil.js"),
    "packages of a user": ("exec:be.py", {"PYTHONUSERBASE": "HERE/venv"}, f"{SITE_PACKAGES}/a.pth"),
    "packages in a home folder": (
        "exec:be.py",
        {"HOME": "HERE/home"},
        f"home/.local/{SITE_PACKAGES.removeprefix('venv/')}/usercustomize.py",
    ),
    "folder in any variable": ("python:be.py:run", {"ACME_PLUGINS": "HERE/lib"}, "lib/plugin.so"),
    "path with a space": (
        "python:be.py:run",
        {"ACME": "HERE/all plugins/x.so"},
        "all plugins/x.so",
    ),
    "path in any variable": ("exec:be.py", {"ACME": "load=file://HERE/plugin.so"}, "plugin.so"),
    "configuration of an interpreter": ("exec:venv/bin/python be.py", {}, "venv/pyvenv.cfg"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
@pytest.mark.parametrize("kind", FOREIGN_CODE)
def test_code_of_another_user_that_would_be_loaded_is_rejected(
    layout, place, onnxopt, foreign, kind
):
    backend, environment, path = FOREIGN_CODE[kind]
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in environment.items())
    files = [path] if "." in path or "Makefile" in path else [f"{path}/__init__.py"]
    files = ["bin/evil"] if path.startswith("bin") else files
    layout(backend, "mine/part.py", "venv/bin/python", *files, environment=f"{{{pairs}}}")
    assert onnxopt("list", "spec/adam").code == 0
    foreign(place / path)
    require_rejection(onnxopt("run", "-b", "mine", "-q"), place, path.rpartition("/")[2])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
def test_startup_files_of_an_interpreter_are_checked(layout, place, onnxopt, foreign):
    path = f"{SITE_PACKAGES}/usercustomize.py"
    layout("python:be.py:run", path, "venv/bin/python", python='"venv/bin/python"')
    foreign(place / path)
    require_rejection(onnxopt("run", "-b", "mine", "-q"), place, "usercustomize.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
def test_path_in_an_option_is_checked(layout, place, onnxopt, foreign):
    layout("onnxruntime", "custom.so", options='{"config.custom" = "HERE/custom.so"}')
    assert onnxopt("list", "spec/adam").code == 0
    foreign(place / "custom.so")
    require_rejection(onnxopt("run", "-b", "mine", "-q"), place, "custom.so")


def test_bytecode_in_a_folder_writable_by_all_users_is_rejected(place, onnxopt):
    (place / "__pycache__").mkdir()
    assert onnxopt("list", "spec/adam").code == 0
    (place / "__pycache__").chmod(0o1777)
    require_rejection(onnxopt("list", "spec/adam"), place, "__pycache__ holds code")


def test_own_code_is_used_in_any_folder(layout, place, onnxopt):
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
def test_files_writable_by_all_users_are_rejected(place, onnxopt, mode):
    (place / "sub").mkdir()
    (place / "onnxopt.toml").chmod(0o666)
    require_rejection(onnxopt("run", "-q"), place, "onnxopt.toml")
    (place / "onnxopt.toml").chmod(0o644)
    place.chmod(mode)
    if mode == 0o777:
        require_rejection(onnxopt("run", "-q"), place, "onnxopt.toml")
        return
    # In a sticky folder such as /tmp, other users can create files, but cannot replace this user's
    # files.
    assert onnxopt("run", "-q").code == 0
    os.link(place / "onnxopt.toml", place / "sub" / "onnxopt.toml")
    require_rejection(onnxopt("run", "-q"), place, "hard link")


def test_code_below_a_folder_that_others_can_replace_is_rejected(layout, place, onnxopt):
    layout("python:a/open/b/be.py:run", "a/open/b/be.py")
    (place / "a" / "open").chmod(0o1777)
    assert onnxopt("run", "-b", "mine", "-q").code == 1
    (place / "ran").unlink()
    (place / "a" / "open").chmod(0o777)
    require_rejection(onnxopt("run", "-b", "mine", "-q"), place, "open on its path")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give single files away")
@pytest.mark.parametrize("way", ["outer", "link", "nested/link"])
def test_code_behind_a_folder_or_link_of_another_user_is_rejected(
    layout, place, onnxopt, foreign, way
):
    layout("python:WAY/inner/be.py:run".replace("WAY", way), "outer/inner/be.py", "nested/x.py")
    (place / "link").symlink_to("outer")
    (place / "nested" / "link").symlink_to("../link")
    assert onnxopt("list", "spec/adam").code == 0
    name = "outer" if way == "outer" else "link"
    foreign(place / name)
    require_rejection(onnxopt("run", "-b", "mine", "-q"), place, f"{name} on its path belongs to")


def test_file_of_a_parent_folder_is_used_only_in_a_repository(place, onnxopt, monkeypatch):
    below = place / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    def is_used():
        return "spec/adam" in onnxopt("config").out

    assert not is_used()
    (place / ".git").mkdir()
    assert is_used()
    # If all users can write to the folder, any user could have made it a repository.
    place.chmod(0o1777)
    assert not is_used()
    place.chmod(0o755)
    assert is_used()
    (place / "a" / ".git").write_text("gitdir: ../.git/modules/a\n")
    assert not is_used()


def test_oversized_project_file_is_named_and_not_read(workplace, onnxopt):
    with (workplace / "pyproject.toml").open("wb") as file:
        file.truncate(40 << 30)
    answer = onnxopt("run", "spec/adam")
    assert answer.code == 2
    assert "pyproject.toml has 42949672960 bytes" in " ".join(answer.err.split())
