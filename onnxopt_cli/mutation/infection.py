"""Find the mutants of Python functions that an input infects.

An input infects a mutant if two conditions hold: the run with this input reaches the changed
expression, and the changed expression has another value than the original. An input that does not
infect a mutant cannot distinguish the mutant from the original (weak mutation testing; Howden
1982). A single run of instrumented functions finds all infected mutants. Such a run is much faster
than running each mutant.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from onnxopt_cli.mutation.code_mutants import CodeMutant, changes, compiled, patched, syntax_tree

# The names by which instrumented functions call the methods of the InfectionRecorder.
_REACHED, _COMPARED, _TESTED = "__mutants_reached__", "__compared__", "__tested__"
# Names of the fields that hold the expression of a statement.
_FIELDS = ("value", "test", "iter")
# Methods and functions that change their arguments. Such calls are not evaluated a second time,
# because this would change the result of the original.
_CHANGING = frozenset({
    "append", "clear", "discard", "add", "extend", "fill", "insert", "next", "pop", "popitem",
    "put", "remove", "resize", "reverse", "setattr", "setdefault", "setflags", "shuffle", "sort",
    "update",
})  # fmt: skip
# Reference count of a list in _is_shared() if only the comparison refers to the list.
_LIST_REFERENCES = 4
# Reference count of an array in _is_shared() if only the comparison refers to the array.
_ARRAY_REFERENCES = 5


class InfectionRecorder:
    """Records which mutants are infected while instrumented functions run.

    Args:
        mutants: the mutants by name. If an operator has several versions, a mutant may change one
            function in each version.

    Attributes:
        infected: names of the mutants that have been infected.
        unknown: names of the mutants whose function cannot be instrumented. Any input may infect
            such a mutant.
    """

    def __init__(self, mutants: Mapping[str, Sequence[CodeMutant]]) -> None:
        self.infected: set[str] = set()
        self._is_comparing = False
        by_function: dict[FunctionType, dict[int, str]] = {}
        for name, changes_of_mutant in mutants.items():
            for change in changes_of_mutant:
                by_function.setdefault(change.function, {})[change.place] = name
        self._codes: dict[FunctionType, CodeType] = {}
        self.unknown: frozenset[str] = frozenset()
        for function, names in by_function.items():
            code = _instrumented(function, names)
            if code is None:
                self.unknown |= {*names.values()}
            else:
                self._codes[function] = code

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Instrument the functions while a ``with`` block runs."""
        names = {_REACHED: self._reached, _COMPARED: self._compared, _TESTED: self._tested}
        with ExitStack() as stack:
            for function, code in self._codes.items():
                function.__globals__.update(names)
                stack.enter_context(patched(function, code))
            try:
                yield
            finally:
                for function in self._codes:
                    for name in names:
                        function.__globals__.pop(name, None)

    def _reached(self, *names: str) -> None:
        if not self._is_comparing:
            self.infected.update(names)

    def _compared(self, value: Any, *changed: tuple[str, Callable[[], Any]]) -> Any:
        self._compare(changed, lambda changed_value: _same(value, changed_value))
        return value

    def _tested(self, value: Any, *changed: tuple[str, Callable[[], Any]]) -> bool:
        is_true = bool(value)
        self._compare(changed, lambda changed_value: bool(changed_value) == is_true)
        return is_true

    def _compare(
        self, changed: Iterable[tuple[str, Callable[[], Any]]], agrees: Callable[[Any], bool]
    ) -> None:
        if self._is_comparing:
            return
        for name, compute in changed:
            if name in self.infected:
                continue
            # A changed expression may call instrumented functions. These calls must not record
            # infections.
            self._is_comparing = True
            try:
                is_same = agrees(compute())
            except Exception:  # noqa: BLE001 - a changed expression may raise any exception
                is_same = False
            finally:
                self._is_comparing = False
            if not is_same:
                self.infected.add(name)


def _instrumented(function: FunctionType, names: Mapping[int, str]) -> CodeType | None:
    """Return a function's code with calls that report infections; None if the source is missing.

    Args:
        function: the function.
        names: the names of the mutants by the position of the change; see ``CodeMutant.place``.
    """
    tree = syntax_tree(function)
    if tree is None:
        return None
    instrumenter = _Instrumenter()
    for place, (statement, put, changed, _) in enumerate(changes(tree)):
        if place not in names:
            continue
        field, expression = _changed_field(statement, put, changed)
        if expression is None or not _is_repeatable(expression):
            instrumenter.reached.setdefault(statement, []).append(names[place])
        else:
            entries = instrumenter.compared.setdefault((statement, field), [])
            entries.append((names[place], expression))
    instrumenter.generic_visit(tree)
    return compiled(tree, function)


def _changed_field(
    statement: ast.stmt, put: Callable[[Any], Callable[[], None]], changed: Any
) -> tuple[str, ast.expr | None]:
    """Return the field of a statement that a mutant changes, and the new expression.

    The expression is None if the mutant changes more than a single expression.
    """
    if isinstance(changed, ast.Pass):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]):
                # Deleting an assignment has the same effect as assigning the variable to itself.
                return "value", ast.Name(name, ast.Load())
            case ast.If(orelse=[]):
                return "test", ast.Constant(value=False)
        return "", None
    before = {field: _dumped(statement, field) for field in _FIELDS}
    undo = put(changed)
    try:
        for field, text in before.items():
            if text is not None and _dumped(statement, field) != text:
                return field, deepcopy(getattr(statement, field))
    finally:
        undo()
    return "", None


def _dumped(statement: ast.stmt, field: str) -> str | None:
    expression = getattr(statement, field, None)
    return ast.dump(expression) if isinstance(expression, ast.expr) else None


def _is_repeatable(expression: ast.expr) -> bool:
    """Return whether a changed expression can be evaluated without side effects."""
    for node in ast.walk(expression):
        if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await):
            return False
        if isinstance(node, ast.keyword) and node.arg == "out":
            return False
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
            if name in _CHANGING and not _is_numpy_attribute(function):
                return False
    return True


def _is_numpy_attribute(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and ast.unparse(function.value) == "np"


class _Instrumenter(ast.NodeTransformer):
    """Inserts calls to a recorder into a function.

    Attributes:
        reached: for each statement, the names of the mutants that are infected whenever the
            statement is reached.
        compared: for each statement and field, the names of mutants with their changed expressions.
    """

    def __init__(self) -> None:
        self.reached: dict[ast.stmt, list[str]] = {}
        self.compared: dict[tuple[ast.stmt, str], list[tuple[str, ast.expr]]] = {}

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.stmt):
            return node
        self.generic_visit(node)
        for field in _FIELDS:
            entries = self.compared.get((node, field))
            if entries:
                recorder = _TESTED if field == "test" else _COMPARED
                setattr(node, field, _recorded(recorder, getattr(node, field), entries))
        names = self.reached.get(node)
        if not names:
            return node
        marker = _call(_REACHED, [ast.Constant(name) for name in names])
        return [ast.copy_location(ast.Expr(marker), node), node]


def _recorded(
    recorder: str, original: ast.expr, entries: Sequence[tuple[str, ast.expr]]
) -> ast.expr:
    no_arguments = ast.arguments([], [], None, [], [], None, [])
    pairs: list[ast.expr] = [
        ast.Tuple([ast.Constant(name), ast.Lambda(no_arguments, expression)], ast.Load())
        for name, expression in entries
    ]
    return ast.copy_location(_call(recorder, [original, *pairs]), original)


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


def _same(value: Any, other: Any) -> bool:
    """Return whether one value can replace the other in the rest of the run; False if uncertain."""
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if isinstance(value, np.ndarray):
        return _same_arrays(value, other)
    if isinstance(value, np.generic | float | complex):
        return repr(value) == repr(other)
    if isinstance(value, tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, list):
        if _is_shared(value, _LIST_REFERENCES) or _is_shared(other, _LIST_REFERENCES):
            # A later change of one object would not affect the other.
            return False
        return len(value) == len(other) and all(map(_same, value, other))
    if value is None or isinstance(value, bool | int | str | bytes | slice | range | np.dtype):
        return bool(value == other)
    return False


def _same_arrays(value: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if value.shape != other.shape or value.dtype != other.dtype:
        return False
    if value.__array_interface__["data"] != other.__array_interface__["data"] and (
        _is_shared(value, _ARRAY_REFERENCES) or _is_shared(other, _ARRAY_REFERENCES)
    ):
        # A later change of one array would not affect the other.
        return False
    if value.dtype == object:
        return repr(value.tolist()) == repr(other.tolist())
    return value.tobytes() == other.tobytes()


def _is_shared(value: Any, own_references: int) -> bool:
    """Return whether any other variable may refer to an object or to its memory."""
    if isinstance(value, np.ndarray) and value.base is not None:
        return True
    return sys.getrefcount(value) > own_references
