"""Cases of many steps: what is fed back, what counts up, and what each step is given anew.

An input of the operator that one of its outputs follows is fed back; an integer counts up; any
other is constant, or has under ``steps`` a value for each step, or is computed from X. So the file
says no more than where it starts and what comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.values.declared import MAX_ELEMENTS, DeclaredTensor, element_count, too_large
from onnxopt_cli.cases.yaml.case_fields import CaseFields, Incomplete, Subject
from onnxopt_cli.cases.yaml.formula_case import (
    check_signature,
    declare_tensor,
    default_dtype,
    group_count,
    read_attributes,
)
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, number, unexpected
from onnxopt_cli.cases.yaml.value import DeclareValue, always, element_array
from onnxopt_cli.core.trajectory import Derived, Trajectory
from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.formula.operator import Operator


def trajectory_subject(operator: Operator, fields: CaseFields) -> Subject:
    """Read a case with ``steps`` of an operator with a formula.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    for name in ("outputs", "rejects"):
        node = fields.node.field(name)
        if node is not None:
            fields.errors.append(FormatError(node, f"found {name}, expected none beside steps"))
    attributes = read_attributes(operator, fields)
    steps = (fields.node.fields or {})["steps"]
    if id(steps) in fields.broken:
        raise Incomplete
    reader = _Reader(operator, fields, steps)
    reader.read()
    fields.finish()
    first = [reader.first[name] for name in reader.names]
    check_signature(operator, fields, first, attributes)
    reader.check_feedback()
    fields.finish()

    @cache
    def trajectory() -> Trajectory:
        return Trajectory(
            model=formula_model(operator, attributes, first, graph_name=fields.name),
            count=reader.count,
            start={name: value.make() for name, value in reader.start.items()},
            feedback=reader.feedback,
            counted=frozenset(reader.counted),
            series={name: value.make() for name, value in reader.series.items()},
            derived={name: make() for name, make in reader.derived.items()},
            recorded=reader.recorded,
        )

    return Subject(
        operators=(operator.name,),
        model=lambda: trajectory().model,
        inputs={},
        outputs=None,
        output_names=tuple(reader.feedback_names),
        trajectory=trajectory,
    )


@dataclass(slots=True)
class _Reader:
    """The fields of a trajectory on their way; all that is wrong is collected."""

    operator: Operator
    fields: CaseFields
    steps: Node
    names: list[str] = field(default_factory=list)
    count: int = 0
    recorded: tuple[int, ...] = ()
    # By input: as the first step gets it, as the file gives it, of all steps, and from X.
    first: dict[str, DeclaredTensor] = field(default_factory=dict)
    start: dict[str, DeclaredTensor] = field(default_factory=dict)
    series: dict[str, DeclaredTensor] = field(default_factory=dict)
    derived: dict[str, Callable[[], Derived]] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """Number of optimized tensors."""
        node = self.steps.field("inputs")
        changing = (node.fields if node else None) or {}
        return group_count(self.operator, {**self.fields.mapping("inputs"), **changing})

    @property
    def feedback_names(self) -> list[str]:
        """Names of the node's outputs."""
        return self.operator.output_names(self.groups)

    @property
    def feedback(self) -> dict[str, str]:
        """By the name of an output, the input that it becomes."""
        places = self.operator.places(self.groups)
        candidates = {
            name: self.names[like]
            for name, (like, _) in zip(self.feedback_names, places, strict=True)
        }
        return {name: taken for name, taken in candidates.items() if _follows(name, taken)}

    @property
    def counted(self) -> list[str]:
        """The inputs that grow by one."""
        return [item.name for item in self.operator.scalars if item.dtypes == ("int64",)]

    def read(self) -> None:
        """Read everything."""
        self.names = self.operator.input_names(self.groups)
        self.count = int(number((self.steps.fields or {})["count"]))
        try:
            self.recorded = recorded_steps(self.steps.field("record"), self.count)
        except FormatError as error:
            self.fields.errors.append(error)
        own = self.fields.mapping("inputs")
        node = self.steps.field("inputs")
        changing: Mapping[str, Node] = (node.fields if node else None) or {}
        usable = self._check_places(own, changing)
        for name, given in own.items():
            if name in self.names:
                value = declare_tensor(self.fields, name, given, default_dtype(self.operator, name))
                if value is not None:
                    self.first[name] = self.start[name] = value
        self._check_counts(own)
        for name, given in changing.items():
            if name in usable and id(given) not in self.fields.broken:
                try:
                    self._read_changing(name, given)
                except FormatError as error:
                    self.fields.errors.append(error)

    def _check_places(self, own: Mapping[str, Node], changing: Mapping[str, Node]) -> set[str]:
        """Make sure that every input stands in one place; return those that rightly change."""
        required = [name for name in self.names if name not in changing]
        self.fields.check_names("inputs", self.names, required)
        usable = set()
        starts = {*self.feedback.values(), *self.counted}
        for name, node in changing.items():
            if name not in self.names:
                what = f"found an unknown input, expected one of {', '.join(self.names)}"
            elif name in starts:
                how = "counts up from" if name in self.counted else "is fed back after"
                what = f"found {name}, expected it in the inputs of the case: it {how} them"
            elif name in own:
                what = f"found {name}, expected it here or in the inputs of the case"
            else:
                usable.add(name)
                continue
            self.fields.errors.append(FormatError(node, what))
        return usable

    def _check_counts(self, own: Mapping[str, Node]) -> None:
        for name in self.counted:
            value = self.start.get(name)
            if value is not None and value.dtype == np.int64 and value.shape in ((), (1,)):
                last = int(value.make().reshape(())) + self.count
                if last > np.iinfo(np.int64).max:
                    what = f"found a {name} that leaves int64 within {self.count} steps"
                    self.fields.errors.append(FormatError(own[name], f"{what}, expected a smaller"))

    def _read_changing(self, name: str, node: Node) -> None:
        dtype = default_dtype(self.operator, name)
        if is_function(node):
            of = self._optimized(name, node)
            base = self.start.get(of)
            if base is None:
                return
            derivation = Derivation(node, of, base.dtype, base.shape, self.fields.declare_value)
            self.derived[name] = declare_derived(derivation)
            self.first[name] = replace(base, make=lambda: np.zeros(base.shape, base.dtype))
            return
        stacked = declare_series(node, self.count, dtype, self.fields.declare_value)
        self.series[name] = stacked
        self.first[name] = DeclaredTensor(
            stacked.dtype, stacked.shape[1:], lambda: stacked.make()[0, ...]
        )

    def _optimized(self, name: str, node: Node) -> str:
        """Return the first tensor of the group that an input belongs to."""
        tensors = self.names[len(self.operator.scalars) :]
        if name not in tensors:
            raise FormatError(node, f"found a gradient, expected values for {name}")
        return tensors[tensors.index(name) % self.groups]

    def check_feedback(self) -> None:
        """Make sure that what comes back is what goes in: every tensor has X's shape."""
        places = self.operator.places(self.groups)
        for name, (like, base) in zip(self.feedback_names, places, strict=True):
            given, wanted = self.first[self.names[like]], self.first[self.names[base]]
            if name in self.feedback and given.shape != wanted.shape:
                node = self.fields.mapping("inputs")[self.names[like]]
                self.fields.errors.append(
                    FormatError(
                        node,
                        f"found {dtype_name(given.dtype)}{list(given.shape)}, expected the shape "
                        f"{list(wanted.shape)} of {name}, which takes its place in the next step",
                    )
                )
        shapes = [self.first[self.names[like]].shape for like, _ in places]
        elements = sum(int(np.prod(shape, dtype=object)) for shape in shapes)
        changing = sum(map(element_count, self.series.values()))
        if elements * len(self.recorded) + changing > MAX_ELEMENTS:
            self.fields.errors.append(
                FormatError(
                    self.steps,
                    f"found {len(self.recorded)} recorded steps of {elements} elements, and "
                    f"{changing} of inputs that change, expected at most {MAX_ELEMENTS} in all",
                )
            )


def _follows(output: str, taken: str) -> bool:
    """Tell whether an output is the next value of an input: X_new of X, Z1_new of Z1."""
    return output.removesuffix("_new") == taken


def recorded_steps(node: Node | None, count: int) -> tuple[int, ...]:
    """Read the numbers of the recorded steps.

    Args:
        node: a list of numbers or ``{every: 50}``, as the schema has it; None for all.
        count: number of steps.

    Raises:
        FormatError: at the first number that is no step, or does not exceed the one before it.
    """
    if node is None:
        return tuple(range(1, count + 1))
    every = node.field("every")
    if every is not None:
        numbers = range(int(number(every)), count, int(number(every)))
        return (*numbers, count)
    steps: list[int] = []
    for item in node.items or ():
        step = int(number(item))
        if step > count:
            raise unexpected(item, f"a step up to {count}")
        if steps and step <= steps[-1]:
            raise FormatError(item, f"found {step}, expected a later step than {steps[-1]}")
        steps.append(step)
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class Derivation:
    """An input that a case gives as a function.

    Attributes:
        node: where it is given.
        of: name of the input that it is a function of.
        dtype: element type of that one, and so of this.
        shape: likewise.
        declare: reads a parameter.
    """

    node: Node
    of: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    declare: DeclareValue


def is_function(node: Node) -> bool:
    """Tell whether an input is a function of X."""
    return any(node.field(name) for name in GRADIENTS)


def declare_derived(derivation: Derivation) -> Callable[[], Derived]:
    """Read a function of X, and return what makes it.

    Raises:
        FormatError: if a parameter is no tensor, of another type than X, or of a wrong shape.
    """
    node, dtype = derivation.node, derivation.dtype
    (name, given), *_ = (node.fields or {}).items()
    gradient = GRADIENTS[name]
    parameters = {
        key: _tensor(value, derivation.declare, dtype)
        for key, value in (given.fields or {}).items()
    }
    for key, parameter in parameters.items():
        if parameter.dtype != dtype:
            raise FormatError(
                (given.fields or {})[key],
                f"found {dtype_name(parameter.dtype)}, expected {dtype_name(dtype)} as "
                f"{derivation.of} is",
            )
    shapes = {key: parameter.shape for key, parameter in parameters.items()}
    misfit = gradient.misfit(derivation.shape, shapes)
    if misfit:
        raise FormatError(given, f"found {misfit}")

    def make() -> Derived:
        values: dict[str, Array] = {
            key: np.array(default, dtype)
            for key, default in gradient.defaults.items()
            if default is not None
        }
        values |= {key: parameter.make() for key, parameter in parameters.items()}
        return Derived(derivation.of, apply_to(gradient, values, derivation.shape), dtype)

    return make


def declare_series(
    node: Node, count: int, dtype: np.dtype[Any], declare: DeclareValue
) -> DeclaredTensor:
    """Read the values of all steps, stacked.

    Args:
        node: a tensor with a leading dimension for the steps, ``{cycle: ...}`` or
            ``{linear: ...}``.
        count: number of steps.
        dtype: the element type where none is given.
        declare: reads a tensor.

    Raises:
        FormatError: at the first thing that is wrong with it.
    """
    linear = node.field("linear")
    if linear is not None:
        return _line(linear, count, dtype)
    cycle = node.field("cycle")
    stacked = _tensor(cycle or node, declare, dtype)
    found = stacked.shape[0] if stacked.shape else None
    if cycle is None:
        if found != count:
            raise FormatError(node, f"found {_values(found)}, expected {count}, one for each step")
        return stacked
    if not found:
        raise FormatError(cycle, f"found {_values(found)}, expected a list of them")
    shape = (count, *stacked.shape[1:])
    oversize = too_large(shape)
    if oversize:
        raise FormatError(cycle, f"found {oversize}")
    return DeclaredTensor(
        stacked.dtype, shape, lambda: stacked.make()[np.arange(count) % found, ...]
    )


def _line(node: Node, count: int, dtype: np.dtype[Any]) -> DeclaredTensor:
    fields = node.fields or {}
    first, last = (float(number(fields[name])) for name in ("from", "to"))
    element_array([fields["from"], fields["to"]], dtype)
    over = int(number(fields["over"]))

    def make() -> Array:
        # The last step of the line has its end.
        share = np.minimum(np.arange(count) / max(over - 1, 1), 1.0) if over > 1 else 1.0
        return np.broadcast_to(first + (last - first) * share, count).astype(dtype)

    return DeclaredTensor(dtype, (count,), make)


def _tensor(node: Node, declare: DeclareValue, dtype: np.dtype[Any]) -> DeclaredTensor:
    value = declare(node, always(dtype))
    if not isinstance(value, DeclaredTensor):
        raise FormatError(node, "found no tensor, expected one")
    return value


def _values(found: int | None) -> str:
    return "a single value" if found is None else f"{found} values"


def quadratic(X: Any, *, curvature: Any, center: Any) -> Any:
    """Gradient of ``sum(curvature / 2 * (X - center)**2)``; the parameters broadcast to X."""
    return curvature * (X - center)


def rosenbrock(X: Any, *, valley: Any, elements: Any) -> Any:
    """Gradient of ``sum(valley * (x[i + 1] - x[i]**2)**2 + (1 - x[i])**2)`` over a vector X.

    ``valley`` is 100 in the original (Rosenbrock 1960), which has two elements; ``elements`` is the
    unit matrix, whose rows take all elements but the last, and all but the first.
    """
    these, following = elements[:-1] @ X, elements[1:] @ X
    bend = following - these * these
    down = 4 * valley * these * bend + 2 * (1 - these)
    return elements[1:].T @ (2 * valley * bend) - elements[:-1].T @ down


def logistic(X: Any, *, features: Any, labels: Any) -> Any:
    """Gradient of the mean logistic loss of weights X on a data set.

    ``features`` is a matrix with a row a sample and a column an element of X, ``labels`` a vector
    of 0 and 1 (Hastie, Tibshirani, Friedman 2009, section 4.4.1).
    """
    probability = 1 / (1 + np.exp(-(features @ X)))
    return features.T @ (probability - labels) / len(labels)


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that a case can name.

    Attributes:
        formula: called with X and the parameters.
        defaults: by the name of each parameter, its value where the case gives none; None if the
            case must give it.
        misfit: says what is wrong with parameters for an X of a shape; empty if nothing.
        constants: other arguments of the formula, made for X's shape.
    """

    formula: Callable[..., Any]
    defaults: Mapping[str, float | None]
    misfit: Callable[[tuple[int, ...], Mapping[str, tuple[int, ...]]], str]
    constants: Callable[[tuple[int, ...]], Mapping[str, Array]] = lambda _shape: {}


def _quadratic_misfit(shape: tuple[int, ...], given: Mapping[str, tuple[int, ...]]) -> str:
    for name, own in given.items():
        try:
            fits = np.broadcast_shapes(shape, own) == shape
        except ValueError:
            fits = False
        if not fits:
            return f"{name} of shape {list(own)}, expected one that broadcasts to {list(shape)}"
    return ""


def _rosenbrock_misfit(shape: tuple[int, ...], given: Mapping[str, tuple[int, ...]]) -> str:
    if len(shape) != 1 or shape[0] < 2:  # noqa: PLR2004 - it joins neighbours
        return f"an X of shape {list(shape)}, expected a vector of at least 2 elements"
    valley = given.get("valley", ())
    return f"valley of shape {list(valley)}, expected a number" if valley else ""


def _logistic_misfit(shape: tuple[int, ...], given: Mapping[str, tuple[int, ...]]) -> str:
    if len(shape) != 1:
        return f"an X of shape {list(shape)}, expected a vector"
    features, labels = given["features"], given["labels"]
    if len(labels) != 1 or not labels[0]:
        return f"labels of shape {list(labels)}, expected a vector"
    if features != (*labels, *shape):
        return f"features of shape {list(features)}, expected {[*labels, *shape]}"
    return ""


#: The gradients by the names that case files know.
GRADIENTS: Mapping[str, Gradient] = {
    "quadratic": Gradient(quadratic, {"curvature": 1.0, "center": 0.0}, _quadratic_misfit),
    "rosenbrock": Gradient(
        rosenbrock,
        {"valley": 100.0},
        _rosenbrock_misfit,
        constants=lambda shape: {"elements": np.eye(shape[0])},
    ),
    "logistic": Gradient(logistic, {"features": None, "labels": None}, _logistic_misfit),
}


def apply_to(
    gradient: Gradient, parameters: Mapping[str, Array], shape: tuple[int, ...]
) -> Callable[[Any], Any]:
    """Return the gradient as a function of an X of a shape alone."""
    given = {**parameters, **gradient.constants(shape)}
    wide = {name: value.astype(np.longdouble) for name, value in given.items()}
    return lambda X: gradient.formula(X, **wide)
