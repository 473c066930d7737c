"""Reads cases of operators without a formula, and validates them against the schemas of onnx."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import defs, helper
from onnx.defs import OpSchema

from onnxopt_cli.cases.onnx.model_check import inferred_outputs, input_fault, model_fault
from onnxopt_cli.cases.onnx.node_model import node_model, value_info
from onnxopt_cli.cases.tensors.declared import Declared, DeclaredGroup
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    DeclaredCase,
    declare_attributes,
    has_dtype,
    natural_dtype,
    one_step_problem,
    rejected_case,
    untyped_kinds,
)
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    number,
    unexpected,
)
from onnxopt_cli.core.text import listed, nearest
from onnxopt_cli.core.values import (
    DTYPES,
    dtype_name,
    dtype_named,
)
from onnxopt_cli.operators.registry import registry

#: An input or output of the node: the parameter in the schema, and the name of the value (empty if
#: it is omitted).
Place: TypeAlias = tuple[OpSchema.FormalParameter, str]

_TENSOR = re.compile(r"tensor\(([a-z0-9_]+)\)")


def schema_case(schema: OpSchema, version: int, fields: CaseFields) -> DeclaredCase:
    """Read a case of an operator that onnx defines.

    If the case has no ``outputs``, the node has the outputs that ``node_outputs`` lists or, by
    default, all outputs that the schema requires. onnx infers the types of these outputs, or the
    schema determines the types. The oracle computes the values.

    Args:
        schema: the operator's schema.
        version: the version of its domain that the model imports.
        fields: the case.

    Raises:
        Incomplete: if the case is invalid; the errors are collected in `fields`.
    """
    # The enumerations OpSchema.AttrType and AttributeProto.AttributeType have the same numbers.
    kinds = {
        name: int(attribute.type.value)  # type: ignore[attr-defined]
        for name, attribute in schema.attributes.items()
    }
    if fields.rejects:
        single = OpSchema.FormalParameterOption.Single
        required = [formal.name for formal in schema.outputs if formal.option == single]
        return rejected_case(schema, version, fields, required or [schema.outputs[0].name], kinds)
    required = [name for name, attribute in schema.attributes.items() if attribute.required]
    fields.check_names("attributes", sorted(kinds), required)
    nodes = {name: node for name, node in fields.mapping("attributes").items() if name in kinds}
    attributes = declare_attributes(fields, nodes, lambda name, _: kinds[name])
    input_places = _arranged("inputs", schema.inputs, fields)
    bound: dict[str, np.dtype[Any]] = {}
    inputs = _values("inputs", input_places, fields, bound)
    outputs = None
    if fields.node.field("outputs") is None:
        output_infos = _untyped_outputs(schema, fields)
    else:
        fields.forbid(["node_outputs"], ", expected none in a case with outputs")
        output_places = _arranged("outputs", schema.outputs, fields)
        outputs = _values("outputs", output_places, fields, bound)
        fields.finish()
        output_infos = [
            value_info(name, outputs[name]) if name else None for _, name in output_places
        ]
    fields.finish()

    def model() -> onnx.ModelProto:
        return node_model(
            schema,
            version,
            inputs=[value_info(name, inputs[name]) if name else None for _, name in input_places],
            outputs=output_infos,
            attributes=[make() for make in attributes],
            graph_name=fields.text("name"),
        )

    if outputs is None:
        types = _types_by_schema(schema, bound) | inferred_outputs(model())
        untyped = []
        for info in filter(None, output_infos):
            if info.name in types:
                info.type.CopyFrom(types[info.name])
            else:
                untyped.append(info.name)
        if untyped and (fault := input_fault(model(), {})):
            fields.add_error(fields.node, f"rejected by onnx: {fault}")
        elif untyped:
            expected = f"expected this field, because onnx infers no type for {listed(untyped)}"
            fields.add_error(fields.node, f"found no outputs, {expected}")
        fields.finish()
    # onnx's shape inference validates the types and shapes of the outputs.
    if fault := model_fault(model()):
        place = fields.node.field("outputs") or fields.node
        fields.add_error(place, f"rejected by onnx: {fault}")
    fields.finish()
    names = tuple(info.name for info in output_infos if info)
    make = partial(one_step_problem, model, inputs, outputs)
    return DeclaredCase((schema.name,), names, {"": make})


def _untyped_outputs(schema: OpSchema, fields: CaseFields) -> list[onnx.ValueInfoProto | None]:
    """Return untyped declarations of the node's outputs, for a case without ``outputs``.

    None stands for an omitted output. Errors about outputs that the schema lacks, and about
    required outputs that the case does not list, are added to `fields`.
    """
    option = OpSchema.FormalParameterOption
    required = [formal.name for formal in schema.outputs if formal.option == option.Single]
    names = required or [formal.name for formal in schema.outputs[:1]]
    stated = fields.node.field("node_outputs")
    if stated is None and schema.outputs[-1].option == option.Variadic:
        example = f"[{', '.join(_first_names(schema.outputs[-1].name))}]"
        why = f"because {schema.name} has any number of outputs"
        expected = f"expected this field, as in {example}, {why}"
        fields.add_error(fields.node, f"found no node_outputs, {expected}")
    if stated is not None and id(stated) not in fields.broken:
        names = [str(item.scalar) for item in stated.items or ()]
        if missing := [name for name in required if name not in names]:
            fields.add_error(
                stated, f"found no {listed(missing)}, expected all outputs that the node requires"
            )
    places: list[str] = []
    for formal in schema.outputs:
        if formal.option == option.Variadic:
            places += _variadic(formal.name, names)
        else:
            places.append(formal.name if formal.name in names else "")
    while places and not places[-1]:
        places.pop()
    if stated is not None and (unknown := [name for name in names if name not in places]):
        valid: list[str] = []
        for formal in schema.outputs:
            if formal.option == option.Variadic:
                valid += _variadic(formal.name, names) or _first_names(formal.name)
            else:
                valid.append(formal.name)
        fields.add_error(stated, f"found {listed(unknown)}, expected some of {listed(valid)}")
    return [onnx.ValueInfoProto(name=name) if name else None for name in places]


def _types_by_schema(
    schema: OpSchema, bound: Mapping[str, np.dtype[Any]]
) -> dict[str, onnx.TypeProto]:
    """Return the types of the outputs whose element type the schema determines, without shapes.

    Args:
        schema: the operator's schema.
        bound: the element types of its type variables.
    """
    types = {}
    for formal in schema.outputs:
        allowed = _allowed(formal)
        if (dtype := bound.get(_variable(formal) or "")) is not None:
            allowed &= {f"tensor({dtype_name(dtype)})"}
        if len(allowed) == 1 and (match := _TENSOR.fullmatch(allowed.pop())):
            elem_type = helper.np_dtype_to_tensor_dtype(DTYPES[match[1]])
            types[formal.name] = helper.make_tensor_type_proto(elem_type, None)
    return types


def find_schema(
    operator: Node,
    domain_node: Node | None,
    version: Node | None,
    opset: Node | None,
    fields: CaseFields,
) -> tuple[OpSchema, int]:
    """Return the schema of an operator of onnx, and the version of its domain to import.

    Args:
        operator: the operator's name.
        domain_node: its domain; None for ai.onnx.
        version: the version of a domain other than ai.onnx.
        opset: the version of ai.onnx.
        fields: the case.

    Raises:
        FormatError: if the operator does not exist.
    """
    registry().register_schemas()
    name = str(operator.scalar)
    domain = str(domain_node.scalar) if domain_node else ""
    domain = "" if domain == "ai.onnx" else domain
    invalid, version_node = (opset, version) if domain else (version, opset)
    fields.forbid_version(invalid, f"the domain of {name} is {'not ' * bool(domain)}ai.onnx")
    try:
        schema = defs.get_schema(name, domain=domain)
    except defs.SchemaError:
        raise _unknown(operator, domain_node, domain) from None
    imported = schema.since_version
    if version_node is not None:
        imported = int(number(version_node))
        latest: int = defs.C.schema_version_map()[domain][1]
        if imported > latest:
            raise unexpected(version_node, f"at most {latest}, the latest of the installed onnx")
        try:
            schema = defs.get_schema(name, imported, domain)
        except defs.SchemaError:
            raise unexpected(version_node, f"a later version, which has {name}") from None
    if schema.deprecated:
        raise FormatError(
            operator,
            f"found {name}, deprecated since version {schema.since_version}, expected an older "
            f"{'version' if domain else 'opset'} or another operator",
        )
    return schema, imported


def _unknown(operator: Node, domain_node: Node | None, domain: str) -> FormatError:
    """Return the error about an operator that does not exist in its domain."""
    schemas = defs.get_all_schemas()
    domains = {schema.domain for schema in schemas}
    if domain_node is not None and domain not in domains:
        valid = ", ".join(sorted(name or "ai.onnx" for name in domains))
        return unexpected(domain_node, f"one of {valid}")
    homes = sorted({schema.domain for schema in schemas if schema.name == operator.scalar})
    if homes:
        return FormatError(
            operator, f"found {operator.scalar}, expected the field domain: {' or '.join(homes)}"
        )
    registered = registry().operators
    names = {schema.name for schema in schemas if schema.domain == domain}
    names |= {item.name for item in registered if domain_node is None or item.domain == domain}
    # The name "Adan" resembles Atan as much as Adam. Registered operators are preferred, because
    # they are used more often.
    hint = nearest(str(operator.scalar), [item.name for item in registered], cutoff=0.75)
    hint = hint or nearest(str(operator.scalar), names)
    expected = f"an operator of {domain or 'ai.onnx or of onnxopt'}{'; ' * bool(hint)}{hint}"
    return unexpected(operator, expected)


def _arranged(
    kind: str, formals: Sequence[OpSchema.FormalParameter], fields: CaseFields
) -> list[Place]:
    """Sort the names of ``inputs`` or ``outputs`` into the schema's order.

    Errors about unknown and missing names are collected in `fields`.

    Returns:
        For each input or output of the node, in order: the schema's parameter, and the name of the
        value. The name is empty if the case omits the value.
    """
    names = fields.mapping(kind)
    valid: list[str] = []
    required: list[str] = []
    places: list[Place] = []
    for formal in formals:
        if formal.option == OpSchema.FormalParameterOption.Variadic:
            values = _variadic(formal.name, names)
            valid += values or _first_names(formal.name)
            required += values or _first_names(formal.name)[: formal.min_arity]
            places += [(formal, name) for name in values]
            continue
        valid.append(formal.name)
        if formal.option == OpSchema.FormalParameterOption.Single:
            required.append(formal.name)
        places.append((formal, formal.name if formal.name in names else ""))
    fields.check_names(kind, valid, required)
    while places and not places[-1][1]:
        places.pop()
    return places


def _variadic(name: str, names: Collection[str]) -> list[str]:
    """Return the names that a case uses for a variadic parameter.

    The names are in order and without gaps: ``inputs1, inputs2``, ``inputs_1, inputs_2`` or plain
    ``inputs``. If the schema itself calls the parameter ``data_0``, the names are ``data_0,
    data_1``.
    """
    stem, first = (name[:-2], 0) if name.endswith("_0") else (name, 1)
    if name in names and first:
        return [name]
    separator = "_" if not first or any(key.startswith(f"{stem}_") for key in names) else ""
    numbers = re.compile(rf"{re.escape(stem + separator)}([0-9]{{1,4}})")
    count = sum(numbers.fullmatch(key) is not None for key in names)
    return [f"{stem}{separator}{number}" for number in range(first, first + count)]


def _first_names(name: str) -> list[str]:
    """Return two names that a case may use for a variadic parameter: ``[inputs1, inputs2]``."""
    return [name, f"{name[:-1]}1"] if name.endswith("_0") else [f"{name}1", f"{name}2"]


def _values(
    kind: str, places: list[Place], fields: CaseFields, bound: dict[str, np.dtype[Any]]
) -> dict[str, Declared]:
    """Read the valid inputs or outputs; errors of invalid values are collected.

    The values of a type variable, such as T, are the inputs and outputs whose schema parameter has
    this type variable. One value that states its element type determines the element type of all of
    them. If none of them states it, but one contains a float, all of them are float32.

    Args:
        kind: ``inputs`` or ``outputs``.
        places: the node's inputs or outputs.
        fields: the case.
        bound: the element types of type variables; the function adds those that it determines.
    """
    nodes = fields.mapping(kind)
    formals = {name: formal for formal, name in places if name in nodes}

    def declare(name: str, node: Node) -> Declared:
        formal, kinds = formals[name], frozenset[str]()
        variable, allowed = _variable(formal), _allowed(formal)
        if not has_dtype(node):
            same_type = [
                peer for peer, form in formals.items() if variable and _variable(form) == variable
            ]
            kinds = kinds.union(*(untyped_kinds(nodes[peer]) for peer in same_type or [name]))
        bound_dtype = bound.get(variable or "")
        value = fields.declare_value(
            node, bound_dtype or (lambda natural: _choose(node, allowed, kinds or natural))
        )
        value_type = _type_of(value)
        if value_type not in allowed:
            listing = ", ".join(sorted(allowed))
            raise FormatError(node, f"found {value_type}, expected one of {listing}")
        if variable is not None and bound.setdefault(variable, value.dtype) != value.dtype:
            expected = f"{dtype_name(bound[variable])}, like the other values of type {variable}"
            raise FormatError(node, f"found {dtype_name(value.dtype)}, expected {expected}")
        return value

    typed_first = sorted(formals, key=lambda name: not has_dtype(nodes[name]))
    values = fields.read({name: nodes[name] for name in typed_first}, declare)
    return {name: values[name] for name in formals if name in values}


def _choose(node: Node, types: set[str], kinds: frozenset[str]) -> np.dtype[Any]:
    """Return the element type of a value for which the case states no type.

    Args:
        node: the value.
        types: the types that the schema allows.
        kinds: the natural types of the bare values.

    Raises:
        FormatError: if several types are possible.
    """
    allowed = {name for text in types for name in _TENSOR.findall(text)}
    if len(allowed) == 1:
        return DTYPES[next(iter(allowed))]
    natural = dtype_name(natural_dtype(kinds))
    if natural in allowed:
        return DTYPES[natural]
    if natural == "int64" and "float32" in allowed:
        return DTYPES["float32"]
    raise FormatError(node, f"found no dtype, expected one of {', '.join(sorted(allowed))}")


def _variable(formal: OpSchema.FormalParameter) -> str | None:
    """Return the name of a parameter's type variable, for example ``T``.

    The result is None for a parameter with a fixed type, and for a variadic parameter whose values
    may differ in type.
    """
    return formal.type_str if formal.is_homogeneous and "(" not in formal.type_str else None


def _allowed(formal: OpSchema.FormalParameter) -> set[str]:
    """Return the supported types of a parameter, such as ``seq(tensor(float32))``."""
    return {text for text in map(_renamed, formal.types) if text is not None}


@cache
def _renamed(text: str) -> str | None:
    """Replace ONNX's name of an element type with NumPy's; return None for unsupported types."""
    match = _TENSOR.search(text)
    dtype = dtype_named(match[1]) if match else None
    return text.replace(match[1], dtype_name(dtype)) if match and dtype else None


def _type_of(value: Declared) -> str:
    if isinstance(value, DeclaredGroup) and value.items:
        return f"{value.kind}({_type_of(value.items[0])})"
    tensor = f"tensor({dtype_name(value.dtype)})"
    return f"{value.kind}({tensor})" if isinstance(value, DeclaredGroup) else tensor
