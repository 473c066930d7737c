"""What failing cases have in common, of faults in one place: said as it is, or not at all."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from onnxopt_cli.analysis.audit import find_trials
from onnxopt_cli.analysis.failure_conditions import failure_condition, sample
from onnxopt_cli.analysis.features import features, roundest
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.catalogue import suite_cases

#: Cases with more elements take long.
MAX_ELEMENTS = 2000


@cache
def calls(name):
    """Return the nodes of an operator's suite."""
    suite = registry().named(name).suite_name
    cases = [it for it in suite_cases(suite) if it.operators == (name,)]
    trials, _ = find_trials(cases, Judging())
    return [it.call for it in trials[name] if it.call.size < MAX_ELEMENTS]


def off_where(output, holds):
    """Return a fault that changes an output of each group where a function of the group says so."""

    def fault(call):
        outputs = evaluate(call)
        begin = list(call.operator.outputs).index(output) * len(call.groups)
        for group in range(len(call.groups)):
            if holds(call, group):
                right = outputs[begin + group]
                # No finite value stays what it is.
                off = right * 1.01 + np.copysign(0.01, right)
                outputs[begin + group] = np.asarray(off, right.dtype)
        return outputs

    return fault


def threshold_scaled(call):
    """Prune with a threshold that is a little too high."""
    cuts = []
    percents = call.attributes["percent"]
    for at, (weights,) in enumerate(call.groups):
        size = np.abs(weights.astype(np.float64))
        percent = percents[at % len(percents)]
        with np.errstate(all="ignore"):
            threshold = np.percentile(size, percent) * 1.001 if size.size else 0
        cuts.append(size < threshold)
    kept = [np.where(cut, 0, it) for cut, (it,) in zip(cuts, call.groups, strict=True)]
    masks = [np.where(cut, 0, 1) for cut in cuts]
    types = [weights.dtype for (weights,) in call.groups] * 2
    return [np.asarray(it, dtype) for it, dtype in zip(kept + masks, types, strict=True)]


def described(name, fault):
    """Return what is said of a fault, and the samples of the suite."""

    def quiet(call):
        with np.errstate(all="ignore"):
            return fault(call)

    samples = [sample(it, [of.branch for of in bound(it)], quiet(it)) for it in calls(name)]
    samples.sort(key=lambda it: not it.failed)
    return *failure_condition(samples, quiet), samples


def meets(conditions, call):
    """Tell whether an element of a node meets all conditions, wherever a fault may show."""
    rows, _ = features(call, np.ones(sum(it.size for it, *_ in call.groups), np.int16))
    with np.errstate(all="ignore"):
        return bool(np.all([it.holds(rows[it.feature]) for it in conditions], axis=0).any())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "output", "holds", "words"),
    [
        ("Momentum", "V_new", lambda it, _: it.scalars[1].item() % 2 == 1, "T is odd"),
        (
            "AdmmUpdate", "U_new", lambda it, at: it.groups[at][0].size >= 33,
            "W has at least 33 elements",
        ),
    ],
)  # fmt: skip
def test_a_sentence_says_where_a_fault_is(name, output, holds, words):
    said, says, _ = described(name, off_where(output, holds))
    assert re.match(rf"{output} is wrong wherever {re.escape(words)}(, unless [^(]+)? \(seen", said)
    assert says is not None


def scaled_where(output, holds):
    """Return a fault that scales elements of an output where a function of their group says so."""

    def fault(call):
        outputs = evaluate(call)
        begin = list(call.operator.outputs).index(output) * len(call.groups)
        for group, tensors in enumerate(call.groups):
            right = outputs[begin + group]
            scaled = np.where(holds(call, group, tensors), right * 1.01, right)
            outputs[begin + group] = np.asarray(scaled, right.dtype)
        return outputs

    return fault


def plain_elements(call, output):
    """Tell of the elements of all tensors in a row whether an output is ordinary in them."""
    begin, number = list(call.operator.outputs).index(output) * len(call.groups), len(call.groups)
    right = [it.branch for it in bound(call)][begin : begin + number]
    with np.errstate(all="ignore"):
        return np.concatenate(
            [
                (np.isfinite(it.expected) & (np.abs(it.expected) > it.limit)).reshape(-1)
                for it in right
            ]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "output", "holds", "words"),
    [
        ("Adam", "X_new", lambda *it: it[2][0] > 0, "X is positive, unless X_new should be 0"),
        ("MagnitudePrune", "W_new", lambda *it: it[2][0] < 0, "W is negative, unless W_new should"),
    ],
)  # fmt: skip
def test_a_sentence_names_what_is_right_where_it_would_be_untrue(name, output, holds, words):
    said, says, samples = described(name, scaled_where(output, holds))
    assert said.startswith(f"{output} is wrong wherever {words}")
    (conditions,) = says.args
    for it in samples:
        if not it.failed:
            plain = plain_elements(it.call, output).astype(np.int16)
            rows, _ = features(it.call, plain)
            with np.errstate(all="ignore"):
                holding = np.all([of.holds(rows[of.feature]) for of in conditions], axis=0)
            assert not holding.any()


@pytest.mark.slow
def test_cases_that_pass_speak_against_what_is_said_of_whole_tensors():
    said, says, samples = described("MagnitudePrune", threshold_scaled)
    assert any(it.failed for it in samples)
    if says is not None:
        met = [it for it in samples if not it.failed and meets(says.args[0], it.call)]
        assert not met or ", unless " in said


@pytest.mark.parametrize(
    ("low", "high", "number"),
    [
        (0.45, 0.5, 0.5), (0.41, 0.52, 0.5), (-1, 2, 0), (1.23, 1.24, 1.23), (990, 1001, 1000),
        (0.1234, 0.1239, 0.1234), (1e-9, 2e-7, 1e-7), (-3.5, -2.2, -3),
    ],
)  # fmt: skip
def test_a_threshold_is_the_number_of_fewest_digits(low, high, number):
    assert roundest(low, high) == pytest.approx(number)
    assert low <= roundest(low, high) <= high
