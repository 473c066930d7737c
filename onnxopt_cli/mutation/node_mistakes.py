"""Known mistakes of operators without a formula, for the explanation of failures.

The known mistakes of an operator are the mutants that follow from its schema, and the mistakes that
are listed here for single operators, such as another rounding, convention or order of gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
import onnx
from onnx import defs

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.node_mutants import (
    Change,
    Compute,
    MutantKind,
    NodeMutant,
    choices,
    node_mutants,
)

#: Computes the outputs of a node with a mistake; returns None if the mistake has no effect on it.
Computation = Callable[[BoundNode], Sequence[Value] | None]


@dataclass(frozen=True, slots=True, eq=False)
class ComputedMistake(NodeMutant):
    """A mistake whose outputs are computed without the correct operator.

    Attributes:
        computation: computes the outputs.
    """

    computation: Computation = lambda _: None

    def outputs(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], compute: Compute
    ) -> Sequence[Value] | None:
        """Return the outputs of a model of one node as the mistake computes them."""
        del compute
        with np.errstate(all="ignore"):
            outputs = self.computation(BoundNode.of(model, inputs))
        return None if outputs is None else [np.asarray(value) for value in outputs]


@cache
def node_mistakes(domain: str, op_type: str, opset: int) -> Mapping[str, NodeMutant]:
    """Return the known mistakes of an operator by name, the more likely ones first.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        opset: the version of the domain.

    Raises:
        onnx.defs.SchemaError: if there is no such operator.
    """
    schema = defs.get_schema(op_type, opset, domain)
    of_schema = node_mutants(domain, op_type, opset)
    likely = {MutantKind.ATTRIBUTE_IGNORED, MutantKind.INPUT_IGNORED}
    mistakes: dict[str, NodeMutant] = {}
    for mistake in (
        *(_own_mistakes(schema) if not domain else ()),
        *(mutant for mutant in of_schema if mutant.kind in likely),
        *_attribute_mistakes(schema),
        *_output_mistakes(),
        *(mutant for mutant in of_schema if mutant.kind not in likely),
    ):
        mistakes.setdefault(mistake.name, mistake)
    return mistakes


# --- any operator ---


def _attribute_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    kinds = {name: attribute_type(entry) for name, entry in sorted(schema.attributes.items())}
    for name, kind in kinds.items():
        options = choices(schema.name, name) if kind == "STRING" else ()
        for choice, read_choice in permutations(options, 2):
            yield NodeMutant(
                f"{name} {choice} read as {read_choice}",
                MutantKind.ATTRIBUTE_VALUE,
                f"The value {choice} of the attribute {name} is read as {read_choice}.",
                partial(_read_as, name, choice.encode(), read_choice.encode()),
            )
        if kind == "FLOAT" or (kind == "INT" and not schema.attributes[name].required):
            yield from _number_mistakes(name, is_integer=kind == "INT")
    for name in kinds:
        other_default = _other_default(schema, name)
        if other_default is not None:
            yield NodeMutant(
                f"default of {name} changed",
                MutantKind.ATTRIBUTE_DEFAULT,
                f"If the attribute {name} is omitted, {_text(other_default)} is used.",
                partial(_defaulting, name, other_default),
            )
    for first, second in combinations(kinds, 2):
        if kinds[first] == kinds[second] and kinds[first] in {"INT", "INTS", "FLOAT"}:
            yield NodeMutant(
                f"{first} and {second} exchanged",
                MutantKind.ATTRIBUTE_VALUE,
                f"The attributes {first} and {second} are exchanged.",
                partial(_attributes_exchanged, first, second),
            )


def _number_mistakes(name: str, *, is_integer: bool) -> Iterator[NodeMutant]:
    """Yield mistakes in which an attribute is a fixed integer, or limited to a range."""
    changes: dict[str, Change] = {}
    if is_integer:
        values = (-1, 0, 1) if name == "axis" else (0, 1)
        changes = {f"always {value}": partial(_always, name, value) for value in values}
    else:
        changes = {text: partial(_limited, name, limit) for text, limit in _LIMITS.items()}
    for text, change in changes.items():
        about = f"The attribute {name} is {text}."
        yield NodeMutant(f"{name} {text}", MutantKind.ATTRIBUTE_VALUE, about, change)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else f"{value:g}"


def _other_default(schema: defs.OpSchema, name: str) -> Any:
    """Return a wrong default of an attribute; None if it has no default, or only one value."""
    entry = schema.attributes[name]
    if entry.required or not entry.default_value.type:
        return None
    default = onnx.helper.get_attribute_value(entry.default_value)
    if isinstance(default, bytes):
        other_choices = [
            choice for choice in choices(schema.name, name) if choice != default.decode()
        ]
        return other_choices[0].encode() if other_choices else None
    if isinstance(default, float):
        return 1.25 * default + 0.125
    if isinstance(default, int):
        if default == 0:
            return -1 if name == "axis" else 1
        return 0 if default == 1 else default + 1
    return None


def _defaulting(name: str, value: Any, node: BoundNode) -> BoundNode | None:
    return None if name in node.attributes else node.with_attribute(name, value)


def _read_as(name: str, given: bytes, read: bytes, node: BoundNode) -> BoundNode | None:
    return node.with_attribute(name, read) if node.attribute(name) == given else None


def _always(name: str, value: int, node: BoundNode) -> BoundNode | None:
    return None if node.attribute(name) == value else node.with_attribute(name, value)


#: Ranges to which programs limit numbers, and functions that limit a number to them.
_LIMITS: dict[str, Callable[[float], float]] = {
    "raised to at least 0": lambda number: max(number, 0.0),
    "raised to at least 1": lambda number: max(number, 1.0),
    "limited to at most 1": lambda number: min(number, 1.0),
}


def _limited(name: str, limit: Callable[[float], float], node: BoundNode) -> BoundNode | None:
    value = node.attribute(name)
    if value is None or limit(value) == value:
        return None
    return node.with_attribute(name, limit(value))


def _attributes_exchanged(first: str, second: str, node: BoundNode) -> BoundNode | None:
    left, right = node.attribute(first), node.attribute(second)
    if left == right or left is None or right is None:
        return None
    return node.with_attribute(first, right).with_attribute(second, left)


def _output_mistakes() -> Iterator[NodeMutant]:
    """Yield mistakes in the outputs: their type, signs, or special values."""
    for name in ("float32", "float64", "float16", "int64", "int32", "uint8", "bool"):
        yield NodeMutant(
            f"first output of type {name}",
            MutantKind.TYPE,
            f"The first output has the type {name}.",
            finish=partial(_first_changed, partial(_of_type, np.dtype(name))),
        )
    changes: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "outputs without sign": ("The outputs are the magnitudes of the right ones.", _magnitude),
        "outputs negated": ("The outputs have the opposite sign.", _negated),
        "outputs transposed": ("The last two axes of the outputs are exchanged.", _transposed),
        "NaN outputs are 0": ("Outputs that should be NaN are 0.", _nan_as_zero),
        "infinite outputs are finite": (
            "Outputs that should be infinite are the largest finite number.", _finite,
        ),
        "outputs with one more axis": (
            "The outputs have an additional first axis of length 1.", lambda array: array[None],
        ),
        "scalar outputs have an axis": (
            "Outputs that should be scalars have an axis of length 1.",
            lambda array: array.reshape(1) if array.ndim == 0 else array,
        ),
    }  # fmt: skip
    for name, (about, change) in changes.items():
        finish = partial(_each_changed, change)
        yield NodeMutant(name, MutantKind.VALUES, about, finish=finish)


def _first_changed(change: Callable[[Array], Array], outputs: Sequence[Value]) -> list[Value]:
    first, *further = outputs
    return [change(first) if isinstance(first, np.ndarray) else first, *further]


def _each_changed(change: Callable[[Array], Array], outputs: Sequence[Value]) -> list[Value]:
    return [change(value) if isinstance(value, np.ndarray) else value for value in outputs]


def _of_type(dtype: np.dtype[Any], array: Array) -> Array:
    return array if array.dtype == object else array.astype(dtype)


def _magnitude(array: Array) -> Array:
    return np.abs(array) if _is_float(array) or array.dtype.kind == "i" else array


def _negated(array: Array) -> Array:
    if array.dtype == bool:
        return ~array
    return -array if _is_float(array) or array.dtype.kind == "i" else array


def _transposed(array: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)) if array.ndim > 1 else array


def _nan_as_zero(array: Array) -> Array:
    return np.where(np.isnan(array), array.dtype.type(0), array) if _is_float(array) else array


def _finite(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    largest = np.finfo(array.dtype).max
    return np.where(np.isinf(array), np.copysign(largest, array), array)


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


# --- single operators and families ---


def _own_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    """Yield the mistakes of an operator of ai.onnx that do not follow from its schema."""
    for operators, name, about, mistake in _MISTAKES:
        if schema.name not in operators:
            continue
        kind = MutantKind.VALUES
        if isinstance(mistake, _Computed):
            yield ComputedMistake(name, kind, about, computation=mistake.computation)
        else:
            yield NodeMutant(name, kind, about, mistake)


@dataclass(frozen=True, slots=True)
class _Computed:
    computation: Computation


def _elementwise(function: Callable[..., Array]) -> _Computed:
    """Return a mistake that computes the output from the operands, in their type."""

    def computation(node: BoundNode) -> Sequence[Value] | None:
        operands = [value for value in node.operands if isinstance(value, np.ndarray)]
        result = function(*operands)
        return [np.asarray(result).astype(operands[0].dtype)]

    return _Computed(computation)


def _half_away(array: Array) -> Array:
    wide = array.astype(np.float64)
    return np.sign(wide) * np.floor(np.abs(wide) + 0.5)


def _integers(function: Callable[[Array, Array], Array]) -> _Computed:
    """Return a mistake of a division of integers; divisions of floats are correct."""

    def computation(node: BoundNode) -> Sequence[Value] | None:
        left, right = node.operand(0), node.operand(1)
        if left is None or right is None or left.dtype.kind not in "iu" or not right.all():
            return None
        return [np.asarray(function(left, right)).astype(left.dtype)]

    return _Computed(computation)


def _indices_within(node: BoundNode) -> BoundNode | None:
    """Clamp the indices of OneHot to the range from -depth to depth - 1."""
    indices, depth = node.operand(0), node.operand(1)
    if indices is None or depth is None:
        return None
    last = int(depth.reshape(-1)[0]) - 1
    clamped = np.clip(indices, -last - 1, last).astype(indices.dtype)
    return None if np.array_equal(clamped, indices) else node.with_operand(0, clamped)


def _negative_off(node: BoundNode) -> BoundNode | None:
    indices, depth = node.operand(0), node.operand(1)
    if indices is None or depth is None or not (indices < 0).any():
        return None
    beyond = np.where(indices < 0, depth.reshape(-1)[0], indices).astype(indices.dtype)
    return node.with_operand(0, beyond)


def _indices_wrapped(node: BoundNode) -> BoundNode | None:
    indices, depth = node.operand(0), node.operand(1)
    if indices is None or depth is None:
        return None
    wrapped = np.mod(indices, depth.reshape(-1)[0]).astype(indices.dtype)
    return None if np.array_equal(wrapped, indices) else node.with_operand(0, wrapped)


def _epsilon_beside_root(node: BoundNode) -> BoundNode | None:
    """Add epsilon to the root of BatchNormalization's variance."""
    variance = node.operand(4)
    epsilon = node.attribute("epsilon")
    if variance is None or node.attribute("training_mode"):
        return None
    moved = (np.sqrt(variance.astype(np.float64)) + epsilon) ** 2
    return node.with_attribute("epsilon", 0.0).with_operand(4, moved.astype(variance.dtype))


def _root(centre: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return np.sqrt((centre * centre).mean(axes, keepdims=True) + epsilon)


def _normalized(
    deviation: Callable[[Array, tuple[int, ...], float], Array] = _root,
    *,
    centred: bool = True,
    over: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda axes: axes,
) -> _Computed:
    """Return a mistake of a normalization.

    Args:
        deviation: returns the divisor, given the centred input, the axes of the mean, and epsilon.
        centred: whether the mean is subtracted.
        over: returns the axes of the mean, given the right ones. The input of GroupNormalization
            has the axes batch, group, and element of the group.
    """

    def computation(node: BoundNode) -> Sequence[Value] | None:
        x = node.operand(0)
        if x is None or not x.ndim or sum(map(bool, node.node.output)) > 1:
            return None
        wide, shape = x.astype(np.float64), x.shape
        op_type = node.node.op_type
        epsilon = node.attribute("epsilon") or 0.0
        if op_type == "GroupNormalization":
            groups = node.attribute("num_groups")
            wide = wide.reshape(shape[0], groups, -1)
            axes: tuple[int, ...] = (2,)
        elif op_type == "InstanceNormalization":
            axes = tuple(range(2, x.ndim))
        elif op_type == "MeanVarianceNormalization":
            axes = tuple(node.attribute("axes") or (0, 2, 3))
        else:
            axes = tuple(range(node.attribute("axis") % x.ndim, x.ndim))
        axes = over(axes)
        centre = wide - wide.mean(axes, keepdims=True) if centred else wide
        y = (centre / deviation(centre, axes, epsilon)).reshape(shape)
        scale, bias = node.operand(1), node.operand(2)
        by_channel = op_type in {"GroupNormalization", "InstanceNormalization"}
        for at, operand in enumerate((scale, bias)):
            if operand is None:
                continue
            values = operand.astype(np.float64)
            if by_channel:
                if values.size != shape[1]:
                    values = np.repeat(values, shape[1] // values.size)
                values = values.reshape(-1, *[1] * (x.ndim - 2))
            y = y + values if at else y * values
        return [y.astype(x.dtype)]

    return _Computed(computation)


def _root_plus_epsilon(centre: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return np.sqrt((centre * centre).mean(axes, keepdims=True)) + epsilon


def _unbiased(least_divisor: int, centre: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    count = np.prod([centre.shape[axis] for axis in axes])
    divisor = max(count - 1, least_divisor)
    return np.sqrt((centre * centre).sum(axes, keepdims=True) / divisor + epsilon)


def _no_epsilon(centre: Array, axes: tuple[int, ...], _epsilon: float) -> Array:
    return np.sqrt((centre * centre).mean(axes, keepdims=True))


def _largest_of_both(centre: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return np.sqrt(np.maximum((centre * centre).mean(axes, keepdims=True), epsilon))


def _gates(order: Sequence[int], node: BoundNode) -> BoundNode | None:
    """Reorder the gates of the weights W, of the recurrent weights R and of the biases B."""
    for index in (1, 2, 3):
        array = node.operand(index)
        if array is None:
            continue
        parts = len(order) * (2 if index == 3 else 1)  # noqa: PLR2004 - two biases for each gate
        if array.ndim < 2 or array.shape[1] % parts:  # noqa: PLR2004 - directions and gates
            return None
        blocks = np.split(array, parts, axis=1)
        chosen = [
            blocks[start + at] for start in range(0, parts, len(order)) for at in order
        ]  # fmt: skip
        node = node.with_operand(index, np.concatenate(chosen, axis=1))
    return node


def _bias_half(half: int, node: BoundNode) -> BoundNode | None:
    """Ignore the biases of the input (0) or of the state (1)."""
    bias = node.operand(3)
    if bias is None or bias.ndim < 2:  # noqa: PLR2004 - directions and biases
        return None
    changed, size = bias.copy(), bias.shape[1] // 2
    changed[:, half * size : (half + 1) * size] = 0
    return None if np.array_equal(changed, bias) else node.with_operand(3, changed)


def _first_initial_state(node: BoundNode) -> BoundNode | None:
    """Replace the initial states of the second direction by those of the first."""
    axis = 1 if node.attribute("layout") else 0
    return _first_direction({5: axis, 6: axis}, node)


def _first_weights(node: BoundNode) -> BoundNode | None:
    """Replace weights and biases of the second direction by those of the first."""
    return _first_direction({1: 0, 2: 0, 3: 0}, node)


def _first_direction(axes: Mapping[int, int], node: BoundNode) -> BoundNode | None:
    """Replace values of the second direction; ``axes`` has the axis of directions by input."""
    if node.attribute("direction") != b"bidirectional":
        return None
    for index, axis in axes.items():
        array = node.operand(index)
        if array is not None:
            first = np.repeat(np.take(array, [0], axis), array.shape[axis], axis)
            node = node.with_operand(index, first)
    return node


def _reverse_as_computed(node: BoundNode) -> BoundNode | None:
    """Reverse the steps of each sequence instead of the direction."""
    x, lengths = node.operand(0), node.operand(4)
    if node.attribute("direction") != b"reverse" or x is None:
        return None
    is_batch_first = bool(node.attribute("layout"))
    steps = (np.swapaxes(x, 0, 1) if is_batch_first else x).copy()
    for sequence in range(steps.shape[1]):
        length = len(steps) if lengths is None else int(lengths[sequence])
        steps[:length, sequence] = steps[:length, sequence][::-1]
    reversed_x = np.ascontiguousarray(np.swapaxes(steps, 0, 1)) if is_batch_first else steps
    return node.with_attribute("direction", b"forward").with_operand(0, reversed_x)


def _bias_outside_reset(node: BoundNode) -> BoundNode | None:
    """Move the state's bias of the last gate of GRU to the bias of the input."""
    bias = node.operand(3)
    if bias is None or not node.attribute("linear_before_reset"):
        return None
    *gates, of_input, update, reset, of_state = np.split(bias, 6, axis=1)
    moved = [*gates, of_input + of_state, update, reset, np.zeros_like(of_state)]
    return node.with_operand(3, np.concatenate(moved, axis=1))


def _factors_multiplied(name: str, node: BoundNode) -> BoundNode | None:
    """Multiply one of Gemm's factors by the other."""
    if node.operand(2) is None:
        return None
    return node.with_attribute(name, node.attribute("alpha") * node.attribute("beta"))


def _end_clamped_to_first(node: BoundNode) -> BoundNode | None:
    """Read an end of Slice that precedes the first element as 0 if the step is negative."""
    x, _, ends, axes, steps = (node.operand(index) for index in range(5))
    if x is None or ends is None or steps is None:
        return None
    named = range(ends.size) if axes is None else axes.tolist()
    lengths = np.array([x.shape[axis] for axis in named], ends.dtype)
    clamped = np.where((steps < 0) & (ends < -lengths), 0, ends).astype(ends.dtype)
    return None if np.array_equal(clamped, ends) else node.with_operand(2, clamped)


def _flipped(node: BoundNode) -> BoundNode | None:
    kernel = node.operand(1)
    if kernel is None or kernel.ndim < 3:  # noqa: PLR2004 - channels and one spatial axis
        return None
    flipped = np.ascontiguousarray(np.flip(kernel, tuple(range(2, kernel.ndim))))
    return node.with_operand(1, flipped)


def _scales_of_sizes(node: BoundNode) -> BoundNode | None:
    """Replace the scales of Resize by quotients of the output lengths and the input lengths."""
    x, scales = node.operand(0), node.operand(2)
    if x is None or scales is None or not scales.size:
        return None
    axes = node.attribute("axes") or range(x.ndim)
    lengths = np.array([x.shape[axis] for axis in axes], np.float64)
    if not lengths.all() or lengths.size != scales.size:
        return None
    rounded = np.floor(lengths * scales.astype(np.float64)) / lengths
    # A quotient that float32 rounds down may lead to a shorter output; the next float32 does not.
    moved = np.nextafter(rounded.astype(np.float32), np.float32(np.inf))
    moved = np.where(np.floor(lengths * rounded.astype(np.float32)) == np.floor(
        lengths * scales.astype(np.float64)), rounded.astype(np.float32), moved)  # fmt: skip
    return None if np.array_equal(moved, scales) else node.with_operand(2, moved.astype(np.float32))


def _minimum_wins(node: BoundNode) -> Sequence[Value] | None:
    x, low, high = (node.operand(index) for index in range(3))
    if x is None or low is None or high is None or not low > high:
        return None
    return [np.maximum(np.minimum(x, high), low).astype(x.dtype)]


def _cast_rounded(function: Callable[[Array], Array], node: BoundNode) -> BoundNode | None:
    x = node.operand(0)
    target = node.attribute("to")
    like = node.operand(1)
    if target is not None:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(target)
    else:
        dtype = like.dtype if like is not None else np.dtype(object)
    if x is None or x.dtype.kind != "f" or dtype.kind not in "iu":
        return None
    changed = function(x).astype(x.dtype)
    return None if np.array_equal(changed, x) else node.with_operand(0, changed)


def _quantized(rounded: Callable[[Array, Array], Array], *, saturates: bool = True) -> Computation:
    """Return a mistake of QuantizeLinear.

    Args:
        rounded: returns the quantized values before saturation, given the quotient of input and
            scale, and the zero point.
        saturates: whether values outside the range of the output type are clamped to it.
    """

    def computation(node: BoundNode) -> Sequence[Value] | None:
        x, scale, zero_point = (node.operand(index) for index in range(3))
        if x is None or scale is None or node.attribute("block_size"):
            return None
        dtype = np.dtype(np.uint8) if zero_point is None else zero_point.dtype
        if dtype.kind not in "iu" or (node.attribute("output_dtype") and zero_point is None):
            return None
        zeros = np.zeros(scale.shape) if zero_point is None else zero_point.astype(np.float64)
        shape = [1] * x.ndim
        if scale.size > 1:
            shape[node.attribute("axis") % x.ndim] = scale.size
        quotient = (x / scale.reshape(shape)).astype(np.float64)
        quantized = rounded(quotient, zeros.reshape(shape))
        limits = np.iinfo(dtype)
        if saturates:
            quantized = np.clip(quantized, limits.min, limits.max)
            return [quantized.astype(dtype)]
        return [np.nan_to_num(quantized).astype(np.int64).astype(dtype)]

    return computation


def _causal_mask(offset: str, node: BoundNode) -> BoundNode | None:
    """Replace Attention's causal mask by one that is aligned to the first or to the last key."""
    query, key, past = node.operand(0), node.operand(1), node.operand(4)
    if not node.attribute("is_causal") or query is None or key is None:
        return None
    if node.operand(3) is not None or query.ndim != key.ndim or query.dtype != key.dtype:
        return None
    queries, keys = query.shape[-2], key.shape[-2] + (past.shape[-2] if past is not None else 0)
    shift = 0 if offset == "first" else keys - queries
    mask = np.tri(queries, keys, shift, dtype=bool)
    names = [*node.names, *[""] * (4 - len(node.names))]
    names[3] = "causal_mask"
    return node.with_names(names).with_operand(3, mask).with_attribute("is_causal", None)


def _padded_with_zero(node: BoundNode) -> BoundNode | None:
    """Pad ConvInteger's input with 0 instead of its zero point."""
    x, zero_point, pads = node.operand(0), node.operand(2), node.attribute("pads")
    if x is None or zero_point is None or not pads or not any(pads) or not zero_point.any():
        return None
    half = len(pads) // 2
    widths = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    return node.with_operand(0, np.pad(x, widths)).with_attribute("pads", None)


def _alpha_times_size(node: BoundNode) -> BoundNode:
    return node.with_attribute("alpha", node.attribute("alpha") * node.attribute("size"))


def _window_to_the_left(node: BoundNode) -> Sequence[Value] | None:
    x, size = node.operand(0), node.attribute("size")
    if x is None or x.ndim < 2 or size % 2:  # noqa: PLR2004 - batch and channels
        return None
    squares = np.pad(
        x.astype(np.float64) ** 2, [(0, 0), (size // 2, size), *[(0, 0)] * (x.ndim - 2)]
    )
    total = sum(squares[:, at : at + x.shape[1]] for at in range(size))
    scale = node.attribute("bias") + node.attribute("alpha") / size * total
    return [(x / scale ** node.attribute("beta")).astype(x.dtype)]


def _threshold_kept(node: BoundNode) -> Sequence[Value] | None:
    x = node.operand(0)
    if x is None:
        return None
    return [np.where(x.astype(np.float64) >= node.attribute("alpha"), x, 0).astype(x.dtype)]


def _last_maximum(node: BoundNode) -> Sequence[Value] | None:
    x, axis = node.operand(0), node.attribute("axis")
    if x is None or not x.size or node.schema.since_version < _SOFTMAX_OF_ONE_AXIS:
        return None
    places = x.shape[axis] - 1 - np.flip(x, axis).argmax(axis, keepdims=True)
    result = np.zeros_like(x)
    np.put_along_axis(result, places, 1, axis)
    return [result]


def _all_maxima(node: BoundNode) -> Sequence[Value] | None:
    x, axis = node.operand(0), node.attribute("axis")
    if x is None or not x.size or node.schema.since_version < _SOFTMAX_OF_ONE_AXIS:
        return None
    return [(x == x.max(axis, keepdims=True)).astype(x.dtype)]


def _celu_as_elu(node: BoundNode) -> Sequence[Value] | None:
    x, alpha = node.operand(0), node.attribute("alpha")
    if x is None:
        return None
    wide = x.astype(np.float64)
    return [np.where(wide < 0, alpha * np.expm1(wide), wide).astype(x.dtype)]


def _softmax_without_maximum(node: BoundNode) -> Sequence[Value] | None:
    """Compute Softmax or LogSoftmax without subtracting the largest element."""
    x, axis = node.operand(0), node.attribute("axis")
    if x is None or node.schema.since_version < _SOFTMAX_OF_ONE_AXIS:
        return None
    powers = np.exp(x)
    quotients = powers / powers.sum(axis, keepdims=True, dtype=x.dtype)
    is_log = node.node.op_type == "LogSoftmax"
    return [(np.log(quotients) if is_log else quotients).astype(x.dtype)]


def _log_of_sum(node: BoundNode) -> Sequence[Value] | None:
    """Compute LogSoftmax as x - log(sum(exp(x)))."""
    x, axis = node.operand(0), node.attribute("axis")
    if x is None or node.schema.since_version < _SOFTMAX_OF_ONE_AXIS:
        return None
    total = np.exp(x).sum(axis, keepdims=True, dtype=x.dtype)
    return [(x - np.log(total)).astype(x.dtype)]


def _log_sum_exp_without_maximum(node: BoundNode) -> Sequence[Value] | None:
    """Compute ReduceLogSumExp without subtracting the largest element."""
    x, axes = node.operand(0), node.operand(1)
    if x is None or x.dtype.kind != "f":
        return None
    listed_axes = node.attribute("axes") if axes is None else axes.reshape(-1).tolist()
    if not listed_axes and node.attribute("noop_with_empty_axes"):
        return None
    total = np.exp(x).sum(
        tuple(listed_axes) if listed_axes else None,
        keepdims=bool(node.attribute("keepdims")),
        dtype=x.dtype,
    )
    return [np.log(total).astype(x.dtype)]


def _momentum_reversed(node: BoundNode) -> BoundNode | None:
    if not node.attribute("training_mode"):
        return None
    return node.with_attribute("momentum", 1 - node.attribute("momentum"))


def _last_of_duplicates(node: BoundNode) -> Sequence[Value] | None:
    """Apply only the last of several updates of one element."""
    data, indices, updates = (node.operand(index) for index in range(3))
    reduction = node.attribute("reduction") or b"none"
    if data is None or indices is None or updates is None or reduction == b"none":
        return None
    function = {b"add": np.add, b"mul": np.multiply, b"max": np.maximum, b"min": np.minimum}
    result = data.copy()
    if node.node.op_type == "ScatterND":
        place: Any = tuple(np.moveaxis(indices, -1, 0))
    else:
        axis = int(node.attribute("axis") or 0)
        grid: list[Any] = list(np.indices(indices.shape))
        grid[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
        place = tuple(grid)
    result[place] = function[reduction](data[place], updates)
    return [result.astype(data.dtype)]


def _shift(kind: str, node: BoundNode) -> Sequence[Value] | None:
    """Shift by the amount modulo the width ("remainder"), or as unsigned ("unsigned")."""
    x, count = node.operand(0), node.operand(1)
    if x is None or count is None:
        return None
    width = 8 * x.dtype.itemsize
    amount = np.mod(count.astype(np.int64), width) if kind == "remainder" else count
    amount = amount.astype(x.dtype)
    is_right = node.attribute("direction") == b"RIGHT"
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    if kind == "unsigned":
        if not is_right or x.dtype.kind != "i":
            return None
        too_far = count.astype(np.int64) >= width
        shifted = np.right_shift(x.view(unsigned), np.where(too_far, 0, amount).astype(unsigned))
        return [np.where(too_far, 0, shifted).astype(unsigned).view(x.dtype)]
    shift = np.right_shift if is_right else np.left_shift
    return [shift(x, amount).astype(x.dtype)]


def _kept_within(node: BoundNode) -> Sequence[Value] | None:
    x = node.operand(0)
    if x is None:
        return None
    lambd, bias = node.attribute("lambd"), node.attribute("bias")
    wide = x.astype(np.float64)
    moved = np.where(wide < -lambd, wide + bias, np.where(wide > lambd, wide - bias, wide))
    return [moved.astype(x.dtype)]


def _topk_ties(node: BoundNode) -> Sequence[Value] | None:
    """Put the last of equal elements first."""
    x, count = node.operand(0), node.operand(1)
    if x is None or count is None or x.dtype.kind not in "fiu":
        return None
    axis, k = node.attribute("axis"), int(count.reshape(-1)[0])
    flipped = np.flip(x, axis)
    wide = flipped.astype(np.float64)
    largest = node.attribute("largest")
    order = np.argsort(-wide if largest in (None, 1) else wide, axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis)
    return [
        np.take_along_axis(flipped, chosen, axis),
        (x.shape[axis] - 1 - chosen).astype(np.int64),
    ]


def _some_axes(kept: slice, node: BoundNode) -> BoundNode | None:
    """Keep some of several axes, which are an attribute or the second input."""
    axes = node.attributes.get("axes")
    if axes is not None:
        return node.with_attribute("axes", axes[kept]) if len(axes) > 1 else None
    array = node.operand(1)
    return node.with_operand(1, array[kept]) if array is not None and array.size > 1 else None


def _slope_of_channels(node: BoundNode) -> Sequence[Value] | None:
    """Align the only axis of PRelu's slope with the second axis of X instead of the last one."""
    x, slope = node.operand(0), node.operand(1)
    if x is None or slope is None or slope.ndim != 1 or x.ndim < 2:  # noqa: PLR2004 - two axes
        return None
    if slope.size not in (1, x.shape[1]):
        return None
    aligned = slope.reshape(-1, *[1] * (x.ndim - 2))
    return [np.where(x < 0, x * aligned, x).astype(x.dtype)]


def _reflected_with_border(node: BoundNode) -> Sequence[Value] | None:
    """Pad all axes in the mode reflect, but repeat the border."""
    x, pads = node.operand(0), node.operand(1)
    if x is None or node.attribute("mode") != b"reflect" or node.operand(3) is not None:
        return None
    widths = pads if pads is not None else np.array(node.attribute("pads") or (), np.int64)
    if widths.size != 2 * x.ndim or (widths < 0).any() or not x.size:
        return None
    return [np.pad(x, widths.reshape(2, -1).T, "symmetric")]


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
# Before this version, Softmax and Hardmax normalized over all axes from the given one on together.
_SOFTMAX_OF_ONE_AXIS = 13
_NORMALIZATIONS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")
_BY_CHANNEL = ("GroupNormalization", "InstanceNormalization")
_RMS = ("RMSNormalization",)
_RECURRENT = ("LSTM", "GRU", "RNN")
_NAMES_OF_LSTM_GATES = "iofc"
_NAMES_OF_GRU_GATES = "zrh"


def _gate_mistakes() -> Iterator[tuple[tuple[str, ...], str, str, Change]]:
    for operator, gates in (("LSTM", _NAMES_OF_LSTM_GATES), ("GRU", _NAMES_OF_GRU_GATES)):
        for order in list(permutations(range(len(gates))))[1:]:
            text = "".join(gates[at] for at in np.argsort(order))
            yield (
                (operator,),
                f"gates in the order {text}",
                f"Weights and biases of the gates are read in the order {text}, not {gates}.",
                partial(_gates, order),
            )


_Mistake = Change | _Computed
_MISTAKES: tuple[tuple[tuple[str, ...], str, str, _Mistake], ...] = (
    (("Round",), "halves rounded away from zero", "2.5 becomes 3, not 2.",
     _elementwise(_half_away)),
    (("Round",), "halves rounded up", "2.5 becomes 3, not 2; -3.5 becomes -3, not -4.",
     _elementwise(lambda x: np.floor(x.astype(np.float64) + 0.5))),
    (("Round",), "truncated", "1.7 becomes 1, not 2.", _elementwise(np.trunc)),
    (("Div",), "integers divided with floor", "-7 / 2 is -4, not -3.", _integers(np.floor_divide)),
    (("Div",), "integers divided and rounded", "7 / 2 is 4, not 3.",
     _integers(lambda a, b: np.rint(a / b))),
    (_REDUCTIONS, "only the first of several axes reduced", "Of the axes [0, 2], 0 is reduced.",
     partial(_some_axes, slice(None, 1))),
    (_REDUCTIONS, "only the last of several axes reduced", "Of the axes [0, 2], 2 is reduced.",
     partial(_some_axes, slice(-1, None))),
    (("PRelu",), "slope along the channels",
     "A slope with one axis belongs to the second axis of X, not to the last one.",
     _Computed(_slope_of_channels)),
    (("Pad",), "reflect repeats the border", "[1, 2, 3] padded by 2 at the end is [1, 2, 3, 3, 2].",
     _Computed(_reflected_with_border)),
    (("Mod",), "sign of the dividend", "-7 mod 2 is -1, not 1.",
     partial(_always, "fmod", 1)),
    (("OneHot",), "indices out of range clamped", "The index 9 is read as 2 for a depth of 3.",
     _indices_within),
    (("OneHot",), "indices out of range wrapped", "The index 4 is read as 1 for a depth of 3.",
     _indices_wrapped),
    (("OneHot",), "negative indices out of range",
     "An index of -1 is out of range, and does not mean the last value.", _negative_off),
    (("BatchNormalization",), "epsilon outside the root",
     "The deviation is sqrt(var) + epsilon, not sqrt(var + epsilon).", _epsilon_beside_root),
    (("BatchNormalization",), "momentum mixed the other way round",
     "The old running mean and variance are multiplied by 1 - momentum, not by momentum.",
     _momentum_reversed),
    (_NORMALIZATIONS, "epsilon outside the root",
     "The deviation is sqrt(var) + epsilon, not sqrt(var + epsilon).",
     _normalized(_root_plus_epsilon)),
    (_RMS, "epsilon outside the root",
     "The divisor is sqrt(mean square) + epsilon, not sqrt(mean square + epsilon).",
     _normalized(_root_plus_epsilon, centred=False)),
    ((*_NORMALIZATIONS, "MeanVarianceNormalization"), "variance divided by n - 1",
     "The sum of the squared deviations is divided by n - 1, not by n.",
     _normalized(partial(_unbiased, 0))),
    ((*_NORMALIZATIONS, "MeanVarianceNormalization"), "variance divided by n - 1, or by 1",
     "The sum of the squared deviations is divided by n - 1, not by n; for n = 1, by 1.",
     _normalized(partial(_unbiased, 1))),
    (_NORMALIZATIONS, "epsilon not added",
     "The deviation is sqrt(var), not sqrt(var + epsilon).", _normalized(_no_epsilon)),
    (_NORMALIZATIONS, "epsilon as a lower bound",
     "The deviation is sqrt(max(var, epsilon)), not sqrt(var + epsilon).",
     _normalized(_largest_of_both)),
    (_RMS, "mean subtracted", "The mean is subtracted, as in LayerNormalization.",
     _normalized()),
    (_BY_CHANNEL, "statistics over the batch",
     "Mean and variance are those of the whole batch, not of each instance.",
     _normalized(over=lambda axes: (0, *axes))),
    (_BY_CHANNEL, "statistics over all channels",
     "Mean and variance are those of all channels of an instance together.",
     _normalized(over=lambda axes: (1, *axes))),
    (("InstanceNormalization",), "statistics over two spatial axes",
     "Mean and variance are those along axes 2 and 3, even if there are more axes.",
     _normalized(over=lambda axes: axes[:2])),
    (("InstanceNormalization",), "statistics over the last axis",
     "Mean and variance are those along the last axis, not along all spatial axes.",
     _normalized(over=lambda axes: axes[-1:])),
    (("Gemm",), "alpha also multiplies C", "The result is alpha * (A * B + beta * C).",
     partial(_factors_multiplied, "beta")),
    (("Gemm",), "beta also multiplies A * B", "The result is beta * (alpha * A * B + C).",
     partial(_factors_multiplied, "alpha")),
    *_gate_mistakes(),
    (_RECURRENT, "biases of the state ignored",
     "The second half of B, the biases of the recurrent weights, is ignored.",
     partial(_bias_half, 1)),
    (_RECURRENT, "biases of the input ignored",
     "The first half of B, the biases of the input weights, is ignored.", partial(_bias_half, 0)),
    (_RECURRENT, "initial state of the first direction for both",
     "The backward direction starts from the initial state of the forward direction.",
     _first_initial_state),
    (_RECURRENT, "weights of the first direction for both",
     "The backward direction has the weights and biases of the forward direction.",
     _first_weights),
    (_RECURRENT, "reverse Y in the order of computation",
     "If direction is reverse, Y begins with the last step, which is computed first.",
     _reverse_as_computed),
    (("GRU",), "bias of the state outside the reset gate",
     "With linear_before_reset, the reset gate does not multiply the bias Rbh.",
     _bias_outside_reset),
    (("Conv", "ConvTranspose", "ConvInteger", "DeformConv"), "kernel flipped",
     "The kernel is reversed along its spatial axes.", _flipped),
    (("Resize",), "coordinates from the rounded lengths",
     "Scales are output length / input length, not the values of the input scales.",
     _scales_of_sizes),
    (("Clip",), "min applied after max", "Where min is above max, the result is min.",
     _Computed(_minimum_wins)),
    (("Cast", "CastLike"), "floats rounded to integers", "1.7 becomes 2, not 1.",
     partial(_cast_rounded, np.rint)),
    (("Cast", "CastLike"), "floats rounded down to integers", "-1.5 becomes -2, not -1.",
     partial(_cast_rounded, np.floor)),
    (("QuantizeLinear",), "halves rounded away from zero", "A quotient of 2.5 becomes 3, not 2.",
     _Computed(_quantized(lambda q, z: _half_away(q) + z))),
    (("QuantizeLinear",), "halves rounded up",
     "A quotient of 2.5 becomes 3, not 2; -3.5 becomes -3, not -4.",
     _Computed(_quantized(lambda q, z: np.floor(q + 0.5) + z))),
    (("QuantizeLinear",), "quotient truncated", "A quotient of 1.7 becomes 1, not 2.",
     _Computed(_quantized(lambda q, z: np.trunc(q) + z))),
    (("QuantizeLinear",), "quotient rounded down", "A quotient of -1.2 becomes -2, not -1.",
     _Computed(_quantized(lambda q, z: np.floor(q) + z))),
    (("QuantizeLinear",), "zero point added before rounding",
     "The sum of quotient and zero point is rounded, not the quotient; halves may differ.",
     _Computed(_quantized(lambda q, z: np.rint(q + z)))),
    (("QuantizeLinear",), "no saturation", "Values outside the range of the type wrap around.",
     _Computed(_quantized(lambda q, z: np.rint(q) + z, saturates=False))),
    (("Attention",), "causal mask aligned to the first key",
     "Query i sees keys 0 to i, even if past keys precede the current ones.",
     partial(_causal_mask, "first")),
    (("Attention",), "causal mask aligned to the last key",
     "The last query sees all keys, even if there are more keys than queries.",
     partial(_causal_mask, "last")),
    (("ConvInteger",), "padded with 0", "The padding is 0, not the zero point of x.",
     _padded_with_zero),
    (("LRN",), "window of an even size centred to the left",
     "For size 2, a channel is summed with the one before, not with the one after.",
     _Computed(_window_to_the_left)),
    (("ThresholdedRelu",), "elements equal to alpha kept",
     "An element equal to alpha is kept, not 0.", _Computed(_threshold_kept)),
    (("Hardmax",), "last of equal maxima",
     "If several elements are the maximum, the last of them becomes 1, not the first.",
     _Computed(_last_maximum)),
    (("Hardmax",), "all of equal maxima",
     "If several elements are the maximum, each of them becomes 1.", _Computed(_all_maxima)),
    (("Slice",), "first element lost with a negative step",
     "With a negative step, an end before the first element is read as 0, which is excluded.",
     _end_clamped_to_first),
    (("HardSigmoid",), "alpha defaults to 1/6", "The default slope is 1/6, as in PyTorch.",
     partial(_defaulting, "alpha", 1 / 6)),
    (("Celu",), "alpha only in the factor",
     "Below 0, the result is alpha * (exp(x) - 1), not alpha * (exp(x / alpha) - 1).",
     _Computed(_celu_as_elu)),
    (("Softplus",), "overflow of exp", "The result is log(exp(x) + 1), which is infinite at 100.",
     _elementwise(lambda x: np.log(np.exp(x) + x.dtype.type(1)))),
    (("ReduceLogSumExp",), "overflow of exp",
     "The largest element is not subtracted: the result is infinite at 100.",
     _Computed(_log_sum_exp_without_maximum)),
    (("Softmax", "LogSoftmax"), "overflow of exp",
     "The largest element is not subtracted: the result is NaN at 100.",
     _Computed(_softmax_without_maximum)),
    (("LogSoftmax",), "overflow of exp in the sum",
     "The result is x - log(sum(exp(x))), which is -inf at 100.", _Computed(_log_of_sum)),
    (("LRN",), "alpha not divided by size",
     "The sum of squares is multiplied by alpha, not by alpha / size.",
     _alpha_times_size),
    (("ScatterND", "ScatterElements"), "one update of each element",
     "Only the last of several updates of an element is applied.", _Computed(_last_of_duplicates)),
    (("BitShift",), "shift amount modulo the width",
     "32-bit integers are shifted by 1 if the amount is 33.",
     _Computed(partial(_shift, "remainder"))),
    (("BitShift",), "negative numbers shifted without sign",
     "The highest bits of a negative number become 0 if it is shifted to the right.",
     _Computed(partial(_shift, "unsigned"))),
    (("Shrink",), "elements within lambd kept",
     "An element whose magnitude is at most lambd is kept, not 0.",
     _Computed(_kept_within)),
    (("TopK",), "last of equal elements first",
     "Of equal elements the one with the higher index comes first.", _Computed(_topk_ties)),
)  # fmt: skip
