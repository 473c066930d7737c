"""For each NumPy function in the vocabulary, error bound and lowering agree."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_operators import lowered, operator_of
from numpy_quaddtype import QuadPrecDType
from places import REPOSITORY
from runtimes import runtimes

from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.vocabulary import VOCABULARY
from onnxopt_cli.operators.call import bind
from onnxopt_cli.operators.percentile import percentile

#: The wide type on machines whose long double is not wider than double.
QUAD = QuadPrecDType()

#: A factor that is exact in float32, like the value of an attribute.
SHARE = float(np.float32(0.3))

#: For each function: an expression in which x is a rounded operand, and y is not.
EXPRESSIONS = {
    np.add: lambda x, y: x + y,
    np.subtract: lambda x, y: x - y,
    np.multiply: lambda x, y: x * y,
    np.divide: lambda x, y: x / y,
    np.negative: lambda x, _: -x,
    np.absolute: lambda x, _: abs(x),
    np.sign: lambda x, _: np.sign(x),
    np.floor: lambda x, _: np.floor(x),
    np.ceil: lambda x, _: np.ceil(x),
    np.square: lambda x, _: np.square(x),
    np.reciprocal: lambda x, _: np.reciprocal(x),
    np.log: lambda x, _: np.log(x),
    np.exp: lambda x, _: np.exp(x),
    np.tanh: lambda x, _: np.tanh(x),
    np.sqrt: lambda x, _: np.sqrt(x),
    np.power: lambda x, _: x**3,
    np.maximum: np.maximum,
    np.minimum: np.minimum,
    np.clip: lambda x, y: np.clip(x, -1, y),
    np.where: lambda x, y: np.where(x > y, x, y + 1),
    np.greater: lambda x, y: np.where(x > y, x, y),
    np.greater_equal: lambda x, y: np.where(x >= y, x, y),
    np.less: lambda x, y: np.where(x < y, x, -y),
    np.less_equal: lambda x, y: np.where(x <= y, x, -y),
    np.equal: lambda x, y: np.where(x == y, x, y + 1),
    np.not_equal: lambda x, y: np.where(x != y, x, y + 1),
    np.logical_and: lambda x, y: np.where(np.logical_and(x > y, y > 0), x, y),
    np.logical_or: lambda x, y: np.where(np.logical_or(x > y, y > 1), x, y),
    np.logical_xor: lambda x, y: np.where(np.logical_xor(x > y, y > 1), x, y),
    np.logical_not: lambda x, y: np.where(np.logical_not(x > 2), x, y),
    np.bitwise_and: lambda x, y: np.where((x > y) & (y > 0), x, y),
    np.bitwise_or: lambda x, y: np.where((x > y) | (y > 1), x, y),
    np.bitwise_xor: lambda x, y: np.where((x > y) ^ (y > 1), x, y),
    np.invert: lambda x, y: np.where(~(x > 2), x, y),
    np.sum: lambda x, y: y * 0 + np.sum(x),
    np.mean: lambda x, y: y * 0 + np.mean(x),
    np.max: lambda x, y: y * 0 + np.max(x),
    np.min: lambda x, y: y * 0 + np.min(x),
    np.matmul: lambda x, y: y * 0 + np.matmul(x, y),
    percentile: lambda x, y: y * 0 + percentile(x, SHARE * 100),
}
each_function = pytest.mark.parametrize(
    "function", EXPRESSIONS.values(), ids=[function.__name__ for function in EXPRESSIONS]
)


def test_every_row_of_the_vocabulary_is_tested_here():
    assert set(EXPRESSIONS) == set(VOCABULARY)


def test_document_names_every_function_without_an_operator_symbol():
    text = (REPOSITORY / "docs" / "operators.md").read_text()
    (listed,) = re.findall(r"## Functions in formulas\n\n.*?\n\n(.*?)\n\n", text, re.DOTALL)
    signs = "add subtract multiply divide negative greater greater_equal less less_equal equal"
    signs += " not_equal bitwise_and bitwise_or bitwise_xor invert"
    named = set(re.findall(r"`(\w+)`", listed.replace("`abs`", "`absolute`")))
    assert named | set(signs.split()) == {function.__name__ for function in VOCABULARY}


numbers = st.one_of(
    st.floats(-8, 8, width=32).map(lambda item: item if abs(item) > 1e-6 else 0.0),
    st.sampled_from([0.0, 1.0, -1.0, 2.0, 10 / 3, 0.3]),
)
pairs = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=6)


def formula_of(function):
    # The first operand is a rounded result. It therefore has an error, which matters near a
    # discontinuity of the function.
    return lambda _T, X, Y: (function(X * SHARE - Y, Y),)


def judged(function, X, Y):
    call = bind(operator_of(formula_of(function), 1), [np.array(3), X, Y], {})
    return bound(call)[0]


@each_function
@given(values=pairs)
@example(values=[])
def test_quads_agree_with_long_doubles(function, values):
    X, Y = np.array(values).reshape(-1, 2).T
    call = bind(operator_of(formula_of(function), 1), [np.array(3), X, Y], {})
    (of_quads,), (of_long_doubles,) = bound(call, wide=QUAD), bound(call)
    assert np.array_equal(evaluate(call, QUAD)[0], of_quads.expected, equal_nan=True)
    assert np.all(within(of_quads, of_long_doubles.expected))
    assert np.all(within(of_long_doubles, of_quads.expected))


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (0, 0)])
def test_quads_are_multiplied_as_matrices_in_any_memory_layout(shape):
    X, Y = (
        np.asfortranarray(array) for array in np.random.default_rng(1).standard_normal((2, *shape))
    )
    operator = operator_of(lambda _, X, Y: (np.matmul(np.where(X > Y, X, Y), Y),), 1)
    call = bind(operator, [np.array(3), X, Y], {})
    (of_quads,), (of_long_doubles,) = bound(call, wide=QUAD), bound(call)
    np.testing.assert_allclose(evaluate(call, QUAD)[0], of_long_doubles.expected, rtol=1e-15)
    np.testing.assert_allclose(of_quads.expected, of_long_doubles.expected, rtol=1e-15)


def within(derived_output, output):
    """Return a mask of the elements that are within the bound of one of the right values."""
    accepted = False
    with np.errstate(all="ignore"):
        for each in filter(None, (derived_output, derived_output.otherwise)):
            distance = np.abs(output.astype(np.longdouble) - each.value)
            is_equal = (output == each.value) | (np.isnan(output) & np.isnan(each.value))
            accepted = accepted | is_equal | (distance <= each.error) | np.isinf(each.error)
    return accepted


@each_function
@example([(10 / 3, 1.0), (1.0, 0.3)])
@example([(0.0, 8.0), (0.0, -1.0), (0.0, -1.0), (0.0, -1.0)])
@example([(0.0, 0.0), (0.0, 0.0)])
@given(pairs)
def test_computing_in_float32_stays_within_the_bound(function, rows):
    X, Y = np.array(rows, np.float32).T.copy()
    derived_output = judged(function, X, Y)
    with np.errstate(all="ignore"):
        output = np.asarray(function(X * np.float32(SHARE) - Y, Y))
    assert output.dtype == np.float32
    assert within(derived_output, output).all(), (
        output,
        derived_output.value,
        derived_output.error,
    )


@each_function
def test_relative_error_of_1e_4_exceeds_the_bound(function):
    X = np.array([3.7, -5.1, 6.3, 8.9], np.float32)
    Y = np.array([0.31, 0.72, -0.93, 1.14], np.float32)
    derived_output = judged(function, X, Y)
    right = derived_output.value.astype(np.float64)
    wrong = ~within(derived_output, right * (1 + 1e-4) + (right == 0) * 1e-4)
    assert wrong[np.isfinite(right)].all()


@runtimes
@each_function
def test_lowered_function_stays_within_the_bound(runtime, function):
    rows = np.random.default_rng(5).uniform(-4, 4, (2, 40)).astype(np.float32)
    # The last four elements are at discontinuities of some functions. There, either both one-sided
    # limits are right, or only one of them.
    X = np.concatenate([rows[0], np.float32([0, 10 / 3, 1, 4])])
    Y = np.concatenate([rows[1], np.float32([0, 1, 0.3, 1.2])])
    inputs = [np.array(3), X, Y]
    for has_shape in (True, False):
        model = lowered(operator_of(formula_of(function), 1), inputs, known=has_shape)
        (output,) = runtime(model, inputs)
        assert output.dtype == np.float32
        assert within(judged(function, X, Y), output).all()


def test_choice_is_uncertain_only_if_rounding_can_change_it():
    X, Y = np.float32([10 / 3, 5, -5, 0]), np.float32([1, 1, 1, 0])
    derived_output = judged(EXPRESSIONS[np.sign], X, Y)
    assert (derived_output.error > 0).tolist() == [True, False, False, False]


def test_long_sums_are_judged_by_the_root_of_their_length():
    values = np.random.default_rng(1).uniform(0.5, 2, 100_000).astype(np.float32)
    derived_output = judged(EXPRESSIONS[np.sum], values, np.zeros_like(values))
    exact = derived_output.value[0]
    assert derived_output.error[0] < 3e-4 * exact
    terms = values * np.float32(SHARE)
    orders = (terms, terms[::-1], np.sort(terms), np.sort(terms)[::-1])
    for order in orders:
        for total in (np.cumsum(order)[-1], np.sum(order), np.sum(order.reshape(-1, 100), 1).sum()):
            assert abs(total - exact) <= derived_output.error[0]
