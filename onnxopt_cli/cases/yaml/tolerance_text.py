"""The tolerance of a case file."""

from __future__ import annotations

from onnxopt_cli.cases.yaml.syntax import Node, number
from onnxopt_cli.core.tolerance import Provenance, Relative, Tolerance, Ulps

_LIMITS = ("rtol", "atol", "ulp")


def read_tolerance(node: Node) -> tuple[Tolerance | None, dict[str, Tolerance]]:
    """Return the tolerance for all outputs, if there is one, and those for single outputs.

    Args:
        node: ``{rtol: 1e-3, atol: 1e-7}`` or ``{ulp: 2}``, beside or within ``{X_new: ...}``; the
            schema has made sure of its structure.
    """
    outputs = {
        name: _tolerance(value, Provenance.OUTPUT) for name, value in output_nodes(node).items()
    }
    if not any(name in _LIMITS for name in node.fields or {}):
        return None, outputs
    return _tolerance(node, Provenance.CASE), outputs


def output_nodes(node: Node) -> dict[str, Node]:
    """Return the parts of a tolerance that are for single outputs."""
    return {name: value for name, value in (node.fields or {}).items() if name not in _LIMITS}


def _tolerance(node: Node, provenance: Provenance) -> Tolerance:
    ulp = node.field("ulp")
    if ulp is not None:
        return Ulps(int(number(ulp)), provenance)
    rtol, atol = node.field("rtol"), node.field("atol")
    return Relative(
        rtol=float(number(rtol)) if rtol else 0.0,
        atol=float(number(atol)) if atol else 0.0,
        provenance=provenance,
    )
