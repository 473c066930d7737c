"""Cases of the other operators of the installed onnx: checked against its schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import onnx
from onnx.defs import OpSchema

from onnxopt_cli.cases.onnx.node_model import node_model, value_info
from onnxopt_cli.cases.values.declared import Declared
from onnxopt_cli.cases.values.tensor_text import natural_dtype
from onnxopt_cli.cases.yaml.attribute_text import MakeAttribute, declare_attribute
from onnxopt_cli.cases.yaml.rejected_case import rejected_subject
from onnxopt_cli.cases.yaml.schema_types import TypeVariables
from onnxopt_cli.cases.yaml.subject import CaseFields, Subject
from onnxopt_cli.cases.yaml.syntax import FormatError, Node

#: A place of the node: its parameter, and the name of what stands there, empty if nothing does.
Arranged: TypeAlias = tuple[OpSchema.FormalParameter, str]


def schema_subject(schema: OpSchema, version: int, fields: CaseFields) -> Subject:
    """Read a case of an operator that onnx defines.

    Args:
        schema: of the operator.
        version: of its domain, for the model to import.
        fields: the case.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    if fields.rejects:
        return _rejected(schema, version, fields)
    attributes = _attributes(schema, fields)
    input_names = arranged("inputs", schema.inputs, fields)
    output_names = arranged("outputs", schema.outputs, fields)
    types = TypeVariables(fields)
    inputs = _values("inputs", input_names, fields, types)
    outputs = _values("outputs", output_names, fields, types)
    fields.finish()

    def model() -> onnx.ModelProto:
        return node_model(
            schema.name,
            domain=schema.domain,
            version=version,
            inputs=[value_info(name, inputs[name]) if name else None for _, name in input_names],
            outputs=[value_info(name, outputs[name]) if name else None for _, name in output_names],
            attributes=[make() for make in attributes],
            graph_name=fields.name,
        )

    _check_model(model(), fields)
    return Subject((schema.name,), model, inputs, outputs, tuple(outputs))


def _check_model(model: onnx.ModelProto, fields: CaseFields) -> None:
    """Let onnx's own inference judge types and shapes of the outputs."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        fields.errors.append(FormatError(fields.place("outputs"), f"onnx refuses them: {reason}"))
    fields.finish()


def arranged(
    what: str, formals: Sequence[OpSchema.FormalParameter], fields: CaseFields
) -> list[Arranged]:
    """Sort the names of ``inputs`` or ``outputs`` into the schema's order.

    Unknown and missing names are collected.

    Returns:
        For each place of the node the parameter and the name, empty if it is left out.
    """
    given = fields.mapping(what)
    known: list[str] = []
    required: list[str] = []
    names: list[Arranged] = []
    for formal in formals:
        if formal.option == OpSchema.FormalParameterOption.Variadic:
            found = _variadic(formal.name, given)
            least = [*found, *([formal.name] if len(found) < formal.min_arity else [])]
            known += least or [formal.name]
            required += least
            names += [(formal, name) for name in found]
            continue
        known.append(formal.name)
        if formal.option == OpSchema.FormalParameterOption.Single:
            required.append(formal.name)
        names.append((formal, formal.name if formal.name in given else ""))
    fields.check_names(what, known, required)
    while names and not names[-1][1]:
        names.pop()
    return names


def _values(
    what: str, names: list[Arranged], fields: CaseFields, types: TypeVariables
) -> dict[str, Declared]:
    nodes = fields.mapping(what)
    given = [(formal, nodes[name]) for formal, name in names if name in nodes]
    values = types.declare(given)
    return {
        str(node.key): value
        for (_, node), value in zip(given, values, strict=True)
        if value is not None
    }


def _variadic(name: str, given: Mapping[str, Node]) -> list[str]:
    """Return the names that a case uses for a variadic parameter, in order and without gaps.

    ``inputs1, inputs2``, ``inputs_1, inputs_2`` or plain ``inputs``; ``data_0, data_1`` where onnx
    itself calls the parameter ``data_0``.
    """
    stem, first = (name[:-2], 0) if name.endswith("_0") else (name, 1)
    if name in given and first:
        return [name]
    bar = "_" if not first or any(key.startswith(f"{stem}_") for key in given) else ""
    numbers = re.compile(rf"{re.escape(stem + bar)}([0-9]{{1,4}})")
    count = sum(numbers.fullmatch(key) is not None for key in given)
    return [f"{stem}{bar}{number}" for number in range(first, first + count)]


def _attributes(schema: OpSchema, fields: CaseFields) -> list[MakeAttribute]:
    known = schema.attributes
    required = [name for name, attribute in known.items() if attribute.required]
    fields.check_names("attributes", sorted(known), required)
    attributes = []
    for name, node in fields.mapping("attributes").items():
        if name not in known or id(node) in fields.broken:
            continue
        try:
            kind = _attribute_kind(known[name])
            attributes.append(declare_attribute(node, kind, fields.declare_value))
        except FormatError as error:
            fields.errors.append(error)
    return attributes


def _attribute_kind(attribute: OpSchema.Attribute) -> int:
    # onnx's enumeration of its own, whose numbers are those of AttributeProto.
    kind: Any = attribute.type
    return int(kind.value)


def _rejected(schema: OpSchema, version: int, fields: CaseFields) -> Subject:
    single = OpSchema.FormalParameterOption.Single
    required = [formal.name for formal in schema.outputs if formal.option == single]
    return rejected_subject(
        schema.name,
        schema.domain,
        version,
        fields,
        choice_of=lambda _name: natural_dtype,
        float_attributes=[
            name
            for name, attribute in schema.attributes.items()
            if _attribute_kind(attribute) == onnx.AttributeProto.FLOAT
        ],
        output_names=required or [schema.outputs[0].name],
    )
