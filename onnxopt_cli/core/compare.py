"""Arrays and a tolerance in, a Diff out. Structure is judged before values; nothing is printed.

Tensors are compared in blocks, so that a large one needs no full-size temporaries.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count, zip_longest
from operator import itemgetter
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.core.blocks import BLOCK, in_blocks
from onnxopt_cli.core.diff import Diff, Element
from onnxopt_cli.core.text import clipped
from onnxopt_cli.core.tolerance import (
    Branch,
    Drawn,
    ErrorBound,
    Provenance,
    Relative,
    Tolerance,
    Ulps,
)
from onnxopt_cli.core.values import (
    Array,
    NumberKind,
    Value,
    as_strings,
    describe,
    dtype_name,
    is_string,
    kind_of,
)

# Of outputs too many, and of keys that differ, no more are shown.
_MOST_SURPLUS = _MOST_KEYS = 5
_LONGEST_KEY = 200
# Few elements of a block need a limit, where few do: those of so many blocks are asked for at once.
_ASKED_TOGETHER = 16


def compare_outputs(
    expected: Mapping[str, Value],
    actual: Sequence[Value],
    tolerance_of: Callable[[str], Tolerance],
    *,
    signed_zeros: bool = False,
    worst: int = 5,
    examine: bool = False,
) -> tuple[Diff, ...]:
    """Judge what a backend returned against the expected outputs.

    Args:
        expected: the expected outputs by name, in the graph's order.
        actual: what the backend returned, in the graph's order.
        tolerance_of: the tolerance of an output by its name.
        signed_zeros: whether 0.0 and -0.0 differ.
        worst: how many of the worst elements of a tensor are described.
        examine: whether tolerances are asked of elements that are equal to the bit, too: not for
            the verdict, but to know how many of them they cannot judge.

    Returns:
        One Diff for each tensor, and one for each place where the structures part; of outputs that
        are too many the first few have one each, the others one together.
    """
    diffs: list[Diff] = []
    outputs = dict(zip(expected, actual, strict=False))
    for name, value in expected.items():
        if name in outputs:
            options = _Options(
                tolerance_of(name), worst, outputs, signed_zeros=signed_zeros, examine=examine
            )
            diffs += _compare(name, value, outputs[name], options)
        else:
            diffs.append(Diff(name, describe(value), structure="is missing"))
    end = len(expected) + _MOST_SURPLUS
    for position, value in enumerate(actual[len(expected) : end], len(expected)):
        found = f"is {describe(value)} too many"
        diffs.append(Diff(f"output {position}", "nothing", structure=found))
    if len(actual) > end:
        found = f"are {len(actual) - end} too many"
        diffs.append(Diff(f"outputs {end} to {len(actual) - 1}", "nothing", structure=found))
    return tuple(diffs)


def element_shares(expected: Array, actual: Array, tolerance: Tolerance) -> Array:
    """Return the share of its limit that each element uses; more than 1 is wrong.

    Args:
        expected: what was expected; of one dtype and shape with what came.
        actual: what came.
        tolerance: what an output of this dtype is judged by.
    """
    mine, theirs = expected.reshape(-1), actual.reshape(-1)
    shares = np.zeros(mine.size)
    places = _differing(mine, theirs)
    if places.size:
        judged = _judged(_applicable(tolerance, mine), mine, theirs, places)
        share = judged.share
        # What is wrong by less than the quotient's rounding.
        share[~(judged.distance <= judged.limit) & (share <= 1)] = np.nextafter(1, 2)
        shares[places] = share
    return shares.reshape(expected.shape)


def surely_agrees(expected: Array, actual: Array, error_bound: ErrorBound) -> bool:
    """Tell whether a tensor of floats is within a tolerance, without asking how far off it is.

    Args:
        expected: what was expected.
        actual: what came.
        error_bound: what an output of this dtype is judged by.

    Returns:
        False also where only :func:`compare_outputs` can tell.
    """
    if kind_of(expected.dtype) is not NumberKind.FLOAT or describe(expected) != describe(actual):
        return False
    mine, theirs = expected.reshape(-1), actual.reshape(-1)

    def agrees(block: slice) -> bool:
        places = block.start + _differing(mine[block], theirs[block])
        one, other = mine[places].astype(np.float64), theirs[places].astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(one - other) < error_bound.least * np.abs(one)
        judged = _judged(error_bound, mine, theirs, places[~near])
        return bool((judged.distance <= judged.limit).all())

    return all(in_blocks(agrees, mine.size, BLOCK * _ASKED_TOGETHER))


def largest_share(
    expected: Mapping[str, Value],
    actual: Sequence[Value],
    tolerance_of: Callable[[str], Tolerance],
) -> float:
    """Return the largest share of its limit that an element of outputs uses; over 1 is wrong.

    It is infinite where types or shapes are not the same, or where they are no tensors. Statistics
    would take longer than all the rest: this is for who compares ten thousand times.
    """
    if len(actual) != len(expected):
        return float("inf")
    largest = 0.0
    for (name, mine), theirs in zip(expected.items(), actual, strict=True):
        if not isinstance(mine, np.ndarray) or not isinstance(theirs, np.ndarray):
            return float("inf")
        if describe(mine) != describe(theirs):
            return float("inf")
        shares = element_shares(mine, theirs, tolerance_of(name))
        largest = max(largest, float(shares.max(initial=0.0)))
    return largest


@dataclass(frozen=True, slots=True)
class _Options:
    """How the tensors of an output are compared."""

    tolerance: Tolerance
    worst: int
    outputs: Mapping[str, Value]
    signed_zeros: bool
    examine: bool


def _compare(name: str, expected: Value, actual: Value, options: _Options) -> Iterator[Diff]:
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        yield _compare_tensors(name, expected, actual, options)
        return
    wrong = None
    parts: Iterable[tuple[Any, Value, Value]] = ()
    match expected, actual:
        case list(), list() if len(expected) == len(actual):
            parts = zip(count(), expected, actual)
        case dict(), dict() if expected.keys() == actual.keys():
            parts = ((key, mine, actual[key]) for key, mine in expected.items())
        case dict(), dict():
            unlike = expected.keys() ^ actual.keys()
            some = sorted(clipped(repr(key), _LONGEST_KEY) for key in unlike)[:_MOST_KEYS]
            wrong = f"has {len(unlike)} other keys; on one side only: {', '.join(some)}"
        case _ if expected is not None or actual is not None:
            wrong = f"is {describe(actual)}"
    yield Diff(name, describe(expected), wrong)
    for key, mine, theirs in parts:
        yield from _compare(f"{name}[{key!r}]", mine, theirs, options)


@cache
def spent(factor: float, provenance: Provenance) -> ErrorBound:
    """Return a tolerance that no longer judges anything, and holds no arrays."""
    nothing = np.empty(0)
    return ErrorBound(Branch(nothing, nothing).at, factor, provenance)


def _compare_tensors(name: str, expected: Array, actual: Array, options: _Options) -> Diff:
    kind, found = describe(expected), describe(actual)
    if found != kind:
        return Diff(name, kind, structure=f"is {found}")
    if isinstance(options.tolerance, Drawn):
        distribution = options.tolerance
        wrong = distribution.test(actual) or distribution.beside(options.outputs) or None
        return Diff(name, kind, wrong, tolerance=distribution, elements=expected.size)
    if is_string(expected.dtype):
        expected, actual = as_strings(expected), as_strings(actual)
    tolerance, size = _applicable(options.tolerance, expected), expected.size
    mine, theirs = expected.reshape(-1), actual.reshape(-1)
    everything = options.examine and isinstance(tolerance, ErrorBound)

    known = 0.0
    if not everything and not options.signed_zeros and size >= BLOCK:
        known = _some_share(tolerance, mine, theirs)

    def judged(block: slice) -> _Elements | None:
        """Judge the elements of a block that are not equal to the bit."""
        places = np.arange(block.stop - block.start)
        if not everything:
            places = _differing(mine[block], theirs[block])
        if not places.size:
            return None
        return _judged(tolerance, mine, theirs, block.start + places, known)

    statistics = _Statistics(tolerance, options, expected.shape)
    if kind_of(expected.dtype) is NumberKind.FLOAT:
        statistics.largest["max_ulp"], statistics.ulp_counts = 0, [size]
    block = BLOCK * _ASKED_TOGETHER if known else BLOCK
    for elements in filter(None, in_blocks(judged, size, block)):
        statistics.add(elements)
    return statistics.diff(name, kind)


def _some_share(tolerance: Tolerance | None, expected: Array, actual: Array) -> float:
    """Return a share that some element of long tensors uses: those that use less need no limit.

    It is at most 1, and 0 where no element is known to need none.
    """
    size = expected.size
    if not isinstance(tolerance, ErrorBound) or not tolerance.least:
        return 0.0
    some = np.arange(0, size, size // BLOCK)
    some = some[_differing(expected[some], actual[some])]
    if not some.size:
        return 0.0
    return min(1.0, float(_judged(tolerance, expected, actual, some).share.max()))


def _applicable(tolerance: Tolerance, expected: Array) -> Tolerance | None:
    """Return the tolerance that such values are judged by; None if they must be equal.

    Integers, booleans and strings are exact, unless a case gives this very output a tolerance.
    """
    kind = kind_of(expected.dtype)
    if isinstance(tolerance, ErrorBound) and tolerance.provenance is Provenance.CONDITIONED:
        # Where the model has rounded on the way to something discrete, its neighbour is right too.
        return tolerance if kind is not NumberKind.STRING else None
    if kind is NumberKind.FLOAT or (kind is NumberKind.COMPLEX and isinstance(tolerance, Relative)):
        return tolerance
    wanted = isinstance(tolerance, Relative) and tolerance.provenance is Provenance.OUTPUT
    return tolerance if kind is NumberKind.INTEGER and wanted else None


@dataclass(frozen=True, slots=True)
class _Elements:
    """Some elements of a tensor, judged; arrays of their number.

    Attributes:
        places: where they are in the flat tensor.
        expected: of all right results those that they come nearest, in shares of the limits.
        actual: what came.
        distance: absolute distances, float64.
        size: magnitudes of what was expected, float64.
        steps: distances in ulp; None for what is no float.
        limit: the largest allowed distances.
        inconclusive: number of elements that the limits cannot judge.
        labels: of each element that another result than the first comes nearest, what is said of
            that, and empty of others; None if nothing is said of any.
    """

    places: Array
    expected: Array
    actual: Array
    distance: Array
    size: Array
    steps: Array | None
    limit: Array
    inconclusive: int
    labels: Array | None

    @property
    def accepted(self) -> Counter[str]:
        """How many elements are right by each of the results with a label."""
        if self.labels is None:
            return Counter()
        return Counter(filter(None, self.labels[self.distance <= self.limit].tolist()))

    @property
    def share(self) -> Array:
        return share_of_limit(self.distance, self.limit)

    @property
    def relative(self) -> Array:
        """Distances relative to what was expected; infinite where that is zero."""
        with np.errstate(all="ignore"):
            relative = np.where(self.distance <= 0, 0.0, self.distance / self.size)
        return np.where(np.isnan(relative), np.inf, relative)

    @property
    def finite(self) -> Array:
        return np.isfinite(self.distance) & np.isfinite(self.size)


def _differing(expected: Array, actual: Array) -> Array:
    """Return the places of two flat arrays that are not equal to the bit, and some that are."""
    kind = kind_of(expected.dtype)
    if kind is NumberKind.FLOAT:
        bits = f"u{expected.dtype.itemsize}"
        return np.flatnonzero(expected.view(bits) != actual.view(bits))
    return np.flatnonzero(expected != actual)


def _judged(
    tolerance: Tolerance | None, expected: Array, actual: Array, places: Array, known: float = 0.0
) -> _Elements:
    """Judge the elements at some places of two flat arrays.

    What surely uses less than the share ``known`` of its limit has the least that this can be.
    """
    expected, actual = expected[places], actual[places]
    inconclusive, labels = 0, None
    if isinstance(tolerance, ErrorBound):
        limit, unsure = np.empty(places.size), np.arange(places.size)
        if known:
            limit = tolerance.least * np.nan_to_num(magnitude(expected), posinf=0.0)
            unsure = np.flatnonzero(~(absolute_distance(expected, actual) < known * limit))
        for start in range(0, unsure.size, BLOCK):
            asked = unsure[start : start + BLOCK]
            branch = tolerance.at(places[asked])
            expected[asked], limit[asked], found = _nearest(branch, actual[asked])
            if found is not None:
                labels = np.full(places.size, "", object) if labels is None else labels
                labels[asked] = found
            inconclusive += int(np.count_nonzero(branch.inconclusive))
    distance, size = absolute_distance(expected, actual), magnitude(expected)
    floats = kind_of(expected.dtype) is NumberKind.FLOAT
    steps = ulp_distance(expected, actual) if floats else None
    match tolerance:
        case Relative(rtol=rtol, atol=atol):
            with np.errstate(all="ignore"):
                limit = np.where(np.isfinite(size), atol + rtol * size, 0.0)
        case Ulps(ulp=ulp) if steps is not None:
            # Only floats are judged so, and allowed or not as a whole.
            limit = np.where(np.isfinite(distance) & (steps <= ulp), np.inf, 0.0)
        case None:
            limit = np.zeros_like(size)
    return _Elements(places, expected, actual, distance, size, steps, limit, inconclusive, labels)


def _median(shares: Array, size: int) -> float:
    """Return the median of shares and zeros, so many in all; the shares change places."""
    zeros = size - shares.size
    middle = [rank - zeros for rank in ((size - 1) // 2, size // 2)]
    shares.partition([max(rank, 0) for rank in middle])
    return float(np.mean([shares[rank] if rank >= 0 else 0.0 for rank in middle]))


@dataclass(slots=True)
class _Statistics:
    """What is known after the blocks seen so far."""

    tolerance: Tolerance | None
    options: _Options
    shape: tuple[int, ...]
    mismatches: int = 0
    inconclusive: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    # The maxima, by their names in a Diff.
    largest: dict[str, Any] = field(default_factory=dict)
    # The shares of the derived limits, without those of elements that are equal to the bit: zero.
    shares: list[Array] = field(default_factory=list)
    # Elements by the number of bits of their distance in ulp, of floats.
    ulp_counts: list[int] = field(default_factory=list)
    # The furthest off, each behind what they are sorted by.
    worst: list[tuple[tuple[float, float, int], Element]] = field(default_factory=list)

    def add(self, it: _Elements) -> None:
        """Take in the elements of a block that were judged."""
        if it.steps is not None:
            steps = np.where(it.finite, it.steps, np.uint64(0))
            self._raise(max_ulp=steps)
            _, bits = np.frexp(steps[np.isfinite(it.distance)].astype(np.float64))
            self.ulp_counts[0] -= it.places.size
            counts = zip_longest(self.ulp_counts, np.bincount(bits).tolist(), fillvalue=0)
            self.ulp_counts = list(map(sum, counts))
            if self.options.signed_zeros:
                unlike = differs_in_sign_of_zero(it.expected, it.actual)
                # What is judged in ulp has no other limit than all or nothing.
                it.distance[unlike], it.limit[unlike] = np.inf, 0.0
        share, relative = it.share, it.relative
        wrong = ~(it.distance <= it.limit)
        self._raise(max_absolute=it.distance, max_relative=relative, tolerance_used=share)
        self.mismatches += int(np.count_nonzero(wrong))
        self.inconclusive += it.inconclusive
        self.accepted += it.accepted
        if isinstance(self.tolerance, ErrorBound):
            # Beyond the range of float32 one share is as good as another.
            self.shares.append(np.minimum(share, 1e30).astype(np.float32))
        if isinstance(self.tolerance, Relative):
            self._find_needed(it.distance, it.size)
        if self.options.worst and wrong.any():
            self._keep_worst(it, share, relative, np.flatnonzero(wrong))

    def diff(self, name: str, kind: str) -> Diff:
        """Return what is known as the Diff of an output."""
        tolerance, size = self.tolerance, math.prod(self.shape)
        if isinstance(tolerance, Relative):
            for needed in ("needed_rtol", "needed_atol"):
                least = self.largest.get(needed, 0.0)
                # None where no finite number is enough.
                self.largest[needed] = least if np.isfinite(least) else None
        return Diff(
            name,
            kind,
            # A diff is kept as long as the run, and a tolerance holds the case's tensors.
            tolerance=spent(tolerance.factor, tolerance.provenance)
            if isinstance(tolerance, ErrorBound)
            else tolerance,
            elements=size,
            mismatches=self.mismatches,
            inconclusive=self.inconclusive,
            tolerance_used_median=_median(np.concatenate(self.shares), size)
            if self.shares
            else 0.0,
            ulp_counts=tuple(self.ulp_counts) if any(self.ulp_counts) else (),
            worst=tuple(element for _, element in self.worst),
            accepted=tuple(self.accepted.items()),
            **self.largest,
        )

    def _raise(self, **numbers: Array) -> None:
        """Raise maxima to the largest of some numbers."""
        for name, each in numbers.items():
            self.largest[name] = max(each.max().item(), self.largest.get(name, 0))

    def _keep_worst(self, it: _Elements, share: Array, relative: Array, wrong: Array) -> None:
        order = np.lexsort((wrong, -it.distance[wrong], -share[wrong]))[: self.options.worst]
        limited = isinstance(self.tolerance, Relative | ErrorBound)
        finite = it.finite
        for number in wrong[order].tolist():
            place, distance = it.places[number], float(it.distance[number])
            element = Element(
                index=tuple(map(int, np.unravel_index(place, self.shape))),
                expected=_plain(it.expected[number : number + 1]),
                actual=_plain(it.actual[number : number + 1]),
                absolute=distance,
                relative=float(relative[number]),
                ulp=int(it.steps[number]) if it.steps is not None and finite[number] else None,
                limit=float(it.limit[number]) if limited else None,
                wrong=True,
            )
            self.worst.append(((-float(share[number]), -distance, int(place)), element))
        self.worst = sorted(self.worst, key=itemgetter(0))[: self.options.worst]

    def _find_needed(self, distance: Array, size: Array) -> None:
        """Find the least rtol beside this atol, and the least atol beside this rtol."""
        assert isinstance(self.tolerance, Relative)  # noqa: S101 - for the type checker
        rtol, atol = self.tolerance.rtol, self.tolerance.atol
        size = np.where(np.isfinite(size), size, 0.0)
        with np.errstate(all="ignore"):
            needed = np.where(distance <= atol, 0.0, (distance - atol) / size)
            # The quotient may be rounded to the rejecting side; two steps up always accept.
            short = atol + needed * size < distance
            needed[short] = np.nextafter(np.nextafter(needed[short], np.inf), np.inf)
            self._raise(needed_rtol=needed)
            needed = np.maximum(distance - rtol * size, 0.0)
            short = needed + rtol * size < distance
            needed[short] = np.nextafter(needed[short], np.inf)
            self._raise(needed_atol=needed)


def _plain(element: Array) -> object:
    """Return a one-element array as a Python number, bool or string."""
    if element.dtype.kind == "V" and dtype_name(element.dtype) == str(element.dtype):
        wide = np.int64 if kind_of(element.dtype) is NumberKind.INTEGER else np.float64
        return element.astype(wide).item()
    plain: object = element.item()
    return clipped(plain) if isinstance(plain, str) else plain


def absolute_distance(expected: Array, actual: Array) -> Array:
    """Return ``|actual - expected|`` as float64.

    NaN meets NaN and an infinity meets itself at distance 0; anything else that is not finite on
    one side is at distance inf; unequal strings and booleans are at distance 1.
    """
    kind = kind_of(expected.dtype)
    if kind is NumberKind.INTEGER:
        return _integer_distance(expected, actual)
    if kind in (NumberKind.STRING, NumberKind.BOOLEAN):
        return np.where(expected != actual, 1.0, 0.0)
    if kind is NumberKind.COMPLEX:
        real = absolute_distance(expected.real, actual.real)
        return np.hypot(real, absolute_distance(expected.imag, actual.imag))
    with np.errstate(all="ignore"):
        expected, actual = expected.astype(np.float64), actual.astype(np.float64)
        distance = np.abs(actual - expected)
    alike = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    distance[alike] = 0.0
    # NaN is left where one side is NaN, or both are infinities of unlike sign: inf - -inf is inf.
    distance[np.isnan(distance)] = np.inf
    return distance


def share_of_limit(distance: Array, limit: Array) -> Array:
    """Return distances as shares of what is allowed: an infinite limit accepts everything."""
    with np.errstate(all="ignore"):
        share = np.where(distance <= 0, 0.0, distance / limit)
    share[np.isinf(limit)] = 0.0
    return share


def _nearest(branch: Branch, actual: Array) -> tuple[Array, Array, Array | None]:
    """Return what to expect of each element, its limit and label: those of the nearest result.

    Nearer is measured in shares of the limits.
    """
    expected, limit, other = branch.expected, branch.limit, branch.otherwise
    labels = None
    while other is not None:
        nearer = _shares(other, actual) < _shares(Branch(expected, limit), actual)
        expected = np.where(nearer, other.expected, expected)
        limit = np.where(nearer, other.limit, limit)
        if labels is not None or other.label:
            labels = np.where(nearer, other.label, "" if labels is None else labels)
        other = other.otherwise
    return expected, limit, labels


def _shares(branch: Branch, actual: Array) -> Array:
    return share_of_limit(absolute_distance(branch.expected, actual), branch.limit)


def magnitude(expected: Array) -> Array:
    """Return ``|expected|`` as float64, 0 for what has no magnitude."""
    kind = kind_of(expected.dtype)
    if kind in (NumberKind.STRING, NumberKind.BOOLEAN):
        return np.zeros(expected.shape)
    wide = np.complex128 if kind is NumberKind.COMPLEX else np.float64
    return np.abs(expected.astype(wide))


def differs_in_sign_of_zero(expected: Array, actual: Array) -> Array:
    """Tell where one side is 0.0 and the other -0.0."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    return (expected == 0) & (actual == 0) & (np.signbit(expected) != np.signbit(actual))


def ulp_distance(expected: Array, actual: Array) -> Array:
    """Return the number of steps from one value of a float dtype to the other, as uint64.

    The two zeros are one value. Where either side is not finite the result means nothing.
    """
    ranks = [_rank(side) for side in (expected, actual)]
    return np.maximum(*ranks) - np.minimum(*ranks)


def _integer_distance(expected: Array, actual: Array) -> Array:
    wide = np.uint64 if expected.dtype == np.uint64 else np.int64
    expected, actual = expected.astype(wide), actual.astype(wide)
    low, high = np.minimum(expected, actual), np.maximum(expected, actual)
    # The difference of two int64 does not fit int64, but its bits are right as uint64.
    return (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64)


def _rank(array: Array) -> Array:
    """Number the values of a float dtype in their order, as uint64."""
    bits = array.view(f"u{array.dtype.itemsize}").astype(np.uint64)
    sign = _sign_bit(array.dtype)
    # Sign and magnitude: negative values count down from the zero, positive ones up.
    return np.where(bits & sign, sign - (bits & (sign - np.uint64(1))), sign + bits)


@cache
def _sign_bit(dtype: np.dtype[Any]) -> np.uint64:
    """Return the bit that negative values of a float dtype have; one above all if none is."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.uint64(1 << (info.bits - bool(info.min < 0)))
