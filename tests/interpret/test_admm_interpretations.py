"""Lowering and error bound of the ADMM operators: only correct results are accepted."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from admm_calls import PRUNING, call_of, calls, deviating
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.reformulations import computed_by_onnxruntime, reformulations
from onnxopt_cli.mutation.general_mistakes import regrouped
from onnxopt_cli.operators.registry import registry

each_operator = pytest.mark.parametrize("operator", PRUNING, ids=lambda operator: operator.name)


def judge_of(call, factor=1.0):
    """Return a function that decides whether outputs are within the derived tolerance of a call."""
    derived_outputs = {
        f"output {index}": output for index, output in enumerate(bound(call, factor))
    }
    expected = {name: output.expected for name, output in derived_outputs.items()}
    error_bounds = {name: output.error_bound for name, output in derived_outputs.items()}
    return lambda outputs: largest_share(expected, outputs, error_bounds.get) <= 1


def accepted(call, outputs, factor=1.0):
    return judge_of(call, factor)(outputs)


@pytest.mark.slow
@each_operator
@given(data=st.data())
def test_every_reformulation_is_within_the_bound(operator, data):
    call = data.draw(calls(operator, special=data.draw(st.booleans())))
    is_right = judge_of(call)
    rejected = [
        reformulation.name
        for reformulation in reformulations(operator)
        if not is_right(reformulation.run(call))
    ]
    assert rejected == []


@each_operator
@given(data=st.data())
def test_onnxruntime_computes_the_lowered_node(operator, data):
    pytest.importorskip("onnxruntime")
    call = data.draw(calls(operator, special=data.draw(st.booleans())))
    assert accepted(call, computed_by_onnxruntime(call))


@each_operator
@given(data=st.data())
def test_exact_percent_and_tensors_have_one_right_result(operator, data):
    call = data.draw(calls(operator, dtypes=("float32",)))
    attributes = {name: 50.0 if name == "percent" else 1.0 for name in call.attributes}
    inputs = [np.round(array * 8) / 8 for array in call.inputs]
    odd = [array for array in inputs if array.size % 2 and np.all(np.abs(array) < 2**12)]
    if len(odd) == len(inputs):
        exact = call_of(operator.name, *inputs, **attributes)
        assert all(derived_output.otherwise is None for derived_output in bound(exact))


def test_element_at_a_threshold_may_be_pruned_or_kept():
    # The rank is 80 % of 5, which is exactly 4. In float32, the result may be wrong by an ulp.
    W = np.float32([1, 2, 3, 4, 5, 10])
    call = call_of("AdmmUpdate", W, 0 * W, 0 * W, percent=80)
    right = evaluate(call)
    mutant_outputs = deviating(call, "elements equal to the threshold pruned")
    assert right[0][4] == 5
    assert mutant_outputs[0][4] == 0
    assert accepted(call, right)
    assert accepted(call, mutant_outputs)
    for between in (2.5, 4.99, 0.01, -5):
        changed = right[0].copy()
        changed[4] = between
        assert not accepted(call, [changed, right[1]])
    for place in (0, 1, 2, 3, 5):
        flipped = right[0].copy()
        flipped[place] = W[place] - flipped[place]
        assert not accepted(call, [flipped, right[1]])


def test_one_result_is_accepted_if_rounding_cannot_change_the_choice():
    W = np.float32([1, 2, 3, 4, 5])
    call = call_of("AdmmUpdate", W, 0 * W, 0 * W, percent=50)
    assert accepted(call, evaluate(call))
    assert not accepted(call, deviating(call, "elements equal to the threshold pruned"))


def test_equal_magnitudes_have_one_right_result_at_any_rank():
    W = np.float32([1, 1, -1, 1, 2])
    call = call_of("MagnitudePrune", W, percent=60)
    assert all(derived_output.otherwise is None for derived_output in bound(call))


def test_rounded_sum_may_be_on_either_side_of_the_threshold():
    W, U = np.float32([1, 2, 3, 4, 0.1]), np.float32([0.1] * 5)
    Z_new, U_new = bound(call_of("AdmmUpdate", W, W, U, percent=50))
    assert (Z_new.otherwise.expected != Z_new.expected).tolist() == [False, True] + [False] * 3
    assert (U_new.otherwise.expected != U_new.expected).tolist() == [False, True] + [False] * 3


def test_mask_is_exact():
    call = call_of("MagnitudePrune", [1, 2, 3], percent=50)
    W_new, mask = evaluate(call)
    assert accepted(call, [W_new, mask], factor=4)
    assert not accepted(call, [W_new, np.nextafter(mask, np.float32(2))], factor=4)


def test_bound_of_a_sum_grows_with_the_root_of_its_length():
    errors = []
    for size in (10, 1000, 100_000):
        W = np.ones(size, np.float32)
        (loss,) = bound(call_of("AdmmPenalty", 0.0, W, 0 * W, 0 * W, rho=2))
        errors.append(float(loss.error) / size)
    assert 2.0**-24 * 9 < errors[0] < 2.0**-24 * 20
    # The bound of ten terms is limited to nine roundings, so the first ratio exceeds sqrt(100).
    assert 10 < errors[1] / errors[0] < 25
    assert 9 < errors[2] / errors[1] < 11


def test_overflowing_sum_is_inconclusive_and_nan_must_be_returned():
    W = np.float32([1e20, 1])
    (loss,) = bound(call_of("AdmmPenalty", 0.0, W, 0 * W, 0 * W, rho=2))
    assert np.isinf(loss.limit)
    (loss,) = bound(call_of("AdmmPenalty", 0.0, [np.nan, 1], [0, 0], [0, 0], rho=2))
    assert loss.limit == 0
    assert np.isnan(loss.expected)


def test_omitted_layer_is_rejected():
    call = call_of("AdmmPenalty", 0.0, [1, 2], [3.0], [0, 0], [0.0], [0, 0], [0.0], rho=2)
    short = regrouped(lambda groups: groups[:1])(call)
    assert accepted(call, evaluate(call))
    assert not accepted(call, short)


def training_step():
    """Return a model whose types onnx can infer only if both operators are registered."""
    update = helper.make_node(
        "AdmmUpdate",
        ["W1", "W2", "Z1", "Z2", "U1", "U2"],
        ["Z1_new", "Z2_new", "U1_new", "U2_new"],
        domain="onnxopt.pruning",
        percent=[50.0],
    )
    penalty = helper.make_node(
        "AdmmPenalty",
        ["loss", "W1", "W2", "Z1_new", "Z2_new", "U1_new", "U2_new"],
        ["loss_new"],
        domain="onnxopt.pruning",
        rho=0.5,
    )
    double = helper.make_node("Add", ["loss_new", "loss_new"], ["twice"])
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.DOUBLE if name == "U1" else TensorProto.FLOAT, [2, 3]
        )
        for name in update.input
    ]
    inputs.append(helper.make_tensor_value_info("loss", TensorProto.DOUBLE, []))
    outputs = [helper.make_tensor_value_info("twice", TensorProto.DOUBLE, [])]
    graph = helper.make_graph([update, penalty, double], "step", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("onnxopt.pruning", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_checker_of_onnx_accepts_the_operators_and_infers_their_types():
    registry().register_schemas()
    model = training_step()
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    names = {
        value.name: (
            value.type.tensor_type.elem_type,
            [dimension.dim_value for dimension in value.type.tensor_type.shape.dim],
        )
        for value in inferred.graph.value_info
    }
    assert names["U1_new"] == (TensorProto.DOUBLE, [2, 3])
    assert names["Z1_new"] == (TensorProto.FLOAT, [2, 3])
    assert names["loss_new"] == (TensorProto.DOUBLE, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda node: setattr(node.attribute[0], "name", "fraction"), "fraction"),
        (lambda node: node.ClearField("attribute"), "percent"),
        (lambda node: node.attribute[0].CopyFrom(helper.make_attribute("percent", 50)), "percent"),
    ],
)
def test_checker_of_onnx_rejects_wrong_attributes(change, message):
    registry().register_schemas()
    model = training_step()
    change(model.graph.node[0])
    with pytest.raises(onnx.checker.ValidationError, match=message):
        onnx.checker.check_model(model)


def test_description_of_an_operator_states_its_outputs_and_limits(onnxopt):
    page = onnxopt("show", "AdmmPenalty").out
    assert "as loss, one for all" in page
    page = onnxopt("show", "MagnitudePrune").out
    assert "floats, one for all or one for each, 0 to 100" in page
    assert "mask1 .. maskn" in page
    for word in ("NaN", "Ties", "empty layer", "one element", "percent 0", "percent 100"):
        assert word in " ".join(page.split())
