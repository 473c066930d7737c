"""Charts of a backend's accuracy: what to draw where, for the page's template to write as SVG.

The page's style colours them, so that they follow the reader's scheme, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnxopt_cli.core import numbers
from onnxopt_cli.report.accuracy import Accuracy, merged_counts

#: The width of every chart, in the units of its coordinates: about a pixel of a narrow page.
WIDTH = 400
# Where the bars and curves of a chart with two axes begin and end.
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 390, 24, 190
_ROW = 26
_LETTER = 7.0
_MOST_LETTERS = 24
# A bar that is over the limit ends a little beyond it.
_NEAR_LIMIT = 1.15
# Distances in ulp of more bits are labelled as powers of two.
_WRITTEN_OUT = 11
# Room for so many bars, so that a single one is not a wall.
_LEAST_BARS = 8
_MOST_TICKS = 8
# Shares of the budget beyond these are drawn as these.
_LEAST_SHARE, _MOST_SHARE = 1e-6, 1e6
# A saved run may claim any.
_MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True)
class Mark:
    """A shape or a text of a chart.

    Attributes:
        tag: the SVG element.
        look: the class that styles it.
        at: its attributes.
        text: what is written there; empty for a shape.
    """

    tag: str
    look: str
    at: Mapping[str, object]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of :data:`WIDTH`.

    Attributes:
        says: what it shows, in words.
        height: in the units of the width.
        marks: what to draw, from back to front.
    """

    says: str
    height: float
    marks: tuple[Mark, ...]


def budget_chart(rows: Sequence[Accuracy]) -> Chart:
    """Draw the share of the budget that each output uses, at most and in the median.

    Args:
        rows: the outputs of one backend, at least one.
    """
    most = max(rows, key=lambda row: row.budget_most)
    says = (
        f"Budget used: at most {numbers.error(most.budget_most)}, by {most.operator} {most.output}."
    )
    return Chart(says, _TOP + len(rows) * _ROW + 34, tuple(_budget_marks(rows)))


def spread_chart(rows: Sequence[Accuracy]) -> Chart:
    """Draw how many elements are how many ulp off.

    Args:
        rows: the outputs of one backend, at least one.
    """
    counts = merged_counts(rows)
    elements = sum(row.elements for row in rows)
    right = counts[0] if counts else 0
    says = f"Spread of errors: {right} of {elements} elements are correctly rounded."
    apart = sum(row.not_finite for row in rows)
    if apart:
        says += f" {apart} are finite on one side only."
    return Chart(says, _BOTTOM + 54, tuple(_spread_marks(counts, apart)))


def curve_chart(curves: Mapping[str, Mapping[int, float]]) -> Chart:
    """Draw the share of the budget that trajectories use over their steps.

    Args:
        curves: by case, the largest share of each recorded step; at least one.
    """
    most = {case: max(curve.values()) for case, curve in curves.items()}
    worst = max(most, key=most.__getitem__)
    says = f"Budget used over steps: at most {numbers.error(most[worst])}, by {worst}."
    return Chart(says, _BOTTOM + 36, tuple(_curve_marks(curves)))


def _budget_marks(rows: Sequence[Accuracy]) -> Iterator[Mark]:
    names = [_shortened(f"{row.operator} {row.output}") for row in rows]
    left = max(map(len, names)) * _LETTER + 10
    end = _TOP + len(rows) * _ROW

    def x(share: float) -> float:
        part = min(1.0, max(0.0, share / _NEAR_LIMIT))
        return round(left + part * (_RIGHT - left), 1)

    for share in (0, 0.25, 0.5, 0.75, 1):
        yield _line("grid", x(share), _TOP, x(share), end)
        yield _text(x(share), end + 14, f"{share:g}")
    yield _text((left + _RIGHT) / 2, end + 30, "share of the budget")
    for place, (row, name) in enumerate(zip(rows, names, strict=True)):
        middle = _TOP + (place + 0.5) * _ROW
        over = row.budget_most > 1
        used = numbers.error(row.budget_most)
        median = x(row.budget_median)
        yield _text(left - 8, middle + 4, name, "end")
        yield _rect("mark", left, middle - 7, x(row.budget_most), middle + 7)
        if over:
            yield _text(x(row.budget_most) - 6, middle + 4, f"over: {used}", "end", "inside")
        else:
            # Beside the bar and the diamond, whichever ends later.
            yield _text(max(x(row.budget_most), median + 6) + 5, middle + 4, used, "start")
        yield _diamond(median, middle)
    yield _line("limit", x(1), _TOP, x(1), end)
    yield _rect("mark", left, 5, left + 12, 15)
    yield _text(left + 17, 14, "most", "start")
    yield _diamond(left + 64, 10)
    yield _text(left + 73, 14, "median", "start")
    yield from _legend_of_limit(left + 130)


def _spread_marks(counts: Sequence[int], apart: int) -> Iterator[Mark]:
    labels = [*map(_ulp_label, range(len(counts))), *(["inf or NaN"] if apart else [])]
    bars = [*counts, *([apart] if apart else [])]
    y, ticks = _log_scale(0.7, max(bars, default=1))
    width = (_RIGHT - _LEFT) / max(len(bars), _LEAST_BARS)
    yield from _y_axis(y, {tick: f"{tick:,.0f}" for tick in ticks}, "elements")
    # Room for about eight labels; the first and the last are always there.
    step = math.ceil(len(bars) / _MOST_TICKS)
    for place, (count, label) in enumerate(zip(bars, labels, strict=True)):
        left, right = _LEFT + (place + 0.1) * width, _LEFT + (place + 0.9) * width
        last = place == len(bars) - 1
        if count > 0:
            look = "apart" if apart and last else "mark"
            yield _rect(look, left, y(count), right, _BOTTOM)
        if last or (place % step == 0 and place + step < len(bars)):
            at = f"{(left + right) / 2 + 4:.1f} {_BOTTOM + 13}"
            turned = {"transform": f"translate({at}) rotate(-30)"}
            yield Mark("text", "end", turned, label)
    yield _text((_LEFT + _RIGHT) / 2, _BOTTOM + 50, "at least so many ulp off")


def _curve_marks(curves: Mapping[str, Mapping[int, float]]) -> Iterator[Mark]:
    drawn = {
        case: {
            min(max(step, 0), _MOST_STEPS): min(_MOST_SHARE, max(_LEAST_SHARE, share))
            for step, share in curve.items()
        }
        for case, curve in curves.items()
    }
    shares = [share for curve in drawn.values() for share in curve.values()]
    y, ticks = _log_scale(min(shares) / 2, max(*shares, 1.0) * 2)
    yield from _y_axis(y, {tick: f"{tick:g}" for tick in ticks}, "largest share of the budget")
    first = min(step for curve in drawn.values() for step in curve)
    last = max(step for curve in drawn.values() for step in curve)

    def x(step: float) -> int:
        return round(_LEFT + 5 + (step - first) / max(last - first, 1) * (_RIGHT - _LEFT - 10))

    for curve in drawn.values():
        # However many steps there are, the worst of those that share a place is drawn.
        places: dict[int, float] = {}
        for step, share in curve.items():
            places[x(step)] = max(share, places.get(x(step), 0.0))
        over = " over" if max(curve.values()) > 1 else ""
        if len(places) == 1:
            ((at, share),) = places.items()
            yield Mark("circle", f"curve{over}", {"cx": at, "cy": y(share), "r": 3})
        else:
            points = " ".join(f"{at},{y(share)}" for at, share in places.items())
            yield Mark("polyline", f"curve{over}", {"points": points})
    yield _line("limit", _LEFT, y(1), _RIGHT, y(1))
    for step in dict.fromkeys(round(first + (last - first) * part / 4) for part in range(5)):
        yield _text(x(step), _BOTTOM + 14, str(step))
    yield _text((_LEFT + _RIGHT) / 2, _BOTTOM + 30, "step")
    yield from _legend_of_limit(_RIGHT - 60)


def _log_scale(least: float, most: float) -> tuple[Callable[[float], float], list[float]]:
    """Return the height of a number on a logarithmic axis, and the powers of ten on it."""
    low, high = math.log10(least), math.log10(max(most, 10 * least))

    def y(number: float) -> float:
        share = (math.log10(number) - low) / (high - low)
        return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)

    powers = range(math.ceil(low), math.floor(high) + 1)
    step = math.ceil(len(powers) / _MOST_TICKS)
    # From one on, so that it is always there.
    return y, [10.0**power for power in powers if power % step == 0]


def _y_axis(y: Callable[[float], float], ticks: Mapping[float, str], title: str) -> Iterator[Mark]:
    for tick, label in ticks.items():
        yield _line("grid", _LEFT, y(tick), _RIGHT, y(tick))
        yield _text(_LEFT - 6, y(tick) + 4, label, "end")
    yield _text(2, 14, title, "start")


def _ulp_label(bits: int) -> str:
    """Name the least of the distances that have so many bits."""
    return str(2**bits // 2) if bits <= _WRITTEN_OUT else f"2^{bits - 1}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 2]}.."


def _legend_of_limit(left: float) -> Iterator[Mark]:
    yield _line("limit", left, 10, left + 18, 10)
    yield _text(left + 24, 14, "limit", "start")


def _text(x: float, y: float, text: str, anchor: str = "middle", look: str = "") -> Mark:
    return Mark("text", f"{anchor} {look}".strip(), {"x": round(x, 1), "y": round(y, 1)}, text)


def _line(look: str, x1: float, y1: float, x2: float, y2: float) -> Mark:
    return Mark("line", look, {"x1": x1, "y1": y1, "x2": x2, "y2": y2})


def _rect(look: str, left: float, top: float, right: float, bottom: float) -> Mark:
    at = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return Mark("rect", look, {name: round(number, 1) for name, number in at.items()})


def _diamond(x: float, y: float) -> Mark:
    points = f"{x - 5:.1f},{y} {x:.1f},{y - 5} {x + 5:.1f},{y} {x:.1f},{y + 5}"
    return Mark("polygon", "median", {"points": points})
