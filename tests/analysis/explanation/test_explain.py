"""Known mistakes, pairs of mistakes, and conditions as explanations of failures."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import sleep

import pytest
from places import PLUGINS
from trajectory_files import trajectory_text

from onnxopt_cli.analysis.audit import find_trials
from onnxopt_cli.analysis.explanation.explain import (
    SearchClock,
    _OutOfTimeError,
    _Search,
    _until_out_of_time,
    explain,
)
from onnxopt_cli.analysis.explanation.explain_remaining import CauseSearch
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, known_mistakes, named
from onnxopt_cli.operators.call import bind, node_attributes
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.operators.rewrite import rewrite
from onnxopt_cli.run.log.log_reader import read_log
from onnxopt_cli.suites.catalogue import suite_cases


@cache
def all_cases():
    suites = ("conformance", "pruning")
    return {case.id: case for suite in suites for case in suite_cases(suite)}


@cache
def small_trials(operator, step=1):
    """Return every ``step``-th case of an operator as an audited case; omit large (slow) ones."""
    cases = [case for case in all_cases().values() if case.operators == (operator,)][::step]
    trials, _ = find_trials(cases, Judging())
    return [trial for trial in trials[operator] if trial.call.size < 1000]


PYTORCH = """\
import numpy as np
import onnx


class Adam:
    '''Adam as PyTorch computes it, for one tensor.'''

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


def test_interrupted_search_is_reported(workplace, onnxopt, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "pytorch.py").write_text(PYTORCH)
    monkeypatch.setattr("onnxopt_cli.analysis.explanation.explain.explain", interrupted)
    answer = onnxopt("run", "steps.yaml", "-b", "python:pytorch.py:Adam", "--isolation", "none")
    assert answer.code == 1
    assert "failures are not explained" in answer.err


def test_search_for_counterfactuals_keeps_its_results_at_the_time_limit():
    def ask(*_):
        raise _OutOfTimeError

    assert _until_out_of_time(ask)("mine", None, {}) is Outcome.TIMEOUT


@pytest.mark.parametrize("part", ["try_single", "find_other_cause"])
def test_error_in_the_search_for_mistakes_leaves_the_verdict(workplace, onnxopt, monkeypatch, part):
    def fail(*_, **__):
        raise ValueError("duplicate value")

    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "pytorch.py").write_text(PYTORCH)
    monkeypatch.setattr(_Search, "try_combined", lambda *_, **__: iter(()))
    # try_single is a generator, and find_other_cause is an ordinary method.
    is_iterator = part == "try_single"
    monkeypatch.setattr(_Search, part, (lambda *_, **__: map(fail, [0])) if is_iterator else fail)
    run = ("run", "steps.yaml", "-b", "python:pytorch.py:Adam", "--isolation", "none")
    answer = onnxopt(*run)
    assert answer.code == 1
    reason = "a bug in onnxopt ended the search for causes: ValueError: duplicate value"
    assert reason in " ".join(answer.out.split())
    monkeypatch.setenv("ONNXOPT_DEBUG", "1")
    with pytest.raises(ValueError, match="duplicate"):
        onnxopt(*run)


def results_of(implementation, operator, step=1):
    """Yield the results of a wrong implementation on every ``step``-th case of an operator."""
    for trial in small_trials(operator.name, step):
        outputs = implementation.run(trial.call)
        passes = bool(outputs) and trial.excess(outputs) <= 1
        outcome = Outcome.PASS if passes else Outcome.FAIL if outputs else Outcome.ERROR
        returned = () if passes else tuple(outputs)
        location = all_cases()[trial.case].location
        yield Result(trial.case, location, (operator.name,), "backend", outcome, returned=returned)


def explanation_of(operator, formula):
    """Return the explanation of a backend that computes ``operator`` by the wrong ``formula``."""
    wrong = Implementation("wrong", change=lambda _: formula)

    def ask(_, model, inputs):
        (node,) = model.graph.node
        attributes = node_attributes(operator, node)
        return wrong.run(bind(operator, [inputs[name] for name in node.input], attributes))

    results = list(results_of(wrong, operator))
    (explanation,) = explain(results, all_cases(), ask=ask)
    return explanation.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("W - Z + U", "np.clip(W - Z + U, -10, 10)", "W - Z + U clipped to [-10, 10]"),
        ("W - Z + U", "np.where(rho > 2, 0.25, 1) * W - Z + U", "W times 0.25"),
    ],
)
def test_change_of_an_expression_is_named(old, new, change):
    operator = registry().named("AdmmGradient")
    text = explanation_of(operator, rewrite(operator.formula, {old: new}))
    assert text.startswith(f"consistent with the change {change!r}")
    assert ("but only where rho is above 2" in text) == ("rho > 2" in new)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdmmPenalty", "MagnitudePrune"])
def test_backend_with_a_known_mistake_is_explained_by_it(name):
    # The test tries a sample. scripts/explain_known_mistakes.py tries all mistakes.
    operator = next(operator for operator in registry().operators if operator.name == name)
    mistakes = known_mistakes(operator)
    sample = mistakes[:: len(mistakes) // 4]
    named_correctly = 0
    for mistake in sample:
        results = list(results_of(mistake, operator))
        explanations = explain(results, all_cases())
        if not any(result.returned for result in results):
            assert not explanations, f"{mistake.name!r} only raises errors"
            named_correctly += 1
            continue
        assert explanations, f"{mistake.name!r} is not explained"
        if explanations[0].known_mistakes == (mistake.name,):
            named_correctly += 1
            continue
        (name,) = explanations[0].known_mistakes
        named = next(candidate for candidate in mistakes if candidate.name == name)
        assert all(
            trial.excess(named.run(trial.call)) > 1
            for trial in small_trials(operator.name)
            if trial.excess(mistake.run(trial.call)) > 1
        ), f"{name!r} does not fail where {mistake.name!r} does"
    assert named_correctly >= 0.9 * len(sample)


def test_backend_that_computes_as_pytorch_is_explained(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "torch_like.py").write_text(PYTORCH)
    arguments = ("run", "steps.yaml", "-b", "python:torch_like.py:Adam", "-q", *IN_PROCESS)
    answer = onnxopt(*arguments)
    assert answer.code == 1
    text = " ".join(answer.out.split())
    assert "consistent with 'epsilon added after bias correction', as in PyTorch" in text
    assert "2 of 2 failing cases" in text
    assert "consistent" not in onnxopt(*arguments, "--no-explain").out


MISTAKEN = PLUGINS / "mistaken.py"
#: A time limit that the search does not reach, even on a busy machine.
LONG_EXPLAIN = ("--explain-time", "3600")
IN_PROCESS = ("--isolation", "none")
TENSORS = "X: [1.0, 0.5], G: [1.0, -0.3], V: [0.1, 0.2], H: [0.3, 0.1]"
LARGE_TENSOR = "{random: {uniform: {low: 0.5, high: 1.0}, seed: 1}, shape: [180000]}"


def mistaken(name):
    return f"python:{MISTAKEN}:{name}"


MOMENTUM = """\
onnxopt: 1
suite: other
operator: Momentum
cases:
  - name: one
    attributes: {alpha: 0.9, beta: 0.95, mode: standard, norm_coefficient: 0.1}
    inputs: {R: 0.1, T: 1, X: [1.0, 0.5], G: [1.0, -0.3], V: [0.1, 0.2]}
"""
SEVERAL_TENSORS = """\
  - name: three
    attributes: {alpha: 0.9, beta: 0.95, mode: nesterov, norm_coefficient: 0.1}
    inputs: {R: 0.1, T: 1, X1: [1.0], X2: [2.0, 0.5], X3: 3.0, G1: [1.0], G2: [0.3, -2.0], G3: 0.5,
             V1: [0.1], V2: [0.2, 0.3], V3: 0.4}
  - name: nesterov
    attributes: {alpha: 0.9, beta: 0.95, mode: nesterov, norm_coefficient: 0.1}
    inputs: {R: 0.1, T: 1, X: [1.0, 0.5], G: [1.0, -0.3], V: [0.1, 0.2]}
"""


def steps(*counts, more=""):
    """Return a case file of Adam with a case for each count T; append the text ``more``."""
    head = STEPS.partition("  - name")[0]
    values = "attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.1}"
    return head + "".join(
        f"  - {{name: t{count}, {values}, inputs: {{R: 0.1, T: {count}, {TENSORS}}}}}\n"
        for count in counts
    ) + more  # fmt: skip


def explanations(path="out.json"):
    return json.loads(Path(path).read_text())["explanations"]


def counted(text):
    """Return the sum of the numbers of cases in an explanation, and the number of failing cases."""
    total = re.search(r"(\d+) of (\d+) failing cases", text)
    assert total, text
    listed = text[total.end() :]
    return int(total[1]) + sum(map(int, re.findall(r"[:,] (\d+) ", listed))), int(total[2])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            ("conformance/adam", "-k", "wired", "--lower", "never"), marks=pytest.mark.slow
        ),
        ("conformance/momentum", "-k", "wired", "--lower", "always"),
        pytest.param(("pruning/magnitudeprune", "-k", "wired"), marks=pytest.mark.slow),
    ],
    ids=lambda arguments: arguments[0],
)
def test_backend_with_only_errors_is_not_explained(workplace, onnxopt, arguments):
    run = ("run", *arguments, "-b", mistaken("Refusing"), "-q", "--isolation", "none")
    answer = onnxopt(*run, "--report", "json=out.json", "--log", "run.jsonl")
    assert answer.code == 1
    assert explanations() == []
    assert not {"consistent", "none of the"} & set(answer.out.split())
    later = onnxopt("explain", "run.jsonl")
    assert later.code == 1
    assert "no cause found" in later.out
    assert "consistent" not in later.out


ONE_TENSOR = """\
import numpy as np


class Adam:
    def run(self, model, inputs):
        attributes = model.graph.node[0].attribute
        a = {attribute.name: np.float32(attribute.f) for attribute in attributes}
        alpha, beta, epsilon = a["alpha"], a["beta"], a["epsilon"]
        R, T, X, G, V, H = inputs.values()
        G = a["norm_coefficient"] * X + G
        V = alpha * V + (1 - alpha) * G
        H = beta * H + (1 - beta) * G * G
        step = R * (V / (1 - alpha**T)) / (np.sqrt(H / (1 - beta**T)) + epsilon)
        return [np.float32(X - step), np.float32(V), np.float32(H)]
"""


def test_errors_alone_are_not_attributed_to_a_mistake(workplace, onnxopt):
    (workplace / "plugin.py").write_text(ONE_TENSOR)
    arguments = "run spec conformance -b python:plugin.py:Adam --isolation none --operator Adam -k"
    answer = onnxopt(*arguments.split(), "T_3 or tensors or multiple or broadcast")
    assert "epsilon added after bias correction" in " ".join(answer.out.split())
    assert "too many values to unpack" in answer.out
    assert "interleaved" not in answer.out


def test_fuzzing_a_backend_with_only_errors_explains_nothing(workplace, onnxopt):
    run = ("fuzz", "-b", mistaken("Refusing"), "--isolation", "none", "--examples", "20")
    answer = onnxopt(*run, "--operator", "Adam")
    assert "error Adam" in answer.out
    assert "consistent" not in answer.out
    assert "known mistakes" not in answer.out


@pytest.mark.isolated
def test_failing_cases_of_every_outcome_are_counted(workplace, onnxopt):
    refusal = "  - {name: refused, rejects: true, attributes: {}, inputs: {R: 1, T: 1, X: [1, 2], "
    refusal += "G: [1, 2, 3], V: 0, H: 0}}\n"
    large = f"  - {{name: large, attributes: {{epsilon: 0.1}}, inputs: {{R: 1, T: 1, X: {LARGE_TENSOR}, "  # noqa: E501
    large += f"G: {LARGE_TENSOR}, V: {LARGE_TENSOR}, H: {LARGE_TENSOR}}}}}\n"
    (workplace / "steps.yaml").write_text(steps(1, 2, 3, 7, 8, 9, more=refusal + large))
    walk = trajectory_text("Adam", "{quadratic: {curvature: [1, 0.5], center: [0.5, -1.75]}}", 5)
    (workplace / "walk.yaml").write_text(walk)
    run = ("run", "steps.yaml", "walk.yaml", "-b", mistaken("InManyWays"), "-q", *LONG_EXPLAIN)
    answer = onnxopt(*run, "--report", "json=out.json")
    (found,) = explanations()
    assert found["known_mistakes"] == ["epsilon inside the square root"]
    results = json.loads(Path("out.json").read_text())["results"]
    failing = [result for result in results if result["outcome"] != "pass"]
    assert {result["outcome"] for result in failing} == {"fail", "error", "crash"}
    assert counted(found["text"]) == (len(failing), len(failing))
    assert found["others"] == {
        "not reproduced": {"error": 1},
        "not tried": {
            "crash": 1, "large": 1, "trajectory": 2, "with right values": 1, "wrongly accepted": 1
        },
    }  # fmt: skip
    text = " ".join(answer.out.split())
    assert "'epsilon inside the square root': 3 of 10 failing cases; not repr" in text
    assert "2 trajectories" in text


@pytest.mark.slow
def test_log_has_the_explanation_of_its_run(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(steps(1, 2, 3))
    run = ("run", "steps.yaml", "-b", mistaken("InManyWays"), "-q", *LONG_EXPLAIN)
    onnxopt(*run, "--report", "json=out.json", "--log", "run.jsonl")
    (found,) = explanations()
    assert found["text"] in " ".join(onnxopt("explain", "run.jsonl", *LONG_EXPLAIN).out.split())


def test_merged_explanations_count_the_cases_of_all_shards(workplace, onnxopt):
    # Both shards have errors, but only one of them has wrong values.
    (workplace / "steps.yaml").write_text(steps(1, 2, 3, 4, 5, 6, 7, 10, 11, 12))
    run = ("run", "steps.yaml", "-b", mistaken("InManyWays"), "-q", *IN_PROCESS, *LONG_EXPLAIN)
    for part in ("1", "2"):
        onnxopt(*run, "--shard", f"{part}/2", "--log", f"{part}.jsonl")
    answer = onnxopt("report", "merge", "1.jsonl", "2.jsonl", "-o", "all.jsonl")
    assert answer.code == 1, answer.text
    merged = read_log(Path("all.jsonl")).footer["explanations"]
    assert merged
    assert [counted(explanation["text"]) for explanation in merged] == [(10, 10)] * len(merged)


@pytest.mark.slow
def test_mistake_in_some_tensors_is_named_with_the_condition(workplace, onnxopt):
    (workplace / "other.yaml").write_text(MOMENTUM + SEVERAL_TENSORS)
    run = ("run", "other.yaml", "-q", *IN_PROCESS, *LONG_EXPLAIN, "--report", "json=out.json")
    onnxopt(*run, "-b", mistaken("StandardAfterTheFirst"))
    (found,) = explanations()
    assert found["known_mistakes"] == ["mode taken as standard"]
    assert "but only where the tensor's number is at least 2" in found["text"]


@pytest.mark.slow
def test_change_that_agrees_with_most_inputs_is_not_named(workplace, onnxopt):
    # A formula with a squared threshold often agrees with the backend: it prunes all elements, too,
    # if the largest magnitude is above 1.
    run = ("run", "pruning", "--operator", "AdmmUpdate", "-k", "percent", "-q", *IN_PROCESS)
    report = ("--explain-time", "60", "--report", "json=out.json")
    onnxopt(*run, *report, "-b", mistaken("PrunesAllAtHundred"))
    (found,) = explanations()
    assert "consistent with" not in found["text"]
    assert "percent is at least 100" in found["text"]


def test_mistake_about_zeros_is_not_named_if_tiny_elements_are_wrong_as_well(workplace, onnxopt):
    run = "run pruning conformance --isolation none --operator MagnitudePrune -b"
    answer = onnxopt(*run.split(), mistaken("PrunesTinyElements"))
    assert "MagnitudePrune: W_new" in answer.out or "MagnitudePrune: mask" in answer.out
    assert "mask of nonzero elements" not in answer.out


def test_changing_outputs_of_a_stateful_backend_are_reported(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(steps(1, 9))
    run = ("run", "steps.yaml", "-q", *IN_PROCESS, *LONG_EXPLAIN, "--report", "json=out.json")
    onnxopt(*run, "-b", mistaken("CountsRuns"))
    (found,) = explanations()
    assert found["text"].startswith("the same node with the same inputs returns other outputs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "backend"),
    [
        ("outputs_reversed", "ReturnsInNodeOrder"),
        ("attributes_falling", "ReadsAttributesByPosition"),
    ],
)
def test_wrong_order_in_a_model_is_not_reported_as_a_state(onnxopt, case, backend):
    run = ("run", f"conformance/momentum/wired_{case}", "-q", *IN_PROCESS, *LONG_EXPLAIN)
    answer = onnxopt(*run, "-b", mistaken(backend))
    assert answer.code == 1
    assert "runs again" not in " ".join(answer.out.split())


@pytest.mark.slow
def test_mistake_with_a_condition_is_named_with_the_condition(workplace, onnxopt):
    run = ("run", "steps.yaml", "-q", *IN_PROCESS, *LONG_EXPLAIN, "--report", "json=out.json")
    (workplace / "steps.yaml").write_text(steps(2))
    onnxopt(*run, "-b", mistaken("OnlyAtTwo"), "--log", "run.jsonl")
    # The run finds the condition with generated inputs. The command "explain" cannot submit inputs,
    # so its output names the mistake without the condition.
    assert explanations()[0]["known_mistakes"] == ["epsilon inside the square root"]
    assert "but only where T is 2" in explanations()[0]["text"]
    saved = onnxopt("explain", "run.jsonl", *LONG_EXPLAIN)
    assert "consistent with 'epsilon inside the square root'" in saved.out


def test_mistakes_are_judged_by_the_tolerances_of_the_run(workplace, onnxopt):
    # The tolerance of the case "tolerant" is so wide that backend and mistake both pass the case.
    tolerant = "  - {name: tolerant, tolerance: {rtol: 1, atol: 1}, attributes: {epsilon: 0.1}, "
    tolerant += f"inputs: {{R: 0.1, T: 1, {TENSORS}}}}}\n"
    (workplace / "steps.yaml").write_text(steps(2, 3, more=tolerant))
    run = ("run", "steps.yaml", "-b", mistaken("InsideTheRoot"), "-q", *IN_PROCESS, *LONG_EXPLAIN)
    answer = onnxopt(*run, "--log", "run.jsonl")
    assert "consistent with 'epsilon inside the square root'" in answer.out
    assert "consistent with 'epsilon inside" in onnxopt("explain", "run.jsonl", *LONG_EXPLAIN).out
    # An option sets the tolerance of all cases.
    far = "  - {name: far, attributes: {epsilon: 0.1}, inputs: {R: 0.1, T: 1, "
    far += "X: [1000.0, 500.0], G: [1.0, -0.3], V: [0.1, 0.2], H: [0.3, 0.1]}}\n"
    (workplace / "steps.yaml").write_text(steps(2, 3, more=far))
    answer = onnxopt(*run, "--rtol", "1e-4", "--log", "rtol.jsonl")
    assert "1 pass, 2 fail" in answer.out
    assert "consistent with 'epsilon inside the square root'" in answer.out
    assert "consistent with 'epsilon inside" in onnxopt("explain", "rtol.jsonl", *LONG_EXPLAIN).out


def test_rounding_rejected_by_a_strict_tolerance_is_not_explained(workplace, onnxopt):
    (workplace / "torch_like.py").write_text(PYTORCH.replace("corrected + e", "corrected + 0 * e"))
    (workplace / "steps.yaml").write_text(steps(1, 2, 3).replace("epsilon: 0.1", "epsilon: 0"))
    run = ("run", "steps.yaml", "-b", "python:torch_like.py:Adam", "-q", *IN_PROCESS)
    assert onnxopt(*run).code == 0
    answer = onnxopt(*run, "--ulp", "0", "--report", "json=out.json")
    assert answer.code == 1
    assert explanations() == []


def test_errors_that_the_mistake_does_not_raise_are_counted_separately(workplace, onnxopt):
    wide = "  - {name: wide, attributes: {}, inputs: {R: 1, T: 1, X: [1, 2], G: 1, V: 0, H: 0}}\n"
    (workplace / "steps.yaml").write_text(steps(1, 2, more=wide))
    run = (
        "run",
        "steps.yaml",
        "-b",
        mistaken("RefusesBroadcasting"),
        "-q",
        *IN_PROCESS,
        *LONG_EXPLAIN,
    )
    answer = onnxopt(*run)
    text = " ".join(answer.out.split())
    assert "'epsilon inside the square root': 2 of 3 failing cases; not reproduced: 1 error" in text
    assert "broadcast operands refused" not in text
    # If the backend returns no wrong values, its errors are not explained.
    (workplace / "steps.yaml").write_text(steps(more=wide))
    assert "consistent" not in onnxopt(*run).out


PAIR = """\
from onnxopt_cli.interpret.implementation import both
from onnxopt_cli.operators.call import sole_call
from onnxopt_cli.mutation.known_mistakes import known_mistakes
from onnxopt_cli.operators.registry import registry


class Adam:
    def run(self, model, inputs):
        mistakes = {mistake.name: mistake for mistake in known_mistakes(registry().named("Adam"))}
        pair = (mistakes["epsilon inside the square root"], mistakes["no bias correction"])
        return both(*pair).run(sole_call(model, inputs))
"""


@pytest.mark.slow
def test_pair_of_mistakes_is_named_if_neither_alone_reproduces_the_failures(workplace, onnxopt):
    (workplace / "pair.py").write_text(PAIR)
    (workplace / "steps.yaml").write_text(steps(2))
    run = ("run", "steps.yaml", "-b", "python:pair.py:Adam", "-q", *IN_PROCESS, *LONG_EXPLAIN)
    onnxopt(*run, "--report", "json=out.json")
    (found,) = explanations()
    assert {*found["known_mistakes"]} == {"epsilon inside the square root", "no bias correction"}


class Ticks:
    """A clock that advances by a second at each reading."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return self.now


def test_time_limit_excludes_the_time_of_waiting_for_a_processor(tmp_path, monkeypatch):
    statistics = tmp_path / "schedstat"
    monkeypatch.setattr("onnxopt_cli.analysis.explanation.explain.SCHEDULER_STATISTICS", statistics)

    def seconds(queued):
        """Return the seconds that the clock counts while a backend runs for half a second.

        Args:
            queued: the nanoseconds for which the backend waited for a processor, according to the
                statistics of the scheduler.
        """

        def wait(*_):
            sleep(0.5)
            statistics.write_text(f"0 {queued} 1")

        clock = SearchClock()
        timed = clock.timed(wait)
        before = clock.now()
        timed("backend", None, {})
        assert clock.now() - before < 0.4  # the first call starts the backend
        statistics.write_text("0 0 1")
        timed("backend", None, {})
        return clock.now() - before

    assert seconds(queued=0) > 0.4
    assert seconds(queued=450_000_000) < 0.4


@pytest.mark.slow
def test_single_mistakes_of_all_operators_are_tried_before_pairs(workplace, onnxopt, monkeypatch):
    (workplace / "steps.yaml").write_text(steps(1, 2))
    (workplace / "other.yaml").write_text(MOMENTUM)
    monkeypatch.setattr("onnxopt_cli.analysis.explanation.explain.process_time", Ticks())
    run = ("run", "steps.yaml", "other.yaml", "-b", mistaken("Strange"), "-q", *IN_PROCESS)
    answer = onnxopt(*run, "--explain-time", "1500", "--report", "json=out.json")
    stopped = "stopped after 1500 s, before all pairs of mistakes were tried; no single one"
    assert [explanation["text"] for explanation in explanations()] == [
        f"{stopped} reproduces 2 of 2 failing cases",
        f"{stopped} reproduces the failing case",
    ]
    assert not any(explanation["complete"] for explanation in explanations())
    assert "--explain-time" in answer.out
    assert "none of" not in answer.out


@pytest.mark.slow
def test_search_stopped_by_the_time_limit_is_reported(workplace, onnxopt, monkeypatch):
    (workplace / "steps.yaml").write_text(steps(1, 2))
    (workplace / "other.yaml").write_text(MOMENTUM)
    monkeypatch.setattr("onnxopt_cli.analysis.explanation.explain.process_time", Ticks())
    run = ("run", "steps.yaml", "other.yaml", "-b", mistaken("Strange"), "-q", *IN_PROCESS)
    answer = onnxopt(*run, "--explain-time", "40", "--report", "json=out.json")
    stopped = (
        "stopped after 40 s, before all known mistakes were tried; none of those tried reproduces"
    )
    assert [explanation["text"] for explanation in explanations()] == [
        f"{stopped} 2 of 2 failing cases",
        f"{stopped} the failing case",
    ]
    answer = onnxopt(*run, "--explain-time", "1", "--report", "json=out.json")
    assert [explanation["text"] for explanation in explanations()] == [
        "not explained, stopped after 1 s; not tried: 2 fail",
        "not explained, stopped after 1 s; not tried: 1 fail",
    ]
    answer = onnxopt(*run, "--explain-time", "0", "--report", "json=out.json")
    assert explanations() == []
    assert "--explain" not in answer.out


@pytest.mark.slow
def test_time_limit_excludes_time_in_which_other_programs_run():
    adam = next(operator for operator in registry().operators if operator.name == "Adam")
    mistakes = {mistake.name: mistake for mistake in all_known_mistakes(adam)}
    results = list(results_of(mistakes["no bias correction"], adam, step=20))
    pauses = iter([0.9])

    def pause(_activity):
        sleep(next(pauses, 0))

    (found,) = explain(results, all_cases(), seconds=0.8, progress=pause)
    assert "no bias correction" in found.text


@pytest.mark.parametrize("is_limited", [True, False])
def test_note_says_if_the_limit_ended_the_tests_with_generated_inputs(monkeypatch, is_limited):
    adam = registry().named("Adam")
    mistake = named(adam, "epsilon inside the square root")

    def out_of_time(*_):
        raise _OutOfTimeError

    monkeypatch.setattr(
        "onnxopt_cli.analysis.explanation.explain.contradicts",
        out_of_time if is_limited else lambda *_: False,
    )
    (found,) = explain([*results_of(mistake, adam, step=40)], all_cases())
    assert found.known_mistakes == (mistake.name,)
    assert found.complete is not is_limited
    assert found.text.endswith("the time limit ended the tests with generated inputs") is is_limited


@pytest.mark.parametrize("form", ["log", "report"])
def test_saved_run_is_explained_later(workplace, onnxopt, form):
    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "torch_like.py").write_text(PYTORCH)
    saved = workplace / "saved"
    save = ["--log", saved] if form == "log" else ["--report", f"json={saved}"]
    run = (
        "run",
        "steps.yaml",
        "-b",
        "python:torch_like.py:Adam",
        "--no-explain",
        "-q",
        *IN_PROCESS,
    )
    onnxopt(*run, *save)
    answer = onnxopt("explain", saved)
    assert answer.code == 0
    assert "epsilon added after bias correction" in answer.out
    assert onnxopt("explain", workplace / "steps.yaml").code == 2


def test_saved_run_of_an_operator_without_a_formula_is_explained(workplace, onnxopt):
    (workplace / "wrong.py").write_text(
        "from onnxopt_cli.oracle.evaluator import native_outputs\n\n\n"
        "def wrong(model, inputs):\n"
        "    (output,) = native_outputs(model, inputs)\n"
        "    return [abs(output)]\n"
    )
    cases = "".join(
        f"  - {{name: x{x}, inputs: {{X: [1.5, -{x}.0]}}, outputs: {{Y: [-1.5, {x}.0]}}}}\n"
        for x in (2, 3, 4)
    )
    (workplace / "neg.yaml").write_text(f"onnxopt: 1\nsuite: mine\noperator: Neg\ncases:\n{cases}")
    run = ("run", "neg.yaml", "-b", "python:wrong.py:wrong", "--no-explain", *IN_PROCESS)
    onnxopt(*run, "--log", "several.jsonl")
    answer = onnxopt("explain", "several.jsonl")
    assert answer.code == 0
    assert "consistent with" in answer.out
    onnxopt(*run, "-k", "x2", "--log", "one.jsonl")
    answer = onnxopt("explain", "one.jsonl")
    assert answer.code == 1
    assert "cannot try further inputs on the backend" in " ".join(answer.out.split())
    assert answer.err == ""
    onnxopt(*run, "-b", "again=python:wrong.py:wrong", "-k", "x2", "--log", "twice.jsonl")
    (workplace / "neg.yaml").unlink()
    answer = onnxopt("explain", "twice.jsonl")
    assert "1 of 1 failing cases cannot be explained" in answer.err
    assert "because they are no longer found, such as neg.yaml:" in answer.err


@pytest.mark.parametrize(("saved", "code"), [("run.jsonl", 2), ("run.json", 1)])
def test_log_of_cases_that_have_changed_is_not_explained(workplace, onnxopt, saved, code):
    (workplace / "wrong.py").write_text(
        "def wrong(model, inputs):\n    return [*inputs.values()]\n"
    )
    text = "onnxopt: 1\nsuite: mine\noperator: Neg\ncases:\n- {name: x, inputs: {X: [1.5]}}\n"
    (workplace / "neg.yaml").write_text(text)
    options = ("--no-explain", "--log", "run.jsonl", "--report", "json=run.json")
    onnxopt("run", "neg.yaml", "-b", "python:wrong.py:wrong", *options)
    (workplace / "neg.yaml").write_text(text.replace("1.5", "2.5"))
    answer = onnxopt("explain", saved)
    assert answer.code == code
    message = "run.jsonl belongs to other cases; changed since the run: neg.yaml"
    assert (message in " ".join(answer.err.split())) == (code == 2)


@pytest.mark.parametrize("place", [".", "a" * 5000, "a\\u0000"])
def test_folders_that_a_saved_run_names_are_not_searched(workplace, onnxopt, place):
    (workplace / "wrong.py").write_text(
        "def wrong(model, inputs):\n    return [*inputs.values()]\n"
    )
    case = "- {name: x, inputs: {X: [1.5]}, outputs: {Y: [-1.5]}}"
    (workplace / "neg.yaml").write_text(f"onnxopt: 1\nsuite: mine\noperator: Neg\ncases:\n{case}\n")
    log = workplace / "run.jsonl"
    onnxopt("run", "neg.yaml", "-b", "python:wrong.py:wrong", "--no-explain", "--log", log)
    log.write_text(log.read_text().replace('"path":"neg.yaml"', f'"path":"{place}"'))
    answer = onnxopt("explain", log)
    assert answer.code == 1
    assert "they are no longer found" in " ".join(answer.err.split())
    answer = onnxopt("locate", "--log", log, "-b", "python:wrong.py:wrong")
    assert answer.code == 2
    assert "mine/neg/x is no longer at" in " ".join(answer.err.split())


def test_failures_without_a_cause_are_listed(workplace, onnxopt):
    (workplace / "wrong.py").write_text(
        "from onnxopt_cli.oracle.evaluator import native_outputs\n\n\n"
        "def wrong(model, inputs):\n"
        "    (output,) = native_outputs(model, inputs)\n"
        "    return [abs(output) + output.dtype.type(model.graph.node[0].op_type == 'Ceil')]\n"
    )
    for operator, count in (("Neg", 3), ("Ceil", 1)):
        cases = "".join(
            f"  - {{name: x{x}, inputs: {{X: [1.5, -{x}.0]}}}}\n" for x in range(2, 2 + count)
        )
        text = f"onnxopt: 1\nsuite: mine\noperator: {operator}\ncases:\n{cases}"
        (workplace / f"{operator}.yaml").write_text(text)
    run = ("run", "Neg.yaml", "Ceil.yaml", "-b", "python:wrong.py:wrong", "--no-explain")
    onnxopt(*run, *IN_PROCESS, "--log", "run.jsonl")
    answer = onnxopt("explain", "run.jsonl")
    assert answer.code == 1
    assert "Neg: consistent with" in answer.out
    assert "no cause found for other failing cases: Ceil 1" in answer.out


def test_conforming_run_has_no_explanation(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(STEPS)
    onnxopt("run", "steps.yaml", "--log", "run.jsonl", "-q")
    answer = onnxopt("explain", "run.jsonl")
    assert answer.code == 0
    assert "no failing case" in answer.out


LIBRARIES = PLUGINS / "libraries.py"
#: For each optimizer of a library: the known mistakes that distinguish it from ONNX's operator.
NAMED = {
    "PyTorchAdam": {"epsilon added after bias correction"},
    "ApexAdam": {"epsilon added to the root of the corrected H"},
    "TinygradAdam": {
        "epsilon added to the root of the corrected H", "epsilon defaults to 0",
        "bias correction with powers rounded to float32", "defaults not rounded to float32",
    },
    "DeepSpeedAdam": {
        "epsilon added after bias correction", "decay before the step, scaled by R",
        "double computed in float32",
    },
    "PyTorchAdamW": {"epsilon added after bias correction", "decay before the step, scaled by R"},
    "OptaxAdam": {
        "epsilon added after bias correction with the exponent T + 1",
        "no regularisation", "norm_coefficient_post taken as 0",
    },
    "KerasAdam": {
        "bias correction at every T", "no regularisation",
        "norm_coefficient_post taken as 0",
    },
    "TensorFlowAdam": set(),
    "PyTorchAdagrad": set(),
    "OptaxAdagrad": {
        "epsilon inside the square root, no decay, no step where H_new is 0", "no regularisation",
    },
    "KerasAdagrad": {"epsilon inside the square root, no decay", "no regularisation"},
    "TensorFlowAdagrad": {"epsilon taken as 0", "decay_factor taken as 0", "no regularisation"},
    "ApexAdagrad": {"decay_factor taken as 0"},
    "PyTorchSGD": {"first step ignores V"},
    "OptaxSGD": {"beta taken as 1"},
    "KerasSGD": {"velocity holds the step, beta taken as 1", "no regularisation"},
    "TensorFlowSGD": {"beta taken as 1", "no regularisation"},
}  # fmt: skip
#: Examples of libraries with one mistake, two mistakes, another computation, or no mistake.
TYPICAL_LIBRARIES = {"PyTorchAdam", "PyTorchAdamW", "ApexAdagrad", "OptaxSGD", "TensorFlowAdam"}
ALL_LIBRARIES_ONLY = pytest.mark.skipif(
    os.environ.get("ONNXOPT_LIBRARIES") != "all", reason="runs only with ONNXOPT_LIBRARIES=all"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in TYPICAL_LIBRARIES else pytest.param(name, marks=ALL_LIBRARIES_ONLY)
        for name in NAMED
    ],
)
def test_public_library_is_explained_by_its_known_mistakes(workplace, onnxopt, name):
    operator = next(word for word in ("adam", "adagrad", "sgd") if word in name.lower())
    only = ("-k", f"/{'momentum' if operator == 'sgd' else operator}/")
    run = (
        "run",
        "spec",
        "conformance",
        *only,
        "-b",
        f"python:{LIBRARIES}:{name}",
        "-q",
        *IN_PROCESS,
    )
    answer = onnxopt(*run, *LONG_EXPLAIN, "--report", "json=out.json")
    if not NAMED[name]:
        assert answer.code == 0, answer.out
        return
    (found,) = explanations()
    assert set(found["known_mistakes"]) >= NAMED[name], found["text"]
    unexplained = sum(found["others"].get("not explained", {}).values())
    assert unexplained <= 0.1 * len(found["cases"]), found["text"]


FAULTY = """\
import numpy as np
from onnxopt_cli.backends.reference import NumpyBackend


class Faulty:
    '''Right, except for V_new under one condition.'''

    def run(self, model, inputs):
        outputs = [np.array(output) for output in NumpyBackend().prepare(model).run(inputs)]
        X = inputs[model.graph.node[0].input[2]]
        names = [output.name for output in model.graph.output]
        if {}:
            for name in model.graph.node[0].output[len(outputs) // 2 :]:
                at = names.index(name)
                outputs[at] = np.asarray(outputs[at] * 1.25 + 0.5, outputs[at].dtype)
        return outputs
"""


COUNTED = STEPS.partition("operator")[0] + "operator: Momentum\ncases:\n" + "".join(
    "  - {name: n" + str(size)
    + ", attributes: {alpha: 0.9, beta: 0.95, mode: standard, norm_coefficient: 0.1}, "
    + f"inputs: {{R: 0.1, T: {step}, X: {[1.0] * size}, G: {[0.3] * size}, V: {[0.2] * size}}}}}\n"
    for size, step in ((2, 0), (3, 1), (5, 2), (40, 7))
)  # fmt: skip


def test_count_of_a_single_failing_case_is_omitted():
    cause = Cause(
        "'epsilon ignored' (or 1 other mistake with the same effect here)", ("a",), ("e",)
    )
    assert Explanation("mine", "Adam", (cause,)).text == f"consistent with {cause.found}"
    unexplained = {"not explained": {"fail": 1}}
    text = Explanation("mine", "Adam", (cause,), unexplained).text
    assert text == f"consistent with {cause.found}: 1 of 2 failing cases; not explained: 1 fail"


@pytest.mark.slow
def test_condition_is_found_from_one_failing_case(workplace, onnxopt):
    (workplace / "once.py").write_text(FAULTY.format("X.size >= 33"))
    (workplace / "counted.yaml").write_text(COUNTED)
    run = ("run", "counted.yaml", "-b", "python:once.py:Faulty", "-q", *IN_PROCESS, *LONG_EXPLAIN)
    onnxopt(*run, "--report", "json=out.json")
    (found,) = explanations()
    (cause,) = found["causes"]
    assert found["text"].startswith(cause["found"] + ";")
    # If no input distinguishes two conditions, the report states both.
    words = "the tensor's number is 1 and X has at least 33 elements"
    statement = (
        rf"V_new is found to be wrong wherever {re.escape(words)}(, unless [^(]+)? \(seen in "
    )
    assert re.match(statement, cause["found"]) or "cannot tell" in cause["found"]


@pytest.mark.parametrize("has_mistake", [False, True])
def test_counterfactuals_are_stated_if_no_other_cause_is_found(
    workplace, onnxopt, monkeypatch, has_mistake
):
    counterfactual_cause = CauseSearch.counterfactual_cause

    def cause_beside_a_mistake(search):
        cover = known_mistakes(search.operator)[:1] if has_mistake else []
        return counterfactual_cause(replace(search, cover=cover))

    monkeypatch.setattr(CauseSearch, "cause", lambda _: None)
    monkeypatch.setattr(CauseSearch, "counterfactual_cause", cause_beside_a_mistake)
    (workplace / "long.py").write_text(FAULTY.format("X.size >= 33"))
    (workplace / "counted.yaml").write_text(COUNTED)
    run = ("run", "counted.yaml", "-b", "python:long.py:Faulty", "-q", *IN_PROCESS)
    onnxopt(*run, "--report", "json=out.json")
    (found,) = explanations()
    (cause,) = found["causes"]
    assert cause["cases"] == ["steps/counted/n40"]
    statement = (
        r"right after a single change: no axis is longer than 4 \((\d+) of \1 failing inputs\)"
    )
    statement = "otherwise " * has_mistake + statement
    assert re.match(statement, cause["found"]), cause["found"]


ELSEWHERE = "".join(
    f"  - {{name: a{alpha}, attributes: {{alpha: {alpha}, beta: 0.5, mode: nesterov, "
    "norm_coefficient: 0}, inputs: {R: 0.3, T: 0, X: [1.5], G: [-0.3], V: [0.7]}}\n"
    for alpha in (0.5, 0, 1)
)
ATTRIBUTE = """\
        rates = {attribute.name: attribute.f for attribute in model.graph.node[0].attribute}
        half = len(outputs) // 2
        if CONDITION:
            for at in range(len(outputs))[slice(CHANGED)]:
                outputs[at] = np.asarray(outputs[at] * 1.25 + 0.5, outputs[at].dtype)
        return outputs
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "changed", "words"),
    [
        # A condition compares an attribute with a single limit, so no condition describes a range.
        (
            "X.size >= 33 and 0.05 < rates['norm_coefficient'] < 0.2",
            "half, None",
            r"found wrong only where |V_new is found to be wrong wherever |right after a single ",
        ),
        (
            "rates['alpha'] == 0",
            "half * (1 + int(inputs['T'] > 2))",
            r"X_new is found to be wrong wherever alpha is 0(, unless [^(]+)? \(seen in \d+ inputs",
        ),
    ],
)
def test_generated_inputs_refute_accidental_conditions(
    workplace, onnxopt, condition, changed, words
):
    plugin = FAULTY.partition("        if {}")[0] + ATTRIBUTE.replace("CONDITION", condition)
    (workplace / "once.py").write_text(plugin.replace("CHANGED", changed))
    (workplace / "counted.yaml").write_text(COUNTED + ELSEWHERE)
    run = ("run", "counted.yaml", "-b", "python:once.py:Faulty", "-q", *IN_PROCESS, *LONG_EXPLAIN)
    onnxopt(*run, "--report", "json=out.json")
    (found,) = explanations()
    # Generated inputs may refute a condition that describes the range by one of its limits.
    assert found["causes"] or " < " in condition
    for cause in found["causes"]:
        assert re.match(words, cause["found"]), cause["found"]


MOVED = """\
import numpy as np
from onnxopt_cli.backends.reference import NumpyBackend


class Faulty:
    '''Right, except for some elements of W_new.'''

    def run(self, model, inputs):
        outputs = [np.array(output) for output in NumpyBackend().prepare(model).run(inputs)]
        names = [output.name for output in model.graph.output]
        (node,) = model.graph.node
        # The graph's outputs may have another order than the node's.
        for name, result in zip(node.input, node.output):
            W, at = inputs[name], names.index(result)
            right = outputs[at]
            outputs[at] = np.asarray({}, right.dtype)
        return outputs
"""


@pytest.mark.slow
def test_effect_on_wrong_elements_is_reported(workplace, onnxopt):
    (workplace / "moved.py").write_text(MOVED.format("np.where(np.isinf(W), -right, right)"))
    run = (
        "run",
        "pruning",
        "-k",
        "/magnitudeprune/",
        "-b",
        "python:moved.py:Faulty",
        "-q",
        *IN_PROCESS,
    )
    onnxopt(*run, *LONG_EXPLAIN, "--report", "json=out.json")
    (found,) = explanations()
    (cause,) = found["causes"]
    assert cause["found"].startswith("W_new is found to be negated wherever W is infinite")


BOTH = """\
import numpy as np
import onnx
from onnxopt_cli.backends.reference import NumpyBackend


class Faulty:
    '''Takes beta as 1, and has a fault under one condition.'''

    def run(self, model, inputs):
        for attribute in model.graph.node[0].attribute:
            if attribute.name == "beta":
                attribute.f = 1.0
        outputs = [np.array(output) for output in NumpyBackend().prepare(model).run(inputs)]
        if {condition}:
            for at in range(len(outputs) // 2, len(outputs)):
                outputs[at] = np.asarray(outputs[at] * 1.25 + 0.5, outputs[at].dtype)
        return outputs
"""
BELOW = (
    "  - {name: below, attributes: {alpha: 0.9, beta: 0.95, mode: standard, norm_coefficient: 0}, "
    "inputs: {R: 0.1, T: -3, X: [1.0, 2.0], G: [0.3, 0.5], V: [0.2, 0.1]}}\n"
)
EMPTY = (
    "  - {name: below, attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0}, "
    "inputs: {R: 0.1, T: 3, X1: [1.0], X2: {shape: [0], data: []}, G1: [0.3], "
    "G2: {shape: [0], data: []}, V1: [0.2], V2: {shape: [0], data: []}}}\n"
)
SOMETIMES = (
    "min(map(np.size, inputs.values())) == 0 "
    "and sum(map(np.nansum, inputs.values())) * 7.3 % 1 < 0.8"
)


@pytest.mark.slow
def test_condition_is_reported_beside_a_known_mistake(workplace, onnxopt):
    (workplace / "twice.py").write_text(BOTH.format(condition=SOMETIMES))
    (workplace / "counted.yaml").write_text(COUNTED + EMPTY)
    run = ("run", "counted.yaml", "-b", "python:twice.py:Faulty", "-q", *IN_PROCESS, *LONG_EXPLAIN)
    onnxopt(*run, "--report", "json=out.json")
    (found,) = explanations()
    mistake, condition = found["causes"]
    assert mistake["known_mistakes"] == ["beta taken as 1"]
    assert condition["cases"] == ["steps/counted/below"]
    assert "found wrong only where a tensor of the node has no element" in condition["found"]


@pytest.mark.parametrize(
    ("others", "named"), [pytest.param(3, True, marks=pytest.mark.slow), (4, False)]
)
def test_mistake_that_reproduces_few_cases_is_not_named(workplace, onnxopt, others, named):
    # If T < 1, the backend has the mistake "beta at every T", which has no effect if T >= 1.
    # If T >= 1, the backend has an unknown mistake.
    plugin = FAULTY.replace("run(inputs)", "run(inputs | {{'T': abs(inputs['T'])}})")
    (workplace / "once.py").write_text(plugin.format("inputs['T'] > 0"))
    above = "".join(
        BELOW.replace("below", f"t{count}").replace("-3", f"{count}")
        for count in range(1, others + 1)
    )
    (workplace / "counted.yaml").write_text(COUNTED.partition("  - {name")[0] + BELOW + above)
    run = ("run", "counted.yaml", "-b", "python:once.py:Faulty", "-q", *IN_PROCESS)
    onnxopt(*run, "--no-explain", "--log", "run.jsonl")
    output = onnxopt("explain", "run.jsonl", *LONG_EXPLAIN).out
    assert ("consistent with" in output) == named, output


@pytest.mark.slow
def test_saved_run_with_one_failing_case_has_no_condition(workplace, onnxopt):
    (workplace / "once.py").write_text(FAULTY.format("int(inputs['T']) == 2"))
    (workplace / "steps.yaml").write_text(steps(1, 2, 3))
    run = ("run", "steps.yaml", "-b", "python:once.py:Faulty", "-q", *IN_PROCESS)
    onnxopt(*run, "--no-explain", "--log", "run.jsonl")
    answer = onnxopt("explain", "run.jsonl", *LONG_EXPLAIN)
    assert answer.code == 1
    assert "wherever" not in answer.out


def test_show_prints_the_change_and_an_input_of_a_mistake(workplace, onnxopt):
    page = onnxopt("show", "Adam", "--mistake", "epsilon inside the square root")
    assert page.code == 0
    lines = [line.strip() for line in page.out.splitlines()]
    assert "- H_sqrt = sqrt(H_new) + epsilon" in lines
    assert "+ H_sqrt = sqrt(H_new + epsilon)" in lines
    values = [line.split() for line in lines if line.startswith("X_new  ")]
    assert len(values) == 2
    assert values[0] != values[1]
    assert max(map(len, page.out.splitlines())) <= 80


def test_printed_show_command_shows_the_mistake(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(STEPS)
    (workplace / "torch_like.py").write_text(PYTORCH)
    answer = onnxopt("run", "steps.yaml", "-b", "python:torch_like.py:Adam", "-q", *IN_PROCESS)
    (command,) = [line for line in answer.out.splitlines() if "onnxopt show" in line]
    page = onnxopt(*shlex.split(command)[1:])
    assert page.code == 0
    assert "seen in PyTorch" in page.out


def test_unknown_mistake_cannot_be_shown(workplace, onnxopt):
    answer = onnxopt("show", "Adam", "--mistake", "epsilon inside")
    assert answer.code == 2
    assert "did you mean" in answer.err
    assert "epsilon inside the square root" in answer.err
    assert onnxopt("show", "spec/adam/adam", "--mistake", "no bias correction").code == 2


SUBTRACTED = """\
from copy import deepcopy

from onnxopt_cli.backends.resolve import resolve_backend


class Backend:
    def run(self, model, inputs):
        bare, post = deepcopy(model), 0.0
        for attribute in bare.graph.node[0].attribute:
            if attribute.name == "norm_coefficient_post":
                post, attribute.f = attribute.f, 0.0
        outputs = resolve_backend("numpy").prepare(bare).run(inputs)
        count = len(outputs) // 3
        if post == 0:
            return outputs
        # If post is near 1, the difference of two large numbers has few correct digits.
        steps = []
        for X in outputs[:count]:
            large = 1000 * abs(X).max(initial=0)
            steps.append((large + X) - (large + X.dtype.type(post) * X))
        return [*steps, *outputs[count:]]
"""


@pytest.mark.slow
def test_mistake_that_fails_passing_cases_is_not_named(onnxopt, workplace):
    """Roots in float32 fail the cases in double, which the backend passes."""
    (workplace / "vendor.py").write_text(SUBTRACTED)
    patterns = [word for name in ("T_*_near_one", "double") for word in ("-k", f"*/adam/{name}")]
    answer = onnxopt("run", "conformance/adam", *patterns, "-b", "python:vendor.py:Backend")
    assert answer.code == 1
    assert "consistent with" not in answer.out
    assert "float32'" not in answer.out
