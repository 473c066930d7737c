"""Implementations of an operator that differ from its formula: mutants and reformulations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.rewrite import Formula

#: Takes a call of a node, and computes the outputs of the node by the formula of the call's
#: operator.
Compute = Callable[[Call[Array]], list[Array]]


def unchanged(formula: Formula) -> Formula:
    """Return the formula unchanged: the default of :attr:`Implementation.change`."""
    return formula


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """An implementation of an operator.

    By default, an implementation computes like :func:`evaluate`: in the wide type, with a single
    rounding. The attributes state how the implementation differs.

    Attributes:
        name: name of the difference, unique among the implementations of an operator.
        about: a description in one sentence.
        seen_in: public implementations that have this difference.
        change: takes the formula of the operator and returns the formula of this implementation.
        compute: applies a formula to a node.
        defaults: wrong default values of attributes, used if a node omits them.
        precision: the type to which every operation is rounded, if the defect is that this type is
            too narrow; else None.
        rounds: whether the formula rounds intermediate results. Other implementations with the same
            defect may round other intermediate results.
    """

    name: str
    about: str = ""
    seen_in: tuple[str, ...] = ()
    change: Callable[[Formula], Formula] = unchanged
    compute: Compute = evaluate
    defaults: Mapping[str, float] = field(default_factory=dict)
    precision: np.dtype[Any] | None = None
    rounds: bool = False

    def run(self, call: Call[Array]) -> list[Array]:
        """Return the node's outputs; an empty list if the implementation raises an exception."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self.compute(self.altered(call))
            except Exception:  # noqa: BLE001 - a mutant may raise any exception
                return []

    def altered(self, call: Call[Array]) -> Call[Array]:
        """Return the call with this implementation's formula and defaults."""
        formula = self.change(call.operator.formula)
        wrong = {
            name: float(np.float32(value))
            for name, value in self.defaults.items()
            if name in call.omitted
        }
        if formula is call.operator.formula and not wrong:
            return call
        return replace(
            call,
            operator=replace(call.operator, formula=formula),
            attributes={**call.attributes, **wrong},
        )


def both(first: Implementation, second: Implementation) -> Implementation | None:
    """Return an implementation with the differences of both; None if both replace ``compute``.

    If the changes of the formula cannot be combined in either order, the combined implementation
    fails on all inputs.
    """
    if first.compute is not evaluate and second.compute is not evaluate:
        return None

    @cache
    def change(formula: Formula) -> Formula:
        try:
            return second.change(first.change(formula))
        except ValueError:
            return first.change(second.change(formula))

    return Implementation(
        name=f"{first.name}, and {second.name}",
        about=f"{first.about} {second.about}",
        change=change,
        compute=second.compute if first.compute is evaluate else first.compute,
        defaults={**first.defaults, **second.defaults},
        precision=first.precision or second.precision,
        rounds=first.rounds or second.rounds,
    )
