"""Wrong implementations of an operator that a person would name, as data beside its formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Deviation:
    """How a wrong implementation differs from the formula.

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
