"""Convert models to older opsets without changing their meaning, for the option ``opset=auto``.

A runtime that lacks the newest opset rejects every model of that opset, even if the model's
operators have not changed for years. A model may be submitted in an older opset if every node has
the same meaning there:

- the older schema has all inputs and outputs of the node, and accepts their element types;
- each attribute that the node sets exists in the older schema with the same type, or is set to its
  default and can therefore be removed;
- each attribute that the node does not set has the same default in both schemas;
- the behaviour of the operator did not change between the two opsets; some changes are not visible
  in the schemas, and :data:`_BEHAVIOUR_CHANGES` lists these changes.

``scripts/check_older_opsets.py`` runs all node cases of onnx on onnx's reference, and compares the
outputs of each model with the outputs of the same model in older opsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain

import onnx
from onnx import TensorProto, TypeProto, defs, helper
from onnx.defs import OpSchema, SchemaError

from onnxopt_cli.operators.nodes import all_nodes, nodes_within, subgraphs

_DEFAULT_DOMAIN = ("", "ai.onnx")
# The oldest opset to which models are converted. Opset 7 introduced broadcasting.
_MIN_OPSET = 7
# The first IR version in which initializers need not be inputs of the graph.
_FIRST_IR_WITH_INITIALIZERS = 4

_NEGATIVE_AXES = {11}
# Versions in which an operator changed the meaning of some nodes, although the comparison of
# schemas finds no difference.
_BEHAVIOUR_CHANGES: Mapping[str, set[int]] = {
    # Before version 11, negative axes and indices of several operators were invalid.
    **dict.fromkeys(
        (
            "ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Gather", "GatherElements",
            "OneHot", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
            "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Slice",
            "Split", "Squeeze", "TopK", "Unsqueeze",
        ),
        _NEGATIVE_AXES,
    ),
    # Before version 14, the number of outputs of BatchNormalization selected the training mode.
    # onnx's reference evaluates versions of BatchNormalization before 14 in training mode.
    "BatchNormalization": {14},
    # Version 9 of Cast added conversions from and to strings. Version 13 of Cast defined the
    # conversion of values out of range.
    "Cast": {9, 13},
    "ConvTranspose": {11},
    # Before version 13, the scales of quantized tensors were scalars.
    "DequantizeLinear": {13},
    "QuantizeLinear": {13},
    # Version 20 of GridSample renamed the values of `mode`.
    "GridSample": {20},
    # The scale and bias of GroupNormalization had one element per group before version 21, and have
    # one element per channel since then.
    "GroupNormalization": {21},
    # Softmax and similar operators rejected negative axes before version 11, and reshaped the input
    # to a matrix before version 13.
    "Hardmax": {11, 13},
    "LogSoftmax": {11, 13},
    "Softmax": {11, 13},
    # Version 8 of several operators added broadcasting.
    "Max": {8},
    "Mean": {8},
    "Min": {8},
    "Sum": {8},
    "NonMaxSuppression": {11},
    # Versions of Resize that changed the default coordinate transformation or rounding of sizes.
    "Resize": {11, 13, 18},
    "RoiAlign": {16},
    # Before version 9 of Scan, the first axis was the batch axis.
    "Scan": {9, 11},
    "Upsample": {9},
}  # fmt: skip

_Types = dict[str, str]


def older_models(model: onnx.ModelProto) -> Iterator[tuple[int, onnx.ModelProto]]:
    """Yield the model in each older opset in which it has the same meaning, the newest first.

    If several opsets contain the same versions of all operators of the model, only the oldest of
    these opsets is yielded, because more runtimes accept it.
    """
    imported = [entry for entry in model.opset_import if entry.domain in _DEFAULT_DOMAIN]
    if len(imported) != 1 or model.functions:
        return
    (version,) = (entry.version for entry in imported)
    nodes = [node for node in all_nodes(model) if node.domain in _DEFAULT_DOMAIN]
    schemas = _schemas(nodes, version)
    if not nodes or schemas is None:
        return
    types = _known_types(model, version)
    # The oldest opset that earlier iterations examined, and its schemas.
    oldest: tuple[int, list[OpSchema]] | None = None
    for candidate in range(version - 1, _MIN_OPSET - 1, -1):
        older = _schemas(nodes, candidate)
        if older is None or not all(
            _same(node, new, old, types)
            for node, new, old in zip(nodes, schemas, older, strict=True)
        ):
            break
        if oldest and _versions(older) != _versions(oldest[1]):
            yield oldest[0], _converted(model, *oldest)
        oldest = candidate, older
    if oldest:
        yield oldest[0], _converted(model, *oldest)


def _schemas(nodes: Sequence[onnx.NodeProto], version: int) -> list[OpSchema] | None:
    """Return the schemas of nodes in an opset; None if the opset lacks an operator."""
    schemas = []
    for node in nodes:
        schema = _schema(node, version)
        if schema is None:
            return None
        schemas.append(schema)
    return schemas


def _versions(schemas: Sequence[OpSchema]) -> list[int]:
    return [schema.since_version for schema in schemas]


def _schema(node: onnx.NodeProto, version: int) -> OpSchema | None:
    try:
        schema = defs.get_schema(node.op_type, version, "")
    except SchemaError:
        return None
    return None if schema.deprecated else schema


def _same(node: onnx.NodeProto, new: OpSchema, old: OpSchema, types: _Types) -> bool:
    """Return whether a node has the same meaning under two schemas of its operator."""
    if new.since_version == old.since_version:
        return True
    changes = _BEHAVIOUR_CHANGES.get(node.op_type, set())
    if any(old.since_version < change <= new.since_version for change in changes):
        return False
    return (
        _same_attributes(node, new, old)
        and _same_values(node.input, new.inputs, old.inputs, types)
        and _same_values(node.output, new.outputs, old.outputs, types)
        and len(node.input) >= old.min_input
    )


def _same_attributes(node: onnx.NodeProto, new: OpSchema, old: OpSchema) -> bool:
    set_attributes = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in set_attributes.items():
        if name not in new.attributes:
            return False
        if name not in old.attributes:
            if not _is_default(attribute, new.attributes[name]):
                return False
        elif old.attributes[name].type != new.attributes[name].type:
            return False
    return _same_defaults({*old.attributes} - {*set_attributes}, new, old)


def _same_defaults(names: Iterable[str], new: OpSchema, old: OpSchema) -> bool:
    """Return whether the attributes that a node omits have equal defaults in two schemas."""
    for name in names:
        declared = old.attributes[name]
        if name in new.attributes:
            if _default(declared) != _default(new.attributes[name]):
                return False
        # The newer schema may have an input in place of the attribute. If the node has this input,
        # the comparison of inputs finds the difference.
        elif declared.required or declared.default_value.type:
            return False
    return True


def _default(attribute: OpSchema.Attribute) -> bytes:
    return attribute.default_value.SerializeToString(deterministic=True)


def _is_default(attribute: onnx.AttributeProto, declared: OpSchema.Attribute) -> bool:
    if not declared.default_value.type:
        return False
    return bool(
        helper.get_attribute_value(attribute) == helper.get_attribute_value(declared.default_value)
    )


def _same_values(
    names: Iterable[str],
    new: Sequence[OpSchema.FormalParameter],
    old: Sequence[OpSchema.FormalParameter],
    types: _Types,
) -> bool:
    """Return whether two schemas define the inputs or outputs of a node alike.

    Args:
        names: the names of the node's inputs or outputs, in order; empty for an absent value.
        new: the inputs or outputs in the schema of the model's opset.
        old: the inputs or outputs in the schema of the older opset.
        types: the known types of values.
    """
    bound: _Types = {}
    for place, name in enumerate(names):
        new_role, old_role = _role(new, place), _role(old, place)
        if new_role is None or old_role is None:
            if name:
                return False
        elif new_role.name.lower() != old_role.name.lower() and place >= _leading(new, old):
            return False
        elif not name:
            if old_role.option != OpSchema.FormalParameterOption.Optional:
                return False
        elif not _admits(old_role, new_role, types.get(name, ""), bound):
            return False
    return True


def _admits(
    old: OpSchema.FormalParameter, new: OpSchema.FormalParameter, known: str, bound: _Types
) -> bool:
    """Return whether a schema admits the type of a value.

    Args:
        old: the input or output in the older schema, which may admit the type.
        new: the input or output in the schema of the model.
        known: the type; empty if it is unknown.
        bound: the types that earlier values of the node assign to the schema's type variables.
    """
    if not known:
        return new.types <= old.types and new.type_str == old.type_str
    if known not in old.types:
        return False
    return not old.is_homogeneous or bound.setdefault(old.type_str, known) == known


def _leading(
    new: Sequence[OpSchema.FormalParameter], old: Sequence[OpSchema.FormalParameter]
) -> int:
    """Return the number of leading inputs or outputs that both schemas identify by position."""
    count = 0
    for new_role, old_role in zip(new, old, strict=False):
        single = OpSchema.FormalParameterOption.Single
        if new_role.option != single or old_role.option != single:
            break
        count += 1
    return count


def _role(roles: Sequence[OpSchema.FormalParameter], place: int) -> OpSchema.FormalParameter | None:
    if place < len(roles):
        return roles[place]
    variadic = OpSchema.FormalParameterOption.Variadic
    return roles[-1] if roles and roles[-1].option == variadic else None


def _known_types(model: onnx.ModelProto, version: int) -> _Types:
    """Return the known types of values by name, as schemas write them.

    An output without a declared type has the type of an input of its node if the operator's schema
    requires the two types to be equal.
    """
    graphs = [model.graph]
    graphs += chain.from_iterable(map(subgraphs, nodes_within(model.graph.node)))
    types: _Types = {}
    for graph in graphs:
        for value in (*graph.input, *graph.output, *graph.value_info):
            types[value.name] = _written(value.type)
        for tensor in graph.initializer:
            types[tensor.name] = f"tensor({_element(tensor.data_type)})"
    for node in nodes_within(model.graph.node):
        schema = _schema(node, version) if node.domain in _DEFAULT_DOMAIN else None
        if schema is None:
            continue
        bound = {}
        for place, name in enumerate(node.input):
            role = _role(schema.inputs, place)
            if role and role.is_homogeneous and types.get(name):
                bound[role.type_str] = types[name]
        for place, name in enumerate(node.output):
            role = _role(schema.outputs, place)
            if role and name and not types.get(name):
                fixed = next(iter(role.types)) if len(role.types) == 1 else ""
                types[name] = bound.get(role.type_str, fixed)
    return types


def _element(element_type: int) -> str:
    return TensorProto.DataType.Name(element_type).lower()


def _written(value: TypeProto) -> str:
    """Return a type as schemas write it, such as ``tensor(float)``; empty for other types."""
    kind = value.WhichOneof("value")
    if kind == "tensor_type" and value.tensor_type.elem_type:
        return f"tensor({_element(value.tensor_type.elem_type)})"
    if kind in {"sequence_type", "optional_type"}:
        inner = _written(getattr(value, kind).elem_type)
        return f"{'seq' if kind == 'sequence_type' else 'optional'}({inner})" if inner else ""
    return ""


def _converted(model: onnx.ModelProto, version: int, schemas: list[OpSchema]) -> onnx.ModelProto:
    """Return the model with another version of the default domain and a matching IR version."""
    older = deepcopy(model)
    for entry in older.opset_import:
        if entry.domain in _DEFAULT_DOMAIN:
            entry.version = version
    nodes = [node for node in all_nodes(older) if node.domain in _DEFAULT_DOMAIN]
    for node, schema in zip(nodes, schemas, strict=True):
        attributes = [entry for entry in node.attribute if entry.name in schema.attributes]
        del node.attribute[:]
        node.attribute.extend(attributes)
    needed = helper.find_min_ir_version_for([*older.opset_import], ignore_unknown=True)
    older.ir_version = min(model.ir_version, max(needed, _FIRST_IR_WITH_INITIALIZERS))
    return older
