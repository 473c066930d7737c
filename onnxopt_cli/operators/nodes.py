"""Going through all nodes of a model: its graph, subgraphs and model-local functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a model, those of subgraphs after the node that holds them."""
    yield from _walk(model.graph.node)
    for function in model.functions:
        yield from _walk(function.node)


def operator_names(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the op_types that occur anywhere in a model, each once, in order of appearance."""
    return tuple(dict.fromkeys(node.op_type for node in all_nodes(model)))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node holds directly, as its attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _walk(graph.node)
