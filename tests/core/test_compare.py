"""Comparison of arrays with expected values."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onnxopt_cli.core.compare import absolute_distance, compare_outputs
from onnxopt_cli.core.result import KINDS_OF_OUTCOMES, Outcome
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Branch,
    ErrorBound,
    Provenance,
    Relative,
    Ulps,
)
from onnxopt_cli.core.values import DTYPES

EXACT = Relative(0.0, 0.0, Provenance.CASE)


def judge(expected, actual, tolerance=ONNX_DEFAULT, **options):
    diffs = compare_outputs({"out": expected}, [actual], lambda _: tolerance, **options)
    return diffs[-1] if len(diffs) == 1 else diffs


def floats(dtype):
    return arrays.arrays(dtype, st.integers(1, 6), elements=st.floats(width=dtype().itemsize * 8))


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "string"])
def test_every_dtype_agrees_with_itself_and_not_with_another_value(name):
    dtype = DTYPES[name]
    ones = np.ones(3, dtype=dtype)
    changed = ones.copy()
    changed[1] = 0 if name != "float8_e8m0fnu" else 2
    assert judge(ones, ones.copy(), EXACT).agrees
    diff = judge(ones, changed, EXACT)
    assert (diff.mismatches, diff.elements, diff.worst[0].index) == (1, 3, (1,))


def test_signalling_nan_is_compared_without_a_warning():
    # A warning would fail the test, because pytest turns warnings into errors.
    signalling = np.array([0x7FA12345], np.uint32).view(np.float32)
    assert judge(np.ones(1, np.float32), signalling).mismatches == 1


def test_strings_are_compared_as_text_in_any_array():
    expected = np.array(["a", "ü"], dtype=object)
    assert judge(expected, np.array(["a", "ü"])).agrees
    assert judge(expected, np.array([b"a", "ü".encode()], dtype=object)).agrees
    assert judge(expected, np.array(["a", "u"])).mismatches == 1


def test_integers_are_exact_beyond_2_to_53():
    assert judge(np.array([2**53]), np.array([2**53 + 1])).mismatches == 1
    assert judge(np.array([1000]), np.array([1001])).mismatches == 1
    extremes = judge(np.array([-(2**63)]), np.array([2**63 - 1]))
    assert extremes.max_absolute == float(2**64 - 1)


def test_integer_output_may_have_a_stated_tolerance():
    stated = Relative(0.0, 1.0, Provenance.OUTPUT)
    assert judge(np.array([7], np.uint8), np.array([8], np.uint8), stated).agrees
    assert not judge(np.array([7], np.uint8), np.array([9], np.uint8), stated).agrees
    assert not judge(
        np.array([7]), np.array([8]), replace(stated, provenance=Provenance.CASE)
    ).agrees


@pytest.mark.parametrize(
    ("expected", "actual", "agrees"),
    [
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (1.0, math.nan, False),
        (math.nan, 1.0, False),
        (1.0, math.inf, False),
        (math.inf, 1e308, False),
        (0.0, -0.0, True),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_special_value_agrees_only_with_itself(expected, actual, agrees, dtype):
    with np.errstate(over="ignore"):
        sides = np.array([expected]).astype(dtype), np.array([actual]).astype(dtype)
    if not (math.isinf(expected) and actual == 1e308 and dtype is not np.float64):
        assert judge(*sides).agrees is agrees


def test_signed_zeros_differ_only_on_request():
    zeros = np.array([0.0, -0.0]), np.array([-0.0, 0.0])
    assert judge(*zeros).agrees
    for tolerance in (EXACT, Relative(1.0, 1.0, Provenance.CASE), Ulps(9, Provenance.CASE), None):
        assert judge(*zeros, tolerance, signed_zeros=True).mismatches == 2


def test_infinite_complex_part_agrees_only_with_itself():
    expected = np.array([complex(math.inf, 1), complex(math.nan, 0)])
    assert judge(expected, expected.copy()).agrees
    assert judge(expected, np.array([complex(math.inf, 2), complex(0, 0)])).mismatches == 2


@pytest.mark.parametrize(
    ("actual", "structure"),
    [
        (np.zeros(3, np.float64), "is float64[3]"),
        (np.zeros((3, 1), np.float32), "is float32[3,1]"),
        ([np.zeros(3, np.float32)], "is a sequence of 1"),
        (None, "is an empty optional"),
        ({}, "is a map of 0"),
    ],
)
def test_structure_is_judged_before_values(actual, structure):
    diff = judge(np.zeros(3, np.float32), actual)
    assert (diff.structure, diff.agrees) == (structure, False)


def test_missing_and_surplus_outputs_are_named():
    zero = np.zeros(1)
    missing = compare_outputs({"a": zero, "b": zero}, [zero], lambda _: EXACT)
    assert [(diff.name, diff.structure) for diff in missing][1] == ("b", "is missing")
    surplus = compare_outputs({"a": zero}, [zero, zero], lambda _: EXACT)
    assert surplus[1].structure == "is float64[1] too many"


def test_sequences_optionals_and_maps_are_compared_recursively():
    nested = [np.zeros(2), [np.ones(1)]]
    assert all(diff.agrees for diff in judge(nested, [np.zeros(2), [np.ones(1)]]))
    diffs = judge(nested, [np.zeros(2), [np.zeros(1)]])
    assert [diff.name for diff in diffs if not diff.agrees] == ["out[1][0]"]
    assert judge(nested, []).structure == "is a sequence of 0"
    assert judge(None, None).agrees
    assert judge({"k": np.ones(1)}, {"x": np.ones(1)}).structure is not None
    assert not judge({"k": np.ones(1)}, {"k": np.zeros(1)})[-1].agrees


def test_tolerance_is_applied_elementwise():
    right = Branch(np.zeros(3), np.array([0.5, 0.1, math.inf]))
    error_bound = ErrorBound(right.at, factor=4.0)
    diff = judge(right.expected, np.array([0.4, 0.4, math.nan]), error_bound)
    assert (diff.mismatches, diff.worst[0].index, diff.tolerance_used) == (1, (1,), 4.0)


def test_worst_elements_are_found_across_blocks():
    expected = np.zeros((300, 400))
    actual = expected.copy()
    for rank, index in enumerate([(299, 399), (0, 0), (150, 7)]):
        actual[index] = 3 - rank
    diff = judge(expected, actual, EXACT)
    assert [worst.index for worst in diff.worst] == [(299, 399), (0, 0), (150, 7)]
    assert (diff.elements, diff.mismatches, diff.max_absolute) == (120_000, 3, 3.0)


def test_noncontiguous_and_read_only_arrays_are_accepted():
    base = np.arange(12.0).reshape(3, 4)
    view = base.T
    view.flags.writeable = False
    assert judge(np.ascontiguousarray(base.T), view).agrees


@given(floats(np.float32), st.data())
def test_relative_tolerance_decides_as_numpy_does_on_finite_values(expected, data):
    actual = data.draw(arrays.arrays(np.float32, expected.shape, elements=st.floats(width=32)))
    rtol = data.draw(st.floats(0, 2))
    atol = data.draw(st.floats(0, 2))
    diff = judge(expected, actual, Relative(rtol, atol, Provenance.CASE))
    wide = expected.astype(float), actual.astype(float)
    with np.errstate(all="ignore"):
        close = np.isclose(wide[1], wide[0], rtol=rtol, atol=atol, equal_nan=True)
    assert diff.mismatches == np.count_nonzero(~close)


@given(floats(np.float64), st.data())
def test_needed_tolerances_pass_and_smaller_ones_fail(expected, data):
    elements = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
    expected = data.draw(arrays.arrays(np.float64, expected.shape, elements=elements))
    actual = data.draw(arrays.arrays(np.float64, expected.shape, elements=elements))
    tolerance = Relative(data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1)), Provenance.CASE)
    diff = judge(expected, actual, tolerance)
    for field, needed in (("rtol", diff.needed_rtol), ("atol", diff.needed_atol)):
        if needed is None:
            assert field == "rtol"
            assert (np.abs(expected) < 1e-150).any()
            continue
        assert judge(expected, actual, replace(tolerance, **{field: needed})).agrees
        if needed > 1e-300:
            smaller = replace(tolerance, **{field: needed * (1 - 1e-9)})
            second_limit = tolerance.atol if field == "rtol" else tolerance.rtol
            if second_limit == 0:
                assert not judge(expected, actual, smaller).agrees


@given(floats(np.float32), st.floats(0, 1), st.floats(0, 1))
def test_larger_tolerance_accepts_all_that_a_smaller_one_accepts(expected, rtol, increase):
    with np.errstate(over="ignore"):
        actual = expected * np.float32(1.25)
    small = judge(expected, actual, Relative(rtol, 0, Provenance.CASE))
    large = judge(expected, actual, Relative(rtol + increase, increase, Provenance.CASE))
    assert large.mismatches <= small.mismatches


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bfloat16", "float8_e5m2"])
@given(st.data())
def test_ulp_counts_the_steps_between_two_values(name, data):
    dtype = DTYPES[name]
    start = np.array([data.draw(st.floats(-4, 4))]).astype(dtype)
    steps = data.draw(st.integers(0, 40))
    end = start
    for _ in range(steps):
        end = np.nextafter(end, np.array([np.inf]).astype(dtype))
    diff = judge(start, end, Ulps(steps, Provenance.CASE))
    assert (diff.max_ulp, diff.agrees) == (steps, True)
    if steps:
        assert not judge(start, end, Ulps(steps - 1, Provenance.CASE)).agrees


def test_empty_tensors_agree_when_their_shapes_do():
    assert judge(np.zeros((0, 3)), np.zeros((0, 3))).agrees
    assert judge(np.zeros((0, 3)), np.zeros((3, 0))).structure == "is float64[3,0]"


def test_elements_are_counted_by_the_number_of_bits_of_their_ulp_distance():
    expected = np.ones(8, dtype=np.float32)
    ulps = [0, 0, 1, 2, 3, 4, 7, 8]
    actual = (expected.view(np.int32) + np.array(ulps, dtype=np.int32)).view(np.float32)
    assert judge(expected, actual).ulp_counts == (2, 1, 2, 2, 1)


def test_unexpectedly_nonfinite_element_is_not_in_the_ulp_counts():
    expected = np.array([1.0, 2.0, np.nan, np.inf])
    actual = np.array([1.0, np.nan, np.nan, np.inf])
    assert judge(expected, actual).ulp_counts == (3,)


def test_integers_have_no_ulp_counts():
    assert judge(np.arange(3), np.arange(3)).ulp_counts == ()


@pytest.mark.parametrize("name", ["float32", "float64", "int64", "complex64", "bool"])
def test_distance_of_scalars_is_a_scalar_array(name):
    zero, one = (np.array(number, name) for number in (0, 1))
    assert absolute_distance(zero, one).shape == ()
    assert absolute_distance(zero, one) == 1


def test_every_outcome_has_one_kind():
    assert sorted(chain.from_iterable(KINDS_OF_OUTCOMES)) == sorted(Outcome)
