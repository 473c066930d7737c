"""Reformulations of normalizations pass for all ratios of mean and standard deviation."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from normalizing_reformulations import (
    APPLICATIONS,
    SEQUENTIAL_STATISTICS,
    STATISTICS,
    F,
    merged,
    one_pass,
    two_pass,
    vectorized_sum,
    welford,
)
from onnx import helper

from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.oracle.estimate.condition_estimate import condition

# Each entry has an operator, its version and its attributes.
OPERATORS = {
    "instance": ("InstanceNormalization", 22, {}),
    "batch": ("BatchNormalization", 15, {"training_mode": 1}),
    "mean and variance": ("MeanVarianceNormalization", 13, {"axes": [0, 2]}),
    "layer": ("LayerNormalization", 17, {}),
    "group": ("GroupNormalization", 21, {"num_groups": 2}),
    "group, a scale per group": ("GroupNormalization", 18, {"num_groups": 2}),
}
EPSILON = 1e-5
# The published body of MeanVarianceNormalization adds this number to the standard deviation.
MVN_EPSILON = 1e-9


class Case:
    """A normalization of random numbers, with its expected outputs.

    The argument ``ratio`` is the mean divided by the standard deviation.
    """

    def __init__(
        self, kind, ratio, shape, dtype=np.float32, seed=0, affine=True, arrange=np.asarray
    ):
        self.kind, self.shape = kind, shape
        random = np.random.default_rng(seed)
        self.x = (arrange(random.standard_normal(shape)) + ratio).astype(dtype)
        operator, opset, attributes = OPERATORS[kind]
        affine = affine and kind != "mean and variance"
        count = {"layer": shape[2], "group, a scale per group": 2}.get(kind, shape[1])
        self.scale = (random.uniform(0.5, 2, count) if affine else np.ones(count)).astype(dtype)
        self.bias = (random.standard_normal(count) * affine).astype(dtype)
        inputs = {"x": self.x}
        if kind != "mean and variance":
            inputs |= {"scale": self.scale, "bias": self.bias}
        if kind == "batch":
            inputs |= {name: np.ones(count, dtype) for name in ("mean", "var")}
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        outputs = ["y", "m", "v"][: 3 if kind == "batch" else 1]
        graph = helper.make_graph(
            [helper.make_node(operator, list(inputs), outputs, **attributes)],
            "g",
            [helper.make_tensor_value_info(name, element, v.shape) for name, v in inputs.items()],
            [helper.make_tensor_value_info(name, element, None) for name in outputs],
        )
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        branch = None
        for expected, limit in reversed(condition(model, inputs)[0].right):
            branch = Branch(expected, limit, branch)
        self.branch = branch

    def computed(self, statistics, application):
        """Normalize in float32, and round the result to the type of the input."""
        x, (batches, channels, length) = self.x.astype(F), self.shape
        scale, bias = self.scale.astype(F), self.bias.astype(F)
        across = self.kind in ("batch", "mean and variance")
        groups = 2 if self.kind.startswith("group") else channels
        if across:
            rows = x.transpose(1, 0, 2).reshape(channels, -1)
        else:
            rows = x.reshape(batches * groups, -1)
        mean, variance = statistics(rows)
        if self.kind == "mean and variance":
            variance = (np.sqrt(variance) + F(MVN_EPSILON)) ** 2
        else:
            variance = variance + F(EPSILON)
        if across:
            mean, variance = (array.reshape(1, channels, 1) for array in (mean, variance))
        else:
            repeats = channels // groups
            mean, variance = (
                np.repeat(array.reshape(batches, groups, 1), repeats, 1)
                for array in (mean, variance)
            )
        if self.kind == "layer":
            shape = (1, 1, length)
        else:
            shape = (1, channels, 1)
            scale, bias = (np.repeat(v, channels // v.size) for v in (scale, bias))
        scale, bias = scale.reshape(shape), bias.reshape(shape)
        return application(x, mean, variance, scale, bias).astype(self.x.dtype)

    def reformulations(self, algorithms=STATISTICS):
        for name, statistics in algorithms.items():
            for application_name, application in APPLICATIONS.items():
                yield f"{name}, {application_name}", self.computed(statistics, application)

    def error(self, value):
        difference = value.astype(np.float64) - self.branch.expected.astype(np.float64)
        return float(np.abs(difference).max())


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("ratio", [0, 0.7, 30, 1e4, 1e6])
@pytest.mark.parametrize("length", [2, pytest.param(3, marks=pytest.mark.slow), 33])
def test_reformulations_pass_at_any_ratio(kind, ratio, length):
    for affine in (True, False):
        case = Case(kind, ratio, (2, 4, length), seed=length, affine=affine)
        for name, value in case.reformulations():
            assert not case.branch.wrong(value).any(), name


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("length", [2, 4, 7])
@pytest.mark.parametrize("ratio", [5.6e5, 1e7])
def test_reformulations_pass_if_elements_differ_by_an_ulp(kind, length, ratio):
    for seed in range(2):
        case = Case(kind, ratio, (1, 2, length), seed=seed)
        for name, value in case.reformulations():
            assert not case.branch.wrong(value).any(), name
        not_a_number = np.full(case.x.shape, np.nan, F)
        assert case.branch.wrong(not_a_number).all()


def with_outlier(x):
    """Set the first element of each row to an outlier."""
    x[..., 0] = 25
    return x


def growing(x):
    return np.sort(x)


def equal_steps(x):
    return np.broadcast_to(np.linspace(-1, 1, x.shape[-1]), x.shape)


@pytest.mark.parametrize("kind", ["layer", "group", "batch"])
@pytest.mark.parametrize("arrange", [with_outlier, growing, equal_steps])
@pytest.mark.parametrize("ratio", [0, 100, 3e5])
def test_sequential_statistics_pass_if_their_roundings_add_up(kind, arrange, ratio):
    case = Case(kind, ratio, (1, 4, 700), affine=False, arrange=arrange)
    for name, value in case.reformulations(SEQUENTIAL_STATISTICS):
        assert not case.branch.wrong(value).any(), name


def test_recurrence_over_many_elements_passes():
    case = Case("layer", 1000, (1, 1, 9000), affine=False, arrange=growing)
    value = case.computed(welford, APPLICATIONS["quotient"])
    assert not case.branch.wrong(value).any()
    largest = case.error(value)
    assert case.branch.wrong(case.branch.expected + F(10 * largest)).mean() > 0.95


def with_isolated_outlier(x):
    """Return rows of zeros with an outlier in the second half."""
    rows = np.zeros(x.shape)
    rows[..., 1224] = 2.5
    return rows


@pytest.mark.parametrize("kind", OPERATORS)
def test_merged_recurrences_pass_if_updates_are_lost(kind):
    """If an outlier changes the mean late in a block, later updates are too small to restore it."""
    case = Case(kind, 1000, (1, 2, 2048), affine=False, arrange=with_isolated_outlier)
    value = case.computed(partial(merged, length=1024), APPLICATIONS["quotient"])
    assert not case.branch.wrong(value).any()
    outliers = case.branch.expected[..., 1224]
    assert (np.abs(value[..., 1224] - outliers) > 0.001 * outliers).all()
    assert case.branch.wrong(case.branch.expected / 2)[..., 1224].all()


def check_running_statistics(x, statistics):
    """Check that the running statistics of a batch normalization with one channel pass."""
    ones = [np.ones(1, F)] * 2 + [np.zeros(1, F)] * 2
    names = ["x", "scale", "bias", "mean", "var"]
    infos = [helper.make_tensor_value_info(name, 1, None) for name in (*names, "y", "m", "v")]
    node = helper.make_node("BatchNormalization", names, ["y", "m", "v"], training_mode=1)
    graph = helper.make_graph([node], "g", infos[:5], infos[5:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10)
    conditioned_outputs = condition(model, dict(zip(names, [x, *ones], strict=True)))
    for output, statistic in zip(
        conditioned_outputs[1:], statistics(x.reshape(1, -1)), strict=True
    ):
        expected, limit = output.right[0]
        running = F(0.1) * statistic.ravel()
        assert (np.abs(running - expected.astype(np.float64)) <= limit).all()


def test_running_statistics_by_partial_sums_pass_if_their_roundings_add_up():
    # The elements are near 1e5. Almost every addition to one of the eight partial sums rounds down.
    x = np.random.default_rng(3).standard_normal((1, 1, 100_000)).astype(F) + F(1e5)
    check_running_statistics(x, two_pass(vectorized_sum))


def test_running_variance_by_merged_recurrences_passes_after_a_step():
    x = 1000 + 1e-3 * np.random.default_rng(21).standard_normal((1, 1, 512))
    x[..., 170:] += 1
    check_running_statistics(x.astype(F), partial(merged, length=128))


def test_running_variance_of_a_wave_by_merged_recurrences_passes():
    x = 1e4 + np.sin(0.01 * np.arange(4096)).reshape(1, 1, -1)
    check_running_statistics(x.astype(F), partial(merged, length=1024))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_statistics_of_16_bit_layers_are_float32(dtype):
    x = np.array([[1, 2, 5]], dtype)
    node = helper.make_node("LayerNormalization", ["x", "x"], ["y", "mean", "inverse"])
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    declared = [helper.make_tensor_value_info("x", element, x.shape)]
    results = [helper.make_tensor_value_info(name, 0, None) for name in node.output]
    model = helper.make_model(
        helper.make_graph([node], "g", declared, results),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    _, mean, inverse = [output.right[0][0] for output in condition(model, {"x": x})]
    np.testing.assert_array_equal(mean, F([[8 / 3]]), strict=True)
    np.testing.assert_allclose(inverse, F([[(26 / 9 + 1e-5) ** -0.5]]), rtol=1e-6, strict=True)


def test_errors_of_sequential_statistics_fail_in_ordinary_rows():
    case = Case("layer", 0, (1, 4, 700), affine=False)
    assert case.branch.wrong(case.branch.expected * F(1 + 1e-5)).mean() > 0.8


ratios = st.floats(-1, 7).map(lambda exponent: 10**exponent) | st.just(0.0)
shapes = st.tuples(st.integers(1, 3), st.sampled_from([2, 4, 6]), st.integers(2, 300))


@pytest.mark.slow
@given(st.sampled_from(sorted(OPERATORS)), ratios, shapes, st.integers(0, 2**31), st.booleans())
def test_reformulations_of_any_shape_pass_at_any_ratio(kind, ratio, shape, seed, affine):
    case = Case(kind, ratio, shape, seed=seed, affine=affine)
    for name, value in case.reformulations():
        assert not case.branch.wrong(value).any(), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("ratio", [0.3, 1e4, 1e6])
def test_reformulations_of_long_rows_pass(kind, ratio):
    case = Case(kind, ratio, (2, 4, 2000))
    for name, value in case.reformulations():
        assert not case.branch.wrong(value).any(), name


@pytest.mark.parametrize("ratio", [170, pytest.param(1.3e4, marks=pytest.mark.slow), 7.7e5])
def test_ten_times_the_largest_error_of_reformulations_fails(ratio):
    shares = []
    for kind in OPERATORS:
        for length in (16, 60, 500):
            case = Case(kind, ratio, (2, 4, length))
            largest = max(case.error(value) for _, value in case.reformulations())
            expected = case.branch.expected.astype(np.float64)
            shares += [case.branch.wrong(expected + sign * 10 * largest).mean() for sign in (1, -1)]
    assert np.mean(shares) >= 0.95


def test_ten_times_the_error_of_a_very_inaccurate_mean_fails():
    """The error of a sequential sum of large elements exceeds their standard deviation."""
    case = Case("layer", 1e5, (1, 1, 20_000))
    sequential = STATISTICS["two passes, sequential sums"]
    largest = case.error(case.computed(sequential, APPLICATIONS["quotient"]))
    expected = case.branch.expected.astype(np.float64)
    shares = [case.branch.wrong(expected + sign * 10 * largest).mean() for sign in (1, -1)]
    assert np.mean(shares) >= 0.95


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("ratio", [1000, 1e4, 1e5])
def test_one_pass_variance_fails_where_it_cancels(kind, ratio):
    case = Case(kind, ratio, (2, 4, 64))
    with np.errstate(invalid="ignore", divide="ignore"):
        value = case.computed(one_pass, APPLICATIONS["quotient"])
    assert case.branch.wrong(value).mean() > 0.5


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize(("dtype", "ratio"), [(np.float16, 300), (ml_dtypes.bfloat16, 20)])
@pytest.mark.parametrize("length", [5, 100])
def test_16_bit_reformulations_in_float32_pass_and_large_errors_fail(kind, dtype, ratio, length):
    case = Case(kind, ratio, (2, 4, length), dtype)
    values = dict(case.reformulations())
    for name, value in values.items():
        assert not case.branch.wrong(value).any(), name
    expected = case.branch.expected.astype(np.float64)
    for wrong in (-expected, expected / 2, np.full(expected.shape, np.nan)):
        assert case.branch.wrong(wrong.astype(dtype)).mean() > 0.9
    # If there are few elements, all errors may be zero, so at least half a rounding is assumed.
    least = float(ml_dtypes.finfo(dtype).eps) * np.abs(expected).max() / 2
    largest = max(least, *map(case.error, values.values()))
    assert case.branch.wrong(expected + 10 * largest).mean() >= 0.95


def by_given_statistics(dtype, ratio):
    """Return the operands of a BatchNormalization.

    Args:
        ratio: approximately the mean divided by the standard deviation.
    """
    random = np.random.default_rng(39)
    mean = ratio * (1 + random.random(6))
    x = mean[:, None] + random.standard_normal((2, 6, 150))
    operands = [x, 0.5 + random.random(6), random.standard_normal(6), mean, 0.2 + random.random(6)]
    return [operand.astype(dtype) for operand in operands]


def shares_of_given_statistics(operands, value):
    """Return error / tolerance of the elements of a BatchNormalization with given statistics."""
    names = ["x", "scale", "bias", "mean", "variance"]
    kind = helper.np_dtype_to_tensor_dtype(operands[0].dtype)
    infos = [
        helper.make_tensor_value_info(name, kind, operand.shape)
        for name, operand in zip(names, operands, strict=True)
    ]
    node = helper.make_node("BatchNormalization", names, ["y"])
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", kind, None)])
    imports = [helper.make_opsetid("", 15)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    (output,) = condition(model, dict(zip(names, operands, strict=True)))
    expected, limit = output.right[0]
    return np.abs(value.astype(float) - expected.astype(float)) / limit


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("ratio", [0, 10, 300])
def test_given_statistics_are_applied_in_float32(dtype, ratio):
    """Results pass whether or not the mean is folded; ten times their largest error fails."""
    operands = by_given_statistics(dtype, ratio)
    x, *parameters = (operand.astype(F) for operand in operands)
    scale, bias, mean, variance = (parameter[:, None] for parameter in parameters)
    factor = scale / np.sqrt(variance + F(EPSILON))
    exact = (x.astype(float) - mean) * scale / np.sqrt(variance.astype(float) + EPSILON) + bias
    forms = [x * factor + (bias - mean * factor), (x - mean) * factor + bias]
    results = [form.astype(dtype) for form in forms]
    largest = max(np.abs(result.astype(float) - exact).max() for result in results)
    for result in results:
        assert shares_of_given_statistics(operands, result).max() <= 1
    wrong = (exact + 10 * largest).astype(dtype)
    assert (shares_of_given_statistics(operands, wrong) > 1).mean() >= 0.95
