"""Contested questions: questions that two published sources of ONNX answer differently.

Both readings are accepted. A source is the text of the specification, a published function body, a
published case, or the source code of onnx's reference. The behaviour of runtimes is not a source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.corrections import corrected_reference, grids, recurrent
from onnxopt_cli.oracle.corrections.float_outputs import in_single
from onnxopt_cli.oracle.patching import reference_modules

_TREE = "https://github.com/onnx/onnx/blob/v1.23.2/onnx"
_DOCUMENTS = "https://onnx.ai/onnx/operators"
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml"}
# Modes of Resize in which coordinates depend on the length of the resized tensor.
_BY_LENGTH = {"align_corners", "tf_crop_and_resize"}
# The first version of Clip that has a published body.
_CLIP_BODY_VERSION = 13
# The first version of Gemm whose operand C is broadcast without an attribute.
_GEMM_VERSION = 7
# Modules of corrections. The second reading of a question may replace one of their functions.
_CORRECTIONS = {
    "corrected_reference": corrected_reference,
    "grids": grids,
    "recurrent": recurrent,
}


@dataclass(frozen=True, slots=True)
class Quotation:
    """A published source, quoted.

    Attributes:
        says: the quotation, with white space reduced to single spaces.
        where: the document or file in onnx 1.23.2.
        link: the address of the document or file.
    """

    says: str
    where: str
    link: str


@dataclass(frozen=True, slots=True)
class Contested:
    """A question that two published sources answer differently.

    Attributes:
        name: the operator and the question, in a few words.
        operators: the operators.
        readings: a source for each reading. onnx's reference follows the first reading.
        outcome: for each reading, a description of the result.
        concerns: takes the attributes and inputs of a node and the opset version, and returns
            whether the readings may differ at the node.
        place: the function that is replaced in the second reading: a function of onnx's reference,
            or of a correction in ``_CORRECTIONS``.
        second: the replacement. Its first argument is the original function.
    """

    name: str
    operators: tuple[str, ...]
    readings: tuple[Quotation, Quotation]
    outcome: tuple[str, str]
    concerns: Callable[[Mapping[str, Any], Sequence[Any], int], bool]
    place: str
    second: Callable[..., Any]


def questions_at(node: SimpleNamespace, inputs: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the contested questions on which a node's outputs may depend.

    Args:
        node: the node, as the evaluator prepares it.
        inputs: its inputs.
    """
    entries = _BY_OPERATOR.get(node.op_type, ())
    if not entries or node.onnx_node.domain not in _DOMAINS:
        return
    attributes = {
        # If an attribute refers to an attribute of the surrounding function, its value is unknown,
        # and None stands for it.
        attribute.name: None if attribute.ref_attr_name else helper.get_attribute_value(attribute)
        for attribute in node.onnx_node.attribute
    }
    yield from (entry.name for entry in entries if entry.concerns(attributes, inputs, node.opset))


def second_readings(names: Sequence[str]) -> list[tuple[Any, str, Any]]:
    """Return replacements by which onnx's reference computes the second readings of questions."""
    bound = []
    for entry in CONTESTED:
        if entry.name in names:
            module, *within, name = entry.place.split(".")
            first = _CORRECTIONS.get(module) or getattr(reference_modules(), module)
            owner: Any = reduce(getattr, within, first)
            # The current function may itself be a correction of the reference's function.
            bound.append((owner, name, _bound(entry.second, getattr(owner, name))))
    return bound


def _bound(second: Callable[..., Any], first: Any) -> Callable[..., Any]:
    """Return a function that passes ``first`` and its own arguments to ``second``.

    The function may become a method of a class. ``functools.partial`` would not work as a method,
    because Python does not bind a partial object to the instances of a class.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return second(first, *args, **kwargs)

    return run


def _has_fraction(attributes: Mapping[str, Any], inputs: Sequence[Any], _opset: int) -> bool:
    """Return whether a Resize depends on a product of scale and length that is not an integer."""
    mode = attributes.get("coordinate_transformation_mode", b"half_pixel")
    operands: list[Any] = [*inputs, None, None]
    x, _roi, scales, *_ = operands
    if (mode is not None and mode.decode() not in _BY_LENGTH) or scales is None:
        return False
    # The axes are unknown if they come from an attribute of a surrounding function.
    lengths = np.array([x.shape[axis] for axis in attributes.get("axes") or range(x.ndim)])
    return lengths.shape != scales.shape or bool((scales * lengths % 1 != 0).any())


def _whole_length(
    first: Any,
    mode: str,
    y: Array,
    scale: float,
    length: int,
    width: float,
    whole_width: int,
    roi: Any,
) -> Any:
    resized = float(whole_width) if mode in _BY_LENGTH else width
    return first(mode, y, scale, length, resized, whole_width, roi)


def _largest_of_interpolated(
    first: Any, align: Any, x: Array, *args: Any, **attributes: Any
) -> Any:
    """Interpolate at each sampling point, then return the maximum of each bin.

    The bins are refined until each of them contains a single point. The average over such a bin is
    the interpolated value of its point.
    """
    if attributes["mode"].lower() != "max":
        return first(align, x, *args, **attributes)
    rois, batches = args
    height, width = attributes["output_height"], attributes["output_width"]
    pooled = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for place, roi in enumerate(rois):
        ratio = attributes["sampling_ratio"]
        grid = [ratio, ratio] if ratio > 0 else _adaptive_grid(roi, attributes)
        if min(grid) < 1:
            continue
        finer = {"output_height": height * grid[0], "output_width": width * grid[1]}
        once = attributes | finer | {"mode": "avg", "sampling_ratio": 1}
        (points,) = first(align, x, rois[place : place + 1], batches[place : place + 1], **once)
        pooled[place] = points.reshape(-1, height, grid[0], width, grid[1]).max(axis=(2, 4))
    return (pooled,)


def _adaptive_grid(roi: Array, attributes: Mapping[str, Any]) -> list[int]:
    """Return the number of sampling points along each axis: the length of a bin, rounded up."""
    extent = (roi[[3, 2]] - roi[[1, 0]]) * attributes["spatial_scale"]
    if attributes["coordinate_transformation_mode"].lower() != "half_pixel":
        extent = np.maximum(extent, 1)
    bins = np.array([attributes["output_height"], attributes["output_width"]])
    return [int(count) for count in np.ceil(extent / bins)]


def _has_nan_bound(_attributes: Mapping[str, Any], inputs: Sequence[Any], opset: int) -> bool:
    bounds = [bound for bound in inputs[1:] if bound is not None]
    return opset >= _CLIP_BODY_VERSION and any(bool(np.isnan(bound).any()) for bound in bounds)


def _clipped_by_body(_first: Any, _clip: Any, x: Array, *bounds: Any) -> tuple[Array]:
    """Clip by comparison and selection.

    A bound of NaN has no effect, because comparisons with NaN are false.
    """
    low, high = [*bounds, None, None][:2]
    if low is not None:
        x = np.where(x < low, low, x)
    return (x if high is None else np.where(high < x, high, x),)


def _has_negative_alpha(attributes: Mapping[str, Any], _inputs: Sequence[Any], _opset: int) -> bool:
    alpha = attributes.get("alpha", 1.0)
    return alpha is None or alpha < 0


def _scaled_elu(_first: Any, x: Array, alpha: float = 1.0) -> Array:
    """Return alpha Elu(x / alpha), where Elu(v) is v for v >= 0, and exp(v) - 1 for v < 0."""
    scaled = x / alpha
    return np.asarray(alpha * np.where(scaled >= 0, scaled, np.expm1(scaled)))


def _has_other_shape(attributes: Mapping[str, Any], inputs: Sequence[Any], _opset: int) -> bool:
    x, _places, shape, *_ = [*inputs, None]
    kernel = attributes["kernel_shape"]
    if shape is None or kernel is None:
        return shape is not None
    strides = attributes.get("strides") or [1] * len(kernel)
    pads = np.reshape(attributes.get("pads") or [0] * 2 * len(kernel), (2, -1)).sum(axis=0)
    inferred = (np.array(x.shape[2:]) - 1) * strides - pads + kernel
    return [*shape] != [*x.shape[:2], *inferred]


def _unpooled_into_shape(
    first: Any, node: Any, x: Array, places: Array, shape: Any = None, **kwargs: Any
) -> Any:
    """Interpret the indices of MaxUnpool as flat indices of its output."""
    if shape is None:
        return first(node, x, places, shape, **kwargs)
    unpooled = np.zeros(tuple(shape), x.dtype)
    unpooled.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    return (unpooled,)


def _has_signs(_attributes: Mapping[str, Any], inputs: Sequence[Any], _opset: int) -> bool:
    return bool((inputs[0] < 0).any())


def _normalized_by_formulas(_first: Any, _node: Any, x: Array, norm: str) -> tuple[Array]:
    """Divide each row by its signed maximum or sum.

    For L2, divide the square of each element by the sum of the squares, and take the root.
    """
    x = in_single(x)
    rows = x.reshape(-1, x.shape[-1])
    sums: dict[str, Any] = {"MAX": rows.max, "L1": rows.sum, "L2": np.square(rows).sum}
    divisor = sums[norm](axis=-1, keepdims=True)
    y = np.sqrt(np.square(rows) / divisor) if norm == "L2" else rows / divisor
    return (np.where(divisor == 0, rows, y).reshape(x.shape).astype(x.dtype),)


# Floating-point types of zero points that onnx's reference ignores.
_IGNORED_BY_QUANTIZE = frozenset(
    {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
)
_IGNORED_BY_DEQUANTIZE = frozenset({"float4_e2m1fn"})


def _is_ignored(zero_point: Any, types: Collection[str]) -> bool:
    return zero_point is not None and zero_point.dtype.name in types and bool(zero_point.any())


def _quantized_with_zero_point(
    first: Any, node: Any, x: Array, scale: Array, zero_point: Any = None, **attributes: Any
) -> Any:
    """Add the zero point to the quotients before they are converted."""
    if not _is_ignored(zero_point, _IGNORED_BY_QUANTIZE):
        return first(node, x, scale, zero_point, **attributes)
    axis, block_size, precision = map(attributes.get, ("axis", "block_size", "precision"))
    reshape = reference_modules().op_quantize_linear._reshape_input  # noqa: SLF001
    scale, shift = (reshape(part, x.shape, axis, block_size) for part in (scale, zero_point))
    kind = helper.tensor_dtype_to_np_dtype(precision) if precision else np.result_type(x, scale)
    quotient = x.astype(kind) / scale.astype(kind)
    shifted, one = quotient + shift.astype(kind), np.ones((), kind)
    no_shift, saturate = np.zeros((), zero_point.dtype), attributes.get("saturate", 1)
    return first(node, shifted, one, no_shift, axis=axis, saturate=saturate)


def _dequantized_with_zero_point(
    first: Any, node: Any, x: Array, scale: Array, zero_point: Any = None, **attributes: Any
) -> Any:
    """Subtract the zero point."""
    if not _is_ignored(zero_point, _IGNORED_BY_DEQUANTIZE):
        return first(node, x, scale, zero_point, **attributes)
    reshape = reference_modules().op_dequantize_linear._reshape_input  # noqa: SLF001
    shift = reshape(zero_point, x.shape, attributes.get("axis"), attributes.get("block_size"))
    shifted = x.astype(np.float32) - shift.astype(np.float32)
    return first(node, shifted, scale, None, **attributes)


def _has_zero_factor(
    factor: str, operands: slice, attributes: Mapping[str, Any], inputs: Sequence[Any], opset: int
) -> bool:
    """Return whether a Gemm multiplies NaN or infinities by alpha or beta of 0."""
    return (
        opset >= _GEMM_VERSION
        and attributes.get(factor, 1.0) in (None, 0.0)
        and any(x is not None and not np.isfinite(x).all() for x in inputs[operands])
    )


def _multiplied_by_beta(
    first: Any, node: Any, a: Array, b: Array, c: Any = None, **attributes: Any
) -> tuple[Array]:
    """Add 0 * C to the product if beta is 0."""
    (y,) = first(node, a, b, c, **attributes)
    return (y if attributes["beta"] or c is None else y + 0 * c,)


def _without_product(
    first: Any, node: Any, a: Array, b: Array, c: Any = None, **attributes: Any
) -> Any:
    """Replace A and B by zeros if alpha is 0."""
    if not attributes["alpha"]:
        a, b = np.zeros_like(a), np.zeros_like(b)
    return first(node, a, b, c, **attributes)


def _to_upper_edge(
    first: Any, node: Any, bands: Any, length: Any, rate: Any, low: Any, high: Any, **kwargs: Any
) -> Any:
    """Let the highest band end at the upper edge.

    n bands have n + 2 edges, and therefore n + 1 steps. The reference divides the range by n + 2.
    """
    lowest, highest = (2595 * np.log10(1 + np.float64(edge) / 700) for edge in (low, high))
    beyond = lowest + (highest - lowest) * (bands + 2) / (bands + 1)
    return first(node, bands, length, rate, low, 700 * (10 ** (beyond / 2595) - 1), **kwargs)


def _has_doubles(_attributes: Mapping[str, Any], inputs: Sequence[Any], _opset: int) -> bool:
    return any(getattr(x, "dtype", None) == np.float64 for x in inputs)


def _has_activations_of_doubles(
    attributes: Mapping[str, Any], inputs: Sequence[Any], opset: int
) -> bool:
    return "activations" in attributes and _has_doubles(attributes, inputs, opset)


def _as_singles(first: Any, name: str) -> tuple[float | None, ...]:
    """Round the default parameters of an activation to float32."""
    return tuple(None if number is None else float(np.float32(number)) for number in first(name))


def _with_decimal_defaults(first: Any, node: Any) -> None:
    """Set omitted attributes to the doubles nearest to the decimal numbers of the documents."""
    first(node)
    stated = {attribute.name for attribute in node.onnx_node.attribute}
    for name in node.attributes_names_ - stated:
        value = getattr(node, name)
        if isinstance(value, np.float32):
            setattr(node, name, float(str(value)))


#: The contested questions. Each reading of a question yields an expected result with its own
#: tolerances.
CONTESTED: tuple[Contested, ...] = (
    Contested(
        name="Resize: the output length if scale times length is not an integer",
        operators=("Resize",),
        readings=(
            Quotation(
                "output_width = scale_factor * input_width",
                "reference, op_resize.py; also the outputs of the published case "
                "test_resize_downsample_scales_linear_align_corners, [[[[1. 3.142857]]]]",
                f"{_TREE}/reference/ops/op_resize.py",
            ),
            Quotation(
                "`length_resized` as the length of the resized tensor in axis x",
                "text of Resize 19, coordinate_transformation_mode",
                f"{_DOCUMENTS}/onnx__Resize.html",
            ),
        ),
        outcome=(
            "`align_corners` and `tf_crop_and_resize` divide by 4 * 0.6 - 1 = 1.4",
            "`align_corners` and `tf_crop_and_resize` divide by floor(4 * 0.6) - 1 = 1",
        ),
        concerns=_has_fraction,
        place="op_resize._compute_x_ori",
        second=_whole_length,
    ),
    Contested(
        name="RoiAlign: the values whose maximum is the result in mode max",
        operators=("RoiAlign",),
        readings=(
            Quotation(
                "val = max( pc.w1 * bottom_data[offset_bottom_data + pc.pos1], pc.w2",
                "reference, op_roi_align.py; also the outputs of the published case "
                "test_roialign_mode_max",
                f"{_TREE}/reference/ops/op_roi_align.py",
            ),
            Quotation(
                "in each ROI bin, the value of the sampled locations are computed directly "
                "through bilinear interpolation",
                "text of RoiAlign 22; see also onnx issue 4764",
                f"{_DOCUMENTS}/onnx__RoiAlign.html",
            ),
        ),
        outcome=(
            "the largest of the four weighted corners of all points",
            "the largest of the interpolated values, which are sums of four weighted corners",
        ),
        concerns=lambda attributes, _inputs, _opset: (
            attributes.get("mode", b"avg") in (None, b"max")
        ),
        place="op_roi_align.RoiAlign._run",
        second=_largest_of_interpolated,
    ),
    Contested(
        name="GridSample: cubic interpolation with border values",
        operators=("GridSample",),
        readings=(
            Quotation(
                'if padding_mode == "border": x[i] = self._clamp(v, 0, dims[i] - 1)',
                "reference, op_grid_sample.py; v is the coordinate of a point outside of the image",
                f"{_TREE}/reference/ops/op_grid_sample.py",
            ),
            Quotation(
                "border: use border values for out-of-bound grid locations",
                "text of GridSample 22, padding_mode; PyTorch, to which the text refers, does this "
                "for each pixel",
                f"{_DOCUMENTS}/onnx__GridSample.html",
            ),
        ),
        outcome=(
            "a point outside of the image has the value of the border",
            "a pixel outside of the image has the value of the nearest pixel inside",
        ),
        concerns=lambda attributes, _inputs, _opset: (
            attributes.get("mode", b"linear") in (None, b"cubic", b"bicubic")
            and attributes.get("padding_mode", b"zeros") in (None, b"border")
        ),
        place="grids.moves_to_border",
        second=lambda _first, mode: mode != "cubic",
    ),
    Contested(
        name="Celu: a negative alpha",
        operators=("Celu",),
        readings=(
            Quotation(
                "max(0,x) + min(0,alpha*(exp(x/alpha)-1))",
                "text of Celu 12; the reference does the same",
                f"{_DOCUMENTS}/onnx__Celu.html",
            ),
            Quotation(
                "EluResult = Elu <alpha: float = 1> (XScaled) Y = Mul (AlphaCast, EluResult)",
                "published function body of Celu 28; XScaled is x / alpha",
                f"{_TREE}/defs/math/defs.cc",
            ),
        ),
        outcome=(
            "x for positive x, and alpha (exp(x / alpha) - 1) for negative x",
            "alpha (exp(x / alpha) - 1) for positive x, and x for negative x",
        ),
        concerns=_has_negative_alpha,
        place="op_celu._vcelu1",
        second=_scaled_elu,
    ),
    Contested(
        name="Clip: a bound that is NaN",
        operators=("Clip",),
        readings=(
            Quotation(
                "res = data if amin is amax is None else np.clip(data, amin, amax)",
                "reference, op_clip.py",
                f"{_TREE}/reference/ops/op_clip.py",
            ),
            Quotation(
                "output_large_than_max = Less (max, tmp) output = Where "
                "(output_large_than_max, max, tmp)",
                "published function body of Clip 13",
                f"{_TREE}/defs/math/defs.cc",
            ),
        ),
        outcome=(
            "NaN, as from NumPy's minimum and maximum",
            "the bound is ignored: no number is less than NaN",
        ),
        concerns=_has_nan_bound,
        place="op_clip.Clip_11._run",
        second=_clipped_by_body,
    ),
    Contested(
        name="MelWeightMatrix: the upper end of the highest band",
        operators=("MelWeightMatrix",),
        readings=(
            Quotation(
                "mel_step = (high_frequency_mel - low_frequency_mel) / frequency_bins.shape[0]",
                "reference, op_mel_weight_matrix.py; also the published case test_melweightmatrix",
                f"{_TREE}/reference/ops/op_mel_weight_matrix.py",
            ),
            Quotation(
                "The desired top edge of the highest frequency band.",
                "text of MelWeightMatrix 17, input upper_edge_hertz",
                f"{_DOCUMENTS}/onnx__MelWeightMatrix.html",
            ),
        ),
        outcome=(
            "n bands have steps of 1 / (n + 2) of the range, so that the highest band ends below",
            "n bands have n + 2 edges, of which the last one is the upper edge",
        ),
        concerns=lambda _attributes, _inputs, _opset: True,
        place="op_mel_weight_matrix.MelWeightMatrix._run",
        second=_to_upper_edge,
    ),
    Contested(
        name="MaxUnpool: the tensor to which indices refer if output_shape is given",
        operators=("MaxUnpool",),
        readings=(
            Quotation(
                "xI = np.array([[[[5, 7], [13, 15]]]], dtype=np.int64) "
                "output_shape = np.array((1, 1, 5, 5), dtype=np.int64) "
                "y = np.array( [ [ [ [0, 0, 0, 0, 0], [0, 5, 0, 6, 0],",
                "published case test_maxunpool_export_with_output_shape",
                f"{_TREE}/backend/test/case/node/maxunpool.py",
            ),
            Quotation(
                "The indices are linear, i.e. computed considering the tensor as flattened 1-D "
                "tensor, assuming row-major storage. Also, the linear indices should not consider "
                "padding.",
                "text of MaxUnpool 22, input I",
                f"{_DOCUMENTS}/onnx__MaxUnpool.html",
            ),
        ),
        outcome=(
            "the tensor whose shape follows from kernel, strides and pads; it is padded afterwards",
            "the output itself: MaxPool, which yields the indices, has no other tensor",
        ),
        concerns=_has_other_shape,
        place="op_max_unpool.MaxUnpool._run",
        second=_unpooled_into_shape,
    ),
    Contested(
        name="Normalizer: the signs of negative elements",
        operators=("Normalizer",),
        readings=(
            Quotation(
                "div = np.abs(x).max(axis=1).reshape((x.shape[0], -1))",
                "reference, aionnxml/op_normalizer.py; of L1 likewise",
                f"{_TREE}/reference/ops/aionnxml/op_normalizer.py",
            ),
            Quotation(
                "Max: Y = X / max(X)<br> L1: Y = X / sum(X)<br> L2: Y = sqrt(X^2 / sum(X^2)}<br>",
                "text of Normalizer 1",
                f"{_DOCUMENTS}/onnx_aionnxml_Normalizer.html",
            ),
        ),
        outcome=(
            "divisors are computed from magnitudes, and results keep their signs",
            "divisors keep signs, and the results of L2 are not negative",
        ),
        concerns=_has_signs,
        place="aionnxml.op_normalizer.Normalizer._run",
        second=_normalized_by_formulas,
    ),
    Contested(
        name="QuantizeLinear: a zero point of a float8 type",
        operators=("QuantizeLinear",),
        readings=(
            Quotation(
                "return ( onnx.numpy_helper.saturate_cast( "
                "x, dtype=tensor_dtype_to_np_dtype(tensor_type) ), )",
                "reference, op_quantize_linear.py; x is the quotient",
                f"{_TREE}/reference/ops/op_quantize_linear.py",
            ),
            Quotation(
                "`y_zero_point` is usually not used for quantization to float8 and 4bit types, but "
                "the quantization formula remains the same for consistency",
                "text of QuantizeLinear 25",
                f"{_DOCUMENTS}/onnx__QuantizeLinear.html",
            ),
        ),
        outcome=("the zero point is ignored", "the zero point is added to the quotient"),
        concerns=lambda _attributes, inputs, _opset: _is_ignored(
            [*inputs, None][2], _IGNORED_BY_QUANTIZE
        ),
        place="op_quantize_linear._CommonQuantizeLinear._run",
        second=_quantized_with_zero_point,
    ),
    Contested(
        name="DequantizeLinear: a zero point of type float4e2m1",
        operators=("DequantizeLinear",),
        readings=(
            Quotation(
                "and x_type != TensorProto.FLOAT4E2M1 ):",
                "reference, op_dequantize_linear.py: the condition for subtracting the zero point",
                f"{_TREE}/reference/ops/op_dequantize_linear.py",
            ),
            Quotation(
                "`zero-point` is usually not used in the case of float8 and 4-bit types "
                "quantization, but the dequantization formula remains the same for consistency",
                "text of DequantizeLinear 25",
                f"{_DOCUMENTS}/onnx__DequantizeLinear.html",
            ),
        ),
        outcome=("the zero point is ignored", "the zero point is subtracted"),
        concerns=lambda _attributes, inputs, _opset: _is_ignored(
            [*inputs, None][2], _IGNORED_BY_DEQUANTIZE
        ),
        place="op_dequantize_linear._CommonDequantizeLinear._run",
        second=_dequantized_with_zero_point,
    ),
    Contested(
        name="Gemm: NaN and infinities in C if beta is 0",
        operators=("Gemm",),
        readings=(
            Quotation(
                "if c is not None and beta != 0: o += c * beta",
                "reference, op_gemm.py; BLAS, to which the text refers, does not read C either",
                f"{_TREE}/reference/ops/op_gemm.py",
            ),
            Quotation(
                "Compute Y = alpha * A' * B' + beta * C",
                "text of Gemm 13",
                f"{_DOCUMENTS}/onnx__Gemm.html",
            ),
        ),
        outcome=("C is not read", "0 times NaN or an infinity is NaN"),
        concerns=partial(_has_zero_factor, "beta", slice(2, 3)),
        place="op_gemm.Gemm_7._run",
        second=_multiplied_by_beta,
    ),
    Contested(
        name="Gemm: NaN and infinities in A and B if alpha is 0",
        operators=("Gemm",),
        readings=(
            Quotation(
                "o = np.dot(a, b) * alpha",
                "reference, op_gemm.py",
                f"{_TREE}/reference/ops/op_gemm.py",
            ),
            Quotation(
                "General Matrix multiplication: "
                "https://en.wikipedia.org/wiki/Basic_Linear_Algebra_Subprograms#Level_3",
                "text of Gemm 13; BLAS, to which the text refers, does not read A and B if alpha "
                "is 0",
                f"{_DOCUMENTS}/onnx__Gemm.html",
            ),
        ),
        outcome=("0 times NaN or an infinity is NaN", "A and B are not read"),
        concerns=partial(_has_zero_factor, "alpha", slice(2)),
        place="op_gemm.Gemm_7._run",
        second=_without_product,
    ),
    Contested(
        name="Omitted attributes: the default of epsilon or alpha in nodes with doubles",
        operators=(
            *("BatchNormalization", "GroupNormalization", "HardSigmoid", "InstanceNormalization"),
            *("LRN", "LayerNormalization", "LeakyRelu", "RMSNormalization"),
        ),
        readings=(
            Quotation(
                "onnx.AttributeProto.FLOAT: lambda att: np.float32(att.f)",
                "reference, op_run.py; also the field f of AttributeProto, which is a float32",
                f"{_TREE}/reference/op_run.py",
            ),
            Quotation(
                "epsilon</tt> : float (default is 1e-05)",
                "text of InstanceNormalization 22; other operators likewise",
                "https://github.com/onnx/onnx/blob/v1.23.2/docs/Operators.md",
            ),
        ),
        outcome=(
            "the float32 nearest to the decimal number: 1e-05 is 9.999999747378752e-06",
            "the double nearest to the decimal number",
        ),
        concerns=_has_doubles,
        place="_op.OpRun._load_attributes",
        second=_with_decimal_defaults,
    ),
    Contested(
        name="GRU, LSTM, RNN: the defaults of activation_alpha in nodes with doubles",
        operators=("GRU", "LSTM", "RNN"),
        readings=(
            Quotation(
                "For example with LeakyRelu, the default alpha is 0.01.",
                "text of LSTM 22, activation_alpha",
                f"{_DOCUMENTS}/onnx__LSTM.html",
            ),
            Quotation(
                "onnx.AttributeProto.FLOAT: lambda att: np.float32(att.f)",
                "reference, op_run.py; the text says that the defaults are those of the operators "
                "LeakyRelu and HardSigmoid, which are float32",
                f"{_TREE}/reference/op_run.py",
            ),
        ),
        outcome=("0.01 in double", "the float32 nearest to 0.01, which is 0.009999999776482582"),
        concerns=_has_activations_of_doubles,
        place="recurrent.default_parameters",
        second=_as_singles,
    ),
    Contested(
        name="HardSwish: alpha in nodes with doubles",
        operators=("HardSwish",),
        readings=(
            Quotation(
                "where alpha = 1/6 and beta = 0.5",
                "text of HardSwish 22",
                f"{_DOCUMENTS}/onnx__HardSwish.html",
            ),
            Quotation(
                "HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (X)",
                "published function body of HardSwish 22, whose attribute is a float32",
                f"{_TREE}/defs/nn/defs.cc",
            ),
        ),
        outcome=("1/6 in double", "the float32 nearest to 1/6"),
        concerns=_has_doubles,
        place="corrected_reference.hard_swish_slope",
        second=lambda _first: float(np.float32(1 / 6)),
    ),
)
_BY_OPERATOR = {
    operator: [entry for entry in CONTESTED if operator in entry.operators]
    for operator in {operator for entry in CONTESTED for operator in entry.operators}
}


def contested_table() -> str:
    """Return the contested questions as a table in Markdown."""
    lines = ["| question | reading 1 | reading 2 |", "|---|---|---|"]
    for entry in CONTESTED:
        cells = [
            f'{outcome}. "{source.says}" ([{source.where}]({source.link}))'
            for outcome, source in zip(entry.outcome, entry.readings, strict=True)
        ]
        lines.append(f"| {entry.name} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)
