"""Model-local functions with their attributes put in: one function for each set of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import AttributeProto, helper

from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.nodes import plain_domain, subgraphs

#: The domain of the functions whose attributes are put in.
BOUND = "onnxopt.bound"
# Functions that call each other twice grow by two to the power of their number.
_MOST_NODES = 100_000
_DEEPEST = 100


def with_bound_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose functions refer to no attributes of their calls.

    Every call gets a function of its own name in which references to attributes are replaced by
    the values that the call gives, or by the function's defaults. What neither gives is left out.
    Functions that nothing calls are dropped, and each stands behind those that it calls, because
    onnx's reference needs them in this order. The model itself is returned if it has no functions.

    Raises:
        NodeError: if functions call each other in a circle, too deep or without measure.
    """
    if not model.functions:
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    del bound.functions[:]
    binder = _Binder(model.functions)
    binder.bind(bound.graph.node, None)
    bound.functions.extend(binder.found)
    bound.opset_import.append(helper.make_opsetid(BOUND, 1))
    return bound


class _Binder:
    """Makes functions for calls.

    Args:
        functions: of the model.
    """

    def __init__(self, functions: Iterable[onnx.FunctionProto]) -> None:
        self._functions = {
            (plain_domain(function.domain), function.name, function.overload): function
            for function in functions
        }
        self._names: dict[object, str] = {}
        self._callers: list[object] = []
        self._nodes = 0
        self.found: list[onnx.FunctionProto] = []

    def bind(
        self, nodes: Iterable[onnx.NodeProto], values: Mapping[str, AttributeProto] | None
    ) -> None:
        """Put values into nodes in place of references; None where nothing can be referred to."""
        for node in nodes:
            self._nodes += 1
            if self._nodes > _MOST_NODES:
                raise NodeError(f"the model's functions amount to more than {_MOST_NODES} nodes")
            for graph in subgraphs(node):
                self.bind(graph.node, values)
            if values is not None:
                _put_in(node, values)
            key = plain_domain(node.domain), node.op_type, node.overload
            if key in self._functions:
                self._call(node, self._functions[key])

    def _call(self, node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
        own = (function.domain, function.name, function.overload)
        if own in self._callers:
            raise NodeError(f"the model's function {function.name} calls itself")
        if len(self._callers) > _DEEPEST:
            raise NodeError(f"the model's functions call each other more than {_DEEPEST} deep")
        values = {it.name: it for it in (*function.attribute_proto, *node.attribute)}
        said = {name: it.SerializeToString(deterministic=True) for name, it in values.items()}
        key = (own, *sorted(said.items()))
        if key not in self._names:
            made = onnx.FunctionProto()
            made.CopyFrom(function)
            self._callers.append(own)
            self.bind(made.node, values)
            self._callers.pop()
            for field in ("attribute", "attribute_proto", "overload"):
                made.ClearField(field)
            made.domain, made.name = BOUND, f"{function.name}.{len(self.found)}"
            made.opset_import.append(helper.make_opsetid(BOUND, 1))
            self._names[key] = made.name
            self.found.append(made)
        node.domain, node.op_type = BOUND, self._names[key]
        # The reference counts what is left out at the end as missing.
        node.input.extend([""] * (len(function.input) - len(node.input)))
        node.output.extend([""] * (len(function.output) - len(node.output)))
        for field in ("attribute", "overload"):
            node.ClearField(field)


def _put_in(node: onnx.NodeProto, values: Mapping[str, AttributeProto]) -> None:
    if not any(it.ref_attr_name for it in node.attribute):
        return
    kept = []
    for attribute in node.attribute:
        value = attribute
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in values:
                continue
            value = AttributeProto()
            value.CopyFrom(values[attribute.ref_attr_name])
            value.name = attribute.name
        kept.append(value)
    others = onnx.NodeProto(attribute=kept)
    node.ClearField("attribute")
    node.attribute.extend(others.attribute)
