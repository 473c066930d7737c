"""Report failures as workflow commands, which GitHub shows beside the lines of the case files.

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

#: GitHub shows this many commands of a step, and silently drops the others.
_MAX_COMMANDS = 10
#: GitHub truncates messages that are much longer.
_MAX_MESSAGE_CHARS = 4000


def github_report(record: RunRecord) -> str:
    """Return at most ten commands, one per line: problems of files, then failures of each kind.

    If there are more, the last command states their number and the reports that have them.
    """
    items: list[Fault | Result] = [*record.problems, *record.findings]
    items += by_kind(failures(record))
    annotated_items = items if len(items) <= _MAX_COMMANDS else items[: _MAX_COMMANDS - 1]
    lines = [f"::notice title=onnxopt::{_data(scope(record))}"] if record.left_out else []
    for item in annotated_items:
        if isinstance(item, Fault):
            location = Location.parse(item.where)
            lines.append(_error(location, "invalid", clipped(item.what, _MAX_MESSAGE_CHARS)))
        else:
            title = f"{(item.standing or item.outcome).value}: {item.case} on {item.backend}"
            text = clipped(failure_text(item, ELSEWHERE), _MAX_MESSAGE_CHARS, "\n")
            again = f"again: {printable(repeat_command(item, record.options))}"
            message = f"{text}\n{again}" if text else again
            lines.append(_error(item.location, title, message))
    if hidden := len(items) - len(annotated_items):
        title = f"{hidden} more failures and problems are not annotated"
        where = f"the job's summary has the most telling of all {len(items)}, and {ELSEWHERE}"
        lines.append(f"::error title={_property(title)}::{_data(f'{title}: {where}')}")
    return "".join(f"{line}\n" for line in lines)


def _error(location: Location, title: str, message: str) -> str:
    line = "" if location.line is None else f"line={location.line},"
    file = _property(shown_path(location.path))
    text = _data(printable(message, lines=True))
    return f"::error file={file},{line}title={_property(title)}::{text}"


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
