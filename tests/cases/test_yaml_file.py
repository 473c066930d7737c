"""Valid YAML case files, and the cases that they contain."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import numpy as np
import onnx
import pytest
from yaml_files import ADAM, ADAM_INPUTS, identity, only_case, read_text, save_model

import onnxopt_cli as onnxopt
from onnxopt_cli.cases.yaml.case_file import read_yaml_file
from onnxopt_cli.cases.yaml.yaml_syntax import packaged_schema
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.tolerance import (
    Provenance,
    Relative,
    Ulps,
)
from onnxopt_cli.errors import InvalidCase


def test_case_has_the_fields_of_its_file(tmp_path):
    cases, problems = read_text(tmp_path, ADAM)
    assert problems == []
    (case,) = cases
    assert case.id == "spec/file/adam"
    assert str(case.location) == f"{tmp_path / 'file.yaml'}:5"
    assert case.operators == ("Adam",)
    assert case.about == "One tensor, first iteration."
    assert case.source == "ONNX operator documentation"
    assert case.tags == ("published", "small")


def test_model_is_one_node_that_has_only_the_stated_attributes(tmp_path):
    content = only_case(tmp_path, ADAM)
    onnx.checker.check_model(content.model, full_check=True)
    (node,) = content.model.graph.node
    attributes = {a.name: np.float32(onnx.helper.get_attribute_value(a)) for a in node.attribute}
    assert attributes == {
        "alpha": np.float32(0.95),
        "beta": np.float32(0.1),
        "epsilon": np.float32(1e-7),
        "norm_coefficient": np.float32(0.001),
    }
    assert content.model.graph.name == "adam"
    assert list(content.inputs) == ["R", "T", "X", "G", "V", "H"]
    assert content.inputs["R"].dtype == np.float32
    assert content.inputs["T"].dtype == np.int64
    assert content.stored["V_new"].dtype == np.float32
    assert content.tolerance == Relative(1e-3, 1e-7, Provenance.CASE)


def test_outputs_of_an_operator_with_a_formula_are_optional(tmp_path):
    text = f"onnxopt: 1\nsuite: s\noperator: Adam\ncases: [{{name: c, inputs: {ADAM_INPUTS}}}]"
    assert only_case(tmp_path, text).stored is None


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ("Relu, inputs: {X: [-1.0, 1.0]}", {"Y": "float32[2]"}),
        ("Cast, attributes: {to: 10}, inputs: {input: 1.0}", {"output": "float16[]"}),
        (
            "MaxPool, attributes: {kernel_shape: [1]}, inputs: {X: [[[3.0]]]}",
            {"Y": "float32[1,1,1]"},
        ),
        (
            "TopK, inputs: {X: [5.0, 7.0], K: [1]}, node_outputs: [Indices, Values]",
            {"Values": "float32[1]", "Indices": "int64[1]"},
        ),
        (
            "Split, inputs: {input: [5.0, 6.0], split: [1, 1]}, node_outputs: [outputs1, outputs2]",
            {"outputs1": "float32[1]", "outputs2": "float32[1]"},
        ),
        # onnx cannot infer the types of these outputs, but their schemas state the element types.
        (
            (
                "GroupNormalization, attributes: {num_groups: 1}, "
                "inputs: {X: [[2.0]], scale: [1], bias: [5]}"
            ),
            {"Y": "float32[1,1]"},
        ),
        (
            "Scaler, domain: ai.onnx.ml, attributes: {offset: [1], scale: [2]}, inputs: {X: [3.0]}",
            {"Y": "float32[1]"},
        ),
    ],
)
def test_outputs_of_an_operator_of_onnx_are_optional(tmp_path, monkeypatch, onnxopt, fields, types):
    (tmp_path / "file.yaml").write_text(
        f"onnxopt: 1\nsuite: s\ncases: [{{name: c, operator: {fields}}}]"
    )
    monkeypatch.chdir(tmp_path)
    answer = onnxopt("run", "file.yaml", "-b", "onnx-reference", "-v")
    assert answer.code == 0
    for name, type_name in types.items():
        assert f"{name}  {type_name}  as expected" in answer.out


def test_inputs_are_sorted_as_in_the_specification(tmp_path):
    text = """
        onnxopt: 1
        suite: s
        operator: Adagrad
        cases:
          - name: c
            inputs: {H2: 1, H1: 2, G2: 3, G1: 4, X2: 5, X1: 6, T: 7, R: 8}
    """
    content = only_case(tmp_path, text)
    assert list(content.inputs) == ["R", "T", "X1", "X2", "G1", "G2", "H1", "H2"]
    assert [float(value) for value in content.inputs.values()] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [v.name for v in content.model.graph.output] == ["X1_new", "X2_new", "H1_new", "H2_new"]


def test_stored_output_has_the_dtype_of_its_input(tmp_path):
    text = """
        onnxopt: 1
        suite: s
        operator: Adagrad
        cases:
          - name: c
            inputs: {R: 1, T: 0, X: {dtype: double, data: 0.1}, G: 1, H: 1}
            outputs: {X_new: 0.1, H_new: 0.1}
    """
    expected = only_case(tmp_path, text).stored
    assert expected["X_new"] == np.float64(0.1)
    assert expected["H_new"].dtype == np.float32


@pytest.mark.parametrize(
    ("text", "general", "outputs"),
    [
        ("{ulp: 3}", Ulps(3, Provenance.CASE), {}),
        ("{rtol: 0.5}", Relative(0.5, 0, Provenance.CASE), {}),
        ("{X_new: {atol: 1}}", None, {"X_new": Relative(0, 1, Provenance.OUTPUT)}),
        (
            "{ulp: 1, X_new: {ulp: 2}}",
            Ulps(1, Provenance.CASE),
            {"X_new": Ulps(2, Provenance.OUTPUT)},
        ),
    ],
)
def test_tolerances_apply_to_the_case_or_to_outputs(tmp_path, text, general, outputs):
    file = (
        f"onnxopt: 1\nsuite: s\noperator: Adam\n"
        f"cases: [{{name: c, inputs: {ADAM_INPUTS}, tolerance: {text}}}]"
    )
    content = only_case(tmp_path, file)
    assert content.tolerance == general
    assert content.output_tolerances == outputs


def test_tolerance_of_the_file_applies_to_cases_without_their_own(tmp_path):
    text = f"""
        onnxopt: 1
        suite: s
        operator: Adam
        tolerance: {{ulp: 7, X_new: {{ulp: 8}}}}
        cases:
          - {{name: a, inputs: {ADAM_INPUTS}}}
          - {{name: b, inputs: {ADAM_INPUTS}, tolerance: {{ulp: 1}}}}
    """
    cases, problems = read_text(tmp_path, text)
    assert problems == []
    first, second = (case.load() for case in cases)
    assert first.tolerance == Ulps(7, Provenance.CASE)
    assert first.output_tolerances == {"X_new": Ulps(8, Provenance.OUTPUT)}
    assert second.tolerance == Ulps(1, Provenance.CASE)
    assert second.output_tolerances == {}


def test_suite_has_the_name_of_the_folder(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "file.yaml").write_text(ADAM.replace("suite: spec\n", ""))
    monkeypatch.chdir(folder)
    for path in (Path("file.yaml"), folder / "file.yaml", Path("../mine/file.yaml")):
        assert read_yaml_file(path)[0][0].id == "mine/file/adam"


def test_valid_cases_are_returned_despite_invalid_ones(tmp_path):
    text = f"""
        onnxopt: 1
        suite: s
        operator: Adam
        cases:
          - {{name: a, inputs: {ADAM_INPUTS}}}
          - {{name: b, inputs: {{R: 1}}}}
          - {{name: c, inputs: {ADAM_INPUTS}, typo: 1}}
          - {{name: d, inputs: {ADAM_INPUTS}}}
    """
    cases, problems = read_text(tmp_path, text)
    assert [case.id for case in cases] == ["s/file/a", "s/file/d"]
    assert [problem.where.rpartition(":")[2] for problem in problems] == ["7", "8"]


def test_case_that_must_be_rejected_may_contradict_the_signature(tmp_path):
    text = """
        onnxopt: 1
        suite: s
        operator: Adagrad
        cases:
          - name: c
            inputs: {R: [1, 2], T: 0, X: 1, Y: 2}
            attributes: {epsilon: 1, momentum: 2, modes: [a, b], odd: [1, 2.5]}
            rejects: true
    """
    content = only_case(tmp_path, text)
    assert content.must_reject
    assert content.stored is None
    (node,) = content.model.graph.node
    assert list(node.input) == ["R", "T", "X", "Y"]
    assert list(node.output) == ["X_new", "H_new"]
    kinds = {a.name: onnx.AttributeProto.AttributeType.Name(a.type) for a in node.attribute}
    assert kinds == {"epsilon": "FLOAT", "momentum": "INT", "modes": "STRINGS", "odd": "FLOATS"}
    assert content.inputs["T"].dtype == np.int64
    assert content.inputs["Y"].dtype == np.float32


@pytest.mark.parametrize("names", [["X_new"], ["X_new", "V_new", "extra"]])
def test_a_rejected_case_may_state_the_outputs_of_its_node(tmp_path, names):
    text = f"""
        onnxopt: 1
        suite: s
        operator: Momentum
        cases:
          - name: c
            inputs: {{R: 0.1, T: 1, X: [1, 2], G: [3, 4], V: [5, 6]}}
            attributes: {{alpha: 0.9, beta: 1, mode: standard, norm_coefficient: 0}}
            rejects: true
            node_outputs: [{", ".join(names)}]
    """
    model = only_case(tmp_path, text).model
    assert list(model.graph.node[0].output) == names
    assert [output.name for output in model.graph.output] == names
    (result,) = onnxopt.run(onnxopt.load_cases(tmp_path), "numpy")
    assert result.outcome is Outcome.PASS


def test_integers_become_floats_if_the_operator_declares_floats(tmp_path):
    text = """
        onnxopt: 1
        suite: s
        cases:
          - name: c
            operator: Scaler
            domain: ai.onnx.ml
            inputs: {X: [1, 2]}
            attributes: {scale: [1, 2], odd: [1, 2]}
            rejects: true
    """
    (node,) = only_case(tmp_path, text).model.graph.node
    kinds = {a.name: onnx.AttributeProto.AttributeType.Name(a.type) for a in node.attribute}
    assert kinds == {"scale": "FLOATS", "odd": "INTS"}


@pytest.mark.parametrize(
    ("case", "inputs", "attributes"),
    [
        ("{operator: Relu, opset: 13, inputs: {X: [1.0]}, outputs: {Y: [1]}}", ["X"], {}),
        (
            "{operator: Clip, inputs: {input: [1.0], max: 3}, outputs: {output: [1.0]}}",
            ["input", "", "max"],
            {},
        ),
        (
            (
                "{operator: Concat, inputs: {inputs2: [2], inputs1: [1]}, attributes: {axis: 0}, "
                "outputs: {concat_result: [1, 2]}}"
            ),
            ["inputs1", "inputs2"],
            {"axis": 0},
        ),
        (
            (
                "{operator: Concat, inputs: {inputs_1: [2]}, attributes: {axis: 0}, "
                "outputs: {concat_result: [2]}}"
            ),
            ["inputs_1"],
            {"axis": 0},
        ),
        (
            "{operator: Max, inputs: {data_0: 1.0, data_1: 2.0}, outputs: {max: 2.0}}",
            ["data_0", "data_1"],
            {},
        ),
        (
            (
                "{operator: Constant, attributes: {value: {dtype: int4, data: [1]}}, "
                "outputs: {output: {dtype: int4, data: [1]}}}"
            ),
            [],
            {"value": 1},
        ),
        (
            (
                "{operator: Binarizer, domain: ai.onnx.ml, version: 1, attributes: {threshold: 1}, "
                "inputs: {X: [1.5]}, outputs: {Y: [1.0]}}"
            ),
            ["X"],
            {"threshold": 1.0},
        ),
        (
            (
                "{operator: Transpose, attributes: {perm: [1, 0]}, inputs: {data: [[1.5]]}, "
                "outputs: {transposed: [[1.5]]}}"
            ),
            ["data"],
            {"perm": [1, 0]},
        ),
    ],
)
def test_all_operators_of_onnx_are_supported(tmp_path, case, inputs, attributes):
    text = f"onnxopt: 1\nsuite: s\ncases: [{{name: c, {case[1:-1]}}}]"
    content = only_case(tmp_path, text)
    onnx.checker.check_model(content.model, full_check=True)
    (node,) = content.model.graph.node
    assert list(node.input) == inputs
    assert [a.name for a in node.attribute] == list(attributes)
    for attribute in node.attribute:
        if attribute.type != onnx.AttributeProto.TENSOR:
            assert onnx.helper.get_attribute_value(attribute) == attributes[attribute.name]


def test_model_imports_the_stated_opset(tmp_path):
    case = "{name: c, operator: Relu, inputs: {X: [1.0]}, outputs: {Y: [1]}}"
    text = f"onnxopt: 1\nsuite: s\nopset: 13\ncases: [{case}]"
    model = only_case(tmp_path, text).model
    assert [(item.domain, item.version) for item in model.opset_import] == [("", 13)]


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "dtypes"),
    [
        ("Add", "A: [1, 2], B: [0.5, 1]", "C: [1, 3]", ["float32", "float32", "float32"]),
        ("Add", "A: [1, 2], B: [3, 4]", "C: [4, 6]", ["int64", "int64", "int64"]),
        ("Add", "A: {dtype: double, data: 1}, B: 2", "C: 3", ["float64", "float64", "float64"]),
        ("Add", "A: 2, B: {dtype: double, data: 1}", "C: 3", ["float64", "float64", "float64"]),
        ("Gather", "data: [1.5], indices: [0]", "output: [1.5]", ["float32", "int64", "float32"]),
        ("Shape", "data: [[1.5]]", "shape: [1, 1]", ["float32", "int64"]),
        ("Sin", "input: 0", "output: 0", ["float32", "float32"]),
        ("Not", "X: [true]", "Y: [false]", ["bool", "bool"]),
        ("Identity", "input: [a]", "output: [a]", ["object", "object"]),
    ],
)
def test_element_types_follow_from_the_schema_and_from_other_inputs(
    tmp_path, operator, inputs, outputs, dtypes
):
    text = (
        f"onnxopt: 1\nsuite: s\ncases: [{{name: c, operator: {operator}, "
        f"inputs: {{{inputs}}}, outputs: {{{outputs}}}}}]"
    )
    content = only_case(tmp_path, text)
    values = [*content.inputs.values(), *content.stored.values()]
    assert [str(value.dtype) for value in values] == dtypes


def test_sequences_and_optionals_are_valid_inputs_and_outputs(tmp_path):
    content = only_case(tmp_path, identity("{sequence: [[1.5], [2, 3]]}"))
    onnx.checker.check_model(content.model, full_check=True)
    assert [part.tolist() for part in content.inputs["input"]] == [[1.5], [2.0, 3.0]]
    content = only_case(tmp_path, identity("{optional: null, dtype: float}"))
    onnx.checker.check_model(content.model, full_check=True)
    assert content.inputs["input"] is None


def test_values_of_a_model_file_have_the_names_and_types_of_its_graph(tmp_path):
    save_model(tmp_path)
    text = """
        onnxopt: 1
        suite: s
        cases: [{name: c, model: add.onnx, inputs: {a: [1, 2]}, outputs: {c: [2, 3]}}]
    """
    content = only_case(tmp_path, text)
    assert list(content.inputs) == ["a"]
    assert content.inputs["a"].dtype == np.float64
    assert content.stored["c"].dtype == np.float64
    assert read_text(tmp_path, text)[0][0].operators == ("Add",)


def test_outputs_of_a_model_with_a_formula_are_optional(tmp_path):
    adam = only_case(tmp_path, ADAM).model
    onnx.save(adam, tmp_path / "adam.onnx")
    text = (
        "onnxopt: 1\nsuite: s\noperator: Relu\n"
        f"cases: [{{name: c, model: adam.onnx, inputs: {ADAM_INPUTS}}}]"
    )
    content = only_case(tmp_path, text)
    assert content.stored is None
    assert content.model == adam


def test_error_while_data_are_made_is_an_invalid_case(tmp_path):
    random = "{random: {normal: {scale: 1e39}, seed: 0}, shape: [3]}"
    cases, problems = read_text(tmp_path, identity(random, "[1.0, 2.0, 3.0]"))
    assert problems == []
    with pytest.raises(InvalidCase) as caught:
        cases[0].load()
    assert "file.yaml:6: case c: inputs.input.random: found a draw of" in str(caught.value)


def test_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "file.yaml").write_text(ADAM, encoding="utf-8-sig")
    cases, problems = read_yaml_file(tmp_path / "file.yaml")
    assert len(cases) == 1
    assert problems == []


def test_the_schema_is_valid_and_describes_every_field():
    schema = packaged_schema("onnxopt_cli.cases.yaml")
    jsonschema_rs.meta.validate(schema)

    def fields(part):
        for name, field in part.get("properties", {}).items():
            yield name, field
            yield from fields(field)

    definitions = schema["$defs"]
    descriptions = list(fields(schema))
    for part in definitions.values():
        descriptions += fields(part)
    assert len(descriptions) > 40
    for name, field in descriptions:
        *_, last = field.get("$ref", "").split("/")
        target = definitions.get(last) or definitions["limit"].get(last, {})
        hover = {**target, **field}
        if name not in ("mean", "scale", "low", "high"):
            assert hover.get("title"), name
            assert hover.get("description"), name


def test_schema_accepts_and_rejects_files_without_the_reader():
    schema = json.loads(json.dumps(packaged_schema("onnxopt_cli.cases.yaml")))
    validator = jsonschema_rs.validator_for(schema)
    case = {"name": "c", "inputs": {"X": [[1, 2.5], [3, 4]]}}
    assert validator.is_valid({"onnxopt": 1, "cases": [case]})
    assert not validator.is_valid({"onnxopt": 1, "cases": [{**case, "input": {}}]})


@pytest.mark.parametrize(
    ("notation", "kind"),
    [("{type: INTS, data: [50]}", "INTS"), ("{type: FLOAT, data: 50}", "FLOAT"), ("50", "FLOATS")],
)
def test_case_that_must_be_rejected_may_state_attribute_types(tmp_path, notation, kind):
    (tmp_path / "c.yaml").write_text(f"""\
onnxopt: 1
suite: mine
operator: MagnitudePrune
cases:
  - name: refused
    attributes: {{percent: {notation}}}
    inputs: {{W: [1.0]}}
    rejects: true
""")
    (case,), problems = read_yaml_file(tmp_path / "c.yaml")
    (attribute,) = case.load().model.graph.node[0].attribute
    assert not problems
    assert onnx.AttributeProto.AttributeType.Name(attribute.type) == kind


@pytest.mark.parametrize(
    ("notation", "rejects", "message"),
    [
        ("{type: INT, data: 50.5}", "true", "attributes.percent.data: found 50.5, expected an int"),
        ("{type: FLOAT, data: [1, 2]}", "true", "data: found a list of 2, expected a single value"),
        ("{type: DOUBLE, data: 50}", "true", 'percent.type: found "DOUBLE", expected FLOAT'),
        ("{type: FLOAT}", "true", "attributes.percent: found no data"),
        ("{type: FLOATS, data: 50}", "false", "found a mapping with type, data, expected a number"),
    ],
)
def test_an_invalid_type_of_an_attribute_is_reported(tmp_path, notation, rejects, message):
    (tmp_path / "c.yaml").write_text(f"""\
onnxopt: 1
suite: mine
operator: MagnitudePrune
cases:
  - name: refused
    attributes: {{percent: {notation}}}
    inputs: {{W: [1.0]}}
    rejects: {rejects}
""")
    cases, (problem,) = read_yaml_file(tmp_path / "c.yaml")
    assert not cases
    assert message in str(problem)
