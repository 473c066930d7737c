"""Texts about a failure that all reports share: differences, messages, the command to repeat it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.config.settings import words_of
from onnxopt_cli.core import numbers
from onnxopt_cli.core.diff import (
    Diff,
    place,
    wrong_outputs,
)
from onnxopt_cli.core.result import (
    OUTSIDE_IDS,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import (
    clipped,
    command_line,
    printable,
)
from onnxopt_cli.core.tolerance import (
    ErrorBound,
    Tolerance,
    Ulps,
)
from onnxopt_cli.operators.registry import registry

#: Refers to the reports that leave nothing out.
ELSEWHERE = "the JSON, JUnit and HTML reports have all"
# Characters of a line of a shortened message, and of each of two lines joined in one.
_MAX_LINE_CHARS = 500
_MAX_HALF_CHARS = 200
# Shortening a message to two lines and a remark does not help below this number of lines.
_MAX_WHOLE_LINES = 3


def finding(diff: Diff) -> str:
    """Return whether an output is as expected, in words: ``is float64[2]``, ``3 of 4 off``."""
    if diff.structure is not None:
        return diff.structure
    if not diff.mismatches:
        return "as expected"
    return f"{diff.mismatches} of {diff.elements} {'off' if diff.tolerance else 'differ'}"


def errors(diff: Diff) -> list[str]:
    """Return the largest error of an output in words, and its error / tolerance.

    The list is empty if the elements must be equal.
    """
    if not diff.elements or diff.tolerance is None:
        return []
    absolute, relative = numbers.error(diff.max_absolute), numbers.error(diff.max_relative)
    largest = f"max abs {absolute}, rel {relative}"
    # Only finite elements have a distance in ulp.
    if diff.max_ulp is not None and isfinite(diff.max_absolute):
        largest += f", {numbers.count(diff.max_ulp)} ulp"
    if _is_exact(diff.tolerance):
        return [largest]
    return [largest, error_over_tolerance(diff.tolerance_used)]


def error_over_tolerance(ratio: float) -> str:
    """Return the ratio of an error to its tolerance in words; 1 is the limit."""
    return f"error / tolerance {numbers.error(ratio)}"


def _is_exact(tolerance: Tolerance) -> bool:
    """Return whether error / tolerance is undefined: in ulp, or if no error is allowed."""
    return isinstance(tolerance, Ulps) or (
        isinstance(tolerance, ErrorBound) and not tolerance.factor
    )


def allowed(diff: Diff) -> str:
    """Return the tolerance of an output in words, and an rtol or atol that would be sufficient."""
    pairs = {"rtol": diff.needed_rtol, "atol": diff.needed_atol}
    needed = [f"{name} {numbers.error(number)}" for name, number in pairs.items() if number]
    enough = f"; would pass with {' or '.join(needed)}" if needed else ""
    return f"allowed: {diff.tolerance}{enough}"


def worst_rows(diff: Diff, result: Result) -> list[list[str]]:
    """Return a header row, then a row for each of the worst elements of an output, worst first."""
    # An invalid case did not run; its file contradicts the oracle.
    values = ("computed", "stored") if result.outcome is Outcome.INVALID else ("expected", "actual")
    errors = ("abs error", "rel error", "ulp", "allowed") if diff.tolerance is not None else ()
    rows = [["at", *values, *errors]]
    for worst in diff.worst:
        row = [place(worst.index, tuple(result.curve))]
        row += [
            printable(numbers.element(value, diff.kind)) for value in (worst.expected, worst.actual)
        ]
        if diff.tolerance is not None:
            row += [numbers.error(worst.absolute), numbers.error(worst.relative)]
            row += [numbers.count(worst.ulp), numbers.error(worst.limit)]
        rows.append(row)
    return rows


def headline(result: Result) -> str:
    """Return a failure in one line; empty for a result without a failure."""
    first, *more = result.message.strip().split("\n")
    if not first:
        return wrong_outputs(result.diffs, tuple(result.curve))
    if not more:
        return printable(clipped(first, _MAX_LINE_CHARS))
    # The last line of a stack trace is informative, the last problem of a list is not.
    last = "" if result.outcome is Outcome.INVALID else f" {more[-1].strip()}"
    return printable(f"{clipped(first, _MAX_HALF_CHARS)} ...{clipped(last, _MAX_HALF_CHARS)}")


def remark(result: Result, where: str = "") -> str:
    """Return a result's message without its list of wrong outputs, which are shown separately.

    Args:
        result: the result; messages about invalid files are never shortened.
        where: refers to the place of the whole message. A longer message is shortened to its first
            and last line. Empty for the whole message.
    """
    wrong = wrong_outputs(result.diffs, tuple(result.curve))
    text = result.message.removeprefix(wrong).removeprefix("; ") if wrong else result.message
    if not where or result.outcome is Outcome.INVALID:
        return text
    lines = text.strip().split("\n")
    if len(lines) > _MAX_WHOLE_LINES:
        lines = [lines[0], f"... {len(lines) - 2} lines left out; {where} ...", lines[-1]]
    return "\n".join(clipped(line, _MAX_LINE_CHARS) for line in lines)


def failure_text(result: Result, where: str = "") -> str:
    """Return the details of a failure as lines of plain text.

    Args:
        result: the result.
        where: see :func:`remark`.
    """
    message = remark(result, where)
    lines = [printable(message, lines=True)] if message else []
    lines += [printable(result.printed, lines=True)] if result.printed else []
    lines += [printable(note) for note in (result.flaky, result.expectation, result.note) if note]
    for diff in result.wrong:
        parts = [diff.name, diff.kind, finding(diff), *errors(diff)]
        lines.append("  ".join(map(printable, parts)))
        if diff.tolerance is not None:
            lines.append(f"  {allowed(diff)}")
        if diff.worst:
            lines += _aligned(worst_rows(diff, result))
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with the first column left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(["", index.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
        for index, *cells in rows
    ]


_MAX_COMMAND_CHARS = 3000
# Folders of the test data within the onnx package.
_ONNX_TEST_FOLDERS = ("onnx", "backend", "test")


def repeat_command(result: Result, options: Mapping[str, Any]) -> str:
    """Return a command that runs one case on one backend with the same settings.

    Args:
        result: the result to repeat.
        options: options of the run, as in RunRecord.
    """
    words = ["onnxopt", "run", *_target(result), "-b", result.backend, *verdict_options(options)]
    line = command_line([*words, *operator_options(result.operators)])
    if len(line) > _MAX_COMMAND_CHARS:
        # A truncated command would run something else.
        return f"# a command of {len(line)} characters, not shown: -k takes the case's id"
    return line


def verdict_options(options: Mapping[str, Any]) -> list[str]:
    """Return the words of the options that change verdicts; see :func:`repeat_command`."""
    values = RunConfig.from_json(options).values()
    stated = [
        declared
        for declared in RunConfig.declared()
        if declared.option.repeated and values[declared.name] != declared.default
    ]
    return words_of(stated, values)


def operator_options(names: Iterable[str]) -> list[str]:
    """Return the ``--operators`` options for operators that are defined in files."""
    file_of = {operator.name: operator.file for operator in registry().operators}
    files = dict.fromkeys(file_of[name] for name in names if file_of.get(name) in registry().files)
    paths = (min(str(file), os.path.relpath(file), key=len) for file in files)
    return [word for path in paths for word in ("--operators", path)]


def _target(result: Result) -> list[str]:
    path = result.location.path
    if _is_packaged(result):
        return [result.case]
    if path.name.startswith("test_data_set_"):
        path = path.parent
    # A path that begins with a dash would be taken for an option.
    target = f"./{path}" if str(path).startswith("-") else str(path)
    if result.case in OUTSIDE_IDS:
        return [target]
    # -k with a complete id selects only that case.
    return [target, "-k", result.case]


def _is_packaged(result: Result) -> bool:
    """Return whether the case belongs to a suite of onnx or onnxopt and is selected by its id."""
    from onnxopt_cli.cases.onnx.corpora import CORPORA
    from onnxopt_cli.suites.catalogue import suite_names

    path, suite = result.location.path, result.case.split("/", 1)[0]
    if suite in suite_names() and suite not in CORPORA:
        return path.parent == Path(suite) and not path.exists()
    parts = path.parts
    # Generated node cases are in a folder of the cache that is named after their suite.
    length = len(_ONNX_TEST_FOLDERS)
    return suite.startswith("onnx-") and any(
        parts[start : start + length] == _ONNX_TEST_FOLDERS or part.startswith(f"{suite}-")
        for start, part in enumerate(parts)
    )
