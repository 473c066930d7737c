"""Cases of the other operators of the installed onnx: checked against its schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx.defs import OpSchema

from onnxopt_cli.cases.onnx.node_model import node_model, value_info
from onnxopt_cli.cases.values.declared import (
    Declared,
    DeclaredOptional,
    DeclaredSequence,
    DeclaredTensor,
)
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    MakeAttribute,
    Subject,
    declare_attribute,
    rejected_subject,
)
from onnxopt_cli.cases.yaml.syntax import FormatError, Node
from onnxopt_cli.cases.yaml.value import has_dtype, natural_dtype, untyped_kinds
from onnxopt_cli.core.values import DTYPES, dtype_name, dtype_named

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


_TENSOR = re.compile(r"tensor\(([a-z0-9_]+)\)")

#: A formal parameter, and the value that the case gives for it.
Given = tuple[OpSchema.FormalParameter, Node]


class TypeVariables:
    """The type variables of one operator's schema, bound as its values are read."""

    def __init__(self, fields: CaseFields) -> None:
        self._fields = fields
        self._bound: dict[str, np.dtype[Any]] = {}

    def declare(self, given: Sequence[Given]) -> list[Declared | None]:
        """Read values, None for those with something wrong, which is collected.

        Those that say their element type bind the variable for those that do not; of the others,
        one float makes all of a variable float32.
        """
        values: dict[int, Declared | None] = {}
        for index, (formal, node) in enumerate(given):
            if has_dtype(node):
                values[index] = self._value(formal, node, frozenset())
        for index, (formal, node) in enumerate(given):
            if index not in values:
                alike = [other for form, other in given if _variable(form) == _variable(formal)]
                same = [node] if _variable(formal) is None else alike
                kinds = frozenset().union(*map(untyped_kinds, same))
                values[index] = self._value(formal, node, kinds)
        return [values[index] for index in range(len(given))]

    def _value(
        self, formal: OpSchema.FormalParameter, node: Node, kinds: frozenset[str]
    ) -> Declared | None:
        value = self._fields.declare(node, lambda own: self._choose(formal, node, kinds or own))
        if value is None:
            return None
        variable = _variable(formal)
        found = _structure(value), dtype_name(value.dtype)
        allowed = _parsed(formal.types)
        if found not in allowed:
            self._complain(node, found, allowed)
            return None
        if variable is not None:
            bound = self._bound.setdefault(variable, value.dtype)
            if bound != value.dtype:
                text = f"{dtype_name(bound)} as the other {variable} of {formal.name}"
                self._fields.errors.append(
                    FormatError(node, f"found {dtype_name(value.dtype)}, expected {text}")
                )
        return value

    def _complain(
        self, node: Node, found: tuple[str, str], allowed: Iterable[tuple[str, str]]
    ) -> None:
        texts = sorted(structure.format(name) for structure, name in allowed)
        structure, name = found
        self._fields.errors.append(
            FormatError(node, f"found {structure.format(name)}, expected one of {', '.join(texts)}")
        )

    def _choose(
        self, formal: OpSchema.FormalParameter, node: Node, kinds: frozenset[str]
    ) -> np.dtype[Any]:
        variable = _variable(formal)
        if variable in self._bound:
            return self._bound[variable]
        allowed = {name for _, name in _parsed(formal.types)}
        if len(allowed) == 1:
            return DTYPES[next(iter(allowed))]
        natural = dtype_name(natural_dtype(kinds))
        if natural in allowed:
            return DTYPES[natural]
        if natural == "int64" and "float32" in allowed:
            return DTYPES["float32"]
        raise FormatError(node, f"found no dtype, expected one of {', '.join(sorted(allowed))}")


def _variable(formal: OpSchema.FormalParameter) -> str | None:
    """Return the name of the type that all values of it share; None if each has its own."""
    return formal.type_str if formal.is_homogeneous and "(" not in formal.type_str else None


def _parsed(types: Iterable[str]) -> set[tuple[str, str]]:
    """Return structure (``seq(tensor({}))``) and element type of each type that we know."""
    return {pair for pair in map(_parse, types) if pair is not None}


@cache
def _parse(text: str) -> tuple[str, str] | None:
    match = _TENSOR.search(text)
    dtype = dtype_named(match[1]) if match else None
    if match is None or dtype is None:
        return None
    return text.replace(match[1], "{}"), dtype_name(dtype)


def _structure(value: Declared) -> str:
    match value:
        case DeclaredTensor():
            return "tensor({})"
        case DeclaredSequence():
            return f"seq({_structure(value.items[0]) if value.items else 'tensor({})'})"
        case DeclaredOptional():
            return f"optional({_structure(value.item) if value.item else 'tensor({})'})"
