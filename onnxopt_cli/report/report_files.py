"""Write the reports of a run to files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

from onnxopt_cli.config.run_config import REPORT_FORMATS
from onnxopt_cli.core.files import require_unused, require_writable_file, write_atomically
from onnxopt_cli.core.text import nearest
from onnxopt_cli.errors import OnnxoptError, UsageError
from onnxopt_cli.report.view.result_view import ELSEWHERE
from onnxopt_cli.report.view.run_view import RunView

#: The path of a report that is written to standard output.
STDOUT = "-"
#: In lists of reports, this name denotes the Markdown report that is appended to the summary of a
#: GitHub step. Users cannot request this report by name.
SUMMARY = "step summary"
#: The maximum number of bytes of a step's summary. GitHub discards a longer summary.
_MAX_SUMMARY_BYTES = 1 << 20


def parse_reports(requests: Sequence[str]) -> list[tuple[str, Path]]:
    """Parse ``FORMAT=PATH`` requests; the path ``-`` is standard output.

    Raises:
        UsageError: if a format is unknown, or if a file cannot be written.
    """
    reports = []
    for request in requests:
        name, equals, target = request.partition("=")
        if not equals or not target or name not in REPORT_FORMATS:
            hint = f"FORMAT is {', '.join(REPORT_FORMATS)}, as in --report json=run.json"
            if name in REPORT_FORMATS:
                hint = f"name the file: --report {name}=run.{name}"
            elif equals and target:
                hint = nearest(name, REPORT_FORMATS, hint)
            raise UsageError(f"--report takes FORMAT=PATH, not {request!r}", hint=hint)
        path = Path(target)
        if target != STDOUT:
            require_writable_file("--report", path)
        reports.append((name, path))
    return reports


def require_apart(reports: Sequence[tuple[str, Path]], files: Iterable[Path]) -> None:
    """Require that no report replaces another report, or a file that the run reads or writes.

    Args:
        reports: formats and paths of the reports.
        files: other files of the run; some may not exist.

    Raises:
        UsageError: if a report would replace a file; the message names the first such report.
    """
    # Several reports may share a device or a pipe.
    require_unused(
        (
            (f"--report {name}={path}", path)
            for name, path in reports
            if name != SUMMARY and str(path) != STDOUT and (path.is_file() or not path.exists())
        ),
        files,
    )


def write_all(writes: Iterable[Callable[[], object]]) -> None:
    """Call functions that write files; after an error, the remaining functions are still called.

    Raises:
        UsageError: if a function raises an OnnxoptError. The message contains all messages.
    """
    errors = []
    for write in writes:
        try:
            write()
        except OnnxoptError as error:
            errors.append(error)
    if errors:
        hints = dict.fromkeys(error.hint for error in errors if error.hint)
        raise UsageError("\n".join(error.message for error in errors), hint="\n".join(hints))


def write_report(name: str, path: Path, view: RunView) -> None:
    """Write a report.

    Raises:
        UsageError: if the file cannot be written.
    """
    if name == SUMMARY:
        _append_summary(path, view)
    elif str(path) != STDOUT:
        write_atomically(path, map(str.encode, render(name, view)))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(map(str.encode, render(name, view)))
        sys.stdout.flush()


def render(name: str, view: RunView) -> Iterable[str]:
    """Return the text of a report in pieces.

    Args:
        name: a key of :data:`~onnxopt_cli.config.run_config.REPORT_FORMATS`.
        view: the run.
    """
    module, function = REPORT_FORMATS[name]
    report = getattr(import_module(f"onnxopt_cli.report.{module}"), function)
    text: str | Iterable[str] = report(view)
    return [text] if isinstance(text, str) else text


def _append_summary(path: Path, view: RunView) -> None:
    """Append the Markdown report to the summary of a GitHub step.

    If the summary would become too long, only the verdict is appended.

    Raises:
        UsageError: if the file cannot be written.
    """
    report = "".join(render("markdown", view))
    data = report.encode()
    if path.is_fifo():
        # path.open() would wait without limit for a reader of the pipe.
        write_atomically(path, data)
        return
    try:
        with path.open("ab") as file:
            if file.tell() + len(data) > _MAX_SUMMARY_BYTES:
                title, _, _ = report.partition("\n")
                brief = f"{title}\n\nThis summary is full; {ELSEWHERE}.\n"
                data = brief.encode()
            file.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
