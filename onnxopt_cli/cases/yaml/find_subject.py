"""Which operator or model a case is about, from its own fields and those of its file."""

from __future__ import annotations

from onnx import defs

from onnxopt_cli.cases.yaml.formula_case import formula_subject
from onnxopt_cli.cases.yaml.schema import nearest
from onnxopt_cli.cases.yaml.subject import CaseFields, Incomplete, Subject
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, number, unexpected
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.operators import OPERATORS, find_operator

_MAIN = ("", "ai.onnx")


def find_subject(fields: CaseFields, file: Node) -> Subject:
    """Read what a case is about.

    Args:
        fields: the case.
        file: the top of its file, whose operator, domain, version and opset it inherits.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    model = fields.node.field("model")
    if model is not None:
        # Most files are about operators with a formula, and start without the other readers.
        from onnxopt_cli.cases.yaml.model_case import model_subject

        if id(model) in fields.broken:
            raise Incomplete
        try:
            _refuse_steps(fields)
        except FormatError as error:
            fields.errors.append(error)
        return model_subject(model, fields)
    named = {
        name: fields.node.field(name) or file.field(name)
        for name in ("operator", "domain", "version", "opset")
    }
    if any(id(node) in fields.broken for node in named.values()):
        raise Incomplete
    operator = named["operator"]
    if operator is None:
        fields.errors.append(
            FormatError(fields.node, "found neither operator nor model, expected one of them")
        )
        raise Incomplete
    try:
        own = _own_operator(str(operator.scalar), named["domain"])
        if own is not None:
            _check_version(own, fields, named["version"], named["opset"])
            return _own_subject(own, fields)
        _refuse_steps(fields)
        schema, version = _schema(fields, operator, named)
    except FormatError as error:
        fields.errors.append(error)
        raise Incomplete from None
    from onnxopt_cli.cases.yaml.schema_case import schema_subject

    return schema_subject(schema, version, fields)


def _refuse_steps(fields: CaseFields) -> None:
    steps = fields.node.field("steps")
    if steps is not None:
        raise FormatError(steps, "found steps, expected them beside an operator with a formula")


def _own_subject(operator: Operator, fields: CaseFields) -> Subject:
    if fields.node.field("steps") is None:
        return formula_subject(operator, fields)
    # Not worth importing for cases of one step.
    from onnxopt_cli.cases.yaml.trajectory_case import trajectory_subject

    return trajectory_subject(operator, fields)


def _own_operator(name: str, domain: Node | None) -> Operator | None:
    if domain is not None:
        return find_operator(str(domain.scalar), name)
    return next((operator for operator in OPERATORS if operator.name == name), None)


def _check_version(
    operator: Operator, fields: CaseFields, version: Node | None, opset: Node | None
) -> None:
    if version is not None and version.scalar != operator.version:
        raise unexpected(version, f"{operator.version}, the version of {operator.domain}")
    _refuse_inherited(opset, fields, f"{operator.name} is of {operator.domain}")


def _refuse_inherited(node: Node | None, fields: CaseFields, reason: str) -> None:
    """Refuse a version of another domain, unless the case has its operator from elsewhere."""
    own = fields.node.field("operator") or fields.node.field("domain")
    if node is not None and (node.parent is fields.node or own is None):
        other = "opset" if node.key == "version" else "version"
        raise FormatError(node, f"found {node.key}, expected {other}: {reason}")


def _schema(
    fields: CaseFields, operator: Node, named: dict[str, Node | None]
) -> tuple[defs.OpSchema, int]:
    """Return the schema of an operator of onnx, and the version of its domain to import."""
    name, domain = str(operator.scalar), ""
    if named["domain"] is not None and named["domain"].scalar not in _MAIN:
        domain = str(named["domain"].scalar)
    if domain:
        wanted = named["version"]
        _refuse_inherited(named["opset"], fields, f"{name} is not of ai.onnx")
    else:
        wanted = named["opset"]
        _refuse_inherited(named["version"], fields, f"{name} is of ai.onnx")
    try:
        newest = defs.get_schema(name, domain=domain)
    except defs.SchemaError:
        raise _unknown(operator, named["domain"], domain) from None
    version = newest.since_version if wanted is None else int(number(wanted))
    schema = newest if wanted is None else _of_version(newest, wanted, version)
    if schema.deprecated:
        raise FormatError(
            operator,
            f"found {name}, deprecated since version {schema.since_version}, expected an older "
            f"{'version' if domain else 'opset'} or another operator",
        )
    return schema, version


def _of_version(newest: defs.OpSchema, wanted: Node, version: int) -> defs.OpSchema:
    latest = _latest_version(newest.domain)
    if version > latest:
        raise unexpected(wanted, f"at most {latest}, the latest of the installed onnx")
    try:
        return defs.get_schema(newest.name, version, newest.domain)
    except defs.SchemaError:
        raise unexpected(wanted, f"a later one: there is no {newest.name} in it") from None


def _latest_version(domain: str) -> int:
    versions: dict[str, tuple[int, int]] = defs.C.schema_version_map()
    return versions[domain][1]


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
    names |= {own.name for own in OPERATORS if given is None or own.domain == domain}
    return unexpected(
        operator, f"an operator of {domain or 'ai.onnx'}{nearest(str(operator.scalar), names)}"
    )
