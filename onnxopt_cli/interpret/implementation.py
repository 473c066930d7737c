"""An implementation of an operator that differs from the formula, ready to compute a node."""

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

#: What computes a node's outputs from its call, by the formula that the call carries.
Compute = Callable[[Call[Array]], list[Array]]


def unchanged(formula: Formula) -> Formula:
    """Return the formula itself: the change of an implementation that is wrong elsewhere."""
    return formula


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """One way to compute an operator's nodes.

    It differs from :func:`evaluate` in nothing but its defect: what the defect leaves alone is
    computed in the wide type and rounded once.

    Attributes:
        name: what is wrong, unique among those of an operator.
        about: one sentence.
        seen_in: public implementations known to do so.
        change: makes the wrong formula from the right one.
        compute: applies a formula to a node; wrong, too, in implementations whose defect is
            around the formula.
        defaults: wrong values of attributes that a node leaves out.
        precision: the type that everything is rounded to, if the defect is that it is too coarse.
        rounds: whether the wrong formula rounds on the way; others may do so in other places.
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
        """Return the node's outputs as this implementation computes them; the inputs stay.

        The list is empty where it gives no answer because it fails on such inputs.
        """
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self.compute(self.altered(call))
            except Exception:  # noqa: BLE001 - a wrong program may fail in every way
                return []

    def altered(self, call: Call[Array]) -> Call[Array]:
        """Return the call with the wrong formula and defaults."""
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
    """Return the implementation with two defects; None if both are around the formula.

    It gives no answer anywhere if each defect replaces what the other one is in.
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
