"""Code that another user may have written does not run, unless the user has named it."""

from __future__ import annotations

import os

import pytest

PLUGIN = "open('ran', 'w').close()\n\ndef run(model, inputs):\n    raise ValueError\n"
OTHER = 54321


@pytest.fixture
def foreign(monkeypatch):
    """Give files to another user."""

    def give(*paths):
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, OTHER, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: OTHER)

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
    assert f"uid {OTHER}" in answer.err or os.geteuid() == OTHER
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
