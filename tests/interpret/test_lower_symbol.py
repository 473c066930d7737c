"""Every NumPy function of formulas is lowered to equivalent ONNX operators."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from made_operators import lowered, operator_of
from onnx import numpy_helper
from runtimes import runtimes

from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import bind
from onnxopt_cli.operators.operator import FLOATS
from onnxopt_cli.operators.percentile import percentile

SPECIAL = np.array([-np.inf, -1.5, -0.0, 0.0, 0.25, 1.0, 3.0, np.inf, np.nan])
#: Every pair of these numbers is tested.
X, Y = np.array(list(itertools.product(SPECIAL, SPECIAL))).T


def assert_unchanged(runtime, formula, outputs, inputs, **options):
    """Assert that a lowered formula is bitwise equal to the formula."""
    operator = operator_of(formula, outputs)
    expected = evaluate(bind(operator, inputs, {}))
    actual = runtime(lowered(operator, inputs, **options), inputs)
    for expected_output, actual_output in zip(expected, actual, strict=True):
        assert actual_output.dtype == expected_output.dtype
        np.testing.assert_array_equal(actual_output, expected_output)


def every_pair(dtype):
    return [np.array(3), X.astype(dtype), Y.astype(dtype)]


@runtimes
@pytest.mark.parametrize("dtype", FLOATS)
def test_arithmetic_is_numpys_also_on_nan_infinity_and_zero(runtime, dtype):
    def formula(_T, X, Y):
        return (
            X + Y,
            X - Y,
            X * Y,
            8 * X / 4,
            -X,
            abs(X),
            np.square(X),
            np.sqrt(np.square(Y)),
            np.power(X, 2),
            np.maximum(X, Y),
            np.minimum(X, Y),
        )

    assert_unchanged(runtime, formula, 11, every_pair(dtype))


@runtimes
@pytest.mark.parametrize("dtype", FLOATS)
def test_comparisons_and_logic_are_numpys_also_on_nan(runtime, dtype):
    def formula(_T, X, Y):
        conditions = (
            X > Y,
            X >= Y,
            X < Y,
            X <= Y,
            X == Y,
            X != Y,
            (X > 0) & (Y > 0),
            (X > 0) | (Y > 0),
            (X > 0) ^ (Y > 0),
            ~(X > Y),
            np.logical_and(X > 0, np.logical_not(Y > 0)),
            np.logical_or(X > 0, Y > 0),
            np.logical_xor(X > 0, Y > 0),
        )
        return tuple(np.where(condition, X, 7) for condition in conditions)

    assert_unchanged(runtime, formula, 13, every_pair(dtype))


@runtimes
def test_truth_value_counts_as_zero_or_one(runtime):
    def formula(_T, X, Y):
        return ((X > Y) * 2 + (X > 0) * 4,)

    assert_unchanged(runtime, formula, 1, every_pair("float32"))


@runtimes
def test_integers_beyond_2_to_53_are_compared_exactly(runtime):
    def formula(T, X, _Y):
        return (X + np.where(T > 2**53, 1, 2),)

    assert_unchanged(runtime, formula, 1, [np.array(2**53 + 1), np.zeros(2), np.zeros(2)])


@runtimes
def test_value_is_rounded_to_the_type_of_each_tensor_that_it_multiplies(runtime):
    def formula(T, X, Y):
        return (Y * T - X * T,)

    # T is representable in double, and not in float32.
    inputs = [np.array(2**24 + 1), np.ones(2, np.float32), np.ones(2)]
    (actual,) = runtime(lowered(operator_of(formula, 1), inputs), inputs)
    np.testing.assert_array_equal(actual, np.ones(2, np.float32))


@runtimes
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 0), ()])
def test_scalar_result_is_expanded_to_the_shape_of_its_output(runtime, known, shape):
    def formula(T, _X, Y):
        return T * 2, 5, np.sqrt(Y)

    inputs = [np.array(3), np.zeros(shape, np.float32), np.array(4.0)]
    assert_unchanged(runtime, formula, 3, inputs, known=known)


@pytest.mark.parametrize("shape", [(2, 3), (0,), ()])
def test_number_of_sorted_elements_is_constant_for_known_shapes(shape):
    operator = operator_of(lambda _T, X, _Y: (X * 0 + percentile(X, 30),), 1)
    inputs = [np.array(3), np.ones(shape, np.float32), np.ones(shape, np.float32)]
    nodes = lowered(operator, inputs).graph.node
    constants = {
        node.output[0]: node.attribute[0].t for node in nodes if node.op_type == "Constant"
    }
    (sort,) = (node for node in nodes if node.op_type == "TopK")
    # The tensor is extended by one element, since it may be empty.
    assert numpy_helper.to_array(constants[sort.input[1]]).tolist() == [np.prod(shape) + 1]
    assert "Size" not in {node.op_type for node in nodes}


@runtimes
def test_inputs_and_repeated_results_may_be_outputs(runtime):
    def formula(_T, X, Y):
        return X, X, X * Y, X * Y

    assert_unchanged(runtime, formula, 4, every_pair("float64"))


@pytest.mark.parametrize("function", [np.sinh, np.prod, np.add.reduce])
def test_function_without_an_onnx_operator_is_named(function):
    operator = operator_of(lambda _T, X, _Y: (function(X),), 1)
    with pytest.raises(
        NotImplementedError, match=r"numpy\.(sinh|prod|add\.reduce); it can use, without further"
    ):
        lowered(operator, every_pair("float32"))


def test_formula_cannot_branch_on_a_symbolic_value():
    operator = operator_of(lambda T, X, Y: (X if T > 0 else Y,), 1)
    with pytest.raises(TypeError, match=r"np\.where instead of if"):
        lowered(operator, every_pair("float32"))
