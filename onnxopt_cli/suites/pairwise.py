"""Case templates that cover the input space by pairs of dimensions.

Attributes, T, R and the number of tensors are dimensions. The shape, the broadcasting, the type and
the elements of a tensor are dimensions as well. The values of a dimension are called its levels.
Most bugs occur if two dimensions have certain levels together. A bug is visible only if the other
dimensions do not hide it. A case template therefore sets a few dimensions to extreme levels, and
all other dimensions to their first level, which is ordinary. A random generator with a fixed seed
proposes candidates. The candidate whose pairs of levels have been covered least is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, cycle
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.cases.case_template import (
    COUNT,
    WIDE_TYPE,
    Author,
    Shapes,
)
from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.operator import AttributeValue, Operator

#: Lengths equal to the sizes of vectors and blocks, or greater or smaller by one.
AROUND_BLOCKS = tuple(size + by for size in (16, 32, 64, 128, 256, 1024) for by in (-1, 0, 1))
_LENGTHS = (*range(10), *AROUND_BLOCKS, 48, 96, 384)
_TILES = (31, 32, 33, 64, 65, 128, 129, 256, 257)
_SINGLE: Shapes = ((), (1,), (1, 1), (1, 1, 1))
#: Shapes of every rank that exceed all tiles and blocks, and are not multiples of them.
_BEYOND_BLOCKS: Shapes = (
    (300, 2), (2, 300), (1100,),
    (2, 3, 191), (3, 7, 1, 53), (2, 3, 2, 2, 47), (2, 2, 3, 2, 3, 17), (2, 1, 3, 2, 2, 3, 17),
)  # fmt: skip
_SHAPES: Shapes = (
    *((length,) for length in _LENGTHS if length != 1),
    *((size, 3) for size in _TILES),
    *((2, size) for size in _TILES),
    *((size, 2) for size in (32, 64, 128, 256)),
    *((3, size) for size in (32, 64, 128, 256)),
    *_BEYOND_BLOCKS, (33, 32), (32, 33), (33, 64), (64, 33), (33, 128), (128, 33),
    (2048,), (32, 32), (64, 48), (2, 16, 64), (8, 128), (128, 8), (4, 256), (256, 4),
    (2, 2), (3, 3), (5, 5), (2, 2, 2), (3, 3, 3),
    (2, 3), (0, 3), (33, 65), (1, 3, 1), (2, 3, 4), (2, 0, 2), (2, 1, 3, 2), (3, 2, 4, 2),
    (2, 2, 1, 3, 2), (2, 3, 2, 3, 2), (1, 2, 2, 1, 2, 3), (2, 2, 3, 1, 2, 2),
    (2, 1, 2, 2, 1, 2, 2), (1,) * 7, *_SINGLE,
)  # fmt: skip
#: For each number of tensors in a node, the number of case templates.
_NUMBERS = {
    1: 42, 2: 68, 3: 92, 4: 108, 5: 6, 6: 5, 7: 6, 8: 36, 9: 42, 10: 4, 16: 12, 17: 14, 33: 12,
    65: 26, 129: 3,
}  # fmt: skip
#: Positions of the first and the last tensors of batches whose size is a multiple of 8.
_BATCH_EDGES = (7, 8, 15, 16, 31, 32, 63, 64, 127, 128)
#: The shapes in the suite ``large``.
_LARGE_SHAPES: Shapes = (
    *((size + by,) for size in (2**16, 2**17) for by in (-1, 0, 1)),
    (3 * 2**15,), (2**10 + 1, 2**7 - 1), (2**20,), (2**20 + 1,),
)  # fmt: skip
#: For nodes in the suite ``large`` that have extremes in other dimensions: the shapes of a node's
#: tensors, and the number of nodes with these shapes.
_LARGE_NODES: dict[Shapes, int] = {
    ((2**8 + 1, 2**8 - 1),): 8,
    ((2**7, 2**5 - 1, 2**5 + 3),): 4,
    ((3,), (2**16 + 3,)): 3,
    ((2**16 + 1,), (2**9 - 1, 2**8 + 1), (2**15 + 5,)): 5,
}

_COUNTS = (COUNT, 0, 1, 2, 10, 1000, 10**6, 2**24 + 1, 2**31 + 5, 2**32 + 1, -1, -7)
# The numbers have more digits than usual, so that rounding to a few decimals is detected.
_RATES = (0.41234568, 1.0, 0.0, -0.41234568, 1.2345679e-6, 24.691358)
_RANKS = (0, 1, 2, 3)
#: Values of attributes without limits, besides the ordinary value: special numbers, and numbers
#: that six digits or float32 do not represent exactly.
_NUMERIC = (0.0, 1.0, -1.0, 1.0000047e-6, 10.000047, 0.9987654, 1.0000047e-4)
_PLAIN_VALUES = (0.81234568, 0.71234568, 0.051234568, 0.31234568, 0.21234568)
#: Values of attributes with limits, as shares of the range between the limits; the ordinary value
#: is first. The products of 100 and the last three shares are inexact.
_SHARES = (0.6134568, 0.0, 1.0, 1e-6, 1 - 1e-6, 0.5, 0.14, 0.28, 0.56)
_LEFT_OUT = "left out"
_NARROW = ("same", "fewer dimensions", "last 1", "first 1", "0-d", "[1]", "all 1")

#: Special values of elements, and special values that only doubles can have.
_SPECIAL = (0.0, 1.0, -1.0, 1e-6, -1e-6, 1e-12, 1e-30, 1e6, -1e6, 1e12, 1e18, -0.0)
_SPECIAL_WIDE = (16777217.0, 1 + 2**-40, 1e60, -1e60, 1e-60, 1e-100, 1e-300)
#: Distributions of tensors that are too large for literals: first for arbitrary tensors, then for
#: nonnegative tensors.
_DISTRIBUTIONS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("normal", {}),
    ("integers", {"low": -2, "high": 3}),
    ("lognormal", {"mean": -14.0, "scale": 3.0}),
    ("lognormal", {"mean": 9.0, "scale": 3.0}),
)
_NONNEGATIVE_DISTRIBUTIONS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("uniform", {"low": 0.01, "high": 4.0}),
    ("integers", {"low": 0, "high": 3}),
    *_DISTRIBUTIONS[2:],
)
#: The largest number of elements of a literal tensor; larger tensors are random.
LITERAL = 24
#: Random tensors have no infinite elements. Therefore, one in 4 of the tensors with fewer than 800
#: elements is a literal with infinite elements. If a single NaN makes the whole result NaN, only
#: one in 10 of these literals may contain NaN.
_LITERAL_INFINITE, _SOME_INFINITE, _SOME_NAN = 800, 4, 10
#: The largest number of tensors in ordinary nodes. If a node has more tensors, the tensors are
#: small, and their levels are drawn without regard to the pairs that other nodes cover.
_FEW_TENSORS = 9
#: The share of infinite elements in a literal tensor, if it has any.
_INFINITE_SHARE = 0.06
#: For attributes with limits, the share of numbers that select a rank at or next to an integer.
_RANK_SHARE = 0.4
#: The seed of the random generator that proposes candidates.
_SEED = 20
#: Number of different seeds of random tensors.
_SEEDS = 10**5
#: Number of candidates for the levels of a node. The candidate whose pairs have been covered least
#: is chosen.
_NODES = 200
#: Number of candidates for the levels of a group.
_GROUPS = 12
#: Mean number of extreme dimensions of a node.
_EXTREMES = 4.5
#: Limits of the share of extreme dimensions in a node.
_LEAST_EXTREME, _MOST_EXTREME = 0.6, 0.75
#: Share of extreme dimensions in nodes with more than _FEW_TENSORS tensors.
_MANY_EXTREME = 0.6
#: Probability that all terms of a sum over tensors are ordinary numbers, for each number of
#: tensors.
_CALM = {1: 0.5, 2: 0.5}
_CALM_MANY = 0.8
#: Share of nonnegative elements in tensors that the formula requires to be nonnegative.
_NONNEGATIVE = 0.9
#: Share of special values among the elements of a literal tensor, for each element of
#: _DISTRIBUTIONS.
_SPECIAL_SHARES = (0.15, 0.3, 0.5, 0.7)
#: Initial weight of pairs with a level that occurs in few templates. All other pairs have the
#: initial weight 1.
_RARE = 10.0
#: Number of elements that are drawn at a time; each literal tensor uses some of the drawn elements.
_POOL = 4096
#: Number of attempts to draw a node whose outputs are all conclusive.
_TRIES = 8
#: One in _PARTLY nodes needs only one conclusive output. In all other nodes, every output must be
#: conclusive.
_PARTLY = 3
#: The rank of a matrix.
_MATRIX = 2
#: The highest rank of a vector with additional axes of 1.
_MOST_RANK = 7
#: One in _LIFTED vectors gets additional axes of 1.
_LIFTED = 4
#: One in _ALIKE nodes has tensors of equal shapes.
_ALIKE = 8


class _Cover:
    """Stores the weight of each pair of levels. Each use of a pair divides its weight by four.

    Args:
        sizes: the number of levels of each dimension.
        rare: levels of the first dimension that few case templates have.
    """

    def __init__(self, sizes: Sequence[int], rare: Sequence[int]) -> None:
        self._starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(int)
        self._need = np.ones((sum(sizes), sum(sizes)))
        # A template with a rare level should cover new pairs, because few templates have the level.
        self._need[rare] *= _RARE
        self._need[:, rare] *= _RARE

    def choose(self, rows: Array) -> Array:
        """Return the row whose pairs of levels are covered least, and count its pairs as covered.

        Args:
            rows: candidates, one in each row; the columns are the levels of the first dimensions.
        """
        levels = rows + self._starts[: rows.shape[1]]
        # A lookup by one flat index is twice as fast as a lookup by two indices.
        pairs = levels[:, :, None] * len(self._need) + levels[:, None, :]
        best = self._need.take(pairs).sum((1, 2)).argmax() if len(rows) > 1 else 0
        self._need.reshape(-1)[pairs[best]] *= 0.25
        chosen: Array = rows[best]
        return chosen


def pairwise(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield the case templates of an operator."""
    design = _Design(operator, prefix="pair")
    random = design.random
    small = [shape for shape in _SHAPES if prod(shape) <= LITERAL]
    # Shapes that are exactly one tile high or one tile wide.
    tiles = [
        shape for shape in _SHAPES if len(shape) == _MATRIX and not max(shape) & (max(shape) - 1)
    ]
    order = cycle(random.permutation(len(_SHAPES)))
    carried = any(map(operator.carries, operator.outputs))
    for number in Counter(_NUMBERS).elements():
        pools = (
            _BEYOND_BLOCKS,
            _SINGLE,
            tiles,
            *(_SHAPES, small) * (_FEW_TENSORS // 2),
            *(small,) * number,
        )
        # In a sum over all tensors, the terms of a large tensor hide the terms of a small tensor.
        pools = pools[carried and random.randint(2) :][: number - 1]
        shapes = [_SHAPES[next(order)], *(pool[random.randint(len(pool))] for pool in pools)]
        random.shuffle(shapes)
        for place in _BATCH_EDGES if number > _FEW_TENSORS else ():
            if place < number:
                pool = (_SHAPES, _BEYOND_BLOCKS, _SINGLE)[random.randint(3)]
                shapes[place] = pool[random.randint(len(pool))]
        shapes = [_lifted(shape, random) for shape in shapes]
        # A backend may compute tensors of the same shape together, and thereby exchange them.
        yield design.template([shapes[0]] * number if not random.randint(_ALIKE) else shapes)


def large(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield case templates whose tensors have about the sizes of large blocks."""
    design = _Design(operator, prefix="blocks")
    for shape in _LARGE_SHAPES:
        yield design.template([shape], plain=True)
    for shapes in Counter(_LARGE_NODES).elements():
        yield design.template(shapes)


class _Design:
    """The dimensions of an operator's templates, their levels, and the coverage of pairs."""

    def __init__(self, operator: Operator, prefix: str) -> None:
        self.random = np.random.RandomState(_SEED)
        self._author = author = Author(operator)
        self._prefix, self._count = prefix, 0
        self._pools: dict[tuple[np.dtype[Any], int, bool], Array] = {}
        node: dict[str, Sequence[Any]] = {"setting": author.settings}
        if operator.counts:
            node["T"] = _COUNTS
        if author.rate:
            node |= {author.rate: _RATES, "type of scalars": ("float32", WIDE_TYPE)}
        if operator.scalars:
            node["rank of scalars"] = _RANKS
        plain = dict(zip(author.numeric, cycle(_PLAIN_VALUES), strict=False))
        for item in operator.attributes:
            if item.limits:
                levels: list[Any] = [author.within(item.name, share) for share in _SHARES]
            elif item.choices:
                continue
            else:
                levels = [plain[item.name], *_NUMERIC]
            node[item.name] = levels if item.required else [*levels, _LEFT_OUT]
        # Some backends do not support doubles, broadcasting or infinities. Therefore, half of the
        # nodes have no doubles, half have no broadcasting, and half have no infinities. An infinite
        # term of a sum hides all other terms, unless the term is multiplied by zero.
        either = dict.fromkeys(("doubles", "broadcasting", "infinity"), (False, True))
        node |= either
        # The first dimension follows from the shapes that are passed to `template`.
        node = {"tensors": [*_NUMBERS], **node}
        # If there are few dimensions, extremes rarely hide errors, so more extremes are allowed.
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
        # The first dimension is the number of tensors.
        many = [level for level, number in enumerate(_NUMBERS) if number > _FEW_TENSORS]
        self._cover = _Cover(sizes, many)

    def template(self, shapes: Shapes, *, plain: bool = False) -> CaseTemplate:
        """Return a new case template with pairs of levels that earlier templates cover least.

        Args:
            shapes: the shapes of the tensors, one for each group.
            plain: whether all dimensions except the shapes have their ordinary levels.
        """
        self._count += 1
        extremes = 0.0 if plain else self._extremes
        if len(shapes) > _FEW_TENSORS:
            # Few nodes have many tensors, so each of these nodes has many extremes.
            extremes = _MANY_EXTREME
        # With some levels, one output is never finite, although all other outputs are conclusive.
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
            if self._is_conclusive(chosen, enough):
                break
        rows = [self._group(node, chosen, shape, extremes) for shape in shapes]
        if self._author.carried:
            # A sum over tensors of different types may be rounded to any of the types, and large
            # terms hide small terms.
            double = self._double
            calm = self.random.random_sample() < _CALM.get(len(shapes), _CALM_MANY)
            for row in rows:
                row[double] = rows[0][double]
                if calm:
                    row[double + 1 :] = 0
        return self._node_template(chosen, rows, shapes)

    def _is_conclusive(
        self, chosen: Mapping[str, Any], enough: Callable[[Iterable[bool]], bool]
    ) -> bool:
        """Return whether enough outputs are finite and depend on the tensors."""
        operator = self._author.operator
        scalars = [
            np.array(chosen["T" if "int64" in scalar.dtypes else self._author.rate], np.float64)
            for scalar in operator.scalars
        ]
        attributes = dict(chosen["setting"])
        for item in operator.attributes:
            if not item.choices:
                level = chosen[item.name]
                attributes[item.name] = np.float64(item.default if level == _LEFT_OUT else level)
        with np.errstate(all="ignore"):
            first, second = (
                operator.formula(
                    # Scalars are varied as well if a sum over all tensors includes a scalar.
                    *(scalar * (by if self._author.carried else 1) for scalar in scalars),
                    *(tensor * by for tensor in self._ordinary),
                    **attributes,
                )
                for by in (1.0, 1.5)
            )
        finite = [bool(np.isfinite(output).all()) for output in first]
        pairs = zip(finite, first, second, strict=True)
        return enough(finite) and not all(
            np.array_equal(*pair) for is_finite, *pair in pairs if is_finite
        )

    def _candidates(self, sizes: Array, extremes: float, number: int) -> Array:
        shape = (number, len(sizes))
        levels = (self.random.random_sample(shape) * sizes).astype(int)
        levels[self.random.random_sample(shape) >= extremes] = 0
        return levels

    def _group(
        self, node: Array, chosen: Mapping[str, Any], shape: tuple[int, ...], extremes: float
    ) -> Array:
        """Return the levels of a group in a node that has the levels ``node``."""
        # In a node with many groups, random levels cover a sufficient number of pairs.
        number = _GROUPS if chosen["tensors"] <= _FEW_TENSORS else 1
        candidates = np.empty((number, len(self._sizes)), int)
        candidates[:, : len(node)] = node
        rows = candidates[:, len(node) :]
        rows[:] = self._candidates(self._sizes[len(node) :], 1 - (1 - extremes) ** 2, number)
        rows[:, 0] = _SHAPES.index(shape) if shape in _SHAPES else 0
        narrow = rows[:, 1 : 1 + len(self._author.stepped)]
        if not chosen["broadcasting"]:
            narrow[:] = 0
        count = len(self._tensor["double"])
        rows[:, self._double] = self.random.randint(1, count, number) if chosen["doubles"] else 0
        possible = _narrow_shapes(shape)
        possible_levels = [level * (way in possible) for level, way in enumerate(_NARROW)]
        narrow[:] = np.array(possible_levels)[narrow]
        return self._cover.choose(candidates)[len(node) :]

    def _node_template(
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
        inputs: list[TemplateInput] = []
        if operator.scalars:
            rate, dtype = chosen.get(author.rate, 0.0), chosen.get("type of scalars", WIDE_TYPE)
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
        extremes = {
            name: chosen[name]
            for name, levels in self._node.items()
            if name == "tensors" or (name != "setting" and chosen[name] != levels[0])
        } | chosen["setting"]
        words = ", ".join(f"{name} {level}" for name, level in extremes.items())
        about = f"Detects errors where these values combine: {words}."
        return author.explicit_template(
            f"{self._prefix}_{self._count}", about, inputs, attributes, "pairwise"
        )

    def _ranks(self, name: str, number: float, shapes: Shapes) -> tuple[float, ...]:
        """Return the values of an attribute: one per group if the attribute has limits, else one.

        A value is ``number``, or it selects a rank that is an integer or next to an integer.
        """
        numbers = []
        for shape in shapes:
            size = prod(shape)
            share = self.random.randint(max(size, 1)) / max(size - 1, 1)
            near = self._author.around(name, share)
            near_rank = near[self.random.randint(len(near))]
            numbers.append(near_rank if self.random.random_sample() < _RANK_SHARE else number)
        return tuple(numbers) if name in self._author.limits else (number,)

    def _tensor_of(
        self, name: str, group: Mapping[str, Any], shape: tuple[int, ...], *, infinite: bool
    ) -> TemplateInput:
        """Return a tensor for a group. Small tensors are literals; the others are random."""
        shape = _narrow_shapes(shape).get(group.get(f"shape of {name}", ""), shape)
        dtype = np.dtype(WIDE_TYPE if name in group["double"] else "float32")
        style = _DISTRIBUTIONS.index(group[f"values of {name}"])
        nonnegative = name in self._author.nonnegative
        # Random tensors have no infinite elements.
        literal = (
            infinite and prod(shape) < _LITERAL_INFINITE and not self.random.randint(_SOME_INFINITE)
        )
        if prod(shape) > LITERAL and not literal:
            kind, parameters = (_NONNEGATIVE_DISTRIBUTIONS if nonnegative else _DISTRIBUTIONS)[
                style
            ]
            # If the result depends on all elements, and another operand is float32, wide values
            # would overflow.
            separate = self._author.elementwise or self._author.limits
            if dtype == WIDE_TYPE and kind == "lognormal" and separate:
                # Some elements exceed the range of float32, and some underflow in float32.
                parameters = {"mean": parameters["mean"] * 1.5, "scale": 85.0}
            return RandomTensor(kind, int(self.random.randint(_SEEDS)), shape, dtype, parameters)
        values = self._mixed(shape, dtype, style, nonnegative=nonnegative)
        if infinite:
            # In double, a finite number that exceeds the range of float32 is one of the special
            # values.
            largest = [np.inf, _SPECIAL_WIDE[2] if dtype == WIDE_TYPE else np.inf]
            # If the operator ranks elements, a single NaN makes the whole tensor inconclusive.
            if self._author.elementwise or not self.random.randint(_SOME_NAN):
                largest.append(np.nan)
            far = np.array(largest)[self.random.randint(len(largest), size=shape)]
            # Case files do not store the sign of NaN.
            far = np.where(np.isnan(far), np.nan, np.copysign(far, values))
            values = np.where(self.random.random_sample(shape) < _INFINITE_SHARE, far, values)
        return np.asarray(values, dtype)

    def _mixed(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], style: int, *, nonnegative: bool
    ) -> Array:
        """Return short decimals of both signs, mixed with special values."""
        key = dtype, style, nonnegative
        if key not in self._pools:
            self._pools[key] = self._pool(*key)
        size = prod(shape)
        start = self.random.randint(_POOL - size + 1)
        return self._pools[key][start : start + size].reshape(shape)

    def _pool(self, dtype: np.dtype[Any], style: int, nonnegative: bool) -> Array:
        random, shape = self.random, (_POOL,)
        values = np.round(random.normal(size=shape) * 2, 2)
        special = np.array(_SPECIAL + (_SPECIAL_WIDE * (1 + style) if dtype == WIDE_TYPE else ()))
        if not (self._author.elementwise or self._author.limits):
            # In a sum, large numbers hide the other terms, and squares of even larger numbers
            # overflow.
            limit = (1, 1e12, 1e12, 1e60 if dtype == WIDE_TYPE else 1e12)[style]
            special = special[np.abs(special) <= limit]
        picked = random.choice(special, shape)
        values = np.where(random.random_sample(shape) < _SPECIAL_SHARES[style], picked, values)
        # A few elements of a nonnegative tensor are negative, so that the results computed from
        # them are NaN.
        rare = (random.random_sample(shape) > _NONNEGATIVE) & self._author.elementwise
        return np.where(rare, values, np.abs(values)) if nonnegative else values


def _lifted(shape: tuple[int, ...], random: np.random.RandomState) -> tuple[int, ...]:
    """Add dimensions of 1 to some vectors, so that each length occurs together with each rank."""
    if len(shape) != 1 or random.randint(_LIFTED):
        return shape
    ones = [1] * random.randint(2, _MOST_RANK + 1)
    ones[random.randint(len(ones))] = shape[0]
    return tuple(ones)


def _mixtures(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return sets of names of tensors: no tensor, all tensors, each single one, all but one."""
    mixed: list[tuple[str, ...]] = [(name,) for name in names]
    mixed += [tuple(tensor for tensor in names if tensor != name) for name in names]
    return [(), *[tuple(names)] * len(names), *filter(None, mixed)]


@cache
def _narrow_shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return smaller shapes that can be broadcast to a shape; the keys are words of ``_NARROW``."""
    shapes = shape[1:], (*shape[:-1], 1), (1, *shape[1:]), (), (1,), (1,) * len(shape)
    ways = zip(_NARROW[1:], shapes, strict=True)
    return {way: narrow for way, narrow in ways if len(narrow) <= len(shape) and narrow != shape}
