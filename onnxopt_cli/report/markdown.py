"""A run as Markdown, as GitHub and GitLab render it.

Text that is not ours stands only in code spans, code fences and escaped HTML, where nothing of it
is a link, a mention, a table or a tag.
"""

from __future__ import annotations

import html
import re

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.report import numbers
from onnxopt_cli.report.accuracy import accuracy
from onnxopt_cli.report.diff_text import failure_text, headline
from onnxopt_cli.report.repeat import repeat_command
from onnxopt_cli.report.verdict import failures, tallies, verdict

#: GitHub refuses a step's summary of over 1 MiB.
_MOST_BYTES = 900_000
_MOST_LISTED = 200
_NAME = 300


def markdown_report(record: RunRecord) -> str:
    """Return a run as Markdown text of at most 1 MB: summary, failures, accuracy."""
    parts = [f"# onnxopt {verdict(record)}", _summary(record)]
    parts += _problems(record)
    parts += [
        f"**{_code(it.backend)}**, {_code(it.operator)}: {_code(it.text)}"
        for it in record.explanations
    ]
    accuracy_part = _accuracy(record)
    room = _MOST_BYTES - sum(len(part.encode()) for part in (*parts, accuracy_part))
    parts += _failures(record, room)
    parts.append(accuracy_part)
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    parts.append(f"<sub>{html.escape(printable(versions))}</sub>")
    return "\n\n".join(filter(None, parts)) + "\n"


def _summary(record: RunRecord) -> str:
    counts = tallies(record)
    used = [outcome for outcome in Outcome if any(outcome in it.outcomes for it in counts)]
    rows = [["backend", "version", *(outcome.value for outcome in used), "lowered", ""]]
    for tally in counts:
        word = "does not conform" if tally.against else "conforms"
        numbers_of = [str(tally.outcomes.get(outcome, "")) for outcome in used]
        rows.append(
            [_code(tally.name), _code(tally.version), *numbers_of, str(tally.lowered or ""), word]
        )
    return _table(rows, left=2)


def _problems(record: RunRecord) -> list[str]:
    problems = [*record.problems, *record.findings]
    lines = [f"- {_code(it.where)}: {_code(it.what)}" for it in problems[:_MOST_LISTED]]
    if len(problems) > _MOST_LISTED:
        lines.append(f"- and {len(problems) - _MOST_LISTED} more")
    return ["## Case and expectation files", "\n".join(lines)] if lines else []


def _failures(record: RunRecord, room: int) -> list[str]:
    """Return the failures, collapsed, as many as there is room for."""
    failed = failures(record)
    parts = [f"## {len(failed)} not as expected"] if failed else []
    for place, result in enumerate(failed):
        part = _failure(result, record)
        room -= len(part.encode()) + 2
        if room < 0:
            parts.append(f"{len(failed) - place} more do not fit in here.")
            break
        parts.append(part)
    return parts


def _failure(result: Result, record: RunRecord) -> str:
    word = (result.standing or result.outcome).value
    told = html.escape(headline(result)[:_NAME])
    name, backend = (html.escape(printable(text[:_NAME])) for text in (result.case, result.backend))
    summary = f"{word} <code>{name}</code> on <code>{backend}</code> <code>{told}</code>"
    return "\n\n".join(
        (
            f"<details><summary>{summary}</summary>",
            _fence(f"{printable(str(result.location))}\n{failure_text(result)}"),
            _fence(printable(repeat_command(result, record.options)), "sh"),
            "</details>",
        )
    )


def _accuracy(record: RunRecord) -> str:
    rows = [
        ["backend", "operator", "output", "budget used, most", "median", "bits lost", "99 % within"]
    ]
    for row in accuracy(record.results):
        within = row.ulp_within(0.99)
        rows.append(
            [
                _code(row.backend),
                row.operator,
                _code(row.output),
                numbers.error(row.budget_most),
                numbers.error(row.budget_median),
                f"{row.bits_lost:.1f}",
                f"{numbers.count(within)} ulp",
            ]
        )
    if len(rows) == 1:
        return ""
    table = _table(rows, left=3)
    return f"<details><summary>Accuracy</summary>\n\n{table}\n\n</details>"


def _table(rows: list[list[str]], left: int) -> str:
    header, *body = rows
    rule = ["---" if place < left else "--:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *body))


def _code(text: str) -> str:
    """Return a text as a code span that also a table's cell can hold."""
    text = printable(text)[:_NAME]
    if not text:
        return ""
    if "`" not in text and "|" not in text:
        return f"`{text}`"
    # A table's cell ends at a pipe whatever stands before it; an entity is never markup.
    escaped = re.sub(r"[\W_]", lambda it: f"&#{ord(it[0])};", text)
    return f"<code>{escaped}</code>"


def _fence(text: str, language: str = "") -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
