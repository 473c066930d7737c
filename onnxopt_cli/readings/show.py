"""The formula as text: the function's own source, which is what every other reading calls."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap

from onnxopt_cli.operators.operator import Operator


def formula_text(operator: Operator) -> str:
    """Return the body of an operator's formula with its comments, without NumPy's prefix."""
    source = textwrap.dedent(inspect.getsource(operator.formula))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)  # noqa: S101 - a formula is a function
    docstring = function.body[0]
    body = source.splitlines()[docstring.end_lineno :]
    return re.sub(r"\bnp\.", "", textwrap.dedent("\n".join(body)))


def formula_description(operator: Operator) -> str:
    """Return the docstring of an operator's formula."""
    return inspect.getdoc(operator.formula) or ""
