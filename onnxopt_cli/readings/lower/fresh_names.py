"""The names that a model has taken, and new ones."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxopt_cli.formula.nodes import all_nodes, subgraphs


class FreshNames:
    """Makes up names that occur nowhere in a model, whatever the scope.

    Args:
        model: whose names are taken; names made up are taken too.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._taken = set(_names(model))
        self._counts: dict[str, int] = {}

    def __call__(self, stem: str) -> str:
        """Return the stem, or the stem and the first number that makes a free name of it."""
        count = self._counts.get(stem, 0)
        while True:
            count += 1
            name = f"{stem}_{count}" if count > 1 else stem
            if name not in self._taken:
                break
        self._counts[stem] = count
        self._taken.add(name)
        return name


def _names(model: onnx.ModelProto) -> Iterator[str]:
    yield from _graph_names(model.graph)
    for function in model.functions:
        yield from (*function.input, *function.output)
    for node in all_nodes(model):
        yield from (node.name, *node.input, *node.output)
        for graph in subgraphs(node):
            yield from _graph_names(graph)


def _graph_names(graph: onnx.GraphProto) -> Iterator[str]:
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            yield value.name
    for sparse in graph.sparse_initializer:
        yield from (sparse.values.name, sparse.indices.name)
    for annotation in graph.quantization_annotation:
        yield annotation.tensor_name
        for parameter in annotation.quant_parameter_tensor_names:
            yield parameter.value
