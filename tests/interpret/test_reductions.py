"""Thresholds between two elements, and comparisons whose result may depend on rounding."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry


def pruned(weights, percent, dtype=np.float32):
    operator = registry().named("MagnitudePrune")
    attributes = complete_attributes(operator, {"percent": (percent,)})
    return bound(bind(operator, [np.asarray(weights, dtype)], attributes))[0]


def test_element_at_a_threshold_rounded_in_float32_may_be_kept():
    above_one = np.nextafter(np.float32(1), np.float32(2))
    derived_output = pruned([above_one, 69, 1], 25.0)
    assert derived_output.expected.tolist() == [above_one, 69, 0]
    assert derived_output.otherwise is not None
    assert derived_output.otherwise.expected[2] == 1


def test_threshold_between_equal_elements_is_exact_at_any_rank():
    assert pruned([1, 1, 69], 33.3).otherwise is None


# The ways in which implementations interpolate between two neighbours.
INTERPOLATIONS = {
    "from the lower neighbour": lambda a, b, fraction: a + (b - a) * fraction,
    "from the upper neighbour": lambda a, b, fraction: b - (b - a) * (1 - fraction),
    "weighted mean": lambda a, b, fraction: a * (1 - fraction) + b * fraction,
    "from the nearer neighbour": lambda a, b, fraction: (
        a + (b - a) * fraction if fraction < 0.5 else b - (b - a) * (1 - fraction)
    ),
}


@pytest.mark.parametrize("form", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_thresholds_may_be_interpolated_in_any_form(form, dtype):
    random = np.random.default_rng(7)
    whole_percents = np.float32([25, 50, 75])
    near_whole = [
        *np.nextafter(whole_percents, np.float32(100)),
        *np.nextafter(whole_percents, np.float32(0)),
    ]
    for _ in range(100):
        size = int(random.choice([2, 3, 5, 9]))
        weights = (random.normal(size=size) * 10.0 ** random.integers(-30, 30, size)).astype(dtype)
        percent = np.float32(
            random.choice([random.uniform(0, 100), 1e-30, 1e-5, 99.999, *near_whole])
        )
        derived_output = pruned(weights, float(percent), dtype)
        ordered = np.sort(np.abs(weights))
        rank = dtype((size - 1) * (dtype(percent) / dtype(100)))
        low = int(rank)
        threshold = ordered[low]
        if low < rank:
            threshold = INTERPOLATIONS[form](threshold, ordered[low + 1], dtype(rank - low))
        pruned_weights = np.where(np.abs(weights) < threshold, 0, weights)
        accepted = pruned_weights == derived_output.expected
        if derived_output.otherwise is not None:
            accepted |= pruned_weights == derived_output.otherwise.expected
        assert accepted.all(), (weights, percent, threshold)
