"""Element types that an operator's schema leaves to a case, chosen for all its values together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx.defs import OpSchema

from onnxopt_cli.cases.values.declared import (
    Declared,
    DeclaredOptional,
    DeclaredSequence,
    DeclaredTensor,
)
from onnxopt_cli.cases.values.tensor_text import has_dtype, natural_dtype, untyped_kinds
from onnxopt_cli.cases.yaml.subject import CaseFields
from onnxopt_cli.cases.yaml.syntax import FormatError, Node
from onnxopt_cli.core.values import DTYPES, dtype_name, dtype_named

_TENSOR = re.compile(r"tensor\(([a-z0-9_]+)\)")

#: A formal parameter, and the value that the case gives for it.
Given = tuple[OpSchema.FormalParameter, Node]


class TypeVariables:
    """The type variables of one operator's schema, bound as its values are read."""

    def __init__(self, fields: CaseFields) -> None:
        self._fields = fields
        self._bound: dict[str, np.dtype[Any]] = {}

    def declare(self, given: Sequence[Given]) -> list[Declared | None]:
        """Read values, None for those with something wrong, which is collected.

        Those that say their element type bind the variable for those that do not; of the others,
        one float makes all of a variable float32.
        """
        values: dict[int, Declared | None] = {}
        for index, (formal, node) in enumerate(given):
            if has_dtype(node):
                values[index] = self._value(formal, node, frozenset())
        for index, (formal, node) in enumerate(given):
            if index not in values:
                alike = [other for form, other in given if _variable(form) == _variable(formal)]
                same = [node] if _variable(formal) is None else alike
                kinds = frozenset().union(*map(untyped_kinds, same))
                values[index] = self._value(formal, node, kinds)
        return [values[index] for index in range(len(given))]

    def _value(
        self, formal: OpSchema.FormalParameter, node: Node, kinds: frozenset[str]
    ) -> Declared | None:
        value = self._fields.declare(node, lambda own: self._choose(formal, node, kinds or own))
        if value is None:
            return None
        variable = _variable(formal)
        found = _structure(value), dtype_name(value.dtype)
        allowed = _parsed(formal.types)
        if found not in allowed:
            self._complain(node, found, allowed)
            return None
        if variable is not None:
            bound = self._bound.setdefault(variable, value.dtype)
            if bound != value.dtype:
                text = f"{dtype_name(bound)} as the other {variable} of {formal.name}"
                self._fields.errors.append(
                    FormatError(node, f"found {dtype_name(value.dtype)}, expected {text}")
                )
        return value

    def _complain(
        self, node: Node, found: tuple[str, str], allowed: Iterable[tuple[str, str]]
    ) -> None:
        texts = sorted(structure.format(name) for structure, name in allowed)
        structure, name = found
        self._fields.errors.append(
            FormatError(node, f"found {structure.format(name)}, expected one of {', '.join(texts)}")
        )

    def _choose(
        self, formal: OpSchema.FormalParameter, node: Node, kinds: frozenset[str]
    ) -> np.dtype[Any]:
        variable = _variable(formal)
        if variable in self._bound:
            return self._bound[variable]
        allowed = {name for _, name in _parsed(formal.types)}
        if len(allowed) == 1:
            return DTYPES[next(iter(allowed))]
        natural = dtype_name(natural_dtype(kinds))
        if natural in allowed:
            return DTYPES[natural]
        if natural == "int64" and "float32" in allowed:
            return DTYPES["float32"]
        raise FormatError(node, f"found no dtype, expected one of {', '.join(sorted(allowed))}")


def _variable(formal: OpSchema.FormalParameter) -> str | None:
    """Return the name of the type that all values of it share; None if each has its own."""
    return formal.type_str if formal.is_homogeneous and "(" not in formal.type_str else None


def _parsed(types: Iterable[str]) -> set[tuple[str, str]]:
    """Return structure (``seq(tensor({}))``) and element type of each type that we know."""
    return {pair for pair in map(_parse, types) if pair is not None}


@cache
def _parse(text: str) -> tuple[str, str] | None:
    match = _TENSOR.search(text)
    dtype = dtype_named(match[1]) if match else None
    if match is None or dtype is None:
        return None
    return text.replace(match[1], "{}"), dtype_name(dtype)


def _structure(value: Declared) -> str:
    match value:
        case DeclaredTensor():
            return "tensor({})"
        case DeclaredSequence():
            return f"seq({_structure(value.items[0]) if value.items else 'tensor({})'})"
        case DeclaredOptional():
            return f"optional({_structure(value.item) if value.item else 'tensor({})'})"
