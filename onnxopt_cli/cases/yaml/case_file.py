"""A YAML case file to cases, with everything that is wrong with it reported at once."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnxopt_cli.cases.case import (
    Case,
    Problem,
    Signature,
    loading_failure,
)
from onnxopt_cli.cases.tensors.declared import USUAL_MEMORY
from onnxopt_cli.cases.tensors.regular_file import (
    MAX_CASE_BYTES,
    MAX_CASE_FILE_BYTES,
    reading_at_most,
    recorded,
)
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    DeclaredCase,
    Incomplete,
)
from onnxopt_cli.cases.yaml.formula_case import formula_case
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    abbreviated,
    number,
    packaged_schema,
    problem_of,
    read_document,
    unexpected,
    unknown_name,
    yaml_text,
)
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.tolerance import (
    Provenance,
    Relative,
    Tolerance,
    Ulps,
)
from onnxopt_cli.errors import Fault, InvalidCase
from onnxopt_cli.operators.registry import registry

# Nobody reads more of them, and showing all that a long file can have takes minutes.
_MOST_PROBLEMS = 100
# Cases whose contents are packed together.
_PACKED = 32
_LIMITS = ("rtol", "atol", "ulp")
_SCHEMA = "onnxopt_cli.cases.yaml"


def read_yaml_file(path: Path, memory: int = USUAL_MEMORY) -> tuple[list[Case], list[Fault]]:
    """Read a case file.

    Literal data are checked whole; random data and files only by type and shape, and made when a
    case is read.

    Args:
        path: the file, as messages shall name it.
        memory: bytes that a case of it may take; 0 for no limit.

    Returns:
        The cases with nothing wrong, and the first hundred problems of the file in the order of its
        lines, with a last one that counts the others.
    """
    try:
        with recorded() as file:
            text = yaml_text(path)
        with reading_at_most(MAX_CASE_FILE_BYTES):
            return read_yaml_text(text, path, file, memory)
    except InvalidCase as error:
        return [], list(error.problems)
    except Exception as error:  # noqa: BLE001 - a file may be anything
        return [], [Fault(f"{path}:1", loading_failure(error))]


def read_apart(
    path: Path, memory: int = USUAL_MEMORY, *, contents: bool = True
) -> tuple[list[Case], list[Fault]] | None:
    """Read a case file as :func:`read_yaml_file` does, to send what is found to another process.

    The contents of the cases stay packed until they are read, so that very many take less memory.

    Args:
        path: the file.
        memory: bytes that a case of it may take; 0 for no limit.
        contents: whether they are sent, too; else who reads one reads the file again.

    Returns:
        None if the cases cannot be sent.
    """
    cases, problems = read_yaml_file(path, memory)
    if not contents:
        again = partial(_read_again, path, memory)
        return [replace(case, load=partial(again, case.id, case.files)) for case in cases], problems
    packed: list[Case] = []
    for start in range(0, len(cases), _PACKED):
        some = cases[start : start + _PACKED]
        try:
            reads = pickle.dumps([case.load for case in some])
        except (pickle.PicklingError, AttributeError, TypeError):
            # What is random, or of several steps, is made by functions that have no name.
            return None
        packed += [
            replace(case, load=partial(_read_packed, reads, place))
            for place, case in enumerate(some)
        ]
    return packed, problems


def _read_packed(reads: bytes, place: int) -> Problem:
    return _unpacked(reads)[place]()


def _read_again(path: Path, memory: int, case: str, files: Callable[[], object]) -> Problem:
    found = _found_again(path, memory).get(case)
    if found is None or found.files() != files():
        raise InvalidCase([Fault(str(path), f"changed since {case} was found in it")])
    return found.load()


@lru_cache(2)
def _found_again(path: Path, memory: int) -> dict[str, Case]:
    return {it.id: it for it in read_yaml_file(path, memory)[0]}


@lru_cache(2)
def _unpacked(reads: bytes) -> list[Callable[[], Problem]]:
    found: list[Callable[[], Problem]] = pickle.loads(reads)  # noqa: S301 - of our own process
    return found


def read_yaml_text(
    text: str,
    path: Path,
    file: Mapping[str, Signature] = MappingProxyType({}),
    memory: int = USUAL_MEMORY,
) -> tuple[list[Case], list[Fault]]:
    """Read the text of a case file that stands, or would stand, at a path.

    Args:
        text: the file's content.
        path: gives the cases their ids and locations, and is where their files are looked for.
        file: the signature of the file that was read, by its path.
        memory: bytes that a case of it may take; 0 for no limit.

    Returns:
        As :func:`read_yaml_file`.
    """
    root, errors = read_document(text, _SCHEMA, "onnxopt")
    cases = _cases(root, path, file, memory, errors) if root else []
    errors.sort(key=lambda error: error.line)
    problems = [problem_of(path, error) for error in errors[:_MOST_PROBLEMS]]
    more = errors[_MOST_PROBLEMS:]
    if more:
        what = f"{len(more)} more problems from here on"
        problems.append(Fault(f"{path}:{more[0].line}", what))
    return cases, list(dict.fromkeys(problems))


def _cases(
    root: Node, path: Path, file: Mapping[str, Signature], memory: int, errors: list[FormatError]
) -> list[Case]:
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
    prefix, version = _prefix(root, path, errors)
    broken = frozenset(id(node) for error in errors for node in error.node.lineage())
    cases: list[Case] = []
    outputs: set[str] = set()
    incomplete = False
    common = root.field("tolerance")
    # Shared by the many cases that have no file of their own.
    alone: Callable[[], dict[str, Signature | tuple[()]]] = partial(dict, file)
    for item in items:
        fields = CaseFields(item, path.parent, broken, memory)
        try:
            with recorded() as opened:
                declared = _declare(fields, root)
            outputs.update(declared.output_names)
            if own := item.field("tolerance"):
                fields.errors += _unknown_outputs(own, declared.output_names)
            tolerance = own or common
            fields.finish(tolerance)
        except Incomplete:
            incomplete = True
            continue
        except Exception as error:  # noqa: BLE001 - a case may be anything, and others are right
            fields.complain(item, loading_failure(error))
            incomplete = True
            continue
        finally:
            errors += fields.errors
        limits = _limits(tolerance, declared.output_names) if tolerance else None
        cases += [
            Case(
                id=f"{prefix}{fields.text('name')}{ending}",
                location=Location(path, item.line),
                load=partial(_read, path, make, limits),
                operators=declared.operators,
                about=fields.text("about"),
                source=fields.text("source"),
                tags=tuple(str(tag.scalar) for tag in (item.field("tags") or item).items or ()),
                suite_version=version,
                files=partial(dict, file, **opened) if opened else alone,
            )
            for ending, make in declared.contents.items()
        ]
    if common and not incomplete:
        errors += _unknown_outputs(common, sorted(outputs))
    return cases if prefix else []


def _prefix(root: Node, path: Path, errors: list[FormatError]) -> tuple[str, str]:
    """Return suite and stem as they begin the ids, empty if one is no name; and the version."""
    suite = root.field("suite")
    if any(error.node is suite for error in errors):
        return "", ""
    name, _, version = str(suite.scalar).partition("@") if suite else ("", "", "")
    name = name or path.resolve().parent.name
    right = re.compile(packaged_schema(_SCHEMA)["$defs"]["name"]["pattern"])
    for part, place, remedy in (
        (name, "folder", "the file to say its suite"),
        (path.stem, "file", "another name of the file"),
    ):
        if not right.fullmatch(part):
            what = f"found the {place} {abbreviated(part)}, which no id can have, "
            errors.append(FormatError(Node(1), f"{what}expected {remedy}"))
            return "", ""
    return f"{name}/{path.stem}/", version


def _unknown_outputs(tolerance: Node, outputs: Sequence[str]) -> list[FormatError]:
    """Return what is wrong with a tolerance, of a case or of the file, for single outputs."""
    return [
        unknown_name(tolerance, name, outputs, "output")
        for name in tolerance.fields or {}
        if name not in _LIMITS and name not in outputs
    ]


def _declare(fields: CaseFields, file: Node) -> DeclaredCase:
    """Read what a case is about, from its own fields and those that it inherits from its file.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    # Most files are about operators with a formula and one step: the other readers are imported
    # where they are needed.
    steps, no_steps = fields.node.field("steps"), "expected them beside an operator with a formula"
    if fields.node.field("model") is not None:
        from onnxopt_cli.cases.yaml.model_case import model_case

        fields.refuse(["steps", "graph"], f", {no_steps}")
        return model_case(fields)
    inherited = ("operator", "domain", "version", "opset")
    named = {name: fields.node.field(name) or file.field(name) for name in inherited}
    if any(id(node) in fields.broken for node in named.values()):
        raise Incomplete
    operator, domain, version, opset = named.values()
    if operator is None:
        fields.complain(fields.node, "found neither operator nor model, expected one of them")
        raise Incomplete
    if domain is not None:
        own = registry().find(str(domain.scalar), str(operator.scalar))
    else:
        own = next((it for it in registry().operators if it.name == operator.scalar), None)
    with fields.collecting():
        if own is not None:
            if version is not None and version.scalar != own.version:
                raise unexpected(version, f"{own.version}, the version of {own.domain}")
            fields.refuse_inherited(opset, f"{own.name} is of {own.domain}")
            if steps is None:
                return formula_case(own, fields)
            from onnxopt_cli.cases.yaml.trajectory_case import trajectory_case

            fields.refuse(["graph"], ", expected none beside steps")
            return trajectory_case(own, fields)
        if steps is not None:
            raise FormatError(steps, f"found steps, {no_steps}")
        from onnxopt_cli.cases.yaml.schema_case import find_schema, schema_case

        fields.refuse(["graph"], f", {no_steps}")
        return schema_case(*find_schema(operator, domain, version, opset, fields), fields)
    raise Incomplete


def _limits(tolerance: Node, outputs: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a content that have the tolerance for all outputs and single ones.

    Each is ``{rtol: 1e-3, atol: 1e-7}`` or ``{ulp: 2}``; the schema has made sure of it.
    """
    found: dict[str | None, Tolerance] = {}
    for place in (tolerance, *filter(None, map(tolerance.field, outputs))):
        name = None if place is tolerance else str(place.key)
        provenance = Provenance.CASE if name is None else Provenance.OUTPUT
        fields = place.fields or {}
        limits = {limit: number(fields[limit]) for limit in _LIMITS if limit in fields}
        if "ulp" in limits:
            found[name] = Ulps(int(limits["ulp"]), provenance)
        elif limits:
            rtol, atol = (float(limits.get(limit, 0)) for limit in ("rtol", "atol"))
            found[name] = Relative(rtol, atol, provenance)
    return {"tolerance": found.pop(None, None), "output_tolerances": found}


def _read(path: Path, make: Callable[[], Problem], limits: dict[str, Any] | None) -> Problem:
    """Return a case's content."""
    try:
        with reading_at_most(MAX_CASE_BYTES):
            return replace(make(), **limits) if limits else make()
    except FormatError as error:
        raise InvalidCase([problem_of(path, error)]) from None
