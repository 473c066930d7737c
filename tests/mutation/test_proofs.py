"""Proofs that mutants equal their operator."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import defs

from onnxopt_cli.mutation.node_mutants import node_mutants
from onnxopt_cli.mutation.proofs import PROOFS, proof_of
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.suites.operators.generators import draw_seeded
from onnxopt_cli.suites.operators.node_draft import Unsuitable

OPERATORS = (
    *("Abs", "Acos", "Add", "CumSum", "Dropout", "Equal", "Exp", "EyeLike", "IsNaN", "LSTM"),
    *("MaxPool", "Mean", "MelWeightMatrix", "QLinearConv", "ReduceMax", "ReduceSum", "Size"),
    *("Squeeze", "StringNormalizer", "Tile", "TreeEnsembleRegressor", "Xor"),
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
    """Return the mutants of an operator that a proof covers, with the proofs."""
    mutants = node_mutants(schema.domain, schema.name, schema.since_version, with_equivalent=True)
    proofs = {mutant: proof_of(schema, mutant.name) for mutant in mutants}
    return {mutant: proof for mutant, proof in proofs.items() if proof is not None}


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
        # The input K of TopK has one value, unlike that of Attention.
        ("", "Attention", 23, "K first batch for all"),
        ("", "Attention", 23, "K last axes exchanged"),
        # The pads of Pad may be negative, unlike those of a window.
        ("", "Pad", 2, "pads without its sign"),
        ("", "Reshape", 14, "shape without sign"),
        ("", "Where", 16, "condition aligned to the first axis"),
        ("", "Max", 13, "data_0 aligned to the first axis"),
        # Versions of operators that broadcast only the second input.
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
    examined = {proof for name in OPERATORS for proof in proven_mutants(newest(name)).values()}
    assert examined == {*PROOFS}


def test_mutants_that_are_proven_equivalent_are_not_generated():
    names = {mutant.name for mutant in node_mutants("", "Add", 14)}
    assert "A and B exchanged" not in names
    assert "A aligned to the first axis" in names
    assert "A and B exchanged" in {mutant.name for mutant in node_mutants("", "Sub", 14)}
