"""Examples of one node of an ONNX operator without a formula, drawn by the suite's generators."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import defs

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.cases.yaml.case_writer import node_yaml_text
from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.fuzz.choices import Source
from onnxopt_cli.fuzz.node_example import NAME, SUITE
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.generators import draw, schemas
from onnxopt_cli.suites.operators.node_draft import Unsuitable
from onnxopt_cli.suites.operators.operator_suite import node_case

_SIMPLEST_TYPES = ("float32", "int64")
# Attributes of these types are traits with their values; of other attributes, only the name is one.
_CHOSEN_TYPES = (defs.OpSchema.AttrType.STRING, defs.OpSchema.AttrType.INT)


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedExample:
    """A node with its inputs, whose expected outputs are those of onnx's corrected reference.

    The interface is that of :class:`~onnxopt_cli.fuzz.graph_example.GraphExample`.

    Attributes:
        node: the node.
        breach: always empty, since the node is valid.
    """

    node: GeneratedNode
    breach: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """The name of the operator under test."""
        return (self.node.operator,)

    @property
    def subject(self) -> str:
        """The operator's name."""
        return self.node.operator

    def problem(self) -> Problem:
        """Return the problem that ``onnxopt run`` reads from the case's files."""
        return self.node.problem

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the case file and, for a node with subgraphs, the model file, by name."""
        node = self.node
        has_subgraph = any(isinstance(value, onnx.GraphProto) for value in node.attributes.values())
        model = f"{stem}.onnx" if has_subgraph else ""
        text = node_yaml_text(
            [node_case(NAME, node, about, model, source)],
            suite=SUITE,
            operator=node.operator,
            domain=node.domain,
        )
        files = {f"{stem}.yaml": text.encode()}
        if model:
            files[model] = node.problem.model.SerializeToString(deterministic=True)
        return files

    @property
    def traits(self) -> frozenset[Hashable]:
        """Types, attributes and inputs that distinguish the node from the simplest one."""
        return frozenset(self._traits())

    def _traits(self) -> Iterator[Hashable]:
        for name, value in self.node.attributes.items():
            chosen = self.node.schema.attributes[name].type in _CHOSEN_TYPES
            yield (name, value) if chosen else name
        for place, value in enumerate(self.node.values):
            if value is not None:
                yield place
            if isinstance(value, np.ndarray) and dtype_name(value.dtype) not in _SIMPLEST_TYPES:
                yield place, dtype_name(value.dtype)


def draw_generated(source: Source, operator: str) -> GeneratedExample:
    """Draw a node of any version of an operator; the newest version is the simplest choice."""
    try:
        node = draw(source.choice(schemas(operator)), source)
        valid = not model_fault(node.problem.model)
    except Unsuitable:
        valid = False
    except Exception:  # noqa: BLE001 - onnx's reference raises any error for nodes that it does not compute
        valid = False
    if not valid:
        source.reject()
    return GeneratedExample(node)
