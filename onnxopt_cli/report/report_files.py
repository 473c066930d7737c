"""The reports that a run writes to files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from unicodedata import normalize

from onnxopt_cli.core.files import require_place, write_atomically
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.text import nearest
from onnxopt_cli.errors import OnnxoptError, UsageError
from onnxopt_cli.report.diff_text import ELSEWHERE
from onnxopt_cli.report.verdict import verdict

#: The formats; the module of each is imported when it is asked for.
FORMATS = ("json", "junit", "xunit", "markdown", "github", "badge", "html")

_STDOUT = "-"
#: Not a format: the Markdown report, appended to the summary of a GitHub step.
SUMMARY = "step summary"
#: GitHub drops the whole summary of a step that is larger.
_MOST_SUMMARY = 1 << 20
# Formats whose module has another name; xunit is junit for a stricter reader.
_MODULES = {"json": "saved_run", "xunit": "junit", "badge": "verdict"}


def parse_reports(requests: Sequence[str]) -> list[tuple[str, Path]]:
    """Read ``FORMAT=PATH`` requests, where the path ``-`` is standard output.

    Raises:
        UsageError: if a format is unknown or not installed, or the path's folder cannot be written
            to.
    """
    wanted = []
    for request in requests:
        name, equals, target = request.partition("=")
        if not equals or not target or name not in FORMATS:
            known = f"FORMAT is {', '.join(FORMATS)}, as in --report json=run.json"
            raise UsageError(
                f"--report takes FORMAT=PATH, not {request!r}", hint=nearest(name, FORMATS, known)
            )
        path = Path(target)
        require_place("--report", path)
        if name == "html":
            from onnxopt_cli.report.html import check_available

            check_available()
        wanted.append((name, path))
    return wanted


def require_apart(wanted: Sequence[tuple[str, Path]], others: Iterable[Path]) -> None:
    """See that no report takes the place of a file that is read or written beside it.

    Args:
        wanted: the reports.
        others: those files; some may not exist.

    Raises:
        UsageError: naming the first report that does.
    """
    taken = set(map(_place, others))
    for name, path in wanted:
        # Devices and pipes take more than one.
        if name == SUMMARY or str(path) == _STDOUT or (path.exists() and not path.is_file()):
            continue
        if _place(path) in taken:
            raise UsageError(
                f"--report {name}={path} would replace a file that is read or written beside it",
                hint="give the report another path",
            )
        taken.add(_place(path))


def _place(path: Path) -> str:
    """Return the same for all paths of one file, on a file system that ignores case, too."""
    return normalize("NFC", os.path.realpath(path)).casefold()


def write_all(writes: Iterable[Callable[[], object]]) -> None:
    """Call what writes something, the rest of it too where something cannot be written.

    Raises:
        UsageError: with all that could not be written.
    """
    failed = []
    for write in writes:
        try:
            write()
        except OnnxoptError as error:
            failed.append(error)
    if failed:
        hints = dict.fromkeys(error.hint for error in failed if error.hint)
        raise UsageError("\n".join(it.message for it in failed), hint="\n".join(hints))


def write_report(name: str, path: Path, record: RunRecord) -> None:
    """Write a report.

    Raises:
        UsageError: if it cannot be written.
    """
    if name == SUMMARY:
        _append_summary(path, record)
    elif str(path) != _STDOUT:
        write_atomically(path, map(str.encode, render(name, record)))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(map(str.encode, render(name, record)))
        sys.stdout.flush()


def render(form: str, record: RunRecord) -> Iterable[str]:
    """Return a run in one of the formats, in pieces."""
    module = import_module(f"onnxopt_cli.report.{_MODULES.get(form, form)}")
    text: str | Iterable[str] = getattr(module, f"{form}_report")(record)
    return [text] if isinstance(text, str) else text


def _append_summary(path: Path, record: RunRecord) -> None:
    """Append the Markdown report to the summary of a GitHub step.

    Where many runs have filled it, the verdict alone.

    Raises:
        UsageError: if the file cannot be written.
    """
    data = "".join(render("markdown", record)).encode()
    if path.is_fifo():
        # Opening it as a file would wait for a reader for ever.
        write_atomically(path, data)
        return
    try:
        with path.open("ab") as file:
            if file.tell() + len(data) > _MOST_SUMMARY:
                brief = f"# onnxopt {verdict(record)}\n\nThis summary is full; {ELSEWHERE}.\n"
                data = brief.encode()
            file.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
