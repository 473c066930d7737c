"""The suite ``conformance``: for any operator, the cases that a wrong implementation fails.

The case templates follow from an operator's signature and formula alone: what it takes, in which
types and shapes, which attributes it has, and where its formula's values are delicate. They are
chosen to cover the space of inputs, not to match the list of known wrong implementations, which
``onnxopt audit`` then puts to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import (
    CaseTemplate,
    Given,
    TypedAttribute,
)
from onnxopt_cli.operators.operator import (
    Attribute,
    AttributeValue,
    Operator,
)
from onnxopt_cli.suites.case_template import (
    COUNT,
    RATE,
    WIDE,
    Attributes,
    Author,
    Shapes,
    derived_outputs,
)
from onnxopt_cli.suites.doubles import doubles
from onnxopt_cli.suites.extremes import extremes
from onnxopt_cli.suites.far_ranks import far_ranks
from onnxopt_cli.suites.pairwise import (
    AROUND_BLOCKS,
    LITERAL,
    whole_ranks,
)
from onnxopt_cli.suites.special_values import special_values
from onnxopt_cli.suites.wirings import wirings

_COUNTS = (0, 1, 2, 3, 10, 1000, 10**6, 2**31 + 5, -1)
_LARGE_SIZE = 100_003
#: One tensor of a node: of each rank, without and beyond what is computed at once.
_ALONE: Shapes = (
    (), (1,), (1, 1), (1, 1, 1), (2, 3, 2), (2, 1, 3, 2), (2, 1, 2, 3, 1, 2), (2, 1, 2, 1, 2, 1, 2),
    (2, 3, 1, 3, 2), (2, 1, 2, 2, 1, 2, 1, 2),
    (8,), (1024,), (300, 2), (2, 300), (128, 128), (2, 300, 2), (300, 2, 2),
)  # fmt: skip
_LENGTHS = (*range(2, 10), *AROUND_BLOCKS)
_SIZES = (32, 64, 128, 256)
_NUMBERS = (9, 16, 65)
#: Of an operand that broadcasts: to three rows and columns, and along the axes between others.
_NARROW: Mapping[tuple[int, ...], Shapes] = {
    (3, 3): ((), (1,), (3,), (1, 3), (3, 1)),
    (2, 3, 2): ((2, 1, 2), (1, 3, 1), (1, 1, 2), (2, 1, 1)),
    (1, 2, 1, 2, 2, 1, 1, 2): ((1, 1, 1, 2, 1, 1, 1, 2), (2, 1, 1, 2)),
}
_FAR_VALUE = 24.691358
#: A count by which something small is multiplied, and stays small.
_LATE = 900
#: What float32 cannot hold, and whether something ordinary stands beside it.
_BEYOND = (1e60, -1e60, 1e-60, -1e-60, 1e60, -1e-60)
_BESIDE = (True, True, True, True, False, False)
#: Of scalars, as far as they are forbidden.
_OTHER_TYPES = ("int32", "uint64", "int16", "uint32", "float32", "float64", "int64", "float16")
#: With more settings, case templates take turns.
_SETTINGS = 4


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
        partial(ranks, author),
        partial(each, author.magnitudes),
        author.cancellation,
        partial(each, author.not_finite),
        partial(each, author.wide_doubles),
        partial(each, author.large),
        partial(each, author.thresholds),
        author.norms,
        partial(whole_ranks, author),
        partial(refusals, author),
        author.dimensions,
        author.small_numbers,
        partial(wirings, author, (1, 3), thorough=False),
        partial(extremes, author, thorough=False),
        partial(type_refusals, author, thorough=False),
        partial(doubles, author, thorough=False),
        partial(special_values, author, thorough=False),
        partial(far_ranks, author),
    )
    return [template for section in sections for template in section()]


def _name(*words: object) -> str:
    """Return the name of a case template from its parts, numbers without a sign."""
    return "_".join(
        word if isinstance(word, str) else f"{word}".replace("-", "minus_") for word in words
    )


class _ConformanceTemplates(Author):
    """The case templates about one operator, section by section."""

    @property
    def of_whole_tensors(self) -> bool:
        """Whether results depend on all elements of a tensor, and on no other group."""
        return not (self.elementwise or self.carried)

    def in_each_setting(
        self, section: Callable[[], Iterator[CaseTemplate]]
    ) -> Iterator[CaseTemplate]:
        """Yield a section's templates, and each in all other settings, unless those are many."""
        for template in section():
            yield template
            own = {name: template.attributes[name] for name in self.settings[0]}
            words = "_".join(map(str, own.values()))
            if len(self.settings) > _SETTINGS or (words and template.name.endswith(words)):
                continue
            for setting in self.settings:
                if setting != own:
                    name = _name(template.name, *setting.values())
                    attributes = {**template.attributes, **setting}
                    yield replace(template, name=name, attributes=attributes)

    def counts(self) -> Iterator[CaseTemplate]:
        """Ask for every regime of T; for the two sides of its comparison in every mode."""
        if not self.operator.counts:
            return
        for count in _COUNTS:
            for setting in self.settings if count in (0, 1) else [next(self.turn)]:
                about = f"T = {count}: catches a wrong comparison, shift or power of T."
                name = _name("T", count, *setting.values())
                yield self.ask(name, about, count=count, setting=setting)
        near_one = self.clipped(float(np.nextafter(np.float32(1), np.float32(0))))
        for count in (2**24 + 1, 2**32 + 1, 2**32):
            about = (
                f"T = {count} with attributes just below 1, in double: catches a T that passes "
                "through float32 or 32 bits, and powers that lose digits."
            )
            name, turn = f"T_{count}_near_one", count != 2**32
            yield self.ask(name, about, count=count, given=near_one, turn=turn, wide=True)

        ones = self.clipped(1.0)
        for count in (0, -1):
            about = f"T = {count} with every attribute 1: catches a correction where none is due."
            yield self.ask(_name("T", count, "all_one"), about, count=count, given=ones)
        about = "T = 0 with two tensors: catches a count that changes between tensors."
        yield self.ask("T_0_two_tensors", about, count=0, shapes=[(3,), (2,)])
        for name, (word, value) in product(self.unlimited, (("at", COUNT), ("above", COUNT - 1))):
            about = f"{name} = {value}, T = {COUNT}: catches a wrong comparison of the two."
            yield self.ask(f"T_{word}_{name}", about, changed={name: float(value)}, turn=False)

    def attributes(self) -> Iterator[CaseTemplate]:
        """Ask for every attribute: left out, alone, zero, and beyond its usual range."""
        optional = [item.name for item in self.operator.attributes if not item.required]
        if len(optional) == len(self.operator.attributes):
            about = "Every attribute left out: catches wrong defaults together."
            yield self.ask("defaults", about, given={})
        # What takes a turn among settings here would change the setting of all later cases.
        scaled = self.judged(self.combined((1e-10, 1, 1e10))) if optional else {}
        for name in optional:
            others = {key: value for key, value in self.ordinary.items() if key != name}
            about = f"{name} left out: catches another default of it."
            yield self.ask(f"{name}_left_out", about, given=others)
            about = f"{name} left out, tensors small and large: catches a default near its own."
            yield self.ask(
                f"{name}_left_out_scaled", about, given=others, count=1000, tensors=scaled
            )
            alone = self.required | {name: self.ordinary[name]}
            about = f"Only {name} given: catches one that takes effect only beside others."
            yield self.ask(f"{name}_alone", about, given=alone)
        for name, (least, largest) in self.limits.items():
            for word, value in (("least", least), ("largest", largest)):
                about = f"{name} = {value:g}: catches a limit that is left out."
                yield self.ask(f"{name}_{word}", about, changed={name: value})
        for name in self.each:
            apart = tuple(self.within(name, fraction) for fraction in (0.25, 0.75, 0.5))
            about = f"{name} for each tensor: catches one for all, and another order."
            shapes: Shapes = [(4,), (2, 3), (5,)]
            yield self.ask(f"{name}_each", about, changed={name: apart}, shapes=shapes)
            about = f"{name} for each, a double between two floats: catches a count by types."
            types = {(tensor, 1): WIDE for tensor in self.operator.tensors}
            yield self.ask(
                f"{name}_each_type", about, changed={name: apart}, shapes=[(5,)] * 3, types=types
            )
        for name, (word, value) in product(self.unlimited, (("zero", 0.0), ("large", 25.0))):
            about = f"{name} = {value:g}: catches one that is clipped, replaced or ignored."
            yield self.early_or_late(f"{name}_{word}", about, {name: value})
        if self.unlimited:
            about = "Every attribute negative: catches values that are clipped or made positive."
            yield self.ask("all_negative", about, changed=self.all_unlimited(-0.5))

    def all_unlimited(self, value: float) -> Attributes:
        """Return one value for every attribute that has no limits."""
        return dict.fromkeys(self.unlimited, value)

    def early_or_late(self, name: str, about: str, changed: Attributes) -> CaseTemplate:
        """Ask at the usual T, or at T = 0 where nothing could be judged there."""
        return self.judgeable(
            self.ask(name, about, count=count, changed=changed) for count in (COUNT, 0)
        )

    def types(self) -> Iterator[CaseTemplate]:
        """Ask for every mixture of element types."""
        about = "Everything in double: catches arithmetic or results in float32."
        yield self.ask("double", about, wide=True)
        if self.unlimited:
            about = "In double, attributes below a half: catches 1 less one of them in float32."
            yield self.ask("double_below_half", about, changed=self.all_unlimited(0.2), wide=True)
        if len(self.required) < len(self.ordinary):
            about = "In double, with what can be left out left out: catches defaults with more "
            yield self.ask(
                "double_defaults", f"{about}digits than float32 has.", wide=True, turn=False,
                given=self.required, tensors=self.combined((0.25, 1.0)),
            )  # fmt: skip
        if self.rate:
            about = "in double, the tensors in float: catches outputs of another's type."
            yield self.ask(f"{self.rate}_double", f"{self.rate} {about}", rate=WIDE)
            about = "in float, the tensors in double: catches a step rounded to its type."
            yield self.ask(f"{self.rate}_float", f"{self.rate} {about}", types=self.double)
        about = "Another tensor in double in each group: catches outputs of another's type."
        names = self.operator.tensors
        apart = {(name, group): WIDE for group, name in enumerate(names)}
        yield self.ask("one_double_each", about, shapes=[(3,)] * len(names), types=apart)
        zero = min(2, len(names) - 1) or 1
        still = {name: np.zeros(4) for name in names[:zero]}
        state = dict.fromkeys(names[zero:], WIDE)
        if state:
            about = f"Zero {' and '.join(still)}, the rest in double: catches results of one type."
            yield self.ask("double_state", about, types=state, tensors=still)
        if self.stepped:
            about = f"All but {self.first} in double: catches arithmetic in {self.first}'s type."
            steps = dict.fromkeys(self.stepped, WIDE)
            yield self.ask(f"float_{self.first}", about, types=steps)
            if self.rate:
                name = f"float_{self.first}_double_{self.rate}"
                yield self.ask(name, about, types=steps, rate=WIDE, turn=False)
        about = "A double tensor between two floats: catches one type for the whole node."
        middle = {(name, 1): WIDE for name in names}
        yield self.ask("float_double_float", about, shapes=[(3,), (4,), (2,)], types=middle)

    def structures(self) -> Iterator[CaseTemplate]:
        """Ask for every number and shape of tensors."""
        about = "Tensors without elements: catches outputs left out."
        yield self.ask("empty", about, shapes=[(0,)])
        yield self.ask("rank_5", "Rank 5: catches a limit on ranks.", shapes=[(2, 1, 3, 1, 2)])
        about = "Two tensors of one shape: catches a wrong grouping."
        yield self.ask("two_tensors", about, shapes=[(3,), (3,)])
        about = "Three tensors of unlike shapes, one empty: catches a wrong grouping."
        yield self.ask("three_tensors", about, shapes=[(2, 2), (0, 3), ()])
        about = (
            "Eight tensors, a scalar and one element among them: catches a limit on their number, "
            "a wrong order, and dimensions lost or gained."
        )
        shapes: Shapes = [(2,), (), (1, 3), (4,), (2, 2), (1,), (3, 1), (5,)]
        yield self.ask("eight_tensors", about, shapes=shapes)
        if self.operator.scalars:
            names = " and ".join(scalar.name for scalar in self.operator.scalars)
            about = f"{names} of rank 1: catches outputs that gain or lose a dimension."
            yield self.ask("scalars_of_rank_1", about, rank=(1,), shapes=[(2, 2), ()])
        if len(self.operator.scalars) > 1:
            first, second = (scalar.name for scalar in self.operator.scalars[:2])
            for one, other, ranks_of_both in ((first, second, (1, 0)), (second, first, (0, 1))):
                about = f"{one} of rank 1, {other} a scalar: catches one that is not read then."
                yield self.ask(f"{one}_of_rank_1", about, rank=ranks_of_both, turn=False)
        if self.carried:
            about = "One double result of rank 2 for two tensors: catches another type and shape."
            yield self.ask("carried_rank_2", about, rank=(2,), wide=True, shapes=[(3,), (2,)])
        if not self.stepped:
            return
        about = "Another tensor broadcast in each group, all in the last: catches outputs of its "
        shapes, narrow = [(2, 3)] * (len(self.stepped) + 1), self.narrowed((2, 1), (1, 1))
        template = self.ask(
            "broadcast", f"{about}shape, not of {self.first}'s.", shapes=shapes, narrow=narrow
        )
        yield template
        about = (
            f"The same with a small {self.first}: catches wrong operands that a large one hides."
        )
        skipped = len(self.operator.scalars)
        firsts = [*template.inputs][skipped : skipped + len(shapes)]
        small = {first: np.float32(0.2) * np.asarray(template.inputs[first]) for first in firsts}
        name, inputs = f"broadcast_small_{self.first}", {**template.inputs, **small}
        yield replace(template, name=name, about=about, inputs=inputs)

    def narrowed(
        self, shape: tuple[int, ...], together: tuple[int, ...]
    ) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return shapes of tensors that broadcast: another one in each group, all in the last."""
        narrow = {(name, group): shape for group, name in enumerate(self.stepped)}
        return narrow | {(name, len(self.stepped)): together for name in self.stepped}

    def zeros(self) -> Iterator[CaseTemplate]:
        """Ask for what happens where operands vanish."""
        about = "Each operand zero or not, in every combination: catches divisions by zero and "
        yield self.ask("zeros", f"{about}steps that need one.", tensors=self.combined((0, 1)))
        zero = np.zeros(4)
        small = np.array([1e-3, -1e-3, 1e-6, -1e-9])
        small_names = self.stepped[:1] or [self.first]
        about = f"All zero but a small {small_names[0]}: catches what a step of order 1 hides."
        tensors = dict.fromkeys(self.operator.tensors, zero) | dict.fromkeys(small_names, small)
        if not self.operator.counts:
            yield self.ask(f"small_{small_names[0]}", about, tensors=tensors)
            if len(self.required) < len(self.ordinary):
                name = f"small_{small_names[0]}_defaults"
                yield self.ask(name, about, tensors=tensors, given=self.required)
        for count, setting in product((0, 1) if self.operator.counts else (), self.settings):
            ask = partial(self.ask, about=about, count=count, setting=setting, tensors=tensors)
            name = _name("small_step_T", count, *setting.values())
            yield from (ask(name), ask(f"{name}_defaults", given=self.required))
        if self.of_whole_tensors:
            about = (
                "Another tensor zero in each group: catches norms of nothing that are something."
            )
            places = [(name, group) for group, name in enumerate(self.operator.tensors)]
            shapes, tensors = [(3,)] * len(places), dict.fromkeys(places, np.zeros(3))
            yield self.ask("zero_tensors", about, shapes=shapes, tensors=tensors, turn=False)
        for name in self.operator.tensors:
            about = f"{name} is zero, and nothing else: catches a step that is left out for it."
            yield self.ask(f"{name}_zero", about, tensors={name: zero}, turn=False)
        for name in self.nonnegative:
            about = f"{name} is negative, what comes of it is not: catches one that is clipped."
            ordinary = self.tensor(name, 0, (4,))
            yield self.judgeable(
                self.ask(f"{name}_negative", about, tensors={name: share * ordinary})
                for share in (-0.1, -0.01, -0.001)
            )
        if self.rate:
            about = f"{self.rate} = 0: what it multiplies vanishes, the rest must not."
            yield self.ask(f"zero_{self.rate}", about, rate_value=0.0)
            about = f"{self.rate} < 0: catches one that is clipped."
            yield self.ask(f"negative_{self.rate}", about, rate_value=-0.4)
        if self.rate and self.operator.counts:
            about = "R above T: catches an R that takes T's place."
            yield self.ask("large_R", about, count=1, rate_value=2.5)

    def magnitudes(self) -> Iterator[CaseTemplate]:
        """Ask for values from subnormal to near overflow, together and apart."""
        scales = 10.0 ** np.array([-44, -40, -30, -20, -12, -8, -4, 4, 8, 12, 15, 18])
        tensors = {
            name: np.concatenate([self.tensor(name, 0, (3,)) * scale for scale in scales])
            for name in self.operator.tensors
        }
        about = "Tensors from subnormal to near overflow: catches a narrower range of the type."
        yield self.ask("orders", about, tensors=self.judged(tensors))
        about = "Each operand small, ordinary or large beside the others: catches absorption."
        tensors = self.combined((1e-10, 1, 1e10))
        yield self.ask("orders_apart", about, tensors=self.judged(tensors))

    def cancellation(self) -> Iterator[CaseTemplate]:
        """Ask for a new X that is nearly zero, the difference of equal numbers."""
        if not self.elementwise:
            return
        about = (
            f"{self.first} nearly equals its change: catches what the usual relative tolerance "
            "cannot see."
        )
        for dtype in self.operator.dtypes:
            types = dict.fromkeys(self.operator.tensors, dtype)
            name = f"cancellation_{dtype}"
            ask = partial(self.ask, name, about, types=types, rate=dtype, turn=False)
            x = np.zeros(4)
            for _ in range(60):
                x = x - derived_outputs(ask(tensors={self.first: x}))[0].value.astype(float) / 2
            # At exact cancellation nothing but rounding would be left to judge.
            yield ask(tensors={self.first: x * (1 + 1e-3)})

    def not_finite(self) -> Iterator[CaseTemplate]:
        """Ask for NaN and infinity in every input."""
        if self.rate:
            about = f"{self.rate} = NaN: catches one that is replaced."
            yield self.ask(f"nan_{self.rate}", about, rate_value=np.nan)
            # With weights between 0 and 1, right forms subtract infinity from itself.
            changed, setting = self.all_unlimited(-0.5), self.settings[-1]
            about = f"{self.rate} infinite: catches NaN where every right form is infinite."
            name = f"infinite_{self.rate}"
            yield self.ask(name, about, rate_value=np.inf, changed=changed, setting=setting)
        if not self.elementwise:
            for special, value in product(self.operator.tensors, (np.nan, np.inf, -np.inf)):
                tensors = {name: self.tensor(name, 0, (5,)) for name in self.operator.tensors}
                tensors[special][2] = value
                about = f"{value} in {special}: catches results that hide it, or spread it too far."
                yield self.ask(_name(value, "in", special), about, tensors=tensors)
            return
        columns: dict[str, list[float]] = {name: [] for name in self.operator.tensors}
        for special in self.operator.tensors:
            for value in (np.nan, np.inf, -np.inf):
                if value > 0 or np.isnan(value) or special not in self.nonnegative:
                    for name, column in columns.items():
                        column.append(value if name == special else self.tensor(name, 0, (1,))[0])
        for name, column in columns.items():
            # One element without, to which nothing may spread.
            column.append(self.tensor(name, 0, (1,))[0])
        about = "NaN and infinity in each tensor: catches results that hide or spread them."
        tensors = {name: np.array(column) for name, column in columns.items()}
        yield self.ask("not_finite", about, tensors=tensors)

    def wide_doubles(self) -> Iterator[CaseTemplate]:
        """Ask for doubles that float32 cannot hold."""
        about = "Doubles that float32 cannot hold, R among them: catches a detour through it."
        tensors = self.judged(self.combined((16777217.0, 1 + 2**-40, 1e-60)), wide=True)
        yield self.ask("wide_doubles", about, wide=True, rate_value=1 / 3, tensors=tensors)

    def large(self) -> Iterator[CaseTemplate]:
        """Ask for tensors that are computed in blocks and vectors, with a rest."""
        for dtype, size in (("float32", _LARGE_SIZE), ("float64", 1009)):
            drawn = {name: self.drawn(name, (size,), dtype) for name in self.operator.tensors}
            about = f"{size} random elements: catches blocks and vectors that treat the rest wrong."
            yield self.ask(f"large_{dtype}", about, tensors=drawn, rate=dtype)

    def thresholds(self) -> Iterator[CaseTemplate]:
        """Ask for operands, attributes and what comes of them that are equal or nearly so."""
        powers = np.array([*product((0.5, 1.0, -2.0), repeat=len(self.operator.tensors))]).T
        even = {
            name: np.abs(column) if name in self.nonnegative else column
            for name, column in zip(self.operator.tensors, powers, strict=True)
        }
        for word, value in (("half", 0.5), ("two", 2.0)):
            about = f"Attributes {value}, tensors powers of two: catches wrong comparisons of any."
            name, changed = f"powers_of_two_{word}", self.all_unlimited(value)
            yield self.ask(name, about, changed=changed, tensors=even, turn=False)
        if self.of_whole_tensors:
            about = "Tensors of rising size: catches a wrong comparison of what comes of them all."
            scales = 0.05 * 1.4 ** np.arange(14)
            tensors = {
                (name, group): scale * self.tensor(name, 0, (3,))
                for name, (group, scale) in product(self.operator.tensors, enumerate(scales))
            }
            shapes = [(3,)] * len(scales)
            yield self.ask("rising_sizes", about, shapes=shapes, tensors=tensors, turn=False)
            for name in [
                tensor for tensor in self.operator.tensors if tensor not in self.nonnegative
            ]:
                negated = {name: -self.tensor(name, 0, (4,))}
                about = f"{name} negated: catches magnitudes that are left out of a whole tensor's."
                yield self.ask(f"{name}_negated", about, tensors=negated, turn=False)

    def norms(self) -> Iterator[CaseTemplate]:
        """Ask for steps whose length depends on all elements, as by a norm."""
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
                f"Small elements in {words.replace('_', ' ')}{special}: catches a norm that is "
                "compared with something else than zero."
            )
            yield self.ask(f"norms_small_{words}{special}", about, tensors=tensors)
        # So wide a distribution that float32 takes all but some hundred draws for zero. A sum of
        # zeros rounds nothing, so that a small error is seen in spite of the number of elements.
        drawn: dict[str, Given] = {
            name: RandomTensor(
                "lognormal",
                seed,
                (_LARGE_SIZE,),
                np.dtype("float32"),
                {"mean": -350.0, "scale": 82.0},
            )
            for seed, name in enumerate(self.operator.tensors, start=1)
        }
        about = f"Few of {_LARGE_SIZE} elements are not zero: catches a norm that is slightly off."
        yield self.ask("norms_large_sparse", about, tensors=drawn)

    def dimensions(self) -> Iterator[CaseTemplate]:
        """Yield templates for values of each dimension alone; ``pairwise`` varies two at once."""
        for shape in _ALONE:
            about = f"One tensor of shape {list(shape)}: catches one that is taken for another."
            yield self.of_shapes(_name("shape", *shape or ("scalar",)), about, [shape])
        about = "Tensors around the lengths of vectors: catches another last element."
        yield self.of_shapes("lengths", about, [(length,) for length in _LENGTHS])
        about = "Matrices as high or wide as tiles: catches another last row or column."
        tiles: Shapes = [*((size, 3) for size in _SIZES), *((2, size) for size in _SIZES)]
        yield self.of_shapes("tiles", about, tiles)
        for number in _NUMBERS:
            about = f"{number} tensors: catches those that come after some number, and the last."
            shapes: Shapes = [(2,), (3,), (2, 2)] * (number // 3) + [(3,)] * (number % 3)
            yield self.of_shapes(f"tensors_{number}", about, shapes)
        narrow = [(whole, shape) for whole, shapes in _NARROW.items() for shape in shapes]
        for whole, shape in narrow if self.stepped else ():
            beside = f"{list(shape)} beside {list(whole)}"
            about = f"Operands of shape {beside}: catches another direction."
            name = _name("broadcast", *shape or ("scalar",))
            shapes = [whole] * (len(self.stepped) + 1)
            yield self.ask(name, about, shapes=shapes, narrow=self.narrowed(shape, shape))
        for special in self.operator.tensors:
            about = f"Doubles far beyond float32 in {special}: catches one that comes through it."
            values = np.array(_BEYOND)
            tensors = {
                name: np.where(_BESIDE, self.tensor(name, 0, values.shape), 0.0)
                for name in self.operator.tensors
            }
            tensors[special] = np.abs(values) if special in self.nonnegative else values
            yield self.ask(f"{special}_beyond", about, types=self.double, tensors=tensors)
        for word, value in (("zero", 0.0), ("negative", -_FAR_VALUE), ("large", _FAR_VALUE)):
            if self.rate:
                about = f"{self.rate} = {value:g}: catches one that is clipped, or its sign lost."
                yield self.ask(f"{self.rate}_{word}", about, rate_value=value)
        scaled = self.judged(self.combined((1e-10, 1, 1e10)))
        for name in self.unlimited:
            for word, value in (("one", 1.0), ("minus_one", -1.0)):
                about = f"{name} = {value:g}: catches one that is taken for ordinary, or left out."
                yield self.early_or_late(f"{name}_{word}", about, {name: value})
            for word, value in (("small", 1.0000047e-4), ("tiny", 1.0000047e-6)):
                about = f"{name} = {value:g}, tensors small and large: catches one taken for zero."
                yield self.ask(f"{name}_{word}", about, changed={name: value}, tensors=scaled)

    def small_numbers(self) -> Iterator[CaseTemplate]:
        """Ask for what is so small that a kernel may take it for zero, or for all of a series."""
        ask = partial(self.ask, turn=False)
        scaled = self.judged(self.combined((1e-10, 1, 1e10)))
        for name in self.unlimited:
            about = f"{name} = 0, tensors small and large: catches a default in its place."
            yield ask(f"{name}_zero_scaled", about, changed={name: 0.0}, tensors=scaled)
            about = f"{name} = 1e-08, tensors small and large: catches one taken for zero."
            yield ask(f"{name}_tiniest", about, changed={name: 1e-8}, tensors=scaled)
            about = f"{name} = 1e-06, T = {_LATE}, in double: catches a series that ends too early."
            yield ask(f"{name}_late", about, changed={name: 1e-6}, count=_LATE, wide=True)
        if self.operator.counts:
            about = "Attributes near 1, T = 8, in double: catches powers by the first of a series."
            near_one = self.all_unlimited(0.9999)
            yield ask("T_8_near_one", about, count=8, changed=near_one, wide=True)
        about = "Everything tiny: catches results that are taken for zero."
        rate = 1e-12 if self.carried else RATE
        tiny = {tensor: 1e-12 * self.tensor(tensor, 0, (4,)) for tensor in self.operator.tensors}
        least = {name: self.within(name, 0) for name in self.limits}
        yield ask("all_tiny", about, changed=least, tensors=tiny, rate_value=rate)

    def of_shapes(self, name: str, about: str, shapes: Shapes) -> CaseTemplate:
        """Ask for tensors of these shapes, random ones where they are large."""
        drawn: dict[tuple[str, int], Given] = {
            (tensor, group): self.drawn(tensor, shape, group=group)
            for tensor, (group, shape) in product(self.operator.tensors, enumerate(shapes))
            if math.prod(shape) > LITERAL
        }
        return self.ask(name, about, shapes=shapes, tensors=drawn)


def ranks(author: Author) -> Iterator[CaseTemplate]:
    """Ask for what is next to a rank among the elements, where an attribute may choose one."""
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
    for name, (word, fraction, values, what) in product(author.limits, layers):
        about = f"{what}: catches another rank, and another comparison with it."
        zero = dict.fromkeys(author.operator.tensors, np.zeros(len(values)))
        changed = {name: author.within(name, fraction)}
        tensors = zero | {author.first: np.array(values, float)}
        yield author.ask(f"{name}_{word}", about, changed=changed, tensors=tensors)
    for name in author.limits:
        about = "Equal doubles at a fractional rank: catches weights that do not add up to 1."
        equal = dict.fromkeys(author.operator.tensors, np.zeros(4)) | {
            author.first: np.full(4, 0.1)
        }
        changed = {name: author.within(name, 0.06)}
        yield author.ask(f"{name}_ties_double", about, changed=changed, tensors=equal, wide=True)


def refusals(author: Author) -> Iterator[CaseTemplate]:
    """Ask for what must be refused."""
    ordinary = author.ask("refused", "", shapes=[(3,)])
    pair = author.ask("refused", "", shapes=[(3,), (3,)], turn=False)
    given = dict(ordinary.attributes)
    refused = partial(_refused, ordinary)
    yield from _shape_refusals(author, ordinary, pair)
    for name, limits in author.limits.items():
        low, high = (max(0.5, abs(limit) / 1000) for limit in limits)
        beyond = {"low": limits[0] - low, "high": limits[1] + high, "nan": math.nan}
        for word, value in beyond.items():
            about = f"{name} = {value:g}: it must not be clipped or replaced."
            attributes = given | {name: (value,) if name in author.each else value}
            yield refused(f"refuses_{word}_{name}", about, attributes=attributes)
        if name in author.each:
            about = f"{name} of the second tensor is too large: every one must be looked at."
            attributes = given | {name: (limits[1], beyond["high"])}
            yield _refused(pair, f"refuses_second_high_{name}", about, attributes=attributes)
    for name in author.each:
        number = author.within(name, 0.5)
        about = f"{name} has two numbers for one tensor: none of them must be made up."
        attributes = given | {name: (number, number)}
        yield refused(f"refuses_two_of_{name}", about, attributes=attributes)
    for name, right in author.settings[0].items():
        about = f"{name} has a value that is not allowed: it must not pass for another."
        wrong = {
            "unknown": "bogus", "longer": f"{right}s", "capital": right.capitalize(),
            "empty": "", "shorter": right[:-1], "initial": right[0], "upper": right.upper(),
            "space_before": f" {right}", "space_after": f"{right} ",
        }  # fmt: skip
        for word, text in wrong.items():
            attributes = given | {name: text}
            yield refused(f"refuses_{word}_{name}", about, attributes=attributes)
    for item in author.operator.attributes:
        if item.required:
            about = f"{item.name} is missing and has no default: none must be made up."
            others = {name: it for name, it in given.items() if name != item.name}
            yield refused(f"refuses_no_{item.name}", about, attributes=others)


def beyond_pairs(operator: Operator) -> Iterator[CaseTemplate]:
    """Yield what no pair of dimensions asks: the graph, single extremes, and refusals."""
    author = _ConformanceTemplates(operator)
    yield from wirings(author, (2, 5), thorough=True)
    yield from extremes(author, thorough=True)
    yield from refusals(author)
    yield from type_refusals(author, thorough=True)
    yield from doubles(author, thorough=True)
    yield from special_values(author, thorough=True)
    yield from far_ranks(author)


def type_refusals(author: Author, *, thorough: bool) -> Iterator[CaseTemplate]:
    """Ask for what the signature forbids in types, numbers and names.

    Args:
        author: of the operator.
        thorough: whether every type is asked of every tensor, or one of each.
    """
    ordinary = author.ask("refused", "", shapes=[(3,)], turn=False)
    yield from _attribute_refusals(author, ordinary)
    yield from _input_refusals(author, ordinary, thorough=thorough)
    yield from _number_refusals(author, ordinary)


def _attribute_refusals(author: Author, ordinary: CaseTemplate) -> Iterator[CaseTemplate]:
    given, refused = dict(ordinary.attributes), partial(_refused, ordinary)
    for word in ("unknown", f"{(author.numeric or ['rate'])[0]}_2"):
        about = f"An attribute {word}, which the operator does not have: it must not be ignored."
        yield refused(f"refuses_attribute_{word}", about, attributes=given | {word: 0.5})
    for item in author.operator.attributes:
        about = f"{item.name} is of another type: it must not be converted."
        wrong: AttributeValue = 1.0 if item.choices else "half"
        yield refused(f"refuses_type_of_{item.name}", about, attributes=given | {item.name: wrong})
        for word, other in _other_types(item):
            about = f"{item.name} is an attribute of type {word}: it must not be converted."
            name = f"refuses_{word.lower()}_{item.name}"
            yield refused(name, about, attributes=given | {item.name: other})
        if not item.each and not item.choices:
            two = given | {item.name: (0.5, 0.25)}
            about = f"{item.name} is a list: none of its numbers must be chosen."
            yield refused(f"refuses_list_{item.name}", about, attributes=two)


def _other_types(item: Attribute) -> Iterator[tuple[str, Any]]:
    """Yield types that an attribute does not have, each with a value of it."""
    if item.choices:
        yield "STRINGS", TypedAttribute("STRINGS", (item.choices[0],))
        return
    yield "INT", TypedAttribute("INT", 1)
    if item.each:
        yield "FLOAT", TypedAttribute("FLOAT", 50.0)
        yield "INTS", TypedAttribute("INTS", (50,))


def _input_refusals(
    author: Author, ordinary: CaseTemplate, *, thorough: bool
) -> Iterator[CaseTemplate]:
    operator, inputs = author.operator, ordinary.inputs
    refused = partial(_refused, ordinary)
    for scalar in operator.scalars:
        value = np.asarray(inputs[scalar.name])
        for dtype in [type_name for type_name in _OTHER_TYPES if type_name not in scalar.dtypes]:
            about = f"{scalar.name} is of type {dtype}: it must not be converted."
            other = {**inputs, scalar.name: np.maximum(value, 1).astype(dtype)}
            yield refused(f"refuses_{dtype}_{scalar.name}", about, inputs=other)
        about = f"{scalar.name} has no element: none must be made up."
        none = {**inputs, scalar.name: np.zeros((0,), value.dtype)}
        yield refused(f"refuses_no_{scalar.name}", about, inputs=none)
    forbidden = [name for name in ("float16", "int32", "int64") if name not in operator.dtypes]
    for place, tensor in enumerate(operator.tensors):
        first = place % max(len(forbidden), 1)
        for dtype in forbidden if thorough else forbidden[first : first + 1]:
            about = f"{tensor} is of type {dtype}: it must not be converted."
            other = {**inputs, tensor: np.asarray(inputs[tensor]).astype(dtype)}
            yield refused(f"refuses_{dtype}_{tensor}", about, inputs=other)


def _number_refusals(author: Author, ordinary: CaseTemplate) -> Iterator[CaseTemplate]:
    operator = author.operator
    pair = author.ask("refused", "", shapes=[(3,), (3,)], turn=False)
    more = {f"left_over_{tensor}": np.full(3, 0.5, np.float32) for tensor in operator.tensors[1:]}
    for number in range(1, 1 + len(more)):
        some = dict([*more.items()][:number])
        about = f"{number} more inputs than the operator takes: none must be ignored."
        inputs = {**ordinary.inputs, **some}
        yield _refused(ordinary, f"refuses_left_over_{number}", about, inputs=inputs)
        about = f"{number} more inputs than two tensors take: none must be ignored."
        inputs = {**pair.inputs, **some}
        yield _refused(pair, f"refuses_left_over_{number}_of_two", about, inputs=inputs)
    if operator.scalars:
        about = "No tensor at all: it must be refused."
        alone = {scalar.name: ordinary.inputs[scalar.name] for scalar in operator.scalars}
        yield _refused(ordinary, "refuses_no_tensors", about, inputs=alone)
    third = author.ask("refused", "", shapes=[(3,), (3,), (3,)], turn=False)
    for name, (word, count) in product(author.each, (("two", 2), ("four", 4))):
        about = f"{name} has {word} numbers for three tensors: none must be made up or lost."
        attributes = dict(third.attributes) | {name: (author.within(name, 0.5),) * count}
        yield _refused(third, f"refuses_{word}_of_{name}_for_three", about, attributes=attributes)


def _shape_refusals(
    author: Author, ordinary: CaseTemplate, pair: CaseTemplate
) -> Iterator[CaseTemplate]:
    inputs = ordinary.inputs
    if author.stepped:
        first, last, (*_, second) = author.first, author.stepped[-1], pair.inputs
        wide, higher = (np.full(shape, 0.5, np.float32) for shape in ((2, 3), (1, 3)))
        short = {name: value for name, value in inputs.items() if name != last}
        about = f"{last} is missing: it must not be made up."
        yield _refused(ordinary, "refuses_short", about, inputs=short)
        about = f"{last} would enlarge {first}: {first}'s shape must not change."
        yield _refused(ordinary, "refuses_enlarging", about, inputs={**inputs, last: wide})
        about = f"{last} has a dimension more than {first}, of one: {first} must not get it."
        yield _refused(ordinary, "refuses_rank", about, inputs={**inputs, last: higher})
        about = f"{second} would enlarge {first}2: every tensor must be looked at."
        enlarged = {**pair.inputs, second: wide}
        yield _refused(pair, "refuses_enlarging_second", about, inputs=enlarged)
    for scalar in author.operator.scalars:
        about = f"{scalar.name} has two elements: none of them must be chosen."
        two = {**inputs, scalar.name: np.resize(np.asarray(inputs[scalar.name]), 2)}
        yield _refused(ordinary, f"refuses_two_{scalar.name}", about, inputs=two)


def _refused(template: CaseTemplate, name: str, about: str, **changed: Any) -> CaseTemplate:
    tags = ("conformance", "refusal")
    return replace(template, name=name, about=about, tags=tags, rejects=True, **changed)
