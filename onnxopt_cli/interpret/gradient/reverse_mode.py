"""Replace Gradient nodes by nodes that compute the derivatives in reverse mode.

The attributes of a Gradient node name tensors of its graph. The part of the graph from ``xs`` and
``zs`` to ``y`` is the function to differentiate. The inputs of the node are the values of ``xs``
and ``zs`` at which it is differentiated. If y has several elements, their sum is differentiated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.text import FreeNames
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
from onnxopt_cli.interpret.gradient.gradient_node import (
    DOMAIN,
    DifferentiatedGraph,
    is_gradient,
    node_inputs,
    nodes_before,
)
from onnxopt_cli.interpret.gradient.operator_bodies import operator_body
from onnxopt_cli.operators.nodes import all_nodes, imported_versions, plain_domain, subgraphs

#: The oldest supported version of ai.onnx: from it on, the operators that a backward pass uses have
#: the same meaning in all versions.
OLDEST_OPSET = 11


def expand_gradients(
    model: onnx.ModelProto, inputs: Mapping[str, Value], evaluate: Evaluate
) -> onnx.ModelProto:
    """Return a model with primitive nodes in place of its Gradient nodes.

    The result is valid only for inputs with the same shapes, the same integers, and the same
    results of comparisons.

    Args:
        model: the model; it is not changed.
        inputs: the inputs of the model.
        evaluate: function that computes a model without Gradient nodes.

    Raises:
        NodeError: if a node breaks the operator's specification, or an operator has no rule.
    """
    version = imported_versions(model).get("", 0)
    if version < OLDEST_OPSET:
        raise NodeError(
            f"Gradient is differentiated from opset {OLDEST_OPSET} on; the model imports {version}"
        )
    top = sum(map(is_gradient, model.graph.node))
    if top < sum(map(is_gradient, all_nodes(model))):
        raise NodeError("Gradient is differentiated in a model's main graph only")
    return _Expansion(model, inputs, evaluate).result()


def active_tensors(
    nodes: Sequence[onnx.NodeProto], variables: Sequence[str], values: Mapping[str, Any]
) -> set[str]:
    """Return the variables, and the floating-point tensors that nodes compute from them."""
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
        """Return whether a Gradient node is independent of all other Gradient nodes."""
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
        nodes = self._with_bodies(nodes, active_tensors(nodes, list(variables.values()), values))
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
        """Return nodes that compute the function at the values that are the node's inputs.

        Nodes that depend on replaced tensors are copied.

        Returns:
            The nodes, the name of the tensor to differentiate, and for each name in ``xs`` the name
            of the tensor that replaces it.
        """
        renamed: dict[str, str] = {}
        # Copy the value of each variable to a new tensor, since the node may have the same input
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
        """Replace nodes without a rule by primitive nodes, in the list and in the graph.

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
            body = operator_body(node, values, self._version, self._names)
            place = next(i for i, other in enumerate(self._nodes) if other is node)
            self._nodes[place : place + 1] = body.nodes
            self._model.graph.initializer.extend(body.constants)
            self._sources += [constant.name for constant in body.constants]
            variables = [name for name in node.input if name in active]
            values = self._values([], body.nodes)
            result += self._with_bodies(body.nodes, active_tensors(body.nodes, variables, values))
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
        active = active_tensors(nodes, variables, values)
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
