"""Explanations of failures by known mistakes."""

from __future__ import annotations

import pytest

from onnxopt_cli.cases.suites import suite_cases
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.result import Result
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.readings.deviate import deviations
from onnxopt_cli.readings.equivalence import equivalent
from onnxopt_cli.readings.implementation import both
from onnxopt_cli.run.audit import find_trials
from onnxopt_cli.run.expectation import Judging
from onnxopt_cli.run.explain import explain

CASES = {case.id: case for suite in ("conformance", "pruning") for case in suite_cases(suite)}
TRIALS, _ = find_trials(list(CASES.values()), Judging())

PYTORCH = """\
import numpy as np
import onnx


class Adam:
    '''Adam as PyTorch has it, for one tensor.'''

    def run(self, model, inputs):
        given = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
        alpha, beta, epsilon = (np.float32(given[n]) for n in ("alpha", "beta", "epsilon"))
        R, T, X, G, V, H = inputs.values()
        V = alpha * V + (1 - alpha) * G
        H = beta * H + (1 - beta) * G * G
        corrected = np.sqrt(H) / np.sqrt(np.float32(1 - float(beta) ** int(T)))
        step = np.float32(R / (1 - float(alpha) ** int(T)))
        return [(X - step * V / (corrected + epsilon)).astype(X.dtype), V, H]
"""

STEPS = """\
onnxopt: 1
suite: steps
operator: Adam
cases:
  - name: one
    attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.1}
    inputs: {R: 0.1, T: 1, X: [1.0, 0.5], G: [1.0, -0.3], V: [0.0, 0.0], H: [0.0, 0.0]}
  - name: two
    attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.1}
    inputs: {R: 0.1, T: 2, X: [1.0, 0.5], G: [1.0, -0.3], V: [0.1, 0.2], H: [0.3, 0.1]}
"""


def results_of(implementation, operator):
    """The results of a wrong implementation on the conformance suite."""
    for trial in TRIALS[operator.name]:
        outputs = implementation.run(trial.call)
        passes = bool(outputs) and trial.excess(outputs) <= 1
        outcome = Outcome.PASS if passes else Outcome.FAIL if outputs else Outcome.ERROR
        kept = () if passes else tuple(outputs)
        location = CASES[trial.case].location
        yield Result(trial.case, location, (operator.name,), "it", outcome, returned=kept)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_a_deviation_as_backend_is_explained_by_its_own_name(operator):
    # Every eighth: all of them take minutes, and scripts/explain_every_deviation.py does that.
    sample = deviations(operator)[::8]
    own = 0
    for deviation in sample:
        found = explain(list(results_of(deviation, operator)), CASES)
        assert found, f"{deviation.name!r} is not explained"
        if found[0].deviations == (deviation.name,):
            own += 1
            continue
        (named,) = found[0].deviations
        other = next(it for it in deviations(operator) if it.name == named)
        assert all(
            trial.excess(other.run(trial.call)) > 1
            for trial in TRIALS[operator.name]
            if trial.excess(deviation.run(trial.call)) > 1
        ), f"{named!r} does not fail where {deviation.name!r} does"
    assert own >= 0.9 * len(sample)


def test_a_backend_that_does_as_pytorch_does_is_told_so(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "torch_like.py").write_text(PYTORCH)
    arguments = ("run", "steps.yaml", "-b", "python:torch_like.py:Adam", "-q")
    answer = onnxopt(*arguments)
    assert answer.code == 1
    text = " ".join(answer.out.split())
    assert "consistent with 'epsilon added after bias correction', as in PyTorch" in text
    assert "2 of 2 failing cases" in text
    assert "consistent" not in onnxopt(*arguments, "--no-explain").out


REFUSING = """\
from onnxopt_cli.backends.numpy_backend import NumpyBackend


class Adam:
    def run(self, model, inputs):
        if len({inputs[name].shape for name in "XGVH"}) > 1:
            raise ValueError("shapes differ")
        return NumpyBackend().prepare(model).run(inputs)
"""


def test_errors_that_a_known_mistake_makes_are_explained_and_no_others(workplace, onnxopt):
    scalar = "  - {name: wide, attributes: {}, inputs: {R: 1, T: 1, X: [1, 2], G: 1, V: 0, H: 0}}\n"
    (workplace / "steps.yaml").write_text(STEPS + scalar)
    (workplace / "refusing.py").write_text(REFUSING)
    arguments = ("run", "steps.yaml", "-q", "-b", "python:refusing.py:Adam")
    answer = onnxopt(*arguments, "--log", "run.jsonl")
    assert "consistent with 'broadcast operands refused': the failing case" in answer.out
    assert "broadcast operands refused" in onnxopt("explain", "run.jsonl").out
    # The same error in one more case, which nothing about operands explains.
    (workplace / "refusing.py").write_text(REFUSING.replace("> 1:", '> 1 or inputs["T"] == 2:'))
    assert "consistent" not in onnxopt(*arguments).out
    # The same error in one of two cases with such operands: it is not about them.
    (workplace / "steps.yaml").write_text(STEPS + scalar + scalar.replace("wide", "flat"))
    once = REFUSING.replace("> 1:", '> 1 and not inputs["R"] == 2:')
    (workplace / "refusing.py").write_text(once)
    assert "consistent with 'broadcast operands refused'" in onnxopt(*arguments).out
    other = scalar.replace("wide", "flat").replace("R: 1", "R: 2")
    (workplace / "steps.yaml").write_text(STEPS + scalar + other)
    assert "consistent" not in onnxopt(*arguments).out


def test_two_mistakes_at_once_are_both_named():
    adam = next(operator for operator in OPERATORS if operator.name == "Adam")
    named = {it.name: it for it in deviations(adam)}
    first, second = named["epsilon inside the square root"], named["no bias correction"]
    pair = both(first, second)
    assert not equivalent(adam, pair)
    (found,) = explain(list(results_of(pair, adam)), CASES)
    assert "epsilon inside the square root" in found.text
    assert "no bias correction" in found.text


def test_a_mistake_that_nobody_knows_is_not_explained(workplace, onnxopt):
    strange = PYTORCH.replace("step * V", "step * np.float32(1.0625) * V * V")
    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "strange.py").write_text(strange)
    answer = onnxopt("run", "steps.yaml", "-b", "python:strange.py:Adam", "-q")
    assert "consistent" not in answer.out
    assert "none of" in answer.out


@pytest.mark.parametrize("form", ["log", "report"])
def test_a_saved_run_can_be_explained_later(workplace, onnxopt, form):
    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "torch_like.py").write_text(PYTORCH)
    saved = workplace / "saved"
    save = ["--log", saved] if form == "log" else ["--report", f"json={saved}"]
    onnxopt("run", "steps.yaml", "-b", "python:torch_like.py:Adam", "--no-explain", "-q", *save)
    answer = onnxopt("explain", saved)
    assert answer.code == 0
    assert "epsilon added after bias correction" in answer.out
    assert onnxopt("explain", workplace / "steps.yaml").code == 2


def test_nothing_is_explained_where_nothing_failed(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(STEPS)
    onnxopt("run", "steps.yaml", "--log", "run.jsonl", "-q")
    answer = onnxopt("explain", "run.jsonl")
    assert answer.code == 0
    assert "no failing case" in answer.out
