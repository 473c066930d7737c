"""Case templates of attributes that select a rank, such as a percentage of the elements.

An attribute with limits is considered to select a rank. In the templates of
:func:`rank_templates`, the attribute selects an element of a literal tensor, or a value between two
elements. In those of :func:`whole_rank_templates`, it selects integer ranks in tensors of many
lengths. Those of :func:`far_rank_templates` have many elements or many tensors, and avoid
integer ranks at which the rounding of (n - 1) * percent / 100 depends on the order of operations.
An implementation that computes percent / 100 * (n - 1), as ``numpy.percentile`` does, is also
correct, but may prune one more element at such a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from onnxopt_cli.cases.case_template import COUNT, WIDE_TYPE, Author, Shapes
from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput
from onnxopt_cli.suites.pairwise import LITERAL

#: A number of elements for which a percentage just below 100 selects another rank than 100 does.
_LONG_SIZE = 100_001
_LONG_SHARES = (0.3, 1.0)
#: A number of tensors that exceeds a batch of 32.
_TENSORS = 33
#: Shapes with 1 to 7 axes. Shapes with more than one axis have several rows.
_RANKS: Shapes = (
    (29,), (5, 7), (3, 4, 5), (3, 2, 3, 4), (2, 3, 2, 3, 2), (2, 2, 3, 1, 2, 3),
    (3, 1, 2, 2, 1, 2, 3),
)  # fmt: skip
#: Tensors in which an attribute selects an integer rank: the length, and the kind (floats, partly
#: infinite, or doubles).
_RANKED = (
    *((length, "") for length in (2, 3, 4, 5, 6, 8, 9, 11, 16, 17, 33, 65, 101, 129, 1001, 4097)),
    *((length, "infinite") for length in (5, 11, 33)),
    *((length, "double") for length in (5, 9, 17, 33, 101, 1001)),
)
#: Share of infinite elements in tensors of the kind "infinite".
_INFINITE = 0.4
_RATE = 0.41234568
#: The seed of the literal tensors.
_SEED = 20
#: Number of different seeds of random tensors.
_SEEDS = 10**5


def rank_templates(author: Author) -> Iterator[CaseTemplate]:
    """Yield elements at and next to the rank that an attribute selects."""
    layers = (
        ("whole_rank", 0.5, (3, -1, 2, -5, 4), "An element at the threshold"),
        ("signed_rank", 0.25, (-6, 1, -2, 5, 3, -4, 0.5, 7, -8), "Elements of both signs"),
        ("some_zero", 0.5, (0, 3, 0, -1, 2, 0, -4), "Zeros below the threshold"),
        ("between_ranks", 0.6, (0.5, -4, 3, 1.5), "A threshold between two elements"),
        ("ties", 0.6, (1, -1, 1, 1, 2), "Equal magnitudes at the threshold"),
        ("ties_above", 0.5, (4, -4, 1, 0.5, 4, -2, 4), "Equal magnitudes at the threshold"),
        ("mostly_zero", 0.6, (0, 0, 0, -0.0, 2), "A threshold of zero"),
        ("one_element", 1.0, (-3,), "One element"),
        ("between_largest", 0.75, (3e38, -3.25e38, 1), "A threshold between two large elements"),
    )
    for name, (word, fraction, values, summary) in product(author.limits, layers):
        about = f"{summary}: detects a wrong rank or a wrong comparison with it."
        zero = dict.fromkeys(author.operator.tensors, np.zeros(len(values)))
        changed = {name: author.within(name, fraction)}
        tensors = zero | {author.first: np.array(values, float)}
        yield author.template(f"{name}_{word}", about, changed=changed, tensors=tensors)
    for name in author.limits:
        about = "Rows of different magnitudes: detects a rank within a row or four elements."
        rows = dict.fromkeys(author.operator.tensors, np.zeros((2, 4))) | {
            author.first: np.array([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
        }
        changed = {name: author.within(name, 0.5)}
        yield author.template(
            f"{name}_rows_of_four", about, changed=changed, tensors=rows, shapes=((2, 4),)
        )
    for name in author.limits:
        about = "Equal doubles at a fractional rank: detects weights that do not add up to 1."
        equal = dict.fromkeys(author.operator.tensors, np.zeros(4)) | {
            author.first: np.full(4, 0.1)
        }
        changed = {name: author.within(name, 0.06)}
        yield author.template(
            f"{name}_ties_double", about, changed=changed, tensors=equal, wide=True
        )


def whole_rank_templates(author: Author) -> Iterator[CaseTemplate]:
    """Yield templates whose attributes select an integer rank, or a rank just beside an integer.

    Each group has its own rank if the attribute has a number for each group.
    """
    operator, random = author.operator, np.random.RandomState(_SEED)
    for name, (length, word) in product(author.limits, _RANKED):
        dtype = np.dtype(WIDE_TYPE if word == "double" else "float32")
        indices = {1, length // 7, length // 2, length * 14 // 25, length - 2} & set(range(length))
        shares = [
            share
            for index in sorted(indices)
            for share in author.around(name, index / (length - 1))
        ]
        shares = shares if name in author.each else shares[1:2]
        inputs: list[TemplateInput] = [*author.scalars(COUNT, _RATE, "float32")]
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
        ranks = {name: tuple(shares) if name in author.each else shares[0]}
        yield author.explicit_template(
            f"{name}_whole_ranks_{length}{'_' * bool(word)}{word}",
            f"{name} at and next to integer ranks among {length} elements: detects a wrong rank.",
            inputs,
            {**author.ordinary, **author.settings[0], **ranks},
        )


def far_rank_templates(author: Author) -> Iterator[CaseTemplate]:
    """Yield templates whose attributes select ranks in long tensors, or in each of many tensors."""
    for name in author.limits:
        about = f"{name} of {_LONG_SIZE} elements: detects a wrong upper end of the range."
        long = [author.within(name, share) for share in _LONG_SHARES]
        yield _drawn(author, f"{name}_of_many", about, name, long, [(_LONG_SIZE,)] * len(long))
        about = f"{name} for each tensor, of every rank: detects a threshold for each row."
        shares = np.linspace(0.3, 0.8, len(_RANKS))
        each = [author.within(name, float(share)) for share in shares]
        yield _drawn(author, f"{name}_of_each_rank", about, name, each, _RANKS)
        about = f"{name} for each of {_TENSORS} tensors: detects a number used twice."
        shares = np.roll(np.linspace(0.05, 0.95, _TENSORS), 7)
        each = [round(author.within(name, float(share)), 1) for share in shares]
        yield _drawn(author, f"{name}_of_each_{_TENSORS}", about, name, each, [(9,)] * _TENSORS)


def _drawn(
    author: Author,
    name: str,
    about: str,
    attribute: str,
    numbers: Sequence[float],
    shapes: Shapes,
) -> CaseTemplate:
    """Return a template with random tensors.

    If the attribute can have several numbers, each tensor has its own number. The distribution is
    wide, so that rounding cannot decide whether an element is below a threshold.
    """
    each = attribute in author.each
    tensors: dict[tuple[str, int], TemplateInput] = {
        (tensor, group): replace(
            author.drawn(tensor, shape, group=group),
            distribution="lognormal", parameters={"mean": 0.0, "scale": 12.0},
        )
        for tensor, (group, shape) in product(author.operator.tensors, enumerate(shapes))
    }  # fmt: skip
    changed = {attribute: tuple(numbers) if each else numbers[0]}
    return author.template(name, about, shapes=shapes, tensors=tensors, changed=changed)
