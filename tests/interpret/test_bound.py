"""Error bounds of the elements of outputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from operator import attrgetter

import numpy as np
import pytest

from onnxopt_cli.core.tolerance import Provenance
from onnxopt_cli.interpret.bound.error_bound import FACTOR, bound
from onnxopt_cli.interpret.reformulations import root_by_newton, root_by_reciprocal
from onnxopt_cli.operators.builtin.adam import ADAM
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry

U = 2.0**-24
SMALLEST_NORMAL = 2.0**-126


def call_of(name, *inputs, dtype=np.float32, rate=None, **attributes):
    """Return a call with R, T and one tensor of each kind.

    Args:
        dtype: the type to which tensors are converted if they are not arrays.
        rate: the type of R, by default ``dtype``.
    """
    operator = registry().named(name)
    R, T, *tensors = inputs
    arrays = [np.asarray(R, rate or dtype), np.asarray(T, np.int64)]
    arrays += [
        tensor if isinstance(tensor, (np.ndarray, np.generic)) else np.asarray(tensor, dtype)
        for tensor in tensors
    ]
    return bind(operator, arrays, complete_attributes(operator, attributes))


def momentum(*inputs, alpha=0.5, beta=1.0, mode="standard", norm_coefficient=0.0, **types):
    return call_of(
        "Momentum",
        *inputs,
        alpha=alpha,
        beta=beta,
        mode=mode,
        norm_coefficient=norm_coefficient,
        **types,
    )


def judged(formula, *tensors, dtype=np.float32):
    """Return the error bound of a formula that is called with two tensors."""
    operator = replace(
        ADAM,
        formula=lambda _, X, G: (formula(X, G),),
        scalars=ADAM.scalars[:1],
        tensors=("X", "G"),
        outputs={"Y": "X"},
        attributes=(),
    )
    inputs = [np.asarray(1, dtype), *(np.asarray(tensor, dtype) for tensor in tensors)]
    return bound(bind(operator, inputs, complete_attributes(operator, {})))[0]


def test_error_follows_from_the_rules():
    V_new = bound(momentum(0.25, 1, 10.0, 4.0, 2.0))[1]
    # Magnitudes of the rounded results: 0 * X, 0 * X + G, 0.5 * V, 1 * G_regularized, the sum of
    # both products, and the output.
    roundings = [0, 4, 1, 4, 5, 5]
    assert V_new.value == 5
    assert V_new.error == pytest.approx(U * sum(roundings), rel=1e-6)


def test_limit_is_a_multiple_of_the_error_and_marked_as_derived():
    call = momentum(0.25, 1, 10.0, 4.0, 2.0)
    for factor in (FACTOR, 1.0, 7.5):
        derived_output = bound(call, factor)[0]
        assert derived_output.limit == factor * derived_output.error
        assert derived_output.branch.limit == derived_output.limit
        assert derived_output.error_bound.factor == factor
        assert derived_output.error_bound.provenance is Provenance.DERIVED


def sides(derived_output):
    """Yield each accepted result of an output: rounded value, unrounded value and error bound."""
    while derived_output is not None:
        yield derived_output.expected, derived_output.value, derived_output.error
        derived_output = derived_output.otherwise


@pytest.mark.parametrize("epsilon", [0.5, (0.5, 0.25, 1.0, 2.0, 4.0)], ids=["one", "each its own"])
def test_tensors_have_the_same_bounds_together_and_alone(epsilon):
    special = [0.5, np.inf, -2.0, np.nan, 0.0, 3e38]
    shapes, random = [(2, 3), (), (1, 4), (0,), (6,)], np.random.default_rng(0)
    tensors = [random.choice(special, shape).astype("f4") for _ in ADAM.tensors for shape in shapes]
    # One of the tensors is broadcast.
    tensors[len(shapes)] = tensors[len(shapes)][:1]
    inputs = [np.asarray(0.1, "f4"), np.asarray(3), *tensors]
    call = bind(ADAM, inputs, complete_attributes(ADAM, {}) | {"epsilon": epsilon})
    single_groups = zip(*(bound(call.group(group)) for group in range(len(shapes))), strict=True)
    for together, own in zip(bound(call), chain.from_iterable(single_groups), strict=True):
        several, wanted = list(sides(together)), list(sides(own))
        # If one of the tensors has two right results, the bound of all tensors has two as well: the
        # result of every tensor with a single right result is repeated.
        wanted += wanted[-1:] * (len(several) - len(wanted))
        for output, expected_output in zip(several, wanted, strict=True):
            for actual_part, expected_part in zip(output, expected_output, strict=True):
                np.testing.assert_array_equal(actual_part, expected_part, strict=True)


def test_outputs_have_the_order_of_the_node_and_the_shapes_of_their_tensors():
    operator = registry().named("Momentum")
    attributes = {"alpha": 0.5, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}
    inputs = [np.float32([0.1]), np.int64([[1]])]
    inputs += [np.ones((2, 3)), np.ones(4, np.float32)]
    inputs += [np.ones(3), np.ones((), np.float32), np.ones((2, 1)), np.ones(4, np.float32)]
    derived_outputs = bound(bind(operator, inputs, complete_attributes(operator, attributes)))
    for array in ("expected", "value", "error", "limit", "branch.inconclusive"):
        shapes = [attrgetter(array)(derived_output).shape for derived_output in derived_outputs]
        assert shapes == [(2, 3), (4,), (2, 3), (4,)]
    assert [derived_output.expected.dtype for derived_output in derived_outputs] == [
        "f8",
        "f4",
        "f8",
        "f4",
    ]


def test_empty_tensor_has_empty_bounds():
    empty = np.zeros((0, 2), np.float32)
    for derived_output in bound(momentum(0.5, 1, empty, empty, empty)):
        assert derived_output.limit.shape == (0, 2)
        assert derived_output.inconclusive == 0


def test_zeros_without_rounding_errors_are_exact_and_not_inconclusive():
    for derived_output in bound(momentum(0.5, 1, 0.0, 0.0, 0.0)):
        assert derived_output.limit == 0
        assert derived_output.inconclusive == 0


def test_cancellation_makes_an_element_inconclusive_and_leaves_its_neighbours():
    X = np.float32([1, 1, 3])
    # For the first two elements, R * V_new differs from X = 1 only in its last bits.
    G = np.float32([3.0000002, 3, 3])
    V = np.zeros(3, np.float32)
    X_new = bound(momentum(1 / 3, 1, X, G, V))[0]
    assert np.abs(X_new.value[0]) < X_new.limit[0] < 1e-5
    assert X_new.branch.inconclusive.tolist() == [True, True, False]
    assert X_new.inconclusive == 2


def test_overflow_of_an_intermediate_result_is_inconclusive():
    G = np.float32([1e20, 1])
    zeros = np.zeros(2, np.float32)
    X_new, V_new, H_new = bound(call_of("Adam", 0.1, 1, zeros, G, zeros, zeros))
    assert np.isinf(H_new.limit).tolist() == [True, False]
    assert np.isinf(X_new.limit).tolist() == [True, False]
    assert np.isfinite(V_new.limit).all()
    assert H_new.branch.inconclusive.tolist() == [True, False]


def test_intermediate_overflow_of_a_sum_is_inconclusive():
    derived_output = judged(lambda X, G: (X + G) - G, [3e38, 1e38], [3e38, 1e38])
    assert derived_output.value == pytest.approx([3e38, 1e38])
    assert np.isinf(derived_output.limit).tolist() == [True, False]


def test_nan_is_required_also_in_overflowing_sums():
    G = np.float32([1e20])
    X_new, H_new = bound(call_of("Adagrad", 0.1, 0, np.float32([np.nan]), G, np.float32([1])))
    assert X_new.limit == 0
    assert H_new.limit == 0
    derived_output = judged(lambda X, G: X + G * G, np.nan, 1e20)
    assert derived_output.limit == 0


def test_intermediate_results_in_double_have_the_range_of_double():
    _, _, H_new = bound(call_of("Adam", 0.1, 1, 0.0, 1e20, 0.0, 0.0, dtype=np.float64))
    assert H_new.limit < 1e-14 * H_new.value


def test_product_that_overflows_in_another_order_cannot_be_judged():
    product = judged(lambda X, G: X * 1e-20 / G, 1e30, 1e-10)
    assert product.value == pytest.approx(1e20)
    assert np.isinf(product.limit)
    product = judged(lambda X, G: X * 1e-20 / G, 1e30, 1e-5)
    assert np.isfinite(product.limit)


def test_product_with_a_sum_that_overflows_term_by_term_cannot_be_judged():
    sums = judged(lambda X, G: 1e9 * (X - G), [3e30, 3e28], [2.9e30, 2.9e28])
    assert np.isinf(sums.limit).tolist() == [True, False]


def test_weighted_mean_is_inconclusive_if_the_difference_overflows():
    # TensorFlow and PyTorch compute V + (G - V) * (1 - alpha), so the difference G - V overflows.
    outputs = momentum(0.1, 1, [1, 1], [3e38, 1], [-3e38, 2], alpha=0.9, beta=0.1)
    _, moved = bound(outputs)
    assert moved.limit.tolist()[0] == np.inf
    assert moved.limit.tolist()[1] < 1e-5


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [2, 3, 4, 5])
def test_nan_and_infinity_must_propagate(number, position):
    inputs = [0.1, 3, *([np.float32([1, 2])] * 4)]
    inputs[position] = np.float32([number, 2])
    for derived_output in bound(call_of("Adam", *inputs, norm_coefficient=0.1)):
        assert np.isfinite(derived_output.limit).all()
        special = ~np.isfinite(derived_output.expected)
        assert (derived_output.limit[special] == 0).all()
        assert derived_output.limit[1] > 0
        assert derived_output.inconclusive == 0


def test_infinite_second_moment_leads_to_no_step():
    X_new, _, H_new = bound(call_of("Adam", 0.1, 3, 1.0, 1.0, 1.0, np.inf))
    assert H_new.value == np.inf
    assert X_new.value == 1
    assert 0 < X_new.limit < 1e-6


def test_root_of_a_number_of_uncertain_sign_is_inconclusive():
    X_new, H_new = bound(
        call_of(
            "Adagrad", 0.1, 0, np.float32([1] * 3), np.float32([3] * 3), np.float32([-10, -9, -8])
        )
    )
    assert H_new.value.tolist() == [-1, 0, 1]
    assert np.isnan(X_new.value[0])
    assert X_new.limit[0] == 0
    assert np.isinf(X_new.limit[1])
    assert np.isfinite(X_new.limit[2])


def test_root_of_a_cancelled_mean_is_inconclusive():
    # beta * H is -1 and -3, and the square of G is added to it. The reformulation
    # H + (1 - beta) * (square - H) rounds H and the difference, which are a million times as large
    # as the result.
    X_new, _, H_new = bound(
        call_of("Adam", 0.1, 0, [1.0] * 2, [1.0] * 2, [1.0] * 2, [-1e6, -3e6], beta=1e-6)
    )
    assert np.all((H_new.value > -3) & (H_new.value < 0))
    assert np.isnan(X_new.expected).all()
    assert np.isinf(X_new.limit[0])
    assert X_new.limit[1] == 0


def test_zero_divided_by_zero_is_nan():
    X_new, H_new = bound(call_of("Adagrad", 0.1, 0, 1.0, 0.0, 0.0, epsilon=0.0))
    assert np.isnan(X_new.expected)
    assert X_new.limit == 0
    assert H_new.limit == 0


def test_quotient_by_a_subnormal_number_is_inconclusive():
    X_new, H_new = bound(call_of("Adagrad", 0.1, 0, 1.0, 1e-20, 0.0, epsilon=0.0))
    assert np.isinf(X_new.limit)
    assert SMALLEST_NORMAL <= H_new.error <= 4 * SMALLEST_NORMAL


def test_subnormal_number_may_be_flushed_to_zero():
    derived_output = bound(momentum(0.5, 1, 0.0, 0.0, 1e-40, alpha=1.0))[1]
    assert derived_output.limit > 1e-40
    assert derived_output.inconclusive == 1
    derived_output = bound(momentum(0.5, 1, 0.0, 0.0, 1e-40, alpha=1.0, dtype=np.float64))[1]
    assert derived_output.inconclusive == 0


def test_double_in_a_float32_node_may_be_rounded_first():
    X_new = bound(momentum(0.1, 1, 0.0, 3.0, 0.0, rate=np.float64))[0]
    rounded_first = np.float64(np.float32(0.1)) * 3
    assert 0 < abs(rounded_first + X_new.value) <= X_new.error


def test_double_tensors_beside_float32_scalars_may_not_be_rounded():
    # T is 0, so no intermediate result depends only on R.
    X = np.float64(2**24 + 1)
    X_new = bound(momentum(0.5, 0, X, 1.0, 0.0, dtype=np.float64, rate=np.float32))[0]
    assert X_new.limit < 1e-6


@pytest.mark.parametrize(
    ("rate", "dtype", "accepted"),
    [
        (np.float32, np.float32, True),
        (np.float32, np.float64, True),
        (np.float64, np.float32, True),
        (np.float64, np.float64, False),
    ],
)
def test_powers_of_beta_may_be_rounded_to_float32_if_an_input_is_float32(rate, dtype, accepted):
    beta, T = np.float32(0.9999), 3
    X_new = bound(
        call_of("Adam", 1, T, 0.0, 1.0, 1.0, 1.0, dtype=dtype, rate=rate, beta=float(beta))
    )[0]
    exact = 1 - np.longdouble(beta) ** T
    through_float32 = 1 - np.longdouble(np.float32(np.float64(beta) ** T))
    distance = X_new.value * np.sqrt(through_float32 / exact) - X_new.value
    assert abs(distance / X_new.value) > 4.9e-5
    assert (abs(distance) <= X_new.limit) == accepted


def test_attribute_may_be_rounded_to_the_type_of_a_float32_rate():
    R, alpha = np.float32(0.1), np.float32(0.3)
    X_new = bound(
        momentum(R, 0, 0.0, 0.0, 1.0, dtype=np.float64, rate=np.float32, alpha=float(alpha))
    )[0]
    assert 0 < abs(np.longdouble(R * alpha) + X_new.value) <= X_new.error


def test_quotient_may_be_the_product_with_a_reciprocal():
    X, G = np.random.default_rng(0).uniform(0.5, 2, (2, 10_000)).astype(np.float32)
    derived_output = judged(lambda X, G: X / G, X, G)
    assert (np.abs(X * (1 / G) - derived_output.value) <= derived_output.error).all()


def test_root_may_be_computed_from_a_reciprocal_root():
    X = np.random.default_rng(0).uniform(0.5, 2, 10_000).astype(np.float32)
    derived_output = judged(lambda X, _: np.sqrt(X), X, X)
    for root in (root_by_reciprocal, root_by_newton):
        assert (np.abs(root(X) - derived_output.value) <= derived_output.error).all()


def test_error_of_a_root_near_zero_follows_from_its_radicand():
    def radicand(X, G):
        return X * 0.3 - G

    G = (np.float32(3) * np.float32(0.3)).astype(np.float32)
    X = np.nextafter(np.float32(3), np.float32([4, 5, 6])) + np.float32([0, 1, 2]) * 2.0**-22
    below, root = judged(radicand, X, G), judged(lambda X, G: np.sqrt(radicand(X, G)), X, G)
    assert (below.value > below.error).any()
    for value, error, root_error in zip(below.value, below.error, root.error, strict=True):
        if value > error:
            assert root_error >= np.sqrt(value) - np.sqrt(value - 0.99 * error)
        else:
            assert np.isinf(root_error)


@pytest.mark.parametrize(("dtype", "exact"), [(np.float32, False), (np.float64, True)])
def test_count_beyond_the_precision_of_a_type_may_be_rounded(dtype, exact):
    T = 2**24 + 1
    X_new = bound(
        call_of("Adagrad", 1, T, 0.0, 1.0, 0.0, decay_factor=1.0, epsilon=0.0, dtype=dtype)
    )[0]
    off = 1 / (1 + np.longdouble(T)) - 1 / np.longdouble(T)
    assert (abs(off) > X_new.limit) == exact


def test_double_output_beside_float32_tensors_has_double_precision():
    V = np.float64(1 / 3)
    narrow = np.float32(0)
    X_new, V_new = bound(momentum(0.5, 1, narrow, narrow, V, alpha=1.0))
    assert abs(np.float32(V) - V) > V_new.limit
    assert abs(np.float32(V) - V) / 2 <= X_new.error


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "Momentum"])
@pytest.mark.parametrize("size", [1e42, 1e100, -1e100])
def test_doubles_beyond_float32_must_not_be_converted_to_float32(name, size):
    operator = registry().named(name)
    further_tensors = [np.float32([0.5, 0.25])] * (len(operator.tensors) - 1)
    attributes = {
        attribute.name: attribute.default if attribute.default is not None else 0.5
        for attribute in operator.attributes
        if not attribute.choices
    }
    attributes |= {"mode": "standard"} if name == "Momentum" else {}
    attributes["norm_coefficient"] = 0.25
    X = np.float64([size, 1.0])
    X_new, *_ = bound(call_of(name, 0.1, 3, X, *further_tensors, dtype=np.float32, **attributes))
    assert X_new.expected.dtype == np.float64
    assert np.isfinite(X_new.expected).all()
    assert (X_new.limit < 1e-4 * np.abs(X_new.expected)).all()
    # The second element may be computed in float32, because it is within the range of float32.
    assert X_new.limit[1] > 1e-9


def test_float32_results_may_be_computed_in_float32_from_double_inputs():
    X = np.float32([1])
    V = np.float64([1 + 2**-30])
    X_new = bound(momentum(1, 1, X, np.float32([0]), V, alpha=1.0))[0]
    # If the step is computed in float32, it is exactly 1, and X_new is 0.
    assert abs(X_new.value) <= X_new.error


def powi(base, exponent):
    """Compute a power by the algorithm of LLVM's powi."""
    square, result = base, base.dtype.type(1)
    while True:
        if exponent & 1:
            result = result * square
        exponent //= 2
        if not exponent:
            return result
        square = square * square


def power_from_the_left(base, exponent):
    """Compute a power by squaring, beginning with the highest bit of the exponent."""
    result = base.dtype.type(1)
    for bit in f"{exponent:b}":
        result = result * result
        if bit == "1":
            result = result * base
    return result


@pytest.mark.parametrize("power", [powi, power_from_the_left])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 0.9999999])
@pytest.mark.parametrize("T", [6, 7, 16, 100, 1000, 1001, 30_000, 10**6, 2**24 + 1])
def test_powers_may_be_computed_by_squaring(power, dtype, beta, T):
    beta = np.float32(beta)
    X_new = bound(call_of("Adam", 1, T, 0.0, 1.0, 1.0, 1.0, dtype=dtype, beta=float(beta)))[0]
    correction = np.longdouble(1 - power(dtype(beta), T))
    exact = 1 - np.longdouble(beta) ** T
    change = X_new.value * (np.sqrt(correction / exact) - 1)
    assert abs(change) <= X_new.error


def test_wrong_power_is_rejected_although_squaring_is_accepted():
    beta, T = np.float32(0.999999), 10**6
    X_new = bound(call_of("Adam", 1, T, 0.0, 1.0, 1.0, 1.0, beta=float(beta)))[0]
    exact = np.longdouble(beta) ** T
    for wrong in (exact * (1 + T * U), np.longdouble(beta) ** (T - T // 1000)):
        change = X_new.value * (np.sqrt((1 - wrong) / (1 - exact)) - 1)
        assert abs(change) > X_new.limit


def test_powers_that_need_no_rounding_have_no_error():
    X_new = bound(call_of("Adam", 1, 5, 0.0, 1.0, 1.0, 1.0, beta=1.0))[0]
    assert X_new.value == 0
    assert X_new.limit == 0


def test_either_branch_is_accepted_if_rounding_decides_the_choice():
    def formula(X, G):
        return np.where(0.5 * X * 3 > G, X, -X)

    X = np.float32([1, 1, 1])
    G = np.float32([1.5, 1.4, 1.6])
    derived_output = judged(formula, X, G)
    assert derived_output.value.tolist() == [-1, 1, -1]
    assert derived_output.otherwise.value.tolist() == [1, 1, -1]
    assert (derived_output.error < 1e-6).all()
    assert (derived_output.otherwise.error < 1e-6).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_of_three_results_is_accepted_if_a_product_underflows(dtype):
    def formula(X, G):
        return X + G + np.where(X * G > 0, 1.2, np.where(X * G < 0, 0.5, 1.0))

    tiny = float(np.finfo(dtype).smallest_normal) ** 0.75
    derived_output = judged(formula, [tiny, 2], [-tiny, -1], dtype=dtype)
    assert derived_output.value.tolist() == [0.5, 1.5]
    assert derived_output.error[0] >= 0.5
    assert derived_output.error[1] < 1e-6


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        (lambda X, G: np.maximum(X * 0.5, G), 2),
        (lambda X, G: np.minimum(X * 0.5, G), -0.15),
        (lambda X, _: np.abs(X * 0.5), 0.15),
        (lambda X, _: -(X * 0.5), 0.15),
    ],
)
def test_selections_and_sign_changes_are_exact(formula, value):
    derived_output = judged(formula, -0.3, 2.0)
    assert derived_output.value == pytest.approx(value)
    assert derived_output.error <= 2.001 * U * max(abs(value), 0.15)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (np.tan, "tan"),
        (np.median, "median"),
        (np.add.reduce, r"add\.reduce"),
        (lambda X: np.sum(X, axis=0), "sum with axis"),
    ],
)
def test_unknown_function_is_reported_with_the_vocabulary(function, name):
    with pytest.raises(
        NotImplementedError,
        match=rf"numpy\.{name}; it can use, without further arguments, .* sqrt, square",
    ):
        judged(lambda X, _: function(X), 1.0, 1.0)
