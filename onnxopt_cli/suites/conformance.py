"""The suite ``conformance``: for each operator, cases that wrong implementations fail.

The case templates follow only from the operator's signature and formula: from its inputs with
their types and shapes, its attributes, and the values to which its formula is sensitive. The
templates cover the input space and are not derived from the list of known mistakes. ``onnxopt
audit`` can therefore measure how many known mistakes the suite detects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from onnxopt_cli.cases.case_template import (
    COUNT,
    RATE,
    WIDE_TYPE,
    Attributes,
    Author,
    Shapes,
    derived_outputs,
)
from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.suites.doubles import doubles
from onnxopt_cli.suites.extremes import extremes, special_values
from onnxopt_cli.suites.pairwise import AROUND_BLOCKS, LITERAL
from onnxopt_cli.suites.rank_templates import (
    far_rank_templates,
    rank_templates,
    whole_rank_templates,
)
from onnxopt_cli.suites.refusals import refusals, type_refusals
from onnxopt_cli.suites.slots import slots
from onnxopt_cli.suites.wirings import wirings

_COUNTS = (0, 1, 2, 3, 10, 1000, 10**6, 2**31 + 5, -1)
_LARGE_SIZE = 100_003
#: Shapes of the tensor in nodes with a single tensor: shapes of every rank, some smaller and some
#: larger than a vector register or a block.
_SINGLE_SHAPES: Shapes = (
    (), (1,), (1, 1), (1, 1, 1), (2, 3, 2), (2, 1, 3, 2), (2, 1, 2, 3, 1, 2), (2, 1, 2, 1, 2, 1, 2),
    (2, 3, 1, 3, 2), (2, 1, 2, 2, 1, 2, 1, 2),
    (8,), (1024,), (300, 2), (2, 300), (128, 128), (2, 300, 2), (300, 2, 2),
)  # fmt: skip
_LENGTHS = (*range(2, 10), *AROUND_BLOCKS)
_SIZES = (32, 64, 128, 256)
_NUMBERS = (9, 16, 65)
#: For each full shape, the shapes of operands that can be broadcast to it.
_NARROW: Mapping[tuple[int, ...], Shapes] = {
    (3, 3): ((), (1,), (3,), (1, 3), (3, 1)),
    (2, 3, 2): ((2, 1, 2), (1, 3, 1), (1, 1, 2), (2, 1, 1)),
    (1, 2, 1, 2, 2, 1, 1, 2): ((1, 1, 1, 2, 1, 1, 1, 2), (2, 1, 1, 2)),
}
_FAR_VALUE = 24.691358
#: A value of T whose product with a small attribute is still small.
_LATE = 900
#: Values outside the range of float32. For each value, _BESIDE states whether other operands are
#: nonzero.
_BEYOND = (1e60, -1e60, 1e-60, -1e-60, 1e60, -1e-60)
_BESIDE = (True, True, True, True, False, False)
#: A setting assigns a value to every attribute with choices. If an operator has up to this number
#: of settings, its case templates are repeated in all settings. If it has more settings, each case
#: template has a single setting.
_MAX_SETTINGS = 4


def conformance(operator: Operator) -> list[CaseTemplate]:
    """Return the case templates for an operator; their names are unique."""
    author = _ConformanceTemplates(operator)
    each = author.in_each_setting
    sections = (
        author.counts,
        author.attributes,
        partial(each, author.types),
        partial(each, author.structures),
        partial(each, author.zeros),
        partial(rank_templates, author),
        partial(each, author.magnitudes),
        author.cancellation,
        partial(each, author.not_finite),
        partial(each, author.wide_doubles),
        partial(each, author.large),
        partial(each, author.thresholds),
        author.norms,
        partial(whole_rank_templates, author),
        partial(refusals, author),
        author.dimensions,
        author.small_numbers,
        partial(wirings, author, (1, 3), thorough=False),
        partial(extremes, author, thorough=False),
        partial(type_refusals, author, thorough=False),
        partial(doubles, author, thorough=False),
        partial(special_values, author, thorough=False),
        partial(far_rank_templates, author),
        partial(slots, author, thorough=False),
        partial(each, author.joint_extremes),
    )
    return [template for section in sections for template in section()]


def _name(*words: object) -> str:
    """Return a name that consists of words and numbers; a minus sign becomes a word."""
    return "_".join(
        word if isinstance(word, str) else f"{word}".replace("-", "minus_") for word in words
    )


class _ConformanceTemplates(Author):
    """The case templates of one operator; each method yields one section."""

    @property
    def of_whole_tensors(self) -> bool:
        """Whether outputs depend on all elements of their own group."""
        return not (self.elementwise or self.carried)

    def in_each_setting(
        self, section: Callable[[], Iterator[CaseTemplate]]
    ) -> Iterator[CaseTemplate]:
        """Yield the templates of a section, and their copies in all other settings.

        A template is not copied if the operator has more than ``_MAX_SETTINGS`` settings, or if the
        name of the template ends with its setting.
        """
        for template in section():
            yield template
            own_setting = {name: template.attributes[name] for name in self.settings[0]}
            words = "_".join(map(str, own_setting.values()))
            if len(self.settings) > _MAX_SETTINGS or (words and template.name.endswith(words)):
                continue
            for setting in self.settings:
                if setting != own_setting:
                    name = _name(template.name, *setting.values())
                    attributes = {**template.attributes, **setting}
                    yield replace(template, name=name, attributes=attributes)

    def counts(self) -> Iterator[CaseTemplate]:
        """Yield values of T of all magnitudes.

        The values 0 and 1 of T are tested in every setting.
        """
        if not self.operator.counts:
            return
        for count in _COUNTS:
            for setting in self.settings if count in (0, 1) else [next(self.turn)]:
                about = f"T = {count}: detects a wrong comparison, offset or power of T."
                name = _name("T", count, *setting.values())
                yield self.template(name, about, count=count, setting=setting)
        near_one = self.clipped(float(np.nextafter(np.float32(1), np.float32(0))))
        for count in (2**24 + 1, 2**32 + 1, 2**32):
            about = (
                f"T = {count} with attributes just below 1, in double: detects a T that is "
                "converted to float32 or 32 bits, and powers that lose digits."
            )
            name, turn = f"T_{count}_near_one", count != 2**32
            yield self.template(name, about, count=count, attributes=near_one, turn=turn, wide=True)

        ones = self.clipped(1.0)
        for count in (0, -1):
            about = f"T = {count}, every attribute 1: detects a bias correction at T <= 0."
            yield self.template(_name("T", count, "all_one"), about, count=count, attributes=ones)
        about = "T = 0 with two tensors: detects a T that changes between tensors."
        yield self.template("T_0_two_tensors", about, count=0, shapes=[(3,), (2,)])
        for name, (word, value) in product(self.unlimited, (("at", COUNT), ("above", COUNT - 1))):
            about = f"{name} = {value}, T = {COUNT}: detects a wrong comparison of the two."
            yield self.template(f"T_{word}_{name}", about, changed={name: float(value)}, turn=False)

    def attributes(self) -> Iterator[CaseTemplate]:
        """Yield nodes that omit one attribute, give it an unusual value, or omit all others."""
        optional = [item.name for item in self.operator.attributes if not item.required]
        if len(optional) == len(self.operator.attributes):
            about = "Every attribute omitted: detects wrong defaults in combination."
            yield self.template("defaults", about, attributes={})
        # The method `judged` creates a template, and each template takes the next of the operator's
        # settings. An unnecessary call would change the settings of all later cases.
        scaled = self.judged(self.combined((1e-10, 1, 1e10))) if optional else {}
        for name in optional:
            remaining = {key: value for key, value in self.ordinary.items() if key != name}
            about = f"{name} omitted: detects a wrong default."
            yield self.template(f"{name}_left_out", about, attributes=remaining)
            about = f"{name} omitted, tensors small and large: detects a slightly wrong default."
            yield self.template(
                f"{name}_left_out_scaled", about, attributes=remaining, count=1000, tensors=scaled
            )
            only = self.required | {name: self.ordinary[name]}
            about = f"Only {name} present: detects an attribute that has no effect without others."
            yield self.template(f"{name}_alone", about, attributes=only)
        for name, (least, largest) in self.limits.items():
            for word, value in (("least", least), ("largest", largest)):
                about = f"{name} = {value:g}: detects a limit that is wrongly excluded."
                yield self.template(f"{name}_{word}", about, changed={name: value})
        for name in self.each:
            numbers = tuple(self.within(name, fraction) for fraction in (0.25, 0.75, 0.5))
            about = f"{name} for each tensor: detects one value used for all, or a wrong order."
            shapes: Shapes = [(4,), (2, 3), (5,)]
            yield self.template(f"{name}_each", about, changed={name: numbers}, shapes=shapes)
            about = f"{name} for each, a double between floats: detects numbers assigned by type."
            types = {(tensor, 1): WIDE_TYPE for tensor in self.operator.tensors}
            yield self.template(
                f"{name}_each_type", about, changed={name: numbers}, shapes=[(5,)] * 3, types=types
            )
        for name, (word, value) in product(self.unlimited, (("zero", 0.0), ("large", 25.0))):
            about = f"{name} = {value:g}: detects clipping, replacement or an ignored value."
            yield self.early_or_late(f"{name}_{word}", about, {name: value})
        if self.unlimited:
            about = "Every attribute negative: detects values that are clipped or made positive."
            yield self.template("all_negative", about, changed=self.all_unlimited(-0.5))

    def all_unlimited(self, value: float) -> Attributes:
        """Return the attributes that have no limits, each set to ``value``."""
        return dict.fromkeys(self.unlimited, value)

    def early_or_late(self, name: str, about: str, changed: Attributes) -> CaseTemplate:
        """Return a template at the usual T.

        If an output is inconclusive at the usual T, the template has T = 0.
        """
        return self.judgeable(
            self.template(name, about, count=count, changed=changed) for count in (COUNT, 0)
        )

    def types(self) -> Iterator[CaseTemplate]:
        """Yield every mixture of element types."""
        about = "Everything in double: detects arithmetic or results in float32."
        yield self.template("double", about, wide=True)
        if self.unlimited:
            about = "In double, attributes below 0.5: detects 1 - attribute computed in float32."
            yield self.template(
                "double_below_half", about, changed=self.all_unlimited(0.2), wide=True
            )
        if len(self.required) < len(self.ordinary):
            about = "In double, without optional attributes: detects defaults stored as doubles."
            yield self.template(
                "double_defaults", about, wide=True, turn=False,
                attributes=self.required, tensors=self.combined((0.25, 1.0)),
            )  # fmt: skip
        if self.rate:
            about = f"in double, the tensors in float: detects outputs of {self.rate}'s type."
            yield self.template(f"{self.rate}_double", f"{self.rate} {about}", rate=WIDE_TYPE)
            about = (
                f"in float, the tensors in double: detects a step rounded to {self.rate}'s type."
            )
            yield self.template(f"{self.rate}_float", f"{self.rate} {about}", types=self.double)
        about = "A different tensor in double in each group: detects outputs of a wrong type."
        names = self.operator.tensors
        types = {(name, group): WIDE_TYPE for group, name in enumerate(names)}
        yield self.template("one_double_each", about, shapes=[(3,)] * len(names), types=types)
        zero = min(2, len(names) - 1) or 1
        still = {name: np.zeros(4) for name in names[:zero]}
        state = dict.fromkeys(names[zero:], WIDE_TYPE)
        if state:
            about = f"{' and '.join(still)} zero, the rest in double: detects results of one type."
            yield self.template("double_state", about, types=state, tensors=still)
        if self.stepped:
            about = f"All but {self.first} in double: detects arithmetic in {self.first}'s type."
            steps = dict.fromkeys(self.stepped, WIDE_TYPE)
            yield self.template(f"float_{self.first}", about, types=steps)
            if self.rate:
                name = f"float_{self.first}_double_{self.rate}"
                yield self.template(name, about, types=steps, rate=WIDE_TYPE, turn=False)
        about = "A double tensor between two floats: detects one type for the whole node."
        middle = {(name, 1): WIDE_TYPE for name in names}
        yield self.template("float_double_float", about, shapes=[(3,), (4,), (2,)], types=middle)

    def structures(self) -> Iterator[CaseTemplate]:
        """Yield nodes with various numbers and shapes of tensors."""
        about = "Tensors without elements: detects missing outputs."
        yield self.template("empty", about, shapes=[(0,)])
        about = "Rank 5: detects a limit on ranks."
        yield self.template("rank_5", about, shapes=[(2, 1, 3, 1, 2)])
        about = "Two tensors of the same shape: detects a wrong grouping of inputs."
        yield self.template("two_tensors", about, shapes=[(3,), (3,)])
        about = "Three tensors of different shapes, one empty: detects a wrong grouping of inputs."
        yield self.template("three_tensors", about, shapes=[(2, 2), (0, 3), ()])
        about = (
            "Eight tensors, including a scalar and single elements: detects a limit on their "
            "number, a wrong order, and added or removed dimensions."
        )
        shapes: Shapes = [(2,), (), (1, 3), (4,), (2, 2), (1,), (3, 1), (5,)]
        yield self.template("eight_tensors", about, shapes=shapes)
        if self.operator.scalars:
            names = " and ".join(scalar.name for scalar in self.operator.scalars)
            about = f"{names} of rank 1: detects outputs with an added or removed dimension."
            yield self.template("scalars_of_rank_1", about, rank=(1,), shapes=[(2, 2), ()])
        if len(self.operator.scalars) > 1:
            first, second = (scalar.name for scalar in self.operator.scalars[:2])
            for vector, scalar, pair_ranks in ((first, second, (1, 0)), (second, first, (0, 1))):
                about = f"{vector} of rank 1, {scalar} a scalar: detects a value that is not read."
                yield self.template(f"{vector}_of_rank_1", about, rank=pair_ranks, turn=False)
        if self.carried:
            about = "One double result of rank 2 for two tensors: detects a wrong type or shape."
            yield self.template("carried_rank_2", about, rank=(2,), wide=True, shapes=[(3,), (2,)])
        if not self.stepped:
            return
        about = (
            "A different tensor broadcast in each group, all in the last: detects outputs of its "
        )
        shapes, narrow = [(2, 3)] * (len(self.stepped) + 1), self.narrowed((2, 1), (1, 1))
        template = self.template(
            "broadcast", f"{about}shape, not of {self.first}'s.", shapes=shapes, narrow=narrow
        )
        yield template
        about = f"The same with a small {self.first}: detects wrong operands hidden by a large one."
        skipped = len(self.operator.scalars)
        firsts = [*template.inputs][skipped : skipped + len(shapes)]
        small = {first: np.float32(0.2) * np.asarray(template.inputs[first]) for first in firsts}
        name, inputs = f"broadcast_small_{self.first}", {**template.inputs, **small}
        yield replace(template, name=name, about=about, inputs=inputs)

    def narrowed(
        self, shape: tuple[int, ...], together: tuple[int, ...]
    ) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return shapes of operands that are broadcast, by operand and group.

        In each group, a different operand has ``shape``; in the last group, all operands have the
        shape ``together``.
        """
        narrow = {(name, group): shape for group, name in enumerate(self.stepped)}
        return narrow | {(name, len(self.stepped)): together for name in self.stepped}

    def zeros(self) -> Iterator[CaseTemplate]:
        """Yield operands that are zero, one by one and in combination."""
        about = "Each operand zero or not, in every combination: detects division by zero."
        yield self.template("zeros", about, tensors=self.combined((0, 1)))
        zero = np.zeros(4)
        small = np.array([1e-3, -1e-3, 1e-6, -1e-9])
        small_names = self.stepped[:1] or [self.first]
        about = f"All zero but a small {small_names[0]}: detects errors that larger steps hide."
        tensors = dict.fromkeys(self.operator.tensors, zero) | dict.fromkeys(small_names, small)
        if not self.operator.counts:
            yield self.template(f"small_{small_names[0]}", about, tensors=tensors)
            if len(self.required) < len(self.ordinary):
                name = f"small_{small_names[0]}_defaults"
                yield self.template(name, about, tensors=tensors, attributes=self.required)
        for count, setting in product((0, 1) if self.operator.counts else (), self.settings):
            make = partial(
                self.template, about=about, count=count, setting=setting, tensors=tensors
            )
            name = _name("small_step_T", count, *setting.values())
            yield from (make(name), make(f"{name}_defaults", attributes=self.required))
        if self.of_whole_tensors:
            about = (
                "In each group, a different tensor is zero: detects a nonzero norm of this tensor."
            )
            places = [(name, group) for group, name in enumerate(self.operator.tensors)]
            shapes, tensors = [(3,)] * len(places), dict.fromkeys(places, np.zeros(3))
            yield self.template("zero_tensors", about, shapes=shapes, tensors=tensors, turn=False)
        for name in self.operator.tensors:
            about = f"Only {name} is zero: detects a step that is skipped for it."
            yield self.template(f"{name}_zero", about, tensors={name: zero}, turn=False)
        about = (
            "In each group, a row and a column of a different tensor are zero: detects a sparse "
            "update, which skips them."
        )
        shape, slices = (3, 16), {}
        for group, name in enumerate(self.operator.tensors):
            slices[name, group] = self.tensor(name, group, shape).copy()
            slices[name, group][1], slices[name, group][:, 2] = 0, 0
        group_shapes = [shape] * len(slices)
        yield self.template("zero_slices", about, shapes=group_shapes, tensors=slices, turn=False)
        for name in self.nonnegative:
            about = f"{name} is negative, its new value is not: detects clipping of the input."
            ordinary = self.tensor(name, 0, (4,))
            yield self.judgeable(
                self.template(f"{name}_negative", about, tensors={name: share * ordinary})
                for share in (-0.1, -0.01, -0.001)
            )
        if self.rate:
            about = f"{self.rate} = 0: the terms it multiplies vanish, all others must not."
            yield self.template(f"zero_{self.rate}", about, rate_value=0.0)
            about = f"{self.rate} < 0: detects clipping."
            yield self.template(f"negative_{self.rate}", about, rate_value=-0.4)
        if self.rate and self.operator.counts:
            about = "R above T: detects R and T exchanged."
            yield self.template("large_R", about, count=1, rate_value=2.5)

    def magnitudes(self) -> Iterator[CaseTemplate]:
        """Yield values from subnormal to nearly overflowing, in all operands or in a single one."""
        scales = 10.0 ** np.array([-44, -40, -30, -20, -12, -8, -4, 4, 8, 12, 15, 18])
        tensors = {
            name: np.concatenate([self.tensor(name, 0, (3,)) * scale for scale in scales])
            for name in self.operator.tensors
        }
        about = "Tensors from subnormal to near overflow: detects a type of smaller range."
        yield self.template("orders", about, tensors=self.judged(tensors))
        about = "Each operand small, ordinary or large beside the others: detects absorption."
        tensors = self.combined((1e-10, 1, 1e10))
        yield self.template("orders_apart", about, tensors=self.judged(tensors))

    def cancellation(self) -> Iterator[CaseTemplate]:
        """Yield tensors whose updated values are nearly zero, because large numbers cancel."""
        if not self.elementwise:
            return
        about = (
            f"{self.first} nearly equals its change: detects errors that the usual relative "
            "tolerance accepts."
        )
        for dtype in self.operator.dtypes:
            types = dict.fromkeys(self.operator.tensors, dtype)
            name = f"cancellation_{dtype}"
            make = partial(self.template, name, about, types=types, rate=dtype, turn=False)
            x = np.zeros(4)
            for _ in range(60):
                x = x - derived_outputs(make(tensors={self.first: x}))[0].value.astype(float) / 2
            # If the cancellation were exact, the result would consist only of rounding errors.
            yield make(tensors={self.first: x * (1 + 1e-3)})

    def not_finite(self) -> Iterator[CaseTemplate]:
        """Yield NaN and infinity in every input."""
        if self.rate:
            about = f"{self.rate} = NaN: detects a replaced NaN."
            yield self.template(f"nan_{self.rate}", about, rate_value=np.nan)
            # With weights between 0 and 1, a reformulation may subtract infinity from itself.
            changed, setting = self.all_unlimited(-0.5), self.settings[-1]
            about = f"{self.rate} infinite: detects NaN where every reformulation is infinite."
            name = f"infinite_{self.rate}"
            yield self.template(name, about, rate_value=np.inf, changed=changed, setting=setting)
        if not self.elementwise:
            for special, value in product(self.operator.tensors, (np.nan, np.inf, -np.inf)):
                tensors = {name: self.tensor(name, 0, (5,)) for name in self.operator.tensors}
                tensors[special][2] = value
                about = f"{value} in {special}: detects results that drop it or spread it too far."
                yield self.template(_name(value, "in", special), about, tensors=tensors)
            return
        columns: dict[str, list[float]] = {name: [] for name in self.operator.tensors}
        for special in self.operator.tensors:
            for value in (np.nan, np.inf, -np.inf):
                if value > 0 or np.isnan(value) or special not in self.nonnegative:
                    for name, column in columns.items():
                        column.append(value if name == special else self.tensor(name, 0, (1,))[0])
        for name, column in columns.items():
            # The last elements of all tensors are finite; therefore, the last elements of the
            # result must also be finite.
            column.append(self.tensor(name, 0, (1,))[0])
        about = "NaN and infinity in each tensor: detects results that drop or spread them."
        tensors = {name: np.array(column) for name, column in columns.items()}
        yield self.template("not_finite", about, tensors=tensors)

    def wide_doubles(self) -> Iterator[CaseTemplate]:
        """Yield doubles that float32 cannot represent."""
        about = "Doubles that float32 cannot represent, including R: detects conversion to float32."
        tensors = self.judged(self.combined((16777217.0, 1 + 2**-40, 1e-60)), wide=True)
        yield self.template("wide_doubles", about, wide=True, rate_value=1 / 3, tensors=tensors)

    def large(self) -> Iterator[CaseTemplate]:
        """Yield tensors whose size is not a multiple of any block length or vector length."""
        for dtype, size in (("float32", _LARGE_SIZE), ("float64", 1009)):
            drawn = {name: self.drawn(name, (size,), dtype) for name in self.operator.tensors}
            about = f"{size} random elements: detects errors in the remainder of blocks or vectors."
            yield self.template(f"large_{dtype}", about, tensors=drawn, rate=dtype)

    def thresholds(self) -> Iterator[CaseTemplate]:
        """Yield templates in which tensors, attributes or results are equal or nearly equal."""
        powers = np.array([*product((0.5, 1.0, -2.0), repeat=len(self.operator.tensors))]).T
        even = {
            name: np.abs(column) if name in self.nonnegative else column
            for name, column in zip(self.operator.tensors, powers, strict=True)
        }
        for word, value in (("half", 0.5), ("two", 2.0)):
            about = f"Attributes {value}, tensors powers of two: detects wrong comparisons."
            name, changed = f"powers_of_two_{word}", self.all_unlimited(value)
            yield self.template(name, about, changed=changed, tensors=even, turn=False)
        if self.of_whole_tensors:
            about = "Tensors of increasing norm: detects a wrong comparison of a norm or sum."
            scales = 0.05 * 1.4 ** np.arange(14)
            tensors = {
                (name, group): scale * self.tensor(name, 0, (3,))
                for name, (group, scale) in product(self.operator.tensors, enumerate(scales))
            }
            shapes = [(3,)] * len(scales)
            yield self.template("rising_sizes", about, shapes=shapes, tensors=tensors, turn=False)
            for name in [
                tensor for tensor in self.operator.tensors if tensor not in self.nonnegative
            ]:
                negated = {name: -self.tensor(name, 0, (4,))}
                about = f"{name} negated: detects missing absolute values in a norm or sum."
                yield self.template(f"{name}_negated", about, tensors=negated, turn=False)

    def norms(self) -> Iterator[CaseTemplate]:
        """Yield templates for operators whose step depends on a function of all elements."""
        if not (self.of_whole_tensors and self.rate):
            return
        for special, others_small in product(self.operator.tensors, (False, True)):
            tensors = {
                name: self.tensor(name, 0, (4,))
                * (1 if (name == special) is others_small else 1e-3)
                for name in self.operator.tensors
            }
            words = "all_but_" if others_small else ""
            about = (
                f"Small elements in {words.replace('_', ' ')}{special}: detects a norm that is "
                "compared with a number other than zero."
            )
            yield self.template(f"norms_small_{words}{special}", about, tensors=tensors)
        # The distribution is so wide that all elements but a few hundred underflow to zero in
        # float32. A sum of zeros has no rounding error, so that a small error is detectable in
        # spite of the number of elements.
        drawn: dict[str, TemplateInput] = {
            name: RandomTensor(
                "lognormal",
                seed,
                (_LARGE_SIZE,),
                np.dtype("float32"),
                {"mean": -350.0, "scale": 82.0},
            )
            for seed, name in enumerate(self.operator.tensors, start=1)
        }
        about = f"Few of {_LARGE_SIZE} elements are nonzero: detects a slightly wrong norm."
        yield self.template("norms_large_sparse", about, tensors=drawn)

    def dimensions(self) -> Iterator[CaseTemplate]:
        """Yield templates that vary one dimension, whereas ``pairwise`` varies two at a time."""
        for shape in _SINGLE_SHAPES:
            about = f"One tensor of shape {list(shape)}: detects confusion with another shape."
            yield self.of_shapes(_name("shape", *shape or ("scalar",)), about, [shape])
        about = "Tensors around the lengths of vectors: detects a wrong last element."
        yield self.of_shapes("lengths", about, [(length,) for length in _LENGTHS])
        about = "Matrices as high or wide as tiles: detects a wrong last row or column."
        tiles: Shapes = [*((size, 3) for size in _SIZES), *((2, size) for size in _SIZES)]
        yield self.of_shapes("tiles", about, tiles)
        for number in _NUMBERS:
            about = f"{number} tensors: detects errors in the last tensor or after some number."
            shapes: Shapes = [(2,), (3,), (2, 2)] * (number // 3) + [(3,)] * (number % 3)
            yield self.of_shapes(f"tensors_{number}", about, shapes)
        narrow = [(full_shape, shape) for full_shape, shapes in _NARROW.items() for shape in shapes]
        for full_shape, shape in narrow if self.stepped else ():
            pair = f"{list(shape)} beside {list(full_shape)}"
            about = f"Operands of shape {pair}: detects broadcasting along a wrong axis."
            name = _name("broadcast", *shape or ("scalar",))
            shapes = [full_shape] * (len(self.stepped) + 1)
            yield self.template(name, about, shapes=shapes, narrow=self.narrowed(shape, shape))
        for special in self.operator.tensors:
            about = f"Doubles outside float32's range in {special}: detects conversion to float32."
            values = np.array(_BEYOND)
            tensors = {
                name: np.where(_BESIDE, self.tensor(name, 0, values.shape), 0.0)
                for name in self.operator.tensors
            }
            tensors[special] = np.abs(values) if special in self.nonnegative else values
            yield self.template(f"{special}_beyond", about, types=self.double, tensors=tensors)
        for word, value in (("zero", 0.0), ("negative", -_FAR_VALUE), ("large", _FAR_VALUE)):
            if self.rate:
                about = f"{self.rate} = {value:g}: detects clipping or a lost sign."
                yield self.template(f"{self.rate}_{word}", about, rate_value=value)
        scaled = self.judged(self.combined((1e-10, 1, 1e10)))
        for name in self.unlimited:
            for word, value in (("one", 1.0), ("minus_one", -1.0)):
                about = f"{name} = {value:g}: detects a value that is replaced or omitted."
                yield self.early_or_late(f"{name}_{word}", about, {name: value})
            for word, value in (("small", 1.0000047e-4), ("tiny", 1.0000047e-6)):
                about = f"{name} = {value:g}, tensors small and large: detects rounding to zero."
                yield self.template(f"{name}_{word}", about, changed={name: value}, tensors=scaled)

    def small_numbers(self) -> Iterator[CaseTemplate]:
        """Yield values that may be rounded to zero, or for which a series may be truncated."""
        make = partial(self.template, turn=False)
        scaled = self.judged(self.combined((1e-10, 1, 1e10)))
        for name in self.unlimited:
            about = f"{name} = 0, tensors small and large: detects a default in its place."
            yield make(f"{name}_zero_scaled", about, changed={name: 0.0}, tensors=scaled)
            about = f"{name} = 1e-08, tensors small and large: detects rounding to zero."
            yield make(f"{name}_tiniest", about, changed={name: 1e-8}, tensors=scaled)
            about = f"{name} = 1e-06, T = {_LATE}, in double: detects a series truncated too early."
            yield make(f"{name}_late", about, changed={name: 1e-6}, count=_LATE, wide=True)
        if self.operator.counts:
            about = "Attributes near 1, T = 8, in double: detects powers from a truncated series."
            near_one = self.all_unlimited(0.9999)
            yield make("T_8_near_one", about, count=8, changed=near_one, wide=True)
        about = "Everything tiny: detects results that are rounded to zero."
        rate = 1e-12 if self.carried else RATE
        tiny = {tensor: 1e-12 * self.tensor(tensor, 0, (4,)) for tensor in self.operator.tensors}
        least = {name: self.within(name, 0) for name in self.limits}
        yield make("all_tiny", about, changed=least, tensors=tiny, rate_value=rate)

    def joint_extremes(self) -> Iterator[CaseTemplate]:
        """Yield a small R beside large tensors, and negative attributes of several tensors."""
        make = partial(self.template, turn=False)
        if self.rate:
            scaled = self.judged(self.combined((1e-10, 1, 1e10)))
            for word, value in (("small", 1.0000047e-4), ("tiny", 1.0000047e-6)):
                about = (
                    f"{self.rate} = {value:g}, tensors small and large: detects rounding to zero."
                )
                yield make(f"{self.rate}_{word}", about, rate_value=value, tensors=scaled)
        if self.unlimited:
            about = (
                "Every attribute negative, tensors of three shapes: detects a sign that is lost "
                "beside other tensors."
            )
            changed = self.all_unlimited(-0.5)
            shapes: Shapes = [(3,), (2, 2), (4,)]
            yield make("all_negative_three_tensors", about, changed=changed, shapes=shapes)

    def of_shapes(self, name: str, about: str, shapes: Shapes) -> CaseTemplate:
        """Return a template with tensors of the given shapes; large tensors are random."""
        drawn: dict[tuple[str, int], TemplateInput] = {
            (tensor, group): self.drawn(tensor, shape, group=group)
            for tensor, (group, shape) in product(self.operator.tensors, enumerate(shapes))
            if math.prod(shape) > LITERAL
        }
        return self.template(name, about, shapes=shapes, tensors=drawn)


def beyond_pairs(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield the templates of the suite ``pairwise`` that do not combine pairs of dimensions.

    The templates vary the graph around the node, have extremes in one dimension, or contain models
    that a backend must reject.
    """
    author = _ConformanceTemplates(operator)
    yield from wirings(author, (2, 5), thorough=True)
    yield from extremes(author, thorough=True)
    yield from refusals(author)
    yield from type_refusals(author, thorough=True)
    yield from doubles(author, thorough=True)
    yield from special_values(author, thorough=True)
    yield from far_rank_templates(author)
    yield from slots(author, thorough=True)
