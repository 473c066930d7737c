"""The functions that compute operators on onnx's corrected reference."""

from __future__ import annotations

import pytest

from onnxopt_cli.oracle.reference_code import reference_functions


def names(op_type, opset=22, domain=""):
    return {function.__qualname__ for function in reference_functions(domain, op_type, opset)}


def test_corrections_replace_functions_that_they_do_not_call():
    assert "_mean" in names("Mean")
    assert "Mean._run" not in names("Mean")
    assert {"_grid", "AffineGrid._run"} <= names("AffineGrid")


@pytest.mark.parametrize(
    ("op_type", "function"),
    [
        ("Conv", "_conv_implementation"),
        ("LSTM", "CommonLSTM._step"),
        ("Add", "Add.__init__"),
        ("Softmax", "summed"),
    ],
)
def test_functions_that_the_class_calls_are_found(op_type, function):
    assert function in names(op_type)


def test_operators_of_other_domains_have_functions():
    assert "Scaler._run" in names("Scaler", 1, "ai.onnx.ml")


def test_functions_that_check_types_are_left_out():
    assert not any(name.startswith("OpRun") and name.endswith(".run") for name in names("Add"))
