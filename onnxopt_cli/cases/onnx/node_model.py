"""Models of one node, such as a case describes: as ONNX's own test generator builds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
#: Of domains that onnx knows no IR version of: that of ai.onnx.preview.training.
_IR_VERSION = 7

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """How the graph around a node differs from the node's schema, by the operator's names.

    Attributes:
        names: what the graph calls inputs and outputs of the node; inputs of one name are one
            value.
        inputs: the inputs that the graph declares first; the others follow in the node's order.
        outputs: likewise the outputs.
        initializers: inputs that the graph holds as initializers. Those among ``inputs`` are
            declared as inputs, too, as before IR version 4.
        attributes: the attributes that the node has first; the others follow sorted by name.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    initializers: Sequence[str] = ()
    attributes: Sequence[str] = ()

    def name(self, own: str) -> str:
        """Return what the graph calls an input or output of the node."""
        return self.names.get(own, own)

    def fed(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return what the graph is fed, in its order, of the inputs by the operator's names."""
        held = set(map(self.name, self.initializers))
        names = dict.fromkeys((*self.inputs, *values))
        return {self.name(name): values[name] for name in names if self.name(name) not in held}

    def yielded(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return what the graph yields, in its order, of the outputs by the operator's names."""
        return {self.name(it): values[it] for it in dict.fromkeys((*self.outputs, *values))}

    def apply(self, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> onnx.ModelProto:
        """Return a model of one node, whose graph has the operator's names, wired so.

        Args:
            model: is changed.
            inputs: of the node.
        """
        graph = model.graph
        (node,) = graph.node
        held = dict.fromkeys(map(self.name, self.initializers))
        declared = {it.name: it for it in (*graph.input, *graph.output)}
        own_inputs, own_outputs = list(node.input), list(node.output)
        values = {self.name(name): value for name, value in inputs.items()}

        def infos(first: Sequence[str], others: Sequence[str]) -> list[onnx.ValueInfoProto]:
            found: dict[str, onnx.ValueInfoProto] = {}
            for own in (*first, *others):
                info = onnx.ValueInfoProto()
                info.CopyFrom(declared[own])
                info.name = self.name(own)
                found.setdefault(info.name, info)
            return list(found.values())

        fed = [name for name in own_inputs if self.name(name) not in held]
        new_inputs, new_outputs = infos(self.inputs, fed), infos(self.outputs, own_outputs)
        del graph.input[:], graph.output[:]
        graph.input.extend(new_inputs)
        graph.output.extend(new_outputs)
        graph.initializer.extend(numpy_helper.from_array(values[it], it) for it in held)
        node.input[:], node.output[:] = map(self.name, own_inputs), map(self.name, own_outputs)
        place = {name: place for place, name in enumerate(self.attributes)}
        attributes = sorted(node.attribute, key=lambda item: place.get(item.name, len(place)))
        del node.attribute[:]
        node.attribute.extend(attributes)
        return model


#: The wiring of a graph that has the names and orders of its node's schema.
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
        operator: the node's, ours or onnx's.
        version: the version of its domain that the model imports.
        inputs: the node's and so the graph's inputs in order, None for one that is left out.
        outputs: likewise.
        attributes: exactly those that the node has.
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
    """Build a model around a graph, of the oldest IR version that carries its opsets.

    Args:
        graph: the graph.
        imports: domains and their versions.

    Raises:
        ValueError: if the installed onnx does not know the version of a domain.
    """
    opsets = [helper.make_operatorsetid(*each) for each in imports]
    known = {domain for domain, _ in helper.OP_SET_ID_VERSION_MAP}
    ours = {operator.domain for operator in registry().operators} - known
    ir_version = max(
        _IR_VERSION if opset.domain in ours else helper.find_min_ir_version_for([opset])
        for opset in opsets
    )
    return helper.make_model(
        graph, ir_version=ir_version, opset_imports=opsets, producer_name=_PRODUCER
    )


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
        attributes: those that the node has; it leaves out the others.
        inputs: tensors in the operator's order that satisfy its signature.
        graph_name: the graph's name.
        input_names: of the graph; those of the operator if left out.
    """
    size = (len(inputs) - len(operator.scalars)) // len(operator.tensors)
    outputs: list[onnx.ValueInfoProto] = []
    for name, (like, base) in zip(operator.output_names(size), operator.places(size), strict=True):
        own, shape = inputs[like].shape, inputs[base].shape
        # As far as onnx's shape inference lets us, which takes the shape of the first.
        known = (size if size == other else None for size, other in zip(shape, own, strict=False))
        declared = tuple(known) if len(own) == len(shape) else shape
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
    """Declare a tensor; None stands for an unknown dimension or an unknown shape.

    What is returned is not to be changed: it may be returned again.
    """
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def value_info(name: str, value: Declared) -> onnx.ValueInfoProto:
    """Declare a value as what it is; the shapes of a sequence's elements are left open."""
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
