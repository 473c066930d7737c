"""Examples of all sorts."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.run.fuzzing.example import Example
from onnxopt_cli.run.fuzzing.graph_example import draw_graph
from onnxopt_cli.run.fuzzing.node_example import draw_node
from onnxopt_cli.run.fuzzing.source import Source, rarely

#: About one example in so many has several nodes.
_GRAPHS = 10


def draw_example(source: Source, operators: Sequence[Operator]) -> Example:
    """Draw an example of some of the operators: mostly one node."""
    if rarely(source, _GRAPHS):
        return draw_graph(source, operators)
    return draw_node(source, source.choice(operators))
