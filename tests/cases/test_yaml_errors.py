"""All faults of a case file are reported, each with its line, case and field."""

# ruff: noqa: E501 - each expected message is on one line

from __future__ import annotations

import os
import re
from time import process_time

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yaml_files import ADAM, ADAM_INPUTS, problems_of, read_text, save_model

from onnxopt_cli.cases.yaml import yaml_syntax
from onnxopt_cli.cases.yaml.case_file import read_yaml_file
from onnxopt_cli.operators.registry import registry

HEAD = "onnxopt: 1\nsuite: s\noperator: Adam\n"
DOMAINS = ", ".join(
    sorted(
        {schema.domain or "ai.onnx" for schema in onnx.defs.get_all_schemas()}
        | {operator.domain for operator in registry().operators}
    )
)
ATTRIBUTES = "alpha, beta, epsilon, norm_coefficient, norm_coefficient_post"


def case(fields):
    """Return a file whose only case, on line 4, has the name c and the given fields."""
    return f"{HEAD}cases: [{{name: c, {fields}}}]"


def adam(**changes):
    """Return a file with a case of Adam that is valid except for the changed fields.

    An empty value omits a field.
    """
    fields = {"inputs": ADAM_INPUTS} | changes
    return case(", ".join(f"{name}: {value}" for name, value in fields.items() if value))


def inputs(**changes):
    """Return a file with a case of Adam that is valid except for the changed inputs."""
    values = {"R": "0.1", "T": "0", "X": "[1, 2]", "G": "[1, 2]", "V": "[1, 2]", "H": "[1, 2]"}
    values |= changes
    return adam(inputs="{" + ", ".join(f"{k}: {v}" for k, v in values.items() if v) + "}")


def other(fields):
    """Return a file in opset 14 whose only case has the name c and the given fields."""
    return f"onnxopt: 1\nsuite: s\nopset: 14\ncases: [{{name: c, {fields}}}]"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        # Faults of the file.
        ("", ["1: found nothing, expected a mapping with the fields onnxopt and cases"]),
        ("# nothing", ["1: found nothing, expected a mapping with the fields onnxopt and cases"]),
        ("[1]", ["1: found a list of 1, expected a mapping with the fields onnxopt and cases"]),
        ("text", ['1: found "text", expected a mapping with the fields onnxopt and cases']),
        ("{}", ["1: found no onnxopt, expected this field", "1: found no cases, expected this field"]),
        ("onnxopt: 2\ncases: what", ["1: onnxopt: found 2, expected 1"]),
        ("onnxopt: true\ncases: what", ["1: onnxopt: found true, expected 1"]),
        ("onnxopt: 1", ["1: found no cases, expected this field"]),
        ("onnxopt: 1\ncases: {a: 1}", ["2: cases: found a mapping with a, expected a list"]),
        ("onnxopt: 1\ncases: []", ["2: cases: found an empty list, expected at least 1 of them"]),
        ("onnxopt: 1\ncases: [3]", ["2: case #1: found 3, expected a mapping"]),
        ("onnxopt: 1\n\ncases:\n", ["3: cases: found nothing, expected a list"]),
        (
            f"onnxopt: 1\nsuit: s\noperator: Adam\ncases: [{{name: c, inputs: {ADAM_INPUTS}}}]",
            [
                "2: suit: found an unknown field, expected one of onnxopt, suite, operator, domain, version, opset, about, tolerance, cases; did you mean suite?"
            ],
        ),
        (
            "onnxopt: 1\nsuite: a/b\noperator: Adam\ncases: [{name: c}]",
            [
                ('2: suite: found "a/b", expected a name of at most 100 letters, digits, _, . and -, '
                "not beginning with . or -, optionally followed by @VERSION"),
                "4: case c: found no input R, T, X, G, V, H, expected R, T, X, G, V, H below inputs:",
            ],
        ),
        ("a: [", ["1: found invalid YAML: did not find expected node content while parsing a flow node"]),
        # Faults of the case.
        (f"{HEAD}cases: [{{inputs: {ADAM_INPUTS}}}]", ["4: case #1: found no name, expected this field"]),
        (
            f"{HEAD}cases: [{{name: ../x, inputs: {ADAM_INPUTS}}}]",
            [
                '4: case ../x: name: found "../x", expected a name of at most 100 letters, digits, _, . and -, not beginning with . or -'
            ],
        ),
        (
            f"{HEAD}cases:\n- {{name: c, inputs: {ADAM_INPUTS}}}\n- {{name: c, inputs: {ADAM_INPUTS}}}",
            ['6: case c: name: found "c" again, expected another name (line 5)'],
        ),
        (
            f"{HEAD}cases: [{{name: 1, inputs: {ADAM_INPUTS}}}]",
            [
                "4: case #1: name: found 1, expected a name of at most 100 letters, digits, _, . and -, not beginning with . or -"
            ],
        ),
        (
            adam(atributes="{alpha: 1}"),
            [
                "4: case c: atributes: found an unknown field, expected one of name, about, source, tags, operator, domain, version, opset, model, attributes, inputs, outputs, graph, steps, tolerance, rejects, node_outputs; did you mean attributes?"
            ],
        ),
        (adam(about="[1]"), ["4: case c: about: found a list of 1, expected text"]),
        (adam(tags="published"), ['4: case c: tags: found "published", expected a list']),
        (
            adam(tags="[a b]"),
            [
                '4: case c: tags[0]: found "a b", expected a name of at most 100 letters, digits, _, . and -, not beginning with . or -'
            ],
        ),
        (adam(rejects="maybe"), ['4: case c: rejects: found "maybe", expected true or false']),
        (
            adam(rejects="true", outputs="{X_new: 1}"),
            ["4: case c: outputs: found outputs, expected none in a case with rejects: true"],
        ),
        (
            adam(node_outputs="[X_new]"),
            [
                "4: case c: node_outputs: found node_outputs, expected none in a case of this operator without rejects: true"
            ],
        ),
        (
            "onnxopt: 1\nsuite: s\ncases: [{name: c}]",
            ["3: case c: found neither operator nor model, expected one of them"],
        ),
        (
            adam(about="a, about: b"),
            ["4: case c: about: found this key again, expected it once (line 4)"],
        ),
        # Faults of the operator.
        (adam(operator="Adamm"), [
            '4: case c: operator: found "Adamm", expected an operator of ai.onnx or of onnxopt; did you mean Adam?'
        ]),
        (adam(operator="Binarizer"), [
            "4: case c: operator: found Binarizer, expected the field domain: ai.onnx.ml"
        ]),
        (adam(domain="ai.onnx.m1"), [
            f'4: case c: domain: found "ai.onnx.m1", expected one of {DOMAINS}'
        ]),
        (adam(operator="A d"), [
            '4: case c: operator: found "A d", expected the name of an operator, such as Adam'
        ]),
        (adam(version="2"), [
            "4: case c: version: found 2, expected 1, the version of ai.onnx.preview.training"
        ]),
        (adam(version="0"), ["4: case c: version: found 0, expected at least 1"]),
        (adam(opset="14"), [
            "4: case c: opset: found opset, expected version: the domain of Adam is ai.onnx.preview.training"
        ]),
        (other("operator: Upsample, opset: 10"), [
            "4: case c: operator: found Upsample, deprecated since version 10, expected an older opset or another operator"
        ]),
        (other("operator: Relu, opset: 999"), [
            f"4: case c: opset: found 999, expected at most {onnx.defs.onnx_opset_version()}, the latest of the installed onnx"
        ]),
        (other("operator: Clip, version: 3"), [
            "4: case c: version: found version, expected opset: the domain of Clip is ai.onnx"
        ]),
        (other("operator: Mish"), [
            "3: opset: found 14, expected a later version, which has Mish"
        ]),
        # Faults of attributes.
        (adam(attributes="{alfa: 0.9}"), [
            f"4: case c: attributes.alfa: found an unknown attribute, expected one of {ATTRIBUTES}; did you mean alpha?"
        ]),
        (adam(attributes="{alpha: high}"), [
            '4: case c: attributes.alpha: found "high", expected a number (float32)'
        ]),
        (adam(attributes="{alpha: true}"), [
            "4: case c: attributes.alpha: found true, expected a number, text, a list of these, or a tensor"
        ]),
        (adam(attributes="{alpha: 1e39}"), [
            "4: case c: attributes.alpha: found 1e+39, expected a number in the range of float32 (magnitudes 1.401e-45 to 3.403e+38)"
        ]),
        (adam(attributes="{alpha: [1, 2]}"), [
            "4: case c: attributes.alpha: found a list of 2, expected a number (float32)"
        ]),
        (
            case("operator: Momentum, inputs: {R: 1, T: 0, X: 1, G: 1, V: 1}, attributes: {alpha: 1, beta: 1, mode: bogus}"),
            [
                "4: case c: attributes: found no attribute norm_coefficient, expected alpha, beta, mode, norm_coefficient",
                '4: case c: attributes.mode: found "bogus", expected standard or nesterov',
            ],
        ),
        (other("operator: Concat, inputs: {inputs: [1]}, outputs: {concat_result: [1]}"), [
            "4: case c: found no attribute axis, expected axis below attributes:"
        ]),
        (other("operator: Elu, attributes: {alpha: a}, inputs: {X: 1.0}, outputs: {Y: 1.0}"), [
            '4: case c: attributes.alpha: found "a", expected a number (float32)'
        ]),
        (other("operator: Flatten, attributes: {axis: 1.5}, inputs: {input: [[1.0]]}, outputs: {output: [[1.0]]}"), [
            "4: case c: attributes.axis: found 1.5, expected an integer from -9223372036854775808 to 9223372036854775807 (int64)"
        ]),
        (other("operator: Transpose, attributes: {perm: 0}, inputs: {data: [1.0]}, outputs: {transposed: [1.0]}"), [
            "4: case c: attributes.perm: found 0, expected a list"
        ]),
        (other("operator: If, attributes: {then_branch: 1, else_branch: 1}, inputs: {cond: true}, outputs: {outputs: 1}"), [
            "4: case c: attributes.then_branch: found an attribute of type GRAPH, expected the case to use model: instead",
            "4: case c: attributes.else_branch: found an attribute of type GRAPH, expected the case to use model: instead",
        ]),
        # Faults of inputs.
        (inputs(V=""), [
            "4: case c: inputs: found no input V, expected R, T, X, G, V, H"
        ]),
        (inputs(W="1"), [
            "4: case c: inputs.W: found an unknown input, expected one of R, T, X, G, V, H"
        ]),
        (inputs(X="", X1="1", X3="1"), [
            "4: case c: inputs.G: found an unknown input, expected one of R, T, X1, X2, G1, G2, V1, V2, H1, H2; did you mean G2?",
            "4: case c: inputs.V: found an unknown input, expected one of R, T, X1, X2, G1, G2, V1, V2, H1, H2; did you mean V2?",
            "4: case c: inputs.H: found an unknown input, expected one of R, T, X1, X2, G1, G2, V1, V2, H1, H2; did you mean H2?",
            "4: case c: inputs.X3: found an unknown input, expected one of R, T, X1, X2, G1, G2, V1, V2, H1, H2",
            "4: case c: inputs: found no input X2, G1, G2, V1, V2, H1, H2, expected R, T, X1, X2, G1, G2, V1, V2, H1, H2",
        ]),
        (inputs(G="[1, 2, 3]"), [
            "4: case c: inputs.G: Adam: G of shape [3] does not broadcast to X's shape [2]"
        ]),
        (inputs(R="[1, 2]"), [
            "4: case c: inputs.R: Adam: R must have one element; its shape is [2]"
        ]),
        (inputs(X="{dtype: float16, data: [1, 2]}"), [
            "4: case c: inputs.X: Adam: X is float16; allowed: float32, float64"
        ]),
        (inputs(T="1.5"), [
            "4: case c: inputs.T: found 1.5, expected an integer from -9223372036854775808 to 9223372036854775807 (int64)"
        ]),
        (inputs(X="[[1, 2], [3]]"), [
            "4: case c: inputs.X[1]: found a list of 1, expected a list of 2, like the first one at this depth"
        ]),
        (inputs(X="null"), ["4: case c: inputs.X: found nothing, expected a tensor or another value"]),
        (inputs(X="[1, null]"), [
            "4: case c: inputs.X[1]: found nothing, expected a number, text, true, false or a list of these"
        ]),
        (inputs(X="[{data: 1}, 2]"), [
            "4: case c: inputs.X[0]: found a mapping with data, expected a number, text, true, false or a list of these"
        ]),
        (inputs(X="{}"), [
            "4: case c: inputs.X: found an empty mapping, expected exactly one of data, random, file, sequence and optional"
        ]),
        (inputs(X="{data: 1, file: x.npy}"), [
            "4: case c: inputs.X: found a mapping with data, file, expected exactly one of data, random, file, sequence and optional"
        ]),
        (inputs(X="{data: 1, type: float}"), [
            "4: case c: inputs.X.type: found an unknown field, expected one of dtype, shape, data, random, file, key, sequence, optional; did you mean dtype?"
        ]),
        (inputs(X="{data: [1], key: a}"), ["4: case c: inputs.X: found no file, expected this field"]),
        (inputs(X="{data: [1], shape: [-1]}"), [
            "4: case c: inputs.X.shape[0]: found -1, expected at least 0"
        ]),
        (inputs(X="{random: {normal: {}, seed: 1}}"), [
            "4: case c: inputs.X: found no shape, expected this field"
        ]),
        (inputs(X="{random: {normal: {}}, shape: [2]}"), [
            "4: case c: inputs.X.random: found no seed, expected this field"
        ]),
        (inputs(X="{random: {seed: 1}, shape: [2]}"), [
            "4: case c: inputs.X.random: found a mapping with seed, expected exactly one of normal, uniform, lognormal and integers"
        ]),
        (inputs(X="{random: {normal: {scale: -1}, seed: 4294967296}, shape: [2]}"), [
            "4: case c: inputs.X.random.normal.scale: found -1, expected at least 0",
            "4: case c: inputs.X.random.seed: found 4294967296, expected at most 4294967295",
        ]),
        (inputs(X="{random: {gauss: {}, seed: 1}, shape: [2]}"), [
            "4: case c: inputs.X.random.gauss: found an unknown field, expected one of seed, tail, normal, uniform, lognormal, integers",
            "4: case c: inputs.X.random: found a mapping with gauss, seed, expected exactly one of normal, uniform, lognormal and integers",
        ]),
        (inputs(X="{file: gone.npy}"), ["4: case c: inputs.X.file: the file gone.npy is missing"]),
        (inputs(X="{file: ../x.npy}"), [
            "4: case c: inputs.X.file: the file ../x.npy is not a path inside the folder of the case file"
        ]),
        (inputs(X="{sequence: [[1, 2]]}"), [
            "4: case c: inputs.X: found a sequence, expected a tensor for X"
        ]),
        (inputs(X="&x [1, 2]", G="*x"), [
            "4: case c: inputs.X: found the anchor &x, expected plain values (anchors, aliases and tags are not allowed)",
            "4: case c: inputs.G: found the alias *x, expected plain values (anchors, aliases and tags are not allowed)",
        ]),
        (other("operator: Relu, inputs: {Y: 1.0}, outputs: {Y: 1.0}"), [
            "4: case c: inputs.Y: found an unknown input, expected one of X",
            "4: case c: inputs: found no input X, expected X",
        ]),
        (other("operator: Concat, attributes: {axis: 0}, inputs: {inputs1: [1], inputs3: [1]}, outputs: {concat_result: [1, 1]}"), [
            "4: case c: inputs.inputs3: found an unknown input, expected one of inputs1, inputs2; did you mean inputs2?",
            "4: case c: inputs: found no input inputs2, expected inputs1, inputs2",
        ]),
        (other("operator: Concat, attributes: {axis: 0}, inputs: {a: [1]}, outputs: {concat_result: [1]}"), [
            "4: case c: inputs.a: found an unknown input, expected one of inputs1, inputs2",
            "4: case c: inputs: found no input inputs1, expected inputs1, inputs2",
        ]),
        (other("operator: And, inputs: {A: [true], B: [1.5]}, outputs: {C: [true]}"), [
            "4: case c: inputs.B[0]: found 1.5, expected true or false"
        ]),
        (other("operator: Add, inputs: {A: {dtype: double, data: 1}, B: {dtype: float, data: 1}}, outputs: {C: 2}"), [
            "4: case c: inputs.B: found float32, expected float64, like the other values of type T"
        ]),
        (other("operator: Relu, inputs: {X: {dtype: string, data: a}}, outputs: {Y: 1.0}"), [
            "4: case c: inputs.X: found tensor(string), expected one of tensor(bfloat16), tensor(float16), tensor(float32), tensor(float64), tensor(int16), tensor(int32), tensor(int64), tensor(int8)"
        ]),
        (inputs(**{"0": "null", "+7": "null", "''": "null", '"\\x007"': "null"}), [
            "4: case c: inputs.0: found nothing, expected a tensor or another value",
            "4: case c: inputs.+7: found nothing, expected a tensor or another value",
            "4: case c: inputs.: found nothing, expected a tensor or another value",
            "4: case c: inputs.\\x007: found nothing, expected a tensor or another value",
            "4: case c: inputs.0: found an unknown input, expected one of R, T, X, G, V, H",
            "4: case c: inputs.+7: found an unknown input, expected one of R, T, X, G, V, H",
            "4: case c: inputs.: found an unknown input, expected one of R, T, X, G, V, H",
            "4: case c: inputs.\\x007: found an unknown input, expected one of R, T, X, G, V, H",
        ]),
        # Faults of outputs.
        (adam(outputs="{X_new: [1, 2], V_new: [1, 2]}"), [
            "4: case c: outputs: found no output H_new, expected X_new, V_new, H_new"
        ]),
        (adam(outputs="{X_new: [1, 2], V_new: [1, 2], H_new: [1, 2, 3]}"), [
            "4: case c: outputs.H_new: found float32[3], expected float32[2]"
        ]),
        (other("operator: Relu, inputs: {X: 1.0}, outputs: {Y: 1.0}, node_outputs: [Y]"), [
            "4: case c: node_outputs: found node_outputs, expected none in a case with outputs"
        ]),
        (other("operator: Relu, inputs: {X: 1.0}, node_outputs: [Y, Z]"), [
            "4: case c: node_outputs: found Z, expected some of Y"
        ]),
        (other("operator: Split, inputs: {input: [1.0, 2.0]}"), [
            "4: case c: found no node_outputs, expected this field, as in [outputs1, outputs2], because Split has any number of outputs"
        ]),
        (other("operator: Split, inputs: {input: [1.0, 2.0]}, node_outputs: [a]"), [
            "4: case c: node_outputs: found a, expected some of outputs1, outputs2"
        ]),
        (other("operator: MaxPool, attributes: {kernel_shape: [1]}, inputs: {X: [[[1.0]]]}, node_outputs: [Indices]"), [
            "4: case c: node_outputs: found no Y, expected all outputs that the node requires"
        ]),
        (other("operator: Gradient, domain: ai.onnx.preview.training, attributes: {xs: [a], y: b}, inputs: {Inputs1: [1.0]}, node_outputs: [Outputs1]"), [
            "4: case c: found no outputs, expected this field, because onnx infers no type for Outputs1"
        ]),
        (other("operator: MatMul, inputs: {A: [1.0], B: [1.0, 2.0]}"), [
            "4: case c: rejected by onnx: Inference error(s): (op_type:MatMul): [ShapeInferenceError] Incompatible dimensions for matrix multiplication"
        ]),
        (other("operator: Relu, inputs: {X: [1.0]}, outputs: {Y: [1.0, 2.0]}"), [
            "4: case c: outputs: rejected by onnx: Inference error(s): (op_type:Relu): [ShapeInferenceError] Inferred shape and existing shape differ in dimension 0: (1) vs (2)"
        ]),
        # Faults of tolerances.
        (adam(tolerance="{rtol: -1}"), ["4: case c: tolerance.rtol: found -1, expected at least 0"]),
        (adam(tolerance="{rtol: .nan}"), ["4: case c: tolerance.rtol: found .nan, expected a number"]),
        (adam(tolerance="{atol: .inf}"), ["4: case c: tolerance.atol: found .inf, expected a number"]),
        (adam(tolerance="{ulp: 1.5}"), ["4: case c: tolerance.ulp: found 1.5, expected an integer"]),
        (adam(tolerance="{}"), [
            "4: case c: tolerance: found an empty mapping, expected rtol and atol, or ulp"
        ]),
        (adam(tolerance="{ulp: 1, rtol: 1}"), [
            "4: case c: tolerance: found a mapping with ulp, rtol, expected either rtol and atol, or ulp"
        ]),
        (adam(tolerance="{X_mew: {ulp: 1}}"), [
            "4: case c: tolerance.X_mew: found an unknown output, expected one of X_new, V_new, H_new; did you mean X_new?"
        ]),
        (
            f"{HEAD}tolerance: {{Z: {{ulp: 1}}}}\ncases: [{{name: c, inputs: {ADAM_INPUTS}}}]",
            ["4: tolerance.Z: found an unknown output, expected one of H_new, V_new, X_new"],
        ),
        # Faults of the graph around the node.
        (adam(graph="{inputs: [G, G]}"), [
            "4: case c: graph.inputs: found a list of 2, expected each item once"
        ]),
        (adam(graph="{names: {X: ''}}"), [
            '4: case c: graph.names.X: found "", expected a text of at least 1 characters'
        ]),
        (adam(graph=f"{{names: {{X: {'x' * 201}}}}}"), [
            f'4: case c: graph.names.X: found "{"x" * 79}..., expected a text of at most 200 characters'
        ]),
        # Faults of model files.
        (adam(model="gone.onnx"), ["4: case c: model: the file gone.onnx is missing"]),
        (adam(model="/etc/passwd"), [
            "4: case c: model: the file /etc/passwd is not a path inside the folder of the case file"
        ]),
    ],
)  # fmt: skip
def test_faults_are_reported_with_line_case_field_and_expectation(tmp_path, text, problems):
    assert problems_of(tmp_path, text) == problems


def test_all_faults_of_a_file_are_reported_in_the_order_of_lines(tmp_path):
    text = f"""\
onnxopt: 1
suite: s
operator: Adam
author: me
cases:
  - name: a
    inputs: {{R: 1}}
    tolerance: {{rtol: -1}}
  - name: b
    inputs: {ADAM_INPUTS}
    outputs: {{X_new: 1e39}}
    tags: 3
  - name: b
    inputs:
      R: 0.1
      T: soon
      X: !!set [1]
      G: [1, [2]]
      V: {{dtype: float33, data: 1}}
      H: 1e999
"""
    places = [problem.split(": found")[0] for problem in problems_of(tmp_path, text)]
    assert places == [
        "4: author",
        "7: case a: inputs",
        "8: case a: tolerance.rtol",
        "11: case b: outputs",
        "11: case b: outputs.X_new",
        "12: case b: tags",
        "13: case b: name",
        "16: case b: inputs.T",
        "17: case b: inputs.X",
        "18: case b: inputs.G[1]",
        "19: case b: inputs.V.dtype",
        "20: case b: inputs.H",
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("inputs: {a: [1]}, outputs: {}", "found no output c, expected c"),
        ("inputs: {b: 1}, outputs: {c: [1]}", "inputs.b: found an unknown input"),
        ("inputs: {a: 1}, outputs: {c: [1]}", "inputs.a: the value is float64[], but declared as"),
        ("inputs: {a: {dtype: float, data: [1]}}, outputs: {c: [1]}", "but declared as float64[N]"),
        ("operator: Add, inputs: {a: [1]}, outputs: {c: [1]}", "operator: found operator and"),
        ("attributes: {x: 1}, inputs: {a: [1]}, outputs: {c: [1]}", "found attributes and model"),
    ],
)  # fmt: skip
def test_cases_with_a_model_file_are_checked_against_its_graph(tmp_path, fields, problem):
    save_model(tmp_path)
    text = f"onnxopt: 1\nsuite: s\ncases: [{{name: c, model: add.onnx, {fields}}}]"
    assert problem in problems_of(tmp_path, text)[0]


def test_file_that_is_not_a_model_is_reported(tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"no model")
    (problem,) = problems_of(tmp_path, adam(model="x.onnx"))
    assert problem.startswith("4: case c: model: the file x.onnx is not a model")


def test_fault_of_the_file_is_reported_once_for_all_cases(tmp_path):
    text = f"{HEAD.replace('Adam', 'Adamm')}cases: [{{name: a}}, {{name: b}}]"
    assert len(problems_of(tmp_path, text)) == 1


def test_many_unknown_names_are_counted_in_a_short_time(tmp_path):
    # Comparing each unknown name with each of 20,000 valid names would take hours.
    tensors = ", ".join(f"{kind}{number}: 1" for number in range(1, 5001) for kind in "XGVH")
    unknown = ", ".join(f"Y{number}: 1" for number in range(10_000))
    before = process_time()
    problems = problems_of(tmp_path, adam(inputs=f"{{R: 0.1, T: 0, {tensors}, {unknown}}}"))
    assert process_time() - before < 20
    assert len(problems) == 21
    assert problems[-1].endswith("found 9980 more unknown inputs, expected none")


def test_unreadable_files_are_reported(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"onnxopt: 1\nabout: \xe9t\xe9\n")
    for name, expected in (
        ("gone.yaml", "gone.yaml: the file is missing"),
        ("folder.yaml", "folder.yaml: the file is not a regular file"),
        ("pipe.yaml", "pipe.yaml: the file is not a regular file"),
        ("latin.yaml", "latin.yaml:2: found bytes that are not UTF-8, expected UTF-8 text"),
    ):
        cases, (problem,) = read_yaml_file(tmp_path / name)
        assert cases == []
        assert str(problem) == f"{tmp_path}/{expected}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_reported(tmp_path):
    path = tmp_path / "secret.yaml"
    path.touch(mode=0)
    assert "cannot be read" in str(read_yaml_file(path)[1][0])


def test_file_over_the_size_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(yaml_syntax, "MAX_BYTES", 100)
    (tmp_path / "file.yaml").write_text(ADAM)
    cases, (problem,) = read_yaml_file(tmp_path / "file.yaml")
    assert cases == []
    assert "at most 100 were expected" in str(problem)


def test_folder_or_file_name_that_is_invalid_in_an_id_is_reported(tmp_path):
    folder = tmp_path / "my cases"
    folder.mkdir()
    cases, problems = read_text(folder, ADAM.replace("suite: spec\n", ""))
    assert cases == []
    assert [problem.what for problem in problems] == [
        "found the folder my cases, which is not valid in an id, expected the file to state its suite"
    ]
    cases, problems = read_text(folder, ADAM, "two words.yaml")
    assert cases == []
    assert "found the file two words, which is not valid in an id" in problems[0].what


def test_hostile_text_is_shown_escaped_and_short(tmp_path):
    text = adam(about='[1], "\\x1b[31m\\u202e' + "x" * 500 + '": 1')
    problems = problems_of(tmp_path, text)
    assert any("\\x1b[31m\\u202exxx" in problem for problem in problems)
    assert all(len(problem) < 400 for problem in problems)
    assert not any(re.search("[\x1b\u202e]", problem) for problem in problems)


@given(data=st.data())
def test_damaged_case_file_raises_no_exception(tmp_path_factory, data):
    start = data.draw(st.integers(0, len(ADAM)))
    length = data.draw(st.integers(0, 12))
    middle = data.draw(st.text(alphabet="[]{}:,-?*&!|>'\"% \n\t1.#~eé_aX", max_size=6))
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_text(ADAM[:start] + middle + ADAM[start + length :])
    cases, problems = read_yaml_file(path)
    assert cases or problems
    for case in cases:
        case.load()
