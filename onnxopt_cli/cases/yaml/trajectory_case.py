"""Cases of many steps: what is fed back, what counts up, and what each step is given anew.

An input of the operator that one of its outputs follows is fed back; an integer counts up; any
other is constant, or has under ``steps`` a value for each step, or is computed from X. So the file
says no more than where it starts and what comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.loop_model import loop_inputs, loop_model
from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.tensors.declared import (
    BYTES_PER_ELEMENT,
    DeclaredTensor,
    PromisedTensor,
    broadcasts,
    element_count,
    made,
    too_large,
)
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    DeclaredCase,
    Incomplete,
)
from onnxopt_cli.cases.yaml.case_value import element_array
from onnxopt_cli.cases.yaml.formula_case import (
    check_signature,
    default_dtype,
    group_count,
    read_attributes,
    read_tensors,
)
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    number,
    unexpected,
    unknown_name,
)
from onnxopt_cli.core.trajectory import Derived, Trajectory
from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.interpret.bound.chained_bound import first_inputs
from onnxopt_cli.interpret.evaluate import WIDE
from onnxopt_cli.operators.operator import Operator

#: Elements that all steps of a case may compute together, those of its gradients included. They are
#: computed here, in a wide type and several times over: as many take minutes.
MAX_STEP_ELEMENTS = 100_000_000


def trajectory_case(operator: Operator, fields: CaseFields) -> DeclaredCase:
    """Read a case with ``steps`` of an operator with a formula.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    fields.refuse(["outputs", "rejects"], ", expected none beside steps")
    attributes = read_attributes(operator, fields)
    if id(fields.node.field("steps")) in fields.broken:
        raise Incomplete
    steps, given = fields.mapping("steps"), fields.mapping("inputs")
    count = int(number(steps["count"]))
    changing = (steps["inputs"].fields if "inputs" in steps else None) or {}
    groups = group_count(operator, {**given, **changing})
    names = operator.input_names(groups)
    # For each output the inputs that have its element type and its shape.
    places = dict(zip(operator.output_names(groups), operator.places(groups), strict=True))
    # What an output is the next value of: X_new of X, Z1_new of Z1.
    feedback = {
        name: names[like]
        for name, (like, _) in places.items()
        if name.removesuffix("_new") == names[like]
    }
    counted = [item.name for item in operator.scalars if item.dtypes == ("int64",)]
    recorded: tuple[int, ...] = ()
    with fields.collecting():
        recorded = _recorded_steps(steps.get("record"), count)
    fields.check_names("inputs", names, [name for name in names if name not in changing])
    dtypes = {name: default_dtype(operator, name) for name in names}
    start = read_tensors(fields, "inputs", dtypes)
    for name in counted:
        if name in start:
            _check_count(start[name], given[name], count, fields)
    # Where an input has to stand that may not stand here.
    elsewhere = {
        **dict.fromkeys(given, "here or in the inputs of the case"),
        **dict.fromkeys(feedback.values(), "in the inputs of the case: it is fed back after them"),
        **dict.fromkeys(counted, "in the inputs of the case: it counts up from them"),
    }
    series: dict[str, DeclaredTensor] = {}
    derived: dict[str, Callable[[], Derived]] = {}
    gradient_elements = 0
    # As the first step gets them.
    first = dict(start)
    for name, node in changing.items():
        with fields.collecting():
            _check_place(node, names, elsewhere)
            if any(node.field(gradient) for gradient in _GRADIENTS):
                place = names.index(name) - len(operator.scalars)
                if place < 0:
                    raise FormatError(node, f"found a gradient, expected values for {name}")
                # The first tensor of its group.
                of = names[len(operator.scalars) + place % groups]
                if of in start:
                    derived[name], size = _derived(node, of, start[of], fields)
                    gradient_elements += size
                    first[name] = start[of]
            else:
                series[name] = _series(node, count, dtypes[name], fields)
                whole = series[name]
                first[name] = PromisedTensor(whole.dtype, whole.shape[1:], partial(made, whole))
    fields.finish()
    inputs = [first[name] for name in names]
    check_signature(operator, fields, inputs, attributes)
    _check_shapes({name: places[name] for name in feedback}, inputs, fields)
    returned = sum(element_count(inputs[like]) for like, _ in places.values())
    fed_anew = sum(map(element_count, series.values()))
    _check_work(count, returned + gradient_elements, (len(recorded), returned, fed_anew), fields)
    fields.finish()

    @cache
    def trajectory() -> Trajectory:
        return Trajectory(
            model=formula_model(operator, attributes, inputs, graph_name=fields.text("name")),
            count=count,
            start={name: made(value) for name, value in start.items()},
            feedback=feedback,
            counted=frozenset(counted),
            series={name: made(value) for name, value in series.items()},
            derived={name: make() for name, make in derived.items()},
            recorded=recorded,
        )

    return DeclaredCase((operator.name,), tuple(places), _contents(trajectory))


def _check_work(count: int, computed: int, kept: tuple[int, int, int], fields: CaseFields) -> None:
    """Complain of a case that takes more time or memory than a case may.

    Args:
        count: number of steps.
        computed: number of elements that each of them computes.
        kept: numbers of recorded steps, of elements that each returns, and of those fed anew.
        fields: the case.
    """
    recorded, returned, fed_anew = kept
    found = ""
    if computed * count > MAX_STEP_ELEMENTS:
        found = f"{count} steps that compute {computed} elements each, expected at most "
        found += f"{MAX_STEP_ELEMENTS} in all"
    elif 0 < fields.memory < (returned * recorded + fed_anew) * BYTES_PER_ELEMENT:
        found = f"{recorded} recorded steps of {returned} elements, and {fed_anew} of inputs that "
        found += f"change, expected at most {fields.memory // BYTES_PER_ELEMENT} in all with the "
        found += "memory that --memory allows"
    if found:
        fields.complain(fields.node.field("steps") or fields.node, f"found {found}")


def _check_shapes(
    places: Mapping[str, tuple[int, int]], inputs: Sequence[DeclaredTensor], fields: CaseFields
) -> None:
    """Complain of inputs whose shapes are not those of the outputs that take their places."""
    for name, (like, base) in places.items():
        given, wanted = inputs[like], list(inputs[base].shape)
        if list(given.shape) != wanted:
            fields.complain(
                fields.mapping("inputs")[name.removesuffix("_new")],
                f"found {dtype_name(given.dtype)}{list(given.shape)}, expected the shape {wanted} "
                f"of {name}, which takes its place in the next step",
            )


def _contents(trajectory: Callable[[], Trajectory]) -> dict[str, Callable[[], Problem]]:
    """Return what makes the content step by step, and in a loop."""

    def step_by_step() -> Problem:
        made = trajectory()
        return Problem(made.model, first_inputs(made), None, trajectory=made)

    def looped() -> Problem:
        made = trajectory()
        return Problem(loop_model(made), loop_inputs(made), None, trajectory=made)

    return {"/steps": step_by_step, "/loop": looped}


def _check_count(value: DeclaredTensor, node: Node, count: int, fields: CaseFields) -> None:
    """Complain of a counter that grows beyond its type."""
    fits = value.dtype == np.int64 and value.shape in ((), (1,))
    if fits and made(value).item() + count > np.iinfo(np.int64).max:
        what = f"leaves int64 within {count} steps, expected a smaller"
        fields.complain(node, f"found a {node.key} that {what}")


def _check_place(node: Node, names: Sequence[str], elsewhere: Mapping[str, str]) -> None:
    """Make sure that an input may change, and that it does not stand elsewhere."""
    name = str(node.key)
    if name not in names:
        raise unknown_name(node.parent or node, name, names, "input")
    if name in elsewhere:
        raise FormatError(node, f"found {name}, expected it {elsewhere[name]}")


def _recorded_steps(node: Node | None, count: int) -> tuple[int, ...]:
    """Read the numbers of the steps that are judged.

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
        return (*range(int(number(every)), count, int(number(every))), count)
    steps: list[int] = []
    for item in node.items or ():
        step = int(number(item))
        if step > count:
            raise unexpected(item, f"a step up to {count}")
        if steps and step <= steps[-1]:
            raise FormatError(item, f"found {step}, expected a later step than {steps[-1]}")
        steps.append(step)
    return tuple(steps)


def _series(node: Node, count: int, dtype: np.dtype[Any], fields: CaseFields) -> DeclaredTensor:
    """Read the values of all steps, stacked.

    Args:
        node: a tensor with a leading dimension for the steps, ``{cycle: ...}`` or
            ``{linear: ...}``.
        count: number of steps.
        dtype: the element type where none is given.
        fields: the case.

    Raises:
        FormatError: at the first thing that is wrong with it.
    """
    linear, cycle = node.field("linear"), node.field("cycle")
    if linear is not None and linear.fields is not None:
        ends = [linear.fields[name] for name in ("from", "to")]
        low, high = (float(number(end)) for end in ends)
        element_array(ends, dtype)
        over = int(number(linear.fields["over"]))

        def line() -> Array:
            # The last step of the line has its end.
            share = np.minimum(np.arange(count) / max(over - 1, 1), 1.0) if over > 1 else 1.0
            return np.broadcast_to(low + (high - low) * share, count).astype(dtype)

        return PromisedTensor(dtype, (count,), line)
    stacked = fields.declare_tensor(cycle or node, dtype)
    found = stacked.shape[0] if stacked.shape else None
    values = "a single value" if found is None else f"{found} values"
    if cycle is None:
        if found != count:
            raise FormatError(node, f"found {values}, expected {count}, one for each step")
        return stacked
    if not found:
        raise FormatError(cycle, f"found {values}, expected a list of them")
    shape = (count, *stacked.shape[1:])
    if oversize := too_large(shape):
        raise FormatError(cycle, f"found {oversize}")
    return PromisedTensor(
        stacked.dtype, shape, lambda: made(stacked)[np.arange(count) % found, ...]
    )


def _derived(
    node: Node, of: str, base: DeclaredTensor, fields: CaseFields
) -> tuple[Callable[[], Derived], int]:
    """Read a gradient as a function of X; return what makes it, and the elements it computes with.

    Args:
        node: ``{quadratic: {center: [1, 2]}}`` or another of the gradients.
        of: the name of X.
        base: its first value, whose element type and shape the gradient has.
        fields: the case.

    Raises:
        FormatError: if a parameter is no tensor, of another type than X, or of a wrong shape.
    """
    ((name, given),) = (node.fields or {}).items()
    gradient = _GRADIENTS[name]
    nodes = given.fields or {}
    parameters = {key: fields.declare_tensor(value, base.dtype) for key, value in nodes.items()}
    for key, parameter in parameters.items():
        if parameter.dtype != base.dtype:
            found, expected = dtype_name(parameter.dtype), dtype_name(base.dtype)
            raise FormatError(nodes[key], f"found {found}, expected {expected} as {of} is")
    if misfit := gradient.misfit(base.shape, {key: it.shape for key, it in parameters.items()}):
        raise FormatError(given, f"found {misfit}")

    def make() -> Derived:
        values = {key: np.array(value, base.dtype) for key, value in gradient.defaults.items()}
        values |= {key: made(parameter) for key, parameter in parameters.items()}
        if name == "rosenbrock":
            values["elements"] = np.eye(base.shape[0])
        wide = {key: value.astype(WIDE) for key, value in values.items()}
        return Derived(of, lambda X: gradient.formula(X, **wide), base.dtype)

    computed = element_count(base) + sum(map(element_count, parameters.values()))
    if name == "rosenbrock":
        # It multiplies with the unit matrix.
        computed += element_count(base) ** 2
    return make, computed


# Gradients as functions of X, each written once as a NumPy formula that every reading can read.
# Parameters are numbers of X's type, held in the wide type. What a formula computes from parameters
# alone must be exact, since only what it computes from X is followed by the bound reading.


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


class _Gradient(NamedTuple):
    """A gradient that a case can name.

    Attributes:
        formula: called with X and the parameters.
        defaults: of the parameters that a case may leave out.
        misfit: says what is wrong with the shapes of parameters for an X of a shape; empty if
            nothing.
    """

    formula: Callable[..., Any]
    defaults: Mapping[str, float]
    misfit: Callable[[tuple[int, ...], Mapping[str, tuple[int, ...]]], str]


def _quadratic_misfit(shape: tuple[int, ...], given: Mapping[str, tuple[int, ...]]) -> str:
    for name, own in given.items():
        if not broadcasts(own, shape):
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


_GRADIENTS = {
    "quadratic": _Gradient(quadratic, {"curvature": 1.0, "center": 0.0}, _quadratic_misfit),
    "rosenbrock": _Gradient(rosenbrock, {"valley": 100.0}, _rosenbrock_misfit),
    "logistic": _Gradient(logistic, {}, _logistic_misfit),
}
