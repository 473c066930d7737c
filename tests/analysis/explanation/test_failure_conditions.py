"""Failure conditions of injected faults: every condition that is stated is exact."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import ceil, comb
from random import Random

import ml_dtypes
import numpy as np
import pytest

from onnxopt_cli.analysis.audit import find_trials
from onnxopt_cli.analysis.explanation.explain_remaining import _is_unlike_varied
from onnxopt_cli.analysis.explanation.failure_conditions import _Search, failure_condition
from onnxopt_cli.analysis.explanation.features import (
    Feature,
    feature_list,
    features,
    fitted_conditions,
    roundest,
)
from onnxopt_cli.analysis.explanation.generated_inputs import (
    with_near_values,
    with_number,
    with_types,
)
from onnxopt_cli.analysis.explanation.required_evidence import (
    supports_change,
    supports_only_where,
    supports_wherever,
)
from onnxopt_cli.analysis.explanation.samples import sample
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.known_mistakes import named
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.operators.rewrite import rewrite
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.reproduce import (
    Observation,
    agree,
    reproduces_wrong_elements,
    returns,
    returns_where_decided,
)
from onnxopt_cli.suites.catalogue import suite_cases

MAX_ELEMENTS = 2000


@cache
def suite_calls(name):
    """Return the small calls in an operator's suite, each with its expected results."""
    suite = registry().named(name).suite_name
    cases = [case for case in suite_cases(suite) if case.operators == (name,)]
    trials, _ = find_trials(cases, Judging())
    calls = [trial.call for trial in trials[name] if trial.call.size < MAX_ELEMENTS]
    return [(call, [derived_output.branch for derived_output in bound(call)]) for call in calls]


def scaled_where(output, holds):
    """Return a fault that multiplies some elements of an output by 1.01.

    The predicate ``holds`` selects the elements, given the call, the index of the group and the
    tensors of the group.
    """

    def fault(call):
        outputs = evaluate(call)
        begin = list(call.operator.outputs).index(output) * len(call.groups)
        for group, tensors in enumerate(call.groups):
            right = outputs[begin + group]
            scaled = np.where(holds(call, group, tensors), right * 1.01, right)
            outputs[begin + group] = np.asarray(scaled, right.dtype)
        return outputs

    return fault


def threshold_scaled(call):
    """Prune with a threshold that is 0.1 % too high."""
    masks = []
    percents = call.attributes["percent"]
    for group, (weights,) in enumerate(call.groups):
        magnitudes = np.abs(weights.astype(np.float64))
        threshold = 0
        if magnitudes.size:
            threshold = np.percentile(magnitudes, percents[group % len(percents)]) * 1.001
        masks.append(magnitudes < threshold)
    pruned = [np.where(mask, 0, group[0]) for mask, group in zip(masks, call.groups, strict=True)]
    types = [weights.dtype for (weights,) in call.groups] * 2
    outputs = [*pruned, *(np.where(mask, 0, 1) for mask in masks)]
    return [np.asarray(output, dtype) for output, dtype in zip(outputs, types, strict=True)]


def condition_of(name, fault):
    """Return the failure condition of a fault, and the nodes of the operator's suite as samples."""

    def submit(call):
        with np.errstate(all="ignore"):
            return fault(call)

    samples = []
    for call, right in suite_calls(name):
        samples.append(sample(call, right, submit(call)))
    samples.sort(key=lambda each: not each.failed)
    return failure_condition(samples, submit), samples


def elements_meeting(condition, each, labels):
    """Return a mask of the labelled elements of a sample that meet all parts of a condition."""
    table, _ = features(each.call, each.expected, labels.astype(np.int16))
    with np.errstate(all="ignore"):
        holds = [part.test(table[part.feature]) for part in condition.conditions]
    return np.all(holds, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "output", "holds", "where"),
    [
        (
            "AdmmUpdate", "U_new", lambda call, group, _: call.groups[group][0].size >= 33,
            "W has at least 33 elements",
        ),
        (
            "Adagrad", "X_new",
            lambda call, *_: call.scalars[1].item() > 0 and "epsilon" in call.omitted,
            "T is at least 1 and epsilon is left out",
        ),
        (
            "Adam", "V_new",
            lambda _, __, tensors: (
                tensors[0].dtype == np.float64 and tensors[2].dtype == np.float32
            ),
            "X is double and V is float32",
        ),
        ("AdmmGradient", "G_new", lambda _, __, tensors: tensors[3] > tensors[1], "U is above W"),
    ],
)  # fmt: skip
def test_condition_of_a_fault_is_stated(name, output, holds, where):
    condition, _ = condition_of(name, scaled_where(output, holds))
    assert condition is not None
    parts = sorted(part.text for part in condition.conditions)
    accepted = {where, where.replace("U is above W", "W is below U")}
    assert parts in [sorted(text.split(" and ")) for text in accepted], condition.text
    assert condition.text.startswith(f"{output} is ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "output", "holds", "where"),
    [
        (
            "AdmmGradient", "G_new", lambda call, *_: call.attributes["rho"] > 2,
            "rho is above 2",
        ),
        (
            "Momentum", "V_new",
            lambda call, group, _: abs(evaluate(call)[len(call.groups) + group]) > 1e3,
            "the magnitude of the expected V_new is above 1000",
        ),
    ],
)  # fmt: skip
def test_threshold_is_bisected(name, output, holds, where):
    condition, _ = condition_of(name, scaled_where(output, holds))
    (part,) = condition.conditions
    assert part.text == where
    low, high = sorted(part.gap)
    assert high - low <= 0.01 * high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "output", "holds", "where"),
    [
        ("Adam", "X_new", lambda *fault: fault[2][0] > 0, "X is positive, unless X_new should"),
        ("MagnitudePrune", "W_new", lambda *fault: fault[2][0] < 0, "W is negative, unless W_new"),
    ],
)
def test_exceptions_cover_all_passing_cases(name, output, holds, where):
    condition, samples = condition_of(name, scaled_where(output, holds))
    assert condition.text.startswith(f"{output} is found to be wrong wherever {where}")
    may_have_several_values = "several values are accepted" in condition.text
    for each in samples:
        if not each.failed:
            plain = plain_elements(each.call, output, may_have_several_values)
            assert not elements_meeting(condition, each, plain).any()


def plain_elements(call, output, may_have_several_values):
    """Return a mask of the elements of an output that show whether a value is scaled.

    The right values of these elements are finite, and larger than the tolerance. With
    ``may_have_several_values``, the mask excludes elements that have a second right value or a
    tolerance over 0.1 %.
    """
    count = len(call.groups)
    begin = list(call.operator.outputs).index(output) * count
    branches = [derived_output.branch for derived_output in bound(call)][begin : begin + count]
    masks = []
    for branch in branches:
        with np.errstate(all="ignore"):
            size = np.abs(branch.expected)
            plain = np.isfinite(branch.expected) & (size > branch.limit)
            if may_have_several_values:
                plain &= (branch.limit <= 0.001 * size) & (branch.otherwise is None)
        masks.append(plain.reshape(-1))
    return np.concatenate(masks)


@pytest.mark.slow
def test_passing_cases_contradict_a_condition_on_whole_tensors():
    condition, samples = condition_of("MagnitudePrune", threshold_scaled)
    assert any(each.failed for each in samples)
    if condition is not None and condition.conditions:
        met = [
            each
            for each in samples
            if not each.failed and elements_meeting(condition, each, np.ones(each.size)).any()
        ]
        assert not met or ", unless " in condition.text


@pytest.mark.parametrize(
    ("effect", "replace"),
    [
        pytest.param("0", lambda right, _: 0 * right, marks=pytest.mark.slow),
        pytest.param("unchanged", lambda _, old: old, marks=pytest.mark.slow),
        ("NaN", lambda right, _: right * np.nan),
        ("negated", lambda right, _: -right),
    ],
)
def test_content_of_wrong_elements_is_stated(effect, replace):
    samples = []
    for call, right in suite_calls("Momentum")[:80]:
        outputs = evaluate(call)
        if call.scalars[1].item() % 2 == 1:
            for group, (_, _, velocity) in enumerate(call.groups, start=len(call.groups)):
                with np.errstate(all="ignore"):
                    replaced = replace(outputs[group], velocity)
                outputs[group] = np.asarray(replaced, outputs[group].dtype)
        samples.append(sample(call, right, outputs))
    samples.sort(key=lambda each: not each.failed)
    condition = failure_condition(samples, None)
    assert condition.effect == f"V_new is found to be {effect}"


def test_condition_without_a_backend_needs_several_failing_cases():
    fault = scaled_where("V_new", lambda call, *_: call.scalars[1].item() == 3)
    samples = []
    for call, right in suite_calls("Momentum")[:60]:
        samples.append(sample(call, right, fault(call)))
    few = [each for each in samples if each.failed][:3]
    passing = [each for each in samples if not each.failed]
    assert failure_condition([*few, *passing], None) is None
    assert failure_condition(passing, None) is None


def test_failures_only_where_a_condition_holds_are_not_accidental():
    supported = [
        (failing, meeting, others)
        for meeting, others in product(range(1, 61), repeat=2)
        for failing in {1, ceil(meeting / 2), meeting}
        if supports_only_where(failing, meeting, others)
    ]
    assert (20, 40, 60) in supported
    for failing, meeting, others in supported:
        # If the condition had no effect, this would be the probability that all failing inputs meet
        # it.
        assert comb(meeting, failing) / comb(meeting + others, failing) < 0.001
        # If a tenth of the inputs that do not meet the condition failed, this would be the
        # probability that none of them is drawn.
        assert 0.9**others < 0.05


def test_failures_wherever_a_condition_holds_are_not_accidental():
    supported = [numbers for numbers in product(range(61), repeat=2) if supports_wherever(*numbers)]
    assert (20, 40) in supported
    for meeting, others in supported:
        # Suppose that a quarter of the inputs that meet the condition passed. The first number
        # would be the probability that none of them is drawn. The second number corresponds to a
        # tenth of the other inputs failing.
        assert 0.75**meeting < 0.05
        assert 0.9**others < 0.05


def test_agreement_with_a_changed_formula_is_not_accidental():
    assert supports_change(59, 1)
    for total, unlike in product(range(61), range(4)):
        if total >= unlike and supports_change(total - unlike, unlike):
            # Suppose that the backend differed from the changed formula for a tenth of all inputs.
            # The sum would be the probability that it differs for at most ``unlike`` drawn inputs.
            share = [comb(total, k) * 0.1**k * 0.9 ** (total - k) for k in range(unlike + 1)]
            assert sum(share) < 0.05


def test_thresholds_are_never_negative_zero_or_a_limit_of_int64():
    feature = Feature("rho", 0, "number")
    (condition,) = fitted_conditions(0, feature, np.array([-2.0, 0.0]), np.array([1e-45]))
    assert condition.text == "rho is at most 0"
    count = Feature("T is {k}", 0, "count")
    right = np.array([-9.2e18])
    texts = [each.text for each in fitted_conditions(0, count, np.array([-5.0, 1.0]), right)]
    assert texts == ["T is -5", "T is 1"]


@pytest.mark.parametrize("seed", [4, 20])
def test_cases_alone_do_not_decide_between_two_conditions(seed):
    chosen = Random(seed).sample(suite_calls("Momentum"), 12)  # noqa: S311 - not a secret
    samples = []
    for place, (call, right) in enumerate(chosen):
        outputs = [branch.expected for branch in right]
        if place < 8:
            outputs = [np.asarray(output + 1, output.dtype) for output in outputs]
        samples.append(sample(call, right, outputs))
    samples.sort(key=lambda each: not each.failed)
    assert failure_condition(samples, None) is None


@pytest.mark.parametrize(
    ("low", "high", "number"),
    [
        (0.45, 0.5, 0.5), (0.41, 0.52, 0.5), (-1, 2, 0), (1.23, 1.24, 1.23), (990, 1001, 1000),
        (0.1234, 0.1239, 0.1234), (1e-9, 2e-7, 1e-7), (-3.5, -2.2, -3),
    ],
)  # fmt: skip
def test_roundest_is_the_number_with_the_fewest_digits(low, high, number):
    assert roundest(low, high) == pytest.approx(number)
    assert low <= roundest(low, high) <= high


def test_elements_of_vectors_and_matrices_have_columns():
    call, _ = next(
        (call, right) for call, right in suite_calls("Momentum") if call.groups[0][0].shape == (3,)
    )
    shapes = ((3,), (2, 3))
    for tensors in [tuple(np.ones(shape, np.float32) for _ in range(3)) for shape in shapes]:
        single = replace(call, groups=(tensors,))
        outputs = {"X_new": np.ones(tensors[0].size), "V_new": np.ones(tensors[0].size)}
        names = [feature.text for feature in feature_list(single, outputs)]
        table, _ = features(single, outputs, np.ones(tensors[0].size, np.int16))
        column = table[names.index("the element's column is {k}")]
        assert column.tolist() == [0, 1, 2] * (tensors[0].size // 3)


def test_signs_of_operands_and_tensors_are_features():
    call, _ = next(
        (call, right) for call, right in suite_calls("Momentum") if call.groups[0][0].shape == (3,)
    )
    operands = ([1.0, -2.0, 3.0], [-1.0, -2.0, -3.0], [0.0, 0.0, 0.0])
    signed = replace(call, groups=(tuple(np.array(row, np.float32) for row in operands),))
    outputs = {"X_new": np.ones(3), "V_new": np.ones(3)}
    names = [feature.text for feature in feature_list(signed, outputs)]
    table, _ = features(signed, outputs, np.ones(3, np.int16))
    rows = dict(zip(names, table.tolist(), strict=True))
    assert rows["X and G have opposite signs"] == [1, 0, 1]
    assert rows["G has no positive element"] == [1, 1, 1]
    assert rows["X has no positive element"] == [0, 0, 0]
    assert rows["all elements of V are 0"] == [1, 1, 1]


def test_threshold_covers_infinite_values_but_not_nan():
    feature = Feature("the magnitude of V", 0, "magnitude")
    right = np.array([1.0, 5e4])
    (condition,) = fitted_conditions(0, feature, np.array([1e5, np.inf]), right)
    assert condition.test(np.array([1e3, 1e6, np.inf])).tolist() == [False, True, True]
    assert not [*fitted_conditions(0, feature, np.array([1e5, np.nan]), right)]


@pytest.mark.parametrize(
    ("number", "of_float32", "of_double"),
    [(1e30, True, True), (1e60, False, True), (-1e-60, False, True), (0.0, True, True)],
)
def test_varied_operand_is_neither_infinite_nor_zero_instead_of_a_number(
    number, of_float32, of_double
):
    call = next(
        call for call, _ in suite_calls("Momentum") if call.groups[0][0].dtype.itemsize == 4
    )
    wide = replace(call, groups=tuple((x.astype(float), *states) for x, *states in call.groups))
    assert (with_number(call, number, "X") is not None) == of_float32
    assert (with_number(wide, number, "X") is not None) == of_double
    assert (with_number(call, number, "R") is not None) == of_float32
    assert (with_number(call, number, "alpha") is not None) == of_float32


@pytest.mark.slow
def test_condition_that_excludes_infinite_values_states_no_limit():
    def prunes_all(call):
        outputs, count, percents = evaluate(call), len(call.groups), call.attributes["percent"]
        for group, (weights,) in enumerate(call.groups):
            if percents[group % len(percents)] == 100:
                finite = np.isfinite(weights)
                outputs[group] = np.where(finite, weights.dtype.type(0), weights)
                outputs[count + group] = np.asarray(~finite, weights.dtype)
        return outputs

    condition, _ = condition_of("MagnitudePrune", prunes_all)
    parts = sorted(part.text for part in condition.conditions)
    assert parts == ["W is finite", "percent is at least 100"]


def test_mistake_must_reproduce_all_outputs_of_a_wrong_element():
    # Where Z_new should be 0, the backend and the mistake return U_new = 0, but only the mistake
    # returns Z_new = W + U.
    admm = registry().named("AdmmUpdate")
    for call, right in suite_calls("AdmmUpdate")[:20]:
        count = len(call.groups)
        outputs = evaluate(call)
        returned = [*outputs[:count], *map(np.zeros_like, outputs[count:])]
        if agree(right, returned):
            continue
        observation = Observation("", call, Expected({}, {}), returned)
        mistake = named(admm, "largest elements pruned")
        assert not reproduces_wrong_elements(mistake, observation)


@pytest.mark.slow
def test_backend_that_is_right_for_a_rate_of_one_is_not_wrong_wherever_a_condition_holds():
    def scaled_by_rate(call):
        outputs, count = evaluate(call), len(call.groups)
        if call.attributes["mode"] == "standard":
            for place in range(count, 2 * count):
                scaled = outputs[place] * call.scalars[0].item()
                outputs[place] = np.asarray(scaled, outputs[place].dtype)
        return outputs

    condition, _ = condition_of("Momentum", scaled_by_rate)
    assert condition is None or "wherever" not in condition.text


def test_only_where_covers_all_wrong_elements():
    """Each failing node has a wrong element with the index 1, but the element 0 is wrong, too."""
    call = next(c for c, _ in suite_calls("AdmmGradient") if c.groups[0][0].shape == (3,))
    samples = []
    for numbers in ([2.0], [2.0, 3.0], [4.0], [4.0, 5.0], [6.0, np.inf]):
        tensor = np.array(numbers, np.float32)
        varied = replace(call, groups=((tensor, *(np.ones_like(tensor),) * 3),))
        outputs = evaluate(varied)
        if len(numbers) > 1 and np.isfinite(tensor).all():
            outputs = [output + 1 for output in outputs]
        samples.append(sample(varied, [each.branch for each in bound(varied)], outputs))
    samples.sort(key=lambda each: not each.failed)
    search = _Search(samples, None, None)
    search._fit()
    assert search._best_necessary().text == "G has at least 2 elements"


@pytest.mark.parametrize(("is_partial", "text"), [(True, "partly wrong"), (False, "wrong")])
def test_wherever_says_if_only_some_of_the_elements_are_wrong(is_partial, text):
    samples = []
    for call, right in suite_calls("Momentum")[:80]:
        outputs = evaluate(call)
        for output in outputs[len(call.groups) :] if call.scalars[1].item() % 2 else ():
            elements = output.reshape(-1)
            magnitudes = np.where(np.isfinite(elements), np.abs(elements), 0)
            scaled = slice(None)
            if is_partial and elements.size:
                scaled = np.argmax(magnitudes)
            elements[scaled] *= 1.5
        samples.append(sample(call, right, outputs))
    samples.sort(key=lambda each: not each.failed)
    condition = failure_condition(samples, None)
    assert condition.text.startswith(f"V_new is found to be {text} wherever T is odd (")


def test_condition_of_a_mistake_is_tried_with_all_combinations_of_types():
    mistake = named(registry().named("Momentum"), "beta taken as 1")
    calls = [call for call, _ in suite_calls("Momentum") if call.attributes["mode"] == "standard"]
    samples = []
    for call in calls[:12]:
        right = [each.branch for each in bound(call)]
        outputs = mistake.run(call)
        samples.append(sample(call, right, outputs, outputs))
    samples.sort(key=lambda each: not each.failed)
    search = _Search(samples, None, mistake)
    varied = [each.call for each in search._directed_variations([])]
    types = {tuple(tensor.dtype.name for tensor in call.groups[0]) for call in varied}
    assert types >= {*product(("float32", "float64"), repeat=3)}


def sized_call(*sizes):
    """Return a node of Momentum with one tensor X of each size."""
    call = next(call for call, _ in suite_calls("Momentum") if call.groups[0][0].size > 1)
    groups = tuple(tuple(np.resize(tensor, size) for tensor in call.groups[0]) for size in sizes)
    return replace(call, groups=groups)


def wrong_from_33(call):
    """Return the outputs of a call; V_new is wrong if the first tensor has at least 33 elements."""
    outputs, count = evaluate(call), len(call.groups)
    if call.groups[0][0].size >= 33:
        outputs[count:] = [
            np.asarray(output * 1.25 + 0.5, output.dtype) for output in outputs[count:]
        ]
    return outputs


def search_of(calls, submit):
    """Return a search for the condition of :func:`wrong_from_33`, failing calls first."""
    samples = [
        sample(call, [each.branch for each in bound(call)], wrong_from_33(call)) for call in calls
    ]
    search = _Search(samples, submit, None)
    search._fit()
    return search


@pytest.mark.parametrize("is_refuting", [True, False])
def test_directed_variations_do_not_support_a_condition(monkeypatch, is_refuting):
    search = search_of([sized_call(40), sized_call(3)], evaluate if is_refuting else wrong_from_33)
    monkeypatch.setattr(search, "_outcomes", lambda _: [])
    assert [*search._directed_variations(search._paths[0].conditions)]
    search._survives_proof()
    assert len(search._samples) == 2 + is_refuting


def with_short_alpha(call):
    """Return the outputs of a backend that reads alpha as a bfloat16."""
    alpha = float(ml_dtypes.bfloat16(call.attributes["alpha"]))
    return evaluate(replace(call, attributes={**call.attributes, "alpha": alpha}))


@pytest.mark.parametrize(("backend", "is_refuted"), [(with_short_alpha, True), (evaluate, False)])
def test_necessary_condition_is_refuted_by_another_value_of_an_attribute(backend, is_refuted):
    """All failing inputs have an alpha that is not an integer, but bfloat16 has no 1001 either."""
    calls = [
        replace(sized_call(3), attributes={**sized_call(3).attributes, "alpha": alpha})
        for alpha in (0.3, 0.7, 0.5, 1.0, 2.0)
    ]
    samples = [
        sample(call, [each.branch for each in bound(call)], with_short_alpha(call))
        for call in calls
    ]
    search = _Search(samples, backend, None)
    search._fit()
    everything = (np.ones(elements.shape[1], bool) for elements in (search._wrong, search._right))
    (condition,) = (
        condition
        for condition in search._level(*everything).conditions
        if condition.text == "alpha is not an integer"
    )
    assert search._fails_elsewhere(condition) is is_refuted


def test_inputs_that_meet_one_condition_are_copied():
    """Only one input has a large tensor that is not the first tensor."""
    sizes = [(40,), *[(3,)] * 16, (3, 40)]
    search = search_of([sized_call(*each) for each in sizes], wrong_from_33)
    texts = {"the tensor's number is 1", "X has at least 32 elements"}
    (conditions,) = (
        path.conditions
        for path in search._paths
        if {part.text for part in path.conditions} == texts
    )
    assert search._needs_both(conditions)


def test_new_doubles_have_digits_beyond_float32():
    call = next(call for call, _ in suite_calls("AdmmGradient") if call.inputs[0].size > 1)
    drawn = [*with_types(Random(0), call)]  # noqa: S311 - not a secret
    assert len(drawn) == 2 * 2**4
    doubles = [t for each in drawn if each for t in each.inputs if t.dtype == np.float64]
    finite = [t for t in doubles if np.isfinite(t).all() and t.any()]
    assert finite
    assert all((t != t.astype(np.float32)).any() for t in finite)


def test_near_values_replace_zeros_and_infinities():
    call = next(
        call
        for call, _ in suite_calls("MagnitudePrune")
        if any((t == 0).any() for t in call.inputs)
    )
    near = [each for _, _, each in with_near_values(call)]
    assert near
    for each in near:
        assert any((t != old).any() for t, old in zip(each.inputs, call.inputs, strict=True))
        assert not any((t == 0).any() for t in each.inputs)


@pytest.mark.parametrize("is_limited", [True, False])
def test_mistake_is_tried_with_other_values_of_each_attribute(is_limited):
    """A backend has the mistake only if percent is above 50, as in all failing cases."""
    mistake = named(registry().named("MagnitudePrune"), "mask of nonzero elements")

    def submit(call):
        is_right = is_limited and min(call.attributes["percent"]) <= 50
        return evaluate(call) if is_right else mistake.run(call)

    reproduced = [
        Observation("", call, Expected({}, {}), mistake.run(call))
        for call, right in suite_calls("MagnitudePrune")
        if min(call.attributes["percent"]) > 50 and not agree(right, mistake.run(call))
    ]
    assert _is_unlike_varied(mistake, reproduced, [mistake], submit) is is_limited


def test_values_that_contradict_a_mistake_are_counted_over_all_cases():
    """The backend has the mistake, except if G has a tiny or a huge element."""
    call, _ = suite_calls("AdmmGradient")[0]
    doubled = rewrite(call.operator.formula, {"W - Z + U": "W - Z + 2 * U"})
    mistake = Implementation("U doubled", change=lambda _: doubled)

    def submit(call):
        size = np.abs(call.groups[0][0])
        is_right = ((size > 0) & (size < 1e-34)).any() or ((size > 1e19) & (size < 1e21)).any()
        return evaluate(call) if is_right else mistake.run(call)

    reproduced = []
    for special in (0, np.inf):
        gradient, ones = np.array([special, 2, 3], np.float32), np.ones(3, np.float32)
        case = replace(call, groups=((gradient, ones, ones, ones),))
        reproduced.append(Observation("", case, Expected({}, {}), mistake.run(case)))
    assert _is_unlike_varied(mistake, reproduced, [mistake], submit)


def test_values_that_roundings_decide_do_not_contradict_a_mistake():
    operator = registry().named("AdmmUpdate")
    keeping_z = rewrite(
        operator.formula,
        {"np.where(np.abs(V) < threshold, 0, V)": "np.where(np.abs(V) < threshold, Z, V)"},
    )
    mistake = Implementation("Z kept", change=lambda _: keeping_z)
    for call, right in suite_calls("AdmmUpdate"):
        several = [
            np.zeros(branch.expected.shape, bool)
            if branch.otherwise is None
            else branch.expected != branch.otherwise.expected
            for branch in right
        ]
        outputs = mistake.run(call)
        if not outputs or not any(map(np.any, several)) or all(map(np.all, several)):
            continue
        undecided = [
            np.where(mask, output + 1, output).astype(output.dtype)
            for mask, output in zip(several, outputs, strict=True)
        ]
        assert not returns(mistake, call, undecided)
        assert returns_where_decided(mistake, call, undecided)
        assert not returns_where_decided(mistake, call, [output + 1 for output in outputs])
        return
    pytest.fail("no case has several accepted values")
