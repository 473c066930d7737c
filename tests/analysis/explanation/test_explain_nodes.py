"""Explanations of failures in operators without a formula."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice, product
from random import Random
from textwrap import dedent
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from onnxopt_cli import Execution, Isolation, load_cases, run
from onnxopt_cli.analysis.explanation.explain import SearchClock
from onnxopt_cli.analysis.explanation.explain_nodes import _NodeSearch, explain_nodes
from onnxopt_cli.analysis.explanation.hypotheses import (
    Hypothesis,
    agrees_with_nodes,
    supports_condition,
)
from onnxopt_cli.analysis.explanation.node_examination import SearchLimit
from onnxopt_cli.analysis.explanation.node_samples import Effect, JudgedOutputs, NodeSample
from onnxopt_cli.analysis.explanation.node_selection import integer_attributes
from onnxopt_cli.analysis.explanation.node_traits import (
    NodeNumber,
    Trait,
    fitted_limits,
    node_numbers,
    node_traits,
)
from onnxopt_cli.analysis.node_variations import _magnitudes, _related, neighbours
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mistakes import mistakes_in_versions, node_mistakes
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.run.reproduce import elements_alike, unlike_node_mistake

#: A limit that no search in these tests reaches.
LIMIT = SearchLimit(1e6, 60.0)


@pytest.fixture
def without_counterfactuals(monkeypatch):
    """Omit counterfactuals, because nodes without models cannot be changed."""
    monkeypatch.setattr(_NodeSearch, "_counterfactual_causes", lambda *_, **__: ())


def explanation(onnxopt, workplace, body, operator):
    """Run an operator's cases on a wrong backend; return the printed output without line breaks."""
    plugin = f"""
from onnx import helper
from onnxopt_cli.oracle.evaluator import native_outputs
import numpy as np


def attribute(node, name):
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


class Wrong:
    def run(self, model, inputs):
        node = model.graph.node[0]
        values = [inputs.get(name) for name in node.input]
{body}
        return native_outputs(model, inputs)
"""
    (workplace / "wrong.py").write_text(plugin)
    run = (
        "run",
        "operators",
        "--operator",
        operator,
        "-b",
        "python:wrong.py:Wrong",
        "--explain-time",
        "60",
    )
    return " ".join(onnxopt(*run).out.split())


def indented(code):
    """Indent code so that it fits into the method ``run`` of the wrong backend."""
    return "\n".join(f"        {line}" for line in dedent(code).strip().splitlines())


def test_conditions_of_generated_nodes_are_not_accidental():
    assert supports_condition(12, 15)
    for meeting, others in product(range(31), repeat=2):
        if supports_condition(meeting, others):
            # Suppose that a quarter of the nodes that meet the condition were right. The first
            # number would be the probability that none of them is drawn. The second number
            # corresponds to a quarter of the other nodes being wrong.
            assert 0.75**meeting < 0.05
            assert 0.75**others < 0.05


@pytest.mark.slow
def test_mistake_in_one_type_only_is_named_with_its_condition(onnxopt, workplace):
    code = indented("""
        if node.op_type == "Celu" and values[0].dtype == np.float16:
            del node.attribute[:]
    """)
    text = explanation(onnxopt, workplace, code, "Celu")
    assert "consistent with 'alpha ignored' wherever X is float16" in text


@pytest.mark.slow
def test_condition_of_two_parts_is_found(onnxopt, workplace):
    code = indented("""
        if node.op_type == "HardSigmoid" and attribute(node, "beta") is not None:
            if values[0].ndim > 1:
                return [native_outputs(model, inputs)[0] / 4 + values[0].dtype.type(0.3)]
    """)
    text = explanation(onnxopt, workplace, code, "HardSigmoid")
    assert "wrong wherever" in text
    assert "X has at least 2 axes" in text


@pytest.mark.slow
def test_failures_without_a_pattern_are_not_explained(onnxopt, workplace):
    code = indented("""
        if sum(values[0].tobytes()) % 3 == 0:
            return [native_outputs(model, inputs)[0] + values[0].dtype.type(1)]
    """)
    text = explanation(onnxopt, workplace, code, "Elu")
    assert "wrong wherever" not in text
    assert "consistent with" not in text


def test_random_outputs_are_not_reported_as_dependent_on_earlier_runs(onnxopt, workplace):
    (workplace / "wrong.py").write_text(
        "from onnxopt_cli.oracle.evaluator import native_outputs\n\n\n"
        "class Wrong:\n"
        "    def run(self, model, inputs):\n"
        "        return [3 + output for output in native_outputs(model, inputs)]\n"
    )
    run = ("run", "onnx-node", "-k", "bernoulli/", "-b", "python:wrong.py:Wrong")
    answer = onnxopt(*run, "--isolation", "none")
    assert answer.code == 1
    assert "runs again" not in answer.out


def test_error_in_the_search_for_causes_leaves_the_verdict(onnxopt, workplace, monkeypatch):
    (workplace / "wrong.py").write_text(
        "class Wrong:\n    def run(self, model, inputs):\n        return [3 * inputs['x']]\n"
    )

    def fail(*_):
        raise ValueError("duplicate value")

    monkeypatch.setattr(_NodeSearch, "_found_explanation", fail)
    run = ("run", "onnx-node/test_abs/0", "-b", "python:wrong.py:Wrong", "--isolation", "none")
    answer = onnxopt(*run)
    assert answer.code == 1
    text = " ".join(answer.out.split())
    reason = "a bug in onnxopt ended the search for causes: ValueError: duplicate value"
    assert f"python:wrong.py:Wrong, Abs: {reason}" in text
    assert "1 fail" in text
    monkeypatch.setenv("ONNXOPT_DEBUG", "1")
    with pytest.raises(ValueError, match="duplicate"):
        onnxopt(*run)


def test_show_describes_a_mistake_of_an_operator_without_a_formula(onnxopt):
    answer = onnxopt("show", "MaxPool", "--mistake", "dilations ignored")
    assert answer.code == 0
    assert "The attribute dilations is ignored" in answer.out
    unknown = onnxopt("show", "MaxPool", "--mistake", "dilation ignored")
    assert unknown.code == 2
    assert "dilations ignored" in unknown.err


@pytest.mark.parametrize(
    ("operator", "name", "operands", "expected"),
    [
        ("Round", "halves rounded away from zero", [[0.5, 2.5, -2.5]], [1, 3, -3]),
        ("Round", "halves rounded up", [[0.5, 2.5, -2.5]], [1, 3, -2]),
        ("Round", "computed as floor(x + 0.5)", [[2.5, 0.49999997]], [3, 1]),
        ("Div", "integers divided with floor", [[-7], [2]], [-4]),
        ("BitwiseNot", "outputs one too small", [[1, 2]], [253, 252]),
        ("Shrink", "elements within lambd kept", [[0.25, 2.0]], [0.25, 2.0]),
        ("Softplus", "overflow of exp", [[100.0, -200.0]], [np.inf, 0]),
        ("ThresholdedRelu", "elements equal to alpha kept", [[1.0, 0.5]], [1, 0]),
        ("Hardmax", "last of equal maxima", [[1.0, 0.5, 1.0]], [0, 0, 1]),
        ("Hardmax", "all of equal maxima", [[1.0, 0.5, 1.0]], [1, 0, 1]),
        ("ReduceLogSumExp", "overflow of exp", [[100.0, 0.0]], [np.inf]),
        ("LogSoftmax", "overflow of exp", [[-200.0, 0.0]], [-np.inf, 0]),
        ("LogSoftmax", "overflow of exp in the sum", [[100.0, 0.0]], [-np.inf, -np.inf]),
        (
            "MeanVarianceNormalization",
            "variance with divisor max(n - 1, 1)",
            [[[[[3.0]]]]],
            [[[[0.0]]]],
        ),
        ("Abs", "X rounded up to integers", [[1.25, -1.75]], [2, 1]),
        ("Abs", "X rounded down to integers", [[1.25, -1.75]], [1, 2]),
        ("Div", "integers divided and rounded half up", [[5, 7, -5], [2, 2, 2]], [3, 4, -2]),
    ],
)
def test_mistake_agrees_with_its_description(operator, name, operands, expected):
    dtype = {"Div": np.int32, "BitwiseNot": np.uint8}.get(operator, np.float32)
    inputs = {f"in{place}": np.array(value, dtype) for place, value in enumerate(operands)}
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    infos = [
        onnx.helper.make_tensor_value_info(key, element, value.shape)
        for key, value in inputs.items()
    ]
    output = onnx.helper.make_tensor_value_info("out", element, None)
    node = onnx.helper.make_node(operator, list(inputs), ["out"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one", infos, [output]),
        opset_imports=[onnx.helper.make_opsetid("", 22)],
    )
    mistake = node_mistakes("", operator, 22)[name]
    (result,) = mistake.outputs(model, inputs, native_outputs)
    assert result.tolist() == expected


@pytest.mark.parametrize(
    ("operator", "name", "dtype", "operands", "expected"),
    [
        ("Abs", "outputs without their upper 32 bits", np.int64, [[-(2**40) - 5]], [5]),
        ("Abs", "integers computed in 32 bits", np.int64, [[2**32 + 5]], [5]),
        ("Mul", "integers computed in 32 bits", np.uint64, [[2**31], [2]], [0]),
        ("Mul", "integers computed in 32 bits", np.uint64, [[2**31], [1]], [2**31]),
    ],
)
def test_mistake_of_64_bit_integers_agrees_with_its_description(
    operator, name, dtype, operands, expected
):
    names = "ab"[: len(operands)]
    declared = ", ".join(f"{np.dtype(dtype).name}[1] {each}" for each in names)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 14]> g ({declared}) => '
        f"({np.dtype(dtype).name}[1] y) {{ y = {operator}({', '.join(names)}) }}"
    )
    inputs = {each: np.array(value, dtype) for each, value in zip(names, operands, strict=True)}
    (result,) = node_mistakes("", operator, 14)[name].outputs(model, inputs, native_outputs)
    assert result.tolist() == expected


def test_biases_of_gates_are_reordered_without_the_weights():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 14]> g (float[1, 1, 1] X, float[1, 3, 1] W, '
        "float[1, 3, 1] R, float[1, 6] B) => (float[N, D, B, H] Y) "
        "{ Y = GRU <hidden_size = 1> (X, W, R, B) }"
    )
    ones, gates = np.ones((1, 1, 1), np.float32), np.float32([[[1], [2], [3]]])
    inputs = {"X": ones, "W": gates, "R": gates, "B": np.float32([[1, 2, 3, 4, 5, 6]])}
    mistake = node_mistakes("", "GRU", 14)["biases of gates in the order rzh"]
    reordered = {**inputs, "B": np.float32([[2, 1, 3, 5, 4, 6]])}
    (found,) = mistake.outputs(model, inputs, native_outputs)
    np.testing.assert_array_equal(found, native_outputs(model, reordered)[0])


def test_operators_that_are_not_examined_in_time_are_counted(onnxopt, workplace):
    (workplace / "wrong.py").write_text(
        "from onnxopt_cli.oracle.evaluator import native_outputs\n"
        "def wrong(model, inputs):\n"
        "    return [output + 1 for output in native_outputs(model, inputs)]\n"
    )
    operators = ("--operator", "Sin", "--operator", "Cos", "--explain-time", "1e-6")
    run = ("run", "operators", *operators, "-b", "python:wrong.py:wrong", "--isolation", "none")
    text = " ".join(onnxopt(*run).out.split())
    assert "2 operators not fully examined within the time limit: Cos, Sin" in text
    assert "--explain-time SECONDS" in text


def test_features_of_a_node_name_its_type_attribute_and_version():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 9]> '
        "g (float[2] x) => (bool[2] y) { y = Cast<to = 9>(x) }"
    )
    x = np.zeros(2, np.float32)
    texts = {trait.text for trait in node_traits(BoundNode.of(model, {"x": x}), {"y": x > 0})}
    assert "to is bool" in texts
    assert {"the operator has at least version 9", "the operator has a version before 13"} <= texts
    assert "the operator has at least version 13" not in texts
    assert "input is float16, float32 or float64" in texts
    assert "input has elements of 64 bits" not in texts
    of_doubles = node_traits(BoundNode.of(model, {"x": x.astype(np.float64)}), {"y": x > 0})
    assert "input has elements of 64 bits" in {trait.text for trait in of_doubles}


def test_features_of_a_node_compare_axes_attributes_and_values():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 22]> g (float[1, 2, 3] x, float[2, 2, 3] w) => '
        "(float[1, 2, 1] y) { y = Conv<strides = [2]>(x, w) }"
    )
    inputs = {"x": np.zeros((1, 2, 3), np.float32), "w": np.ones((2, 2, 3), np.float32)}
    outputs = {"y": np.zeros((1, 2, 1), np.float32)}
    texts = {trait.text for trait in node_traits(BoundNode.of(model, inputs), outputs)}
    assert {
        "the first axes of X and W differ in length",
        "the spatial lengths of X are not all multiples of strides",
        "W has a value other than 0",
        "the right output has a zero",
    } <= texts
    assert not texts & {
        "the second axes of X and W differ in length",
        "X has a value other than 0",
        "W has a value other than 1",
    }


def test_mistake_in_an_output_changes_it_in_any_order_of_outputs():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]> g (float[2] x, int64[1] k) => '
        "(int64[1] i, float[1] v) { v, i = TopK(x, k) }"
    )
    inputs = {"x": np.float32([1, 3]), "k": np.array([1])}
    mistake = node_mistakes("", "TopK", 11)["Values negated"]
    indices, values = mistake.outputs(model, inputs, native_outputs)
    assert (indices.tolist(), values.tolist()) == ([1], [-3])


@pytest.mark.parametrize(
    ("name", "axis"),
    [("as in version 13", None), ("as in version 13 with the defaults of its own", 1)],
)
def test_mistake_computes_an_old_node_by_the_rules_of_a_newer_version(name, axis):
    old, new = (
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": {opset}]> g (float[1, 2, 2] x) => '
            f"(float[1, 2, 2] y) {{ y = Softmax{attributes}(x) }}"
        )
        for opset, attributes in ((11, ""), (13, f"<axis = {axis}>" if axis else ""))
    )
    inputs = {"x": np.float32([[[1, 2], [4, 8]]])}
    (result,) = node_mistakes("", "Softmax", 11)[name].outputs(old, inputs, native_outputs)
    np.testing.assert_array_equal(result, native_outputs(new, inputs)[0])
    assert not np.array_equal(result, native_outputs(old, inputs)[0])


@pytest.mark.parametrize(
    ("call", "opset", "outputs"),
    [
        ("y = Pad <pads = [1, 0], value = 3.0> (x)", 2, [[3, 1, 5]]),
        ("y, i = TopK <k = 1> (x)", 1, [[5], [1]]),
        ("y = Clip <max = 2.0> (x)", 6, [[1, 2]]),
    ],
)
def test_attributes_that_became_inputs_are_kept_in_a_newer_version(call, opset, outputs):
    results = "float[N] y, int64[N] i" if "TopK" in call else "float[N] y"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2] x) => ({results}) {{ {call} }}'
    )
    mistakes = node_mistakes("", model.graph.node[0].op_type, opset)
    name = next(name for name in mistakes if name.endswith("with the defaults of its own"))
    computed = mistakes[name].outputs(model, {"x": np.float32([1, 5])}, native_outputs)
    assert [value.tolist() for value in computed] == outputs
    assert computed[0].dtype == np.float32


@pytest.mark.parametrize(
    ("call", "opset"),
    [("Slice<axes = [1], starts = [1], ends = [2]> (x)", 9), ("Slice (x, s, e, a)", 13)],
)
def test_mistake_in_a_parameter_applies_to_its_attribute_and_to_its_input(call, opset):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2, 2] x, int64[1] s, int64[1] e, '
        f"int64[1] a) => (float[N, M] y) {{ y = {call} }}"
    )
    values = {name: np.array([value]) for name, value in (("s", 1), ("e", 2), ("a", 1))}
    operands = {"x": np.float32([[1, 2], [3, 4]]), **values}
    mistake = mistakes_in_versions("", "Slice", [1, 13])["axes ignored"]
    assert mistake.outputs(model, operands, native_outputs)[0].tolist() == [[3, 4]]


def test_bfloat16_is_distinguished_from_the_floats_of_numpy():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> '
        "g (bfloat16[2] x) => (bfloat16[2] y) { y = Exp(x) }"
    )
    x = np.zeros(2, ml_dtypes.bfloat16)
    texts = {trait.text for trait in node_traits(BoundNode.of(model, {"x": x}), {"y": x})}
    assert "input is a float" in texts
    assert "input is float16, float32 or float64" not in texts


@pytest.mark.slow
def test_expectation_names_a_mistake_of_an_operator_without_a_formula(onnxopt, workplace):
    (workplace / "wrong.py").write_text(
        "from onnxopt_cli.oracle.evaluator import native_outputs\n"
        "def wrong(model, inputs):\n"
        "    del model.graph.node[0].attribute[:]\n"
        "    return native_outputs(model, inputs)\n"
    )
    cases = ("-k", "operators/trilu/*")
    run = ("run", "operators", *cases, "-b", "python:wrong.py:wrong", "--isolation", "none")
    onnxopt(*run, "--explain-time", "60", "--update-expect", "known.yaml")
    text = (workplace / "known.yaml").read_text()
    assert "mistake: upper ignored" in text
    assert onnxopt(*run, "--expect", "known.yaml", "--no-explain").code == 0
    (workplace / "known.yaml").write_text(text.replace("upper ignored", "upper always 0"))
    changed = onnxopt(*run, "--expect", "known.yaml", "--no-explain")
    assert changed.code == 1
    assert "known mistake would return other outputs" in changed.out


def test_failure_of_an_operator_unknown_to_onnx_is_not_explained(onnxopt, workplace):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "vendor": 1]> '
        "g (float[4] x) => (float[4] y) { y = vendor.Triple(x) }"
    )
    data = workplace / "test_triple" / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(model, data.parent / "model.onnx")
    x = np.arange(4, dtype=np.float32)
    for name, value in {"input": x, "output": 3 * x}.items():
        onnx.save_tensor(onnx.numpy_helper.from_array(value), data / f"{name}_0.pb")
    (workplace / "wrong.py").write_text("def wrong(model, inputs):\n    return [inputs['x']]\n")
    run = ("run", "test_triple", "-b", "python:wrong.py:wrong", "--isolation", "none")
    ran = onnxopt(*run, "--update-expect", "known.yaml")
    assert "Triple: y off" in ran.out
    expectations = workplace / "known.yaml"
    expectations.write_text(expectations.read_text().rstrip() + "\n    mistake: alpha ignored\n")
    changed = onnxopt(*run, "--expect", "known.yaml")
    assert changed.code == 1
    assert "without formula" in changed.out


def test_only_nodes_that_a_mistake_changes_support_its_condition():
    # A passing node in which x has no zero supports the condition "x has a zero" only if the
    # mistake would change the output of the node.
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Exp(x) }'
    )
    values = np.zeros(2, np.float32)
    mistake = SimpleNamespace(name="overflow of exp")
    has_zero = Trait("x has a zero", 1.0)
    statement = Hypothesis((has_zero,), mistake, 0.0)
    sample = NodeSample("", model, {"x": values}, [values], [values], failed=False)
    for effect, shows in ((Effect.NONE, False), (Effect.ALIKE, True), (Effect.UNLIKE, True)):
        sample.effects = {mistake.name: effect}
        assert statement.leaves_out(sample) is shows
    sample.traits = frozenset({has_zero})
    assert not statement.leaves_out(sample)


@pytest.mark.parametrize(
    ("right", "exception"),
    [
        ([0.0, 0.0], "all right values are 0, infinite or NaN"),
        ([np.nan, np.nan], "all right values are 0, infinite or NaN"),
        ([], "the outputs have no elements"),
        ([2.2, 0.0], ""),
    ],
)
def test_node_with_only_zeros_nans_or_no_values_contradicts_no_condition(right, exception):
    is_float = Trait("X is a float", 1.0)
    sample = NodeSample("", None, {}, None, None, failed=False, traits=frozenset({is_float}))
    sample.outputs = JudgedOutputs([np.float32(right)])
    hypothesis = Hypothesis((is_float,), None, 0.0)
    assert hypothesis.contradicts(sample) is (not exception)
    assert hypothesis.silent_exceptions([sample]) == [exception] * bool(exception)
    # The exception must not cover all failing nodes.
    for values, is_empty in ((right, bool(exception)), ([2.2, 0.0], False)):
        failing = replace(sample, failed=True)
        failing.outputs = JudgedOutputs([np.float32(values)])
        assert hypothesis.is_empty([sample, failing]) is is_empty


@pytest.mark.parametrize(
    ("x", "right", "of_case", "exception"),
    [
        ([3.0, 3.0], [2.2, 1.1], False, "all elements of an input are equal"),
        ([3.0, 2.0, 3.0], [2.2, 1.1], True, "elements of an input are equal"),
        ([3.0, 2.0], [2.0, -0.5, np.inf], True, "all right values are exact in 16 bits"),
        ([3.0, 2.0], [2.2, 1.1], True, ""),
    ],
)
def test_node_in_which_a_fault_may_be_invisible_is_an_exception(x, right, of_case, exception):
    """A case contradicts a condition even if the fault is invisible by coincidence."""
    is_float = Trait("X is a float", 1.0)
    inputs = {"x": np.float32(x)}
    sample = NodeSample("", None, inputs, None, None, failed=False, traits=frozenset({is_float}))
    sample.outputs = JudgedOutputs([np.float32(right)])
    hypothesis = Hypothesis((is_float,), None, 0.0)
    assert hypothesis.contradicts(sample) is (not exception)
    sample.case = "case"
    assert hypothesis.contradicts(sample) is of_case
    assert hypothesis.silent_exceptions([sample]) == [exception] * bool(exception)


@pytest.mark.parametrize(("number", "is_consistent"), [(1.0, False), (1.1, True)])
def test_short_values_are_an_exception_only_if_nodes_without_them_agree(number, is_consistent):
    """The exception would say nothing if all right values were short, as those of Sign are."""
    is_float = Trait("X is a float", 1.0)
    samples = nodes(20, is_float, failed=True) + nodes(4, is_float, failed=False)
    for place, sample in enumerate(samples):
        right = np.float32([number if sample.failed else 1.0, -1.0])
        sample.outputs, sample.inputs = JudgedOutputs([right]), {"x": np.float32([place])}
    assert agrees_with_nodes(Hypothesis((is_float,), None, 0.0), samples, [], []) is is_consistent


def test_nodes_that_validate_a_statement_are_derived_from_nodes_that_it_explains(monkeypatch):
    is_float = Trait("X is a float", 1.0)
    explained, others = nodes(3, is_float, failed=True), nodes(3, failed=True, case="case")
    search = _NodeSearch("mine", "Abs", [], [], lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    search._nodes.samples = [*others, *explained]
    bases = []

    def neighbours_of(failing, *_):
        bases.extend(failing)
        return iter(())

    monkeypatch.setattr(f"{_NodeSearch.__module__}.neighbours", neighbours_of)
    monkeypatch.setattr(f"{_NodeSearch.__module__}.small_nodes", list)
    monkeypatch.setattr(f"{_NodeSearch.__module__}.integer_attributes", lambda *_: [])
    monkeypatch.setattr(search._nodes, "forked", lambda work, _: [node for _, node in work()])
    search._generate(Hypothesis((is_float,), None, 0.0), is_directed=True)
    assert bases == explained


def test_contradicted_statement_does_not_say_wherever():
    is_float = Trait("X is a float", 1.0)
    mistake = SimpleNamespace(name="alpha ignored")
    assert Hypothesis((is_float,), None, 0.0).text() == "found wrong wherever X is a float"
    statements = [
        Hypothesis(traits, cause, 0.0).text(is_contradicted=True)
        for traits, cause in (((is_float,), None), ((is_float,), mistake), ((), mistake))
    ]
    assert statements == [
        "mostly found wrong where X is a float",
        "'alpha ignored' in most nodes in which X is a float",
        "'alpha ignored'",
    ]


@pytest.mark.parametrize(
    ("operator", "opset", "name", "given", "changed"),
    [
        ("Softmax", 11, "axis always -1", {}, {"axis": -1}),
        ("Softmax", 13, "axis always -1", {"axis": 0}, {"axis": -1}),
        ("Softmax", 13, "axis raised to at least 0", {"axis": -1}, {"axis": 0}),
        ("ThresholdedRelu", 22, "alpha limited to at most 1", {"alpha": 1.5}, {"alpha": 1.0}),
        ("ThresholdedRelu", 22, "alpha raised to at least 0", {"alpha": -0.5}, {"alpha": 0.0}),
    ],
)
def test_attribute_is_fixed_or_limited(operator, opset, name, given, changed):
    x = np.array([[-1.0, 0.5], [2.0, 3.0]], np.float32)
    nodes = [
        onnx.helper.make_node(operator, ["x"], ["y"], **attributes)
        for attributes in (given, changed)
    ]
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, x.shape)
    models = [
        onnx.helper.make_model(
            onnx.helper.make_graph([node], "one", [info], [output]),
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )
        for node in nodes
    ]
    mistake = node_mistakes("", operator, opset)[name]
    (expected,) = native_outputs(models[1], {"x": x})
    (result,) = mistake.outputs(models[0], {"x": x}, native_outputs)
    np.testing.assert_array_equal(result, expected)
    assert mistake.outputs(models[1], {"x": x}, native_outputs) is None


GEMM = {"a": np.float32([[1]]), "b": np.float32([[2]]), "c": np.float32([[3]])}
NORMALIZED = {"scale": np.float32([1]), "bias": np.float32([0])}
SEQUENCE = np.float32([[[1]], [[2]], [[3]]])


@pytest.mark.parametrize(
    ("operator", "attributes", "name", "operands", "expected"),
    [
        (
            "ReduceMax",
            {"keepdims": 0},
            "only the first of several axes reduced",
            {"x": np.float32([[1, 2], [4, 3]]), "axes": np.int64([0, 1])},
            [4, 3],
        ),
        (
            "ReduceMax",
            {"keepdims": 0},
            "only the last of several axes reduced",
            {"x": np.float32([[1, 2], [4, 3]]), "axes": np.int64([0, 1])},
            [2, 4],
        ),
        (
            "PRelu",
            {},
            "slope along the channels",
            {"x": np.float32([[[-1, -2], [-3, -4]]]), "slope": np.float32([2, 3])},
            [[[-2, -4], [-9, -12]]],
        ),
        (
            "Pad",
            {"mode": "reflect"},
            "reflect repeats the border",
            {"x": np.float32([1, 2, 3]), "pads": np.int64([0, 2])},
            [1, 2, 3, 3, 2],
        ),
        (
            "Slice",
            {},
            "first element lost with a negative step",
            {
                "x": np.float32([1, 2, 3]),
                "starts": np.int64([2]),
                "ends": np.int64([-9]),
                "axes": np.int64([-1]),
                "steps": np.int64([-1]),
            },
            [3, 2],
        ),
        ("Gemm", {"alpha": 2.0, "beta": 5.0}, "alpha also multiplies C", GEMM, [[34]]),
        ("Gemm", {"alpha": 2.0, "beta": 5.0}, "beta also multiplies A * B", GEMM, [[35]]),
        (
            "InstanceNormalization",
            {"epsilon": 0.0},
            "statistics over the batch",
            {"x": np.float32([[[1, 1]], [[-1, -1]]]), **NORMALIZED},
            [[[1, 1]], [[-1, -1]]],
        ),
        (
            "GroupNormalization",
            {"epsilon": 0.0, "num_groups": 1},
            "statistics over the batch",
            {"x": np.float32([[[1, 1]], [[-1, -1]]]), **NORMALIZED},
            [[[1, 1]], [[-1, -1]]],
        ),
        (
            "GroupNormalization",
            {"epsilon": 0.0, "num_groups": 2},
            "statistics over all channels",
            {
                "x": np.float32([[[1, 1], [-1, -1]]]),
                "scale": np.float32([1, 1]),
                "bias": np.float32([0, 0]),
            },
            [[[1, 1], [-1, -1]]],
        ),
        (
            "InstanceNormalization",
            {"epsilon": 0.0},
            "statistics over two spatial axes",
            {"x": np.float32([[[[[1, 9], [-1, 7]]]]]), **NORMALIZED},
            [[[[[1, 1], [-1, -1]]]]],
        ),
        (
            "InstanceNormalization",
            {"epsilon": 0.0},
            "statistics over the last axis",
            {"x": np.float32([[[[1, -1], [9, 7]]]]), **NORMALIZED},
            [[[[1, -1], [1, -1]]]],
        ),
        (
            "RNN",
            {"hidden_size": 1, "direction": "reverse", "activations": ["Relu"]},
            "reverse Y in the order of computation",
            {"x": SEQUENCE, "w": np.float32([[[1]]]), "r": np.float32([[[1]]])},
            [[[[3]]], [[[5]]], [[[6]]]],
        ),
        (
            "RNN",
            {"hidden_size": 1, "direction": "reverse", "activations": ["Relu"]},
            "reverse Y in the order of computation",
            {
                "x": SEQUENCE,
                "w": np.float32([[[1]]]),
                "r": np.float32([[[1]]]),
                "b": np.float32([[0, 0]]),
                "sequence_lens": np.int32([2]),
            },
            [[[[2]]], [[[3]]], [[[0]]]],
        ),
        (
            "RNN",
            {"hidden_size": 1, "direction": "bidirectional", "activations": ["Relu", "Relu"]},
            "initial state of the first direction for both",
            {
                "x": SEQUENCE[:1],
                "w": np.float32([[[0]], [[0]]]),
                "r": np.float32([[[1]], [[1]]]),
                "b": np.float32([[0, 0], [0, 0]]),
                "sequence_lens": np.int32([1]),
                "initial_h": np.float32([[[2]], [[5]]]),
            },
            [[[[2]], [[2]]]],
        ),
        (
            "RNN",
            {"hidden_size": 1, "direction": "bidirectional", "activations": ["Relu", "Relu"]},
            "weights of the first direction for both",
            {
                "x": SEQUENCE[:1],
                "w": np.float32([[[2]], [[5]]]),
                "r": np.float32([[[0]], [[0]]]),
            },
            [[[[2]], [[2]]]],
        ),
        (
            "GRU",
            {"hidden_size": 1, "linear_before_reset": 1, "activations": ["Sigmoid", "Relu"]},
            "bias of the state outside the reset gate",
            {
                "x": SEQUENCE[:1],
                "w": np.zeros((1, 3, 1), np.float32),
                "r": np.zeros((1, 3, 1), np.float32),
                # The first four biases close the update gate and the reset gate: both are 0.
                "b": np.float32([[-100, -100, 0, 0, 0, 3]]),
            },
            [[[[3]]]],
        ),
        (
            "Hardmax",
            {"axis": 0},
            "outputs reversed along the axis",
            {"x": np.float32([[1], [0]])},
            [[0], [1]],
        ),
        (
            "Div",
            {},
            "integers computed in float32 and truncated",
            {"a": np.array([2**24 + 1]), "b": np.array([1])},
            [2**24],
        ),
        (
            "ReduceMean",
            {"keepdims": 0},
            "integers computed in float64 and rounded",
            {"x": np.array([1, 2])},
            2,
        ),
        (
            "ArgMax",
            {"keepdims": 0},
            "integers compared with the other sign",
            {"x": np.uint8([200, 100])},
            1,
        ),
        (
            "ArgMax",
            {"keepdims": 0},
            "integers compared with the other sign",
            {"x": np.array([5, -3])},
            1,
        ),
        (
            "MaxPool",
            {"kernel_shape": [2], "pads": [1, 0]},
            "padded with 0",
            {"x": np.float32([[[-1, -2]]])},
            [[[0, -1]]],
        ),
        (
            "Gather",
            {},
            "negative indices one too small",
            {"x": np.float32([5, 6, 7]), "i": np.array([-1, 0])},
            [6, 5],
        ),
        (
            "Gather",
            {},
            "indices one too large",
            {"x": np.float32([5, 6, 7]), "i": np.array([-1, 0])},
            [5, 6],
        ),
        (
            "Transpose",
            {"perm": [1, 2, 0]},
            "permutation inverted",
            {"x": np.float32([[[1], [2]], [[3], [4]]])},
            [[[1, 2], [3, 4]]],
        ),
        (
            # The largest integer stands for the end of the axis, and cannot be increased.
            "Slice",
            {},
            "ends one too large",
            {
                "x": np.eye(2, dtype=np.float32),
                "s": np.array([0, 0]),
                "e": np.array([1, np.iinfo(np.int64).max]),
            },
            [[1, 0], [0, 1]],
        ),
    ],
)
def test_mistake_with_attributes_agrees_with_its_description(
    operator, attributes, name, operands, expected
):
    infos = [
        onnx.helper.make_tensor_value_info(
            key, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for key, value in operands.items()
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node(operator, [*operands], ["y"], **attributes)
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one", infos, [output]),
        opset_imports=[onnx.helper.make_opsetid("", 22)],
    )
    mistake = node_mistakes("", operator, 22)[name]
    (result,) = mistake.outputs(model, operands, native_outputs)
    assert result.tolist() == expected
    (right,) = native_outputs(model, operands)
    assert right.tolist() != expected


@pytest.mark.parametrize(("of_passing_node", "is_consistent"), [("NONE", True), ("UNLIKE", False)])
def test_nodes_with_two_mistakes_contradict_neither_mistake(of_passing_node, is_consistent):
    rows = [("ALIKE", "NONE")] * 3 + [("NONE", "ALIKE")] * 3 + [("UNLIKE", "UNLIKE")] * 4
    samples = [
        NodeSample(
            f"case{place}", None, {}, [], [], failed=True,
            effects={"first": Effect[first], "second": Effect[second]},
        )
        for place, (first, second) in enumerate(rows)
    ]  # fmt: skip
    samples.append(
        NodeSample(
            "passing", None, {}, [], [], failed=False,
            effects={"first": Effect.NONE, "second": Effect[of_passing_node]},
        )
    )  # fmt: skip
    first = Hypothesis((), SimpleNamespace(name="first"), 0.0)
    assert agrees_with_nodes(first, samples, ["first", "second"], ()) is is_consistent
    assert not agrees_with_nodes(first, samples, ["first"], ())


def nodes(count, *traits, failed, case=""):
    return [
        NodeSample(
            case and f"{case}{place}", None, {}, [], [], failed=failed,
            traits=frozenset(traits), is_independent=not case,
        )
        for place in range(count)
    ]  # fmt: skip


@pytest.mark.usefixtures("without_counterfactuals")
@pytest.mark.parametrize("by_validation", [False, True])
def test_another_cause_is_sought_if_a_node_refutes_the_first_one(monkeypatch, by_validation):
    """The refuting nodes are generated by the search or by the validation."""
    is_float, is_long, has_zero = (
        Trait("A is a float", 0.1),
        Trait("A is long", 0.3),
        Trait("A has a zero", 0.2),
    )

    search = _NodeSearch("mine", "Abs", [], [], lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    search._nodes.samples = [
        *nodes(3, is_float, is_long, failed=True, case="long"),
        *nodes(1, has_zero, failed=True, case="zero"),
        *nodes(40, failed=False, case="passing"),
    ]

    def generate(_best, *, is_directed=False):
        search._nodes.samples += nodes(12, is_float, is_long, failed=True) + nodes(40, failed=False)
        is_refuted = is_directed is by_validation
        if is_refuted and any(each.traits == (is_float,) for each in search._ranking.accepted):
            # Passing nodes with floats refute the accepted statement "A is a float".
            search._nodes.samples += nodes(8, is_float, failed=False)

    monkeypatch.setattr(search._nodes, "examine_cases", lambda: None)
    monkeypatch.setattr(search, "_generate", generate)
    explanation = search.run()
    assert [cause.cases for cause in explanation.causes] == [("long0", "long1", "long2")]
    assert explanation.causes[0].found.startswith("found wrong wherever A is long (")


@pytest.mark.usefixtures("without_counterfactuals")
@pytest.mark.parametrize(("refuting", "is_stated"), [(0, True), (8, False)])
def test_statement_that_further_nodes_refute_is_not_stated(monkeypatch, refuting, is_stated):
    is_long = Trait("A is long", 0.3)
    search = _NodeSearch("mine", "Abs", [], [], lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    search._nodes.samples = [
        *nodes(3, is_long, failed=True, case="long"),
        *nodes(40, failed=False, case="passing"),
    ]

    def generate(_best, *, is_directed=False):
        search._nodes.samples += nodes(12, is_long, failed=True) + nodes(40, failed=False)
        if is_directed:
            search._nodes.samples += nodes(refuting, is_long, failed=False)

    monkeypatch.setattr(search._nodes, "examine_cases", lambda: None)
    monkeypatch.setattr(search, "_generate", generate)
    assert bool(search.run()) == is_stated


@pytest.mark.parametrize(("rounds", "are_kept"), [(4, True), (1, False)])
def test_statements_share_the_limit_of_the_validation(monkeypatch, rounds, are_kept):
    clock, traits = SearchClock(), [Trait("A is long", 0.3), Trait("A has a zero", 0.2)]
    limit = SearchLimit(rounds, 60.0)
    search = _NodeSearch("mine", "Abs", [], [], lambda *_: Outcome.CRASH, clock, limit)
    accepted = [Hypothesis((trait,), None, 0.0) for trait in traits]
    search._ranking.accepted = accepted
    search._nodes.samples = nodes(40, failed=False)
    for trait in traits:
        search._nodes.samples += nodes(12, trait, failed=True)

    def generate(*_, **__):
        clock.evaluations += 1

    monkeypatch.setattr(search, "_generate", generate)
    search._validated([])
    assert search._ranking.accepted == (accepted if are_kept else [])


@pytest.mark.usefixtures("without_counterfactuals")
@pytest.mark.parametrize(("contradicting", "is_stated"), [(0, True), (1, False)])
def test_trait_of_all_errors_is_stated_unless_validation_contradicts_it(
    monkeypatch, contradicting, is_stated
):
    is_int16 = Trait("A is int16", 1.0, is_parameter=True)

    def of_errors(count, *traits, failed, case=""):
        samples = nodes(count, *traits, failed=failed, case=case)
        return [replace(sample, is_for_errors=True) for sample in samples]

    search = _NodeSearch(
        "mine", "Abs", [], [], lambda *_: Outcome.ERROR, SearchClock(), LIMIT, Outcome.ERROR
    )
    search._nodes.samples = of_errors(3, is_int16, failed=True, case="failing")
    search._nodes.samples += of_errors(40, failed=False, case="passing")

    def generate(_best, *, is_directed=False):
        search._nodes.samples += of_errors(8, is_int16, failed=True) + of_errors(40, failed=False)
        search._nodes.samples += of_errors(8, is_int16, failed=False)
        if is_directed:
            search._nodes.samples += of_errors(contradicting, failed=True)

    monkeypatch.setattr(search._nodes, "examine_cases", lambda: None)
    monkeypatch.setattr(search, "_generate", generate)
    explanation = search.run()
    assert bool(explanation) == is_stated
    if explanation:
        statement = explanation.causes[0].found
        assert re.match(
            r"found to raise an error only where A is int16 \(\d+ of \d+ generated nodes, 0 ",
            statement,
        )


@pytest.mark.usefixtures("without_counterfactuals")
@pytest.mark.parametrize("limit", [SearchLimit(100, 60.0), SearchLimit(np.inf, 1e-9)])
def test_search_records_that_it_reached_a_limit(monkeypatch, limit):
    is_long = Trait("A is long", 0.3)
    samples = nodes(3, is_long, failed=True, case="long")
    clock = SearchClock()
    search = _NodeSearch("mine", "Abs", [], samples, lambda *_: Outcome.CRASH, clock, limit)

    def examine():
        # Fewer than 75 of the 100 evaluations of the first limit are reserved for whole nodes.
        clock.evaluations += 75

    monkeypatch.setattr(search._nodes, "examine_cases", examine)
    monkeypatch.setattr(search, "_generate", lambda *_args, **_options: None)
    assert search.run() is None
    assert search.was_limited
    assert search.in_time == (limit.seconds > 1)


@pytest.mark.parametrize("independent", [2, 3])
def test_condition_requires_enough_independent_nodes(independent):
    is_long = Trait("A is long", 0.3)
    fresh = [*nodes(40, is_long, failed=True), *nodes(40, failed=False)]
    for sample in fresh[independent:]:
        sample.is_independent = False
    search = _NodeSearch("mine", "Abs", [], fresh, lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    assert search._is_proven(Hypothesis((is_long,), None, 0.0), fresh) is (independent > 2)


def test_mistake_that_cannot_be_computed_is_not_reported_as_different():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> '
        "g (float[2, 3] a, float[2, 3] b) => (float[2, 3] y) { y = MatMul(a, b) }"
    )
    operand = np.ones((2, 3), np.float32)
    problem = Problem(model, {"a": operand, "b": operand}, None)
    result = SimpleNamespace(returned=[operand])
    difference = unlike_node_mistake(result, problem, ["outputs in 16 bits"])
    assert difference == "the known mistake cannot be computed in this case"


@pytest.mark.parametrize("shape", [(1, 3), (3,)])
def test_equal_outputs_with_special_values_are_alike(shape):
    output = np.array([np.nan, np.inf, 1], np.float32)
    right = np.array([2, 2, 2], np.float32).reshape(shape)
    mistake = node_mistakes("", "Tile", 22)["repeats reversed"]
    assert elements_alike(mistake, [output], [output], [right]) >= 3
    assert not elements_alike(mistake, [output], [-output], [right])


@pytest.mark.slow
def test_condition_requires_generated_nodes_if_the_backend_can_run_again(workplace):
    (workplace / "wrong.py").write_text(
        "from onnxopt_cli.oracle.evaluator import native_outputs\n\n\n"
        "def wrong(model, inputs):\n"
        "    (output,) = native_outputs(model, inputs)\n"
        "    return [output + (output.dtype == 'float64')]\n"
    )
    cases = [case for case in load_cases("operators") if case.operators == ("Softplus",)]
    results = [*run(cases, "python:wrong.py:wrong", execution=Execution(isolation=Isolation.NONE))]
    by_id = {case.id: case for case in cases}
    (saved,) = explain_nodes(results, by_id, ())
    (cause,) = saved.causes
    assert cause.found.startswith("found wrong wherever X is float64 (seen in 4 cases that fail, ")
    assert explain_nodes(results, by_id, (), ask=lambda *_: Outcome.CRASH) == []


@pytest.mark.slow
def test_wrong_sequences_are_explained(onnxopt, workplace):
    code = indented("""
        if node.op_type == "SequenceErase" and len(values) == 1:
            return [list(values[0])[1:]]
    """)
    text = explanation(onnxopt, workplace, code, "SequenceErase")
    assert "wrong wherever position is left out" in text


@pytest.mark.slow
def test_condition_of_errors_is_stated(workplace):
    (workplace / "raising.py").write_text(
        "from onnxopt_cli.oracle.evaluator import native_outputs\n\n\n"
        "def raising(model, inputs):\n"
        "    (output,) = native_outputs(model, inputs)\n"
        "    if output.dtype == 'float64':\n"
        "        raise TypeError('no kernel')\n"
        "    return [output]\n"
    )
    cases = [case for case in load_cases("operators") if case.operators == ("Softplus",)]
    backend, isolation = "python:raising.py:raising", Execution(isolation=Isolation.NONE)
    results = [*run(cases, backend, execution=isolation)]

    def ask(_, model, inputs):
        (output,) = native_outputs(model, inputs)
        return Outcome.ERROR if output.dtype == "float64" else [output]

    for ask_backend in (None, ask):
        (explanation,) = explain_nodes(
            results, {case.id: case for case in cases}, (), ask=ask_backend
        )
        (cause,) = explanation.causes
        assert cause.found.startswith("found to raise an error wherever X is float64 (")
    # If every case raises an error, no condition distinguishes the cases.
    errors = [result for result in results if result.outcome is Outcome.ERROR]
    assert explain_nodes(errors, {case.id: case for case in cases}, (), ask=ask) == []


@pytest.mark.parametrize(
    ("wrong", "right", "text", "gaps"),
    [
        ([0.1, 0.19, 0.15], [0.01, 0.05, 0.2, 1], "alpha is at least 0.1 and less than 0.2", 2),
        ([1.71, 2, 5], [0.1, 1.7], "alpha is more than 1.7", 0),
        ([-3, -2.5, -2], [-1, 0.1], "alpha is less than -1", 1),
        ([2**24 + 1, 2**25, 2**26], [2**24], "alpha is more than 16777216", 0),
        ([0.12345678, 0.2, 0.3], [0.12345676], "alpha is more than 0.12345676", 0),
    ],
)
def test_condition_limits_a_number_to_an_interval(wrong, right, text, gaps):
    number = NodeNumber("alpha", 1.1, is_integer=False)
    limits = next(fitted_limits(number, np.array(wrong), np.array(right)))
    assert limits.statement().text == text
    assert len(limits.gaps) == gaps
    assert all(limits.contain({number: value}) for value in wrong)
    assert not any(limits.contain({number: value}) for value in right)


def test_some_generated_nodes_combine_a_failing_node_with_attributes_of_a_passing_node():
    failing, passing = (
        BoundNode.of(
            onnx.parser.parse_model(
                f'<ir_version: 8, opset_import: ["": 16]> g (float[{length}] x) => '
                f"(float[{length}] y) {{ y = LeakyRelu<alpha = {alpha}>(x) }}"
            ),
            {"x": np.arange(length, dtype=np.float32)},
        )
        for length, alpha in ((7, 0.375), (5, 0.8125))
    )
    nodes = [
        node.bound
        for node in islice(neighbours([failing], [passing], seed=1, seconds=1.0), 120)
        if node and np.array_equal(node.bound.operand(0), failing.operand(0))
    ]
    assert any(node.attribute("alpha") == passing.attribute("alpha") for node in nodes)
    # Nodes without the attribute show whether failures depend on its presence.
    assert sum("alpha" not in node.attributes for node in nodes) >= 12


def test_some_generated_nodes_change_the_rank_or_the_sign_of_a_passing_node():
    failing, passing = (
        BoundNode.of(
            onnx.parser.parse_model(
                f'<ir_version: 8, opset_import: ["": 16]> g (float[{lengths}] x) => '
                f"(float[{lengths}] y) {{ y = Abs(x) }}"
            ),
            {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(shape)},
        )
        for lengths, shape in (("1, 1, 1, 1, 1, 2, 3", (1, 1, 1, 1, 1, 2, 3)), ("6", 6))
    )
    nodes = [*filter(None, islice(neighbours([failing], [passing], seed=1, seconds=1.0), 120))]
    assert any(node.is_independent and node.bound.operand(0).ndim == 7 for node in nodes)
    floats = [x for node in nodes if (x := node.bound.operand(0)).dtype.kind == "f" and x.size > 2]
    assert any((x <= 0).all() for x in floats)
    assert any((x >= 0).all() for x in floats)


def test_nodes_with_random_results_are_not_generated():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[6] x, float ratio, bool training) => '
        "(float[6] y) { y = Dropout(x, ratio, training) }"
    )
    x, ratio = np.linspace(-1, 1, 6, dtype=np.float32), np.array(0.5, np.float32)
    node = BoundNode.of(model, {"x": x, "ratio": ratio, "training": np.array(False)})
    nodes = filter(None, islice(neighbours([node], [node], seed=1, seconds=1.0), 200))
    trainings = {
        bool(training) for node in nodes if (training := node.bound.operand(2)) is not None
    }
    assert trainings == {False}


def test_kinds_of_values_are_generated_for_scalar_inputs():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float x) => (float y) { y = Abs(x) }'
    )
    x = np.array(1.3, np.float32)
    node = BoundNode.of(model, {"x": x})
    nodes = filter(None, islice(neighbours([node], [node], seed=1, seconds=1.0), 100))
    negative_or_fraction = {-float(x), float(x - np.trunc(x))}
    values = {float(node.bound.operand(0)) for node in nodes if node.size == 1}
    assert values & negative_or_fraction


def test_some_generated_nodes_have_attributes_without_effect():
    node = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx.ml": 1]> g (float[1, 2] x) => (float[1, 2] y) '
        "{ y = ai.onnx.ml.Scaler <offset = [1.0, 2.0], scale = [3.0, 4.0]> (x) }"
    )
    bound = BoundNode.of(node, {"x": np.ones((1, 2), np.float32)})
    nodes = filter(None, islice(neighbours([bound], [bound], seed=1, seconds=1.0), 100))
    values = {tuple(each.bound.attribute("offset")) for each in nodes}
    assert {(0, 0), (1, 1)} <= values


def test_nodes_with_internal_attributes_are_varied():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[3] x) => (float[3] y) '
        "{ y = Abs<__note__ = 1>(x) }"
    )
    onnx.checker.check_model(model)
    node = BoundNode.of(model, {"x": np.ones(3, np.float32)})
    assert any(islice(neighbours([node], [node], seed=1, seconds=1.0), 20))


def test_some_generated_nodes_have_large_integers_that_are_exact_in_float32():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (int64[3] x) => (int64[3] y) { y = Abs(x) }'
    )
    node = BoundNode.of(model, {"x": np.array([-(2**24) - 1, 2**50 + 1, 3])})
    nodes = filter(None, islice(neighbours([node], [node], seed=1, seconds=1.0), 100))
    shortened = [-(2**24), 2**50, 3]
    (exact, *_) = [each for each in nodes if each.bound.operand(0).tolist() == shortened]
    texts = [
        {trait.text for trait in node_traits(bound, {"y": bound.operand(0)})}
        for bound in (node, exact.bound)
    ]
    assert ["X has a value that is not exact in float32" in each for each in texts] == [True, False]


def test_some_generated_nodes_have_inputs_without_elements():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float[2, 3] a, float[3] b) => (float[N] y) '
        "{ y = Mul (a, b) }"
    )
    operands = {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    node = BoundNode.of(model, operands)
    nodes = filter(None, islice(neighbours([node], [node], seed=1, seconds=1.0), 100))
    assert any(node.is_independent and not node.size for node in nodes)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_nearly_equal_elements_include_the_limits_of_their_type(dtype):
    limits = np.iinfo(dtype)
    for value in (limits.min, limits.max):
        operands = {name: np.array(value, dtype) for name in "ab"}
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 11]> g ({dtype} a, {dtype} b) => (bool y) '
            "{ y = Less (a, b) }"
        )
        node = BoundNode.of(model, operands)
        related = [_related(Random(seed), node).operands for seed in range(20)]  # noqa: S311
        assert all(operand.dtype == dtype for operands in related for operand in operands)
        assert {abs(int(a) - int(b)) for a, b in related} == {0, 1}


def test_inputs_have_nearly_equal_elements_in_some_generated_nodes():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]> g (int64[4] a, int64[4] b) => (bool[4] y) '
        "{ y = Less (a, b) }"
    )
    operands = {"a": np.array([3, 1 << 40, -9, 70]), "b": np.array([5000, 4, -(1 << 50), 8])}
    node = BoundNode.of(model, operands)
    nodes = filter(None, islice(neighbours([node], [node], seed=1, seconds=1.0), 100))
    differences = [
        np.abs(a - b)
        for each in nodes
        if (a := each.bound.operand(0)).dtype == (b := each.bound.operand(1)).dtype == np.int64
        and a.shape == b.shape
    ]
    assert any(array.size and array.max() <= 1 for array in differences)


def test_relations_between_inputs_are_exact_in_some_generated_nodes():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]> g (float a, float b, float c) => (float[N] y) '
        "{ y = Range (a, b, c) }"
    )
    inputs = dict(zip("abc", np.array([0.3, 4.2, 0.7], np.float32), strict=True))
    node = BoundNode.of(model, {name: np.asarray(value) for name, value in inputs.items()})
    nodes = filter(None, islice(neighbours([node], [node], seed=1, seconds=1.0), 200))
    scalars = np.array([[float(node.bound.operand(place)) for place in range(3)] for node in nodes])
    start, limit, step = scalars[scalars[:, 0] % 1 != 0].T
    assert np.mean((limit - start) % step == 0) > 0.02


def test_condition_depends_on_integer_attributes():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1, 1, 5] x) => (float[1, 1, 4] y) '
        "{ y = LpPool<kernel_shape = [2], p = 1>(x) }"
    )
    node = BoundNode.of(model, {"x": np.arange(5, dtype=np.float32).reshape(1, 1, 5)})
    ignored = ("p ignored", "auto_pad ignored", "x ignored")
    hypothesis = Hypothesis(tuple(Trait(text, 1.0, text) for text in ignored), None, 1.0)
    assert integer_attributes(hypothesis, node) == ["p"]


def test_trait_of_an_attribute_value_includes_the_default_value():
    """The trait "beta is 0.5" also applies to nodes that omit beta, because 0.5 is the default."""
    default, given = (
        node_traits(BoundNode.of(onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 16]> g (float[1] x) => (float[1] y) '
            f"{{ y = HardSigmoid{attributes}(x) }}"
        ), {}), {})
        for attributes in ("", "<alpha = 1.5, beta = 0.5>")
    )  # fmt: skip
    beta = next(trait for trait in default if trait.text == "beta is 0.5")
    assert beta in given
    alphas = {trait.ignoring for trait in given if trait.text == "alpha is more than 1"}
    assert alphas == {"", "alpha ignored"}


@pytest.mark.parametrize(
    ("opset", "text"),
    [(10, "the attribute min is left out"), (11, "min is left out")],
)
def test_traits_distinguish_attributes_from_inputs_of_the_same_name(opset, text):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2] x) => (float[2] y) '
        "{ y = Clip(x) }"
    )
    x = np.zeros(2, np.float32)
    texts = {trait.text for trait in node_traits(BoundNode.of(model, {"x": x}), {"y": x})}
    assert text in texts
    assert ("min is left out" in texts) == (opset > 10)


def test_lists_in_attributes_are_distinguished_from_inputs_of_the_same_name():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 9]> g (float[2, 2] x) => (float[2, 2] y) '
        "{ y = Slice <axes = [1, 0], starts = [0, 0], ends = [2, 2]> (x) }"
    )
    x = np.ones((2, 2), np.float32)
    bound = BoundNode.of(model, {"x": x})
    texts = {trait.text for trait in node_traits(bound, {"y": x})}
    assert "the attribute axes are not in ascending order" in texts
    assert not any(text.startswith(("axes", "a value of ends")) for text in texts)
    names = {number.name for number in node_numbers(bound)}
    assert "the largest value of the attribute axes" in names


def test_scalars_and_empty_tensors_have_numbers():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[0] x, float low) => (float[0] y) '
        "{ y = Clip(x, low) }"
    )
    inputs = {"x": np.zeros(0, np.float32), "low": np.array(0.5, np.float32)}
    numbers = {
        number.name: value for number, value in node_numbers(BoundNode.of(model, inputs)).items()
    }
    assert numbers["the length of the first axis of input"] == 0
    assert numbers["the largest finite value of min"] == 0.5


def test_nodes_of_all_types_have_the_same_numbers():
    """A limit that is fitted to the numbers of one type therefore applies to all types."""
    values = {"int32": np.int32, "float": np.float32, "bfloat16": ml_dtypes.bfloat16}
    of_types = []
    for name, dtype in values.items():
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> g ({name}[3] x) => ({name}[3] y) '
            "{ y = Abs(x) }"
        )
        of_types.append(node_numbers(BoundNode.of(model, {"x": np.array([1, 5, 3], dtype)})))
    assert of_types[0] == of_types[1] == of_types[2]
    assert 5 in of_types[0].values()


def test_no_limits_are_fitted_if_wrong_and_right_values_overlap():
    number = NodeNumber("alpha", 1.1)
    assert not [*fitted_limits(number, np.array([1, 2, 3]), np.array([0, 1, 2, 3]))]


@pytest.mark.usefixtures("without_counterfactuals")
@pytest.mark.parametrize("others_fail", [False, True])
def test_two_conditions_are_stated_if_they_explain_all_failures_together(monkeypatch, others_fail):
    traits = is_float, is_long = Trait("A is a float", 0.1), Trait("A is long", 0.3)

    def generate(_best, **_options):
        search._nodes.samples += nodes(12, is_float, failed=True) + nodes(12, is_long, failed=True)
        search._nodes.samples += nodes(30, failed=False) + nodes(120 * others_fail, failed=True)

    samples = [*nodes(40, failed=False, case="passing")]
    for trait in traits:
        samples += nodes(3, trait, failed=True, case=trait.text)
    search = _NodeSearch("mine", "Abs", [], samples, lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    monkeypatch.setattr(search._nodes, "examine_cases", lambda: None)
    monkeypatch.setattr(search, "_generate", generate)
    explanation = search.run()
    if others_fail:
        assert explanation is None
    else:
        assert [cause.found.split(" (")[0] for cause in explanation.causes] == [
            "found wrong wherever A is a float",
            "found wrong wherever A is long",
        ]


@pytest.mark.parametrize(
    ("is_parameter", "others_failing", "is_stated"),
    [(False, 30, False), (True, 30, True), (True, 40, False)],
)
def test_trait_is_not_stated_if_many_nodes_without_it_fail(is_parameter, others_failing, is_stated):
    trait = Trait("A has rank 5", 1.0, is_parameter=is_parameter)
    samples = nodes(40, trait, failed=True) + nodes(others_failing, failed=True)
    samples += nodes(70, failed=False)
    search = _NodeSearch("mine", "Abs", [], samples, lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    search._ranking.accepted = [Hypothesis((trait,), None, 0.0)]
    search._drop_insufficient()
    assert bool(search._ranking.accepted) is is_stated


def test_general_condition_is_preferred_to_an_accidental_one():
    """All nodes generated from the unexplained case have rank 1 by accident."""
    is_first, is_flat, differs = (
        Trait(text, cost)
        for text, cost in (("A differs from B", 1.3), ("C has rank 1", 1.15), ("A differs", 1.3))
    )
    samples = [
        *nodes(20, is_first, differs, failed=True, case="explained"),
        *nodes(1, is_flat, differs, failed=True, case="open"),
        *nodes(12, is_flat, differs, failed=True),
        *nodes(40, failed=False, case="passing"),
    ]
    search = _NodeSearch("mine", "Sum", [], samples, lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    search._ranking.accepted = [Hypothesis((is_first,), None, 1.3)]
    assert search._ranking.hypotheses()[0].traits == (differs,)


@pytest.mark.parametrize(("dtype", "is_consistent"), [("float32", True), ("bool", False)])
def test_mistake_with_truth_values_has_an_effect_on_most_failures(dtype, is_consistent):
    mistake = node_mistakes("", "Cast", 13)["input rounded to 16 bits"]
    samples = nodes(12, failed=True, case="failing")
    for place, sample in enumerate(samples):
        sample.returned = [np.ones(2, dtype)]
        sample.effects[mistake.name] = Effect.ALIKE if place < 6 else Effect.NONE
    hypothesis = Hypothesis((), mistake, 0.4)
    assert agrees_with_nodes(hypothesis, samples, [mistake.name], []) is is_consistent


@pytest.mark.parametrize("is_doubtful", [False, True])
def test_general_condition_is_preferred_to_a_mistake_with_few_elements(is_doubtful):
    has_nan, mistake = Trait("A has a NaN", 1.1), node_mistakes("", "Less", 13)["A without NaN"]
    samples = [
        *nodes(8, has_nan, failed=True, case="like the mistake"),
        *nodes(4, has_nan, failed=True),
        *nodes(40, failed=False, case="passing"),
    ]
    for place, sample in enumerate(samples):
        sample.effects[mistake.name] = Effect.ALIKE if place < 8 else Effect.NONE
    search = _NodeSearch(
        "mine", "Less", [], samples, lambda *_: Outcome.CRASH, SearchClock(), LIMIT
    )
    search._nodes.mistakes, search._nodes.candidates = {mistake.name: mistake}, [mistake.name]
    search._nodes.doubtful = [mistake.name] * is_doubtful
    assert bool(search._ranking.hypotheses()[0].mistake) is not is_doubtful


@pytest.mark.parametrize(
    ("call", "opset", "vector", "text"),
    [
        ("Compress<axis = 1>(x, v)", 11, [True], "condition is shorter than the axis of input"),
        ("Compress(x, v)", 11, [True] * 5, "condition is shorter than input, flattened"),
        (
            "Slice<axes = [1], starts = [0], ends = [4]>(x)", 9, [True],
            "a value of ends exceeds the length of its axis",
        ),
        ("Slice(x, v, v)", 13, [2, 4], "a value of starts exceeds the length of its axis"),
        ("Slice(x, v, v)", 13, [2, -4], "a value of starts is below minus the length of its axis"),
        ("TopK<axis = 0>(x, v)", 11, [2], "K equals the length of the axis of X"),
        ("Trilu(x, v)", 14, [4], "k is more than the length of the last axis of input"),
        ("Trilu(x, v)", 14, [-3], "k is at most minus the length of the last axis of input"),
        ("Dropout(x, , v)", 13, [False], "training_mode is not true"),
        (
            "Trilu(x, v)", 14, [-2],
            "the magnitude of k is less than the length of the last axis of input",
        ),
        ("ReduceSum(x, v)", 13, [0], "axes are [0]"),
    ],
)  # fmt: skip
def test_traits_compare_lengths_and_positions_with_axes(call, opset, vector, text):
    v = np.array(vector)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2, 3] x, '
        f"{'bool' if v.dtype == bool else 'int64'}[{v.size}] v) => (float[N, M] y) {{ y = {call} }}"
    )
    x = np.zeros((2, 3), np.float32)
    bound = BoundNode.of(model, {"x": x, "v": v})
    assert text in {trait.text for trait in node_traits(bound, {"y": x})}
    if "(x, v" in call:
        vector = np.ones(6, bool) if v.dtype == bool else np.array([2, 3])
        bound = BoundNode.of(model, {"x": x, "v": vector})
        assert text not in {trait.text for trait in node_traits(bound, {"y": x})}


@pytest.mark.parametrize(
    ("call", "operands", "present", "absent"),
    [
        (
            "Trilu(a, b)", [np.eye(2), np.array(-5)],
            "k is less than the length of the last axis of input",
            "the magnitude of k is less than the length of the last axis of input",
        ),
        (
            "Identity(a)", [np.array([7, -2], ml_dtypes.int4)],
            "the right output has a negative value", "input is an integer of 8 bits",
        ),
        (
            "Identity(a)", [np.array([7, -2], ml_dtypes.int4)],
            "input has the smallest or largest value of its type", "input is unsigned",
        ),
        (
            "Identity(a)", [np.array([1, 2], ml_dtypes.bfloat16)],
            "input is not float32", "input is an integer",
        ),
        (
            "Identity(a)", [np.array([np.inf, np.inf])],
            "input has equal values", "input is a float of 16 bits",
        ),
        (
            "SequenceLength(a)", [[np.ones(2)]],
            "the first output is int64", "all inputs are broadcast",
        ),
        (
            "OneHot<axis = 2>(a, b, c)", [np.zeros((1, 2), int), np.array(3), np.ones(2)],
            "axis is 2", "axis is not the last axis",
        ),
        (
            "OneHot<axis = 1>(a, b, c)", [np.zeros((1, 3), int), np.array(3), np.ones(2)],
            "axis is 1", "values is shorter than the axis of indices",
        ),
        (
            "Concat<axis = 0>(a, b)", [np.ones((2, 3)), np.ones((0, 3))],
            "an input has length 0 along the axis", "axis is not the first axis",
        ),
        (
            "ReduceSum(a, b)", [np.ones((1, 3)), np.array([-1])],
            "more than one element is reduced", "more than one axis is reduced",
        ),
        (
            "ReduceSum(a, b)", [np.ones((0, 3)), np.array([0])],
            "no elements are reduced", "more than one element is reduced",
        ),
        (
            "ReduceSum<noop_with_empty_axes = 0>(a, b)", [np.ones((2, 3)), np.empty(0, int)],
            "more than one axis longer than 1 is reduced", "not all axes are reduced",
        ),
        (
            "ReduceSum<noop_with_empty_axes = 1>(a, b)", [np.ones((2, 3)), np.empty(0, int)],
            "data is a float", "more than one element is reduced",
        ),
        (
            "SplitToSequence(a, b)", [np.ones((5, 4)), np.array(2)],
            "split does not divide the length of the axis of input", "split is negative",
        ),
        (
            "SplitToSequence<axis = 1>(a, b)", [np.ones((5, 4)), np.array(2)],
            "split is 2", "split does not divide the length of the axis of input",
        ),
        (
            "Transpose<perm = [1, 2, 0]>(a)", [np.ones((2, 3, 4))],
            "perm is not its own inverse", "perm is [2, 1, 0]",
        ),
        (
            'Pad<mode = "">(a, b)', [np.ones(2), np.array([1, 1])],
            "mode is empty", "mode is ",
        ),
        (
            "Gather<axis = 1>(a, b)", [np.ones((2, 2)), np.zeros((2, 0, 2), int)],
            "an input has no elements", "an input has length 0 along the axis",
        ),
    ],
)  # fmt: skip
def test_traits_hold_for_unusual_types_and_axes(call, operands, present, absent):
    names = "abc"[: len(operands)]
    bound = BoundNode.of(
        onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 21]> g '
            f"({', '.join(f'float[N] {name}' for name in names)}) => (float[N] y) {{ y = {call} }}"
        ),
        dict(zip(names, operands, strict=True)),
    )
    output = operands[0] if isinstance(operands[0], np.ndarray) else np.array(1)
    texts = {trait.text for trait in node_traits(bound, {"y": output})}
    assert (present in texts, absent in texts) == (True, False)


@pytest.mark.parametrize(
    ("shapes", "text", "is_true"),
    [
        (("2, 1", "3"), "all inputs are broadcast", True),
        (("2, 3", "3"), "all inputs are broadcast", False),
        (("3, 3", "3"), "B has fewer axes than the output, and also fits its first axes", True),
        (("2, 3", "3"), "B has fewer axes than the output, and also fits its first axes", False),
        (("2", "2"), "the elements of A and B are equal", True),
        (("2, 1", "3"), "A is broadcast along an axis that follows a longer one", True),
        (("1, 3", "2, 1"), "A is broadcast along an axis that follows a longer one", False),
    ],
)
def test_traits_describe_how_inputs_are_broadcast(shapes, text, is_true):
    first, second = shapes
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 14]> g (float[{first}] a, float[{second}] b) => '
        "(float[N] y) { y = Add(a, b) }"
    )
    operands = {
        name: np.ones([int(length) for length in shape.split(",")], np.float32)
        for name, shape in zip("ab", shapes, strict=True)
    }
    (output,) = native_outputs(model, operands)
    traits = node_traits(BoundNode.of(model, operands), {"y": output})
    assert (text in {trait.text for trait in traits}) is is_true


def test_counts_are_not_vectors_and_large_integers_are_compared_exactly():
    """K is a count, not a vector. The elements of X differ, but are equal as doubles."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]> g (int64[2] x, int64[1] k) => (int64[N] y, '
        "int64[N] i) { y, i = TopK(x, k) }"
    )
    x = np.array([2**60, 2**60 + 1])
    bound = BoundNode.of(model, {"x": x, "k": np.array([1])})
    texts = {trait.text for trait in node_traits(bound, {"y": x[1:], "i": np.array([1])})}
    assert not texts & {"K is shorter than the axis of X", "X has equal values"}


def test_condition_of_three_parts_is_stated(monkeypatch):
    traits = [Trait(f"A is {word}", 0.1) for word in ("a float", "long", "negative")]
    trait_pairs = [[trait for trait in traits if trait is not each] for each in traits]

    def generate(_best, **_options):
        search._nodes.samples += nodes(12, *traits, failed=True) + nodes(20, failed=False)
        for pair in trait_pairs:
            search._nodes.samples += nodes(6, *pair, failed=False)

    samples = nodes(4, *traits, failed=True, case="failing")
    for number, pair in enumerate(trait_pairs):
        samples += nodes(2, *pair, failed=False, case=f"passing{number}")
    search = _NodeSearch("mine", "Abs", [], samples, lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    monkeypatch.setattr(search._nodes, "examine_cases", lambda: None)
    monkeypatch.setattr(search, "_generate", generate)
    (cause,) = search.run().causes
    assert cause.found.startswith(
        "found wrong wherever A is a float and A is long and A is negative ("
    )


@pytest.mark.parametrize("has_backend", [False, True])
def test_limits_of_numbers_require_generated_nodes(has_backend):
    """In few cases, the limit of an attribute may separate failures from passes by accident."""
    number = NodeNumber("alpha", 1.1)
    samples = [
        NodeSample(f"case{place}", None, {}, [], [], failed=place < 4, numbers={number: place})
        for place in range(12)
    ]
    submit = (lambda *_: Outcome.CRASH) if has_backend else None
    search = _NodeSearch("mine", "Abs", [], samples, submit, SearchClock(), LIMIT)
    assert bool(search._ranking.hypotheses()) is has_backend


def test_limit_of_a_number_ignores_nodes_that_cannot_show_wrong_values():
    number = NodeNumber("alpha", 1.1)
    samples = [
        NodeSample("", None, {}, [], [], failed=place > 4, numbers={number: place})
        for place in range(8)
    ]
    for sample in samples[3:5]:
        sample.outputs = JudgedOutputs([np.zeros(1, np.float32)])
    search = _NodeSearch("mine", "Abs", [], samples, None, SearchClock(), LIMIT)
    (trait,) = search._ranking._limits(samples[5:])
    assert trait.limits.low == (2, 5)


def test_failures_affected_by_a_stated_mistake_need_no_further_cause():
    mistake = next(iter(node_mistakes("", "Elu", 6).values()))
    samples = [
        NodeSample("", None, {}, [], [], failed=True, effects={mistake.name: effect})
        for effect in (Effect.NONE, Effect.ALIKE, Effect.UNLIKE)
    ]
    search = _NodeSearch("mine", "Elu", [], samples, None, SearchClock(), LIMIT)
    search._ranking.accepted = [Hypothesis((), mistake, 0.0)]
    assert search._ranking.separate_failures() == samples[:1]


def test_condition_is_dropped_if_another_condition_covers_all_failures():
    is_float, is_long = Trait("A is a float", 0.1), Trait("A is long", 0.3)
    samples = [
        NodeSample("", None, {}, [], [], failed=place < 30, traits=traits)
        for place, traits in enumerate(
            [frozenset({is_float, is_long})] * 15
            + [frozenset({is_float})] * 10
            + [frozenset({is_long})] * 5
            + [frozenset()] * 60
        )
    ]
    search = _NodeSearch("mine", "Abs", [], samples, lambda *_: Outcome.CRASH, SearchClock(), LIMIT)
    short, long = (Hypothesis((trait,), None, 0.0) for trait in (is_float, is_long))
    search._ranking.accepted = [long, short]
    search._drop_insufficient()
    assert search._ranking.accepted == [short]


def test_nodes_that_validate_a_statement_vary_equal_axes():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float[2, 3, 3] x, float[3] slope) => '
        "(float[2, 3, 3] y) { y = PRelu(x, slope) }"
    )
    x = np.linspace(-1, 0.7, 18, dtype=np.float32).reshape(2, 3, 3)
    node = BoundNode.of(model, {"x": x, "slope": np.array([0.1, 0.3, 0.7], np.float32)})
    drawn = neighbours([node], [], seed=1, seconds=1.0, is_directed=True)
    arrays = [each.bound.operand(0) for each in islice(drawn, 300) if each]
    assert sum(a.ndim == 3 and a.shape[1] != a.shape[2] == 3 for a in arrays) >= 8
    assert any(a.ndim == 4 for a in arrays)
    assert any(a.dtype == np.float64 for a in arrays)


def test_nodes_that_validate_a_statement_vary_magnitudes_ranks_and_attributes():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (double[2, 3] x) => (double[2, 3] y) '
        "{ y = Elu <alpha = 2.0> (x) }"
    )
    x = np.array([[-1.5, 2.0, 0.25], [-0.5, 3.0, 7.0]])
    drawn = neighbours([BoundNode.of(model, {"x": x})], [], seed=1, seconds=1.0, is_directed=True)
    bound = [each.bound for each in islice(drawn, 400) if each]
    arrays = [node.operand(0) for node in bound]
    doubles = [np.abs(a[np.isfinite(a)]) for a in arrays if a.dtype == np.float64]
    assert any(((a >= 2**52) & (a < 2**53) & (a % 2 == 1)).any() for a in doubles)
    assert any((a > 1e100).any() for a in doubles)
    assert any(a.size > 1 and (a == 2.0**-20).all() for a in doubles)
    assert any(a.size == 6 and np.unique(a).size == 2 for a in arrays)
    assert any(a.ndim >= 6 for a in arrays)
    assert any(a.size == 1 for a in arrays)
    assert any(1 < node.attribute("alpha") < 1.25 for node in bound)


def test_nodes_that_validate_a_limit_approach_it_on_both_sides_in_all_types():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float[2] x) => (float[2] y) '
        "{ y = LeakyRelu <alpha = 2.0> (x) }"
    )
    node = BoundNode.of(model, {"x": np.array([-1.5, 2.0], np.float32)})
    drawn = neighbours([node], [], 1, 1.0, stated=["alpha"], is_directed=True)
    bound = [each.bound for each in islice(drawn, 1000) if each]
    near = [each for each in bound if 0 < abs(each.attribute("alpha") - 1) < 2e-3]
    types = {each.operand(0).dtype.name for each in near}
    assert types >= {"float16", "float32", "float64"}
    assert {each.attribute("alpha") > 1 for each in near} == {True, False}


def test_nodes_that_validate_a_statement_have_empty_outputs_and_special_values():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float[2] a, float[2] b) => (bool[2] y) '
        "{ y = LessOrEqual (a, b) }"
    )
    values = {"a": np.array([np.nan, 1.0], np.float32), "b": np.array([2.0, 3.0], np.float32)}
    drawn = neighbours([BoundNode.of(model, values)], [], seed=1, seconds=1.0, is_directed=True)
    bound = [each.bound for each in islice(drawn, 400) if each]
    pairs = [(each.operand(0), each.operand(1)) for each in bound]
    assert any(np.isnan(a).any() and not b.size for a, b in pairs)
    assert any(np.isinf(b).any() for _, b in pairs)


def test_nodes_that_validate_a_statement_have_equal_slices():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float[4, 6] x, float[6] slope) => '
        "(float[4, 6] y) { y = PRelu(x, slope) }"
    )
    x = np.linspace(-1, 0.7, 24, dtype=np.float32).reshape(4, 6)
    node = BoundNode.of(model, {"x": x, "slope": np.linspace(0.1, 0.6, 6, dtype=np.float32)})
    drawn = neighbours([node], [], 1, 1.0, stated=["slope"], is_directed=True)
    slopes = [each.bound.operand(1) for each in islice(drawn, 200) if each]
    slopes = [slope for slope in slopes if slope.shape == (6,)]
    assert any((s[:3] == s[3:]).all() and np.unique(s).size == 3 for s in slopes)


def test_nodes_that_validate_a_statement_have_zeros_and_right_outputs_as_inputs():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float[2, 3] x) => (float[2, 3] y) '
        "{ y = LpNormalization (x) }"
    )
    x = np.linspace(-1, 0.7, 6, dtype=np.float32).reshape(2, 3)
    drawn = neighbours([BoundNode.of(model, {"x": x})], [], seed=1, seconds=1.0, is_directed=True)
    arrays = [each.bound.operand(0) for each in islice(drawn, 300) if each]
    assert any(np.count_nonzero(a == 0) == 1 and a.size > 1 for a in arrays)
    with np.errstate(all="ignore"):
        norms = [np.linalg.norm(a.astype(float), axis=-1) for a in arrays if a.shape == (2, 3)]
    assert any(np.allclose(norm, 1, rtol=1e-6) for norm in norms)


def test_nodes_that_validate_a_statement_have_tensors_of_zeros_as_attributes():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (int64[1] shape) => (float[3] y) '
        "{ y = ConstantOfShape (shape) }"
    )
    node = BoundNode.of(model, {"shape": np.array([3])})
    drawn = neighbours([node], [], seed=1, seconds=1.0, is_directed=True)
    tensors = [each.bound.attributes.get("value") for each in islice(drawn, 300) if each]
    values = {float(onnx.numpy_helper.to_array(tensor)[0]) for tensor in tensors if tensor}
    assert values >= {0.0, 1.0}


def test_default_with_only_infinite_results_is_an_exception():
    """A backend whose default is another one than the tried value may be right."""
    left_out = Trait("alpha is left out", 1.0, "default of alpha changed")
    sample = NodeSample("", None, {}, None, None, failed=False, traits=frozenset({left_out}))
    sample.effects = {left_out.ignoring: Effect.NONE}
    sample.outputs = JudgedOutputs([np.float32([-np.inf])])
    exceptions = Hypothesis((left_out,), None, 0.0).silent_exceptions([sample])
    assert exceptions == ["all right values are 0, infinite or NaN"]


def test_nodes_that_validate_a_statement_vary_single_numbers_of_a_list():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16, "ai.onnx.ml": 1]> g (float[2, 1] x) => '
        "(float[2, 2] y) { y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0], "
        "intercepts = [5.0, 0.0], targets = 2> (x) }"
    )
    x = np.array([[1.0], [2.0]], np.float32)
    drawn = neighbours([BoundNode.of(model, {"x": x})], [], seed=1, seconds=1.0, is_directed=True)
    lists = [each.bound.attribute("coefficients") for each in islice(drawn, 900) if each]
    pairs = [numbers for numbers in lists if len(numbers or ()) == 2]
    assert any(np.inf > abs(first) > 1e10 * abs(second) > 0 for first, second in pairs)
    assert any(np.isinf(first) > np.isinf(second) for first, second in pairs)


@pytest.mark.parametrize(("size", "text"), [(1, "B is not true"), (2, "B has one element")])
def test_truth_values_of_several_elements_are_not_flags(size, text):
    """A statement such as "B is not true" would be ambiguous."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (bool[2] a, bool[N] b) => (bool[2] y) '
        "{ y = And(a, b) }"
    )
    operands = {"a": np.array([True, False]), "b": np.zeros(size, bool)}
    texts = {trait.text for trait in node_traits(BoundNode.of(model, operands), {})}
    assert text not in texts


@pytest.mark.parametrize(("x", "is_negative"), [(-np.inf, True), (np.nan, False), (0.0, False)])
def test_minus_infinity_is_a_negative_value(x, is_negative):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    )
    values = np.float32([x, 1.0])
    texts = {trait.text for trait in node_traits(BoundNode.of(model, {"x": values}), {})}
    assert ("X has a negative value" in texts) is is_negative


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.int8])
def test_integers_of_any_magnitude_are_drawn(dtype):
    node = BoundNode.of(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 16]> g ({dtype.__name__}[99] x) => '
            f"({dtype.__name__}[99] y) {{ y = Mul(x, x) }}"
        ),
        {"x": np.arange(99).astype(dtype)},
    )
    drawn = [_magnitudes(Random(seed), node).operand(0) for seed in range(20)]  # noqa: S311
    numbers = np.concatenate(drawn).astype(np.float64)
    assert {array.dtype.name for array in drawn} == {dtype.__name__}
    assert np.iinfo(dtype).max / 2 < numbers.max() <= np.iinfo(dtype).max
    assert (numbers == 1).any()


def test_magnitudes_of_float8_are_not_drawn():
    node = BoundNode.of(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 19]> g (float8e5m2[3] x) => (float[3] y) '
            "{ y = Cast <to = 1> (x) }"
        ),
        {"x": np.array([1, 2, 3], ml_dtypes.float8_e5m2)},
    )
    assert _magnitudes(Random(0), node) is node  # noqa: S311 - not a secret


@pytest.mark.parametrize(("rank", "is_below"), [(5, True), (6, False)])
def test_bounds_of_shapes_are_compared_with_the_rank(rank, is_below):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 15]> g (float{[1] * rank} x) => (int64[N] y) '
        "{ y = Shape <end = -6> (x) }"
    )
    x = np.zeros((1,) * rank, np.float32)
    texts = {trait.text for trait in node_traits(BoundNode.of(model, {"x": x}), {})}
    assert ("end is below minus the number of axes of data" in texts) is is_below
