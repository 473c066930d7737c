"""Validates a case's model and the shapes of its values with onnx's checker and shape inference.

All calls of the checker and of shape inference for a case are made in this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TypeProto, defs, helper, numpy_helper

from onnxopt_cli.cases.tensors.proto_values import shape_of
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.core.untrusted_files import MAX_CASE_BYTES, Malformed
from onnxopt_cli.core.values import Array, Value, structure_of
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.gradient.reverse_mode import is_gradient, variables_of
from onnxopt_cli.interpret.lower.lower_model import refuse_endless_functions
from onnxopt_cli.operators.native_onnx import (
    OnnxRefusal,
    TooLargeForOnnx,
    check_model,
    check_shapes,
    infer_shapes,
)
from onnxopt_cli.operators.nodes import (
    imported_versions,
    nodes_within,
    parts_of,
    plain_domain,
    sparse_tensors,
)
from onnxopt_cli.operators.registry import registry

_MAX_FAULT_CHARS = 300
# The largest number of elements of an input that inference receives as a constant; a model may
# compute shapes from the elements of such an input.
_MAX_CONSTANT_ELEMENTS = 1000
# The highest order of a derivative, because the types of each order require an inference.
_MAX_DERIVATIVE_ORDER = 20
# Matches an error that onnx raises about its own function body of MeanVarianceNormalization: the
# body adds a float32 constant to a tensor of the node's type.
_TYPE_WITHIN_BODY = re.compile(
    r"\(op_type:\w+\): \[ShapeInferenceError\] \(op_type:\w+\): \w+ has inconsistent type"
)
# Matches errors that onnx's inference raises for valid operands if it does not know their sizes or
# ranks. Inference treats an unknown size as 0.
_OF_UNKNOWN_SIZE = re.compile(
    r"Number of elements of input 'sizes' \(0\)|must have either \[C\] or \[1,C\] dimensions"
    r"|FlexAttention requires rank-4 inputs"
)
# Matches onnx's errors within subgraphs, which may never run with the inputs of a case.
_WITHIN_SUBGRAPH = re.compile(r"\(op_type:(If|Loop|Scan|SequenceMap)\): ")
# Names that exporters write for dimensions of unknown size.
_PLACEHOLDERS = frozenset({"none", "unk", "unknown"})


def model_fault(model: onnx.ModelProto, inputs: Mapping[str, Value] = MappingProxyType({})) -> str:
    """Return why onnx's full check rejects a model; an empty string if it accepts the model.

    Args:
        model: the model.
        inputs: inputs of a case; their sizes replace symbolic and unknown dimensions, so that the
            check finds operands of a node that do not fit together.
    """
    registry().register_schemas()
    try:
        refuse_endless_functions(model)
        checked = onnx.ModelProto()
        checked.CopyFrom(model)
        graphs, nodes = parts_of(checked)
        _require_sound_functions(checked, nodes)
        _require_valid(sparse_tensors(graphs, nodes))
        newest = max(imported_versions(model).get(domain, 0) for domain in ("", "ai.onnx"))
        if newest > defs.onnx_opset_version() or model.ir_version > onnx.IR_VERSION:
            # The installed onnx cannot check models of a newer opset or IR version.
            return ""
        _remove_rejected_parts(checked, graphs, nodes)
        _declare_sizes(checked, inputs)
        shapeless = _shapeless(graphs)
        # The check requires a shape for each input and output, but ONNX backends do not.
        for tensor in shapeless:
            tensor.shape.SetInParent()
        check_model(checked, full=not shapeless)
        if shapeless:
            for tensor in shapeless:
                tensor.ClearField("shape")
            check_shapes(checked, check_type=True, strict_mode=True)
    except (NodeError, OnnxRefusal) as error:
        if inputs and _WITHIN_SUBGRAPH.search(str(error)):
            # A branch may be correct for other sizes of the inputs.
            return model_fault(model)
        return _fault(error)
    return ""


def _require_sound_functions(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Check the outputs, calls and attributes of functions, which onnx does not check.

    Args:
        model: the model.
        nodes: all nodes of the model.

    Raises:
        NodeError: if a function does not compute one of its outputs; if a call has more inputs or
            outputs than the called function; or if a node outside of functions refers to the
            attribute of a function.
    """
    for node in nodes_within(model.graph.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise NodeError(
                    f"a node {node.op_type} outside of functions refers to the attribute "
                    f"{attribute.ref_attr_name} of a function"
                )
    functions = {}
    for function in model.functions:
        functions[plain_domain(function.domain), function.name, function.overload] = function
        computed = {*function.input, *(name for node in function.node for name in node.output)}
        for name in function.output:
            if name not in computed:
                raise NodeError(f"the function {function.name} does not compute its output {name}")
    for node in nodes if functions else ():
        called = functions.get((plain_domain(node.domain), node.op_type, node.overload))
        for role in ("input", "output") if called else ():
            # Empty names at the end of a list stand for omitted values.
            names, accepted = [*getattr(node, role)], len(getattr(called, role))
            if any(names[accepted:]):
                raise NodeError(
                    f"a call of the function {node.op_type} has {len(names)} {role}s; at most "
                    f"{accepted} are allowed"
                )


def _fault(error: NodeError | OnnxRefusal) -> str:
    """Return the message of an error of onnx's check; empty if the model is not at fault."""
    if isinstance(error, NodeError):
        return error.message
    if isinstance(error, TooLargeForOnnx):
        return ""
    if any(pattern.search(str(error)) for pattern in (_TYPE_WITHIN_BODY, _OF_UNKNOWN_SIZE)):
        return ""
    # The text after the arrow gives the position in the model.
    words = str(error).removeprefix("[ShapeInferenceError]").partition("==>")[0]
    return clipped(printable(" ".join(words.split())), _MAX_FAULT_CHARS)


def _remove_rejected_parts(
    model: onnx.ModelProto, graphs: Iterable[onnx.GraphProto], nodes: Iterable[onnx.NodeProto]
) -> None:
    """Remove the valid parts of a model that onnx's check would reject.

    Args:
        model: the model, which is changed.
        graphs: its graphs, see :func:`parts_of`.
        nodes: its nodes.
    """
    versions = imported_versions(model)
    for graph in graphs:
        # Inference treats sparse initializers as sparse tensors, whereas nodes receive dense
        # tensors, as from a constant.
        inputs = {value.name for value in graph.input}
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            if name not in inputs:
                constant = helper.make_node("Constant", [], [name], sparse_value=sparse)
                graph.node.insert(0, constant)
        del graph.sparse_initializer[:]
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dimension in _dimensions(value.type):
                if dimension.HasField("dim_value") and dimension.dim_value < 0:
                    dimension.ClearField("dim_value")
    for node in nodes:
        _spell_out_defaults(node, versions)
    _forget_broadcast_shapes(graphs, nodes)
    _declare_derivatives(model)


def _require_valid(tensors: Iterable[onnx.SparseTensorProto]) -> None:
    """Check sparse tensors, because onnx's full check omits sparse initializers.

    Args:
        tensors: all sparse tensors of a model.

    Raises:
        NodeError: if the dimensions are impossible; if the indices are not int64, are out of
            bounds, are not in ascending order, or do not fit the values; or if the dense tensors
            would together be larger than a case may be.
    """
    total = 0
    for sparse in tensors:
        name = printable(sparse.values.name)
        try:
            shape = shape_of(sparse)
        except Malformed as error:
            raise NodeError(f"the sparse tensor {name} {error}") from None
        values, places = map(numpy_helper.to_array, (sparse.values, sparse.indices))
        total += math.prod(shape) * values.itemsize
        if total > MAX_CASE_BYTES:
            raise NodeError(
                f"the model's sparse tensors amount to {total} bytes; at most {MAX_CASE_BYTES} are "
                "allowed"
            )
        if sparse.indices.data_type != onnx.TensorProto.INT64:
            raise NodeError(f"the indices of the sparse tensor {name} are not int64")
        if values.ndim != 1 or not _are_ascending(places, shape, values.size):
            raise NodeError(
                f"the indices of the sparse tensor {name} are not distinct places in ascending "
                f"order within the shape {list(shape)}"
            )


def _are_ascending(places: Array, shape: tuple[int, ...], count: int) -> bool:
    """Return whether the indices of a sparse tensor are ascending places within its shape.

    Args:
        places: int64; the places in the flattened tensor, or a row of indices for each place.
        shape: the shape of the tensor.
        count: the number of its values.
    """
    # ValueError: indices out of bounds, or of another rank.
    with suppress(ValueError):
        if places.ndim > 1:
            places = np.ravel_multi_index(tuple(places.T), shape)
        # Ascending indices within the tensor lie between -1 and its size.
        steps = np.diff(places, prepend=-1, append=math.prod(shape))
        return places.shape == (count,) and bool((steps > 0).all())
    return False


def _declare_sizes(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> None:
    """Declare the shapes of those inputs whose declared shape is missing or has symbolic sizes."""
    for info in model.graph.input:
        value, tensor = inputs.get(info.name), info.type.tensor_type
        if not isinstance(value, np.ndarray) or not info.type.HasField("tensor_type"):
            continue
        is_complete = all(size.HasField("dim_value") for size in tensor.shape.dim)
        has_rank = tensor.HasField("shape")
        if has_rank and (is_complete or len(tensor.shape.dim) != value.ndim):
            continue
        tensor.CopyFrom(helper.make_tensor_type_proto(tensor.elem_type, value.shape).tensor_type)


def _declare_derivatives(model: onnx.ModelProto) -> None:
    """Declare the types of outputs of Gradient nodes, because onnx infers none.

    Only outputs that other nodes read are declared.

    Raises:
        NodeError: if a derivative has too high an order.
    """
    gradients = [node for node in model.graph.node if is_gradient(node)]
    read = {name for node in model.graph.node for name in node.input} if gradients else set()
    gradients = [node for node in gradients if not read.isdisjoint(filter(None, node.output))]
    if not gradients:
        return
    # A second derivative has the type of the first derivative. An earlier pass of the loop may have
    # declared the type of the first derivative.
    for _ in range(_MAX_DERIVATIVE_ORDER + 1):
        declared = _declared_types(model)
        derivatives = [
            onnx.ValueInfoProto(name=output, type=declared[x])
            for gradient in gradients
            for x, output in zip(variables_of(gradient), gradient.output, strict=False)
            if output and output not in declared and x in declared
        ]
        if not derivatives:
            return
        model.graph.value_info.extend(derivatives)
    raise NodeError(
        f"the model computes a derivative of an order beyond {_MAX_DERIVATIVE_ORDER}, the limit"
    )


def _declared_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types of all tensors whose type the model declares or onnx infers."""
    try:
        graph = infer_shapes(model).graph
    except OnnxRefusal:
        graph = model.graph
    types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    return types | {
        tensor.name: helper.make_tensor_type_proto(tensor.data_type, [*tensor.dims])
        for tensor in graph.initializer
    }


def _forget_broadcast_shapes(
    graphs: Iterable[onnx.GraphProto], nodes: Iterable[onnx.NodeProto]
) -> None:
    """Clear the declared shapes of the outputs of operators with a formula.

    Inference assigns the shape of V to V_new. However, if V broadcasts to the shape of X, V_new has
    the shape of X. Without a declared shape, inference finds no contradiction.
    """
    yielded = {
        name
        for node in nodes
        if registry().find(node.domain, node.op_type) is not None
        for name in node.output
    }
    for graph in graphs if yielded else ():
        for value in (*graph.output, *graph.value_info):
            if value.name in yielded and value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")


def _shapeless(graphs: Iterable[onnx.GraphProto]) -> list[Any]:
    """Return the types of the inputs and outputs that are tensors without a declared shape."""
    values = (value for graph in graphs for value in (*graph.input, *graph.output))
    tensors = [value.type.tensor_type for value in values if value.type.HasField("tensor_type")]
    return [tensor for tensor in tensors if not tensor.HasField("shape")]


def _spell_out_defaults(node: onnx.NodeProto, versions: Mapping[str, int]) -> None:
    """Add the default attributes that the function body of a node's operator uses.

    Inference of the function body would otherwise ignore the defaults of omitted attributes.
    """
    domain = plain_domain(node.domain)
    defaults = _body_defaults(node.op_type, versions.get(domain, 0), domain)
    if defaults:
        stated = {attribute.name for attribute in node.attribute}
        node.attribute.extend(default for default in defaults if default.name not in stated)


@lru_cache(maxsize=1000)
def _body_defaults(operator: str, version: int, domain: str) -> tuple[onnx.AttributeProto, ...]:
    """Return the defaults of the attributes that the function body of an operator uses.

    The result is empty if the operator is unknown or has no function body.
    """
    if not version or not defs.has(operator, version, domain):
        return ()
    schema: Any = defs.get_schema(operator, version, domain)
    if not schema.has_function:
        return ()
    defaults = (schema.attributes[name].default_value for name in schema.function_body.attribute)
    return tuple(default for default in defaults if default.type)


def _dimensions(declared: TypeProto) -> Iterator[Any]:
    """Yield the dimensions of a tensor, or of the tensors within another type."""
    kind = declared.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(declared, kind).shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from _dimensions(getattr(declared, kind).elem_type)
    elif kind == "map_type":
        yield from _dimensions(declared.map_type.value_type)


def symbol_fault(
    graph: onnx.GraphProto, inputs: Mapping[str, Value], outputs: Mapping[str, Value]
) -> str:
    """Return a message if a symbolic dimension of a graph has two sizes, else an empty string.

    A name stands for one size in the whole graph, except for names without a letter (``?``, ``-1``)
    and names for an unknown size (``unk``).
    """
    sizes: dict[str, tuple[int, str]] = {}
    for infos, values, kind in ((graph.input, inputs, "input"), (graph.output, outputs, "output")):
        for info in infos:
            value = values.get(info.name)
            declared = info.type
            while declared.HasField("optional_type"):
                declared = declared.optional_type.elem_type
            if not isinstance(value, np.ndarray) or not declared.HasField("tensor_type"):
                continue
            for dimension, size in zip(declared.tensor_type.shape.dim, value.shape, strict=False):
                name = dimension.dim_param
                if not is_symbol(name):
                    continue
                place = f"the {kind} {info.name!r}"
                first_size, first_place = sizes.setdefault(name, (size, place))
                if first_size != size:
                    return (
                        f"the graph's dimension {name!r} is {first_size} in {first_place} and "
                        f"{size} in {place}"
                    )
    return ""


def is_symbol(name: str) -> bool:
    """Return whether the name of a dimension stands for one size in the whole graph."""
    letters = any(character.isalpha() or character == "_" for character in name)
    return letters and name.lower() not in _PLACEHOLDERS


def inferred_output(
    model: onnx.ModelProto, inputs: Mapping[str, Value], name: str
) -> TypeProto.Tensor | None:
    """Return the type and shape that onnx infers for an output from the inputs of a case.

    Returns:
        The type and shape. None if onnx infers no type, or if the type is not a tensor.
    """
    concrete = _with_inputs(model, inputs)
    for info in concrete.graph.output:
        info.type.Clear()
    declared = inferred_outputs(concrete).get(name)
    if declared is None or not declared.HasField("tensor_type"):
        return None
    return declared.tensor_type


def inferred_outputs(model: onnx.ModelProto) -> dict[str, TypeProto]:
    """Return the types that onnx infers or the graph declares for the graph's outputs.

    The result is empty if onnx rejects the model.
    """
    try:
        inferred = _inferred(model)
    except (NodeError, OnnxRefusal):
        return {}
    outputs = inferred.graph.output
    return {info.name: info.type for info in outputs if info.type.WhichOneof("value")}


def input_fault(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> str:
    """Return why onnx's inference rejects a model with a case's inputs, or an empty string.

    Args:
        model: a model that passes onnx's check.
        inputs: the inputs of the case.
    """
    try:
        _inferred(_with_inputs(model, inputs), check_type=True, strict_mode=True)
    except (NodeError, OnnxRefusal) as error:
        return "" if _WITHIN_SUBGRAPH.search(str(error)) else _fault(error)
    return ""


def _inferred(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    registry().register_schemas()
    refuse_endless_functions(model)
    return infer_shapes(model, data_prop=True, **options)


def _with_inputs(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> onnx.ModelProto:
    """Return a model that declares the types and shapes of the inputs of a case."""
    concrete = onnx.ModelProto()
    concrete.CopyFrom(model)
    _remove_rejected_parts(concrete, *parts_of(concrete))
    graph = concrete.graph
    del graph.value_info[:]
    for info in [*graph.input]:
        value = inputs.get(info.name)
        if not isinstance(value, np.ndarray) or value.dtype == object:
            continue
        element = helper.np_dtype_to_tensor_dtype(value.dtype)
        if value.size <= _MAX_CONSTANT_ELEMENTS:
            # The model may compute sizes from the values of a small input.
            graph.input.remove(info)
            graph.initializer.append(numpy_helper.from_array(value, info.name))
        else:
            info.type.CopyFrom(helper.make_tensor_type_proto(element, value.shape))
    return concrete


def contradicts(value: Value, inferred: TypeProto.Tensor) -> bool:
    """Return whether a value contradicts the type or the dimensions that onnx has inferred."""
    if not isinstance(value, np.ndarray):
        return True
    if inferred.elem_type:
        element = onnx.TensorProto.STRING
        if value.dtype != object:
            element = helper.np_dtype_to_tensor_dtype(value.dtype)
        if element != inferred.elem_type:
            return True
    if not inferred.HasField("shape"):
        return False
    sizes = inferred.shape.dim
    return len(sizes) != value.ndim or any(
        dimension.HasField("dim_value") and dimension.dim_value != size
        for dimension, size in zip(sizes, value.shape, strict=True)
    )


def structure_fits(structure: Any, declared: TypeProto) -> bool:
    """Return whether a value with a structure (see ``structure_of``) has a declared type."""
    if declared.HasField("optional_type"):
        inner = declared.optional_type.elem_type
        return structure == structure_of(None) or structure_fits(structure, inner)
    if isinstance(structure, list):
        inner = declared.sequence_type.elem_type
        return declared.HasField("sequence_type") and all(
            structure_fits(item, inner) for item in structure
        )
    if isinstance(structure, dict):
        return declared.HasField("map_type")
    return declared.HasField("tensor_type")
