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
    """How a wrong implementation that a person would name differs from the formula.

    Attributes:
        name: what is wrong, in a few words; unique in an operator. It takes the place of one that
            is generated for every operator under the same name; with neither ``replace`` nor
            ``defaults``, it says about that one where it was seen.
        about: one sentence.
        seen_in: public implementations known to do so.
        replace: expressions or statements of the formula, and what stands in their place.
        defaults: values of attributes that a node leaves out, where they differ.
    """

    name: str
    about: str
    seen_in: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)


def mistake_table(table: str) -> tuple[KnownMistake, ...]:
    """Return the known mistakes of a table.

    Each begins with a line of its name. The lines indented below it say what is wrong in a
    sentence, and then, as far as they apply::

        seen in PyTorch SGD; TensorFlow
        X - R * V_new -> X - R * V
        epsilon = 1e-7

    An arrow stands between what the formula has and what takes its place. A number is the default
    of an attribute. Where a line goes on in the next one it ends with a backslash, as in any string
    of Python.
    """
    return tuple(
        KnownMistake(name, about, **_fields(details)) for name, about, *details in _rows(table)
    )


def reformulation_table(table: str) -> tuple[Reformulation, ...]:
    """Return the reformulations of a table that is written like one of mistakes, without sentences.

    Below its name, a form that is not as accurate as the formula everywhere says where it is::

        accurate if alpha != 1
    """
    return tuple(Reformulation(name, **_fields(details)) for name, *details in _rows(table))


def _rows(table: str) -> list[list[str]]:
    rows = re.split(r"\n(?! )", dedent(table).strip())
    return [[" ".join(line.split()) for line in row.splitlines()] for row in rows]


def _fields(details: Sequence[str]) -> dict[str, Any]:
    """Return the fields that the lines of a row state."""
    seen_in: tuple[str, ...] = ()
    replace: dict[str, str] = {}
    others: dict[str, Any] = {}
    for detail in details:
        if detail.startswith("seen in "):
            seen_in += tuple(detail.removeprefix("seen in ").split("; "))
        elif detail.startswith("accurate if "):
            others["accurate"] = detail.removeprefix("accurate if ")
        elif " -> " in detail:
            old, new = detail.split(" -> ")
            replace[old] = new
        else:
            attribute, default = detail.split(" = ")
            others.setdefault("defaults", {})[attribute] = float(default)
    return {"seen_in": seen_in, "replace": replace, **others}


#: What ``accurate`` is in a form that never is as accurate as the formula.
NOWHERE = "False"


# Compared by identity, so that what is made from one can be kept.
@dataclass(frozen=True, slots=True, eq=False)
class Reformulation:
    """A right way to write a formula that rounds differently: no tolerance may reject it.

    A form is as accurate as the formula where it says so; elsewhere the tolerance is that of the
    form. Some reformulations subtract infinity from itself: where an input is infinite, that is
    right, too (:func:`~onnxopt_cli.interpret.bound.error_bound.also_right`). They keep NaN in an
    input. These are not reformulations, because of what they lose:

    - ``G`` for ``norm_coefficient * X + G`` where norm_coefficient is 0: drops NaN and Inf in X.
    - ``(1 - alpha) * norm_coefficient * X + (1 - alpha) * G``: rounds twice where X and G cancel.
    - ``(1 + alpha) * V_new - alpha * V`` for Nesterov's step: rounds V twice where it cancels.
    - powers by repeated multiplication: the error grows with T, to a tenth at a million in float32.

    Attributes:
        name: what is done, in a few words; unique in an operator.
        replace: expressions or statements of the formula, and what stands in their place.
        seen_in: public implementations known to compute it so.
        accurate: where the form is as good as the formula for finite inputs, an expression of the
            attributes; all of ``replace`` are then expressions. Empty if it is so everywhere, and
            :data:`NOWHERE` if it never is.
    """

    name: str
    replace: Mapping[str, str]
    seen_in: tuple[str, ...] = ()
    accurate: str = ""

    def is_accurate(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Tell whether the form is as good as the formula with these attributes."""
        # As trusted as the formula that stands beside it.
        return not self.accurate or bool(eval(self.accurate, {}, dict(attributes)))  # noqa: S307

    @lru_cache  # noqa: B019 - reformulations live as long as their operators
    def written(self, formula: Formula) -> Formula:
        """Return the formula as this form writes it, whatever the attributes are.

        Raises:
            ValueError: if the formula lacks what is to be replaced.
        """
        return rewrite(formula, self.replace)

    @lru_cache  # noqa: B019 - as above
    def written_where_accurate(self, formula: Formula) -> Formula:
        """Return the formula as this form writes it where it is as accurate, or as it is.

        A form that never is as accurate is written everywhere.

        Raises:
            ValueError: if the formula lacks what is to be replaced.
        """
        if self.accurate in ("", NOWHERE):
            return self.written(formula)
        return rewrite(
            formula,
            {old: f"({new}) if {self.accurate} else ({old})" for old, new in self.replace.items()},
        )


#: Element types that the training operators take for R and the tensors.
FLOATS = ("float32", "float64")

#: An attribute's value; a tuple is one number for all groups, or one for each.
AttributeValue = float | str | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """An input with one element that all tensors of the node share.

    Attributes:
        name: the specification's name.
        dtypes: allowed element types, the first being what a bare number in a case becomes.
    """

    name: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """A named constant of the node.

    Attributes:
        name: the specification's name.
        default: used where the node leaves it out, rounded to float32 as the node would hold it;
            None if the attribute is required, as one of strings is.
        choices: the allowed strings; empty if the attribute is a number.
        limits: the least and the largest allowed number, rounded likewise; None if every number is
            allowed.
        each: True for a list of numbers, one for all groups or one for each; the formula gets the
            number of its group.
    """

    name: str
    default: float | None = None
    choices: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None
    each: bool = False

    def __post_init__(self) -> None:
        if self.default is not None and self.choices:
            raise ValueError(f"attribute {self.name}: a word has no default; each node says it")
        if self.default is not None:
            with np.errstate(over="ignore"):
                default = float(np.float32(self.default))
            if np.isinf(default) and default != self.default:
                raise ValueError(f"attribute {self.name}: {self.default:g} is beyond float32")
            object.__setattr__(self, "default", default)
        if self.limits is not None:
            least, largest = (float(np.float32(limit)) for limit in self.limits)
            if not -math.inf < least < largest < math.inf:
                said = f"limits={self.limits}, expected two finite float32 numbers, the least first"
                raise ValueError(f"attribute {self.name}: {said}")
            object.__setattr__(self, "limits", (least, largest))

    @property
    def kind(self) -> int:
        """The type that it has in a node, an ``AttributeProto.AttributeType``."""
        if self.each:
            return AttributeProto.FLOATS
        return AttributeProto.STRING if self.choices else AttributeProto.FLOAT

    @property
    def required(self) -> bool:
        """True if a node must carry it."""
        return self.default is None


# Compared by identity: two operators are never the same by accident, and results can be cached.
@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator: one formula, and everything needed to apply it to a node.

    The node's inputs are ``scalars``, then for each name in ``tensors`` one tensor a group; its
    outputs are, for each name in ``outputs``, one tensor a group. An output that is like a scalar
    is one for the whole node: what the formula yields for a group is that scalar for the next one.

    Attributes:
        name: the node's op_type.
        domain: the node's domain.
        version: the domain's version that defines it.
        formula: called as ``formula(*scalars, *tensors, **attributes)`` for each group, returns
            the group's outputs; plain NumPy, written as in the specification.
        scalars: the inputs that all groups share.
        tensors: names of a group's tensors; all others broadcast to the shape of the first.
        outputs: name of each output and of the tensor whose element type it has; it has the shape
            of the group's first tensor. Or of the scalar whose element type and shape it has.
        attributes: the node's attributes.
        dtypes: allowed element types of the tensors, each tensor on its own.
        known_mistakes: wrong formulas that a person would name.
        reformulations: right formulas that round differently.
        about: one sentence.
        source: where the specification stands.
        suite: the suite that its generated cases belong to; empty for the last word of the domain.
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
        """Pickle the operator by its name: the other process has the same ones.

        Raises:
            PicklingError: if the registry has another operator of this name.
        """
        # The registry imports this module.
        known = import_module("onnxopt_cli.operators.registry")
        if known.registry().find(self.domain, self.name) is not self:
            raise PicklingError(f"{self.name} is changed, and would be found as it was")
        return known.unpickled, (self.domain, self.name)

    @property
    def suite_name(self) -> str:
        """The suite that its generated cases belong to."""
        return self.suite or self.domain.rpartition(".")[2]

    @property
    def file(self) -> Path:
        """The file that has the formula."""
        return Path(self.formula.__code__.co_filename)

    @property
    def qualified_name(self) -> str:
        """Domain and name: ``ai.onnx.preview.training:Adam``."""
        return f"{self.domain}:{self.name}"

    def input_names(self, groups: int) -> list[str]:
        """Names of the inputs of a node with so many groups: R, T, X1, X2, G1, G2, ..."""
        return [scalar.name for scalar in self.scalars] + self._numbered(self.tensors, groups)

    def output_names(self, groups: int) -> list[str]:
        """Names of the outputs of a node with so many groups: X1_new, X2_new, V1_new, ..."""
        return [
            name
            for output in self.outputs
            for name in ([output] if self.carries(output) else self._numbered((output,), groups))
        ]

    @property
    def counts(self) -> bool:
        """True if one of the scalars is an integer, which counts steps."""
        return any("int64" in scalar.dtypes for scalar in self.scalars)

    def carries(self, output: str) -> bool:
        """Tell whether a node has the output once, carried from group to group."""
        return self.outputs[output] not in self.tensors

    @lru_cache  # noqa: B019 - operators live as long as the process
    def places(self, groups: int) -> list[tuple[int, int]]:
        """Return for each output of a node the inputs that have its element type and its shape."""
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
