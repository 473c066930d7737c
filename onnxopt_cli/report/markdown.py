"""Report a run as Markdown for GitHub and GitLab.

Untrusted text occurs only in code spans, code fences and escaped HTML, where it cannot form links,
mentions, tables or tags.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.report.view.accuracy import COLUMNS, accuracy_rows
from onnxopt_cli.report.view.causes import FailureGroup
from onnxopt_cli.report.view.comparison import Direction
from onnxopt_cli.report.view.result_view import ELSEWHERE, ResultView
from onnxopt_cli.report.view.run_view import NEUTRAL_SUBJECT, RunView
from onnxopt_cli.report.view.verdict import count_columns, counted, in_words

#: GitHub accepts comments of up to 65,536 characters, and step summaries of up to 1 MiB.
_MAX_REPORT_CHARS = 60_000
#: The largest number of characters of each of these parts: causes, counts, and problems of files.
_MAX_PART_CHARS = 8_000
#: The largest number of characters of each of these lists: changes, expected failures, and reasons.
_MAX_LIST_CHARS = 3_000
#: Number of characters that are reserved for the parts after the failures.
_REST_CHARS = 2_500
#: The largest number of characters of the text of a failure.
_MAX_TEXT_CHARS = 4_000
#: The largest number of characters of the description of a cause.
_MAX_CAUSE_CHARS = 1_000
#: The largest number of characters of a name.
_MAX_NAME_CHARS = 300


def markdown_report(view: RunView) -> str:
    """Return a run as Markdown text of at most 60,000 characters.

    The text contains the causes, the counts, the problems of files, and failures of each kind. It
    states the number of failures that do not fit, and contains the accuracy if there is room.
    """
    parts = [
        _title(view),
        in_words(view.counts),
        _code(view.scope, _MAX_CAUSE_CHARS),
    ]
    parts += [*_changes(view), *_causes(view)]
    parts.append("\n".join(f"- {_code(line, _MAX_CAUSE_CHARS)}" for line in view.agreements))
    parts += [_backends(view), _code(view.fallback, _MAX_CAUSE_CHARS), _capabilities(view)]
    parts += [*_problems(view), *_reasons(view), *_expected_failures(view)]
    parts += _failures(view, _room(parts) - _REST_CHARS)
    versions = ", ".join(f"{name} {version}" for name, version in view.record.versions.items())
    last = f"<sub>{_code(versions)}</sub>"
    accuracy_part = _accuracy(view)
    if len(accuracy_part) + len(last) > _room(parts):
        accuracy_part = f"The table of accuracy is too long for this report; {ELSEWHERE}."
    parts += [accuracy_part, last]
    return "\n\n".join(filter(None, parts)) + "\n"


def _title(view: RunView) -> str:
    """Return the heading of a report: the backend, if there is only one, and the verdict."""
    subject = view.subject
    return f"# {subject if subject == NEUTRAL_SUBJECT else _code(subject)} {view.verdict}"


def _room(parts: Sequence[str]) -> int:
    """Return the number of characters that remain for further parts of the report."""
    return _MAX_REPORT_CHARS - sum(len(part) + 2 for part in parts) - 4


def _fitting(parts: Iterable[str], room: int, between: int) -> list[str]:
    """Return the first parts that fit into ``room`` characters with separators between them."""
    fitting = []
    for part in parts:
        room -= len(part) + between
        if room < 0:
            break
        fitting.append(part)
    return fitting


def _listed(lines: Sequence[str], more: str, room: int = _MAX_PART_CHARS) -> list[str]:
    """Return the lines that fit into ``room`` characters, and a line that counts all others."""
    fitting = _fitting(lines, room, len("\n"))
    hidden = len(lines) - len(fitting)
    return [*fitting, more.format(hidden)] if hidden else fitting


def _changes(view: RunView) -> list[str]:
    """Return a list of improvements and deteriorations since the baseline.

    All other changes are only counted.
    """
    if view.baseline is None:
        return []
    ranked = [
        change for change in view.changes if change.direction in {Direction.WORSE, Direction.BETTER}
    ]
    lines = [
        f"- {change.direction.value} {_code(change.case)} on {_code(change.backend)}: "
        f"{_code(change.what)} {_code(change.before or '-')} before, {_code(change.now or '-')} now"
        for change in ranked
    ]
    other_count = len(view.changes) - len(ranked)
    lines += [f"- {other_count} other differences"] if other_count else []
    listed = _listed(lines, f"- {{}} more changes; {ELSEWHERE}", _MAX_LIST_CHARS)
    return [
        "**Changes since the earlier run:**",
        "\n".join(listed) if lines else "No outcome and no error changed.",
    ]


def _causes(view: RunView) -> list[str]:
    """Return lists of the causes of failures, and of explanations that are incomplete."""
    lines = _cause_lines(view.causes, several=len(view.backends) > 1)
    explanations = [
        f"- {_code(explanation.backend)}, {_code(explanation.operator)}: "
        f"{_code(explanation.text, _MAX_CAUSE_CHARS)}"
        for explanation in view.open_explanations
    ]
    count = len(view.failures)
    title = f"**{count} failure{'s' * (count > 1)}, by cause:**" if lines else ""
    return [
        title,
        "\n".join(_listed(lines, f"- {{}} more causes; {ELSEWHERE}")),
        "\n".join(_listed(explanations, f"- {{}} more explanations; {ELSEWHERE}")),
    ]


def _cause_lines(groups: Iterable[FailureGroup], *, several: bool) -> list[str]:
    lines = []
    for group in groups:
        on = f" on {_code(group.backend)}" if several and group.backend else ""
        example = _code(group.results[0].case)
        cause = _code(group.cause, _MAX_CAUSE_CHARS)
        lines.append(f"- **{len(group.results)}** {cause}{on}, as {example}")
    return lines


def _expected_failures(view: RunView) -> list[str]:
    """Return a list of the causes of expected failures."""
    if not view.expected_failures:
        return []
    count = len(view.expected_failures)
    lines = _cause_lines(view.expected_causes, several=len(view.backends) > 1)
    listed = _listed(lines, f"- {{}} more causes; {ELSEWHERE}", _MAX_LIST_CHARS)
    title = f"## {count} expected failure{'s' * (count > 1)}, by cause"
    return [title, "\n".join(listed)]


def _reasons(view: RunView) -> list[str]:
    """Return a list of the reasons why cases are unsupported, do not apply or did not run."""
    lines = [
        f"- {len(reason.results)} {reason.outcome} on {_code(reason.backend)}: "
        f"{_code(reason.text, _MAX_CAUSE_CHARS)}"
        for reason in view.reasons
    ]
    listed = _listed(lines, f"- {{}} more reasons; {ELSEWHERE}", _MAX_LIST_CHARS)
    return ["## Cases without a result", "\n".join(listed)] if lines else []


def _backends(view: RunView) -> str:
    used, cells = count_columns({backend.name: backend.counts for backend in view.backends})
    header = ["backend", "version", *used, "lowered", ""]
    rows = [
        [
            _code(name),
            _code(backend.version),
            *numbers,
            str(backend.lowered or ""),
            backend.conformity.value,
        ]
        for backend, (name, *numbers) in zip(view.backends, cells, strict=True)
    ]
    head, rule, *lines = _table([header, *rows], left=2)
    return "\n".join((head, rule, *_listed(lines, f"\n{{}} more backends; {ELSEWHERE}.")))


def _capabilities(view: RunView) -> str:
    """Return a table of outcomes by capability."""
    used, counts = count_columns(view.capabilities)
    rows = [[_code(name), *numbers] for name, *numbers in counts]
    return "\n".join(_table([["cases that need", *used], *rows], left=1)) if rows else ""


def _problems(view: RunView) -> list[str]:
    problems = [*view.record.problems, *view.record.findings]
    lines = [f"- {_code(problem.where)}: {_code(problem.what)}" for problem in problems]
    listed = "\n".join(_listed(lines, "- and {} more"))
    return ["## Case and expectation files", listed] if lines else []


def _failures(view: RunView, room: int) -> list[str]:
    """Return failures as folded sections, and the number of failures that do not fit."""
    examples = view.examples
    if not examples:
        return []
    title = f"## {len(examples)} not as expected"
    fitting = _fitting(map(_failure, examples), room - len(title) - 2, len("\n\n"))
    hidden = examples[len(fitting) :]
    if not hidden:
        return [title, *fitting]
    counts = in_words(counted(Outcome, (example.result.outcome for example in hidden)))
    return [title, *fitting, f"{len(hidden)} more are not shown here ({counts}); {ELSEWHERE}."]


def _failure(view: ResultView) -> str:
    result = view.result
    line = html.escape(view.headline[:_MAX_NAME_CHARS])
    text = clipped(view.text(ELSEWHERE), _MAX_TEXT_CHARS, "\n")
    name, backend = (
        html.escape(printable(text[:_MAX_NAME_CHARS])) for text in (result.case, result.backend)
    )
    summary = f"{view.word} <code>{name}</code> on <code>{backend}</code> <code>{line}</code>"
    return "\n\n".join(
        (
            f"<details><summary>{summary}</summary>",
            _fence(f"{printable(str(result.location))[:_MAX_NAME_CHARS]}\n{text}"),
            _fence(clipped(printable(view.again), _MAX_TEXT_CHARS), "sh"),
            "</details>",
        )
    )


def _accuracy(view: RunView) -> str:
    rows = [
        [*map(_code, row[:4]), *row[4:7], f"{row[7]} ulp"] for row in accuracy_rows(view.accuracy)
    ]
    if not rows:
        return ""
    header = [*COLUMNS[:4], "error / tolerance, most", "median", "bits lost", "99 % within"]
    table = "\n".join(_table([header, *rows], left=4))
    return f"<details><summary>Accuracy</summary>\n\n{table}\n\n</details>"


def _table(rows: list[list[str]], left: int) -> list[str]:
    header, *body = rows
    rule = ["---" if place < left else "--:" for place in range(len(header))]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *body)]


def _code(text: str, longest: int = _MAX_NAME_CHARS) -> str:
    """Return a text as a code span that is valid in a cell of a table."""
    text = clipped(printable(text), longest)
    if not text:
        return ""
    if "`" not in text and "|" not in text:
        return f"`{text}`"
    # A pipe ends the cell even after a backslash, but a character reference never acts as markup.
    escaped = re.sub(r"[\W_]", lambda match: f"&#{ord(match[0])};", text)
    return f"<code>{escaped}</code>"


def _fence(text: str, language: str = "") -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
