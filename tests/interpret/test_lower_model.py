"""Lowering replaces the operators with a formula, in all parts of a model; names are unique."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lowered_models import (
    CALLING,
    DOMAIN,
    FUNCTIONS,
    HEADER,
    INPUTS,
    MOMENTUM,
    VALUES,
    checked,
    momentum,
    parsed,
)
from onnx import TensorProto, checker, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from runtimes import NEWEST, runtimes

from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.lower.lower_model import formula_operators, lower
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry


@runtimes
@pytest.mark.parametrize("condition", [True, False])
def test_nodes_in_the_branches_of_an_if_take_types_from_outside(runtime, condition):
    model = parsed(f"""{HEADER} g (INPUTS, bool C) => (float[2] Y) {{
        Z = Add (X, G)
        Y = If (C) <
            then_branch = one () => (a) {{ a, b = MOMENTUM (R, T, Z, G, V) }},
            else_branch = two () => (c) {{
                c = If (C) <
                    then_branch = three () => (d) {{ d = Identity (X) }},
                    else_branch = four () => (e) {{ f = Neg (Z)  e, h = MOMENTUM (R, T, f, G, V) }}
                >
            }}
        >
    }}""")
    R, T, X, G, V = VALUES
    (actual,) = runtime(checked(model), [*VALUES, np.array(condition)])
    Z = X + G
    np.testing.assert_array_equal(actual, momentum(R, T, Z if condition else -Z, G, V)[0])


@runtimes
def test_node_in_a_loop_body_carries_its_state(runtime):
    model = parsed(f"""{HEADER} g (INPUTS, int64 N, bool C) => (float[2] Xn, float[2] Vn) {{
        Z = Identity (G)
        Xn, Vn = Loop (N, C, X, V) <body = body (int64 i, bool c, x, v) => (c_out, x_out, v_out) {{
            c_out = Identity (c)
            x_out, v_out = MOMENTUM (R, i, x, Z, v)
        }}>
    }}""")
    R, _, X, G, V = VALUES
    actual = runtime(checked(model), [*VALUES, np.array(3), np.array(True)])
    for step in range(3):
        X, V = momentum(R, step, X, G, V)
    np.testing.assert_array_equal(actual, [X, V])


@runtimes
def test_node_in_a_scan_body_takes_a_gradient_in_each_step(runtime):
    model = parsed(f"""{HEADER}
    g (INPUTS, float[3, 2] Gs) => (float[2] Xn, float[2] Vn, float[3, 2] Xs) {{
        Xn, Vn, Xs = Scan <num_scan_inputs = 1,
            body = body (float[2] x, float[2] v, float[2] g)
                => (float[2] a, float[2] b, float[2] d) {{
                a, b = MOMENTUM (R, T, x, g, v)
                d = Identity (a)
            }}
        > (X, V, Gs)
    }}""")
    for value in (*model.graph.node[0].attribute[1].g.input,):
        value.ClearField("type")
    R, T, X, _, V = VALUES
    Gs = np.arange(6, dtype=np.float32).reshape(3, 2)
    actual = runtime(checked(model), [*VALUES, Gs])
    steps = []
    for G in Gs:
        X, V = momentum(R, T, X, G, V)
        steps.append(X)
    for actual_output, expected in zip(actual, (X, V, steps), strict=True):
        np.testing.assert_array_equal(actual_output, expected)


@runtimes
def test_two_nodes_with_other_nodes_between_them_are_lowered(runtime):
    model = parser.parse_model(f"""{HEADER}
    g (float R, int64 T, float[2] X, double[2] Y, float[2] G, double[2] H)
        => (float[2] Xn, double[2] Yn) {{
        A, B, C, D, E, F = {DOMAIN}.Adam (R, T, X, Y, G, H, G, H, G, H)
        S = Neg (A)
        U = Mul (F, F)
        Xn, Yn, I, J, K, L = {DOMAIN}.Adam (R, T, S, B, C, D, C, H, E, U)
    }}""")
    checker.check_model(model, full_check=True)
    X, G, _ = VALUES[2:]
    Y, H = np.float64(X) / 3, np.abs(np.float64(G)) / 3
    inputs = [VALUES[0], VALUES[1], X, Y, np.abs(G), H]
    adam = registry().named("Adam")

    def step(*tensors):
        return evaluate(bind(adam, [*VALUES[:2], *tensors], complete_attributes(adam, {})))

    G = np.abs(G)
    A, B, C, D, E, F = step(X, Y, G, H, G, H, G, H)
    expected = step(-A, B, C, D, C, H, E, F * F)[:2]
    actual = runtime(checked(model), inputs)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-7)


@runtimes
def test_tensor_of_unknown_rank_keeps_its_shape(runtime):
    model = parsed(f"""{HEADER} g (INPUTS, int64[N] S) => (float[A, B] Y) {{
        Z = Reshape (X, S)
        Y, W = MOMENTUM (R, T, Z, G, V)
    }}""")
    (actual,) = runtime(checked(model), [*VALUES, np.array([1, 2])])
    R, T, X, G, V = VALUES
    np.testing.assert_array_equal(actual, momentum(R, T, X.reshape(1, 2), G, V)[0])


def test_types_are_inferred_after_operators_without_a_schema_are_lowered(monkeypatch):
    momentum_operator = registry().named("Momentum")
    monkeypatch.setitem(registry()._by_name, ("made.here", "Momentum"), momentum_operator)
    operator = MOMENTUM.replace(DOMAIN, "made.here")
    model = parsed(f"""<ir_version: 8, opset_import: ["": 15, "made.here": 1]>
    g (INPUTS) => (float[2] Y) {{
        A, B = {operator} (R, T, X, G, V)
        C = Neg (A)
        D, E = {operator} (R, T, C, G, B)
        Y = Identity (D)
    }}""")
    lowered = lower(model)
    assert lowered.replaced == ("Momentum", "Momentum")
    (actual,) = ReferenceEvaluator(lowered.model).run(None, dict(zip("RTXGV", VALUES, strict=True)))
    R, T, X, G, V = VALUES
    A, B = momentum(R, T, X, G, V)
    np.testing.assert_array_equal(actual, momentum(R, T, -A, G, B)[0])


def test_tensor_whose_type_cannot_be_inferred_is_named():
    model = parsed(f"""<ir_version: 8, opset_import: ["": 15, "{DOMAIN}": 1, "made.here": 1]>
    g (INPUTS) => (float[2] Y) {{
        mystery = made.here.Unknown (X)
        Y, W = MOMENTUM (R, T, mystery, G, V)
    }}""")
    with pytest.raises(NodeError, match="input mystery cannot be inferred") as caught:
        lower(model)
    assert "value_info" in caught.value.hint
    model.graph.value_info.append(helper.make_tensor_value_info("mystery", TensorProto.FLOAT, None))
    checked(model)


@pytest.mark.parametrize("empty", [True, False])
def test_initializers_may_be_operands(empty):
    model = parsed(f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y, W = MOMENTUM (R, T, X, G, V) }}")
    del model.graph.input[4]
    constant = numpy_helper.from_array(VALUES[4], "V")
    constant.doc_string = "" if empty else "kept"
    model.graph.initializer.append(constant)
    lowered = checked(model)
    assert lowered.graph.initializer == model.graph.initializer
    (actual,) = ReferenceEvaluator(lowered).run(None, dict(zip("RTXG", VALUES[:4], strict=True)))
    np.testing.assert_array_equal(actual, momentum(*VALUES)[0])


@runtimes
def test_output_of_the_graph_may_be_an_operand(runtime):
    model = parsed(f"""{HEADER} g (INPUTS) => (float[2] A, float[2] B, float[2] Y) {{
        A, B = MOMENTUM (R, T, X, G, V)
        Y, W = MOMENTUM (R, T, A, G, B)
    }}""")
    R, T, X, G, V = VALUES
    A, B = momentum(R, T, X, G, V)
    np.testing.assert_array_equal(
        runtime(checked(model), VALUES), [A, B, momentum(R, T, A, G, B)[0]]
    )


def test_other_parts_of_the_model_are_unchanged():
    model = parsed(
        f"""{HEADER} g (INPUTS) => (float[2] Y) <float[2] Z, float[2] W, float[7] gone> {{
        Z, W = MOMENTUM (R, T, X, G, V)
        Y = Add (Z, X)
    }}""".replace("Add (Z, offset)", "Add (Z, X)")
    )
    model.producer_name, model.doc_string, model.graph.doc_string = "maker", "a model", "a graph"
    model.metadata_props.add(key="licence", value="free")
    model.graph.node[1].doc_string = "a node"
    external = model.graph.initializer.add(name="weights", data_type=TensorProto.FLOAT, dims=[2])
    external.data_location = TensorProto.EXTERNAL
    external.external_data.add(key="location", value="weights.bin")
    lowered = lower(model).model
    assert lowered.graph.node[-1] == model.graph.node[1]
    for message in (lowered, model):
        del message.graph.node[:], message.opset_import[:]
    assert lowered == model


def test_model_without_operators_to_lower_is_unchanged():
    model = parser.parse_model(
        '<ir_version: 4, opset_import: ["": 9]> g (float[2] X) => (float[2] Y) { Y = Neg (X) }'
    )
    lowered = lower(model).model
    assert lowered == model
    assert lowered is not model


@pytest.mark.parametrize("ir_version", range(3, onnx.IR_VERSION + 1))
@pytest.mark.parametrize("opset", [None, 13, NEWEST])
def test_opset_is_kept_or_added_for_any_ir_version(ir_version, opset):
    model = parsed(f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y, W = MOMENTUM (R, T, X, G, V) }}")
    model.ir_version = ir_version
    if opset:
        model.opset_import[0].version = opset
    else:
        del model.opset_import[0]
    lowered = checked(model)
    assert lowered.ir_version == ir_version
    assert [(entry.domain, entry.version) for entry in lowered.opset_import] == [("", opset or 13)]


def test_too_old_opset_is_rejected_with_a_remedy():
    model = parsed(f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y, W = MOMENTUM (R, T, X, G, V) }}")
    model.opset_import[0].version = 12
    with pytest.raises(NodeError, match=r"ai\.onnx version 12") as caught:
        lower(model)
    assert "onnx.version_converter" in caught.value.hint


def test_domain_of_remaining_nodes_stays_imported():
    model = parsed(f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y, W = MOMENTUM (R, T, X, G, V) }}")
    model.graph.node.append(
        helper.make_node("Gradient", ["X"], ["dX"], domain=DOMAIN, xs=["X"], y="Y")
    )
    assert DOMAIN in {entry.domain for entry in lower(model).model.opset_import}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (MOMENTUM.replace("standard", "bogus") + " (R, T, X, G, V)", "bogus"),
        (MOMENTUM.replace("alpha", "gamma") + " (R, T, X, G, V)", "no attribute gamma"),
        (f"{DOMAIN}.Adagrad (R, T, X, G, V, X)", "takes 3 tensors"),
        (f"{DOMAIN}.Adagrad (R, T, X, , V)", "omitted"),
    ],
)
def test_node_that_breaks_its_signature_is_named(node, message):
    text = f"{HEADER} g ({INPUTS}) => (float[2] Y) {{ Y, W = {node} }}"
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = "the culprit"
    with pytest.raises(NodeError, match=rf"node the culprit: .*{message}"):
        lower(model)


def test_node_in_training_info_is_rejected():
    model = parsed(f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y = Neg (X) }}")
    node = parsed(
        f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y, W = MOMENTUM (R, T, X, G, V) }}"
    ).graph.node
    model.training_info.add().algorithm.node.extend(node)
    with pytest.raises(NodeError, match="training_info"):
        lower(model)


@runtimes
def test_only_functions_with_formula_operators_are_inlined(runtime):
    model = parsed(CALLING)
    lowered = checked(model)
    assert [function.name for function in lowered.functions] == ["plain"]
    R, T, X, G, V = VALUES
    (actual,) = runtime(lowered, VALUES)
    B = sum(momentum(R, T, -X, G, V, alpha=0.75))
    np.testing.assert_array_equal(actual, sum(momentum(R, T, B, G, V, alpha=0.5)))


@runtimes
def test_functions_called_in_a_subgraph_are_inlined_there(runtime):
    model = parsed(f"""<ir_version: 8, opset_import: ["": 15, "made.here": 1]>
    g (INPUTS, bool C) => (float[2] Y) {{
        Y = If (C) <
            then_branch = one () => (a) {{ a = made.here.outer <a = 0.75> (R, T, X, G, V) }},
            else_branch = two () => (b) {{ b = made.here.plain (X) }}
        >
    }} {FUNCTIONS}""")
    R, T, X, G, V = VALUES
    (actual,) = runtime(checked(model), [*VALUES, np.array(True)])
    np.testing.assert_array_equal(actual, sum(momentum(R, T, X, G, V, alpha=0.75)))


def test_model_imports_the_opsets_of_inlined_functions():
    model = parsed(CALLING)
    del model.opset_import[0], model.functions[3:]
    model.graph.node[0].CopyFrom(
        helper.make_node("outer", "RTXGV", ["A"], domain="made.here", a=0.5)
    )
    checker.check_model(model, full_check=True)
    imports = {entry.domain: entry.version for entry in checked(model).opset_import}
    assert imports == {"": 15, "made.here": 1}


def test_function_of_another_opset_cannot_be_inlined():
    model = parsed(CALLING)
    model.functions[1].opset_import[0].version = 14
    with pytest.raises(NodeError, match=r"made\.here:inner imports version 14 of ai\.onnx.* 15"):
        lower(model)


def test_function_of_another_opset_is_kept_if_it_is_not_inlined():
    model = parsed(CALLING)
    model.functions[3].opset_import[0].version = 14
    assert checked(model).functions[0].opset_import[0].version == 14


def test_recursive_functions_are_rejected():
    model = parsed(CALLING)
    model.functions[1].node.append(helper.make_node("outer", "RTXGV", ["U"], domain="made.here"))
    with pytest.raises(NodeError, match=r"circle: made\.here:\w+ -> made\.here:\w+"):
        lower(model)


def test_functions_that_grow_exponentially_are_rejected():
    model = parsed(CALLING)
    for level in range(40):
        calls = [
            helper.make_node(f"level{level - 1}" if level else "inner", "RTXGV", [name], domain="d")
            for name in "ab"
        ]
        if level == 0:
            for call in calls:
                call.domain = "made.here"
        imports = [helper.make_opsetid(domain, 1) for domain in ("d", "made.here")]
        model.functions.append(
            helper.make_function("d", f"level{level}", [*"RTXGV"], ["a"], calls, imports)
        )
    model.graph.node[2].op_type = "level39"
    model.graph.node[2].domain = "d"
    with pytest.raises(NodeError, match="nodes once inlined"):
        lower(model)


def test_function_with_the_name_of_the_operator_is_rejected():
    model = parsed(CALLING)
    model.functions[0].domain, model.functions[0].name = DOMAIN, "Momentum"
    with pytest.raises(NodeError, match=f"function named {DOMAIN}:Momentum"):
        lower(model)


def test_operators_with_a_formula_are_found_in_subgraphs_and_functions():
    assert formula_operators(parsed(CALLING)) == (f"{DOMAIN}:Momentum",)
    hidden = parsed(f"""{HEADER} g (INPUTS, bool C) => (float[2] Y) {{
        Y = If (C) <then_branch = one () => (a) {{ a = Neg (X) }},
            else_branch = two () => (b) {{ b, c = {DOMAIN}.Adagrad (R, T, X, G, V) }}>
    }}""")
    assert formula_operators(hidden) == (f"{DOMAIN}:Adagrad",)
    assert formula_operators(checked(hidden)) == ()


@runtimes
def test_default_of_a_function_attribute_is_passed_to_its_nodes(runtime):
    # The function sets a default of its attribute alpha, 0.75. Momentum itself has no default.
    model = parsed(f"""<ir_version: 9, opset_import: ["": 15, "made.here": 1]>
    g (INPUTS) => (float[2] Y) {{ Y = made.here.inner (R, T, X, G, V) }}
    {FUNCTIONS.split("<domain", 2)[0]}<domain: "made.here", opset_import: ["": 15, "{DOMAIN}": 1]>
inner <alpha: float = 0.75> (R, T, X, G, V) => (Z) {{
    Y, W = {DOMAIN}.Momentum <alpha: float = @alpha, beta = 0.25, mode = "standard",
        norm_coefficient = 0.125> (R, T, X, G, V)
    Z = Add (Y, W)
}}""")
    (actual,) = runtime(checked(model), VALUES)
    np.testing.assert_array_equal(actual, sum(momentum(*VALUES, alpha=0.75)))


def nodes_of(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g)


def test_new_names_differ_from_every_name_in_the_model():
    plain = parsed(f"""{HEADER} g (INPUTS, bool C) => (float[2] Y) {{
        Z, W = MOMENTUM (R, T, X, G, V)
        Y = If (C) <
            then_branch = one () => (a) {{ a = Neg (Z) }},
            else_branch = two () => (b) {{ c = Neg (Z)  b = Neg (c) }}
        >
    }}""")
    made = sorted(
        {name for node in lower(plain).model.graph.node for name in node.output} - {*"ZWY"}
    )
    text = onnx.printer.to_text(plain)
    # The model now uses the generated names itself: for inputs, in a subgraph, and in annotations.
    taken, inner, annotated = made[::3], made[1::3], made[2::3]
    chain = "".join(f"{b} = Neg ({a})\n" for a, b in zip(["Z", *inner], [*inner, "b"], strict=True))
    text = text.replace(
        "(float R,", "(" + "".join(f"float[1] {name}, " for name in taken) + "float R,"
    )
    text = text.replace("c = Neg (Z)\n", "").replace("b = Neg (c)\n", chain)
    model = parsed(text)
    for name in annotated:
        annotation = model.graph.quantization_annotation.add(tensor_name="X")
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=name)
    lowered = checked(model)
    outputs = [name for node in nodes_of(lowered.graph) for name in node.output if name]
    assert len(outputs) == len(set(outputs))
    fresh = {name for node in lowered.graph.node for name in node.output} - {*"ZWY"}
    assert len(fresh) == len(made)
    assert not fresh & set(made)
    assert all(name.startswith("Momentum_") for name in fresh)


def test_new_names_differ_from_unused_inputs_of_an_inner_graph():
    model = parsed(f"""{HEADER} g (INPUTS, int64 N, bool C) => (float[2] Y) {{
        Z, W = MOMENTUM (R, T, X, G, V)
        Y = Loop (N, C, Z) <
            body = body (int64 Momentum_Mul, bool c, x) => (d, y) {{
                d = Identity (c)
                y = Neg (x)
            }}
        >
    }}""")
    assert "Momentum_Mul" not in {
        name for node in checked(model).graph.node for name in node.output
    }


def test_names_of_primitive_nodes_begin_with_the_name_of_the_node():
    model = parsed(f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y, W = MOMENTUM (R, T, X, G, V) }}")
    model.graph.node[0].name = "update/weights"
    assert {node.name.split("_")[0] for node in lower(model).model.graph.node} == {"update/weights"}
