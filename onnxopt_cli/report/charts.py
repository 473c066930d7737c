"""Data and layout of the charts of a backend's accuracy; ``page/charts.html`` draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxopt_cli.core import numbers
from onnxopt_cli.report.view.accuracy import Accuracy, merged_counts

#: The width of every chart in user units of SVG, each about a pixel of a narrow page.
WIDTH = 400
# The edges of the plot area of a chart with two axes.
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 390, 24, 190
_ROW = 26
_LETTER = 7.0
_MAX_LABEL_CHARS = 24
# The bar of a larger error / tolerance ends at this value, a little beyond the limit of 1.
_MAX_DRAWN_SHARE = 1.15
# Distances in ulp with more bits are labelled as powers of two.
_MAX_DECIMAL_BITS = 11
# A chart has room for at least this number of bars, so that a few bars are not too wide.
_MIN_BARS = 8
_MAX_TICKS = 8
# Values of error / tolerance are clipped to this range.
_MIN_SHARE, _MAX_SHARE = 1e-6, 1e6
# Step numbers of a saved run, which may be any integer, are clipped to this.
_MAX_STEP = 10**12


def tolerance_chart(rows: Sequence[Accuracy]) -> dict[str, Any]:
    """Return a chart of the largest and the median error / tolerance of each output.

    Args:
        rows: the outputs of one backend, at least one.

    Returns:
        The name of the drawing, a caption, the height, and the data of the drawing. All charts of
        this module have this form.
    """
    most = max(rows, key=lambda row: row.tolerance_used_most)
    names = [f"{row.operator} {row.output}" for row in rows]
    names = [
        name if len(name) <= _MAX_LABEL_CHARS else f"{name[: _MAX_LABEL_CHARS - 2]}.."
        for name in names
    ]
    left_edge = max(map(len, names)) * _LETTER + 10
    end = _TOP + len(rows) * _ROW

    def x(share: float) -> float:
        part = min(1.0, max(0.0, share / _MAX_DRAWN_SHARE))
        return round(left_edge + part * (_RIGHT - left_edge), 1)

    used = numbers.error(most.tolerance_used_most)
    return {
        "drawing": "tolerance",
        "says": f"Error / tolerance: at most {used}, by {most.operator} {most.output}.",
        "height": end + 34,
        "x": x,
        "sides": (left_edge, _TOP, _RIGHT, end),
        "rows": [
            (name, _TOP + (place + 0.5) * _ROW, row, numbers.error(row.tolerance_used_most))
            for place, (name, row) in enumerate(zip(names, rows, strict=True))
        ],
    }


def spread_chart(rows: Sequence[Accuracy]) -> dict[str, Any]:
    """Return a histogram of the distances, in ulp, from the expected result.

    Args:
        rows: the outputs of one backend, at least one.
    """
    counts = merged_counts(rows)
    elements = sum(row.elements for row in rows)
    exact = counts[0] if counts else 0
    says = f"Spread of errors: {exact} of {elements} elements equal the expected result."
    if not_finite := sum(row.not_finite for row in rows):
        says += f" {not_finite} are finite on one side only."
    # The label of a bar is the smallest distance with its number of bits.
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
        "height": _BOTTOM + 54,
        "sides": (_LEFT, _TOP, _RIGHT, _BOTTOM),
        "ticks": [(f"{tick:,.0f}", y(tick)) for tick in ticks],
        "y": y,
        "width": (_RIGHT - _LEFT) / max(len(bars), _MIN_BARS),
        "not_finite": bool(not_finite),
        "bars": [
            (label * (place == last or (place % step == 0 and place + step <= last)), count)
            for place, (label, count) in enumerate(bars)
        ],
    }


def curve_chart(curves: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Return a chart of error / tolerance of trajectories over their steps.

    Args:
        curves: by case, the largest error / tolerance of each recorded step; at least one case.
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
        return round(_LEFT + 5 + (step - first) / max(last - first, 1) * (_RIGHT - _LEFT - 10))

    lines = []
    for curve in drawn:
        # If several steps have the same x coordinate, the worst one is drawn.
        places: dict[int, float] = {}
        for step, share in curve.items():
            places[x(step)] = max(share, places.get(x(step), 0.0))
        over = " over" if max(curve.values()) > 1 else ""
        lines.append((over, [(at, y(share)) for at, share in places.items()]))
    marked = dict.fromkeys(round(first + (last - first) * part / 4) for part in range(5))
    return {
        "drawing": "curve",
        "says": f"Error / tolerance over steps: at most {numbers.error(most[worst])}, by {worst}.",
        "height": _BOTTOM + 36,
        "sides": (_LEFT, _TOP, _RIGHT, _BOTTOM),
        "limit": y(1),
        "ticks": [(f"{tick:g}", y(tick)) for tick in ticks],
        "curves": lines,
        "steps": [(step, x(step)) for step in marked],
    }


def _log_scale(least: float, most: float) -> tuple[Callable[[float], float], list[float]]:
    """Return the function from a number to its y coordinate on a logarithmic axis, and ticks."""
    low, high = math.log10(least), math.log10(max(most, 10 * least))

    def y(number: float) -> float:
        share = (math.log10(number) - low) / (high - low)
        return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)

    powers = range(math.ceil(low), math.floor(high) + 1)
    step = math.ceil(len(powers) / _MAX_TICKS)
    # Counted from 10^0, so that 1 always has a tick.
    return y, [10.0**power for power in powers if power % step == 0]
