"""Results of reformulations and of the wide type are within the error bound."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_quaddtype import QuadPrecDType
from training_calls import calls, each_training_operator, shares

from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE, evaluate
from onnxopt_cli.interpret.reformulations import reformulations


def largest_shares(call):
    """Return the largest ratio error / bound of each reformulation, by name."""
    derived_outputs = bound(call)
    return {
        reformulation.name: max(
            float(np.max(shares(derived_output, output), initial=0.0))
            for derived_output, output in zip(derived_outputs, reformulation.run(call), strict=True)
        )
        for reformulation in reformulations(call.operator)
    }


@pytest.mark.slow
@each_training_operator
@given(data=st.data())
def test_no_reformulation_exceeds_the_bound(operator, data):
    call = data.draw(calls(operator))
    used = largest_shares(call)
    assert {name: share for name, share in used.items() if share > 1} == {}


@each_training_operator
@given(data=st.data())
def test_expected_values_equal_those_of_evaluate_bitwise(operator, data):
    call = data.draw(calls(operator))
    for derived_output, expected in zip(bound(call), evaluate(call), strict=True):
        assert derived_output.expected.dtype == expected.dtype
        assert derived_output.expected.tobytes() == expected.tobytes()


@pytest.mark.skipif(np.finfo(WIDEST_TYPE).eps >= np.finfo(np.float64).eps, reason="no wider type")
@each_training_operator
@given(data=st.data())
def test_wide_evaluation_is_within_its_bound_of_the_exact_value(operator, data):
    # All inputs are double, and their magnitudes are normal numbers in double and in the wide type.
    # The error bound of the wide type is therefore the error bound of double, multiplied by the
    # ratio of the unit roundoffs.
    call = data.draw(
        calls(operator, dtypes=("float64",), exponents=(0, -3, 3, -8, 8), counts=(0, 1, 2, 3, 1000))
    )
    ratio = Fraction(float(np.finfo(WIDEST_TYPE).eps)) / Fraction(float(np.finfo(np.float64).eps))
    for derived_output, exact in zip(bound(call), exact_outputs(call), strict=True):
        for value, error, truth in zip(
            derived_output.value.flat, derived_output.error.flat, exact, strict=True
        ):
            if np.isfinite(value) and np.isfinite(error):
                distance = abs(Fraction(*value.as_integer_ratio()) - Fraction(truth))
                assert distance <= ratio * Fraction(float(error))


@each_training_operator
@given(data=st.data())
def test_quads_have_the_limits_of_long_doubles(operator, data):
    call = data.draw(calls(operator, dtypes=("float64",)))
    # Limits depend on intermediate results, which are rounded in long double as well. The terms of
    # a reformulation may cancel, such as those of H + (G * G - H) * (1 - beta) if beta is 0 and H
    # is large. The errors in long double and in double have the same ratio as the machine
    # epsilons of these types.
    ratio = float(np.finfo(WIDEST_TYPE).eps / np.finfo(np.float64).eps)
    for quad, wide in zip(bound(call, wide=QuadPrecDType()), bound(call), strict=True):
        with np.errstate(all="ignore"):
            # Roundings in long double change a limit more if the limit is large in relation to the
            # value.
            allowed = wide.limit * ratio * (4 + wide.error / np.abs(wide.expected))
            alike = np.abs(quad.limit - wide.limit) <= allowed
            assert np.all(alike | (quad.limit == wide.limit))
            distance = np.abs(quad.expected - wide.expected)
            near = distance <= np.spacing(np.abs(wide.expected)) + wide.error / 1000
        assert np.all(near | (quad.expected == wide.expected) | np.isnan(distance))
        assert np.array_equal(np.isnan(quad.expected), np.isnan(wide.expected))


def exact_outputs(call):
    """Compute the outputs of a call with 60 digits, including infinities and NaN."""
    outputs = []
    with localcontext(prec=60, traps=[]):
        for group in call.groups:
            elements = zip(*(tensor.flat for tensor in group), strict=True)
            outputs.append([exact_element(call, element) for element in elements])
    return [
        [element[position] for element in group]
        for position in range(len(call.operator.outputs))
        for group in outputs
    ]


def exact_element(call, element):
    single = replace(call, groups=(tuple(np.asarray(number) for number in element),))
    return [
        Decimal(np.asarray(result).item()) for result, _, _ in single.apply(exact, exact, Decimal)
    ]


def exact(number):
    return Decimal(number.item())
