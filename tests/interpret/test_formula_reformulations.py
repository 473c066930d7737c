"""Reformulations are correct, and round differently from the formula."""

from __future__ import annotations

import numpy as np
import pytest
from training_calls import call_of, each_training_operator

from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.reformulations import (
    Arithmetic,
    computed,
    flushed,
    power_rounded_once,
    reformulations,
    root_by_newton,
    root_by_reciprocal,
)
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry

by_operator = pytest.mark.parametrize(
    "operator", registry().operators, ids=lambda operator: operator.name
)


@by_operator
def test_names_are_unique_and_every_reformulation_is_computed(operator):
    names = [reformulation.name for reformulation in reformulations(operator)]
    assert len(set(names)) == len(names)
    for form in operator.reformulations:
        assert sum(name.startswith(f"{form.name}, ") for name in names) > 1


@each_training_operator
def test_every_reformulation_keeps_types_and_shapes_of_mixed_inputs(operator):
    inputs = [np.float64([0.1]), np.int64([[2]])]
    for name in operator.tensors:
        dtype = np.float64 if name == "H" else np.float32
        inputs += [np.ones((2, 3) if name == "X" else 3, dtype), np.ones((), np.float64)]
        inputs.append(np.ones((0, 2), np.float32))
    attributes = {
        attribute.name: attribute.choices[0] if attribute.choices else 0.5
        for attribute in operator.attributes
    }
    call = bind(operator, inputs, complete_attributes(operator, attributes))
    kinds = [(output.dtype, output.shape) for output in evaluate(call)]
    for reformulation in reformulations(operator):
        assert [(output.dtype, output.shape) for output in reformulation.run(call)] == kinds, (
            reformulation.name
        )


@each_training_operator
def test_every_reformulation_equals_the_formula_up_to_rounding(operator):
    for mode in next((a.choices for a in operator.attributes if a.choices), ("",)):
        call = call_of(operator, dtype=np.float64, **({"mode": mode} if mode else {}))
        for reformulation in reformulations(operator):
            for output, expected in zip(reformulation.run(call), evaluate(call), strict=True):
                assert np.allclose(output, expected, rtol=1e-12, atol=1e-13), reformulation.name


@each_training_operator
def test_reformulations_round_differently_from_the_formula(operator):
    modes = next((a.choices for a in operator.attributes if a.choices), ("",))
    plain = computed(Arithmetic())
    calls = [
        call_of(operator, dtype=dtype, count=count, **weights, **({"mode": mode} if mode else {}))
        for mode in modes
        for dtype in (np.float32, np.float64)
        for count in range(1, 12)
        # With the default alpha and beta, some reformulations of Adam round like the formula.
        for weights in ({}, {"alpha": 0.9, "beta": 0.9} if operator.name == "Adam" else {})
    ]
    same = set()
    for reformulation in reformulations(operator):
        if "R in the widest type" in reformulation.name and all(
            first.tobytes() == second.tobytes()
            for call in calls
            for first, second in zip(reformulation.run(call), plain(call), strict=True)
        ):
            same.add(reformulation.name.partition(",")[0])
    # These reformulations round like the formula: they only change signs or replace squares.
    assert same <= {"step negated and added", "power less one", "square by a power"}


def test_results_have_the_type_of_their_operands():
    adagrad = registry().named("Adagrad")
    call = call_of(adagrad, size=1, decay_factor=0.0, norm_coefficient=0.0, epsilon=0.0)
    (G, H), H_new = call.groups[0][1:], computed(Arithmetic())(call)[1]
    assert H_new == H + G * G
    assert H_new.dtype == np.float32


def test_fused_product_is_added_unrounded():
    adagrad = registry().named("Adagrad")
    tiny = 2.0**-12
    inputs = [np.float32(1), np.int64(0), np.float32(0), np.float32(1 + tiny)]
    inputs.append(np.float32(-(1 + 2 * tiny)))
    call = bind(adagrad, inputs, complete_attributes(adagrad, {}))
    # The square is 1 + 2 tiny + tiny**2. If it is rounded, the last term is lost.
    assert computed(Arithmetic())(call)[1] == 0
    assert computed(Arithmetic(fused=True))(call)[1] == tiny**2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("root", [root_by_reciprocal, root_by_newton])
def test_reciprocal_roots_are_accurate_to_a_few_ulps_in_the_complete_range(dtype, root):
    ends = np.array([0, np.finfo(dtype).smallest_normal, 1, np.finfo(dtype).max, np.inf], dtype)
    inner = np.random.default_rng(0).uniform(0.5, 5, 1000).astype(dtype)
    with np.errstate(all="ignore"):
        assert np.isnan(root(dtype(-1)))
        for values in (ends, inner):
            assert root(values).dtype == dtype
            assert np.allclose(root(values), np.sqrt(values), rtol=4 * np.finfo(dtype).eps, atol=0)
    assert (root(inner) != np.sqrt(inner)).any()


def test_flushing_changes_only_subnormal_numbers():
    values = np.array([1e-40, -1e-40, 0, 2.0**-126, np.inf, np.nan], np.float32)
    assert np.array_equal(
        flushed(values), np.array([0, 0, 0, 2.0**-126, np.inf, np.nan]), equal_nan=True
    )
    assert flushed(values[0]) == 0
    assert flushed(1e-320) == 1e-320
    assert flushed(np.True_)


def test_powers_are_rounded_once_to_the_type_of_the_count():
    power = power_rounded_once(float(np.float32(0.9999)), np.float32(3))
    assert power.dtype == np.float32
    assert power == np.float32(float(np.float32(0.9999)) ** 3)
