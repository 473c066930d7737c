"""The Python functions by which onnx's corrected reference computes operators."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest
from onnx import defs

from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.patching import corrected
from onnxopt_cli.oracle.reference_code import (
    preparing_functions,
    reference_functions,
    uncalled_functions,
)
from onnxopt_cli.suites.operators.generators import draw_seeded
from onnxopt_cli.suites.operators.node_draft import Unsuitable

ML = {"LinearClassifier", "SVMClassifier", "TreeEnsemble"}


def names(op_type, opset=22, domain=""):
    return {function.__qualname__ for function in reference_functions(domain, op_type, opset)}


def test_corrections_replace_the_functions_of_the_reference():
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


def newest_schema(operator):
    return defs.get_schema(operator, domain="ai.onnx.ml" if operator in ML else "")


def executed_functions(operator):
    """Return the functions of an operator that run on generated nodes.

    The first set contains the functions that run when evaluators are created, and the second set
    contains the functions that compute nodes.
    """
    schema = newest_schema(operator)
    functions = reference_functions(schema.domain, operator, schema.since_version)
    by_code = {function.__code__: function for function in functions}
    preparing, computing = set(), set()
    executed = preparing

    def record(frame, event, _):
        if event == "call" and frame.f_code in by_code:
            executed.add(by_code[frame.f_code])

    for seed in range(2000, 2006):
        with suppress(Unsuitable):
            problem = draw_seeded(schema, seed).problem
            with corrected():
                sys.setprofile(record)
                try:
                    executed = preparing
                    evaluator = ReferenceModel(problem.model)
                    executed = computing
                    evaluator.run(problem.inputs)
                finally:
                    sys.setprofile(None)
    return preparing, computing


@pytest.mark.parametrize(
    "operator",
    [
        *("Col2Im", "DeformConv", "LinearClassifier", "LogSoftmax", "LpPool", "MaxPool", "Shape"),
        *("SVMClassifier", "TfIdfVectorizer", "TreeEnsemble"),
    ],
)
def test_functions_that_are_proven_uncalled_do_not_run(operator):
    schema = newest_schema(operator)
    preparing, computing = executed_functions(operator)
    assert computing
    uncalled = uncalled_functions(schema.domain, operator, schema.since_version)
    assert not (preparing | computing) & uncalled


@pytest.mark.parametrize("operator", ["Add", "Constant", "RNN", "Scan", "TfIdfVectorizer"])
def test_functions_that_prepare_an_evaluator_are_found(operator):
    schema = newest_schema(operator)
    preparing, _ = executed_functions(operator)
    assert preparing
    assert preparing <= preparing_functions(schema.domain, operator, schema.since_version)


def test_functions_that_only_compute_a_node_do_not_prepare_it():
    preparing = {function.__name__ for function in preparing_functions("", "RNN", 22)}
    assert "choose_act" in preparing
    assert not preparing & {"_run", "_run_forward"}


def test_functions_without_a_caller_are_uncalled():
    uncalled = {function.__qualname__ for function in uncalled_functions("", "MaxPool", 22)}
    # A correction replaces the method that would call these functions.
    assert {"MaxPool._max_pool_2d", "CommonPool._run", "_pool"} <= uncalled
    assert not uncalled & {"_maximum", "_geometry", "_Geometry.windows"}
    names = {function.__name__ for function in uncalled_functions("", "DeformConv", 22)}
    assert {"_run", "_deform_conv_implementation"} <= names
    assert "_bilinear" not in names
    # These functions are called by super().
    names = {function.__qualname__ for function in uncalled_functions("", "RNN", 22)}
    assert not names & {"CommonRNN.__init__", "CommonRNN._run_forward"}
    # This function is called under another name.
    names = {function.__name__ for function in uncalled_functions("", "DequantizeLinear", 25)}
    assert "reshape_input" not in names
