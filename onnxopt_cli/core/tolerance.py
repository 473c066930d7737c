"""Tolerances of outputs, and the sources of the tolerances."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from onnxopt_cli.core.values import Array, Value, as_strings, dtype_named

# The texts of finite numbers, as the specification of Cast defines them.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_SPECIAL_TEXTS = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "nan": math.nan}
# Eight digits do not always identify a float32 or a double, but the example in the specification,
# 314.15926, has eight digits, and ONNX Runtime writes at most eight.
_SUFFICIENT_DIGITS = 8
# Limits are multiplied by this factor, because they are computed and compared with rounding errors
# in double.
_COMPUTATION = 1 + 1e-7
#: The tolerance of 16-bit outputs, as a multiple of the condition estimate. It is smaller than for
#: float32, because 16-bit outputs are computed in float32 and rounded to 16 bits once.
SHORT_UNITS = 4.0


class Provenance(StrEnum):
    """The sources of tolerances, in descending order of precedence."""

    COMMAND_LINE = "command line"
    OUTPUT = "output"
    CASE = "case"
    DIRECTORY = "data.json"
    DERIVED = "derived"
    CONDITIONED = "conditioned"
    ONNX = "ONNX default"


@dataclass(frozen=True, slots=True)
class Relative:
    """``|actual - expected| <= atol + rtol * |expected|``, the rule of ONNX and NumPy.

    Attributes:
        reason: why no better tolerance is known; empty for a tolerance that was requested.
    """

    rtol: float
    atol: float
    provenance: Provenance
    reason: str = ""

    def __str__(self) -> str:
        why = f", as {self.reason}" if self.reason else ""
        return f"rtol {self.rtol:g}, atol {self.atol:g} ({self.provenance}{why})"


@dataclass(frozen=True, slots=True)
class Ulps:
    """A tolerance of ``ulp`` representable values of the output's dtype."""

    ulp: int
    provenance: Provenance

    def __str__(self) -> str:
        return f"{self.ulp} ulp ({self.provenance})"


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The accepted values of an output, with limits.

    Attributes:
        expected: the expected values.
        limit: largest allowed absolute errors, of the output's shape, float64. The limit is
            infinite for an element that the case cannot judge.
        otherwise: alternative accepted values, of the same shape. Each element may match either
            branch; an element without an alternative has the same value in both branches. For
            example, the alternative is the result of a reformulation for infinite inputs, or the
            output of the model if each comparison that rounding errors can change has the opposite
            result.
        label: description of the elements that only this branch accepts; may be empty.
    """

    expected: Array
    limit: Array
    otherwise: Branch | None = None
    label: str = ""

    @property
    def inconclusive(self) -> Array:
        """Mask of the elements that a case cannot judge.

        The limit of such an element is infinite, or is at least half the expected value, so that
        half the expected value would pass. If zero is expected, the element is inconclusive only if
        its limit is infinite.
        """
        size = np.abs(self.expected.astype(np.float64))
        inconclusive = np.isinf(self.limit) | (
            np.isfinite(size) & (size > 0) & (self.limit >= size / 2)
        )
        return (
            inconclusive if self.otherwise is None else inconclusive | self.otherwise.inconclusive
        )

    def wrong(self, actual: Array) -> Array:
        """Return a mask of the elements that no branch accepts.

        Args:
            actual: one or several results, stacked along leading axes.
        """
        wide_expected = np.asarray(self.expected, np.float64)
        wide_actual = np.asarray(actual, np.float64)
        with np.errstate(all="ignore"):
            is_close = np.abs(wide_actual - wide_expected) <= self.limit
        both_nan = np.isnan(wide_expected) & np.isnan(wide_actual)
        is_equal = (wide_expected == wide_actual) | both_nan
        wrong: Array = ~(is_close | is_equal | np.isinf(self.limit))
        return wrong if self.otherwise is None else wrong & self.otherwise.wrong(actual)

    def at(self, places: Array) -> Branch:
        """Return the branch of the elements at some flat indices."""
        otherwise = None if self.otherwise is None else self.otherwise.at(places)
        expected, limit = (array.reshape(-1)[places] for array in (self.expected, self.limit))
        return Branch(expected, limit, otherwise, self.label)


@dataclass(frozen=True, slots=True, eq=False)
class ErrorBound:
    """A limit for each element, derived from a formula or from a condition estimate.

    Attributes:
        at: function from flat indices to the accepted values at these indices. The function is
            usually called only for elements that are not bitwise equal, because bitwise equal
            elements need no limit.
        factor: the limit as a multiple of the error bound or of the condition estimate; 0 if the
            output must be exact.
        provenance: the source of the limit.
        least: lower bound of the quotient limit / magnitude over all elements; 0 if unknown. If the
            quotient error / magnitude of an element is below ``least``, the element is within its
            limit, which need not be derived.
    """

    at: Callable[[Array], Branch]
    factor: float
    provenance: Provenance = Provenance.DERIVED
    least: float = 0.0

    def __str__(self) -> str:
        if not self.factor:
            return f"exact ({self.provenance})"
        if self.provenance is Provenance.CONDITIONED:
            arithmetic = " for computation in float32" if self.factor == SHORT_UNITS else ""
            return f"{self.factor:g} times the condition estimate{arithmetic} ({self.provenance})"
        return f"{self.factor:g} times the error bound of the formula ({self.provenance})"


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The tolerance of an output that a function tests as a whole, such as random numbers.

    Attributes:
        distribution: a description of the distribution or of the elements.
        test: function from a sample of the output's dtype and shape to a description of its
            defect; empty for an accepted sample.
        provenance: the source of the expected distribution.
        beside: function from all outputs by name to a description of a contradiction between the
            outputs; empty if they agree.
    """

    distribution: str
    test: Callable[[Array], str]
    provenance: Provenance = Provenance.CONDITIONED
    beside: Callable[[Mapping[str, Value]], str] = lambda _outputs: ""

    def __str__(self) -> str:
        return f"{self.distribution} ({self.provenance})"


@dataclass(frozen=True, slots=True, eq=False)
class NumberText:
    """A tolerance for the texts of floats, as from Cast; each text is judged by its number.

    A text is right if it meets two conditions. First, its number is the value, rounded up or down
    to the digits of the text. Second, there are enough digits: either the number rounds to the
    value in the type of the value, or it differs from the value by at most half a unit of the
    eighth significant digit.

    Attributes:
        text_of: name of the type of the values.
        values: the values, of the output's shape; None if the expected texts state the values.
        rtol: additional relative tolerance if the model computes the values; 0 if the values are
            inputs or constants.
        provenance: the source of the tolerance.
    """

    text_of: str
    values: Array | None = None
    rtol: float = 0.0
    provenance: Provenance = Provenance.DERIVED

    def __str__(self) -> str:
        computed = f" with rtol {self.rtol:g}" if self.rtol else ""
        return f"the value that the text of a {self.text_of} states{computed} ({self.provenance})"

    def texts(self, stored: Array) -> Array:
        """Return the shortest text of each value; if ``values`` is None, of each stored number."""
        values = _stated_values(stored)[0].reshape(stored.shape)
        values = values if self.values is None else self.values
        return np.array([str(value) for value in values.reshape(-1)], object).reshape(values.shape)

    def values_at(self, places: Array, expected: Array) -> Array:
        """Return values at flat indices as float64, given the expected texts at these indices."""
        if self.values is None:
            return _stated_values(expected)[0]
        return self.values.reshape(-1)[places].astype(np.float64)

    def judged(self, values: Array, actual: Array) -> tuple[Array, Array]:
        """Return the errors of texts and their limits; the error of an invalid text is infinite.

        Args:
            values: the correct values, from :meth:`values_at`.
            actual: the texts.
        """
        stated, is_number = _stated_values(actual)
        dtype = dtype_named(self.text_of)
        last_units = np.array([*map(_last_unit, as_strings(actual).reshape(-1).tolist())])
        with np.errstate(all="ignore"):
            rounded = stated.astype(dtype).astype(np.float64)
            finite = np.isfinite(values)
            distance = np.where(finite & np.isfinite(stated), np.abs(stated - values), np.inf)
            identifies = (rounded == values) & (distance < last_units)
            same = np.where(finite, identifies, stated == values)
            exponent = np.floor(np.log10(np.abs(values))) + 1
            half_unit = 0.5 * 10.0 ** (exponent - _SUFFICIENT_DIGITS)
            limit = np.minimum(half_unit * _COMPUTATION, last_units)
            limit = np.maximum(limit, self.rtol * np.abs(values))
        limit = np.where(finite & (values != 0), limit, 0.0)
        distance[same | (np.isnan(stated) & np.isnan(values))] = 0.0
        distance[~is_number] = np.inf
        return distance, limit


def _stated_values(texts: Array) -> tuple[Array, Array]:
    """Return the numbers that texts represent, and whether each text is a number."""
    numbers = [_stated_value(text) for text in as_strings(texts).reshape(-1).tolist()]
    values = np.array([math.nan if number is None else number for number in numbers], np.float64)
    return values, np.array([number is not None for number in numbers], np.bool_)


def _stated_value(text: str) -> float | None:
    if (special := _SPECIAL_TEXTS.get(text.lower())) is not None:
        return special
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    # A text such as 1e999 is invalid: only the special texts represent an infinity.
    return number if math.isfinite(number) else None


def _last_unit(text: str) -> float:
    """Return the unit of the last nonzero digit of a text, divided by :data:`_COMPUTATION`.

    If a text states a number that was rounded up or down, its rounding error is less than the unit
    of its last nonzero digit. The result is 0 for the text of zero, and for a text that is not a
    number.
    """
    mantissa, separator, exponent = text.lower().partition("e")
    last = max(map(mantissa.rfind, "123456789"))
    if last < 0 or not _NUMBER.fullmatch(text):
        return 0.0
    zeros = re.sub("[1-9]", "0", mantissa)
    unit = float(f"{zeros[:last]}1{zeros[last + 1 :]}{separator}{exponent}")
    return abs(unit) / _COMPUTATION


Tolerance = Relative | Ulps | ErrorBound | Drawn | NumberText

#: The tolerance of ONNX's own backend tests.
ONNX_DEFAULT = Relative(rtol=1e-3, atol=1e-7, provenance=Provenance.ONNX)
