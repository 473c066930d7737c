"""Case templates of zeros, NaN and infinities where another dimension might hide them.

An attribute of 0 or 1 takes an operand out of a sum for finite operands alone, and infinities of
two operands may cancel. An implementation that skips what it multiplies by zero, or that replaces
what is not finite, shows there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from onnxopt_cli.cases.yaml.case_writer import CaseTemplate
from onnxopt_cli.core.values import Array
from onnxopt_cli.suites.case_template import COUNT, Author

_SPECIAL = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf}
#: Signs of two infinities: alike and unlike.
_SIGNS = {"alike": 1, "unlike": -1}


def special_values(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates.

    Args:
        author: of the operator.
        thorough: whether attributes are also 1 and -1 beside special values, or 0 alone.
    """
    numbers = {"zero": 0.0, "one": 1.0, "minus_one": -1.0} if thorough else {"zero": 0.0}
    for name, (word, number) in product(author.unlimited, numbers.items()):
        about = f"{name} = {number:g} beside zeros, NaN and infinities: catches a step left out."
        for setting in author.settings:
            ending = "_".join(["", *setting.values()])
            for kind, tensors in _special_tensors(author).items():
                yield author.ask(
                    f"special_{name}_{word}{kind}{ending}", about, changed={name: number},
                    tensors=tensors, setting=setting,
                )  # fmt: skip
    about = "Two infinities: catches one that is lost where they cancel, or spread."
    for kind, tensors in _infinite_pairs(author).items():
        yield author.ask(f"special_pairs{kind}", about, tensors=tensors, turn=False)
    about = "Zeros, NaN and infinities in double: catches what is replaced there alone."
    counts: tuple[int, ...] = (COUNT,) if thorough else ()
    counts += (0,) if author.operator.counts else ()
    for count in counts:
        for kind, tensors in _special_tensors(author).items():
            yield author.ask(
                f"special_double{'_T_0' * (not count)}{kind}", about, tensors=tensors,
                count=count, wide=True, turn=False,
            )  # fmt: skip


def _special_tensors(author: Author) -> dict[str, Mapping[str, Array]]:
    """Return tensors that are zero or not in all ways, then special one by one; by a word.

    Where results depend on whole tensors, each special value is in tensors of its own.
    """
    zeros = author.combined((0, 1))
    ones = {name: author.tensor(name, 0, (4,)) for name in author.operator.tensors}
    found: dict[str, Mapping[str, Array]] = {}
    for special, (word, value) in product(author.operator.tensors, _SPECIAL.items()):
        if special in author.nonnegative and value < 0:
            continue
        places = np.arange(4) == 1
        changed = {special: np.where(places, value, ones[special])}
        found[f"_{word}_{special}"] = ones | changed
    if not author.elementwise:
        return {word: tensors for word, tensors in found.items() if "minus" not in word}
    columns = [zeros, *({name: it[1:2] for name, it in each.items()} for each in found.values())]
    return {"": _joined(author, columns)}


def _infinite_pairs(author: Author) -> dict[str, Mapping[str, Array]]:
    """Return tensors of which two are infinite, in each pair; by a word."""
    found: dict[str, Mapping[str, Array]] = {}
    for (one, other), (word, sign) in product(
        combinations(author.operator.tensors, 2), _SIGNS.items()
    ):
        tensors = {name: author.tensor(name, 0, (4,)) for name in author.operator.tensors}
        tensors[one][2], tensors[other][2] = np.inf, sign * np.inf
        if sign > 0 or not {one, other} & set(author.nonnegative):
            found[f"_{one}_{other}_{word}"] = tensors
    # An operator with a single tensor has no pairs.
    if not author.elementwise or not found:
        return found
    columns = [{name: it[1:3] for name, it in each.items()} for each in found.values()]
    return {"": _joined(author, columns)}


def _joined(author: Author, columns: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    return {
        name: np.concatenate([column[name] for column in columns])
        for name in author.operator.tensors
    }
