"""Case templates with doubles that float32 cannot represent, and an extreme in another dimension.

An implementation may have separate code for large tensors, for scalars, for operands that are
broadcast, or for certain values of T. If the separate code computes in float32, a double keeps only
24 of its 53 bits. Only a case in double detects the lost digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

import numpy as np

from onnxopt_cli.cases.case_template import (
    RATE,
    WIDE_TYPE,
    Author,
    Shapes,
)
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput

#: Shapes of the tensor in nodes with a single tensor: smaller than a vector register, of several
#: ranks, and around block sizes.
_SINGLE_SHAPES: Shapes = ((), (2,), (3, 5), (2, 3, 2, 2), (1500,), (5003,), (65_539,))
_MORE_SINGLE_SHAPES: Shapes = (
    (1,), (3,), (7,), (33,), (130,), (260, 2), (2, 300), (2, 1, 2, 1, 2, 1, 2), (17_000,),
    (33_000,), (140_003,),
)  # fmt: skip
#: Shapes of the tensors in a node with several tensors.
_TOGETHER: Shapes = (
    (), (1,), (1, 1), (8,), (17,), (5, 3), (2, 3, 2), (2, 1, 3, 2), (2, 3, 1, 3, 2),
    (2, 1, 2, 3, 1, 2), (2, 1, 2, 1, 2, 1, 2), (2,) + (1,) * 7 + (3,), (33,), (65, 2), (2, 129),
    (257,),
)  # fmt: skip
#: The largest number of elements of a literal tensor in nodes with a single tensor; larger tensors
#: are random.
_LITERAL = 2
_COUNTS = (0, 1, -1, 1000, 2**31 + 5)
_NUMBERS = {"zero": 0.0, "one": 1.0, "large": 25.0}
_RATES = {"zero": 0.0, "negative": -0.4, "large": 24.691358}
_MANY_TENSORS = (2, 17)
#: Magnitudes of doubles outside float32's range, and of the floats that accompany them.
_BEYOND = (1e60, 1e-60)
_BESIDE = (1.0, 1e30)
#: The first float32 integer n for which float32 cannot represent n + 1.
_LARGE_FLOAT = 2.0**24
_SMALL_SCALE = 1e-6
#: The number of small terms in a sum; a float32 sum that starts at _LARGE_FLOAT loses every small
#: term.
_TERMS = 40
#: Matches names of cases. If one of these cases kills a mutant, another case usually does, too.
_ONLY_THOROUGH = re.compile(
    r"double_(shape_(3_5|2_3_2_2|5003)|tensors_2|T_1000(_.*)?|.*_(one|large))"
)


def doubles(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates.

    Args:
        author: creates the operator's templates.
        thorough: whether each size, rate and value of an attribute has its own case.
    """
    of_rate = f"double_{author.rate}_"
    for template in _all_doubles(author, thorough=thorough):
        left_out = template.name.startswith(of_rate) or _ONLY_THOROUGH.fullmatch(template.name)
        if thorough or not left_out:
            yield template


def _all_doubles(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    for shape in (*_SINGLE_SHAPES, *_MORE_SINGLE_SHAPES) if thorough else _SINGLE_SHAPES:
        about = f"Doubles of shape {list(shape)}: detects arithmetic in float32 for this shape."
        yield _of_shapes(
            author, "_".join(["shape", *map(str, shape or ("scalar",))]), about, [shape]
        )
    about = "Doubles of many ranks: detects arithmetic in float32 for one of them."
    yield _of_shapes(author, "shapes", about, _TOGETHER)
    for number in _MANY_TENSORS:
        about = f"{number} tensors of doubles: detects arithmetic in float32 for later tensors."
        yield _of_shapes(author, f"tensors_{number}", about, [(3,)] * number)
    yield from _settings(author)
    yield from _broadcasts(author)
    yield from _defaults(author)
    yield from _beyond(author)
    yield from _dominant(author)
    yield from _equal_ranks(author)
    yield from _carried(author)


def _of_shapes(author: Author, name: str, about: str, shapes: Shapes) -> CaseTemplate:
    """Return a template with doubles of the given shapes; large tensors are random."""
    drawn: dict[tuple[str, int], TemplateInput] = {
        (tensor, group): author.drawn(tensor, shape, WIDE_TYPE, group)
        for tensor, (group, shape) in product(author.operator.tensors, enumerate(shapes))
        if prod(shape) > _LITERAL or len(shapes) > 1
    }
    return author.template(f"double_{name}", about, shapes=shapes, tensors=drawn, wide=True)


def _settings(author: Author) -> Iterator[CaseTemplate]:
    """Yield templates with various values of T, extreme attributes, or extreme learning rates."""
    for count, setting in product(_COUNTS if author.operator.counts else (), author.settings):
        about = f"Doubles at T = {count}: detects arithmetic in float32 for this T."
        words = "_".join(["double_T", str(count).replace("-", "minus_"), *setting.values()])
        yield author.template(words, about, count=count, setting=setting, wide=True)
    for name, (word, number) in product(author.unlimited, _NUMBERS.items()):
        about = f"Doubles, {name} = {number:g}: detects arithmetic in float32 for this value."
        yield author.judgeable(
            author.template(f"double_{name}_{word}", about, changed={name: number}, count=count,
                       wide=True, turn=False)
            for count in (3, 0)
        )  # fmt: skip
    if author.unlimited:
        about = "Doubles, every attribute negative: detects arithmetic in float32."
        negative = dict.fromkeys(author.unlimited, -0.5)
        yield author.template("double_all_negative", about, changed=negative, wide=True)
    for word, number in _RATES.items() if author.rate else ():
        about = f"Doubles, {author.rate} = {number:g}: detects arithmetic in float32."
        yield author.template(f"double_{author.rate}_{word}", about, rate_value=number, wide=True)


def _broadcasts(author: Author) -> Iterator[CaseTemplate]:
    shapes: Shapes = [(2, 3)] * (len(author.stepped) + 1)
    for word, narrow in (
        (("row", (3,)), ("column", (2, 1)), ("scalar", ())) if author.stepped else ()
    ):
        ways = {(name, group): narrow for group, name in enumerate(author.stepped)}
        ways |= {(name, len(author.stepped)): narrow for name in author.stepped}
        about = "Doubles that broadcast: detects arithmetic in float32."
        yield author.template(
            f"double_broadcast_{word}", about, shapes=shapes, narrow=ways, wide=True
        )


def _defaults(author: Author) -> Iterator[CaseTemplate]:
    if len(author.required) < len(author.ordinary):
        about = (
            "Small and large doubles, default attributes: detects a default not rounded to float32."
        )
        tensors = author.judged(author.combined((1e-7, 1.0)), wide=True)
        yield author.template(
            "double_defaults_scaled", about, attributes=author.required, tensors=tensors, wide=True,
            count=0, turn=False,
        )  # fmt: skip


def _beyond(author: Author) -> Iterator[CaseTemplate]:
    """Yield nodes in which one tensor, or all tensors but one, exceed the range of float32."""
    names = author.operator.tensors
    if len(names) == 1 or not author.elementwise:
        return
    for name in names:
        for word, wide in (("double", {name}), ("float", set(names) - {name})):
            scales = [_BEYOND if tensor in wide else _BESIDE for tensor in names]
            columns = np.array([*product(*scales)]).T
            tensors = {
                tensor: column * author.tensor(tensor, 0, column.shape)
                for tensor, column in zip(names, columns, strict=True)
            }
            about = (
                f"Doubles outside float32's range in {', '.join(sorted(wide))}: detects clipping."
            )
            yield author.template(
                f"beyond_{word}_{name}",
                about,
                types=dict.fromkeys(wide, WIDE_TYPE),
                tensors=tensors,
            )


def _dominant(author: Author) -> Iterator[CaseTemplate]:
    """Yield a large double and floats that are so small that their rounding does not matter."""
    names = author.operator.tensors
    if len(names) == 1 or author.carried:
        return
    for name in names:
        tensors = {name: _SMALL_SCALE * author.tensor(name, 0, (4,)) for name in names}
        tensors[name] = _LARGE_FLOAT + author.tensor(name, 0, (4,))
        about = f"A large double {name} beside small floats: detects rounding to float32."
        changed = dict.fromkeys(author.unlimited, _SMALL_SCALE)
        yield author.template(
            f"large_double_{name}", about, types={name: WIDE_TYPE}, tensors=tensors, changed=changed
        )


def _equal_ranks(author: Author) -> Iterator[CaseTemplate]:
    """Yield tensors of every rank, all with equal weight in a sum over all tensors."""
    about = "Tensors of every rank: detects tensors of some rank that are omitted."
    shapes: Shapes = [(1,) * place + (3,) + (1,) * place for place in range(4)]
    shapes = [*shapes, (1, 3), (1, 3, 1, 1), (1, 1, 3, 1, 1, 1)]
    tensors = {
        (name, group): author.tensor(name, 0, shape)
        for name, (group, shape) in product(author.operator.tensors, enumerate(shapes))
    }
    yield author.template("ranks_together", about, shapes=shapes, tensors=tensors)


def _carried(author: Author) -> Iterator[CaseTemplate]:
    """Yield cases of operators with an output that is a scalar input plus a sum over all tensors.

    In one kind of case, the scalar is a double, and all terms are zero. In the other kind, the
    scalar is a large float, and the sum has many small terms.
    """
    if not (author.carried and author.rate):
        return
    zero = {name: np.zeros(3) for name in author.operator.tensors}
    mixtures: dict[str, Mapping[str, str]] = {"all": {}}
    mixtures |= {name: {name: WIDE_TYPE} for name in author.operator.tensors}
    for word, types in mixtures.items():
        about = (
            f"{author.rate} is a double, all terms are 0, and some tensors are floats: detects "
            "rounding to float32."
        )
        yield author.template(
            f"carried_double_{word}", about, tensors=zero, types=types, rate=WIDE_TYPE,
            rate_value=_LARGE_FLOAT + 1 + RATE,
        )  # fmt: skip
    about = f"A large float {author.rate}, {_TERMS} small double terms: detects sums in float32."
    terms = {name: author.tensor(name, 0, (2,)) for name in author.operator.tensors}
    yield author.template(
        "carried_many_terms", about, shapes=[(2,)] * _TERMS, tensors=terms, types=author.double,
        rate_value=_LARGE_FLOAT,
    )  # fmt: skip
