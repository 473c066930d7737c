"""``onnxopt scoreboard`` runs missing cases, keeps the logs, and can be resumed."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from two_cases import CASE

SCOREBOARD = """\
title = "Demo"
suites = ["demo.yaml"]

[backends]
numpy = "numpy"
"""
#: A backend whose results depend on its version.
VERSIONED = """\
from onnxopt_cli.backends.resolve import resolve_backend

__version__ = "{version}"
NUMPY = resolve_backend("numpy")


class Backend:
    def run(self, model, inputs):
        first, *rest = NUMPY.prepare(model).run(inputs)
        return [first + type(first[0])({error}), *rest]
"""


@pytest.fixture
def board(workplace):
    """Return a function that writes the scoreboard file, and appends the given lines."""
    (workplace / "demo.yaml").write_text(CASE)

    def write(more=""):
        (workplace / "board.toml").write_text(SCOREBOARD + more)
        return workplace / "board.toml"

    return write


def logs(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jsonl"))


def text_of(page):
    return page.read_text(encoding="utf-8")


def test_results_are_logs_by_label_version_suite_and_date(onnxopt, board, workplace):
    answer = onnxopt("scoreboard", board())
    assert answer.code == 0, answer.text
    assert "numpy: 2 pass" in answer.out
    (log,) = logs(workplace / "results")
    label, version, suite, file = log.split("/")
    assert (label, suite) == ("numpy", "demo")
    assert version == f"numpy-{np.__version__}"
    assert len(file) == len("2026-11-27.jsonl")
    merged = onnxopt("report", "render", workplace / "results" / log, "--report", "json=run.json")
    assert merged.code == 0
    assert json.loads((workplace / "run.json").read_text())["summary"] == {"pass": 2}


def test_second_run_runs_nothing(onnxopt, board, workplace):
    onnxopt("scoreboard", board())
    (before,) = logs(workplace / "results")
    content = (workplace / "results" / before).read_bytes()
    assert onnxopt("scoreboard", board()).code == 0
    assert logs(workplace / "results") == [before]
    assert (workplace / "results" / before).read_bytes() == content


def test_only_added_cases_run(onnxopt, board, workplace):
    onnxopt("scoreboard", board())
    added = CASE.split("  - name: plain")[0] + "  - name: added" + CASE.split("- name: nesterov")[1]
    (workplace / "more.yaml").write_text(added)
    text = SCOREBOARD.replace('"demo.yaml"', '"demo.yaml", "more.yaml"')
    (workplace / "board.toml").write_text(text)
    answer = onnxopt("scoreboard", workplace / "board.toml")
    assert "numpy: 3 pass" in answer.out
    (second,) = (name for name in logs(workplace / "results") if name.endswith("-2.jsonl"))
    assert text_of(workplace / "results" / second).count('"record":"end"') == 1


def test_changed_case_runs_again(onnxopt, board, workplace):
    onnxopt("scoreboard", board())
    (workplace / "demo.yaml").write_text(CASE.replace("alpha: 0.9", "alpha: 0.8"))
    assert onnxopt("scoreboard", board()).code == 0
    assert len(logs(workplace / "results")) == 2


def test_changed_plugin_without_version_runs_again(onnxopt, board, workplace):
    plugin = "from onnxopt_cli.backends.reference import NumpyBackend\n\n\nclass Backend:\n"
    plugin += "    def run(self, model, inputs):\n"
    plugin += "        return NumpyBackend().prepare(model).run(inputs)\n"
    (workplace / "mine.py").write_text(plugin)
    file = board('mine = "python:mine.py:Backend"\n')
    onnxopt("scoreboard", file)
    onnxopt("scoreboard", file)
    assert len(logs(workplace / "results" / "mine")) == 1
    (workplace / "mine.py").write_text(f"{plugin}\n# changed\n")
    onnxopt("scoreboard", file)
    assert len(logs(workplace / "results" / "mine")) == 2


def test_unfinished_log_is_resumed(onnxopt, board, workplace):
    onnxopt("scoreboard", board())
    (name,) = logs(workplace / "results")
    log = workplace / "results" / name
    lines = log.read_bytes().splitlines(keepends=True)
    first_end = next(place for place, line in enumerate(lines) if b'"record":"end"' in line)
    log.write_bytes(b"".join(lines[: first_end + 1]) + lines[first_end + 1][:20])
    assert "numpy: 2 not run" in onnxopt("scoreboard", board(), "--no-run").out
    answer = onnxopt("scoreboard", board())
    assert "numpy: 2 pass" in answer.out
    assert logs(workplace / "results") == [name]
    assert b'"record":"resume"' in log.read_bytes()


def test_unfinished_log_of_another_environment_is_kept_and_not_resumed(onnxopt, board, workplace):
    onnxopt("scoreboard", board())
    (name,) = logs(workplace / "results")
    log = workplace / "results" / name
    header, *_ = log.read_bytes().splitlines(keepends=True)
    document = json.loads(header)
    document["versions"]["ml_dtypes"] = "0.0.1"
    log.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    answer = onnxopt("scoreboard", board())
    assert answer.code == 0
    assert "numpy: 2 pass" in answer.out
    assert len(logs(workplace / "results")) == 2


def test_damaged_log_is_reported_and_not_used(onnxopt, board, workplace):
    onnxopt("scoreboard", board())
    (name,) = logs(workplace / "results")
    (workplace / "results" / name).write_text("{}\n")
    answer = onnxopt("scoreboard", board())
    assert answer.code == 0
    assert "not used: " in answer.err
    assert "numpy: 2 pass" in answer.out


def test_backend_that_does_not_start_is_reported_and_others_run(onnxopt, board, workplace):
    file = board('gone = "python:gone.py:Backend,env.TOKEN=sesame"\nlost = "no-such-backend"\n')
    answer = onnxopt("scoreboard", file)
    assert answer.code == 4
    assert not any("sesame" in path.name for path in workplace.rglob("*"))
    assert "numpy: 2 pass" in answer.out
    assert "gone could not be started: " in answer.err
    assert "lost could not be started: unknown backend 'no-such-backend'" in answer.err
    assert "gone: not started\nlost: not started\n" in answer.out
    index = text_of(workplace / "site" / "index.html")
    assert "gone.py does not exist" in index
    assert index.count("not started") == 2
    # The reason is kept with the results, so --no-run shows it again.
    assert onnxopt("scoreboard", file, "--no-run").code == 4
    (workplace / "gone.py").write_text(
        "class Backend:\n    def run(self, model, inputs):\n        1/0\n"
    )
    answer = onnxopt("scoreboard", file)
    assert "gone: 0 pass, 2 error" in answer.out
    assert "gone.py does not exist" not in text_of(workplace / "site" / "index.html")


@pytest.mark.isolated
@pytest.mark.slow
def test_new_version_adds_a_row_of_history(onnxopt, board, workplace):
    file = board('acme = "python:acme.py:Backend"\n')
    for version, error in (("1.9", 0.25), ("1.10", 0)):
        (workplace / "acme.py").write_text(VERSIONED.format(version=version, error=error))
        assert onnxopt("scoreboard", file, "--explain-time", "0").code == 0
    page = text_of(workplace / "site" / "backends" / "acme.html")
    history = page.partition("History by version")[2]
    # Parts of versions are compared as numbers, so 1.10 is newer than 1.9.
    assert history.index("acme 1.10") < history.index("acme 1.9")
    assert history.count("fail, now pass") == 2
    assert len(logs(workplace / "results" / "acme")) == 2
    # The current version is the one that ran last, even if a newer version ran before.
    (workplace / "acme.py").write_text(VERSIONED.format(version="1.9", error=0.25))
    assert "acme: 0 pass, 2 fail" in onnxopt("scoreboard", file).out
    assert len(logs(workplace / "results" / "acme")) == 2


@pytest.mark.isolated
@pytest.mark.slow
def test_crash_is_counted_as_a_crash(onnxopt, board, workplace):
    text = "import os\n\n\nclass Backend:\n    def run(self, model, inputs):\n        os.abort()\n"
    (workplace / "dies.py").write_text(text)
    answer = onnxopt("scoreboard", board('dies = "python:dies.py:Backend"\n'))
    assert answer.code == 0
    assert "dies: 0 pass, 2 crash" in answer.out
    assert "2 crash" in text_of(workplace / "site" / "index.html")


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_interrupted_command_continues(onnxopt, board, workplace, monkeypatch):
    import signal

    from onnxopt_cli.run.session import Session

    keep = Session._keep

    def interrupt(self, result, record):
        keep(self, result, record)
        if not self.plan.interruption.signal:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_keep", interrupt)
        answer = onnxopt("scoreboard", board())
    assert answer.code == 130
    assert "the same command runs the remaining cases" in answer.err
    assert not (workplace / "site" / "index.html").exists()
    assert "numpy: 2 pass" in onnxopt("scoreboard", board()).out
    assert len(logs(workplace / "results")) == 1


def test_invalid_case_file_is_reported_and_the_others_run(onnxopt, board, workplace):
    (workplace / "bad.yaml").write_text("onnxopt: 1\ncases: 7\n")
    (workplace / "cases").mkdir()
    for name in ("bad.yaml", "demo.yaml"):
        (workplace / name).rename(workplace / "cases" / name)
    board()
    text = SCOREBOARD.replace("demo.yaml", "cases")
    (workplace / "board.toml").write_text(text)
    answer = onnxopt("scoreboard", workplace / "board.toml")
    assert answer.code == 2
    assert "bad.yaml" in answer.err
    assert "numpy: 2 pass" in answer.out


def test_label_precedes_a_name_within_the_specification(onnxopt, board, workplace):
    answer = onnxopt("scoreboard", board('mine = "yours=numpy"\n'))
    assert "mine: 2 pass" in answer.out
    assert "yours" not in text_of(workplace / "site" / "index.html")
