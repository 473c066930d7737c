"""Replace the operators with a formula in a model by primitive operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import onnx
from google.protobuf.message import Message
from onnx import helper

from onnxopt_cli.core.text import FreeNames
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.lower.inline_formulas import inline_formulas
from onnxopt_cli.interpret.lower.lower_call import (
    GraphTensor,
    lower_call,
    typed_tensors,
)
from onnxopt_cli.operators.call import bind, node_attributes
from onnxopt_cli.operators.native_onnx import OnnxRefusal, infer_shapes
from onnxopt_cli.operators.nodes import (
    all_nodes,
    imported_versions,
    subgraphs,
)
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry

#: From this opset on, all operators that lowering uses have the same meaning.
OLDEST_OPSET = 13


@dataclass(frozen=True, slots=True)
class LoweredModel:
    """A lowered model.

    Attributes:
        model: the model without operators with a formula.
        replaced: name of the operator of every replaced node; a node of an inlined function is
            replaced once for each call of the function.
        primitives: total number of the primitive nodes that replace these nodes.
    """

    model: onnx.ModelProto
    replaced: tuple[str, ...]
    primitives: int


def formula_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the qualified names of the operators that lowering replaces, without duplicates.

    The nodes of subgraphs and of model-local functions are included, even of unused functions.
    """
    operators = (registry().find(node.domain, node.op_type) for node in all_nodes(model))
    return tuple(dict.fromkeys(operator.qualified_name for operator in operators if operator))


def lower(model: onnx.ModelProto) -> LoweredModel:
    """Replace every operator with a formula, also in subgraphs and in model-local functions.

    Functions that contain such an operator are inlined. The result imports ai.onnx. It imports the
    domains of replaced operators only if other nodes use them. A model without such operators is
    copied.

    Args:
        model: a model that passes onnx's check; it is not changed.

    Raises:
        NodeError: if a node breaks its operator's signature, if the element type of one of its
            inputs cannot be inferred, if the model's opset is too old, or if its functions cannot
            be inlined.
    """
    _refuse_training_graphs(model)
    if not formula_operators(model):
        return LoweredModel(deepcopy(model), (), 0)
    lowered = inline_formulas(model)
    _require_opset(lowered)
    sweep = _Sweep(UniqueNames(lowered))
    # ONNX cannot infer the types of the outputs of unknown operators. Each pass lowers the nodes
    # whose input types are known, so the next pass can infer further types.
    while True:
        before = len(sweep.replaced)
        sweep.lower_graph(lowered.graph, _inferred(lowered).graph, {})
        if not sweep.obstacle:
            break
        if len(sweep.replaced) == before:
            raise sweep.obstacle
        sweep.obstacle = None
    _drop_unused_imports(lowered)
    return LoweredModel(lowered, tuple(sweep.replaced), sweep.primitives)


@dataclass(slots=True)
class _Sweep:
    """State of the passes over a model, each of which lowers nodes with known input types.

    Attributes:
        names: creates names for new tensors.
        replaced: name of the operator of every lowered node.
        primitives: total number of the primitive nodes that replace these nodes.
        obstacle: the error about the first node that the current pass cannot lower; None if it can
            lower all nodes.
    """

    names: UniqueNames
    replaced: list[str] = field(default_factory=list)
    primitives: int = 0
    obstacle: NodeError | None = None

    def lower_graph(
        self,
        graph: onnx.GraphProto,
        inferred: onnx.GraphProto,
        outer: Mapping[str, GraphTensor],
    ) -> None:
        """Lower a graph and its subgraphs in place.

        Args:
            graph: the graph to lower.
            inferred: the same graph with all types that could be inferred.
            outer: the tensors of the enclosing graphs.
        """
        tensors = {**outer, **typed_tensors(inferred)}
        nodes: list[onnx.NodeProto] = []
        before = len(self.replaced)
        for node, twin in zip(graph.node, inferred.node, strict=True):
            for subgraph, inferred_subgraph in zip(subgraphs(node), subgraphs(twin), strict=True):
                self.lower_graph(subgraph, inferred_subgraph, tensors)
            operator = registry().find(node.domain, node.op_type)
            nodes += self._lower_node(operator, node, tensors) if operator else [node]
        if len(self.replaced) > before:
            del graph.node[:]
            graph.node.extend(nodes)

    def _lower_node(
        self, operator: Operator, node: onnx.NodeProto, tensors: Mapping[str, GraphTensor]
    ) -> list[onnx.NodeProto]:
        stem = node.name or node.op_type
        untyped = [name for name in node.input if name and name not in tensors]
        if untyped:
            self.obstacle = self.obstacle or NodeError(
                f"{operator.name} node {stem}: the element type of its input {untyped[0]} cannot "
                "be inferred",
                hint=f"add a value_info entry for {untyped[0]} to the graph",
            )
            return [node]
        operands = [tensors[name] if name else None for name in node.input]
        try:
            call = bind(operator, operands, node_attributes(operator, node), len(node.output))
        except NodeError as error:
            raise NodeError(f"node {stem}: {error.message}", hint=error.hint) from error
        nodes = lower_call(call, node.output, lambda op_type: self.names(f"{stem}_{op_type}"))
        self.replaced.append(operator.name)
        self.primitives += len(nodes)
        return nodes


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    registry().register_schemas()
    try:
        return infer_shapes(model)
    except OnnxRefusal as error:
        raise NodeError(
            f"onnx cannot infer the model's types: {error}",
            hint="onnx.checker.check_model(model, full_check=True) gives details",
        ) from error


def _refuse_training_graphs(model: onnx.ModelProto) -> None:
    for info in model.training_info:
        for graph in (info.initialization, info.algorithm):
            names = formula_operators(onnx.ModelProto(graph=graph))
            if names:
                raise NodeError(
                    f"{names[0]} occurs in the model's training_info, whose types ONNX does not "
                    "infer",
                    hint="move the node to the model's graph, or remove training_info",
                )


def _require_opset(model: onnx.ModelProto) -> None:
    version = imported_versions(model).get("")
    if version is None:
        model.opset_import.append(helper.make_opsetid("", OLDEST_OPSET))
    elif version < OLDEST_OPSET:
        raise NodeError(
            f"the model imports ai.onnx version {version}; lowering needs {OLDEST_OPSET} or later",
            hint="convert the model with onnx.version_converter first",
        )


def _drop_unused_imports(model: onnx.ModelProto) -> None:
    used = {node.domain for node in all_nodes(model)}
    unused = {operator.domain for operator in registry().operators} - used
    for holder in (model, *model.functions):
        used_imports = [entry for entry in holder.opset_import if entry.domain not in unused]
        del holder.opset_import[:]
        holder.opset_import.extend(used_imports)


class UniqueNames(FreeNames):
    """Creates names that are unique in a model, including its subgraphs and functions.

    Args:
        model: the model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__("{}_{}", _texts(model))


def _texts(message: Message) -> Iterator[str]:
    """Yield all strings of a message, which include all names."""
    if isinstance(message, onnx.TensorProto):
        # A tensor has no other names, and its data may be large.
        yield message.name
        return
    for entry, value in message.ListFields():
        if entry.type in {entry.TYPE_STRING, entry.TYPE_MESSAGE}:
            for item in [value] if isinstance(value, str | Message) else value:
                yield from [item] if isinstance(item, str) else _texts(item)
