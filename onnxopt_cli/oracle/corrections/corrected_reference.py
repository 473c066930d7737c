"""Implementations of operators that onnx's reference lacks or computes incorrectly.

The corrections follow the formulas of the specification. ``docs/conditioned.md`` lists each
deviation of the reference. Further modules of this package correct other operators. Importing them
registers their corrections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from math import erf, prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper

from onnxopt_cli.core.values import (
    Array,
    dtype_name,
)
from onnxopt_cli.oracle.corrections import (
    data_movement,
    float_outputs,
    grids,
    quantized,
    texts,
    trees,
    windows,
)
from onnxopt_cli.oracle.corrections.loops import scan_class
from onnxopt_cli.oracle.corrections.recurrent import recurrent_operators
from onnxopt_cli.oracle.patching import accelerates, reference_modules, replaced, replaces
from onnxopt_cli.oracle.rounding import exponentials
from onnxopt_cli.oracle.rounding.normalizations import (
    batch_normalization,
    group_normalization,
    instance_normalization,
    layer_normalization,
    mean_variance_normalization,
)
from onnxopt_cli.oracle.stacked import Stacked

#: Operators that interpolate.
INTERPOLATING = frozenset({"GridSample", "Resize", "Upsample"})
#: How a number that is interpolated between integers is rounded. The specification does not define
#: this rounding. A number that differs from an integer by less than the tolerance becomes that
#: integer.
INTEGER_ROUNDING = SimpleNamespace(toward=np.rint, tolerance=1e-6)

#: These modules are imported only to register their corrections.
REGISTERED = (data_movement, float_outputs, quantized, texts, trees, windows)

# From this version on, Softmax, LogSoftmax and Hardmax normalize along a single axis. Earlier
# versions flatten all axes from ``axis`` on.
_SINGLE_AXIS_VERSION = 13
# From this version on, the slope of PRelu is broadcast. In earlier versions, the slope has one
# element per channel.
_SLOPE_BROADCAST_VERSION = 7
# From this version on, the definitions of Resize and Upsample differ.
_RESIZE_VERSION = 11
# From this version on, RoiAlign has an attribute for the half-pixel shift.
_HALF_PIXEL_VERSION = 16
# The names of GridSample's modes before version 20, with their present names.
_FORMER_MODES = {"bilinear": "linear", "bicubic": "cubic"}
# Element types that are accumulated in float32.
_SHORT_TYPES = frozenset({"float16", "bfloat16"})
# Names of the default domain.
_DEFAULT_DOMAIN = ("", "ai.onnx")
_ARRAYS = frozenset({np.ndarray, Stacked})
_GEMM = [f"op_gemm._gemm{transposed}" for transposed in ("00", "01", "10", "11")]
# From this version on, BatchNormalization trains if it has several outputs. In earlier versions,
# the attribute is_test decides.
_INFERENCE_VERSION = 7
_LARGEST_QUOTIENT = 2.0**30
_LARGEST_INTEGER = 2.0**63
# The value PROBIT of the attribute post_transform. In TreeEnsemble, the attribute is a number; in
# all other operators, it is a text.
_PROBIT = (b"PROBIT", 4)
_LINEAR_CLASSIFIERS = frozenset({"LinearClassifier", "SVMClassifier"})
# A coordinate is replaced by an integer if their distance is at most this number.
_COORDINATE_TOLERANCE = 1e-9


@cache
def operators() -> list[type]:
    """Return classes of operators that onnx's reference implements only partly or not at all."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import op_dequantize_linear, op_scatter_elements

    dequantize: Any = op_dequantize_linear

    class DequantizeLinear(dequantize._CommonDequantizeLinear):  # type: ignore[misc]  # noqa: SLF001
        """DequantizeLinear of every version. onnx's reference lacks the versions before 19."""

    class GlobalLpPool(OpRun):
        """The p-norm of the elements of each channel."""

        def _run(self, x: Array, p: int) -> tuple[Array]:
            powers = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
            return ((powers ** (1 / p)).astype(x.dtype),)

    class GridSample(OpRun):
        """GridSample of every version, computed for all points together."""

        def _run(
            self, x: Array, grid: Array, mode: str, padding_mode: str, align_corners: int
        ) -> tuple[Array]:
            sample = partial(
                grids.sampled,
                grid=grid,
                mode=_FORMER_MODES.get(mode, mode),
                padding=padding_mode,
                align_corners=bool(align_corners),
            )
            if x.dtype.kind not in "iu" or mode == "nearest":
                return (sample(x),)
            return (whole_numbers(sample(x.astype(np.float64)), x.dtype),)

    class GroupNormalization(OpRun):
        """Uses the variance about the mean; the published body computes E(X^2) - E(X)^2."""

        def _run(
            self, x: Array, scale: Array, bias: Array, epsilon: float, num_groups: int, **_: Any
        ) -> tuple[Array]:
            return (group_normalization(x, scale, bias, epsilon, num_groups),)

    class HardSwish(OpRun):
        """Uses 1/6 in the type of the input; the published body uses it in float32."""

        def _run(self, x: Array) -> tuple[Array]:
            return ((x * np.clip(x * hard_swish_slope() + 0.5, 0, 1)).astype(x.dtype),)

    class MeanVarianceNormalization(OpRun):
        """Uses the variance about the mean; the published body computes E(X^2) - E(X)^2."""

        def _run(self, x: Array, axes: Sequence[int]) -> tuple[Array]:
            return (mean_variance_normalization(x, axes),)

    class Scatter(op_scatter_elements.ScatterElements):
        """The earlier name of ScatterElements."""

    return [
        _category_mapper(),
        DequantizeLinear,
        GlobalLpPool,
        GridSample,
        GroupNormalization,
        HardSwish,
        MeanVarianceNormalization,
        *recurrent_operators(),
        scan_class(),
        Scatter,
    ]


def _category_mapper() -> type:
    """Return the class of CategoryMapper, which maps integers to texts or texts to integers."""
    from onnx.reference.op_run import OpRun

    class CategoryMapper(OpRun):
        """Looks up each element in the categories; an unknown element becomes the default."""

        op_domain = "ai.onnx.ml"

        def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
            integers, texts = attributes["cats_int64s"], attributes["cats_strings"]
            to_texts = x.dtype.kind in "iu"
            pairs = zip(integers, texts, strict=True)
            table = dict(pairs) if to_texts else dict(zip(texts, integers, strict=True))
            default = attributes["default_string" if to_texts else "default_int64"]
            mapped = [table.get(element, default) for element in x.ravel().tolist()]
            return (np.array(mapped, object if to_texts else np.int64).reshape(x.shape),)

    return CategoryMapper


def unsupported_reason(node: onnx.NodeProto) -> str:
    """Return why a node cannot run on onnx's reference; empty if no reason is known."""
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    if attributes.get("post_transform") in _PROBIT:
        return "only approximates the inverse of erf"
    if node.domain in _DEFAULT_DOMAIN and attributes.get("broadcast") and "axis" in attributes:
        # Before opset 7, binary operators had the attributes axis and broadcast.
        return "ignores the axis along which operands are broadcast"
    if node.op_type == "SVMClassifier" and len(attributes.get("prob_a", ())) > 1:
        return "combines the probabilities of more than two classes incorrectly"
    if node.op_type == "SVMClassifier" and not any(attributes.get("vectors_per_class", ())):
        return "computes scores without support vectors by a formula that no document states"
    labels = [*attributes.get("classlabels_ints", ()), *attributes.get("classlabels_strings", ())]
    if node.op_type in _LINEAR_CLASSIFIERS and len(labels) == 1:
        return "returns labels that are not among the class labels"
    if (
        node.op_type.endswith("Pool")
        and attributes.get("ceil_mode")
        and attributes.get("auto_pad") == b"VALID"
    ):
        # With VALID and ceil_mode, the specification rounds the number of windows up, but onnx's
        # shape inference and the runtimes round it down.
        return "has fewer windows than onnx's shape inference says"
    return ""


def hard_swish_slope() -> float:
    """Return the attribute alpha of the HardSigmoid within HardSwish."""
    return 1 / 6


def whole_numbers(values: Array, dtype: Any) -> Array:
    """Round interpolated numbers to integers within the range of a dtype."""
    nearest, limits = np.rint(values), np.iinfo(dtype)
    close = np.abs(values - nearest) < INTEGER_ROUNDING.tolerance
    rounded = np.where(close, nearest, INTEGER_ROUNDING.toward(values))
    return np.clip(rounded, limits.min, limits.max).astype(dtype)


replaces("op_layer_normalization._layer_normalization")(layer_normalization)
replaces("op_instance_normalization.InstanceNormalization._run")(instance_normalization)
replaces("op_batch_normalization._batchnorm_training_mode")(batch_normalization)


@replaces("op_det.Det._run")
def _determinant(_node: Any, _original: Any, x: Array) -> tuple[Array]:
    """Compute determinants of 16-bit matrices in float32."""
    wide = x.astype(np.float32) if x.dtype.name in _SHORT_TYPES else x
    return (np.asarray(np.linalg.det(wide)).astype(x.dtype),)


@replaces("op_lp_normalization.LpNormalization._run")
def _normalized_magnitudes(
    node: Any, _original: Any, x: Array, axis: Any = None, p: Any = None
) -> tuple[Array]:
    """Divide by the norm of the magnitudes. The reference's norm for p = 1 is a sum with signs."""
    axis, p = axis or node.axis, p or node.p
    sizes = np.abs(x)
    # Do not use the method ``sum`` of arrays: to add terms sequentially, the evaluator replaces
    # only numpy.sum.
    norm = np.power(np.sum(np.power(sizes, p), axis=axis, keepdims=True), 1.0 / p)
    quotients = np.where(norm == 0, 0, sizes / norm)
    return (np.copysign(quotients, x).astype(x.dtype),)


@replaces("op_lrn.LRN._run")
def _local_response_normalization(
    _node: Any, _original: Any, x: Array, alpha: Any, beta: Any, bias: Any, size: int
) -> tuple[Array]:
    """Normalize by the neighbouring channels, for any number of batches and axes."""
    if not x.size:
        return (x,)
    before, wide = (size - 1) // 2, np.result_type(x.dtype, np.float32)
    alpha, beta, bias = (np.asarray(scalar, wide) for scalar in (alpha, beta, bias))
    padding = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(np.square(x, dtype=wide), padding)
    total = np.sum(sliding_window_view(squares, size, 1), axis=-1)
    return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


@replaces("op_erf.Erf._run")
def _erf(_node: Any, _original: Any, x: Array) -> tuple[Array]:
    """Round once, to the type of the input. The reference rounds to float32."""
    values = [erf(element) for element in x.ravel().tolist()]
    return (np.array(values, np.float64).reshape(x.shape).astype(x.dtype),)


@replaces("op_softsign.Softsign._run")
def _softsign(_node: Any, _original: Any, x: Array) -> tuple[Array]:
    """Compute Softsign of any tensor. The reference does not accept a scalar tensor."""
    return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


@replaces(
    "op_reduce_sum_square.ReduceSumSquare_1._run", "op_reduce_sum_square.ReduceSumSquare_18._run"
)
def _sum_of_squares(node: Any, original: Any, x: Array, *args: Any, **kwargs: Any) -> tuple[Array]:
    """Return the sum in the type of the input. The reference sums integers in wider types."""
    (total,) = original(node, x, *args, **kwargs)
    return (np.asarray(total).astype(x.dtype),)


@replaces("op_cum_prod.CumProd._run", "op_cum_sum.CumSum._run")
def _cumulated(node: Any, original: Any, x: Array, axis: Array, *flags: Any, **kwargs: Any) -> Any:
    """Cumulate along an axis, which may also be given as a vector of one element."""
    return original(node, x, axis.reshape(()), *flags, **kwargs)


@replaces("op_mean.Mean._run")
def _mean(_node: Any, _original: Any, *operands: Array) -> tuple[Array]:
    """Broadcast every operand. The reference does not broadcast the first operand."""
    return ((reduce(np.add, operands) / len(operands)).astype(operands[0].dtype),)


@replaces("op_softmax_cross_entropy_loss.softmaxcrossentropy")
def _loss(
    _original: Any,
    x: Array,
    target: Array,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: Any = None,
    get_log_prob: Any = None,
) -> tuple[Array, ...]:
    """Compute log-softmax directly.

    The reference computes log(softmax), which is -inf if the result is below about -745.
    """
    log_probabilities = _log_softmax_along(x, 1).astype(x.dtype)
    (loss,) = fast_loss(None, log_probabilities, target, weight, reduction, ignore_index)
    loss = np.asarray(loss)
    return (loss, log_probabilities) if get_log_prob else (loss,)


@replaces("aionnxml.op_one_hot_encoder.OneHotEncoder._run")
def _encoded(node: Any, original: Any, x: Array, **kwargs: Any) -> Any:
    """Convert floats to integers before the lookup. The reference does not convert floats."""
    return original(node, x.astype(np.int64) if x.dtype.kind == "f" else x, **kwargs)


@replaces("op_affine_grid.AffineGrid._run")
def _grid(node: Any, original: Any, theta: Array, *args: Any, **kwargs: Any) -> tuple[Array]:
    """Return the grid in the type of theta. The reference returns float32."""
    (grid,) = original(node, theta, *args, **kwargs)
    return (grid.astype(theta.dtype),)


@replaces("op_batch_normalization.BatchNormalization_6._run")
def _normalized_by_early_version(
    node: Any, _original: Any, *operands: Array, epsilon: float, spatial: int = 1, **kwargs: Any
) -> tuple[Array, ...]:
    """Normalize by given statistics of each channel or, if ``spatial`` is 0, of each activation."""
    opset = node.run_params["opsets"][""]
    training = opset < _INFERENCE_VERSION and not kwargs.get("is_test")
    if training or len(node.onnx_node.output) > 1:
        raise NotImplementedError("training of BatchNormalization before version 14")
    x, *parameters = operands
    if spatial:
        parameters = [array.reshape(-1, *[1] * (x.ndim - 2)) for array in parameters]
    scale, bias, mean, variance = parameters
    return ((scale * (x - mean) / np.sqrt(variance + epsilon) + bias).astype(x.dtype),)


@replaces("op_batch_normalization.BatchNormalization_9._run")
def _normalized(
    node: Any, original: Any, *operands: Array, epsilon: float, **kwargs: Any
) -> tuple[Array, ...]:
    """Compute statistics of the batch only if the node has several outputs."""
    if len(node.onnx_node.output) > 1:
        return tuple(original(node, *operands, epsilon=epsilon, **kwargs))
    infer = reference_modules().op_batch_normalization._batchnorm_test_mode  # noqa: SLF001
    return (infer(*operands, epsilon=epsilon),)


def _flattening(compute: Callable[[Array, int], Array]) -> Callable[..., tuple[Array]]:
    """Return a correction that computes along ``axis``.

    In early versions, all axes from ``axis`` on are treated as one axis.
    """

    def run(node: Any, _original: Any, x: Array) -> tuple[Array]:
        flat, axis = x, node.axis
        if node.run_params["opsets"][""] < _SINGLE_AXIS_VERSION:
            integers = {attribute.name: attribute.i for attribute in node.onnx_node.attribute}
            first = integers.get("axis", 1)
            flat, axis = x.reshape(prod(x.shape[:first]), -1), 1
        return (compute(flat, axis).reshape(x.shape).astype(x.dtype) if x.size else x,)

    return run


@replaces("op_softmax.Softmax._run")
@_flattening
def _softmax(x: Array, axis: int) -> Array:
    largest, total = exponentials.summed(x, axis)
    return np.exp(x - largest) / total


def _log_softmax_along(x: Array, axis: int) -> Array:
    largest, total = exponentials.summed(x, axis)
    return np.asarray(x - largest - np.log(total))


_log_softmax = replaces("op_log_softmax.LogSoftmax._run")(_flattening(_log_softmax_along))


@replaces("op_hardmax.Hardmax._run")
@_flattening
def _hardmax(x: Array, axis: int) -> Array:
    largest = np.zeros_like(x)
    np.put_along_axis(largest, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return largest


@replaces("op_prelu.PRelu._run")
def _with_slope(node: Any, original: Any, x: Array, slope: Array) -> Any:
    """Align a vector of slopes with the channels in early versions."""
    early = node.run_params["opsets"][""] < _SLOPE_BROADCAST_VERSION
    if early and slope.ndim == 1 and x.ndim > 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return original(node, x, slope)


@replaces("op_upsample.Upsample._run")
def _upsampled(
    node: Any, original: Any, x: Array, scale: Any = None, mode: str = "", **kwargs: Any
) -> Any:
    """Support linear interpolation. Also accept scales as an attribute, as in early versions."""
    factors = np.array(kwargs["scales"] if scale is None else scale)
    if mode != "linear":
        return original(node, x, factors, mode=mode)
    resize = reference_modules().op_resize
    corner = {"scale_factors": factors, "coordinate_transformation_mode": "asymmetric"}
    return (resize._interpolate_nd(x, resize._linear_coeffs, **corner).astype(x.dtype),)  # noqa: SLF001


@replaces("op_resize.Resize._run")
def _resized(node: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute early versions of Resize as Upsample does, accept negative axes, and keep infinities.

    The reference replaces infinities, and numbers beyond the range of the type, by the largest
    finite numbers.
    """
    early = node.run_params["opsets"][""] < _RESIZE_VERSION
    # Look up Upsample at each call, so that its corrected version is called.
    run = reference_modules().op_upsample.Upsample._run if early else original  # noqa: SLF001
    if kwargs.get("axes"):
        kwargs |= {"axes": [axis % args[0].ndim for axis in kwargs["axes"]]}
    if args[0].dtype.kind not in "fV":
        return run(node, *args, **kwargs)
    with (
        replaced((onnx.numpy_helper, "saturate_cast", np.ndarray.astype)),
        np.errstate(over="ignore"),
    ):
        return run(node, *args, **kwargs)


@replaces("op_global_average_pool._global_average_pool")
def _global_average(_original: Any, x: Array) -> Array:
    return np.asarray(np.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True))


@replaces("op_global_max_pool._global_max_pool")
def _global_maximum(_original: Any, x: Array) -> Array:
    largest: Array = x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    return largest


@accelerates("_op.OpRun._check_and_fix_outputs")
def _checked(node: Any, original: Any, outputs: Any) -> Any:
    """Skip the reference's slow check of outputs if all outputs are arrays or stacked arrays."""
    if type(outputs) is tuple and outputs and all(type(v) in _ARRAYS for v in outputs):
        return outputs
    return original(node, outputs)


@replaces("op_negative_log_likelihood_loss._compute_negative_log_likelihood_loss")
def fast_loss(
    _original: Any,
    x: Array,
    target: Array,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: Any = None,
) -> tuple[Any]:
    """Look up all targets together, and exclude ignored targets from the mean.

    The reference loops over the targets. If weights are omitted and ``ignore_index`` is -1, the
    reference includes ignored targets in the mean.
    """
    ignored = np.asarray(target == ignore_index)
    places = np.where(ignored, 0, target)[:, np.newaxis]
    loss = np.where(ignored, x.dtype.type(0), -np.take_along_axis(x, places, 1)[:, 0])
    factors = 1 if weight is None else np.take(weight, target, mode="clip")
    factors = np.where(ignored, 0, factors).astype(x.dtype)
    loss = factors * loss
    if reduction == "mean":
        return (loss.sum() / factors.sum(),)
    return (np.asarray(loss.sum() if reduction == "sum" else loss).astype(x.dtype),)


@accelerates("op_conv._conv_implementation")
def _convolved(original: Any, *args: Any) -> Array:
    """Limit the memory of convolutions with many windows, and convert 16-bit operands."""
    return _in_single(partial(windows.convolved_in_blocks, original), *args)


@accelerates("op_matmul.numpy_matmul")
def _in_single(original: Any, x: Array, y: Array, *args: Any) -> Array:
    """Convert 16-bit operands to float32, because NumPy accumulates 16-bit operands slowly."""
    if not isinstance(x, np.ndarray) or dtype_name(x.dtype) not in _SHORT_TYPES:
        return np.asarray(original(x, y, *args))
    wide = (v.astype(np.float32) if isinstance(v, np.ndarray) else v for v in (x, y, *args))
    return np.asarray(original(*wide)).astype(x.dtype)


@replaces(*_GEMM)
def _with_integer_factors(original: Any, a: Array, b: Array, c: Any, *factors: float) -> Array:
    """If alpha and beta are integers, compute Gemm of integers without rounding to double."""
    is_integer = isinstance(a, np.ndarray) and a.dtype.kind in "iu"
    if not is_integer or not all(
        float(factor).is_integer() and abs(factor) < _LARGEST_INTEGER for factor in factors
    ):
        return _in_single(original, a, b, c, *factors)
    # In an unsigned type, negative factors wrap around, and so do products and sums.
    integer_factors = [np.array(int(factor)).astype(a.dtype) for factor in factors]
    return np.asarray(original(a, b, c, *integer_factors))


@replaces("op_gemm.Gemm_6._run")
def _with_scaled_bias(
    node: Any, original: Any, a: Array, b: Array, c: Array, beta: float, **attributes: Any
) -> Any:
    """Multiply C by beta. The reference ignores beta unless the attribute ``broadcast`` is set."""
    return original(node, a, b, c * c.dtype.type(beta), beta=1.0, **attributes)


@replaces("op_cast_like.CastLike_19._run", "op_cast_like.CastLike_25._run")
def _cast_like(
    _node: Any, _original: Any, x: Array, like: Array, saturate: int, round_mode: str = "up"
) -> tuple[Array]:
    """Support ``round_mode``."""
    element_type = helper.np_dtype_to_tensor_dtype(like.dtype)
    cast = reference_modules().op_cast_like.cast_to
    return (cast(x, element_type, bool(saturate), round_mode),)


@replaces("op_quantize_linear._CommonQuantizeLinear._run")
def _saturated(
    quantize: Any, original: Any, x: Array, scale: Array, *args: Any, **attributes: Any
) -> Any:
    """Limit the quotients.

    The reference converts the quotients to int32, in which large quotients wrap around.
    """
    blocks = (attributes.get(name) for name in ("axis", "block_size"))
    reshape = reference_modules().op_quantize_linear._reshape_input  # noqa: SLF001
    largest = _LARGEST_QUOTIENT * np.abs(reshape(scale, x.shape, *blocks).astype(np.float64))
    bounded = np.clip(x, -largest, largest).astype(x.dtype)
    return original(quantize, bounded, scale, *args, **attributes)


@replaces("op_roi_align.RoiAlign._run")
def _aligned(align: Any, original: Any, *args: Any, **attributes: Any) -> Any:
    """Do not shift by half a pixel in versions that lack the attribute for this shift."""
    if align.run_params["opsets"][""] < _HALF_PIXEL_VERSION:
        attributes["coordinate_transformation_mode"] = "output_half_pixel"
    return original(align, *args, **attributes)


@replaces("op_reduce_log_sum_exp.compute_log_sum_exp")
def _log_sum_exp(_original: Any, data: Array, axes: Any, keepdims: Any) -> tuple[Array]:
    largest, total = exponentials.summed(data, axes)
    # If all operands are -inf, the result is -inf; the reference returns NaN.
    result = np.where(np.isfinite(largest), np.log(total) + largest, largest)
    return (result if keepdims else np.squeeze(result, axis=axes),)


@replaces("op_resize._compute_x_ori")
def _whole_coordinates(original: Any, mode: str, y: Array, *args: Any) -> tuple[Array, Any]:
    """Round coordinates that differ from integers only by rounding errors in double."""
    coordinates, outside = original(mode, y, *args)
    if mode == "pytorch_half_pixel" and y.size == 1:
        coordinates = np.zeros(1)
    nearest = np.rint(coordinates)
    close = np.abs(coordinates - nearest) < _COORDINATE_TOLERANCE
    return np.where(close, nearest, coordinates), outside
