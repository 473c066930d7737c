"""Known mistakes of the layers of neural networks, such as normalizations and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations

import numpy as np

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mutants import (
    Change,
    Computed,
    ComputeNode,
    ListedMistake,
    Recomputed,
    with_default,
)


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
) -> Computed:
    """Return a mistake of a normalization.

    Args:
        deviation: returns the divisor, given the centred input, the axes of the mean, and epsilon.
        centred: whether the mean is subtracted.
        over: given the correct axes of the mean, returns the axes that the mistake uses. For
            GroupNormalization, the axes of the input are batch, group, and element of the group.
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

    return Computed(computation)


def _root_plus_epsilon(centre: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return np.sqrt((centre * centre).mean(axes, keepdims=True)) + epsilon


def _unbiased(least_divisor: int, centre: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    count = np.prod([centre.shape[axis] for axis in axes])
    divisor = max(count - 1, least_divisor)
    return np.sqrt((centre * centre).sum(axes, keepdims=True) / divisor + epsilon)


def _unbiased_plus_constant(
    least_divisor: int, centre: Array, axes: tuple[int, ...], _epsilon: float
) -> Array:
    # MeanVarianceNormalization has no attribute epsilon, but a constant in its definition.
    return _unbiased(least_divisor, centre, axes, 0.0) + 1e-9


def _no_epsilon(centre: Array, axes: tuple[int, ...], _epsilon: float) -> Array:
    return np.sqrt((centre * centre).mean(axes, keepdims=True))


def _largest_of_both(centre: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return np.sqrt(np.maximum((centre * centre).mean(axes, keepdims=True), epsilon))


def _gates(order: Sequence[int], places: Sequence[int], node: BoundNode) -> BoundNode | None:
    """Reorder the gates in the weights W and R and in the biases B."""
    for index in places:
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
    """Ignore half of the biases: those of the input (0) or those of the state (1)."""
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
    """Replace the weights and biases of the second direction by those of the first."""
    return _first_direction({1: 0, 2: 0, 3: 0}, node)


def _first_direction(axes: Mapping[int, int], node: BoundNode) -> BoundNode | None:
    """Replace operands of the second direction by those of the first.

    Args:
        axes: for each operand, by its index, the axis of the directions.
        node: the node.
    """
    if node.attribute("direction") != b"bidirectional":
        return None
    for index, axis in axes.items():
        array = node.operand(index)
        if array is not None:
            first = np.repeat(np.take(array, [0], axis), array.shape[axis], axis)
            node = node.with_operand(index, first)
    return node


def _reverse_as_computed(node: BoundNode) -> BoundNode | None:
    """Reverse the steps of each input sequence, and compute the node in the forward direction."""
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
    """Add the state bias of GRU's last gate to the input bias of this gate."""
    bias = node.operand(3)
    if bias is None or not node.attribute("linear_before_reset"):
        return None
    *gates, of_input, update, reset, of_state = np.split(bias, 6, axis=1)
    moved = [*gates, of_input + of_state, update, reset, np.zeros_like(of_state)]
    return node.with_operand(3, np.concatenate(moved, axis=1))


def _factors_multiplied(name: str, node: BoundNode) -> BoundNode | None:
    """Replace Gemm's attribute ``name`` (alpha or beta) by alpha * beta."""
    if node.operand(2) is None:
        return None
    return node.with_attribute(name, node.attribute("alpha") * node.attribute("beta"))


def _flipped(node: BoundNode) -> BoundNode | None:
    kernel = node.operand(1)
    if kernel is None or kernel.ndim < 3:  # noqa: PLR2004 - channels and one spatial axis
        return None
    flipped = np.ascontiguousarray(np.flip(kernel, tuple(range(2, kernel.ndim))))
    return node.with_operand(1, flipped)


def _causal_mask(offset: str, node: BoundNode) -> BoundNode | None:
    """Align Attention's causal mask to the first key or to the last key."""
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
    """Pad the input with 0 rather than with its zero point or with a value without effect."""
    x, pads = node.operand(0), node.attribute("pads")
    if x is None or not pads or not any(pads) or len(pads) != 2 * (x.ndim - 2):
        return None
    half = len(pads) // 2
    widths = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    return node.with_operand(0, np.pad(x, widths)).with_attribute("pads", None)


def _unbiased_running_variance(node: BoundNode, compute: ComputeNode) -> Sequence[Value] | None:
    """Update BatchNormalization's running variance with a variance whose divisor is n - 1."""
    x, old = node.operand(0), node.operand(4)
    requested = node.output_places
    if x is None or old is None or not node.attribute("training_mode") or 2 not in requested:  # noqa: PLR2004 - the third output
        return None
    count = x.size // x.shape[1] if x.size else 0
    outputs = [*compute(node)]
    place = requested.index(2)
    new = outputs[place]
    if count < 2 or not isinstance(new, np.ndarray):  # noqa: PLR2004 - n - 1 is 0
        return None
    share_of_old = old.astype(np.float64) * node.attribute("momentum")
    share_of_new = (new.astype(np.float64) - share_of_old) * count / (count - 1)
    outputs[place] = (share_of_old + share_of_new).astype(new.dtype)
    return outputs


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


def _momentum_reversed(node: BoundNode) -> BoundNode | None:
    if not node.attribute("training_mode"):
        return None
    return node.with_attribute("momentum", 1 - node.attribute("momentum"))


def _kept_within(node: BoundNode) -> Sequence[Value] | None:
    x = node.operand(0)
    if x is None:
        return None
    lambd, bias = node.attribute("lambd"), node.attribute("bias")
    wide = x.astype(np.float64)
    moved = np.where(wide < -lambd, wide + bias, np.where(wide > lambd, wide - bias, wide))
    return [moved.astype(x.dtype)]


def _slope_of_channels(node: BoundNode) -> Sequence[Value] | None:
    """Align the only axis of PRelu's slope with the second axis of X instead of the last axis."""
    x, slope = node.operand(0), node.operand(1)
    if x is None or slope is None or slope.ndim != 1 or x.ndim < 2:  # noqa: PLR2004 - two axes
        return None
    if slope.size not in (1, x.shape[1]):
        return None
    aligned = slope.reshape(-1, *[1] * (x.ndim - 2))
    return [np.where(x < 0, x * aligned, x).astype(x.dtype)]


# The first version in which Softmax and Hardmax normalize over a single axis. Earlier versions
# normalize over the attribute ``axis`` and all later axes together.
_SOFTMAX_OF_ONE_AXIS = 13
_NORMALIZATIONS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")
_BY_CHANNEL = ("GroupNormalization", "InstanceNormalization")
_RMS = ("RMSNormalization",)
_RECURRENT = ("LSTM", "GRU", "RNN")
_NAMES_OF_LSTM_GATES = "iofc"
_NAMES_OF_GRU_GATES = "zrh"
# The orders of the gates in PyTorch, cuDNN, Keras and TensorFlow.
_ORDERS_OF_GATES_ELSEWHERE = frozenset({"ifco", "icfo", "rzh"})


def _gate_mistakes() -> Iterator[tuple[tuple[str, ...], str, str, Change]]:
    for operator, gates in (("LSTM", _NAMES_OF_LSTM_GATES), ("GRU", _NAMES_OF_GRU_GATES)):
        for order in list(permutations(range(len(gates))))[1:]:
            text = "".join(gates[at] for at in np.argsort(order))
            yield (
                (operator,),
                f"gates in the order {text}",
                f"Weights and biases of the gates are read in the order {text}, not {gates}.",
                partial(_gates, order, (1, 2, 3)),
            )
            if text in _ORDERS_OF_GATES_ELSEWHERE:
                yield (
                    (operator,),
                    f"biases of gates in the order {text}",
                    f"The biases of the gates, but not the weights, are read in the order {text}.",
                    partial(_gates, order, (3,)),
                )


def _softplus_by_exp(node: BoundNode) -> Sequence[Value] | None:
    x = node.operand(0)
    return None if x is None else [np.log(np.exp(x) + x.dtype.type(1))]


#: The mistakes of layers, each with operators, a name, a description, and a change.
LAYER_MISTAKES: tuple[ListedMistake, ...] = (
    (("PRelu",), "slope along the channels",
     "A slope with one axis is aligned with the second axis of X, not with the last.",
     Computed(_slope_of_channels)),
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
    *(
        (operators, name, about, _normalized(partial(deviation, least_divisor)))
        for operators, deviation in (
            (_NORMALIZATIONS, _unbiased), (("MeanVarianceNormalization",), _unbiased_plus_constant))
        for least_divisor, name, about in (
            (0, "variance with divisor n - 1",
             "The sum of the squared deviations is divided by n - 1, not by n."),
            (1, "variance with divisor max(n - 1, 1)",
             "The sum of the squared deviations is divided by n - 1, not by n; for n = 1, by 1."))
    ),
    (_NORMALIZATIONS, "epsilon not added",
     "The deviation is sqrt(var), not sqrt(var + epsilon).", _normalized(_no_epsilon)),
    (_NORMALIZATIONS, "epsilon as a lower bound",
     "The deviation is sqrt(max(var, epsilon)), not sqrt(var + epsilon).",
     _normalized(_largest_of_both)),
    (_RMS, "mean subtracted", "The mean is subtracted, as in LayerNormalization.",
     _normalized()),
    (_BY_CHANNEL, "statistics over the batch",
     "Mean and variance are computed over the whole batch, not over each instance.",
     _normalized(over=lambda axes: (0, *axes))),
    (_BY_CHANNEL, "statistics over all channels",
     "Mean and variance are computed over all channels of an instance together.",
     _normalized(over=lambda axes: (1, *axes))),
    (("InstanceNormalization",), "statistics over two spatial axes",
     "Mean and variance are computed over axes 2 and 3, even if there are more axes.",
     _normalized(over=lambda axes: axes[:2])),
    (("InstanceNormalization",), "statistics over the last axis",
     "Mean and variance are computed over the last axis, not over all spatial axes.",
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
    (("Attention",), "causal mask aligned to the first key",
     "Query i sees keys 0 to i, even if past keys precede the current ones.",
     partial(_causal_mask, "first")),
    (("Attention",), "causal mask aligned to the last key",
     "The last query sees all keys, even if there are more keys than queries.",
     partial(_causal_mask, "last")),
    (("ConvInteger", "QLinearConv"), "padded with 0", "The padding is 0, not the zero point of x.",
     _padded_with_zero),
    (("MaxPool",), "padded with 0", "The padding counts as 0 in the maximum, and is not ignored.",
     _padded_with_zero),
    (("BatchNormalization",), "running variance with divisor n - 1",
     "The running variance is updated with a variance whose divisor is n - 1, not n.",
     Recomputed(_unbiased_running_variance)),
    (("LRN",), "window of an even size centred to the left",
     "For size 2, a channel is summed with the previous channel, not with the next.",
     Computed(_window_to_the_left)),
    (("ThresholdedRelu",), "elements equal to alpha kept",
     "An element equal to alpha is kept, not replaced by 0.", Computed(_threshold_kept)),
    (("Hardmax",), "last of equal maxima",
     "If several elements are the maximum, the last of them becomes 1, not the first.",
     Computed(_last_maximum)),
    (("Hardmax",), "all of equal maxima",
     "If several elements are the maximum, each of them becomes 1.", Computed(_all_maxima)),
    (("HardSigmoid",), "alpha defaults to 1/6", "The default slope is 1/6, as in PyTorch.",
     partial(with_default, "alpha", 1 / 6)),
    (("Celu",), "alpha only in the factor",
     "Below 0, the result is alpha * (exp(x) - 1), not alpha * (exp(x / alpha) - 1).",
     Computed(_celu_as_elu)),
    (("Softplus",), "overflow of exp", "The result is log(exp(x) + 1), which is infinite at 100.",
     Computed(_softplus_by_exp)),
    (("Softmax", "LogSoftmax"), "overflow of exp",
     "The largest element is not subtracted: the result is NaN at 100.",
     Computed(_softmax_without_maximum)),
    (("LogSoftmax",), "overflow of exp in the sum",
     "The result is x - log(sum(exp(x))), which is -inf at 100.", Computed(_log_of_sum)),
    (("LRN",), "alpha not divided by size",
     "The sum of squares is multiplied by alpha, not by alpha / size.",
     _alpha_times_size),
    (("Shrink",), "elements within lambd kept",
     "An element whose magnitude is at most lambd is kept, not replaced by 0.",
     Computed(_kept_within)),
)  # fmt: skip
