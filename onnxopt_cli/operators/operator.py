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
            generated for every operator. A mistake with the same name as a generated mistake
            replaces it. If ``replace`` and ``defaults`` are both empty, only the description is
            replaced.
        about: description in one sentence.
        seen_in: public implementations with this mistake.
        replace: replacements of expressions or statements of the formula.
        defaults: wrong default values, for attributes that a node omits.
    """

    name: str
    about: str
    seen_in: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)


def mistake_table(table: str) -> tuple[KnownMistake, ...]:
    """Return the known mistakes of a table.

    The first line of a mistake is its name. An indented line follows with a description in one
    sentence, and then any number of indented lines of the following forms::

        seen in PyTorch SGD; TensorFlow
        X - R * V_new -> X - R * V
        epsilon = 1e-7

    The first form names implementations with the mistake. The second form replaces an expression of
    the formula. The third form is a wrong default of an attribute. As in any Python string, a
    backslash at the end of a line joins the line with the next one.
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


#: The value of ``accurate`` if a reformulation is never as accurate as the formula.
NOWHERE = "False"


# Reformulations are compared by identity, so that derived objects can be cached.
@dataclass(frozen=True, slots=True, eq=False)
class Reformulation:
    """Another correct way to write a formula. It rounds differently, and must be accepted.

    If a reformulation is less accurate than the formula for some attributes, the tolerance for
    these attributes is derived from the reformulation. For infinite inputs, some reformulations
    subtract infinity from infinity. The resulting NaN is also accepted
    (:func:`~onnxopt_cli.interpret.bound.error_bound.also_right`). NaN in an input must result in
    NaN. The following are not reformulations, because they lose accuracy or special values:

    - ``G`` for ``norm_coefficient * X + G`` if norm_coefficient is 0: ignores NaN and Inf in X.
    - ``(1 - alpha) * norm_coefficient * X + (1 - alpha) * G``: if the two terms cancel, the
      rounding errors of both products remain.
    - ``(1 + alpha) * V_new - alpha * V`` for Nesterov's step: if the two terms cancel, the rounding
      errors of both products remain.
    - powers by a loop of T multiplications: the relative error grows with T, and is about 0.1 in
      float32 for T = 10^6. (Powers by repeated squaring are accepted for all formulas.)

    Attributes:
        name: name of the reformulation, unique among the reformulations of its operator.
        replace: replacements of expressions or statements of the formula.
        seen_in: public implementations that compute this way.
        accurate: a Python expression of the attributes. It is true if the reformulation is as
            accurate as the formula for all finite inputs. An empty text means that it is equally
            accurate for all attributes, and :data:`NOWHERE` that it is less accurate for all. With
            any other expression, ``replace`` must not contain statements.
    """

    name: str
    replace: Mapping[str, str]
    seen_in: tuple[str, ...] = ()
    accurate: str = ""

    def is_accurate(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Return whether the reformulation is as accurate as the formula with these attributes."""
        # Evaluating the expression is safe: it is as trusted as the formula in the same file.
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
    """An input with one element. All tensors of the node share the input.

    Attributes:
        name: the specification's name.
        dtypes: allowed element types. A plain number in a case file gets the first of these types.
    """

    name: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """A named constant of the node.

    Attributes:
        name: the specification's name.
        default: the value, rounded to float32, if the node omits the attribute; None if the
            attribute is required. A string attribute is always required.
        choices: the allowed strings; empty if the attribute is a number.
        limits: smallest and largest allowed number, both rounded to float32; None if all numbers
            are allowed.
        each: whether the attribute is a list. The list contains one number for each group, or a
            single number for all groups. The formula receives only the number of its group.
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
        """Whether a node must have the attribute."""
        return self.default is None


# Operators are compared by identity, so that results can be cached by operator.
@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator: its formula, and the signature of its nodes.

    A node may update several tensors. The operands of each updated tensor, such as X, G, V and H,
    form a group. The inputs of a node begin with the scalars. The scalars are followed by one
    tensor per group for the first name in ``tensors``, then by one tensor per group for the second
    name, and so on. Likewise, the outputs are one tensor per group for each name in ``outputs``.

    An output with the element type and shape of a scalar is *carried* from group to group. The node
    has one such output. Its value for one group is the scalar for the next group.

    Attributes:
        name: the node's op_type.
        domain: the node's domain.
        version: the version of the domain that defines the operator.
        formula: a plain NumPy function, written as in the specification. For each group, the
            function is called as ``formula(*scalars, *tensors, **attributes)`` and returns the
            outputs.
        scalars: inputs that all groups share.
        tensors: names of a group's tensors. The second and later tensors are broadcast to the shape
            of the first.
        outputs: for each output, the name of the tensor with the same element type. Such an output
            has the shape of the first tensor of its group. For a carried output, the name of the
            scalar with the same element type and shape.
        attributes: the node's attributes.
        dtypes: allowed element types of tensors; the tensors of a node may have different types.
        known_mistakes: the known mistakes of this operator.
        reformulations: correct formulas that round differently.
        about: description in one sentence.
        source: reference to the specification.
        suite: name of the suite with the operator's generated cases. If empty, the name is the last
            part of the domain.
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
        # The registry imports this module, so it can only be imported here.
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
        """Return whether an output is carried from group to group, so that all groups share it."""
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
