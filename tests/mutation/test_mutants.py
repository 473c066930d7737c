"""Generation of mutants of formulas, and detection of equivalent mutants."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.equivalence import distinguishing_input, equivalent
from onnxopt_cli.mutation.mutants import mutants, name_mutants
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.operators.rewrite import rewrite

# Generating the known mistakes of an operator takes seconds.
pytestmark = pytest.mark.slow

each_operator = pytest.mark.parametrize(
    "operator", registry().operators, ids=lambda item: item.name
)

ADAM = registry().named("Adam")
MOMENTUM = registry().named("Momentum")


def rewritten(replace):
    return Implementation("rewritten", change=lambda formula: rewrite(formula, replace))


def statements(operator):
    return {mutant.name.split(", not ")[0] for mutant in mutants(operator)}


@each_operator
def test_mutants_are_many_and_have_unique_names(operator):
    names = [mutant.name for mutant in mutants(operator)]
    assert len(names) > (300 if operator.counts else 80)
    assert len(set(names)) == len(names)


def test_mutants_are_the_same_in_every_process():
    program = (
        "from onnxopt_cli.operators.registry import registry\n"
        "from onnxopt_cli.mutation.mutants import mutants\n"
        "for operator in registry().operators:\n"
        "    for mutant in mutants(operator):\n"
        "        print(mutant.name, '|', mutant.about)\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
    ).stdout
    # Exclude operators of files that other tests may have registered.
    ours = [operator for operator in registry().operators if operator.file not in registry().files]
    descriptions = [f"{m.name} | {m.about}" for operator in ours for m in mutants(operator)]
    assert printed.splitlines() == descriptions


@pytest.mark.parametrize(
    "statement",
    [
        "V_new = alpha * V - (1 - alpha) * G_regularized",
        "V_new = alpha * V",
        "V_new = alpha * H + (1 - alpha) * G_regularized",
        "V_new = alpha * V + (1 - beta) * G_regularized",
        "V_new = alpha * V + (2 - alpha) * G_regularized",
        "H_new = beta * H + (1 - beta) * (G_regularized * G)",
        "H_sqrt = H_new + epsilon",
        "H_sqrt = np.sqrt(H) + epsilon",
        "R_adjusted = np.where(T >= 0, R * np.sqrt(1 - beta ** T) / (1 - alpha ** T), R)",
        "R_adjusted = np.where(T > 1, R * np.sqrt(1 - beta ** T) / (1 - alpha ** T), R)",
        "R_adjusted = np.where(T > 0, R, R * np.sqrt(1 - beta ** T) / (1 - alpha ** T))",
        "R_adjusted = R * np.sqrt(1 - beta ** T) / (1 - alpha ** T)",
        "R_adjusted = R",
        "X_new = X - -R_adjusted * V_new / H_sqrt",
        "return ((1 - norm_coefficient_post) * X_new, V, H_new)",
    ],
)
def test_mutants_of_each_kind_exist(statement):
    assert statement in statements(ADAM)


def test_branches_of_an_if_are_exchanged_and_changed():
    assert {"if mode != 'nesterov'", "if True", "if False", "if mode == 'standard'"} <= statements(
        MOMENTUM
    )
    assert "X_new = X - R / V_new" in statements(MOMENTUM)


def test_mutants_use_no_name_before_its_assignment():
    assert not any(text.startswith("G_regularized = V_new") for text in statements(ADAM))


@each_operator
def test_few_mutants_are_equivalent(operator):
    share = sum(equivalent(operator, mutant) for mutant in mutants(operator))
    assert 0 < share < len(mutants(operator)) / 20


@pytest.mark.parametrize(
    "replace",
    [
        {"norm_coefficient * X + G": "G + X * norm_coefficient"},
        {"R_adjusted * V_new / H_sqrt": "V_new / H_sqrt * R_adjusted"},
        {"R_adjusted * V_new / H_sqrt": "R_adjusted * (V_new / H_sqrt)"},
        {"alpha * V + (1 - alpha) * G_regularized": "alpha * V - (alpha - 1) * G_regularized"},
        {"T > 0": "T >= 1"},
        {"T > 0": "T > 0.5"},
    ],
)
def test_equivalent_formula_is_recognised(replace):
    assert equivalent(ADAM, rewritten(replace))
    assert distinguishing_input(ADAM, rewritten(replace)) is None


@pytest.mark.parametrize(
    "replace",
    [
        {"T > 0": "T != 0"},
        {"T > 0": "T >= 0"},
        {"T > 0": "T > 1"},
        {"T > 0": "T > 1.5"},
        {"T > 0": "T > norm_coefficient"},
        {"epsilon": "epsilon * 1.00001"},
        {"np.sqrt(H_new) + epsilon": "np.maximum(np.sqrt(H_new), epsilon)"},
        {"1 - norm_coefficient_post": "1 - 1.000001 * norm_coefficient_post"},
    ],
)
def test_small_difference_is_not_equivalent(replace):
    assert not equivalent(ADAM, rewritten(replace))


def test_difference_outside_of_the_domain_is_equivalent():
    assert equivalent(ADAM, rewritten({"np.sqrt(H_new)": "np.sqrt(np.abs(H_new))"}))


def test_failing_implementation_is_not_equivalent():
    assert not equivalent(ADAM, rewritten({"np.sqrt(H_new)": "np.no_such_function(H_new)"}))


def test_one_element_distinguishes_a_wrong_formula():
    wrong = rewritten({"T > 0": "T > 1"})
    attributes, inputs = distinguishing_input(MOMENTUM, wrong)
    assert list(inputs) == ["R", "T", "X", "G", "V"]
    assert [value.size for value in inputs.values()] == [1] * 5
    assert inputs["T"] == 1
    call = bind(MOMENTUM, list(inputs.values()), complete_attributes(MOMENTUM, attributes))
    right = evaluate(call)
    assert max(abs(a - b) / abs(b) for a, b in zip(wrong.run(call), right, strict=True)) > 0.01


def test_complete_tensor_is_used_if_one_element_is_not_enough():
    wrong = rewritten({"norm_coefficient * X + G": "norm_coefficient * X + np.mean(G)"})
    _, inputs = distinguishing_input(MOMENTUM, wrong)
    assert 1 < inputs["G"].size < 10


def test_omitted_attribute_distinguishes_a_wrong_default():
    attributes, _ = distinguishing_input(
        ADAM, Implementation("wrong default", defaults={"epsilon": 1e-7})
    )
    assert "epsilon" not in attributes


@each_operator
def test_distinguishing_input_leads_to_different_results(operator):
    for mutant in mutants(operator)[::90]:
        example = distinguishing_input(operator, mutant)
        assert (example is None) == equivalent(operator, mutant)
        if example is not None:
            attributes, inputs = example
            call = bind(operator, list(inputs.values()), complete_attributes(operator, attributes))
            outputs = mutant.run(call)
            assert not outputs or any(
                not np.allclose(a, b, rtol=1e-6, atol=0, equal_nan=True)
                for a, b in zip(outputs, evaluate(call), strict=True)
            )


def test_names_are_exchanged_or_replaced_in_a_complete_statement():
    changed = {mutant.name.split(", not ")[0]: mutant for mutant in name_mutants(ADAM)}
    assert "V_new = beta * V + (1 - beta) * G_regularized" in changed
    assert "H_new = beta * H + (1 - beta) * (V_new * V_new)" in changed
    exchanged = "R * np.sqrt(1 - alpha ** T) / (1 - beta ** T)"
    (mutant,) = [mutant for name, mutant in changed.items() if exchanged in name]
    operands = [np.array(value, np.float32) for value in (0.1, 1.0, 2.0, 0.5, 3.0)]
    values = {"alpha": 0.5, "beta": 0.75, "epsilon": 0.0}
    call = bind(ADAM, [operands[0], np.array(2), *operands[1:]], complete_attributes(ADAM, values))
    X_new, _, _ = mutant.run(call)
    V_new, H_new = 0.5 * 0.5 + 0.5 * 2, 0.75 * 3 + 0.25 * 4
    step = 0.1 * np.sqrt(1 - 0.5**2) / (1 - 0.75**2) * V_new / np.sqrt(H_new)
    assert float(X_new) == pytest.approx(1 - step, rel=1e-6)
