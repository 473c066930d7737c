"""Changes of one expression in a formula, compared with independent computations."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from onnxopt_cli.analysis.explanation import explain_remaining
from onnxopt_cli.analysis.explanation.explain_remaining import (
    MIN_UNLIKE,
    CauseSearch,
    _EqualChanges,
    _is_unlike_varied,
)
from onnxopt_cli.analysis.explanation.failure_conditions import FailureCondition
from onnxopt_cli.analysis.explanation.formula_changes import formula_changes
from onnxopt_cli.analysis.explanation.generated_inputs import with_other_numbers
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.mutation.known_mistakes import named
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.reproduce import Observation


def momentum(*groups, T=1, alpha=0.5):
    """Return a call of Momentum for groups of tensors (X, G, V)."""
    operator = registry().named("Momentum")
    values = {"alpha": alpha, "beta": 0.25, "norm_coefficient": 0.0, "mode": "standard"}
    attributes = complete_attributes(operator, values)
    tensors = [
        np.array(tensor, np.float32) for kind in zip(*groups, strict=True) for tensor in kind
    ]
    scalars = [np.array(0.5, np.float32), np.array(T)]
    return bind(operator, [*scalars, *tensors], attributes)


def changes(call, returned=None):
    """Return the formula changes by name that are derived from a call and its wrong outputs."""
    right = [derived_output.branch for derived_output in bound(call)]
    failing = [SimpleNamespace(call=call, right=right, returned=returned)] if returned else []
    return {change.name: change for change in formula_changes(call.operator, failing)}


def assert_same(outputs, expected):
    for output, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, right, rtol=1e-6)


def test_value_of_another_tensor_is_repeated_or_cut_off():
    first = ([1, 2, 3], [4, 5, 6], [7, 8, 9])
    second = ([1, 2], [-1, -2], [3, 4])
    mistakes = changes(momentum(first, second))
    of_last = mistakes["G of the last tensor used for all"]
    assert_same(
        of_last.run(momentum(first, second)),
        evaluate(momentum((first[0], [-1, -2, -1], first[2]), second)),
    )
    of_next = mistakes["V of the next tensor"]
    assert_same(
        of_next.run(momentum(second, first)),
        evaluate(momentum((second[0], second[1], [7, 8]), first)),
    )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("alpha limited to at most 0.9", {"alpha": 0.9}),
        ("alpha taken as 0.9", {"alpha": 0.9}),
    ],
)
def test_constants_are_those_of_a_wrong_element(name, wrong):
    group = ([1.0, 2.0], [3.0, 4.0], [5.0, 60.0])
    call = momentum(group, alpha=1.5)
    returned = evaluate(momentum(group, **wrong))
    assert_same(changes(call, returned)[name].run(call), returned)


def test_count_is_read_as_an_unsigned_byte():
    group = ([1.0], [2.0], [3.0])
    read_as_byte = changes(momentum(group))["T read as uint8"]
    assert_same(read_as_byte.run(momentum(group, T=256)), evaluate(momentum(group, T=0)))
    assert_same(read_as_byte.run(momentum(group, T=257)), evaluate(momentum(group, T=1)))


TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize(("one", "other"), [*combinations(TYPES, 2)])
def test_other_numbers_tell_types_of_few_digits_apart(one, other):
    call = momentum(([1.0], [2.0], [3.0]))
    numbers = np.array([n for name, n, _ in with_other_numbers(call) if name == "T"], np.float64)
    with np.errstate(over="ignore"):
        are_exact = [numbers.astype(dtype).astype(np.float64) == numbers for dtype in (one, other)]
    assert np.count_nonzero(np.not_equal(*are_exact)) >= MIN_UNLIKE


def test_change_with_the_same_outputs_is_named_if_inputs_refute_the_plainest_one(monkeypatch):
    call = momentum(([1.0], [2.0], [3.0]))
    named = changes(call)
    equal_changes = [named[f"T rounded to {name}"] for name in ("float16", "bfloat16")]
    operator = call.operator
    search = CauseSearch(operator, Judging(), [], [], [], lambda _: None, seconds=1.0)
    monkeypatch.setattr(CauseSearch, "_is_confirmed", lambda *_: True)
    monkeypatch.setattr(
        explain_remaining, "_is_unlike_varied", lambda change, *_: change is equal_changes[0]
    )
    cause = search._unrestricted_change([_EqualChanges(equal_changes, [])], lambda _: None)
    assert cause.found == "consistent with the change 'T rounded to bfloat16'"


@pytest.mark.parametrize(("least_rank", "most_rank", "is_unlike"), [(2, 2, True), (0, 9, False)])
def test_mistake_is_tried_with_other_numbers_of_axes(least_rank, most_rank, is_unlike):
    call = momentum(([[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.5, 0.25]], [[1.0, 1.0]] * 2))
    mistake = named(call.operator, "rows left out where G is 0")

    def submit(varied):
        is_affected = least_rank <= varied.groups[0][0].ndim <= most_rank
        return mistake.run(varied) if is_affected else evaluate(varied)

    failing = [Observation("", call, Expected({}, {}), submit(call))]
    assert _is_unlike_varied(mistake, failing, [mistake], submit) is is_unlike


@pytest.mark.parametrize("covered", [False, True])
def test_necessary_condition_beside_another_cause_concerns_other_failures(monkeypatch, covered):
    call = momentum(([1.0], [2.0], [3.0]))
    text = "found wrong only where T is 0"
    condition = FailureCondition(text, (), "wrong", "", lambda _: True, is_necessary=True)
    monkeypatch.setattr(explain_remaining, "failure_condition", lambda *_: condition)
    cover = [named(call.operator, "beta taken as 1")] * covered
    search = CauseSearch(call.operator, Judging(), [], [], cover, None, seconds=1.0)
    assert search._conditional_cause([]).found == "otherwise " * covered + text
