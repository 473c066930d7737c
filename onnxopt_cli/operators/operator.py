"""Operators: the formula, the signature of the node, reformulations and known mistakes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pickle import PicklingError
from textwrap import dedent
from typing import Any

import numpy as np
from onnx import AttributeProto

from onnxopt_cli.operators.rewrite import Formula, rewrite


@dataclass(frozen=True, slots=True)
class KnownMistake:
    """A wrong implementation, defined by its difference from the formula.

    Attributes:
        name: name of the mistake, unique among the mistakes of its operator. Some mistakes are
            generated for every operator. A mistake with the name of a generated mistake replaces
            that mistake, or only its description if ``replace`` and ``defaults`` are both empty.
        about: description in one sentence.
        seen_in: public implementations with this mistake.
        replace: replacements of expressions or statements of the formula.
        defaults: wrong values of attributes that a node omits.
    """

    name: str
    about: str
    seen_in: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)


def mistake_table(table: str) -> tuple[KnownMistake, ...]:
    """Return the known mistakes of a table.

    A mistake consists of a line with its name, an indented line with a sentence of description, and
    any number of indented lines of the following forms::

        seen in PyTorch SGD; TensorFlow
        X - R * V_new -> X - R * V
        epsilon = 1e-7

    The first form names implementations with the mistake, the second replaces an expression of the
    formula, and the third is a wrong default of an attribute. As in any Python string, a backslash
    at the end of a line joins it with the next line.
    """
    return tuple(
        KnownMistake(name, about, **_fields(details)) for name, about, *details in _rows(table)
    )


def reformulation_table(table: str) -> tuple[Reformulation, ...]:
    """Return the reformulations of a table in the format of :func:`mistake_table`.

    Reformulations have no descriptions. If a reformulation is as accurate as the formula only for
    some values of the attributes, a line states the condition::

        accurate if alpha != 1
    """
    return tuple(Reformulation(name, **_fields(details)) for name, *details in _rows(table))


def _rows(table: str) -> list[list[str]]:
    rows = re.split(r"\n(?! )", dedent(table).strip())
    return [[" ".join(line.split()) for line in row.splitlines()] for row in rows]


def _fields(details: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a mistake or reformulation, given its indented lines."""
    seen_in: tuple[str, ...] = ()
    replace: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for detail in details:
        if detail.startswith("seen in "):
            seen_in += tuple(detail.removeprefix("seen in ").split("; "))
        elif detail.startswith("accurate if "):
            fields["accurate"] = detail.removeprefix("accurate if ")
        elif " -> " in detail:
            old, new = detail.split(" -> ")
            replace[old] = new
        else:
            attribute, default = detail.split(" = ")
            fields.setdefault("defaults", {})[attribute] = float(default)
    return {"seen_in": seen_in, "replace": replace, **fields}


#: Value of ``accurate`` for a reformulation that is never as accurate as the formula.
NOWHERE = "False"


# Reformulations are compared by identity, so that derived objects can be cached.
@dataclass(frozen=True, slots=True, eq=False)
class Reformulation:
    """A correct way to write a formula that rounds differently and must be accepted.

    If a reformulation is less accurate than the formula for some attributes, the tolerance for
    these attributes is derived from the reformulation. Some reformulations subtract infinity from
    infinity. For infinite inputs, the resulting NaN is also accepted
    (:func:`~onnxopt_cli.interpret.bound.error_bound.also_right`). NaN in an input must result in
    NaN. The following are not reformulations, since they lose accuracy or special values:

    - ``G`` for ``norm_coefficient * X + G`` if norm_coefficient is 0: ignores NaN and Inf in X.
    - ``(1 - alpha) * norm_coefficient * X + (1 - alpha) * G``: where the two terms cancel, the
      rounding errors of both products remain.
    - ``(1 + alpha) * V_new - alpha * V`` for Nesterov's step: where the two terms cancel, the
      rounding errors of both products remain.
    - powers by a loop of T multiplications: the relative error grows with T, and is about 0.1 in
      float32 for T = 10^6. (Powers by repeated squaring are accepted for all formulas.)

    Attributes:
        name: name of the reformulation, unique among the reformulations of its operator.
        replace: replacements of expressions or statements of the formula.
        seen_in: public implementations that compute this way.
        accurate: Python expression of the attributes that is true if the reformulation is as
            accurate as the formula for all finite inputs. Empty if the reformulation is as accurate
            as the formula for all attributes, :data:`NOWHERE` if it is less accurate for all
            attributes. If ``accurate`` is neither empty nor NOWHERE, ``replace`` must not contain
            statements.
    """

    name: str
    replace: Mapping[str, str]
    seen_in: tuple[str, ...] = ()
    accurate: str = ""

    def is_accurate(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Return whether the reformulation is as accurate as the formula with these attributes."""
        # The expression is evaluated, because it is as trusted as the formula in the same file.
        return not self.accurate or bool(eval(self.accurate, {}, dict(attributes)))  # noqa: S307

    @lru_cache  # noqa: B019 - reformulations live as long as their operators
    def written(self, formula: Formula) -> Formula:
        """Return the formula, rewritten for all values of the attributes.

        Raises:
            ValueError: if the formula lacks an expression to be replaced.
        """
        return rewrite(formula, self.replace)

    @lru_cache  # noqa: B019 - as above
    def written_where_accurate(self, formula: Formula) -> Formula:
        """Return the formula, rewritten only where the reformulation is as accurate as the formula.

        If ``accurate`` is :data:`NOWHERE`, the formula is rewritten for all attributes.

        Raises:
            ValueError: if the formula lacks an expression to be replaced.
        """
        if self.accurate in ("", NOWHERE):
            return self.written(formula)
        return rewrite(
            formula,
            {old: f"({new}) if {self.accurate} else ({old})" for old, new in self.replace.items()},
        )


#: Element types of R and of the tensors in the training operators.
FLOATS = ("float32", "float64")

#: Value of an attribute. A tuple has either one number for all groups, or one number for each
#: group.
AttributeValue = float | str | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """An input with one element that all tensors of the node share.

    Attributes:
        name: the specification's name.
        dtypes: allowed element types; a plain number in a case has the first of these types.
    """

    name: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """A named constant of the node.

    Attributes:
        name: the specification's name.
        default: the number, rounded to float32, that applies if the node omits the attribute; None
            if the attribute is required. A string attribute is always required.
        choices: the allowed strings; empty if the attribute is a number.
        limits: smallest and largest allowed number, both rounded to float32; None if all numbers
            are allowed.
        each: whether the attribute is a list, which contains one number for each group or a single
            number for all groups. For each group, the formula receives only the number of the
            group.
    """

    name: str
    default: float | None = None
    choices: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None
    each: bool = False

    def __post_init__(self) -> None:
        if self.default is not None and self.choices:
            raise ValueError(f"attribute {self.name}: a string attribute cannot have a default")
        if self.default is not None:
            with np.errstate(over="ignore"):
                default = float(np.float32(self.default))
            if np.isinf(default) and default != self.default:
                message = f"{self.default:g} exceeds the range of float32"
                raise ValueError(f"attribute {self.name}: {message}")
            object.__setattr__(self, "default", default)
        if self.limits is not None:
            least, largest = (float(np.float32(limit)) for limit in self.limits)
            if not -math.inf < least < largest < math.inf:
                message = f"limits={self.limits}, expected two finite ascending float32 numbers"
                raise ValueError(f"attribute {self.name}: {message}")
            object.__setattr__(self, "limits", (least, largest))

    @property
    def kind(self) -> int:
        """The ``AttributeProto.AttributeType`` of the attribute in a node."""
        if self.each:
            return AttributeProto.FLOATS
        return AttributeProto.STRING if self.choices else AttributeProto.FLOAT

    @property
    def required(self) -> bool:
        """True if a node must have the attribute."""
        return self.default is None


# Operators are compared by identity, so that results can be cached by operator.
@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator: its formula, and the signature of its nodes.

    A node may update several tensors at once. The operands of each tensor, such as X, G, V and H,
    are a group. The inputs of a node are the scalars, followed, for each name in ``tensors``, by
    one tensor per group. The outputs are, for each name in ``outputs``, one tensor per group. An
    output with the element type and shape of a scalar is *carried*: the node has it once, and the
    result for one group is the scalar for the next group.

    Attributes:
        name: the node's op_type.
        domain: the node's domain.
        version: the version of the domain that defines the operator.
        formula: a plain NumPy function, written as in the specification. For each group, the
            function is called as ``formula(*scalars, *tensors, **attributes)`` and returns the
            outputs.
        scalars: inputs that all groups share.
        tensors: names of a group's tensors; the second and later tensors broadcast to the shape of
            the first.
        outputs: for each output, the name of the tensor that has the same element type, or of the
            scalar that has the same element type and shape. The output of a tensor has the shape of
            the first tensor of the group.
        attributes: the node's attributes.
        dtypes: allowed element types of tensors; the tensors of a node may have different types.
        known_mistakes: the known mistakes of this operator.
        reformulations: correct formulas that round differently.
        about: description in one sentence.
        source: reference to the specification.
        suite: name of the suite with the operator's generated cases; if empty, the suite is named
            after the last part of the domain.
    """

    name: str
    domain: str
    version: int
    formula: Callable[..., tuple[Any, ...]]
    scalars: tuple[Scalar, ...]
    tensors: tuple[str, ...]
    outputs: Mapping[str, str]
    attributes: tuple[Attribute, ...]
    about: str
    source: str
    dtypes: tuple[str, ...] = FLOATS
    known_mistakes: tuple[KnownMistake, ...] = ()
    reformulations: tuple[Reformulation, ...] = ()
    suite: str = ""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        """Pickle the operator by its name, because the receiving process has the same operators.

        Raises:
            PicklingError: if the registry has another operator of this name.
        """
        # The import is late because the registry imports this module.
        registry_module = import_module("onnxopt_cli.operators.registry")
        if registry_module.registry().find(self.domain, self.name) is not self:
            raise PicklingError(f"{self.name} differs from the registered operator of this name")
        return registry_module.unpickled, (self.domain, self.name)

    @property
    def suite_name(self) -> str:
        """Name of the suite with the operator's generated cases."""
        return self.suite or self.domain.rpartition(".")[2]

    @property
    def file(self) -> Path:
        """The file that contains the formula."""
        return Path(self.formula.__code__.co_filename)

    @property
    def qualified_name(self) -> str:
        """Domain and name: ``ai.onnx.preview.training:Adam``."""
        return f"{self.domain}:{self.name}"

    def input_names(self, groups: int) -> list[str]:
        """The names of a node's inputs, given its number of groups: R, T, X1, X2, G1, G2, ..."""
        return [scalar.name for scalar in self.scalars] + self._numbered(self.tensors, groups)

    def output_names(self, groups: int) -> list[str]:
        """The names of a node's outputs, given its number of groups: X1_new, X2_new, V1_new, ..."""
        return [
            name
            for output in self.outputs
            for name in ([output] if self.carries(output) else self._numbered((output,), groups))
        ]

    @property
    def counts(self) -> bool:
        """Whether one of the scalars is an integer, which counts steps."""
        return any("int64" in scalar.dtypes for scalar in self.scalars)

    def carries(self, output: str) -> bool:
        """Return whether all groups share an output, which is carried from group to group."""
        return self.outputs[output] not in self.tensors

    @lru_cache  # noqa: B019 - operators live as long as the process
    def places(self, groups: int) -> list[tuple[int, int]]:
        """Return, for each output of a node, the positions of two inputs.

        The output has the element type of the first input, and the shape of the second input.
        """
        scalars = [scalar.name for scalar in self.scalars]
        count = len(scalars)
        places: list[tuple[int, int]] = []
        for like in self.outputs.values():
            if like in scalars:
                places.append((scalars.index(like),) * 2)
            else:
                start = count + self.tensors.index(like) * groups
                places += [(start + group, count + group) for group in range(groups)]
        return places

    @staticmethod
    def _numbered(names: tuple[str, ...], groups: int) -> list[str]:
        if groups == 1:
            return list(names)
        split = [name.partition("_") for name in names]
        return [
            f"{stem}{group}{bar}{suffix}"
            for stem, bar, suffix in split
            for group in range(1, groups + 1)
        ]
