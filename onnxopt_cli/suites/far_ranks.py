"""Case templates of limited attributes that select a rank, with many elements or many tensors.

They avoid integer ranks at which the rounding of (n - 1) * percent / 100 depends on the order of
operations: percent / 100 * (n - 1), the order of ``numpy.percentile``, is also correct, but may
prune one element more at such a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from onnxopt_cli.cases.case_template import Author, Shapes
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput

#: With this number of elements, a percentage just below 100 selects another rank than 100.
_LONG_SIZE = 100_001
_LONG_SHARES = (0.3, 1.0)
#: More tensors than a batch of 32.
_TENSORS = 33
#: Shapes of ranks 1 to 7, those over 1 with several rows.
_RANKS: Shapes = (
    (29,), (5, 7), (3, 4, 5), (3, 2, 3, 4), (2, 3, 2, 3, 2), (2, 2, 3, 1, 2, 3),
    (3, 1, 2, 2, 1, 2, 3),
)  # fmt: skip


def far_ranks(author: Author) -> Iterator[CaseTemplate]:
    """Yield the case templates; none if no attribute of the operator has limits."""
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
    """Return a template with random tensors, each with its own number if the attribute has several.

    The distribution is wide, so that rounding cannot decide whether an element is below a
    threshold.
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
