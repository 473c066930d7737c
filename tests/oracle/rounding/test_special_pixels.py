"""NaN and infinities among the pixels of an interpolation: all forms of interpolation pass."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxopt_cli.oracle.estimate.condition_estimate import condition

INF, NAN = np.inf, np.nan


def accepts(inputs, attributes, value, operator="Resize"):
    """Return which elements of a value are accepted as the output of a node."""
    names = ["x", "", "scales"] if operator == "Resize" else [*inputs]
    node = helper.make_node(operator, names, ["y"], **attributes)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", infos, [y])
    opsets = [helper.make_opsetid("", 22)]
    (output,) = condition(helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs)
    value = np.asarray(value, np.float64)
    is_right = np.zeros(value.shape, bool)
    for right, tolerance in output.right:
        same = (value == right) | (np.isnan(value) & np.isnan(right))
        with np.errstate(invalid="ignore"):
            is_right |= same | (np.abs(value - right) <= tolerance)
    return is_right


def resized(pixels, scale):
    return {"x": np.array(pixels, np.float32), "scales": np.array([scale], np.float32)}


LINEAR = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
# The pixels 1, infinity and 3, at the points 0, 0.5, ..., 2.5.
SKIPPED = [1, INF, INF, INF, 3, 3]
MULTIPLIED = [NAN, INF, INF, INF, 3, 3]
BEFORE = [1, INF, INF, INF, NAN, 3]
LERP = [NAN, INF, NAN, NAN, 3, 3]


@pytest.mark.parametrize("value", [SKIPPED, MULTIPLIED, BEFORE, LERP])
def test_pixel_of_weight_zero_may_be_skipped_or_multiplied(value):
    assert accepts(resized([1, INF, 3], 2), LINEAR, value).all()


def test_pixels_with_a_weight_must_not_be_skipped():
    finite = np.array([1, 1, 2, 3, 3, 3])
    right = accepts(resized([1, INF, 3], 2), LINEAR, finite)
    assert right.tolist() == [True, False, False, False, True, True]
    largest = np.full(6, np.finfo(np.float32).max)
    assert not accepts(resized([1, INF, 3], 2), LINEAR, largest).any()


def test_pixel_beyond_the_radius_has_no_effect():
    pixels = resized([1, 2, 3, 4, INF], 2)
    value = np.full(10, NAN)
    # The infinite pixel is at the point 4. It affects only the points from 3 on.
    expected = [False] * 6 + [True] * 4
    assert accepts(pixels, LINEAR, value).tolist() == expected
    cubic = {**LINEAR, "mode": "cubic"}
    assert accepts(pixels, cubic, value).tolist() == [False] * 4 + [True] * 6


def test_cubic_filter_may_skip_pixels_of_weight_zero():
    attributes = {**LINEAR, "mode": "cubic"}
    pixels = resized([1, 2, 3, INF], 2)
    # At 2.5, the three weights of the last pixel add up to 0.5; at 1.5, its weight is negative.
    combined = [1, 1.40625, 2, -INF, 3, INF, INF, INF]
    assert accepts(pixels, attributes, combined).all()
    assert not accepts(pixels, attributes, [1, 1.40625, 2, INF, 2, 0, 0, 0])[3:].any()


def test_elements_next_to_infinity_may_round():
    # At the last points, both weights belong to the last pixel, and their sum rounds.
    last = 3.3 * (1 - 2**-23)
    value = [1.1, INF, INF, INF, INF, INF, NAN, last, last]
    assert accepts(resized([1.1, INF, 3.3], 3), LINEAR, np.array(value, np.float32)).all()


@pytest.mark.parametrize("padding", ["border", "zeros", "reflection"])
def test_grid_sample_reads_pixels_of_weight_zero(padding):
    image = np.array([[[[1, INF, 3], [4, 5, 6]]]], np.float32)
    # The first two points coincide with pixels. The third point is halfway between 3 and 6.
    grid = np.array([[[[-1, -1], [0, 1], [1, 0]]]], np.float32)
    attributes = {"mode": "linear", "align_corners": 1, "padding_mode": padding}
    inputs = {"x": image, "grid": grid}
    for value in ([1, 5, 4.5], [NAN, NAN, NAN]):
        assert accepts(inputs, attributes, [[[value]]], "GridSample").all()
    assert not accepts(inputs, attributes, [[[[2, 4, 4]]]], "GridSample").any()


def test_grid_sample_clips_coordinates_before_or_after_it_chooses_pixels():
    image = np.array([[[[-2, INF, 3]]]], np.float32)
    # The coordinate -0.25 lies between the pixels -1 and 0. If the coordinate is first clipped to
    # 0, the pixels 0 and 1 are read.
    grid = np.array([[[[-5 / 6, 0]]]], np.float32)
    attributes = {"mode": "linear", "padding_mode": "border"}
    inputs = {"x": image, "grid": grid}
    for value in (-2, NAN):
        assert accepts(inputs, attributes, [[[[value]]]], "GridSample").all()
    assert not accepts(inputs, attributes, [[[[3]]]], "GridSample").any()


def test_roi_align_interpolates_next_to_infinity():
    image = np.array([[[[1, INF, 3, 4], [5, 6, 7, NAN]]]], np.float32)
    # The first two points coincide with the pixels 1 and 3. The third point is between 1 and
    # infinity, the fourth between 6 and 7, and the last one is outside of the image.
    points = np.array([[0, 0], [2, 0], [0.5, 0], [1.5, 1], [9, 0]], np.float32)
    regions = np.concatenate((points - 0.5, points + 0.5), axis=1)
    inputs = {
        "x": image,
        "rois": regions.astype(np.float32),
        "batch": np.zeros(len(regions), np.int64),
    }
    attributes = {"sampling_ratio": 1, "coordinate_transformation_mode": "output_half_pixel"}
    for value in ([1, 3, INF, 6.5, 0], [NAN, NAN, NAN, 6.5, 0]):
        right = accepts(inputs, attributes, np.reshape(value, (5, 1, 1, 1)), "RoiAlign")
        assert right.all(), value
    for value in ([2, 2, 2, NAN, NAN], [INF, INF, -INF, 6, 1]):
        right = accepts(inputs, attributes, np.reshape(value, (5, 1, 1, 1)), "RoiAlign")
        assert not right.any(), value
