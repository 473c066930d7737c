"""Identities that runtimes compute operators by on purpose, and that cost relative accuracy.

What an identity loses to its own roundings is accepted, and a result that needs it says so. An
entry has a formula, a reason and a source; ``docs/conditioned.md`` lists them, and what is not one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import helper

from onnxopt_cli.operators.nodes import all_nodes


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """An identity by which an operator may be computed.

    Attributes:
        operator: the operator.
        formula: the identity, as people write it.
        constants: the numbers in it, by name.
        steps: the same as nodes: what each yields, the operator, and what it takes. The operand is
            ``x``, the result ``y``; constants are of the operand's type.
        reason: why runtimes use it.
        sources: runtimes that do, each with a file.
        within: operators whose published bodies contain the operator.
    """

    operator: str
    formula: str
    constants: Mapping[str, float]
    steps: tuple[tuple[str, ...], ...]
    reason: str
    sources: tuple[str, ...]
    within: tuple[str, ...] = ()

    @property
    def identity_name(self) -> str:
        """The entry in a line: ``Sigmoid(x) = (1 + tanh(x / 2)) / 2``."""
        return f"{self.operator}(x) = {self.formula}"


#: The name of nodes within an identity.
WITHIN = "onnxopt.identity"
# CastLike is of 15; nothing else depends on it.
_OPSET = 18
#: The list. Only what would be right in exact arithmetic belongs here.
IDENTITIES = (
    OperatorIdentity(
        operator="Sigmoid",
        formula="(1 + tanh(x / 2)) / 2",
        constants={"half": 0.5},
        steps=(
            ("z", "Mul", "x", "half"),
            ("t", "Tanh", "z"),
            ("s", "Mul", "t", "half"),
            ("y", "Add", "s", "half"),
        ),
        reason="An odd function is approximated on one side only, or is one instruction of the"
        " device; there is no exponential that overflows.",
        sources=(
            "ONNX Runtime, onnxruntime/core/mlas/lib/logistic.cpp: p / q + 0.5, p odd",
            "XLA, xla/service/logistic_expander.cc: 0.5 + 0.5 * tanh(0.5 * x)",
            "primitiv, primitiv/device_ops/sigmoid_naive.cc: .5 + .5 * std::tanh(.5 * src[i])",
        ),
        within=("Swish", "SwiGLU"),
    ),
)


def identities_in(model: onnx.ModelProto) -> list[OperatorIdentity]:
    """Return the identities that may be used somewhere in a model."""
    used = {node.op_type for node in all_nodes(model) if node.domain in {"", "ai.onnx"}}
    return [it for it in IDENTITIES if not used.isdisjoint({it.operator, *it.within})]


@cache
def identities() -> Mapping[str, onnx.FunctionProto]:
    """Return the identities as functions, by operator.

    All nodes but the last one, which rounds to the type of the operator, are called :data:`WITHIN`.
    """
    return {it.operator: _function(it) for it in IDENTITIES}


def _function(entry: OperatorIdentity) -> onnx.FunctionProto:
    nodes = []
    for name, value in entry.constants.items():
        single = f"{name}_float32"
        nodes.append(helper.make_node("Constant", [], [single], WITHIN, value_float=value))
        nodes.append(helper.make_node("CastLike", [single, "x"], [name], WITHIN))
    for result, operator, *taken in entry.steps:
        nodes.append(helper.make_node(operator, taken, [result], WITHIN))
    nodes[-1].name = ""
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_function(WITHIN, entry.operator, ["x"], ["y"], nodes, opsets)
