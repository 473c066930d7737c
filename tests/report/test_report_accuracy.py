"""The accuracy of a backend, computed from its results."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_records import result

from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Branch,
    Drawn,
    ErrorBound,
    Provenance,
)
from onnxopt_cli.report.view.accuracy import accuracy

NAMES = ("X_new", "V_new", "H_new")


def outputs(ulps, names=NAMES, limit=1.0, tolerance=None):
    """Return diffs of outputs whose right elements are 1 and whose errors are ``ulps`` in ulp."""
    expected = np.ones(len(ulps), dtype=np.float32)
    actual = (expected.view(np.int32) + np.array(ulps, dtype=np.int32)).view(np.float32)
    step = float(np.spacing(np.float32(1)))
    error_bound = tolerance or ErrorBound(
        Branch(expected, np.full(len(ulps), limit * step)).at, factor=4.0
    )
    outputs = dict.fromkeys(names, expected)
    return compare_outputs(outputs, [actual] * len(names), lambda _: error_bound)


def test_tolerance_used_is_the_maximum_and_the_median_over_cases():
    results = [result(diffs=outputs(ulps, limit=10)) for ulps in ([0, 1, 5], [2, 3, 4], [6, 6, 8])]
    rows = accuracy(results)
    assert [row.output for row in rows] == list(NAMES)
    assert rows[0].tolerance_used_most == pytest.approx(0.8)
    assert rows[0].tolerance_used_median == pytest.approx(0.3)
    assert (rows[0].tensors, rows[0].elements) == (3, 9)


def test_bits_lost_come_from_the_largest_distance_to_the_rounded_result():
    (row, *_) = accuracy([result(diffs=outputs([0, 0, 7]))])
    assert (row.max_ulp, row.bits_lost) == (7, 3.0)
    assert row.ulp_counts == (2, 0, 0, 1)
    assert (row.ulp_within(0.5), row.ulp_within(0.99)) == (0, 7)
    (row, *_) = accuracy([result(diffs=outputs([0, 0, 5]))])
    assert row.ulp_within(0.99) == 5


def test_unexpectedly_infinite_element_loses_all_bits():
    expected = {name: np.ones(2, dtype=np.float32) for name in NAMES}
    actual = [np.array([1.0, np.inf], dtype=np.float32)] * 3
    error_bound = ErrorBound(Branch(expected["X_new"], np.ones(2)).at, 4.0)
    diffs = compare_outputs(expected, actual, lambda _: error_bound)
    (row, *_) = accuracy([result(diffs=diffs)])
    assert (row.bits_lost, row.not_finite, row.ulp_within(0.99)) == (math.inf, 1, None)


def test_outputs_of_several_tensors_are_combined_under_any_names():
    names = [f"{letter}{number}" for letter in "abc" for number in (1, 2)]
    several = [
        outputs([ulp], [name])[0] for ulp, name in zip([1, 1, 2, 2, 4, 4], names, strict=True)
    ]
    rows = accuracy([result(diffs=tuple(several)), result(diffs=outputs([0]))])
    assert [(row.output, row.tensors) for row in rows] == [(name, 3) for name in NAMES]
    assert [row.max_ulp for row in rows] == [1, 2, 4]


def test_outputs_have_rows_by_operator_and_provenance_of_the_tolerance():
    results = [
        result(diffs=outputs([0])),
        result(diffs=outputs([9], tolerance=ONNX_DEFAULT)),
        result(diffs=outputs([9]), operators=("Relu",)),
        result(diffs=outputs([9]), operators=("Adam", "Relu")),
        result(diffs=()),
    ]
    rows = {(row.operator, row.output, row.provenance.value) for row in accuracy(results)}
    assert {key for key in rows if key[1] in ("X_new", "output 1")} == {
        ("Adam", "X_new", "derived"),
        ("Adam", "X_new", "ONNX default"),
        ("Relu", "output 1", "derived"),
        ("(several)", "output 1", "derived"),
    }


def test_random_outputs_have_no_accuracy():
    random = Drawn("uniform", lambda _: "", Provenance.CASE)
    assert accuracy([result(diffs=outputs([9], tolerance=random))]) == ()


def test_backends_are_in_the_order_of_the_run():
    results = [result(backend=name, diffs=outputs([0])) for name in ("z", "a", "z")]
    assert [row.backend for row in accuracy(results)] == ["z"] * 3 + ["a"] * 3
