"""Render a scoreboard as a static site, which works without a server, a network or scripts.

::

    index.html                backends, and the matrix of operators by backends
    accuracy.html             bits lost by operator and backend
    backends/NAME.html        failures by cause, history by version
    operators/NAME.html       failures by backend and cause, all cases
    cases/NAME.html#CASE      the cases of an operator; the address selects one
    badges/NAME.json          shields.io endpoints

Untrusted text is escaped, as described in :mod:`onnxopt_cli.report.html`. The content security
policy of each page allows only the style and the script of the site.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment

from onnxopt_cli import __version__
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import FreeNames, clipped, printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import UsageError
from onnxopt_cli.report.html import template_environment
from onnxopt_cli.report.view.causes import FailureGroup
from onnxopt_cli.report.view.result_view import ResultView
from onnxopt_cli.report.view.run_view import Reason, RunView
from onnxopt_cli.scoreboard.result_store import make_folder
from onnxopt_cli.scoreboard.safe_names import anchor, base_name
from onnxopt_cli.scoreboard.score_model import (
    BitsLost,
    Column,
    Score,
    Scores,
    is_contested,
)
from onnxopt_cli.scoreboard.scoreboard_file import ScoreboardFile

_PAGES = files("onnxopt_cli.scoreboard") / "pages"
_ASSETS = ("scoreboard.css", "scoreboard.js")
# The name of the file that lists the files of the site. A listed file is removed if the next site
# that is written does not contain it.
_LIST = "scoreboard-files.json"
_MAX_LIST_BYTES = 64 << 20
_FOLDERS = ("backends", "operators", "cases", "badges")
_LISTED_NAME = re.compile(
    rf"(?:(?:{'|'.join(_FOLDERS)})/)?[a-z0-9_][a-z0-9._-]*\.(?:html|json|css|js)"
)
# The number of characters to which messages are shortened, to limit the size of the site. Messages
# of failures are not shortened; instead, the page folds the remainder.
_MAX_MESSAGE_CHARS = 300
# If a failure has no outputs, the page shows this number of characters of its message, and folds
# the remainder.
_MAX_BRIEF_CHARS = 150
# A message with at most this number of characters is repeated for each result that has it. A longer
# message is shown only once.
_MAX_REPEATED_CHARS = 80
# The content of a case is shortened to this number of characters, to limit the size of the site.
_MAX_CONTENT_CHARS = 500
# The largest number of characters of an input's values. For a longer input, only the type and shape
# are shown.
_MAX_VALUE_CHARS = 80
# The colors of a badge, with the smallest share of passes for each color.
_BADGE_COLORS = ((1.0, "brightgreen"), (0.9, "green"), (0.75, "yellowgreen"), (0.5, "yellow"))
# Matches an option that sets an environment variable; the value of the variable may be a secret.
_VARIABLE = re.compile(r"(env\.[\w.-]+=)[^,]*")


def check_available(site: Path) -> None:
    """Require that the site can be written.

    Raises:
        UsageError: if the folder contains files but no site, or if links lead out of the folder.
    """
    make_folder(site)
    if not (site / _LIST).is_file() and any(site.iterdir()):
        raise UsageError(
            f"{printable(str(site))} is not empty, and not the site of a scoreboard",
            hint="name another folder as site",
        )
    for folder in _FOLDERS:
        if (site / folder).is_symlink():
            raise UsageError(
                f"{printable(str(site / folder))} is a link; pages would be written elsewhere",
                hint="remove the link, or name another folder as site",
            )


def write_site(scoreboard: ScoreboardFile, scores: Scores) -> None:
    """Write all pages.

    Pages of an earlier site that no longer exist are removed.

    Raises:
        UsageError: if a file cannot be written or removed.
    """
    site = scoreboard.site
    outdated = _listed_files(site)
    contents = dict(_Site(scoreboard.title, scores).contents())
    # Until the site is complete, the list names the files of both the earlier and the new site.
    _write_list(site, outdated | contents.keys())
    for folder in _FOLDERS:
        make_folder(site / folder)
    for name, text in contents.items():
        write_atomically(site / name, text.encode("utf-8"))
    for name in outdated - contents.keys():
        _remove(site / name)
    _write_list(site, contents.keys())


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot remove {printable(str(path))}: {reason}") from error


def _write_list(site: Path, names: Iterable[str]) -> None:
    write_atomically(site / _LIST, json.dumps(sorted(names), indent=0).encode())


def _listed_files(site: Path) -> set[str]:
    """Return the listed files of an earlier site.

    Names that a file of a site cannot have are skipped.
    """
    try:
        names = json.loads(read_regular_file(site / _LIST, _MAX_LIST_BYTES))
    except (Malformed, ValueError, RecursionError):
        return set()
    if not isinstance(names, list):
        return set()
    return {name for name in names if isinstance(name, str) and _LISTED_NAME.fullmatch(name)}


# The CSS class of an outcome, its text, and the labels of the backends with this outcome.
OutcomeOn = tuple[str, str, list[str]]


@dataclass(frozen=True, slots=True)
class CauseView:
    """Failures or unsupported cases with a common cause.

    Attributes:
        text: the cause.
        command: a command that shows the effect of a known mistake; may be empty.
        results: the results, the most informative one first.
    """

    text: str
    command: str
    results: Sequence[Result]

    @classmethod
    def of_failures(cls, group: FailureGroup) -> CauseView:
        """Describe a group of failures with a common cause."""
        return cls(group.cause, group.more, group.results)

    @classmethod
    def of_reason(cls, reason: Reason) -> CauseView:
        """Describe cases that are unsupported, do not apply or did not run."""
        return cls(f"{reason.outcome}: {reason.text}", "", reason.results)


class _Site:
    """Renders the pages of a scoreboard.

    Args:
        title: the title of the site.
        scores: the results of all backends.
    """

    def __init__(self, title: str, scores: Scores) -> None:
        self._title, self._scores = title, scores
        free = FreeNames("{}-{}", alike=str.lower)
        self._row_files = {row: free(base_name(row)) for row in scores.rows}
        free = FreeNames("{}-{}", alike=str.lower)
        self._column_files = {
            column.label: free(base_name(column.label)) for column in scores.columns
        }
        self._rows_of_cases = {case: row for row, cases in scores.rows.items() for case in cases}
        self._environment = self._make_environment()

    def _make_environment(self) -> Environment:
        environment = template_environment("onnxopt_cli.scoreboard", "pages")
        environment.globals |= {
            "title": self._title,
            "scores": self._scores,
            "now": datetime.now(UTC).strftime("%Y-%m-%d"),
            "onnxopt_version": __version__,
            "row_file": self._row_files.__getitem__,
            "column_file": self._column_files.__getitem__,
            "case_link": self._case_link,
            "anchor": anchor,
            "details": self._details,
            "split_message": _split_message,
            "brief": self._brief,
            "by_folder": _by_folder,
            "by_row": self._by_row,
            "is_contested": is_contested,
            "pass_": Outcome.PASS,
            "infinity": float("inf"),
        }
        environment.filters |= {
            "clip": _clip,
            "public": _public,
            "bits": _bits,
        }
        return environment

    def contents(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each file."""
        for name in _ASSETS:
            yield name, (_PAGES / name).read_text("utf-8")
        yield "index.html", self._index()
        yield "accuracy.html", self._accuracy()
        for column in self._scores.columns:
            name = self._column_files[column.label]
            yield f"backends/{name}.html", self._backend(column)
            yield from self._badges(column, name)
        for row, name in self._row_files.items():
            yield f"operators/{name}.html", self._operator(row)
            yield f"cases/{name}.html", self._cases(row)

    def _render(self, page: str, heading: str, root: str, **values: Any) -> str:
        template = self._environment.get_template(page)
        return template.render(heading=heading, root=root, **values) + "\n"

    def _index(self) -> str:
        scores = self._scores
        matrix = [
            (row, [(column, scores.score(column, cases)) for column in scores.columns])
            for row, cases in scores.rows.items()
        ]
        return self._render(
            "index.html",
            self._title,
            "",
            matrix=matrix,
            totals=[
                (
                    column,
                    scores.total(column),
                    [
                        (suite, scores.score(column, cases))
                        for suite, cases in scores.suites.items()
                    ],
                )
                for column in scores.columns
            ],
            agreements=self._agreements(),
            is_mixed=_is_mixed,
        )

    def _agreements(self) -> list[tuple[tuple[str, ...], list[str]]]:
        """Return each set of backends with equal wrong results, and the cases of these results."""
        cases: dict[tuple[str, ...], list[str]] = {}
        for (label, case), others in self._scores.agreements.items():
            labels = tuple(
                column.label
                for column in self._scores.columns
                if column.label == label or column.label in others
            )
            # A set is listed once for each of its backends. Only the entry of the first backend is
            # used.
            if labels[0] == label:
                cases.setdefault(labels, []).append(case)
        return sorted(cases.items(), key=lambda item: -len(item[1]))

    def _accuracy(self) -> str:
        rows = []
        for row, cases in self._scores.rows.items():
            cells = [
                (
                    column,
                    BitsLost.of(column.results[case] for case in cases if case in column.results),
                )
                for column in self._scores.columns
            ]
            if any(bits for _, bits in cells):
                rows.append((row, cells))
        return self._render("accuracy.html", "Accuracy", "", rows=rows)

    def _backend(self, column: Column) -> str:
        scores = self._scores
        view = column.view(scores.cases)
        history = []
        for place, version in enumerate(column.history):
            earlier = column.history[place + 1 : place + 2]
            changes = version.changes(earlier[0]) if earlier else []
            by_suite = [(suite, version.score(cases)) for suite, cases in scores.suites.items()]
            shown_changes = [change for change in changes if change[0] in scores.cases]
            history.append((version, by_suite, shown_changes))
        return self._render(
            "backend.html",
            column.label,
            "../",
            column=column,
            total=scores.total(column),
            suites=[(suite, scores.score(column, ids)) for suite, ids in scores.suites.items()],
            failures=_failures(view),
            reasons=_reasons(view),
            history=history,
            badges=self._badge_names(self._column_files[column.label]),
        )

    def _operator(self, row: str) -> str:
        scores, cases = self._scores, self._scores.rows[row]
        sections = []
        for column in scores.columns:
            view = column.view(cases)
            results = [column.results[case] for case in cases if case in column.results]
            history = [
                (version, score)
                for version in column.history
                if (score := version.score(cases)).total
            ]
            sections.append(
                (
                    column,
                    scores.score(column, cases),
                    _failures(view),
                    _reasons(view),
                    BitsLost.of(results),
                    history,
                )
            )
        return self._render(
            "operator.html",
            row,
            "../",
            row=row,
            sections=sections,
            cases_by_outcome=self._cases_by_outcome(cases),
        )

    def _cases_by_outcome(self, cases: Sequence[str]) -> list[tuple[list[OutcomeOn], list[str]]]:
        """Group cases by their outcomes: the cases of a group agree on every backend."""
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for case in cases:
            outcomes = tuple(self._outcome(column, case) for column in self._scores.columns)
            groups.setdefault(outcomes, []).append(case)
        described = []
        for outcomes, ids in groups.items():
            labels: dict[tuple[str, str], list[str]] = {}
            for outcome, column in zip(outcomes, self._scores.columns, strict=True):
                labels.setdefault(outcome, []).append(column.label)
            described.append(([(*outcome, names) for outcome, names in labels.items()], ids))
        return described

    def _outcome(self, column: Column, case: str) -> tuple[str, str]:
        """Return the CSS class and the text of a case's outcome on a backend."""
        result = column.results.get(case)
        if result is None:
            return "none", "not started" if column.problem else "not run"
        contested = " ?" if is_contested(result) else ""
        agreeing = " =" if (column.label, case) in self._scores.agreements else ""
        return result.outcome.value, f"{result.outcome.value}{contested}{agreeing}"

    def _cases(self, row: str) -> str:
        cases = [self._scores.cases[case] for case in self._scores.rows[row]]
        sections = []
        for case in cases:
            passing, missing = [], []
            others: list[tuple[Column, Result]] = []
            for column in self._scores.columns:
                result = column.results.get(case.id)
                if result is None:
                    missing.append(column.label)
                elif _is_plain_pass(result):
                    passing.append(column.label)
                else:
                    others.append((column, result))
            content = _content(case.about, (result for _, result in others))
            sections.append(
                (case, content, self._brief(passing), missing, _with_equal_content(others))
            )
        counts = Counter(
            "".join(_split_message(self._details(column, result)))
            for *_, others in sections
            for _, column, result in others
        )
        repeated = {
            message
            for message, count in counts.items()
            if count > 1 and len(message) > _MAX_REPEATED_CHARS
        }
        return self._render(
            "cases.html", f"Cases of {row}", "../", row=row, cases=sections, repeated=repeated
        )

    def _brief(self, labels: Sequence[str]) -> str:
        """Return the shorter of two texts: the labels, or "all except" the remaining labels."""
        if not labels:
            return ""
        other_labels = [
            column.label for column in self._scores.columns if column.label not in set(labels)
        ]
        if not other_labels:
            return "all backends" if len(labels) > 1 else labels[0]
        return min(", ".join(labels), f"all except {', '.join(other_labels)}", key=len)

    def _case_link(self, case: str) -> str:
        """Return the address of a case's section, relative to the root of the site."""
        name = self._row_files[self._rows_of_cases[case]]
        return f"cases/{name}.html#{quote(anchor(case))}"

    def _details(self, column: Column, result: Result) -> ResultView:
        return ResultView(result, column.record.options)

    def _by_row(self, results: Sequence[Result]) -> list[tuple[str, int]]:
        """Return the number of results in each row, the largest number first.

        Results outside of cases are not counted.
        """
        rows = (self._rows_of_cases.get(result.case) for result in results)
        return Counter(row for row in rows if row is not None).most_common()

    def _badge_names(self, name: str) -> Mapping[str, str]:
        """Return the names of a backend's badges by suite; the key "" means all suites together."""
        suites = [*self._scores.suites] if len(self._scores.suites) > 1 else []
        free = FreeNames("{}-{}", taken=[name], alike=str.lower)
        return {"": name} | {suite: free(f"{name}.{base_name(suite)}") for suite in suites}

    def _badges(self, column: Column, name: str) -> Iterator[tuple[str, str]]:
        for suite, badge in self._badge_names(name).items():
            cases = self._scores.suites[suite] if suite else [*self._scores.cases]
            label = f"{column.label} {suite}".strip()
            yield f"badges/{badge}.json", badge_json(label, self._scores.score(column, cases))


def badge_json(label: str, score: Score) -> str:
    """Return a score as JSON for shields.io."""
    share = score.passed / score.total if score.total else 0.0
    color = next((color for least, color in _BADGE_COLORS if share >= least), "orange")
    message = f"{score.passed} of {score.total} pass"
    if score.problem:
        color, message = "lightgrey", "could not be started"
    elif score.missing:
        color, message = "lightgrey", f"{message}, {score.missing} not run"
    badge = {
        "schemaVersion": 1,
        "label": printable(label),
        "message": message,
        "color": color,
        "isError": bool(score.problem),
    }
    return json.dumps(badge) + "\n"


def _failures(view: RunView) -> list[CauseView]:
    return [*map(CauseView.of_failures, view.causes)]


def _reasons(view: RunView) -> list[CauseView]:
    return [*map(CauseView.of_reason, view.reasons)]


def _is_plain_pass(result: Result) -> bool:
    """Return whether a result is a pass without a note."""
    qualified = result.note or result.lowered or result.opset
    return result.outcome is Outcome.PASS and not qualified


def _content(about: str, results: Iterable[Result]) -> str:
    """Return the operators, attributes and inputs of a case, as the first result states them.

    Args:
        about: the description of the case. The result leaves out parts that the description states.
        results: the results of the case.
    """
    content = next((result.content for result in results if result.content), None)
    if content is None:
        return ""
    parts = [
        f"{node} {attributes}".strip()
        for node, attributes in content.nodes
        if not (_states(about, node) and _states(about, attributes))
    ]
    for name, kind, values in content.inputs:
        shown_values = values if len(values) <= _MAX_VALUE_CHARS else ""
        if not _states(about, f"{name} {kind}"):
            parts.append(f"{name}: {kind} {shown_values}".strip())
        elif shown_values:
            parts.append(f"{name} = {shown_values}")
    return clipped("; ".join(parts), _MAX_CONTENT_CHARS)


def _states(about: str, fact: str) -> bool:
    """Return whether a description contains a text as complete words and numbers."""
    return not fact or re.search(rf"(?<!\w){re.escape(fact)}(?!\.?\w)", about) is not None


def _with_equal_content(
    results: Iterable[tuple[Column, Result]],
) -> list[tuple[list[str], Column, Result]]:
    """Merge results that differ only in the backend.

    Returns:
        For each distinct result, the labels of its backends, the first of these backends, and the
        result.
    """
    merged: dict[str, tuple[list[str], Column, Result]] = {}
    for column, result in results:
        shown_fields = (result.outcome, result.lowered, result.opset, result.note)
        content = repr((shown_fields, result.message, result.diffs))
        merged.setdefault(content, ([], column, result))[0].append(column.label)
    return [*merged.values()]


def _by_folder(cases: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Group case ids by their first part.

    Returns:
        For each group, the longest folder that all ids share, and the ids with their names in this
        folder.
    """
    groups: dict[str, list[str]] = {}
    for case in cases:
        groups.setdefault(case.partition("/")[0], []).append(case)
    named = []
    for ids in groups.values():
        columns = zip(*(case.split("/")[:-1] for case in ids), strict=False)
        shared = takewhile(lambda parts: len(set(parts)) == 1, columns) if len(ids) > 1 else ()
        folder = "".join(f"{parts[0]}/" for parts in shared)
        named.append((folder, [(case, case[len(folder) :]) for case in ids]))
    return named


def _is_mixed(cells: Sequence[tuple[Column, Score]]) -> bool:
    """Return whether the backends have different scores in a row of the matrix.

    Backends that did not run are ignored.
    """
    return len({score.look for _, score in cells if score.look != "none"}) > 1


def _public(text: str) -> str:
    """Hide the values of environment variables in a specification or command."""
    return _VARIABLE.sub(r"\1...", text)


def _split_message(view: ResultView) -> tuple[str, str]:
    """Split a message into its beginning and the remainder, which the page folds."""
    message = _public(view.message).strip()
    longest = _MAX_MESSAGE_CHARS if view.outputs else _MAX_BRIEF_CHARS
    return message[:longest], message[longest:]


def _clip(text: str) -> str:
    return clipped(text, _MAX_MESSAGE_CHARS)


def _bits(number: float) -> str:
    return "not finite" if number == float("inf") else f"{number:.1f}"
