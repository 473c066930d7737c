"""Draws of the operators' own generators in which one choice is given instead of drawn.

Every operator gets the same kinds: each element type, an axis longer than the blocks of vectorized
loops, a rank over 4, and a batch without elements. ``scripts/select_directed_draws.py`` writes the
seeds of the draws; a kind without a seed does not apply to the operator, or onnx's reference does
not compute it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any

import numpy as np
from onnx.defs import OpSchema

from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import Generator
from onnxopt_cli.suites.operators.choices_source import SeededChoices
from onnxopt_cli.suites.operators.node_draft import ANY, NodeDraft, Shape

SEEDS = "directed_seeds.json"
# The largest length of the other axes of a draft with a long axis or a high rank.
_SHORT_LENGTH = 3
_HIGH_RANKS = (5, 6)
# A generator that draws shapes of this rank draws them of any rank.
_ANY_RANK = 4


class TypedDraft(NodeDraft):
    """A draft in which a type variable has a given element type.

    Args:
        draft: the draft whose schema is used.
        seed: a text that determines the other choices.
        variable: the type variable, or the type of a parameter without one.
        dtype: the name of the element type.
    """

    def __init__(self, draft: NodeDraft, seed: str, *, variable: str, dtype: str) -> None:
        super().__init__(draft.schema, SeededChoices(seed))
        self._variable, self._dtype = variable, dtype

    def allowed(self, place: int, among: Iterable[str] = ANY) -> list[str]:
        """Return which element types an input may have."""
        formal = self.schema.inputs[min(place, len(self.schema.inputs) - 1)]
        return self._given(formal, super().allowed(place, among))

    def returned(self, place: int, among: Iterable[str] = ANY) -> list[str]:
        """Return which element types an output may have."""
        return self._given(self.schema.outputs[place], super().returned(place, among))

    def tensor(
        self,
        dtype: np.dtype[Any],
        shape: Shape,
        *,
        low: float | None = None,
        high: float | None = None,
        styles: Sequence[str] = ("plain", "halves", "wide"),
    ) -> Array:
        """Draw a tensor; integers of many magnitudes include the limits of their type."""
        if "wide" in styles and "int" in dtype_name(dtype):
            styles = ("limits",)
        return super().tensor(dtype, shape, low=low, high=high, styles=styles)

    def _given(self, formal: OpSchema.FormalParameter, names: list[str]) -> list[str]:
        return [self._dtype] if formal.type_str == self._variable else names


class LongDraft(NodeDraft):
    """A draft in which one axis is long.

    Args:
        draft: the draft whose schema is used.
        seed: a text that determines the other choices.
        length: the length of the axis.
        place: the place of the axis among all lengths that the generator draws.
    """

    def __init__(self, draft: NodeDraft, seed: str, *, length: int, place: int) -> None:
        super().__init__(draft.schema, SeededChoices(seed))
        self._length, self._remaining = length, place

    def size(self, smallest: int = 1, largest: int = _SHORT_LENGTH) -> int:
        """Choose the length of a dimension."""
        self._remaining -= 1
        if self._remaining == -1:
            return self._length
        return super().size(smallest, max(smallest, min(largest, _SHORT_LENGTH)))


class DeepDraft(NodeDraft):
    """A draft in which shapes of any rank have a rank over 4.

    Args:
        draft: the draft whose schema is used.
        seed: a text that determines the other choices.
    """

    def __init__(self, draft: NodeDraft, seed: str) -> None:
        super().__init__(draft.schema, SeededChoices(seed))

    def shape(self, least: int = 1, most: int = _ANY_RANK, *, smallest: int = 1) -> Shape:
        """Choose a shape."""
        if most < _ANY_RANK:
            return super().shape(least, most, smallest=smallest)
        largest = max(smallest, _SHORT_LENGTH)
        return tuple(self.size(smallest, largest) for _ in range(self.choice(_HIGH_RANKS)))


class EmptyDraft(NodeDraft):
    """A draft in which the first length that the generator draws is zero.

    Args:
        draft: the draft whose schema is used.
        seed: a text that determines the other choices.
    """

    def __init__(self, draft: NodeDraft, seed: str) -> None:
        super().__init__(draft.schema, SeededChoices(seed))
        self._is_first = True

    def size(self, smallest: int = 1, largest: int = _SHORT_LENGTH) -> int:
        """Choose the length of a dimension."""
        if self._is_first:
            self._is_first = False
            return 0
        return super().size(smallest, max(smallest, min(largest, _SHORT_LENGTH)))


#: The drafts by the kind of the draw, with the names of their parameters.
DRAFTS: Mapping[str, tuple[Callable[..., NodeDraft], Sequence[tuple[str, type]]]] = {
    "type": (TypedDraft, (("variable", str), ("dtype", str))),
    "long": (LongDraft, (("length", int), ("place", int))),
    "deep": (DeepDraft, ()),
    "empty": (EmptyDraft, ()),
}


def directed_generator(generate: Generator, name: str, seed: int) -> Generator:
    """Return a generator whose choices follow from a seed, but for those that the name gives.

    Args:
        generate: the operator's generator.
        name: the kind of the draw, and its parameters separated by colons.
        seed: determines the other choices.
    """
    kind, *texts = name.split(":")
    draft_class, parameters = DRAFTS[kind]
    choices = {key: convert(text) for (key, convert), text in zip(parameters, texts, strict=True)}
    return partial(_directed, generate=generate, make=draft_class, seed=f"{name}-{seed}", **choices)


def _directed(
    draft: NodeDraft,
    *,
    generate: Generator,
    make: Callable[..., NodeDraft],
    seed: str,
    **given: Any,
) -> None:
    directed = make(draft, f"{draft.schema.name}-{draft.version}-{seed}", **given)
    generate(directed)
    draft.attributes, draft.inputs = directed.attributes, directed.inputs
    draft.outputs = directed.outputs


def directed_draws(
    generators: Mapping[str, Mapping[str, Generator]],
) -> Iterator[tuple[str, str, Generator]]:
    """Yield operators, the names of their directed draws, and generators.

    Args:
        generators: the operators' generators by family.
    """
    by_operator = {
        operator: generate
        for family in generators.values()
        for operator, generate in family.items()
    }
    for operator, seeds in _directed_seeds().items():
        for name, seed in seeds.items():
            stem = name.replace(":", "_").replace("(", "_").replace(")", "")
            yield operator, stem, directed_generator(by_operator[operator], name, seed)


@cache
def _directed_seeds() -> Mapping[str, Mapping[str, int]]:
    folder = resources.files("onnxopt_cli.suites.operators.boundaries")
    seeds: Mapping[str, Mapping[str, int]] = json.loads(folder.joinpath(SEEDS).read_text("utf-8"))
    return seeds
