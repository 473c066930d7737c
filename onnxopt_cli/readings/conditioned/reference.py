"""What onnx's reference lacks or gets wrong, as the specification has it.

``docs/conditioned.md`` says of each what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, partialmethod
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper

from onnxopt_cli.core.values import Array, Value, dtype_name
from onnxopt_cli.readings.conditioned.windows import (
    fast_columns,
    fast_max_pool,
    fast_pool,
    same_padding,
)

# Until then Softmax and its kind took all axes from one on for one.
_FLATTENS = 13
# Until then Resize was what Upsample is.
_RESIZES = 11
# From then on RoiAlign shifts by half a pixel unless it is told not to.
_HALF_PIXELS = 16
# The activations of recurrent operators that the reference computes, whatever is asked for.
_ACTIVATIONS = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}
# Those of RNN that the reference lacks.
_BENDS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
}
# What GridSample's modes were called until version 20.
_FORMER = {"bilinear": "linear", "bicubic": "cubic"}
# What is added up in float32, and where Gemm does it.
_SHORT = frozenset({"float16", "bfloat16"})
_GEMM = ("_gemm00", "_gemm01", "_gemm10", "_gemm11")
_LENGTHS = 4
_LARGEST_QUOTIENT = 2.0**30


@cache
def operators() -> list[type]:
    """Return what is run in place of the reference's operators."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import (
        op_dequantize_linear,
        op_grid_sample,
        op_lp_normalization,
        op_pool_common,
        op_rnn,
        op_scan,
        op_scatter_elements,
    )
    from onnx.reference.ops._op import OpRunUnaryNum

    dequantize: Any = op_dequantize_linear
    grid_sample: Any = op_grid_sample.GridSample
    lp_normalization: Any = op_lp_normalization.LpNormalization
    pool: Any = op_pool_common.CommonPool
    rnn: Any = op_rnn.CommonRNN

    class DequantizeLinear(dequantize._CommonDequantizeLinear):  # type: ignore[misc]  # noqa: SLF001
        """Of every version: the reference has none before 19."""

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

    class LpNormalization(lp_normalization):  # type: ignore[misc]
        """Of magnitudes."""

        def _run(self, x: Array, axis: Any = None, p: Any = None) -> tuple[Array]:
            return (np.copysign(super()._run(np.abs(x), axis, p)[0], x),)

    class LpPool(pool):  # type: ignore[misc]
        """Of what lies within: the reference multiplies means by all of a window's elements."""

        def _run(self, x: Array, **rest: Any) -> Any:
            rest.pop("count_include_pad", None)
            return super()._run("LPPOOL", 1, x, **rest)

    class LRN(OpRun):
        """With the neighbours of each channel, however many batches there are."""

        def _run(self, x: Array, alpha: Any, beta: Any, bias: Any, size: int) -> tuple[Array]:
            before = (size - 1) // 2
            squares = np.pad(x * x, [(0, 0), (before, size - 1 - before), (0, 0), (0, 0)])
            total = np.sum(sliding_window_view(squares, size, 1), axis=-1)
            return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)

    class RNN(rnn):  # type: ignore[misc]
        """With all activations that need no numbers of their own."""

        def choose_act(self, name: str, *numbers: Any) -> Any:
            return _BENDS.get(name.lower()) or super().choose_act(name, *numbers)

    class Scan(op_scan.Scan):
        """With what Scan was at first: of batches, behind lengths that are left out."""

        def _run(self, *given: Any, **rest: Any) -> tuple[Any, ...]:
            run: Any = super()._run
            if given[0] is not None or any(getattr(self, "directions", None) or ()):
                return tuple(run(*given, **rest))
            found = [run(*it, **rest) for it in zip(*given[1:], strict=True)]
            return tuple(map(np.stack, zip(*found, strict=True)))

    class Scatter(op_scatter_elements.ScatterElements):
        """The earlier name of ScatterElements."""

    kind = {"Softmax": _softmax, "LogSoftmax": _log_softmax, "Hardmax": _hardmax}
    flat = (_flattening(OpRunUnaryNum, *it) for it in kind.items())
    pools = type("GlobalLpPool", (OpRun,), {"_run": _norm_of_all})
    ours = [DequantizeLinear, GridSample, LpNormalization, LpPool, LRN, RNN, Scan, Scatter]
    return [*ours, pools, *flat]


def _flattening(base: type, name: str, compute: Callable[[Array, int], Array]) -> type:
    def run(self: Any, x: Array) -> tuple[Array]:
        flat, axis = x, self.axis
        if self.run_params["opsets"][""] < _FLATTENS:
            given = next((it.i for it in self.onnx_node.attribute if it.name == "axis"), 1)
            flat, axis = x.reshape(prod(x.shape[:given]), -1), 1
        return (compute(flat, axis).reshape(x.shape).astype(x.dtype) if x.size else x,)

    return type(name, (base,), {"_run": run})


def wrong_about(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> str:
    """Return why onnx's reference is not asked for a node; empty if nothing is known."""
    given = {it.name: helper.get_attribute_value(it) for it in node.attribute}
    if given.get("post_transform") == b"PROBIT":
        return "only comes near the inverse of erf"
    if node.op_type == "SVMClassifier" and len(given.get("prob_a", ())) > 1:
        return "couples the chances of more than two classes wrongly"
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


def _softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Array:
    moved = x - x.max(axis=axis, keepdims=True)
    return moved - np.log(np.sum(np.exp(moved), axis=axis, keepdims=True))


def _hardmax(x: Array, axis: int) -> Array:
    largest = np.zeros_like(x)
    np.put_along_axis(largest, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return largest


def _modules() -> Any:
    """Return the reference's modules by name; their types are of no use here."""
    from onnx.reference import ops

    return ops


@cache
def functions() -> list[tuple[Any, str, Any]]:
    """Return what is run in place of the reference's functions: module, name and function."""
    from onnx.reference.op_run import OpRun

    ops = _modules()
    instead: list[tuple[Any, str, Any]] = [
        (ops.op_conv, "im2col", fast_columns),
        (ops.op_gather_elements, "gather_numpy", _gathered),
        (ops.op_global_max_pool, "_global_max_pool", _largest_of_all),
        (ops.op_negative_log_likelihood_loss, "_compute_negative_log_likelihood_loss", fast_loss),
        (ops.op_reduce_log_sum_exp, "compute_log_sum_exp", _log_sum_exp),
    ]
    # These are given the reference's own, behind the node if it is a method.
    around: list[tuple[Any, str, Any]] = [
        (OpRun, "_check_and_fix_outputs", _checked),
        (ops.op_batch_normalization.BatchNormalization_9, "_run", _normalized),
        (ops.op_conv, "_conv_implementation", _in_single),
        (ops.op_conv_transpose.ConvTranspose, "_run", _grouped),
        *((ops.op_gemm, name, _in_single) for name in _GEMM),
        (ops.op_matmul, "numpy_matmul", _in_single),
        (ops.op_max_pool.MaxPool, "_max_pool", _padded_alike),
        (ops.op_max_pool.MaxPool, "_run", _largest),
        (ops.op_pad, "_pad_impl", _padded_or_cut),
        (ops.op_pool_common, "get_output_shape_explicit_padding", _padded_at_the_end),
        (ops.op_pool_common, "pool", fast_pool),
        (ops.op_quantize_linear._CommonQuantizeLinear, "_run", _saturated),  # noqa: SLF001
        (ops.op_resize.Resize, "_run", _resized),
        (ops.op_roi_align.RoiAlign, "_run", _aligned),
        (ops.op_unique.Unique, "_run", _in_order),
        (ops.op_upsample.Upsample, "_run", _stretched),
    ]
    for owner, name, function in around:
        given = partialmethod if isinstance(owner, type) else partial
        instead.append((owner, name, given(function, getattr(owner, name))))
    return instead


def _normalized(
    node: Any, kept: Any, *given: Array, epsilon: float, **rest: Any
) -> tuple[Array, ...]:
    """Train only with several outputs."""
    if len(node.onnx_node.output) > 1:
        return tuple(kept(node, *given, epsilon=epsilon, **rest))
    tested = _modules().op_batch_normalization._batchnorm_test_mode  # noqa: SLF001
    return (tested(*given, epsilon=epsilon),)


def _stretched(
    node: Any, kept: Any, x: Array, scale: Any = None, mode: str = "", **rest: Any
) -> Any:
    """Interpolate linearly, too; once the scales were an attribute."""
    factors = np.array(rest["scales"] if scale is None else scale)
    if mode != "linear":
        return kept(node, x, factors, mode=mode)
    resize = _modules().op_resize
    corner = {"scale_factors": factors, "coordinate_transformation_mode": "asymmetric"}
    return (resize._interpolate_nd(x, resize._linear_coeffs, **corner).astype(x.dtype),)  # noqa: SLF001


def _resized(node: Any, kept: Any, *given: Any, **rest: Any) -> Any:
    former = node.run_params["opsets"][""] < _RESIZES
    # Upsample is replaced meanwhile, too.
    run = _modules().op_upsample.Upsample._run if former else kept  # noqa: SLF001
    return run(node, *given, **rest)


def _norm_of_all(_: Any, x: Array, p: int) -> tuple[Array]:
    powers = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
    return ((powers ** (1 / p)).astype(x.dtype),)


def _gathered(data: Array, axis: int, indices: Array) -> Array:
    """Gather along any axis of any length, where there may be fewer indices along the others."""
    within = [slice(size) for size in indices.shape]
    within[axis] = slice(None)
    return np.take_along_axis(data[tuple(within)], indices, axis)


def _largest_of_all(x: Array) -> Array:
    largest: Array = x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    return largest


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


def _in_order(node: Any, kept: Any, x: Array, axis: Any = None, **rest: Any) -> tuple[Array, ...]:
    """Take what is unique from where it was found, along any axis."""
    whole = axis is None or np.isnan(axis)
    y, *others = kept(node, x.ravel() if whole else np.moveaxis(x, int(axis), 0), 0, **rest)
    return (y if whole else np.moveaxis(y, 0, int(axis)), *others)


def _checked(node: Any, kept: Any, outputs: Any) -> Any:
    """Look closer at what a node returns only where it is no arrays: that takes long."""
    arrays = type(outputs) is tuple and outputs and all(type(it) is np.ndarray for it in outputs)
    return outputs if arrays else kept(node, outputs)


def fast_loss(
    x: Array, target: Array, weight: Any = None, reduction: str = "mean", ignore_index: Any = None
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


def _in_single(kept: Any, x: Array, y: Array, *rest: Any) -> Array:
    """Add up what has 16 bits in float32, as NumPy does, and much faster."""
    if not isinstance(x, np.ndarray) or dtype_name(x.dtype) not in _SHORT:
        return np.asarray(kept(x, y, *rest))
    wide = (it.astype(np.float32) if isinstance(it, np.ndarray) else it for it in (x, y, *rest))
    return np.asarray(kept(*wide)).astype(x.dtype)


def _largest(node: Any, kept: Any, x: Array, storage_order: Any = None, **rest: Any) -> Any:
    """Take the largest elements of all windows at once, where nobody asks for their places."""
    alone = len(node.onnx_node.output) == 1 and x.dtype.kind == "f"
    found = fast_max_pool(x, **rest) if alone else None
    return kept(node, x, storage_order=storage_order, **rest) if found is None else (found,)


def _grouped(
    node: Any, kept: Any, x: Array, w: Array, b: Array | None = None, group: int = 1, **rest: Any
) -> tuple[Array]:
    """Transpose the convolutions of each group with its channels and biases."""
    biases = [None] * group if b is None else np.split(b, group)
    parts = zip(np.split(x, group, 1), np.split(w, group), biases, strict=True)
    return (np.concatenate([kept(node, *it, group=1, **rest)[0] for it in parts], axis=1),)


def _padded_at_the_end(
    kept: Any, pads: Sequence[int] | None, shape: Sequence[int], *rest: Any
) -> tuple[Any, list[int]]:
    """Let what is missing of the last windows be missing at the end, not in part at the front."""
    out_shape, required = kept(pads, shape, *rest)
    front = [0] * len(shape) if pads is None else list(pads[: len(shape)])
    total = np.reshape(required, (2, -1)).sum(axis=0)
    return out_shape, [*front, *(total - front).tolist()]


def _padded_alike(
    pool: Any, kept: Any, x: Array, auto_pad: str, ceil_mode: int, **rest: Any
) -> Any:
    """Have as many windows for SAME_LOWER as for SAME_UPPER, not fewer."""
    if auto_pad == "SAME_LOWER":
        size, ones = np.array(x.shape[2:]), [1] * (x.ndim - 2)
        stride, apart = (np.array(rest[it] or ones) for it in ("strides", "dilations"))
        reach = (np.array(rest["kernel_shape"]) - 1) * apart + 1
        rest["pads"] = np.concatenate(same_padding(auto_pad, size, stride, reach)).tolist()
        auto_pad = "NOTSET"
    return kept(pool, x, auto_pad=auto_pad, ceil_mode=ceil_mode, **rest)


def _saturated(
    quantize: Any, kept: Any, x: Array, scale: Array, *rest: Any, **attributes: Any
) -> Any:
    """Take no quotient beyond what int32 holds, where it would begin again at the other end."""
    given = (attributes.get(it) for it in ("axis", "block_size"))
    reshaped = _modules().op_quantize_linear._reshape_input  # noqa: SLF001
    largest = _LARGEST_QUOTIENT * np.abs(reshaped(scale, x.shape, *given).astype(np.float64))
    bounded = np.clip(x, -largest, largest).astype(x.dtype)
    return kept(quantize, bounded, scale, *rest, **attributes)


def _aligned(align: Any, kept: Any, *given: Any, **attributes: Any) -> Any:
    """Take no half pixel away in versions that know nothing of it."""
    if align.run_params["opsets"][""] < _HALF_PIXELS:
        attributes["coordinate_transformation_mode"] = "output_half_pixel"
    return kept(align, *given, **attributes)


def _log_sum_exp(data: Array, axes: Any, keepdims: Any) -> tuple[Array]:
    largest = data.max(axis=axes, keepdims=True)
    # The sum of nothing but zeros has a logarithm, too.
    largest = np.where(np.isfinite(largest), largest, 0).astype(data.dtype)
    total = np.sum(np.exp(data - largest), axis=axes, keepdims=True, dtype=data.dtype)
    found = np.log(total) + largest
    return (found if keepdims else np.squeeze(found, axis=axes),)
