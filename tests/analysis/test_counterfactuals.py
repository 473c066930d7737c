"""Single changes of failing inputs after which a backend is right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx.parser
import pytest

from onnxopt_cli.analysis.call_changes import single_changes_of_call
from onnxopt_cli.analysis.counterfactuals import (
    MIN_REPAIRED,
    SingleChange,
    counterfactual_text,
    find_counterfactuals,
)
from onnxopt_cli.analysis.explanation.explain import SearchClock
from onnxopt_cli.analysis.explanation.explain_nodes import _NodeSearch
from onnxopt_cli.analysis.explanation.generated_inputs import checked
from onnxopt_cli.analysis.explanation.node_examination import SearchLimit
from onnxopt_cli.analysis.explanation.node_samples import NodeSample
from onnxopt_cli.analysis.node_changes import single_changes
from onnxopt_cli.analysis.node_variations import valid_variation
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.operators.call import bind, node_attributes
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.evaluator import native_outputs


def changes_of_numbers(numbers):
    for place, name in enumerate("abc"):
        changed = [*numbers]
        changed[place] = 0
        if changed != [*numbers]:
            yield SingleChange(name, f"{name} is 0", tuple(changed))


def outcomes(is_right):
    return lambda pairs: [is_right(*changed) for _, changed in pairs]


def failing_numbers(count):
    return [(number + 1, number + 2, number % 3) for number in range(count)]


def test_changes_after_which_the_backend_is_right_are_stated():
    failing = failing_numbers(23)
    counterfactuals = find_counterfactuals(
        failing, changes_of_numbers, outcomes(lambda a, b, _: not (a and b))
    )
    assert counterfactual_text(counterfactuals, "right", "inputs") == (
        "right after a single change: a is 0 (23 of 23 failing inputs), "
        "or b is 0 (23 of 23 failing inputs)"
    )


@pytest.mark.parametrize(
    ("count", "is_right"),
    [
        (MIN_REPAIRED - 1, lambda a, _b, _c: not a),
        (MIN_REPAIRED + 9, lambda a, b, _: not a and b % 2 > 0),
        (MIN_REPAIRED + 9, lambda _a, _b, c: None if c else False),
    ],
    ids=["too few inputs", "still wrong in some inputs", "never shown"],
)
def test_changes_that_do_not_always_help_are_not_stated(count, is_right):
    counterfactuals = find_counterfactuals(
        failing_numbers(count), changes_of_numbers, outcomes(is_right)
    )
    assert counterfactuals == []


def test_change_of_a_small_part_of_the_failing_inputs_is_not_stated():
    failing = [(1, 1, int(number % 4 == 0)) for number in range(4 * MIN_REPAIRED)]
    counterfactuals = find_counterfactuals(
        failing, changes_of_numbers, outcomes(lambda a, b, c: a and b and not c)
    )
    assert counterfactuals == []


def node_of(call, opset, **operands):
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> agraph () => () {{ Y = {call} }}'
    model = onnx.parser.parse_model(text)
    for name, array in operands.items():
        element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, element, array.shape))
    model.graph.output.append(onnx.ValueInfoProto(name="Y"))
    return BoundNode.of(model, operands)


def test_changes_of_a_node_concern_values_attributes_types_and_shapes():
    x = np.array([[[1.5, -np.nan], [2000.0, 2000.0]]] * 2, np.float32)
    node = node_of("Softmax<axis = -1>(X)", 13, X=x)
    changes = {change.text: change.changed for change in single_changes(node)}
    assert changes.keys() >= {
        "no NaN of input has a sign bit", "no element of input is NaN", "axis is not negative",
        "all elements of input are different", "no element of input is halfway between integers",
        "no magnitude of input exceeds 1000", "input is float64", "axis is omitted", "axis is 0",
        "the first axis of input has length 1", "the last two axes of input are merged",
    }  # fmt: skip
    assert not {"no element of input is infinite", "input is float32"} & changes.keys()
    signless = changes["no NaN of input has a sign bit"].operand(0)
    assert np.array_equal(signless, x, equal_nan=True)
    assert not np.signbit(signless[np.isnan(signless)]).any()
    assert changes["axis is not negative"].attribute("axis") == 2
    different = changes["all elements of input are different"].operand(0)
    assert np.unique(different).size == x.size


def test_changes_of_a_node_concern_its_optional_inputs_and_broadcast_shapes():
    x, bounds = np.array([1, 5, 9], np.int32), np.array(3, np.int32)
    clip = node_of("Clip(X, L, H)", 13, X=x, L=bounds, H=bounds)
    texts = {change.text: change.changed for change in single_changes(clip)}
    assert texts["min is omitted"].operand(1) is None
    total = node_of("Sum(A, B, C, D)", 13, A=x / 2, B=x[:1] / 2, C=x / 3, D=x / 4)
    texts = {change.text: change.changed for change in single_changes(total)}
    assert len(texts["there are no more than 3 inputs"].names) == 3
    limited = texts["no magnitude of any input exceeds 1"].operands
    assert max(np.abs(value).max() for value in limited) <= 1
    assert texts["data_0_1 has the shape to which it is broadcast"].operand(1).shape == (3,)


def test_changes_of_strings_concern_their_characters():
    texts = np.array(["é", "B"], object)
    node = node_of("StringConcat(X, Y)", 20, X=texts, Y=texts[::-1])
    changes = {change.text: change.changed for change in single_changes(node)}
    ascii_only = changes["no character of any input is outside ASCII"]
    assert [value.tolist() for value in ascii_only.operands] == [["q", "B"], ["B", "q"]]
    assert changes["no letter of X is in upper case"].operand(0).tolist() == ["é", "b"]


def adam_call(tensors=2):
    operator = registry().find("ai.onnx.preview.training", "Adam")
    x = np.array([[1, -2], [np.nan, 0.5]], np.float32)
    inputs = [np.float32(0.1), np.int64(-3)]
    inputs += [x] * tensors + [x] * tensors + [np.float64(2.0)] * tensors + [x * x] * tensors
    node = onnx.helper.make_node(
        "Adam", [], [], domain=operator.domain, alpha=0.5, beta=0.9, norm_coefficient=0.1
    )
    inputs = [np.asarray(value) for value in inputs]
    return bind(operator, inputs, node_attributes(operator, node))


def test_changes_of_a_call_concern_operands_attributes_scalars_and_groups():
    call = adam_call()
    changes = {change.text: change.changed for change in single_changes_of_call(call, 1)}
    assert changes.keys() >= {
        "no element of X is NaN", "no element of G is negative", "norm_coefficient is 0",
        "T is 1", "T is not negative", "there is only one tensor", "all tensors are float32",
        "all operands have the type of X", "all tensors have one axis",
        "all operands have the shape of X",
    }  # fmt: skip
    assert len(changes["there is only one tensor"].groups) == 1
    places = [*changes].index
    assert places("there is only one tensor") < places("norm_coefficient is 0") < places("T is 1")
    finite = changes["no element of any input is NaN"]
    assert np.isfinite([tensor.sum() for tensor in finite.inputs]).all()
    assert changes["T is not negative"].scalars[1] == 3
    assert not any(np.signbit(tensor).any() for _, tensor, *_ in [
        group[:2] for group in changes["no element of G is negative"].groups])  # fmt: skip
    for text, changed in changes.items():
        assert checked(changed) is not None, text


def clip_sample(x, case):
    """Return a node of a backend in which NaN becomes the minimum if both bounds are given."""
    operands = {"X": x, "L": np.array(-1, np.float32), "H": np.array(1, np.float32)}
    node = node_of("Clip(X, L, H)", 13, **operands)
    variation = valid_variation(node, 1.0)
    returned = wrong_clip(variation.model, variation.inputs)
    failed = not np.array_equal(returned[0], variation.outputs[0], equal_nan=True)
    return NodeSample(case, variation.model, variation.inputs, None, returned, failed)


def wrong_clip(model, inputs):
    (outputs,) = native_outputs(model, inputs)
    x, *bounds = inputs.values()
    if len(bounds) == 2 and x.dtype == np.float32:
        outputs = np.where(np.isnan(x), bounds[0], outputs)
    return [outputs]


def test_failures_without_another_cause_are_explained_by_counterfactuals(monkeypatch):
    monkeypatch.setattr(_NodeSearch, "_find_proven", lambda _: False)
    monkeypatch.setattr(_NodeSearch, "_find_element_conditions", lambda _: [])
    monkeypatch.setattr(_NodeSearch, "_generate", lambda *_, **__: None)
    failing = [
        clip_sample(np.array([np.nan, number / 30, number], np.float32), f"case {number}")
        for number in range(24)
    ]
    results = [SimpleNamespace(case=sample.case, outcome=Outcome.FAIL) for sample in failing]
    limit = SearchLimit(1e6, 60.0)
    search = _NodeSearch("backend", "Clip", results, failing, wrong_clip, SearchClock(), limit)
    (cause,) = search.run().causes
    assert "right after a single change: " in cause.found
    assert "no element of input is NaN (24 of 24 failing nodes)" in cause.found
    assert "min is omitted" in cause.found
    assert len(cause.cases) == 24
