"""Default attributes of model-local functions, written out at every call."""

from __future__ import annotations

import onnx

from onnxopt_cli.formula.nodes import all_nodes


def spell_out_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose functions have no default attributes, since every call gives them.

    onnx's reference evaluator raises where a call relies on such a default, and its inliner takes
    the called operator's default for the function's. The model itself is returned if it has none.
    """
    if not any(function.attribute_proto for function in model.functions):
        return model
    explicit = onnx.ModelProto()
    explicit.CopyFrom(model)
    for function in explicit.functions:
        for node in all_nodes(explicit):
            if (node.domain, node.op_type) == (function.domain, function.name):
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(
                    default for default in function.attribute_proto if default.name not in given
                )
        function.attribute.extend(default.name for default in function.attribute_proto)
        del function.attribute_proto[:]
    return explicit
