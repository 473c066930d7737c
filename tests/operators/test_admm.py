"""The ADMM operators agree with numbers computed by hand, NumPy's percentile and PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from admm_calls import PRUNING, call_of, calls, deviating
from hypothesis import given
from hypothesis import strategies as st

from onnxopt_cli.core.compare import element_shares
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes
from onnxopt_cli.operators.percentile import percentile
from onnxopt_cli.operators.registry import registry

UPDATE, PRUNE = registry().named("AdmmUpdate"), registry().named("MagnitudePrune")


def pruned(W, percent):
    """Return two lists for a layer with weights W: the pruned weights, and the mask."""
    return [output.tolist() for output in evaluate(call_of("MagnitudePrune", W, percent=percent))]


def updated(W, U, percent):
    zero = np.zeros(len(W), np.float32)
    return [
        output.tolist() for output in evaluate(call_of("AdmmUpdate", W, zero, U, percent=percent))
    ]


def test_penalty_is_half_rho_times_the_squared_norm():
    call = call_of("AdmmPenalty", 0.0, [3, 4], [0, 0], [0, 0], rho=0.01)
    assert evaluate(call)[0] == pytest.approx(0.125)
    assert deviating(call, "norm not squared")[0] == pytest.approx(0.025)
    assert deviating(call, "root of the norm")[0] == pytest.approx(0.005 * math.sqrt(5))


def test_gradient_is_rho_times_the_residual():
    call = call_of("AdmmGradient", [0, 0], [3, 4], [0, 0], [0, 0], rho=0.01)
    assert evaluate(call)[0] == pytest.approx([0.03, 0.04])
    wrong = deviating(call, "gradient of the norm not squared")[0]
    assert wrong == pytest.approx([0.003, 0.004])


def test_penalties_of_all_layers_are_added_to_one_loss():
    layers = [[1, 2], [3.0], [], [0, 0], [1.0], [], [0, 0], [-1.0], []]
    (loss,) = evaluate(call_of("AdmmPenalty", np.float64([[10]]), *layers, rho=2))
    # The residuals of the layers are [1, 2], [1] and [], and are added to the loss 10.
    assert loss == 16
    assert loss.dtype == np.float64
    assert loss.shape == (1, 1)


@given(st.integers(1, 200), st.floats(0, 100, width=32), st.integers(0, 2**32))
def test_without_ties_the_rank_determines_the_number_of_zeros(size, percent, seed):
    W = np.random.default_rng(seed).permutation(size) - size / 2 + 0.25
    W_new, mask = evaluate(call_of("MagnitudePrune", W.astype(np.float64), percent=percent))
    # Ranks next to an integer are excluded: rounding decides whether they are above the integer.
    rank = (size - 1) * np.longdouble(percent) / 100
    if abs(rank - np.rint(rank)) > 1e-12 or percent in (0, 100):
        assert np.count_nonzero(W_new == 0) == math.ceil(rank)
    assert np.array_equal(W_new, W * mask)


@given(st.data())
def test_pruning_agrees_with_the_percentile_of_numpy(data):
    call = data.draw(calls(PRUNE, dtypes=("float64",)))
    percents = call.attributes["percent"] * len(call.groups)
    outputs = evaluate(call)
    for index, (W,) in enumerate(call.groups):
        expected = np.where(np.abs(W) < _numpy_percentile(np.abs(W), percents[index]), 0, W)
        differs = outputs[index] != expected
        # NumPy computes the rank in double, so elements close to the threshold may differ.
        threshold = _numpy_percentile(np.abs(W), percents[index])
        assert np.all(np.abs(np.abs(W[differs]) - threshold) <= 1e-13 * threshold)


@given(st.data())
def test_update_agrees_with_the_published_code(data):
    call = data.draw(calls(UPDATE, dtypes=("float64",)))
    percents = call.attributes["percent"] * len(call.groups)
    outputs, count = evaluate(call), len(call.groups)
    for index, (W, _, U) in enumerate(call.groups):
        z = np.asarray(W + U)
        threshold = _numpy_percentile(np.abs(z), percents[index])
        near = np.abs(np.abs(z) - threshold) <= 1e-13 * threshold
        z[np.abs(z) < threshold] = 0
        Z_new, U_new = outputs[index], outputs[count + index]
        # The sum is rounded to the wide type and then to double, so it may differ by an ulp.
        assert np.array_equal(Z_new[~near] == 0, z[~near] == 0)
        assert np.allclose(Z_new[~near], z[~near], rtol=2.0**-52, atol=0)
        scale = np.max(np.abs(W), initial=0) + np.max(np.abs(U), initial=0)
        assert np.allclose(U_new[~near], (U + W - z)[~near], rtol=0, atol=1e-14 * scale)


@given(st.data())
def test_projection_is_idempotent_and_percent_0_prunes_nothing(data):
    call = data.draw(calls(UPDATE, dtypes=("float64",)))
    zeros = [np.zeros_like(W) for W, _, _ in call.groups]
    percent = list(call.attributes["percent"])
    projected = evaluate(call)[: len(zeros)]
    again = evaluate(call_of("AdmmUpdate", *projected, *zeros, *zeros, percent=percent))
    for first, second in zip(projected, again, strict=False):
        assert np.array_equal(first, second)
    everything = evaluate(call_of("AdmmUpdate", *projected, *zeros, *zeros, percent=0))
    for first, second in zip(projected, everything, strict=False):
        assert np.array_equal(first, second)


def test_element_at_an_integer_rank_is_not_pruned():
    W = [1, 2, 3, 4, 5, 10]
    assert pruned(W, 80)[0] == [0, 0, 0, 0, 5, 10]
    call = call_of("MagnitudePrune", W, percent=80)
    W_new, _mask = deviating(call, "elements equal to the threshold pruned")
    assert W_new.tolist() == [0, 0, 0, 0, 0, 10]


def test_ties_at_the_threshold_are_not_pruned():
    W = [1, 1, 1, 1, 2]
    assert pruned(W, 60) == [W, [1] * 5]
    call = call_of("MagnitudePrune", W, percent=60)
    top_k = deviating(call, "exactly floor(n * percent / 100) pruned")
    assert np.count_nonzero(top_k[0] == 0) == 3


def test_threshold_of_zero_masks_nothing():
    W = [0, 0, 0, 0, 2]
    assert pruned(W, 60) == [W, [1] * 5]
    call = call_of("MagnitudePrune", W, percent=60)
    assert deviating(call, "mask of nonzero elements")[1].tolist() == [0, 0, 0, 0, 1]


def test_percent_100_keeps_the_largest_magnitude():
    assert pruned([1, -5, 3], 100) == [[0, -5, 0], [0, 1, 0]]


def test_single_element_is_not_pruned_and_an_empty_layer_is_valid():
    assert pruned([-3], 100) == [[-3], [1]]
    assert pruned([], 50) == [[], []]
    assert updated([], [], 50) == [[], []]


def test_nan_in_a_layer_prevents_pruning():
    W_new, mask = pruned([math.nan, 1, 2], 60)
    assert W_new[1:] == [1, 2]
    assert mask == [1, 1, 1]
    call = call_of("MagnitudePrune", [math.nan, 1, 2], percent=60)
    assert deviating(call, "mask of elements at or above the threshold")[1].tolist() == [0, 0, 0]


def test_infinite_elements_are_the_largest():
    assert pruned([math.inf, 2, 1], 50) == [[math.inf, 2, 0], [1, 1, 0]]
    assert pruned([math.inf, 2, 1], 60) == [[math.inf, 0, 0], [1, 0, 0]]
    assert pruned([math.inf, -math.inf], 30) == [[math.inf, -math.inf], [1, 1]]


def test_dual_variable_accumulates_the_pruned_part():
    Z_new, U_new = updated([1, -4, 2, 3], [0.5, 0, 0, 0], 50)
    assert Z_new == [0, -4, 0, 3]
    assert U_new == [1.5, 0, 2, 0]
    call = call_of("AdmmUpdate", [1, -4], [7, 7], [0, 0], percent=100)
    assert evaluate(call)[1].tolist() == [1, 0]
    assert deviating(call, "U with the old Z")[1].tolist() == [-6, -11]


def worst_share(call, place, output):
    """Return the largest error / tolerance in an output of a call."""
    derived_output = bound(call)[place]
    return element_shares(derived_output.expected, output, derived_output.error_bound).max()


def test_residual_may_use_the_rounded_z():
    W = np.array([0.1, -0.4, 2.3, 1e44])
    call = call_of("AdmmUpdate", W, np.zeros(4, np.float32), np.zeros(4), percent=50)
    with np.errstate(over="ignore"):
        stored = np.where(np.abs(W) < np.median(np.abs(W)), 0, W).astype(np.float32)
        assert worst_share(call, 1, W - stored) <= 1
    assert worst_share(call, 1, np.array([0.1, -0.4, 0, 0])) <= 1
    assert worst_share(call, 1, np.array([0.1, -0.4, 2.3e-6, 0])) > 1
    assert worst_share(call, 1, np.array([0.1 + 1e-9, -0.4, 0, 0])) > 1


def test_residual_may_be_summed_in_any_order():
    W, U = np.float32([2, -3]), np.float32([1e-12, 1e-12])
    gradient = call_of("AdmmGradient", np.zeros(2, np.float32), W, W, U, rho=0.5)
    for residual in (W - W + U, W + U - W, U - W + W):
        assert worst_share(gradient, 0, 0.5 * residual) <= 1
    assert worst_share(gradient, 0, np.float32([0, -1e-6])) > 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("percentile of signed values", [1, -6, 2, 0]),
        ("percent taken as a fraction", [1, -6, 2, 0]),
        ("percent multiplied by 100", [0, -6, 0, 0]),
        ("elements equal to the threshold pruned", [0, -6, 2, 0]),
        ("signed values compared", [0, 0, 2, 0]),
        ("exactly floor(n * percent / 100) pruned", [0, -6, 2, 0]),
    ],
)
def test_known_mistakes_of_the_projection_prune_other_elements(name, expected):
    call = call_of("MagnitudePrune", [1, -6, 2, 0.5], percent=50)
    assert evaluate(call)[0].tolist() == [0, -6, 2, 0]
    assert deviating(call, name)[0].tolist() == expected


def test_each_layer_has_its_own_threshold():
    layers = [[1, 2, 3], [10, 20, 30]]
    call = call_of("MagnitudePrune", *layers, percent=50)
    assert [output.tolist() for output in evaluate(call)[:2]] == [[0, 2, 3], [0, 20, 30]]
    together = deviating(call, "several tensors computed as one")
    assert [output.tolist() for output in together[:2]] == [[0, 0, 0], [10, 20, 30]]


def test_mask_depends_on_w_and_not_on_w_plus_u():
    W, U = np.float32([1, -4, 2]), np.float32([5, 3, 0])
    mask, other = (
        evaluate(call_of("MagnitudePrune", layer, percent=50))[1].tolist() for layer in (W, W + U)
    )
    assert mask == [0, 1, 1]
    assert other == [1, 0, 1]


def test_percent_has_one_value_for_all_layers_or_one_for_each_layer():
    layers = [[1, 2, 3], [10, 20, 30]]
    first = evaluate(call_of("MagnitudePrune", *layers, percent=[0, 100]))
    assert [output.tolist() for output in first[:2]] == [[1, 2, 3], [0, 0, 30]]
    with pytest.raises(NodeError, match="percent has 3 numbers; expected one for all tensors, or"):
        call_of("MagnitudePrune", *layers, percent=[1, 2, 3])


@pytest.mark.parametrize("percent", [-0.5, 100.5, math.nan, math.inf])
def test_percents_out_of_range_are_rejected(percent):
    with pytest.raises(NodeError, match="it must lie between 0 and 100"):
        call_of("MagnitudePrune", [1, 2], percent=percent)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.floats(0, 100),
)
def test_percentiles_of_finite_numbers_are_those_of_numpy(values, percent):
    array = np.array(values)
    assert percentile(array, percent) == pytest.approx(
        np.percentile(array, percent), rel=1e-9, abs=1e-9
    )


def test_percentiles_at_integer_ranks_beside_infinity_are_finite():
    array = np.array([1, 2, math.inf])
    assert percentile(array, 50) == 2
    assert percentile(array, 100) == math.inf
    assert percentile(array, 75) == math.inf
    with pytest.raises(ValueError, match="from 0 to 100"):
        percentile(array, 101)


def test_defects_of_the_published_code_are_known_mistakes():
    named = {
        item.name for operator in PRUNING for item in all_known_mistakes(operator) if item.seen_in
    }
    assert {"norm not squared", "gradient of the norm not squared"} <= named


def test_results_of_torch_agree():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(3)
    W, Z, U = random.normal(size=(3, 101)).astype(np.float32)
    total = torch.from_numpy(W) + torch.from_numpy(U)
    threshold = torch.quantile(total.abs(), 0.5)
    expected = torch.where(total.abs() < threshold, torch.zeros_like(total), total)
    Z_new, _ = evaluate(call_of("AdmmUpdate", W, Z, U, percent=50))
    assert np.array_equal(Z_new, expected.numpy())
    weights = torch.from_numpy(W).requires_grad_()
    penalty = 0.3 / 2 * ((weights - torch.from_numpy(Z) + torch.from_numpy(U)) ** 2).sum()
    penalty.backward()
    (loss,) = evaluate(call_of("AdmmPenalty", 0.0, W, Z, U, rho=0.3))
    (G_new,) = evaluate(call_of("AdmmGradient", np.zeros_like(W), W, Z, U, rho=0.3))
    assert loss == pytest.approx(penalty.item(), rel=1e-5)
    assert np.allclose(G_new, weights.grad.numpy(), rtol=1e-5, atol=1e-7)


def _numpy_percentile(values, percent):
    return np.percentile(values, percent) if values.size else math.nan
