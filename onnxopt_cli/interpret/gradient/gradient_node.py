"""Gradient nodes, and the part of a graph that a Gradient node differentiates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.nodes import all_nodes, subgraphs

DOMAIN, NAME = "ai.onnx.preview.training", "Gradient"


def is_gradient(node: onnx.NodeProto) -> bool:
    """Return whether a node is a Gradient."""
    return (node.domain, node.op_type) == (DOMAIN, NAME)


def has_gradient(model: onnx.ModelProto) -> bool:
    """Return whether a node of a model is a Gradient."""
    return any(map(is_gradient, all_nodes(model)))


def variables_of(node: onnx.NodeProto) -> list[str]:
    """Return the names of the tensors with respect to which a Gradient node differentiates."""
    return _named_tensors(node, "xs")


def _named_tensors(node: onnx.NodeProto, attribute_name: str) -> list[str]:
    """Return the names of tensors in an attribute of a Gradient node."""
    names: list[bytes] = []
    for attribute in node.attribute:
        if attribute.name == attribute_name:
            is_list = attribute.type == onnx.AttributeProto.STRINGS
            names += attribute.strings if is_list else [attribute.s]
    # The file may be hostile. Invalid UTF-8 becomes the name of an unknown tensor.
    return [name.decode("utf-8", "replace") for name in names]


class DifferentiatedGraph:
    """The function that a Gradient node differentiates.

    Args:
        node: the Gradient node.
        nodes: the other nodes of its graph.
        names: names of the graph's inputs and initializers.

    Attributes:
        xs, zs, y: the names of tensors in the node's attributes.
        substitutes: for each name in ``xs`` and ``zs``, the input of the node with the value at
            which the function is differentiated.
        nodes: the nodes that compute y from these tensors, in topological order.

    Raises:
        NodeError: if the node breaks the operator's specification.
    """

    def __init__(
        self, node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto], names: Sequence[str]
    ) -> None:
        self.xs, self.zs = variables_of(node), _named_tensors(node, "zs")
        self.y = "".join(_named_tensors(node, "y")[:1])
        variables = [*self.xs, *self.zs]
        if not self.xs or not self.y:
            raise NodeError("Gradient lacks the attribute xs or y")
        if len(set(variables)) < len(variables):
            raise NodeError("Gradient names a tensor twice in xs and zs")
        if len(node.input) != len(variables):
            raise NodeError(
                f"Gradient has {len(node.input)} inputs for {len(variables)} names in xs and zs"
            )
        if len(node.output) > len(self.xs):
            raise NodeError(f"Gradient has {len(node.output)} outputs for {len(self.xs)} xs")
        producers = {output: producer for producer in nodes for output in producer.output if output}
        for name in (*variables, self.y):
            if name not in producers and name not in names:
                raise NodeError(f"Gradient names an unknown tensor, {printable(name)!r}")
        self.substitutes = dict(zip(variables, node.input, strict=True))
        self.nodes = nodes_before([self.y], producers, stop=variables)


def node_inputs(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node depends on.

    They are its inputs, the inputs of nodes in its subgraphs, and the y of Gradient nodes.
    """
    names = [name for name in node.input if name]
    if is_gradient(node):
        names += _named_tensors(node, "y")
    for graph in subgraphs(node):
        for inner in graph.node:
            names += node_inputs(inner)
    return names


def nodes_before(
    names: Sequence[str], producers: Mapping[str, onnx.NodeProto], stop: Sequence[str] = ()
) -> list[onnx.NodeProto]:
    """Return the nodes that tensors depend on, in topological order.

    Args:
        names: the tensors.
        producers: for each computed tensor, the node that computes it.
        stop: tensors whose own dependencies are not followed, unless they are in ``names``.

    Raises:
        NodeError: if nodes depend on each other.
    """
    ordered: list[onnx.NodeProto] = []
    states: dict[int, bool] = {}
    pending = [(name, False) for name in reversed(names)]
    while pending:
        name, visited = pending.pop()
        node = producers.get(name)
        if node is None or (name in stop and not visited):
            continue
        if visited:
            if not states[id(node)]:
                states[id(node)] = True
                ordered.append(node)
        elif id(node) not in states:
            states[id(node)] = False
            pending.append((name, True))
            pending += [(source, False) for source in reversed(node_inputs(node))]
        elif not states[id(node)]:
            raise NodeError("the model has a cycle")
    return ordered
