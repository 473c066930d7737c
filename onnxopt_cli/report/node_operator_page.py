"""Render an ONNX operator without a formula: signature, judgement of outputs, and mutants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from onnx import defs, helper
from rich.console import RenderableType
from rich.text import Text

from onnxopt_cli.analysis.node_audit import operator_mutants
from onnxopt_cli.analysis.node_reformulations import node_reformulations
from onnxopt_cli.core.result import short_element
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.mutation.bound_node import attribute_type
from onnxopt_cli.mutation.node_mistakes import node_mistakes
from onnxopt_cli.oracle.operator_judgement import operator_judgement
from onnxopt_cli.report.listing import heading, section

_MAX_DEFAULT_CHARS = 40


def named_schemas(name: str) -> Sequence[defs.OpSchema]:
    """Return the versions of the ONNX operators with the given name, newest first.

    The result may be empty.
    """
    versions = [schema for schema in defs.get_all_schemas_with_history() if schema.name == name]
    return sorted(versions, key=lambda schema: schema.since_version, reverse=True)


def node_operator_page(schemas: Sequence[defs.OpSchema]) -> Iterable[RenderableType]:
    """Yield an operator's page.

    Args:
        schemas: the versions of the operator, the newest first.
    """
    schema = schemas[0]
    versions = [str(entry.since_version) for entry in schemas]
    domain = schema.domain or "ai.onnx"
    yield Text.assemble((schema.name, "bold"), f"  {domain} version {versions[0]}")
    if versions[1:]:
        yield Text(f"earlier versions: {', '.join(versions[1:])}", style="dim")
    yield Text(_first_paragraph(schema.doc))
    yield from section("Inputs", (_formal_row(schema, formal) for formal in schema.inputs))
    yield from section("Outputs", (_formal_row(schema, formal) for formal in schema.outputs))
    yield from section("Attributes", _attribute_rows(schemas))
    yield from _judgement_section(schema)
    yield from _mutant_section(schema)


def node_mistakes_page(
    schemas: Sequence[defs.OpSchema], names: Sequence[str]
) -> Iterable[RenderableType]:
    """Yield the descriptions of known mistakes of an operator.

    Args:
        schemas: the versions of the operator, the newest first.
        names: names of the mistakes; letter case does not matter.

    Raises:
        UsageError: if a mistake is unknown.
    """
    schema = schemas[0]
    mistakes = {
        name.lower(): mistake
        for version in reversed(schemas)
        for name, mistake in node_mistakes(
            schema.domain, schema.name, version.since_version
        ).items()
    }
    for name in names:
        mistake = mistakes.get(name.lower())
        if mistake is None:
            raise UsageError(
                f"{schema.name} has no known mistake {printable(repr(name))}",
                hint=nearest(name, mistakes, "the explanation of a failing run names mistakes"),
            )
        yield Text.assemble((schema.name, "bold"), f"  {mistake.name}")
        yield Text(mistake.about)


def _first_paragraph(doc: str | None) -> str:
    paragraph = (doc or "").strip().split("\n\n", 1)[0]
    return " ".join(paragraph.split())


def _formal_row(
    schema: defs.OpSchema, formal: defs.OpSchema.FormalParameter
) -> tuple[str, str, str]:
    option = str(formal.option).rpartition(".")[2].lower()
    return formal.name, "" if option == "single" else option, _types(schema, formal.type_str)


def _types(schema: defs.OpSchema, type_str: str) -> str:
    """Return the types of an input or output: ``T: float16, float32``."""
    for constraint in schema.type_constraints:
        if constraint.type_param_str == type_str:
            names = [_plain_type(name) for name in constraint.allowed_type_strs]
            return f"{type_str}: {', '.join(sorted(names))}"
    return _plain_type(type_str)


# Replacements in the names of types: a part of a type's name in the schema, and the text that the
# page shows instead.
_TYPE_WORDS = (
    ("tensor(float)", "float32"), ("tensor(double)", "float64"), ("tensor(", ""), (")", ""),
    ("seq(", "sequence of "), ("optional(", "optional "), ("map(", "map of "),
)  # fmt: skip


def _plain_type(name: str) -> str:
    """Return a type of a schema, such as ``seq(tensor(float))``, in words."""
    for word, plain in _TYPE_WORDS:
        name = name.replace(word, plain)
    return name


def _attribute_rows(schemas: Sequence[defs.OpSchema]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type and default of each attribute, and differences in earlier versions."""
    newest = schemas[0]
    names = {name for schema in schemas for name in schema.attributes}
    for name in sorted(names, key=lambda item: (item not in newest.attributes, item)):
        history: list[str] = []
        current = _attribute_text(newest, name)
        last = current
        for schema in schemas[1:]:
            text = _attribute_text(schema, name)
            if text != last:
                history.append(f"version {schema.since_version}: {' '.join(text) or 'none'}")
                last = text
        yield name, *(current or ("", "none")), "; ".join(history)


def _attribute_text(schema: defs.OpSchema, name: str) -> tuple[str, str] | tuple[()]:
    """Return an attribute's type and default; empty if this version has no such attribute."""
    entry = schema.attributes.get(name)
    if entry is None:
        return ()
    kind = attribute_type(entry).lower()
    if entry.required:
        return kind, "required"
    if not entry.default_value.type:
        return kind, "optional"
    value = helper.get_attribute_value(entry.default_value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    elif isinstance(value, float):
        value = short_element(value, "float32")
    return kind, f"default {str(value)[:_MAX_DEFAULT_CHARS] or repr(value)}"


def _judgement_section(schema: defs.OpSchema) -> Iterable[RenderableType]:
    judgement = operator_judgement(schema.domain, schema.name, schema.since_version)
    rows = [
        ("kind", judgement.kind),
        ("unit", judgement.unit),
        ("tolerance", judgement.limit),
        ("reformulations", "; ".join(judgement.reformulations) or "none: outputs are exact"),
        *(("correction", text) for text in judgement.corrections),
        *(("contested", text) for text in judgement.contested),
    ]
    yield from section("How outputs are judged", rows)


def _mutant_section(schema: defs.OpSchema) -> Iterable[RenderableType]:
    mutants = operator_mutants(schema.domain, schema.name, schema.since_version)
    counts = Counter(str(mutant.kind) for mutant in mutants.values())
    yield from section("Mutants by kind", ((kind, str(count)) for kind, count in counts.items()))
    forms = [(form.name, form.about) for form in node_reformulations(schema.name)]
    yield from section("Reformulations that an audit must accept", forms)
    yield heading("Cases")
    yield Text(f"  onnxopt audit onnx-node --operator {schema.name} shows which mutants they kill")
