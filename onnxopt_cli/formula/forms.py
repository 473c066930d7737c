"""Right ways to write an operator's formula that round differently: no tolerance may reject one.

Only forms belong here that are as accurate as the formula, at least where they say so. Some of them
subtract infinity from itself: where an input is infinite, that is right, too
(:mod:`onnxopt_cli.readings.bound.infinite`). NaN in an input they keep. Left out are, for what they
lose:

- ``G`` for ``norm_coefficient * X + G`` where norm_coefficient is 0: drops NaN and Inf in X.
- ``(1 - alpha) * norm_coefficient * X + (1 - alpha) * G``: rounds twice where X and G cancel.
- ``(1 + alpha) * V_new - alpha * V`` for Nesterov's step: rounds V twice where it cancels.
- powers by repeated multiplication: the error grows with T, to a tenth at a million in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from onnxopt_cli.formula.rewrite import Formula, rewrite


# Compared by identity, so that what is made from one can be kept.
@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How a right implementation differs from the formula as it is written.

    Attributes:
        name: what is done, in a few words; unique in an operator.
        replace: expressions or statements of the formula, and what stands in their place.
        seen_in: public implementations known to compute it so.
        accurate: where the form is as good as the formula for finite inputs, an expression of the
            attributes; all of ``replace`` are then expressions. Empty if it is so everywhere.
    """

    name: str
    replace: Mapping[str, str]
    seen_in: tuple[str, ...] = ()
    accurate: str = ""

    @lru_cache  # noqa: B019 - forms live as long as their operators
    def written(self, formula: Formula) -> Formula:
        """Return the formula as this form writes it, whatever the attributes are.

        Raises:
            ValueError: if the formula has not what is to be replaced.
        """
        return rewrite(formula, self.replace)

    @lru_cache  # noqa: B019 - as above
    def written_where_accurate(self, formula: Formula) -> Formula:
        """Return the formula as this form writes it where it is as accurate, or as it is.

        Raises:
            ValueError: if the formula has not what is to be replaced.
        """
        if not self.accurate:
            return self.written(formula)
        return rewrite(
            formula,
            {old: f"({new}) if {self.accurate} else ({old})" for old, new in self.replace.items()},
        )
