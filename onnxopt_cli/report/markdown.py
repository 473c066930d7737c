"""Report a run as Markdown for GitHub and GitLab.

Untrusted text occurs only in code spans, code fences and escaped HTML, where it cannot form a link,
a mention, a table or a tag.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.report.accuracy import COLUMNS, accuracy_rows
from onnxopt_cli.report.agreement import agreements
from onnxopt_cli.report.diff_text import (
    ELSEWHERE,
    failure_text,
    headline,
    repeat_command,
)
from onnxopt_cli.report.verdict import (
    by_capability,
    by_kind,
    counted,
    failures,
    fallback,
    in_words,
    outcome_columns,
    scope,
    tallies,
    verdict,
)

#: GitHub takes a comment of 65,536 characters, and of a step's summary 1 MiB, of all together.
_MAX_REPORT_CHARS = 60_000
#: Of these, how many causes, counts and problems of files may take each, and what follows failures.
_PART = 8_000
_REST_CHARS = 2_500
#: Characters of one failure's text, of a cause, and of a name.
_TEXT = 4_000
_CAUSE = 1_000
_NAME = 300


def markdown_report(record: RunRecord) -> str:
    """Return a run as Markdown text of at most 60,000 characters.

    The text has the causes, the counts, problems of files, failures of each kind, the number of
    failures left out and, if it fits, the accuracy.
    """
    parts = [f"# onnxopt {verdict(record)}", _code(scope(record), _CAUSE), _causes(record)]
    parts.append("\n".join(f"- {_code(line, _CAUSE)}" for line in agreements(record)))
    parts += [_summary(record), _code(fallback(record), _CAUSE), _capabilities(record)]
    parts += _problems(record)
    parts += _failures(record, _room(parts) - _REST_CHARS)
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    last = f"<sub>{_code(versions)}</sub>"
    accuracy_part = _accuracy(record)
    if len(accuracy_part) + len(last) > _room(parts):
        accuracy_part = f"The table of accuracy does not fit in here; {ELSEWHERE}."
    parts += [accuracy_part, last]
    return "\n\n".join(filter(None, parts)) + "\n"


def _room(parts: Sequence[str]) -> int:
    """Return the number of characters available beside these parts and their separators."""
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


def _listed(lines: Sequence[str], more: str) -> list[str]:
    """Return the lines that fit into a part of the report, and a line with the number of others."""
    fitting = _fitting(lines, _PART, len("\n"))
    hidden = len(lines) - len(fitting)
    return [*fitting, more.format(hidden)] if hidden else fitting


def _causes(record: RunRecord) -> str:
    lines = [
        f"- {_code(explanation.backend)}, {_code(explanation.operator)}: "
        f"{_code(explanation.text, _CAUSE)}"
        for explanation in record.explanations
    ]
    return "\n".join(_listed(lines, f"- {{}} more explanations; {ELSEWHERE}"))


def _summary(record: RunRecord) -> str:
    counts = tallies(record)
    used, cells = outcome_columns({tally.name: tally.outcomes for tally in counts})
    header = ["backend", "version", *used, "lowered", ""]
    rows = [
        [
            _code(name),
            _code(tally.version),
            *numbers,
            str(tally.lowered or ""),
            tally.conformity.value,
        ]
        for tally, (name, *numbers) in zip(counts, cells, strict=True)
    ]
    head, rule, *lines = _table([header, *rows], left=2)
    return "\n".join((head, rule, *_listed(lines, f"\n{{}} more backends; {ELSEWHERE}.")))


def _capabilities(record: RunRecord) -> str:
    """Return a table of outcomes by capability."""
    used, counts = outcome_columns(by_capability(record.results))
    rows = [[_code(name), *numbers] for name, *numbers in counts]
    return "\n".join(_table([["cases that need", *used], *rows], left=1)) if rows else ""


def _problems(record: RunRecord) -> list[str]:
    problems = [*record.problems, *record.findings]
    lines = [f"- {_code(problem.where)}: {_code(problem.what)}" for problem in problems]
    listed = "\n".join(_listed(lines, "- and {} more"))
    return ["## Case and expectation files", listed] if lines else []


def _failures(record: RunRecord, room: int) -> list[str]:
    """Return collapsed failures of each kind that fit, and the number of the others."""
    failed = by_kind(failures(record))
    if not failed:
        return []
    title = f"## {len(failed)} not as expected"
    texts = (_failure(result, record) for result in failed)
    fitting = _fitting(texts, room - len(title) - 2, len("\n\n"))
    hidden = failed[len(fitting) :]
    if not hidden:
        return [title, *fitting]
    counts = in_words(counted(Outcome, (result.outcome for result in hidden)))
    return [title, *fitting, f"{len(hidden)} more are not shown here ({counts}); {ELSEWHERE}."]


def _failure(result: Result, record: RunRecord) -> str:
    word = (result.standing or result.outcome).value
    line = html.escape(headline(result)[:_NAME])
    text = clipped(failure_text(result, ELSEWHERE), _TEXT, "\n")
    name, backend = (html.escape(printable(text[:_NAME])) for text in (result.case, result.backend))
    summary = f"{word} <code>{name}</code> on <code>{backend}</code> <code>{line}</code>"
    return "\n\n".join(
        (
            f"<details><summary>{summary}</summary>",
            _fence(f"{printable(str(result.location))[:_NAME]}\n{text}"),
            _fence(clipped(printable(repeat_command(result, record.options)), _TEXT), "sh"),
            "</details>",
        )
    )


def _accuracy(record: RunRecord) -> str:
    rows = [
        [_code(backend), _code(operator), _code(output), *measures, f"{within} ulp"]
        for backend, operator, output, *measures, within in accuracy_rows(record.results)
    ]
    if not rows:
        return ""
    header = [*COLUMNS[:3], "error / tolerance, most", "median", "bits lost", "99 % within"]
    table = "\n".join(_table([header, *rows], left=3))
    return f"<details><summary>Accuracy</summary>\n\n{table}\n\n</details>"


def _table(rows: list[list[str]], left: int) -> list[str]:
    header, *body = rows
    rule = ["---" if place < left else "--:" for place in range(len(header))]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *body)]


def _code(text: str, longest: int = _NAME) -> str:
    """Return a text as a code span that is valid in a cell of a table."""
    text = clipped(printable(text), longest)
    if not text:
        return ""
    if "`" not in text and "|" not in text:
        return f"`{text}`"
    # A pipe ends a cell even after a backslash; a character reference is never markup.
    escaped = re.sub(r"[\W_]", lambda match: f"&#{ord(match[0])};", text)
    return f"<code>{escaped}</code>"


def _fence(text: str, language: str = "") -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
