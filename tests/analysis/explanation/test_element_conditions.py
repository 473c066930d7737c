"""Conditions that describe wrong elements, for operators without a formula."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from onnxopt_cli.analysis.explanation.element_conditions import ElementConditions
from onnxopt_cli.analysis.explanation.element_features import element_features, wrong_content
from onnxopt_cli.analysis.explanation.explain import SearchClock
from onnxopt_cli.analysis.explanation.explain_nodes import _NodeSearch
from onnxopt_cli.analysis.explanation.node_examination import SearchLimit
from onnxopt_cli.analysis.explanation.node_samples import JudgedOutputs, NodeSample
from onnxopt_cli.analysis.explanation.node_traits import Trait
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.oracle.evaluator import native_outputs

ABS = "float[N, M] X => float[N, M] Y", "Abs (X)"
SIGNS = "float[N, M] X => float[N, M] Y", "Sign (X)"
PADDED = "float[N, M] X, int64[4] pads => float[K, L] Y", "Pad (X, pads)"
POOLED = (
    "float[1, 1, N, M] X => float[1, 1, K, L] Y",
    "AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (X)",
)
MAXIMA = "float[N, M] X => float[N, 1] Y", "ReduceMax <axes = [1]> (X)"


LARGEST_SMALL = 35
SMALL_TRAIT = Trait("X is small", 1.0, is_parameter=True)


def drawn(seed, shape):
    """Draw random floats in which some elements are NaN and some are 2.5."""
    random = np.random.default_rng(seed)
    x = random.normal(size=shape).astype(np.float32)
    x[random.random(shape) < 0.15] = np.nan
    x[random.random(shape) < 0.15] = 2.5
    return x


def node(signature, number, change, cases=6):
    """Return one node as a sample that contains the output of a wrong backend.

    Args:
        signature: a pair: the declared inputs and output, and the call of the operator.
        number: the seed of the inputs.
        change: computes the wrong output from the input and the right output.
        cases: a node whose ``number`` is below this limit is a case; all others are generated.
    """
    values, call = signature
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 13]> graph ({values.split(" => ")[0]}) '
        f"=> ({values.split(' => ')[1]}) {{ Y = {call} }}"
    )
    shape = (number % 3 + 5, number % 4 + 5)
    inputs = {"X": drawn(number, (1, 1, *shape) if "Pool" in call else shape)}
    if "pads" in call.split("(")[1]:
        inputs["pads"] = np.array([number % 2, 1, 0, number % 3], np.int64)
    (right,) = native_outputs(model, inputs)
    returned = change(inputs["X"], right.copy())
    wrong = None
    if returned.shape == right.shape:
        wrong = ~((returned == right) | (np.isnan(returned) & np.isnan(right)))
    failed = wrong is None or bool(wrong.any())
    sample = NodeSample(
        f"case {number}" if number < cases else "", model, inputs, None, None, failed
    )
    sample.outputs = JudgedOutputs([right], [wrong] if failed else [])
    sample.traits = frozenset({SMALL_TRAIT} if inputs["X"].size <= LARGEST_SMALL else {})
    sample.returned = [returned] if failed else None
    sample.is_independent = number >= cases
    return sample


def proven(signature, change, count=40, cases=6, output="", independent=100):
    """Return the text of the best condition that new nodes confirm; "" if none is confirmed."""
    samples = [node(signature, number, change, cases) for number in range(count)]
    for sample in samples[cases + independent :]:
        sample.is_independent = False
    conditions = ElementConditions(samples, [each for each in samples if each.failed], 0)
    for condition in conditions.ranked()[:4]:
        if conditions.is_proven(condition, samples[10:]):
            return conditions.text(condition, output)
    return ""


def at_odd_columns(_x, y):
    y[:, 1::2] = -1
    return y


def where_half(x, y):
    return np.where(x == 2.5, np.float32(3), y)


def nan_as_zero(x, y):
    return np.where(np.isnan(x), np.float32(0), y)


def negative_beyond_half(x, y):
    return np.where(x < -0.5, -y, y)


def border_as_one(x, y):
    begin = y.shape[0] - x.shape[0]
    inner = np.pad(np.ones(x.shape, bool), ((begin, 0), (1, y.shape[1] - x.shape[1] - 1)))
    return np.where(inner, y, np.float32(1))


def border_divided(_x, y):
    y[..., 0, :], y[..., -1, :], y[..., :, 0], y[..., :, -1] = 7, 7, 7, 7
    return y


def without_nan(x, y):
    return np.where(np.isnan(y), np.float32(-9), y)


def exchanged(_x, y):
    return y[::-1, ::-1].copy()


def nan_as_zero_in_some(x, y):
    return nan_as_zero(x, y) if int(np.nansum(np.abs(x)) * 1000) % 3 else y


def nan_as_zero_and_others(x, y):
    y = nan_as_zero(x, y)
    number = int(np.nansum(np.abs(x)) * 1000)
    if number % 3:
        y.flat[number % y.size] = -3
    return y


def moved(_x, y):
    y[1:, 0] = y[:-1, 0]
    return y


def first_of_small(x, y):
    if x.size <= LARGEST_SMALL and not np.isnan(x.flat[0]):
        y.flat[int(abs(x.flat[0]) * 1000) % y.size] = -9
    return y


def odd_in_small(x, y):
    return at_odd_columns(x, y) if x.size <= LARGEST_SMALL else y


def odd_in_small_and_others(x, y):
    if x.size > LARGEST_SMALL:
        y.flat[int(np.nansum(np.abs(x)) * 1000) % y.size] = -9
    return odd_in_small(x, y)


def squeezed(_x, y):
    return y.reshape(-1)


def without_a_row(x, y):
    return np.delete(y, [x.shape[1] % 3, 3], 0)


def negated_and_rounded(x, y):
    return np.where(y > 1, -y * np.float32(1.000001), y)


def imprecise(x, y):
    return np.where(x > 1, y * np.float32(1.000003), y)


def of_fewer_rows(_x, y):
    return y[2:] + 1


@pytest.mark.parametrize(
    ("signature", "change", "text"),
    [
        (ABS, at_odd_columns, "wherever the index along the last axis is odd"),
        (ABS, where_half, "wherever the element of X is halfway between integers"),
        (ABS, nan_as_zero, "wherever the element of X is NaN; they are 0"),
        (ABS, negative_beyond_half, "only where the element of X is less than -0.497372031"),
        (PADDED, border_as_one, "wherever the element is in the border; they are 1"),
        (POOLED, border_divided, "wherever the window leaves the input"),
        (MAXIMA, without_nan, "the elements of data along the axis include a NaN"),
        (ABS, exchanged, "a wrong output has the right elements in another order"),
        (ABS, nan_as_zero_and_others, "wherever the element of X is NaN ("),
        (ABS, moved, "they are the right values of the preceding index along the first axis"),
        (ABS, squeezed, "a wrong output has a single axis"),
        (ABS, negated_and_rounded, "they are the right values with the opposite sign"),
        (ABS, without_a_row, "has the right values without some indices of the first axis"),
        (ABS, of_fewer_rows, "a wrong output has a first axis that is too short"),
    ],
)  # fmt: skip
def test_condition_on_wrong_elements_is_found(signature, change, text):
    assert text in proven(signature, change)


def test_imprecise_positive_values_have_not_lost_their_signs():
    text = proven(ABS, imprecise)
    assert "the element of X is more than" in text
    assert "signs" not in text


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
@pytest.mark.parametrize("factor", [0, 1.5, 3, -0.5])
def test_multiples_are_distinguished_in_types_of_few_digits(name, factor):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 19]> g (float[4] X) => (float[4] Y) { Y = Abs (X) }'
    )
    features = element_features(BoundNode.of(model, {"X": np.ones(4, np.float32)}), np.ones(4))
    right = np.array([1, 2, 4, -8], getattr(ml_dtypes, name))
    returned = (right.astype(np.float32) * factor).astype(right.dtype)
    contents = wrong_content(features, right, returned, np.ones(4, bool))
    assert not any("the right values" in content for content in contents)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize(
    ("error", "expected"),
    [(1, {"are too large", "are too large by 1", "are 1 away from the right values"}),
     (-3, {"are too small"})],
)  # fmt: skip
def test_integers_that_doubles_cannot_represent_are_compared_exactly(dtype, error, expected):
    right = np.arange(4, dtype=dtype) + dtype((1 << 62) + 1)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 19]> g (int64[4] X) => (int64[4] Y) { Y = Abs (X) }'
    )
    features = element_features(BoundNode.of(model, {"X": np.zeros(4, np.int64)}), right)
    returned = (right.astype(object) + error).astype(dtype)
    assert wrong_content(features, right, returned, np.ones(4, bool)) == expected


def test_nodes_with_equal_inputs_do_not_prove_a_condition():
    def with_the_same_input(x, y):
        return nan_as_zero(x, y) if x.size == 49 else y

    samples = [node(ABS, 2, with_the_same_input)] * 40
    conditions = ElementConditions(samples, samples, 0)
    assert conditions.ranked()
    assert not any(conditions.is_proven(each, samples[1:]) for each in conditions.ranked())


def test_condition_requires_enough_evidence():
    statement = "wherever the index along the last axis is odd"
    assert statement in proven(ABS, at_odd_columns, count=40)
    assert statement not in proven(ABS, at_odd_columns, count=20)


def test_condition_names_a_trait_only_if_other_nodes_are_right():
    statement = "the index along the last axis is odd, in nodes in which X is small"
    assert statement in proven(ABS, odd_in_small, count=90)
    assert statement not in proven(ABS, odd_in_small_and_others, count=90)


@pytest.mark.parametrize("is_parameter", [True, False])
def test_content_of_outputs_is_stated_only_for_parameter_traits(monkeypatch, is_parameter):
    def squeezed_if_small(x, y):
        return y.reshape(-1) if x.size <= LARGEST_SMALL else np.where(y > 1, -y, y)

    monkeypatch.setitem(globals(), "SMALL_TRAIT", replace(SMALL_TRAIT, is_parameter=is_parameter))
    samples = [node(ABS, number, squeezed_if_small) for number in range(90)]
    ranked = ElementConditions(samples, [each for each in samples if each.failed], 0).ranked()
    stated = [each.content for each in ranked if each.trait and not each.parts]
    assert stated == ["has a single axis"] * is_parameter


def test_another_order_is_not_stated_if_outputs_have_few_distinct_values():
    assert "in another order" not in proven(SIGNS, exchanged)


@pytest.mark.parametrize("distinct", [True, False])
def test_nodes_with_equal_texts_do_not_prove_a_condition(distinct):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> graph (string[N] X) => (string[N] Y) '
        "{ Y = Identity (X) }"
    )
    wrong = np.arange(8) % 2 == 1
    samples = []
    for number in range(40):
        texts = [str(number * distinct * 1000 + index) for index in range(wrong.size)]
        right = np.array(texts, object)
        case, returned = f"case {number}" if number < 6 else "", np.where(wrong, "", right)
        sample = NodeSample(case, model, {"X": right}, None, [returned], failed=True)
        sample.outputs = JudgedOutputs([right], [wrong])
        sample.is_independent = True
        samples.append(sample)
    conditions = ElementConditions(samples, samples, 0)
    ranked = conditions.ranked()
    assert ranked
    assert distinct == any(conditions.is_proven(each, samples[6:]) for each in ranked)


@pytest.mark.parametrize(
    ("call", "output", "named"),
    [
        ("Softmax <axis = 0> (X)", (4, 3), True),
        ("ArgMax <axis = 0, keepdims = 0> (X)", (3,), False),
    ],
)
def test_axis_that_the_attribute_names_is_an_axis_of_the_output(call, output, named):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> graph (float[4, 3] X) => (float[N] Y) '
        f"{{ Y = {call} }}"
    )
    bound = BoundNode.of(model, {"X": drawn(0, (4, 3))})
    flags = element_features(bound, np.zeros(output, np.float32)).flags
    assert "the index along the first axis is 0" in flags
    assert named == ("the index along the axis that the attribute names is 0" in flags)


def test_elements_along_an_axis_are_not_described_if_the_node_inserts_axes():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> graph (float[3, 3] X, int64[3, 3] I) => '
        "(float[3, 3, 3] Y) { Y = Gather <axis = 1> (X, I) }"
    )
    operands = {"X": drawn(0, (3, 3)), "I": np.zeros((3, 3), np.int64)}
    flags = element_features(BoundNode.of(model, operands), np.zeros((3, 3, 3), np.float32)).flags
    assert not [text for text in flags if "along the axis" in text]


def test_elements_after_the_last_full_block_are_described():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> g (float[2, 5] X) => (float[2, 5] Y) '
        "{ Y = Abs (X) }"
    )
    x = drawn(0, (2, 5))
    flags = element_features(BoundNode.of(model, {"X": x}), x).flags
    places = {
        block: np.flatnonzero(flags[text]).tolist()
        for block in (4, 8, 16)
        if (text := f"the element is among the last n mod {block} of n elements") in flags
    }
    assert places == {4: [8, 9], 8: [8, 9]}


def test_large_integers_are_compared_exactly():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> graph (int64[1] A, int64[1] B) => (bool[1] Y) '
        "{ Y = Less (A, B) }"
    )
    operands = {"A": np.array([1 << 60]), "B": np.array([(1 << 60) + 1])}
    flags = element_features(BoundNode.of(model, operands), np.array([True])).flags
    assert flags["the element of A is below that of B"].all()


def test_axis_that_is_named_twice_is_reduced_once():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> graph (float[4, 3] X) => (float[4, 1] Y) '
        "{ Y = ReduceMax <axes = [1, -1]> (X) }"
    )
    bound = BoundNode.of(model, {"X": drawn(0, (4, 3))})
    flags = element_features(bound, np.zeros((4, 1), np.float32)).flags
    assert "the elements of data along the axis are all negative" in flags


def test_features_of_many_inputs_need_little_memory():
    names = [f"x{number}" for number in range(100)]
    x = drawn(0, (50, 20))
    declared = ", ".join(f"float[50, 20] {name}" for name in names)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 13]> graph ({declared}) => (float[50, 20] Y) '
        f"{{ Y = Sum ({', '.join(names)}) }}"
    )
    features = element_features(BoundNode.of(model, dict.fromkeys(names, x)), x)
    assert sum(mask.nbytes for mask in features.flags.values()) < 1 << 20


def test_trait_of_all_failing_nodes_is_stated_only_with_enough_independent_nodes():
    statement = "Y found wrong only where X is small ("
    assert statement in proven(ABS, first_of_small, count=90, cases=2, output="Y")
    assert statement not in proven(
        ABS, first_of_small, count=90, cases=2, independent=12, output="Y"
    )


def test_wrong_truth_values_are_described():
    compared = "float[N, M] X => bool[N, M] Y", "Less (X, X)"
    statement = proven(compared, lambda x, y: y | np.isnan(x))
    assert "wherever the element of A is NaN; they are true" in statement


def test_text_of_a_condition_mentions_that_there_are_other_causes():
    samples = [node(ABS, number, nan_as_zero_in_some) for number in range(40)]
    conditions = ElementConditions(samples, [each for each in samples if each.failed], 0)
    best = conditions.ranked()[0]
    assert conditions.text(best, "Y").startswith("elements of Y found wrong only where ")
    sufficient = conditions.text(replace(best, is_sufficient=True), "Y")
    assert sufficient.startswith("elements of Y mostly found wrong where ")
    text = conditions.text(best, "Y", has_other_causes=True)
    assert text.startswith("elements of Y otherwise found wrong only where ")
    text = conditions.text(replace(best, parts=(), content="are 0"), "Y", has_other_causes=True)
    assert text.startswith("otherwise, wrong elements of Y are 0")
    assert " other failing generated nodes)" in text


def test_limit_is_fitted_to_elements_that_meet_the_other_parts_of_the_condition():
    def negative_below_one(x, y):
        y[:, ::2] = np.where(y[:, ::2] < 1, -1 - y[:, ::2], y[:, ::2])
        return y

    statement = proven(ABS, negative_below_one)
    assert "the index along the last axis is even" in statement
    assert "the magnitude of the element of X is less than 1.0" in statement


def test_condition_has_at_most_one_fitted_limit():
    statement = proven(ABS, lambda _, y: np.where((y > 0.5) & (y < 0.8), y + 1, y))
    assert statement.count(" is more than ") + statement.count(" is less than ") <= 1


def test_condition_requires_enough_independent_nodes():
    assert proven(ABS, at_odd_columns, independent=3)
    assert not proven(ABS, at_odd_columns, independent=2)


def test_limit_is_not_stated_if_no_known_element_is_near(monkeypatch):
    below_one = proven(ABS, lambda _, y: np.where(y < 1, -1 - y, y))
    assert "wrong only where the magnitude of the element of X is less than 1.00" in below_one
    usual = drawn

    def with_a_gap(seed, shape):
        x = usual(seed, shape)
        return np.where(np.abs(x) > 1, 1000 * x, x)

    monkeypatch.setattr(f"{__name__}.drawn", with_a_gap)
    assert " is less than " not in proven(ABS, lambda _, y: np.where(y < 1, -1 - y, y))


@pytest.mark.parametrize(("limit", "is_confirmed"), [(-0.5, True), (-0.2, False)])
def test_wrong_element_beyond_a_limit_refutes_a_condition(monkeypatch, limit, is_confirmed):
    """The first nodes have no element near -0.3. Further nodes are wrong below ``limit``."""

    def drawn_with_a_gap(seed, shape):
        x = usual(seed, shape)
        return np.where((x > -0.49) & (x < -0.2) & (seed < 40), np.float32(1), x)

    usual = drawn
    monkeypatch.setattr(f"{__name__}.drawn", drawn_with_a_gap)
    samples = [node(ABS, number, negative_beyond_half) for number in range(40)]
    submit = (lambda *_: Outcome.CRASH), SearchClock(), SearchLimit(1e6, 60.0)
    search = _NodeSearch("mine", "Abs", [], samples, *submit)
    condition = ElementConditions(samples, [each for each in samples if each.failed], 0).ranked()[0]

    def validate(_):
        for number in range(40, 60):
            further = node(ABS, number, lambda x, y: np.where(x < limit, -y, y))
            search._nodes.samples.append(further)
        return [True]

    monkeypatch.setattr(search, "_generate_directed", validate)
    assert "less than -0.49" in condition.parts[0]
    assert bool(search._validated([condition])) is is_confirmed


@pytest.mark.parametrize(("dtype", "stated"), [(np.float32, True), (np.float64, False)])
def test_limit_is_stated_only_if_elements_of_one_type_show_it(monkeypatch, dtype, stated):
    """Elements just beyond the limit occur only in some nodes, which may have another type."""

    def drawn_with_a_gap(seed, shape):
        x = usual(seed, shape)
        return (1 + np.abs(x)).astype(dtype) if seed % 3 == 0 else np.where(x > 1, 1000 * x, x)

    usual = drawn
    monkeypatch.setattr(f"{__name__}.drawn", drawn_with_a_gap)
    text = proven(ABS, lambda x, y: np.where(x < 1, -1 - y, y))
    assert ("the element of X is less than 1.0" in text) == stated


def test_correct_zeros_do_not_show_that_only_fractions_are_wrong(monkeypatch):
    """A fault that scales values leaves zeros right, although it is not limited to fractions."""

    def scaled(x, y):
        return np.where(np.arange(y.size).reshape(y.shape) % (2 + x.shape[0] % 2), y, 1.5 * y)

    def with_zeros(seed, shape):
        x = np.random.default_rng(seed).normal(size=shape)
        return np.where(np.abs(x) < limit, zero, x).astype(np.float32)

    monkeypatch.setattr(f"{__name__}.drawn", with_zeros)
    limit, zero = 0.9, 0.0
    assert "not an integer" not in proven(ABS, scaled)
    zero = 1.0
    assert "not an integer" in proven(ABS, lambda x, y: np.where(y == 1, y, scaled(x, y)))


def test_shape_is_not_stated_although_all_failing_nodes_have_it(monkeypatch):
    """Nodes of other shapes also have other values, and the failures may depend on the values."""
    monkeypatch.setattr(f"{__name__}.SMALL_TRAIT", Trait("X is small", 1.0))
    assert not proven(ABS, first_of_small, count=90, cases=30, output="Y")


def test_wrong_elements_without_a_pattern_have_no_condition():
    random = np.random.default_rng(0)
    assert not proven(ABS, lambda _, y: np.where(random.random(y.shape) < 0.1, -1 - y, y))
