"""Report a run as a single HTML file, which can be read without a network and without scripts.

Untrusted text is escaped, see :mod:`onnxopt_cli.report.page_templates`. In addition, the page's
content security policy admits only one script and one style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from onnxopt_cli.core import numbers
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.report.charts import (
    WIDTH,
    curve_chart,
    spread_chart,
    tolerance_chart,
)
from onnxopt_cli.report.page_templates import template_environment
from onnxopt_cli.report.view.accuracy import Accuracy
from onnxopt_cli.report.view.result_view import printed_text
from onnxopt_cli.report.view.run_view import RunView, operator_of
from onnxopt_cli.report.view.verdict import (
    EXPECTED_FAILURE,
    LABELS,
    Conformity,
    in_words,
    is_expected_failure,
    label,
)

# The table of outcomes shows this number of cases, because a browser needs seconds to lay out more.
# The filter of the page also finds the remaining cases.
_MAX_ROWS = 1000
# At most this number of passes have a section with details.
_MAX_PASSES = 5000
# The chart of error / tolerance shows at most this number of outputs.
_MAX_CHART_ROWS = 16
# CSS classes of verdicts; the class of every other verdict is ``bad``.
_LOOKS = {
    Conformity.CONFORMS.value: "good",
    Conformity.EXPECTED_FAILURES.value: "known",
}
_PAGE = files("onnxopt_cli.report") / "page"


@dataclass(frozen=True, slots=True)
class _Row:
    """A case in the table of outcomes.

    Attributes:
        case: the case's id.
        operator: its operator.
        needs: the capabilities that it needs.
        cells: its result on each backend; None for a backend on which it did not run.
    """

    case: str
    operator: str
    needs: str
    cells: tuple[Result | None, ...]


def html_report(view: RunView) -> str:
    """Return a run as HTML text."""
    environment = page_environment()
    rows = _rows(view)
    hidden_rows, cells = _as_data(rows[_MAX_ROWS:])
    passes = [
        result
        for result in view.record.results
        if result.conforms and result.outcome is Outcome.PASS
    ]
    detailed = [*view.nonconforming, *view.expected_failures, *passes[:_MAX_PASSES]]
    sections = set(map(anchor, detailed))
    page = environment.get_template("page.html").render(
        **page_parts(),
        view=view,
        record=view.record,
        looks=_LOOKS,
        options=_options(view.record.options),
        labels=[word for word in LABELS if word in view.counts],
        operators=sorted({row.operator for row in rows}),
        capabilities=list(view.capabilities),
        operator_rows=_operator_rows(view),
        rows=rows,
        more=Markup.escape(json.dumps(hidden_rows, separators=(",", ":"))),
        cells=cells,
        sections=sections,
        passes=_by_operator(passes[:_MAX_PASSES]),
        pass_count=len(passes),
        measured=list(_measured(view)),
        chart_width=WIDTH,
        most=_MAX_ROWS,
        most_passes=_MAX_PASSES,
    )
    return page + "\n"


def page_parts() -> dict[str, Markup]:
    """Return the style and the script of a page, and the policy that admits only these two."""
    # Files of this package are trusted and not escaped.
    style, script = (Markup((_PAGE / name).read_text("utf-8")) for name in ("page.css", "page.js"))  # noqa: S704
    policy = Markup(_policy(style, script))  # noqa: S704 - made of hashes
    return {"style": style, "script": script, "policy": policy}


def page_environment() -> Environment:
    """Return the environment of the templates of a report and of the page of ``locate``."""
    environment = template_environment("onnxopt_cli.report", "page")
    environment.globals.update(
        anchor=anchor,
        label=label,
        in_words=in_words,
        numbers=numbers,
        operator_of=operator_of,
        printed_text=printed_text,
        verdict_class=_verdict_class,
    )
    return environment


def anchor(result: Result) -> str:
    """Return the fragment of the address of a result: the case and the backend.

    An invalid case has one section for all backends.
    """
    backend = "" if result.outcome is Outcome.INVALID else f"@{result.backend}"
    return quote(f"{result.case}{backend}", safe="/@:", errors="surrogatepass")


def _verdict_class(result: Result) -> str:
    """Return the CSS class of a result's outcome."""
    if is_expected_failure(result):
        return "known"
    return "good" if result.conforms else "bad"


def _policy(*inline: str) -> str:
    style, script = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in inline
    )
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _options(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names and values, as text, of the options that are set."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in options.items()
        if value not in (None, "", False, (), [])
    ]


def _rows(view: RunView) -> list[_Row]:
    """Return each case with its result on each backend."""
    by_case: dict[str, dict[str, Result]] = {}
    for result in view.record.results:
        by_case.setdefault(result.case, {})[result.backend] = result
    rows = []
    for case, results in by_case.items():
        first, *_ = results.values()
        # A result of a case that did not run lacks the operators and capabilities of the case.
        ran = next((result for result in results.values() if result.operators), first)
        needs = dict.fromkeys(name for result in results.values() for name in result.capabilities)
        cells = tuple(results.get(backend.name) for backend in view.record.backends)
        rows.append(_Row(case, operator_of(ran), " ".join(needs), cells))
    return rows


def _as_data(rows: Sequence[_Row]) -> tuple[list[list[Any]], list[tuple[int, Result | None]]]:
    """Return rows as data, which a browser reads many times faster than HTML, and their cells.

    A row consists of case, operator, capabilities and the number of the cell of each backend. The
    cells are listed by number, each with its column; cells that look alike have one number.
    """
    cells: dict[object, tuple[int, int, Result | None]] = {}
    data: list[list[Any]] = []
    for row in rows:
        numbered: list[Any] = [printable(row.case), row.operator, row.needs]
        for column, result in enumerate(row.cells):
            appearance: object = column
            if result is not None:
                looks = label(result), result.standing, result.lowered, result.opset, result.note
                text = anchor(result) if result.message or result.diffs else result.outcome
                appearance = column, *looks, text
            number, *_ = cells.setdefault(appearance, (len(cells), column, result))
            numbered.append(number)
        data.append(numbered)
    return data, [(column, result) for _, column, result in cells.values()]


def _operator_rows(view: RunView) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return for each operator the cells of all backends: counts in words, and a CSS class."""
    by_operator: dict[str, dict[str, tuple[str, str]]] = {}
    for row in view.operators:
        expected = row.counts.get(EXPECTED_FAILURE, 0)
        look = "bad" if row.failing > expected else "known" if expected else "good"
        by_operator.setdefault(row.operator, {})[row.backend] = in_words(row.counts), look
    names = [backend.name for backend in view.record.backends]
    return [
        (operator, [cells.get(name, ("", "good")) for name in names])
        for operator, cells in by_operator.items()
    ]


def _by_operator(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Return results grouped by operator, in alphabetical order."""
    ordered = sorted(results, key=operator_of)
    return [(operator, [*group]) for operator, group in groupby(ordered, key=operator_of)]


def _measured(view: RunView) -> Iterator[tuple[str, list[Accuracy], list[dict[str, Any]]]]:
    """Yield each backend with the rows and the charts of its accuracy."""
    for backend, group in groupby(view.accuracy, key=lambda row: row.backend):
        rows = list(group)
        curves = {
            result.case: result.curve
            for result in view.record.results
            if result.backend == backend and result.curve
        }
        worst = sorted(rows, key=lambda row: -row.tolerance_used_most)[:_MAX_CHART_ROWS]
        drawn = [row for row in rows if row in worst]
        counted = [row for row in rows if row.ulp_counts]
        charts = [tolerance_chart(drawn)]
        charts += [spread_chart(counted)] if counted else []
        yield backend, rows, charts + ([curve_chart(curves)] if curves else [])
