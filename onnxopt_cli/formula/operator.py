"""What an operator is: its formula, and the signature of the node that carries it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxopt_cli.formula.deviation import Deviation
from onnxopt_cli.formula.forms import Form

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
            None if the attribute is required.
        choices: the allowed strings; empty if the attribute is a number.
        limits: the least and the largest allowed number; None if every number is allowed.
        each: True for a list of numbers, one for all groups or one for each; the formula gets the
            number of its group.
    """

    name: str
    default: float | None = None
    choices: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None
    each: bool = False

    def __post_init__(self) -> None:
        if self.default is not None:
            object.__setattr__(self, "default", float(np.float32(self.default)))

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
        deviations: wrong formulas that a person would name.
        forms: right formulas that round differently.
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
    deviations: tuple[Deviation, ...] = ()
    forms: tuple[Form, ...] = ()
    suite: str = ""

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
