"""Case templates that vary every operand slot of an operator, one slot after the other.

A slot is a tensor of a node in one group, such as the gradient of the second tensor. Code for
shapes, types and shared values is often right for one slot and wrong for another. Therefore each
template exists for every slot, or has one group for every slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np

from onnxopt_cli.cases.case_template import COUNT, RATE, Author, Shapes
from onnxopt_cli.cases.onnx.node_model import Wiring
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput, TypedAttribute
from onnxopt_cli.suites.refusals import rejected
from onnxopt_cli.suites.wirings import shared_values

#: The shape of the first tensor, and a shape that cannot be broadcast to it.
_UNFIT_SHAPES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "enlarges_scalar": ((), (2,)),
    "enlarges_rank_0": ((), (1,)),
    "enlarges_one": ((1,), (3,)),
    "enlarges_axis": ((1, 3), (2, 3)),
    "enlarges_rank": ((3,), (2, 3)),
    "too_long": ((3,), (4,)),
    "too_short": ((4,), (3,)),
    "longer_multiple": ((3,), (6,)),
    "unfit_row": ((3, 4), (5,)),
    "unfit_column": ((3, 4), (2, 1)),
    "transposed": ((3, 4), (4, 3)),
    "flat": ((3, 4), (12,)),
}
#: Keys of _UNFIT_SHAPES: suites that run in seconds use only these shapes.
_BRIEF_UNFIT_WORDS = ("enlarges_scalar", "enlarges_axis", "too_long")
#: Shapes of a first tensor, each with the shapes of two operands that are broadcast to it in
#: different ways.
_DISTINCT_BROADCASTS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 4), (4,), (3, 1)),
    ((2, 3, 4), (3, 1), (2, 1, 4)),
    ((2, 3, 2, 3), (2, 1, 1, 3), (3, 2, 1)),
)
#: A shape with four axes, for operands in which any of the axes may have length 1.
_FOUR_AXES = (2, 3, 2, 3)
_BRIEF_AXES_OF_ONE = ((2, 1, 1, 3), (1, 3, 2, 1), (2, 1, 2, 1), (1, 3, 1, 3))
#: Shapes of doubles to which operands with fewer axes, or with axes of length 1, are broadcast.
_DOUBLE_SHAPES: Shapes = ((3, 4), (2, 3, 4), (2, 1, 3), (2, 2, 3, 3))
_LAST_COUNTS = (2**63 - 1, -(2**63))
#: Doubles whose squares exceed the range of float32, and the value of attributes that keeps the
#: results small.
_LARGE_DOUBLES = {"1e30": 1e30, "1e100": 1e100}
_SMALL_ATTRIBUTE = 1e-7
#: For cases with NaN, values of the attribute that selects a rank, as shares of the range between
#: the attribute's limits.
_SHARES = (0.6, 0.0, 0.25, 0.5, 0.9, 1.0)
_BRIEF_SHARES = (0.6, 0.5)


def slots(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates.

    Args:
        author: creates the operator's templates.
        thorough: whether to yield every combination of slots and shapes, or a selection.
    """
    yield from _unfit_operands(author, thorough=thorough)
    yield from _numbers_for_each(author, thorough=thorough)
    yield from _rates_shared(author, thorough=thorough)
    yield from _shared_across(author, thorough=thorough)
    yield from _broadcasts(author, thorough=thorough)
    yield from _double_broadcasts(author, thorough=thorough)
    yield from _beyond_float32(author, thorough=thorough)
    yield from _last_counts(author, thorough=thorough)
    yield from _zero_attributes(author)
    yield from _delicate_ranks(author, thorough=thorough)


def _unfit_operands(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield, for every slot, operands that cannot be broadcast to the first tensor."""
    for word, (first_shape, unfit) in _UNFIT_SHAPES.items():
        if not thorough and word not in _BRIEF_UNFIT_WORDS:
            continue
        for number in (1, 2) if thorough else (1,):
            template = author.template("refused", "", shapes=[first_shape] * number, turn=False)
            for tensor, group in product(author.stepped, range(number)):
                name = author.slot_name(tensor, group, number)
                about = (
                    f"{name} of shape {list(unfit)} does not broadcast to {list(first_shape)}: the "
                    "node must be refused, whether or not the result depends on the values."
                )
                inputs = {**template.inputs, name: np.full(unfit, 0.5, np.float32)}
                ending = f"_{group + 1}_of_2" if number > 1 else ""
                yield rejected(template, f"refuses_{word}_{tensor}{ending}", about, inputs=inputs)


def _numbers_for_each(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield invalid nodes: a scalar input is a vector, or an attribute is an empty list.

    The vector has one element for each tensor.
    """
    for number, scalar in product((2, 3)[: 1 + thorough], author.operator.scalars):
        template = author.template("refused", "", shapes=[(3,)] * number, turn=False)
        value = np.resize(np.asarray(template.inputs[scalar.name]), number)
        about = f"{scalar.name} has {number} elements for {number} tensors: it must be refused."
        yield rejected(
            template, f"refuses_{scalar.name}_for_each_of_{number}", about,
            inputs={**template.inputs, scalar.name: value},
        )  # fmt: skip
    for name, number in product(author.each, (1, 2)[: 1 + thorough]):
        template = author.template("refused", "", shapes=[(3,)] * number, turn=False)
        about = f"{name} is an empty list for {number} tensors: it must be refused."
        attributes = {**template.attributes, name: TypedAttribute("FLOATS", ())}
        yield rejected(template, f"refuses_empty_{name}_of_{number}", about, attributes=attributes)


def _rates_shared(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield nodes in which the rate and the tensor of a slot are the same value."""
    if not author.rate:
        return
    for tensor, group in product(author.operator.tensors, range(1 + thorough)):
        slot_name = author.slot_name(tensor, group, 2)
        template = author.template("", "", shapes=[(), ()])
        yield replace(
            template,
            name=f"wired_shared_{author.rate}_{tensor}_{group + 1}_of_2",
            about=(
                f"{author.rate} and {slot_name} are one value: detects one updated before it is "
                "read."
            ),
            inputs={**template.inputs, slot_name: np.array(RATE, np.float32)},
            wiring=Wiring(names={slot_name: author.rate}),
        )


def _shared_across(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield nodes in which tensors of two successive groups are the same value."""
    names = author.operator.tensors
    for shift in range(1, len(names)):
        pairs = [
            [(tensor, 0), (names[(place + shift) % len(names)], 1)]
            for place, tensor in enumerate(names)
        ]
        yield shared_values(author, f"wired_across_by_{shift}", [(4,), (4,)], pairs)
    for first, second in permutations(names, 2) if thorough else ():
        pairs = [[(first, 0), (second, 1)]]
        yield shared_values(author, f"wired_across_{first}_{second}", [(4,), (4,)], pairs)


def _together(
    author: Author,
    name: str,
    about: str,
    first_shape: tuple[int, ...],
    narrow: Mapping[str, Mapping[str, tuple[int, ...]]],
    **settings: Any,
) -> Iterator[CaseTemplate]:
    """Yield cases that broadcast operands in each of the ways that ``narrow`` describes.

    A single case has a group for each way of broadcasting. If an output is a sum over all tensors,
    each way has a separate case, since a large term would hide the other terms.

    Args:
        author: creates the operator's templates.
        name: the name of the case, or its beginning.
        about: the description of the case.
        first_shape: the shape of the first tensor.
        narrow: the shapes of the operands for each way of broadcasting, by the name of the way.
        settings: further arguments of :meth:`Author.template`.
    """
    if author.carried:
        for word, shapes in narrow.items():
            ways = {(tensor, 0): shape for tensor, shape in shapes.items()}
            yield author.template(
                f"{name}_{word}", about, shapes=[first_shape], narrow=ways, **settings
            )
    elif narrow:
        ways = {
            (tensor, group): shape
            for group, shapes in enumerate(narrow.values())
            for tensor, shape in shapes.items()
        }
        group_shapes = [first_shape] * len(narrow)
        yield author.template(name, about, shapes=group_shapes, narrow=ways, **settings)


def _broadcasts(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield operands with inner axes of 1, and two operands that are broadcast differently."""
    about = "Two operands broadcast in different ways: detects the strides of one for the other."
    for first_shape, *operand_shapes in _DISTINCT_BROADCASTS:
        pairs = {
            "_".join(operands): dict(zip(operands, operand_shapes, strict=True))
            for operands in permutations(author.stepped, 2)
        }
        name = f"broadcast_apart_rank_{len(first_shape)}"
        yield from _together(author, name, about, first_shape, pairs)
    about = "Operands with axes of 1 between others: detects axes that are merged."
    every = product(*((1, size) for size in _FOUR_AXES))
    shapes = [*every][1:-1] if thorough else _BRIEF_AXES_OF_ONE
    for tensor in author.stepped:
        ways = {"_".join(map(str, shape)): {tensor: shape} for shape in shapes}
        yield from _together(author, f"broadcast_axes_{tensor}", about, _FOUR_AXES, ways)
    about = "An operand broadcasts in each of three groups: detects the first one used for all."
    of_all: Mapping[str, tuple[int, ...]] = {"scalar": ()} | ({"row": (4,)} if thorough else {})
    for tensor, (word, shape) in product(author.stepped, of_all.items()):
        of_groups = {(tensor, group): shape for group in range(3)}
        yield author.template(
            f"broadcast_{word}_{tensor}_of_all", about, shapes=[(3, 4)] * 3, narrow=of_groups
        )


def _double_broadcasts(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield nodes of doubles that broadcast one slot, for shapes of several ranks."""
    about = "Doubles that broadcast to several axes: detects float32 in the code for them."
    counts = (COUNT, 0) if author.operator.counts else (COUNT,)
    shapes = _DOUBLE_SHAPES[1:2] if author.carried and not thorough else _DOUBLE_SHAPES
    for shape, count, setting in product(shapes, counts, author.settings):
        words: dict[str, tuple[int, ...]] = {
            "last_axis": shape[-1:],
            "one": (1,),
            "first_axis": (shape[0], *(1,) * (len(shape) - 1)),
        }
        if thorough:
            words |= {"scalar": (), "all_one": (1,) * len(shape), "last_axes": shape[1:]}
        ways: dict[str, dict[str, tuple[int, ...]]] = {"same": {}}
        ways |= {
            f"{tensor}_{word}": {tensor: narrow_shape}
            for tensor, (word, narrow_shape) in product(author.stepped, words.items())
        }
        ending = "_".join([*map(str, shape), *["T_0"] * (count == 0), *setting.values()])
        yield from _together(
            author, f"double_broadcast_{ending}", about, shape, ways,
            count=count, setting=setting, wide=True,
        )  # fmt: skip


def _beyond_float32(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield, for every slot, doubles whose sums or squares exceed the range of float32."""
    names = author.operator.tensors
    for tensor, (word, size), attribute in product(
        names, _LARGE_DOUBLES.items(), (1.0, _SMALL_ATTRIBUTE)
    ):
        if not thorough and (word != "1e30" or attribute == 1):
            continue
        about = f"{tensor} holds {word} in double: detects sums or squares cut off at float32."
        value = np.array([size, 1.0, 2.0])
        changed = dict.fromkeys(author.unlimited, attribute)
        ending = f"{tensor}_{word}{'_small' * (attribute < 1)}"
        yield author.template(
            f"double_squares_{ending}", about, shapes=[(3,)], tensors={tensor: value},
            changed=changed, wide=True,
        )  # fmt: skip


def _last_counts(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the largest and the smallest 64-bit T.

    A wrong sign of T is detected: 0.5**T is 0 for the largest T, and infinite for the smallest T.
    """
    if not author.operator.counts:
        return
    for count, name in product(_LAST_COUNTS[: 1 + thorough], author.unlimited):
        about = f"T = {count}, {name} = 1, the others 0.5: detects a count that wraps around."
        words = str(count).replace("-", "minus_")
        changed = dict.fromkeys(author.unlimited, 0.5) | {name: 1.0}
        yield author.template(f"count_{words}_{name}_one_others_half", about, count=count,
                         changed=changed, turn=False)  # fmt: skip


def _zero_attributes(author: Author) -> Iterator[CaseTemplate]:
    """Yield cases with an attribute of 0, in each setting but the first, and cases with T = 0."""
    for name in author.unlimited:
        for setting in author.settings[1:]:
            about = f"Doubles, {name} = 0: detects float32 in the code for it."
            ending = "_".join(setting.values())
            yield author.template(f"double_{name}_zero_{ending}", about, changed={name: 0.0},
                             setting=setting, wide=True)  # fmt: skip
        if author.operator.counts:
            about = f"{name} = 0 and T = 0: detects a step that is left out."
            yield author.template(
                f"T_0_{name}_zero", about, count=0, changed={name: 0.0}, turn=False
            )


def _delicate_ranks(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield ranks among magnitudes that include NaN, and ranks in nodes with empty tensors."""
    layers = {
        "nan": (1.0, np.nan, 3.0, 4.0, 5.0),
        "nan_last": (1.0, -2.0, 3.0, 4.0, np.nan),
    }
    shares = _SHARES if thorough else _BRIEF_SHARES
    for name, (word, values), share in product(author.limits, layers.items(), shares):
        about = f"{name} at {share:g} of its range: detects NaN ranked as a number."
        tensors: dict[str, TemplateInput] = dict.fromkeys(
            author.operator.tensors, np.zeros(len(values))
        )
        tensors[author.first] = np.array(values)
        number = f"{share:g}".replace(".", "_")
        yield author.template(
            f"{name}_{word}_{number}", about, changed={name: author.within(name, share)},
            tensors=tensors,
        )  # fmt: skip
    for name in author.each:
        about = f"{name} of tensors, some of them empty: detects numbers of another tensor."
        changed = {name: tuple(author.within(name, share) for share in (0.1, 0.6, 0.9, 0.3))}
        shapes: Shapes = [(0,), (9,), (2, 0), (7,)]
        yield author.template(f"{name}_each_beside_empty", about, changed=changed, shapes=shapes)
