"""Report a run as a single HTML file, which can be read without a network and without scripts.

The Jinja environment escapes all text that templates insert: markup is escaped, and invisible or
harmful characters are replaced by visible escapes. Templates therefore need not escape text
themselves. In addition, the content security policy of the page allows only one script and one
style, which it identifies by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onnxopt_cli.core.result import Outcome, Result, short_count, short_error
from onnxopt_cli.core.text import printable
from onnxopt_cli.report.view.accuracy import Accuracy, merged_counts
from onnxopt_cli.report.view.result_view import printed_text
from onnxopt_cli.report.view.run_view import WITHOUT_RESULT, RunView, operator_of
from onnxopt_cli.report.view.verdict import (
    EXPECTED_FAILURE,
    LABELS,
    Conformity,
    in_words,
    is_expected_failure,
    label,
)

# The largest number of cases that the table of outcomes shows. A browser would need seconds to lay
# out a longer table. The filter of the page also finds cases that are not shown.
_MAX_ROWS = 1000
# The largest number of passes for which the page has a section with details.
_MAX_PASSES = 1000
# The largest number of outputs in the chart of error / tolerance.
_MAX_CHART_ROWS = 16
# CSS classes of verdicts. A verdict without an entry has the class ``bad``.
_LOOKS = {
    Conformity.CONFORMS.value: "good",
    Conformity.EXPECTED_FAILURES.value: "known",
}
_PAGE = files("onnxopt_cli.report") / "page"
# The width of every chart in SVG user units. On a narrow page, a unit is about a pixel.
_CHART_WIDTH = 400
# The edges of the plot area of a chart with two axes.
_PLOT_LEFT, _PLOT_RIGHT, _PLOT_TOP, _PLOT_BOTTOM = 62, 390, 24, 190
_BAR_HEIGHT = 26
_LETTER_WIDTH = 7.0
_MAX_LABEL_CHARS = 24
# The bar of an error / tolerance above this value ends at this value, slightly above the limit of
# 1.
_MAX_DRAWN_SHARE = 1.15
# A distance in ulp with at most this number of bits is labelled with its value. Larger distances
# are labelled as powers of two.
_MAX_DECIMAL_BITS = 11
# The width of a bar is chosen as if the chart had at least this number of bars. Otherwise, a few
# bars would be too wide.
_MIN_BARS = 8
_MAX_TICKS = 8
# The range to which values of error / tolerance are clipped.
_MIN_SHARE, _MAX_SHARE = 1e-6, 1e6
# The step numbers of a saved run may be any integers, and are clipped to this limit.
_MAX_STEP = 10**12


@dataclass(frozen=True, slots=True)
class _Row:
    """A case in the table of outcomes.

    Attributes:
        case: the case's id.
        operator: its operator.
        needs: the capabilities that it needs.
        cells: its result on each backend; None if it did not run on a backend.
    """

    case: str
    operator: str
    needs: str
    cells: tuple[Result | None, ...]


def html_report(view: RunView) -> str:
    """Return an HTML document that reports a run."""
    environment = page_environment()
    rows = _rows(view)
    passes = [
        result
        for result in view.record.results
        if result.conforms and result.outcome is Outcome.PASS
    ]
    detailed = [*view.nonconforming, *view.expected_failures, *passes[:_MAX_PASSES]]
    sections = set(map(anchor, detailed))
    hidden_rows, cells = _as_data(rows[_MAX_ROWS:], sections)
    template = environment.get_template("page.html")
    page = template.render(
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
        # In the text of an element, quotation marks need no escaping.
        more=Markup(escape(json.dumps(hidden_rows, separators=(",", ":")), quote=False)),  # noqa: S704
        cells=cells,
        sections=sections,
        passes=_by_operator(passes[:_MAX_PASSES]),
        pass_count=len(passes),
        measured=list(_measured(view)),
        chart_width=_CHART_WIDTH,
        most=_MAX_ROWS,
        most_passes=_MAX_PASSES,
    )
    return page + "\n"


def page_parts() -> dict[str, Markup]:
    """Return the style and the script of a page, and a policy that allows only these two."""
    # Files of the package onnxopt are trusted, so they are not escaped.
    style, script = (Markup((_PAGE / name).read_text("utf-8")) for name in ("page.css", "page.js"))  # noqa: S704
    policy = Markup(_policy(style, script))  # noqa: S704 - made of hashes
    return {"style": style, "script": script, "policy": policy}


def page_environment() -> Environment:
    """Return the Jinja environment for the templates of reports and of the page of ``locate``."""
    environment = template_environment("onnxopt_cli.report", "page")
    environment.globals.update(
        anchor=anchor,
        label=label,
        in_words=in_words,
        short_count=short_count,
        short_error=short_error,
        operator_of=operator_of,
        printed_text=printed_text,
        verdict_class=_verdict_class,
    )
    return environment


def template_environment(package: str, folder: str) -> Environment:
    """Return a Jinja environment for a package's folder of templates.

    The environment escapes inserted text.
    """
    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Text of type Markup, a subclass of str, is trusted.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["lines"] = lambda text: Markup("{}").format(printable(text, lines=True))
    return environment


def anchor(result: Result) -> str:
    """Return the URL fragment of a result's section: the case and the backend.

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
    """Return the name of each option that is set, and its value as a string or as JSON."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in options.items()
        if value not in (None, "", False, (), [])
    ]


def _rows(view: RunView) -> list[_Row]:
    """Return each case with the case's result on each backend."""
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


def _as_data(
    rows: Sequence[_Row], sections: Collection[str]
) -> tuple[dict[str, Any], list[tuple[int, Result | None]]]:
    """Return rows and cells as data, which a browser reads many times faster than HTML.

    Rows that differ only in their case share a kind, and cells that look alike share a number.

    Args:
        rows: the rows.
        sections: the anchors of those results that have a section. Their cells link to the section.

    Returns:
        A dictionary and a list. In the dictionary, ``rows`` contains the case of each row and the
        number of its kind, and ``kinds`` contains the operator, the capabilities and the cell
        numbers of each kind. The list contains the cells, each with its column, in the order of
        their numbers.
    """
    cells: dict[object, tuple[int, int, Result | None]] = {}
    kinds: dict[tuple[object, ...], int] = {}
    data: list[tuple[str, int]] = []
    for row in rows:
        numbers = []
        for column, result in enumerate(row.cells):
            appearance: object = column
            if result is not None:
                section = anchor(result)
                text = section if section in sections else result.message
                looks = result.standing, result.lowered, result.opset, result.note
                appearance = column, label(result), result.outcome, *looks, text
            number, *_ = cells.setdefault(appearance, (len(cells), column, result))
            numbers.append(number)
        kind = printable(row.operator), printable(row.needs), *numbers
        data.append((printable(row.case), kinds.setdefault(kind, len(kinds))))
    numbered_cells = [(column, result) for _, column, result in cells.values()]
    return {"kinds": list(kinds), "rows": data}, numbered_cells


def _operator_rows(view: RunView) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the cells of all backends for each operator: counts in words, and a CSS class."""
    by_operator: dict[str, dict[str, tuple[str, str]]] = {}
    for row in view.operators:
        expected = row.counts.get(EXPECTED_FAILURE, 0)
        without_result = sum(row.counts.get(outcome.value, 0) for outcome in WITHOUT_RESULT)
        if row.failing > expected + without_result:
            look = "bad"
        elif without_result:
            look = "unsupported"
        else:
            look = "known" if expected else "good"
        by_operator.setdefault(row.operator, {})[row.backend] = in_words(row.counts), look
    names = [backend.name for backend in view.record.backends]
    return [
        (operator, [cells.get(name, ("", "good")) for name in names])
        for operator, cells in by_operator.items()
    ]


def _by_operator(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Return results grouped by operator, with the operators in alphabetical order."""
    ordered = sorted(results, key=operator_of)
    return [(operator, [*group]) for operator, group in groupby(ordered, key=operator_of)]


def _measured(view: RunView) -> Iterator[tuple[str, list[Accuracy], list[dict[str, Any]]]]:
    """Yield the rows and the charts of each backend's accuracy."""
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
        charts = [_tolerance_chart(drawn)]
        charts += [_spread_chart(counted)] if counted else []
        yield backend, rows, charts + ([_curve_chart(curves)] if curves else [])


def _tolerance_chart(rows: Sequence[Accuracy]) -> dict[str, Any]:
    """Return a chart of the largest and the median error / tolerance of each output.

    Args:
        rows: at least one output of one backend.

    Returns:
        The data of the chart. As for every chart, they include the name of the drawing, a caption
        and the height.
    """
    most = max(rows, key=lambda row: row.tolerance_used_most)
    names = [f"{row.operator} {row.output}" for row in rows]
    names = [
        name if len(name) <= _MAX_LABEL_CHARS else f"{name[: _MAX_LABEL_CHARS - 2]}.."
        for name in names
    ]
    left_edge = max(map(len, names)) * _LETTER_WIDTH + 10
    end = _PLOT_TOP + len(rows) * _BAR_HEIGHT

    def x(share: float) -> float:
        part = min(1.0, max(0.0, share / _MAX_DRAWN_SHARE))
        return round(left_edge + part * (_PLOT_RIGHT - left_edge), 1)

    used = short_error(most.tolerance_used_most)
    return {
        "drawing": "tolerance",
        "says": f"Error / tolerance: at most {used}, by {most.operator} {most.output}.",
        "height": end + 34,
        "x": x,
        "sides": (left_edge, _PLOT_TOP, _PLOT_RIGHT, end),
        "rows": [
            (
                name,
                _PLOT_TOP + (place + 0.5) * _BAR_HEIGHT,
                row,
                short_error(row.tolerance_used_most),
            )
            for place, (name, row) in enumerate(zip(names, rows, strict=True))
        ],
    }


def _spread_chart(rows: Sequence[Accuracy]) -> dict[str, Any]:
    """Return a histogram of the distances from the expected result, in ulp.

    Args:
        rows: at least one output of one backend.
    """
    counts = merged_counts(rows)
    elements = sum(row.elements for row in rows)
    exact = counts[0] if counts else 0
    says = f"Spread of errors: {exact} of {elements} elements equal the expected result."
    if not_finite := sum(row.not_finite for row in rows):
        says += f" {not_finite} are finite in only one of the two results."
    # Each bar counts the distances that have the same number of bits, and is labelled with the
    # smallest of these distances.
    bars = [
        (str(2**bits // 2) if bits <= _MAX_DECIMAL_BITS else f"2^{bits - 1}", count)
        for bits, count in enumerate(counts)
    ]
    bars += [("inf or NaN", not_finite)] if not_finite else []
    y, ticks = _log_scale(0.7, max((count for _, count in bars), default=1))
    # About eight bars have labels, always including the first and the last.
    step, last = math.ceil(len(bars) / _MAX_TICKS), len(bars) - 1
    return {
        "drawing": "spread",
        "says": says,
        "height": _PLOT_BOTTOM + 54,
        "sides": (_PLOT_LEFT, _PLOT_TOP, _PLOT_RIGHT, _PLOT_BOTTOM),
        "ticks": [(f"{tick:,.0f}", y(tick)) for tick in ticks],
        "y": y,
        "width": (_PLOT_RIGHT - _PLOT_LEFT) / max(len(bars), _MIN_BARS),
        "not_finite": bool(not_finite),
        "bars": [
            (label * (place == last or (place % step == 0 and place + step <= last)), count)
            for place, (label, count) in enumerate(bars)
        ],
    }


def _curve_chart(curves: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Return a chart that shows error / tolerance over the steps of trajectories.

    Args:
        curves: for at least one case, the largest error / tolerance of each recorded step.
    """
    most = {case: max(curve.values()) for case, curve in curves.items()}
    worst = max(most, key=most.__getitem__)
    drawn = [
        {
            min(max(step, 0), _MAX_STEP): min(_MAX_SHARE, max(_MIN_SHARE, share))
            for step, share in curve.items()
        }
        for curve in curves.values()
    ]
    shares = [share for curve in drawn for share in curve.values()]
    y, ticks = _log_scale(min(shares) / 2, max(*shares, 1.0) * 2)
    first = min(step for curve in drawn for step in curve)
    last = max(step for curve in drawn for step in curve)

    def x(step: float) -> int:
        return round(
            _PLOT_LEFT + 5 + (step - first) / max(last - first, 1) * (_PLOT_RIGHT - _PLOT_LEFT - 10)
        )

    lines = []
    for curve in drawn:
        # If several steps have the same x coordinate, the step with the largest value is drawn.
        places: dict[int, float] = {}
        for step, share in curve.items():
            places[x(step)] = max(share, places.get(x(step), 0.0))
        over = " over" if max(curve.values()) > 1 else ""
        lines.append((over, [(at, y(share)) for at, share in places.items()]))
    marked = dict.fromkeys(round(first + (last - first) * part / 4) for part in range(5))
    return {
        "drawing": "curve",
        "says": f"Error / tolerance over steps: at most {short_error(most[worst])}, by {worst}.",
        "height": _PLOT_BOTTOM + 36,
        "sides": (_PLOT_LEFT, _PLOT_TOP, _PLOT_RIGHT, _PLOT_BOTTOM),
        "limit": y(1),
        "ticks": [(f"{tick:g}", y(tick)) for tick in ticks],
        "curves": lines,
        "steps": [(step, x(step)) for step in marked],
    }


def _log_scale(least: float, most: float) -> tuple[Callable[[float], float], list[float]]:
    """Return a logarithmic y axis: a function from numbers to coordinates, and the ticks."""
    low, high = math.log10(least), math.log10(max(most, 10 * least))

    def y(number: float) -> float:
        share = (math.log10(number) - low) / (high - low)
        return round(_PLOT_BOTTOM - share * (_PLOT_BOTTOM - _PLOT_TOP), 1)

    powers = range(math.ceil(low), math.floor(high) + 1)
    step = math.ceil(len(powers) / _MAX_TICKS)
    # Ticks are counted from 10^0, so that the value 1 always has a tick.
    return y, [10.0**power for power in powers if power % step == 0]
