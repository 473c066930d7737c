"""Rewrite formulas by replacing expressions of their syntax trees.

Mutants and reformulations that differ from a formula in one place are defined by that difference
instead of a second copy of the formula.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

Formula = Callable[..., Any]

_TREES: WeakKeyDictionary[Formula, ast.FunctionDef] = WeakKeyDictionary()


def rewrite(formula: Formula, replace: Mapping[str, str]) -> Formula:
    """Return the formula with replaced expressions or statements.

    All replacements apply to the original formula; where two overlap, the larger expression wins.

    Args:
        formula: a plain function with source, or a function that this module has made.
        replace: for each old expression or single statement, in any formatting, its replacement: an
            expression, or for a statement any number of statements, including none.

    Raises:
        ValueError: if an old expression or statement does not occur, or a text is not Python.
    """
    exchange = _Replacement(replace)
    tree = exchange.visit(formula_tree(formula))
    if exchange.unseen:
        raise ValueError(
            f"{formula.__name__} has no {' and no '.join(sorted(map(repr, exchange.unseen)))}"
        )
    return compile_tree(tree, formula)


def formula_tree(formula: Formula) -> ast.FunctionDef:
    """Return a copy of the formula's syntax tree, for the caller to change.

    Raises:
        ValueError: if the formula's source is not available, or is not that of a plain function.
    """
    if formula not in _TREES:
        _TREES[formula] = _parse_function(formula)
    tree: ast.FunctionDef = _copied(_TREES[formula])
    return tree


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
        raise ValueError(f"the source of {formula!r} is not at hand: {error}") from error
    try:
        tree = ast.parse(source).body[0]
    except SyntaxError as error:
        raise ValueError(f"{formula!r} is not a function written with def") from error
    # For a lambda that is used as a decorator, this is the source of the decorated function.
    if not isinstance(tree, ast.FunctionDef) or tree.name != formula.__name__:
        raise ValueError(f"{formula!r} is not a function written with def")
    if inspect.getclosurevars(formula).nonlocals:
        raise ValueError(f"{formula!r} takes names from the function around it")
    # Decorators of the original do not apply to rewritten functions.
    tree.decorator_list = []
    return tree


class _Replacement(ast.NodeTransformer):
    """Replaces the nodes that equal an old one in structure.

    Attributes:
        unseen: old expressions and statements that have not occurred.
    """

    def __init__(self, replace: Mapping[str, str]) -> None:
        # By the dump of the old node: its text, and its replacement.
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
        # Dumping a node is slow, and most nodes are of other kinds than the old ones.
        self._kinds = {key.partition("(")[0] for key in self._new}

    def visit(self, node: ast.AST) -> Any:
        key = ast.dump(node) if type(node).__name__ in self._kinds else ""
        if key not in self._new:
            return self.generic_visit(node)
        old, new = self._new[key]
        self.unseen.discard(old)
        return _copied(new)


def _copied(part: Any) -> Any:
    """Return a copy of a syntax tree, or of a part of one, much faster than copy.deepcopy."""
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
