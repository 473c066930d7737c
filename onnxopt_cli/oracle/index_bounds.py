"""Inputs of a case with an index that the specification of an operator excludes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.oracle.evaluator import Compute, ReferenceModel

#: Beginning of the reason for missing outputs if an index is out of bounds.
OUT_OF_BOUNDS = "an index is out of bounds"


class _OutOfBoundsError(Exception):
    """An index of a node is out of bounds."""


def index_fault(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> str:
    """Return which index of a node is out of bounds; empty if none is, or none is reached.

    The specifications of these operators call such an index an error, or define nothing for it.

    Args:
        model: a model that onnx's reference does not run with these inputs.
        inputs: its inputs.
    """

    def check(node: Any, compute: Compute, operands: Sequence[Any], _index: int) -> Sequence[Any]:
        rule = _RULES.get(node.op_type)
        if rule is not None and not node.has_linked_attribute:
            indices, least, most = rule(node, operands)
            outside = (indices < least) | (indices > most)
            if outside.any():
                place = np.unravel_index(np.argmax(outside), outside.shape)
                index, low, high = (
                    np.broadcast_to(bound, outside.shape)[place] for bound in (indices, least, most)
                )
                text = f"{node.op_type} has the index {index}, which is not in [{low}, {high}]"
                raise _OutOfBoundsError(f"{OUT_OF_BOUNDS}: {text}")
        return compute(*operands)

    try:
        ReferenceModel(model).run(inputs, check)
    except _OutOfBoundsError as error:
        return str(error)
    except Exception:  # noqa: BLE001 - the model fails for another reason
        return ""
    return ""


def _along_axis(node: Any, operands: Sequence[Any]) -> tuple[Array, Any, Any]:
    size = operands[0].shape[_attribute(node, "axis", 0)]
    return operands[1], -size, size - 1


def _of_element_paths(node: Any, operands: Sequence[Any]) -> tuple[Array, Any, Any]:
    data, indices = operands[:2]
    first = _attribute(node, "batch_dims", 0)
    sizes = np.array(data.shape[first : first + indices.shape[-1]])
    return indices, -sizes, sizes - 1


def _of_classes(node: Any, operands: Sequence[Any]) -> tuple[Array, Any, Any]:
    scores, targets = operands[:2]
    ignored = _attribute(node, "ignore_index", None)
    return targets[targets != ignored], 0, scores.shape[1] - 1


def _of_sequence(_node: Any, operands: Sequence[Any]) -> tuple[Array, Any, Any]:
    sequence, position = operands
    return np.asarray(position), -len(sequence), len(sequence) - 1


def _attribute(node: Any, name: str, default: Any) -> Any:
    values = [attribute.i for attribute in node.onnx_node.attribute if attribute.name == name]
    return values[0] if values else default


# For each operator, a function that returns its indices and their smallest and largest values.
_RULES: dict[str, Callable[[Any, Sequence[Any]], tuple[Array, Any, Any]]] = {
    **dict.fromkeys(("Gather", "GatherElements", "Scatter", "ScatterElements"), _along_axis),
    **dict.fromkeys(("GatherND", "ScatterND"), _of_element_paths),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _of_classes),
    "SequenceAt": _of_sequence,
}
