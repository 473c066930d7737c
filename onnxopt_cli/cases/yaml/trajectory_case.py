"""Reads cases with steps: the operator runs repeatedly, and outputs become the next step's inputs.

A case states the inputs of the first step and, under ``steps``, how some inputs change:

- An input such as ``X`` is fed back if the operator has an output ``X_new``.
- An integer scalar counts up.
- An input under ``steps`` has a stated value in each step, or is a gradient computed from X.
- All other inputs are constant.

Each case with steps has two forms. In one form, a model of one step is run repeatedly. In the other
form, the ``Loop`` of a single model runs all steps and stacks their outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.node_model import formula_model, tensor_info, whole_model
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
    element_array,
)
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
from onnxopt_cli.core.values import DTYPES, Array, dtype_name
from onnxopt_cli.interpret.bound.chained_nodes import Derived, Trajectory, first_inputs
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE
from onnxopt_cli.interpret.lower.lower_call import (
    Recorder,
    Symbol,
    as_dtype,
)
from onnxopt_cli.interpret.lower.lower_model import OLDEST_OPSET, UniqueNames
from onnxopt_cli.operators.operator import Operator

# Largest total number of elements that the steps of a case may compute, including gradients. At the
# limit, the computation of the expected results takes minutes, because they are computed several
# times in a wide type.
_MAX_STEP_ELEMENTS = 100_000_000

_INT64, _BOOL = DTYPES["int64"], DTYPES["bool"]
_ITERATION, _CONDITION, _NEXT_CONDITION = "iteration", "going", "goes_on"


class _ChangingInputs:
    """The inputs that change from step to step.

    Args:
        operator: the operator.
        groups: number of groups of tensors.
        start: the inputs that the case states outside ``steps``.
        nodes: the allowed inputs that the case states under ``steps``.

    Attributes:
        first: by name, the inputs of the first step. They include the inputs that the case states
            outside ``steps``, and the inputs under ``steps`` that have been read.
        series: by name, the values of an input in all steps.
        derived: by name, functions that create the gradients that each step derives from X.
        gradient_elements: number of elements from which one step computes these gradients.
    """

    def __init__(
        self,
        operator: Operator,
        groups: int,
        start: Mapping[str, DeclaredTensor],
        nodes: Mapping[str, Node],
    ) -> None:
        self._operator, self._groups, self._start, self._nodes = operator, groups, start, nodes
        self.first = dict(start)
        self.series: dict[str, DeclaredTensor] = {}
        self.derived: dict[str, Callable[[], Derived]] = {}
        self.gradient_elements = 0

    def read(self, name: str, count: int, fields: CaseFields) -> None:
        """Read an input of `count` steps.

        Raises:
            FormatError: if the input is invalid.
        """
        node = self._nodes[name]
        if not any(node.field(gradient) for gradient in _GRADIENTS):
            stacked = _series(node, count, default_dtype(self._operator, name), fields)
            self.series[name] = stacked
            self.first[name] = PromisedTensor(
                stacked.dtype, stacked.shape[1:], partial(made, stacked)
            )
            return
        names, scalars = self._operator.input_names(self._groups), len(self._operator.scalars)
        place = names.index(name) - scalars
        if place < 0:
            raise FormatError(node, f"found a gradient, expected values for {name}")
        # The tensor that is optimized in the same group.
        variable = names[scalars + place % self._groups]
        if variable in self._nodes:
            message = f"found a gradient, expected {variable} in the inputs of the case"
            raise FormatError(node, message)
        # If the variable has no valid value, an error about the variable has been collected before.
        if variable in self._start:
            value = self._start[variable]
            self.derived[name], elements = _derived(node, variable, value, fields)
            self.gradient_elements += elements
            self.first[name] = value


def trajectory_case(operator: Operator, fields: CaseFields) -> DeclaredCase:
    """Read a trajectory: a case with ``steps``, whose operator has a formula.

    Raises:
        Incomplete: if the case is invalid; the errors are collected in `fields`.
    """
    fields.forbid(["outputs", "rejects"], ", expected none in a case with steps")
    attributes = read_attributes(operator, fields)
    if id(fields.node.field("steps")) in fields.broken:
        raise Incomplete
    steps, input_nodes = fields.mapping("steps"), fields.mapping("inputs")
    count = int(number(steps["count"]))
    changing_nodes = (steps["inputs"].fields if "inputs" in steps else None) or {}
    groups = group_count(operator, {**input_nodes, **changing_nodes})
    names = operator.input_names(groups)
    # For each output: the position of the input whose element type it has, and the position of the
    # input whose shape it has.
    places = dict(zip(operator.output_names(groups), operator.places(groups), strict=True))
    # For each output that is the next value of an input: the name of the input (X for X_new, Z1 for
    # Z1_new).
    feedback = {
        name: names[like]
        for name, (like, _) in places.items()
        if name.removesuffix("_new") == names[like]
    }
    counted = [item.name for item in operator.scalars if item.dtypes == ("int64",)]
    recorded: tuple[int, ...] = ()
    with fields.collecting():
        recorded = _recorded_steps(steps.get("record"), count)
    fields.check_names("inputs", names, [name for name in names if name not in changing_nodes])
    start = read_tensors(fields, "inputs", {name: default_dtype(operator, name) for name in names})
    for name in counted:
        if name in start:
            _check_count(start[name], input_nodes[name], count, fields)
    # Inputs that are not allowed under steps, each with the place where it is expected.
    elsewhere = {
        **dict.fromkeys(input_nodes, "either here or in the inputs of the case"),
        **dict.fromkeys(feedback.values(), "in the inputs of the case, because it is fed back"),
        **dict.fromkeys(counted, "in the inputs of the case, because it counts up"),
    }
    allowed = {name: node for name, node in changing_nodes.items() if name not in elsewhere}
    changing = _ChangingInputs(operator, groups, start, allowed)
    for name, node in changing_nodes.items():
        with fields.collecting():
            _check_place(node, names, elsewhere)
            changing.read(name, count, fields)
    fields.finish()
    inputs = [changing.first[name] for name in names]
    check_signature(operator, fields, inputs, attributes)
    _check_shapes({name: places[name] for name in feedback}, inputs, fields)
    returned = sum(element_count(inputs[like]) for like, _ in places.values())
    changing_elements = sum(map(element_count, changing.series.values()))
    _check_work(
        count,
        returned + changing.gradient_elements,
        (len(recorded), returned, changing_elements),
        fields,
    )
    fields.finish()

    @cache
    def trajectory() -> Trajectory:
        return Trajectory(
            model=formula_model(operator, attributes, inputs, graph_name=fields.text("name")),
            count=count,
            start={name: made(value) for name, value in start.items()},
            feedback=feedback,
            counted=frozenset(counted),
            series={name: made(value) for name, value in changing.series.items()},
            derived={name: make() for name, make in changing.derived.items()},
            recorded=recorded,
        )

    return DeclaredCase((operator.name,), tuple(places), _contents(trajectory))


def _check_work(
    count: int, computed: int, stored: tuple[int, int, int], fields: CaseFields
) -> None:
    """Collect an error if a case exceeds the limits of time or memory.

    Args:
        count: number of steps.
        computed: number of elements that each step computes.
        stored: the number of recorded steps, the number of elements that each step returns, and the
            number of elements of inputs that change.
        fields: the case.
    """
    recorded, returned, changing = stored
    excess = ""
    if computed * count > _MAX_STEP_ELEMENTS:
        excess = f"{count} steps that compute {computed} elements each, expected at most "
        excess += f"{_MAX_STEP_ELEMENTS} in all"
    elif 0 < fields.memory < (returned * recorded + changing) * BYTES_PER_ELEMENT:
        excess = f"{recorded} recorded steps of {returned} elements, and {changing} elements of "
        excess += "inputs that change, expected at most "
        excess += f"{fields.memory // BYTES_PER_ELEMENT} elements in all with the memory that "
        excess += "--memory allows"
    if excess:
        fields.add_error(fields.node.field("steps") or fields.node, f"found {excess}")


def _check_shapes(
    places: Mapping[str, tuple[int, int]], inputs: Sequence[DeclaredTensor], fields: CaseFields
) -> None:
    """Collect errors about fed-back inputs whose shapes differ from the shapes of the outputs."""
    for name, (like, base) in places.items():
        value, expected = inputs[like], list(inputs[base].shape)
        if list(value.shape) != expected:
            fields.add_error(
                fields.mapping("inputs")[name.removesuffix("_new")],
                f"found {dtype_name(value.dtype)}{list(value.shape)}, expected the shape "
                f"{expected} of {name}, which replaces it in the next step",
            )


def _contents(trajectory: Callable[[], Trajectory]) -> dict[str, Callable[[], Problem]]:
    """Return, by suffix of the id, two functions that create a case: in steps, and as a loop."""

    def step_by_step() -> Problem:
        steps = trajectory()
        return Problem(steps.model, first_inputs(steps), None, trajectory=steps)

    def looped() -> Problem:
        steps = trajectory()
        return Problem(_loop_model(steps), _loop_inputs(steps), None, trajectory=steps)

    return {"/steps": step_by_step, "/loop": looped}


def _loop_model(trajectory: Trajectory) -> onnx.ModelProto:
    """Build a model whose loop body contains the node and primitive operators around it.

    The inputs of the model are the result of :func:`_loop_inputs`. The outputs have the node's
    names, and a leading dimension for the recorded steps.
    """
    step = trajectory.model
    node = step.graph.node[0]
    count = trajectory.count
    is_subset = trajectory.recorded != tuple(range(1, count + 1))
    finals = [f"{name}_last" for name in trajectory.feedback.values()]
    scalars = [value.name for value in step.graph.output if not value.type.tensor_type.shape.dim]
    stacked = [f"{name}_all" if is_subset or name in scalars else name for name in node.output]
    constants: dict[str, Any] = {"count": np.int64(count), "always": np.bool_(True)}
    if is_subset:
        constants["recorded"] = np.array(trajectory.recorded, np.int64) - 1
    if scalars:
        constants["vector"] = np.array([len(trajectory.recorded)], np.int64)
    loop = helper.make_node(
        "Loop",
        ["count", "always", *trajectory.feedback.values()],
        [*finals, *stacked],
        body=_body(trajectory),
    )
    nodes = [loop]
    for all_rows, name in zip(stacked, node.output, strict=True):
        rows = f"{name}_rows" if name in scalars else name
        if is_subset:
            nodes.append(helper.make_node("Gather", [all_rows, "recorded"], [rows], axis=0))
        if name in scalars:
            # onnx's reference evaluator stacks scalars into a column.
            source = rows if is_subset else all_rows
            nodes.append(helper.make_node("Reshape", [source, "vector"], [name]))
    graph = helper.make_graph(
        nodes,
        step.graph.name,
        [
            tensor_info(name, value.dtype, value.shape)
            for name, value in _loop_inputs(trajectory).items()
        ],
        [_with_shape(value, value.name, [len(trajectory.recorded)]) for value in step.graph.output],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = ((opset.domain, opset.version) for opset in step.opset_import)
    return whole_model(graph, [("", OLDEST_OPSET), *opsets])


def _loop_inputs(trajectory: Trajectory) -> dict[str, Array]:
    """Return the inputs of the model: initial values, and stacked values of all steps."""
    values = {**trajectory.start, **trajectory.series}
    return {name: values[name] for name in trajectory.names if name in values}


def _body(trajectory: Trajectory) -> onnx.GraphProto:
    """Build the graph of one step.

    The names in the graph of a step differ from the names in the outer graph.
    """
    step = trajectory.model
    node = step.graph.node[0]
    fresh = UniqueNames(step)
    fed_back = trajectory.feedback.values()
    varying = {*trajectory.counted, *trajectory.series, *trajectory.derived, *fed_back}
    changing = [name for name in node.input if name in varying]
    inner_names = {name: fresh(f"{name}_now") for name in (*changing, *node.output)}
    nodes = list(_inputs_of_step(trajectory, inner_names, fresh))
    inner_node = onnx.NodeProto()
    inner_node.CopyFrom(node)
    inner_node.input[:] = [inner_names.get(name, name) for name in node.input]
    inner_node.output[:] = [inner_names[name] for name in node.output]
    nodes += [inner_node, helper.make_node("Identity", [_CONDITION], [_NEXT_CONDITION])]
    declared = {value.name: value for value in (*step.graph.input, *step.graph.output)}
    carried = [
        helper.make_node("Identity", [inner_names[output]], [fresh(f"{name}_next")])
        for output, name in trajectory.feedback.items()
    ]
    state = [tensor_info(_ITERATION, _INT64, ()), tensor_info(_CONDITION, _BOOL, ())]
    return helper.make_graph(
        [*nodes, *carried],
        "step",
        [*state, *(_with_shape(declared[name], inner_names[name]) for name in fed_back)],
        [
            tensor_info(_NEXT_CONDITION, _BOOL, ()),
            *(
                _with_shape(declared[name], identity.output[0])
                for identity, name in zip(carried, fed_back, strict=True)
            ),
            *(_with_shape(declared[name], inner_names[name]) for name in node.output),
        ],
        value_info=[
            _with_shape(declared[name], inner_names[name])
            for name in changing
            if name not in fed_back
        ],
    )


def _inputs_of_step(
    trajectory: Trajectory, inner_names: dict[str, str], fresh: UniqueNames
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that compute the inputs of a step from the iteration and the state."""
    for name in trajectory.series:
        yield helper.make_node("Gather", [name, _ITERATION], [inner_names[name]], axis=0)
    for name in sorted(trajectory.counted):
        yield helper.make_node("Add", [name, _ITERATION], [inner_names[name]])
    for name, derived in trajectory.derived.items():
        recorder = Recorder(fresh)
        like = trajectory.start[derived.of]
        operand = Symbol(recorder, inner_names[derived.of], like.dtype, like.shape)
        result = as_dtype(recorder, derived.formula(operand), derived.dtype)
        yield from recorder.finish({inner_names[name]: result.name})


def _with_shape(
    value: onnx.ValueInfoProto, name: str, leading: Sequence[int] = ()
) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor with another name and additional leading dimensions."""
    tensor = value.type.tensor_type
    shape = [*leading, *(size.dim_value for size in tensor.shape.dim)]
    return helper.make_tensor_value_info(name, tensor.elem_type, shape)


def _check_count(value: DeclaredTensor, node: Node, count: int, fields: CaseFields) -> None:
    """Collect an error about a counter that would overflow."""
    is_counter = value.dtype == np.int64 and value.shape in ((), (1,))
    if is_counter and made(value).item() + count > np.iinfo(np.int64).max:
        overflow = f"that exceeds int64 within {count} steps"
        fields.add_error(node, f"found a {node.key} {overflow}, expected a smaller value")


def _check_place(node: Node, names: Sequence[str], elsewhere: Mapping[str, str]) -> None:
    """Check that an input under ``steps`` exists and is allowed there.

    Raises:
        FormatError: if the input is unknown or must be stated in another place.
    """
    name = str(node.key)
    if name not in names:
        raise unknown_name(node.parent or node, name, names, "input")
    if name in elsewhere:
        raise FormatError(node, f"found {name}, expected it {elsewhere[name]}")


def _recorded_steps(node: Node | None, count: int) -> tuple[int, ...]:
    """Read the numbers of the steps in which outputs are judged.

    Args:
        node: a list of numbers or ``{every: 50}``; None for all steps.
        count: number of steps.

    Raises:
        FormatError: at the first number that exceeds `count`, or is not larger than its
            predecessor.
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
        dtype: the element type if the value states none.
        fields: the case.

    Raises:
        FormatError: at the first error.
    """
    linear, cycle = node.field("linear"), node.field("cycle")
    if linear is not None and linear.fields is not None:
        ends = [linear.fields[name] for name in ("from", "to")]
        low, high = (float(number(end)) for end in ends)
        element_array(ends, dtype)
        over = int(number(linear.fields["over"]))

        def line() -> Array:
            # In step `over` and all later steps, the value is `high`.
            share = np.minimum(np.arange(count) / max(over - 1, 1), 1.0) if over > 1 else 1.0
            return np.broadcast_to(low + (high - low) * share, count).astype(dtype)

        return PromisedTensor(dtype, (count,), line)
    stacked = fields.declare_tensor(cycle or node, dtype)
    length = stacked.shape[0] if stacked.shape else None
    description = "a single value" if length is None else f"{length} values"
    if cycle is None:
        if length != count:
            raise FormatError(node, f"found {description}, expected {count}, one for each step")
        return stacked
    if not length:
        raise FormatError(cycle, f"found {description}, expected a list of values")
    shape = (count, *stacked.shape[1:])
    if oversize := too_large(shape):
        raise FormatError(cycle, f"found {oversize}")
    return PromisedTensor(
        stacked.dtype, shape, lambda: made(stacked)[np.arange(count) % length, ...]
    )


def _derived(
    node: Node, variable: str, base: DeclaredTensor, fields: CaseFields
) -> tuple[Callable[[], Derived], int]:
    """Read a gradient as a function of X.

    Args:
        node: ``{quadratic: {center: [1, 2]}}`` or another gradient.
        variable: the name of X.
        base: the first value of X; the gradient has the same element type and shape.
        fields: the case.

    Returns:
        A function that creates the gradient, and the number of elements from which the gradient is
        computed.

    Raises:
        FormatError: if a parameter is not a tensor, or differs from X in type, or has an invalid
            shape.
    """
    ((name, parameter_node),) = (node.fields or {}).items()
    gradient = _GRADIENTS[name]
    nodes = parameter_node.fields or {}
    parameters = {key: fields.declare_tensor(value, base.dtype) for key, value in nodes.items()}
    for key, parameter in parameters.items():
        if parameter.dtype != base.dtype:
            actual, expected = dtype_name(parameter.dtype), dtype_name(base.dtype)
            message = f"found {actual}, expected {expected}, the type of {variable}"
            raise FormatError(nodes[key], message)
    shapes = {key: parameter.shape for key, parameter in parameters.items()}
    if shape_error := gradient.shape_error(base.shape, shapes):
        raise FormatError(parameter_node, f"found {shape_error}")

    def make() -> Derived:
        values = {key: np.array(value, base.dtype) for key, value in gradient.defaults.items()}
        values |= {key: made(parameter) for key, parameter in parameters.items()}
        if name == "rosenbrock":
            values["elements"] = np.eye(base.shape[0])
        wide = {key: value.astype(WIDEST_TYPE) for key, value in values.items()}
        return Derived(variable, lambda X: gradient.formula(X, **wide), base.dtype)

    computed = element_count(base) + sum(map(element_count, parameters.values()))
    if name == "rosenbrock":
        # The formula multiplies X by `elements`, an identity matrix.
        computed += element_count(base) ** 2
    return make, computed


# Gradients as functions of X, written as NumPy formulas, which all interpretations share. The
# parameters are passed in the wide type, but X's type can represent their values. The error bound
# includes only rounding errors of operations on X, so an intermediate result that depends only on
# parameters must be exact in X's type.


def quadratic(X: Any, *, curvature: Any, center: Any) -> Any:
    """Gradient of ``sum(curvature / 2 * (X - center)**2)``; the parameters broadcast to X."""
    return curvature * (X - center)


def rosenbrock(X: Any, *, valley: Any, elements: Any) -> Any:
    """Gradient of ``sum(valley * (x[i + 1] - x[i]**2)**2 + (1 - x[i])**2)`` over a vector X.

    ``valley`` is 100 in the original function (Rosenbrock 1960), where X has two elements.
    ``elements`` is the identity matrix: all rows but the last select ``x[i]``, all rows but the
    first select ``x[i + 1]``.
    """
    current, following = elements[:-1] @ X, elements[1:] @ X
    bend = following - current * current
    down = 4 * valley * current * bend + 2 * (1 - current)
    return elements[1:].T @ (2 * valley * bend) - elements[:-1].T @ down


def logistic(X: Any, *, features: Any, labels: Any) -> Any:
    """Gradient of the mean logistic loss of weights X on a data set.

    ``features`` is a matrix with one row per sample and one column per element of X, and ``labels``
    is a vector of 0 and 1.

    Source: Hastie, Tibshirani, Friedman 2009, section 4.4.1.
    """
    probability = 1 / (1 + np.exp(-(features @ X)))
    return features.T @ (probability - labels) / len(labels)


class _Gradient(NamedTuple):
    """A gradient that a case can refer to by name.

    Attributes:
        formula: function of X and the parameters.
        defaults: default values of optional parameters.
        shape_error: function that takes the shape of X and the shapes of the parameters, and
            returns the message about an invalid shape, or an empty string.
    """

    formula: Callable[..., Any]
    defaults: Mapping[str, float]
    shape_error: Callable[[tuple[int, ...], Mapping[str, tuple[int, ...]]], str]


def _quadratic_shape_error(
    shape: tuple[int, ...], parameters: Mapping[str, tuple[int, ...]]
) -> str:
    for name, size in parameters.items():
        if not broadcasts(size, shape):
            return f"{name} of shape {list(size)}, expected one that broadcasts to {list(shape)}"
    return ""


def _rosenbrock_shape_error(
    shape: tuple[int, ...], parameters: Mapping[str, tuple[int, ...]]
) -> str:
    if len(shape) != 1 or shape[0] < 2:  # noqa: PLR2004 - the gradient pairs neighbours
        return f"an X of shape {list(shape)}, expected a vector of at least 2 elements"
    valley = parameters.get("valley", ())
    return f"valley of shape {list(valley)}, expected a number" if valley else ""


def _logistic_shape_error(shape: tuple[int, ...], parameters: Mapping[str, tuple[int, ...]]) -> str:
    if len(shape) != 1:
        return f"an X of shape {list(shape)}, expected a vector"
    features, labels = parameters["features"], parameters["labels"]
    if len(labels) != 1 or not labels[0]:
        return f"labels of shape {list(labels)}, expected a vector"
    if features != (*labels, *shape):
        return f"features of shape {list(features)}, expected {[*labels, *shape]}"
    return ""


_GRADIENTS = {
    "quadratic": _Gradient(quadratic, {"curvature": 1.0, "center": 0.0}, _quadratic_shape_error),
    "rosenbrock": _Gradient(rosenbrock, {"valley": 100.0}, _rosenbrock_shape_error),
    "logistic": _Gradient(logistic, {}, _logistic_shape_error),
}
