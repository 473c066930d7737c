"""Compare outputs with expected values: structure first, then values within a tolerance.

Tensors are compared in blocks, so that a large tensor needs no temporaries of its full size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, zip_longest
from operator import itemgetter
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.core.blocks import BLOCK, in_blocks
from onnxopt_cli.core.result import Diff, Element
from onnxopt_cli.core.text import clipped
from onnxopt_cli.core.tolerance import (
    Branch,
    Drawn,
    ErrorBound,
    NumberText,
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

_MAX_SURPLUS_OUTPUTS = 5
_MAX_KEYS = 5
_MAX_KEY_CHARS = 200
# The number of blocks that are judged together if limits are derived for only a few elements.
_BLOCKS_PER_BATCH = 16


def compare_outputs(
    expected: Mapping[str, Value],
    actual: Sequence[Value],
    tolerance_of: Callable[[str], Tolerance],
    *,
    signed_zeros: bool = False,
    worst: int = 5,
    examine: bool = False,
) -> tuple[Diff, ...]:
    """Compare the outputs of a backend with the expected outputs.

    Args:
        expected: expected outputs by name, in the graph's order.
        actual: the backend's outputs, in the graph's order.
        tolerance_of: function from the name of an output to its tolerance.
        signed_zeros: whether 0.0 and -0.0 differ.
        worst: number of the worst elements to describe for each tensor.
        examine: whether limits are also derived for elements that are bitwise equal. These limits
            have no effect on the verdict, but they change the number of inconclusive elements.

    Returns:
        One Diff for each tensor, and one Diff for each difference in structure. Each of the first
        few surplus outputs has a Diff of its own. A last Diff represents all further surplus
        outputs.
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
    end = len(expected) + _MAX_SURPLUS_OUTPUTS
    for position, value in enumerate(actual[len(expected) : end], len(expected)):
        structure = f"is {describe(value)} too many"
        diffs.append(Diff(f"output {position}", "nothing", structure=structure))
    if len(actual) > end:
        structure = f"are {len(actual) - end} too many"
        diffs.append(Diff(f"outputs {end} to {len(actual) - 1}", "nothing", structure=structure))
    return tuple(diffs)


def element_shares(expected: Array, actual: Array, tolerance: Tolerance) -> Array:
    """Return the error / tolerance of each element; an element above 1 is wrong.

    Args:
        expected: the expected values.
        actual: the actual values, of the same dtype and shape.
        tolerance: the tolerance of the output.
    """
    flat_expected, flat_actual = expected.reshape(-1), actual.reshape(-1)
    shares = np.zeros(flat_expected.size)
    places = _differing(flat_expected, flat_actual)
    if places.size:
        applied = _applicable(tolerance, flat_expected)
        judged = _judged(applied, flat_expected, flat_actual, places, with_steps=False)
        share = judged.share
        # If the distance is only slightly above the limit, the quotient may be rounded to 1.
        share[~(judged.distance <= judged.limit) & (share <= 1)] = np.nextafter(1, 2)
        shares[places] = share
    return shares.reshape(expected.shape)


def surely_agrees(expected: Array, actual: Array, error_bound: ErrorBound) -> bool:
    """Return whether ``actual`` surely agrees with ``expected``, without measuring any error.

    Args:
        expected: the expected values.
        actual: the actual values.
        error_bound: the tolerance of the output.

    Returns:
        True if all elements agree. False if an element disagrees, or if this function cannot
        decide. After False, :func:`compare_outputs` must decide.
    """
    if kind_of(expected.dtype) is not NumberKind.FLOAT or describe(expected) != describe(actual):
        return False
    flat_expected, flat_actual = expected.reshape(-1), actual.reshape(-1)

    def agrees(block: slice) -> bool:
        places = block.start + _differing(flat_expected[block], flat_actual[block])
        wide_expected = flat_expected[places].astype(np.float64)
        wide_actual = flat_actual[places].astype(np.float64)
        with np.errstate(all="ignore"):
            distance = np.abs(wide_expected - wide_actual)
            is_close = distance < error_bound.least * np.abs(wide_expected)
        unsure = places[~is_close]
        judged = _judged(error_bound, flat_expected, flat_actual, unsure, with_steps=False)
        return bool((judged.distance <= judged.limit).all())

    return all(in_blocks(agrees, flat_expected.size, BLOCK * _BLOCKS_PER_BATCH))


def largest_share(
    expected: Mapping[str, Value],
    actual: Sequence[Value],
    tolerance_of: Callable[[str], Tolerance],
) -> float:
    """Return the largest error / tolerance of all outputs; an output above 1 is wrong.

    The result is infinite if types or shapes differ, or if an output is not a tensor. This function
    is faster than :func:`compare_outputs`: mutation analysis calls it many thousand times, and does
    not need the statistics of a Diff.
    """
    if len(actual) != len(expected):
        return float("inf")
    largest = 0.0
    for (name, expected_value), actual_value in zip(expected.items(), actual, strict=True):
        if not isinstance(expected_value, np.ndarray) or not isinstance(actual_value, np.ndarray):
            return float("inf")
        if describe(expected_value) != describe(actual_value):
            return float("inf")
        shares = element_shares(expected_value, actual_value, tolerance_of(name))
        largest = max(largest, float(shares.max(initial=0.0)))
    return largest


@dataclass(frozen=True, slots=True)
class _Options:
    """The settings with which one output is compared."""

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
            parts = ((key, item, actual[key]) for key, item in expected.items())
        case dict(), dict():
            unmatched = expected.keys() ^ actual.keys()
            texts = sorted(clipped(repr(key), _MAX_KEY_CHARS) for key in unmatched)[:_MAX_KEYS]
            wrong = f"has {len(unmatched)} other keys; on one side only: {', '.join(texts)}"
        case _ if expected is not None or actual is not None:
            wrong = f"is {describe(actual)}"
    yield Diff(name, describe(expected), wrong)
    for key, expected_part, actual_part in parts:
        yield from _compare(f"{name}[{key!r}]", expected_part, actual_part, options)


@cache
def bound_without_limits(factor: float, provenance: Provenance) -> ErrorBound:
    """Return an error bound without the limits of elements, which reports do not need."""
    empty = np.empty(0)
    return ErrorBound(Branch(empty, empty).at, factor, provenance)


def _compare_tensors(name: str, expected: Array, actual: Array, options: _Options) -> Diff:
    kind, actual_kind = describe(expected), describe(actual)
    if actual_kind != kind:
        return Diff(name, kind, structure=f"is {actual_kind}")
    if isinstance(options.tolerance, Drawn):
        distribution = options.tolerance
        wrong = distribution.test(actual) or distribution.beside(options.outputs) or None
        return Diff(name, kind, wrong, tolerance=distribution, elements=expected.size)
    if is_string(expected.dtype):
        expected, actual = as_strings(expected), as_strings(actual)
    tolerance, size = _applicable(options.tolerance, expected), expected.size
    flat_expected, flat_actual = expected.reshape(-1), actual.reshape(-1)
    examine_all = options.examine and isinstance(tolerance, ErrorBound)

    known_share = 0.0
    if not examine_all and not options.signed_zeros and size >= BLOCK:
        known_share = _known_share(tolerance, flat_expected, flat_actual)

    def judged(block: slice) -> _Elements | None:
        """Return the judged elements of a block that differ bitwise; None if no element differs."""
        places = np.arange(block.stop - block.start)
        if not examine_all:
            places = _differing(flat_expected[block], flat_actual[block])
        if not places.size:
            return None
        return _judged(tolerance, flat_expected, flat_actual, block.start + places, known_share)

    statistics = _Statistics(tolerance, options, expected.shape)
    if kind_of(expected.dtype) is NumberKind.FLOAT:
        statistics.largest["max_ulp"], statistics.ulp_counts = 0, [size]
    block = BLOCK * _BLOCKS_PER_BATCH if known_share else BLOCK
    for elements in filter(None, in_blocks(judged, size, block)):
        statistics.add(elements)
    return statistics.diff(name, kind)


def _known_share(tolerance: Tolerance | None, expected: Array, actual: Array) -> float:
    """Return the largest error / tolerance in a sample of a large tensor; at most 1.

    The largest error / tolerance of the whole tensor is at least as large as in the sample. If an
    element surely has a smaller error / tolerance, it cannot be the worst element, and its exact
    limit need not be derived. The result is 0 if no lower bound of the limits is known, or if all
    elements of the sample agree bitwise.
    """
    size = expected.size
    if not isinstance(tolerance, ErrorBound) or not tolerance.least:
        return 0.0
    sample = np.arange(0, size, size // BLOCK)
    sample = sample[_differing(expected[sample], actual[sample])]
    if not sample.size:
        return 0.0
    return min(1.0, float(_judged(tolerance, expected, actual, sample).share.max()))


def _applicable(tolerance: Tolerance, expected: Array) -> Tolerance | None:
    """Return the tolerance that applies to values of a dtype; None if values must be equal.

    The following values must be equal:

    - strings that are not texts of floats,
    - booleans, if the tolerance is not conditioned,
    - integers, if the tolerance is not conditioned and the case states no tolerance for this
      output.
    """
    kind = kind_of(expected.dtype)
    if kind is NumberKind.STRING:
        return tolerance if isinstance(tolerance, NumberText) else None
    if isinstance(tolerance, ErrorBound) and tolerance.provenance is Provenance.CONDITIONED:
        # If the model rounds a number to a discrete value, the neighbouring value may also be
        # right.
        return tolerance
    if kind is NumberKind.FLOAT or (kind is NumberKind.COMPLEX and isinstance(tolerance, Relative)):
        return tolerance
    is_stated = isinstance(tolerance, Relative) and tolerance.provenance is Provenance.OUTPUT
    return tolerance if kind is NumberKind.INTEGER and is_stated else None


@dataclass(frozen=True, slots=True)
class _Elements:
    """Judged elements of a tensor, as arrays with one item per element.

    Attributes:
        places: indices into the flat tensor.
        expected: expected values. If several results of an element are accepted, the result with
            the smallest ratio of distance to limit.
        actual: actual values.
        distance: absolute distances, float64.
        size: magnitudes of the expected values, float64.
        steps: distances in ulp; None if the dtype is not a float.
        limit: largest allowed distances.
        inconclusive: number of elements whose limits are too large to judge them.
        labels: for each element, the label of the accepted result that is nearest; empty for the
            first result. None if no result has a label.
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
        """Number of elements that agree with an alternative result, by the label of the result."""
        if self.labels is None:
            return Counter()
        return Counter(filter(None, self.labels[self.distance <= self.limit].tolist()))

    @property
    def share(self) -> Array:
        return _share_of_limit(self.distance, self.limit)

    @property
    def relative(self) -> Array:
        """Distances relative to the expected value; infinite where the expected value is zero."""
        with np.errstate(all="ignore"):
            relative = np.where(self.distance <= 0, 0.0, self.distance / self.size)
        return np.where(np.isnan(relative), np.inf, relative)

    @property
    def finite(self) -> Array:
        return np.isfinite(self.distance) & np.isfinite(self.size)


def _differing(expected: Array, actual: Array) -> Array:
    """Return the indices at which two flat arrays differ bitwise, and possibly other indices."""
    kind = kind_of(expected.dtype)
    if kind is NumberKind.FLOAT:
        bits = f"u{expected.dtype.itemsize}"
        return np.flatnonzero(expected.view(bits) != actual.view(bits))
    return np.flatnonzero(expected != actual)


def _judged(
    tolerance: Tolerance | None,
    expected: Array,
    actual: Array,
    places: Array,
    known_share: float = 0.0,
    *,
    with_steps: bool = True,
) -> _Elements:
    """Judge the elements of two flat arrays at some indices.

    Deriving the limit of an element is slow. If an element cannot have the largest error /
    tolerance, a lower bound of its limit is used instead.

    Args:
        tolerance: the tolerance of the arrays.
        expected: the expected array.
        actual: the array that the backend returned.
        places: the indices.
        known_share: a lower bound of the largest error / tolerance of the arrays; 0 if unknown.
        with_steps: whether to measure distances in ulp if the tolerance is not in ulp.
    """
    expected, actual = expected[places], actual[places]
    inconclusive, labels = 0, None
    if isinstance(tolerance, ErrorBound):
        limit, unsure = np.empty(places.size), np.arange(places.size)
        if known_share:
            limit = tolerance.least * np.nan_to_num(magnitude(expected), posinf=0.0)
            unsure = np.flatnonzero(~(absolute_distance(expected, actual) < known_share * limit))
        for start in range(0, unsure.size, BLOCK):
            batch = unsure[start : start + BLOCK]
            branch = tolerance.at(places[batch])
            expected[batch], limit[batch], batch_labels = _nearest(branch, actual[batch])
            if batch_labels is not None:
                labels = np.full(places.size, "", object) if labels is None else labels
                labels[batch] = batch_labels
            inconclusive += int(np.count_nonzero(branch.inconclusive))
    distance, size = absolute_distance(expected, actual), magnitude(expected)
    floats = kind_of(expected.dtype) is NumberKind.FLOAT
    has_steps = floats and (with_steps or isinstance(tolerance, Ulps))
    steps = _ulp_distance(expected, actual) if has_steps else None
    match tolerance:
        case NumberText():
            values = tolerance.values_at(places, expected)
            distance, limit = tolerance.judged(values, actual)
            size = np.abs(values)
        case Relative(rtol=rtol, atol=atol):
            with np.errstate(all="ignore"):
                limit = np.where(np.isfinite(size), atol + rtol * size, 0.0)
        case Ulps(ulp=ulp) if steps is not None:
            # A tolerance in ulp defines no absolute limit: infinity accepts an element, 0 rejects
            # it.
            limit = np.where(np.isfinite(distance) & (steps <= ulp), np.inf, 0.0)
        case None:
            limit = np.zeros_like(size)
    return _Elements(places, expected, actual, distance, size, steps, limit, inconclusive, labels)


def _median(shares: Array, size: int) -> float:
    """Return the median of ``size`` numbers: the given shares, and zeros for all others.

    The function reorders ``shares``.
    """
    zeros = size - shares.size
    middle = [rank - zeros for rank in ((size - 1) // 2, size // 2)]
    shares.partition([max(rank, 0) for rank in middle])
    return float(np.mean([shares[rank] if rank >= 0 else 0.0 for rank in middle]))


@dataclass(slots=True)
class _Statistics:
    """Statistics of the blocks that have been compared."""

    tolerance: Tolerance | None
    options: _Options
    shape: tuple[int, ...]
    mismatches: int = 0
    inconclusive: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    # The maxima over the compared elements, by the names of fields of Diff.
    largest: dict[str, Any] = field(default_factory=dict)
    # The error / tolerance of the compared elements, without the bitwise equal ones, whose ratio is
    # 0; empty if the tolerance is not an error bound.
    shares: list[Array] = field(default_factory=list)
    # Histogram of the distances of floats: item b is the number of elements whose distance in ulp
    # has b bits.
    ulp_counts: list[int] = field(default_factory=list)
    # The worst elements, each preceded by its sort key.
    worst: list[tuple[tuple[float, float, int], Element]] = field(default_factory=list)

    def add(self, elements: _Elements) -> None:
        """Add the judged elements of a block."""
        if elements.steps is not None:
            steps = np.where(elements.finite, elements.steps, np.uint64(0))
            self._raise(max_ulp=steps)
            _, bits = np.frexp(steps[np.isfinite(elements.distance)].astype(np.float64))
            self.ulp_counts[0] -= elements.places.size
            counts = zip_longest(self.ulp_counts, np.bincount(bits).tolist(), fillvalue=0)
            self.ulp_counts = list(map(sum, counts))
            if self.options.signed_zeros:
                differs = _differs_in_sign_of_zero(elements.expected, elements.actual)
                # An infinite limit would accept even an infinite distance.
                elements.distance[differs], elements.limit[differs] = np.inf, 0.0
        share, relative = elements.share, elements.relative
        wrong = ~(elements.distance <= elements.limit)
        self._raise(max_absolute=elements.distance, max_relative=relative, tolerance_used=share)
        self.mismatches += int(np.count_nonzero(wrong))
        self.inconclusive += elements.inconclusive
        self.accepted += elements.accepted
        if isinstance(self.tolerance, ErrorBound):
            # float32 saves memory. Ratios above 1e30 need not be distinguished.
            self.shares.append(np.minimum(share, 1e30).astype(np.float32))
        if isinstance(self.tolerance, Relative):
            self._find_needed(elements.distance, elements.size)
        if self.options.worst and wrong.any():
            self._keep_worst(elements, share, relative, np.flatnonzero(wrong))

    def diff(self, name: str, kind: str) -> Diff:
        """Return the statistics as the Diff of an output."""
        tolerance, size = self.tolerance, math.prod(self.shape)
        if isinstance(tolerance, Relative):
            for needed in ("needed_rtol", "needed_atol"):
                least = self.largest.get(needed, 0.0)
                # The needed tolerance is None if no finite number is sufficient.
                self.largest[needed] = least if np.isfinite(least) else None
        return Diff(
            name,
            kind,
            # A Diff is kept during the whole run and must not keep the tensors of the case in
            # memory.
            tolerance=_without_tensors(tolerance),
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
        """Raise the maximum of each field to the largest of its new numbers."""
        for name, array in numbers.items():
            self.largest[name] = max(array.max().item(), self.largest.get(name, 0))

    def _keep_worst(self, elements: _Elements, share: Array, relative: Array, wrong: Array) -> None:
        order = np.lexsort((wrong, -elements.distance[wrong], -share[wrong]))
        has_limits = isinstance(self.tolerance, Relative | ErrorBound | NumberText)
        finite, steps = elements.finite, elements.steps
        for number in wrong[order][: self.options.worst].tolist():
            place, distance = elements.places[number], float(elements.distance[number])
            element = Element(
                index=tuple(map(int, np.unravel_index(place, self.shape))),
                expected=_plain(elements.expected[number : number + 1]),
                actual=_plain(elements.actual[number : number + 1]),
                absolute=distance,
                relative=float(relative[number]),
                ulp=int(steps[number]) if steps is not None and finite[number] else None,
                limit=float(elements.limit[number]) if has_limits else None,
                wrong=True,
            )
            self.worst.append(((-float(share[number]), -distance, int(place)), element))
        self.worst = sorted(self.worst, key=itemgetter(0))[: self.options.worst]

    def _find_needed(self, distance: Array, size: Array) -> None:
        """Find the smallest rtol that passes with the tolerance's atol, and vice versa."""
        assert isinstance(self.tolerance, Relative)  # noqa: S101 - for the type checker
        rtol, atol = self.tolerance.rtol, self.tolerance.atol
        size = np.where(np.isfinite(size), size, 0.0)
        with np.errstate(all="ignore"):
            needed = np.where(distance <= atol, 0.0, (distance - atol) / size)
            # If the quotient was rounded down, the float two steps above is sufficient.
            short = atol + needed * size < distance
            needed[short] = np.nextafter(np.nextafter(needed[short], np.inf), np.inf)
            self._raise(needed_rtol=needed)
            needed = np.maximum(distance - rtol * size, 0.0)
            short = needed + rtol * size < distance
            needed[short] = np.nextafter(needed[short], np.inf)
            self._raise(needed_atol=needed)


def _without_tensors(tolerance: Tolerance | None) -> Tolerance | None:
    """Return a description of a tolerance, without references to tensors of the case."""
    match tolerance:
        case ErrorBound():
            return bound_without_limits(tolerance.factor, tolerance.provenance)
        case NumberText():
            return replace(tolerance, values=None)
    return tolerance


def _plain(element: Array) -> object:
    """Return a one-element array as a Python number, bool or string."""
    if element.dtype.kind == "V" and dtype_name(element.dtype) == str(element.dtype):
        wide = np.int64 if kind_of(element.dtype) is NumberKind.INTEGER else np.float64
        return element.astype(wide).item()
    plain: object = element.item()
    return clipped(plain) if isinstance(plain, str) else plain


def absolute_distance(expected: Array, actual: Array) -> Array:
    """Return ``|actual - expected|`` as float64.

    The distance is 0 between NaN and NaN, and between equal infinities. Between unequal strings or
    booleans, it is 1. If only one value is finite, or if the values cannot be compared for another
    reason, the distance is infinite.
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
        # NumPy returns a scalar for zero-dimensional arrays.
        distance = np.asarray(np.abs(actual - expected))
    equal = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    distance[equal] = 0.0
    # The distance is still NaN where exactly one of the two values is NaN.
    distance[np.isnan(distance)] = np.inf
    return distance


def _share_of_limit(distance: Array, limit: Array) -> Array:
    """Return distances divided by their limits; an infinite limit accepts any distance."""
    with np.errstate(all="ignore"):
        share = np.where(distance <= 0, 0.0, distance / limit)
    share[np.isinf(limit)] = 0.0
    return share


def _nearest(branch: Branch, actual: Array) -> tuple[Array, Array, Array | None]:
    """Return the value, limit and label of the nearest accepted result for each element.

    The nearest result has the smallest ratio of distance to limit.
    """
    expected, limit, alternative = branch.expected, branch.limit, branch.otherwise
    labels = None
    while alternative is not None:
        nearer = _shares(alternative, actual) < _shares(Branch(expected, limit), actual)
        expected = np.where(nearer, alternative.expected, expected)
        limit = np.where(nearer, alternative.limit, limit)
        if labels is not None or alternative.label:
            labels = np.where(nearer, alternative.label, "" if labels is None else labels)
        alternative = alternative.otherwise
    return expected, limit, labels


def _shares(branch: Branch, actual: Array) -> Array:
    return _share_of_limit(absolute_distance(branch.expected, actual), branch.limit)


def magnitude(expected: Array) -> Array:
    """Return ``|expected|`` as float64, and 0 for strings and booleans."""
    kind = kind_of(expected.dtype)
    if kind in (NumberKind.STRING, NumberKind.BOOLEAN):
        return np.zeros(expected.shape)
    wide = np.complex128 if kind is NumberKind.COMPLEX else np.float64
    return np.abs(expected.astype(wide))


def _differs_in_sign_of_zero(expected: Array, actual: Array) -> Array:
    """Return a mask of the places where one value is 0.0 and the other is -0.0."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    return (expected == 0) & (actual == 0) & (np.signbit(expected) != np.signbit(actual))


def _ulp_distance(expected: Array, actual: Array) -> Array:
    """Return the distances of values of a float dtype in representable values, as uint64.

    The two zeros count as one value. The result is meaningless for values that are not finite.
    """
    ranks = _rank(expected), _rank(actual)
    return np.maximum(*ranks) - np.minimum(*ranks)


def _integer_distance(expected: Array, actual: Array) -> Array:
    wide = np.uint64 if expected.dtype == np.uint64 else np.int64
    expected, actual = expected.astype(wide), actual.astype(wide)
    low, high = np.minimum(expected, actual), np.maximum(expected, actual)
    # The difference of two int64 may overflow int64, but is correct modulo 2^64.
    return (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64)


def _rank(array: Array) -> Array:
    """Return the ordinal numbers of values of a float dtype, as uint64."""
    bits = array.view(f"u{array.dtype.itemsize}").astype(np.uint64)
    sign = _sign_bit(array.dtype)
    # Floats are stored as sign and magnitude. Negative values count down from zero, and positive
    # values count up.
    return np.where(bits & sign, sign - (bits & (sign - np.uint64(1))), sign + bits)


@cache
def _sign_bit(dtype: np.dtype[Any]) -> np.uint64:
    """Return the sign bit of a float dtype, or the bit above its bits if it has no sign."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.uint64(1 << (info.bits - bool(info.min < 0)))
