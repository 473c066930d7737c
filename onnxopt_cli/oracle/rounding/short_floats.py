"""Float types of 16 bits: what is added up is converted to float32 and added up in it.

What onnx's reference yields in 16 bits is then no evidence: where it overflows, or is zero, only
its own sums do that. ``docs/conditioned.md`` has the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Value
from onnxopt_cli.operators.nodes import all_nodes
from onnxopt_cli.oracle.rounding.condition_rows import Rounds
from onnxopt_cli.oracle.widen import is_short, single_value

# They divide in the type of their scales, and what they yield is discrete.
_DIVIDE = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"})
# They have several stages, and the results between stages are of the model's own type.
_STAGED = frozenset(
    {"Attention", "GRU", "LSTM", "RNN", "LinearAttention", "CausalConvWithState"}
    | {"RotaryEmbedding", "AffineGrid"}
)
#: Their published bodies round the exponents to the model's own type; nothing cancels there.
SHIFTED = frozenset({"Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss"})
_NOT_ADDED = frozenset({Rounds.EXACT, Rounds.ELEMENT})
_COORDINATES = frozenset({Rounds.COORDINATES, Rounds.PICKS})
_SHORT_TYPES = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_TYPES_OF_STAGES = frozenset({"stash_type", "softmax_precision"})


def adds_up(op_type: str, row: Rounds) -> bool:
    """Tell whether a node computes in float32 what it is given in 16 bits."""
    return row not in _NOT_ADDED and op_type not in _DIVIDE


def takes_exact_operands(op_type: str, row: Rounds) -> bool:
    """Tell whether no operand of 16 bits is rounded before a node adds up."""
    return adds_up(op_type, row) and row not in _COORDINATES and op_type not in _STAGED


def asks_for_short_sums(model: onnx.ModelProto) -> bool:
    """Tell whether a node says that it computes in 16 bits."""
    return any(
        attribute.name in _TYPES_OF_STAGES and attribute.i in _SHORT_TYPES
        for node in all_nodes(model)
        for attribute in node.attribute
    )


class InSingle:
    """Runs nodes in the model's own types, but in float32 what adds up operands of 16 bits.

    Args:
        rows: of each node that is visited: operator and row.
        types: of each, the dtypes of its outputs in the model's own types; None for others.
    """

    def __init__(
        self, rows: Sequence[tuple[str, Rounds]], types: Sequence[Sequence[np.dtype[Any] | None]]
    ) -> None:
        self._rows, self._types = rows, types

    def __call__(
        self, node: Any, compute: Callable[..., Any], given: Sequence[Any], at: int
    ) -> Sequence[Any]:
        """Return a node's outputs, in the types that it yields."""
        known = at < min(len(self._rows), len(self._types))
        op_type, row = self._rows[at] if known else ("", Rounds.EXACT)
        if op_type != node.op_type or not adds_up(op_type, row) or not any(map(is_short, given)):
            return compute(*given)
        outputs = compute(*map(single_value, given))
        return [
            it.astype(dtype) if isinstance(it, np.ndarray) and dtype is not None else it
            for it, dtype in zip(outputs, self._types[at], strict=True)
        ]


def dtypes_of(outputs: Sequence[Value]) -> list[np.dtype[Any] | None]:
    """Return the dtypes of tensors; None for other values."""
    return [it.dtype if isinstance(it, np.ndarray) else None for it in outputs]
