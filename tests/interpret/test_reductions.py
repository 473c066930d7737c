"""Undecided comparisons with thresholds that lie between two elements."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry


def pruned(weights, percent):
    operator = registry().named("MagnitudePrune")
    attributes = complete_attributes(operator, {"percent": (percent,)})
    return bound(bind(operator, [np.asarray(weights, np.float32)], attributes))[0]


def test_a_threshold_that_float32_rounds_to_an_element_may_keep_that_element():
    above_one = np.nextafter(np.float32(1), np.float32(2))
    derived_output = pruned([above_one, 69, 1], 25.0)
    assert derived_output.expected.tolist() == [above_one, 69, 0]
    assert derived_output.otherwise is not None
    assert derived_output.otherwise.expected[2] == 1


def test_a_threshold_between_equal_elements_is_exact_at_any_rank():
    assert pruned([1, 1, 69], 33.3).otherwise is None
