"""How far an output may be off, and who said so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from onnxopt_cli.core.values import Array


class Provenance(StrEnum):
    """Where a tolerance came from, strongest first."""

    COMMAND_LINE = "command line"
    OUTPUT = "output"
    CASE = "case"
    DIRECTORY = "data.json"
    DERIVED = "derived"
    ONNX = "ONNX default"


@dataclass(frozen=True, slots=True)
class Relative:
    """``|actual - expected| <= atol + rtol * |expected|``, the rule of ONNX and NumPy."""

    rtol: float
    atol: float
    provenance: Provenance

    def __str__(self) -> str:
        return f"rtol {self.rtol:g}, atol {self.atol:g} ({self.provenance})"


@dataclass(frozen=True, slots=True)
class Ulps:
    """At most ``ulp`` representable values of the output's dtype apart."""

    ulp: int
    provenance: Provenance

    def __str__(self) -> str:
        return f"{self.ulp} ulp ({self.provenance})"


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """What is right beside the expected output, each element on its own.

    Attributes:
        expected: the output where every choice that rounding decides falls the other way, or what
            right forms make of infinite inputs.
        limit: as in a budget.
        otherwise: what is right beside both; None if nothing else is.
    """

    expected: Array
    limit: Array
    otherwise: Branch | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """A limit for each element, derived from the formula and the inputs.

    Attributes:
        limit: the largest allowed absolute error, of the output's shape, in a wide float type;
            infinite where the case cannot judge the element.
        factor: how many times the rounding bound the limit is.
        otherwise: what is right as well, each element on its own; None if nothing else is.
    """

    limit: Array
    factor: float
    provenance: Provenance = Provenance.DERIVED
    otherwise: Branch | None = None

    def __str__(self) -> str:
        return f"{self.factor:g} times the rounding bound of the formula ({self.provenance})"


Tolerance = Relative | Ulps | Budget

#: The tolerance of ONNX's own backend tests.
ONNX_DEFAULT = Relative(rtol=1e-3, atol=1e-7, provenance=Provenance.ONNX)
