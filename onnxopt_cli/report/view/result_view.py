"""The details of a result as text: message, outputs, worst elements, and the command to repeat."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.config.settings import words_of
from onnxopt_cli.core.result import (
    OUTSIDE_IDS,
    RAISED_AT,
    Diff,
    Outcome,
    Result,
    place,
    short_count,
    short_element,
    short_error,
    wrong_outputs,
)
from onnxopt_cli.core.text import clipped, command_line, printable
from onnxopt_cli.core.tolerance import (
    ErrorBound,
    Tolerance,
    Ulps,
)
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.collect import is_suite

#: The end of a sentence with which a shortened report refers to the complete reports.
ELSEWHERE = "the JSON, JUnit and HTML reports are complete"
# The largest number of characters in a line of a shortened message.
_MAX_LINE_CHARS = 500
# A headline shows at most this number of characters of the first line of a message, and as many of
# its last line.
_MAX_HALF_CHARS = 200
# The largest number of lines of a message that is not shortened.
_MAX_WHOLE_LINES = 3
# The largest number of characters of a command that is shown.
_MAX_COMMAND_CHARS = 3000
# Folders of the onnx package that contain test data.
_ONNX_TEST_FOLDERS = ("onnx", "backend", "test")


@dataclass(frozen=True, slots=True)
class OutputView:
    """The comparison of an output with its expected value, in words for a reader.

    Attributes:
        name: the name of the output; for a part of an output, with the path of the part.
        kind: expected type and shape.
        agrees: whether the output is as expected.
        finding: the result in words: ``expected, but is float64[2]``, ``3 of 4 off``,
            ``as expected``.
        errors: the largest error, followed by error / tolerance; empty if the elements must be
            equal.
        tolerance: the tolerance and its provenance; empty if the elements must be equal.
        provenance: the source of the tolerance, in one or two words; empty without a tolerance.
        needed: the rtol or atol with which the output would pass; empty if unknown, or if no
            tolerance suffices.
        reason: why no better tolerance is known; may be empty.
        inconclusive: number of elements that the case cannot judge.
        header: the column titles of the worst elements; empty without elements.
        elements: a row for each of the worst elements, worst first.
        magnitude: a key for sorting, which is larger for a worse output.
    """

    name: str
    kind: str
    agrees: bool
    finding: str
    errors: tuple[str, ...]
    tolerance: str
    provenance: str
    needed: str
    reason: str
    inconclusive: int
    header: tuple[str, ...]
    elements: tuple[tuple[str, ...], ...]
    magnitude: tuple[bool, float]

    @classmethod
    def of(cls, diff: Diff, result: Result) -> OutputView:
        """Describe an output of a result."""
        header, *elements = _element_rows(diff, result) if diff.worst else [()]
        pairs = {"rtol": diff.needed_rtol, "atol": diff.needed_atol}
        needed = [f"{name} {short_error(number)}" for name, number in pairs.items() if number]
        error = diff.tolerance_used if diff.tolerance else float(diff.mismatches)
        return cls(
            name=diff.name,
            kind=diff.kind,
            agrees=diff.agrees,
            finding=_finding(diff),
            errors=tuple(_errors(diff)),
            tolerance="" if diff.tolerance is None else str(diff.tolerance),
            provenance="" if diff.tolerance is None else diff.tolerance.provenance.value,
            needed=" or ".join(needed),
            reason=getattr(diff.tolerance, "reason", ""),
            inconclusive=diff.inconclusive,
            header=header,
            elements=tuple(elements),
            # A wrong type or shape is worse than any wrong value. NaN counts as 0.
            magnitude=(diff.structure is not None, 0.0 if error != error else error),  # noqa: PLR0124
        )

    @property
    def allowed(self) -> str:
        """The tolerance, and the rtol or atol with which the output would pass; may be empty."""
        enough = f"; would pass with {self.needed}" if self.needed else ""
        return f"allowed: {self.tolerance}{enough}" if self.tolerance else ""


@dataclass(frozen=True)  # The class has no slots, because of its cached properties.
class ResultView:
    """The result of a case on a backend, in words for a reader.

    Attributes:
        result: the result.
        options: options of the run, as in RunRecord.
        backend: the argument of ``-b`` for the backend; empty if this is the backend's name.
    """

    result: Result
    options: Mapping[str, Any]
    backend: str = ""

    @property
    def word(self) -> str:
        """The standing of the result, or the outcome of a result without a standing."""
        return (self.result.standing or self.result.outcome).value

    @property
    def headline(self) -> str:
        """The failure in one line; empty if the result is not a failure."""
        return headline(self.result)

    @property
    def message(self) -> str:
        """The message without the list of wrong outputs."""
        return remark(self.result)

    @property
    def notes(self) -> list[str]:
        """Remarks on the outcome: its reliability, its expectation and its qualification."""
        result = self.result
        return [note for note in (result.flaky, result.expectation, result.note) if note]

    @cached_property
    def outputs(self) -> tuple[OutputView, ...]:
        """The outputs in the order of the model."""
        return tuple(OutputView.of(diff, self.result) for diff in self.result.diffs)

    @cached_property
    def again(self) -> str:
        """A command that runs this case on this backend again, with the same settings."""
        return repeat_command(self.result, self.options, self.backend)

    @property
    def wrong(self) -> list[OutputView]:
        """The outputs that are not as expected."""
        return [output for output in self.outputs if not output.agrees]

    @property
    def agreeing(self) -> list[OutputView]:
        """The outputs that are as expected."""
        return [output for output in self.outputs if output.agrees]

    @property
    def worst_first(self) -> list[OutputView]:
        """The wrong outputs, worst first.

        Outputs with a wrong structure come first, then outputs that the message names, then outputs
        with the largest errors.
        """

        def rank(output: OutputView) -> tuple[bool, bool, float]:
            structure, error = output.magnitude
            return not structure, f" {output.name}[" not in self.message, -error

        return sorted(self.wrong, key=rank)

    def text(self, where: str = "") -> str:
        """Return the details as lines of plain text.

        Args:
            where: see :func:`remark`.
        """
        return failure_text(self.result, where)


def headline(result: Result) -> str:
    """Return a failure in one line; empty if the result is not a failure."""
    first, *more = result.message.strip().split("\n")
    if not first:
        return wrong_outputs(result.diffs, tuple(result.curve))
    if not more:
        return printable(clipped(first, _MAX_LINE_CHARS))
    # The last line of a stack trace is informative, but the last problem of an invalid file is not.
    last = "" if result.outcome is Outcome.INVALID else f" {more[-1].strip()}"
    return printable(f"{clipped(first, _MAX_HALF_CHARS)} ...{clipped(last, _MAX_HALF_CHARS)}")


def remark(result: Result, where: str = "") -> str:
    """Return a result's message without the list of wrong outputs; the list is shown separately.

    Args:
        result: the result; messages about invalid files are never shortened.
        where: words that state where the whole message can be found. A long message is shortened to
            its first line, these words, and its last line. If ``where`` is empty, the message is
            not shortened.
    """
    wrong = wrong_outputs(result.diffs, tuple(result.curve))
    text = result.message.removeprefix(wrong).removeprefix("; ") if wrong else result.message
    if not where or result.outcome is Outcome.INVALID:
        return text
    lines = text.strip().split("\n")
    if len(lines) > _MAX_WHOLE_LINES:
        lines = [lines[0], f"... {len(lines) - 2} lines left out; {where} ...", lines[-1]]
    return "\n".join(clipped(line, _MAX_LINE_CHARS) for line in lines)


def printed_text(printed: str, most: int | None = None) -> str:
    """Return the text that a backend printed, below a heading that separates it from the message.

    If the text is a single line that names the place of an error, the heading is omitted.

    Args:
        printed: see :attr:`Result.printed`.
        most: number of lines at the end that are kept; None for all.
    """
    lines = printed.splitlines()
    if not lines or (len(lines) == 1 and printed.startswith(RAISED_AT)):
        return printed
    if most is not None and len(lines) > most:
        return "\n".join([f"printed by the backend, last {most} lines:", *lines[-most:]])
    return "\n".join(["printed by the backend:", *lines])


def failure_text(result: Result, where: str = "") -> str:
    """Return the details of a failure as lines of plain text.

    Args:
        result: the result.
        where: see :func:`remark`.
    """
    message = remark(result, where)
    lines = [printable(message, lines=True)] if message else []
    lines += [printable(printed_text(result.printed), lines=True)] if result.printed else []
    lines += [printable(note) for note in (result.flaky, result.expectation, result.note) if note]
    for diff in result.wrong:
        output = OutputView.of(diff, result)
        parts = [output.name, output.kind, output.finding, *output.errors]
        lines.append("  ".join(map(printable, parts)))
        lines += [f"  {output.allowed}"] if output.allowed else []
        lines += _aligned([output.header, *output.elements]) if output.elements else []
    return "\n".join(lines)


def _finding(diff: Diff) -> str:
    if diff.structure is not None:
        return f"expected, but {diff.structure}"
    if not diff.mismatches:
        return "as expected"
    return f"{diff.mismatches} of {diff.elements} {'off' if diff.tolerance else 'differ'}"


def _errors(diff: Diff) -> list[str]:
    """Return the largest error of an output in words, and its error / tolerance."""
    if not diff.elements or diff.tolerance is None:
        return []
    absolute, relative = short_error(diff.max_absolute), short_error(diff.max_relative)
    largest = f"max abs {absolute}, rel {relative}"
    # Only finite elements have a distance in ulp.
    if diff.max_ulp is not None and isfinite(diff.max_absolute):
        largest += f", {short_count(diff.max_ulp)} ulp"
    if _is_exact(diff.tolerance):
        return [largest]
    return [largest, f"error / tolerance {short_error(diff.tolerance_used)}"]


def _is_exact(tolerance: Tolerance) -> bool:
    """Return whether error / tolerance is undefined, because the tolerance is zero or in ulp."""
    return isinstance(tolerance, Ulps) or (
        isinstance(tolerance, ErrorBound) and not tolerance.factor
    )


def _element_rows(diff: Diff, result: Result) -> list[tuple[str, ...]]:
    """Return a header row, and a row for each of an output's worst elements, worst first."""
    # An invalid case did not run. Its stored outputs are compared with those of the oracle.
    values = ("computed", "stored") if result.outcome is Outcome.INVALID else ("expected", "actual")
    errors = ("abs error", "rel error", "ulp", "allowed") if diff.tolerance is not None else ()
    rows: list[tuple[str, ...]] = [("at", *values, *errors)]
    for worst in diff.worst:
        row = [place(worst.index, tuple(result.curve))]
        row += [
            printable(short_element(value, diff.kind)) for value in (worst.expected, worst.actual)
        ]
        if diff.tolerance is not None:
            row += [short_error(worst.absolute), short_error(worst.relative)]
            row += [short_count(worst.ulp), short_error(worst.limit)]
        rows.append(tuple(row))
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with the first column left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(["", index.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
        for index, *cells in rows
    ]


def repeat_command(result: Result, options: Mapping[str, Any], backend: str = "") -> str:
    """Return a command that runs one case on one backend again, with the same settings.

    Args:
        result: the result to repeat.
        options: options of the run, as in RunRecord.
        backend: the argument of ``-b`` for the backend; empty if this is the backend's name.
    """
    named = ["-b", backend or result.backend]
    words = ["onnxopt", "run", *_target(result), *named, *verdict_options(options)]
    line = command_line([*words, *operator_options(result.operators)])
    if len(line) > _MAX_COMMAND_CHARS:
        # A truncated command would run other cases.
        return f"# the command has {len(line)} characters and is not shown; -k takes the case's id"
    return line


def verdict_options(options: Mapping[str, Any]) -> list[str]:
    """Return the options of a run that change verdicts, as words of a command line."""
    values = RunConfig.from_json(options).values()
    stated = [
        declared
        for declared in RunConfig.declared()
        if declared.option.repeated and values[declared.name] != declared.default
    ]
    return words_of(stated, values)


def operator_options(names: Iterable[str]) -> list[str]:
    """Return the options ``--operators`` for those operators that are defined in files."""
    file_of = {operator.name: operator.file for operator in registry().operators}
    files = dict.fromkeys(file_of[name] for name in names if file_of.get(name) in registry().files)
    paths = (min(str(file), os.path.relpath(file), key=len) for file in files)
    return [word for path in paths for word in ("--operators", path)]


def path_target(path: Path) -> str:
    """Return a path that the command line does not mistake for an option or a suite."""
    text = str(path)
    return f"./{text}" if text.startswith("-") or is_suite(text) else text


def _target(result: Result) -> list[str]:
    path = result.location.path
    if _is_packaged(result):
        return [result.case]
    if path.name.startswith("test_data_set_"):
        path = path.parent
    target = path_target(path)
    if result.case in OUTSIDE_IDS:
        return [target]
    # The option -k with a complete id selects only this case.
    return [target, "-k", result.case]


def _is_packaged(result: Result) -> bool:
    """Return whether the case is part of onnx or onnxopt; its id then selects it without a path."""
    from onnxopt_cli.suites.catalogue import suite_names

    path, suite = result.location.path, result.case.split("/", 1)[0]
    if path.parent == Path(suite) and not path.exists():
        return suite in suite_names()
    parts = path.parts
    length = len(_ONNX_TEST_FOLDERS)
    return suite.startswith("onnx-") and any(
        parts[start : start + length] == _ONNX_TEST_FOLDERS for start in range(len(parts))
    )
