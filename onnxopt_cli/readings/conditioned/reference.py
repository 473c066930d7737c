"""What onnx's reference lacks or gets wrong, as the specification has it.

``docs/conditioned.md`` says of each what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from math import prod
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper

from onnxopt_cli.core.values import Array, Value, dtype_name
from onnxopt_cli.readings.conditioned.normalizations import (
    batch_normalization,
    group_normalization,
    instance_normalization,
    layer_normalization,
    mean_variance_normalization,
)
from onnxopt_cli.readings.conditioned.windows import fast_columns, fast_image, fast_pool

F = TypeVar("F", bound=Callable[..., Any])

_INSTEAD: list[tuple[str, Callable[..., Any]]] = []

# Until then Softmax and its kind took all axes from one on for one.
_FLATTENS = 13
# Until then Resize was what Upsample is.
_RESIZES = 11
# From then on RoiAlign shifts by half a pixel unless it is told not to.
_HALF_PIXELS = 16
# The activations of recurrent operators that the reference computes, whatever is asked for.
_ACTIVATIONS = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}
# Those of RNN that the reference lacks.
_RNN_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
}
# What GridSample's modes were called until version 20.
_FORMER = {"bilinear": "linear", "bicubic": "cubic"}
# What is added up in float32, and where Gemm does it.
_SHORT = frozenset({"float16", "bfloat16"})
_GEMM = [f"op_gemm._gemm{it}" for it in ("00", "01", "10", "11")]
_LENGTHS = 4
_LARGEST_QUOTIENT = 2.0**30
# By so little whole coordinates are missed.
_WHOLE = 1e-9


@cache
def operators() -> list[type]:
    """Return the operators that onnx's reference lacks, or lacks in some versions, or modes."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import op_dequantize_linear, op_grid_sample, op_scatter_elements

    dequantize: Any = op_dequantize_linear
    grid_sample: Any = op_grid_sample.GridSample

    class DequantizeLinear(dequantize._CommonDequantizeLinear):  # type: ignore[misc]  # noqa: SLF001
        """Of every version: the reference has none before 19."""

    class GlobalLpPool(OpRun):
        """The root of the sum of powers."""

        def _run(self, x: Array, p: int) -> tuple[Array]:
            powers = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
            return ((powers ** (1 / p)).astype(x.dtype),)

    class GridSample(grid_sample):  # type: ignore[misc]
        """With coordinates as precise as the grid: the reference's are always float32."""

        def _run(self, x: Array, grid: Array, mode: Any = None, **rest: Any) -> Any:
            return super()._run(x, grid, _FORMER.get(mode, mode), **rest)

        def _gs_denormalize_coordinates(self, n: Array, dims: Any, align_corners: bool) -> Array:
            wide = [self._gs_denormalize(*it, align_corners) for it in zip(n, dims, strict=False)]
            return np.array(wide, n.dtype)

        def _clamp(self, val: Any, lo: int, hi: int) -> Any:
            # Of a cubic curve it is the pixels that are kept within borders.
            curved = _FORMER.get(self.mode, self.mode) == "cubic" and isinstance(val, np.floating)
            return val if curved else super()._clamp(val, lo, hi)

    class GroupNormalization(OpRun):
        """By the variance about the mean, unlike its published body."""

        def _run(
            self, x: Array, scale: Array, bias: Array, epsilon: float, num_groups: int, **_: Any
        ) -> tuple[Array]:
            return (group_normalization(x, scale, bias, epsilon, num_groups),)

    class MeanVarianceNormalization(OpRun):
        """By the variance about the mean, unlike its published body."""

        def _run(self, x: Array, axes: Sequence[int]) -> tuple[Array]:
            return (mean_variance_normalization(x, axes),)

    class Scatter(op_scatter_elements.ScatterElements):
        """The earlier name of ScatterElements."""

    return [
        DequantizeLinear,
        GlobalLpPool,
        GridSample,
        GroupNormalization,
        MeanVarianceNormalization,
        Scatter,
    ]


@cache
def functions() -> list[tuple[Any, str, Any]]:
    """Return what is run in place of the reference's functions: owner, name and function."""
    found = []
    for place, function in _INSTEAD:
        *within, name = place.split(".")
        owner = reduce(getattr, within, _modules())
        given = _method if isinstance(owner, type) else partial
        found.append((owner, name, given(function, getattr(owner, name))))
    return found


def _method(function: Callable[..., Any], kept: Any) -> Callable[..., Any]:
    """Return a method; one of functools makes an object at each call, of which there are many."""
    return lambda node, *given, **rest: function(node, kept, *given, **rest)


def instead_of(*places: str) -> Callable[[F], F]:
    """Have a function run in place of the reference's.

    It is given the reference's own first; if that is a method, the node before it.

    Args:
        places: which, by module and class.
    """

    def note(function: F) -> F:
        _INSTEAD.extend((place, function) for place in places)
        return function

    return note


def _modules() -> Any:
    """Return the reference's modules by name; their types are of no use here."""
    from onnx.reference import ops

    return ops


def wrong_about(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> str:
    """Return why onnx's reference is not asked for a node; empty if nothing is known."""
    given = {it.name: helper.get_attribute_value(it) for it in node.attribute}
    if given.get("post_transform") == b"PROBIT":
        return "only comes near the inverse of erf"
    if node.op_type == "SVMClassifier" and len(given.get("prob_a", ())) > 1:
        return "couples the chances of more than two classes wrongly"
    if (
        node.op_type.endswith("Pool")
        and given.get("ceil_mode")
        and given.get("auto_pad") == b"VALID"
    ):
        # The specification's formula rounds up what onnx's shapes, and runtimes, do not.
        return "has fewer windows than onnx's shape inference says"
    if node.op_type in {"RNN", *_ACTIVATIONS}:
        for name in filter(None, node.input[_LENGTHS : _LENGTHS + 1]):
            lengths, x = inputs.get(name), inputs.get(node.input[0])
            # It runs through all of each sequence.
            axis = given.get("layout", 0)
            whole = [it.shape[axis] for it in (x,) if isinstance(it, np.ndarray) and it.ndim > 1]
            if not isinstance(lengths, np.ndarray) or {*lengths.tolist()} != {*whole}:
                return "takes no notice of sequence_lens"
        if "clip" in given or given.get("input_forget"):
            return f"takes no notice of {'clip' if 'clip' in given else 'input_forget'}"
        names = [it.decode(errors="replace").lower() for it in given.get("activations", ())]
        # Of an RNN's it takes the first one for both directions.
        usual = _ACTIVATIONS.get(node.op_type, names[:1])
        if usual and names not in ([], usual, usual * 2):
            return "takes no notice of activations"
    return ""


# It takes one window of a pool after the other, and looks up each element of a convolution's.
instead_of("op_pool_common.pool")(fast_pool)
instead_of("op_conv.im2col")(fast_columns)
instead_of(*(f"{it}.col2im_naive_implementation" for it in ("op_col2im", "op_conv_transpose")))(
    fast_image
)


instead_of("op_layer_normalization._layer_normalization")(layer_normalization)
instead_of("op_instance_normalization.InstanceNormalization._run")(instance_normalization)
instead_of("op_batch_normalization._batchnorm_training_mode")(batch_normalization)


@instead_of("op_lp_normalization.LpNormalization._run")
def _normalized_magnitudes(node: Any, kept: Any, x: Array, *given: Any, **rest: Any) -> Any:
    return (np.copysign(kept(node, np.abs(x), *given, **rest)[0], x),)


@instead_of("op_lp_pool.LpPool._run")
def _of_powers(pool: Any, _kept: Any, x: Array, **rest: Any) -> Any:
    """Add up what lies within: the reference multiplies means by all of a window's elements."""
    return _modules().op_pool_common.CommonPool._run(pool, "LPPOOL", 1, x, **rest)  # noqa: SLF001


@instead_of("op_lrn.LRN._run")
def _among_neighbours(
    _node: Any, _kept: Any, x: Array, alpha: Any, beta: Any, bias: Any, size: int
) -> tuple[Array]:
    """Divide by the neighbours of each channel, however many batches there are."""
    before = (size - 1) // 2
    squares = np.pad(x * x, [(0, 0), (before, size - 1 - before), (0, 0), (0, 0)])
    total = np.sum(sliding_window_view(squares, size, 1), axis=-1)
    return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


@instead_of("op_rnn.CommonRNN.choose_act")
def _activation(node: Any, kept: Any, name: str, *numbers: Any) -> Any:
    """Know all activations that need no numbers of their own."""
    return _RNN_ACTIVATIONS.get(name.lower()) or kept(node, name, *numbers)


@instead_of("op_scan.Scan._run")
def _scanned(node: Any, kept: Any, *given: Any, **rest: Any) -> tuple[Any, ...]:
    """Scan batches, behind lengths that are left out, as Scan did at first."""
    if given[0] is not None or any(getattr(node, "directions", None) or ()):
        return tuple(kept(node, *given, **rest))
    found = [kept(node, *it, **rest) for it in zip(*given[1:], strict=True)]
    return tuple(map(np.stack, zip(*found, strict=True)))


def _flattening(compute: Callable[[Array, int], Array]) -> Callable[..., tuple[Array]]:
    """Return what computes along an axis, or in early versions along all from one on."""

    def run(node: Any, _kept: Any, x: Array) -> tuple[Array]:
        flat, axis = x, node.axis
        if node.run_params["opsets"][""] < _FLATTENS:
            given = next((it.i for it in node.onnx_node.attribute if it.name == "axis"), 1)
            flat, axis = x.reshape(prod(x.shape[:given]), -1), 1
        return (compute(flat, axis).reshape(x.shape).astype(x.dtype) if x.size else x,)

    return run


@instead_of("op_softmax.Softmax._run")
@_flattening
def _softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


@instead_of("op_log_softmax.LogSoftmax._run")
@_flattening
def _log_softmax(x: Array, axis: int) -> Array:
    moved = x - x.max(axis=axis, keepdims=True)
    return moved - np.log(np.sum(np.exp(moved), axis=axis, keepdims=True))


@instead_of("op_hardmax.Hardmax._run")
@_flattening
def _hardmax(x: Array, axis: int) -> Array:
    largest = np.zeros_like(x)
    np.put_along_axis(largest, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return largest


@instead_of("op_batch_normalization.BatchNormalization_9._run")
def _normalized(
    node: Any, kept: Any, *given: Array, epsilon: float, **rest: Any
) -> tuple[Array, ...]:
    """Train only with several outputs."""
    if len(node.onnx_node.output) > 1:
        return tuple(kept(node, *given, epsilon=epsilon, **rest))
    tested = _modules().op_batch_normalization._batchnorm_test_mode  # noqa: SLF001
    return (tested(*given, epsilon=epsilon),)


@instead_of("op_upsample.Upsample._run")
def _upsampled(
    node: Any, kept: Any, x: Array, scale: Any = None, mode: str = "", **rest: Any
) -> Any:
    """Interpolate linearly, too; once the scales were an attribute."""
    factors = np.array(rest["scales"] if scale is None else scale)
    if mode != "linear":
        return kept(node, x, factors, mode=mode)
    resize = _modules().op_resize
    corner = {"scale_factors": factors, "coordinate_transformation_mode": "asymmetric"}
    return (resize._interpolate_nd(x, resize._linear_coeffs, **corner).astype(x.dtype),)  # noqa: SLF001


@instead_of("op_resize.Resize._run")
def _resized(node: Any, kept: Any, *given: Any, **rest: Any) -> Any:
    former = node.run_params["opsets"][""] < _RESIZES
    # Upsample is replaced meanwhile, too.
    run = _modules().op_upsample.Upsample._run if former else kept  # noqa: SLF001
    return run(node, *given, **rest)


@instead_of("op_gather_elements.gather_numpy")
def _gathered(_kept: Any, data: Array, axis: int, indices: Array) -> Array:
    """Gather along any axis of any length, where there may be fewer indices along the others."""
    within = [slice(size) for size in indices.shape]
    within[axis] = slice(None)
    return np.take_along_axis(data[tuple(within)], indices, axis)


@instead_of("op_global_max_pool._global_max_pool")
def _largest_of_all(_kept: Any, x: Array) -> Array:
    largest: Array = x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    return largest


@instead_of("op_pad._pad_impl")
def _padded_or_cut(
    kept: Any, data: Array, pads: Any, mode: Any, constant_values: Any = 0.0, axes: Any = None
) -> Array:
    """Cut off what a negative number says, then pad."""
    given, within = np.reshape(pads, (2, -1)), [slice(None)] * data.ndim
    for axis, (before, after) in zip(
        range(data.ndim) if axes is None else axes, given.T, strict=True
    ):
        within[axis] = slice(max(-before, 0), data.shape[axis] - max(-after, 0))
    added = np.maximum(given, 0).ravel().tolist()
    return np.asarray(kept(data[tuple(within)], added, mode, constant_values, axes))


@instead_of("op_unique.Unique._run")
def _in_order(node: Any, kept: Any, x: Array, axis: Any = None, **rest: Any) -> tuple[Array, ...]:
    """Take what is unique from where it was found, along any axis."""
    whole = axis is None or np.isnan(axis)
    y, *others = kept(node, x.ravel() if whole else np.moveaxis(x, int(axis), 0), 0, **rest)
    return (y if whole else np.moveaxis(y, 0, int(axis)), *others)


@instead_of("_op.OpRun._check_and_fix_outputs")
def _checked(node: Any, kept: Any, outputs: Any) -> Any:
    """Look closer at what a node returns only where it is no arrays: that takes long."""
    arrays = type(outputs) is tuple and outputs and all(type(it) is np.ndarray for it in outputs)
    return outputs if arrays else kept(node, outputs)


@instead_of("op_negative_log_likelihood_loss._compute_negative_log_likelihood_loss")
def fast_loss(
    _kept: Any,
    x: Array,
    target: Array,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: Any = None,
) -> tuple[Any]:
    """Look up the chances of all targets at once, where the reference takes one after the other."""
    ignored = np.asarray(target == ignore_index)
    places = np.where(ignored, 0, target)[:, np.newaxis]
    loss = np.where(ignored, x.dtype.type(0), -np.take_along_axis(x, places, 1)[:, 0])
    if weight is not None or ignore_index != -1:
        factors = 1 if weight is None else np.take(weight, target, mode="clip")
        factors = np.where(ignored, 0, factors).astype(x.dtype)
        loss = factors * loss
        if reduction == "mean":
            return (loss.sum() / factors.sum(),)
    whole: Any = {"mean": np.mean, "sum": np.sum}.get(reduction, np.asarray)
    return (whole(loss).astype(x.dtype),)


@instead_of("op_conv._conv_implementation", "op_matmul.numpy_matmul", *_GEMM)
def _in_single(kept: Any, x: Array, y: Array, *rest: Any) -> Array:
    """Add up what has 16 bits in float32, as NumPy does, and much faster."""
    if not isinstance(x, np.ndarray) or dtype_name(x.dtype) not in _SHORT:
        return np.asarray(kept(x, y, *rest))
    wide = (it.astype(np.float32) if isinstance(it, np.ndarray) else it for it in (x, y, *rest))
    return np.asarray(kept(*wide)).astype(x.dtype)


@instead_of("op_max_pool.MaxPool._run")
def _largest(
    pool: Any, kept: Any, x: Array, auto_pad: str, storage_order: Any = None, **rest: Any
) -> Any:
    """Pad for as many windows of SAME_LOWER as of SAME_UPPER, and never by a negative number.

    The largest elements of all windows are taken at once where nobody asks for their places. A NaN,
    and a window that lies beside all elements, is left to the reference.
    """
    if auto_pad != "NOTSET":
        size, ones = np.array(x.shape[2:]), [1] * (x.ndim - 2)
        step, apart = (np.array(rest[it] or ones) for it in ("strides", "dilations"))
        reach = (np.array(rest["kernel_shape"]) - 1) * apart + 1
        missing = np.maximum((-(-size // step) - 1) * step + reach - size, 0)
        total = missing * (auto_pad != "VALID")
        front = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        rest |= {"pads": [*front.tolist(), *(total - front).tolist()], "ceil_mode": 0}
    if len(pool.onnx_node.output) == 1 and x.dtype.kind == "f" and not np.isnan(x).any():
        common = _modules().op_pool_common.CommonPool
        (found,) = common._run(pool, "MAX", 0, x, auto_pad="NOTSET", **rest)  # noqa: SLF001
        if not np.isnan(found).any():
            return (found,)
    return kept(pool, x, auto_pad="NOTSET", storage_order=storage_order, **rest)


@instead_of("op_conv_transpose.ConvTranspose._run")
def _grouped(
    node: Any, kept: Any, x: Array, w: Array, b: Array | None = None, group: int = 1, **rest: Any
) -> tuple[Array]:
    """Transpose the convolutions of each group with its channels and biases."""
    biases = [None] * group if b is None else np.split(b, group)
    parts = zip(np.split(x, group, 1), np.split(w, group), biases, strict=True)
    return (np.concatenate([kept(node, *it, group=1, **rest)[0] for it in parts], axis=1),)


@instead_of("op_pool_common.get_output_shape_explicit_padding")
def _padded_at_the_end(
    kept: Any, pads: Sequence[int] | None, shape: Sequence[int], *rest: Any
) -> tuple[Any, list[int]]:
    """Let what is missing of the last windows be missing at the end, not in part at the front."""
    out_shape, required = kept(pads, shape, *rest)
    front = [0] * len(shape) if pads is None else list(pads[: len(shape)])
    total = np.reshape(required, (2, -1)).sum(axis=0)
    return out_shape, [*front, *(total - front).tolist()]


@instead_of("op_quantize_linear._CommonQuantizeLinear._run")
def _saturated(
    quantize: Any, kept: Any, x: Array, scale: Array, *rest: Any, **attributes: Any
) -> Any:
    """Take no quotient beyond what int32 holds, where it would begin again at the other end."""
    given = (attributes.get(it) for it in ("axis", "block_size"))
    reshaped = _modules().op_quantize_linear._reshape_input  # noqa: SLF001
    largest = _LARGEST_QUOTIENT * np.abs(reshaped(scale, x.shape, *given).astype(np.float64))
    bounded = np.clip(x, -largest, largest).astype(x.dtype)
    return kept(quantize, bounded, scale, *rest, **attributes)


@instead_of("op_roi_align.RoiAlign._run")
def _aligned(align: Any, kept: Any, *given: Any, **attributes: Any) -> Any:
    """Take no half pixel away in versions that know nothing of it."""
    if align.run_params["opsets"][""] < _HALF_PIXELS:
        attributes["coordinate_transformation_mode"] = "output_half_pixel"
    return kept(align, *given, **attributes)


@instead_of("op_reduce_log_sum_exp.compute_log_sum_exp")
def _log_sum_exp(_kept: Any, data: Array, axes: Any, keepdims: Any) -> tuple[Array]:
    largest = data.max(axis=axes, keepdims=True)
    # The sum of nothing but zeros has a logarithm, too.
    largest = np.where(np.isfinite(largest), largest, 0).astype(data.dtype)
    total = np.sum(np.exp(data - largest), axis=axes, keepdims=True, dtype=data.dtype)
    found = np.log(total) + largest
    return (found if keepdims else np.squeeze(found, axis=axes),)


@instead_of("op_resize._compute_x_ori")
def _whole_coordinates(kept: Any, mode: str, y: Array, *given: Any) -> tuple[Array, Any]:
    """Return whole numbers, which are missed by little in double, and the reference goes astray."""
    found, outside = kept(mode, y, *given)
    if mode == "pytorch_half_pixel" and y.size == 1:
        found = np.zeros(1)
    whole = np.rint(found)
    return np.where(np.abs(found - whole) < _WHOLE, whole, found), outside
