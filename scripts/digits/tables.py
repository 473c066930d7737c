"""The results as Markdown, which is what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from digits.agreement import THRESHOLDS, USEFUL, Agreement
from digits.results import Accuracies, PruningAgreement, PruningResult

_COLUMNS: tuple[tuple[str, Callable[[Accuracies], float]], ...] = (
    ("dense", lambda it: it.dense),
    ("one-shot", lambda it: it.one_shot),
    ("one-shot, finetuned", lambda it: it.one_shot_finetuned),
    ("ADMM", lambda it: it.admm),
    ("ADMM, finetuned", lambda it: it.admm_finetuned),
)


def training_table(agreements: Sequence[Agreement], accuracies: Sequence[Sequence[float]]) -> str:
    """Return what each optimizer reaches on each backend, and how far apart they end."""
    names = list(agreements[0].ends)
    heads = ["optimizer"]
    heads += [f"loss, {name}" for name in names] + [f"accuracy, {name}" for name in names]
    heads += ["largest difference of a parameter"]
    rows = [
        [
            it.optimizer.name,
            *(f"{end.losses[-1]:.4f}" for end in it.ends.values()),
            *map(_percent, reached),
            f"{it.difference:.1e}",
        ]
        for it, reached in zip(agreements, accuracies, strict=True)
    ]
    return markdown_table(heads, rows)


def budget_table(agreements: Sequence[Agreement]) -> str:
    """Return how much of the derived budget the backends use, and where they part."""
    names = list(agreements[0].ends)
    heads = ["optimizer", "steps judged", *(f"node alone, {name}" for name in names)]
    heads += [f"whole step, {name}" for name in names]
    heads += ["without a bound", f"steps carried below {USEFUL:g}"]
    heads += [f"first step off by {threshold:g}" for threshold in THRESHOLDS]
    rows = [
        [
            it.optimizer.name,
            str(it.judged),
            *(f"{it.optimizer_share[name]:.0%}" for name in names),
            *(f"{it.share[name]:.0%}" for name in names),
            f"{it.unbounded} of {it.elements}",
            f"{it.carried} ({it.carried_share:.1%} used)" if it.carried else "0",
            *(str(it.parted.get(threshold, "never")) for threshold in THRESHOLDS),
        ]
        for it in agreements
    ]
    return markdown_table(heads, rows)


def pruning_table(results: Sequence[PruningResult]) -> str:
    """Return test accuracies, dense against pruned and finetuned, and sparsity by layer.

    Accuracies are means over the seeds, with the standard deviation of several.
    """
    layers = list(results[0].sparsity)
    heads = ["pruned", *(f"zeros in {name}" for name in layers), *(name for name, _ in _COLUMNS)]
    rows = [
        [
            f"{it.percent:g} %",
            *(_percent(it.sparsity[name]) for name in layers),
            *(_mean_and_deviation(map(value, it.accuracies)) for _, value in _COLUMNS),
        ]
        for it in results
    ]
    return markdown_table(heads, rows)


def pruning_agreement_table(agreements: Sequence[PruningAgreement]) -> str:
    """Return how two backends agree on a pruning."""
    names = list(agreements[0].accuracies)
    heads = ["pruned", *(f"accuracy, {name}" for name in names)]
    heads += ["weights pruned on one backend only", "largest difference of a parameter"]
    rows = [
        [
            f"{it.percent:g} %",
            *(_percent(it.accuracies[name]) for name in names),
            str(it.unlike),
            f"{it.difference:.1e}",
        ]
        for it in agreements
    ]
    return markdown_table(heads, rows)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns stand under each other as plain text, too."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = [_line(heads, widths), _line([rule[0], *(it[:-1] + ":" for it in rule[1:])], widths)]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join([first.strip().ljust(widths[0]), *others])} |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _mean_and_deviation(shares: Iterable[float]) -> str:
    values = list(shares)
    if len(values) == 1:
        return _percent(values[0])
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f} %"
