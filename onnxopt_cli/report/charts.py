"""Charts of a backend's accuracy: what each shows, and where; ``page/charts.html`` draws it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
# Ratios of error to tolerance beyond these are drawn as these.
_LEAST_SHARE, _MOST_SHARE = 1e-6, 1e6
# A saved run may claim any.
_MOST_STEPS = 10**12


def tolerance_chart(rows: Sequence[Accuracy]) -> dict[str, Any]:
    """Return a chart of error / tolerance of each output, at most and in the median.

    Args:
        rows: the outputs of one backend, at least one.

    Returns:
        Its drawing, what it says in words, its height, and what the drawing needs; so do the other
        charts.
    """
    most = max(rows, key=lambda row: row.tolerance_used_most)
    names = [f"{row.operator} {row.output}" for row in rows]
    names = [it if len(it) <= _MOST_LETTERS else f"{it[: _MOST_LETTERS - 2]}.." for it in names]
    left = max(map(len, names)) * _LETTER + 10
    end = _TOP + len(rows) * _ROW

    def x(share: float) -> float:
        part = min(1.0, max(0.0, share / _NEAR_LIMIT))
        return round(left + part * (_RIGHT - left), 1)

    used = numbers.error(most.tolerance_used_most)
    return {
        "drawing": "tolerance",
        "says": f"Error / tolerance: at most {used}, by {most.operator} {most.output}.",
        "height": end + 34,
        "x": x,
        "sides": (left, _TOP, _RIGHT, end),
        "rows": [
            (name, _TOP + (place + 0.5) * _ROW, row, numbers.error(row.tolerance_used_most))
            for place, (name, row) in enumerate(zip(names, rows, strict=True))
        ],
    }


def spread_chart(rows: Sequence[Accuracy]) -> dict[str, Any]:
    """Return a chart of how many elements are how many ulp off.

    Args:
        rows: the outputs of one backend, at least one.
    """
    counts = merged_counts(rows)
    elements = sum(row.elements for row in rows)
    right = counts[0] if counts else 0
    says = f"Spread of errors: {right} of {elements} elements are correctly rounded."
    if apart := sum(row.not_finite for row in rows):
        says += f" {apart} are finite on one side only."
    # Each is labelled with the least of the distances that have so many bits.
    bars = [
        (str(2**bits // 2) if bits <= _WRITTEN_OUT else f"2^{bits - 1}", count)
        for bits, count in enumerate(counts)
    ]
    bars += [("inf or NaN", apart)] if apart else []
    y, ticks = _log_scale(0.7, max((count for _, count in bars), default=1))
    # Room for about eight labels; the first and the last are always there.
    step, last = math.ceil(len(bars) / _MOST_TICKS), len(bars) - 1
    return {
        "drawing": "spread",
        "says": says,
        "height": _BOTTOM + 54,
        "sides": (_LEFT, _TOP, _RIGHT, _BOTTOM),
        "ticks": [(f"{tick:,.0f}", y(tick)) for tick in ticks],
        "y": y,
        "width": (_RIGHT - _LEFT) / max(len(bars), _LEAST_BARS),
        "apart": bool(apart),
        "bars": [
            (label * (place == last or (place % step == 0 and place + step <= last)), count)
            for place, (label, count) in enumerate(bars)
        ],
    }


def curve_chart(curves: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Return a chart of error / tolerance of trajectories over their steps.

    Args:
        curves: by case, the largest share of each recorded step; at least one.
    """
    most = {case: max(curve.values()) for case, curve in curves.items()}
    worst = max(most, key=most.__getitem__)
    drawn = [
        {
            min(max(step, 0), _MOST_STEPS): min(_MOST_SHARE, max(_LEAST_SHARE, share))
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
        # However many steps there are, the worst of those that share a place is drawn.
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
    """Return the height of a number on a logarithmic axis, and the powers of ten on it."""
    low, high = math.log10(least), math.log10(max(most, 10 * least))

    def y(number: float) -> float:
        share = (math.log10(number) - low) / (high - low)
        return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)

    powers = range(math.ceil(low), math.floor(high) + 1)
    step = math.ceil(len(powers) / _MOST_TICKS)
    # From one on, so that it is always there.
    return y, [10.0**power for power in powers if power % step == 0]
