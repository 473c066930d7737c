"""``onnxopt audit`` of operators without a formula."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import defs
from onnx.reference.ops.op_leaky_relu import LeakyRelu

import onnxopt_cli
from onnxopt_cli.analysis import node_search, node_variations
from onnxopt_cli.analysis.node_audit import (
    find_node_trials,
    implementation_names,
    mutant_forms,
    node_outcomes,
    outcomes_on_trials,
)
from onnxopt_cli.analysis.node_reformulations import NodeReformulation, node_reformulations
from onnxopt_cli.analysis.node_search import prepared, search_nodes
from onnxopt_cli.analysis.node_variations import variations
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.tolerance import ONNX_DEFAULT
from onnxopt_cli.mutation.node_mutants import MutantKind, NodeMutant
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.suites.operators.generators import draw_seeded
from onnxopt_cli.workers.forked_processes import (
    ProcessLostError,
    TimeLimitError,
    isolated,
    memory_limit,
    time_limit,
)

WEAK = """\
onnxopt: 1
suite: weak
opset: 22
operator: LeakyRelu
cases:
  - name: positive
    inputs: {X: [0.5, 1.5]}
    outputs: {Y: [0.5, 1.5]}
  - name: again
    inputs: {X: [0.5, 2.5]}
    outputs: {Y: [0.5, 2.5]}
"""
NEGATIVE = """\
  - name: negative
    attributes: {alpha: 0.25}
    inputs: {X: [-0.5, 1.5]}
    outputs: {Y: [-0.125, 1.5]}
"""


def scores(workplace, onnxopt, text, *options):
    (workplace / "weak.yaml").write_text(text)
    answer = onnxopt("audit", "weak.yaml", "-j", "1", "--json", "audit.json", *options)
    (score,) = json.loads((workplace / "audit.json").read_text())["operators"]
    return answer, score


@pytest.mark.slow
def test_case_that_uses_an_attribute_kills_the_mutant_that_ignores_it(workplace, onnxopt):
    weak_answer, weak = scores(workplace, onnxopt, WEAK, "-v")
    assert weak_answer.code == 1
    assert {"alpha ignored", "alpha defaults to 0.5"} <= {*weak["survivors"]}
    assert "survives alpha ignored The attribute alpha is" in " ".join(weak_answer.out.split())
    assert "an input that kills it in" in weak_answer.out
    _, better = scores(workplace, onnxopt, WEAK + NEGATIVE)
    assert better["score"] > weak["score"]
    assert {"alpha ignored", "alpha doubled"}.isdisjoint(better["survivors"])
    verdicts = {verdict["name"]: verdict for verdict in better["automatic"]}
    assert verdicts["alpha ignored"]["rejected"]
    assert "X aligned to the first axis" not in verdicts
    equivalent = [verdict for verdict in verdicts.values() if verdict["equivalent"]]
    assert equivalent
    assert all(verdict["inputs"] > 0 for verdict in equivalent)
    assert all(verdict["unresolved"] for verdict in equivalent)
    assert better["least_score"] < better["score"]
    assert "only one input" in better["proven"]["X aligned to the first axis"]
    kinds = {verdict["kind"] for verdict in better["automatic"]}
    assert {"reference code", "attribute ignored", "type"} <= kinds
    assert better["false_alarms"] == []
    assert better["right"]


@pytest.mark.slow
def test_joined_shards_of_a_node_equal_the_complete_audit(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(WEAK)
    complete = onnxopt("audit", "weak.yaml", "-v", "-j", "2", "--json", "complete.json")
    redundant = "redundant, because other cases kill the same mutants: weak/weak/positive"
    assert redundant in " ".join(complete.out.split())
    parts = []
    for part in (1, 2):
        onnxopt("audit", "weak.yaml", "-v", "-j", "2", "--shard", f"{part}/2",
                "--json", f"{part}.json")  # fmt: skip
        parts += ["--join", f"{part}.json"]
    joined = onnxopt("audit", "weak.yaml", "-v", *parts, "--json", "joined.json")
    assert joined.out == complete.out
    assert (workplace / "joined.json").read_text() == (workplace / "complete.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "form"),
    [
        ("BatchNormalization", "folded"),
        ("Conv", "im2col"),
        ("FlexAttention", "float32 in double"),
        ("LayerNormalization", "Welford"),
        ("ReduceSum", "terms in reverse order"),
        ("Softmax", "online"),
    ],
)
def test_published_cases_accept_reformulations(operator, form):
    cases = onnxopt_cli.load_cases("onnx-node", operators=[operator])
    trials, faults = find_node_trials(cases, Judging(), 1, lambda *_: None, [operator])
    assert not faults
    (verdict,) = node_outcomes([form], "right", trials[operator], thorough=True)
    assert max(verdict.excess) <= 1
    (entry,) = [entry for entry in node_reformulations(operator) if entry.name == form]
    outputs = [entry.outputs(t.model, t.inputs, native_outputs) for t in trials[operator]]
    assert any(output is not None for output in outputs)


def test_reformulation_that_exceeds_the_time_limit_is_skipped(leaky_trials, monkeypatch):
    def loop(*_):
        while True:
            pass

    slow = NodeReformulation("slow", "Never ends.", loop)
    monkeypatch.setattr("onnxopt_cli.analysis.node_audit.node_reformulations", lambda _: (slow,))
    monkeypatch.setattr(node_search, "MUTANT_SECONDS", 0.05)
    (outcome,) = node_outcomes(["slow"], "right", leaky_trials[:2], thorough=True)
    assert outcome.excess == (None, None)
    assert outcome.survives


def hang():
    yield 1
    while True:
        time.sleep(1)


def exhaust_memory():
    yield 1
    yield int(np.ones(1 << 34, np.uint8).size)


@pytest.mark.parametrize("work", [hang, exhaust_memory])
def test_work_that_hangs_or_exhausts_the_memory_ends(work, monkeypatch):
    monkeypatch.setattr("onnxopt_cli.workers.forked_processes._GRACE_SECONDS", 0.0)
    items = isolated(work, 0.5, 1 << 28)
    assert next(items) == 1
    with pytest.raises(ProcessLostError):
        next(items)


def test_endless_python_code_is_interrupted():
    def spin():
        while True:
            pass

    with pytest.raises(TimeLimitError), time_limit(0.05):
        spin()


@pytest.fixture(scope="module")
def leaky_trials():
    cases = onnxopt_cli.load_cases("onnx-node", operators=["LeakyRelu"])
    return find_node_trials(cases, Judging(), 1, lambda *_: None, ["LeakyRelu"])[0]["LeakyRelu"]


def test_mutants_have_the_same_results_in_one_process_and_alone(leaky_trials):
    names = implementation_names("automatic", leaky_trials)[:12]
    together = outcomes_on_trials(names, "automatic", leaky_trials, thorough=True)
    separate = [
        outcome
        for name in names
        for outcome in outcomes_on_trials([name], "automatic", leaky_trials, thorough=True)
    ]
    assert together == separate
    assert {outcome.survives for outcome in together} == {True, False}


@pytest.mark.parametrize("effect", [lambda: None, lambda: os._exit(1)])
def test_mutant_that_changes_the_reference_has_no_effect_on_other_mutants(
    leaky_trials, monkeypatch, effect
):
    def changed(_self, x, **_):
        effect()
        return (np.zeros_like(x),)

    def spoil(*_):
        LeakyRelu._run = changed

    def correct(model, inputs, compute):
        return compute(model, inputs)

    entries = {
        "first": SimpleNamespace(outputs=spoil, about=""),
        "second": SimpleNamespace(outputs=correct, about=""),
    }
    monkeypatch.setattr("onnxopt_cli.analysis.node_audit._implementations", lambda *_: entries)
    _, second = outcomes_on_trials([*entries], "automatic", leaky_trials, thorough=True)
    assert second.survives


def test_mutant_skips_a_trial_that_rejects_the_reference(leaky_trials, monkeypatch):
    right, wrong = leaky_trials[0], leaky_trials[1]
    outputs = {name: value + 1 for name, value in wrong.expected.outputs.items()}
    expected = Expected(outputs, dict.fromkeys(outputs, ONNX_DEFAULT))
    wrong = replace(wrong, expected=expected)
    entries = {
        "without effect": SimpleNamespace(
            outputs=lambda model, inputs, compute: compute(model, inputs), about=""
        ),
        "zero": SimpleNamespace(
            outputs=lambda model, inputs, compute: [0 * y for y in compute(model, inputs)], about=""
        ),
    }
    monkeypatch.setattr("onnxopt_cli.analysis.node_audit._implementations", lambda *_: entries)
    trials = [right, wrong]
    no_effect, zero = outcomes_on_trials([*entries], "automatic", trials, thorough=True)
    assert no_effect.excess == (0.0, None)
    assert no_effect.survives
    assert zero.excess[0] > 1


def test_process_that_a_mutant_ends_is_replaced(leaky_trials, monkeypatch):
    def crash(model, inputs, compute):
        os._exit(1)

    entries = {
        "first": SimpleNamespace(outputs=crash, about=""),
        "second": SimpleNamespace(outputs=lambda *_: None, about=""),
    }
    monkeypatch.setattr("onnxopt_cli.analysis.node_audit._implementations", lambda *_: entries)
    first, second = outcomes_on_trials([*entries], "automatic", leaky_trials, thorough=True)
    assert first.stillborn
    assert second.survives


@pytest.fixture(scope="module")
def leaky_search(leaky_trials):
    """Return varied nodes of LeakyRelu, evaluators of their models, and every second mutant."""
    nodes = [(trial.model, trial.inputs) for trial in leaky_trials]
    batch = list(islice(variations(nodes, 2.0), 12))
    names = implementation_names("automatic", leaky_trials)[::2]
    evaluators = prepared(variation.model for variation in batch)
    return batch, evaluators, mutant_forms(names, leaky_trials[0].operator, batch)


def test_nodes_that_do_not_infect_a_mutant_do_not_distinguish_it(leaky_search, monkeypatch):
    batch, evaluators, forms = leaky_search
    results = search_nodes(forms, batch, evaluators, str, limit=len(batch))
    assert any(result.nodes for result in results)
    infected = node_search._infected_nodes(forms, batch, evaluators)
    assert any(len(infected[name]) < len(batch) for name in forms)
    everywhere = {name: range(len(batch)) for name in forms}
    monkeypatch.setattr(node_search, "_infected_nodes", lambda *_: everywhere)
    assert search_nodes(forms, batch, evaluators, str, limit=len(batch)) == results


def test_search_for_a_slow_mutant_ends_after_two_nodes(leaky_search, monkeypatch):
    batch, evaluators, _ = leaky_search

    def loop(*_):
        while True:
            pass

    monkeypatch.setattr(node_search, "MUTANT_SECONDS", 0.05)
    slow = NodeMutant("slow", MutantKind.VALUES, "Never ends.", change=loop)
    forms = {"slow": {variation.opset: slow for variation in batch}}
    (result,) = search_nodes(forms, batch, evaluators, str)
    assert (result.nodes, result.examined) == ([1], 2)


def fail(_outputs):
    raise IndexError


@pytest.mark.parametrize(
    "finish",
    [
        fail,
        lambda _outputs: [],
        lambda outputs: [*outputs, *outputs],
        lambda outputs: [output.astype(np.float64) for output in outputs],
        lambda outputs: [output.tolist() for output in outputs],
        lambda outputs: [None for _ in outputs],
    ],
)
def test_mutant_without_valid_outputs_is_distinguished(leaky_search, finish):
    batch, evaluators, _ = leaky_search
    wrong = NodeMutant("wrong", MutantKind.TYPE, "Has no valid outputs.", finish=finish)
    forms = {"wrong": {variation.opset: wrong for variation in batch}}
    (result,) = search_nodes(forms, batch, evaluators, str)
    assert (result.nodes, result.examined) == ([0], 1)


def test_mutants_of_functions_that_prepare_a_node_take_effect():
    cases = [
        case
        for operator in ("RNN", "TfIdfVectorizer")
        for case in onnxopt_cli.load_cases("onnx-node", operators=[operator])
    ]
    trials, _ = find_node_trials(cases, Judging(), 1, lambda *_: None)
    for operator, function in (("RNN", "choose_act"), ("TfIdfVectorizer", "populate_grams")):
        mutants = [
            name
            for name in implementation_names("automatic", trials[operator])
            if name.startswith(function)
        ]
        outcomes = outcomes_on_trials(mutants, "automatic", trials[operator], thorough=False)
        assert any(not outcome.survives for outcome in outcomes), function


def test_nodes_that_are_not_judged_are_not_counted_as_examined(leaky_search, monkeypatch):
    batch, evaluators, _ = leaky_search
    monkeypatch.setattr(node_search, "_MAX_CONFIRMATIONS", 1)
    monkeypatch.setattr(node_search, "may_differ", lambda *_: True)
    same = NodeMutant("same", MutantKind.VALUES, "Is right.", change=lambda node: node)
    forms = {"same": {variation.opset: same for variation in batch}}
    (result,) = search_nodes(forms, batch, evaluators, str)
    assert (result.nodes, result.examined) == ([], 1)


def test_keys_of_attention_have_several_elements_in_varied_nodes():
    problem = draw_seeded(defs.get_schema("Attention"), 0).problem
    varied = list(islice(variations([(problem.model, problem.inputs)], 2.0), 3))
    assert len(varied) == 3
    assert any(variation.bound.operand(1).size > 1 for variation in varied)


def test_reused_models_have_the_outputs_of_the_reference(leaky_trials, monkeypatch):
    monkeypatch.setattr(node_variations, "_SINGLE_MODELS", 2)
    nodes = [(trial.model, trial.inputs) for trial in leaky_trials]
    first, second = (list(islice(variations(nodes, 2.0), 20)) for _ in range(2))
    assert len({id(variation.model) for variation in first}) < 10
    for variation, again in zip(first, second, strict=True):
        outputs = native_outputs(variation.model, variation.inputs)
        for output, *repeated_outputs in zip(
            outputs, variation.outputs, again.outputs, strict=True
        ):
            for repeated_output in repeated_outputs:
                np.testing.assert_array_equal(output, repeated_output)


def test_search_ends_after_its_time_limit(leaky_trials):
    names = implementation_names("automatic", leaky_trials)
    outcomes = node_outcomes(names, "automatic", leaky_trials, thorough=False, seconds=0.0)
    assert {outcome.inputs for outcome in outcomes} == {0}


def test_huge_allocation_fails_within_a_memory_limit():
    with pytest.raises(MemoryError), memory_limit(1 << 20):
        np.zeros(1 << 34, np.uint8)
    assert np.zeros(1 << 22, np.uint8).size == 1 << 22
