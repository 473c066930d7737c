"""Rules for judging outputs that are texts of floating-point numbers.

The specification of Cast leaves the number of digits open, so several texts of a number are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.tolerance import ONNX_DEFAULT, NumberText
from onnxopt_cli.core.values import Array, NumberKind, Value, dtype_name, kind_of
from onnxopt_cli.operators.native_onnx import OnnxRefusal, infer_shapes, inline_functions
from onnxopt_cli.operators.nodes import plain_domain, spell_out_defaults

_CASTS = frozenset({"Cast", "CastLike"})
_MAX_IDENTITIES = 1000


def number_texts(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> dict[str, NumberText]:
    """Return, by name, the rules for judging outputs that a cast from floats to strings computes.

    Texts that a further node transforms are omitted, because they are compared exactly.
    """
    names = {
        output.name
        for output in model.graph.output
        if output.type.tensor_type.elem_type == onnx.TensorProto.STRING
    }
    if not names:
        return {}
    model = _without_functions(model)
    producers = {output: node for node in model.graph.node for output in node.output if output}
    texts: dict[str, NumberText] = {}
    for name in names:
        node = _source(name, producers)
        if isinstance(node, onnx.NodeProto) and _is_of(node, _CASTS):
            text = _number_text(model, inputs, _source(node.input[0], producers))
            if text is not None:
                texts[name] = text
    return texts


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.functions:
        names = sorted({(function.domain, function.name) for function in model.functions})
        # An error in a function is reported when the model runs.
        with suppress(OnnxRefusal):
            return inline_functions(spell_out_defaults(model), names)
    return model


def _is_of(node: onnx.NodeProto, op_types: frozenset[str]) -> bool:
    return node.op_type in op_types and not plain_domain(node.domain) and bool(node.input)


def _source(name: str, producers: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | str:
    """Return the node that computes a value; if there is no such node, the name of the value."""
    for _ in range(_MAX_IDENTITIES):
        node = producers.get(name)
        if node is None or not _is_of(node, frozenset({"Identity"})):
            return name if node is None else node
        name = node.input[0]
    return name


def _number_text(
    model: onnx.ModelProto, inputs: Mapping[str, Value], source: onnx.NodeProto | str
) -> NumberText | None:
    """Return the rule for judging texts of a tensor of floats; None for other values."""
    value = inputs.get(source) if isinstance(source, str) else None
    if value is None:
        value = _constant(model, source)
    if value is not None or isinstance(source, str):
        if not isinstance(value, np.ndarray) or kind_of(value.dtype) is not NumberKind.FLOAT:
            return None
        return NumberText(dtype_name(value.dtype), value)
    with suppress(OnnxRefusal):
        for info in infer_shapes(model).graph.value_info:
            if info.name in source.output and info.type.tensor_type.elem_type:
                dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
                if kind_of(dtype) is NumberKind.FLOAT:
                    return NumberText(dtype_name(dtype), rtol=ONNX_DEFAULT.rtol)
    return None


def _constant(model: onnx.ModelProto, source: onnx.NodeProto | str) -> Array | None:
    """Return the value of an initializer or of a Constant node; None for other values."""
    if isinstance(source, str):
        tensors = [tensor for tensor in model.graph.initializer if tensor.name == source]
        return numpy_helper.to_array(tensors[0]) if tensors else None
    if source.op_type != "Constant" or plain_domain(source.domain):
        return None
    for attribute in source.attribute:
        match attribute.name:
            case "value":
                return numpy_helper.to_array(attribute.t)
            case "value_float":
                return np.array(attribute.f, np.float32)
            case "value_floats":
                return np.array(attribute.floats, np.float32)
    return None
