"""Large tensors are computed and judged in blocks; the verdicts are those of complete tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxopt_cli.cases.case import bind_problem
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core import blocks, compare
from onnxopt_cli.core.tolerance import ErrorBound
from onnxopt_cli.fuzz.driver import examples
from onnxopt_cli.interpret import evaluate as evaluate_module
from onnxopt_cli.interpret.bound.error_bound import bound, least_errors
from onnxopt_cli.interpret.evaluate import evaluate, is_elementwise
from onnxopt_cli.operators.call import bind, complete_attributes, sole_call
from onnxopt_cli.operators.percentile import percentile
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.oracles import Oracles
from onnxopt_cli.suites.collect import collect

CASES = Path(__file__).parents[2] / "cases"
COUNT = blocks.LARGE_ELEMENTS + 11
CASE = """\
onnxopt: 1
suite: large
operator: Adam
cases:
- name: two
  attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.01, norm_coefficient: 0.1}
  inputs:
    {R: 0.1, T: 3, X1: {file: X1.npy}, X2: {file: X2.npy}, G1: {file: G1.npy}, G2: {file: G2.npy},
     V1: {file: V1.npy}, V2: {file: V2.npy}, H1: {file: H1.npy}, H2: {file: H2.npy}}
"""
PLUGIN = """\
import numpy as np
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import sole_call

def narrow(model, inputs):
    with np.errstate(all="ignore"):
        outputs = evaluate(sole_call(model, inputs), np.dtype(np.float32))
    outputs[WHERE].reshape(-1)[PLACE] *= WRONG
    return outputs

class Backend:
    def run(self, model, inputs):
        return narrow(model, inputs)
"""


@pytest.fixture
def large(workplace):
    """Write a large case of two groups, with broadcast operands and special values."""
    random = np.random.default_rng(5)
    special = np.float32([np.nan, np.inf, -np.inf, 0, 1e-42, 3e38])
    shapes = {"1": (COUNT,), "2": (8, COUNT // 7)}
    for name in "XGVH":
        for group, shape in shapes.items():
            values = random.standard_normal(shape).astype(np.float32)
            values.reshape(-1)[random.integers(0, COUNT, 60)] = np.resize(special, 60)
            if name == "G" and group == "2":
                values = values[:, :1]
            np.save(workplace / f"{name}{group}.npy", np.abs(values) if name == "H" else values)
    (workplace / "large.yaml").write_text(CASE)
    return workplace


def judged(onnxopt, *backend):
    command = ["run", "large.yaml", *backend, "--isolation", "none", "--no-explain"]
    code = onnxopt(*command, "--report", "json=found.json").code
    (result,) = json.loads(Path("found.json").read_text())["results"]
    return code, result["outputs"]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "place", "wrong"), [(0, 0, 1), (3, -1, 1.001), (1, 30_000, 2)])
def test_blocks_have_the_verdict_of_the_complete_tensor(
    large, onnxopt, monkeypatch, where, place, wrong
):
    text = PLUGIN.replace("WHERE", str(where)).replace("PLACE", str(place))
    (large / "plugin.py").write_text(text.replace("WRONG", str(wrong)))
    backend = ["-b", f"python:{large / 'plugin.py'}:Backend"]
    monkeypatch.setattr(blocks, "available_jobs", lambda: 2)
    code, parts = judged(onnxopt, *backend)
    assert code == (wrong != 1)
    monkeypatch.setattr("onnxopt_cli.interpret.evaluate.LARGE_ELEMENTS", 10**9)
    assert judged(onnxopt, *backend)[0] == code
    _, whole = judged(onnxopt, *backend)
    for part, one in zip(parts, whole, strict=True):
        for name in ("tolerance_used", "tolerance_used_median"):
            assert part.pop(name) == pytest.approx(one.pop(name), rel=1e-6)
        for block_element, unsplit_element in zip(part["worst"], one["worst"], strict=True):
            assert block_element.pop("limit") == pytest.approx(
                unsplit_element.pop("limit"), rel=1e-6
            )
        assert part.pop("inconclusive") <= one.pop("inconclusive")
        assert part == one
    assert sum(part["mismatches"] for part in parts) == (wrong != 1)


def test_reference_computes_the_same_values_in_blocks(large, onnxopt):
    code, outputs = judged(onnxopt)
    assert code == 0
    assert {output["max_ulp"] for output in outputs} == {0}


def test_elementwise_formulas_are_recognised():
    elementwise = {operator.name for operator in registry().operators if is_elementwise(operator)}
    assert {"Adam", "Adagrad", "Momentum"} <= elementwise
    assert not elementwise & {"AdmmUpdate", "AdmmPenalty"}


def compare_fast_verdict(expected, actual, error_bound, agrees, location):
    """Check that the fast comparison agrees with the complete comparison.

    Two outputs are compared: ``actual``, and an output that slightly exceeds the limits.
    """
    if not isinstance(error_bound, ErrorBound):
        return
    limit = error_bound.at(np.arange(expected.size)).limit.reshape(expected.shape)
    with np.errstate(all="ignore"):
        beyond = np.asarray(expected + 1.5 * limit, expected.dtype)
    (diff,) = compare.compare_outputs({"Y": expected}, [beyond], {"Y": error_bound}.get)
    for outputs, right in ((actual, agrees), (beyond, diff.agrees)):
        assert compare.surely_agrees(expected, outputs, error_bound) == right, location


def compare_parts(content, location, random, monkeypatch):
    """Judge outputs as complete tensors and in blocks, and check that the diffs are equal.

    Yield two booleans for each output: whether an element is wrong, and whether an element differs
    from the expected value.
    """
    call = None if content.must_reject else sole_call(content.model, content.inputs)
    if content.trajectory is not None or call is None:
        return
    if is_elementwise(call.operator):
        least = np.repeat(least_errors(call), len(call.groups))
        for share, derived_output in zip(least, bound(call), strict=True):
            with np.errstate(over="ignore"):
                magnitude = np.abs(np.float64(derived_output.value))
            normal = np.isfinite(magnitude)
            # An error may be smaller by one subnormal number, because half of an odd subnormal
            # number may be rounded down.
            enough = (
                derived_output.error + np.finfo(np.float64).smallest_subnormal >= share * magnitude
            )
            assert enough[normal].all(), location
    with np.errstate(all="ignore"):
        outputs = evaluate(call, np.dtype(np.float32))
        for output in outputs:
            wrong = random.random(output.shape) < 0.1
            output[wrong] *= random.choice(output.dtype.type([1.0001, 1 + 2e-7, np.nan, 0]))
    diffs = []
    size = max(array.size for array in call.inputs)
    for large, block in ((10**9, blocks.BLOCK), (0, 2 + size // 4)):
        monkeypatch.setattr(evaluate_module, "LARGE_ELEMENTS", large)
        monkeypatch.setattr(compare, "BLOCK", block)
        key = Oracles(Judging()).expected(content)
        diffs.append(compare.compare_outputs(key.outputs, outputs, key.tolerances.get))
        for diff, actual in zip(diffs[-1], outputs, strict=True):
            expected, error_bound = key.outputs[diff.name], key.tolerances[diff.name]
            compare_fast_verdict(expected, actual, error_bound, diff.agrees, location)
    for unsplit, parts in zip(*diffs, strict=True):
        assert parts.tolerance_used == pytest.approx(unsplit.tolerance_used, rel=1e-6), location
        assert parts.tolerance_used_median >= unsplit.tolerance_used_median * (1 - 1e-6)
        for unsplit_element, block_element in zip(unsplit.worst, parts.worst, strict=True):
            assert (unsplit_element.index, str(unsplit_element.actual)) == (
                block_element.index,
                str(block_element.actual),
            )
        ignored = dict.fromkeys(
            ("tolerance_used", "tolerance_used_median", "inconclusive", "worst", "tolerance")
        )
        assert replace(parts, **ignored) == replace(unsplit, **ignored)
        yield unsplit.mismatches > 0, unsplit.tolerance_used > 0


@pytest.mark.slow
def test_blocks_judge_cases_of_suites_like_complete_tensors(monkeypatch):
    """Some of the outputs are correct, and others are wrong.

    The limits of complete tensors are computed in the widest type.
    """
    random = np.random.default_rng(3)
    outcomes = set()
    for case in collect([str(CASES)]).cases[::29]:
        outcomes |= set(compare_parts(case.load(), case.location, random, monkeypatch))
    assert outcomes == {(False, False), (False, True), (True, True)}


@pytest.mark.slow
@given(
    examples(tuple(registry().operators), (), single_nodes=True, graphs=False),
    st.integers(0, 2**32 - 1),
)
def test_blocks_judge_fuzz_examples_like_complete_tensors(example, seed):
    if not example.breach:
        with pytest.MonkeyPatch.context() as monkeypatch:
            random = np.random.default_rng(seed)
            list(compare_parts(bind_problem(example.problem()), "drawn", random, monkeypatch))


@pytest.mark.slow
def test_double_precision_changes_no_expected_value_of_a_suite(monkeypatch):
    """Large tensors are computed in double, and in the widest type only near ties of rounding."""
    compared = 0
    for case in collect([str(CASES)]).cases[::11]:
        content = case.load()
        call = None if content.must_reject else sole_call(content.model, content.inputs)
        if content.trajectory is None and call is not None:
            monkeypatch.setattr(evaluate_module, "LARGE_ELEMENTS", 10**9)
            unsplit = evaluate(call)
            monkeypatch.setattr(evaluate_module, "LARGE_ELEMENTS", 0)
            for output, unsplit_output in zip(evaluate(call), unsplit, strict=True):
                np.testing.assert_array_equal(output, unsplit_output, strict=True)
                compared += output.size
    assert compared > 1000


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "Momentum"])
def test_extended_precision_is_used_near_ties_and_subnormal_numbers(name, monkeypatch):
    operator = registry().named(name)
    random = np.random.default_rng(1)
    count = 3 * blocks.LARGE_ELEMENTS
    tensors = [
        np.ldexp(random.integers(1, 1 << 24, count), random.integers(-150, 40, count))
        for _ in operator.tensors
    ]
    inputs = [np.float32([0.5]), np.int64([3]), *(tensor.astype(np.float32) for tensor in tensors)]
    chosen = {
        attribute.name: attribute.choices[0] if attribute.choices else 0.5
        for attribute in operator.attributes
    }
    call = bind(operator, inputs, complete_attributes(operator, chosen))
    outputs = evaluate(call)
    monkeypatch.setattr(evaluate_module, "LARGE_ELEMENTS", 10**9)
    for part, whole in zip(outputs, evaluate(call), strict=True):
        np.testing.assert_array_equal(part, whole, strict=True)


def normed(W, Z, U, *, percent):
    """A formula that reduces values which depend on another reduction or on a pruned tensor."""
    norm = np.sqrt(np.sum(W * W))
    largest = np.max(np.abs(Z) / norm)
    pruned = np.where(np.abs(U) < percentile(np.abs(U), percent), 0, U)
    return W / norm - largest, pruned + np.mean(pruned) * np.min(W)


@pytest.mark.parametrize("formula", [None, normed])
@pytest.mark.parametrize("name", ["AdmmUpdate", "MagnitudePrune"])
def test_reductions_of_blocks_equal_those_of_complete_tensors(name, formula, monkeypatch):
    operator = registry().named(name)
    if formula and len(operator.tensors) == 3:
        operator = replace(operator, formula=formula)
    random = np.random.default_rng(2)
    tensors = [random.standard_normal(COUNT).astype(np.float32) for _ in operator.tensors]
    for tensor in tensors:
        # Rounding creates equal elements, so some elements equal the threshold.
        tensor[::3] = np.round(tensor[::3], 2)
    call = bind(operator, tensors, complete_attributes(operator, {"percent": (100 / 3,)}))
    assert evaluate_module.has_blocks(call)
    outputs, part = evaluate(call), evaluate_module.in_parts(call)
    blocks = bound(part.at(np.arange(COUNT)), wide=evaluate_module.enough_for(call))
    monkeypatch.setattr(evaluate_module, "LARGE_ELEMENTS", 10**9)
    for output, unsplit in zip(outputs, evaluate(call), strict=True):
        np.testing.assert_array_equal(output, unsplit, strict=True)
    for block, unsplit in zip(blocks, bound(call), strict=True):
        np.testing.assert_allclose(block.error, unsplit.error, rtol=1e-6)
        assert (block.otherwise is None) == (unsplit.otherwise is None)
        if block.otherwise and unsplit.otherwise:
            np.testing.assert_array_equal(block.otherwise.expected, unsplit.otherwise.expected)
            np.testing.assert_allclose(block.otherwise.error, unsplit.otherwise.error, rtol=1e-6)


def test_memory_error_for_a_large_tensor_is_preserved():
    with pytest.raises(MemoryError):
        blocks.room(1 << 56, np.dtype(np.uint8))
