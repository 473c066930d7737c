"""A YAML case file to cases, with everything that is wrong with it reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import defs

from onnxopt_cli.cases.values.regular_file import recorded
from onnxopt_cli.cases.yaml.case_fields import CaseFields, Incomplete, Subject
from onnxopt_cli.cases.yaml.formula_case import formula_subject
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
from onnxopt_cli.core.case import Case, Content, Location, Signature
from onnxopt_cli.core.tolerance import Provenance, Relative, Tolerance, Ulps
from onnxopt_cli.core.trajectory import Trajectory
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import OUT_OF_MEMORY, InvalidCase, Problem
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.operators import OPERATORS, find_operator

# A case is an item of the list under the key "cases".
_CASE_DEPTH = 2

# Nobody reads more of them, and showing all that a long file can have takes minutes.
_MOST_PROBLEMS = 100

# The ends of ids: of a case of one step, of a trajectory step by step, and of one in a Loop.
_AT_ONCE, _STEP_BY_STEP, _LOOPED = "", "/steps", "/loop"


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
        return [_with_file(case, file) for case in cases], problems
    except InvalidCase as error:
        return [], list(error.problems)
    except MemoryError:
        return [], [Problem(f"{path}:1", f"{OUT_OF_MEMORY} to read the file")]


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
        file = _File(path, root, errors)
        cases = file.cases()
        errors = file.errors
    errors.sort(key=lambda error: error.line)
    problems = [_problem(path, error) for error in errors[:_MOST_PROBLEMS]]
    if errors[_MOST_PROBLEMS:]:
        place = f"{path}:{errors[_MOST_PROBLEMS].line}"
        problems.append(
            Problem(place, f"{len(errors) - _MOST_PROBLEMS} more problems from here on")
        )
    return cases, list(dict.fromkeys(problems))


def _with_file(case: Case, file: Mapping[str, Signature]) -> Case:
    others = case.files
    return replace(case, files=lambda: {**file, **others()})


class _File:
    """A parsed file on its way to cases."""

    def __init__(self, path: Path, root: Node, errors: list[FormatError]) -> None:
        seen = {id(error.node) for error in errors}
        structure = structure_errors(root, case_schema)
        self.path = path
        self.root = root
        self.errors = errors + [error for error in structure if id(error.node) not in seen]
        self.judged_outputs: set[str] = set()

    def cases(self) -> list[Case]:
        """Return the cases that are right; collects what is wrong with the others."""
        version = self.root.field("onnxopt")
        if version is None or any(error.node is version for error in self.errors):
            # The rules of another version are not known here.
            self.errors = [
                error
                for error in self.errors
                if error.node is version or (version is None and len(error.node.path) <= 1)
            ]
            return []
        nodes = self.root.field("cases")
        items = [item for item in (nodes.items if nodes else None) or [] if item.fields]
        self._refuse_repeated_names(items)
        prefix = self._prefix()
        broken = frozenset(id(node) for error in self.errors for node in error.node.lineage())
        cases = [self._cases(item, prefix, broken) for item in items]
        found = [case for same in cases for case in same]
        if all(cases):
            self._refuse_unused_tolerances()
        return found if prefix else []

    def _prefix(self) -> str:
        """Return suite and stem as they begin the ids, empty if one of them is no name."""
        suite = self.root.field("suite")
        name = str(suite.scalar) if suite else self.path.resolve().parent.name
        right = re.compile(case_schema()["$defs"]["name"]["pattern"])
        for part, place, remedy in (
            (name, "folder", "the file to say its suite"),
            (self.path.stem, "file", "another name of the file"),
        ):
            if not right.search(part) or part.endswith("\n"):
                if part is not name or suite is None:
                    what = f"found the {place} {abbreviated(part)}, which no id can have, "
                    self.errors.append(FormatError(Node(1), f"{what}expected {remedy}"))
                return ""
        return f"{name}/{self.path.stem}/"

    def _refuse_repeated_names(self, items: Iterable[Node]) -> None:
        first: dict[str, Node] = {}
        for item in items:
            name = item.field("name")
            if name is not None and isinstance(name.scalar, str):
                other = first.setdefault(name.scalar, name)
                if other is not name:
                    self.errors.append(
                        FormatError(
                            name, f"found {name} again, expected another name (line {other.line})"
                        )
                    )

    def _cases(self, node: Node, prefix: str, broken: frozenset[int]) -> list[Case]:
        """Return what an item describes: a case, or a trajectory both ways; nothing if wrong."""
        fields = CaseFields(node, self.path.parent, broken)
        tolerance = node.field("tolerance") or self.root.field("tolerance")
        try:
            with recorded() as opened:
                subject = find_subject(fields, self.root)
            if tolerance is not None and id(tolerance) in broken:
                return []
            self._check_tolerance(tolerance, subject, fields)
            fields.finish()
        except Incomplete:
            return []
        finally:
            self.errors += fields.errors
        ways = [_AT_ONCE] if subject.trajectory is None else [_STEP_BY_STEP, _LOOPED]
        return [
            Case(
                id=f"{prefix}{fields.name}{way}",
                location=Location(self.path, node.line),
                read=self._reader(subject, tolerance, fields.rejects, looped=way is _LOOPED),
                operators=subject.operators,
                about=_words(node, "about"),
                source=_words(node, "source"),
                tags=tuple(
                    str(tag.scalar) for tag in (node.fields or {}).get("tags", node).items or ()
                ),
                files=lambda: opened,
            )
            for way in ways
        ]

    def _check_tolerance(
        self, tolerance: Node | None, subject: Subject, fields: CaseFields
    ) -> None:
        self.judged_outputs.update(subject.output_names)
        if tolerance is not None and tolerance.parent is fields.node:
            fields.errors += [
                unknown_name(tolerance, name, list(subject.output_names), "output")
                for name in output_nodes(tolerance)
                if name not in subject.output_names
            ]

    def _refuse_unused_tolerances(self) -> None:
        """Refuse the file's tolerance of an output that none of its cases has."""
        tolerance = self.root.field("tolerance")
        if tolerance is not None:
            self.errors += [
                unknown_name(tolerance, name, sorted(self.judged_outputs), "output")
                for name in output_nodes(tolerance)
                if name not in self.judged_outputs
            ]

    def _reader(
        self, subject: Subject, tolerance: Node | None, rejects: bool, *, looped: bool
    ) -> Callable[[], Content]:
        general, by_output = read_tolerance(tolerance) if tolerance else (None, {})
        path = self.path

        def read() -> Content:
            try:
                model, inputs, trajectory = _fed(subject, looped=looped)
                return Content(
                    model=model,
                    inputs=inputs,
                    expected=None
                    if subject.outputs is None
                    else {name: value.make() for name, value in subject.outputs.items()},
                    tolerance=general,
                    output_tolerances={
                        name: limit
                        for name, limit in by_output.items()
                        if name in subject.output_names
                    },
                    rejects=rejects,
                    trajectory=trajectory,
                )
            except FormatError as error:
                raise InvalidCase([_problem(path, error)]) from None

        return read


def _fed(
    subject: Subject, *, looped: bool
) -> tuple[onnx.ModelProto, Mapping[str, Value], Trajectory | None]:
    """Return a subject's model, what it is fed, and the steps if there are many."""
    if subject.trajectory is None:
        made = {name: value.make() for name, value in subject.inputs.items()}
        return subject.model(), made, None
    # Not worth importing for cases of one step.
    from onnxopt_cli.cases.suites.loop_model import loop_inputs, loop_model
    from onnxopt_cli.readings.bound.carry import first_inputs

    trajectory = subject.trajectory()
    if looped:
        return loop_model(trajectory), loop_inputs(trajectory), trajectory
    return trajectory.model, first_inputs(trajectory), trajectory


def _problem(path: Path, error: FormatError) -> Problem:
    place = _place(error.node)
    return Problem(f"{path}:{error.line}", f"{place}: {error.what}" if place else error.what)


def _place(node: Node) -> str:
    """Return case and field of a node: ``case adam: inputs.X[1]``."""
    path = node.path
    if len(path) < _CASE_DEPTH or path[0] != "cases" or not isinstance(path[1], int):
        return field_text(path)
    case = next(parent for parent in node.lineage() if len(parent.path) == _CASE_DEPTH)
    name = case.field("name")
    known = name is not None and isinstance(name.scalar, str) and name.scalar
    title = abbreviated(str(name.scalar)) if known and name else f"#{path[1] + 1}"
    field = field_text(path[_CASE_DEPTH:])
    return f"case {title}: {field}" if field else f"case {title}"


def _words(node: Node, name: str) -> str:
    field = node.field(name)
    return str(field.scalar).strip() if field else ""


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


_LIMITS = ("rtol", "atol", "ulp")


def read_tolerance(node: Node) -> tuple[Tolerance | None, dict[str, Tolerance]]:
    """Return the tolerance for all outputs, if there is one, and those for single outputs.

    Args:
        node: ``{rtol: 1e-3, atol: 1e-7}`` or ``{ulp: 2}``, beside or within ``{X_new: ...}``; the
            schema has made sure of its structure.
    """
    outputs = {
        name: _tolerance(value, Provenance.OUTPUT) for name, value in output_nodes(node).items()
    }
    if not any(name in _LIMITS for name in node.fields or {}):
        return None, outputs
    return _tolerance(node, Provenance.CASE), outputs


def output_nodes(node: Node) -> dict[str, Node]:
    """Return the parts of a tolerance that are for single outputs."""
    return {name: value for name, value in (node.fields or {}).items() if name not in _LIMITS}


def _tolerance(node: Node, provenance: Provenance) -> Tolerance:
    ulp = node.field("ulp")
    if ulp is not None:
        return Ulps(int(number(ulp)), provenance)
    rtol, atol = node.field("rtol"), node.field("atol")
    return Relative(
        rtol=float(number(rtol)) if rtol else 0.0,
        atol=float(number(atol)) if atol else 0.0,
        provenance=provenance,
    )
