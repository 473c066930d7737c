"""How far an output may be off, and who said so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from onnxopt_cli.core.values import Array, Value


class Provenance(StrEnum):
    """Where a tolerance came from, strongest first."""

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
        reason: why nothing better is known; empty if nobody asked.
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
    """At most ``ulp`` representable values of the output's dtype apart."""

    ulp: int
    provenance: Provenance

    def __str__(self) -> str:
        return f"{self.ulp} ulp ({self.provenance})"


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """What is right of each element, and how far off it may be.

    Attributes:
        expected: the output.
        limit: the largest allowed absolute error, of the output's shape, float64; infinite where
            the case cannot judge the element.
        otherwise: what is right as well, each element on its own, and the same elsewhere: the
            output where every choice that rounding decides falls the other way, or what right forms
            make of infinite inputs; None if nothing else is.
        label: what is said of elements that are right by this branch alone; empty if nothing is.
    """

    expected: Array
    limit: Array
    otherwise: Branch | None = None
    label: str = ""

    @property
    def inconclusive(self) -> Array:
        """Where the case cannot judge: the limit is infinite, or reaches a value from zero.

        A value that is zero is judged by what it was computed from, and is never inconclusive for
        itself.
        """
        size = np.abs(self.expected.astype(np.float64))
        inconclusive = np.isinf(self.limit) | (
            np.isfinite(size) & (size > 0) & (self.limit >= size)
        )
        return (
            inconclusive if self.otherwise is None else inconclusive | self.otherwise.inconclusive
        )

    def wrong(self, actual: Array) -> Array:
        """Tell which elements of one output, or of several, are right in no way."""
        with np.errstate(all="ignore"):
            one, other = (np.asarray(it, np.float64) for it in (self.expected, actual))
            near = np.abs(other - one) <= self.limit
        alike = (one == other) | (np.isnan(one) & np.isnan(other))
        wrong: Array = ~(near | alike | np.isinf(self.limit))
        return wrong if self.otherwise is None else wrong & self.otherwise.wrong(actual)

    def at(self, places: Array) -> Branch:
        """Return what is right of the elements at some flat places."""
        other = None if self.otherwise is None else self.otherwise.at(places)
        expected, limit = (it.reshape(-1)[places] for it in (self.expected, self.limit))
        return Branch(expected, limit, other, self.label)


@dataclass(frozen=True, slots=True, eq=False)
class ErrorBound:
    """A limit for each element, derived from the formula and the inputs, or found by asking.

    Attributes:
        at: returns what is right of the elements at some flat places. What is equal to the bit is
            right by any limit, so it is asked of the other elements alone.
        factor: how many times the rounding bound, or the unit of conditioning, the limit is; 0 if
            the output has to be exact.
        least: the limit of an element is at least so many times its magnitude; 0 if unknown. What
            is nearer than that need not be asked of.
    """

    at: Callable[[Array], Branch]
    factor: float
    provenance: Provenance = Provenance.DERIVED
    least: float = 0.0

    def __str__(self) -> str:
        if not self.factor:
            return f"exact ({self.provenance})"
        if self.provenance is Provenance.CONDITIONED:
            return f"{self.factor:g} times what a rounding moves ({self.provenance})"
        return f"{self.factor:g} times the rounding bound of the formula ({self.provenance})"


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A random output: no value is right, but a distribution; or elements in any order.

    Attributes:
        distribution: the distribution or the elements, in words.
        test: says what is wrong with a sample of the output's dtype and shape; empty if nothing.
        beside: says what is wrong with it, right in itself, beside the other outputs: it is
            handed all by name.
    """

    distribution: str
    test: Callable[[Array], str]
    provenance: Provenance = Provenance.CONDITIONED
    beside: Callable[[Mapping[str, Value]], str] = lambda _outputs: ""

    def __str__(self) -> str:
        return f"{self.distribution} ({self.provenance})"


Tolerance = Relative | Ulps | ErrorBound | Drawn

#: The tolerance of ONNX's own backend tests.
ONNX_DEFAULT = Relative(rtol=1e-3, atol=1e-7, provenance=Provenance.ONNX)
