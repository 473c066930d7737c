"""Case templates with extreme values of T, magnitudes and sizes, mixed types, and NaN or infinity.

Every operator gets the same cases; a table in docs/mutation-analysis.md states their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.cases.case_template import (
    COUNT,
    RATE,
    WIDE_TYPE,
    Author,
    Shapes,
)
from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.operator import Operator

#: Values of T at and above the largest integers of 31 to 63 bits, of float32 and of float64.
_FAR_COUNTS = (
    *(2**bits + by for bits in (31, 32, 33, 40, 48, 53, 62) for by in (0, 1)),
    2**63 - 1, -(2**31) - 1, -(2**32) + 1, -(2**40) + 1, -(2**63),
)  # fmt: skip
#: The elements of _FAR_COUNTS for suites that run in seconds.
_FEW_COUNTS = (2**31, 2**33 + 1, 2**40 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**32) + 1, -(2**63))
#: The elements of _FEW_COUNTS for which attributes near 1 / T are also tested.
_FEW_INVERSE = (2**33 + 1, 2**53 + 1, 2**63 - 1, -(2**32) + 1, -(2**63))
#: Odd and even values of T that double represents exactly, because an implementation may compute
#: powers in double.
_PARITIES = (2**53 - 1, 2**62, 2**24 + 1, 2**31 + 1, 2**33 + 1, 2**53 + 2)
#: Suites that run in seconds use only this number of _PARITIES: one odd and one even.
_FEW_PARITIES = 2
#: Values of T for which attributes of 1 are tested.
_ONES = (2**31 + 1, 2**53 + 1, 2**62)
#: Values that are tested for each attribute: the word in the case's name, the value, and a
#: magnitude of the tensors for which an error in the attribute is detectable.
_MAGNITUDES = (
    ("largest", float(np.finfo(np.float32).max), 1e-15), ("huge", 1e38, 1e-15),
    ("far", 333333.0, 1e-2), ("least", 3e-38, 1e15),
)  # fmt: skip
#: Sizes at, next to and between multiples of a page.
PAGES: Shapes = (
    (512,), (1000,), (2048,), (4096,), (8193,), (4095,), (8192,), (16383,), (4097,),
)  # fmt: skip
BETWEEN_PAGES: Shapes = ((4160,), (5003,), (7013,), (9001,), (14009,), (4603,), (12289,))
#: Suites that run in seconds use only this number of the shapes of BETWEEN_PAGES and of HIGH_RANKS.
_FIRST_SHAPES = 5
MATRICES: Shapes = ((3, 1500), (1500, 3), (2, 4099), (64, 64), (16, 16), (17, 9, 23))
HIGH_RANKS: Shapes = tuple(
    tuple(2 if place in (0, rank // 2, rank - 1) else 1 for place in range(rank))
    for rank in (9, 10, 11, 13, 17, 24)
)
#: Shapes of the tensor in nodes with a single tensor, for every suite.
SINGLE_SHAPES: Shapes = ((4096,), (6007,), (16384,), (3, 2053), HIGH_RANKS[0])
#: Shapes of the tensor in nodes with a single tensor, for the suite ``large``.
LARGE_SINGLE_SHAPES: Shapes = (
    *((size,) for size in (512, 1000, 2048, 4095, 4097, 8191, 8192, 8193, 16383, 16385)),
    *((size,) for size in (32767, 32768, 32769, 65536, 4603, 5003, 7013, 9001, 12289, 14009)),
    *((size,) for size in (20011, 40009, 4101, 1031, 4160, 192)),
    (3, 1500), (1500, 3), (2, 5000), (4097, 2), (2**20 + 3,),
    (64, 64), (16, 16), (17, 19, 23), (9, 33, 65),
    *HIGH_RANKS,
)  # fmt: skip
#: Special values of elements.
_SPECIAL = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf}
#: For two infinities of equal or of opposite signs, the product of the signs.
_SIGNS = {"alike": 1, "unlike": -1}
#: The last elements of a random tensor. They are large, so that the sum, norm and ranks of the
#: tensor depend on them.
_TAIL = (40.0, -60.0, 50.0)
#: A threshold lies this number of ranks below the largest element, and thus between the elements of
#: _TAIL.
_RANKS_BELOW = 2.5


def extremes(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates whose nodes run fast.

    Args:
        author: creates the operator's templates.
        thorough: whether to yield all templates, or the subset for suites that run in seconds.
    """
    seeds = int(thorough)
    yield from _counts(author, thorough=thorough)
    yield from _magnitudes(author, thorough=thorough)
    yield from _types(author, thorough=thorough)
    yield from _exact_zeros(author)
    limit = None if thorough else _FIRST_SHAPES
    between = BETWEEN_PAGES[:limit]
    # In a sum over all tensors, the largest term would hide the other terms, so each case has a
    # single tensor.
    single = (*PAGES, *between, *MATRICES, *HIGH_RANKS[:limit]) if author.carried else ()
    yield from sizes(author, tuple(dict.fromkeys((*SINGLE_SHAPES, *single))), seeds)
    for word, shapes in (("pages", PAGES), ("between_pages", between),
                         ("matrices", MATRICES), ("high_ranks", HIGH_RANKS)):  # fmt: skip
        if not author.carried:
            about = f"Tensors of {len(shapes)} large sizes: detects elements omitted at some size."
            drawn = {
                (tensor, group): random
                for group, shape in enumerate(shapes)
                for tensor, random in _drawn(author, shape, seeds + group).items()
            }
            changed = _near_largest(author, shapes)
            yield author.template(
                f"sizes_{word}", about, shapes=shapes, tensors=drawn, changed=changed
            )
    yield from _broadcast_at_high_ranks(author, HIGH_RANKS if thorough else HIGH_RANKS[::2])
    yield tensors_of(author, 257)


def _broadcast_at_high_ranks(author: Author, shapes: Shapes) -> Iterator[CaseTemplate]:
    for number, tensor in enumerate(author.stepped):
        about = f"{tensor} broadcasts at ranks of 9 and more: detects a limit on ranks."
        narrow = {}
        for group, shape in enumerate(shapes):
            ways = (1, *shape[1:]), (*shape[:-1], 1), shape[len(shape) // 2 :]
            narrow[tensor, group] = ways[(group + number) % len(ways)]
        if author.carried:
            shapes, narrow = shapes[:1], {(tensor, 0): narrow[tensor, 0]}
        name = f"high_ranks_{tensor}"
        yield author.template(
            name, about, shapes=shapes, narrow=narrow, changed=_near_largest(author, shapes)
        )


def sizes(author: Author, shapes: Shapes, seeds: int = 0) -> Iterator[CaseTemplate]:
    """Yield a template for each shape of a single tensor.

    The last elements of the tensor are large.
    """
    for shape in shapes:
        words = f"rank_{len(shape)}" if shape in HIGH_RANKS else "x".join(map(str, shape))
        about = f"One tensor of shape {list(shape)}, its end large: detects missing last elements."
        changed = _near_largest(author, [shape])
        drawn = _drawn(author, shape, seeds)
        yield author.template(
            f"size_{words}", about, shapes=[shape], tensors=drawn, changed=changed
        )


def many_sizes(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield the case templates of the suite ``large`` with large tensors or with many tensors."""
    author = Author(operator)
    yield from sizes(author, LARGE_SINGLE_SHAPES, seeds=2)
    for number in (130, 258, 300, 513, 1025):
        yield tensors_of(author, number)


def tensors_of(author: Author, number: int) -> CaseTemplate:
    """Return a case template with the given number of small tensors."""
    about = f"{number} tensors: detects a limit on their number."
    shapes = [((2,), (1,), ())[group % 3] for group in range(number)]
    return author.template(f"tensors_{number}", about, shapes=shapes)


def _drawn(author: Author, shape: tuple[int, ...], seeds: int) -> dict[str, TemplateInput]:
    """Return random tensors, by name, for a group of tensors with the given shape.

    Different numbers ``seeds`` select different seeds.
    """
    tensors: dict[str, TemplateInput] = {}
    for place, name in enumerate(author.operator.tensors):
        seed = 1000 + 10 * seeds + place
        tail = tuple((1 + place / 8) * value for value in _TAIL[-min(prod(shape), len(_TAIL)) :])
        dtype = np.dtype(np.float32)
        if name in author.nonnegative:
            limits = {"low": 0.01, "high": 4.0}
            tail = tuple(map(abs, tail))
            tensors[name] = RandomTensor("uniform", seed, shape, dtype, limits, tail)
        else:
            tensors[name] = RandomTensor("normal", seed, shape, dtype, {}, tail)
    return tensors


def _near_largest(author: Author, shapes: Shapes) -> Mapping[str, Any]:
    """Return values of the attributes with limits that select one of the largest elements."""
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
        about = f"T = {count}: detects conversion to fewer bits or to floating point."
        yield author.template(f"count_{words}", about, count=count)
        if not thorough and count not in _FEW_INVERSE:
            continue
        about = f"T = {count}, attributes near 1 / T: detects a truncated T."
        inverse = dict.fromkeys(author.unlimited, float(np.float32(1 / abs(count))))
        still = {author.first: np.zeros(4)}
        name = f"count_{words}_inverse"
        yield author.template(name, about, count=count, changed=inverse, tensors=still)
    parities = _PARITIES[: None if thorough else _FEW_PARITIES]
    for count, name in product(parities, author.unlimited):
        word = "odd" if count % 2 else "even"
        about = f"T = {count}, {name} = -1: detects a lost parity or sign."
        case_name = f"count_{count}_{word}_{name}"
        yield author.template(case_name, about, count=count, changed={name: -1.0}, wide=True)
    for count, name in product(_ONES if thorough else (), author.unlimited):
        about = f"T = {count}, {name} = 1: detects a truncated power."
        yield author.template(f"count_{count}_{name}_one", about, count=count, changed={name: 1.0})


def _magnitudes(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield nodes whose attributes have values up to the largest float; the tensors are small."""
    names = author.operator.tensors

    def tensors(size: float) -> dict[str, Array]:
        if not author.elementwise:
            return {name: size * author.tensor(name, 0, (4,)) for name in names}
        # An error of a large attribute is detectable with small elements, and an error of a small
        # attribute with large elements.
        scales = (1e-30, 1.0) if size < 1 else (1.0, 1e30)
        if thorough:
            return author.combined((0.0, *scales))
        return _one_by_one(author, scales)

    for name, (word, value, size), sign in product(author.unlimited, _MAGNITUDES, (1, -1)):
        if not thorough and (word == "far" or (sign < 0 and word != "huge")):
            continue
        about = f"{name} = {sign * value:g}: detects clipping or rounding to zero."
        ending = "_negative" * (sign < 0)
        yield author.judgeable(
            author.template(
                f"magnitude_{word}_{name}{ending}", about, count=count,
                changed={name: sign * value}, tensors=tensors(size),
                rate_value=0.0 if author.carried else RATE,
            )
            for count in (COUNT, 0)
        )  # fmt: skip
    rates = _MAGNITUDES[: 3 if thorough else 1] if author.rate else ()
    for (word, value, size), sign in product(rates, (1, -1)):
        # A sum that starts at the largest number may overflow.
        rate = sign * value / (1 + author.carried)
        about = f"{author.rate} = {rate:g}: detects clipping."
        name = f"magnitude_{word}_{author.rate}{'_negative' * (sign < 0)}"
        yield author.template(name, about, rate_value=rate, tensors=tensors(size))
    for name, (word, share) in product(author.limits, (("1e_6", 1e-8), ("1e_30", 1e-32))):
        value = author.within(name, share)
        about = f"{name} = {value:g}: detects rounding to its limit."
        # The selected rank lies between the ranks of the smallest and of the second smallest
        # element.
        still = dict.fromkeys(names, np.zeros(5)) | {author.first: np.array([1e-36, 3, -1, 2, 5])}
        yield author.template(
            f"magnitude_{word}_{name}", about, changed={name: value}, tensors=still
        )


def _one_by_one(author: Author, scales: Sequence[float]) -> dict[str, Array]:
    """Return operands; in each column, one operand or all operands are nonzero, at one scale."""
    names = author.operator.tensors
    columns = np.concatenate([scale * np.eye(len(names), 1 + len(names)) for scale in scales], 1)
    columns[:, len(names) :: 1 + len(names)] = scales
    return {
        name: column * author.tensor(name, 0, column.shape)
        for name, column in zip(names, columns, strict=True)
    }


def _types(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield tensors of float32 and double that are equal in float32, but not in double.

    The differences of the tensors reveal whether an operand is rounded.
    """
    names = author.operator.tensors
    signs = np.array([*product((1.0, -1.0), repeat=len(names))]).T
    # The numbers are pairwise different in double, but equal in float32.
    nearly = {
        name: column * (1 + (1 + place) * 2.0**-28 * (1 + np.arange(column.size) / 7))
        for place, (name, column) in enumerate(zip(names, signs, strict=True))
    }
    nearly = {
        name: np.abs(array) if name in author.nonnegative else array
        for name, array in nearly.items()
    }
    mixed = {f"double_{name}": {name: WIDE_TYPE} for name in names}
    if len(names) > 1:
        mixed |= {f"float_{name}": dict.fromkeys(set(names) - {name}, WIDE_TYPE) for name in names}
    mixed["double_all"] = author.double
    if author.carried:
        # The difference between a float and a double may be rounded to float32 and thereby become
        # zero.
        mixed = {"double_all": author.double}
        nearly = {
            name: 1 + 2.0**-28 * (place + np.arange(3) / 7) for place, name in enumerate(names)
        }
        nearly[names[-1]] = nearly[names[-1]] - 1
    rates = ("float32", WIDE_TYPE) if author.rate and thorough else ("float32",)
    for (word, types), rate in product(mixed.items(), rates):
        about = "Operands of mixed types that nearly cancel: detects an operand rounded too early."
        ending = f"_{rate}_{author.rate}" if author.rate else ""
        changed = dict.fromkeys(author.unlimited, 1.0 if not author.carried else 1e15)
        half = dict.fromkeys(author.unlimited, 0.5)
        for level, attributes in (("one", changed), ("half", half))[: 1 + thorough]:
            yield author.template(
                f"nearly_{word}{ending}_{level}", about, types=types, rate=rate,
                changed=attributes, tensors=nearly, rate_value=0.0 if author.carried else 0.4,
            )  # fmt: skip


def _exact_zeros(author: Author) -> Iterator[CaseTemplate]:
    """Yield values of T and of attributes whose product is exactly -1."""
    if not author.operator.counts:
        return
    for name, count in product(author.unlimited, (1, 4, 2**20)):
        about = f"{name} = {-1 / count:g} and T = {count}: detects a zero divisor that is replaced."
        yield author.template(
            f"exact_{name}_{count}", about, count=count, changed={name: -1 / count}
        )


def special_values(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates with zeros, NaN or infinities in tensors, and attributes of 0 or 1.

    An attribute of 0 or 1 removes an operand from a sum only if the operand is finite, and
    infinities of two operands may cancel. The cases detect an implementation that skips a
    multiplication by zero or replaces non-finite values.

    Args:
        author: creates the operator's templates.
        thorough: whether to yield all templates. Otherwise, attributes of 1 and -1 are left out,
            and templates in double have only T = 0.
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
    """Return sets of tensors for templates; the keys are the endings of the templates' names.

    If each element of an output depends on a single element of each tensor, there is one set of
    tensors. It contains all combinations of zeros, and each special value in one tensor at a time.
    If outputs depend on several elements, each combination of a tensor and a value has its own set.
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
    """Return sets of tensors with infinities in two tensors, by the endings of the case names."""
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
