"""Workflow commands for GitHub, and the badge."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from demo import run_arguments, write_demo
from report_records import every_outcome, hostile, record, rendered, result

from onnxopt_cli.core.record import BackendIdentity
from onnxopt_cli.core.result import Location, Outcome, Standing
from onnxopt_cli.errors import Fault

COMMAND = re.compile(r"::error (?:file=([^,:\n]*)(?:,line=(\d+))?,)?title=([^,:\n]*)::([^\r\n]*)")


def commands(run):
    """Return the annotations in a report for GitHub, as (file, line, title, message)."""
    lines = [
        line for line in rendered("github", run).splitlines() if not line.startswith("::notice ")
    ]
    matches = [COMMAND.fullmatch(line) for line in lines]
    assert all(matches), lines
    return [tuple(part and unescaped(part) for part in match.groups()) for match in matches]


def unescaped(text):
    for code, character in (("%0A", "\n"), ("%0D", "\r"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_failure_refers_to_the_line_of_its_case():
    ((file, line, title, message),) = commands(record(result(outcome=Outcome.FAIL)))
    assert (file, line) == ("cases/demo.yaml", "7")
    assert title == "fail: demo/adam/first on numpy"
    assert "X_new  float32[2]  1 of 2 off" in message
    assert message.endswith("again: onnxopt run cases/demo.yaml -k demo/adam/first -b numpy")


def test_every_failing_result_has_one_command():
    run = every_outcome()
    # A report contains at most ten annotations, so the run is rendered in two halves.
    halves = [replace(run, results=run.results[part]) for part in (slice(8), slice(8, None))]
    annotations = [command for half in halves for command in commands(half)]
    titles = [title.split(" on ")[0] for _, _, title, _ in annotations]
    assert len(titles) == len([result for result in run.results if not result.conforms]) - 1
    assert "unexpected-pass: demo/adam/surprise" in titles
    assert not any("known" in title or "skip" in title for title in titles)


def test_notice_counts_expected_failures():
    expected = result("demo/adam/known", outcome=Outcome.FAIL, standing=Standing.EXPECTED)
    assert rendered("github", record(result(), expected)) == (
        "::notice title=onnxopt::1 pass, 1 expected failure\n"
    )


def test_problems_of_files_come_first_with_their_lines():
    run = record(result(), problems=(Fault("a.yaml:3", "wrong"), Fault("dir", "worse")))
    assert commands(run) == [("a.yaml", "3", "invalid", "wrong"), ("dir", None, "invalid", "worse")]


def test_name_that_looks_escaped_is_preserved():
    run = record(result("a%0Ab%3A%2C100%", outcome=Outcome.ERROR, message="50%0A"))
    ((_, _, title, message),) = commands(run)
    assert title == "error: a%0Ab%3A%2C100% on numpy"
    assert message.startswith("50%0A\n")


def test_hostile_text_stays_in_its_own_command():
    run = hostile()
    for part in (run, replace(run, problems=(), findings=())):
        assert len(commands(part)) == 10
        assert not any("add-mask" in line[:12] for line in rendered("github", part).splitlines())


@pytest.mark.parametrize("count", [10, 11, 500])
def test_at_most_ten_annotations_and_the_last_counts_the_others(count):
    results = [result(f"demo/adam/{number}", outcome=Outcome.FAIL) for number in range(count)]
    results.append(result("demo/late", "other", Outcome.CRASH, message="died"))
    annotations = commands(record(*results[count == 10 :]))
    assert len(annotations) == 10
    titles = [title for _, _, title, _ in annotations]
    # The first failure of each kind comes before the second failure of any kind.
    assert "crash: demo/late on other" in titles
    if count == 10:
        assert all(" on " in title for title in titles)
    else:
        assert titles[-1].startswith(f"{count + 1 - 9} more")
        assert "summary" in annotations[-1][3]


def test_stack_trace_is_shortened_to_its_first_and_last_line():
    trace = "\n".join(
        ["Error: cannot", *(f"  at frame {number}" for number in range(50)), "Last: cause"]
    )
    ((*_, message),) = commands(record(result(outcome=Outcome.ERROR, message=trace)))
    first, ellipsis, last, command = message.split("\n")
    assert (first, last) == ("Error: cannot", "Last: cause")
    assert ellipsis.startswith("... 50 lines left out")
    assert command.startswith("again: ")


def test_path_below_the_working_directory_is_relative(workplace):
    inside = Location(workplace / "cases" / "a.yaml", 3)
    outside = Location(Path("/somewhere/else/b.yaml"), 4)
    run = record(
        result(outcome=Outcome.FAIL, location=inside),
        result("b", outcome=Outcome.FAIL, location=outside),
    )
    assert [file for file, *_ in commands(run)] == ["cases/a.yaml", "/somewhere/else/b.yaml"]


TRACEBACK = """\
Traceback (most recent call last):
  File "{folder}/backend.py", line 2, in run
  File "{folder}/kernels.py", line 3, in kernel
  File "{folder}/.venv/lib/site-packages/numpy/core.py", line 1, in dot
  File "/usr/lib/python3/shapes.py", line 9, in check
ValueError: shapes
"""
NEWEST_FIRST = """\
Fatal Python error: Segmentation fault

Current thread 0x1 (most recent call first):
  File "/usr/lib/python3/ctypes.py", line 9 in call
  File "{folder}/kernels.py", line 3 in kernel
  File "{folder}/backend.py", line 2 in run
"""


@pytest.fixture
def repository(workplace):
    """Return the working directory, which contains the sources of a backend and a .venv."""
    installed = workplace / ".venv/lib/site-packages/numpy"
    installed.mkdir(parents=True)
    for file in (workplace / "backend.py", workplace / "kernels.py", installed / "core.py"):
        file.write_text("a\nb\nc\n")
    (workplace / "link.py").symlink_to("/etc/hostname")
    return workplace


@pytest.mark.parametrize(
    ("outcome", "printed", "place"),
    [
        (Outcome.ERROR, "raised at {folder}/kernels.py:3", ("kernels.py", "3")),
        (Outcome.ERROR, "starting\nraised at backend.py:1", ("backend.py", "1")),
        (Outcome.ERROR, TRACEBACK, ("kernels.py", "3")),
        (Outcome.CRASH, NEWEST_FIRST, ("kernels.py", "3")),
    ],
)
def test_error_refers_to_the_line_of_the_backend_that_raised_it(
    repository, outcome, printed, place
):
    text = printed.format(folder=repository)
    for fields in ({"printed": text}, {"message": text}):
        ((file, line, title, _),) = commands(record(result(outcome=outcome, **fields)))
        assert (file, line) == place
        assert title == f"{outcome}: demo/adam/first on numpy"


@pytest.mark.parametrize(
    ("outcome", "printed"),
    [
        (Outcome.ERROR, "raised at {folder}/kernels.py:4"),
        (Outcome.ERROR, "raised at {folder}/kernels.py:0"),
        (Outcome.ERROR, "raised at {folder}/missing.py:1"),
        (Outcome.ERROR, "raised at {folder}:1"),
        (Outcome.ERROR, "raised at {folder}/../outside.py:1"),
        (Outcome.ERROR, "raised at {folder}/link.py:1"),
        (Outcome.ERROR, "raised at \0:1"),
        (Outcome.ERROR, "raised at /dev/zero:1"),
        (Outcome.ERROR, "raised at {folder}/.venv/lib/site-packages/numpy/core.py:1"),
        # No line of code raised the failure, because a value is wrong. The printed text only looks
        # like a line of a traceback.
        (Outcome.FAIL, "raised at {folder}/kernels.py:3"),
    ],
)
def test_line_outside_of_the_repository_is_not_shown(repository, outcome, printed):
    (repository.parent / "outside.py").write_text("a\n")
    text = printed.format(folder=repository)
    ((file, line, *_),) = commands(record(result(outcome=outcome, printed=text)))
    assert (file, line) == ("cases/demo.yaml", "7")


def test_annotation_of_a_run_shows_the_raising_line(workplace, onnxopt):
    write_demo(workplace)
    answer = onnxopt(*run_arguments("RaisesAtB", "--report", "github=-"))
    raising = (workplace / "vendor.py").read_text().splitlines().index(
        '            raise ValueError("no luck")'
    )  # fmt: skip
    title = "title=error%3A demo/demo/b on python%3Avendor.py%3ARaisesAtB"
    place = f"file=vendor.py,line={raising + 1}"
    assert f"::error {place},{title}::ValueError: no luck%0Aagain: " in answer.out
    assert "::error file=demo.yaml,line=" in answer.out


@pytest.mark.parametrize(
    ("run", "message", "color"),
    [
        (record(result(), result(backend="b")), "2 pass", "brightgreen"),
        (record(result(), result("x", outcome=Outcome.FAIL)), "1 pass, 1 fail", "red"),
        (
            record(result(), result("x", outcome=Outcome.FAIL, standing=Standing.EXPECTED)),
            "1 pass, 1 expected failure",
            "yellow",
        ),
        (
            record(
                result(),
                result("x", outcome=Outcome.SKIP),
                result("y", outcome=Outcome.ERROR, standing=Standing.EXPECTED),
                result("z", outcome=Outcome.UNSUPPORTED, standing=Standing.EXPECTED),
            ),
            "1 pass, 2 expected failures, 1 skip",
            "yellow",
        ),
        (
            record(
                result(),
                backends=(BackendIdentity("onnxruntime,math=tf32", ""),),
                versions={"suite spec": "4"},
                left_out={"double": "the target has no such type"},
            ),
            "1 pass, without double, math=tf32",
            "brightgreen",
        ),
        (record(result(), exit_code=None), "did not finish", "red"),
        (record(result(), exit_code=130), "was interrupted", "red"),
        (record(result(), exit_code=2), "has invalid cases or expectations", "red"),
    ],
)
def test_badge_is_green_only_if_the_run_conforms(run, message, color):
    badge = json.loads(rendered("badge", run))
    assert (badge["schemaVersion"], badge["label"]) == (1, "onnxopt")
    assert (badge["message"], badge["color"]) == (message, color)
    assert badge["isError"] == (color == "red")
