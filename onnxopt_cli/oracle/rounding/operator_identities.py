"""Identities that runtimes use on purpose, although the identities lose relative accuracy.

A correct backend may have the roundings of an accepted identity. A result that passes only because
of these roundings is marked. Each identity has a formula, a reason and sources.
``docs/conditioned.md`` lists the accepted identities and the rejected ones.
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
        formula: the identity in mathematical notation.
        constants: its constants, by name.
        steps: the nodes of the identity, each as output, operator and inputs. The operand is ``x``,
            and the result is ``y``. Constants have the type of the operand.
        reason: why runtimes use the identity.
        sources: the runtimes that use the identity, each with the path of a source file.
        within: other operators whose published bodies contain ``operator``.
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
        """The identity as an equation: ``Sigmoid(x) = (1 + tanh(x / 2)) / 2``."""
        return f"{self.operator}(x) = {self.formula}"


#: The name of the nodes of an identity.
WITHIN = "onnxopt.identity"
# The opset version of the nodes. Any version from 15 on is suitable, because CastLike exists since
# then.
_OPSET = 18
#: The accepted identities, which hold in exact arithmetic.
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
        reason="An odd function is approximated for one sign only, or is an instruction of the"
        " device; no exponential overflows.",
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
    return [entry for entry in IDENTITIES if not used.isdisjoint({entry.operator, *entry.within})]


@cache
def identities() -> Mapping[str, onnx.FunctionProto]:
    """Return the identities as functions, by operator.

    All nodes except the last are named :data:`WITHIN`. The last node rounds to the operator's type.
    """
    return {entry.operator: _function(entry) for entry in IDENTITIES}


def _function(entry: OperatorIdentity) -> onnx.FunctionProto:
    nodes = []
    for name, value in entry.constants.items():
        single = f"{name}_float32"
        nodes.append(helper.make_node("Constant", [], [single], WITHIN, value_float=value))
        nodes.append(helper.make_node("CastLike", [single, "x"], [name], WITHIN))
    for result, operator, *operands in entry.steps:
        nodes.append(helper.make_node(operator, operands, [result], WITHIN))
    nodes[-1].name = ""
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_function(WITHIN, entry.operator, ["x"], ["y"], nodes, opsets)
