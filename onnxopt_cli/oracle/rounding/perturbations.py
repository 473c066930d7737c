"""The design of the perturbed runs: the sign and size of each rounding in each run.

Each perturbed element of an operand or result has a place, a number that counts the elements in the
order in which they are perturbed. If two terms cancel, the error of their difference is visible
only in a run in which the two terms move differently. The design therefore ensures that any two
nearby places move differently in at least one run. The design uses no random numbers.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np

from onnxopt_cli.core.values import Array

#: The number of perturbed runs.
RUNS = 8
#: The sizes of a rounding. Each element moves by the largest size in at least one run.
LEVELS = np.array([0.25, 0.5, 0.75, 1.0])
#: The number of elements after which the sizes repeat. Within this period, any two elements have
#: different sizes in at least one run. The period is the largest prime for which four sizes and
#: eight runs can meet this condition. If the period divided the size of a tensor, elements at the
#: same place of different tensors would be perturbed equally. A prime number of five digits rarely
#: divides the size of a tensor.
DISTINCT_PLACES = 58_967

# The signs of the roundings: a row for each run, a column for each element. Any two columns
# contain all four pairs of signs. All signs of the first run are positive.
_TRIPLES = tuple(combinations(range(1, RUNS), 3))
_COLUMNS = np.array(
    [[1.0 if run in {0, *triple} else -1.0 for triple in _TRIPLES] for run in range(RUNS)]
)


# The error of a sum of n terms is assumed to be sqrt(n) / 4 roundings, but at least one rounding.
# As a comparison, the error of a sequential sum of 10^6 terms is 400 roundings.
_ROOT_DIVISOR = 4.0


def sum_roundings(terms: float) -> float:
    """Return the error of a sum of n terms x, in units of u sum|x|."""
    return max(1.0, unbounded_sum_roundings(terms))


def unbounded_sum_roundings(terms: float) -> float:
    """Return sqrt(n) / 4, the error of a sum without the lower limit of one rounding."""
    return terms**0.5 / _ROOT_DIVISOR


def _signs() -> Array:
    """Return the signs of the roundings of consecutive perturbed elements, one row per run.

    If the n columns were merely repeated, places at a distance of a multiple of n would have the
    same column. The sequence of columns therefore skips one column after every n places, and one
    more column after every n^2 places.
    """
    count = len(_TRIPLES)
    places = np.arange(count**3)
    columns = (places + places // count + places // count**2) % count
    return np.ascontiguousarray(_COLUMNS[:, columns])


def _sizes() -> Array:
    """Return the sizes of the roundings of consecutive perturbed elements, one row per run."""
    # Each place has a distinct number of 16 bits. Two of these bits determine the size of the
    # rounding in each of the eight runs. Multiplication by an odd number and XOR with shifted bits
    # are bijections. The numbers therefore remain distinct, while the numbers of neighbouring
    # places become unrelated.
    numbers = np.arange(4**RUNS, dtype=np.uint16)
    for factor in (40_503, 24_001, 52_711):
        numbers *= np.uint16(factor)
        numbers ^= numbers >> np.uint16(7)
    levels = (numbers >> (2 * np.arange(RUNS, dtype=np.uint16)[:, None])) & np.uint16(3)
    moves_fully = (levels == LEVELS.size - 1).any(axis=0)
    return np.ascontiguousarray(LEVELS[levels[:, moves_fully][:, :DISTINCT_PLACES]])


# The number of elements whose roundings are computed together.
_BLOCK_PLACES = 1 << 17


@cache
def _repeated_rows() -> list[tuple[int, Array]]:
    """Return the signs and the sizes of the roundings, each with the period of its rows.

    The rows are repeated, so that a block that begins within the first period is contiguous.
    """
    return [
        (rows.shape[1], np.tile(rows, (1, 1 + -(-_BLOCK_PLACES // rows.shape[1]))))
        for rows in (_signs(), _sizes())
    ]


def roundings(run: int, first: int, count: int, out: Array | None = None) -> Array:
    """Return the roundings, between -1 and 1, of consecutive perturbed elements.

    Args:
        run: the index of the run.
        first: the index of the first place.
        count: the number of places.
        out: receives the roundings; a new array by default.
    """
    values = np.empty(count) if out is None else out
    (sign_period, signs), (size_period, sizes) = _repeated_rows()
    for start in range(0, count, _BLOCK_PLACES):
        block = values[start : start + _BLOCK_PLACES]
        sign_place, size_place = (first + start) % sign_period, (first + start) % size_period
        np.multiply(
            signs[run, sign_place : sign_place + block.size],
            sizes[run, size_place : size_place + block.size],
            out=block,
        )
    return values
