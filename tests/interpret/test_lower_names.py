"""Names that lowering generates are unique in the model and show their origin."""

from __future__ import annotations

import onnx
from lowered_models import HEADER, checked, parsed

from onnxopt_cli.interpret.lower.lower_model import lower


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
    # Occupy the names that were generated first: as an input, in a subgraph, and as a value_info.
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
