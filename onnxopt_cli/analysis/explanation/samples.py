"""Samples for the search for failure conditions: nodes, and which elements a backend gets wrong.

A right element contradicts a condition only if the fault would be visible in this element. For
example, a fault that returns 0 is invisible in an element that should be 0. Therefore, the effect
of the fault, such as "returns 0", decides which right elements are evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxopt_cli.analysis.explanation.features import WRONG
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.call import Call

# Replacements of a right element, by name. Each replacement is computed from the right values and
# from the values before the step.
_REPLACEMENTS: Mapping[str, Callable[[Array, Array], Array]] = {
    "0": lambda new, _: np.zeros_like(new),
    "unchanged": lambda _, old: old,
    "NaN": lambda new, _: np.full_like(new, np.nan),
    "negated": lambda new, _: -new,
}
#: Effects of a fault, the most specific first. A fault replaces elements, changes elements of one
#: class, or changes the type or shape of an output. There are five classes of right values: NaN or
#: infinite (NOT_FINITE); finite, not 0 and different from the old value (CHANGED); finite and not 0
#: (NOT_ZERO); finite (FINITE); any value (EVERYWHERE).
EFFECTS = (*_REPLACEMENTS, "wrong", "wrong", "wrong", "wrong", "wrong", "of another type or shape")
NOT_FINITE, CHANGED, NOT_ZERO, FINITE, EVERYWHERE, STRUCTURE = range(
    len(_REPLACEMENTS), len(EFFECTS)
)
# An error is assumed to be invisible in an element whose tolerance exceeds _WIDE_LIMIT times the
# expected value.
_WIDE_LIMIT = 0.001
#: An output counts as always wrong if it is wrong in at least ALWAYS_SHARE of the failing samples.
ALWAYS_SHARE = 0.95

# For each effect, the reasons why it may be invisible in an element. A reason consists of a text
# and two effects. The reason applies if the first effect is visible in the element and the second
# is not.
_ZERO_REASON = ("{} should be 0", FINITE, NOT_ZERO)
_UNCHANGED_REASON = ("{} should be unchanged", NOT_ZERO, CHANGED)
_SPECIAL_REASON = ("{} should be NaN or infinite", EVERYWHERE, FINITE)
_FINITE_REASON = ("{} should be finite", EVERYWHERE, NOT_FINITE)
_SEVERAL_REASON = ("several values are accepted", STRUCTURE, EVERYWHERE)
EXCEPTIONS: Mapping[int, tuple[tuple[str, int, int], ...]] = {
    0: (("that is right", FINITE, 0), _SPECIAL_REASON, _SEVERAL_REASON),
    **{
        effect: (("that is right", EVERYWHERE, effect), _SEVERAL_REASON)
        for effect in range(1, len(_REPLACEMENTS))
    },
    NOT_FINITE: (_FINITE_REASON, _SEVERAL_REASON),
    CHANGED: (_ZERO_REASON, _UNCHANGED_REASON, _SPECIAL_REASON, _SEVERAL_REASON),
    NOT_ZERO: (_ZERO_REASON, _SPECIAL_REASON, _SEVERAL_REASON),
    FINITE: (_SPECIAL_REASON, _SEVERAL_REASON),
    EVERYWHERE: (_SEVERAL_REASON,),
    STRUCTURE: (),
}


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A node, and which of its elements a backend gets wrong.

    Attributes:
        call: the node.
        wrong: by output, a mask of the wrong elements of all tensors, concatenated.
        visible: by output, a mask with a row for each effect and a column for each element. An
            entry states whether the effect would be visible in the element.
        possible: for each output with wrong elements, a mask of the effects that explain all of
            them.
        expected: expected elements of all tensors, by output. Outputs whose shapes differ from
            those of the tensors are left out.
        of_mistake: whether ``visible`` describes a known mistake.
    """

    call: Call[Array]
    wrong: Mapping[str, Array]
    visible: Mapping[str, Array]
    possible: Mapping[str, Array]
    expected: Mapping[str, Array]
    of_mistake: bool

    @property
    def failed(self) -> bool:
        """Whether any output is wrong."""
        return bool(self.possible)

    @property
    def size(self) -> int:
        """Number of elements of all tensors."""
        return sum(first.size for first, *_ in self.call.groups)

    def labels(self, effects: Mapping[str, int], always: frozenset[str]) -> Array:
        """Return the label of each element: WRONG, 1 if a fault would be visible, or 0.

        Args:
            effects: the effect of the fault on each output that it changes.
            always: outputs that are wrong in nearly all failing samples. A fault counts as visible
                if it is visible in one of these outputs. If the set is empty, the fault must be
                visible in every output that it changes. These rules do not apply to a known
                mistake, which counts as visible if it changes any output.
        """
        wrong = np.zeros(self.size, bool)
        for name in effects:
            wrong |= self.wrong[name]
        if self.of_mistake:
            visible = [rows[EVERYWHERE] for rows in self.visible.values()]
        else:
            visible = [
                self.visible[name][effect]
                for name, effect in effects.items()
                if not always or name in always
            ]
        is_any = self.of_mistake or bool(always)
        shows = np.any(visible, axis=0) if is_any else np.all(visible, axis=0)
        return np.where(wrong, WRONG, shows.astype(np.int16))


def sample(
    call: Call[Array],
    right: Sequence[Branch],
    returned: Sequence[Array] | None = None,
    mistaken: Sequence[Array] | None = None,
) -> Sample:
    """Label the elements of a node.

    Args:
        call: the node.
        right: the expected outputs with their limits.
        returned: outputs of the backend; None if they are right.
        mistaken: outputs of a known mistake whose condition is sought; None for any fault. If they
            are given, an effect is visible wherever the mistake changes the result.
    """
    wrong: dict[str, Array] = {}
    visible: dict[str, Array] = {}
    possible: dict[str, Array] = {}
    expected: dict[str, Array] = {}
    if returned is not None and len(returned) != len(right):
        returned = [np.array(None)] * len(right)
    for name, own, old in _outputs(call):
        judged = _joined(right[own])
        new = judged.expected
        replaced = np.stack([replace(new, old) for replace in _REPLACEMENTS.values()])
        shows = judged.wrong(replaced)
        finite = np.isfinite(new)
        # A fault that returns 0 may multiply the right value by 0. If the right value is NaN or
        # infinite, the product is NaN instead of 0.
        shows[0] &= finite
        single, everywhere = _single(judged), np.ones(finite.shape, bool)
        classes = np.stack([~finite, shows[0] & shows[1], shows[0], finite, everywhere])
        visible_rows: Array = np.stack([*shows, *(classes & single), everywhere])
        if mistaken is not None:
            visible_rows[:] = _differs(judged, right[own], mistaken[own])
        bad: Array = np.zeros(finite.shape, bool)
        if returned is not None:
            expected_outputs = [branch.expected for branch in right[own]]
            pairs = list(zip(expected_outputs, returned[own], strict=True))
            fits = [
                (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
                for expected, actual in pairs
            ]
            actual = _row(
                output if fit else expected
                for fit, (expected, output) in zip(fits, pairs, strict=True)
            )
            alike = ~Branch(actual, np.zeros(actual.shape)).wrong(replaced)
            explains: Array = np.stack([*alike, *(classes | ~single), ~everywhere])
            misfit: Array = ~np.repeat(fits, [output.size for output in expected_outputs])
            explains[:, misfit] = False
            explains[STRUCTURE, misfit] = True
            bad = np.logical_or(judged.wrong(actual), misfit)
            if bad.any() or not all(fits):
                possible[name] = np.asarray(explains[:, bad].all(axis=1))
                if mistaken is not None:
                    possible[name] = np.arange(len(EFFECTS)) == EVERYWHERE
        if call.operator.carries(name):
            # All tensors share an output that is carried from group to group. Therefore, every
            # element of the tensors gets the label of this output.
            size = sum(first.size for first, *_ in call.groups)
            bad = np.full(size, bad.any())
            visible_rows = np.repeat(visible_rows.any(axis=1, keepdims=True), size, axis=1)
        else:
            expected[name] = new
        wrong[name], visible[name] = bad, visible_rows
    return Sample(call, wrong, visible, possible, expected, mistaken is not None)


def common_effects(samples: Iterable[Sample]) -> dict[str, int]:
    """For each wrong output, return the most specific effect that agrees with all samples."""
    possible: dict[str, Array] = {}
    for each in samples:
        for name, own in each.possible.items():
            possible[name] = possible.get(name, np.ones(len(EFFECTS), bool)) & own
    return {
        name: int(np.argmax(fits)) if fits.any() else EVERYWHERE
        for name, fits in sorted(possible.items())
    }


def has_common_content(samples: Iterable[Sample]) -> bool:
    """Return whether a common replacement explains the wrong elements of each output."""
    return all(effect < len(_REPLACEMENTS) for effect in common_effects(samples).values())


def always_wrong(samples: Iterable[Sample]) -> frozenset[str]:
    """Return the outputs that are wrong in nearly all failing samples."""
    failing = [each for each in samples if each.failed]
    names = {name for each in failing for name in each.possible}
    least = ALWAYS_SHARE * len(failing)
    return frozenset(n for n in names if sum(n in each.possible for each in failing) >= least)


def _differs(judged: Branch, right: Sequence[Branch], mistaken: Sequence[Array]) -> Array:
    """Return a mask of the elements that a mistake changes.

    If the mistake changes a type or shape, all elements count as changed.

    Args:
        judged: the expected elements of all outputs, concatenated.
        right: the expected outputs.
        mistaken: the outputs of the mistake.
    """
    if [(branch.expected.dtype, branch.expected.shape) for branch in right] != [
        (output.dtype, output.shape) for output in mistaken
    ]:
        return np.ones(judged.expected.shape, bool)
    return judged.wrong(_row(mistaken))


def _single(judged: Branch) -> Array:
    """Return a mask of the elements whose accepted values are all close to each other."""
    with np.errstate(all="ignore"):
        wide = judged.limit > _WIDE_LIMIT * np.abs(judged.expected.astype(np.float64))
    single, alternative = ~(wide & (judged.expected != 0)), judged.otherwise
    while alternative is not None:
        single &= ~Branch(judged.expected, judged.limit).wrong(alternative.expected)
        alternative = alternative.otherwise
    return np.asarray(single)


def _outputs(call: Call[Array]) -> Iterator[tuple[str, slice, Array]]:
    """Yield the name of each output, the slice of its tensors, and its values before the step."""
    old, end = [np.broadcast_to(like, base.shape) for like, base in call.sources], 0
    for name in call.operator.outputs:
        begin, end = end, end + (1 if call.operator.carries(name) else len(call.groups))
        yield name, slice(begin, end), _row(old[begin:end])


def _joined(branches: Sequence[Branch]) -> Branch:
    """Return the expected elements of several outputs, concatenated."""
    several = any(branch.otherwise for branch in branches)
    alternative = _joined([branch.otherwise or branch for branch in branches]) if several else None
    expected, limits = (_row(getattr(b, name) for b in branches) for name in ("expected", "limit"))
    return Branch(expected, limits, alternative)


def _row(arrays: Iterable[Array]) -> Array:
    return np.concatenate([array.reshape(-1) for array in arrays])
