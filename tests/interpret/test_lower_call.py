"""A lowered node computes the formula on every runtime, with primitive operators of ONNX."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_operators import lowered, operator_of
from onnx import helper, numpy_helper
from rounding_interval import WIDE_TYPE, Interval
from runtimes import NEWEST, newest_opset, runtimes
from training_calls import TRAINING

from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.lower.lower_model import formula_operators, lower
from onnxopt_cli.operators.call import bind, node_attributes
from onnxopt_cli.operators.operator import FLOATS
from onnxopt_cli.operators.percentile import percentile
from onnxopt_cli.operators.registry import registry

F, D = np.float32, np.float64


def one_node_model(operator, inputs, attributes, opset=17, *, known=True):
    """Return a model of one node; if not ``known``, only the ranks of inputs are declared."""
    groups = (len(inputs) - len(operator.scalars)) // len(operator.tensors)
    names = operator.input_names(groups)
    declared = {
        name: helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(value.dtype),
            value.shape if known else [None] * value.ndim,
        )
        for name, value in zip(names, inputs, strict=True)
    }
    results = []
    for name in operator.output_names(groups):
        like = name.removesuffix("_new")
        result = onnx.ValueInfoProto(name=name, type=declared[like].type)
        result.type.tensor_type.shape.CopyFrom(declared["X" + like[1:]].type.tensor_type.shape)
        results.append(result)
    node = helper.make_node(
        operator.name,
        names,
        [result.name for result in results],
        domain=operator.domain,
        **attributes,
    )
    return helper.make_model(
        helper.make_graph([node], "one_node", declared.values(), results),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(operator.domain, 1)],
    )


def bound_call(model, inputs):
    node = model.graph.node[0]
    operator = registry().named(node.op_type)
    return bind(operator, inputs, node_attributes(operator, node), len(node.output))


def enclosures(call):
    """Return for each output an interval that contains the result of every rounded evaluation."""

    def scalar(value):
        return Interval.exactly(value.reshape(()), value.dtype if value.dtype.kind == "f" else None)

    def tensor(value):
        return Interval.exactly(value, value.dtype)

    with np.errstate(all="ignore"):
        results = call.apply(scalar, tensor, WIDE_TYPE)
        return [result.rounded_to(like.dtype) for result, like, _ in results]


SHAPES = [(), (0,), (1,), (3,), (2, 3), (2, 0, 3), (4, 1)]
FACTORS = [0.0, 0.1, 0.3, 0.5, 0.9, 0.95, 0.999, 0.99999]
magnitudes = st.floats(-10, 3).map(lambda exponent: 10.0**exponent)


@st.composite
def tensors(draw, shape, *, positive=False):
    # Drawing a seed results in more varied elements than drawing each element, and shrinks equally
    # well.
    random = np.random.RandomState(draw(st.integers(0, 2**32 - 1)))
    scale = draw(magnitudes)
    values = random.standard_normal(shape) * scale * random.choice([0, 1, 1, 1], shape)
    return np.asarray(np.abs(values) if positive else values, dtype=draw(st.sampled_from([F, D])))


@st.composite
def narrowed(draw, shape):
    """Draw a shape that can be broadcast to ``shape``."""
    suffix = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) else size for size in suffix)


@st.composite
def nodes(draw):
    """Draw the name of an operator, and the inputs and attributes of its node."""
    operator = draw(st.sampled_from(TRAINING))
    single_shapes = st.sampled_from([(), (1,), (1, 1)])
    R = np.asarray(draw(magnitudes), dtype=draw(st.sampled_from([F, D]))).reshape(
        draw(single_shapes)
    )
    T = np.asarray(draw(st.sampled_from([0, 1, -1, 2, 1000, 2**31 + 5]))).reshape(
        draw(single_shapes)
    )
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from(SHAPES))
        groups.append(
            [
                draw(tensors(shape if name == "X" else draw(narrowed(shape)), positive=name == "H"))
                for name in operator.tensors
            ]
        )
    attributes = {
        attribute.name: draw(st.sampled_from(attribute.choices or FACTORS))
        for attribute in operator.attributes
        if attribute.required or draw(st.booleans())
    }
    if attributes.get("epsilon") == 0:
        # A zero gradient divided by a zero root would be NaN.
        attributes["epsilon"] = 1e-8
    columns = [tensor for row in zip(*groups, strict=True) for tensor in row]
    return operator.name, [R, T, *columns], attributes


def assert_holds(model, inputs, results):
    call = bound_call(model, inputs)
    expected = evaluate(call)
    for bounds, expected_output, actual in zip(enclosures(call), expected, results, strict=True):
        assert actual.dtype == expected_output.dtype
        assert actual.shape == expected_output.shape
        assert np.all(np.isfinite(bounds.high - bounds.low))
        assert np.all(bounds.holds(expected_output))
        assert np.all(bounds.holds(actual))


@runtimes
@given(node=nodes(), opset=st.integers(13, NEWEST), known=st.booleans())
def test_error_of_a_lowered_node_is_within_its_roundings(runtime, node, opset, known):
    operator, inputs, attributes = node
    opset = min(opset, newest_opset(runtime))
    model = one_node_model(registry().named(operator), inputs, attributes, opset, known=known)
    lowered = lower(model).model
    onnx.checker.check_model(lowered, full_check=True)
    assert not formula_operators(lowered)
    assert_holds(model, inputs, runtime(lowered, inputs))


def one_group(operator, dtype, size=2):
    tensors = [np.ones(size, dtype) for _ in registry().named(operator).tensors]
    return [F(0.1), np.array(3), *tensors]


MOMENTUM = {"alpha": 0.5, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.1}


def one_node(operator, inputs, **options):
    inputs = [np.asarray(value) for value in inputs]
    attributes = MOMENTUM if operator == "Momentum" else {}
    return one_node_model(registry().named(operator), inputs, attributes, **options), inputs


@pytest.mark.parametrize("operator", ["Adam", "Adagrad", "Momentum"])
def test_float32_tensors_are_computed_in_float32(operator):
    model, _ = one_node(operator, one_group(operator, F))
    inferred = onnx.shape_inference.infer_shapes(lower(model).model).graph
    shaped = [value for value in inferred.value_info if value.type.tensor_type.shape.dim]
    assert shaped
    assert {value.type.tensor_type.elem_type for value in shaped} == {onnx.TensorProto.FLOAT}


@runtimes
def test_scalar_expressions_are_computed_once_for_all_groups(runtime):
    R, T, *tensors = one_group("Adam", F)
    model, inputs = one_node("Adam", [R, T, *(tensor for tensor in tensors for _ in range(3))])
    lowered = lower(model).model
    counts = [node.op_type for node in lowered.graph.node]
    assert counts.count("Pow") == 2
    assert counts.count("Where") == 1
    assert_holds(model, inputs, runtime(lowered, inputs))


def test_constants_of_a_call_are_shared():
    model, _ = one_node("Adam", one_group("Adam", F))
    constants = [n for n in lower(model).model.graph.node if n.op_type == "Constant"]
    values = {n.attribute[0].t.raw_data + bytes([n.attribute[0].t.data_type]) for n in constants}
    assert len(values) == len(constants) > 3


@runtimes
def test_outputs_without_a_name_are_not_computed(runtime):
    model, inputs = one_node("Adam", one_group("Adam", F))
    all_nodes = len(lower(model).model.graph.node)
    model.graph.node[0].output[0] = model.graph.node[0].output[2] = ""
    del model.graph.output[2], model.graph.output[0]
    onnx.checker.check_model(model, full_check=True)
    lowered = lower(model).model
    assert "Sqrt" not in {node.op_type for node in lowered.graph.node}
    assert len(lowered.graph.node) < all_nodes / 2
    (actual,) = runtime(lowered, inputs)
    np.testing.assert_allclose(actual, evaluate(bound_call(model, inputs))[1], rtol=1e-6)


@runtimes
@pytest.mark.parametrize("operator", ["Adam", "Adagrad", "Momentum"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_as_in_the_formula(runtime, operator, special):
    base = one_group(operator, F)
    for place in range(2, len(base)):
        tensors = [value.copy() for value in base]
        tensors[place][1] = special
        model, inputs = one_node(operator, tensors)
        expected = evaluate(bound_call(model, inputs))
        for expected_output, actual in zip(
            expected, runtime(lower(model).model, inputs), strict=True
        ):
            np.testing.assert_allclose(actual, expected_output, rtol=1e-5, equal_nan=True)


@runtimes
@pytest.mark.parametrize("enlarging", [(3, 2), (1, 3), (3,)])
def test_operand_that_would_enlarge_a_tensor_of_unknown_shape_is_an_error(runtime, enlarging):
    X, G = np.ones((1, 2), F), np.ones(enlarging, F)
    model, inputs = one_node("Momentum", [F(0.1), 3, X, G, X], known=False)
    lowered = lower(model).model
    with pytest.raises(Exception, match=r"(?i)reshape|Add"):
        runtime(lowered, inputs)


@runtimes
def test_operand_of_unknown_shape_that_would_enlarge_a_tensor_is_an_error(runtime):
    X, G = np.ones((1, 2), F), np.ones((3, 2), F)
    model, inputs = one_node("Momentum", [F(0.1), 3, X, G, X], known=False)
    for value in (model.graph.input[2], *model.graph.output):
        for dimension, size in zip(value.type.tensor_type.shape.dim, X.shape, strict=True):
            dimension.dim_value = size
    lowered = lower(model).model
    with pytest.raises(Exception, match=r"(?i)reshape"):
        runtime(lowered, inputs)


def test_operand_that_would_enlarge_a_tensor_of_known_shape_is_rejected():
    X, G = np.ones((1, 2), F), np.ones((3, 2), F)
    model, _ = one_node("Momentum", [F(0.1), 3, X, G, X])
    with pytest.raises(NodeError, match="does not broadcast"):
        lower(model)


@runtimes
@pytest.mark.parametrize("place", [0, 1])
def test_scalar_input_of_unknown_shape_with_two_elements_is_an_error(runtime, place):
    values = one_group("Momentum", F)
    values[place] = np.resize(values[place], 2)
    model, inputs = one_node("Momentum", values, known=False)
    lowered = lower(model).model
    with pytest.raises(Exception, match=r"(?i)reshape"):
        runtime(lowered, inputs)


SPECIAL = np.array([-np.inf, -1.5, -0.0, 0.0, 0.25, 1.0, 3.0, np.inf, np.nan])
#: All pairs of special numbers.
X, Y = np.array(list(itertools.product(SPECIAL, SPECIAL))).T


def assert_unchanged(runtime, formula, outputs, inputs, **options):
    """Assert that a lowered formula has the outputs of the formula, bit for bit."""
    operator = operator_of(formula, outputs)
    expected = evaluate(bind(operator, inputs, {}))
    actual = runtime(lowered(operator, inputs, **options), inputs)
    for expected_output, actual_output in zip(expected, actual, strict=True):
        assert actual_output.dtype == expected_output.dtype
        np.testing.assert_array_equal(actual_output, expected_output)


def every_pair(dtype):
    return [np.array(3), X.astype(dtype), Y.astype(dtype)]


@runtimes
@pytest.mark.parametrize("dtype", FLOATS)
def test_arithmetic_equals_that_of_numpy_also_on_nan_infinity_and_zero(runtime, dtype):
    def formula(_T, X, Y):
        return (
            X + Y,
            X - Y,
            X * Y,
            8 * X / 4,
            -X,
            abs(X),
            np.square(X),
            np.sqrt(np.square(Y)),
            np.power(X, 2),
            np.maximum(X, Y),
            np.minimum(X, Y),
        )

    assert_unchanged(runtime, formula, 11, every_pair(dtype))


@runtimes
@pytest.mark.parametrize("dtype", FLOATS)
def test_comparisons_and_logic_equal_those_of_numpy_also_on_nan(runtime, dtype):
    def formula(_T, X, Y):
        conditions = (
            X > Y,
            X >= Y,
            X < Y,
            X <= Y,
            X == Y,
            X != Y,
            (X > 0) & (Y > 0),
            (X > 0) | (Y > 0),
            (X > 0) ^ (Y > 0),
            ~(X > Y),
            np.logical_and(X > 0, np.logical_not(Y > 0)),
            np.logical_or(X > 0, Y > 0),
            np.logical_xor(X > 0, Y > 0),
        )
        return tuple(np.where(condition, X, 7) for condition in conditions)

    assert_unchanged(runtime, formula, 13, every_pair(dtype))


@runtimes
def test_truth_value_counts_as_zero_or_one(runtime):
    def formula(_T, X, Y):
        return ((X > Y) * 2 + (X > 0) * 4,)

    assert_unchanged(runtime, formula, 1, every_pair("float32"))


@runtimes
def test_integers_beyond_2_to_53_are_compared_exactly(runtime):
    def formula(T, X, _Y):
        return (X + np.where(T > 2**53, 1, 2),)

    assert_unchanged(runtime, formula, 1, [np.array(2**53 + 1), np.zeros(2), np.zeros(2)])


@runtimes
def test_value_is_rounded_to_the_type_of_each_tensor_that_it_multiplies(runtime):
    def formula(T, X, Y):
        return (Y * T - X * T,)

    # Double can represent T, and float32 cannot.
    inputs = [np.array(2**24 + 1), np.ones(2, np.float32), np.ones(2)]
    (actual,) = runtime(lowered(operator_of(formula, 1), inputs), inputs)
    np.testing.assert_array_equal(actual, np.ones(2, np.float32))


@runtimes
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 0), ()])
def test_scalar_result_is_expanded_to_the_shape_of_its_output(runtime, known, shape):
    def formula(T, _X, Y):
        return T * 2, 5, np.sqrt(Y)

    inputs = [np.array(3), np.zeros(shape, np.float32), np.array(4.0)]
    assert_unchanged(runtime, formula, 3, inputs, known=known)


@pytest.mark.parametrize("shape", [(2, 3), (0,), ()])
def test_number_of_sorted_elements_is_a_constant_if_the_shape_is_known(shape):
    operator = operator_of(lambda _T, X, _Y: (X * 0 + percentile(X, 30),), 1)
    inputs = [np.array(3), np.ones(shape, np.float32), np.ones(shape, np.float32)]
    nodes = lowered(operator, inputs).graph.node
    constants = {
        node.output[0]: node.attribute[0].t for node in nodes if node.op_type == "Constant"
    }
    (sort,) = (node for node in nodes if node.op_type == "TopK")
    # The lowering appends an element before it sorts, because a tensor may be empty.
    assert numpy_helper.to_array(constants[sort.input[1]]).tolist() == [np.prod(shape) + 1]
    assert "Size" not in {node.op_type for node in nodes}


@runtimes
def test_inputs_and_repeated_results_may_be_outputs(runtime):
    def formula(_T, X, Y):
        return X, X, X * Y, X * Y

    assert_unchanged(runtime, formula, 4, every_pair("float64"))


@pytest.mark.parametrize("function", [np.sinh, np.prod, np.add.reduce])
def test_function_without_an_onnx_operator_is_named(function):
    operator = operator_of(lambda _T, X, _Y: (function(X),), 1)
    with pytest.raises(
        NotImplementedError, match=r"numpy\.(sinh|prod|add\.reduce); it can use, without further"
    ):
        lowered(operator, every_pair("float32"))


def test_formula_cannot_branch_on_a_symbolic_value():
    operator = operator_of(lambda T, X, Y: (X if T > 0 else Y,), 1)
    with pytest.raises(TypeError, match=r"np\.where instead of if"):
        lowered(operator, every_pair("float32"))
