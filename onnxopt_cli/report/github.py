"""Failures as workflow commands, which GitHub shows beside the lines of the case files.

Source: https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Problem
from onnxopt_cli.report.diff_text import failure_text
from onnxopt_cli.report.repeat import repeat_command
from onnxopt_cli.report.verdict import failures


def github_report(record: RunRecord) -> str:
    """Return an ``::error`` command a line: problems of files first, then failures."""
    lines = [_of_problem(problem) for problem in (*record.problems, *record.findings)]
    for result in failures(record):
        place = result.location
        word = (result.standing or result.outcome).value
        again = f"again: {printable(repeat_command(result, record.options))}"
        lines.append(
            _error(
                str(place.path),
                place.line,
                f"{word}: {result.case} on {result.backend}",
                "\n".join(filter(None, (failure_text(result), again))),
            )
        )
    return "".join(f"{line}\n" for line in lines)


def _of_problem(problem: Problem) -> str:
    path, colon, line = problem.where.rpartition(":")
    if not colon or not line.isascii() or not line.isdigit():
        return _error(problem.where, None, "invalid", problem.what)
    return _error(path, int(line), "invalid", problem.what)


def _error(file: str, line: int | None, title: str, message: str) -> str:
    properties = [f"file={_property(file)}"]
    if line is not None:
        properties.append(f"line={line}")
    properties.append(f"title={_property(title)}")
    return f"::error {','.join(properties)}::{_data(printable(message, lines=True))}"


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
