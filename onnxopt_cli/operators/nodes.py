"""The nodes of a model, in its graph, subgraphs and model-local functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain

import onnx
from onnx import helper


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Return every node of a model; nodes of subgraphs follow the node that contains them."""
    return nodes_within(chain(model.graph.node, *(function.node for function in model.functions)))


def operator_names(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the distinct op_types of all nodes of a model, in order of first appearance."""
    return tuple(dict.fromkeys(node.op_type for node in all_nodes(model)))


def plain_domain(domain: str) -> str:
    """Return the name of a domain; empty for the default domain, which is also named ai.onnx."""
    return "" if domain == "ai.onnx" else domain


def imported_versions(model: onnx.ModelProto) -> dict[str, int]:
    """Return the version of each domain that a model imports; see :func:`plain_domain`."""
    return {plain_domain(entry.domain): entry.version for entry in model.opset_import}


def is_standard(node: onnx.NodeProto) -> bool:
    """Return whether onnx defines the operator of a node in any version of its domain."""
    return bool(onnx.defs.has(node.op_type, plain_domain(node.domain)))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes, without the graphs within these graphs."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes; each is followed by the nodes of its subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from nodes_within(graph.node)


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a graph defines, without its subgraphs."""
    names = {tensor.name for tensor in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    names |= {info.name for info in graph.input}
    return names | {name for node in graph.node for name in node.output}


def used_names(node: onnx.NodeProto) -> list[str]:
    """Return the names of values that a node, or one of its subgraphs, reads from outside."""
    names = dict.fromkeys(filter(None, node.input))
    for graph in subgraphs(node):
        inner = defined_names(graph)
        read = [name for within in graph.node for name in used_names(within)]
        read += [info.name for info in graph.output]
        names |= dict.fromkeys(name for name in read if name not in inner)
    return [*names]


def spell_out_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which calls of functions state the functions' default attributes.

    For a call that omits such an attribute, onnx's reference evaluator raises an error, and its
    inliner uses the default of the operator that the function calls. A model whose functions have
    no default attributes is returned unchanged.
    """
    if not any(function.attribute_proto for function in model.functions):
        return model
    explicit = deepcopy(model)
    for function in explicit.functions:
        for node in all_nodes(explicit):
            if (node.domain, node.op_type) == (function.domain, function.name):
                present = {attribute.name for attribute in node.attribute}
                node.attribute.extend(
                    default for default in function.attribute_proto if default.name not in present
                )
        function.attribute.extend(default.name for default in function.attribute_proto)
        del function.attribute_proto[:]
    return explicit


def untyped_model(node: onnx.NodeProto, version: int) -> onnx.ModelProto:
    """Return a model of one node, without declared types, for onnx's reference evaluator.

    Args:
        node: a node of ai.onnx without subgraphs.
        version: the version of ai.onnx.
    """
    inputs = dict.fromkeys(filter(None, node.input))
    graph = helper.make_graph(
        [node],
        "node",
        [onnx.ValueInfoProto(name=name) for name in inputs],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
