"""Joins independent models into one model, which returns all outputs of the models in order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import onnx

from onnxopt_cli.operators.nodes import nodes_within, plain_domain, subgraphs

# The largest size of a model that is joined, in bytes. Joining saves time only in the compilation
# of small models.
_MAX_MODEL_BYTES = 256 << 10


def joining_key(model: onnx.ModelProto) -> Hashable | None:
    """Return a key that is equal for models that can be joined; None if a model cannot be joined.

    Models with functions, training information, sparse initializers, quantization annotations,
    external data or device configurations are not joined. Models with ``Gradient`` are not joined
    either, because attributes of ``Gradient`` contain names of values.
    """
    graph = model.graph
    tensors_elsewhere = (
        tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in graph.initializer
    )
    is_special = (
        model.functions
        or model.training_info
        or model.configuration
        or graph.sparse_initializer
        or graph.quantization_annotation
        or any(tensors_elsewhere)
        or any(name == "Gradient" for _, name in operators_of(model))
    )
    if is_special or model.ByteSize() > _MAX_MODEL_BYTES:
        return None
    imports = {(plain_domain(opset.domain), opset.version) for opset in model.opset_import}
    return model.ir_version, frozenset(imports)


def join_models(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Return a model that computes the outputs of several models with equal keys.

    All names of model ``I`` are prefixed by :func:`joined_name`.
    """
    joined = onnx.ModelProto()
    joined.CopyFrom(models[0])
    joined.graph.Clear()
    joined.graph.name = "joined"
    for index, model in enumerate(models):
        part = onnx.GraphProto()
        part.CopyFrom(model.graph)
        _prefix_names(part, index)
        part.ClearField("name")
        part.ClearField("doc_string")
        joined.graph.MergeFrom(part)
    return joined


def joined_name(index: int, name: str) -> str:
    """Return the name that a value of model ``index`` has in the joined model."""
    return f"case{index}_{name}"


def _prefix_names(graph: onnx.GraphProto, index: int) -> None:
    """Prefix the names of values, nodes and dimensions in a graph and its subgraphs.

    Names in subgraphs refer to the same values as before, because all names get the same prefix.
    """
    for node in graph.node:
        if node.name:
            node.name = joined_name(index, node.name)
        for names in (node.input, node.output):
            # The name of an omitted input or output is empty.
            names[:] = [name and joined_name(index, name) for name in names]
        for subgraph in subgraphs(node):
            _prefix_names(subgraph, index)
    for tensor in graph.initializer:
        tensor.name = joined_name(index, tensor.name)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = joined_name(index, value.name)
        for dimension in _dimensions(value.type):
            if dimension.dim_param:
                dimension.dim_param = joined_name(index, dimension.dim_param)


def _dimensions(kind: onnx.TypeProto) -> Iterable[onnx.TensorShapeProto.Dimension]:
    """Yield the dimensions of a tensor's type, and of the tensors within any other type."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            yield from kind.tensor_type.shape.dim
        case "sparse_tensor_type":
            yield from kind.sparse_tensor_type.shape.dim
        case "sequence_type":
            yield from _dimensions(kind.sequence_type.elem_type)
        case "optional_type":
            yield from _dimensions(kind.optional_type.elem_type)
        case "map_type":
            yield from _dimensions(kind.map_type.value_type)


def operators_of(model: onnx.ModelProto) -> frozenset[tuple[str, str]]:
    """Return the domain and name of each operator in a model and its subgraphs."""
    nodes = nodes_within(model.graph.node)
    return frozenset((plain_domain(node.domain), node.op_type) for node in nodes)
