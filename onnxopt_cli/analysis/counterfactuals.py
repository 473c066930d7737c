"""Find counterfactuals: single changes of failing inputs after which a backend is right.

If a backend is right after a change that leaves everything else equal, its failure depends on the
changed property. Unlike a condition, a counterfactual compares only inputs that differ in this
property, so that other properties of failing inputs cannot mislead it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

#: Number of failing inputs on which all changes are tried. A change is tried on further failing
#: inputs if it makes the backend right on most inputs, or on all but one.
FIRST_INPUTS = 2
#: A counterfactual is stated if the change makes the backend right on at least MIN_REPAIRED failing
#: inputs, and on at least MIN_REPAIRED_SHARE of the inputs in which the change is possible. The
#: other inputs may show another fault. If changes helped in half of the inputs by chance, nine of
#: 11 inputs would be right with a probability of 3 %.
MIN_REPAIRED = 9
MIN_REPAIRED_SHARE = 0.75
#: Beside a change that helps in all inputs, another change is stated only if it helps in this share
#: of the inputs.
MIN_SHARE_BESIDE_CERTAIN = 0.9
#: The change must help in at least MIN_SHARE_OF_FAILURES of the failing inputs. Changes that help
#: in most failing inputs are stated first.
MIN_SHARE_OF_FAILURES = 1 / 3
#: Largest number of counterfactuals that are stated together.
MAX_STATED = 3

T = TypeVar("T")


class SingleChange(NamedTuple, Generic[T]):
    """A change of one property of an input.

    Attributes:
        aspect: the property that changes, such as "the type of X". Of all changes of a property,
            at most one is stated.
        text: the property after the change, as in "X is float32".
        changed: the changed input.
    """

    aspect: str
    text: str
    changed: T


@dataclass(slots=True)
class Counterfactual:
    """A change that is tried on several failing inputs.

    Attributes:
        aspect: the property that changes.
        text: the property after the change.
        order: the smallest position of the change among the changes of an input.
        repaired: the indices of the failing inputs on which the change makes the backend right.
        tried: the number of inputs on which the change was tried.
    """

    aspect: str
    text: str
    order: int
    repaired: list[int] = field(default_factory=list)
    tried: int = 0

    @property
    def share(self) -> float:
        """The share of the tried inputs on which the change makes the backend right."""
        return len(self.repaired) / max(1, self.tried)

    @property
    def is_open(self) -> bool:
        """Whether the change makes the backend right on most inputs, or on all but one."""
        wrong = self.tried - len(self.repaired)
        return wrong <= max(1, (1 - MIN_REPAIRED_SHARE) * self.tried)


def find_counterfactuals(
    failing: Sequence[T],
    changes_of: Callable[[T], Iterable[SingleChange[T]]],
    outcomes_of: Callable[[Sequence[tuple[T, T]]], Iterable[bool | None]],
) -> list[Counterfactual]:
    """Return changes after which a backend is right, the most specific first.

    Args:
        failing: failing inputs, the most important first.
        changes_of: returns the single changes of an input, the most specific first.
        outcomes_of: given pairs of a failing input and a changed copy, returns for each pair
            whether the backend is right on the copy; None if the copy is not valid or would not
            show the fault. Fewer results than pairs mean that the limit of the search is reached.
    """
    counterfactuals: dict[str, Counterfactual] = {}
    for first, last in _batches(len(failing)):
        tried = [
            (place, order, change)
            for place in range(first, last)
            for order, change in enumerate(changes_of(failing[place]))
            if not first
            or (change.text in counterfactuals and counterfactuals[change.text].is_open)
        ]
        pairs = [(failing[place], change.changed) for place, _, change in tried]
        outcomes = list(outcomes_of(pairs)) if pairs else []
        for (place, order, change), is_right in zip(tried, outcomes, strict=False):
            if is_right is not None:
                counterfactual = counterfactuals.setdefault(
                    change.text, Counterfactual(change.aspect, change.text, order)
                )
                counterfactual.order = min(order, counterfactual.order)
                counterfactual.tried += 1
                counterfactual.repaired += [place] * bool(is_right)
        if not any(each.is_open for each in counterfactuals.values()) or len(outcomes) < len(pairs):
            break
    common = [
        counterfactual
        for counterfactual in counterfactuals.values()
        if len(counterfactual.repaired) >= MIN_REPAIRED
        and counterfactual.share >= MIN_REPAIRED_SHARE
        and len(counterfactual.repaired) >= MIN_SHARE_OF_FAILURES * len(failing)
    ]
    common.sort(key=lambda each: (2 * len(each.repaired) < len(failing), each.order))
    best: dict[str, Counterfactual] = {}
    for counterfactual in common:
        rival = best.setdefault(counterfactual.aspect, counterfactual)
        if len(counterfactual.repaired) > len(rival.repaired):
            best[counterfactual.aspect] = counterfactual
    stated = [*best.values()]
    if any(each.share == 1 for each in stated):
        stated = [each for each in stated if each.share >= MIN_SHARE_BESIDE_CERTAIN]
    return stated[:MAX_STATED]


def _batches(count: int) -> Iterator[tuple[int, int]]:
    """Yield intervals of indices: a short one, and then longer ones."""
    first = 0
    while first < count:
        last = min(count, 2 * first + FIRST_INPUTS)
        yield first, last
        first = last


def counterfactual_text(
    counterfactuals: Sequence[Counterfactual], success: str, inputs: str
) -> str:
    """Return counterfactuals in words, with the evidence.

    Args:
        counterfactuals: the counterfactuals.
        success: a description of the result after the change, such as "right".
        inputs: the plural of the inputs, such as "nodes".
    """
    changes = (
        f"{each.text} ({len(each.repaired)} of {each.tried} failing {inputs})"
        for each in counterfactuals
    )
    return f"{success} after a single change: {', or '.join(changes)}"
