"""What onnx's reference lacks or gets wrong, as the specification has it.

``docs/conditioned.md`` says of each what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from math import erf, prod
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper

from onnxopt_cli.core.values import (
    Array,
    Value,
    dtype_name,
)
from onnxopt_cli.oracle.corrections import (
    arranged,
    pools,
    quantized,
    windows,
)
from onnxopt_cli.oracle.corrections.loops import scan_class
from onnxopt_cli.oracle.corrections.replacements import instead_of, whole_numbers
from onnxopt_cli.oracle.corrections.replacements import reference_modules as _modules
from onnxopt_cli.oracle.rounding import exponentials
from onnxopt_cli.oracle.rounding.normalizations import (
    batch_normalization,
    group_normalization,
    instance_normalization,
    layer_normalization,
    mean_variance_normalization,
)

# Modules that have nothing but what runs in place of the reference's functions.
ALSO = (arranged, pools, quantized, windows)

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
_SHORT_TYPES = frozenset({"float16", "bfloat16"})
_GEMM = [f"op_gemm._gemm{it}" for it in ("00", "01", "10", "11")]
_LENGTHS = 4
# From then on BatchNormalization tests unless it has several outputs.
_NEVER_TESTS = 7
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
            mode = _FORMER.get(mode, mode)
            if not np.prod([*x.shape[:2], *grid.shape[:-1]]) > 0:
                return (np.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype),)
            if x.dtype.kind not in "iu" or mode == "nearest":
                return super()._run(x, grid, mode, **rest)
            # Weights of integers are none.
            (found,) = super()._run(x.astype(np.float64), grid, mode, **rest)
            return (whole_numbers(found, x.dtype),)

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

    class HardSwish(OpRun):
        """With 1/6 itself: the published body has it in float32."""

        def _run(self, x: Array) -> tuple[Array]:
            return ((x * np.clip(x / 6 + 0.5, 0, 1)).astype(x.dtype),)

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
        HardSwish,
        MeanVarianceNormalization,
        scan_class(),
        Scatter,
    ]


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


instead_of("op_layer_normalization._layer_normalization")(layer_normalization)
instead_of("op_instance_normalization.InstanceNormalization._run")(instance_normalization)
instead_of("op_batch_normalization._batchnorm_training_mode")(batch_normalization)


@instead_of("op_det.Det._run")
def _determinant(_node: Any, _kept: Any, x: Array) -> tuple[Array]:
    """Know 16 bits, too, in float32."""
    wide = x.astype(np.float32) if x.dtype.name in _SHORT_TYPES else x
    return (np.asarray(np.linalg.det(wide)).astype(x.dtype),)


@instead_of("op_lp_normalization.LpNormalization._run")
def _normalized_magnitudes(node: Any, kept: Any, x: Array, *given: Any, **rest: Any) -> Any:
    return (np.copysign(kept(node, np.abs(x), *given, **rest)[0], x),)


@instead_of("op_lrn.LRN._run")
def _among_neighbours(
    _node: Any, _kept: Any, x: Array, alpha: Any, beta: Any, bias: Any, size: int
) -> tuple[Array]:
    """Divide by the neighbours of each channel, however many batches and axes there are."""
    before, wide = (size - 1) // 2, np.result_type(x.dtype, np.float32)
    alpha, beta, bias = (np.asarray(it, wide) for it in (alpha, beta, bias))
    around = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(np.square(x, dtype=wide), around)
    total = np.sum(sliding_window_view(squares, size, 1), axis=-1)
    return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


@instead_of("op_erf.Erf._run")
def _erf(_node: Any, _kept: Any, x: Array) -> tuple[Array]:
    """Round once, to the type of the input."""
    found = [erf(it) for it in x.ravel().tolist()]
    return (np.array(found, np.float64).reshape(x.shape).astype(x.dtype),)


@instead_of("op_mean.Mean._run")
def _mean(_node: Any, _kept: Any, *given: Array) -> tuple[Array]:
    """Let any operand be broadcast, the first one too."""
    return ((reduce(np.add, given) / len(given)).astype(given[0].dtype),)


@instead_of("op_softmax_cross_entropy_loss.softmaxcrossentropy")
def _loss(
    _kept: Any,
    x: Array,
    target: Array,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: Any = None,
    get_log_prob: Any = None,
) -> tuple[Array, ...]:
    """Take the logarithm of softmax as LogSoftmax does, which no small chance makes infinite."""
    chances = _log_softmax_along(x, 1).astype(x.dtype)
    (loss,) = fast_loss(None, chances, target, weight, reduction, ignore_index)
    loss = np.asarray(loss)
    return (loss, chances) if get_log_prob else (loss,)


@instead_of(
    "aionnxml.op_linear_regressor.LinearRegressor._run",
    "aionnxml.op_linear_classifier.LinearClassifier._run",
)
def _without_intercepts(node: Any, kept: Any, x: Array, intercepts: Any = None, **rest: Any) -> Any:
    """Add nothing where there are no intercepts: the reference adds NaN."""
    return kept(node, x, intercepts=0.0 if intercepts is None else intercepts, **rest)


@instead_of("op_affine_grid.AffineGrid._run")
def _grid(node: Any, kept: Any, theta: Array, *given: Any, **rest: Any) -> tuple[Array]:
    (grid,) = kept(node, theta, *given, **rest)
    return (grid.astype(theta.dtype),)


@instead_of("op_batch_normalization.BatchNormalization_6._run")
def _normalized_at_first(
    node: Any, _kept: Any, *given: Array, epsilon: float, spatial: int = 1, **rest: Any
) -> tuple[Array, ...]:
    """Of the first versions know the inference, also of each activation for itself."""
    training = node.run_params["opsets"][""] < _NEVER_TESTS and not rest.get("is_test")
    if training or len(node.onnx_node.output) > 1:
        raise NotImplementedError("training of BatchNormalization before version 14")
    x, *numbers = given
    if spatial:
        numbers = [it.reshape(-1, *[1] * (x.ndim - 2)) for it in numbers]
    scale, bias, mean, variance = numbers
    return ((scale * (x - mean) / np.sqrt(variance + epsilon) + bias).astype(x.dtype),)


@instead_of("op_batch_normalization.BatchNormalization_9._run")
def _normalized(
    node: Any, kept: Any, *given: Array, epsilon: float, **rest: Any
) -> tuple[Array, ...]:
    """Train only with several outputs."""
    if len(node.onnx_node.output) > 1:
        return tuple(kept(node, *given, epsilon=epsilon, **rest))
    tested = _modules().op_batch_normalization._batchnorm_test_mode  # noqa: SLF001
    return (tested(*given, epsilon=epsilon),)


@instead_of("op_rnn.CommonRNN.choose_act")
def _activation(node: Any, kept: Any, name: str, *numbers: Any) -> Any:
    """Know all activations that need no numbers of their own."""
    return _RNN_ACTIVATIONS.get(name.lower()) or kept(node, name, *numbers)


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
    largest, total = exponentials.summed(x, axis)
    return np.exp(x - largest) / total


def _log_softmax_along(x: Array, axis: int) -> Array:
    largest, total = exponentials.summed(x, axis)
    return np.asarray(x - largest - np.log(total))


_log_softmax = instead_of("op_log_softmax.LogSoftmax._run")(_flattening(_log_softmax_along))


@instead_of("op_hardmax.Hardmax._run")
@_flattening
def _hardmax(x: Array, axis: int) -> Array:
    largest = np.zeros_like(x)
    np.put_along_axis(largest, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return largest


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
    if rest.get("axes"):
        rest |= {"axes": [it % given[0].ndim for it in rest["axes"]]}
    return run(node, *given, **rest)


@instead_of("op_global_max_pool._global_max_pool")
def _largest_of_all(_kept: Any, x: Array) -> Array:
    largest: Array = x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    return largest


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
    if not isinstance(x, np.ndarray) or dtype_name(x.dtype) not in _SHORT_TYPES:
        return np.asarray(kept(x, y, *rest))
    wide = (it.astype(np.float32) if isinstance(it, np.ndarray) else it for it in (x, y, *rest))
    return np.asarray(kept(*wide)).astype(x.dtype)


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
    largest, total = exponentials.summed(data, axes)
    # The sum of nothing but zeros has a logarithm, too.
    found = np.where(np.isfinite(largest), np.log(total) + largest, largest)
    return (found if keepdims else np.squeeze(found, axis=axes),)


@instead_of("op_resize._compute_x_ori")
def _whole_coordinates(kept: Any, mode: str, y: Array, *given: Any) -> tuple[Array, Any]:
    """Return whole numbers, which are missed by little in double, and the reference goes astray."""
    found, outside = kept(mode, y, *given)
    if mode == "pytorch_half_pixel" and y.size == 1:
        found = np.zeros(1)
    whole = np.rint(found)
    return np.where(np.abs(found - whole) < _WHOLE, whole, found), outside
