"""Rewrite the source code of formulas, and show formulas and their differences as text.

A known mistake or reformulation is not a second copy of the formula. It is defined by the
expressions in which it differs from the formula.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from copy import copy
from difflib import ndiff
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

Formula = Callable[..., Any]

_TREES: WeakKeyDictionary[Formula, ast.FunctionDef] = WeakKeyDictionary()


def rewrite(formula: Formula, replace: Mapping[str, str]) -> Formula:
    """Return the formula with replaced expressions or statements.

    Replacements apply to the original formula, not to the result of other replacements. If one old
    expression contains another, only the larger expression is replaced.

    Args:
        formula: a plain function with source, or a result of this function.
        replace: maps an old expression to a new expression, or an old statement to any number of
            statements, possibly none. The formatting does not matter.

    Raises:
        ValueError: if the formula lacks an old expression or statement, or if a text is not valid
            Python.
    """
    exchange = _Replacement(replace)
    tree = exchange.replaced(_own_tree(formula))
    if exchange.unseen:
        raise ValueError(
            f"{formula.__name__} has no {' and no '.join(sorted(map(repr, exchange.unseen)))}"
        )
    return compile_tree(tree, formula)


def formula_tree(formula: Formula) -> ast.FunctionDef:
    """Return a copy of the formula's syntax tree, which the caller may modify.

    Raises:
        ValueError: if the source is not available, or the formula is not a plain function.
    """
    tree: ast.FunctionDef = _copied(_own_tree(formula))
    return tree


def _own_tree(formula: Formula) -> ast.FunctionDef:
    """Return the formula's syntax tree, which may share nodes with trees of other formulas."""
    if formula not in _TREES:
        _TREES[formula] = _parse_function(formula)
    return _TREES[formula]


def compile_tree(tree: ast.FunctionDef, like: Formula) -> Formula:
    """Return the function that a tree defines, with the globals of another function.

    The function takes ownership of the tree.
    """
    module = ast.fix_missing_locations(ast.Module(body=[tree], type_ignores=[]))
    code = compile(module, f"<rewritten {like.__module__}.{like.__qualname__}>", "exec")
    names: dict[str, Formula] = {}
    exec(code, like.__globals__, names)  # noqa: S102 - our own source
    function = names[tree.name]
    _TREES[function] = tree
    return function


def _parse_function(formula: Formula) -> ast.FunctionDef:
    try:
        source = textwrap.dedent(inspect.getsource(formula))
    except (OSError, TypeError) as error:
        raise ValueError(f"the source of {formula!r} is not available: {error}") from error
    try:
        tree = ast.parse(source).body[0]
    except SyntaxError as error:
        raise ValueError(f"{formula!r} is not a function written with def") from error
    # For a lambda in a decorator, inspect returns the source of the decorated function.
    if not isinstance(tree, ast.FunctionDef) or tree.name != formula.__name__:
        raise ValueError(f"{formula!r} is not a function written with def")
    if inspect.getclosurevars(formula).nonlocals:
        raise ValueError(f"{formula!r} uses variables of an enclosing function")
    # Decorators of the original do not apply to rewritten functions.
    tree.decorator_list = []
    return tree


class _Replacement:
    """Replaces those nodes of a syntax tree that equal old expressions or statements.

    The result shares the unchanged nodes with the tree, because copying a tree takes longer than
    replacing its nodes.

    Attributes:
        unseen: old expressions and statements that have not occurred.
    """

    def __init__(self, replace: Mapping[str, str]) -> None:
        # A key is the dump of an old node. A value consists of the text of the old node in
        # `replace`, and of the new node or nodes.
        self._new: dict[str, tuple[str, ast.expr | list[ast.stmt]]] = {}
        for old, new in replace.items():
            statements = _parse(old)
            if len(statements) != 1:
                raise ValueError(f"{old!r} is not one expression or statement")
            statement = statements[0]
            if isinstance(statement, ast.Expr):
                self._new[ast.dump(statement.value)] = old, _parse_expression(new)
            else:
                self._new[ast.dump(statement)] = old, _parse(new)
        self.unseen = set(replace)
        # Dumping a node is slow, so a node is dumped only if an old node has the same kind.
        self._kinds = {key.partition("(")[0] for key in self._new}

    def replaced(self, part: Any) -> Any:
        """Return a node or a list of nodes with replacements.

        If nothing is replaced, ``part`` itself is returned.
        """
        if isinstance(part, list):
            new_items: list[Any] = []
            for item in part:
                new_item = self.replaced(item)
                new_items += new_item if isinstance(new_item, list) else [new_item]
            is_unchanged = len(new_items) == len(part) and all(map(is_, new_items, part))
            return part if is_unchanged else new_items
        if not isinstance(part, ast.AST):
            return part
        key = ast.dump(part) if type(part).__name__ in self._kinds else ""
        if key in self._new:
            old, new = self._new[key]
            self.unseen.discard(old)
            return _copied(new)
        result = part
        for name, value in ast.iter_fields(part):
            new_value = self.replaced(value)
            if new_value is not value:
                result = copy(part) if result is part else result
                setattr(result, name, new_value)
        return result


def _copied(part: Any) -> Any:
    """Return a copy of a node or of a list of nodes; much faster than copy.deepcopy."""
    if isinstance(part, list):
        return [_copied(item) for item in part]
    if not isinstance(part, ast.AST) or not part._fields:
        return part
    # Newer versions of Python warn if a node is constructed without its fields.
    new = part.__new__(type(part))
    for name, value in part.__dict__.items():
        setattr(new, name, _copied(value) if isinstance(value, (list, ast.AST)) else value)
    return new


def _parse_expression(text: str) -> ast.expr:
    statements = _parse(text)
    if len(statements) != 1 or not isinstance(statements[0], ast.Expr):
        raise ValueError(f"{text!r} is not an expression")
    return statements[0].value


def _parse(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(text)).body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not Python: {error.msg}") from error


def formula_text(formula: Formula) -> str:
    """Return the body of a formula with its comments, without NumPy's prefix."""
    lines = inspect.getsource(formula).splitlines()
    tree = formula_tree(formula)
    first = tree.body[0]
    start = first.lineno - 1
    if _has_docstring(tree):
        start = first.end_lineno or start
    else:
        while lines[start - 1].lstrip().startswith("#"):
            start -= 1
    return re.sub(r"\bnp\.", "", textwrap.dedent("\n".join(lines[start:])))


def _has_docstring(function: ast.FunctionDef) -> bool:
    return ast.get_docstring(function, clean=False) is not None


def formula_difference(formula: Formula, mutant: Formula) -> list[str]:
    """Return a diff of a formula and a mutant as lines, which begin with -, + or a space.

    The list is empty if the mutant equals the formula, or if either of them has no Python source.
    """
    try:
        trees = formula_tree(formula), formula_tree(mutant)
    except ValueError:
        return []
    texts = []
    for tree in trees:
        body = "\n".join(map(ast.unparse, tree.body[_has_docstring(tree) :]))
        texts.append(re.sub(r"\bnp\.", "", body).splitlines())
    if texts[0] == texts[1]:
        return []
    return [line for line in ndiff(texts[0], texts[1]) if not line.startswith("?")]


def formula_description(formula: Formula) -> str:
    """Return the docstring of a formula, with each paragraph and each list item in one line."""
    lines: list[str] = []
    literal = False
    start = ""
    for line in (inspect.getdoc(formula) or "").splitlines():
        # After a double colon, indented lines are kept as they are.
        literal = line.startswith(" ") or not line if literal else start.endswith("::")
        if literal or not line or not start or _begins(line, start):
            lines.append(line)
            start = line
        else:
            lines[-1] += f" {line.strip()}"
            start = start if start.startswith((" ", "-")) else lines[-1]
    return "\n".join(lines)


def _begins(line: str, start: str) -> bool:
    """Return whether a line begins a new item instead of continuing the previous item."""
    indent, start_indent = (len(text) - len(text.lstrip()) for text in (line, start))
    is_heading = re.fullmatch(r"\w+:", start) is not None
    is_entry = indent == start_indent and re.match(r"\s+[\w, ]+: ", line) is not None
    return is_heading or is_entry or indent < start_indent or line.startswith("- ")
