"""Nodes with 16-bit operands. Such nodes compute and accumulate in float32.

onnx's reference accumulates in 16 bits. An overflow or underflow in the reference's results
therefore does not show that a correct backend overflows. The exceptions are ``Sum`` and ``Mean``,
which may add whole tensors in 16 bits, one after the other, like a chain of ``Add``. ``Gemm`` and
convolutions may round a product before they add C or a bias, like ``MatMul`` followed by ``Add``.
``docs/conditioned.md`` states the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Value
from onnxopt_cli.operators.nodes import all_nodes
from onnxopt_cli.oracle.rounding.node_kinds import NodeKind
from onnxopt_cli.oracle.widen import is_short, single_value

# Operators that divide in the type of their scales, and return quantized values.
_QUANTIZE = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"})
# Operators that compute in several stages, and round to the model's own type after each stage.
_STAGED = frozenset(
    {"Attention", "GRU", "LSTM", "RNN", "LinearAttention", "CausalConvWithState"}
    | {"RotaryEmbedding", "AffineGrid"}
)
#: Operators that add tensors one after the other. Each partial sum may have the model's own type.
CHAINED = frozenset({"Mean", "Sum"})
#: Operators that add C or a bias to a product. An implementation may round the product to the
#: model's own type before the addition. ``ADDEND`` is the index of C and of the bias among the
#: operands.
WITH_ADDEND, ADDEND = frozenset({"Conv", "ConvTranspose", "Gemm"}), 2
#: Operators whose published bodies round the exponents to the model's own type. In these bodies, no
#: terms cancel.
SHIFTED = frozenset({"Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss"})
_NOT_ACCUMULATING = frozenset({NodeKind.EXACT, NodeKind.ELEMENTWISE})
_COORDINATES = frozenset({NodeKind.COORDINATES, NodeKind.SELECT})
_SHORT_TYPES = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_TYPE_ATTRIBUTES = frozenset({"stash_type", "softmax_precision"})


def accumulates_in_single(op_type: str, kind: NodeKind) -> bool:
    """Return whether a node computes in float32 if its operands have 16 bits."""
    return kind not in _NOT_ACCUMULATING and op_type not in _QUANTIZE


def takes_exact_operands(op_type: str, kind: NodeKind) -> bool:
    """Return whether a node accumulates 16-bit operands in float32 without rounding them first."""
    accumulates = accumulates_in_single(op_type, kind)
    return accumulates and kind not in _COORDINATES and op_type not in _STAGED


def requests_short_sums(model: onnx.ModelProto) -> bool:
    """Return whether an attribute of any node requires computation in 16 bits."""
    return any(
        attribute.name in _TYPE_ATTRIBUTES and attribute.i in _SHORT_TYPES
        for node in all_nodes(model)
        for attribute in node.attribute
    )


class InSingle:
    """A visitor that accumulates 16-bit operands in float32 and leaves all other types unchanged.

    Args:
        nodes: the operator and kind of each node of the exact run.
        types: for each of these nodes, the dtypes of its outputs in the model's own types. The
            dtype of an output that is not a tensor is None.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[str, NodeKind]],
        types: Sequence[Sequence[np.dtype[Any] | None]],
    ) -> None:
        self._nodes, self._types = nodes, types

    def __call__(
        self, node: Any, compute: Callable[..., Any], operands: Sequence[Any], index: int
    ) -> Sequence[Any]:
        """Return a node's outputs in the model's own types."""
        visited_before = index < min(len(self._nodes), len(self._types))
        op_type, kind = self._nodes[index] if visited_before else ("", NodeKind.EXACT)
        if (
            op_type != node.op_type
            or not accumulates_in_single(op_type, kind)
            or not any(map(is_short, operands))
        ):
            return compute(*operands)
        outputs = compute(*map(single_value, operands))
        return [
            output.astype(dtype) if isinstance(output, np.ndarray) and dtype is not None else output
            for output, dtype in zip(outputs, self._types[index], strict=True)
        ]


def dtypes_of(outputs: Sequence[Value]) -> list[np.dtype[Any] | None]:
    """Return the dtypes of tensors; None for other values."""
    return [output.dtype if isinstance(output, np.ndarray) else None for output in outputs]
