"""Report failures as workflow commands, which GitHub shows beside the relevant lines of code.

If the line of code that raised an error is known and belongs to the repository, GitHub shows the
error beside this line. Every other failure is shown beside its case.

Source: https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onnxopt_cli.core.files import shown_path
from onnxopt_cli.core.result import RAISED_AT, Location, Outcome, Result
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import Fault
from onnxopt_cli.report.view.result_view import ELSEWHERE, ResultView, failure_text
from onnxopt_cli.report.view.run_view import RunView
from onnxopt_cli.report.view.verdict import in_words

#: The largest number of commands that GitHub shows for a step. GitHub drops further commands
#: without a message.
_MAX_COMMANDS = 10
#: The number of characters to which messages are shortened, because GitHub truncates long messages.
_MAX_MESSAGE_CHARS = 4000
# Outcomes whose traceback shows the cause.
_RAISED = frozenset({Outcome.ERROR, Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM})
# Matches the place of an exception as :mod:`onnxopt_cli.backends.host` states it, or a frame of a
# Python traceback.
_FRAME = re.compile(
    rf"^(?:{RAISED_AT}(?P<path>.+):(?P<line>\d{{1,7}})"
    r'|\s*File "(?P<file>[^"]+)", line (?P<number>\d{1,7})\b.*)$',
    re.MULTILINE,
)
# Python's faulthandler prints these words above a traceback, which then begins with the innermost
# frame.
_INNERMOST_FIRST = "most recent call first"
_MAX_SOURCE_BYTES = 4 << 20
# Names of folders with code that is not part of the repository, such as installed packages.
_FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "node_modules"})


def github_report(view: RunView) -> str:
    """Return at most ten commands, one per line: problems of files, then failures of each kind.

    If there are more problems and failures, the last command states how many, and which reports
    contain them.
    """
    record = view.record
    items: list[Fault | ResultView] = [*record.problems, *record.findings, *view.examples]
    annotated_items = items if len(items) <= _MAX_COMMANDS else items[: _MAX_COMMANDS - 1]
    lines = _notices(view)
    for item in annotated_items:
        if isinstance(item, Fault):
            location = Location.parse(item.where)
            lines.append(_error(location, "invalid", clipped(item.what, _MAX_MESSAGE_CHARS)))
        else:
            result = item.result
            title = f"{item.word}: {result.case} on {result.backend}"
            raising_line = _raising_line(result)
            if raising_line and result.printed == f"{RAISED_AT}{raising_line}":
                # GitHub shows the message beside the line that raised the error.
                result = replace(result, printed="")
            text = clipped(failure_text(result, ELSEWHERE), _MAX_MESSAGE_CHARS, "\n")
            again = f"again: {printable(item.again)}"
            message = f"{text}\n{again}" if text else again
            lines.append(_error(raising_line or result.location, title, message))
    if hidden := len(items) - len(annotated_items):
        title = f"{hidden} more failures and problems are not annotated"
        where = f"the job's summary shows the most informative of {len(items)}, and {ELSEWHERE}"
        lines.append(f"::error title={_property(title)}::{_data(f'{title}: {where}')}")
    return "".join(f"{line}\n" for line in lines)


def _notices(view: RunView) -> list[str]:
    """Return a notice with counts, if failures are expected or capabilities are left out."""
    parts = [in_words(view.counts)] if view.expected_failures else []
    parts += [view.scope] if view.record.left_out else []
    return [f"::notice title=onnxopt::{_data('; '.join(parts))}"] if parts else []


def _raising_line(result: Result) -> Location | None:
    """Return the innermost frame of a traceback that belongs to the repository, or None.

    A backend may print any text. Therefore, a frame counts only if the repository has its file and
    line.
    """
    if result.outcome not in _RAISED:
        return None
    for text in (result.printed, result.message):
        locations = [*_locations(text)]
        if _INNERMOST_FIRST not in text:
            locations.reverse()
        for location in locations:
            if _is_in_repository(location):
                return location
    return None


def _locations(text: str) -> Iterator[Location]:
    for match in _FRAME.finditer(text):
        path, line = match["path"] or match["file"], match["line"] or match["number"]
        yield Location(Path(path), int(line))


def _is_in_repository(location: Location) -> bool:
    """Return whether a line exists in a file of the repository.

    A symbolic link to a file outside of the repository does not count.
    """
    with suppress(Malformed, OSError, ValueError):
        folders = location.path.resolve().relative_to(Path.cwd().resolve()).parts[:-1]
        if any(name.startswith(".") or name in _FOREIGN_FOLDERS for name in folders):
            return False
        source = read_regular_file(location.path, _MAX_SOURCE_BYTES)
        return 1 <= (location.line or 0) <= len(source.splitlines())
    return False


def _error(location: Location, title: str, message: str) -> str:
    line = "" if location.line is None else f"line={location.line},"
    file = _property(shown_path(location.path))
    text = _data(printable(message, lines=True))
    return f"::error file={file},{line}title={_property(title)}::{text}"


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
