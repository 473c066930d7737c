"""Automatic mutants of a formula: changes of one expression or one statement of its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import product

from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.rewrite import (
    Formula,
    compile_tree,
    formula_tree,
)

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**",
}  # fmt: skip
_LOGIC: dict[type[ast.operator], str] = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_NUMBERS = (0, 1, 2, 0.5, -1)
_FUNCTIONS = ("sqrt", "square", "abs", "cbrt", "exp", "sign")

#: A change: its description, and the expression that replaces the old expression.
Change = tuple[str, ast.expr]
#: A function that replaces an expression by another expression.
Put = Callable[[ast.expr], None]


@cache
def mutants(operator: Operator) -> tuple[Implementation, ...]:
    """Return the operator's automatic mutants, in the order of the formula.

    Some mutants are equivalent to the formula; see
    :func:`~onnxopt_cli.mutation.equivalence.equivalent`.
    """
    tree = formula_tree(operator.formula)
    # The docstring is not mutated.
    tree.body = tree.body[ast.get_docstring(tree) is not None :]
    choices = [choice for attribute in operator.attributes for choice in attribute.choices]
    by_source: dict[str, Implementation] = {}
    original = ast.unparse(tree)
    for statement, node, put, names in _places(tree, _numeric_arguments(operator)):
        before = _text(statement)
        for about, expression in _changes(node, names, choices):
            put(expression)
            source = ast.unparse(tree)
            if source != original and source not in by_source:
                by_source[source] = Implementation(
                    name=f"{_text(statement)}, not {before}",
                    about=about,
                    change=lru_cache(partial(_compiled, source)),
                )
        put(node)
    return tuple(by_source.values())


@cache
def name_mutants(operator: Operator) -> tuple[Implementation, ...]:
    """Return mutants in which one statement uses other names, in the order of the formula.

    In one kind of mutant, two names are exchanged in a statement. In the other kind, one name is
    replaced wherever the statement uses it. In contrast, :func:`mutants` replaces single uses.
    """
    tree = formula_tree(operator.formula)
    tree.body = tree.body[ast.get_docstring(tree) is not None :]
    by_source: dict[str, Implementation] = {}
    for statement, names in _statements_and_names(tree, _numeric_arguments(operator)):
        before = _text(statement)
        uses = [
            node
            for field in _expression_fields(statement)
            for node in ast.walk(getattr(statement, field))
            if isinstance(node, ast.Name) and node.id in names
        ]
        old_names = [node.id for node in uses]
        for first, second in product(dict.fromkeys(old_names), names):
            if first == second:
                continue
            exchange = f"{first} and {second} were exchanged.", {first: second, second: first}
            replacement = f"{first} became {second}.", {first: second}
            for about, renamed in (
                (exchange, replacement) if second in old_names else (replacement,)
            ):
                for node, name in zip(uses, old_names, strict=True):
                    node.id = renamed.get(name, name)
                source = ast.unparse(tree)
                mutant = Implementation(
                    f"{_text(statement)}, not {before}",
                    about,
                    change=lru_cache(partial(_compiled, source)),
                )
                by_source.setdefault(source, mutant)
        for node, name in zip(uses, old_names, strict=True):
            node.id = name
    return tuple(by_source.values())


def _numeric_arguments(operator: Operator) -> list[str]:
    numbers = [attribute.name for attribute in operator.attributes if not attribute.choices]
    return [*operator.input_names(1), *numbers]


def _compiled(source: str, formula: Formula) -> Formula:
    (tree,) = ast.parse(source).body
    if not isinstance(tree, ast.FunctionDef):
        raise TypeError(f"a formula is a function, not {source!r}")
    return compile_tree(tree, formula)


def _text(statement: ast.stmt) -> str:
    """Return one line of text for a statement, without the branches of an ``if``."""
    if isinstance(statement, ast.If):
        return f"if {ast.unparse(statement.test)}"
    return ast.unparse(statement)


def _changes(node: ast.expr, names: Sequence[str], choices: Sequence[str]) -> Iterator[Change]:
    """Yield the changes of an expression; the new expression may equal the old one.

    Args:
        node: the expression.
        names: names of the numbers that are defined at this point of the formula.
        choices: the possible values of string attributes.
    """
    text = ast.unparse(node)
    named = text in names
    variables = [(f"{text} became {name}.", ast.Name(name, ast.Load())) for name in names]
    numbers = [(f"{text} became {number}.", ast.Constant(number)) for number in _NUMBERS]
    match node:
        case ast.BinOp():
            yield from _binary_changes(node)
        case ast.Compare():
            yield from _comparison_changes(node)
        case ast.Call():
            yield from _call_changes(node)
        case ast.Name() if named:
            yield from (*variables, *numbers)
        case ast.Constant(value=str()):
            yield from ((f"{text} became {choice!r}.", ast.Constant(choice)) for choice in choices)
        case ast.Constant():
            yield from (*numbers, *variables)
    if named or isinstance(node, ast.BinOp | ast.Call):
        yield f"{text} became negative.", ast.UnaryOp(ast.USub(), node)
        yield f"{text} was squared.", ast.BinOp(node, ast.Mult(), node)


def _binary_changes(node: ast.BinOp) -> Iterator[Change]:
    kinds = next((table for table in (_ARITHMETIC, _LOGIC) if type(node.op) in table), {})
    old = kinds.get(type(node.op), "")
    for kind, new in kinds.items():
        yield f"{old} became {new}.", ast.BinOp(node.left, kind(), node.right)
    yield f"The operands of {old} were exchanged.", ast.BinOp(node.right, node.op, node.left)
    yield f"{ast.unparse(node.right)} was dropped.", node.left
    yield f"{ast.unparse(node.left)} was dropped.", node.right


def _comparison_changes(node: ast.Compare) -> Iterator[Change]:
    (old,), (right,) = node.ops, node.comparators
    for kind, new in _COMPARISONS.items():
        about = f"{_COMPARISONS[type(old)]} became {new}."
        yield about, ast.Compare(node.left, [kind()], [right])
    for value in (True, False):
        yield f"{ast.unparse(node)} became {value}.", ast.Constant(value)


def _call_changes(node: ast.Call) -> Iterator[Change]:
    function = ast.unparse(node.func)
    match node.args:
        case [argument]:
            yield f"{function} was dropped.", argument
            for name in _FUNCTIONS:
                replacement = ast.Attribute(ast.Name("np", ast.Load()), name, ast.Load())
                yield f"{function} became np.{name}.", ast.Call(replacement, [argument], [])
        case [argument, _]:
            yield f"{function} was dropped.", argument
        case [condition, first, second]:
            yield "The first branch is always taken.", first
            yield "The second branch is always taken.", second
            exchanged = ast.Call(node.func, [condition, second, first], [])
            yield "The branches were exchanged.", exchanged


def _places(
    tree: ast.FunctionDef, names: list[str]
) -> Iterator[tuple[ast.stmt, ast.expr, Put, Sequence[str]]]:
    """Yield each expression of a formula.

    The items are the statement, the expression, a function that replaces the expression, and the
    names that are defined before the statement.

    Args:
        tree: the formula.
        names: its numeric arguments; the names that statements assign are appended to this list.
    """
    for statement, defined in _statements_and_names(tree, names):
        for node, put in _expressions(statement, _expression_fields(statement)):
            yield statement, node, put, defined


def _statements_and_names(
    tree: ast.FunctionDef, names: list[str]
) -> Iterator[tuple[ast.stmt, Sequence[str]]]:
    """Yield each statement with the names that are defined before it.

    Args:
        tree: the formula.
        names: its numeric arguments; the names that statements assign are appended to this list.
    """
    for statement in _statements(tree.body):
        yield statement, names
        if isinstance(statement, ast.Assign):
            targets = (target.id for target in statement.targets if isinstance(target, ast.Name))
            names += [target for target in targets if target not in names]


def _expression_fields(statement: ast.stmt) -> tuple[str, ...]:
    return tuple(name for name in ("test", "value") if name in statement._fields)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for within in ("body", "orelse"):
            yield from _statements(getattr(statement, within, []))


def _expressions(parent: ast.AST, fields: tuple[str, ...]) -> Iterator[tuple[ast.expr, Put]]:
    """Yield each expression with a function that replaces it."""
    for field in fields:
        value = getattr(parent, field)
        several = isinstance(value, list)
        for index, child in enumerate(value if several else [value]):
            if isinstance(child, ast.expr):
                in_field = partial(setattr, parent, field)
                yield child, partial(value.__setitem__, index) if several else in_field
                # The name of a function is not an operand.
                inner = ("args",) if isinstance(child, ast.Call) else child._fields
                yield from _expressions(child, inner)
