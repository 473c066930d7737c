"""Known mistakes, and their outputs for inputs that reveal them."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from training_calls import each_training_operator

from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation, both
from onnxopt_cli.mutation.equivalence import distinguishing_input, equivalent
from onnxopt_cli.mutation.known_mistakes import known_mistakes
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import (
    KnownMistake,
    mistake_table,
    reformulation_table,
)
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.operators.rewrite import rewrite

# Generating the known mistakes of an operator takes seconds.
pytestmark = pytest.mark.slow

each_operator = pytest.mark.parametrize(
    "operator", registry().operators, ids=lambda item: item.name
)

ADAM, ADAGRAD, MOMENTUM = map(registry().named, ("Adam", "Adagrad", "Momentum"))
STANDARD = {"alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}


def mistake(operator, name):
    return {item.name: item for item in known_mistakes(operator)}[name]


def call_of(operator, inputs, attributes=None, dtype="float32"):
    """Return a call; numbers become scalars, lists become tensors, and arrays keep their type."""
    values = attributes or {}
    operands = [
        value if isinstance(value, np.ndarray) else np.array(value, dtype if name != "T" else int)
        for name, value in inputs.items()
    ]
    omitted = frozenset(item.name for item in operator.attributes) - set(values)
    return bind(operator, operands, complete_attributes(operator, values), omitted=omitted)


def momentum_call(inputs, dtype="float32", **attributes):
    return call_of(MOMENTUM, inputs, STANDARD | attributes, dtype)


ADAM_STEP = {"R": 0.1, "T": 1, "X": 1, "G": 1, "V": 0, "H": 0}
ADAGRAD_STEP = {"R": 0.1, "T": 0, "X": 0, "G": 1e-3, "H": 0}
MOMENTUM_STEP = {"R": 0.1, "T": 1, "X": 1, "G": 1, "V": 2}


def test_table_agrees_with_the_definitions_of_known_mistakes():
    table = """
    step with the old V
        V enters before its update.
        seen in here; there
        seen in a third place
        V_new = alpha * V + G -> V_new = alpha * V
        X - R * V_new -> X - R * V
    alpha defaults to 0.5
        As nowhere else.
        alpha = 0.5
    """
    step = {"V_new = alpha * V + G": "V_new = alpha * V", "X - R * V_new": "X - R * V"}
    seen_in = ("here", "there", "a third place")
    assert mistake_table(table) == (
        KnownMistake("step with the old V", "V enters before its update.", seen_in, step),
        KnownMistake("alpha defaults to 0.5", "As nowhere else.", defaults={"alpha": 0.5}),
    )


def test_table_agrees_with_the_definitions_of_reformulations():
    table = """
    step negated and added
        seen in PyTorch, capturable; here
        X - R * V_new -> -R * V_new \
            + X
    V moved
        accurate if alpha != 1 and 0 < 1
        alpha * V + G -> V + G - (1 - alpha) * V
    """
    negated, moved = reformulation_table(table)
    assert (negated.name, negated.accurate) == ("step negated and added", "")
    assert negated.seen_in == ("PyTorch, capturable", "here")
    assert negated.replace == {"X - R * V_new": "-R * V_new + X"}
    assert (moved.name, moved.seen_in) == ("V moved", ())
    assert moved.accurate == "alpha != 1 and 0 < 1"
    assert moved.replace == {"alpha * V + G": "V + G - (1 - alpha) * V"}


#: Rows: operator, known mistake, an implementation with the mistake or None, attributes, inputs,
#: the right X_new, and the wrong X_new.
PROBES = [
    (
        *(ADAM, "epsilon added after bias correction", "PyTorch 1.3 and later"),
        *({"epsilon": 0.1}, ADAM_STEP, 0.975975, 0.909091),
    ),
    (
        *(ADAM, "epsilon defaults to 0", "tinygrad"),
        *({}, ADAM_STEP | {"X": 0, "G": 1e-3}, -0.096935, -0.1),
    ),
    (
        *(ADAM, "epsilon defaults to 0", "tinygrad"),
        *({}, ADAM_STEP | {"G": 0}, 1.0, math.nan),
    ),
    (ADAM, "epsilon defaults to 1e-2", "TVM", {}, ADAM_STEP, 0.900003, 0.924025),
    (
        *(ADAM, "bias correction at every T", "Keras"),
        *({}, ADAM_STEP | {"T": 0}, 0.683780, math.nan),
    ),
    (
        *(ADAM, "epsilon defaults to 1e-7", "Keras"),
        *({}, ADAM_STEP | {"X": 0, "G": 1e-3, "T": 0}, -0.306536, -0.315233),
    ),
    (
        *(ADAM, "bias correction at every T", "ONNX Runtime AdamW mode 1"),
        *({}, ADAM_STEP | {"T": 0}, 0.683780, math.nan),
    ),
    (
        *(ADAM, "decay before the step, scaled by R", "PyTorch AdamW"),
        *({"norm_coefficient_post": 0.1}, ADAM_STEP, 0.810003, 0.890003),
    ),
    (
        *(ADAGRAD, "epsilon inside the square root", "optax"),
        *({}, ADAGRAD_STEP, -0.0999001, -0.0707107),
    ),
    (
        *(ADAGRAD, "epsilon inside the square root, no decay", "Keras 3"),
        *({"decay_factor": 1.0}, ADAGRAD_STEP | {"T": 1}, -0.0499500, -0.0707107),
    ),
    (
        *(ADAGRAD, "decay_factor taken as 0", "Keras 3"),
        *({"decay_factor": 1.0}, ADAGRAD_STEP | {"T": 1}, -0.0499500, -0.0999001),
    ),
    (
        *(ADAGRAD, "epsilon taken as 0", "TensorFlow ApplyAdagrad"),
        *({}, ADAGRAD_STEP, -0.0999001, -0.1),
    ),
    (
        *(ADAGRAD, "epsilon defaults to 0", "TVM"),
        *({}, ADAGRAD_STEP | {"G": 1e-6}, -0.05, -0.1),
    ),
    (
        *(ADAGRAD, "epsilon defaults to 0", "tinygrad"),
        *({}, ADAGRAD_STEP | {"G": 0}, 0.0, math.nan),
    ),
    (
        *(MOMENTUM, "first step ignores V", "PyTorch SGD"),
        *(STANDARD, MOMENTUM_STEP | {"T": 0}, 0.72, 0.90),
    ),
    (
        *(MOMENTUM, "beta taken as 1 for Nesterov", "PyTorch SGD"),
        *(STANDARD | {"beta": 0.5, "mode": "nesterov"}, MOMENTUM_STEP, 0.693, 0.648),
    ),
    (MOMENTUM, "velocity holds the step", None, STANDARD, MOMENTUM_STEP, 0.72, 2.70),
    (
        *(MOMENTUM, "velocity holds the step, beta taken as 1", "Keras SGD"),
        *(STANDARD | {"beta": 0.5}, MOMENTUM_STEP, 0.77, 2.70),
    ),
    (
        *(MOMENTUM, "beta taken as 1", "optax"),
        *(STANDARD | {"beta": 0.5}, MOMENTUM_STEP, 0.77, 0.72),
    ),
    (
        *(MOMENTUM, "gradient dampened by 1 - beta", None),
        *(STANDARD | {"beta": 0.75}, MOMENTUM_STEP, 0.745, 0.795),
    ),
]


@pytest.mark.parametrize(
    ("operator", "name", "seen_in", "attributes", "inputs", "right", "wrong"),
    PROBES,
    ids=[f"{probe[0].name}: {probe[1]}, {probe[2]}" for probe in PROBES],
)
def test_known_mistake_agrees_with_its_implementations(
    operator, name, seen_in, attributes, inputs, right, wrong
):
    call = call_of(operator, inputs, attributes)
    implementation = mistake(operator, name)
    assert evaluate(call)[0] == pytest.approx(right, rel=1e-5, abs=1e-12)
    assert implementation.run(call)[0] == pytest.approx(wrong, rel=1e-5, nan_ok=True)
    assert seen_in is None or seen_in in implementation.seen_in


def test_powers_rounded_to_float32_are_wrong_for_double_tensors():
    inputs = {"R": 0.1, "T": 3, "X": 0, "G": 1, "V": 1, "H": 1}
    call = call_of(ADAM, inputs, {"beta": 0.9999}, "float64")
    implementation = mistake(ADAM, "bias correction with powers rounded to float32")
    right, wrong = evaluate(call)[0], implementation.run(call)[0]
    assert abs(wrong - right) / abs(right) == pytest.approx(4.9e-5, rel=0.02)


def test_decay_in_float32_is_wrong_for_double_tensors():
    inputs = {"R": 0.1, "T": 3, "X": 1, "G": 1, "H": 0}
    call = call_of(ADAGRAD, inputs, {"decay_factor": 0.1}, "float64")
    implementation = mistake(ADAGRAD, "decay in float32")
    # The decayed rate is 0.1 / 1.3, and an ulp of the denominator is 1.2e-7 in float32.
    assert 1e-9 < abs(implementation.run(call)[0] - evaluate(call)[0]) < 0.1 / 1.3**2 * 1.2e-7
    assert implementation.seen_in == ("onnx2fx",)


def test_root_in_float32_is_wrong_for_double_tensors():
    call = call_of(ADAGRAD, {"R": 0.1, "T": 0, "X": 0, "G": 1, "H": 1}, {}, "float64")
    implementation = mistake(ADAGRAD, "root taken in float32")
    right, wrong = evaluate(call)[0], implementation.run(call)[0]
    # In float32, the root of 2 is 1.41421354.
    assert abs(wrong - right) / abs(right) == pytest.approx(1.71e-8, rel=0.02)
    assert implementation.seen_in == ("OpenCV 5",)


@each_training_operator
def test_double_computed_in_float32_has_float32_precision(operator):
    implementation = mistake(operator, "double computed in float32")
    large = float(2**24 + 1)
    inputs = {"R": 0.0, "T": 1, "X": large} | dict.fromkeys(operator.tensors[1:], 0.0)
    attributes = STANDARD if operator is MOMENTUM else {}
    outputs = implementation.run(call_of(operator, inputs, attributes, "float64"))
    assert outputs[0] == large - 1
    assert outputs[0].dtype == np.float64
    assert implementation.seen_in == ("tinygrad",)


def test_single_float32_tensor_is_returned_in_double_after_the_first_step():
    implementation = mistake(ADAM, "X_new returned in double for T > 0")
    later = implementation.run(call_of(ADAM, ADAM_STEP))
    assert [output.dtype for output in later] == [np.float64, np.float32, np.float32]
    first = implementation.run(call_of(ADAM, ADAM_STEP | {"T": 0}))
    assert first[0].dtype == np.float32
    assert implementation.seen_in == ("onnx.reference",)


def test_several_double_tensors_are_returned_in_float32():
    implementation = mistake(ADAM, "several tensors returned in float32")
    large = float(2**24 + 1)
    single_call = call_of(ADAM, ADAM_STEP | {"R": 0, "X": large}, dtype="float64")
    names = ADAM.input_names(2)
    two = call_of(ADAM, dict.fromkeys(names, 0) | {"X1": large}, dtype="float64")
    assert implementation.run(single_call)[0] == large
    assert {output.dtype for output in implementation.run(two)} == {np.dtype("float32")}
    assert implementation.run(two)[0] == large - 1
    assert implementation.seen_in == ("onnx.reference",)


@each_operator
def test_known_mistakes_have_unique_names_and_descriptions(operator):
    mistakes = known_mistakes(operator)
    names = [item.name for item in mistakes]
    assert len(names) > (150 if operator.counts else 80)
    assert len(set(names)) == len(names)
    assert len({item.name for item in operator.known_mistakes}) == len(operator.known_mistakes)
    assert all(item.about.endswith((".", ")")) for item in mistakes)


def test_mistakes_that_show_only_in_large_tensors_are_distinct():
    names = {item.name for item in known_mistakes(MOMENTUM)}
    assert {f"only the first {size} elements updated" for size in (1024, 65536)} <= names


@each_operator
def test_no_known_mistake_equals_the_formula(operator):
    assert [item.name for item in known_mistakes(operator) if equivalent(operator, item)] == []


@pytest.mark.slow
@each_operator
def test_named_mistakes_have_large_errors_for_some_input(operator):
    # These mistakes round to float32, so their errors are small and affect only double tensors.
    rounding = {
        "attributes combined in float32",
        "bias correction with powers rounded to float32",
        "decay in float32",
        "defaults not rounded to float32",
        "root taken in float32",
    }
    for item in operator.known_mistakes:
        attributes, inputs = distinguishing_input(operator, mistake(operator, item.name))
        call = call_of(operator, inputs, attributes)
        right, wrong = evaluate(call), mistake(operator, item.name).run(call)
        structure = [(output.dtype, output.shape) for output in wrong]
        if structure == [(output.dtype, output.shape) for output in right]:
            rtol = 1e-8 if item.name in rounding else 1e-3
            pairs = zip(wrong, right, strict=True)
            assert not all(np.allclose(a, b, rtol=rtol, atol=0) for a, b in pairs), item.name


@each_training_operator
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unchanged_operator_agrees_with_the_formula(operator, dtype):
    inputs = dict.fromkeys(operator.input_names(1), 0.3) | {"T": 2}
    call = call_of(operator, inputs, STANDARD if operator is MOMENTUM else {}, dtype)
    same = Implementation("same", change=lambda formula: rewrite(formula, {"X": "X"}))
    assert same.run(call) == evaluate(call)
    assert equivalent(operator, same)


def test_wrong_default_applies_only_to_an_omitted_attribute():
    implementation = mistake(ADAM, "epsilon defaults to 1e-2")
    call = call_of(ADAM, ADAM_STEP, {"epsilon": 1e-6})
    left_out = call_of(ADAM, ADAM_STEP)
    assert evaluate(call) == evaluate(left_out) == implementation.run(call)
    assert implementation.run(left_out)[0] != evaluate(left_out)[0]


def test_known_mistake_that_fails_on_an_input_has_no_outputs():
    implementation = mistake(ADAM, "broadcast operands refused")
    inputs = {"R": 0.1, "T": 1, "X": [1, 2], "G": [1, 2], "V": [0, 0], "H": [0, 0]}
    assert len(implementation.run(call_of(ADAM, inputs))) == 3
    assert implementation.run(call_of(ADAM, inputs | {"H": [0]})) == []


@each_training_operator
def test_known_mistakes_do_not_change_their_inputs(operator):
    random = np.random.RandomState(5)
    inputs = {name: random.uniform(0.1, 1, (2, 3)) for name in operator.input_names(2)}
    inputs |= {"R": 0.1, "T": 3}
    call = call_of(operator, inputs, STANDARD if operator is MOMENTUM else {}, "float64")
    before = [tensor.copy() for group in call.groups for tensor in group]
    for item in known_mistakes(operator):
        item.run(call)
    after = [tensor for group in call.groups for tensor in group]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


TWO = {"R": 0.1, "T": 1, "X1": [1], "X2": [2], "G1": [3], "G2": [4], "V1": [5], "V2": [6]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, [0.25, 1.06, 7.5, 9.4]),
        ("tensors returned in reverse order", [1.06, 0.25, 9.4, 7.5]),
        ("outputs of several tensors interleaved", [0.25, 7.5, 1.06, 9.4]),
        # The mistake reads X1, X2 and G1 as X1, G1 and V1, and the other inputs accordingly.
        ("inputs of several tensors interleaved", [0.53, 2.96, 4.7, 10.4]),
        ("only the first tensor updated", [0.25, 2, 7.5, 6]),
        ("last of several tensors not updated", [0.25, 2, 7.5, 6]),
        ("results of the first tensor returned for all", [0.25, 0.25, 7.5, 7.5]),
        ("outputs of the first tensor only", [0.25, 7.5]),
        ("V of the first tensor used for all", [0.25, 1.15, 7.5, 8.5]),
        ("G of several tensors in reverse order", [0.15, 1.16, 8.5, 8.4]),
        ("outputs X_new and V_new exchanged", [7.5, 9.4, 0.25, 1.06]),
    ],
)
def test_known_mistake_confuses_several_tensors(name, expected):
    call = momentum_call(TWO, "float64")
    outputs = evaluate(call) if name is None else mistake(MOMENTUM, name).run(call)
    assert [output.item() for output in outputs] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "inputs", "shape"),
    [
        ("scalars returned with a dimension", {}, (1,)),
        ("results returned flat", {"X": [[1, 2], [3, 4]]}, (4,)),
        ("dimensions of one are dropped", {"X": [[1], [2]]}, (2,)),
        ("results returned transposed", {"X": [[1], [2], [3]]}, (1, 3)),
        ("shape of R leaks into the results", {"R": [0.1]}, (1,)),
        ("empty results returned with an element", {"X": []}, (1,)),
    ],
)
def test_known_mistake_returns_a_wrong_shape(name, inputs, shape):
    call = momentum_call(MOMENTUM_STEP | inputs)
    (wrong, _), (right, _) = mistake(MOMENTUM, name).run(call), evaluate(call)
    assert wrong.shape == shape != right.shape


def test_known_mistake_returns_a_broadcast_state_in_its_own_shape():
    call = momentum_call(MOMENTUM_STEP | {"X": [[1, 2], [3, 4]], "V": [5, 6]})
    outputs = mistake(MOMENTUM, "results have their operand's shape").run(call)
    assert [output.shape for output in outputs] == [(2, 2), (2,)]


def test_known_mistake_omits_the_tail_of_a_loop():
    call = momentum_call(MOMENTUM_STEP | {"X": [1.0] * 6, "V": [2.0] * 6, "G": [1.0] * 6})
    outputs = mistake(MOMENTUM, "tail of a loop by four left out").run(call)
    assert outputs[0].tolist() == pytest.approx([0.72] * 4 + [1.0] * 2)


@pytest.mark.parametrize(
    ("part", "G", "V_new"),
    [
        ("elements", [[0.0, 1], [0, 0]], [[2, 2.8], [2, 2]]),
        ("rows", [[0.0, 1], [0, 0]], [[1.8, 2.8], [2, 2]]),
        ("rows", [0.0, 0], [1.8, 1.8]),
        ("tensors", [[0.0, 1], [0, 0]], [[1.8, 2.8], [1.8, 1.8]]),
        ("tensors", [[0.0, 0], [0, 0]], [[2, 2], [2, 2]]),
    ],
)
def test_known_mistake_omits_parts_without_a_gradient(part, G, V_new):
    X, V = np.full_like(G, 1.0), np.full_like(G, 2.0)
    call = momentum_call({"R": 0.1, "T": 1, "X": X, "G": G, "V": V})
    outputs = mistake(MOMENTUM, f"{part} left out where G is 0").run(call)
    np.testing.assert_allclose(outputs[1], V_new, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "given", "seen"),
    [
        ("tensors rounded to bfloat16", 1 + 2**-8 + 2**-20, 1 + 2**-7),
        ("tensors rounded to float16", 1 + 2**-11 + 2**-20, 1 + 2**-10),
        ("tensors rounded to TF32", 1 + 2**-11 + 2**-20, 1 + 2**-10),
        ("tensors rounded to TF32", 2.0**100, 2.0**100),
        ("results rounded to float16", 2.0**100, math.inf),
        ("results rounded to bfloat16", 1 + 2**-8 + 2**-20, 1 + 2**-7),
        ("NaN in X taken as 0", math.nan, 0.0),
        ("X truncated to integers", -1.75, -1.0),
        ("X clipped to [-1, 1]", -1.75, -1.0),
    ],
)
def test_known_mistake_changes_values(name, given, seen):
    call = momentum_call({"R": 0, "T": 1, "X": given, "G": 0, "V": 0})
    outputs = mistake(MOMENTUM, name).run(call)
    assert outputs[0] == np.float32(seen)
    assert outputs[0].dtype == np.float32


def test_arithmetic_in_bfloat16_rounds_every_operation():
    call = momentum_call({"R": 1, "T": 0, "X": 256, "G": -1, "V": 0})
    # 257 lies in the middle between the bfloat16 numbers 256 and 258.
    assert ml_dtypes.bfloat16(257) == 256
    assert mistake(MOMENTUM, "computed in bfloat16").run(call)[0] == 256
    assert evaluate(call)[0] == 257


@pytest.mark.parametrize(
    ("name", "count", "seen"),
    [
        ("T + 1", 0, 1),
        ("T - 1", 1, 0),
        ("T read as int32", 2**31 + 5, -(2**31) + 5),
        ("magnitude of T", -3, 3),
    ],
)
def test_known_mistake_computes_with_a_wrong_update_count(name, count, seen):
    # Every wrong T changes the decay of Adagrad, whereas Momentum only tests whether T is 0.
    decay = {"decay_factor": 0.5}
    wrong = mistake(ADAGRAD, name).run(call_of(ADAGRAD, ADAGRAD_STEP | {"T": count}, decay))
    assert wrong == evaluate(call_of(ADAGRAD, ADAGRAD_STEP | {"T": seen}, decay))
    assert wrong != evaluate(call_of(ADAGRAD, ADAGRAD_STEP | {"T": count}, decay))


def test_only_one_of_several_equal_mistakes_is_kept():
    names = {item.name for item in known_mistakes(MOMENTUM)}
    assert "beta at T != 0" in names
    assert not names & {"magnitude of T", "T read as unsigned"}


def test_mistake_uses_attributes_that_are_not_rounded_to_float32():
    call = call_of(ADAM, ADAM_STEP | {"H": 0}, dtype="float64")
    outputs = mistake(ADAM, "attributes not rounded to float32").run(call)
    assert outputs[2] == pytest.approx(1 - 0.999, rel=1e-12)
    assert abs(evaluate(call)[2] / outputs[2] - 1) == pytest.approx(1.3e-5, rel=0.05)


def test_two_combined_known_mistakes_have_both_effects():
    first = mistake(ADAGRAD, "epsilon inside the square root")
    second = mistake(ADAGRAD, "decay_factor taken as 0")
    inputs = ADAGRAD_STEP | {"T": 1}
    call = call_of(ADAGRAD, inputs, {"decay_factor": 1.0})
    together = mistake(ADAGRAD, "epsilon inside the square root, no decay").run(call)
    assert both(first, second).run(call) == both(second, first).run(call) == together


def test_mistakes_of_operands_and_formula_combine_in_any_order():
    formula = mistake(MOMENTUM, "first step ignores V")
    operands = mistake(MOMENTUM, "R negated")
    node = mistake(MOMENTUM, "scalars returned with a dimension")
    call = momentum_call(MOMENTUM_STEP | {"T": 0})
    for pair in (both(formula, operands), both(operands, formula)):
        assert pair.run(call)[0] == pytest.approx(1.1)
        assert both(node, pair).run(call)[0].tolist() == pytest.approx([1.1])


def test_two_known_mistakes_around_the_formula_cannot_be_combined():
    first = mistake(ADAM, "scalars returned with a dimension")
    assert both(first, mistake(ADAM, "results rounded to TF32")) is None


def test_known_mistake_without_an_effect_is_an_error():
    with pytest.raises(ValueError, match="Adam: known mistake 'nothing' changes nothing"):
        known_mistakes(replace(ADAM, known_mistakes=(KnownMistake("nothing", "Nothing."),)))
    seven = KnownMistake("seven", "Seven.", replace={"H_new + 7": "H_new"})
    with pytest.raises(ValueError, match=r"adam has no 'H_new \+ 7'"):
        known_mistakes(replace(ADAM, known_mistakes=(seven,)))


def test_changed_operator_is_not_sent_by_name_to_workers():
    assert pickle.loads(pickle.dumps(ADAM)) is ADAM  # noqa: S301 - our own bytes
    with pytest.raises(pickle.PicklingError, match="Adam differs from the registered"):
        pickle.dumps(replace(ADAM, formula=ADAGRAD.formula))
