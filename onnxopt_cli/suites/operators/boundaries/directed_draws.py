"""Nodes that the operators' own generators draw while one choice is prescribed.

Every operator gets the same kinds of draws: draws with each element type, with axes longer than the
blocks of vectorized and parallel loops, with a rank over 4, and with an empty batch.
``scripts/select_directed_draws.py`` writes the seeds of the draws. A kind of draw has no seed if it
does not apply to the operator, if other cases already cover it, or if onnx's reference does not
compute its nodes.
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
from onnxopt_cli.suites.operators.node_draft import ANY, Choices, NodeDraft, SeededChoices, Shape

SEEDS = "directed_seeds.json"
# The largest length of an axis in drafts with many axes, and of the short axes beside a long axis.
_SHORT_LENGTH = 3
_HIGH_RANKS = (5, 6)
# The default value of a generator's largest rank. A generator that uses the default accepts any
# rank.
_ANY_RANK = 4


class TypedDraft(NodeDraft):
    """A draft in which a type variable has a prescribed element type.

    Args:
        schema: the operator in one version.
        choices: makes the other choices.
        variable: the type variable.
        dtype: the name of the element type.
    """

    def __init__(self, schema: OpSchema, choices: Choices, *, variable: str, dtype: str) -> None:
        super().__init__(schema, choices)
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
        """Draw a tensor.

        For integers, the style ``limits``, which includes the smallest and largest values of the
        type, replaces the style ``wide``.
        """
        if "wide" in styles and "int" in dtype_name(dtype):
            styles = ("limits",)
        return super().tensor(dtype, shape, low=low, high=high, styles=styles)

    def _given(self, formal: OpSchema.FormalParameter, names: list[str]) -> list[str]:
        return [self._dtype] if formal.type_str == self._variable else names


class LengthDraft(NodeDraft):
    """A draft in which one axis has a prescribed length, and all other axes are short.

    Args:
        schema: the operator in one version.
        choices: chooses everything except the length of the axis.
        length: the length of the axis.
        place: the number of lengths that the generator draws before the length of the axis.
    """

    def __init__(self, schema: OpSchema, choices: Choices, *, length: int, place: int) -> None:
        super().__init__(schema, choices)
        self._length, self._place = length, place
        self._drawn_lengths = 0

    def size(self, smallest: int = 1, largest: int = _SHORT_LENGTH) -> int:
        """Choose the length of a dimension; one dimension has the prescribed length."""
        place = self._drawn_lengths
        self._drawn_lengths += 1
        if place == self._place:
            return self._length
        return super().size(smallest, max(smallest, min(largest, _SHORT_LENGTH)))


class DeepDraft(NodeDraft):
    """A draft whose shapes have ranks above 4 wherever the generator accepts any rank."""

    def shape(self, least: int = 1, most: int = _ANY_RANK, *, smallest: int = 1) -> Shape:
        """Choose a shape."""
        if most < _ANY_RANK:
            return super().shape(least, most, smallest=smallest)
        largest = max(smallest, _SHORT_LENGTH)
        return tuple(self.size(smallest, largest) for _ in range(self.choice(_HIGH_RANKS)))


# For each kind of draw: the class of drafts, and the names and types of the parameters in the name
# of the draw.
_DRAFTS: Mapping[str, tuple[Callable[..., NodeDraft], Sequence[tuple[str, type]]]] = {
    "type": (TypedDraft, (("variable", str), ("dtype", str))),
    "long": (LengthDraft, (("length", int), ("place", int))),
    "deep": (DeepDraft, ()),
    "empty": (partial(LengthDraft, length=0, place=0), ()),
}


def directed_generator(generate: Generator, name: str, seed: int) -> Generator:
    """Return a generator whose choices follow from a seed, except for one prescribed choice.

    Args:
        generate: the operator's generator.
        name: the kind of the draw, and its parameters separated by colons.
        seed: determines the other choices.
    """
    kind, *texts = name.split(":")
    make_draft, parameters = _DRAFTS[kind]
    arguments = {key: convert(text) for (key, convert), text in zip(parameters, texts, strict=True)}

    def generate_directed(draft: NodeDraft) -> None:
        choices = SeededChoices(f"{draft.schema.name}-{draft.version}-{name}-{seed}")
        directed = make_draft(draft.schema, choices, **arguments)
        generate(directed)
        draft.attributes, draft.inputs = directed.attributes, directed.inputs
        draft.outputs = directed.outputs

    return generate_directed


def directed_draws(generators: Mapping[str, Generator]) -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each directed draw.

    Args:
        generators: the operators' generators.
    """
    for operator, seeds_by_name in _directed_seeds().items():
        for name, seeds in seeds_by_name.items():
            for number, seed in enumerate(seeds, 1):
                stem = name.replace(":", "_") + (f"_{number}" if number > 1 else "")
                yield operator, stem, directed_generator(generators[operator], name, seed)


@cache
def _directed_seeds() -> Mapping[str, Mapping[str, Sequence[int]]]:
    folder = resources.files("onnxopt_cli.suites.operators.boundaries")
    text = folder.joinpath(SEEDS).read_text("utf-8")
    seeds: Mapping[str, Mapping[str, Sequence[int]]] = json.loads(text)
    return seeds
