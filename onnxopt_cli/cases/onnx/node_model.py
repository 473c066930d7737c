"""Builds the models of cases that describe a single node, as ONNX's own test generator does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.cases.tensors.declared import (
    Declared,
    DeclaredGroup,
    DeclaredTensor,
)
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.call import attribute_value
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry

T = TypeVar("T")

_PRODUCER = "onnxopt"
#: IR version of ai.onnx.preview.training. It is also used for domains that onnx does not list.
_IR_VERSION = 7

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """States how the graph around a node differs from the node's schema.

    All fields refer to inputs, outputs and attributes by the operator's names.

    Attributes:
        names: the graph's names for inputs and outputs of the node. Inputs with the same name are
            one value.
        inputs: the inputs that the graph declares first; other inputs follow in the node's order.
        outputs: the outputs that the graph declares first; other outputs follow in the node's
            order.
        initializers: inputs of the node that are initializers of the graph. An initializer that is
            also in `inputs` is declared as a graph input as well, which was required in IR versions
            before 4.
        attributes: the first attributes of the node; other attributes follow, sorted by name.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    initializers: Sequence[str] = ()
    attributes: Sequence[str] = ()

    def name(self, operand: str) -> str:
        """Return the graph's name for an input or output of the node."""
        return self.names.get(operand, operand)

    def fed(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return the values that must be fed to the graph, with the graph's names and order.

        Args:
            values: the inputs of the node by the operator's names.
        """
        constants = set(map(self.name, self.initializers))
        names = dict.fromkeys((*self.inputs, *values))
        return {self.name(name): values[name] for name in names if self.name(name) not in constants}

    def yielded(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return the outputs of the graph, with the graph's names and order.

        Args:
            values: the outputs of the node by the operator's names.
        """
        return {self.name(name): values[name] for name in dict.fromkeys((*self.outputs, *values))}

    def apply(self, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> onnx.ModelProto:
        """Apply the wiring to a model of one node.

        Args:
            model: a model whose graph names its inputs and outputs as the operator does. The model
                is modified and returned.
            inputs: the inputs of the node.
        """
        graph = model.graph
        (node,) = graph.node
        constants = dict.fromkeys(map(self.name, self.initializers))
        declared = {info.name: info for info in (*graph.input, *graph.output)}
        node_inputs, node_outputs = list(node.input), list(node.output)
        values = {self.name(name): value for name, value in inputs.items()}

        def infos(first: Sequence[str], following: Sequence[str]) -> list[onnx.ValueInfoProto]:
            infos_by_name: dict[str, onnx.ValueInfoProto] = {}
            for operand in (*first, *following):
                info = onnx.ValueInfoProto()
                info.CopyFrom(declared[operand])
                info.name = self.name(operand)
                infos_by_name.setdefault(info.name, info)
            return list(infos_by_name.values())

        fed = [name for name in node_inputs if self.name(name) not in constants]
        new_inputs, new_outputs = infos(self.inputs, fed), infos(self.outputs, node_outputs)
        del graph.input[:], graph.output[:]
        graph.input.extend(new_inputs)
        graph.output.extend(new_outputs)
        graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in constants)
        node.input[:], node.output[:] = map(self.name, node_inputs), map(self.name, node_outputs)
        place = {name: place for place, name in enumerate(self.attributes)}
        attributes = sorted(node.attribute, key=lambda item: place.get(item.name, len(place)))
        del node.attribute[:]
        node.attribute.extend(attributes)
        return model


#: The wiring of a graph with the names and orders of its node's schema.
PLAIN_WIRING = Wiring()


def node_model(
    operator: Operator | onnx.defs.OpSchema,
    version: int,
    *,
    inputs: Sequence[onnx.ValueInfoProto | None],
    outputs: Sequence[onnx.ValueInfoProto | None],
    attributes: Iterable[onnx.AttributeProto] = (),
    graph_name: str,
) -> onnx.ModelProto:
    """Build a model whose graph is one node.

    Args:
        operator: the node's operator, from onnxopt or onnx.
        version: the version of the operator's domain that the model imports.
        inputs: the inputs of the node and of the graph, in order; None for an omitted input.
        outputs: the outputs of the node and of the graph, in order; None for an omitted output.
        attributes: the attributes of the node.
        graph_name: the graph's name.

    Raises:
        ValueError: if the installed onnx does not know the version.
    """
    node = helper.make_node(
        operator.name,
        [value.name if value else "" for value in inputs],
        [value.name if value else "" for value in outputs],
        domain=operator.domain,
    )
    node.attribute.extend(sorted(attributes, key=lambda attribute: attribute.name))
    graph = helper.make_graph(
        [node],
        graph_name,
        [value for value in inputs if value],
        [value for value in outputs if value],
    )
    return whole_model(graph, [(operator.domain, version)])


def whole_model(graph: onnx.GraphProto, imports: Iterable[tuple[str, int]]) -> onnx.ModelProto:
    """Build a model for a graph, with the oldest IR version that supports the imported opsets.

    Args:
        graph: the graph.
        imports: domains and their versions.

    Raises:
        ValueError: if the installed onnx does not know the version of a domain.
    """
    opsets = [helper.make_operatorsetid(domain, version) for domain, version in imports]
    new_domains = {operator.domain for operator in registry().operators} - _onnx_domains()
    ir_version = max(
        _IR_VERSION if opset.domain in new_domains else helper.find_min_ir_version_for([opset])
        for opset in opsets
    )
    return helper.make_model(
        graph, ir_version=ir_version, opset_imports=opsets, producer_name=_PRODUCER
    )


@cache
def _onnx_domains() -> frozenset[str]:
    """Return the domains of onnx's own operators."""
    return frozenset(domain for domain, _ in helper.OP_SET_ID_VERSION_MAP)


def formula_model(
    operator: Operator,
    attributes: Mapping[str, object],
    inputs: Sequence[DeclaredTensor],
    graph_name: str,
    *,
    input_names: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Build the model of one node of an operator with a formula.

    Args:
        operator: the node's operator.
        attributes: the attributes of the node; all others are omitted.
        inputs: tensors that satisfy the operator's signature, in the operator's order.
        graph_name: the graph's name.
        input_names: the graph's names of the inputs; by default the operator's names.
    """
    size = (len(inputs) - len(operator.scalars)) // len(operator.tensors)
    outputs: list[onnx.ValueInfoProto] = []
    for name, (like, base) in zip(operator.output_names(size), operator.places(size), strict=True):
        inferred, shape = inputs[like].shape, inputs[base].shape
        # According to onnx, the output has the shape of the input `like`. If the formula's result
        # has another size in a dimension, the dimension is declared as unknown, because onnx's
        # check would reject the correct size.
        sizes = (
            size if size == inferred_size else None
            for size, inferred_size in zip(shape, inferred, strict=False)
        )
        declared = tuple(sizes) if len(inferred) == len(shape) else shape
        outputs.append(tensor_info(name, inputs[like].dtype, declared))
    return node_model(
        operator,
        operator.version,
        inputs=[
            tensor_info(name, tensor.dtype, tensor.shape)
            for name, tensor in zip(input_names or operator.input_names(size), inputs, strict=True)
        ],
        outputs=outputs,
        attributes=[
            helper.make_attribute(item.name, attribute_value(operator, item, attributes[item.name]))
            for item in operator.attributes
            if item.name in attributes
        ],
        graph_name=graph_name,
    )


@lru_cache
def tensor_info(name: str, dtype: np.dtype[Any], shape: Shape | None) -> onnx.ValueInfoProto:
    """Declare a tensor.

    None stands for an unknown dimension or an unknown shape. The result is cached; callers must not
    modify it.
    """
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def value_info(name: str, value: Declared) -> onnx.ValueInfoProto:
    """Declare a value with its type and shape; elements of a sequence have no declared shape."""
    return helper.make_value_info(name, _type_of(value))


def _type_of(value: Declared) -> onnx.TypeProto:
    if isinstance(value, DeclaredGroup):
        inner = _type_of(value.items[0]) if value.items else _tensor_type(value.dtype, None)
        if value.kind == "optional":
            return helper.make_optional_type_proto(inner)
        if inner.HasField("tensor_type"):
            inner.tensor_type.ClearField("shape")
        return helper.make_sequence_type_proto(inner)
    return _tensor_type(value.dtype, value.shape)


def _tensor_type(dtype: np.dtype[Any], shape: Shape | None) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), shape)
