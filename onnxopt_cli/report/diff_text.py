"""What is wrong with a result and how to see it again, in words that every report shows alike."""

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
from onnxopt_cli.operators.registry import OPERATOR_FILES, OPERATORS

#: Which reports leave nothing out.
ELSEWHERE = "the JSON, JUnit and HTML reports have all"
# Characters of a line of a message that is not shown in full, and of two in one line.
_LINE = 500
_HALF = 200
# A message of so many lines is as short as its first and last one, and what stands for the others.
_FEW_LINES = 3


def finding(diff: Diff) -> str:
    """Say whether an output is as expected: ``is float64[2]``, ``3 of 4 off``."""
    if diff.structure is not None:
        return diff.structure
    if not diff.mismatches:
        return "as expected"
    return f"{diff.mismatches} of {diff.elements} {'off' if diff.tolerance else 'differ'}"


def errors(diff: Diff) -> list[str]:
    """Say how far off an output is at most, and how many times its tolerance that is.

    Returns:
        Nothing where its elements must be equal.
    """
    if not diff.elements or diff.tolerance is None:
        return []
    absolute, relative = numbers.error(diff.max_absolute), numbers.error(diff.max_relative)
    said = [f"max abs {absolute}, rel {relative}"]
    # Only finite elements have a distance in ulp.
    if diff.max_ulp is not None and isfinite(diff.max_absolute):
        said[0] += f", {numbers.count(diff.max_ulp)} ulp"
    if not _is_exact(diff.tolerance):
        said.append(error_over_tolerance(diff.tolerance_used))
    return said


def error_over_tolerance(share: float) -> str:
    """Say how many times its tolerance an error is: 1 is the limit."""
    return f"error / tolerance {numbers.error(share)}"


def _is_exact(tolerance: Tolerance) -> bool:
    """Tell whether errors have no ratio to a tolerance: ulps are counted, or none are allowed."""
    return isinstance(tolerance, Ulps) or (
        isinstance(tolerance, ErrorBound) and not tolerance.factor
    )


def allowed(diff: Diff) -> str:
    """Say what was allowed of an output with a tolerance, and what would have been enough."""
    pairs = {"rtol": diff.needed_rtol, "atol": diff.needed_atol}
    needed = [f"{name} {numbers.error(number)}" for name, number in pairs.items() if number]
    enough = f"; would pass with {' or '.join(needed)}" if needed else ""
    return f"allowed: {diff.tolerance}{enough}"


def worst_rows(diff: Diff, result: Result) -> list[list[str]]:
    """Return the elements of one output that are furthest off, a row each, worst first.

    Before them stands a row with the names of the columns.
    """
    # No backend was asked: what is off is in the case's own file.
    sides = ("computed", "stored") if result.outcome is Outcome.INVALID else ("expected", "actual")
    errors = ("abs error", "rel error", "ulp", "allowed") if diff.tolerance is not None else ()
    rows = [["at", *sides, *errors]]
    for worst in diff.worst:
        values = (worst.expected, worst.actual)
        row = [place(worst.index, tuple(result.curve))]
        row += [printable(numbers.element(value, diff.kind)) for value in values]
        if diff.tolerance is not None:
            row += [numbers.error(worst.absolute), numbers.error(worst.relative)]
            row += [numbers.count(worst.ulp), numbers.error(worst.limit)]
        rows.append(row)
    return rows


def headline(result: Result) -> str:
    """Say in one line what is wrong with a result; empty if nothing is."""
    first, *more = result.message.strip().split("\n")
    if not first:
        return wrong_outputs(result.diffs, tuple(result.curve))
    if not more:
        return printable(clipped(first, _LINE))
    # Of a list of problems the last one says no more than the others.
    last = "" if result.outcome is Outcome.INVALID else f" {more[-1].strip()}"
    return printable(f"{clipped(first, _HALF)} ...{clipped(last, _HALF)}")


def remark(result: Result, where: str = "") -> str:
    """Return what the message says beside which outputs are wrong; for where these are shown.

    Args:
        result: the result; what we say ourselves of a file that is wrong stays whole.
        where: what to read for all of a stack trace, of which only the first and the last line are
            returned; empty if all is to be here.
    """
    wrong = wrong_outputs(result.diffs, tuple(result.curve))
    text = result.message.removeprefix(wrong).removeprefix("; ") if wrong else result.message
    if not where or result.outcome is Outcome.INVALID:
        return text
    lines = text.strip().split("\n")
    if len(lines) > _FEW_LINES:
        lines = [lines[0], f"... {len(lines) - 2} lines left out; {where} ...", lines[-1]]
    return "\n".join(clipped(line, _LINE) for line in lines)


def failure_text(result: Result, where: str = "") -> str:
    """Return what is known of a result that does not conform, as lines of plain text.

    Args:
        result: the result.
        where: what to read for all of a stack trace; empty if all is to be here.
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
    """Return rows as lines: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(["", at.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
        for at, *others in rows
    ]


_LONGEST_COMMAND = 3000
_INSTALLED = ("onnx", "backend", "test")


def repeat_command(result: Result, options: Mapping[str, Any]) -> str:
    """Return a command that runs just this case on just this backend, judged in the same way.

    Args:
        result: the case and the backend.
        options: those of the run, as in RunRecord.
    """
    words = ["onnxopt", "run", *_target(result), "-b", result.backend, *verdict_options(options)]
    line = command_line([*words, *operator_options(result.operators)])
    if len(line) > _LONGEST_COMMAND:
        # Whoever pasted a part of it would run something else.
        return f"# a command of {len(line)} characters, not shown: -k takes the case's id"
    return line


def verdict_options(options: Mapping[str, Any]) -> list[str]:
    """Return the options that change verdicts, as they are typed; those of a run, as above."""
    values = RunConfig.from_json(options).values()
    stated = [
        declared
        for declared in RunConfig.declared()
        if declared.option.repeated and values[declared.name] != declared.default
    ]
    return words_of(stated, values)


def operator_options(names: Iterable[str]) -> list[str]:
    """Return the options that make operators known which are of files."""
    known = {operator.name: operator.file for operator in OPERATORS}
    files = dict.fromkeys(known[name] for name in names if known.get(name) in OPERATOR_FILES)
    paths = (min(str(it), os.path.relpath(it), key=len) for it in files)
    return [word for path in paths for word in ("--operators", path)]


def _target(result: Result) -> list[str]:
    path = result.location.path
    if _comes_with_a_package(result):
        return [result.case]
    if path.name.startswith("test_data_set_"):
        path = path.parent
    # A path may look like an option.
    target = f"./{path}" if str(path).startswith("-") else str(path)
    if result.case in OUTSIDE_IDS:
        return [target]
    # A whole id selects that case alone.
    return [target, "-k", result.case]


def _comes_with_a_package(result: Result) -> bool:
    """Tell whether the case is one of onnx's or ours, which are asked for by their ids."""
    from onnxopt_cli.suites.catalogue import suites

    path, suite = result.location.path, result.case.split("/", 1)[0]
    if suite in suites():
        return path.parent == Path(suite) and not path.exists()
    parts = path.parts
    # Node cases stand in a folder of the cache that is named for their suite.
    return suite.startswith("onnx-") and any(
        parts[start : start + len(_INSTALLED)] == _INSTALLED or part.startswith(f"{suite}-")
        for start, part in enumerate(parts)
    )
