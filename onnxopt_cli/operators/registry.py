"""The operators that have a formula: those of onnxopt, of installed packages and of files.

Whatever asks for operators finds those of the package ``builtin``, those of installed packages
(entry points of the group ``onnxopt.operators``), and those of the files that the variable
ONNXOPT_OPERATORS names, which the option ``--operators`` sets for the processes to come.
"""

from __future__ import annotations

import copyreg
import os
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pickle import PicklingError
from typing import Any

from onnxopt_cli.operators import builtin
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.operator_file import (
    installed_operators,
    operators_in,
    read_operators,
)
from onnxopt_cli.operators.schemas import register

#: Paths of operator files, separated as in PATH.
VARIABLE = "ONNXOPT_OPERATORS"

#: All that are known; files of the user's come last.
OPERATORS: list[Operator] = []
#: The user's files that some of them are from.
OPERATOR_FILES: list[Path] = []
_BY_NAME: dict[tuple[str, str], Operator] = {}


def add_operators(path: Path) -> list[Operator]:
    """Make the operators of a file known, and return those that were not.

    Args:
        path: a Python file; its code runs, with the rights of this process.

    Raises:
        UsageError: naming file and line, if it defines none, or one that is wrong.
    """
    path = Path(os.path.realpath(path))
    found = read_operators(path, [it for it in OPERATORS if it.file != path])
    if path not in OPERATOR_FILES:
        OPERATOR_FILES.append(path)
    return _add(found)


def _add(operators: list[Operator]) -> list[Operator]:
    new = [operator for operator in operators if operator not in OPERATORS]
    OPERATORS.extend(new)
    _BY_NAME.update({(operator.domain, operator.name): operator for operator in new})
    return new


def register_schemas() -> None:
    """Make onnx's checker and type inference accept the nodes of all operators.

    Call it before onnx is asked about a model. The first call takes a while, as onnx builds its own
    schemas then; a run of formulas does without.
    """
    register(OPERATORS)


def find_operator(domain: str, name: str) -> Operator | None:
    """Return the operator of a node's domain and op_type, None if we have no formula for it."""
    return _BY_NAME.get((domain, name))


def _reduced(operator: Operator) -> tuple[Callable[..., Any], tuple[str, str]]:
    """Return what finds an operator in another process, which has the same ones."""
    if find_operator(operator.domain, operator.name) is not operator:
        raise PicklingError(f"{operator.name} is changed, and would be found as it was")
    return find_operator, (operator.domain, operator.name)


copyreg.pickle(Operator, _reduced)


def operator_named(name: str) -> Operator | None:
    """Return the operator that a user calls ``Adam``, in any capitals."""
    return next((it for it in OPERATORS if it.name.lower() == name.lower()), None)


for _module in pkgutil.iter_modules(builtin.__path__):
    _add(operators_in(import_module(f"{builtin.__name__}.{_module.name}")))
_add(installed_operators(OPERATORS))
for _path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
    add_operators(Path(_path))
