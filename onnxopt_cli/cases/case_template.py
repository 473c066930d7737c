"""Case templates of an operator: the caller sets relevant values; all others have defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import cycle, product
from typing import Any

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput
from onnxopt_cli.core.text import exception_text
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import DerivedOutput, bound
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE, is_elementwise, nonnegative_tensors
from onnxopt_cli.interpret.lower.lower_model import lower
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

#: The value of T in a case template by default.
COUNT = 3
#: The value of R in a case template by default.
RATE = 0.4
#: The element type of the inputs of a case template with ``wide=True``.
WIDE_TYPE = "float64"
# A formula is considered deterministic if this number of calls return equal values.
_CALLS = 20

# Ordinary elements for tensors whose values a template does not state. They are short decimals
# without special values, in one row for each of the tensors X, G, V, H of a group.
_ROWS = (
    (1.5, -0.7, 0.3, 2.25, -1.1),
    (-0.9, 0.4, 1.1, -0.35, 0.6),
    (0.2, -0.6, 0.5, 1.3, -0.15),
    (0.8, 1.7, 0.25, 0.06, 0.45),
)
# Ordinary values of the numeric attributes, as fractions of the attributes' ranges, in the order of
# the attributes. The fractions are distinct, lie between 0 and 1, and differ from the usual
# defaults.
_ORDINARY = (0.8, 0.7, 0.05, 0.3, 0.2)


class Author:
    """Creates case templates of one operator."""

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
        self.required = {name: value for name, value in self.ordinary.items() if name in required}
        self.settings = _settings(operator)
        self.turn = cycle(self.settings)
        self.double = dict.fromkeys(operator.tensors, WIDE_TYPE)
        floats = (item.name for item in operator.scalars if "int64" not in item.dtypes)
        self.rate = next(floats, "")
        self.carried = any(map(operator.carries, operator.outputs))
        self.elementwise = is_elementwise(operator)
        self.nonnegative = nonnegative_tensors(operator)
        self.first = operator.tensors[0]
        self.stepped = [item for item in operator.tensors if item != self.first]

    def within(self, name: str, fraction: float) -> float:
        """Return a value of an attribute: its lower limit for fraction 0, its upper limit for 1."""
        least, largest = self.limits.get(name, (0.0, 1.0))
        return least + (largest - least) * fraction

    def slot_name(self, tensor: str, group: int, groups: int) -> str:
        """Return the name of a tensor in a group; groups are counted from 0, names from 1."""
        position = self.operator.tensors.index(tensor) * groups + group
        return self.operator.input_names(groups)[len(self.operator.scalars) + position]

    def clipped(self, value: float) -> dict[str, float]:
        """Return all numeric attributes, each set to ``value`` clipped to its limits."""
        limits = {name: self.limits.get(name, (value, value)) for name in self.numeric}
        return {name: min(max(value, least), largest) for name, (least, largest) in limits.items()}

    def around(self, name: str, fraction: float) -> list[float]:
        """Return three successive float32 values; the second is ``within(name, fraction)``.

        The first and the third value do not exceed the attribute's limits.
        """
        middle = np.float32(self.within(name, fraction))
        ends = map(np.float32, self.limits.get(name, (0.0, 1.0)))
        below, above = (np.nextafter(middle, end) for end in ends)
        return [float(below), float(middle), float(above)]

    def tensor(self, name: str, group: int, shape: tuple[int, ...]) -> Array:
        """Return ordinary doubles for a tensor; the tensors of different groups differ."""
        row = np.array(_ROWS[self.operator.tensors.index(name) % len(_ROWS)])
        values = np.resize(np.roll(row, -group), shape) * (1 + group)
        return np.abs(values) if name in self.nonnegative else values

    def drawn(
        self, name: str, shape: tuple[int, ...], dtype: str = "float32", group: int = 0
    ) -> RandomTensor:
        """Return random elements for a tensor; the tensors of different groups differ."""
        seed = 1 + self.operator.tensors.index(name) + group * len(self.operator.tensors)
        if name in self.nonnegative:
            return RandomTensor("uniform", seed, shape, np.dtype(dtype), {"low": 0.01, "high": 4.0})
        return RandomTensor("normal", seed, shape, np.dtype(dtype))

    def combined(self, scales: Sequence[float]) -> dict[str, Array]:
        """Return tensors of ordinary elements, multiplied by every combination of the scales."""
        names = self.operator.tensors
        columns = np.array([*product(scales, repeat=len(names))]).T
        return {
            name: column * self.tensor(name, 0, column.shape)
            for name, column in zip(names, columns, strict=True)
        }

    def judged(self, tensors: Mapping[str, Array], *, wide: bool = False) -> dict[str, Array]:
        """Return the tensors without the elements for which an output is inconclusive."""
        template = self.template("", "", tensors=tensors, wide=wide)
        inconclusive = reduce(
            np.logical_or,
            (derived_output.branch.inconclusive for derived_output in derived_outputs(template)),
        )
        if inconclusive.ndim == 0:
            # Each output depends on all elements, so the largest elements are removed until the
            # outputs are conclusive.
            size = np.max([np.abs(tensor) for tensor in tensors.values()], axis=0)
            if inconclusive and size.size > 1:
                smaller = size < np.max(size)
                remaining = {name: tensor[smaller] for name, tensor in tensors.items()}
                return self.judged(remaining, wide=wide)
            return dict(tensors)
        return {name: tensor[~inconclusive] for name, tensor in tensors.items()}

    def judgeable(self, templates: Iterable[CaseTemplate]) -> CaseTemplate:
        """Return the first template with a conclusive element in every output.

        If there is no such template, return the last one.
        """
        for template in templates:
            if all(
                derived_output.inconclusive < derived_output.value.size
                for derived_output in derived_outputs(template)
            ):
                break
        return template

    def template(
        self,
        name: str,
        about: str,
        *,
        count: int = COUNT,
        attributes: Attributes | None = None,
        changed: Mapping[str, AttributeValue] = {},
        setting: Attributes | None = None,
        turn: bool = True,
        shapes: Shapes = ((4,),),
        narrow: Mapping[tuple[str, int], tuple[int, ...]] = {},
        types: Mapping[Any, str] = {},
        tensors: Mapping[Any, TemplateInput] = {},
        rate: str = "float32",
        wide: bool = False,
        rate_value: float = RATE,
        rank: Sequence[int] = (0,),
    ) -> CaseTemplate:
        """Return a case template; every omitted argument gets an ordinary value.

        Args:
            name: the name of the case.
            about: what the case tests.
            count: T.
            attributes: all numeric attributes of the node; None for ordinary values.
            changed: attributes that replace some of ``attributes``.
            setting: values of the attributes with choices, such as the mode of Momentum. With None,
                successive templates use all combinations in turn.
            turn: if False, a template without ``setting`` uses the first combination instead.
            shapes: the shape of the tensors in each group.
            narrow: shapes of tensors that broadcast to the shape of their group, by name and group.
            types: element types by the name of a tensor, or by name and group.
            tensors: values by the name of a tensor, or by name and group.
            rate: the element type of R.
            wide: whether all inputs are doubles.
            rate_value: R.
            rank: the ranks of the scalars; if there are fewer ranks than scalars, the ranks repeat.
        """
        if wide:
            types, rate = self.double, WIDE_TYPE
        inputs: list[TemplateInput] = [*self.scalars(count, rate_value, rate, rank)]
        for tensor, (group, shape) in product(self.operator.tensors, enumerate(shapes)):
            place = tensor, group
            dtype = types.get(place, types.get(tensor, "float32"))
            value = tensors.get(place, tensors.get(tensor))
            if value is None:
                value = self.tensor(tensor, group, narrow.get(place, shape))
            random = isinstance(value, RandomTensor)
            inputs.append(value if random else np.asarray(value, dtype))
        numeric = self.ordinary if attributes is None else attributes
        words = setting or (next(self.turn) if turn else self.settings[0])
        return self.explicit_template(name, about, inputs, {**numeric, **changed, **words})

    def scalars(
        self, count: int, rate: float, dtype: str, ranks: Sequence[int] = (0,)
    ) -> list[Array]:
        """Return the operator's scalars: the integers are counts, all other scalars are rates."""
        # The first rate has the given value. All other rates differ from the first, so that an
        # implementation that exchanges two scalars fails.
        further_rates = (RATE + place / 8 for place in range(1, len(self.operator.scalars)))
        rates = iter([rate, *further_rates])
        scalars = []
        for scalar, dimensions in zip(self.operator.scalars, cycle(ranks), strict=False):
            kind = (count, "int64") if "int64" in scalar.dtypes else (next(rates), dtype)
            scalars.append(np.full((1,) * dimensions, *kind))
        return scalars

    def explicit_template(
        self,
        name: str,
        about: str,
        inputs: Sequence[TemplateInput],
        attributes: Attributes,
        *tags: str,
    ) -> CaseTemplate:
        """Return a case template with exactly the given inputs, in the order of the operator."""
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
    """Return the expected outputs and error bounds of a case template without random inputs."""
    return bound(_call(template))


def _call(template: CaseTemplate) -> Call[Array]:
    operator = template.operator
    inputs = [value for value in template.inputs.values() if isinstance(value, np.ndarray)]
    return bind(operator, inputs, complete_attributes(operator, template.attributes))


def _settings(operator: Operator) -> list[dict[str, str]]:
    """Return every combination of values of the attributes with choices."""
    choices = {item.name: item.choices for item in operator.attributes if item.choices}
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def unreadable(operator: Operator) -> str:
    """Return a message with line and reason if a formula cannot be interpreted, else ``""``.

    The formula is interpreted with ordinary operands, once for each combination of values of the
    attributes with choices. Every NumPy function that the formula calls must be in the vocabulary.
    """
    try:
        for setting in _settings(operator):
            _check_returned(operator, setting)
        author = Author(operator)
        for setting in author.settings:
            template = author.template("", "", setting=setting)
            call = _call(template)
            lower(formula_model(operator, template.attributes, call.inputs, graph_name="ordinary"))
            bound(call)
    # A formula may raise any exception; SystemExit would end the command with its exit code.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return fault_in(operator, _unknown_function(operator) or error)
    return ""


class _AnyOperand(Joining):
    """An operand without a value.

    Calling the formula with such operands shows whether each function that it calls is in the
    vocabulary.
    """

    def applied(self, *_: Any) -> _AnyOperand:
        return self


def _unknown_function(operator: Operator) -> NotImplementedError | None:
    """Return the error about a function outside the vocabulary; None if all functions are in it.

    If a function outside the vocabulary is called with plain numbers, its error may not name the
    function. For example, the error may be about an axis that is out of bounds.
    """
    names = [*(scalar.name for scalar in operator.scalars), *operator.tensors]
    names += [attribute.name for attribute in operator.attributes]
    operands: dict[str, Any] = {name: _AnyOperand() for name in names}
    try:
        for setting in _settings(operator):
            operator.formula(**operands | setting)
    except NotImplementedError as error:
        return error
    except (Exception, SystemExit):  # noqa: BLE001 - the caller reports this error
        return None
    return None


def _check_returned(operator: Operator, setting: dict[str, str]) -> None:
    """Call the formula, its known mistakes and its reformulations with plain numbers.

    Raises:
        TypeError: if the number of returned values differs from the number of outputs.
        ValueError: if the formula is not deterministic, or a known mistake or reformulation does
            not run.
    """
    names = [*(scalar.name for scalar in operator.scalars), *operator.tensors]
    names += [attribute.name for attribute in operator.attributes]
    operands = {name: WIDEST_TYPE.type(1 + place / 8) for place, name in enumerate(names)} | setting

    def called(formula: Formula) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            returned = formula(**operands)
        if not isinstance(returned, tuple) or len(returned) != len(operator.outputs):
            number = f"{len(returned)} values" if isinstance(returned, tuple) else "a value"
            raise TypeError(
                f"returns {number}, expected a tuple of {len(operator.outputs)}: "
                f"return {', '.join(operator.outputs)}{',' * (len(operator.outputs) == 1)}"
            )
        return returned

    first = called(operator.formula)
    # A formula that branches at random may happen to return equal values in several calls.
    for _ in range(_CALLS):
        if not all(map(_is_same, first, called(operator.formula))):
            raise ValueError("returns other values when it is called again with the same operands")
    if not all(
        known_mistake.replace or known_mistake.defaults for known_mistake in operator.known_mistakes
    ):
        # A known mistake without a replacement must have the name of a generated mistake.
        all_known_mistakes(operator)
    replacements = {
        known_mistake.name: known_mistake.replace for known_mistake in operator.known_mistakes
    } | {reformulation.name: reformulation.replace for reformulation in operator.reformulations}
    for name, replace in replacements.items():
        try:
            called(rewrite(operator.formula, replace))
        except Exception as error:
            raise ValueError(f"{name!r} does not run: {exception_text(error)}") from error


def _is_same(first: Any, second: Any) -> bool:
    return bool(first == second or (first != first and second != second))  # noqa: PLR0124 - NaN
