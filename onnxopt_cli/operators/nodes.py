"""The nodes of a model, in its graph, subgraphs and model-local functions.

If the nodes of a function refer to attributes of its calls, the function is specialized: each set
of attribute values gets its own copy of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import NodeError

_GRAPH, _GRAPHS = AttributeProto.GRAPH, AttributeProto.GRAPHS


def parts_of(model: onnx.ModelProto) -> tuple[list[onnx.GraphProto], list[onnx.NodeProto]]:
    """Return two lists: all graphs of a model, including subgraphs, and all nodes of the model.

    Nodes of subgraphs follow the node that contains them; nodes of functions come last.
    """
    graphs, nodes = [model.graph], []

    def visit(inner: Iterable[onnx.NodeProto]) -> None:
        for node in inner:
            nodes.append(node)
            for graph in subgraphs(node):
                graphs.append(graph)
                visit(graph.node)

    visit(model.graph.node)
    for function in model.functions:
        visit(function.node)
    return graphs, nodes


def all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return every node of a model; nodes of subgraphs follow the node that contains them."""
    return parts_of(model)[1]


def operator_names(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the distinct op_types of all nodes of a model, in order of first appearance."""
    return tuple(dict.fromkeys(node.op_type for node in all_nodes(model)))


def sparse_tensors(
    graphs: Iterable[onnx.GraphProto], nodes: Iterable[onnx.NodeProto]
) -> Iterator[onnx.SparseTensorProto]:
    """Yield the sparse initializers and constants in the two lists from :func:`parts_of`."""
    for graph in graphs:
        yield from graph.sparse_initializer
    for attribute in _sparse_constants(nodes):
        yield attribute.sparse_tensor


def with_dense_tensors(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with dense tensors in place of sparse ones, which onnx's evaluator rejects."""
    if not any(sparse_tensors(*parts_of(model))):
        return model
    model = deepcopy(model)
    graphs, nodes = parts_of(model)
    for graph in graphs:
        graph.initializer.extend(map(_dense_tensor, graph.sparse_initializer))
        del graph.sparse_initializer[:]
    for attribute in _sparse_constants(nodes):
        attribute.CopyFrom(helper.make_attribute("value", _dense_tensor(attribute.sparse_tensor)))
    return model


def _sparse_constants(nodes: Iterable[onnx.NodeProto]) -> Iterator[AttributeProto]:
    for node in nodes:
        if node.op_type == "Constant" and not plain_domain(node.domain):
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor"):
                    yield attribute


def _dense_tensor(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    return numpy_helper.from_array(dense_array(sparse), sparse.values.name)


def dense_array(sparse: onnx.SparseTensorProto) -> Array:
    """Return all elements of a sparse tensor. Missing elements are zeros or empty strings."""
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    if array.dtype == object:
        array.fill("")
    places = np.unravel_index(indices, array.shape) if indices.ndim == 1 else tuple(indices.T)
    array[places] = values
    return array


def plain_domain(domain: str) -> str:
    """Return the name of a domain. The default domain, also named ai.onnx, has an empty name."""
    return "" if domain == "ai.onnx" else domain


def imported_versions(model: onnx.ModelProto) -> dict[str, int]:
    """Return the version of each domain that a model imports; see :func:`plain_domain`."""
    return {plain_domain(entry.domain): entry.version for entry in model.opset_import}


def is_standard(node: onnx.NodeProto) -> bool:
    """Return whether onnx defines the operator of a node in any version of its domain."""
    return bool(onnx.defs.has(node.op_type, plain_domain(node.domain)))


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in a node's attributes, but not graphs that are nested in them."""
    graphs: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        kind = attribute.type
        if kind == _GRAPH and not attribute.ref_attr_name:
            graphs.append(attribute.g)
        elif kind == _GRAPHS:
            graphs += attribute.graphs
    return graphs


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph; each node is followed by the nodes of its subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from nodes_within(graph.node)


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a graph defines outside of its subgraphs."""
    names = {tensor.name for tensor in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    names |= {info.name for info in graph.input}
    return names | {name for node in graph.node for name in node.output}


def used_names(node: onnx.NodeProto) -> list[str]:
    """Return the names of values that a node or its subgraphs read from the surrounding graph."""
    names = dict.fromkeys(filter(None, node.input))
    for graph in subgraphs(node):
        inner = defined_names(graph)
        read = [name for within in graph.node for name in used_names(within)]
        read += [info.name for info in graph.output]
        names |= dict.fromkeys(name for name in read if name not in inner)
    return [*names]


def spell_out_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which calls of functions state the functions' default attributes.

    onnx does not handle calls that omit an attribute with a default. onnx's reference evaluator
    raises an error for such a call. onnx's inliner uses the default of the operator that the
    function calls. A model whose functions have no default attributes is returned unchanged.
    """
    if not any(function.attribute_proto for function in model.functions):
        return model
    explicit = deepcopy(model)
    defaults: dict[tuple[str, str], dict[str, AttributeProto]] = {}
    for function in explicit.functions:
        named = defaults.setdefault((function.domain, function.name), {})
        for default in function.attribute_proto:
            named.setdefault(default.name, default)
    for node in all_nodes(explicit):
        named = defaults.get((node.domain, node.op_type), {})
        present = {attribute.name for attribute in node.attribute} if named else set()
        node.attribute.extend(named[name] for name in named if name not in present)
    for function in explicit.functions:
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


# Domain of the specialized functions.
_BOUND = "onnxopt.bound"
# The largest total number of nodes of all specialized functions. If each function of a chain calls
# the next one twice, the number of nodes grows exponentially.
_MAX_NODES = 100_000
_MAX_DEPTH = 100


def with_bound_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose functions do not refer to attributes of their calls.

    Each distinct call gets a specialized function. In this function, references to attributes are
    replaced by the call's values or the function's defaults. References to attributes without a
    value are removed. Unused functions are dropped. onnx's reference requires that each function
    follows the functions that it calls. A model without functions is returned unchanged.

    Raises:
        NodeError: if functions are recursive, too deeply nested, or have too many nodes.
    """
    if not model.functions:
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    del bound.functions[:]
    binder = _Binder(model.functions)
    binder.bind(bound.graph.node, None)
    bound.functions.extend(binder.functions)
    bound.opset_import.append(helper.make_opsetid(_BOUND, 1))
    return bound


class _Binder:
    """Specializes functions.

    Args:
        functions: functions of the model.

    Attributes:
        functions: the specialized functions.
    """

    def __init__(self, functions: Iterable[onnx.FunctionProto]) -> None:
        self._originals = {
            (plain_domain(function.domain), function.name, function.overload): function
            for function in functions
        }
        self._names: dict[object, str] = {}
        self._callers: list[object] = []
        self._nodes = 0
        self.functions: list[onnx.FunctionProto] = []

    def bind(
        self, nodes: Iterable[onnx.NodeProto], values: Mapping[str, AttributeProto] | None
    ) -> None:
        """Replace references to attributes in nodes, and specialize functions that nodes call.

        Args:
            nodes: the nodes, which are modified.
            values: values of the function's attributes; None for nodes outside functions.
        """
        for node in nodes:
            self._nodes += 1
            if self._nodes > _MAX_NODES:
                raise NodeError(f"the model's functions amount to more than {_MAX_NODES} nodes")
            for graph in subgraphs(node):
                self.bind(graph.node, values)
            if values is not None:
                _replace_references(node, values)
            key = plain_domain(node.domain), node.op_type, node.overload
            if key in self._originals:
                self._call(node, self._originals[key])

    def _call(self, node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
        function_id = (function.domain, function.name, function.overload)
        if function_id in self._callers:
            raise NodeError(f"the model's function {function.name} calls itself")
        if len(self._callers) > _MAX_DEPTH:
            raise NodeError(f"the model's functions call each other more than {_MAX_DEPTH} deep")
        attributes = (*function.attribute_proto, *node.attribute)
        values = {attribute.name: attribute for attribute in attributes}
        serialized = {
            name: attribute.SerializeToString(deterministic=True)
            for name, attribute in values.items()
        }
        key = (function_id, *sorted(serialized.items()))
        if key not in self._names:
            specialized = onnx.FunctionProto()
            specialized.CopyFrom(function)
            self._callers.append(function_id)
            self.bind(specialized.node, values)
            self._callers.pop()
            for field in ("attribute", "attribute_proto", "overload"):
                specialized.ClearField(field)
            specialized.domain = _BOUND
            specialized.name = f"{function.name}.{len(self.functions)}"
            specialized.opset_import.append(helper.make_opsetid(_BOUND, 1))
            self._names[key] = specialized.name
            self.functions.append(specialized)
        node.domain, node.op_type = _BOUND, self._names[key]
        # Inputs and outputs that the call omits at the end get empty names, because the reference
        # evaluator requires a name for each of them.
        node.input.extend([""] * (len(function.input) - len(node.input)))
        node.output.extend([""] * (len(function.output) - len(node.output)))
        for field in ("attribute", "overload"):
            node.ClearField(field)


def bound_body(
    node: onnx.NodeProto,
    function: onnx.FunctionProto,
    schema: onnx.defs.OpSchema,
    free_name: Callable[[str], str],
) -> list[onnx.NodeProto]:
    """Return the nodes that replace a node whose operator is defined by a function body.

    Args:
        node: the node; the new nodes have its inputs and outputs.
        function: the function body of the operator.
        schema: the schema of the operator, with the defaults of attributes.
        free_name: given a proposed name, returns a similar name that the graph does not contain.
    """
    values = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in values and attribute.default_value.type:
            values[name] = attribute.default_value
    names = {"": ""}
    names |= dict.fromkeys(function.input, "") | dict(zip(function.input, node.input, strict=False))
    names |= {
        inner: outer for inner, outer in zip(function.output, node.output, strict=False) if outer
    }
    nodes = []
    for original in function.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(original)
        _replace_references(copy, values)
        copy.input[:] = [names[name] for name in original.input]
        for name in original.output:
            names.setdefault(name, free_name(f"{node.op_type.lower()}_{name}"))
        copy.output[:] = [names[name] for name in original.output]
        nodes.append(copy)
    return nodes


def _replace_references(node: onnx.NodeProto, values: Mapping[str, AttributeProto]) -> None:
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return
    attributes = []
    for attribute in node.attribute:
        value = attribute
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in values:
                continue
            value = AttributeProto()
            value.CopyFrom(values[attribute.ref_attr_name])
            value.name = attribute.name
        attributes.append(value)
    # The attributes are copied first, because clearing the field would invalidate them.
    copies = onnx.NodeProto(attribute=attributes)
    node.ClearField("attribute")
    node.attribute.extend(copies.attribute)
