"""Valid nodes that result from changes of the nodes in published cases, with their correct outputs.

Values, shapes, types, attributes and optional inputs are changed at random under the operator's
schema. A changed node is kept if onnx's checker and shape inference accept it, and if onnx's
corrected reference computes outputs of the inferred types and shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, permutations
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.core.values import Array, Value, dtype_named
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.node_mutants import FLAGS, choices
from onnxopt_cli.mutation.proofs import (
    NONNEGATIVE_INPUTS,
    POSITIVE_INPUTS,
    SIGNED_ATTRIBUTES,
    has_single_value,
    is_listed,
)
from onnxopt_cli.oracle.corrections.corrected_reference import unsupported_reason
from onnxopt_cli.oracle.distributions import is_random
from onnxopt_cli.oracle.evaluator import ReferenceModel, native_outputs
from onnxopt_cli.oracle.excluded_inputs import excluded_input
from onnxopt_cli.oracle.patching import corrected
from onnxopt_cli.suites.operators.generators import GENERATORS, draw_seeded, schemas
from onnxopt_cli.workers.forked_processes import TimeLimitError, time_limit

# Inputs that must be integers. The operator also allows 8-bit floats, but onnx's reference drops
# their fractions.
_INTEGER_INPUTS = frozenset({"QLinearMatMul.a", "QLinearMatMul.b"})
# The number of changes of a variation is drawn from these numbers.
_CHANGE_COUNTS = (1, 1, 2, 2, 3, 4)
# The number of changes is drawn from these numbers if a node must stay near to another node.
_FEW_CHANGES = (1, 1, 2)
# The number of directed changes is drawn from these numbers.
_DIRECTED_COUNTS = (1, 1, 1, 2, 2, 3)
# Some ways to generate a node use little of a failing node: its number of axes, a type, a single
# attribute or optional input, or the parameters that a condition names. These ways are called
# independent.
_INDEPENDENT_WAYS = frozenset({"borrowed", "converted", "drawn", "passing", "reshaped", "stated"})
# The first seed of generated nodes.
_FIRST_SEED = 1 << 40
# The operator's generator draws one in every _GENERATED_PERIOD nodes. The other nodes are changed
# copies of the nodes from which a search starts.
_GENERATED_PERIOD = 3
# The search for nodes ends after this number of consecutive attempts without a valid node.
_MAX_FAILED_ATTEMPTS = 600
# After _SINGLE_MODELS models, each new model is used with several sets of input values. The reason
# is that a new model takes ten times as long as new values.
_SINGLE_MODELS = 300
_FURTHER_VALUES = 9
_MAX_ELEMENTS = 4096
_MAX_DIMENSION = 40
_SPECIAL_VALUES = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 88.0, -30.0)
_SCALES = (0.1, 1.0, 1.0, 3.0, 10.0, 50.0)
_LENGTHS = (1, 2, 3, 4, 5, 7)
# The number of axes that are inserted in an input is drawn from these numbers.
_INSERTED_AXES = (1, 1, 2, 4)
# The largest magnitude of new values of integer attributes.
_SMALL_INTEGER = 8
# A number of an attribute that is a list is multiplied by a power of ten with an exponent from
# -_LIST_EXPONENT to _LIST_EXPONENT. Products of this number and inputs may be infinite in float32.
_LIST_EXPONENT = 38
# The number of binary digits of float32.
_FLOAT32_BITS = 24
# An input with at most _MAX_PARAMETERS integers is probably a parameter, such as axes, sizes or
# indices.
_MAX_PARAMETERS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Variation:
    """A varied node with its correct outputs.

    Attributes:
        opset: the version of the operator's domain.
        model: the model of the node.
        inputs: its inputs.
        outputs: the outputs of onnx's corrected reference in the model's own types.
        bound: the node with its inputs.
        is_independent: whether the node shares little with any failing node: at most the number of
            axes, a type, a single attribute or optional input, or the parameters that a condition
            names. A node that is not independent is a changed copy of a failing node, so it may
            still have irrelevant features of the failing node.
    """

    opset: int
    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    outputs: Sequence[Value]
    bound: BoundNode
    is_independent: bool = False

    @property
    def size(self) -> int:
        """Number of elements of all inputs."""
        return sum(v.size for v in self.inputs.values() if isinstance(v, np.ndarray))

    def described(self) -> tuple[Mapping[str, Any], Mapping[str, Value]]:
        """Return the attributes that are present in the node, and its inputs, by name."""
        node = BoundNode.of(self.model, self.inputs)
        formals = [formal.name for formal in node.schema.inputs]
        last = len(formals) - 1
        named = {
            formals[min(index, last)] + (f"_{index - last}" if index > last else ""): value
            for index, value in enumerate(node.operands)
            if value is not None
        }
        return dict(node.attributes), named


def variations(
    nodes: Sequence[tuple[onnx.ModelProto, Mapping[str, Value]]], seconds: float
) -> Iterator[Variation]:
    """Yield valid nodes that are similar to ``nodes``; equal arguments yield equal nodes.

    If the operator has a generator, the generator draws one third of the nodes, from seeds that no
    suite uses. The remaining nodes are changed copies of ``nodes``. After the first 300
    models, each model is yielded again with other values of its inputs.

    Args:
        nodes: models of one node with their inputs.
        seconds: the time limit for computing a node; slower nodes are left out.
    """
    random = Random(0)  # noqa: S311 - no cryptography
    bound = [BoundNode.of(model, inputs) for model, inputs in nodes]
    small = [node for node in bound if _elements(node) <= _MAX_ELEMENTS] or bound[:1]
    op_type = small[0].node.op_type
    versions = schemas(op_type) if op_type in GENERATORS else []
    model_count = failed_attempts = 0
    for attempt in count():
        place, remainder = divmod(attempt, _GENERATED_PERIOD)
        is_generated = bool(versions) and not remainder
        with np.errstate(all="ignore"), warnings.catch_warnings(), corrected():
            warnings.simplefilter("ignore")
            try:
                if is_generated:
                    schema = versions[place % len(versions)]
                    problem = draw_seeded(schema, _FIRST_SEED + place).problem
                    node = BoundNode.of(problem.model, problem.inputs)
                else:
                    node = small[attempt % len(small)]
                    for _ in range(random.choice(_CHANGE_COUNTS)):
                        node = random.choice(_CHANGES)(random, node)
                with time_limit(seconds):
                    variation = _computed(node)
            except (Exception, TimeLimitError):  # noqa: BLE001 - the node is not valid
                variation = None
            further: list[Variation] = []
            if variation is not None and model_count >= _SINGLE_MODELS:
                further = list(_with_further_values(random, variation, seconds))
        if variation is None:
            failed_attempts += 1
            if failed_attempts == _MAX_FAILED_ATTEMPTS:
                return
            continue
        failed_attempts = 0
        model_count += 1
        yield variation
        yield from further


def _with_further_values(
    random: Random, variation: Variation, seconds: float
) -> Iterator[Variation]:
    """Yield copies of a node with other values of its inputs; only valid nodes are yielded.

    The caller must have corrected the reference.
    """
    evaluator = ReferenceModel(variation.model)
    (message,) = variation.model.graph.node
    node = variation.bound
    for _ in range(_FURTHER_VALUES):
        try:
            changed = _values(random, node)
            is_excluded = _is_excluded(message, changed)
            if is_excluded or not _is_in_domain(changed):
                continue
            # The names in the model are used, because changed operands get new names.
            named = {
                name: changed.values[new]
                for name, new in zip(node.names, changed.names, strict=True)
                if name
            }
            inputs = {name: named.get(name, value) for name, value in variation.inputs.items()}
            with time_limit(seconds):
                outputs = evaluator.run({name: copied(value) for name, value in inputs.items()})
        except (Exception, TimeLimitError):  # noqa: BLE001, S112 - the node is not valid
            continue
        if [*map(_structure, outputs)] == [*map(_structure, variation.outputs)]:
            bound = replace(node, values={**node.values, **inputs})
            yield replace(variation, inputs=inputs, outputs=outputs, bound=bound)


def _structure(value: Value) -> object:
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else type(value)


def copied(value: Value) -> Value:
    """Return a copy of a value, so that an implementation cannot change the original."""
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def neighbours(
    failing: Sequence[BoundNode],
    passing: Sequence[BoundNode],
    seed: int,
    seconds: float,
    gaps: Sequence[tuple[str, tuple[float, float]]] = (),
    stated: Sequence[str] = (),
    is_directed: bool = False,
) -> Iterator[Variation | None]:
    """Yield nodes similar to failing and passing nodes, without end; None for an invalid node.

    The nodes are of several kinds:

    - Most nodes are failing or passing nodes with one or two changes.
    - Some nodes are passing nodes with the attributes and short inputs of a failing node, or the
      reverse. They show whether a condition on shapes or values depends on the attributes.
    - Some nodes are passing nodes that take a single part from a failing node: the number of axes,
      a type, an attribute, an optional input, or the parameters in ``stated``.
    - Some nodes are failing nodes in which one optional attribute or input is omitted or added.
      All failing nodes may have the attribute or input by accident.
    - If ``is_directed``, some nodes are failing nodes in which a float in ``stated`` is close to a
      limit, often with other types: near its value, near 1 or near 0.
    - If ``is_directed``, many nodes are failing nodes with one or two of these changes: an axis
      gets another length, an attribute gets another value, an input gets another type, more axes or
      fewer elements, or its values are replaced by equal values, by values of any magnitude, or by
      values of one class, such as integers. All failing nodes may have equal axes or similar values
      by accident.
    - In some nodes, all numbers of an attribute are 0 or 1, all elements of an input are equal, or
      integers have few binary digits. A fault may have no effect on such nodes.
    - The generator of the operator draws the remaining nodes, if the operator has a generator.

    Args:
        failing: nodes on which a backend is wrong; at least one.
        passing: nodes on which the backend is right.
        seed: equal seeds yield equal nodes.
        seconds: the time limit for computing a node; slower nodes are left out.
        gaps: intervals by the name of an attribute. In some nodes, the value of the attribute is
            drawn from its interval.
        stated: names of attributes and inputs that some passing nodes take from a failing node.
        is_directed: whether the nodes test a statement that other nodes have confirmed. If so, a
            node may have up to four changes instead of two.
    """
    random = Random(seed)  # noqa: S311 - no cryptography
    op_type = failing[0].node.op_type
    versions = schemas(op_type) if op_type in GENERATORS else []
    change_counts = _CHANGE_COUNTS if is_directed else _FEW_CHANGES
    ways = ["failing"] * 9 + ["toggled"] * 6
    ways += ["directed"] * 80 * is_directed
    if passing:
        ways += ["passing"] * 4 + ["mixed"] * 3 + ["exchanged"] * 3 + ["reshaped"] * 4
        ways += ["converted"] * 2 + ["borrowed"] * 4
        ways += ["stated"] * 8 * bool(stated)
    ways += ["drawn"] * 4 * bool(versions) + ["gap"] * 6 * bool(gaps)
    with_lists = [node for node in failing if _lists_of_floats(node)]
    with_long_integers = [node for node in failing if _long_integers(node)]
    ways += ["neutral"] * 6 * bool(with_lists) + ["short"] * 4 * bool(with_long_integers)
    ways += ["constant"] * (8 if is_directed else 2)
    stated_floats = [name for name in stated if _has_floats(failing[0], name)]
    ways += ["near"] * 16 * bool(is_directed and stated_floats)
    ways += (["periodic"] * 10 + ["image"] * 6) * is_directed
    makers: dict[str, Callable[[], BoundNode]] = {
        "neutral": lambda: _neutral(random, random.choice(with_lists)),
        "constant": lambda: _constant(random, random.choice(failing)),
        "short": lambda: _shortened(random.choice(with_long_integers)),
        "periodic": lambda: _periodic(random, random.choice(failing), stated),
        "image": lambda: _image(random.choice(failing)),
        "near": lambda: _with_other_floats(
            random, _types(random, random.choice(failing)), random.choice(stated_floats)
        ),
    }
    while True:
        variation, way = None, random.choice(ways)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with time_limit(seconds):
                    if way in makers:
                        node = makers[way]()
                    else:
                        node = _neighbour(
                            random, way, failing, passing, versions, gaps, stated, change_counts
                        )
                    variation = _computed(node)
            except (Exception, TimeLimitError):  # noqa: BLE001 - the node is not valid
                variation = None
        if variation and way in _INDEPENDENT_WAYS:
            variation = replace(variation, is_independent=True)
        yield variation


def _neighbour(
    random: Random,
    way: str,
    failing: Sequence[BoundNode],
    passing: Sequence[BoundNode],
    versions: Sequence[defs.OpSchema],
    gaps: Sequence[tuple[str, tuple[float, float]]],
    stated: Sequence[str],
    change_counts: Sequence[int],
) -> BoundNode:
    if way == "drawn":
        problem = draw_seeded(random.choice(versions), _FIRST_SEED + random.getrandbits(32)).problem
        return BoundNode.of(problem.model, problem.inputs)
    begins_passing = way in _INDEPENDENT_WAYS | {"mixed"}
    node = random.choice(passing if begins_passing else failing)
    if way == "gap":
        name, (low, high) = random.choice(gaps)
        is_float = attribute_type(node.schema.attributes[name]) == "FLOAT"
        value = random.uniform(low, high)
        return node.with_attribute(name, value if is_float else round(value))
    if way == "directed":
        return _with_changes(random, node, _DIRECTED_CHANGES, _DIRECTED_COUNTS)
    if way == "toggled":
        return _toggled(random, node, [*failing, *passing])
    if way in {"mixed", "exchanged"}:
        donor = random.choice(failing if way == "mixed" else passing)
        return _with_parameters(random, node, donor)
    if way in {"borrowed", "stated"}:
        donor = random.choice(failing)
        names = stated if way == "stated" else [_optional_parameter(random, donor)]
        node = _with_stated(node, donor, names)
        return random.choice(_NEIGHBOUR_CHANGES)(random, node) if random.randrange(2) else node
    if way == "converted":
        node = _with_type_of(random, node, random.choice(failing))
    if way == "reshaped":
        node = _with_rank(random, node, random.choice(failing))
    return _with_changes(random, node, _NEIGHBOUR_CHANGES, change_counts)


def _with_changes(
    random: Random, node: BoundNode, changes: Sequence[_Change], counts: Sequence[int]
) -> BoundNode:
    """Change a node at random; the number of changes is drawn from ``counts``."""
    for _ in range(random.choice(counts)):
        node = random.choice(changes)(random, node)
    return node


def _optional_parameter(random: Random, node: BoundNode) -> str:
    """Return the name of an attribute or optional input of a node, or an empty string."""
    option = defs.OpSchema.FormalParameterOption.Optional
    entries = node.schema.attributes
    names = [name for name in node.attributes if "GRAPH" not in attribute_type(entries[name])]
    names += [
        item.name
        for place, item in enumerate(node.schema.inputs)
        if item.option == option and node.operand(place) is not None
    ]
    return random.choice(sorted(names)) if names else ""


def _with_stated(node: BoundNode, donor: BoundNode, stated: Sequence[str]) -> BoundNode:
    """Copy the attributes and inputs that ``stated`` names from another node."""
    formals = [formal.name for formal in node.schema.inputs]
    for name in stated:
        if name in node.schema.attributes:
            node = node.with_attribute(name, donor.attributes.get(name))
        elif name in formals:
            place, value = formals.index(name), donor.operand(formals.index(name))
            names = [*node.names, *[""] * (place + 1 - len(node.names))]
            if value is None:
                names[place] = ""
                node = node.with_names(names)
            else:
                node = replace(node, names=tuple(names)).with_operand(place, value)
    return node


def _with_type_of(random: Random, node: BoundNode, donor: BoundNode) -> BoundNode:
    """Convert an input, and all inputs of its type, to the type that it has in another node."""
    places = [
        place
        for place in _tensors(node)
        if place < len(donor.names)
        and (like := donor.operand(place)) is not None
        and like.dtype in _allowed_types(node, place)
    ]
    if not places:
        return node
    chosen = random.choice(places)
    like = donor.operand(chosen)
    assert like is not None  # noqa: S101 - the input is a tensor
    return _with_type(random, node, chosen, like.dtype)


def _with_rank(random: Random, node: BoundNode, donor: BoundNode) -> BoundNode:
    """Give an input the number of axes that the same input has in another node.

    Usually, all inputs of the same shape change as well.
    """
    places = [
        place
        for place in _tensors(node)
        if place < len(donor.names) and donor.operand(place) is not None
    ]
    if not places:
        return node
    place = random.choice(places)
    chosen, model = node.operand(place), donor.operand(place)
    assert chosen is not None and model is not None  # noqa: S101, PT018 - both are tensors
    shape = chosen.shape[: model.ndim]
    shape += tuple(random.choice(_LENGTHS[:4]) for _ in range(model.ndim - len(shape)))
    alike = [
        other_place
        for other_place in _tensors(node)
        if (array := node.operand(other_place)) is not None and array.shape == chosen.shape
    ]
    for resized_place in [place] if random.randrange(4) == 0 else alike:
        array = node.operand(resized_place)
        if array is not None and array.size:
            resized = np.resize(array, shape)
            node = node.with_operand(resized_place, _redrawn(random, resized, resized_place))
    return node


def _toggled(random: Random, node: BoundNode, donors: Sequence[BoundNode]) -> BoundNode:
    """Omit one optional attribute or input of a node, or add one that another node has."""
    optional: list[str | int] = [
        str(name)
        for name, entry in sorted(node.schema.attributes.items())
        if not entry.required and "GRAPH" not in attribute_type(entry)
    ]
    option = defs.OpSchema.FormalParameterOption.Optional
    optional += [place for place, item in enumerate(node.schema.inputs) if item.option == option]
    if not optional:
        return _values(random, node)
    parameter = random.choice(optional)
    if isinstance(parameter, str):
        if parameter in node.attributes:
            return node.with_attribute(parameter, None)
        values_of_donors = [
            donor.attributes[parameter] for donor in donors if parameter in donor.attributes
        ]
        if not values_of_donors:
            return node
        return node.with_attribute(parameter, random.choice(values_of_donors))
    names = [*node.names, *[""] * (parameter + 1 - len(node.names))]
    if names[parameter]:
        names[parameter] = ""
        return node.with_names(names)
    values = [
        value
        for each in donors
        if each.opset == node.opset and (value := each.operand(parameter)) is not None
    ]
    if not values:
        return node
    return replace(node, names=tuple(names)).with_operand(parameter, random.choice(values))


def _with_parameters(random: Random, node: BoundNode, donor: BoundNode) -> BoundNode:
    """Copy some attributes and short inputs from another node."""
    shared = range(1, min(len(node.names), len(donor.names)))
    places = [
        place
        for place in shared
        if node.operand(place) is not None
        and (value := donor.operand(place)) is not None
        and value.size <= _MAX_PARAMETERS
    ]
    parameters: list[str | int] = [*sorted({*donor.attributes, *node.attributes}), *places]
    if not parameters:
        return node
    for parameter in random.sample(parameters, random.randint(1, len(parameters))):
        if isinstance(parameter, str):
            node = node.with_attribute(parameter, donor.attributes.get(parameter))
        else:
            node = node.with_operand(parameter, donor.operand(parameter))
    return node


def _elements(node: BoundNode) -> int:
    return sum(value.size for value in node.operands if isinstance(value, np.ndarray))


def _is_in_domain(node: BoundNode) -> bool:
    """Return whether the operator is defined for the values of the attributes and inputs.

    onnx's reference also computes some nodes that the specification does not define.
    """
    if not all(_is_valid_attribute(name, value) for name, value in node.attributes.items()):
        return False
    # The specification states no default for the parameters of kernels.
    if "kernel_params" in node.schema.attributes and "kernel_params" not in node.attributes:
        return False
    for index, formal in enumerate(node.schema.inputs):
        array = node.operand(index)
        if array is None:
            continue
        if array.size != 1 and has_single_value(node.node.op_type, formal.name):
            return False
        is_float = array.dtype.kind in "fV"
        if is_float and f"{node.node.op_type}.{formal.name}" in _INTEGER_INPUTS:
            return False
        is_positive = is_listed(POSITIVE_INPUTS, node.node.op_type, formal.name)
        if is_positive or is_listed(NONNEGATIVE_INPUTS, node.node.op_type, formal.name):
            numbers = array.astype(np.float64)
            is_valid = np.isfinite(numbers) & (numbers > 0 if is_positive else numbers >= 0)
            if not is_valid.all():
                return False
    return node.node.op_type != "ConvTranspose" or not _has_negative_padding(node)


def _has_negative_padding(node: BoundNode) -> bool:
    """Return whether a transposed convolution requires padding that the specification leaves open.

    If ``output_shape`` is longer than the inferred shape, the total padding is negative, and its
    division by 2 can be rounded in two ways. A total of -1 is accepted if ``auto_pad`` is not
    SAME_UPPER, because a published case shows the result: one more row or column at the end.
    """
    output_shape = node.attributes.get("output_shape")
    x, kernels = node.operand(0), node.operand(1)
    if output_shape is None or x is None or kernels is None:
        return False
    lengths = np.array(x.shape[2:])
    strides, dilations, added = (
        np.array(node.attributes.get(name) or [default] * lengths.size)
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    extents = dilations * (np.array(kernels.shape[2:]) - 1) + 1
    inferred = strides * (lengths - 1) + extents + added
    padding = inferred - np.array(output_shape)[-lengths.size :]
    least = 0 if node.attributes.get("auto_pad") in (b"SAME_UPPER", "SAME_UPPER") else -1
    return bool((padding < least).any())


def _is_valid_attribute(name: str, value: Any) -> bool:
    """Return whether a value of an integer attribute is valid; True for other attributes."""
    if not isinstance(value, int) or name in SIGNED_ATTRIBUTES:
        return True
    if name in FLAGS:
        return value in (0, 1)
    # A norm of order 0 is not defined.
    return value > 0 if name == "p" else value >= 0


def _is_excluded(message: onnx.NodeProto, node: BoundNode) -> bool:
    """Return whether the specification defines no result for a node, or a random one."""
    if excluded_input(message, node.operands, opset=node.opset, is_model=True):
        return True
    inputs = dict(zip(message.input, node.operands, strict=False))
    return is_random(message, node.opset, inputs)


def valid_variation(node: BoundNode, seconds: float) -> Variation | None:
    """Return a changed node with its correct outputs; None if it is not valid or too slow."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with time_limit(seconds):
                return _computed(node)
        except (Exception, TimeLimitError):  # noqa: BLE001 - the node is not valid
            return None


def _computed(node: BoundNode) -> Variation | None:
    """Compute the outputs of a node; None if the node is not valid."""
    if _elements(node) > _MAX_ELEMENTS or not _is_in_domain(node):
        return None
    model, inputs = node.as_model()
    (message,) = model.graph.node
    if unsupported_reason(message) or _is_excluded(message, node):
        return None
    outputs = native_outputs(model, inputs)
    declared = [*map(_declared, model.graph.output, outputs)]
    del model.graph.output[:]
    model.graph.output.extend(declared)
    if model_fault(model):
        return None
    return Variation(node.opset, model, inputs, outputs, BoundNode.of(model, inputs))


def _declared(info: onnx.ValueInfoProto, value: Value) -> onnx.ValueInfoProto:
    """Return the declaration of an output with the type and shape of a value.

    Args:
        info: the declaration of the output before the node was varied.
        value: the value of the output.

    Raises:
        TypeError: if the value is neither a tensor nor a sequence of tensors.
    """
    if isinstance(value, np.ndarray):
        element = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(info.name, element, value.shape)
    if not isinstance(value, list) or not info.type.HasField("sequence_type"):
        raise TypeError(f"{info.name} is not a tensor or a sequence")
    declared = onnx.ValueInfoProto()
    declared.CopyFrom(info)
    declared.type.sequence_type.elem_type.tensor_type.ClearField("shape")
    return declared


# --- changes ---


def _tensors(node: BoundNode) -> list[int]:
    return [index for index, v in enumerate(node.operands) if isinstance(v, np.ndarray)]


def _generator(random: Random) -> np.random.RandomState:
    # The default bit generator would take ten times as long to seed.
    return np.random.RandomState(np.random.PCG64(random.randrange(1 << 31)))


def _values(random: Random, node: BoundNode) -> BoundNode:
    """Draw new values for an input, or for all inputs."""
    indices = _tensors(node)
    if indices and random.random() < 0.5:  # noqa: PLR2004 - a half
        indices = [random.choice(indices)]
    for index in indices:
        array = node.operand(index)
        if array is not None and array.size:
            node = node.with_operand(index, _redrawn(random, array, index))
    return node


def _redrawn(random: Random, array: Array, index: int) -> Array:
    draw = _generator(random)
    kind = "f" if array.dtype.name == "bfloat16" else array.dtype.kind
    if kind == "b":
        # Without axes, NumPy's generator returns a float.
        return np.asarray(draw.rand(*array.shape) < random.choice((0.2, 0.5, 0.8)))
    if kind in "iu":
        return _integers(random, draw, array, index)
    if kind == "f":
        return _floats(random, draw, array)
    if kind == "O":
        return draw.choice(array.reshape(-1), array.shape)
    return array


def _integers(random: Random, draw: np.random.RandomState, array: Array, index: int) -> Array:
    limits = np.iinfo(array.dtype)
    lowest, highest = int(array.min()), int(array.max())
    if index and array.size <= _MAX_PARAMETERS:
        way = random.randrange(4)
        if way == 0:
            return draw.permutation(array.reshape(-1)).reshape(array.shape)
        if way == 1:
            moved = array.astype(object) + draw.randint(-1, 2, array.shape)
            return np.clip(moved, limits.min, limits.max).astype(array.dtype)
    if random.randrange(3) == 0 and not index and array.ndim:
        lowest, highest = int(limits.min), int(limits.max)
    span = min(highest - lowest, (1 << 62) - 1)
    numbers = lowest + draw.randint(0, span + 1, array.shape, dtype=np.int64).astype(object)
    return np.array(numbers, array.dtype)


def _floats(random: Random, draw: np.random.RandomState, array: Array) -> Array:
    way = random.randrange(4)
    values: Any
    if way == 0:
        values = draw.standard_normal(array.shape)
    elif way == 1:
        values = draw.uniform(-3, 3, array.shape) * random.choice(_SCALES)
    elif way == 2:  # noqa: PLR2004 - the third way: ties
        values = draw.randint(-8, 9, array.shape) / 2
    else:
        values = array.astype(np.float64) * draw.uniform(0.5, 1.5, array.shape)
    if (array >= 0).all() and random.random() < 0.6:  # noqa: PLR2004 - variances, boxes, scales
        values = np.abs(values)
    if random.randrange(3) == 0 and values.size:
        flat = np.array(values, np.float64).reshape(-1)
        for _ in range(random.randint(1, 3)):
            flat[draw.randint(flat.size)] = random.choice(_SPECIAL_VALUES)
        values = flat.reshape(array.shape)
    return np.asarray(values).astype(array.dtype)


def _shape(random: Random, node: BoundNode) -> BoundNode:
    """Change one length wherever it occurs in the shapes of the inputs."""
    shapes = [value.shape for value in node.operands if isinstance(value, np.ndarray)]
    lengths = sorted({length for shape in shapes for length in shape if length > 0})
    if not lengths:
        return node
    old = random.choice(lengths)
    new = random.choice((*_LENGTHS, old + 1, 2 * old, max(1, old - 1)))
    indices = _tensors(node)
    if random.randrange(3) == 0:
        indices = [random.choice(indices)]
    for index in indices:
        array = node.operand(index)
        if array is None or old not in array.shape or new > _MAX_DIMENSION:
            continue
        axes = [axis for axis, length in enumerate(array.shape) if length == old]
        if len(axes) > 1 and random.randrange(2):
            axes = [random.choice(axes)]
        shape = [new if axis in axes else length for axis, length in enumerate(array.shape)]
        if np.prod(shape) > _MAX_ELEMENTS or not array.size:
            continue
        # Repeated values would hide an exchange of elements.
        resized = np.resize(array, shape)
        varied = resized if array.dtype == object else _redrawn(random, resized, index)
        node = node.with_operand(index, varied)
    return node


def _axis(random: Random, node: BoundNode) -> BoundNode:
    """Change the length of one axis; the elements remain similar.

    The axis is counted from the first or from the last one. Usually, the axis changes in all inputs
    in which it has the same length.
    """
    places = [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None and array.ndim
    ]
    if not places:
        return node
    chosen = random.choice(places)
    like = node.operand(chosen)
    assert like is not None  # noqa: S101 - the input is a tensor
    axis = random.randrange(-like.ndim, like.ndim)
    length = like.shape[axis]
    new = random.choice((*_LENGTHS[:4], length + 1, max(1, length - 1)))
    for place in [chosen] if random.randrange(4) == 0 else places:
        array = node.operand(place)
        if array is None or not -array.ndim <= axis < array.ndim or array.shape[axis] != length:
            continue
        indices = np.resize(np.arange(length), new) if length else np.empty(0, int)
        resized = np.take(array, indices, axis)
        node = node.with_operand(place, _similar(random, resized))
    return node


def _rank(random: Random, node: BoundNode) -> BoundNode:
    """Insert axes in one input, or in all inputs of the same shape; change repeated elements."""
    places = _tensors(node)
    if not places:
        return node
    chosen = random.choice(places)
    like = node.operand(chosen)
    assert like is not None  # noqa: S101 - the input is a tensor
    resized_places = [chosen] if random.randrange(2) else places
    inserted = [
        (random.randint(0, like.ndim), random.choice(_LENGTHS[:3]))
        for _ in range(random.choice(_INSERTED_AXES))
    ]
    for place in resized_places:
        array = node.operand(place)
        if array is not None and array.shape == like.shape:
            for axis, length in inserted:
                if array.size * length <= _MAX_ELEMENTS:
                    array = np.repeat(np.expand_dims(array, axis), length, axis)
            node = node.with_operand(place, _similar(random, array))
    return node


def _tensors_with_axes(node: BoundNode) -> list[int]:
    """Return the indices of the inputs that are tensors with elements and at least one axis."""
    return [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None and array.size and array.ndim
    ]


def _narrow(random: Random, node: BoundNode) -> BoundNode:
    """Keep only a part of an input: one index of an axis, or a single element.

    The shapes of the other inputs remain. If inputs are broadcast, each input should have fewer
    axes or elements than the others in some nodes.
    """
    places = _tensors_with_axes(node)
    if not places:
        return node
    place = random.choice(places)
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    axis = random.randrange(array.ndim)
    parts = (
        array.take([0], axis), array[0], array.reshape(-1)[:1], array.reshape(-1)[0],
        array.reshape(-1)[:1].reshape((1,) * array.ndim),
    )  # fmt: skip
    return node.with_operand(place, np.asarray(random.choice(parts), array.dtype))


def _similar(random: Random, array: Array) -> Array:
    """Change floating-point elements a little, because equal values would hide an exchange."""
    if array.dtype.kind != "f":
        return array
    factors = _generator(random).uniform(0.5, 1.5, array.shape)
    return np.asarray(array * factors).astype(array.dtype)


def _types(random: Random, node: BoundNode) -> BoundNode:
    """Replace the type of some inputs by another type that the schema allows, and draw new values.

    New values are needed, because a narrower type may represent the old values exactly. Then a
    wrong rounding to that type would have no effect.
    """
    indices = [index for index in _tensors(node) if node.names[index]]
    allowed = [(index, _allowed_types(node, index)) for index in indices]
    allowed = [(index, types) for index, types in allowed if len(types) > 1]
    if not allowed:
        return node
    chosen, types = random.choice(allowed)
    return _with_type(random, node, chosen, random.choice(types))


def _with_type(random: Random, node: BoundNode, chosen: int, new: np.dtype[Any]) -> BoundNode:
    """Replace the type of an input, and of all other inputs of the same type.

    All of these inputs get new values.
    """
    like = node.operand(chosen)
    assert like is not None  # noqa: S101 - the input is a tensor
    for index in _tensors(node):
        array = node.operand(index)
        if array is None or array.dtype != like.dtype or new not in _allowed_types(node, index):
            continue
        values = array.astype(np.float64) if array.dtype != object else np.zeros(array.shape)
        if new.kind in "iu":
            limits = np.iinfo(new)
            values = np.clip(values, limits.min, limits.max)
        converted = values.astype(new)
        drawn = _redrawn(random, converted, index) if converted.size else converted
        node = node.with_operand(index, np.asarray(drawn, new))
    return node


def _allowed_types(node: BoundNode, index: int) -> list[np.dtype[Any]]:
    """Return the numeric types that the schema allows for an input."""
    formals = list(node.schema.inputs)
    if not formals:
        return []
    type_str = formals[min(index, len(formals) - 1)].type_str
    return [
        dtype
        for constraint in node.schema.type_constraints
        if constraint.type_param_str == type_str
        for name in constraint.allowed_type_strs
        if name.startswith("tensor(")
        and (dtype := dtype_named(name[len("tensor(") : -1])) is not None
        and dtype.kind in "fiub"
    ]


def _inputs(random: Random, node: BoundNode) -> BoundNode:
    """Omit an optional input, or add one that is omitted."""
    schema, names = node.schema, list(node.names)
    option = defs.OpSchema.FormalParameterOption
    formals = list(schema.inputs)
    variadic = bool(formals) and formals[-1].option == option.Variadic
    if variadic and names:
        # Add a copy of the last input, or remove the last input.
        changed = names[:-1] if random.randrange(2) and len(names) > 1 else [*names, names[-1]]
        return _values(random, node.with_names(changed))
    optional = [index for index, formal in enumerate(formals) if formal.option == option.Optional]
    if not optional:
        return node
    index = random.choice(optional)
    if index < len(names) and names[index]:
        names[index] = ""
        return node.with_names(names)
    tensors = [v for v in node.operands if isinstance(v, np.ndarray) and v.ndim]
    like = random.choice(tensors)
    names += [""] * (index + 1 - len(names))
    shape = random.choice(((random.choice(like.shape),), like.shape, ()))
    new = node.with_names([*names[:index], "added", *names[index + 1 :]])
    value = _generator(random).standard_normal(shape).astype(like.dtype)
    return new.with_operand(index, value)


def _attributes(random: Random, node: BoundNode) -> BoundNode:
    """Omit an attribute, or give it another value."""
    entries = [
        entry for entry in node.schema.attributes.values() if "GRAPH" not in attribute_type(entry)
    ]
    if not entries:
        return node
    entry = random.choice(sorted(entries, key=lambda item: str(item.name)))
    name = entry.name
    if name in node.attributes and not entry.required and random.randrange(3) == 0:
        return node.with_attribute(name, None)
    value = _attribute_value(random, node, name, attribute_type(entry))
    return node if value is None else node.with_attribute(name, value)


def _attribute_value(random: Random, node: BoundNode, name: str, kind: str) -> Any:
    old = node.attribute(name)
    allowed = choices(node.node.op_type, name)
    match kind:
        case "INT":
            base = old if isinstance(old, int) else 0
            return random.choice((base + 1, base - 1, int(not base), 0, 1, 2, 3, -1, -2))
        case "FLOAT":
            number = old if isinstance(old, float) else 1.0
            scaled = number * random.uniform(0.3, 3)
            return random.choice((scaled, -scaled, -number, 0.0, 1.0, 0.5, number + 0.7))
        case "STRING" if allowed:
            return random.choice(allowed).encode()
        case "STRINGS" if allowed and old:
            return [random.choice(allowed).encode() for _ in old]
        case "INTS":
            return _integer_list(random, node, name, old)
        case "FLOATS" if old:
            return [item * random.uniform(0.3, 3) for item in old]
    return None


def _numbers(random: Random, node: BoundNode) -> BoundNode:
    """Give an attribute that is a number, or some numbers of a list of floats, another value.

    A float is near its old value, near 1 or near 0; the distance is 2 ** -1 to 2 ** -24 on a
    logarithmic scale. Below the precision of the type, such a float may have no effect. A number of
    a list may also be 0, infinite or of any magnitude: some results of a node may then be infinite
    while others are not. An integer has a small magnitude.
    """
    entries = sorted(node.schema.attributes.items())
    kinds = {name: attribute_type(entry) for name, entry in entries if name not in FLAGS}
    names = [name for name, kind in kinds.items() if kind in {"INT", "FLOAT"}]
    # Outputs with large scales would need too much memory.
    names += [name for name in _lists_of_floats(node) if name != "scales"]
    names += [name for name, kind in kinds.items() if kind == "TENSOR" and name == "value"]
    if not names:
        return node
    name = random.choice(names)
    if kinds[name] == "INT":
        return node.with_attribute(name, random.randint(-_SMALL_INTEGER, _SMALL_INTEGER))
    if kinds[name] == "TENSOR":
        return _with_plain_tensor(random, node, name)
    return _with_other_floats(random, node, name)


def _with_plain_tensor(random: Random, node: BoundNode, name: str) -> BoundNode:
    """Set all elements of a tensor that is an attribute to 0 or 1.

    An omitted tensor becomes a single float, as the attribute ``value`` of ConstantOfShape is.
    """
    old = node.attribute(name)
    like = np.zeros(1, np.float32) if old is None else numpy_helper.to_array(old)
    plain = np.full_like(like, random.randrange(2))
    return node.with_attribute(name, numpy_helper.from_array(plain))


def _with_other_floats(random: Random, node: BoundNode, name: str) -> BoundNode:
    """Give an attribute that is a float, or some numbers of a list of floats, another value."""
    old = node.attribute(name)
    if attribute_type(node.schema.attributes[name]) == "FLOAT":
        return node.with_attribute(name, _near(random, old if isinstance(old, float) else 1.0))
    are_special = random.randrange(2)
    numbers = [
        random.choice((number, 0.0, np.inf))
        if are_special
        else random.choice((
            number, _near(random, number),
            number * 10 ** random.uniform(-_LIST_EXPONENT, _LIST_EXPONENT),
        ))
        for number in old or ()
    ]  # fmt: skip
    return node.with_attribute(name, numbers)


def _near(random: Random, number: float) -> float:
    """Return a float near a number, near 1 or near 0."""
    base = random.choice((number, 1.0, 0.0))
    distance = random.choice((-1, 1)) * 2 ** -random.uniform(1, _FLOAT32_BITS)
    return base + distance * (abs(base) or 1.0)


def _has_floats(node: BoundNode, name: str) -> bool:
    """Return whether a name is that of a float, or of a list of floats that are not scales."""
    entry = node.schema.attributes.get(name)
    is_list = name in _lists_of_floats(node) and name != "scales"
    return is_list or (entry is not None and attribute_type(entry) == "FLOAT")


def _integer_list(random: Random, node: BoundNode, name: str, old: Any) -> list[int]:
    ranks = [value.ndim for value in node.operands if isinstance(value, np.ndarray)] or [1]
    rank, spatial = ranks[0], max(1, ranks[0] - 2)
    if name == "perm":
        return random.sample(range(rank), rank)
    if name == "axes":
        axes = random.sample(range(rank), random.randint(1, max(1, rank)))
        return [axis - rank if random.randrange(2) else axis for axis in axes]
    if old:
        if random.randrange(3) == 0:
            return random.sample(list(old), len(old))
        return [max(0, number + random.choice((-1, 0, 0, 1, 2))) for number in old]
    lowest = 0 if "pad" in name else 1
    length = 2 * spatial if name == "pads" else spatial
    return [random.randint(lowest, 3) for _ in range(length)]


def _axes(random: Random, node: BoundNode) -> BoundNode:
    """Draw new axes for an input that consists of axes; their number and signs may change."""
    for index, formal in enumerate(node.schema.inputs):
        axes = node.operand(index)
        if formal.name == "axes" and axes is not None:
            drawn = _integer_list(random, node, "axes", None)
            return node.with_operand(index, np.array(drawn, axes.dtype))
    return node


def _classes(random: Random, node: BoundNode) -> BoundNode:
    """Restrict the values of an input, or of all inputs, to one class, such as integers.

    Faults often depend on values, such as negative numbers, that most inputs contain. Without such
    values, the fault disappears.
    """
    places = [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None and array.dtype.kind in "fi" and array.size
    ]
    if not places:
        return node
    convert = random.choice(_VALUE_CLASSES)
    for place in places if random.randrange(2) else [random.choice(places)]:
        array = node.operand(place)
        if array is not None:
            # NumPy's functions return scalars for arrays without axes.
            node = node.with_operand(place, np.asarray(convert(array), array.dtype))
    return node


def _magnitudes(random: Random, node: BoundNode) -> BoundNode:
    """Draw new elements of an input from a wide range of magnitudes.

    The elements of floating-point inputs are arbitrary numbers, powers of two, or odd integers with
    all digits of the type. In some nodes, all of them have similar magnitudes.
    Sometimes, only half of the elements are new. Parameters such as lengths remain unchanged.
    """
    places = [place for place in _tensors(node) if _has_any_magnitude(node, place)]
    if not places:
        return node
    place, draw = random.choice(places), _generator(random)
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    signs = draw.choice((-1, 1), array.shape) if (array < 0).any() else 1
    numbers: Array
    if array.dtype.kind in "iu":
        numbers = np.asarray(signs * _integers_of_any_length(draw, array))
    else:
        limits = np.finfo(array.dtype)
        largest = random.choice((_FLOAT32_BITS, limits.maxexp - 4))
        lowest = -min(largest, -limits.minexp)
        if random.randrange(2):
            exponents = draw.randint(lowest, largest) + draw.randint(0, 4, array.shape)
            fractions = draw.uniform(0.5, 1, array.shape) if random.randrange(2) else 1.0
            numbers = signs * np.ldexp(fractions, exponents)
        else:
            powers = np.ldexp(1.0, draw.randint(lowest, largest, array.shape))
            integers = np.ldexp(1.0, limits.nmant) + 2 * draw.randint(0, 1 << 9, array.shape) + 1
            kinds = (powers, powers * draw.uniform(1, 2, array.shape), integers)
            numbers = signs * np.choose(draw.randint(0, len(kinds), array.shape), kinds)
    if random.randrange(2):
        numbers = np.where(draw.rand(*array.shape) < 0.5, numbers, array)  # noqa: PLR2004 - a half
    return node.with_operand(place, np.asarray(numbers).astype(array.dtype))


def _integers_of_any_length(draw: np.random.RandomState, like: Array) -> Array:
    """Return nonnegative integers whose numbers of binary digits are evenly distributed.

    The integers have the type and shape of ``like``.
    """
    most = 8 * like.dtype.itemsize - (like.dtype.kind == "i")
    longest = np.asarray(draw.randint(0, 1 << most, like.shape, dtype=np.uint64))
    dropped_bits = np.asarray(draw.randint(0, most, like.shape, dtype=np.uint64))
    return (longest >> dropped_bits).astype(like.dtype)


def _has_any_magnitude(node: BoundNode, place: int) -> bool:
    """Return whether an input consists of data that may be floats, or that has an output's type.

    Types that NumPy does not define, such as float8e5m2, are excluded.
    """
    array, formals = node.operand(place), list(node.schema.inputs)
    formal = formals[min(place, len(formals) - 1)]
    return (
        array is not None
        and array.size > 0
        and array.dtype.kind in "fiu"
        and array.dtype.isbuiltin == 1
        and not has_single_value(node.node.op_type, formal.name)
        and (
            any(dtype.kind == "f" for dtype in _allowed_types(node, place))
            or formal.type_str in {output.type_str for output in node.schema.outputs}
        )
    )


def _repetitions(random: Random, node: BoundNode) -> BoundNode:
    """Replace the elements of an input by a few of its elements.

    A fault that exchanges or repeats elements may have no effect on equal elements.
    """
    places = [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None and array.size > 2  # noqa: PLR2004
    ]
    if not places:
        return node
    place = random.choice(places)
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    elements = array.reshape(-1)[: random.choice((2, 3))]
    return node.with_operand(place, _generator(random).choice(elements, array.shape))


def _periodic(random: Random, node: BoundNode, stated: Sequence[str] = ()) -> BoundNode:
    """Repeat the first elements of an input, so that some of its slices are equal.

    A fault that exchanges slices of an input, such as two biases, has no effect on equal slices.

    Args:
        random: source of all choices.
        node: the node.
        stated: names of the inputs of which one is changed; if no input has such a name, any input
            may be changed.
    """
    formals = [formal.name for formal in node.schema.inputs]
    places = [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None and array.size > 1
    ]
    places = [
        place for place in places if formals[min(place, len(formals) - 1)] in stated
    ] or places
    if not places:
        return node
    place = random.choice(places)
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    period = random.choice([size for size in range(1, array.size) if array.size % size == 0])
    return node.with_operand(place, np.resize(array.reshape(-1)[:period], array.shape))


def _halves(_: Random, node: BoundNode) -> BoundNode:
    """Round the elements of all floating-point inputs to multiples of one half.

    Faults may depend on exact relations between elements, which are rare among random values.
    """
    for place in _tensors(node):
        array = node.operand(place)
        if array is not None and array.dtype.kind == "f":
            node = node.with_operand(place, np.asarray(np.rint(2 * array) / 2, array.dtype))
    return node


def _related(random: Random, node: BoundNode) -> BoundNode:
    """Replace the elements of an input by elements of another input, or by adjacent integers.

    Both inputs have the same type and shape.

    Faults of comparisons and of conversions often depend on equal or nearly equal elements.
    """
    pairs = [
        (first, second)
        for first, second in permutations(_tensors(node), 2)
        if _type_and_shape(node, first) == _type_and_shape(node, second)
    ]
    if not pairs:
        return node
    first, second = random.choice(pairs)
    array = node.operand(first)
    assert array is not None  # noqa: S101 - the input is a tensor
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        moved = array.astype(object) + _generator(random).randint(-1, 2, array.shape)
        moved = np.clip(moved, limits.min, limits.max)
        # NumPy computes with Python integers instead of arrays if the array has no axes.
        array = np.asarray(moved, object).astype(array.dtype)
    return node.with_operand(second, np.asarray(array))


def _type_and_shape(node: BoundNode, place: int) -> tuple[object, tuple[int, ...]]:
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    return array.dtype, array.shape


def _order(random: Random, node: BoundNode) -> BoundNode:
    """Exchange the elements of an input, so that special values are in other places."""
    places = [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None and array.size > 1
    ]
    if not places:
        return node
    place = random.choice(places)
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    flat = array.reshape(-1)
    order = random.sample(range(flat.size), flat.size)
    return node.with_operand(place, flat[order].reshape(array.shape))


def _long_integers(node: BoundNode) -> list[int]:
    """Return the positions of the inputs that have integers beyond the precision of float32."""
    return [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None
        and array.dtype.kind in "iu"
        and array.size
        and max(abs(int(array.min())), int(array.max())) >= 1 << _FLOAT32_BITS
    ]


def _shortened(node: BoundNode) -> BoundNode:
    """Keep only the highest bits of integers, so that float32 can represent the integers."""
    for place in _long_integers(node):
        array = node.operand(place)
        if array is not None:
            numbers = [_highest_bits(int(number)) for number in array.reshape(-1)]
            node = node.with_operand(place, np.array(numbers, array.dtype).reshape(array.shape))
    return node


def _highest_bits(number: int) -> int:
    low_bits = max(0, abs(number).bit_length() - _FLOAT32_BITS)
    magnitude = abs(number) >> low_bits << low_bits
    return magnitude if number >= 0 else -magnitude


def _lists_of_floats(node: BoundNode) -> list[str]:
    """For a node, return the names of the attributes that are lists of floats.

    A valid node may have attributes that are not in its schema. Their names begin and end with
    "__".
    """
    entries = node.schema.attributes.items()
    return sorted(
        name
        for name, entry in entries
        if name in node.attributes and attribute_type(entry) == "FLOATS"
    )


def _neutral(random: Random, node: BoundNode) -> BoundNode:
    """Replace all numbers of an attribute by 0 or 1; a fault may have no effect on such values."""
    name = random.choice(_lists_of_floats(node))
    number = float(random.randrange(2))
    return node.with_attribute(name, [number] * len(node.attributes[name]))


def _constant(random: Random, node: BoundNode) -> BoundNode:
    """Replace all elements of a floating-point input by one number.

    The number is 0, 1, the first element, a tiny number or an infinity.

    Many functions map the tiny number to itself. It has a single digit, so that a wrong rounding of
    the result has no effect.
    """
    arrays = [
        (place, array)
        for place in _tensors(node)
        if (array := node.operand(place)) is not None and array.dtype.kind == "f" and array.size > 1
    ]
    if not arrays:
        return node
    place, array = random.choice(arrays)
    number = random.choice((0.0, 1.0, float(array.flat[0]), 2.0**-20, np.inf, -np.inf))
    return node.with_operand(place, np.full_like(array, number))


def _emptied(random: Random, node: BoundNode) -> BoundNode:
    """Set one length to 0 wherever it occurs in the shapes of the inputs.

    Backends often reject tensors without elements, and few cases have such tensors.
    """
    places = _tensors(node)
    shapes = {place: array.shape for place in places if (array := node.operand(place)) is not None}
    lengths = sorted({length for shape in shapes.values() for length in shape})
    if not lengths:
        return node
    chosen = random.choice(lengths)
    if random.randrange(3) == 0:
        places = [random.choice(places)]
    for place in places:
        shape = tuple(0 if length == chosen else length for length in shapes[place])
        array = node.operand(place)
        if array is not None and shape != array.shape:
            node = node.with_operand(place, np.empty(shape, array.dtype))
    return node


def _without_elements(random: Random, node: BoundNode) -> BoundNode:
    """Remove the elements of all inputs except one, which keeps one element.

    If the inputs are broadcast, the output has no elements, although an input has one.
    """
    places = _tensors_with_axes(node)
    if not places:
        return node
    place_with_element = random.choice(places)
    for place in places:
        array = node.operand(place)
        assert array is not None  # noqa: S101 - the input is a tensor
        single = array.reshape(-1)[[random.randrange(array.size)]]
        part = single.reshape((1,) * array.ndim) if place == place_with_element else array[:0]
        node = node.with_operand(place, part)
    return node


def _special(random: Random, node: BoundNode) -> BoundNode:
    """Replace elements of an input by a special value: one element, or about half of them.

    The value is often 0, because many faults have no effect on zeros. Elements of floating-point
    inputs may also become 1, infinite or NaN, for example.
    """
    places = [
        place
        for place in _tensors(node)
        if (array := node.operand(place)) is not None
        and array.size
        and (
            array.dtype.kind == "f"
            or (array.dtype.kind in "iu" and _has_any_magnitude(node, place))
        )
    ]
    if not places:
        return node
    place = random.choice(places)
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    values = _SPECIAL_VALUES if array.dtype.kind == "f" else (1,)
    are_replaced = (
        _generator(random).rand(array.size) < 0.5  # noqa: PLR2004 - a half
        if random.randrange(2)
        else np.arange(array.size) == random.randrange(array.size)
    )
    changed = array.copy()
    changed.reshape(-1)[are_replaced] = random.choice((0, random.choice(values)))
    return node.with_operand(place, changed)


def _image(node: BoundNode) -> BoundNode:
    """Replace an input by the right output, if both have the same type and shape.

    The values are then special for the operator. For example, the elements are already normalized,
    rounded or sorted.
    """
    variation = _computed(node)
    output = variation.outputs[0] if variation else None
    for place in _tensors(node):
        array = node.operand(place)
        if (
            isinstance(output, np.ndarray)
            and array is not None
            and (output.dtype, output.shape) == (array.dtype, array.shape)
        ):
            return node.with_operand(place, output)
    return node


def _powers_of_two(array: Array) -> Array:
    """Replace each element by the nearest power of two of its sign; 0, infinity and NaN remain."""
    mantissas, exponents = np.frexp(array.astype(np.float64))
    powers = np.ldexp(np.sign(mantissas), exponents - 1)
    return np.where(np.isfinite(array.astype(np.float64)), powers, array)


# Functions that return values of a class.
_VALUE_CLASSES: tuple[Callable[[Array], Array], ...] = (
    np.abs,
    lambda array: -np.abs(array),
    np.rint,
    lambda array: array - np.trunc(array),
    lambda array: np.full_like(array, array.reshape(-1)[0]),
    lambda array: np.nan_to_num(array, nan=1, posinf=2, neginf=-2),
    _powers_of_two,
)
_Change = Callable[[Random, BoundNode], BoundNode]
_CHANGES: tuple[_Change, ...] = (
    *(_values,) * 4, *(_shape,) * 3, *(_types,) * 2, *(_inputs,) * 2, *(_attributes,) * 5,
)  # fmt: skip
# Changes of failing nodes that may refute a condition.
_DIRECTED_CHANGES: tuple[_Change, ...] = (
    *(_attributes,) * 2, *(_numbers,) * 2, *(_axis,) * 4, *(_rank,) * 2, _narrow, *(_types,) * 2,
    *(_classes,) * 2, *(_magnitudes,) * 3, _repetitions, _constant, *(_special,) * 2,
    _without_elements,
)  # fmt: skip
# Changes of the nodes that are submitted to distinguish hypotheses about a backend.
_NEIGHBOUR_CHANGES: tuple[_Change, ...] = (
    *_CHANGES, *(_axes,) * 2, *(_classes,) * 3, *(_halves,) * 2, *(_order,) * 2, _emptied,
    _related,
)  # fmt: skip
