"""Replace the operators that have a formula by primitive operators, in a whole model.

Lowering needs the element types of a node's inputs. These types are known in graphs, but not in
functions. Model-local functions that contain an operator with a formula are therefore inlined
first. Other functions remain unchanged.
"""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx
from google.protobuf.message import Message
from onnx import helper

from onnxopt_cli.core.text import FreeNames
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.lower.lower_call import (
    GraphTensor,
    lower_call,
    typed_tensors,
)
from onnxopt_cli.operators.call import bind, node_attributes
from onnxopt_cli.operators.native_onnx import OnnxRefusal, infer_shapes, inline_functions
from onnxopt_cli.operators.nodes import (
    all_nodes,
    imported_versions,
    plain_domain,
    spell_out_defaults,
    subgraphs,
)
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry

#: The oldest supported opset. The operators that lowering uses have the same meaning in all later
#: opsets.
OLDEST_OPSET = 13


@dataclass(frozen=True, slots=True)
class LoweredModel:
    """A lowered model.

    Attributes:
        model: the model, in which no operator has a formula.
        replaced: for each replaced node, the name of its operator. A node of an inlined function is
            replaced once for each call of the function.
        primitives: the number of all primitive nodes that replace these nodes.
    """

    model: onnx.ModelProto
    replaced: tuple[str, ...]
    primitives: int


def formula_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the qualified names of the operators that lowering replaces, without duplicates.

    The nodes of subgraphs and of model-local functions are included, even if a function is unused.
    """
    operators = (registry().find(node.domain, node.op_type) for node in all_nodes(model))
    return tuple(dict.fromkeys(operator.qualified_name for operator in operators if operator))


def lower(model: onnx.ModelProto) -> LoweredModel:
    """Replace every operator that has a formula in a model, its subgraphs and its functions.

    Functions that contain an operator with a formula are inlined. The result always imports
    ai.onnx. It imports the domain of a replaced operator only if other nodes use the domain. If no
    operator of the model has a formula, the result is a copy of the model.

    Args:
        model: a model that passes onnx's check; it is not changed.

    Raises:
        NodeError: if a node breaks its operator's signature, if the element type of an input of a
            node cannot be inferred, if the model's opset is too old, or if its functions cannot be
            inlined.
    """
    _refuse_training_graphs(model)
    if not formula_operators(model):
        return LoweredModel(deepcopy(model), (), 0)
    lowered = _inline_formulas(model)
    _require_opset(lowered)
    sweep = _Sweep(UniqueNames(lowered))
    # ONNX cannot infer the output types of unknown operators. Each pass lowers the nodes whose
    # input types are known. The next pass can then infer further types.
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
    """The state of the passes over a model. Each pass lowers the nodes whose input types are known.

    Attributes:
        names: creates names for new tensors.
        replaced: for each lowered node, the name of its operator.
        primitives: the number of all primitive nodes that replace these nodes.
        obstacle: the error about the first node that the current pass cannot lower; None if the
            pass can lower all nodes.
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
    """Yield all strings of a protobuf message, which include all names."""
    if isinstance(message, onnx.TensorProto):
        # Skip the data of a tensor, because they contain no names and may be large.
        yield message.name
        return
    for entry, value in message.ListFields():
        if entry.type in {entry.TYPE_STRING, entry.TYPE_MESSAGE}:
            for item in [value] if isinstance(value, str | Message) else value:
                yield from [item] if isinstance(item, str) else _texts(item)


#: The domain and name of a function. Overloads are not distinguished.
FunctionId: TypeAlias = tuple[str, str]

# The largest number of nodes after inlining. If each function of a chain calls the next function
# twice, the number of nodes grows exponentially.
_MAX_INLINED_NODES = 1_000_000


def refuse_endless_functions(model: onnx.ModelProto) -> None:
    """Reject endless or excessive function calls, because onnx's check follows each of them.

    Raises:
        NodeError: if functions are recursive, or have too many nodes after inlining.
    """
    if not model.functions:
        return
    bodies = _bodies(model)
    sizes: dict[FunctionId, int] = {}
    for function_id in _callees_first(bodies):
        sizes[function_id] = _size(bodies[function_id], sizes)
    main = Counter(_operators(all_nodes(onnx.ModelProto(graph=model.graph))))
    total = _size(main, sizes)
    if total > _MAX_INLINED_NODES:
        raise NodeError(
            f"the model's functions amount to {total} nodes once inlined; at most "
            f"{_MAX_INLINED_NODES} are accepted"
        )


def _inline_formulas(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which no function contains an operator with a formula.

    Raises:
        NodeError: if functions are recursive, have too many nodes, import another version of a
            domain than the model, have the name of an operator with a formula, or cannot be inlined
            by onnx.
    """
    chosen = _functions_with_formulas(_bodies(model))
    if not chosen:
        return deepcopy(model)
    refuse_endless_functions(model)
    # onnx's inliner ignores the default values of functions' attributes.
    explicit = spell_out_defaults(model)
    inlined = deepcopy(explicit)
    # The inliner rejects a model if any function imports a conflicting version of a domain, so the
    # model keeps only the functions to inline.
    remaining = [function for function in model.functions if _id(function) not in chosen]
    del inlined.functions[:]
    inlined.functions.extend(function for function in explicit.functions if _id(function) in chosen)
    _import_domains(inlined)
    try:
        inlined = inline_functions(inlined, sorted(chosen))
    except OnnxRefusal as error:
        raise NodeError(f"onnx cannot inline the model's functions: {error}") from error
    # The inliner keeps functions that are no longer called.
    del inlined.functions[:]
    inlined.functions.extend(remaining)
    return inlined


def _functions_with_formulas(
    bodies: Mapping[FunctionId, Counter[FunctionId]],
) -> set[FunctionId]:
    """Return the functions that contain, directly or indirectly, an operator with a formula."""
    for function_id in bodies:
        if registry().find(*function_id):
            raise NodeError(
                f"the model defines a function named {':'.join(function_id)}, like the operator",
                hint="give the function a domain of its own",
            )
    chosen: set[FunctionId] = set()
    for function_id in _callees_first(bodies):
        if any(called in chosen or registry().find(*called) for called in bodies[function_id]):
            chosen.add(function_id)
    return chosen


def _bodies(model: onnx.ModelProto) -> dict[FunctionId, Counter[FunctionId]]:
    """Return, for each function, how often its body uses each operator or other function."""
    bodies: dict[FunctionId, Counter[FunctionId]] = {}
    for function in model.functions:
        body = all_nodes(onnx.ModelProto(functions=[function]))
        bodies.setdefault(_id(function), Counter()).update(_operators(body))
    return bodies


def _callees_first(bodies: Mapping[FunctionId, Counter[FunctionId]]) -> list[FunctionId]:
    calls = {
        caller: [operator for operator in body if operator in bodies]
        for caller, body in bodies.items()
    }
    try:
        return list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        circle = " -> ".join(":".join(function_id) for function_id in error.args[1])
        raise NodeError(f"the model's functions call each other in a circle: {circle}") from error


def _size(body: Counter[FunctionId], sizes: Mapping[FunctionId, int]) -> int:
    return sum(count * sizes.get(called, 1) for called, count in body.items())


def _import_domains(model: onnx.ModelProto) -> None:
    """Add the opset imports of the functions, which the inliner does not add."""
    versions = imported_versions(model)
    for function in model.functions:
        for entry in function.opset_import:
            domain = plain_domain(entry.domain)
            if domain not in versions:
                versions[domain] = entry.version
                model.opset_import.append(helper.make_opsetid(domain, entry.version))
            elif versions[domain] != entry.version:
                raise NodeError(
                    f"function {function.domain}:{function.name} imports version {entry.version} "
                    f"of {domain or 'ai.onnx'}, but other parts of the model import version "
                    f"{versions[domain]}; the function cannot be inlined",
                    hint="convert the function to the model's version",
                )


def _operators(nodes: Iterable[onnx.NodeProto]) -> Iterable[FunctionId]:
    return ((node.domain, node.op_type) for node in nodes)


def _id(function: onnx.FunctionProto) -> FunctionId:
    return function.domain, function.name
