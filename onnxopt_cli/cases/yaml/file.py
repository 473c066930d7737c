"""A YAML case file to cases, with everything that is wrong with it reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
from onnx import defs

from onnxopt_cli.cases.values.declared import Declared
from onnxopt_cli.cases.values.regular_file import recorded
from onnxopt_cli.cases.yaml.case_fields import CaseFields, DeclaredCase, Incomplete
from onnxopt_cli.cases.yaml.formula_case import formula_case
from onnxopt_cli.cases.yaml.schema import case_schema, nearest, structure_errors, unknown_name
from onnxopt_cli.cases.yaml.syntax import (
    FormatError,
    Node,
    abbreviated,
    field_text,
    number,
    parse_yaml,
    unexpected,
    yaml_text,
)
from onnxopt_cli.core.case import Case, Content, Location, Trajectory
from onnxopt_cli.core.tolerance import Provenance, Relative, Tolerance, Ulps
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import OUT_OF_MEMORY, InvalidCase, Problem
from onnxopt_cli.operators import OPERATORS, find_operator

# A case is an item of the list under the key "cases".
_CASE_DEPTH = 2

# Nobody reads more of them, and showing all that a long file can have takes minutes.
_MOST_PROBLEMS = 100

# The ends of ids: of a case of one step, of a trajectory step by step, and of one in a Loop.
_AT_ONCE, _STEP_BY_STEP, _LOOPED = "", "/steps", "/loop"

_LIMITS = ("rtol", "atol", "ulp")


def read_yaml_file(path: Path) -> tuple[list[Case], list[Problem]]:
    """Read a case file.

    Literal data are checked whole; random data and files only by type and shape, and made when a
    case is read.

    Args:
        path: the file, as messages shall name it.

    Returns:
        The cases with nothing wrong, and the first hundred problems of the file in the order of its
        lines, with a last one that counts the others.
    """
    try:
        with recorded() as file:
            text = yaml_text(path)
        cases, problems = read_yaml_text(text, path)
    except InvalidCase as error:
        return [], list(error.problems)
    except MemoryError:
        return [], [Problem(f"{path}:1", f"{OUT_OF_MEMORY} to read the file")]

    def with_file(case: Case) -> Case:
        return replace(case, files=lambda: {**file, **case.files()})

    return list(map(with_file, cases)), problems


def read_yaml_text(text: str, path: Path) -> tuple[list[Case], list[Problem]]:
    """Read the text of a case file that stands, or would stand, at a path.

    Args:
        text: the file's content.
        path: gives the cases their ids and locations, and is where their files are looked for.

    Returns:
        As :func:`read_yaml_file`.
    """
    root, errors = parse_yaml(text)
    cases: list[Case] = []
    if root is not None:
        seen = {id(error.node) for error in errors}
        errors += [it for it in structure_errors(root, case_schema) if id(it.node) not in seen]
        version = root.field("onnxopt")
        if version is None:
            errors = [error for error in errors if len(error.node.path) <= 1]
        elif any(error.node is version for error in errors):
            # The rules of another version are not known here.
            errors = [error for error in errors if error.node is version]
        else:
            cases = _cases(root, path, errors)
    errors.sort(key=lambda error: error.line)
    problems = [_problem(path, error) for error in errors[:_MOST_PROBLEMS]]
    more = errors[_MOST_PROBLEMS:]
    if more:
        what = f"{len(more)} more problems from here on"
        problems.append(Problem(f"{path}:{more[0].line}", what))
    return cases, list(dict.fromkeys(problems))


def _cases(root: Node, path: Path, errors: list[FormatError]) -> list[Case]:
    """Return the cases of a file that are right; collects what is wrong with the others."""
    nodes = root.field("cases")
    items = [item for item in (nodes.items if nodes else None) or [] if item.fields]
    first: dict[str, Node] = {}
    for item in items:
        name = item.field("name")
        if name is not None and isinstance(name.scalar, str):
            other = first.setdefault(name.scalar, name)
            if other is not name:
                what = f"found {name} again, expected another name (line {other.line})"
                errors.append(FormatError(name, what))
    prefix = _prefix(root, path, errors)
    broken = frozenset(id(node) for error in errors for node in error.node.lineage())
    cases: list[Case] = []
    outputs: set[str] = set()
    incomplete = False
    for item in items:
        fields = CaseFields(item, path.parent, broken)
        try:
            with recorded() as opened:
                declared = _declare(fields, root)
            tolerance = item.field("tolerance") or root.field("tolerance")
            outputs.update(declared.output_names)
            fields.errors += _unknown_outputs(item, declared.output_names)
            fields.finish(tolerance)
        except Incomplete:
            incomplete = True
            continue
        finally:
            errors += fields.errors
        cases += [
            Case(
                id=f"{prefix}{fields.text('name')}{way}",
                location=Location(path, item.line),
                read=_reader(path, declared, tolerance, fields.rejects, looped=way is _LOOPED),
                operators=declared.operators,
                about=fields.text("about"),
                source=fields.text("source"),
                tags=tuple(str(tag.scalar) for tag in (item.field("tags") or item).items or ()),
                files=partial(dict, opened),
            )
            for way in ([_STEP_BY_STEP, _LOOPED] if declared.trajectory else [_AT_ONCE])
        ]
    if not incomplete:
        errors += _unknown_outputs(root, sorted(outputs))
    return cases if prefix else []


def _prefix(root: Node, path: Path, errors: list[FormatError]) -> str:
    """Return suite and stem as they begin the ids, empty if one of them is no name."""
    suite = root.field("suite")
    name = str(suite.scalar) if suite else path.resolve().parent.name
    right = re.compile(case_schema()["$defs"]["name"]["pattern"])
    for part, place, remedy in (
        (name, "folder", "the file to say its suite"),
        (path.stem, "file", "another name of the file"),
    ):
        if not right.search(part) or part.endswith("\n"):
            if part is not name or suite is None:
                what = f"found the {place} {abbreviated(part)}, which no id can have, "
                errors.append(FormatError(Node(1), f"{what}expected {remedy}"))
            return ""
    return f"{name}/{path.stem}/"


def _unknown_outputs(node: Node, outputs: Sequence[str]) -> list[FormatError]:
    """Return what is wrong with the tolerance, of a case or of the file, for single outputs."""
    tolerance = node.field("tolerance")
    return [
        unknown_name(tolerance, name, list(outputs), "output")
        for name in (tolerance.fields if tolerance else None) or {}
        if tolerance and name not in _LIMITS and name not in outputs
    ]


def _declare(fields: CaseFields, file: Node) -> DeclaredCase:
    """Read what a case is about, from its own fields and those that it inherits from its file.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    steps, no_steps = fields.node.field("steps"), "expected them beside an operator with a formula"
    model = fields.node.field("model")
    if model is not None:
        # Most files are about operators with a formula, and start without the other readers.
        from onnxopt_cli.cases.yaml.model_case import model_case

        if id(model) in fields.broken:
            raise Incomplete
        fields.refuse(["steps"], f", {no_steps}")
        return model_case(model, fields)
    inherited = ("operator", "domain", "version", "opset")
    named = {name: fields.node.field(name) or file.field(name) for name in inherited}
    if any(id(node) in fields.broken for node in named.values()):
        raise Incomplete
    operator, domain, version, opset = named.values()
    if operator is None:
        fields.complain(fields.node, "found neither operator nor model, expected one of them")
        raise Incomplete
    if domain is not None:
        own = find_operator(str(domain.scalar), str(operator.scalar))
    else:
        own = next((it for it in OPERATORS if it.name == operator.scalar), None)
    with fields.collecting():
        if own is not None:
            if version is not None and version.scalar != own.version:
                raise unexpected(version, f"{own.version}, the version of {own.domain}")
            _refuse_inherited(opset, fields, f"{own.name} is of {own.domain}")
            if steps is None:
                return formula_case(own, fields)
            # Not worth importing for cases of one step.
            from onnxopt_cli.cases.yaml.trajectory_case import trajectory_case

            return trajectory_case(own, fields)
        if steps is not None:
            raise FormatError(steps, f"found steps, {no_steps}")
        from onnxopt_cli.cases.yaml.schema_case import schema_case

        schema, wanted = _schema(fields, operator, domain, version, opset)
        return schema_case(schema, wanted, fields)
    raise Incomplete


def _refuse_inherited(node: Node | None, fields: CaseFields, reason: str) -> None:
    """Refuse a version of another domain, unless the case has its operator from elsewhere."""
    own = fields.node.field("operator") or fields.node.field("domain")
    if node is not None and (node.parent is fields.node or own is None):
        other = "opset" if node.key == "version" else "version"
        raise FormatError(node, f"found {node.key}, expected {other}: {reason}")


def _schema(
    fields: CaseFields,
    operator: Node,
    given: Node | None,
    version: Node | None,
    opset: Node | None,
) -> tuple[defs.OpSchema, int]:
    """Return the schema of an operator of onnx, and the version of its domain to import."""
    name = str(operator.scalar)
    domain = str(given.scalar) if given and given.scalar not in ("", "ai.onnx") else ""
    _refuse_inherited(
        opset if domain else version, fields, f"{name} is {'not ' * bool(domain)}of ai.onnx"
    )
    try:
        schema = defs.get_schema(name, domain=domain)
    except defs.SchemaError:
        raise _unknown(operator, given, domain) from None
    wanted = version if domain else opset
    if wanted is None:
        number_wanted = schema.since_version
    else:
        number_wanted = int(number(wanted))
        latest: int = defs.C.schema_version_map()[domain][1]
        if number_wanted > latest:
            raise unexpected(wanted, f"at most {latest}, the latest of the installed onnx")
        try:
            schema = defs.get_schema(name, number_wanted, domain)
        except defs.SchemaError:
            raise unexpected(wanted, f"a later one: there is no {name} in it") from None
    if schema.deprecated:
        raise FormatError(
            operator,
            f"found {name}, deprecated since version {schema.since_version}, expected an older "
            f"{'version' if domain else 'opset'} or another operator",
        )
    return schema, number_wanted


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


def _reader(
    path: Path, declared: DeclaredCase, tolerance: Node | None, rejects: bool, *, looped: bool
) -> Callable[[], Content]:
    """Return what makes a case's content."""
    limits = (tolerance.fields if tolerance else None) or {}
    general = None
    if tolerance is not None and not limits.keys().isdisjoint(_LIMITS):
        general = _tolerance(tolerance, Provenance.CASE)
    own = {
        name: _tolerance(node, Provenance.OUTPUT)
        for name, node in limits.items()
        if name in declared.output_names
    }

    def read() -> Content:
        try:
            trajectory = declared.trajectory() if declared.trajectory else None
            if trajectory is None:
                model, inputs = declared.model(), _made(declared.inputs)
            else:
                model, inputs = _steps(trajectory, looped=looped)
            return Content(
                model=model,
                inputs=inputs,
                expected=None if declared.outputs is None else _made(declared.outputs),
                tolerance=general,
                output_tolerances=own,
                rejects=rejects,
                trajectory=trajectory,
            )
        except FormatError as error:
            raise InvalidCase([_problem(path, error)]) from None

    return read


def _made(values: Mapping[str, Declared]) -> Mapping[str, Value]:
    return {name: value.make() for name, value in values.items()}


def _tolerance(node: Node, provenance: Provenance) -> Tolerance:
    """Return ``{rtol: 1e-3, atol: 1e-7}`` or ``{ulp: 2}``, of which the schema has made sure."""
    limits = {name: number(value) for name, value in (node.fields or {}).items() if name in _LIMITS}
    if "ulp" in limits:
        return Ulps(int(limits["ulp"]), provenance)
    return Relative(float(limits.get("rtol", 0)), float(limits.get("atol", 0)), provenance)


def _steps(trajectory: Trajectory, *, looped: bool) -> tuple[onnx.ModelProto, Mapping[str, Value]]:
    """Return the model of a trajectory and what it is fed."""
    # Not worth importing for cases of one step.
    from onnxopt_cli.cases.suites.loop_model import loop_inputs, loop_model
    from onnxopt_cli.readings.bound.chained import first_inputs

    if looped:
        return loop_model(trajectory), loop_inputs(trajectory)
    return trajectory.model, first_inputs(trajectory)


def _problem(path: Path, error: FormatError) -> Problem:
    """Say where an error is: ``case adam: inputs.X[1]``."""
    keys, where = error.node.path, ""
    if len(keys) >= _CASE_DEPTH and keys[0] == "cases" and isinstance(keys[1], int):
        case = next(node for node in error.node.lineage() if len(node.path) == _CASE_DEPTH)
        name = case.field("name")
        known = name is not None and isinstance(name.scalar, str) and name.scalar
        where = f"case {abbreviated(str(known)) if known else f'#{keys[1] + 1}'}: "
        keys = keys[_CASE_DEPTH:]
    field = field_text(keys)
    place = f"{where}{field}: " if field else where
    return Problem(f"{path}:{error.line}", f"{place}{error.what}")
