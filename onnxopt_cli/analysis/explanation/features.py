"""Features of the elements of a case, and conditions on them.

The features of an element include features of its node (T, attributes, number of tensors) and of
its tensor (types, shapes, length). The position and the values of the element itself are also
features. A condition compares one feature with a constant, and has a text for reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from onnxopt_cli.analysis.explanation.generated_inputs import (
    with_expected,
    with_length,
    with_number,
    with_tensor_count,
)
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.call import Call

#: Label of an element that is wrong. A right element has the label 1 if the fault would be visible
#: in the element, otherwise 0.
WRONG = 2
#: Largest number of elements of a tensor that get features.
MAX_ELEMENTS = 100
#: Largest number of tensors of a node that get features.
MAX_GROUPS = 24
BLOCK_SIZES = (2, 3, 4, 8, 16, 32, 64, 128, 256)
# The magnitude up to which all integers are exact in float32.
_FLOAT32_INTEGERS = 1 << 24
FLOAT32_MAX = np.finfo(np.float32).max
#: The thresholds of a count are taken from the values of wrong elements: the MAX_COUNT_CUTS
#: smallest and the MAX_COUNT_CUTS largest values.
MAX_COUNT_CUTS = 5
#: A count of a right element yields no threshold if its magnitude is MAX_COUNT or more, because
#: arithmetic overflows near the ends of int64.
MAX_COUNT = 1 << 62
#: The largest exponent of a power of ten. The power and its reciprocal are normal doubles.
MAX_EXPONENT = 300
#: The number of digits of a limit in a condition: enough digits to distinguish all float32 values.
LIMIT_DIGITS = 9
# No element of an integer type has a larger magnitude.
_LARGEST_INTEGER = 1 << 64
#: Cost of a condition on an expected output; a condition on an input is preferred.
EXPECTED_COST = 1.35
NO_ELEMENTS: Mapping[int, Array] = {0: np.empty(0, int)}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one feature with a constant.

    Attributes:
        feature: index of the feature.
        text: the condition in words.
        cost: among the conditions that agree with all samples, the one with the lowest cost is
            reported.
        test: given values of the feature, returns a mask of the values for which the condition
            holds. A missing value is NaN.
        gap: for a threshold, the values of the feature that are nearest to the threshold: first
            that of a right element, then that of a wrong element.
    """

    feature: int
    text: str
    cost: float
    test: Callable[[Array], Array]
    gap: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[int, str]:
        """A key that identifies the condition, without the value of its threshold."""
        if self.gap:
            return self.feature, "above" if self.gap[0] < self.gap[1] else "below"
        return self.feature, self.text


@dataclass(frozen=True, slots=True)
class Feature:
    """A property of elements.

    Attributes:
        text: the feature in words; for a count, with the placeholders ``{k}``, ``{are}`` and
            ``{s}``.
        values: one value for all elements, or an array with a value for each element. The value of
            a flag is 1 or 0.
        kind: ``count``, ``number``, ``magnitude`` or ``flag``.
        cost: added to the cost of each condition.
        vary: a function that returns a copy of a node with another value of the feature, or None if
            this is impossible; None if the feature has no such function.
        of_output: whether the feature is a property of an expected output.
    """

    text: str
    values: Any
    kind: str
    cost: float = 1.0
    vary: Callable[[Call[Array], float], Call[Array] | None] | None = None
    of_output: bool = False


def feature_list(call: Call[Array], expected: Mapping[str, Array]) -> list[Feature]:
    """Return the features that all nodes of an operator have, in order.

    The returned features lack the values of elements.
    """
    return list(_features(call, expected, NO_ELEMENTS))


def features(
    call: Call[Array], expected: Mapping[str, Array], labels: Array
) -> tuple[Array, Array]:
    """Return the features of a node's elements, and the labels of these elements.

    Args:
        call: the node.
        expected: expected elements of all tensors, by output; outputs whose shapes differ from
            those of the tensors are left out.
        labels: the labels of the elements of all tensors, concatenated. An element with the label 0
            is left out.

    Returns:
        A table with a row for each feature and a column for each element, and an array with the
        label of each element.
    """
    by_group = [part.reshape(-1) for part in call.split([labels])]
    order = sorted(range(len(by_group)), key=lambda at: -int(np.max(by_group[at], initial=0)))
    chosen = {*order[: MAX_GROUPS // 2], *range(MAX_GROUPS // 4), len(by_group) - 1}
    flat_indices = {group: _sampled(by_group[group]) for group in sorted(chosen & set(order))}
    with np.errstate(all="ignore"):
        values = [feature.values for feature in _features(call, expected, flat_indices)]
    table = np.empty((len(values), sum(places.size for places in flat_indices.values())))
    for row, value in zip(table, values, strict=True):
        row[:] = value
    return table, np.concatenate(
        [by_group[group][places] for group, places in flat_indices.items()]
    )


def _sampled(labels: Array) -> Array:
    """Return the flat indices of elements with a nonzero label; a selection if there are many."""
    usable = np.flatnonzero(labels)
    if usable.size <= MAX_ELEMENTS:
        return usable
    wrong = np.flatnonzero(labels == WRONG)
    spread = np.linspace(0, usable.size - 1, 20).astype(int)
    wrong_spread = np.linspace(0, wrong.size - 1, 20).astype(int) if wrong.size else wrong
    ends = (usable[:33], usable[-33:], usable[spread], wrong[wrong_spread], wrong[:9])
    return np.unique(np.concatenate(ends))


def fixed_conditions(index: int, feature: Feature) -> Iterator[Condition]:
    """Yield the conditions on a feature that do not depend on samples."""
    if feature.kind == "flag":
        yield Condition(index, feature.text, feature.cost, partial(np.equal, 1))
    if feature.kind != "number":
        return
    for text, cost, test in (
        ("is 0", 1.0, partial(np.equal, 0)),
        ("is 1", 1.0, partial(np.equal, 1)),
        ("is not 0", 1.15, lambda values: (values != 0) & ~np.isnan(values)),
        ("is negative", 1.0, partial(np.greater, 0)),
        ("is positive", 1.1, partial(np.less, 0)),
        ("is above 1", 1.1, partial(np.less, 1)),
        ("is below 1", 1.2, partial(np.greater, 1)),
        ("is NaN", 1.0, np.isnan),
        ("is infinite", 1.0, np.isinf),
        ("is NaN or infinite", 1.15, lambda values: ~np.isfinite(values)),
        ("is finite", 1.15, np.isfinite),
        (
            "is finite, but beyond float32", 1.1,
            lambda values: np.isfinite(values) & (np.abs(values) > FLOAT32_MAX),
        ),
        (
            "is not a float32 number", 1.2,
            lambda values: np.isfinite(values) & (values != values.astype(np.float32)),
        ),
    ):  # fmt: skip
        yield Condition(index, f"{feature.text} {text}", cost + feature.cost - 1, test)


def fitted_conditions(
    index: int, feature: Feature, wrong: Array, right: Array
) -> Iterator[Condition]:
    """Yield thresholds that separate values of wrong elements from values of right elements.

    Args:
        index: index of the feature.
        feature: a count, number or magnitude.
        wrong: values of wrong elements.
        right: values of right elements, sorted.
    """
    if feature.kind == "flag" or not wrong.size:
        return
    values = np.unique(wrong)
    # A threshold can separate infinite values, but not NaN.
    if np.isnan(values).any():
        return
    if feature.kind == "count":
        yield from _count_conditions(index, feature, values, right)
        return
    low, high = values[0], values[-1]
    below, above = _neighbours(low, high, right)
    text = feature.text
    if np.isfinite(below) and np.isfinite(low):
        yield _threshold(index, text, below, low, feature.cost + 0.3)
    if np.isfinite(above) and np.isfinite(high):
        yield _threshold(index, text, above, high, feature.cost + 0.3)
    if low == high and np.isfinite(low) and abs(low) not in (0, 1) and feature.kind == "number":
        yield Condition(
            index, f"{text} is {number_text(low)}", feature.cost + 0.4, partial(np.equal, low)
        )


def _neighbours(low: float, high: float, right: Array) -> tuple[float, float]:
    """Return the values of correct elements next to an interval: below it and above it."""
    first, last = np.searchsorted(right, low), np.searchsorted(right, high, side="right")
    below = right[first - 1] if first else -np.inf
    above = right[last] if last < right.size and not np.isnan(right[last]) else np.inf
    return float(below), float(above)


def _threshold(index: int, text: str, right: float, wrong: float, cost: float) -> Condition:
    """Return the condition that a value is on the side of a threshold where elements are wrong."""
    upward = right < wrong
    cut = roundest(right, wrong) if upward else 0.0 - roundest(-right, -wrong)
    words, test = {
        (True, True): ("is at least", np.less_equal),
        (True, False): ("is above", np.less),
        (False, True): ("is at most", np.greater_equal),
        (False, False): ("is below", np.greater),
    }[upward, cut == wrong]
    gap = (right, wrong)
    return Condition(
        index, f"{text} {words} {number_text(cut, LIMIT_DIGITS)}", cost, partial(test, cut), gap
    )


def _count_conditions(
    index: int, feature: Feature, values: Array, right: Array
) -> Iterator[Condition]:
    """Yield comparisons of a count with the smallest and largest values of wrong elements."""
    cuts = values if values.size <= 2 * MAX_COUNT_CUTS else np.concatenate(
        [values[:MAX_COUNT_CUTS], values[-MAX_COUNT_CUTS:]]
    )  # fmt: skip
    for value in cuts:
        k = int(value)
        yield _count(index, feature, k, np.equal, 1.02)
        below, above = _neighbours(value, value, right)
        if abs(below) < MAX_COUNT:
            yield _count(index, feature, plain_count(int(below), k), np.less_equal, 1.0, below, k)
        if abs(above) < MAX_COUNT:
            cut = k if above == k + 1 or _is_plain(k) else plain_count(k, int(above)) - 1
            yield _count(index, feature, cut, np.greater_equal, 1.05 if k else 1.2, above, k)


def _count(
    index: int,
    feature: Feature,
    k: int,
    compare: Callable[[Any, Any], Any],
    cost: float,
    *gap: float,
) -> Condition:
    prefix = "at least " if compare is np.less_equal else "at most " if gap else ""
    number = f"{prefix}{k}"
    are = "is" if number == "1" else "are"
    text = feature.text.format(k=number, are=are, s="s" * (k != 1))
    right, wrong = gap or (0.0, 0.0)
    cost += feature.cost - 1 + (0.0 if _is_plain(k) else 0.1)
    return Condition(index, text, cost, partial(compare, k), (right, wrong) if gap else None)


def _is_plain(k: int) -> bool:
    """Return whether a count is small, a power of two, or a power of two plus one."""
    return k in (0, 1, 2) or k & (k - 1) == 0 or (k - 1) & (k - 2) == 0


def plain_count(right: int, wrong: int) -> int:
    """Return the plainest integer n with ``right`` < n <= ``wrong``."""
    if _is_plain(wrong) or wrong - right == 1:
        return wrong
    power = 1 << max(0, wrong.bit_length() - 1)
    if wrong > 0 and right < power:
        return power
    return max(right + 1, int(roundest(right + 1, wrong)))


def number_text(number: float, digits: int = 6) -> str:
    """Return a number in decimal. Integers of a magnitude up to 2^64 have all digits.

    Args:
        number: the number.
        digits: the number of digits of a fraction or of a larger integer.
    """
    text = f"{number:.{digits}g}"
    is_integer = float(number).is_integer() and abs(number) <= _LARGEST_INTEGER
    return f"{number:.0f}" if is_integer and float(text) != number else text


def are_inexact_in_float32(integers: Array) -> Array:
    """Return a mask of the integers that float32 cannot represent."""
    wide = integers.astype(np.int64)
    magnitudes = np.where(integers < 0, -wide, wide).astype(np.uint64)
    unit = np.uint64(1)
    lowest_bits = magnitudes & (~magnitudes + unit)
    return np.asarray(magnitudes // np.maximum(lowest_bits, unit) >= _FLOAT32_INTEGERS)


def roundest(low: float, high: float) -> float:
    """Return the number with the fewest digits in a closed interval."""
    if low <= 0 <= high:
        return 0.0
    for power in range(int(np.floor(np.log10(max(abs(low), abs(high))))), -330, -1):
        if power < -MAX_EXPONENT:
            break
        step = float(f"1e{power}")
        number = float(f"{np.ceil(low / step):.0f}e{power}")
        if low <= number <= high:
            return number
    return high


def _features(
    call: Call[Array], expected: Mapping[str, Array], flat_indices: Mapping[int, Array]
) -> Iterator[Feature]:
    """Yield the features of the elements at some flat indices of tensors.

    The order of the features is the same for all nodes of an operator.
    """
    operator, x = call.operator, call.operator.tensors[0]
    groups, index = (
        [call.groups[at] for at in flat_indices],
        np.concatenate([*flat_indices.values()]),
    )
    tensor = np.repeat(
        np.arange(len(flat_indices)), [places.size for places in flat_indices.values()]
    )

    def each(values: Iterable[Any]) -> Array:
        """Take a value for each tensor, and return for each element the value of its tensor."""
        return np.array([*values])[tensor]

    size, rank = each(first.size for first, *_ in groups), each(first.ndim for first, *_ in groups)
    row_counts, columns = map(
        each, zip(*(_matrix_shape(first) for first, *_ in groups), strict=True)
    )
    yield Feature("there {are} {k} tensor{s}", len(call.groups), "count", vary=with_tensor_count)
    yield Feature("the tensor's number is {k}", each(flat_indices) + 1, "count")
    yield Feature(f"{x} has {{k}} element{{s}}", size, "count", vary=with_length)
    yield Feature(f"{x} has {{k}} dimension{{s}}", rank, "count")
    yield Feature(f"{x} has {{k}} row{{s}}", row_counts, "count")
    yield Feature(f"{x} has {{k}} column{{s}}", columns, "count")
    yield Feature("the element's index is {k}", index, "count")
    yield Feature("the element's row is {k}", index // columns % row_counts, "count")
    yield Feature("the element's column is {k}", index % columns, "count")
    for item, scalar in zip(operator.scalars, call.scalars, strict=True):
        if "int64" in item.dtypes:
            yield Feature(
                f"{item.name} is {{k}}",
                scalar.item(),
                "count",
                vary=partial(with_number, name=item.name),
            )
        else:
            yield Feature(
                item.name, scalar.item(), "number", vary=partial(with_number, name=item.name)
            )
    for attribute in operator.attributes:
        value = call.attributes[attribute.name]
        number = (
            each(value[at % len(value)] for at in flat_indices)
            if isinstance(value, tuple)
            else value
        )
        values = np.nan if isinstance(number, str) else number
        vary = partial(with_number, name=attribute.name)
        yield Feature(attribute.name, values, "number", vary=vary)
    elements = {
        name: np.concatenate(
            [
                np.broadcast_to(group[place], group[0].shape).reshape(-1)[places]
                for group, places in zip(groups, flat_indices.values(), strict=True)
            ]
        ).astype(np.float64)
        for place, name in enumerate(operator.tensors)
    }
    for name, values in elements.items():
        vary = partial(with_number, name=name)
        yield Feature(name, values, "number", vary=vary)
        yield Feature(f"the magnitude of {name}", np.abs(values), "magnitude", 1.05, vary)
    starts = np.cumsum([0, *(first.size for first, *_ in call.groups)])
    rows = np.concatenate(
        [starts[at] + places for at, places in flat_indices.items()] or [np.empty(0, int)]
    )
    for name, outputs in expected.items():
        values = outputs[rows].astype(np.float64)
        vary = partial(with_expected, name=name)
        text = f"the expected {name}"
        yield Feature(text, values, "number", EXPECTED_COST, vary, True)
        text, cost = f"the magnitude of {text}", EXPECTED_COST + 0.05
        yield Feature(text, np.abs(values), "magnitude", cost, vary, True)
    for (first, left), (second, right) in combinations(elements.items(), 2):
        yield Feature(f"{first} is above {second}", left > right, "flag", 1.3)
        yield Feature(f"{first} is below {second}", left < right, "flag", 1.3)
        yield Feature(f"{first} equals {second}", left == right, "flag", 1.3)
        opposite = np.sign(left) * np.sign(right) < 0
        yield Feature(f"{first} and {second} have opposite signs", opposite, "flag", 1.35)
        yield Feature(f"{first} + {second} is NaN", np.isnan(left + right), "flag", 1.3)
    yield from _node_flags(call)
    yield from _tensor_flags(call, flat_indices, each)
    yield from _operand_flags(call, flat_indices, each)


def _matrix_shape(tensor: Array) -> tuple[float, float]:
    """Return the numbers of rows and columns in the last two axes. A vector counts as one row."""
    if not tensor.ndim:
        return np.nan, np.nan
    return (tensor.shape[-2] if tensor.ndim > 1 else 1), tensor.shape[-1]


def _node_flags(call: Call[Array]) -> Iterator[Feature]:
    """Yield boolean features of a node: types of scalars, parity of T, choices of attributes."""
    operator = call.operator
    for item, scalar in zip(operator.scalars, call.scalars, strict=True):
        yield Feature(f"{item.name} is double", scalar.dtype == np.float64, "flag")
        yield Feature(f"{item.name} has a dimension", scalar.ndim > 0, "flag", 1.5)
        if "int64" in item.dtypes:
            yield Feature(f"{item.name} is odd", scalar.item() % 2 == 1, "flag", 1.1)
            yield Feature(f"{item.name} is even", scalar.item() % 2 == 0, "flag", 1.1)
    for attribute in operator.attributes:
        name, value = attribute.name, call.attributes[attribute.name]
        for choice in attribute.choices:
            yield Feature(f"{name} is {choice}", value == choice, "flag")
        yield Feature(f"{name} is left out", name in call.omitted, "flag")
        numbers = len(value) if isinstance(value, tuple) else 1
        yield Feature(f"each tensor has its {name}", numbers > 1, "flag", 1.5)
        integral = not isinstance(value, (str, tuple)) and value == np.round(value)
        fractional = not isinstance(value, (str, tuple)) and value != np.round(value)
        yield Feature(f"{name} is an integer", integral, "flag", 1.3)
        yield Feature(f"{name} is not an integer", fractional, "flag", 1.3)
    empty = any(tensor.size == 0 for tensor, *_ in call.groups)
    yield Feature("a tensor of the node has no element", empty, "flag")


def _tensor_flags(
    call: Call[Array], flat_indices: Mapping[int, Array], each: Callable[[Iterable[Any]], Array]
) -> Iterator[Feature]:
    """Yield boolean features of positions and lengths, such as being in the last row."""
    x, index = call.operator.tensors[0], np.concatenate([*flat_indices.values()])
    firsts = [call.groups[at][0] for at in flat_indices]
    size, last = each(first.size for first in firsts), len(call.groups) - 1
    for attribute in call.operator.attributes:
        value = call.attributes[attribute.name]
        shares = value if isinstance(value, tuple) else (np.nan,)
        own_share = each(shares[at % len(shares)] for at in flat_indices)
        if attribute.each:
            is_integer = own_share == np.round(own_share)
            text = f"the tensor's {attribute.name}"
            yield Feature(f"{text} is an integer", is_integer, "flag", 1.3)
            yield Feature(f"{text} is not an integer", ~is_integer, "flag", 1.3)
        ranks = (size - 1) * own_share / 100
        yield Feature(f"{attribute.name} selects an integer rank", ranks % 1 == 0, "flag", 1.5)
    yield Feature("the element is the last one", index == size - 1, "flag")
    row_counts, columns = map(each, zip(*map(_matrix_shape, firsts), strict=True))
    in_last_row = (index // columns % row_counts == row_counts - 1) & (row_counts > 1)
    in_last_column = (index % columns == columns - 1) & (columns > 1)
    yield Feature("the element is in the last of several rows", in_last_row, "flag", 1.2)
    yield Feature("the element is in the last of several columns", in_last_column, "flag", 1.2)
    yield Feature(f"{x} has an odd number of elements", size % 2 == 1, "flag", 1.15)
    yield Feature(f"{x} has an even number of elements", size % 2 == 0, "flag", 1.15)
    yield Feature("the element's index is odd", index % 2 == 1, "flag", 1.2)
    last_tensor = each(0 < at == last for at in flat_indices)
    yield Feature("the tensor is the last of several", last_tensor, "flag")
    for block in BLOCK_SIZES:
        tail = index >= size - size % block
        yield Feature(f"{x}'s length is not a multiple of {block}", size % block != 0, "flag", 1.3)
        yield Feature(f"the element is among the last n mod {block} of n", tail, "flag", 1.2)
        yield Feature(f"{x}'s length is a multiple of {block}", size % block == 0, "flag", 1.2)
        multiple = index % block == 0
        yield Feature(f"the element's index is a multiple of {block}", multiple, "flag", 1.3)


def _operand_flags(
    call: Call[Array], flat_indices: Mapping[int, Array], each: Callable[[Iterable[Any]], Array]
) -> Iterator[Feature]:
    """Yield boolean features of operands: types, broadcasting, special values."""
    operator, x = call.operator, call.operator.tensors[0]
    groups = [call.groups[at] for at in flat_indices]
    rank = each(group[0].ndim for group in groups)
    for place, name in enumerate(operator.tensors):
        broadcast = each(group[place].shape != group[0].shape for group in groups)
        own_rank = each(group[place].ndim for group in groups)
        double = each(group[place].dtype == np.float64 for group in groups)
        yield Feature(f"{name} is double", double, "flag", 1.1)
        yield Feature(f"{name} is float32", ~double, "flag", 1.15)
        yield Feature(f"{name} broadcasts to {x}", broadcast, "flag", 1.3)
        scalar = broadcast & (own_rank == 0)
        yield Feature(f"{name} is a scalar and {x} is not", scalar, "flag", 1.3)
        yield Feature(f"{name} has fewer dimensions than {x}", own_rank < rank, "flag", 1.3)
        single = broadcast & each(group[place].size == 1 for group in groups)
        yield Feature(f"{name} has one element and {x} has more", single, "flag", 1.3)
        inner = broadcast & (own_rank == rank)
        text = f"{name} has as many dimensions as {x}, one of them of length 1"
        yield Feature(text, inner, "flag", 1.3)
    doubles = [[tensor.dtype == np.float64 for tensor in group] for group in groups]
    some, every = each(map(any, doubles)), each(map(all, doubles))
    yield Feature("a tensor is double", some, "flag")
    yield Feature("a tensor is float32", ~every, "flag")
    yield Feature("the tensors of a group have different types", some & ~every, "flag")
    narrow = each(any(tensor.shape != group[0].shape for tensor in group) for group in groups)
    yield Feature(f"an operand broadcasts to {x}", narrow, "flag")
    rates = [scalar.dtype for scalar in call.scalars if scalar.dtype.kind == "f"][:1]
    other_rate = each(any(dtype != first.dtype for dtype in rates) for first, *_ in groups)
    yield Feature(f"R's type is not that of {x}", other_rate, "flag")
    for place, name in enumerate(operator.tensors):
        for word, special in (("NaN", np.isnan), ("infinite", np.isinf)):
            holds = each(bool(special(group[place]).any()) for group in groups)
            yield Feature(f"an element of {name} is {word}", holds, "flag", 1.2)
        for text, meets in (
            (f"all elements of {name} are 0", [not group[place].any() for group in groups]),
            (f"{name} has no positive element", [not (group[place] > 0).any() for group in groups]),
            (f"{name} has no negative element", [not (group[place] < 0).any() for group in groups]),
        ):
            yield Feature(text, each(meets), "flag", 1.25)
    for first, second in combinations(range(len(operator.tensors)), 2):
        sums = each(bool(np.isnan(group[first] + group[second]).any()) for group in groups)
        names = f"{operator.tensors[first]} + {operator.tensors[second]}"
        yield Feature(f"an element of {names} is NaN", sums, "flag", 1.3)
