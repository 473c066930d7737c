"""The registry of operators that have a formula.

A registry is an instance: importing this module reads, runs and registers nothing. A command
creates the registry of its operators and uses it until it ends. In a worker, and in a program that
calls the library, the first call of :func:`registry` creates one.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from onnx import defs

from onnxopt_cli.operators import builtin
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.operator_file import (
    installed_operators,
    operators_in,
    read_operators,
)
from onnxopt_cli.operators.schemas import register

#: Paths of operator files, separated as in PATH; a command sets it for the processes it starts.
VARIABLE = "ONNXOPT_OPERATORS"


class Registry:
    """Operators that have a formula, found by name.

    Args:
        operators: the initial operators.

    Attributes:
        operators: all operators, in the order in which they were added.
        files: the files from which operators were added.
    """

    def __init__(self, operators: Iterable[Operator] = ()) -> None:
        self.operators: list[Operator] = []
        self.files: list[Path] = []
        self._by_name: dict[tuple[str, str], Operator] = {}
        self.add(operators)

    @classmethod
    def builtin(cls) -> Registry:
        """Return a registry of the operators that come with onnxopt."""
        modules = pkgutil.iter_modules(builtin.__path__)
        names = [f"{builtin.__name__}.{module.name}" for module in modules]
        return cls([operator for name in names for operator in operators_in(import_module(name))])

    @classmethod
    def of_environment(cls) -> Registry:
        """Return a registry of built-in operators, and of those in installed packages and files.

        Packages declare entry points of the group ``onnxopt.operators``. The variable
        ONNXOPT_OPERATORS contains the paths of files. Both packages and files are executed.

        Raises:
            UsageError: naming the package, or file and line, if it defines no valid operator.
        """
        made = cls.builtin()
        made.add(installed_operators(made.operators))
        for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
            made.add_file(Path(path))
        return made

    def add(self, operators: Iterable[Operator]) -> list[Operator]:
        """Add operators, and return those that are new."""
        new = [operator for operator in operators if operator not in self.operators]
        self.operators.extend(new)
        self._by_name.update({(operator.domain, operator.name): operator for operator in new})
        return new

    def add_file(self, path: Path) -> list[Operator]:
        """Add the operators of a file, and return those that are new.

        Args:
            path: a Python file; its code runs, with the rights of this process.

        Raises:
            UsageError: naming file and line, if it defines no operator, or an invalid one.
        """
        path = Path(os.path.realpath(path))
        from_elsewhere = [operator for operator in self.operators if operator.file != path]
        operators = read_operators(path, from_elsewhere)
        if path not in self.files:
            self.files.append(path)
        return self.add(operators)

    def find(self, domain: str, name: str) -> Operator | None:
        """Return the operator of a node's domain and op_type; None if it has no formula."""
        return self._by_name.get((domain, name))

    def named(self, name: str) -> Operator | None:
        """Return the operator with this name, ignoring case; None if it is unknown."""
        lowered = name.lower()
        matches = (operator for operator in self.operators if operator.name.lower() == lowered)
        return next(matches, None)

    def register_schemas(self) -> None:
        """Register the schemas of all operators with onnx, for its checker and type inference.

        Call this before onnx inspects a model. The first call is slow, since onnx then builds its
        own schemas; a run that only evaluates formulas does not need it.
        """
        register(self.operators)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use this registry in this process, and in processes that it starts in this context."""
        global _in_use  # noqa: PLW0603 - one registry is in use at a time
        before, variable = _in_use, os.environ.get(VARIABLE)
        _in_use = self
        self.export()
        try:
            yield
        finally:
            _in_use = before
            if variable is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = variable
            self._forget_schemas(before)

    def export(self) -> None:
        """Set the variable from which child processes learn the operator files to load."""
        if self.files:
            os.environ[VARIABLE] = os.pathsep.join(map(str, self.files))

    def _forget_schemas(self, kept: Registry | None) -> None:
        """Deregister the schemas of this registry's files, except operators in another registry."""
        kept_operators = kept.operators if kept else []
        for operator in self.operators:
            is_unused = operator.file in self.files and operator not in kept_operators
            if is_unused and defs.has(operator.name, operator.domain):
                defs.deregister_schema(operator.name, operator.version, operator.domain)


_in_use: Registry | None = None


def registry() -> Registry:
    """Return the registry in use; the first call creates one if necessary.

    Raises:
        UsageError: as :meth:`Registry.of_environment` does.
    """
    global _in_use  # noqa: PLW0603 - one registry is in use at a time
    if _in_use is None:
        _in_use = Registry.of_environment()
    return _in_use


def unpickled(domain: str, name: str) -> Operator:
    """Return the operator that another process has pickled.

    Raises:
        LookupError: if this process does not have the operator.
    """
    operator = registry().find(domain, name)
    if operator is None:
        raise LookupError(f"unknown operator {name} of the domain {domain!r}")
    return operator
