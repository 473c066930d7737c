"""Describe how the outputs of an operator without a formula are judged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from typing import Any

from onnx import defs

from onnxopt_cli.core.tolerance import SHORT_UNITS
from onnxopt_cli.oracle.corrections.contested import CONTESTED
from onnxopt_cli.oracle.corrections.corrected_reference import operators
from onnxopt_cli.oracle.function_body import has_stable_body
from onnxopt_cli.oracle.patching import is_acceleration
from onnxopt_cli.oracle.reference_code import reference_functions
from onnxopt_cli.oracle.rounding.injection import UNITS
from onnxopt_cli.oracle.rounding.node_kinds import NodeKind, listed_kind
from onnxopt_cli.oracle.rounding.operator_identities import IDENTITIES

_CORRECTIONS = "onnxopt_cli.oracle.corrections."
_KINDS = {
    NodeKind.EXACT: "moves data: each output is bitwise an input or a constant",
    NodeKind.ELEMENTWISE: "computes each output element from one element of each operand",
    NodeKind.COMBINE: "sums terms, which may cancel",
    NodeKind.MIX: "mixes terms; errors are relative to the largest of them",
    NodeKind.CONVOLVE: "convolves, possibly by Winograd's or Fourier's algorithm",
    NodeKind.TRANSFORM: "computes a Fourier transform",
    NodeKind.COORDINATES: "computes coordinates, and interpolates there",
    NodeKind.SELECT: "selects elements by coordinates that it computes",
    NodeKind.PRODUCT: "multiplies without cancellation",
    NodeKind.GATES: "computes a recurrent cell with gates",
    NodeKind.EXPONENTIALS: "divides by a sum of exponentials, or takes its logarithm",
    NodeKind.NORMALIZE: "subtracts a mean and divides by a deviation",
    NodeKind.DETERMINANT: "computes a determinant",
    NodeKind.WINDOW: "computes the samples of a window from cosines",
    NodeKind.TREES: "adds weights of trees, which may cancel",
}
_MEASURED = "determined for each node, by running it with other inputs"
_MOVEMENT = "the largest movement of an element under roundings, at least u |y|"
_UNITS = {
    NodeKind.EXACT: "0: outputs must be exact",
    NodeKind.ELEMENTWISE: "u |y|, and the movement under roundings within the operator",
    NodeKind.MIX: f"{_MOVEMENT}, and u times the scale of the mixed terms",
    NodeKind.CONVOLVE: f"{_MOVEMENT}, and u times the scale of the mixed terms",
    NodeKind.TRANSFORM: f"{_MOVEMENT}, and u times the scale of the mixed terms",
    NodeKind.DETERMINANT: f"{_MOVEMENT}, and u times the scale of a factorization with pivots",
    NodeKind.WINDOW: f"{_MOVEMENT}, and the error of the cosine of an angle in float32",
    NodeKind.SELECT: "0; if a coordinate is rounded, the elements next to it are also accepted",
}


@dataclass(frozen=True, slots=True)
class OperatorJudgement:
    """How outputs of an operator are judged.

    Attributes:
        kind: what the operator computes, which decides where roundings are injected.
        unit: the unit of the tolerance.
        limit: the tolerance in units.
        reformulations: the reformulations whose rounding errors are accepted.
        corrections: descriptions of the corrections of onnx's reference.
        contested: the questions that published sources answer differently.
    """

    kind: str
    unit: str
    limit: str
    reformulations: tuple[str, ...]
    corrections: tuple[str, ...]
    contested: tuple[str, ...]


@cache
def operator_judgement(domain: str, op_type: str, opset: int) -> OperatorJudgement:
    """Return how the outputs of an operator are judged.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        opset: the version of the domain.
    """
    kind = listed_kind(op_type) if not domain else None
    reformulations = ["the reference in the types of the model", "sequential sums"]
    if kind is NodeKind.EXACT:
        reformulations = []
    elif has_stable_body(defs.get_schema(op_type, opset, domain)):
        reformulations.append("the function body that ONNX publishes")
    reformulations += [
        entry.identity_name
        for entry in IDENTITIES
        if not domain and op_type in {entry.operator, *entry.within}
    ]
    return OperatorJudgement(
        kind=_MEASURED if kind is None else _KINDS[kind],
        unit=_UNITS.get(kind, _MOVEMENT) if kind else _MOVEMENT,
        limit=f"{UNITS:g} units, {SHORT_UNITS:g} in 16-bit types",
        reformulations=tuple(reformulations),
        corrections=_corrections(domain, op_type, opset),
        contested=tuple(entry.name for entry in CONTESTED if op_type in entry.operators),
    )


def _corrections(domain: str, op_type: str, opset: int) -> tuple[str, ...]:
    """Return the first paragraphs of the docstrings of an operator's corrections."""
    corrected: list[Any] = [
        implementation
        for implementation in operators()
        if (getattr(implementation, "op_domain", ""), implementation.__name__) == (domain, op_type)
    ]
    corrected += [
        function
        for function in reference_functions(domain, op_type, opset)
        if function.__module__.startswith(_CORRECTIONS)
        and _replaces(function)
        and not is_acceleration(function)
    ]
    # ``getdoc`` would also return the docstrings of onnx's base classes.
    documented = (cleandoc(item.__doc__ or "") for item in corrected)
    return tuple(
        dict.fromkeys(text.split("\n\n", 1)[0].replace("\n", " ") for text in documented if text)
    )


def _replaces(function: Any) -> bool:
    """Return whether a function has a parameter for the function that it replaces."""
    code = function.__code__
    return not {"original", "_original"}.isdisjoint(code.co_varnames[: code.co_argcount])
