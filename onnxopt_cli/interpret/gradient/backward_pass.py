"""The nodes of a backward pass, and the node that a rule differentiates.

A model is differentiated for given inputs, so all shapes are known. Two kinds of values are
therefore constants of the backward pass: the axes of sums, and the indices of the elements that a
node such as Gather moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.nodes import untyped_model

#: Takes a model and its inputs, and returns the outputs of the model.
Evaluate = Callable[[onnx.ModelProto, Mapping[str, Any]], Sequence[Any]]
#: The element types that have derivatives.
DIFFERENTIABLE = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))
# From this version on, the axes of ReduceSum are an input.
_AXES_INPUT_VERSION = 13


class BackwardPass:
    """The nodes that are appended to a graph.

    Args:
        opset: the version of ai.onnx.
        free_name: takes a proposed name and returns a similar name that does not occur in the
            graph.

    Attributes:
        nodes: the nodes.
        constants: initializers that the nodes use.
    """

    def __init__(self, opset: int, free_name: Callable[[str], str]) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._free_name = free_name

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node of ai.onnx; return the name of its output."""
        name = self._free_name(f"gradient_{op_type.lower()}")
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: np.dtype[Any]) -> str:
        """Add an initializer; return its name."""
        name = self._free_name("gradient_constant")
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def integers(self, values: Sequence[int] | Array) -> str:
        """Add an initializer of int64; return its name."""
        return self.constant(values, np.dtype(np.int64))

    def cast(self, name: str, dtype: np.dtype[Any]) -> str:
        """Append a Cast node; return the name of its output."""
        return self.node("Cast", name, to=helper.np_dtype_to_tensor_dtype(dtype))

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """Append nodes that reshape a tensor; return the name of the result."""
        if 0 in shape:
            # Reshape interprets a zero in the shape as the dimension of the input at this position.
            # For an empty tensor, expand a scalar instead; no elements are lost.
            flat = self.node("Reshape", name, self.integers([-1]))
            zero = self.summed(flat, [0], keepdims=False)
            return self.expanded(zero, shape)
        return self.node("Reshape", name, self.integers(shape))

    def summed(self, name: str, axes: Sequence[int], *, keepdims: bool) -> str:
        """Append a ReduceSum node if there are axes; return the name of the sum."""
        if not axes:
            return name
        if self.opset < _AXES_INPUT_VERSION:
            return self.node("ReduceSum", name, axes=[*axes], keepdims=int(keepdims))
        return self.node("ReduceSum", name, self.integers(axes), keepdims=int(keepdims))

    def expanded(self, name: str, shape: Sequence[int]) -> str:
        """Append an Expand node; return the name of its output."""
        return self.node("Expand", name, self.integers(shape))


class DifferentiatedNode:
    """A node of the differentiated graph, and the gradients of its outputs.

    The gradient of a tensor is the derivative of y with respect to the tensor. A gradient is
    represented by the name of the tensor that contains it.

    Args:
        backward: the backward pass, to which rules append nodes.
        node: the node.
        values: the values of all tensors of the graph by name.
        gradients: by name, the gradient of each output that has one.
        evaluate: computes a model of a single node.

    Attributes:
        backward: the backward pass.
        node: the node.
        inputs: the names of the inputs, empty for omitted inputs.
        outputs: names of the outputs.
        attributes: the attributes that the node states.
    """

    def __init__(
        self,
        backward: BackwardPass,
        node: onnx.NodeProto,
        values: Mapping[str, Any],
        gradients: Mapping[str, str],
        evaluate: Evaluate,
    ) -> None:
        self.backward = backward
        self.node = node
        self.inputs, self.outputs = [*node.input], [*node.output]
        self.attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
        }
        self._values, self._gradients = values, gradients
        self._evaluate = evaluate

    @property
    def gradient(self) -> str:
        """The gradient of the first output."""
        return self._gradients[self.outputs[0]]

    def value(self, name: str) -> Any:
        """Return the value of a tensor of the graph."""
        return self._values[name]

    def optional_value(self, place: int) -> Any:
        """Return the value of an input; None if it is omitted."""
        name = self.inputs[place] if place < len(self.inputs) else ""
        return self._values[name] if name else None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of the graph."""
        return tuple(self._values[name].shape)

    def is_differentiable(self, name: str) -> bool:
        """Return whether a tensor has a type with derivatives."""
        return bool(name) and getattr(self._values[name], "dtype", None) in DIFFERENTIABLE

    def outputs_for(self, operands: Sequence[Any]) -> list[Any]:
        """Return the outputs that the node has for given operands.

        Args:
            operands: the value of each input; None for an omitted input.
        """
        copy = deepcopy(self.node)
        named_operands: dict[str, Any] = {}
        for place, operand in enumerate(operands):
            copy.input[place] = "" if operand is None else f"input_{place}"
            if operand is not None:
                named_operands[copy.input[place]] = operand
        model = untyped_model(copy, self.backward.opset)
        return list(self._evaluate(model, named_operands))

    def like(self, value: Any, name: str) -> str:
        """Add a constant with the element type of the tensor ``name``; return the new name."""
        return self.backward.constant(value, self._values[name].dtype)

    def call(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node to the backward pass; return the name of its output."""
        return self.backward.node(op_type, *inputs, **attributes)

    def times(self, *names: str) -> str:
        """Append nodes for the product of several tensors; return the name of the product."""
        product, *factors = names
        for factor in factors:
            product = self.call("Mul", product, factor)
        return product

    def zeros(self, name: str) -> str:
        """Add zeros with the shape and type of a tensor of the graph; return the name."""
        return self.like(np.zeros(self.shape(name)), name)

    def reduced(self, gradient: str, shape: Sequence[int], name: str) -> str:
        """Append nodes for the gradient of a broadcast input: a sum over the broadcast axes.

        Args:
            gradient: the gradient of the input after broadcasting.
            shape: the shape of ``gradient``.
            name: the input.
        """
        own_shape = self.shape(name)
        if tuple(shape) == own_shape:
            return gradient
        axes = broadcast_axes(own_shape, shape)
        summed = self.backward.summed(gradient, axes, keepdims=True)
        return self.backward.reshaped(summed, own_shape)

    def flat_outputs(self) -> str:
        """Append nodes for a vector of the gradients of all output elements, followed by a zero."""
        parts = []
        for output in self.outputs:
            if not self.is_differentiable(output):
                continue
            gradient = self._gradients.get(output) or self.zeros(output)
            parts.append(self.backward.reshaped(gradient, [prod(self.shape(output))]))
        first = next(name for name in self.outputs if self.is_differentiable(name))
        return self.call("Concat", *parts, self.like([0], first), axis=0)

    def gathered(self, gradients: str, sources: Array, name: str) -> str:
        """Append nodes for the gradient of an input whose elements are copied to the outputs.

        The gradient of an element is the sum of the gradients of its copies.

        Args:
            gradients: a vector of the gradients of all output elements, followed by a zero.
            sources: for each output element, the index of the input element of which it is a copy;
                negative if it is not a copy.
            name: the input.
        """
        table = places_of(sources, prod(self.shape(name)))
        gradients_of_places = self.call("Gather", gradients, self.backward.integers(table), axis=0)
        summed = self.backward.summed(gradients_of_places, [1], keepdims=False)
        return self.backward.reshaped(summed, self.shape(name))


def broadcast_axes(own_shape: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the axes of ``shape`` along which a tensor of the shape ``own_shape`` is broadcast."""
    leading = len(shape) - len(own_shape)
    return [
        axis
        for axis, size in enumerate(shape)
        if axis < leading or (own_shape[axis - leading] == 1 and size != 1)
    ]


def places_of(sources: Array, count: int) -> Array:
    """Return the indices of the copies of each input element.

    Args:
        sources: for each output element, the index of the input element of which it is a copy;
            negative if it is not a copy.
        count: number of input elements.

    Returns:
        A matrix with a row for each input element: the indices of its copies among the output
        elements. Short rows are padded with the number of output elements, which is not a valid
        index.
    """
    flat = np.asarray(sources, np.int64).reshape(-1)
    rows: list[list[int]] = [[] for _ in range(count)]
    for place, source in enumerate(flat.tolist()):
        if source >= 0:
            rows[source].append(place)
    width = max(1, max(map(len, rows), default=1))
    filled = [row + [flat.size] * (width - len(row)) for row in rows]
    return np.array(filled, np.int64).reshape(count, width)


def unsupported(node: onnx.NodeProto, reason: str = "") -> NodeError:
    """Return the error for a node whose operator has no rule."""
    subject = f"{node.op_type} has no rule of differentiation"
    return NodeError(f"{subject} {reason}".strip())
