"""Failures as workflow commands, which GitHub shows beside the lines of the case files.

Source: https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from onnxopt_cli.core.files import shown_path
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.errors import Fault
from onnxopt_cli.report.diff_text import (
    ELSEWHERE,
    failure_text,
    repeat_command,
)
from onnxopt_cli.report.verdict import (
    by_kind,
    failures,
    scope,
)

#: GitHub shows so many of a step, and drops the others without a word.
_MAX_COMMANDS = 10
#: Characters of a message; GitHub cuts off what is far longer.
_MAX_MESSAGE_CHARS = 4000


def github_report(record: RunRecord) -> str:
    """Return a command a line, at most ten: problems of files first, then failures of each kind.

    Where there are more, the last one says how many, and where they are.
    """
    told: list[Fault | Result] = [*record.problems, *record.findings]
    told += by_kind(failures(record))
    shown = told if len(told) <= _MAX_COMMANDS else told[: _MAX_COMMANDS - 1]
    lines = [f"::notice title=onnxopt::{_data(scope(record))}"] if record.left_out else []
    for it in shown:
        if isinstance(it, Fault):
            place, title, message = (
                Location.parse(it.where),
                "invalid",
                clipped(it.what, _MAX_MESSAGE_CHARS),
            )
        else:
            place = it.location
            title = f"{(it.standing or it.outcome).value}: {it.case} on {it.backend}"
            text = clipped(failure_text(it, ELSEWHERE), _MAX_MESSAGE_CHARS, "\n")
            again = f"again: {printable(repeat_command(it, record.options))}"
            message = f"{text}\n{again}" if text else again
        lines.append(_error(place, title, message))
    if told[len(shown) :]:
        what = f"{len(told) - len(shown)} more failures and problems are not annotated"
        where = f"the job's summary has the most telling of all {len(told)}, and {ELSEWHERE}"
        lines.append(f"::error title={_property(what)}::{_data(f'{what}: {where}')}")
    return "".join(f"{line}\n" for line in lines)


def _error(place: Location, title: str, message: str) -> str:
    line = "" if place.line is None else f"line={place.line},"
    where = f"file={_property(shown_path(place.path))},{line}title={_property(title)}"
    return f"::error {where}::{_data(printable(message, lines=True))}"


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
