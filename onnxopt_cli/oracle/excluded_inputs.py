"""Inputs that an operator's specification excludes, or for which it defines no result.

For some excluded inputs, onnx's reference raises an error; for others, it computes a value. For
example, NumPy interprets -1 as the index of the last element. A backend may return anything for
excluded inputs, so a case with such inputs is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.values import Array, NumberKind, kind_of
from onnxopt_cli.operators.nodes import plain_domain
from onnxopt_cli.oracle.operand_shapes import misfit, of_other_length

#: The reason why a case with an excluded input is invalid begins with this text.
EXCLUDED = "the specification defines no result"
# Appended to the operands of a node, so that a rule reads None for omitted operands at the end.
_OMITTED = (None,) * 8
_Attributes = Mapping[str, Any]
# Takes attributes and operands, and returns a description of the first excluded operand. The
# description is empty if all operands are valid.
_Rule = Callable[[_Attributes, Sequence[Any]], str]


def excluded_input(
    node: onnx.NodeProto, operands: Sequence[Any], *, opset: int, is_model: bool
) -> str:
    """Return why the specification defines no result for the operands of a node.

    Args:
        node: a node without references to attributes of a surrounding function.
        operands: its operands; None for an omitted operand.
        opset: the version of the node's domain.
        is_model: whether the node is a whole model. Some operands leave only some elements of the
            outputs undefined. In a whole model, such operands are excluded as well. In a node
            within a model, they are valid, because the outputs of the model need not depend on the
            undefined elements.

    Returns:
        The reason, which begins with :data:`EXCLUDED`; empty if the result is defined.
    """
    key = plain_domain(node.domain), node.op_type
    tables = (_RULES, _RULES_OF_ELEMENTS) if is_model else (_RULES,)
    rules = [table[key] for table in tables if key in table]
    if key[0] == "":
        rules.insert(0, partial(misfit, node.op_type, opset))
    if not rules:
        return ""
    attributes = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    try:
        faults = (rule(attributes, (*operands, *_OMITTED)) for rule in rules)
        fault = next(filter(None, faults), "")
        if not fault and key == ("", "Split"):
            fault = _number_of_parts(attributes, (*operands, None)[1], len(node.output))
    except Exception:  # noqa: BLE001 - the operands break the operator's signature in another way
        return ""
    return f"{EXCLUDED}: {node.op_type} has {fault}" if fault else ""


def _outside(quantity: str, values: Any, least: Any, most: Any = math.inf) -> str:
    """Return a description of the first value outside a range; empty if all values are inside.

    Args:
        quantity: a name for the values, with an article.
        values: the values, of any shape.
        least: the smallest allowed values; their shape broadcasts to the shape of ``values``.
        most: the largest allowed values; their shape also broadcasts to the shape of ``values``.
    """
    if values is None:
        return ""
    values = np.asarray(values)
    outside = (values < least) | (values > most)
    if not outside.any():
        return ""
    place = np.unravel_index(np.argmax(outside), outside.shape)
    value, low, high = (
        np.broadcast_to(part, outside.shape)[place] for part in (values, least, most)
    )
    if high == math.inf:
        return f"{quantity} {value}, which is less than {low}"
    return f"{quantity} {value}, which is not in [{low}, {high}]"


def _repeated(quantity: str, axes: Array | None, rank: int) -> str:
    """Describe an axis that is invalid or occurs twice; return "" if all axes are correct."""
    if axes is None:
        return ""
    if fault := _outside(quantity, axes, -rank, rank - 1):
        return fault
    normalized = np.sort(np.asarray(axes).ravel() % rank)
    twice = normalized[1:][normalized[1:] == normalized[:-1]]
    return f"{quantity} {twice[0]} twice" if twice.size else ""


def _along_axis(attributes: _Attributes, operands: Sequence[Any]) -> str:
    size = operands[0].shape[attributes.get("axis", 0)]
    return _outside("the index", operands[1], -size, size - 1)


def _scattered_along_axis(attributes: _Attributes, operands: Sequence[Any]) -> str:
    if fault := _along_axis(attributes, operands):
        return fault
    data, indices, updates = operands[:3]
    axis = attributes.get("axis", 0) % data.ndim
    places = np.indices(indices.shape)
    places[axis] = indices % data.shape[axis]
    targets = np.ravel_multi_index(tuple(places), data.shape).ravel()
    return _written_twice(attributes, targets, updates.reshape(targets.size, 1))


def _of_element_paths(attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, indices = operands[:2]
    first = attributes.get("batch_dims", 0)
    sizes = np.array(data.shape[first : first + indices.shape[-1]])
    return _outside("the index", indices, -sizes, sizes - 1)


def _scattered_to_paths(attributes: _Attributes, operands: Sequence[Any]) -> str:
    if fault := _of_element_paths(attributes, operands):
        return fault
    data, indices, updates = operands[:3]
    sizes = data.shape[: indices.shape[-1]]
    places = np.moveaxis(indices % np.array(sizes), -1, 0)
    targets = np.ravel_multi_index(tuple(places), sizes).ravel()
    return _written_twice(attributes, targets, updates.reshape(targets.size, -1))


def _written_twice(attributes: _Attributes, targets: Array, updates: Array) -> str:
    """Return a description of two conflicting updates of one element; empty if none conflict.

    Args:
        attributes: attributes of a scattering operator.
        targets: for each update, the flat index of the element or slice to which it is written.
        updates: for each update, a row of values.
    """
    if attributes.get("reduction", b"none") != b"none":
        return ""
    _, first, inverse, counts = np.unique(
        targets, return_index=True, return_inverse=True, return_counts=True
    )
    if counts.max(initial=0) <= 1:
        return ""
    firsts = updates[first][inverse.ravel()]
    # NaN differs from itself. np.isnan supports neither strings nor integers of less than 8 bits.
    is_nan = updates != updates  # noqa: PLR0124
    first_is_nan = is_nan[first][inverse.ravel()]
    differs = (updates != firsts) & ~(is_nan & first_is_nan)
    return "two different updates of the same element, without a reduction" if differs.any() else ""


def _of_classes(attributes: _Attributes, operands: Sequence[Any]) -> str:
    scores, targets = operands[:2]
    counted = targets[targets != attributes.get("ignore_index")]
    return _outside("the index", counted, 0, scores.shape[1] - 1)


def _position_in_sequence(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    sequence, position = operands[:2]
    return _outside("the index", position, -len(sequence), len(sequence) - 1)


def _position_to_insert(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    sequence, _, position = operands[:3]
    return _outside("the index", position, -len(sequence), len(sequence))


def _image_of_region(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    images, _, batch_indices = operands[:3]
    return _outside("the batch index", batch_indices, 0, len(images) - 1)


def _rotated_position(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    cosines, positions = operands[1], operands[3]
    return _outside("the position", positions, 0, len(cosines) - 1)


def _unpooled_index(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    values, indices, output_shape = operands[:3]
    most = math.inf if output_shape is None else int(np.prod(output_shape)) - 1
    if fault := _outside("the index", indices, 0, most):
        return fault
    return _written_twice({}, indices.ravel(), values.reshape(-1, 1))


def _sampled_points(attributes: _Attributes, operands: Sequence[Any]) -> str:
    grid = operands[1].astype(np.float64)
    if np.isnan(grid).any():
        return "the coordinate NaN"
    if attributes.get("padding_mode") == b"reflection" and np.isinf(grid).any():
        return "an infinite coordinate, which cannot be reflected into the image"
    return ""


def _write_index(attributes: _Attributes, operands: Sequence[Any]) -> str:
    cache, update, write_indices = operands[:3]
    if attributes.get("mode") == b"circular":
        # The index is taken modulo the length of the cache.
        return ""
    axis = attributes.get("axis", -2)
    return _outside("the write index", write_indices, 0, cache.shape[axis] - update.shape[axis])


def _sequence_lengths(attributes: _Attributes, operands: Sequence[Any]) -> str:
    steps = operands[0].shape[1 if attributes.get("layout", 0) == 1 else 0]
    return _outside("the sequence length", operands[4], 0, steps)


def _reversed_lengths(attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, lengths = operands[:2]
    steps, batch = (
        data.shape[attributes.get("time_axis", 0)],
        data.shape[attributes.get("batch_axis", 1)],
    )
    return of_other_length("sequence lengths", lengths, batch) or _outside(
        "the sequence length", lengths, 0, steps
    )


def _unpadded_length(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _outside("the number of valid keys", operands[6], 0, operands[1].shape[-2])


def _dropped_share(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    ratio, training = operands[1:3]
    if ratio is None or training is None or not np.all(training) or 0 <= ratio.item() < 1:
        return ""
    return f"the ratio {ratio.item()}, which is not in [0, 1)"


def _depth(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _outside("the depth", operands[1], 0)


def _split_lengths(attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, lengths = operands[:2]
    if lengths is None:
        return ""
    size = data.shape[attributes.get("axis", 0)]
    if fault := _outside("the length", lengths, 1 if lengths.ndim == 0 else 0):
        return fault
    if lengths.ndim and lengths.sum() != size:
        return f"lengths whose sum is {lengths.sum()} instead of {size}"
    return ""


def _number_of_parts(attributes: _Attributes, lengths: Any, outputs: int) -> str:
    stated = [attributes.get("num_outputs"), len(attributes.get("split", ())) or None]
    stated.append(None if lengths is None else lengths.size)
    for count in stated:
        if count is not None and count != outputs:
            return f"{outputs} outputs instead of {count}"
    return ""


def _slice_axes(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, starts, ends, axes, steps = operands[:5]
    if steps is not None and not np.all(steps):
        return "the step 0"
    length = len(starts)
    return (
        of_other_length("ends", ends, length)
        or of_other_length("axes", axes, length)
        or of_other_length("steps", steps, length)
        or _repeated("the axis", axes, data.ndim)
    )


def _padded_axes(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, pads, _, axes = operands[:4]
    count = data.ndim if axes is None else len(axes)
    return of_other_length("pads", pads, 2 * count) or _repeated("the axis", axes, data.ndim)


def _repeats(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, repeats, axis = operands[:3]
    if axis is not None:
        # In version 1, the operands are a scalar number of repetitions and an axis.
        return _outside("the repeat", repeats, 0)
    return of_other_length("repeats", repeats, data.ndim) or _outside("the repeat", repeats, 0)


def _new_shape(attributes: _Attributes, operands: Sequence[Any]) -> str:
    shape = operands[1]
    if fault := _outside("the dimension", shape, -1):
        return fault
    if (shape == -1).sum() > 1:
        return "the dimension -1 twice"
    if attributes.get("allowzero") and (shape == -1).any() and (shape == 0).any():
        return "the dimensions -1 and 0, and allowzero=1"
    size = operands[0].size
    if (shape > 0).all() and np.prod(shape) != size:
        return f"{size} elements for the shape {tuple(shape.tolist())}"
    return ""


def _windows(attributes: _Attributes, _operands: Sequence[Any]) -> str:
    # The padding is ignored if the shape of the output is given.
    if "output_shape" not in attributes:
        fault = _outside("the padding", attributes.get("pads"), 0)
        if fault:
            return fault
    return (
        _outside("the stride", attributes.get("strides"), 1)
        or _outside("the dilation", attributes.get("dilations"), 1)
        or _outside("the number of groups", attributes.get("group"), 1)
        or _output_padding(attributes)
    )


def _output_padding(attributes: _Attributes) -> str:
    padding = attributes.get("output_padding")
    if padding is None:
        return ""
    steps = np.array(attributes.get("strides", [1] * len(padding)))
    dilations = np.array(attributes.get("dilations", [1] * len(padding)))
    return _outside("the output padding", padding, 0, np.maximum(steps, dilations) - 1)


def _class_labels(attributes: _Attributes, _operands: Sequence[Any]) -> str:
    labels = [name for name in attributes if name.startswith("classlabels_")]
    if len(labels) > 1:
        return f"both {' and '.join(sorted(labels))}, although exactly one must be defined"
    return "" if labels else "no class labels"


def _dimensions(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _outside("the dimension", operands[0], 0)


def _cropped_shape(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _outside("the dimension", operands[1], 0)


def _resized_shape(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    scales, sizes = operands[2], operands[3]
    if scales is not None and not np.all(scales > 0):
        return "a scale that is not positive"
    return _outside("the size", sizes, 0)


def _integer_divisor(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    dividends, divisors = operands[:2]
    is_integer = np.issubdtype(divisors.dtype, np.integer)
    if is_integer and dividends.size and not np.all(divisors):
        return "an integer divisor of 0"
    return ""


def _normalized_axis(attributes: _Attributes, operands: Sequence[Any]) -> str:
    rank = operands[0].ndim
    return _outside("the axis", attributes.get("axis", -1), -rank, rank - 1)


def _axis_operand(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    rank = operands[0].ndim
    return _outside("the axis", operands[1], -rank, rank - 1)


def _window_size(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _outside("the size", operands[0], 0)


def _selected_columns(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, indices = operands[:2]
    return _outside("the index", indices, 0, data.shape[-1] - 1)


def _selected_slices(attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, condition = operands[:2]
    axis = attributes.get("axis")
    size = data.size if axis is None else data.shape[axis]
    return _outside("the index", np.flatnonzero(condition), 0, size - 1)


def _largest_count(attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, count = operands[:2]
    return _outside("the number of elements", count, 0, data.shape[attributes.get("axis", -1)])


def _quantization_scale(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, scales = operands[:2]
    return "the scale 0" if data.size and np.any(scales == 0) else ""


def _requantization_scale(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return "the output scale 0" if np.any(operands[6] == 0) else ""


def _dynamic_range(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return "" if np.any(operands[0] != 0) else "no element other than 0, which makes the scale 0"


def _blocks_of_channels(attributes: _Attributes, operands: Sequence[Any]) -> str:
    channels, block = operands[0].shape[1], attributes["blocksize"] ** 2
    return f"{channels} channels, which are not a multiple of {block}" if channels % block else ""


def _blocks_of_pixels(attributes: _Attributes, operands: Sequence[Any]) -> str:
    sizes, block = np.array(operands[0].shape[2:]), attributes["blocksize"]
    indivisible = sizes[sizes % block != 0]
    return (
        f"the size {indivisible[0]}, which is not a multiple of {block}" if indivisible.size else ""
    )


def _transform_length(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _outside("the length", operands[1], 1)


def _frame(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    signal, step, window, length = operands[:4]
    if length is None and window is not None:
        length = len(window)
    if fault := _outside("the step", step, 1):
        return fault
    # The number of frames is floor((signal - length) / step) + 1. It may be zero, but not negative.
    return _outside("the length", length, 1, signal.shape[1] + step)


def _normalized_window(attributes: _Attributes, _operands: Sequence[Any]) -> str:
    return _outside("the size", attributes["size"], 1)


def _range_step(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return "" if np.all(operands[2]) else "the step 0"


def _fractional_integers(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    # The error function of an integer other than 0 is not an integer, because it is between -1 and
    # 1 and not 0.
    if operands[0].dtype.kind in "iu" and np.any(operands[0] != 0):
        return "integers other than 0, for which the result is not an integer"
    return ""


def _integer_cast(attributes: _Attributes, operands: Sequence[Any]) -> str:
    dtype = helper.tensor_dtype_to_np_dtype(attributes["to"])
    return _beyond_integers(operands[0], np.dtype(dtype))


def _integer_cast_like(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _beyond_integers(operands[0], operands[1].dtype)


def _beyond_integers(values: Array, dtype: np.dtype[Any]) -> str:
    """Return a description of a value that an integer type cannot hold; empty if all values fit."""
    # Types with 2 or 4 bits have no limit here, because published cases convert floats beyond their
    # range.
    if kind_of(values.dtype) is not NumberKind.FLOAT or dtype.kind not in "iu":
        return ""
    limits = np.iinfo(dtype)
    truncated = np.trunc(values.astype(np.float64))
    # The largest value of a 64-bit integer type is not representable as a double, but this value
    # plus one is.
    holds = (truncated >= float(limits.min)) & (truncated < float(int(limits.max) + 1))
    if holds.all():
        return ""
    value = values.ravel()[np.argmin(holds)]
    return f"the value {value}, which is out of the range of {dtype}"


# Operators with sliding windows.
_WINDOWED = (
    "AveragePool",
    "Col2Im",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "DeformConv",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "QLinearConv",
)
# For each operator, by domain and name, the rule for its operands.
_RULES: dict[tuple[str, str], _Rule] = {
    **{("", name): _along_axis for name in ("Gather", "GatherElements")},
    **{("", name): _scattered_along_axis for name in ("Scatter", "ScatterElements")},
    **{
        ("", name): _of_classes for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    },
    **{("", name): _sequence_lengths for name in ("GRU", "LSTM", "RNN")},
    **{("", name): _position_in_sequence for name in ("SequenceAt", "SequenceErase")},
    **{("", name): _split_lengths for name in ("Split", "SplitToSequence")},
    **{("", name): _window_size for name in ("BlackmanWindow", "HammingWindow", "HannWindow")},
    **{("", name): _axis_operand for name in ("CumProd", "CumSum")},
    **{("", name): _windows for name in _WINDOWED},
    **{("", name): _normalized_axis for name in ("LayerNormalization", "RMSNormalization")},
    ("", "Attention"): _unpadded_length,
    ("", "CenterCropPad"): _cropped_shape,
    ("", "Compress"): _selected_slices,
    ("", "ConstantOfShape"): _dimensions,
    ("", "DFT"): _transform_length,
    ("", "DepthToSpace"): _blocks_of_channels,
    ("", "GatherND"): _of_element_paths,
    ("", "LRN"): _normalized_window,
    ("", "MaxUnpool"): _unpooled_index,
    ("", "Dropout"): _dropped_share,
    ("", "OneHot"): _depth,
    ("", "Pad"): _padded_axes,
    ("", "Range"): _range_step,
    ("", "Reshape"): _new_shape,
    ("", "Resize"): _resized_shape,
    ("", "ReverseSequence"): _reversed_lengths,
    ("", "RoiAlign"): _image_of_region,
    ("", "RotaryEmbedding"): _rotated_position,
    ("", "ScatterND"): _scattered_to_paths,
    ("", "SequenceInsert"): _position_to_insert,
    ("", "STFT"): _frame,
    ("", "Slice"): _slice_axes,
    ("", "SpaceToDepth"): _blocks_of_pixels,
    ("", "TensorScatter"): _write_index,
    ("", "Tile"): _repeats,
    ("", "TopK"): _largest_count,
    **{
        ("ai.onnx.ml", name): _class_labels
        for name in ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")
    },
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _selected_columns,
}
# Rules for operands that leave only some elements of the outputs undefined.
_RULES_OF_ELEMENTS: dict[tuple[str, str], _Rule] = {
    ("", "Cast"): _integer_cast,
    ("", "CastLike"): _integer_cast_like,
    ("", "Div"): _integer_divisor,
    ("", "DynamicQuantizeLinear"): _dynamic_range,
    ("", "Erf"): _fractional_integers,
    ("", "GridSample"): _sampled_points,
    ("", "Mod"): _integer_divisor,
    ("", "QLinearConv"): _requantization_scale,
    ("", "QLinearMatMul"): _requantization_scale,
    ("", "QuantizeLinear"): _quantization_scale,
}
