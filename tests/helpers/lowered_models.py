"""Models with Momentum nodes, and a check of the properties that every lowered model has."""

from __future__ import annotations

import numpy as np
from onnx import checker, parser

from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.lower.lower_model import formula_operators, lower
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry

DOMAIN = "ai.onnx.preview.training"
HEADER = f'<ir_version: 8, opset_import: ["": 15, "{DOMAIN}": 1]>'
MOMENTUM = (
    f'{DOMAIN}.Momentum <alpha = 0.5, beta = 0.25, mode = "standard", norm_coefficient = 0.125>'
)
INPUTS = "float R, int64 T, float[2] X, float[2] G, float[2] V"
VALUES = [
    np.array(0.5, np.float32),
    np.array(3),
    *np.array([[1, -2], [0.5, 4], [3, -0.25]], np.float32),
]
FUNCTIONS = f"""<domain: "made.here", opset_import: ["": 15, "made.here": 1]>
outer <a> (R, T, X, G, V) => (Y) {{ Y = made.here.inner <alpha: float = @a> (R, T, X, G, V) }}
<domain: "made.here", opset_import: ["": 15, "{DOMAIN}": 1]>
inner <alpha> (R, T, X, G, V) => (Z) {{
    Y, W = {DOMAIN}.Momentum <alpha: float = @alpha, beta = 0.25, mode = "standard",
        norm_coefficient = 0.125> (R, T, X, G, V)
    Z = Add (Y, W)
}}
<domain: "made.here", opset_import: ["": 15, "made.here": 1]>
never_called <a> (R, T, X, G, V) => (Y) {{
    Y = made.here.inner <alpha: float = @a> (R, T, X, G, V)
}}
<domain: "made.here", opset_import: ["": 15, "{DOMAIN}": 1]>
plain (X) => (Y) {{ Y = Neg (X) }}
"""
CALLING = f"""<ir_version: 8, opset_import: ["": 15, "made.here": 1]> g (INPUTS) => (float[2] Y) {{
    A = made.here.plain (X)
    B = made.here.outer <a = 0.75> (R, T, A, G, V)
    Y = made.here.inner <alpha = 0.5> (R, T, B, G, V)
}} {FUNCTIONS}"""


def momentum(*operands, **attributes):
    """Return the outputs of Momentum; they are exact in float32 for the numbers in the tests."""
    operator = registry().named("Momentum")
    defaults = {"alpha": 0.5, "beta": 0.25, "mode": "standard", "norm_coefficient": 0.125}
    operands = [np.asarray(operand) for operand in operands]
    return evaluate(bind(operator, operands, complete_attributes(operator, defaults | attributes)))


def parsed(text):
    model = parser.parse_model(text.replace("MOMENTUM", MOMENTUM).replace("INPUTS", INPUTS))
    checker.check_model(model, full_check=True)
    return model


def checked(model):
    """Lower a model, check the properties that every lowered model has, and return the result."""
    before = model.SerializeToString()
    lowered = lower(model).model
    assert model.SerializeToString() == before
    checker.check_model(lowered, full_check=True)
    assert not formula_operators(lowered)
    holders = [lowered, *lowered.functions]
    assert DOMAIN not in {entry.domain for holder in holders for entry in holder.opset_import}
    return lowered
