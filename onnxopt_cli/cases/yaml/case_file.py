"""Reads cases from a YAML case file, and reports all errors of the file, not only the first."""

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
    loading_failure,
)
from onnxopt_cli.cases.tensors.declared import DEFAULT_MEMORY
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    DeclaredCase,
    Incomplete,
)
from onnxopt_cli.cases.yaml.formula_case import formula_case
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    located_fault,
    number,
    packaged_schema,
    read_document,
    read_source,
    unexpected,
    unknown_names,
)
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.text import abbreviated
from onnxopt_cli.core.tolerance import (
    Provenance,
    Relative,
    Tolerance,
    Ulps,
)
from onnxopt_cli.core.untrusted_files import (
    MAX_CASE_BYTES,
    MAX_CASE_FILE_BYTES,
    Signature,
    reading_at_most,
    recorded,
)
from onnxopt_cli.errors import Fault, InvalidCase
from onnxopt_cli.operators.registry import registry

# The largest number of problems of a file that are shown; formatting all problems of a long file
# can take minutes.
_MAX_PROBLEMS = 100
# The number of cases whose contents are pickled together.
_CASES_PER_PICKLE = 32
_LIMITS = ("rtol", "atol", "ulp")
_SCHEMA = "onnxopt_cli.cases.yaml"


def read_yaml_file(path: Path, memory: int = DEFAULT_MEMORY) -> tuple[list[Case], list[Fault]]:
    """Read a case file.

    Literal data are checked completely. For random data and files, only type and shape are checked;
    the elements are created or read when a case is loaded.

    Args:
        path: the file, as shown in messages.
        memory: the maximum size of a case in bytes; 0 for no limit.

    Returns:
        The valid cases, and the first hundred problems of the file in the order of lines. If there
        are more problems, the last item states their number.
    """
    try:
        with recorded() as file:
            text = read_source(path)
        with reading_at_most(MAX_CASE_FILE_BYTES):
            return read_yaml_text(text, path, file, memory)
    except InvalidCase as error:
        return [], list(error.problems)
    except Exception as error:  # noqa: BLE001 - an arbitrary file must not end the run
        return [], [Fault(f"{path}:1", loading_failure(error))]


def read_apart(
    path: Path, memory: int = DEFAULT_MEMORY, *, contents: bool = True
) -> tuple[list[Case], list[Fault]] | None:
    """Read a case file like :func:`read_yaml_file`, but return cases that can be pickled.

    To save memory, the content of a case stays pickled until the case is loaded.

    Args:
        path: the file.
        memory: the maximum size of a case in bytes; 0 for no limit.
        contents: whether to include the contents; otherwise loading a case reads the file again.

    Returns:
        The cases and problems, like :func:`read_yaml_file`; None if the cases cannot be pickled.
    """
    cases, problems = read_yaml_file(path, memory)
    if not contents:
        again = partial(_read_again, path, memory)
        return [replace(case, load=partial(again, case.id, case.files)) for case in cases], problems
    packed: list[Case] = []
    for start in range(0, len(cases), _CASES_PER_PICKLE):
        chunk = cases[start : start + _CASES_PER_PICKLE]
        try:
            reads = pickle.dumps([case.load for case in chunk])
        except (pickle.PicklingError, AttributeError, TypeError):
            # Random data and trajectories are created by local functions, which cannot be pickled.
            return None
        packed += [
            replace(case, load=partial(_read_packed, reads, place))
            for place, case in enumerate(chunk)
        ]
    return packed, problems


def _read_packed(reads: bytes, place: int) -> Problem:
    return _unpacked(reads)[place]()


def _read_again(path: Path, memory: int, case: str, files: Callable[[], object]) -> Problem:
    current = _cases_again(path, memory).get(case)
    if current is None or current.files() != files():
        raise InvalidCase([Fault(str(path), f"changed since {case} was found in it")])
    return current.load()


@lru_cache(2)
def _cases_again(path: Path, memory: int) -> dict[str, Case]:
    return {case.id: case for case in read_yaml_file(path, memory)[0]}


@lru_cache(2)
def _unpacked(reads: bytes) -> list[Callable[[], Problem]]:
    functions: list[Callable[[], Problem]] = pickle.loads(reads)  # noqa: S301 - our own data
    return functions


def read_yaml_text(
    text: str,
    path: Path,
    file: Mapping[str, Signature] = MappingProxyType({}),
    memory: int = DEFAULT_MEMORY,
) -> tuple[list[Case], list[Fault]]:
    """Read cases from the text of a case file.

    Args:
        text: the file's content.
        path: the path, from which ids, locations and the paths of data files are derived.
        file: the signature of the file, by its path.
        memory: the maximum size of a case in bytes; 0 for no limit.

    Returns:
        The cases and problems, like :func:`read_yaml_file`.
    """
    root, errors = read_document(text, _SCHEMA, "onnxopt")
    cases = _cases(root, path, file, memory, errors) if root else []
    errors.sort(key=lambda error: error.line)
    problems = [located_fault(path, error) for error in errors[:_MAX_PROBLEMS]]
    more = errors[_MAX_PROBLEMS:]
    if more:
        message = f"{len(more)} more problems from here on"
        problems.append(Fault(f"{path}:{more[0].line}", message))
    return cases, list(dict.fromkeys(problems))


def _cases(
    root: Node, path: Path, file: Mapping[str, Signature], memory: int, errors: list[FormatError]
) -> list[Case]:
    """Return the valid cases of a file; append the errors of the invalid cases to `errors`."""
    nodes = root.field("cases")
    items = [item for item in (nodes.items if nodes else None) or [] if item.fields]
    first: dict[str, Node] = {}
    for item in items:
        name = item.field("name")
        if name is not None and isinstance(name.scalar, str):
            earlier = first.setdefault(name.scalar, name)
            if earlier is not name:
                message = f"found {name} again, expected another name (line {earlier.line})"
                errors.append(FormatError(name, message))
    prefix, version = _prefix(root, path, errors)
    broken = frozenset(id(node) for error in errors for node in error.node.lineage())
    cases: list[Case] = []
    outputs: set[str] = set()
    incomplete = False
    common = root.field("tolerance")
    # All cases without data files share this function, to save memory.
    only_file: Callable[[], dict[str, Signature | tuple[()]]] = partial(dict, file)
    for item in items:
        fields = CaseFields(item, path.parent, broken, memory)
        try:
            with recorded() as opened:
                declared = _declare(fields, root)
            outputs.update(declared.output_names)
            if case_tolerance := item.field("tolerance"):
                fields.errors += _unknown_outputs(case_tolerance, declared.output_names)
            tolerance = case_tolerance or common
            fields.finish(tolerance)
        except Incomplete:
            incomplete = True
            continue
        except Exception as error:  # noqa: BLE001 - one case must not affect the others
            fields.add_error(item, loading_failure(error))
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
                files=partial(dict, file, **opened) if opened else only_file,
            )
            for ending, make in declared.contents.items()
        ]
    if common and not incomplete:
        errors += _unknown_outputs(common, sorted(outputs))
    return cases if prefix else []


def _prefix(root: Node, path: Path, errors: list[FormatError]) -> tuple[str, str]:
    """Return the prefix of the ids (empty if it is invalid) and the suite's version."""
    suite = root.field("suite")
    if any(error.node is suite for error in errors):
        return "", ""
    name, _, version = str(suite.scalar).partition("@") if suite else ("", "", "")
    name = name or path.resolve().parent.name
    valid_name = re.compile(packaged_schema(_SCHEMA)["$defs"]["name"]["pattern"])
    for part, kind, remedy in (
        (name, "folder", "the file to state its suite"),
        (path.stem, "file", "a name of ASCII letters, digits, '_', '-' and '.'"),
    ):
        if not valid_name.fullmatch(part):
            message = f"found the {kind} {abbreviated(part)}, which is not valid in an id, "
            errors.append(FormatError(Node(1), f"{message}expected {remedy}"))
            return "", ""
    return f"{name}/{path.stem}/", version


def _unknown_outputs(tolerance: Node, outputs: Sequence[str]) -> list[FormatError]:
    """Return the errors about tolerances for outputs that do not exist."""
    valid = {*_LIMITS, *outputs}
    unknown = [name for name in tolerance.fields or {} if name not in valid]
    return [*unknown_names(tolerance, unknown, outputs, "output")]


def _declare(fields: CaseFields, file: Node) -> DeclaredCase:
    """Read a case from its own fields and from fields that it inherits from its file.

    Raises:
        Incomplete: if the case is invalid; the errors are collected in the fields.
    """
    # Most files contain only cases of operators with a formula, and no trajectories. The readers of
    # all other cases are imported late.
    steps = fields.node.field("steps")
    only_formula = "expected only with an operator that has a formula"
    if fields.node.field("model") is not None:
        from onnxopt_cli.cases.yaml.model_case import model_case

        fields.forbid(["steps", "graph"], f", {only_formula}")
        fields.forbid(["node_outputs"], ", expected none in a case with model")
        return model_case(fields)
    inherited = ("operator", "domain", "version", "opset")
    named = {name: fields.node.field(name) or file.field(name) for name in inherited}
    if any(id(node) in fields.broken for node in named.values()):
        raise Incomplete
    operator, domain, version, opset = named.values()
    if operator is None:
        fields.add_error(fields.node, "found neither operator nor model, expected one of them")
        raise Incomplete
    if domain is not None:
        declared = registry().find(str(domain.scalar), str(operator.scalar))
    else:
        by_name = {declared.name: declared for declared in reversed(registry().operators)}
        declared = by_name.get(str(operator.scalar))
    with fields.collecting():
        if declared is not None:
            if not fields.rejects:
                expected = "expected none in a case of this operator without rejects: true"
                fields.forbid(["node_outputs"], f", {expected}")
            if version is not None and version.scalar != declared.version:
                raise unexpected(version, f"{declared.version}, the version of {declared.domain}")
            fields.forbid_version(opset, f"the domain of {declared.name} is {declared.domain}")
            if steps is None:
                return formula_case(declared, fields)
            from onnxopt_cli.cases.yaml.trajectory_case import trajectory_case

            fields.forbid(["graph"], ", expected none in a case with steps")
            return trajectory_case(declared, fields)
        if steps is not None:
            raise FormatError(steps, f"found steps, {only_formula}")
        from onnxopt_cli.cases.yaml.schema_case import find_schema, schema_case

        fields.forbid(["graph"], f", {only_formula}")
        return schema_case(*find_schema(operator, domain, version, opset, fields), fields)
    raise Incomplete


def _limits(tolerance: Node, outputs: Sequence[str]) -> dict[str, Any]:
    """Return the tolerances for all outputs and for single outputs, as arguments of a Problem.

    The schema ensures that each tolerance has the form ``{rtol: 1e-3, atol: 1e-7}`` or ``{ulp:
    2}``.
    """
    tolerances: dict[str | None, Tolerance] = {}
    for node in (tolerance, *filter(None, map(tolerance.field, outputs))):
        name = None if node is tolerance else str(node.key)
        provenance = Provenance.CASE if name is None else Provenance.OUTPUT
        fields = node.fields or {}
        limits = {limit: number(fields[limit]) for limit in _LIMITS if limit in fields}
        if "ulp" in limits:
            tolerances[name] = Ulps(int(limits["ulp"]), provenance)
        elif limits:
            rtol, atol = (float(limits.get(limit, 0)) for limit in ("rtol", "atol"))
            tolerances[name] = Relative(rtol, atol, provenance)
    return {"tolerance": tolerances.pop(None, None), "output_tolerances": tolerances}


def _read(path: Path, make: Callable[[], Problem], limits: dict[str, Any] | None) -> Problem:
    """Return the case content that ``make`` creates, with the tolerances ``limits``."""
    try:
        with reading_at_most(MAX_CASE_BYTES):
            return replace(make(), **limits) if limits else make()
    except FormatError as error:
        raise InvalidCase([located_fault(path, error)]) from None
