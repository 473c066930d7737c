"""Workflow commands and the badge."""

from __future__ import annotations

import json
import re

import pytest
from report_records import every_outcome, hostile, record, result

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.errors import Problem
from onnxopt_cli.report.badge import badge_report
from onnxopt_cli.report.github import github_report

COMMAND = re.compile(r"::error file=([^,:\n]*)(?:,line=(\d+))?,title=([^,:\n]*)::([^\r\n]*)")


def commands(run):
    """What GitHub's runner reads: (file, line, title, message) a line, escapes undone."""
    lines = github_report(run).splitlines()
    matches = [COMMAND.fullmatch(line) for line in lines]
    assert all(matches), lines
    return [tuple(part and unescaped(part) for part in match.groups()) for match in matches]


def unescaped(text):
    for code, character in (("%0A", "\n"), ("%0D", "\r"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_a_failure_points_to_the_line_of_its_case():
    ((file, line, title, message),) = commands(record(result(outcome=Outcome.FAIL)))
    assert (file, line) == ("cases/demo.yaml", "7")
    assert title == "fail: demo/adam/first on numpy"
    assert "X_new  float32[2]  1 of 2 off" in message
    assert message.endswith("again: onnxopt run cases/demo.yaml -k demo/adam/first -b numpy")


def test_every_result_that_counts_against_the_run_has_one_command():
    titles = [title.split(" on ")[0] for _, _, title, _ in commands(every_outcome())]
    assert len(titles) == 10
    assert "unexpected-pass: demo/adam/surprise" in titles
    assert not any("known" in title or "skip" in title for title in titles)


def test_problems_of_files_come_first_with_their_lines():
    run = record(result(), problems=(Problem("a.yaml:3", "wrong"), Problem("dir", "worse")))
    assert commands(run) == [("a.yaml", "3", "invalid", "wrong"), ("dir", None, "invalid", "worse")]


def test_a_name_that_looks_escaped_arrives_as_it_is():
    run = record(result("a%0Ab%3A%2C100%", outcome=Outcome.ERROR, message="50%0A"))
    ((_, _, title, message),) = commands(run)
    assert title == "error: a%0Ab%3A%2C100% on numpy"
    assert message.startswith("50%0A\n")


def test_hostile_text_stays_in_its_own_command():
    run = hostile()
    failed = sum(not it.conforms for it in run.results)
    assert len(commands(run)) == failed + len(run.problems) + len(run.findings)


@pytest.mark.parametrize(
    ("run", "message", "color"),
    [
        (record(result(), result(backend="b")), "2 conform", "brightgreen"),
        (record(result(), result("x", outcome=Outcome.FAIL)), "1 of 2 do not conform", "red"),
        (record(result(), exit_code=None), "did not finish", "red"),
        (record(result(), exit_code=130), "was interrupted", "red"),
        (record(result(), exit_code=2), "has invalid cases or expectations", "red"),
    ],
)
def test_the_badge_is_green_only_if_the_run_conforms(run, message, color):
    badge = json.loads(badge_report(run))
    assert (badge["schemaVersion"], badge["label"]) == (1, "onnxopt")
    assert (badge["message"], badge["color"]) == (message, color)
    assert badge["isError"] == (color == "red")
