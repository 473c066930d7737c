"""Replace Gradient nodes by nodes that compute the derivatives in reverse mode.

The attributes of a Gradient node name tensors of its graph: ``xs``, ``zs`` and ``y``. The node
differentiates a function: the part of the graph from ``xs`` and ``zs`` to ``y``. The inputs of the
node are the values of ``xs`` and ``zs`` at which the function is differentiated. If y has several
elements, their sum is differentiated.

Operators without a rule of differentiation are first replaced by primitive nodes. For Gelu and for
normalizations, this module contains the primitive nodes. The primitive nodes of a normalization
compute the variance as the mean square of the difference from the mean. All other operators without
a rule are replaced by the function bodies that ONNX publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.text import FreeNames, printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.gradient.backward_pass import (
    DIFFERENTIABLE,
    BackwardPass,
    DifferentiatedNode,
    Evaluate,
    unsupported,
)
from onnxopt_cli.interpret.gradient.backward_rules import RULES
from onnxopt_cli.operators.nodes import (
    all_nodes,
    bound_body,
    imported_versions,
    plain_domain,
    subgraphs,
)

DOMAIN, NAME = "ai.onnx.preview.training", "Gradient"


def is_gradient(node: onnx.NodeProto) -> bool:
    """Return whether a node is a Gradient node."""
    return (node.domain, node.op_type) == (DOMAIN, NAME)


def has_gradient(model: onnx.ModelProto) -> bool:
    """Return whether a model has a Gradient node."""
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
    # A hostile file may contain invalid UTF-8. Decoding turns it into the name of an unknown
    # tensor.
    return [name.decode("utf-8", "replace") for name in names]


class DifferentiatedGraph:
    """The function that a Gradient node differentiates.

    Args:
        node: the Gradient node.
        nodes: the other nodes of its graph.
        names: names of the graph's inputs and initializers.

    Attributes:
        xs, zs, y: the names of tensors in the node's attributes.
        substitutes: for each name in ``xs`` and ``zs``, the input of the node that holds the value
            at which the function is differentiated.
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
    """Return the tensors on which a node depends.

    A node depends on its inputs, on the inputs of nodes in its subgraphs and, if it is a Gradient
    node, on the tensor y.
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
    """Return, in topological order, the nodes on which given tensors depend.

    Args:
        names: the tensors.
        producers: for each computed tensor, the node that computes it.
        stop: tensors whose dependencies are followed only if the tensors are in ``names``.

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


@dataclass
class _OperatorBody:
    """Primitive nodes that replace one node.

    Attributes:
        nodes: the nodes.
        constants: initializers that the nodes use.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)


def _operator_body(
    node: onnx.NodeProto,
    values: Mapping[str, Any],
    version: int,
    free_name: Callable[[str], str],
) -> _OperatorBody:
    """Return the body of a node whose operator has no rule.

    Args:
        node: the node.
        values: the values of its inputs.
        version: the version of ai.onnx.
        free_name: takes a proposed name and returns a similar name that does not occur in the
            graph.

    Raises:
        NodeError: if the node has no body.
    """
    if plain_domain(node.domain):
        raise unsupported(node)
    if node.op_type in _BODIES:
        if any(node.output[1:]):
            raise unsupported(node, "with several outputs")
        writer = BackwardPass(version, free_name)
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        result = _BODIES[node.op_type](writer, node, values, attributes)
        writer.nodes.append(helper.make_node("Identity", [result], [node.output[0]]))
        return _OperatorBody(writer.nodes, writer.constants)
    if not onnx.defs.has(node.op_type, version):
        raise unsupported(node)
    # onnx's type stubs lack the attributes of function bodies.
    schema: Any = onnx.defs.get_schema(node.op_type, version)
    if not schema.has_function:
        raise unsupported(node)
    return _OperatorBody(bound_body(node, schema.function_body, schema, free_name))


def _normalized(
    writer: BackwardPass, x: str, axes: list[int], epsilon: float, dtype: np.dtype[Any]
) -> str:
    """Append nodes that subtract the mean of x over axes and divide by the standard deviation."""
    mean = _mean(writer, x, axes)
    centered = writer.node("Sub", x, mean)
    variance = _mean(writer, writer.node("Mul", centered, centered), axes)
    shifted = writer.node("Add", variance, writer.constant(np.float32(epsilon), dtype))
    return writer.node("Div", centered, writer.node("Sqrt", shifted))


def _mean(writer: BackwardPass, x: str, axes: list[int]) -> str:
    if writer.opset < 18:  # noqa: PLR2004 - since version 18, the axes are an input
        return writer.node("ReduceMean", x, axes=axes, keepdims=1)
    return writer.node("ReduceMean", x, writer.integers(axes), keepdims=1)


def _layer_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale, *bias = node.input
    rank = values[x].ndim
    axes = [*range(attributes.get("axis", -1) % rank, rank)]
    y = _normalized(writer, x, axes, attributes.get("epsilon", 1e-5), values[x].dtype)
    scaled = writer.node("Mul", y, scale)
    return writer.node("Add", scaled, bias[0]) if bias and bias[0] else scaled


def _per_channel(writer: BackwardPass, name: str, rank: int) -> str:
    return writer.node("Reshape", name, writer.integers([-1] + [1] * (rank - 2)))


def _instance_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale, bias = node.input
    rank = values[x].ndim
    epsilon = attributes.get("epsilon", 1e-5)
    y = _normalized(writer, x, [*range(2, rank)], epsilon, values[x].dtype)
    scaled = writer.node("Mul", y, _per_channel(writer, scale, rank))
    return writer.node("Add", scaled, _per_channel(writer, bias, rank))


def _batch_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    if attributes.get("training_mode", 0):
        raise unsupported(node, "in training mode")
    x, *parameters = node.input
    scale, bias, mean, variance = (
        _per_channel(writer, name, values[x].ndim) for name in parameters
    )
    variance_type = values[node.input[4]].dtype
    epsilon = writer.constant(np.float32(attributes.get("epsilon", 1e-5)), variance_type)
    shifted = writer.node("Add", variance, epsilon)
    centered = writer.node("Sub", x, mean)
    y = writer.node("Div", centered, writer.node("Sqrt", shifted))
    return writer.node("Add", writer.node("Mul", y, scale), bias)


def _mean_variance_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x = node.input[0]
    axes = [int(axis) % values[x].ndim for axis in attributes.get("axes", [0, 2, 3])]
    centered = writer.node("Sub", x, _mean(writer, x, axes))
    variance = _mean(writer, writer.node("Mul", centered, centered), axes)
    epsilon = writer.constant(1e-9, values[x].dtype)
    return writer.node("Div", centered, writer.node("Add", writer.node("Sqrt", variance), epsilon))


def _group_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale, bias = node.input
    shape, dtype = values[x].shape, values[x].dtype
    groups = attributes["num_groups"]
    if values[scale].shape[0] != shape[1]:
        raise unsupported(node, "with a scale for each group")
    grouped = writer.node("Reshape", x, writer.integers([shape[0], groups, -1]))
    y = _normalized(writer, grouped, [2], attributes.get("epsilon", 1e-5), dtype)
    ungrouped = writer.node("Reshape", y, writer.integers(shape))
    scaled = writer.node("Mul", ungrouped, _per_channel(writer, scale, len(shape)))
    return writer.node("Add", scaled, _per_channel(writer, bias, len(shape)))


def _root_mean_square_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale = node.input
    rank = values[x].ndim
    axes = [*range(attributes.get("axis", -1) % rank, rank)]
    epsilon = writer.constant(np.float32(attributes.get("epsilon", 1e-5)), values[x].dtype)
    square = _mean(writer, writer.node("Mul", x, x), axes)
    root = writer.node("Sqrt", writer.node("Add", square, epsilon))
    return writer.node("Mul", writer.node("Div", x, root), scale)


def _gelu(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x = node.input[0]
    half, one = (writer.constant(value, values[x].dtype) for value in (0.5, 1.0))
    if attributes.get("approximate", b"none") == b"tanh":
        cube = writer.node("Mul", writer.node("Mul", x, x), x)
        small = writer.node("Mul", cube, writer.constant(0.044715, values[x].dtype))
        factor = writer.constant(np.sqrt(2 / np.pi), values[x].dtype)
        bend = writer.node("Tanh", writer.node("Mul", writer.node("Add", x, small), factor))
    else:
        factor = writer.constant(np.sqrt(0.5), values[x].dtype)
        bend = writer.node("Erf", writer.node("Mul", x, factor))
    return writer.node("Mul", writer.node("Mul", x, half), writer.node("Add", bend, one))


_BODIES: Mapping[str, Callable[..., str]] = {
    "BatchNormalization": _batch_normalization,
    "Gelu": _gelu,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _root_mean_square_normalization,
}


#: The oldest supported version of ai.onnx. The operators that a backward pass uses have the same
#: meaning in all later versions.
OLDEST_OPSET = 11


def expand_gradients(
    model: onnx.ModelProto, inputs: Mapping[str, Value], evaluate: Evaluate
) -> onnx.ModelProto:
    """Return a model with primitive nodes in place of its Gradient nodes.

    The result is valid only for inputs with the same shapes and the same integers, and only if all
    comparisons have the same results.

    Args:
        model: the model; it is not changed.
        inputs: the inputs of the model.
        evaluate: computes a model without Gradient nodes.

    Raises:
        NodeError: if a node breaks the operator's specification, or an operator has no rule.
    """
    version = imported_versions(model).get("", 0)
    if version < OLDEST_OPSET:
        raise NodeError(
            f"Gradient needs opset {OLDEST_OPSET} or later; the model imports version {version}"
        )
    top = sum(map(is_gradient, model.graph.node))
    if top < sum(map(is_gradient, all_nodes(model))):
        raise NodeError("Gradient is supported only in the main graph of a model")
    return _Expansion(model, inputs, evaluate).result()


def _active_tensors(
    nodes: Sequence[onnx.NodeProto], variables: Sequence[str], values: Mapping[str, Any]
) -> set[str]:
    """Return the variables and the floating-point tensors that are computed from them."""
    active = set(variables)
    for node in nodes:
        if not active.isdisjoint(node_inputs(node)):
            active.update(
                name
                for name in node.output
                if name and getattr(values[name], "dtype", None) in DIFFERENTIABLE
            )
    return active


class _Expansion:
    """Expands the Gradient nodes of a model one after the other."""

    def __init__(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], evaluate: Evaluate
    ) -> None:
        self._model = deepcopy(model)
        self._inputs, self._evaluate = inputs, evaluate
        self._version = imported_versions(model)[""]
        graph = self._model.graph
        self._nodes = [node for node in graph.node if not is_gradient(node)]
        self._gradients = [node for node in graph.node if is_gradient(node)]
        self._sources = [value.name for value in (*graph.input, *graph.initializer)]
        self._sources += [value.values.name for value in graph.sparse_initializer]
        computed = [name for node in graph.node for name in node.output]
        self._names = FreeNames("{}_{}", [*self._sources, *computed])

    def result(self) -> onnx.ModelProto:
        while self._gradients:
            node = next(filter(self._is_next, self._gradients), None)
            if node is None:
                raise NodeError("Gradient nodes depend on each other")
            self._gradients.remove(node)
            self._expand(node)
        graph = self._model.graph
        producers = self._producers()
        needed_nodes = nodes_before([output.name for output in graph.output], producers)
        del graph.node[:]
        graph.node.extend(needed_nodes)
        self._drop_import()
        return self._model

    def _drop_import(self) -> None:
        used = {node.domain for node in all_nodes(self._model)}
        imports = [
            entry
            for entry in self._model.opset_import
            if entry.domain != DOMAIN or entry.domain in used
        ]
        del self._model.opset_import[:]
        self._model.opset_import.extend(imports)

    def _producers(self, *others: onnx.NodeProto) -> dict[str, onnx.NodeProto]:
        nodes = (*self._nodes, *others)
        return {output: node for node in nodes for output in node.output if output}

    def _is_next(self, node: onnx.NodeProto) -> bool:
        """Return whether a Gradient node depends on no other Gradient node."""
        producers = self._producers(*self._gradients)
        everything = [*self._sources, *producers]
        graph = DifferentiatedGraph(node, [*self._nodes, *self._gradients], everything)
        before = [*graph.nodes, *nodes_before([*node.input], producers)]
        return not any(map(is_gradient, before))

    def _expand(self, gradient: onnx.NodeProto) -> None:
        everything = [*self._sources, *self._producers()]
        function = DifferentiatedGraph(gradient, self._nodes, everything)
        nodes, y, variables = self._substituted(function)
        values = self._values([y, *variables.values()], nodes)
        nodes = self._with_bodies(nodes, _active_tensors(nodes, list(variables.values()), values))
        values = self._values([y, *variables.values()], nodes)
        if getattr(values[y], "dtype", None) not in DIFFERENTIABLE:
            raise NodeError("Gradient differentiates a tensor that is not floating-point")
        backward = BackwardPass(self._version, self._names)
        gradients = self._backward(backward, nodes, y, list(variables.values()), values)
        for name, output in zip(variables.values(), gradient.output, strict=False):
            if not output:
                continue
            if values[name].dtype not in DIFFERENTIABLE:
                raise NodeError(
                    "Gradient differentiates with respect to a tensor that is not floating-point"
                )
            source = gradients.get(name)
            if source is None:
                zeros = np.zeros(values[name].shape)
                source = backward.constant(zeros, values[name].dtype)
            backward.nodes.append(helper.make_node("Identity", [source], [output]))
        self._nodes += backward.nodes
        self._model.graph.initializer.extend(backward.constants)
        self._sources += [constant.name for constant in backward.constants]

    def _substituted(
        self, function: DifferentiatedGraph
    ) -> tuple[list[onnx.NodeProto], str, dict[str, str]]:
        """Return nodes that compute the function at the values of the Gradient node's inputs.

        Nodes that depend on replaced tensors are copied.

        Returns:
            The nodes; the name of the tensor to differentiate; and for each name in ``xs``, the
            name of the tensor that replaces it.
        """
        renamed: dict[str, str] = {}
        # Copy the value of each variable to a new tensor, because the node may have the same input
        # for several variables.
        for name, substitute in function.substitutes.items():
            if name != substitute:
                renamed[name] = self._names(f"{name}_substitute")
                copy = helper.make_node("Identity", [substitute], [renamed[name]])
                self._nodes.append(copy)
        nodes = []
        for node in function.nodes:
            used_node = node
            if not renamed.keys().isdisjoint(node_inputs(node)):
                if list(subgraphs(node)):
                    raise unsupported(node, "at other values, since it has a subgraph")
                used_node = deepcopy(node)
                outputs = [output and self._names(f"{output}_substitute") for output in node.output]
                renamed |= {
                    before: after
                    for before, after in zip(node.output, outputs, strict=True)
                    if before and before not in function.substitutes
                }
                used_node.input[:] = [renamed.get(name, name) for name in node.input]
                used_node.output[:] = outputs
                self._nodes.append(used_node)
            nodes.append(used_node)
        variables = {name: renamed.get(name, name) for name in function.xs}
        return nodes, renamed.get(function.y, function.y), variables

    def _with_bodies(
        self, nodes: Sequence[onnx.NodeProto], active: set[str]
    ) -> list[onnx.NodeProto]:
        """Replace nodes without a rule by primitive nodes, both in the list and in the graph.

        Args:
            nodes: the nodes of the function.
            active: the tensors that have a gradient.
        """
        result: list[onnx.NodeProto] = []
        for node in nodes:
            has_rule = not plain_domain(node.domain) and node.op_type in RULES
            reads = not active.isdisjoint(node_inputs(node))
            if has_rule or not reads or active.isdisjoint(node.output):
                result.append(node)
                continue
            values = self._values([*filter(None, node.input)], [])
            body = _operator_body(node, values, self._version, self._names)
            place = next(i for i, other in enumerate(self._nodes) if other is node)
            self._nodes[place : place + 1] = body.nodes
            self._model.graph.initializer.extend(body.constants)
            self._sources += [constant.name for constant in body.constants]
            variables = [name for name in node.input if name in active]
            values = self._values([], body.nodes)
            result += self._with_bodies(body.nodes, _active_tensors(body.nodes, variables, values))
        return result

    def _values(self, names: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> dict[str, Any]:
        """Return the values of the named tensors, and of all tensors that nodes read or compute."""
        names_to_compute = [*names]
        for node in nodes:
            names_to_compute += [*node_inputs(node), *filter(None, node.output)]
        names_to_compute = list(dict.fromkeys(names_to_compute))
        probe = onnx.ModelProto()
        probe.CopyFrom(self._model)
        before = nodes_before(names_to_compute, self._producers())
        if any(map(is_gradient, before)):
            raise NodeError("Gradient nodes depend on each other")
        del probe.graph.node[:], probe.graph.output[:], probe.graph.value_info[:]
        probe.graph.node.extend(before)
        probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names_to_compute)
        return dict(zip(names_to_compute, self._evaluate(probe, self._inputs), strict=True))

    def _backward(
        self,
        backward: BackwardPass,
        nodes: Sequence[onnx.NodeProto],
        y: str,
        variables: Sequence[str],
        values: Mapping[str, Any],
    ) -> dict[str, str]:
        """Write the backward pass; return the name of the gradient of each tensor."""
        active = _active_tensors(nodes, variables, values)
        gradients = {y: backward.constant(np.ones(values[y].shape), values[y].dtype)}
        for node in reversed(nodes):
            reached = [name for name in node.output if name in gradients]
            if not reached or active.isdisjoint(node_inputs(node)) or active.isdisjoint(reached):
                continue
            rule = None if plain_domain(node.domain) else RULES.get(node.op_type)
            if rule is None:
                raise unsupported(node)
            differentiated = DifferentiatedNode(backward, node, values, gradients, self._evaluate)
            contributions = rule(differentiated)
            for name, contribution in zip(node.input, contributions, strict=False):
                if contribution is None or name not in active:
                    continue
                earlier = gradients.get(name)
                gradients[name] = (
                    backward.node("Add", earlier, contribution) if earlier else contribution
                )
        return gradients
