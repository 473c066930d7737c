"""Loss curves, weight histograms, and accuracy over sparsity as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from digits.agreement import Agreement
from digits.network import WEIGHTS
from digits.prepared_model import Tensors
from digits.results import Accuracies, PruningResult

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_DOTS_PER_INCH = 120
# An odd number, so that zero is in the middle of a bin.
_BINS = 61


def draw_losses(agreements: Sequence[Agreement], path: Path) -> None:
    """Draw the mean loss of every epoch, one line an optimizer, the backends on top of each other.

    The first backend is a wide pale line, the second a thin dashed one.
    """
    figure, axes = _figure(7, 4.2)
    for agreement, colour in zip(agreements, _COLOURS, strict=True):
        (first, mine), (second, theirs) = agreement.ends.items()
        epochs = range(1, len(mine.losses) + 1)
        name = agreement.optimizer.name
        axes.plot(epochs, mine.losses, color=colour, alpha=0.35, linewidth=5)
        axes.plot(epochs, theirs.losses, color=colour, linestyle="--", label=name)
    axes.plot([], [], color="grey", alpha=0.35, linewidth=5, label=first)
    axes.plot([], [], color="grey", linestyle="--", label=second)
    axes.set(yscale="log", xlabel="epoch", ylabel="mean cross-entropy of the epoch")
    axes.set_title("Training on two backends from the same start")
    axes.legend(frameon=False, ncols=2)
    _save(figure, path)


def draw_histograms(result: PruningResult, dense: Tensors, path: Path) -> None:
    """Draw the weights of each layer: dense, at the end of ADMM, and what is left after finetuning.

    Args:
        result: of one percentage.
        dense: the parameters that pruning started from.
        path: of the picture.
    """
    stages = (
        ("dense", dense),
        ("after ADMM, before pruning", result.admm.weights),
        ("pruned and finetuned, without zeros", result.admm.finetuned),
    )
    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(len(stages), len(WEIGHTS), sharex="col", sharey="col")
    for column, name in enumerate(WEIGHTS):
        reach = max(float(np.max(np.abs(parameters[name]))) for _, parameters in stages)
        bins = np.linspace(-reach, reach, _BINS + 1)
        for row, (_, parameters) in enumerate(stages):
            axes = grid[row, column]
            values = parameters[name].ravel()
            pruned = row == len(stages) - 1
            shown = values[values != 0] if pruned else values
            axes.hist(shown, bins, color=_COLOURS[row], log=True)
            axes.yaxis.set_major_formatter("{x:g}")
            _plain(axes)
            if pruned:
                axes.set_title(f"{100 * result.sparsity[name]:.1f} % are zero", fontsize="medium")
                axes.set_xlabel("weight")
        shape = " by ".join(map(str, dense[name].shape))
        grid[0, column].set_title(f"{name} ({shape})")
        grid[0, column].set_ylim(bottom=0.7)
    for row, (stage, _) in enumerate(stages):
        grid[row, 0].set_ylabel(stage.replace(", ", ",\n"))
    figure.suptitle(f"How many weights have which value, pruned by {result.percent:g} %")
    _save(figure, path)


def draw_accuracies(results: Sequence[PruningResult], path: Path) -> None:
    """Draw test accuracy over the share of pruned weights, mean and range over the seeds."""
    lines: tuple[tuple[str, Callable[[Accuracies], float]], ...] = (
        ("ADMM, finetuned", lambda it: it.admm_finetuned),
        ("one-shot, finetuned", lambda it: it.one_shot_finetuned),
        ("ADMM", lambda it: it.admm),
        ("one-shot", lambda it: it.one_shot),
    )
    figure, axes = _figure(7, 4.2)
    percents = [result.percent for result in results]
    for (name, value), colour in zip(lines, _COLOURS, strict=True):
        shares = 100 * np.array([[value(it) for it in result.accuracies] for result in results])
        axes.plot(percents, shares.mean(axis=1), color=colour, marker="o", label=name)
        axes.fill_between(
            percents, shares.min(axis=1), shares.max(axis=1), color=colour, alpha=0.15, linewidth=0
        )
    dense = 100 * float(np.mean([it.dense for it in results[0].accuracies]))
    axes.axhline(dense, color="grey", linestyle=":", label="dense")
    axes.set(xticks=percents, xlabel="pruned weights of each layer, %", ylabel="test accuracy, %")
    axes.set_ylim(0, 102)
    axes.set_title("Dense against pruned: mean and range over the seeds")
    axes.legend(frameon=False, loc="lower left")
    _save(figure, path)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    _plain(axes)
    return figure, axes


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=_DOTS_PER_INCH)
