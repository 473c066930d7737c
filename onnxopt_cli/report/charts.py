"""Charts of a backend's accuracy as SVG images, one for light and one for dark pages.

Matplotlib draws them: pages hold them as images, so that nothing in them can act, and they need
neither a script nor a network. Only names of ours stand in them.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxopt_cli.core import numbers
from onnxopt_cli.report.accuracy import Accuracy, merged_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# As wide as a narrow page, so that it never has to be scaled down to be unreadable.
_WIDTH = 4.0
_ROW = 0.3
_NEAR_LIMIT = 1.15
# Larger distances in ulp are labelled as powers of two.
_WRITTEN_OUT = 1024
# Room for so many bars, so that a single one is not a wall.
_LEAST_BARS = 8
# Shares of the budget beyond these are drawn as these.
_LEAST_SHARE, _MOST_SHARE = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a chart."""

    text: str
    grid: str
    mark: str
    other: str
    limit: str


LIGHT = Palette(text="#3d4450", grid="#d5d9e0", mark="#2a5db0", other="#7d8796", limit="#b3261e")
DARK = Palette(text="#c3c9d4", grid="#3a414d", mark="#7fb0ff", other="#8a94a6", limit="#ff8a80")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as two images.

    Attributes:
        light: the image as a ``data:`` URI, for light pages.
        dark: the same for dark ones.
        says: what it shows, in words.
    """

    light: str
    dark: str
    says: str


def budget_chart(rows: Sequence[Accuracy]) -> Chart:
    """Draw the share of the budget that each output uses, at most and in the median.

    Args:
        rows: the outputs of one backend, at least one.
    """
    most = max(rows, key=lambda row: row.budget_most)
    says = (
        f"Budget used: at most {numbers.error(most.budget_most)}, by {most.operator} {most.output}."
    )
    return _chart(lambda axes, palette: _draw_budget(axes, palette, rows), len(rows), says)


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
    return _chart(lambda axes, palette: _draw_spread(axes, palette, counts, apart), 7, says)


def curve_chart(curves: Mapping[str, Mapping[int, float]]) -> Chart:
    """Draw the share of the budget that trajectories use over their steps.

    Args:
        curves: by case, the largest share of each recorded step; at least one.
    """
    most = {case: max(curve.values()) for case, curve in curves.items()}
    worst = max(most, key=most.__getitem__)
    says = f"Budget used over steps: at most {numbers.error(most[worst])}, by {worst}."
    return _chart(lambda axes, palette: _draw_curves(axes, palette, curves), 7, says)


def _draw_curves(axes: Axes, palette: Palette, curves: Mapping[str, Mapping[int, float]]) -> None:
    for curve in curves.values():
        shares = [min(max(share, _LEAST_SHARE), _MOST_SHARE) for share in curve.values()]
        over = max(shares) > 1
        axes.plot(
            list(curve),
            shares,
            color=palette.limit if over else palette.mark,
            alpha=1.0 if over else 0.6,
            linewidth=1.2,
            # One step is a point.
            marker="." if len(shares) == 1 else "",
        )
    axes.axhline(1.0, color=palette.limit, linestyle="--", linewidth=1.2, label="limit")
    axes.set_yscale("log")
    # Matplotlib's own powers are formulas, which are not drawn as such here.
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:g}")
    axes.set_xlabel("step")
    axes.set_ylabel("largest share of the budget")
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8)


def _draw_budget(axes: Axes, palette: Palette, rows: Sequence[Accuracy]) -> None:
    places = range(len(rows))
    shown = [min(row.budget_most, _NEAR_LIMIT) for row in rows]
    axes.barh(places, shown, height=0.55, color=palette.mark, label="most")
    axes.scatter(
        [min(row.budget_median, _NEAR_LIMIT) for row in rows],
        places,
        marker="D",
        s=22,
        facecolor="none",
        edgecolor=palette.text,
        linewidth=1.3,
        zorder=3,
        clip_on=False,
        label="median",
    )
    axes.axvline(1.0, color=palette.limit, linestyle="--", linewidth=1.2, label="limit")
    for place, row in zip(places, rows, strict=True):
        over = row.budget_most > 1
        axes.annotate(
            f"over: {numbers.error(row.budget_most)}" if over else numbers.error(row.budget_most),
            (shown[place], place),
            xytext=(-5 if over else 6, 0),
            textcoords="offset points",
            va="center",
            ha="right" if over else "left",
            color="white" if over and palette is LIGHT else "black" if over else palette.text,
            fontsize=8,
        )
    axes.set_yticks(list(places), [f"{row.operator} {row.output}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, _NEAR_LIMIT)
    axes.set_xlabel("share of the budget")
    axes.grid(axis="x", color=palette.grid, linewidth=0.8)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)


def _draw_spread(axes: Axes, palette: Palette, counts: Sequence[int], apart: int) -> None:
    axes.bar(range(len(counts)), counts, width=0.8, color=palette.mark)
    labels = {place: _ulp_label(place) for place in range(len(counts))}
    if apart:
        end = len(counts)
        axes.bar([end], [apart], width=0.8, color="none", edgecolor=palette.limit, hatch="////")
        labels[end] = "inf or NaN"
    # Room for about eight labels; the first and the last are always said.
    step = math.ceil(len(labels) / 8)
    ticks = [place for place in labels if place % step == 0 and place + step <= max(labels)]
    ticks.append(max(labels))
    axes.set_xticks(ticks, [labels[place] for place in ticks], rotation=35, ha="right")
    axes.set_xlim(-0.7, max(*labels, _LEAST_BARS) + 0.7)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    axes.set_ylim(bottom=0.7)
    axes.set_xlabel("at least so many ulp off")
    axes.set_ylabel("elements")
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)


def _ulp_label(bits: int) -> str:
    """Name the least of the distances that have so many bits."""
    low = 2**bits // 2
    return str(low) if low <= _WRITTEN_OUT else f"2^{bits - 1}"


def _chart(draw: Callable[[Axes, Palette], None], rows: int, says: str) -> Chart:
    return Chart(_image(draw, LIGHT, rows), _image(draw, DARK, rows), says)


def _image(draw: Callable[[Axes, Palette], None], palette: Palette, rows: int) -> str:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "onnxopt",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "text.color": palette.text,
        "text.parse_math": False,
        "axes.edgecolor": palette.grid,
        "axes.labelcolor": palette.text,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": palette.text,
        "ytick.color": palette.text,
        "hatch.color": palette.limit,
    }
    with rc_context(style):
        figure = Figure(figsize=(_WIDTH, 1.2 + _ROW * max(rows, 3)), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot(), palette)
        buffer = io.BytesIO()
        # Without a date the same results give the same bytes.
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"
