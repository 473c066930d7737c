"""Infinite inputs: NaN is right only if a reformulation subtracts infinity from infinity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import PLUGINS
from training_calls import calls, each_training_operator

from onnxopt_cli.core.compare import element_shares
from onnxopt_cli.interpret.bound.error_bound import also_right, bound
from onnxopt_cli.interpret.reformulations import reformulations
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import Reformulation
from onnxopt_cli.operators.registry import registry

REFORMULATED = f"python:{PLUGINS / 'reformulated.py'}"


@st.composite
def infinite_calls(draw, operator):
    """Draw a call in which some elements are infinite or NaN, and R may be infinite."""
    call = draw(calls(operator, exponents=(0, -3, 6)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))

    def spoilt(tensor):
        special = random.choice([np.inf, -np.inf, np.inf, np.nan], tensor.shape)
        return np.where(random.random(tensor.shape) < 0.2, special, tensor).astype(tensor.dtype)

    groups = tuple(tuple(map(spoilt, group)) for group in call.groups)
    R, *further = call.scalars
    if draw(st.integers(0, 4)) == 0:
        R = np.full_like(R, np.inf)
    return replace(call, groups=groups, scalars=(R, *further))


def accepted(derived_output, output):
    """Return a mask of the accepted elements."""
    return element_shares(derived_output.expected, output, derived_output.error_bound) <= 1


@each_training_operator
@given(data=st.data())
def test_alternatives_exist_only_for_elements_that_depend_on_infinity(operator, data):
    call = data.draw(infinite_calls(operator))
    if not all(form.is_accurate(call.attributes) for form in operator.reformulations):
        usual = {"alpha": 0.9, "beta": 0.9, "epsilon": 1e-3, "norm_coefficient_post": 0.25}
        call = replace(call, attributes={**call.attributes, **usual})
    strict = bound(replace(call, operator=replace(operator, reformulations=())))
    groups = len(call.groups)
    for place, (derived_output, narrow) in enumerate(zip(bound(call), strict, strict=True)):
        group = call.groups[place % groups]
        operands = np.broadcast_arrays(call.scalars[0].reshape(()), *group)
        reached = np.any([np.isinf(operand) for operand in operands], axis=0)
        reached = reached.reshape(group[0].shape)
        assert np.array_equal(derived_output.expected, narrow.expected, equal_nan=True)
        for value in (np.nan, np.inf, -np.inf, 0.5):
            output = np.full_like(derived_output.expected, value)
            more = accepted(derived_output, output) & ~accepted(narrow, output)
            assert not (more & ~reached).any()
            assert np.isnan(value) or np.isnan(derived_output.expected[more]).all()


@pytest.mark.slow
@each_training_operator
@given(data=st.data())
def test_no_reformulation_is_rejected_for_infinite_inputs(operator, data):
    call = data.draw(infinite_calls(operator))
    derived_outputs = bound(call)
    for reformulation in reformulations(operator):
        outputs = reformulation.run(call)
        for derived_output, output in zip(derived_outputs, outputs, strict=True):
            assert accepted(derived_output, output).all(), reformulation.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [("conformance", "-k", "/adam/", "--shard", "1/4"), ("pairwise", "-k", "*/adam/pair_*99")],
    ids=lambda item: item[0],
)
def test_adam_as_public_libraries_write_it_conforms(onnxopt, cases):
    # The test uses a hundredth of the pairs, because all pairs would take minutes.
    names = ("PyTorch", "PyTorchWithTensorRates", "TensorFlow", "Keras", "Fused")
    backends = [word for name in names for word in ("-b", f"{REFORMULATED}:{name}")]
    answer = onnxopt("run", *cases, "--isolation", "none", *backends)
    assert answer.code == 0, answer.out
    assert " ".join(answer.out.split()).count(" conforms: ") == len(names)


@pytest.mark.slow
def test_subtracted_decay_turns_infinity_into_nan(onnxopt):
    arguments = (
        "conformance/adam/not_finite",
        "conformance/adam/infinite_R",
        "--isolation",
        "none",
    )
    assert onnxopt("run", *arguments, "-b", f"{REFORMULATED}:Keras").code == 0


@pytest.mark.slow
def test_nan_is_wrong_if_no_reformulation_returns_it(onnxopt):
    arguments = ("conformance/adam/not_finite", "--isolation", "none", "--no-explain")
    names = ("NanForInfinity", "NanForInfiniteGradient")
    backends = [word for name in names for word in ("-b", f"{REFORMULATED}:{name}")]
    answer = onnxopt("run", *arguments, *backends)
    assert answer.code == 1
    assert " ".join(answer.out.split()).count("does not conform: 1 fail") == len(names)


ONE_STEP = """\
onnxopt: 1
suite: s
operator: Adam
cases:
- name: one
  attributes: {alpha: 0.9, epsilon: 0.1}
  inputs: {R: 0.1, T: 1, X: [1, 1], G: [0.5, 0.5], V: [.inf, 0.25], H: [1, 1]}
"""


HARD = """\
onnxopt: 1
suite: s
operator: Adam
cases:
- name: {name}
  attributes: {{alpha: {alpha}, beta: {alpha}, epsilon: {epsilon}, norm_coefficient_post: 0.5}}
  inputs: {{R: 0.1, T: 0, X: [1, 1], G: [0.5, 0.5], V: [{V}, 2], H: [{H}, 2]}}
"""


def test_reformulation_may_absorb_a_small_gradient(workplace, onnxopt):
    (workplace / "one.yaml").write_text(
        HARD.format(name="lost", alpha=0, epsilon=0.1, V=1e30, H=1e30)
    )
    for name in ("PyTorch", "TensorFlow", "Fused"):
        assert onnxopt("run", "one.yaml", "-b", f"{REFORMULATED}:{name}").code == 0
    wrong = onnxopt("run", "one.yaml", "-v", "--no-explain", "-b", f"{REFORMULATED}:ForgetsSmall")
    assert "H_new  float32[2]  1 of 2 off" in wrong.out


def test_subtracted_decay_may_turn_a_division_by_zero_into_nan(workplace, onnxopt):
    (workplace / "one.yaml").write_text(HARD.format(name="zero", alpha=1, epsilon=0, V=1, H=0))
    assert onnxopt("run", "one.yaml", "-b", f"{REFORMULATED}:Keras").code == 0
    answer = onnxopt("run", "one.yaml", "-v", "--no-explain", "-b", f"{REFORMULATED}:AlwaysNan")
    assert answer.code == 1
    assert "X_new  float32[2]  1 of 2 off" in answer.out


def test_reformulation_may_absorb_a_gradient_although_another_returns_nan(workplace, onnxopt):
    text = HARD.format(name="both", alpha=0.25, epsilon=0, V=1, H=0)
    text = text.replace("V: [1, 2], H: [0, 2]", "V: [1, .inf], H: [0, 0]")
    (workplace / "one.yaml").write_text(text.replace("G: [0.5, 0.5]", "G: [0.0, 0.0]"))
    assert onnxopt("run", "one.yaml", "-b", f"{REFORMULATED}:Keras").code == 0
    answer = onnxopt(
        "run", "one.yaml", "-v", "--no-explain", "-b", f"{REFORMULATED}:ZeroForInfinity"
    )
    assert answer.code == 1


@pytest.mark.slow
def test_neighbour_of_an_infinite_element_must_not_be_nan(workplace, onnxopt):
    (workplace / "one.yaml").write_text(ONE_STEP)
    assert onnxopt("run", "one.yaml", "-b", f"{REFORMULATED}:TensorFlow").code == 0
    answer = onnxopt(
        "run", "one.yaml", "-v", "--no-explain", "-b", f"{REFORMULATED}:NanForInfinity"
    )
    assert answer.code == 1
    assert "X_new  float32[2]  1 of 2 off" in answer.out
    assert "V_new  float32[2]  1 of 2 off" in answer.out
    assert "H_new  float32[2]  2 of 2 off" in answer.out


def test_reported_expected_value_is_that_of_the_formula(workplace, onnxopt):
    (workplace / "one.yaml").write_text(ONE_STEP)
    answer = onnxopt("run", "one.yaml", "--no-explain", "-b", f"{REFORMULATED}:ZeroForInfinity")
    assert "[0] -inf 0.0" in " ".join(answer.out.split())
    assert "nan" not in answer.out.partition("again:")[0]


@pytest.mark.slow
def test_trajectory_from_infinity_may_become_nan_if_a_reformulation_does(workplace, onnxopt):
    (workplace / "walk.yaml").write_text(
        ONE_STEP.replace("G: [0.5, 0.5], ", "")
        + "  steps: {count: 4, inputs: {G: {cycle: [[1, -0.5], [0.25, 2]]}}}\n"
    )
    assert onnxopt("run", "walk.yaml", "-k", "steps", "-b", f"{REFORMULATED}:TensorFlow").code == 0
    wrong = onnxopt(
        "run", "walk.yaml", "-k", "steps", "--no-explain", "-b", f"{REFORMULATED}:NanForInfinity"
    )
    assert wrong.code == 1
    assert "first exceeded the tolerance in step 1, X_new[1]" in " ".join(wrong.out.split())


@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
def test_fuzzing_accepts_nan_of_a_reformulation(onnxopt):
    options = ("--operator", "Adam", "--examples", "300", "--isolation", "none")
    answer = onnxopt("fuzz", "-b", f"{REFORMULATED}:TensorFlowBesideInfinity", *options)
    assert answer.code == 0, answer.out


def difference(_, X, G):
    return (X * G - X,)


def sum_of_both(_, X, G):
    return (X + G,)


def judged(formula, form, X, G):
    """Return the error bound of a formula with one reformulation.

    Args:
        formula: the formula, a function of R, X and G.
        form: the expressions of the formula, each with its replacement in the reformulation.
        X: the elements of X.
        G: the elements of G.
    """
    adam = registry().named("Adam")
    changed = replace(
        adam,
        formula=formula,
        scalars=adam.scalars[:1],
        tensors=("X", "G"),
        outputs={"Y": "X"},
        attributes=(),
        reformulations=(Reformulation("other", form),),
    )
    inputs = [np.float32(1), np.float32(X), np.float32(G)]
    return bound(bind(changed, inputs, complete_attributes(changed, {})))[0]


def test_reformulations_of_user_operators_define_correct_results():
    derived_output = judged(
        difference, {"X * G - X": "X * (G - 1)"}, [np.inf, 1, np.nan], [2, 2, 2]
    )
    assert accepted(derived_output, np.float32([np.nan, 1, np.nan])).all()
    assert accepted(derived_output, np.float32([np.inf, 1, np.nan])).all()
    assert not accepted(derived_output, np.float32([-np.inf, np.inf, np.inf])).any()


def test_nan_from_finite_inputs_is_wrong_even_beside_infinite_inputs():
    form = {"X + G": "X + G * (X / X)"}
    derived_output = judged(sum_of_both, form, [np.inf, 0, 1], [1, 1, 1])
    assert accepted(derived_output, np.full(3, np.nan, np.float32)).tolist() == [True, False, False]
    assert accepted(derived_output, np.float32([np.inf, 1, 2])).all()


def unity(T, dtype=np.float32, **attributes):
    """Return X, G, V and H for a step of Adam, and the error bounds; by default, alpha is 1."""
    adam = registry().named("Adam")
    group = [np.array(number, dtype) for number in ([1, 1, -2], [1, 0, 1], [3, 0, -2], [4, 1, 9])]
    inputs = [np.array(0.5, dtype), np.int64(T), *group]
    values = {"alpha": 1.0, "epsilon": 0.25, **attributes}
    return group, bound(bind(adam, inputs, complete_attributes(adam, values)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("T", [1, 7, 10**6, 2**53])
def test_zero_from_cancellation_may_have_either_sign(T, dtype):
    (X, *_), (X_new, V_new, _) = unity(T, dtype)
    for zero in (0.0, -0.0):
        with np.errstate(all="ignore"):
            rate = 0.5 * np.sqrt(1 - np.float32(0.999) ** np.float64(T)) / np.float64(zero)
            step = X - rate * V_new.expected / 1
        assert accepted(X_new, step.astype(dtype)).all()
    # X_new depends on the sign of the zero, but is never finite.
    for wrong in (X, np.zeros_like(X), np.full_like(X, 3e38)):
        assert not accepted(X_new, wrong).any()
    assert not accepted(V_new, -V_new.expected)[[0, 2]].any()


def test_root_of_a_zero_from_cancellation_has_no_sign():
    for zero in (0.0, -0.0):
        (X, *_), (X_new, *_) = unity(3, alpha=0.5, beta=1.0)
        assert accepted(X_new, X - np.sqrt(np.float32(zero)) * X).all()
        _, (both, *_) = unity(3, beta=1.0)
        assert np.isnan(both.expected).all()
        assert not accepted(both, np.full(3, np.inf, np.float32)).any()


def test_power_computed_by_a_logarithm_passes(workplace, onnxopt):
    step = ONE_STEP.replace("alpha: 0.9", "alpha: 1").replace(".inf", "0.5")
    (workplace / "one.yaml").write_text(step)
    for name in ("Logarithmic", "PyTorch"):
        assert onnxopt("run", "one.yaml", "-b", f"{REFORMULATED}:{name}").code == 0


def test_reformulations_are_not_evaluated_for_finite_inputs(monkeypatch):
    def asked(*_):
        raise AssertionError

    monkeypatch.setattr(Reformulation, "written", asked)
    adam = registry().named("Adam")
    inputs = [np.float32(1), np.int64(1), *(np.float32([3e38]) for _ in adam.tensors)]
    assert also_right(bind(adam, inputs, complete_attributes(adam, {}))) == []
