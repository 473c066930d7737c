"""Mutants of Python functions, each with one change of the syntax tree.

A mutant replaces the code object of a function. Therefore, the change takes effect wherever the
function is referenced: in classes, closures and other modules.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

_Operator = type[ast.operator] | type[ast.cmpop] | type[ast.boolop]
# For each operator of Python, the operators that replace it.
_OPERATORS: dict[_Operator, tuple[_Operator, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mult),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd, ast.BitOr),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
# Functions of NumPy, with their replacements.
_FUNCTIONS = {
    "abs": ("negative",), "absolute": ("negative",), "add": ("subtract",), "all": ("any",),
    "any": ("all",), "arccos": ("arcsin",), "arccosh": ("arcsinh",), "arcsin": ("arccos",),
    "arcsinh": ("arctan",), "arctan": ("tanh",), "arctanh": ("arctan",), "argmax": ("argmin",),
    "argmin": ("argmax",), "bitwise_and": ("bitwise_or",), "bitwise_or": ("bitwise_and",),
    "bitwise_xor": ("bitwise_or",), "ceil": ("floor", "round"), "cos": ("sin",), "cosh": ("sinh",),
    "cumprod": ("cumsum",), "cumsum": ("cumprod",), "equal": ("not_equal",),
    "exp": ("exp2", "expm1"),
    "floor": ("ceil", "trunc"), "fmod": ("mod",), "greater": ("greater_equal", "less"),
    "greater_equal": ("greater", "less_equal"), "isinf": ("isnan",), "isnan": ("isinf",),
    "less": ("less_equal", "greater"), "less_equal": ("less", "greater_equal"),
    "log": ("log2", "log1p"), "log1p": ("log",), "logical_and": ("logical_or",),
    "logical_or": ("logical_and",), "logical_xor": ("logical_or",), "max": ("min",),
    "maximum": ("minimum", "fmax"), "mean": ("sum",), "min": ("max",),
    "minimum": ("maximum", "fmin"),
    "mod": ("fmod",), "multiply": ("divide",), "divide": ("multiply",), "prod": ("sum",),
    "rint": ("floor", "ceil", "trunc"), "round": ("floor", "ceil", "trunc"), "sign": ("abs",),
    "sin": ("cos",), "sinh": ("cosh",), "sqrt": ("square",), "square": ("abs",),
    "subtract": ("add",), "sum": ("mean", "prod"), "tan": ("tanh",), "tanh": ("tan",),
    "trunc": ("floor", "round"), "zeros": ("ones",), "zeros_like": ("ones_like",),
    "ones": ("zeros",), "ones_like": ("zeros_like",),
}  # fmt: skip
# Functions of NumPy whose two arguments are not exchanged, because the result would be the same.
# ``add`` is not among them, because it also concatenates texts.
_COMMUTATIVE = frozenset({
    "bitwise_and", "bitwise_or", "bitwise_xor", "equal", "logical_and", "logical_or", "logical_xor",
    "maximum", "minimum", "not_equal",
})  # fmt: skip
# Calls of these functions are not replaced: a replacement would affect only messages and checks.
_UNCHANGED_CALLS = frozenset(
    {"super", "isinstance", "len", "hasattr", "getattr", "setattr", "repr"}
)
_MAX_NAME_CHARS = 120


@dataclass(frozen=True, slots=True, eq=False)
class CodeMutant:
    """A changed function.

    Attributes:
        name: the name of the function, the changed statement, and the original statement.
        about: a description of the change in one sentence.
        function: the original function.
        code: the code object of the changed function.
        place: the position of the change in the sequence that :func:`changes` yields.
    """

    name: str
    about: str
    function: FunctionType
    code: CodeType
    place: int


@contextmanager
def patched(function: FunctionType, code: CodeType) -> Iterator[None]:
    """Replace the code object of a function within a ``with`` block."""
    original = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = original


def code_mutants(function: FunctionType) -> Iterator[CodeMutant]:
    """Yield the mutants of a function in the order of its source.

    A function has no mutants if its source is missing, or if the compiled source cannot replace the
    function's code.
    """
    tree = syntax_tree(function)
    if tree is None or compiled(tree, function) is None:
        return
    names: Counter[str] = Counter()
    for place, (statement, put, changed, about) in enumerate(changes(tree)):
        before, text = _text(statement), ast.unparse(statement)
        undo = put(changed)
        is_deleted = isinstance(changed, ast.Pass)
        is_new = is_deleted or ast.unparse(statement) != text
        code = compiled(tree, function) if is_new else None
        after = "nothing" if is_deleted else _text(statement)
        undo()
        if code is not None:
            name = f"{function.__qualname__.rpartition('.')[2]}: {after}, not {before}"
            names[name] += 1
            number = f" ({names[name]})" if names[name] > 1 else ""
            yield CodeMutant(name + number, about, function, code, place)


def syntax_tree(function: FunctionType) -> ast.FunctionDef | None:
    """Return the syntax tree of a function, with the line numbers of its file."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    ast.increment_lineno(tree, first - 1)
    (definition,) = tree.body
    return definition if isinstance(definition, ast.FunctionDef) else None


def compiled(tree: ast.FunctionDef, function: FunctionType) -> CodeType | None:
    """Compile a changed syntax tree; return None if the result cannot replace the function's code.

    A code object can replace another only if both have the same free variables. Therefore, the
    definition is compiled within a function that binds the free variables of the original.
    Decorators and annotations are left out, because they are not part of the code object.
    """
    names = list(function.__code__.co_freevars)
    bindings: list[ast.stmt] = [
        ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in names
    ]
    definition = ast.copy_location(ast.FunctionDef(tree.name, tree.args, tree.body, [], None), tree)
    outer = ast.FunctionDef(
        "outer",
        ast.arguments([], [], None, [], [], None, []),
        [*bindings, definition],
        [],
        None,
    )
    module = ast.Module([outer], [])
    ast.fix_missing_locations(module)
    try:
        code = compile(
            module,
            function.__code__.co_filename,
            "exec",
            flags=function.__code__.co_flags & __future__.annotations.compiler_flag,
            dont_inherit=True,
        )
    except (SyntaxError, ValueError, TypeError):
        return None
    (outer_code,) = (item for item in code.co_consts if isinstance(item, CodeType))
    for item in outer_code.co_consts:
        if isinstance(item, CodeType) and item.co_name == tree.name:
            return item if item.co_freevars == function.__code__.co_freevars else None
    return None


#: A function that replaces a node of the syntax tree by its argument. It returns a function that
#: restores the old node.
Put = Callable[[Any], Callable[[], None]]


def changes(tree: ast.FunctionDef) -> Iterator[tuple[ast.stmt, Put, Any, str]]:
    """Yield the possible changes of a function's syntax tree.

    A change consists of four items: the statement to change, the function that replaces the old
    node, the new node, and a description.
    """
    for block, index in _blocks(tree):
        statement = block[index]
        if isinstance(statement, ast.Raise) or _is_docstring(statement) or _is_check(statement):
            continue
        if not isinstance(statement, ast.Return | ast.FunctionDef | ast.Pass):
            about = f"The statement {_text(statement)!r} was deleted."
            replacement = ast.copy_location(ast.Pass(), statement)
            yield statement, partial(_put_item, block, index), replacement, about
        yield from _expression_changes(statement)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_check(statement: ast.stmt) -> bool:
    """Return whether a statement does nothing except raise an exception for an invalid node."""
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and all(isinstance(inner, ast.Raise) for inner in statement.body)
    ) or isinstance(statement, ast.Assert)


def _blocks(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    """Yield the block and the index of each statement; outer statements come before inner ones."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(tree, field, None)
        if not isinstance(block, list):
            continue
        for index, statement in enumerate(block):
            yield block, index
            yield from _blocks(statement)


def _put_item(items: list[Any], index: int, new: Any) -> Callable[[], None]:
    old = items[index]
    items[index] = new
    return partial(items.__setitem__, index, old)


def _put_field(parent: Any, field: str, new: Any) -> Callable[[], None]:
    old = getattr(parent, field)
    setattr(parent, field, new)
    return partial(setattr, parent, field, old)


def _expression_changes(statement: ast.stmt) -> Iterator[tuple[ast.stmt, Put, Any, str]]:
    """Yield the changes of a statement's expressions, without those of inner statements."""
    for node, put in _expressions(statement):
        text = ast.unparse(node)
        for new, about in _replacements(node, text):
            yield statement, put, ast.copy_location(new, node), about


def _expressions(parent: ast.AST) -> Iterator[tuple[ast.expr, Put]]:
    for field, value in ast.iter_fields(parent):
        if field in {"body", "orelse", "finalbody", "annotation", "returns"} and isinstance(
            parent, ast.stmt
        ):
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.expr):
                put = (
                    partial(_put_field, parent, field)
                    if index is None
                    else partial(_put_item, value, index)
                )
                if not isinstance(getattr(child, "ctx", None), ast.Store):
                    yield child, put
            if isinstance(child, ast.expr | ast.comprehension | ast.keyword | ast.slice):
                yield from _expressions(child)


def _replacements(node: ast.expr, text: str) -> Iterator[tuple[ast.expr, str]]:
    """Yield each replacement of an expression with its description; ``text`` is the source."""
    for new in _other_operators(node):
        yield new, f"{text} became {ast.unparse(new)}."
    match node:
        case ast.IfExp():
            yield node.body, f"The first branch of {text} is always taken."
            yield node.orelse, f"The second branch of {text} is always taken."
        case ast.Constant():
            for value in _other_constants(node.value):
                yield ast.Constant(value), f"{text} became {value!r}."
        case ast.Call():
            yield from _call_replacements(node, text)
        case ast.Attribute(value=ast.Name(id="np")):
            for name in _FUNCTIONS.get(node.attr, ()):
                yield ast.Attribute(node.value, name, node.ctx), f"{text} became np.{name}."
        case ast.Slice(lower=ast.expr(), upper=upper, step=step):
            yield ast.Slice(None, upper, step), f"The start of the slice {text} was omitted."


def _other_operators(node: ast.expr) -> Iterator[ast.expr]:
    """Yield variants of an expression: with another operator, or reduced to one operand."""
    match node:
        case ast.BinOp():
            for operator in _OPERATORS.get(type(node.op), ()):
                yield ast.BinOp(node.left, operator(), node.right)  # type: ignore[arg-type]
            yield from (node.left, node.right)
        case ast.Compare(ops=[comparison], comparators=[_]):
            for operator in _OPERATORS.get(type(comparison), ()):
                yield ast.Compare(node.left, [operator()], node.comparators)  # type: ignore[list-item]
        case ast.BoolOp():
            for operator in _OPERATORS.get(type(node.op), ()):
                yield ast.BoolOp(operator(), node.values)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node.operand


def _other_constants(value: object) -> Sequence[bool | int | float]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1)
    if isinstance(value, float):
        return (value + 1, -value if value else -1.0, value / 2)
    return ()


def _call_replacements(node: ast.Call, text: str) -> Iterator[tuple[ast.expr, str]]:
    """Yield each replacement of a call with its description; ``text`` is the source."""
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    if name in _UNCHANGED_CALLS:
        return
    for new in (*_other_functions(function, node), *_without_function(name, node)):
        yield new, f"{text} became {ast.unparse(new)}."
    for keyword in node.keywords:
        if keyword.arg in {"axis", "keepdims", "mode"}:
            remaining = [entry for entry in node.keywords if entry is not keyword]
            yield ast.Call(function, node.args, remaining), f"{keyword.arg} was omitted in {text}."


# Built-in functions, with their replacements.
_BUILT_IN = {"min": "max", "max": "min", "any": "all", "all": "any", "round": "int"}
# Methods, with their replacements.
_METHODS = {"max": "min", "min": "max", "sum": "mean", "mean": "sum", "any": "all", "all": "any"}
# Calls of these methods are replaced by the object itself: ``x.astype(t)`` becomes ``x``.
_CONVERSIONS = frozenset({"astype", "reshape", "transpose", "squeeze", "clip"})


def _other_functions(function: ast.expr, node: ast.Call) -> Iterator[ast.expr]:
    """Yield a call of another built-in function or method.

    Functions of NumPy are excluded, because they are replaced as attributes of ``np``.
    """
    match function:
        case ast.Name(id=name) if name in _BUILT_IN:
            replacement = ast.Name(_BUILT_IN[name], ast.Load())
            yield ast.Call(replacement, node.args, node.keywords)
        case ast.Attribute(value=value, attr=name) if name in _METHODS and not _is_numpy(function):
            method = ast.Attribute(value, _METHODS[name], ast.Load())
            yield ast.Call(method, node.args, node.keywords)


def _without_function(name: str, node: ast.Call) -> Iterator[ast.expr]:
    """Yield replacements of a call: its object, an argument, or the call with swapped arguments."""
    function, arguments = node.func, node.args
    if isinstance(function, ast.Attribute) and name in _CONVERSIONS and not _is_numpy(function):
        yield function.value
    if any(isinstance(argument, ast.Starred) for argument in arguments):
        return
    match arguments:
        case [first, *_] if _is_numpy(function) or name in {"abs", "sorted", "reversed", "int"}:
            yield first
    match arguments:
        case [first, second] if not (_is_numpy(function) and name in _COMMUTATIVE):
            yield ast.Call(function, [second, first], node.keywords)
        case [condition, first, second] if name == "where":
            yield ast.Call(function, [condition, second, first], [])
            yield second


def _is_numpy(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and ast.unparse(function.value) == "np"


def _text(statement: ast.stmt) -> str:
    """Return one line of text for a statement, without the blocks of a compound statement."""
    match statement:
        case ast.If() | ast.While():
            text = f"{type(statement).__name__.lower()} {ast.unparse(statement.test)}"
        case ast.For():
            text = f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
        case _:
            text = ast.unparse(statement).split("\n", 1)[0]
    return text if len(text) <= _MAX_NAME_CHARS else text[: _MAX_NAME_CHARS - 3] + "..."
