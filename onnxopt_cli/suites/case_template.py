"""Case templates about an operator of which only what matters is said, the rest being ordinary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import cycle, product
from typing import Any

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, Given
from onnxopt_cli.core.text import exception_text
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import DerivedOutput, bound
from onnxopt_cli.interpret.evaluate import WIDE as WIDEST
from onnxopt_cli.interpret.evaluate import is_elementwise, nonnegative_tensors
from onnxopt_cli.interpret.vocabulary import Joining
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes
from onnxopt_cli.operators.call import (
    Call,
    bind,
    complete_attributes,
)
from onnxopt_cli.operators.operator import AttributeValue, Operator
from onnxopt_cli.operators.operator_file import fault_in
from onnxopt_cli.operators.rewrite import Formula, rewrite

Attributes = Mapping[str, AttributeValue]
Shapes = Sequence[tuple[int, ...]]

#: T and R of a case template that says none, and the type that is wider than the usual one.
COUNT = 3
RATE = 0.4
WIDE = "float64"
# How often a formula is called to see whether it always returns the same.
_CALLS = 20

# Short decimals without a special value among them, one row a tensor of a group.
_ROWS = (
    (1.5, -0.7, 0.3, 2.25, -1.1),
    (-0.9, 0.4, 1.1, -0.35, 0.6),
    (0.2, -0.6, 0.5, 1.3, -0.15),
    (0.8, 1.7, 0.25, 0.06, 0.45),
)
# Values of the numeric attributes, in their order: below one, unlike each other and any default.
_ORDINARY = (0.8, 0.7, 0.05, 0.3, 0.2)


class Author:
    """Writes case templates about one operator."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.numeric = [item.name for item in operator.attributes if not item.choices]
        self.limits = {item.name: item.limits for item in operator.attributes if item.limits}
        self.unlimited = [name for name in self.numeric if name not in self.limits]
        self.each = [item.name for item in operator.attributes if item.each]
        self.ordinary: dict[str, AttributeValue] = {
            name: self.within(name, fraction)
            for name, fraction in zip(self.numeric, cycle(_ORDINARY), strict=False)
        }
        required = {item.name for item in operator.attributes if item.required}
        self.required = {name: it for name, it in self.ordinary.items() if name in required}
        self.settings = _settings(operator)
        self.turn = cycle(self.settings)
        self.double = dict.fromkeys(operator.tensors, WIDE)
        floats = (item.name for item in operator.scalars if "int64" not in item.dtypes)
        self.rate = next(floats, "")
        self.carried = any(map(operator.carries, operator.outputs))
        self.elementwise = is_elementwise(operator)
        self.nonnegative = nonnegative_tensors(operator)
        self.first = operator.tensors[0]
        self.stepped = [item for item in operator.tensors if item != self.first]

    def within(self, name: str, fraction: float) -> float:
        """Return a value of an attribute that lies so far between its limits."""
        least, largest = self.limits.get(name, (0.0, 1.0))
        return least + (largest - least) * fraction

    def clipped(self, value: float) -> dict[str, float]:
        """Return a value for every numeric attribute, or the nearest that it may have."""
        limits = {name: self.limits.get(name, (value, value)) for name in self.numeric}
        return {name: min(max(value, least), largest) for name, (least, largest) in limits.items()}

    def around(self, name: str, fraction: float) -> list[float]:
        """Return such a value as float32, between its neighbours within the limits."""
        middle = np.float32(self.within(name, fraction))
        ends = map(np.float32, self.limits.get(name, (0.0, 1.0)))
        below, above = (np.nextafter(middle, end) for end in ends)
        return [float(below), float(middle), float(above)]

    def tensor(self, name: str, group: int, shape: tuple[int, ...]) -> Array:
        """Return ordinary doubles for a tensor, other ones in each group."""
        row = np.array(_ROWS[self.operator.tensors.index(name) % len(_ROWS)])
        values = np.resize(np.roll(row, -group), shape) * (1 + group)
        return np.abs(values) if name in self.nonnegative else values

    def drawn(
        self, name: str, shape: tuple[int, ...], dtype: str = "float32", group: int = 0
    ) -> RandomTensor:
        """Return random elements for a tensor, other ones in each group."""
        seed = 1 + self.operator.tensors.index(name) + group * len(self.operator.tensors)
        if name in self.nonnegative:
            return RandomTensor("uniform", seed, shape, np.dtype(dtype), {"low": 0.01, "high": 4.0})
        return RandomTensor("normal", seed, shape, np.dtype(dtype))

    def combined(self, scales: Sequence[float]) -> dict[str, Array]:
        """Return tensors in which each ordinary operand is scaled by each number, in all ways."""
        names = self.operator.tensors
        columns = np.array([*product(scales, repeat=len(names))]).T
        return {
            name: column * self.tensor(name, 0, column.shape)
            for name, column in zip(names, columns, strict=True)
        }

    def judged(self, tensors: Mapping[str, Array], *, wide: bool = False) -> dict[str, Array]:
        """Leave out the elements that some output could not be judged at."""
        template = self.ask("", "", tensors=tensors, wide=wide)
        inconclusive = reduce(
            np.logical_or,
            (derived_output.branch.inconclusive for derived_output in derived_outputs(template)),
        )
        if inconclusive.ndim == 0:
            # One result of all elements: without the largest ones it may be judged.
            size = np.max([np.abs(tensor) for tensor in tensors.values()], axis=0)
            if inconclusive and size.size > 1:
                smaller = size < np.max(size)
                smaller_ones = {name: item[smaller] for name, item in tensors.items()}
                return self.judged(smaller_ones, wide=wide)
            return dict(tensors)
        return {name: tensor[~inconclusive] for name, tensor in tensors.items()}

    def judgeable(self, templates: Iterable[CaseTemplate]) -> CaseTemplate:
        """Return the first case template that judges at least one element of every output."""
        for template in templates:
            if all(
                derived_output.inconclusive < derived_output.value.size
                for derived_output in derived_outputs(template)
            ):
                break
        return template

    def ask(
        self,
        name: str,
        about: str,
        *,
        count: int = COUNT,
        given: Attributes | None = None,
        changed: Mapping[str, AttributeValue] = {},
        setting: Attributes | None = None,
        turn: bool = True,
        shapes: Shapes = ((4,),),
        narrow: Mapping[tuple[str, int], tuple[int, ...]] = {},
        types: Mapping[Any, str] = {},
        tensors: Mapping[Any, Given] = {},
        rate: str = "float32",
        wide: bool = False,
        rate_value: float = RATE,
        rank: Sequence[int] = (0,),
    ) -> CaseTemplate:
        """Write a case template down; what is not said is ordinary.

        Types and tensors are said for a tensor of all groups, or for one by its name and group;
        ranks for the scalars in turn; attributes as all that are given, or as those that change.
        A wide case template has everything in double. Settings take turns where none is said, or it
        is the first one.
        """
        if wide:
            types, rate = self.double, WIDE
        inputs: list[Given] = [*self.scalars(count, rate_value, rate, rank)]
        for tensor, (group, shape) in product(self.operator.tensors, enumerate(shapes)):
            place = tensor, group
            dtype = types.get(place, types.get(tensor, "float32"))
            value = tensors.get(place, tensors.get(tensor))
            if value is None:
                value = self.tensor(tensor, group, narrow.get(place, shape))
            drawn = isinstance(value, RandomTensor)
            inputs.append(value if drawn else np.asarray(value, dtype))
        chosen = self.ordinary if given is None else given
        words = setting or (next(self.turn) if turn else self.settings[0])
        return self.written(name, about, inputs, {**chosen, **changed, **words})

    def scalars(
        self, count: int, rate: float, dtype: str, ranks: Sequence[int] = (0,)
    ) -> list[Array]:
        """Return the operator's scalars: what is an integer counts, all else is a rate."""
        # No two rates are alike, so that exchanging them shows; the first is the one asked about.
        others = range(1, len(self.operator.scalars))
        rates = iter([rate, *(RATE + place / 8 for place in others)])
        found = []
        for scalar, dimensions in zip(self.operator.scalars, cycle(ranks), strict=False):
            kind = (count, "int64") if "int64" in scalar.dtypes else (next(rates), dtype)
            found.append(np.full((1,) * dimensions, *kind))
        return found

    def written(
        self, name: str, about: str, inputs: Sequence[Given], attributes: Attributes, *tags: str
    ) -> CaseTemplate:
        """Write a case template with all of its inputs down, in the order of the operator."""
        groups = (len(inputs) - len(self.operator.scalars)) // len(self.operator.tensors)
        return CaseTemplate(
            name=name,
            about=about,
            operator=self.operator,
            inputs=dict(zip(self.operator.input_names(groups), inputs, strict=True)),
            attributes=attributes,
            tags=("conformance", *tags),
        )


def derived_outputs(template: CaseTemplate) -> list[DerivedOutput]:
    """Return the answers to a case template without random inputs, and how far off they may be."""
    return bound(_call(template))


def _call(template: CaseTemplate) -> Call[Array]:
    operator = template.operator
    inputs = [value for value in template.inputs.values() if isinstance(value, np.ndarray)]
    return bind(operator, inputs, complete_attributes(operator, template.attributes))


def _settings(operator: Operator) -> list[dict[str, str]]:
    """Return every combination of words among the attributes."""
    choices = {item.name: item.choices for item in operator.attributes if item.choices}
    return [dict(zip(choices, chosen, strict=True)) for chosen in product(*choices.values())]


def unreadable(operator: Operator) -> str:
    """Say at which line of a formula a reading fails, and why; nothing if none does.

    The formula is read with ordinary operands, once for every combination of words among its
    attributes: whatever it asks of NumPy there has to be known.
    """
    from onnxopt_cli.interpret.lower.lower_model import lower

    try:
        for setting in _settings(operator):
            _check_returned(operator, setting)
        author = Author(operator)
        for setting in author.settings:
            template = author.ask("", "", setting=setting)
            call = _call(template)
            lower(formula_model(operator, template.attributes, call.inputs, graph_name="ordinary"))
            bound(call)
    # What a formula does may be anything; one that exits would end the command as if all were well.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return fault_in(operator, _unknown_function(operator) or error)
    return ""


class _AnyOperand(Joining):
    """Takes part in any formula; asks only whether each function is in the vocabulary."""

    def applied(self, *_: Any) -> _AnyOperand:
        return self


def _unknown_function(operator: Operator) -> NotImplementedError | None:
    """Return the error of a function that no formula can use; None if the formula uses none.

    With plain numbers such a function may raise something that does not name it, as an axis that
    is out of bounds.
    """
    names = [*(scalar.name for scalar in operator.scalars), *operator.tensors]
    names += [attribute.name for attribute in operator.attributes]
    operands: dict[str, Any] = {name: _AnyOperand() for name in names}
    try:
        for setting in _settings(operator):
            operator.formula(**operands | setting)
    except NotImplementedError as error:
        return error
    except (Exception, SystemExit):  # noqa: BLE001 - the first error says what is wrong
        return None
    return None


def _check_returned(operator: Operator, setting: dict[str, str]) -> None:
    """Call the formula with plain numbers, and so the wrong and right forms of it.

    Raises:
        TypeError: if one does not return as many values as there are outputs.
        ValueError: if the formula returns other values when it is called again, or a wrong or
            right form does not run.
    """
    names = [*(scalar.name for scalar in operator.scalars), *operator.tensors]
    names += [attribute.name for attribute in operator.attributes]
    operands = {name: WIDEST.type(1 + place / 8) for place, name in enumerate(names)} | setting

    def called(formula: Formula) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            found = formula(**operands)
        if not isinstance(found, tuple) or len(found) != len(operator.outputs):
            number = f"{len(found)} values" if isinstance(found, tuple) else "a value"
            raise TypeError(
                f"returns {number}, expected a tuple of {len(operator.outputs)}: "
                f"return {', '.join(operator.outputs)}{',' * (len(operator.outputs) == 1)}"
            )
        return found

    first = called(operator.formula)
    # A branch taken by chance may be the same one several times.
    for _ in range(_CALLS):
        if not all(map(_is_same, first, called(operator.formula))):
            raise ValueError("returns other values when it is called again with the same operands")
    if not all(
        known_mistake.replace or known_mistake.defaults for known_mistake in operator.known_mistakes
    ):
        # What says nothing but where a generated one was seen must have the name of one.
        all_known_mistakes(operator)
    written = {
        known_mistake.name: known_mistake.replace for known_mistake in operator.known_mistakes
    }
    for name, replace in (
        written
        | {reformulation.name: reformulation.replace for reformulation in operator.reformulations}
    ).items():
        try:
            called(rewrite(operator.formula, replace))
        except Exception as error:
            raise ValueError(f"{name!r} does not run: {exception_text(error)}") from error


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN
