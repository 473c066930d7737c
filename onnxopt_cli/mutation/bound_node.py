"""A model of one node together with the values of its inputs, in a form that is easy to change."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.operators.nodes import (
    imported_versions,
    nodes_within,
    plain_domain,
    subgraphs,
)

# Types of attributes that hold subgraphs.
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


@cache
def _schema(op_type: str, opset: int, domain: str) -> defs.OpSchema:
    return defs.get_schema(op_type, opset, domain)


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with its inputs.

    Attributes:
        model: the original model of the node. The following fields override the model's opset
            version, attributes and inputs.
        opset: the version of the node's domain.
        attributes: the attributes that are present in the node, by name. The values are Python
            objects as :func:`onnx.helper.get_attribute_value` returns them.
        names: the names of the node's inputs; an omitted optional input has an empty name.
        values: the values of the inputs by name, including initializers.
    """

    model: onnx.ModelProto
    opset: int
    attributes: Mapping[str, Any]
    names: tuple[str, ...]
    values: Mapping[str, Value]

    @classmethod
    def of(cls, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> BoundNode:
        """Return the only node of a model, together with the values of its inputs.

        Raises:
            ValueError: if the model has several nodes.
        """
        (node,) = model.graph.node
        attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
        }
        constants = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        opset = imported_versions(model)[plain_domain(node.domain)]
        return cls(model, opset, attributes, tuple(node.input), {**constants, **inputs})

    @property
    def node(self) -> onnx.NodeProto:
        """The node of the original model."""
        return self.model.graph.node[0]

    @property
    def schema(self) -> defs.OpSchema:
        """The schema of the operator in this opset version."""
        node = self.node
        return _schema(node.op_type, self.opset, plain_domain(node.domain))

    @property
    def operands(self) -> list[Value]:
        """The values of the inputs in the node's order; None for an omitted input."""
        return [self.values.get(name) for name in self.names]

    @property
    def output_places(self) -> list[int]:
        """The positions of the model's outputs among the outputs of the node."""
        names = [*self.node.output]
        return [names.index(output.name) for output in self.model.graph.output]

    def operand(self, index: int) -> Array | None:
        """Return an input; None if it is omitted or not a tensor."""
        name = self.names[index] if index < len(self.names) else ""
        value = self.values.get(name)
        return value if isinstance(value, np.ndarray) else None

    def attribute(self, name: str) -> Any:
        """Return an attribute's value; an omitted attribute has its default, or else None."""
        if name in self.attributes:
            return self.attributes[name]
        entry = self.schema.attributes.get(name)
        if entry is None or not entry.default_value.type:
            return None
        return helper.get_attribute_value(entry.default_value)

    def with_attribute(self, name: str, value: Any) -> BoundNode:
        """Return the node with another value of an attribute; None removes the attribute."""
        attributes = {key: old for key, old in self.attributes.items() if key != name}
        return replace(self, attributes=attributes | ({} if value is None else {name: value}))

    def with_operand(self, index: int, value: Value) -> BoundNode:
        """Return the node with another value of an input.

        If several inputs share a value, the value changes only for this input.
        """
        name = f"operand_{index}"
        names = (*self.names[:index], name, *self.names[index + 1 :])
        return replace(self, names=names, values={**self.values, name: value})

    def with_names(self, names: Sequence[str]) -> BoundNode:
        """Return the node with other input names, without empty names at the end."""
        while names and not names[-1]:
            names = names[:-1]
        return replace(self, names=tuple(names))

    def structure(self) -> Hashable:
        """Return a key that is equal for nodes that differ only in the values of their inputs."""
        values = ((name, self.values.get(name)) for name in self.names)
        types = tuple((name, *_type(value)) for name, value in values)
        attributes = tuple((name, _hashable(value)) for name, value in self.attributes.items())
        return self.opset, self.names, types, attributes

    def as_model(self) -> tuple[onnx.ModelProto, dict[str, Value]]:
        """Return a model with only this node, and the values of the model's inputs by name."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        (node,) = model.graph.node
        graphs = [attribute for attribute in node.attribute if attribute.type in _GRAPHS]
        del node.attribute[:], node.input[:], model.graph.input[:], model.graph.initializer[:]
        numbers = self.attributes.keys() - {attribute.name for attribute in graphs}
        node.attribute.extend(
            self._attribute_proto(name, value)
            for name, value in self.attributes.items()
            if name in numbers
        )
        node.attribute.extend(graphs)
        node.input.extend(self.names)
        declared = {info.name: info for info in self.model.graph.input}
        values = {name: self.values[name] for name in dict.fromkeys(self.names) if name}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                element = helper.np_dtype_to_tensor_dtype(value.dtype)
                info = helper.make_tensor_value_info(name, element, value.shape)
            else:
                info = onnx.ValueInfoProto()
                info.CopyFrom(declared.get(name, info))
                info.name = name
            model.graph.input.append(info)
        for entry in model.opset_import:
            if plain_domain(entry.domain) == plain_domain(node.domain):
                entry.version = self.opset
        # Subgraphs of the node may also read values from the model's inputs.
        outer = {info.name: info for info in declared.values() if info.name in inner_names(node)}
        for name, info in outer.items():
            if name not in values and name in self.values:
                model.graph.input.append(info)
                values[name] = self.values[name]
        return model, values

    def _attribute_proto(self, name: str, value: Any) -> onnx.AttributeProto:
        entry = self.schema.attributes.get(name)
        kind = onnx.AttributeProto.AttributeType.Value(attribute_type(entry)) if entry else None
        return helper.make_attribute(name, value, attr_type=kind)


def _type(value: Value) -> tuple[Any, ...]:
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else (type(value),)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return value if isinstance(value, int | float | str | bytes) else id(value)


def attribute_type(entry: defs.OpSchema.Attribute) -> str:
    """Return the name of an attribute's type in ``AttributeProto``, for example ``INTS``."""
    # onnx's type stubs do not declare that the type is an enumeration.
    return str(entry.type).rpartition(".")[2]


def inner_names(node: onnx.NodeProto) -> set[str]:
    """Return the names of all values that are read by nodes in the subgraphs of a node."""
    inner = [graph_node for graph in subgraphs(node) for graph_node in nodes_within(graph.node)]
    return {name for graph_node in inner for name in graph_node.input}
