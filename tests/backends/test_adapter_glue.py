"""Adapters report values as unsupported if the runtime cannot exchange them as arrays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxopt_cli.backends.glue.plain_tensors import require_numpy_types, require_tensors
from onnxopt_cli.backends.glue.start_check import run_small_model
from onnxopt_cli.errors import Unsupported


def model_of(value):
    node = helper.make_node("Identity", ["x"], ["y"])
    return helper.make_model(helper.make_graph([node], "g", [value], []))


@pytest.mark.parametrize("element_type", [*TensorProto.DataType.values()][1:])
def test_element_types_of_numpy_are_accepted_and_others_unsupported(element_type):
    model = model_of(helper.make_tensor_value_info("x", element_type, [1]))
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    if dtype.isbuiltin == 1 and dtype.kind in "biuf":
        require_numpy_types(model)
    else:
        with pytest.raises(Unsupported, match=r"^x is not a tensor of a NumPy type"):
            require_numpy_types(model)


def test_sequences_maps_and_absent_values_are_unsupported():
    require_tensors({"x": np.zeros(2)})
    for value in ([np.zeros(2)], {1: 2.0}, None):
        with pytest.raises(Unsupported, match=r"^input y is not a tensor"):
            require_tensors({"x": np.zeros(2), "y": value})
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1])
    with pytest.raises(Unsupported):
        require_numpy_types(model_of(sequence))


def test_small_model_runs_when_a_backend_starts():
    class Backend:
        def run(self, model, inputs):
            onnx.checker.check_model(model)
            return ReferenceEvaluator(model).run(None, inputs)

    run_small_model(Backend())

    class WithoutDevice:
        def run(self, model, inputs):
            raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match=r"^no device$"):
        run_small_model(WithoutDevice())
