"""Case templates at the far end of single dimensions: counts, magnitudes, sizes, types, zeros.

Each dimension is covered for every operator alike; docs/mutation-analysis.md has a table of
the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, Given
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.suites.case_template import (
    COUNT,
    RATE,
    WIDE,
    Author,
    Shapes,
)

#: On both sides of what 31 to 63 bits, a float and a double can count.
_FAR_COUNTS = (
    *(2**bits + by for bits in (31, 32, 33, 40, 48, 53, 62) for by in (0, 1)),
    2**63 - 1, -(2**31) - 1, -(2**32) + 1, -(2**40) + 1, -(2**63),
)  # fmt: skip
#: Of those, what a suite asks that answers in seconds.
_FEW_COUNTS = (2**31, 2**33 + 1, 2**40 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**32) + 1, -(2**63))
_FEW_INVERSE = (2**33 + 1, 2**53 + 1, 2**63 - 1, -(2**32) + 1, -(2**63))
#: Counts whose parity double holds: what computes powers in double may lose that of other odd ones.
_PARITIES = (2**53 - 1, 2**62, 2**24 + 1, 2**31 + 1, 2**33 + 1, 2**53 + 2)
#: Of those, one odd and one even, which a suite asks that answers in seconds.
_FEW_PARITIES = 2
_ONES = (2**31 + 1, 2**53 + 1, 2**62)
#: By a word: a number, and of what size the tensors of a sum are that shows it.
_MAGNITUDES = (
    ("largest", float(np.finfo(np.float32).max), 1e-15), ("huge", 1e38, 1e-15),
    ("far", 333333.0, 1e-2), ("least", 3e-38, 1e15),
)  # fmt: skip
#: Whole pages, and what lies between them.
PAGES: Shapes = (
    (512,), (1000,), (2048,), (4096,), (8193,), (4095,), (8192,), (16383,), (4097,),
)  # fmt: skip
BETWEEN_PAGES: Shapes = ((4160,), (5003,), (7013,), (9001,), (14009,), (4603,), (12289,))
#: How many of the latter a suite asks for that answers in seconds.
_FIRST = 5
MATRICES: Shapes = ((3, 1500), (1500, 3), (2, 4099), (64, 64), (16, 16), (17, 9, 23))
HIGH_RANKS: Shapes = tuple(
    tuple(2 if place in (0, rank // 2, rank - 1) else 1 for place in range(rank))
    for rank in (9, 10, 11, 13, 17, 24)
)
#: Asked for alone in any suite.
ALONE: Shapes = ((4096,), (6007,), (16384,), (3, 2053), HIGH_RANKS[0])
#: Asked for alone in the suite ``large``.
LARGE_ALONE: Shapes = (
    *((size,) for size in (512, 1000, 2048, 4095, 4097, 8191, 8192, 8193, 16383, 16385)),
    *((size,) for size in (32767, 32768, 32769, 65536, 4603, 5003, 7013, 9001, 12289, 14009)),
    *((size,) for size in (20011, 40009, 4101, 1031, 4160, 192)),
    (3, 1500), (1500, 3), (2, 5000), (4097, 2), (2**20 + 3,),
    (64, 64), (16, 16), (17, 19, 23), (9, 33, 65),
    *HIGH_RANKS,
)  # fmt: skip
#: The last elements of a tensor that is drawn: its sum, its norm and its ranks depend on them.
_TAIL = (40.0, -60.0, 50.0)
#: Of a threshold between the largest elements but one.
_RANKS_BELOW = 2.5


def extremes(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates that take little time.

    Args:
        author: of the operator.
        thorough: whether they are many, or what a suite asks that answers in seconds.
    """
    seeds = int(thorough)
    yield from _counts(author, thorough=thorough)
    yield from _magnitudes(author, thorough=thorough)
    yield from _types(author, thorough=thorough)
    yield from _exact_zeros(author)
    # A sum of all tensors shows the largest alone.
    few = None if thorough else _FIRST
    between = BETWEEN_PAGES[:few]
    others = (*PAGES, *between, *MATRICES, *HIGH_RANKS[:few]) if author.carried else ()
    yield from sizes(author, tuple(dict.fromkeys((*ALONE, *others))), seeds)
    for word, shapes in (("pages", PAGES), ("between_pages", between),
                         ("matrices", MATRICES), ("high_ranks", HIGH_RANKS)):  # fmt: skip
        if not author.carried:
            about = f"Tensors of {len(shapes)} large sizes: catches what some size leaves out."
            drawn = {(tensor, group): it for group, shape in enumerate(shapes)
                     for tensor, it in _drawn(author, shape, seeds + group).items()}  # fmt: skip
            changed = _near_largest(author, shapes)
            yield author.ask(f"sizes_{word}", about, shapes=shapes, tensors=drawn, changed=changed)
    yield from _broadcast_at_high_ranks(author, HIGH_RANKS if thorough else HIGH_RANKS[::2])
    yield tensors_of(author, 257)


def _broadcast_at_high_ranks(author: Author, shapes: Shapes) -> Iterator[CaseTemplate]:
    for number, tensor in enumerate(author.stepped):
        about = f"{tensor} broadcasts at ranks from 9 on: catches a limit on ranks."
        narrow = {}
        for group, shape in enumerate(shapes):
            ways = (1, *shape[1:]), (*shape[:-1], 1), shape[len(shape) // 2 :]
            narrow[tensor, group] = ways[(group + number) % len(ways)]
        if author.carried:
            shapes, narrow = shapes[:1], {(tensor, 0): narrow[tensor, 0]}
        name = f"high_ranks_{tensor}"
        yield author.ask(
            name, about, shapes=shapes, narrow=narrow, changed=_near_largest(author, shapes)
        )


def sizes(author: Author, shapes: Shapes, seeds: int = 0) -> Iterator[CaseTemplate]:
    """Yield a case template for each shape of the only tensor, whose last elements weigh most."""
    for shape in shapes:
        words = f"rank_{len(shape)}" if shape in HIGH_RANKS else "x".join(map(str, shape))
        about = f"One tensor of shape {list(shape)}, the last elements large: catches their loss."
        changed = _near_largest(author, [shape])
        drawn = _drawn(author, shape, seeds)
        yield author.ask(f"size_{words}", about, shapes=[shape], tensors=drawn, changed=changed)


def many_sizes(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield the case templates of the suite ``large`` about sizes, and numbers of tensors."""
    author = Author(operator)
    yield from sizes(author, LARGE_ALONE, seeds=2)
    for number in (130, 258, 300, 513, 1025):
        yield tensors_of(author, number)


def tensors_of(author: Author, number: int) -> CaseTemplate:
    """Return a case template of so many small tensors, none of which may be left out."""
    about = f"{number} tensors: catches a limit on their number."
    shapes = [((2,), (1,), ())[group % 3] for group in range(number)]
    return author.ask(f"tensors_{number}", about, shapes=shapes)


def _drawn(author: Author, shape: tuple[int, ...], seeds: int) -> dict[str, Given]:
    """Return tensors for a group, drawn if they are large."""
    found: dict[str, Given] = {}
    for place, name in enumerate(author.operator.tensors):
        seed = 1000 + 10 * seeds + place
        tail = tuple((1 + place / 8) * value for value in _TAIL[-min(prod(shape), len(_TAIL)) :])
        dtype = np.dtype(np.float32)
        if name in author.nonnegative:
            limits = {"low": 0.01, "high": 4.0}
            tail = tuple(map(abs, tail))
            found[name] = RandomTensor("uniform", seed, shape, dtype, limits, tail)
        else:
            found[name] = RandomTensor("normal", seed, shape, dtype, {}, tail)
    return found


def _near_largest(author: Author, shapes: Shapes) -> Mapping[str, Any]:
    """Return limited attributes so that, as ranks, they lie between the largest elements."""
    shares = [max(prod(shape) - _RANKS_BELOW, 0) / max(prod(shape) - 1, 1) for shape in shapes]
    changed: dict[str, Any] = {}
    for name in author.limits:
        numbers = tuple(float(np.float32(author.within(name, share))) for share in shares)
        changed[name] = numbers if name in author.each else numbers[0]
    return changed


def _counts(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    if not author.operator.counts:
        return
    for count in _FAR_COUNTS if thorough else _FEW_COUNTS:
        words = str(count).replace("-", "minus_")
        about = f"T = {count}: catches a count of fewer bits, or of a float's digits."
        yield author.ask(f"count_{words}", about, count=count)
        if not thorough and count not in _FEW_INVERSE:
            continue
        about = f"T = {count}, attributes near its inverse: catches a count that is cut off."
        inverse = dict.fromkeys(author.unlimited, float(np.float32(1 / abs(count))))
        still = {author.first: np.zeros(4)}
        name = f"count_{words}_inverse"
        yield author.ask(name, about, count=count, changed=inverse, tensors=still)
    parities = _PARITIES[: None if thorough else _FEW_PARITIES]
    for count, name in product(parities, author.unlimited):
        word = "odd" if count % 2 else "even"
        about = f"T = {count}, {name} = -1: catches a parity that is lost, or a sign."
        case_name = f"count_{count}_{word}_{name}"
        yield author.ask(case_name, about, count=count, changed={name: -1.0}, wide=True)
    for count, name in product(_ONES if thorough else (), author.unlimited):
        about = f"T = {count}, {name} = 1: catches a power that is cut off."
        yield author.ask(f"count_{count}_{name}_one", about, count=count, changed={name: 1.0})


def _magnitudes(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Ask for attributes up to the largest float, beside tensors that are small."""
    names = author.operator.tensors

    def tensors(size: float) -> dict[str, Array]:
        if not author.elementwise:
            return {name: size * author.tensor(name, 0, (4,)) for name in names}
        # Beside an attribute that is large, what is small shows; beside a small one what is large.
        scales = (1e-30, 1.0) if size < 1 else (1.0, 1e30)
        if thorough:
            return author.combined((0.0, *scales))
        return _one_by_one(author, scales)

    for name, (word, value, size), sign in product(author.unlimited, _MAGNITUDES, (1, -1)):
        if not thorough and (word == "far" or (sign < 0 and word != "huge")):
            continue
        about = f"{name} = {sign * value:g}: catches one that is clipped, or rounded to zero."
        ending = "_negative" * (sign < 0)
        yield author.judgeable(
            author.ask(
                f"magnitude_{word}_{name}{ending}", about, count=count,
                changed={name: sign * value}, tensors=tensors(size),
                rate_value=0.0 if author.carried else RATE,
            )
            for count in (COUNT, 0)
        )  # fmt: skip
    rates = _MAGNITUDES[: 3 if thorough else 1] if author.rate else ()
    for (word, value, size), sign in product(rates, (1, -1)):
        # A sum that starts at the largest number may round to infinity.
        rate = sign * value / (1 + author.carried)
        about = f"{author.rate} = {rate:g}: catches one that is clipped."
        name = f"magnitude_{word}_{author.rate}{'_negative' * (sign < 0)}"
        yield author.ask(name, about, rate_value=rate, tensors=tensors(size))
    for name, (word, share) in product(author.limits, (("1e_6", 1e-8), ("1e_30", 1e-32))):
        value = author.within(name, share)
        about = f"{name} = {value:g}: catches one that is taken for its limit."
        # The least element lies above a limit's rank, and below the next.
        still = dict.fromkeys(names, np.zeros(5)) | {author.first: np.array([1e-36, 3, -1, 2, 5])}
        yield author.ask(f"magnitude_{word}_{name}", about, changed={name: value}, tensors=still)


def _one_by_one(author: Author, scales: Sequence[float]) -> dict[str, Array]:
    """Return tensors in which each operand alone is not zero, then all, at each scale."""
    names = author.operator.tensors
    columns = np.concatenate([scale * np.eye(len(names), 1 + len(names)) for scale in scales], 1)
    columns[:, len(names) :: 1 + len(names)] = scales
    return {
        name: column * author.tensor(name, 0, column.shape)
        for name, column in zip(names, columns, strict=True)
    }


def _types(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Ask for doubles nearly equal beside floats, so that differences show what was rounded."""
    names = author.operator.tensors
    signs = np.array([*product((1.0, -1.0), repeat=len(names))]).T
    # Too near for float32, and apart from each other.
    nearly = {
        name: column * (1 + (1 + place) * 2.0**-28 * (1 + np.arange(column.size) / 7))
        for place, (name, column) in enumerate(zip(names, signs, strict=True))
    }
    nearly = {name: np.abs(it) if name in author.nonnegative else it for name, it in nearly.items()}
    mixed = {f"double_{name}": {name: WIDE} for name in names}
    if len(names) > 1:
        mixed |= {f"float_{name}": dict.fromkeys(set(names) - {name}, WIDE) for name in names}
    mixed["double_all"] = author.double
    if author.carried:
        # A difference of a float and a double may be rounded to float32, and nothing is left of it.
        mixed = {"double_all": author.double}
        # Each difference alone, as a sum shows the largest.
        nearly = {name: np.where(np.arange(it.size) == 1, it, 0) for name, it in nearly.items()}
        ones = {name: np.ones(3) for name in names}
        for place, name in enumerate(names):
            ones[name] = 1 + 2.0**-28 * (place + np.arange(3) / 7)
        ones[names[-1]] = ones[names[-1]] - 1
        nearly = ones
    rates = ("float32", WIDE) if author.rate and thorough else ("float32",)
    for (word, types), rate in product(mixed.items(), rates):
        about = "Operands that nearly cancel, of these types: catches one that is rounded before."
        ending = f"_{rate}_{author.rate}" if author.rate else ""
        changed = dict.fromkeys(author.unlimited, 1.0 if not author.carried else 1e15)
        half = dict.fromkeys(author.unlimited, 0.5)
        for level, attributes in (("one", changed), ("half", half))[: 1 + thorough]:
            yield author.ask(
                f"nearly_{word}{ending}_{level}", about, types=types, rate=rate,
                changed=attributes, tensors=nearly, rate_value=0.0 if author.carried else 0.4,
            )  # fmt: skip


def _exact_zeros(author: Author) -> Iterator[CaseTemplate]:
    """Ask for counts and attributes whose product is exactly -1."""
    if not author.operator.counts:
        return
    for name, count in product(author.unlimited, (1, 4, 2**20)):
        about = f"{name} = {-1 / count:g} and T = {count}: catches a zero that is avoided."
        yield author.ask(f"exact_{name}_{count}", about, count=count, changed={name: -1 / count})
