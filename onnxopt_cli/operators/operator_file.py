"""Load operators from Python files and packages, and check their definitions."""

from __future__ import annotations

import inspect
import math
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from itertools import permutations
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from onnxopt_cli.core.files import run_file, shown_path
from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.errors import UsageError
from onnxopt_cli.operators import builtin
from onnxopt_cli.operators.operator import FLOATS, Operator
from onnxopt_cli.operators.rewrite import formula_tree, rewrite

# Packages provide operators by entry points of this group.
_GROUP = "onnxopt.operators"
_NAME = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_DOMAIN = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
# Names of the suites that are not named after built-in operators or their domains.
_RESERVED_SUITE_NAMES = frozenset(
    {"spec", "trajectories", "pairwise", "large", "operators", "gradient", "gallery"}
)


@cache
def builtin_operators() -> tuple[Operator, ...]:
    """Return the operators that come with onnxopt, in the order of their modules."""
    modules = pkgutil.iter_modules(builtin.__path__)
    names = [f"{builtin.__name__}.{module.name}" for module in modules]
    return tuple(operator for name in names for operator in operators_in(import_module(name)))


def operators_in(module: ModuleType) -> list[Operator]:
    """Return the operators at the top level of a module, in the order of their definition."""
    operators = (value for value in vars(module).values() if isinstance(value, Operator))
    return list(dict.fromkeys(operators))


def read_operators(path: Path, known: Iterable[Operator]) -> list[Operator]:
    """Run a file and return the operators that it defines.

    Args:
        path: a Python file. The code in the file runs with the rights of this process.
        known: the operators that already exist.

    Raises:
        UsageError: if the file fails, defines no operator, or defines an invalid operator. The
            message names the file and the line.
    """
    module = _run(path)
    if sys.stdout and sys.stdout.closed:
        raise UsageError(f"{printable(shown_path(path))} closes the standard output")
    operators = operators_in(module)
    if not operators:
        raise UsageError(
            f"{printable(shown_path(path))} defines no operator",
            hint="define an operator at the top level of the file: LION = Operator(...)",
        )
    _require_valid(operators, known, shown_path(path))
    return operators


def installed_operators(known: Iterable[Operator]) -> list[Operator]:
    """Return the operators of installed packages.

    Packages declare entry points of the group ``onnxopt.operators``. An entry point is an operator,
    or a module with operators at the top level.

    Args:
        known: the operators that already exist.

    Raises:
        UsageError: if an entry point cannot be loaded or is invalid. The message names the entry
            point.
    """
    operators: list[Operator] = []
    for entry_point in entry_points(group=_GROUP):
        where = f"the entry point {entry_point.name} = {entry_point.value}"
        try:
            loaded = entry_point.load()
        except Exception as error:
            raise UsageError(
                f"{printable(where)} of {_GROUP} cannot be loaded: {exception_text(error)}",
                hint="update or uninstall the package that it belongs to",
            ) from error
        new = operators_in(loaded) if isinstance(loaded, ModuleType) else [loaded]
        if not new or not all(isinstance(operator, Operator) for operator in new):
            raise UsageError(
                f"{printable(where)} of {_GROUP} is neither an operator nor a module with operators"
            )
        _require_valid(new, [*known, *operators], where)
        operators += new
    return operators


def _require_valid(operators: Sequence[Operator], known: Iterable[Operator], where: str) -> None:
    names = {operator.name.lower() for operator in known}
    for operator in operators:
        try:
            fault = next(_faults(operator, names), "")
        except Exception as error:  # noqa: BLE001 - fields of an operator may hold anything
            fault = exception_text(error)
        if fault:
            place = f"{printable(where)}{_first_line(operator, where)}"
            raise UsageError(f"{place}: {printable(str(operator.name))}: {fault}")
        names.add(operator.name.lower())


def _run(path: Path) -> ModuleType:
    where = printable(shown_path(path))
    if not path.is_file():
        raise UsageError(f"no operator file {where}")
    full = path.resolve()
    try:
        return run_file(full, f"onnxopt_operators_{sha256(bytes(full)).hexdigest()[:16]}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        line = failing_line(error, str(full))
        raise UsageError(f"{where}{line} does not run: {exception_text(error)}") from error


def failing_line(error: BaseException, path: str) -> str:
    """Return the line at which the code of a file failed, as ``:line``.

    The result is empty if the error occurred outside the file.
    """
    if isinstance(error, SyntaxError) and error.filename == path:
        return f":{error.lineno}"

    frames = extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    return f":{lines[-1]}" if lines else ""


def fault_in(operator: Operator, error: BaseException) -> str:
    """Return a message about the failure of a formula, with the line that failed."""
    code = operator.formula.__code__
    line = failing_line(error, code.co_filename) or f":{code.co_firstlineno}"
    return f"{printable(code.co_filename + line)}: {operator.name}: {exception_text(error)}"


def _first_line(operator: Operator, where: str) -> str:
    code = getattr(operator.formula, "__code__", None)
    if code is None or Path(code.co_filename) != Path(where).resolve():
        return ""
    return f":{code.co_firstlineno}"


def _faults(operator: Operator, names: Iterable[str]) -> Iterator[str]:
    """Yield the faults of an operator, basic faults first."""
    yield from _naming(operator, names)
    for part in ("scalars", "tensors", "attributes", "dtypes", "known_mistakes", "reformulations"):
        if not isinstance(getattr(operator, part), (tuple, list)):
            yield f"{part} is not a tuple; a tuple of one item is written ({part[:-1]},)"
    if not operator.tensors:
        yield "it has no tensors"
    try:
        formula_tree(operator.formula)
    except ValueError as error:
        yield str(error)
    yield from _operands(operator)
    yield from _signature(operator)
    yield from _scalars(operator)
    for kind, definitions in (
        ("known mistake", operator.known_mistakes),
        ("reformulation", operator.reformulations),
    ):
        yield from _replacements(operator, kind, definitions)


def _naming(operator: Operator, names: Iterable[str]) -> Iterator[str]:
    if not _NAME.fullmatch(operator.name):
        yield "the name is not a word of letters, digits and _"
    if operator.name.lower() in names:
        yield "an operator of this name already exists"
    if not _DOMAIN.fullmatch(operator.domain):
        yield f"the domain {operator.domain!r} does not consist of words separated by dots"
    if not _DOMAIN.fullmatch(operator.suite_name):
        yield f"the suite {operator.suite_name!r} does not consist of words separated by dots"
    reserved = _RESERVED_SUITE_NAMES.union(known.suite_name for known in builtin_operators())
    if operator.suite_name in reserved or operator.suite_name.startswith("onnx-"):
        yield f"the suite name {operator.suite_name} is reserved; choose another with suite="
    texts: tuple[object, ...] = (operator.about, operator.source)
    if not all(isinstance(text, str) for text in texts):
        yield "about or source is not text"
    if type(operator.version) is not int or operator.version < 1:
        yield "the version is not a positive integer"


def _signature(operator: Operator) -> Iterator[str]:
    types = {scalar.name: scalar.dtypes for scalar in operator.scalars} | {
        "the tensors": operator.dtypes
    }
    for name, allowed in types.items():
        unknown = [dtype for dtype in allowed if dtype not in DTYPES]
        if unknown or not allowed:
            yield f"{name}: {', '.join(unknown) or 'nothing'} is not an element type"
    parameters = inspect.signature(operator.formula).parameters.values()
    operands = [
        parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    keywords = [
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    ]
    expected = [*(scalar.name for scalar in operator.scalars), *operator.tensors]
    if operands != expected:
        yield (
            f"the formula takes {_listed(operands)}; scalars and tensors are {_listed(expected)}, "
            "in this order"
        )
    attributes = [attribute.name for attribute in operator.attributes]
    if sorted(keywords) != sorted(attributes):
        yield (
            f"the formula takes {_listed(keywords)} after the *; the attributes are "
            f"{_listed(attributes)}"
        )
    for output, like in operator.outputs.items():
        if like not in expected:
            yield f"the output {output} is like {like}, which is not a scalar or tensor"
    for groups in (1, 2):
        shared = {*operator.input_names(groups)} & {*operator.output_names(groups)}
        if shared:
            yield f"{_listed(sorted(shared))}: an output has the name of an input; rename it"
    if not operator.outputs:
        yield "it has no outputs"


def _operands(operator: Operator) -> Iterator[str]:
    for first, second in permutations(operator.tensors, 2):
        if second.startswith(first) and second[len(first) :].isdecimal():
            yield f"{second} is also the name of a tensor {first} if a node has several groups"
    for item in operator.attributes:
        least, largest = item.limits or (-math.inf, math.inf)
        if item.default is not None and not least <= item.default <= largest:
            yield f"{item.name} has the default {item.default:g}, which is outside its limits"


def _scalars(operator: Operator) -> Iterator[str]:
    for scalar in operator.scalars:
        if "int64" not in scalar.dtypes and not {*FLOATS} <= {*scalar.dtypes}:
            yield f"{scalar.name}: the types of a scalar are FLOATS, or ('int64',) for a count"
        for output, like in operator.outputs.items():
            if like == scalar.name and "int64" in scalar.dtypes:
                yield f"the output {output} is like {like}, a count; outputs have float types"


def _replacements(operator: Operator, kind: str, definitions: Sequence[object]) -> Iterator[str]:
    names: set[str] = set()
    attributes = {attribute.name for attribute in operator.attributes}
    for definition in definitions:
        name = str(getattr(definition, "name", definition))
        if name in names:
            yield f"two {kind}s are named {name!r}"
        names.add(name)
        for unknown in {*getattr(definition, "defaults", ())} - attributes:
            yield f"the {kind} {name!r}: unknown attribute {unknown}"
        try:
            rewrite(operator.formula, getattr(definition, "replace"))  # noqa: B009 - in both classes
        except ValueError as error:
            yield f"the {kind} {name!r}: {error}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
