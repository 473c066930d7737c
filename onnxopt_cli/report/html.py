"""A run as one HTML file that needs nothing else: no network, no other file, and no script to read.

All text that is not ours goes through two gates that a template cannot forget: Jinja escapes it,
and what is invisible or harmful in it becomes a visible escape. A third stands behind them: the
page's policy admits only the script and the style whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import groupby
from typing import Any

from onnxopt_cli.core import numbers
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import (
    HARMLESS,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.report import diff_text
from onnxopt_cli.report.accuracy import Accuracy, accuracy
from onnxopt_cli.report.agreement import agreements
from onnxopt_cli.report.charts import (
    WIDTH,
    curve_chart,
    spread_chart,
    tolerance_chart,
)
from onnxopt_cli.report.diff_text import repeat_command
from onnxopt_cli.report.verdict import (
    Conformity,
    by_capability,
    failures,
    fallback,
    scope,
    tallies,
    verdict,
)

# A browser takes seconds to lay out more of them; the others are found by the filter.
_MOST_ROWS = 1000
# CSS classes of verdicts; every other verdict is bad.
_LOOKS = {
    Conformity.CONFORMS.value: "good",
    Conformity.EXPECTED_FAILURES.value: "known",
}
_PAGE = files("onnxopt_cli.report") / "page"


def check_available() -> None:
    """Make sure that the package is installed that only this format needs.

    Raises:
        UsageError: if it is not; says how to install it.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise UsageError("--report html needs jinja2", hint="pip install 'onnxopt[html]'")


def html_report(record: RunRecord) -> str:
    """Return a run as HTML text.

    Raises:
        UsageError: if Jinja is not installed.
    """
    check_available()
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("onnxopt_cli.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup is ours, and a str too.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["lines"] = lambda text: Markup("{}").format(printable(text, lines=True))
    # Ours, and read from the package: not to be escaped.
    style, script = (Markup((_PAGE / name).read_text("utf-8")) for name in ("page.css", "page.js"))  # noqa: S704
    failed = failures(record)
    known = [it for it in record.results if it.conforms and it.outcome not in HARMLESS]
    rows = _matrix(record, [*failed, *known])
    places, cells = _as_data(rows[_MOST_ROWS:])
    page = environment.get_template("page.html").render(
        style=style,
        script=script,
        policy=Markup(_policy(style, script)),  # noqa: S704 - made of hashes
        record=record,
        verdict=verdict(record),
        looks=_LOOKS,
        tallies=tallies(record),
        scope=scope(record),
        fallback=fallback(record),
        agreements=agreements(record),
        capabilities=by_capability(record.results),
        options=_options(record.options),
        used=[it for it in Outcome if any(result.outcome is it for result in record.results)],
        rows=rows,
        more=Markup.escape(json.dumps(places, separators=(",", ":"))),
        cells=cells,
        failures=failed,
        known=known,
        measured=list(_measured(record)),
        chart_width=WIDTH,
        most=_MOST_ROWS,
        repeat=lambda result: repeat_command(result, record.options),
        text=diff_text,
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
    """Return the options that say something, as text."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in options.items()
        if value not in (None, "", False, (), [])
    ]


def _as_data(rows: list[tuple[str, list[Any]]]) -> tuple[list[list[Any]], list[tuple[int, Any]]]:
    """Return for each row its case and a number for each of its cells, and the cells by number.

    Cells that look alike have one number. A browser takes many times as long to read rows as HTML.
    """
    cells: dict[object, tuple[int, int, Any]] = {}
    places: list[list[Any]] = []
    for case, row in rows:
        places.append([printable(case)])
        for column, cell in enumerate(row):
            look: object = column
            if cell is not None:
                result, section = cell
                told = section or result.message
                standing = result.standing, result.conforms
                look = column, result.outcome, standing, result.lowered, told
            number, *_ = cells.setdefault(look, (len(cells), column, cell))
            places[-1].append(number)
    return places, [(column, cell) for _, column, cell in cells.values()]


def _matrix(record: RunRecord, shown: list[Result]) -> list[tuple[str, list[Any]]]:
    """Return each case with a cell a backend; None where the backend did not get to it.

    A cell is a result and the number of its section, None if it has none.
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
    """Return what identifies the section of a result: an invalid case has one for all backends."""
    return result.case, "" if result.outcome is Outcome.INVALID else result.backend


def _measured(record: RunRecord) -> Iterator[tuple[str, list[Accuracy], list[dict[str, Any]]]]:
    """Yield each backend's accuracy, in numbers and charts."""
    for backend, group in groupby(accuracy(record.results), key=lambda row: row.backend):
        rows = list(group)
        curves = {it.case: it.curve for it in record.results if it.backend == backend and it.curve}
        charts = [tolerance_chart(rows), spread_chart(rows)]
        yield backend, rows, charts + ([curve_chart(curves)] if curves else [])
