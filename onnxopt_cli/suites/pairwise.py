"""Case templates that cover the space of inputs by dimension, two dimensions at a time.

A dimension is an attribute, T, R, the number of tensors, the shape of one, how an operand
broadcasts to it, its type, its values. Most bugs show where two of them have some values together,
as long as the others do not hide it: a case template sets a few of them to extremes, and leaves the
others ordinary. Which ones is drawn from a fixed seed, so that pairs that were asked least come
first. Nothing here knows an operator by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, cycle, product
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, Given
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.operator import AttributeValue, Operator
from onnxopt_cli.suites.case_template import (
    COUNT,
    WIDE,
    Author,
    Shapes,
)

#: Lengths around the sizes of vectors and blocks, and multiples of them.
AROUND_BLOCKS = tuple(size + by for size in (16, 32, 64, 128, 256, 1024) for by in (-1, 0, 1))
_LENGTHS = (*range(10), *AROUND_BLOCKS, 48, 96, 384)
_TILES = (31, 32, 33, 64, 65, 128, 129, 256, 257)
_SINGLE: Shapes = ((), (1,), (1, 1), (1, 1, 1))
#: Reach beyond every tile and block, with a rest, in every rank.
_WHOLE: Shapes = (
    (300, 2), (2, 300), (1100,),
    (2, 3, 191), (3, 7, 1, 53), (2, 3, 2, 2, 47), (2, 2, 3, 2, 3, 17), (2, 1, 3, 2, 2, 3, 17),
)  # fmt: skip
_SHAPES: Shapes = (
    *((length,) for length in _LENGTHS if length != 1),
    *((size, 3) for size in _TILES),
    *((2, size) for size in _TILES),
    *((size, 2) for size in (32, 64, 128, 256)),
    *((3, size) for size in (32, 64, 128, 256)),
    *_WHOLE, (33, 32), (32, 33), (33, 64), (64, 33), (33, 128), (128, 33),
    (2048,), (32, 32), (64, 48), (2, 16, 64), (8, 128), (128, 8), (4, 256), (256, 4),
    (2, 2), (3, 3), (5, 5), (2, 2, 2), (3, 3, 3),
    (2, 3), (0, 3), (33, 65), (1, 3, 1), (2, 3, 4), (2, 0, 2), (2, 1, 3, 2), (3, 2, 4, 2),
    (2, 2, 1, 3, 2), (2, 3, 2, 3, 2), (1, 2, 2, 1, 2, 3), (2, 2, 3, 1, 2, 2),
    (2, 1, 2, 2, 1, 2, 2), (1,) * 7, *_SINGLE,
)  # fmt: skip
#: How many tensors, and how many case templates of so many.
_NUMBERS = {
    1: 42, 2: 68, 3: 92, 4: 108, 5: 6, 6: 5, 7: 6, 8: 36, 9: 42, 10: 4, 16: 12, 17: 14, 33: 12,
    65: 26, 129: 3,
}  # fmt: skip
#: The last and first tensors of those that are computed at once, of whole numbers of them.
_TURNS = (7, 8, 15, 16, 31, 32, 63, 64, 127, 128)
#: Of the suite ``large``.
_LARGE_SHAPES: Shapes = (
    *((size + by,) for size in (2**16, 2**17) for by in (-1, 0, 1)),
    (3 * 2**15,), (2**10 + 1, 2**7 - 1), (2**20,), (2**20 + 1,),
)  # fmt: skip
#: Of large tensors that meet other things: the shapes of each node, and how many nodes of them.
_LARGE_MET: dict[Shapes, int] = {
    ((2**8 + 1, 2**8 - 1),): 8,
    ((2**7, 2**5 - 1, 2**5 + 3),): 4,
    ((3,), (2**16 + 3,)): 3,
    ((2**16 + 1,), (2**9 - 1, 2**8 + 1), (2**15 + 5,)): 5,
}

_COUNTS = (COUNT, 0, 1, 2, 10, 1000, 10**6, 2**24 + 1, 2**31 + 5, 2**32 + 1, -1, -7)
# Numbers have more digits than people write: what rounds one to its decimals is seen.
_RATES = (0.41234568, 1.0, 0.0, -0.41234568, 1.2345679e-6, 24.691358)
_RANKS = (0, 1, 2, 3)
#: Of attributes without limits, beside the ordinary value: seen, and inexact in float32 where not.
#: Six digits miss some by five millionths.
_NUMERIC = (0.0, 1.0, -1.0, 1.0000047e-6, 10.000047, 0.9987654, 1.0000047e-4)
_PLAIN_VALUES = (0.81234568, 0.71234568, 0.051234568, 0.31234568, 0.21234568)
#: Of attributes with limits, as shares of their range, the ordinary one first; the last ones miss
#: their product with 100.
_SHARES = (0.6134568, 0.0, 1.0, 1e-6, 1 - 1e-6, 0.5, 0.14, 0.28, 0.56)
_LEFT_OUT = "left out"
_NARROW = ("same", "fewer dimensions", "last 1", "first 1", "0-d", "[1]", "all 1")

#: The values of elements: what stands between decimals, and in doubles beside it.
_SPECIAL = (0.0, 1.0, -1.0, 1e-6, -1e-6, 1e-12, 1e-30, 1e6, -1e6, 1e12, 1e18, -0.0)
_SPECIAL_WIDE = (16777217.0, 1 + 2**-40, 1e60, -1e60, 1e-60, 1e-100, 1e-300)
#: Distributions of tensors that are too large for literals, for any tensor and for those that
#: are never negative.
_DISTRIBUTIONS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("normal", {}),
    ("integers", {"low": -2, "high": 3}),
    ("lognormal", {"mean": -14.0, "scale": 3.0}),
    ("lognormal", {"mean": 9.0, "scale": 3.0}),
)
_DRAWN_NONNEGATIVE: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("uniform", {"low": 0.01, "high": 4.0}),
    ("integers", {"low": 0, "high": 3}),
    *_DISTRIBUTIONS[2:],
)
#: Tensors with more elements are drawn.
LITERAL = 24
#: Some of this size are literal all the same, to have infinite elements.
_LITERAL_INFINITE, _SOME_INFINITE, _SOME_NAN = 800, 4, 10
#: From here on the tensors of a node are small, and left to chance.
_FEW_TENSORS = 9
#: Lengths whose ranks are asked for, of floats; with infinite elements; of doubles.
_RANKED = (
    *((length, "") for length in (2, 3, 4, 5, 6, 8, 9, 11, 16, 17, 33, 65, 101, 129, 1001, 4097)),
    *((length, "infinite") for length in (5, 11, 33)),
    *((length, "double") for length in (5, 9, 17, 33, 101, 1001)),
)
_INFINITE, _INFINITE_SHARE = 0.4, 0.06
_RANK_SHARE = 0.4
_SEED, _SEEDS = 20, 10**5
#: Among how many nodes, and groups of each, the one is chosen whose pairs were asked for least.
_NODES, _GROUPS = 200, 12
#: How many dimensions of a node are set to an extreme, and the least and largest share of them.
_EXTREMES = 4.5
_LEAST_EXTREME, _MOST_EXTREME = 0.6, 0.75
_MANY_EXTREME = 0.6
#: How often the values of what is summed are ordinary, by the number of tensors.
_CALM = {1: 0.5, 2: 0.5}
_CALM_MANY = 0.8
_NONNEGATIVE = 0.9
_SPECIAL_SHARES = (0.15, 0.3, 0.5, 0.7)
_RARE = 10.0
_POOL = 4096
_TRIES, _PARTLY = 8, 3
_MATRIX, _MOST_RANK = 2, 7
#: One of so many vectors has a higher rank; one of so many nodes has tensors of one shape.
_LIFTED, _ALIKE = 4, 8


class _Cover:
    """How much each pair of levels still has to be asked for: 1 at first, less each time."""

    def __init__(self, sizes: Sequence[int], rare: Sequence[int]) -> None:
        self._starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(int)
        self._need = np.ones((sum(sizes), sum(sizes)))
        # Few case templates have these levels: each has to meet others that they have not met.
        self._need[rare] *= _RARE
        self._need[:, rare] *= _RARE

    def choose(self, rows: Array) -> Array:
        """Return the row whose pairs of levels were asked for least.

        Args:
            rows: levels of the first dimensions, a row a candidate.
        """
        levels = rows + self._starts[: rows.shape[1]]
        # To look pairs up by one number is twice as fast as by two.
        pairs = levels[:, :, None] * len(self._need) + levels[:, None, :]
        best = self._need.take(pairs).sum((1, 2)).argmax() if len(rows) > 1 else 0
        self._need.reshape(-1)[pairs[best]] *= 0.25
        chosen: Array = rows[best]
        return chosen


def pairwise(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield the case templates about an operator."""
    design = _Design(operator, prefix="pair")
    random = design.random
    small = [shape for shape in _SHAPES if prod(shape) <= LITERAL]
    # Exactly a tile high or wide.
    tiles = [
        shape for shape in _SHAPES if len(shape) == _MATRIX and not max(shape) & (max(shape) - 1)
    ]
    others = cycle(random.permutation(len(_SHAPES)))
    carried = any(map(operator.carries, operator.outputs))
    for number in Counter(_NUMBERS).elements():
        pools = (
            _WHOLE,
            _SINGLE,
            tiles,
            *(_SHAPES, small) * (_FEW_TENSORS // 2),
            *(small,) * number,
        )
        # A sum shows little of a small tensor beside a large one.
        pools = pools[carried and random.randint(2) :][: number - 1]
        shapes = [_SHAPES[next(others)], *(pool[random.randint(len(pool))] for pool in pools)]
        random.shuffle(shapes)
        for place in _TURNS if number > _FEW_TENSORS else ():
            if place < number:
                pool = (_SHAPES, _WHOLE, _SINGLE)[random.randint(3)]
                shapes[place] = pool[random.randint(len(pool))]
        shapes = [_lifted(shape, random) for shape in shapes]
        # Those of one shape may be computed together, and put in another order unseen.
        yield design.template([shapes[0]] * number if not random.randint(_ALIKE) else shapes)


def large(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield case templates of tensors around the sizes that are computed in large blocks."""
    design = _Design(operator, prefix="blocks")
    for shape in _LARGE_SHAPES:
        yield design.template([shape], plain=True)
    for shapes in Counter(_LARGE_MET).elements():
        yield design.template(shapes)


def whole_ranks(author: Author) -> Iterator[CaseTemplate]:
    """Yield templates at, just below and just above whole ranks, where an attribute may choose one.

    Each group has a rank of its own if the attribute has a number for each.
    """
    operator, random = author.operator, np.random.RandomState(_SEED)
    for name, (length, word) in product(author.limits, _RANKED):
        dtype = np.dtype(WIDE if word == "double" else "float32")
        whole = {1, length // 7, length // 2, length * 14 // 25, length - 2} & set(range(length))
        shares = [it for rank in sorted(whole) for it in author.around(name, rank / (length - 1))]
        shares = shares if name in author.each else shares[1:2]
        inputs: list[Given] = [*author.scalars(COUNT, _RATES[0], "float32")]
        for tensor in operator.tensors:
            for _ in shares:
                if tensor != author.first:
                    inputs.append(np.zeros((), dtype))
                elif length > LITERAL:
                    seed = int(random.randint(_SEEDS))
                    inputs.append(RandomTensor("normal", seed, (length,), dtype))
                else:
                    values = np.round(random.normal(size=length), 3)
                    far = np.where(random.random_sample(length) < _INFINITE, np.inf, values)
                    inputs.append((far if word == "infinite" else values).astype(dtype))
        given = {name: tuple(shares) if name in author.each else shares[0]}
        yield author.written(
            f"{name}_whole_ranks_{length}{'_' * bool(word)}{word}",
            f"{name} at and next to whole ranks of {length} elements: catches another rank.",
            inputs,
            {**author.ordinary, **author.settings[0], **given},
        )


class _Design:
    """The dimensions of an operator's templates, and which of their pairs have been covered."""

    def __init__(self, operator: Operator, prefix: str) -> None:
        self.random = np.random.RandomState(_SEED)
        self._author = author = Author(operator)
        self._prefix, self._asked = prefix, 0
        self._pools: dict[tuple[np.dtype[Any], int, bool], Array] = {}
        node: dict[str, Sequence[Any]] = {"setting": author.settings}
        if operator.counts:
            node["T"] = _COUNTS
        if author.rate:
            node |= {author.rate: _RATES, "type of scalars": ("float32", WIDE)}
        if operator.scalars:
            node["rank of scalars"] = _RANKS
        plain = dict(zip(author.numeric, cycle(_PLAIN_VALUES), strict=False))
        for item in operator.attributes:
            if item.limits:
                own: list[Any] = [author.within(item.name, share) for share in _SHARES]
            elif item.choices:
                continue
            else:
                own = [plain[item.name], *_NUMERIC]
            node[item.name] = own if item.required else [*own, _LEFT_OUT]
        # Whoever lacks one of these has case templates enough without; of a sum infinity leaves
        # nothing else, unless a zero takes it out.
        either = dict.fromkeys(("doubles", "broadcasting", "infinity"), (False, True))
        node |= either
        # The first is chosen already.
        node = {"tensors": [*_NUMBERS], **node}
        # With few dimensions little is hidden.
        self._extremes = min(_MOST_EXTREME, max(_LEAST_EXTREME, _EXTREMES / len(node)))
        tensor: dict[str, Sequence[Any]] = {"shape": _SHAPES}
        tensor |= {f"shape of {name}": _NARROW for name in author.stepped}
        tensor["double"] = _mixtures(operator.tensors)
        tensor |= {f"values of {name}": _DISTRIBUTIONS for name in operator.tensors}
        self._node, self._tensor = node, tensor
        self._double = list(tensor).index("double")
        self._either = [list(node).index(name) for name in either]
        self._ordinary = [author.tensor(name, 0, (5,)) for name in operator.tensors]
        sizes = [len(levels) for levels in chain(node.values(), tensor.values())]
        self._sizes = np.array(sizes)
        # The number of tensors is the first dimension.
        many = [level for level, number in enumerate(_NUMBERS) if number > _FEW_TENSORS]
        self._cover = _Cover(sizes, many)

    def template(self, shapes: Shapes, *, plain: bool = False) -> CaseTemplate:
        """Return a case template of tensors of these shapes; its other levels were asked for least.

        Plain ones have ordinary levels.
        """
        self._asked += 1
        extremes = 0.0 if plain else self._extremes
        if len(shapes) > _FEW_TENSORS:
            # There are few of them.
            extremes = _MANY_EXTREME
        # With some levels one output is never finite, and the others tell all the same.
        enough = all if plain or self.random.randint(_PARTLY) else any
        for _ in range(_TRIES):
            candidates = self._candidates(self._sizes[: len(self._node)], extremes, _NODES)
            candidates[:, 0] = list(_NUMBERS).index(len(shapes))
            either = self.random.randint(2, size=(len(self._either), _NODES))
            candidates[:, self._either] = either.T
            node = self._cover.choose(candidates)
            chosen = {
                name: levels[level]
                for (name, levels), level in zip(self._node.items(), node, strict=True)
            }
            if self._tells(chosen, enough):
                break
        rows = [self._group(node, chosen, shape, extremes) for shape in shapes]
        if self._author.carried:
            # A sum over tensors of unlike types may be rounded to any of them, and of unlike
            # sizes only the largest are seen.
            double = self._double
            calm = self.random.random_sample() < _CALM.get(len(shapes), _CALM_MANY)
            for row in rows:
                row[double] = rows[0][double]
                if calm:
                    row[double + 1 :] = 0
        return self._written(chosen, rows, shapes)

    def _tells(self, chosen: Mapping[str, Any], enough: Callable[[Iterable[bool]], bool]) -> bool:
        """Tell whether of ordinary tensors enough outputs are finite, and others of other ones."""
        operator = self._author.operator
        scalars = [
            np.array(chosen["T" if "int64" in scalar.dtypes else self._author.rate], np.float64)
            for scalar in operator.scalars
        ]
        attributes = dict(chosen["setting"])
        for item in operator.attributes:
            if not item.choices:
                given = chosen[item.name]
                attributes[item.name] = np.float64(item.default if given == _LEFT_OUT else given)
        with np.errstate(all="ignore"):
            one, other = (
                operator.formula(
                    # What is carried from tensor to tensor tells by itself.
                    *(scalar * (by if self._author.carried else 1) for scalar in scalars),
                    *(tensor * by for tensor in self._ordinary),
                    **attributes,
                )
                for by in (1.0, 1.5)
            )
        finite = [bool(np.isfinite(it).all()) for it in one]
        pairs = zip(finite, one, other, strict=True)
        return enough(finite) and not all(np.array_equal(*it) for known, *it in pairs if known)

    def _candidates(self, sizes: Array, extremes: float, number: int) -> Array:
        shape = (number, len(sizes))
        levels = (self.random.random_sample(shape) * sizes).astype(int)
        levels[self.random.random_sample(shape) >= extremes] = 0
        return levels

    def _group(
        self, node: Array, chosen: Mapping[str, Any], shape: tuple[int, ...], extremes: float
    ) -> Array:
        """Choose the levels of a group, beside those of its node."""
        # Of many, some come right by chance.
        number = _GROUPS if chosen["tensors"] <= _FEW_TENSORS else 1
        whole = np.empty((number, len(self._sizes)), int)
        whole[:, : len(node)] = node
        rows = whole[:, len(node) :]
        rows[:] = self._candidates(self._sizes[len(node) :], 1 - (1 - extremes) ** 2, number)
        rows[:, 0] = _SHAPES.index(shape) if shape in _SHAPES else 0
        narrow = rows[:, 1 : 1 + len(self._author.stepped)]
        if not chosen["broadcasting"]:
            narrow[:] = 0
        most = len(self._tensor["double"])
        rows[:, self._double] = self.random.randint(1, most, number) if chosen["doubles"] else 0
        known = _narrow_shapes(shape)
        narrow[:] = np.array([level * (way in known) for level, way in enumerate(_NARROW)])[narrow]
        return self._cover.choose(whole)[len(node) :]

    def _written(
        self, chosen: Mapping[str, Any], rows: Sequence[Array], shapes: Shapes
    ) -> CaseTemplate:
        author, operator = self._author, self._author.operator
        groups = [
            {name: levels[at] for (name, levels), at in zip(self._tensor.items(), row, strict=True)}
            for row in rows
        ]
        infinite: bool = chosen["infinity"] and bool(
            author.elementwise or author.limits or any(chosen[name] == 0 for name in author.numeric)
        )
        inputs: list[Given] = []
        if operator.scalars:
            rate, dtype = chosen.get(author.rate, 0.0), chosen.get("type of scalars", WIDE)
            inputs += author.scalars(chosen.get("T", 0), rate, dtype, [chosen["rank of scalars"]])
        for name in operator.tensors:
            inputs += [
                self._tensor_of(name, group, shape, infinite=infinite)
                for group, shape in zip(groups, shapes, strict=True)
            ]
        attributes: dict[str, AttributeValue] = dict(chosen["setting"])
        for item in operator.attributes:
            if not item.choices and chosen[item.name] != _LEFT_OUT:
                number = chosen[item.name]
                attributes[item.name] = (
                    self._ranks(item.name, number, shapes) if item.each else number
                )
        said = {
            name: chosen[name]
            for name, levels in self._node.items()
            if name == "tensors" or (name != "setting" and chosen[name] != levels[0])
        } | chosen["setting"]
        words = ", ".join(f"{name} {level}" for name, level in said.items())
        about = f"Catches what shows where these meet: {words}."
        return author.written(
            f"{self._prefix}_{self._asked}", about, inputs, attributes, "pairwise"
        )

    def _ranks(self, name: str, number: float, shapes: Shapes) -> tuple[float, ...]:
        """Return a number for each group: the given one, or one at or next to a whole rank."""
        numbers = []
        for shape in shapes:
            size = prod(shape)
            share = self.random.randint(max(size, 1)) / max(size - 1, 1)
            near = self._author.around(name, share)
            own = near[self.random.randint(len(near))]
            numbers.append(own if self.random.random_sample() < _RANK_SHARE else number)
        return tuple(numbers) if name in self._author.limits else (number,)

    def _tensor_of(
        self, name: str, group: Mapping[str, Any], shape: tuple[int, ...], *, infinite: bool
    ) -> Given:
        """Return a tensor of a group: literal where it is small, else how to draw it."""
        own = _narrow_shapes(shape).get(group.get(f"shape of {name}", ""), shape)
        dtype = np.dtype(WIDE if name in group["double"] else "float32")
        style = _DISTRIBUTIONS.index(group[f"values of {name}"])
        nonnegative = name in self._author.nonnegative
        # What is drawn is never infinite.
        wide = (
            infinite and prod(own) < _LITERAL_INFINITE and not self.random.randint(_SOME_INFINITE)
        )
        if prod(own) > LITERAL and not wide:
            kind, parameters = (_DRAWN_NONNEGATIVE if nonnegative else _DISTRIBUTIONS)[style]
            # A result of many elements that float32 cannot hold is lost where anything is float32.
            alone = self._author.elementwise or self._author.limits
            if dtype == WIDE and kind == "lognormal" and alone:
                # Some beyond what float32 holds and some below in each.
                parameters = {"mean": parameters["mean"] * 1.5, "scale": 85.0}
            return RandomTensor(kind, int(self.random.randint(_SEEDS)), own, dtype, parameters)
        values = self._mixed(own, dtype, style, nonnegative=nonnegative)
        if infinite:
            # Also what is infinite in float32 alone.
            largest = [np.inf, _SPECIAL_WIDE[2] if dtype == WIDE else np.inf]
            # One NaN leaves nothing of a tensor to tell where a rank is sought among its elements.
            if self._author.elementwise or not self.random.randint(_SOME_NAN):
                largest.append(np.nan)
            far = np.array(largest)[self.random.randint(len(largest), size=own)]
            # A file says no sign of NaN.
            far = np.where(np.isnan(far), np.nan, np.copysign(far, values))
            values = np.where(self.random.random_sample(own) < _INFINITE_SHARE, far, values)
        return np.asarray(values, dtype)

    def _mixed(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], style: int, *, nonnegative: bool
    ) -> Array:
        """Return short decimals, zeros or powers of ten between them, some of them negative."""
        key = dtype, style, nonnegative
        if key not in self._pools:
            self._pools[key] = self._pool(*key)
        size = prod(shape)
        start = self.random.randint(_POOL - size + 1)
        return self._pools[key][start : start + size].reshape(shape)

    def _pool(self, dtype: np.dtype[Any], style: int, nonnegative: bool) -> Array:
        random, shape = self.random, (_POOL,)
        values = np.round(random.normal(size=shape) * 2, 2)
        special = np.array(_SPECIAL + (_SPECIAL_WIDE * (1 + style) if dtype == WIDE else ()))
        if not (self._author.elementwise or self._author.limits):
            # What is summed with a large number is lost, and squares of larger ones overflow, of
            # doubles the largest.
            most = (1, 1e12, 1e12, 1e60 if dtype == WIDE else 1e12)[style]
            special = special[np.abs(special) <= most]
        picked = random.choice(special, shape)
        values = np.where(random.random_sample(shape) < _SPECIAL_SHARES[style], picked, values)
        # Rarely negative all the same: the result is no number there.
        rare = (random.random_sample(shape) > _NONNEGATIVE) & self._author.elementwise
        return np.where(rare, values, np.abs(values)) if nonnegative else values


def _lifted(shape: tuple[int, ...], random: np.random.RandomState) -> tuple[int, ...]:
    """Return some vectors with a higher rank, so that each length meets each rank."""
    if len(shape) != 1 or random.randint(_LIFTED):
        return shape
    ones = [1] * random.randint(2, _MOST_RANK + 1)
    ones[random.randint(len(ones))] = shape[0]
    return tuple(ones)


def _mixtures(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return which tensors of a group are double: none, all, one, all but one."""
    mixed: list[tuple[str, ...]] = [(name,) for name in names]
    mixed += [tuple(it for it in names if it != name) for name in names]
    return [(), *[tuple(names)] * len(names), *(it for it in mixed if it)]


@cache
def _narrow_shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return by the ways of :data:`_NARROW` the shapes that broadcast to another, unlike it."""
    found = shape[1:], (*shape[:-1], 1), (1, *shape[1:]), (), (1,), (1,) * len(shape)
    ways = zip(_NARROW[1:], found, strict=True)
    return {way: it for way, it in ways if len(it) <= len(shape) and it != shape}
