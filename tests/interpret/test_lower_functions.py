"""Model-local functions are inlined only if they contain operators with a formula."""

from __future__ import annotations

import numpy as np
import pytest
from lowered_models import CALLING, DOMAIN, FUNCTIONS, HEADER, VALUES, checked, momentum, parsed
from onnx import checker, helper
from runtimes import runtimes

from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.lower.lower_model import formula_operators, lower


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


def test_function_of_another_opset_stays_if_it_need_not_be_inlined():
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
    # 0.75 is the function's default of alpha; Adagrad has another default, and Momentum none.
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
