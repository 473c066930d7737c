"""Case templates of zeros, NaN and infinities, beside attributes of 0 and 1.

An attribute of 0 or 1 removes an operand from a sum only if the operand is finite, and infinities
of two operands may cancel. The cases detect an implementation that skips a multiplication by zero
or replaces non-finite values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from onnxopt_cli.cases.case_template import COUNT, Author
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate
from onnxopt_cli.core.values import Array

_SPECIAL = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf}
#: Signs of two infinities: alike and unlike.
_SIGNS = {"alike": 1, "unlike": -1}


def special_values(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates.

    Args:
        author: creates the operator's templates.
        thorough: whether attributes beside special values are also 1 and -1, instead of 0 only.
    """
    numbers = {"zero": 0.0, "one": 1.0, "minus_one": -1.0} if thorough else {"zero": 0.0}
    for name, (word, number) in product(author.unlimited, numbers.items()):
        about = f"{name} = {number:g} beside zeros, NaN and infinities: detects a skipped step."
        for setting in author.settings:
            ending = "_".join(["", *setting.values()])
            for kind, tensors in _special_tensors(author).items():
                yield author.template(
                    f"special_{name}_{word}{kind}{ending}", about, changed={name: number},
                    tensors=tensors, setting=setting,
                )  # fmt: skip
    about = "Two infinities: detects a lost infinity, or NaN where they do not cancel."
    for kind, tensors in _infinite_pairs(author).items():
        yield author.template(f"special_pairs{kind}", about, tensors=tensors, turn=False)
    about = "Zeros, NaN and infinities in double: detects replacement in double only."
    counts: tuple[int, ...] = (COUNT,) if thorough else ()
    counts += (0,) if author.operator.counts else ()
    for count in counts:
        for kind, tensors in _special_tensors(author).items():
            yield author.template(
                f"special_double{'_T_0' * (not count)}{kind}", about, tensors=tensors,
                count=count, wide=True, turn=False,
            )  # fmt: skip


def _special_tensors(author: Author) -> dict[str, Mapping[str, Array]]:
    """Return one or more sets of tensors, by the ending of the template's name.

    One set has every combination of zeros and, for each tensor and special value, an element of
    this value. If outputs depend on all elements, there is a set for each tensor and value.
    """
    zeros = author.combined((0, 1))
    ones = {name: author.tensor(name, 0, (4,)) for name in author.operator.tensors}
    sets: dict[str, Mapping[str, Array]] = {}
    for special, (word, value) in product(author.operator.tensors, _SPECIAL.items()):
        if special in author.nonnegative and value < 0:
            continue
        places = np.arange(4) == 1
        changed = {special: np.where(places, value, ones[special])}
        sets[f"_{word}_{special}"] = ones | changed
    if not author.elementwise:
        return {word: tensors for word, tensors in sets.items() if "minus" not in word}
    columns = [{name: array[1:2] for name, array in tensors.items()} for tensors in sets.values()]
    return {"": _joined(author, [zeros, *columns])}


def _infinite_pairs(author: Author) -> dict[str, Mapping[str, Array]]:
    """Return sets of tensors in which two tensors are infinite, by the ending of the name."""
    sets: dict[str, Mapping[str, Array]] = {}
    for (first, second), (word, sign) in product(
        combinations(author.operator.tensors, 2), _SIGNS.items()
    ):
        tensors = {name: author.tensor(name, 0, (4,)) for name in author.operator.tensors}
        tensors[first][2], tensors[second][2] = np.inf, sign * np.inf
        if sign > 0 or not {first, second} & set(author.nonnegative):
            sets[f"_{first}_{second}_{word}"] = tensors
    # An operator with a single tensor has no pairs.
    if not author.elementwise or not sets:
        return sets
    columns = [{name: array[1:3] for name, array in tensors.items()} for tensors in sets.values()]
    return {"": _joined(author, columns)}


def _joined(author: Author, columns: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    return {
        name: np.concatenate([column[name] for column in columns])
        for name in author.operator.tensors
    }
