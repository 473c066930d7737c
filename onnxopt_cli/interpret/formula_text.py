"""The source of a formula as text for users, and the differences of a mutant."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from difflib import ndiff

from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.rewrite import Formula, formula_tree


def formula_text(operator: Operator) -> str:
    """Return the body of an operator's formula with its comments, without NumPy's prefix."""
    lines = inspect.getsource(operator.formula).splitlines()
    tree = formula_tree(operator.formula)
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


def formula_difference(operator: Operator, formula: Formula) -> list[str]:
    """Return the difference of a mutant's formula as lines that begin with -, + or a space.

    The list is empty if the formula is the operator's own, or has no Python source.
    """
    try:
        trees = formula_tree(operator.formula), formula_tree(formula)
    except ValueError:
        return []
    texts = []
    for tree in trees:
        body = "\n".join(map(ast.unparse, tree.body[_has_docstring(tree) :]))
        texts.append(re.sub(r"\bnp\.", "", body).splitlines())
    if texts[0] == texts[1]:
        return []
    return [line for line in ndiff(texts[0], texts[1]) if not line.startswith("?")]


def formula_description(operator: Operator) -> str:
    """Return the docstring of an operator's formula with each paragraph and item in one line."""
    lines: list[str] = []
    literal = False
    start = ""
    for line in (inspect.getdoc(operator.formula) or "").splitlines():
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
    """Return whether a line begins a new item instead of continuing the previous one."""
    indent, start_indent = (len(text) - len(text.lstrip()) for text in (line, start))
    is_heading = re.fullmatch(r"\w+:", start) is not None
    is_entry = indent == start_indent and re.match(r"\s+[\w, ]+: ", line) is not None
    return is_heading or is_entry or indent < start_indent or line.startswith("- ")
