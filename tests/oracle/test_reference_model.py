"""Runs of models on onnx's reference: visitors, the release of values, and shared nodes."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.oracle import stacked
from onnxopt_cli.oracle.estimate.condition_estimate import all_readings
from onnxopt_cli.oracle.estimate.reference_values import (
    NoReferenceError,
    reference_values,
    values_of_nodes,
)
from onnxopt_cli.oracle.estimate.shared_prefix import SharedPrefix
from onnxopt_cli.oracle.evaluator import (
    ReferenceModel,
    compute_only,
    native_outputs,
    sequential_sums,
)
from onnxopt_cli.oracle.patching import corrected, reference_modules
from onnxopt_cli.oracle.rounding import node_kinds
from onnxopt_cli.oracle.rounding.intermediate_values import moved_weights
from onnxopt_cli.oracle.rounding.perturbations import RUNS
from onnxopt_cli.oracle.rounding.product_effects import ProductEffects

_HEADER = '<ir_version: 8, opset_import: ["": 17]>'
_MODELS = {
    "chain": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,8] y, float[8,1] mean) {
            product = MatMul(x, w)
            mean = ReduceMean <axes = [1]> (product)
            centred = Sub(product, mean)
            hard = HardSigmoid(centred)
            scaled = Mul(hard, product)
            y = Sigmoid(scaled)
        }""",
    "optional operand": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,300] y) {
            square = Mul(x, x)
            same = Dropout(square)
            hard = HardSigmoid(same)
            y = LayerNormalization <axis = 0> (hard, x, square)
        }""",
    "branch": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,8] y) {
            product = MatMul(x, w)
            total = ReduceSum <keepdims = 0> (product)
            zero = Constant <value = float {0}> ()
            positive = Greater(total, zero)
            chosen = If (positive) <
                then_branch = positive_total () => (float[8,8] a) { a = Tanh(product) },
                else_branch = other_total () => (float[8,8] b) {
                    square = Mul(product, product)
                    b = HardSigmoid(square)
                }
            >
            kept = Identity(chosen)
            sum = Add(kept, product)
            y = Sigmoid(sum)
        }""",
    "sequence": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,8] y, float[8,4] first) {
            product = MatMul(x, w)
            parts = SplitToSequence <axis = 1> (product, four)
            joined = ConcatFromSequence <axis = 1> (parts)
            place = Constant <value = int64 {0}> ()
            first = SequenceAt(parts, place)
            y = Sigmoid(joined)
        }""",
}


def _model(name: str) -> onnx.ModelProto:
    model = parser.parse_model(_HEADER + _MODELS[name])
    if name == "sequence":
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(4), "four"))
    return model


def _inputs(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((8, 300)).astype("f4"),
        "w": random.standard_normal((300, 8)).astype("f4"),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", _MODELS)
def test_shared_nodes_do_not_change_an_estimate(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = _model(name), _inputs(seed)
    shared = all_readings(model, inputs)
    monkeypatch.setattr(SharedPrefix, "of", lambda *_: SharedPrefix({}))
    separate = all_readings(model, inputs)
    assert len(shared) == len(separate)
    for reading, other in zip(shared, separate, strict=True):
        for output, expected in zip(
            reading.conditioned_outputs, other.conditioned_outputs, strict=True
        ):
            assert output.reason == expected.reason == ""
            for pairs, expected_pairs in (
                (output.right, expected.right),
                (output.reformulated, expected.reformulated),
            ):
                for pair, expected_pair in zip(pairs, expected_pairs, strict=True):
                    np.testing.assert_array_equal(pair, expected_pair)


# The value of the branch is not kept for reformulations, which begin at HardSigmoid.
_LARGE_BRANCH = """
    agraph (float[8,300] x, float[300,8] w) => (float[300,300] y) {
        product = MatMul(w, x)
        total = ReduceSum <keepdims = 0> (product)
        zero = Constant <value = float {0}> ()
        positive = Greater(total, zero)
        chosen = If (positive) <
            then_branch = positive_total () => (float[300,300] a) { a = Tanh(product) },
            else_branch = other_total () => (float[300,300] b) { b = Neg(product) }
        >
        sine = Sin(chosen)
        hard = HardSigmoid(sine)
        y = Sigmoid(hard)
    }"""


@pytest.mark.parametrize("text", [_MODELS["chain"], _LARGE_BRANCH])
def test_nodes_before_a_reformulated_one_run_once_for_all_reformulations(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reformulated = _HEADER + text
    not_reformulated = reformulated.replace("HardSigmoid", "Sin").replace("Sigmoid", "Exp")
    # The model has two reformulations. For each of them, one run computes the product again: the
    # run in the model's own types.
    assert _computed_products(reformulated, monkeypatch) == 2 + _computed_products(
        not_reformulated, monkeypatch
    )


def test_reformulation_has_the_groups_of_runs_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = """
        agraph (float[8,300] x, float[300,8] w) => (float[8,8] y) {
            square = Mul(x, x)
            product = MatMul(square, w)
            y = HardSigmoid(product)
        }"""
    # Two runs of the whole model exceed the limit, but two runs that begin at HardSigmoid do not.
    monkeypatch.setattr(stacked, "_MAX_STACKED_BYTES", 130_000)
    chain = _HEADER + text
    not_reformulated = chain.replace("HardSigmoid", "Sin")
    # The run of the reformulation in the model's own types computes the product again.
    assert _computed_products(chain, monkeypatch) == 1 + _computed_products(
        not_reformulated, monkeypatch
    )


def _computed_products(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often the condition estimate of a model computes its matrix product."""
    run, products = ReferenceModel.run, 0

    def counted(model: ReferenceModel, inputs: Any, visitor: Any = compute_only) -> Any:
        def visit(node: Any, compute: Any, operands: Any, index: int) -> Any:
            def computed(*values: Any) -> Any:
                nonlocal products
                products += node.op_type == "MatMul"
                return compute(*values)

            return visitor(node, computed, operands, index)

        return run(model, inputs, visit)

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceModel, "run", counted)
        all_readings(parser.parse_model(text), _inputs(0))
    return products


OPSET = [helper.make_opsetid("", 21)]


def model_of(nodes, input_names, output_names, initializers=()):
    def infos(names):
        return [onnx.ValueInfoProto(name=name) for name in names]

    graph = helper.make_graph(nodes, "g", infos(input_names), infos(output_names), [*initializers])
    return helper.make_model(graph, opset_imports=OPSET)


def test_values_are_released_after_their_last_reader():
    nodes = [helper.make_node("Neg", [f"v{place}"], [f"v{place + 1}"]) for place in range(20)]
    alive: list[int] = []
    references: list[weakref.ref[np.ndarray]] = []

    def visit(_node, compute, operands, _index):
        outputs = compute(*operands)
        references.extend(map(weakref.ref, outputs))
        alive.append(sum(reference() is not None for reference in references))
        return outputs

    with corrected():
        ReferenceModel(model_of(nodes, ["v0"], ["v20"])).run({"v0": np.ones(3, "f4")}, visit)
    assert max(alive) <= 3


def test_value_is_kept_for_a_branch_that_reads_it():
    branches = {}
    for name, operator in (("then_branch", "Abs"), ("else_branch", "Neg")):
        node = helper.make_node(operator, ["a"], [name])
        branches[name] = helper.make_graph([node], name, [], [onnx.ValueInfoProto(name=name)])
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("If", ["condition"], ["c"], **branches),
        helper.make_node("Sub", ["b", "c"], ["y"]),
    ]
    model = model_of(nodes, ["x", "condition"], ["y"])
    x = np.array([-1, 2], np.float32)
    for condition, taken in ((True, np.abs), (False, np.negative)):
        (y,) = native_outputs(model, {"x": x, "condition": np.array(condition)})
        np.testing.assert_array_equal(y, np.exp(-x) - taken(-x))


def test_unnamed_output_is_not_used_for_an_omitted_operand():
    nodes = [
        helper.make_node("TopK", ["x", "one"], ["", "place"], axis=0),
        helper.make_node("Clip", ["x", "", "highest"], ["y"]),
    ]
    constants = {"one": np.array([1]), "highest": np.float32(4)}
    initializers = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    model = model_of(nodes, ["x"], ["y", "place"], initializers)
    y, place = native_outputs(model, {"x": np.array([1, 5, 3], np.float32)})
    np.testing.assert_array_equal(y, [1, 4, 3])
    np.testing.assert_array_equal(place, [1])


@pytest.mark.parametrize("columns", [1, 3])
def test_products_are_summed_in_the_order_of_their_terms(columns):
    a = np.array([[1, 1e8, -1e8]], np.float32)
    b = np.ones((3, columns), np.float32)
    model = model_of([helper.make_node("MatMul", ["a", "b"], ["y"])], ["a", "b"], ["y"])
    for from_last, total in ((False, 0), (True, 1)):
        with sequential_sums(from_last=from_last):
            (y,) = native_outputs(model, {"a": a, "b": b})
        np.testing.assert_array_equal(y, np.full((1, columns), total, np.float32))


def test_long_products_with_a_vector_are_summed_in_order_in_blocks(monkeypatch):
    monkeypatch.setattr("onnxopt_cli.oracle.evaluator._BLOCK_ELEMENTS", 1 << 8)
    random = np.random.default_rng(7)
    a, b = (random.standard_normal(shape).astype("f4") for shape in ((2, 3, 999), (2, 999, 1)))
    with sequential_sums():
        products = np.matmul(a, b)
    in_order = np.cumsum(a * np.swapaxes(b, -1, -2), axis=-1)[..., -1:]
    np.testing.assert_array_equal(products, in_order)


@pytest.mark.parametrize("size", [4, 1 << 12])
def test_initializers_are_doubles_in_a_wide_run(size, monkeypatch):
    """Large initializers are converted at each use. Others are converted once."""
    monkeypatch.setattr("onnxopt_cli.oracle.evaluator._MAX_WIDENED_ELEMENTS", 1 << 10)
    weights = numpy_helper.from_array(np.full(size, 0.1, np.float32), "w")
    body = helper.make_graph(
        [helper.make_node("Mul", ["w", "w"], ["p"])], "g", [], [onnx.ValueInfoProto(name="p")]
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("If", ["condition"], ["s"], then_branch=body, else_branch=body),
        helper.make_node("Mul", ["a", "s"], ["y"]),
    ]
    model = model_of(nodes, ["x", "condition"], ["y", "a", "s"], [weights])
    narrow = ReferenceModel(model)
    wide = ReferenceModel(model, wide=True, like=narrow)
    inputs = {"x": np.ones(size, np.float32), "condition": np.array(True)}
    with corrected():
        outputs = wide.run(inputs)
        w = np.float64(np.float32(0.1))
        for output, value in zip(outputs, ((1 + w) * (w * w), 1 + w, w * w), strict=True):
            np.testing.assert_array_equal(output, np.full(size, value), strict=True)
        assert [output.dtype for output in narrow.run(inputs)] == [np.float32] * 3


def _visited(text: str) -> list[str]:
    """Return the operators of the nodes that run in a model, after a check of its outputs."""
    operators = []

    def visit(node, compute, operands, _index):
        operators.append(node.op_type)
        return compute(*operands)

    model = parser.parse_model(f"{_HEADER} agraph (float[2] x) => (float[2] y) {{ {text} }}")
    inputs = {"x": np.array([1, 2], np.float32)}
    with corrected():
        outputs = ReferenceModel(model).run(inputs, visit)
        (wide,) = ReferenceModel(model, wide=True).run(inputs)
    expected = ReferenceEvaluator(model).run(None, inputs)
    np.testing.assert_array_equal(outputs, expected, strict=True)
    np.testing.assert_allclose(wide, expected[0], rtol=1e-6)
    assert wide.dtype == np.float64
    return operators


@pytest.mark.parametrize(
    ("node", "shapes"),
    [
        ("MatMul(a, b)", [(3, 4), (4, 2)]),
        ("Gemm(a, b)", [(3, 4), (4, 2)]),
        (
            "Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0> (a, b, c)",
            [(4, 3), (2, 4), (2,)],
        ),
        ("Gemm <beta = 0.0> (a, b, c)", [(3, 4), (4, 2), (3, 1)]),
        ("Gemm (a, b, c)", [(3, 4), (4, 2), ()]),
        ("Conv(a, b, c)", [(2, 3, 6), (4, 3, 3), (4,)]),
        (
            "Conv <group = 2, strides = [2, 1], dilations = [1, 2], pads = [1, 2, 0, 1]> (a, b)",
            [(1, 4, 6, 5), (4, 2, 3, 2)],
        ),
        ('Conv <auto_pad = "SAME_UPPER", strides = [3]> (a, b)', [(1, 2, 8), (2, 2, 4)]),
        ('Conv <auto_pad = "SAME_LOWER", strides = [2]> (a, b)', [(1, 2, 7), (2, 2, 4)]),
    ],
)
def test_effects_of_products_are_those_that_are_measured(node, shapes):
    random = np.random.default_rng(1)
    inputs = {}
    for name, shape in zip("abc", shapes, strict=False):
        array = random.standard_normal(shape)
        inputs[name] = np.where(random.random(shape) < 0.3, 0.0, array)
    declared = ", ".join(f"double[{','.join(map(str, inputs[n].shape))}] {n}" for n in inputs)
    text = f'<ir_version: 8, opset_import: ["" : 17]> agraph ({declared}) => (double y) '
    compared = 0

    def visit(prepared, compute, operands, _index):
        nonlocal compared
        outputs = compute(*operands)
        effects = ProductEffects(prepared, operands, outputs)
        for place, operand in enumerate(operands):
            for element, number in enumerate(operand.flat):
                moved = number * 1.37 + 0.11
                factors = effects.factors(place, element, moved - number)
                arguments = (compute, operands, outputs, place, element, moved)
                assert factors is not None
                effect = node_kinds._effect_of_factors(number, moved, *factors)
                assert effect == node_kinds._measured_effect(*arguments)
                compared += 1
        return outputs

    with corrected():
        ReferenceModel(parser.parse_model(f"{text} {{ y = {node} }}")).run(inputs, visit)
    assert compared == sum(array.size for array in inputs.values())


@pytest.mark.parametrize(
    ("version", "attributes", "terms"),
    [(7, "", 1), (9, "", 1), (15, "", 1), (15, "<training_mode = 1>", 12)],
)
def test_normalization_by_operands_depends_on_one_element_of_each(
    monkeypatch, version, attributes, terms
):
    text = (
        f'<ir_version: 8, opset_import: ["" : {version}]> agraph '
        "(double[2,3,6] x, double[3] s, double[3] b, double[3] m, double[3] v) => (double y) "
        f"{{ y = BatchNormalization {attributes} (x, s, b, m, v) }}"
    )
    random = np.random.default_rng(2)
    inputs = {name: 1 + random.random(3) for name in "sbmv"} | {"x": random.random((2, 3, 6))}

    def visit(node, compute, operands, _index):
        outputs = compute(*operands)
        classes = [node_kinds.classify(node, compute, operands, outputs)]
        with monkeypatch.context() as patch:
            patch.setattr(node_kinds, "_normalizes_by_operands", lambda _: False)
            classes.append(node_kinds.classify(node, compute, operands, outputs))
        assert classes[0] == classes[1]
        assert classes[0].terms == terms
        return outputs

    with corrected():
        ReferenceModel(parser.parse_model(text)).run(inputs, visit)


def test_effects_that_a_rounding_may_absorb_are_measured():
    def factors(number):
        operands = [np.array([[1.0, 1.0]]), np.array([[1.0], [number]])]
        model = parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> '
            "agraph (double[1,2] a, double[2,1] b) => (double y) { y = MatMul(a, b) }"
        )
        results = []

        def visit(node, compute, operands, _index):
            outputs = compute(*operands)
            results.append(ProductEffects(node, operands, outputs).factors(0, 1, 0.1))
            return outputs

        with corrected():
            ReferenceModel(model).run(dict(zip("ab", operands, strict=True)), visit)
        return results[0]

    assert factors(1e-6) is not None
    assert factors(1e-14) is None
    assert factors(np.nan) is None


def test_constants_of_a_graph_do_not_run():
    text = "half = Constant <value = float {0.5}> () a = Mul(x, half) y = Add(a, half)"
    assert _visited(text) == ["Mul", "Add"]


def test_constant_runs_if_a_visitor_may_depend_on_it():
    # The first constant is subnormal.
    text = "c = Constant <value = float {1e-40}> () a = Mul(x, c) y = Add(a, x)"
    assert _visited(text) == ["Constant", "Mul", "Add"]
    text = "half = Constant <value = float {0.5}> () y = Mul(x, half)"
    assert _visited(text) == ["Constant", "Mul"]


def test_reformulation_shares_nodes_that_it_does_not_change():
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Elu", ["a"], ["y"])]
    model = model_of(nodes, ["x"], ["y"])
    graph_types = [("x", TensorProto.FLOAT), ("y", TensorProto.FLOAT)]
    for info, (name, element) in zip(
        (*model.graph.input, *model.graph.output), graph_types, strict=True
    ):
        info.CopyFrom(helper.make_tensor_value_info(name, element, [2]))
    visited: dict[str, list[str]] = {}

    def visitor_of(name):
        def visit(node, compute, operands, _index):
            visited.setdefault(name, []).append(node.op_type)
            return compute(*operands)

        return visit

    unchanged = ReferenceModel(model)
    expanded = ReferenceModel(model, ["Elu"], like=unchanged)
    x = np.array([-1, 1], np.float32)
    with corrected():
        for name, evaluator in (("unchanged", unchanged), ("expanded", expanded)):
            (y,) = evaluator.run({"x": x}, visitor_of(name))
            np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
    assert visited["unchanged"] == ["Exp", "Elu"]
    assert visited["expanded"][0] == "Exp"
    assert "Elu" not in visited["expanded"]


def random_trees(random, dtype):
    """Return attributes of a TreeEnsemble of random trees.

    The first tree is a single leaf. Some nodes send missing values to the true branch.
    """
    splits, attributes, weights = [], {}, [random.standard_normal()]
    names = ("featureids", "modes", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    nodes = {name: [] for name in names}

    def add(depth):
        place = len(splits)
        splits.append(random.integers(-2, 3))
        nodes["featureids"].append(random.integers(4))
        nodes["modes"].append(random.integers(6))
        for name in names[2:]:
            nodes[name].append(0)
        for side in ("true", "false"):
            is_leaf = depth == 0 or random.random() < 0.3
            nodes[f"{side}leafs"][place] = int(is_leaf)
            if is_leaf:
                weights.append(random.standard_normal())
            nodes[f"{side}nodeids"][place] = len(weights) - 1 if is_leaf else add(depth - 1)
        return place

    # A tree with a single leaf is written as a node whose branches both lead to this leaf.
    add(0)
    nodes["truenodeids"][0] = nodes["falsenodeids"][0] = 0
    roots = [0, *(add(4) for _ in range(5))]
    attributes = {f"nodes_{name}": [*map(int, values)] for name, values in nodes.items()}
    for name, values in (("nodes_splits", splits), ("leaf_weights", weights)):
        attributes[name] = numpy_helper.from_array(np.array(values, dtype))
    modes = np.array(attributes["nodes_modes"], np.uint8)
    missing = random.integers(2, size=len(splits)).tolist()
    return attributes | {
        "nodes_modes": numpy_helper.from_array(modes),
        "nodes_missing_value_tracks_true": missing,
        "leaf_targetids": random.integers(3, size=len(weights)).tolist(),
        "tree_roots": roots,
        "n_targets": 3,
    }


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_of_trees_evaluated_together_equal_those_of_the_reference(aggregate, dtype):
    random = np.random.default_rng(aggregate)
    x = random.integers(-2, 3, (20, 4)).astype(dtype)
    x[random.random(x.shape) < 0.2] = np.nan
    for _ in range(5):
        attributes = random_trees(random, dtype) | {"aggregate_function": aggregate}
        node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
        model = model_of([node], ["x"], ["y"])
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        (y,) = native_outputs(model, {"x": x})
        np.testing.assert_array_equal(y, expected, strict=True)


def leaf_model(transform):
    """Return a model of a TreeEnsemble; for a negative feature, the scores are 1.5, -2 and 0."""
    attributes = {
        "nodes_splits": numpy_helper.from_array(np.zeros(2, np.float32)),
        "nodes_featureids": [0, 0],
        "nodes_modes": numpy_helper.from_array(np.zeros(2, np.uint8)),
        "nodes_truenodeids": [0, 1],
        "nodes_falsenodeids": [2, 2],
        "nodes_trueleafs": [1, 1],
        "nodes_falseleafs": [1, 1],
        "leaf_weights": numpy_helper.from_array(np.array([1.5, -2, 7], np.float32)),
        "leaf_targetids": [0, 1, 2],
        "tree_roots": [0, 1],
        "n_targets": 3,
        "post_transform": transform,
    }
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    model = model_of([node], ["x"], ["y"])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    return model


def test_scores_of_trees_are_transformed():
    scores = np.array([1.5, -2, 0])
    exponentials = np.exp(scores)
    # By the specification, SOFTMAX_ZERO maps scores of zero to zero.
    of_others = np.where(scores == 0, 0, exponentials)
    transformed = {
        0: scores,
        1: exponentials / exponentials.sum(),
        2: 1 / (1 + np.exp(-scores)),
        3: of_others / of_others.sum(),
    }
    x = {"x": np.full((1, 1), -1, np.float32)}
    for transform, expected in transformed.items():
        (reading,) = all_readings(leaf_model(transform), x)
        ((value, tolerance), *_) = reading.conditioned_outputs[0].right
        np.testing.assert_allclose(value, [expected], rtol=1e-6)
        assert (tolerance <= 1e-5).all()


@pytest.mark.parametrize(
    "names", [["base_values", "target_weights"], ["target_weights", "base_values"]]
)
def test_roundings_of_trees_do_not_depend_on_the_order_of_attributes(names, monkeypatch):
    owner = reference_modules().aionnxml.op_tree_ensemble_regressor.TreeEnsembleRegressor
    monkeypatch.setattr(owner, "_run", lambda _node, **attributes: attributes)
    roundings = iter([0.25, 0.5])
    with moved_weights("TreeEnsembleRegressor", lambda _weights: next(roundings)):
        moved = owner._run(None, **{name: [1.0] for name in names})
    assert moved == {"base_values": [1.25], "target_weights": [1.5]}


def test_scores_of_trees_after_probit_are_not_judged():
    with pytest.raises(NoReferenceError, match="inverse of erf"):
        all_readings(leaf_model(4), {"x": np.zeros((1, 1), np.float32)})


def test_operands_broadcast_along_a_stated_axis_are_not_judged():
    # onnx's reference ignores the attribute axis: it broadcasts b along the last axis.
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 6]>
        g (float[2,3,3] a, float[3] b) => (float[2,3,3] y) {
            y = Add<axis = 1, broadcast = 1>(a, b)
        }""")
    inputs = _values_of(model)
    for compute in (all_readings, reference_values):
        with pytest.raises(NoReferenceError, match="ignores the axis"):
            compute(model, inputs)
    assert values_of_nodes(model, inputs) == [None]


_STACKED_MODELS = {
    "images": """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,4,6,6] x, float[6,2,3,3] w, float[6] b, float[6] s) => (float[2,6,1,1] y) {
            convolved = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w, b)
            normalized = BatchNormalization(convolved, s, b, b, s)
            clipped = Relu(normalized)
            pooled = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(clipped)
            y = GlobalAveragePool(pooled)
        }""",
    "matrices": """<ir_version: 8, opset_import: ["": 17]>
        g (float[3,4] x, float[2,4,5] w, float[5] b) => (float[2,3,5] y, float[3,2,5] z, int64[3] i)
        {
            product = MatMul(x, w)
            biased = Add(product, b)
            shares = Softmax<axis = -1>(biased)
            mean = ReduceMean<axes = [2]>(shares)
            y = Sub(biased, mean)
            z = Transpose<perm = [1, 0, 2]>(y)
            shape = Shape(z)
            i = Identity(shape)
        }""",
    "moved data": """<ir_version: 8, opset_import: ["": 17]>
        g (float[3,4] x, int64[2] i) => (float[2,7] y, float[2,2] z, float[4,4] c)
        {
            root = Sqrt(x)
            rows = Gather(root, i)
            twice = Concat<axis = 1>(rows, rows)
            starts = Constant<value_ints = [1]>()
            ends = Constant<value_ints = [7]>()
            axes = Constant<value_ints = [1]>()
            y = Slice(twice, starts, ends, axes)
            left, z = Split<axis = 1>(rows)
            sum = Add(rows, rows)
            flat = Concat<axis = 0>(sum, rows)
            c = Mul(flat, flat)
        }""",
    "statistics of one element": """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,3] x, float[3] s, float[3] b) => (float[1,3] y)
        {
            root = Sqrt(x)
            y = BatchNormalization<training_mode = 1>(root, s, b, s, s)
        }""",
    "images without channels": """<ir_version: 8, opset_import: ["": 17]>
        g (float[5] x, float[1] s, float[1] b) => (float[5] y)
        {
            root = Sqrt(x)
            y = BatchNormalization(root, s, b, b, s)
        }""",
    "slices of a scan": """<ir_version: 8, opset_import: ["": 17]>
        g (float[3] s, float[3,4] x) => (float[3] last, float[3,4] each)
        {
            root = Sqrt(x)
            last, each = Scan(s, root) <
                num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
                scan_input_directions = [1], body = b (float[3] state, float[3] slice)
                    => (float[3] next, float[3] scaled)
                {
                    next = Add(state, slice)
                    scaled = Mul(next, slice)
                }
            >
        }""",
    "long sums": """<ir_version: 8, opset_import: ["": 17]>
        g (float[3,40] x, float[40,50] w) => (float[3,1] y)
        {
            product = MatMul(x, w)
            root = Sqrt(product)
            shares = Softmax(root)
            weighted = Mul(shares, root)
            y = ReduceMean<axes = [1]>(weighted)
        }""",
    "a branch that depends on roundings": """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x) => (float[2] y)
        {
            third = Div(x, x)
            sum = ReduceSum<keepdims = 0>(third)
            two = Constant<value_float = 2.0>()
            larger = Greater(sum, two)
            y = If(larger) <
                then_branch = t () => (float[2] a) { a = Exp(x) },
                else_branch = e () => (float[2] d) { d = Sqrt(x) }
            >
        }""",
}


@pytest.mark.parametrize("name", _STACKED_MODELS)
def test_tolerances_do_not_depend_on_whether_runs_are_stacked(name, monkeypatch):
    model = parser.parse_model(_STACKED_MODELS[name])
    inputs, run, runs = _values_of(model), ReferenceModel.run, []

    def counted(reference_model, *arguments):
        runs.append(reference_model)
        return run(reference_model, *arguments)

    monkeypatch.setattr(ReferenceModel, "run", counted)
    (together,) = all_readings(model, inputs)
    count_together = len(runs)
    monkeypatch.setattr(stacked, "_MAX_STACKED_BYTES", 0)
    (alone,) = all_readings(model, inputs)
    outputs = alone.conditioned_outputs
    assert any(tolerance.any() for _, tolerance in outputs[0].right)
    for first, second in zip(together.conditioned_outputs, outputs, strict=True):
        assert first.reason == second.reason
        for pairs in zip(first.right, second.right, strict=True):
            for one_array, other_array in zip(*pairs, strict=True):
                np.testing.assert_array_equal(one_array, other_array)
    # If runs take different branches, all runs are repeated one after the other.
    differ = "branch" in name
    assert (count_together > len(runs) - count_together) == differ


@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 64)])
def test_differences_of_runs_multiply_in_single_precision(shape, monkeypatch):
    monkeypatch.setattr(stacked, "_LARGE_PRODUCT", 1)
    random = np.random.default_rng(1)
    sizes = 10.0 ** random.integers(-30, 30, shape[:-1])[..., np.newaxis]
    exact, matrix = sizes * random.standard_normal(shape), random.standard_normal((64, 5))
    factors = exact * (1 + 2.0**-24 * random.standard_normal((RUNS, *shape)))
    factors[3] = factors[0]
    node = SimpleNamespace(op_type="MatMul", onnx_node=onnx.NodeProto())

    def products(factors):
        operands = [stacked.Stacked(factors), matrix]
        (output,) = stacked.compute_stacked(node, lambda a, b: [a @ b], operands, RUNS)
        return output.array

    computed, expected = products(factors), factors @ matrix
    distances = np.abs(computed - expected) / sizes
    assert 0 < distances.max() < 1e-12
    np.testing.assert_array_equal(computed[3], computed[0])
    factors[2, ..., 0] = np.inf
    np.testing.assert_array_equal(products(factors), factors @ matrix)


def test_many_short_products_are_not_computed_sequentially(monkeypatch):
    model = parser.parse_model(_HEADER + _MODELS["chain"])
    inputs = {name: value for name, value in _inputs(0).items() if name in {"x", "w"}}
    orders: list[bool] = []

    def recorded(*, short_products, **_):
        orders.append(short_products)
        return nullcontext()

    monkeypatch.setattr("onnxopt_cli.oracle.estimate.evaluations.sequential_sums", recorded)
    all_readings(model, inputs)
    assert {*orders} == {True}
    name = "onnxopt_cli.oracle.estimate.evaluations._MAX_SHORT_MULTIPLICATIONS"
    monkeypatch.setattr(name, 8 * 300 * 8 - 1)
    orders.clear()
    all_readings(model, inputs)
    assert not orders


def test_runs_with_large_values_are_not_stacked():
    counts: list[int] = []

    def run(runs):
        counts.append(len(runs))
        return [stacked.Stacked(np.array(runs)) if len(runs) > 1 else np.array(runs[0])]

    for run_bytes in (1 << 40, 1):
        outputs = stacked.outputs_of_runs(run, RUNS, run_bytes)
        assert [int(output) for (output,) in outputs] == [*range(RUNS)]
    assert counts == [*[1] * RUNS, RUNS]


def _values_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return random values for the inputs of a model, by name."""
    random, values = np.random.default_rng(0), {}
    for info in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        shape = [size.dim_value for size in info.type.tensor_type.shape.dim]
        values[info.name] = (1 + random.random(shape)).astype(dtype)
    return values


def sparse_model(indices, shape, kind):
    """Return a model that adds a sparse tensor, with 1 and 2 at ``indices``, to its input."""
    flat = np.ravel(indices)
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2])
    places = helper.make_tensor("at", TensorProto.INT64, np.shape(indices), flat)
    sparse = helper.make_sparse_tensor(values, places, shape)
    proto = parser.parse_model(
        _HEADER + "agraph (float[2,2] x) => (float[?,?] y) { y = Add(x, w) }"
    )
    if kind == "initializer":
        proto.graph.sparse_initializer.append(sparse)
    else:
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    return proto


@pytest.mark.parametrize("kind", ["initializer", "constant"])
@pytest.mark.parametrize("indices", [[0, 3], [[0, 0], [1, 1]]])
def test_sparse_tensor_is_computed_as_a_dense_one(kind, indices):
    proto = sparse_model(indices, [2, 2], kind)
    assert model_fault(proto) == ""
    (output,) = reference_values(proto, {"x": np.ones((2, 2), np.float32)})
    np.testing.assert_array_equal(output, [[2, 1], [1, 3]])


@pytest.mark.parametrize("kind", ["initializer", "constant"])
@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        ([0, 4], [2, 2]),
        ([-1, 0], [2, 2]),
        ([3, 0], [2, 2]),
        ([1, 1], [2, 2]),
        ([[0, 0], [0, 2]], [2, 2]),
        ([[0], [3]], [2, 2]),
        ([0, 1, 2], [2, 2]),
        ([0, 1], [1, 2**40]),
        ([0, 1], [-2, 1]),
        ([0, 1], [-2, -2]),
        ([0, 1], []),
    ],
)
def test_faulty_sparse_tensor_is_a_fault_of_the_model(kind, indices, shape):
    assert "sparse tensor" in model_fault(sparse_model(indices, shape, kind))


@pytest.mark.parametrize(
    ("values", "indices", "message"),
    [
        (np.float32(1), np.int64(0), "are not distinct places"),
        (np.ones(1, np.float32), np.zeros(1), "are not int64"),
    ],
)
def test_faulty_part_of_a_sparse_tensor_is_a_fault_of_the_model(values, indices, message):
    elements = numpy_helper.from_array(np.asarray(values), "w")
    places = numpy_helper.from_array(np.asarray(indices), "w")
    proto = sparse_model([0, 1], [2], "initializer")
    proto.graph.sparse_initializer[0].CopyFrom(helper.make_sparse_tensor(elements, places, [2]))
    assert message in model_fault(proto)


@pytest.mark.parametrize("newer", ["ir_version", "opset"])
def test_faulty_sparse_tensor_of_a_newer_model_is_a_fault_of_the_model(newer):
    proto = sparse_model([0, 4], [2, 2], "initializer")
    if newer == "opset":
        proto.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    else:
        proto.ir_version = onnx.IR_VERSION + 1
    assert "sparse tensor" in model_fault(proto)


@pytest.mark.parametrize("shape", [[1] * 100, [0, 2**62]])
def test_sparse_tensor_with_impossible_dimensions_is_a_fault_of_the_model(shape):
    assert "dimensions" in model_fault(sparse_model([0, 1], shape, "initializer"))


def test_total_size_of_sparse_tensors_is_limited():
    proto = sparse_model([0, 1], [2**29], "initializer")
    assert "amount to" not in model_fault(proto)
    second = proto.graph.sparse_initializer.add()
    second.CopyFrom(proto.graph.sparse_initializer[0])
    second.values.name = "second"
    third = proto.graph.sparse_initializer.add()
    third.CopyFrom(second)
    third.values.name = "third"
    message = "the model's sparse tensors amount to 6442450944 bytes; at most 4294967296"
    assert message in model_fault(proto)


def test_sparse_initializer_of_a_subgraph_is_computed_as_a_dense_tensor():
    proto = sparse_model([0, 3], [2, 2], "initializer")
    branch = helper.make_graph(
        proto.graph.node, "branch", [], proto.graph.output, (), None, (),
        proto.graph.sparse_initializer,
    )  # fmt: skip
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.True_))
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    del proto.graph.node[:], proto.graph.sparse_initializer[:]
    proto.graph.node.extend([condition, choice])
    assert model_fault(proto) == ""
    (output,) = reference_values(proto, {"x": np.ones((2, 2), np.float32)})
    np.testing.assert_array_equal(output, [[2, 1], [1, 3]])


def test_other_elements_of_a_sparse_tensor_of_strings_are_empty():
    words = numpy_helper.from_array(np.array(["a"], object))
    places = numpy_helper.from_array(np.array([1]))
    sparse = helper.make_sparse_tensor(words, places, [2])
    proto = parser.parse_model(_HEADER + "agraph () => (string[2] y) { y = Constant() }")
    proto.graph.node[0].attribute.append(helper.make_attribute("sparse_value", sparse))
    assert model_fault(proto) == ""
    assert reference_values(proto, {})[0].tolist() == ["", "a"]
