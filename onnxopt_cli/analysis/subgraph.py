"""Reduce a failing model to a smallest failing subgraph, by delta debugging over its nodes.

The method is ddmin (Zeller and Hildebrandt, 2002), applied to the nodes in the order of the graph.
If few nodes remain, all of their connected subsets are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations

from onnxopt_cli.analysis.model_walk import NodeRun

# If at most this number of nodes remain, all connected subsets of them are judged.
_MAX_ENUMERATED = 6


class SearchEndedError(Exception):
    """Raised to end the search for a smallest failing subgraph early."""


def connected_parts(runs: Sequence[NodeRun]) -> list[list[NodeRun]]:
    """Return the connected components of some nodes; each component keeps their order."""
    part_of = {id(run): [run] for run in runs}
    producers = {key: run for run in runs for key in run.outputs}
    for run in runs:
        for key in run.read:
            first = part_of[id(producers[key])] if key in producers else part_of[id(run)]
            second = part_of[id(run)]
            if len(first) < len(second):
                # The nodes of the smaller component move to the larger component. Therefore, each
                # of n nodes moves at most log2 n times.
                first, second = second, first
            if first is not second:
                first += second
                for moved in second:
                    part_of[id(moved)] = first
    order = {id(run): index for index, run in enumerate(runs)}
    parts = {id(part): part for part in part_of.values()}
    return [sorted(part, key=lambda run: order[id(run)]) for part in parts.values()]


def smallest_failing(
    runs: Sequence[NodeRun], fails: Callable[[Sequence[NodeRun]], bool]
) -> list[NodeRun]:
    """Return a connected set of nodes that fails, but passes if any one of its nodes is removed.

    Args:
        runs: nodes that fail together.
        fails: returns whether a subset of the nodes fails if it runs without the other nodes. Each
            node was right in its first run, so a single node fails only if the backend keeps state.
            If the function raises :class:`SearchEndedError`, the search ends, and the last failing
            set is returned.
    """
    failing, pieces = [*runs], 2
    with suppress(SearchEndedError):
        while len(failing) > 1:
            reduced = _reduced(failing, min(pieces, len(failing)), fails)
            if reduced is not None:
                failing, is_subset = reduced
                pieces = 2 if is_subset else max(pieces - 1, 2)
            elif pieces < len(failing):
                pieces = min(2 * pieces, len(failing))
            else:
                break
        return _smallest_subset(failing, fails)
    return failing


def _smallest_subset(
    failing: list[NodeRun], fails: Callable[[Sequence[NodeRun]], bool]
) -> list[NodeRun]:
    """Return the smallest connected subset of ``failing`` that fails.

    All subsets are tried. A small subset may fail although no subset with one node fewer than
    ``failing`` fails. The reason is that a backend may fuse nodes only at the beginning or end of a
    model.
    """
    if len(failing) > _MAX_ENUMERATED:
        return failing
    for size in range(2, len(failing) - 1):
        for subset in combinations(failing, size):
            if len(connected_parts(subset)) == 1 and fails(subset):
                return [*subset]
    return failing


def _reduced(
    failing: Sequence[NodeRun], pieces: int, fails: Callable[[Sequence[NodeRun]], bool]
) -> tuple[list[NodeRun], bool] | None:
    """Split the nodes into subsets, and return a smaller connected set of nodes that fails.

    The connected components of each subset are tried first. Then one subset after another is left
    out, and the connected components of the remaining nodes are tried.

    Args:
        failing: nodes that fail together.
        pieces: number of subsets.
        fails: returns whether nodes fail.

    Returns:
        The connected nodes, and whether they lie within one subset; None if all tried nodes pass.
    """
    size = -(-len(failing) // pieces)
    subsets = [failing[start : start + size] for start in range(0, len(failing), size)]
    for subset in subsets:
        for part in connected_parts(subset):
            if fails(part):
                return part, True
    if len(subsets) <= 2:  # noqa: PLR2004 - two subsets are complements
        return None
    for subset in subsets:
        removed = {id(run) for run in subset}
        for part in connected_parts([run for run in failing if id(run) not in removed]):
            if fails(part):
                return part, False
    return None
