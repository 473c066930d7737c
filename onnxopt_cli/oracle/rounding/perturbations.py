"""The roundings that are put in: which way and how far each place moves in each of eight runs.

Terms that cancel show how far they are off only in a run in which they move apart. A run in which
two places move alike says nothing of their difference, so no two places may do so in every run.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from onnxopt_cli.core.values import Array

#: How often a model is run with roundings put in.
RUNS = 8
#: The sizes of a rounding. Each place moves by the last one in at least one run.
LEVELS = np.array([0.25, 0.5, 0.75, 1.0])
#: So many places in a row have sizes of which no two are alike in all runs. It is the largest prime
#: number for which there are enough, so that no usual size of a tensor is a multiple of it.
DISTINCT_PLACES = 58_967

# Any two of these columns of signs have all four pairs; in the first run all are alike.
_TRIPLES = tuple(combinations(range(1, RUNS), 3))
_COLUMNS = np.array([[1.0 if run in {0, *it} else -1.0 for it in _TRIPLES] for run in range(RUNS)])


def _signs() -> Array:
    """Return a row for each run. Elements a row of a tensor apart have other columns, too."""
    count = len(_TRIPLES)
    places = np.arange(count**3)
    chosen = (places + places // count + places // count**2) % count
    return np.ascontiguousarray(_COLUMNS[:, chosen])


def _sizes() -> Array:
    """Return a row for each run."""
    # Two bits are a run's level. Multiplying by odd numbers and mixing in what is shifted keep all
    # numbers distinct, so that neighbours have nothing in common.
    numbers = np.arange(4**RUNS, dtype=np.uint16)
    for factor in (40_503, 24_001, 52_711):
        numbers *= np.uint16(factor)
        numbers ^= numbers >> np.uint16(7)
    levels = (numbers >> (2 * np.arange(RUNS, dtype=np.uint16)[:, None])) & np.uint16(3)
    moves_fully = (levels == LEVELS.size - 1).any(axis=0)
    return np.ascontiguousarray(LEVELS[levels[:, moves_fully][:, :DISTINCT_PLACES]])


_ROWS = _signs(), _sizes()


def roundings(run: int, first: int, count: int) -> Array:
    """Return roundings, between -1 and 1, for consecutive places.

    Args:
        run: which of the runs.
        first: how many places were moved in it before.
        count: how many are moved now.
    """
    signs, sizes = (_around(rows[run], first, count) for rows in _ROWS)
    return np.asarray(signs * sizes)


def _around(row: Array, first: int, count: int) -> Array:
    """Return so many numbers of a row that begins again at its end."""
    first %= row.size
    end = first + count
    again = row if end <= row.size else np.tile(row, -(-end // row.size))
    return again[first:end]
