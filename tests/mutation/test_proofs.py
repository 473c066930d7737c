"""Proofs that mutants are equivalent to their operator."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import defs

from onnxopt_cli.mutation.node_mutants import equivalence_proof, node_mutants
from onnxopt_cli.mutation.proofs import PROOFS
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.suites.operators.generators import draw_seeded
from onnxopt_cli.suites.operators.node_draft import Unsuitable

OPERATORS = (
    *("Abs", "Acos", "Add", "CumSum", "Dropout", "Equal", "Exp", "EyeLike", "IsNaN", "LSTM"),
    *("MaxPool", "Mean", "MelWeightMatrix", "NonMaxSuppression", "QLinearConv", "ReduceMax"),
    *(
        "ReduceSum",
        "Resize",
        "ReverseSequence",
        "Size",
        "Squeeze",
        "StringNormalizer",
        "Tile",
        "TreeEnsembleRegressor",
        "Xor",
    ),
)
DOMAINS = {"TreeEnsembleRegressor": "ai.onnx.ml"}
SEEDS = range(2000, 2012)


def newest(operator):
    return defs.get_schema(operator, domain=DOMAINS.get(operator, ""))


def assert_close(output, stored):
    if stored.dtype == object:
        np.testing.assert_array_equal(output, stored)
    else:
        np.testing.assert_allclose(output, stored, rtol=1e-2, atol=1e-6)


def proven_mutants(schema):
    """Return the mutants that are proven equivalent to an operator, each with the reason."""
    mutants = node_mutants(schema.domain, schema.name, schema.since_version, with_equivalent=True)
    proofs = {mutant: equivalence_proof(schema, mutant.name) for mutant in mutants}
    return {mutant: reason for mutant, reason in proofs.items() if reason}


@pytest.mark.parametrize("operator", OPERATORS)
def test_mutants_that_are_proven_equivalent_equal_the_operator(operator):
    schema = newest(operator)
    proven = proven_mutants(schema)
    assert proven
    for seed in SEEDS:
        try:
            problem = draw_seeded(schema, seed).problem
        except Unsuitable:
            continue
        for mutant in proven:
            outputs = mutant.outputs(problem.model, problem.inputs, native_outputs)
            for output, stored in zip(outputs or (), problem.stored.values(), strict=False):
                assert_close(output, stored)


@pytest.mark.parametrize(
    ("domain", "operator", "opset", "mutant"),
    [
        # A proof applies to the input K of TopK, which has one value, but not to K of Attention.
        ("", "Attention", 23, "K first batch for all"),
        ("", "Attention", 23, "K last axes exchanged"),
        # A proof applies to the pads of a window, but not to Pad, whose pads may be negative.
        ("", "Pad", 2, "pads without its sign"),
        ("", "Reshape", 14, "shape without sign"),
        ("", "Where", 16, "condition aligned to the first axis"),
        ("", "Max", 13, "data_0 aligned to the first axis"),
        # These versions broadcast only the second input, so the inputs cannot be exchanged.
        ("", "Add", 6, "A and B exchanged"),
        ("", "Equal", 1, "A and B exchanged"),
        ("", "Reshape", 1, "shape without its sign"),
        ("", "Scan", 11, "scan_input_axes without its sign"),
        ("ai.onnx.ml", "DictVectorizer", 1, "int64_vocabulary without its sign"),
    ],
)
def test_mutants_that_differ_are_generated(domain, operator, opset, mutant):
    assert mutant in {generated.name for generated in node_mutants(domain, operator, opset)}


def test_every_proof_is_examined():
    examined = {reason for name in OPERATORS for reason in proven_mutants(newest(name)).values()}
    assert examined > {proof.reason for proof in PROOFS}


@pytest.mark.parametrize(
    ("operator", "mutant", "is_proven"),
    [
        ("ConvInteger", "x in 8 bits", True),
        ("ConvInteger", "x of the other sign", False),
        ("ConvInteger", "x zero read as 1", False),
        ("LinearAttention", "query rounded to float32", True),
        ("LinearAttention", "query rounded to 16 bits", False),
        ("RNN", "sequence_lens in 32 bits", True),
        ("RNN", "sequence_lens in 8 bits", False),
        ("Add", "A rounded to float32", False),
        ("TreeEnsembleRegressor", "outputs in float32", True),
        ("Add", "outputs in float32", False),
        ("Add", "integer outputs in 8 bits", False),
        # The mutant exchanges elements and does not change a type.
        ("ConvInteger", "x last axes exchanged", False),
    ],
)
def test_conversion_that_changes_no_value_of_a_type_is_proven_equivalent(
    operator, mutant, is_proven
):
    assert bool(equivalence_proof(newest(operator), mutant)) == is_proven


@pytest.mark.parametrize(
    ("name", "is_proven"),
    [
        ("x_zero_point first batch for all", True),
        ("x_zero_point last axes exchanged", True),
        ("x_zero_point read as 0", False),
        ("w_zero_point first element for all", False),
    ],
)
def test_zero_point_of_integer_convolution_has_a_single_value(name, is_proven):
    assert bool(equivalence_proof(newest("ConvInteger"), name)) == is_proven


@pytest.mark.parametrize(
    ("operator", "mutant", "is_proven"),
    [
        ("Resize", "scales without negative values", True),
        ("Resize", "scales zero read as 1", True),
        ("Resize", "scales clamped to 6", False),
        ("Resize", "roi without infinity", False),
        ("NonMaxSuppression", "iou_threshold without sign", True),
        # A threshold may be 0.
        ("NonMaxSuppression", "iou_threshold zero read as 1", False),
        ("NonMaxSuppression", "score_threshold without sign", False),
        ("ReverseSequence", "negative batch_axis off by one", True),
        ("ReverseSequence", "time_axis without its sign", True),
        ("Softmax", "negative axis off by one", False),
    ],
)
def test_misreading_of_values_that_an_input_cannot_have_is_proven_equivalent(
    operator, mutant, is_proven
):
    assert bool(equivalence_proof(newest(operator), mutant)) == is_proven


def test_mutants_that_are_proven_equivalent_are_not_generated():
    names = {mutant.name for mutant in node_mutants("", "Add", 14)}
    assert "A and B exchanged" not in names
    assert "A aligned to the first axis" in names
    assert "A and B exchanged" in {mutant.name for mutant in node_mutants("", "Sub", 14)}
