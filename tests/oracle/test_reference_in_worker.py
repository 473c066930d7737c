"""Condition estimates that a worker computes and sends to the runner."""

import numpy as np
import pytest
from test_condition_estimate import f32, model_of

from onnxopt_cli.oracle.estimate.condition_estimate import all_readings
from onnxopt_cli.oracle.patching import blas_thread_functions, corrected
from onnxopt_cli.oracle.reference_in_worker import ConditionedReference, readings


def test_response_is_parsed_into_the_same_readings():
    inputs = {"x": f32(0.5, -3), "low": f32(np.nan).reshape(())}
    model = model_of([("Clip", ["x", "low"], {})], inputs)
    parsed = readings(ConditionedReference().run(model, inputs))
    expected = all_readings(model, inputs)
    assert [reading.second for reading in parsed] == [reading.second for reading in expected]
    assert len(parsed) == 2
    for reading, expected_reading in zip(parsed, expected, strict=True):
        np.testing.assert_array_equal(
            reading.conditioned_outputs[0].right, expected_reading.conditioned_outputs[0].right
        )


def test_reason_is_the_message_without_the_class_of_the_exception():
    inputs = {"x": f32(1)}
    model = model_of([("NoSuchOperator", ["x"], {})], inputs)
    (reading,) = readings(ConditionedReference().run(model, inputs))
    assert reading.conditioned_outputs[0].reason.startswith("onnx's reference does not implement")


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_incomplete_response_is_rejected(missing):
    inputs = {"x": f32(1)}
    response = ConditionedReference().run(model_of([("Exp", ["x"], {})], inputs), inputs)
    with pytest.raises(ValueError, match="invalid response"):
        readings(response[:-missing])


def test_matrix_products_of_the_reference_run_in_one_thread():
    if (functions := blas_thread_functions()) is None:
        pytest.skip("NumPy does not use OpenBLAS")
    get_threads, set_threads = functions
    before = get_threads()
    set_threads(2)
    try:
        with corrected():
            assert get_threads() == 1
            np.ones((100, 100)) @ np.ones((100, 100))
        assert get_threads() == 2
    finally:
        set_threads(before)
