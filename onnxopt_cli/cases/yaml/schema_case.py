"""Cases of the other operators of the installed onnx: checked against its schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import defs
from onnx.defs import OpSchema

from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.cases.onnx.node_model import node_model, value_info
from onnxopt_cli.cases.tensors.declared import Declared, DeclaredGroup
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    DeclaredCase,
    content_of_one_step,
    declare_attributes,
    rejected_case,
)
from onnxopt_cli.cases.yaml.case_value import (
    has_dtype,
    natural_dtype,
    untyped_kinds,
)
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    number,
    unexpected,
)
from onnxopt_cli.core.text import nearest
from onnxopt_cli.core.values import (
    DTYPES,
    dtype_name,
    dtype_named,
)
from onnxopt_cli.operators.registry import registry

#: A place of the node: its parameter, and the name of what stands there, empty if nothing does.
Place: TypeAlias = tuple[OpSchema.FormalParameter, str]

_TENSOR = re.compile(r"tensor\(([a-z0-9_]+)\)")


def schema_case(schema: OpSchema, version: int, fields: CaseFields) -> DeclaredCase:
    """Read a case of an operator that onnx defines, whose domain is imported in a version.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    # onnx's enumeration of its own, whose numbers are those of AttributeProto.
    kinds = {name: int(it.type.value) for name, it in schema.attributes.items()}  # type: ignore[attr-defined]
    if fields.rejects:
        single = OpSchema.FormalParameterOption.Single
        required = [formal.name for formal in schema.outputs if formal.option == single]
        return rejected_case(schema, version, fields, required or [schema.outputs[0].name], kinds)
    required = [name for name, attribute in schema.attributes.items() if attribute.required]
    fields.check_names("attributes", sorted(kinds), required)
    known = {name: node for name, node in fields.mapping("attributes").items() if name in kinds}
    attributes = declare_attributes(fields, known, lambda name, _: kinds[name])
    given = _arranged("inputs", schema.inputs, fields)
    returned = _arranged("outputs", schema.outputs, fields)
    bound: dict[str, np.dtype[Any]] = {}
    inputs = _values("inputs", given, fields, bound)
    outputs = _values("outputs", returned, fields, bound)
    fields.finish()

    def model() -> onnx.ModelProto:
        return node_model(
            schema,
            version,
            inputs=[value_info(name, inputs[name]) if name else None for _, name in given],
            outputs=[value_info(name, outputs[name]) if name else None for _, name in returned],
            attributes=[make() for make in attributes],
            graph_name=fields.text("name"),
        )

    # Types and shapes of the outputs are judged by onnx's own inference.
    if fault := model_fault(model()):
        place = fields.node.field("outputs") or fields.node
        fields.complain(place, f"onnx refuses them: {fault}")
    fields.finish()
    make = partial(content_of_one_step, model, inputs, outputs)
    return DeclaredCase((schema.name,), tuple(outputs), {"": make})


def find_schema(
    operator: Node,
    given: Node | None,
    version: Node | None,
    opset: Node | None,
    fields: CaseFields,
) -> tuple[OpSchema, int]:
    """Return the schema of an operator of onnx, and the version of its domain to import.

    Args:
        operator: its name.
        given: its domain, ai.onnx if left out.
        version: the version of any other domain.
        opset: the version of ai.onnx.
        fields: the case.

    Raises:
        FormatError: if there is no such operator.
    """
    registry().register_schemas()
    name = str(operator.scalar)
    domain = str(given.scalar) if given and given.scalar not in ("", "ai.onnx") else ""
    other, wanted = (opset, version) if domain else (version, opset)
    fields.refuse_inherited(other, f"{name} is {'not ' * bool(domain)}of ai.onnx")
    try:
        schema = defs.get_schema(name, domain=domain)
    except defs.SchemaError:
        raise _unknown(operator, given, domain) from None
    imported = schema.since_version
    if wanted is not None:
        imported = int(number(wanted))
        latest: int = defs.C.schema_version_map()[domain][1]
        if imported > latest:
            raise unexpected(wanted, f"at most {latest}, the latest of the installed onnx")
        try:
            schema = defs.get_schema(name, imported, domain)
        except defs.SchemaError:
            raise unexpected(wanted, f"a later one: there is no {name} in it") from None
    if schema.deprecated:
        raise FormatError(
            operator,
            f"found {name}, deprecated since version {schema.since_version}, expected an older "
            f"{'version' if domain else 'opset'} or another operator",
        )
    return schema, imported


def _unknown(operator: Node, given: Node | None, domain: str) -> FormatError:
    schemas = defs.get_all_schemas()
    domains = {schema.domain for schema in schemas}
    if given is not None and domain not in domains:
        known = ", ".join(sorted(name or "ai.onnx" for name in domains))
        return unexpected(given, f"one of {known}")
    homes = sorted({schema.domain for schema in schemas if schema.name == operator.scalar})
    if homes:
        return FormatError(
            operator, f"found {operator.scalar}, expected domain: {' or '.join(homes)} beside it"
        )
    names = {schema.name for schema in schemas if schema.domain == domain}
    names |= {own.name for own in registry().operators if given is None or own.domain == domain}
    # Adan is as near to Atan as to Adam: ours are asked for more often.
    ours = nearest(str(operator.scalar), [own.name for own in registry().operators], cutoff=0.75)
    hint = ours or nearest(str(operator.scalar), names)
    expected = f"an operator of {domain or 'ai.onnx, or ours'}{'; ' * bool(hint)}{hint}"
    return unexpected(operator, expected)


def _arranged(
    what: str, formals: Sequence[OpSchema.FormalParameter], fields: CaseFields
) -> list[Place]:
    """Sort the names of ``inputs`` or ``outputs`` into the schema's order.

    Unknown and missing names are collected.

    Returns:
        For each place of the node the parameter and the name, empty if it is left out.
    """
    given = fields.mapping(what)
    known: list[str] = []
    required: list[str] = []
    places: list[Place] = []
    for formal in formals:
        if formal.option == OpSchema.FormalParameterOption.Variadic:
            found = _variadic(formal.name, given)
            least = [*found, *([formal.name] if len(found) < formal.min_arity else [])]
            known += least or [formal.name]
            required += least
            places += [(formal, name) for name in found]
            continue
        known.append(formal.name)
        if formal.option == OpSchema.FormalParameterOption.Single:
            required.append(formal.name)
        places.append((formal, formal.name if formal.name in given else ""))
    fields.check_names(what, known, required)
    while places and not places[-1][1]:
        places.pop()
    return places


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


def _values(
    what: str, places: list[Place], fields: CaseFields, bound: dict[str, np.dtype[Any]]
) -> dict[str, Declared]:
    """Read inputs or outputs, without those with something wrong, which is collected.

    Those that say their element type bind the type variable of the schema for those that do not; of
    the others, one float makes all of a variable float32.

    Args:
        what: ``inputs`` or ``outputs``.
        places: of the node.
        fields: the case.
        bound: the element types of variables, to which others are added.
    """
    nodes = fields.mapping(what)
    formals = {name: formal for formal, name in places if name in nodes}

    def declare(name: str, node: Node) -> Declared:
        formal, kinds = formals[name], frozenset[str]()
        variable, allowed = _variable(formal), _allowed(formal)
        if not has_dtype(node):
            alike = [it for it, form in formals.items() if variable and _variable(form) == variable]
            kinds = kinds.union(*(untyped_kinds(nodes[it]) for it in alike or [name]))
        known = bound.get(variable or "")
        value = fields.declare_value(
            node, known or (lambda own: _choose(node, allowed, kinds or own))
        )
        found = _type_of(value)
        if found not in allowed:
            raise FormatError(node, f"found {found}, expected one of {', '.join(sorted(allowed))}")
        if variable is not None and bound.setdefault(variable, value.dtype) != value.dtype:
            text = f"{dtype_name(bound[variable])} as the other {variable} of {formal.name}"
            raise FormatError(node, f"found {dtype_name(value.dtype)}, expected {text}")
        return value

    typed_first = sorted(formals, key=lambda name: not has_dtype(nodes[name]))
    values = fields.read({name: nodes[name] for name in typed_first}, declare)
    return {name: values[name] for name in formals if name in values}


def _choose(node: Node, types: set[str], kinds: frozenset[str]) -> np.dtype[Any]:
    """Return the element type of a value that does not say it, of one of some types."""
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
    """Return the name of the type that all values of it share; None if each has its own."""
    return formal.type_str if formal.is_homogeneous and "(" not in formal.type_str else None


def _allowed(formal: OpSchema.FormalParameter) -> set[str]:
    """Return the types of a parameter that we know: ``seq(tensor(float32))``."""
    return {text for text in map(_renamed, formal.types) if text is not None}


@cache
def _renamed(text: str) -> str | None:
    """Return a type with our name of its element type; None if we know none."""
    match = _TENSOR.search(text)
    dtype = dtype_named(match[1]) if match else None
    return text.replace(match[1], dtype_name(dtype)) if match and dtype else None


def _type_of(value: Declared) -> str:
    if isinstance(value, DeclaredGroup) and value.items:
        return f"{value.kind}({_type_of(value.items[0])})"
    tensor = f"tensor({dtype_name(value.dtype)})"
    return f"{value.kind}({tensor})" if isinstance(value, DeclaredGroup) else tensor
