"""Report a run as a single HTML file, which needs neither a network nor scripts to be read.

Untrusted text passes two safeguards that a template cannot bypass: Jinja escapes it, and invisible
or harmful characters become visible escapes. In addition, the page's content security policy admits
only the script and the style with the stated hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onnxopt_cli.core import numbers
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.report.charts import (
    WIDTH,
    curve_chart,
    spread_chart,
    tolerance_chart,
)
from onnxopt_cli.report.view.accuracy import Accuracy
from onnxopt_cli.report.view.run_view import RunView
from onnxopt_cli.report.view.verdict import Conformity

# A browser needs seconds to lay out more rows; the filter finds the others.
_MAX_ROWS = 1000
# CSS classes of verdicts; the class of every other verdict is ``bad``.
_LOOKS = {
    Conformity.CONFORMS.value: "good",
    Conformity.EXPECTED_FAILURES.value: "known",
}
_PAGE = files("onnxopt_cli.report") / "page"


def html_report(view: RunView) -> str:
    """Return a run as HTML text."""
    record = view.record
    environment = Environment(
        loader=PackageLoader("onnxopt_cli.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup, a subclass of str, is trusted.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["lines"] = lambda text: Markup("{}").format(printable(text, lines=True))
    # Files of this package are trusted and not escaped.
    style, script = (Markup((_PAGE / name).read_text("utf-8")) for name in ("page.css", "page.js"))  # noqa: S704
    rows = _matrix(record, [*view.nonconforming, *view.expected_failures])
    hidden_rows, cells = _as_data(rows[_MAX_ROWS:])
    page = environment.get_template("page.html").render(
        style=style,
        script=script,
        policy=Markup(_policy(style, script)),  # noqa: S704 - made of hashes
        view=view,
        record=record,
        looks=_LOOKS,
        options=_options(record.options),
        used=[kind for kind in Outcome if any(result.outcome is kind for result in record.results)],
        rows=rows,
        more=Markup.escape(json.dumps(hidden_rows, separators=(",", ":"))),
        cells=cells,
        measured=list(_measured(view)),
        chart_width=WIDTH,
        most=_MAX_ROWS,
        numbers=numbers,
    )
    return page + "\n"


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
    """Return the options that have a value, as text."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in options.items()
        if value not in (None, "", False, (), [])
    ]


def _as_data(rows: list[tuple[str, list[Any]]]) -> tuple[list[list[Any]], list[tuple[int, Any]]]:
    """Return rows as data: the case and the numbers of its cells, and the distinct cells by number.

    A browser reads such data many times faster than rows of HTML.
    """
    cells: dict[object, tuple[int, int, Any]] = {}
    data: list[list[Any]] = []
    for case, row in rows:
        numbered: list[Any] = [printable(case)]
        for column, cell in enumerate(row):
            appearance: object = column
            if cell is not None:
                result, section = cell
                text = section or result.message
                standing = result.standing, result.conforms
                appearance = column, result.outcome, standing, result.lowered, text
            number, *_ = cells.setdefault(appearance, (len(cells), column, cell))
            numbered.append(number)
        data.append(numbered)
    return data, [(column, cell) for _, column, cell in cells.values()]


def _matrix(record: RunRecord, shown: list[Result]) -> list[tuple[str, list[Any]]]:
    """Return each case with one cell per backend, which is None if the case did not run there.

    A cell is a result and the number of its section, or None for a result without a section.
    """
    sections = {_section_key(result): number for number, result in enumerate(shown, 1)}
    rows: dict[str, dict[str, Any]] = {}
    for result in record.results:
        section = sections.get(_section_key(result))
        rows.setdefault(result.case, {})[result.backend] = result, section
    return [
        (case, [cells.get(backend.name) for backend in record.backends])
        for case, cells in rows.items()
    ]


def _section_key(result: Result) -> tuple[str, str]:
    """Return the key of a result's section; an invalid case has one section for all backends."""
    return result.case, "" if result.outcome is Outcome.INVALID else result.backend


def _measured(view: RunView) -> Iterator[tuple[str, list[Accuracy], list[dict[str, Any]]]]:
    """Yield each backend with its accuracy and the charts of it."""
    for backend, group in groupby(view.accuracy, key=lambda row: row.backend):
        rows = list(group)
        curves = {
            result.case: result.curve
            for result in view.record.results
            if result.backend == backend and result.curve
        }
        charts = [tolerance_chart(rows), spread_chart(rows)]
        yield backend, rows, charts + ([curve_chart(curves)] if curves else [])
