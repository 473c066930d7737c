"""``onnxopt show`` of operators without a formula."""

from __future__ import annotations

import onnx
import pytest

from onnxopt_cli.oracle.operator_judgement import operator_judgement


def words(text):
    return " ".join(text.split())


def test_page_has_signature_judgement_and_mutants(onnxopt):
    answer = onnxopt("show", "Softmax")
    assert answer.code == 0
    text = words(answer.out)
    assert "input T: bfloat16, float16, float32, float64" in text
    assert "axis int default -1 version 11: int default 1" in text
    assert "kind divides by a sum of exponentials" in text
    assert "the function body that ONNX publishes" in text
    assert "Mutants by kind attribute ignored 1" in text
    assert "online The largest value and the sum are updated in one pass." in text


def test_corrections_and_contested_questions_are_stated(onnxopt):
    assert "correction Return the grid in the type of theta." in words(
        onnxopt("show", "AffineGrid").out
    )
    assert "contested " in words(onnxopt("show", "Clip").out)


def test_moved_data_must_be_exact(onnxopt):
    assert "unit 0: outputs must be exact" in words(onnxopt("show", "Gather").out)


def test_faster_replacements_of_the_reference_are_not_called_corrections(onnxopt):
    answer = onnxopt("show", "MatMul")
    assert answer.code == 0
    assert "correction" not in answer.out


@pytest.mark.slow
def test_every_operator_of_onnx_has_a_page(onnxopt):
    names = {schema.name for schema in onnx.defs.get_all_schemas()}
    # Every ninth operator, to keep the test short.
    for name in sorted(names)[::9]:
        answer = onnxopt("show", name)
        assert answer.code == 0, name
        assert name in answer.out


def test_the_judgement_of_every_version_of_every_operator_is_described():
    for schema in onnx.defs.get_all_schemas_with_history():
        judgement = operator_judgement(schema.domain, schema.name, schema.since_version)
        assert judgement.kind, schema
        assert judgement.unit, schema


def test_unknown_operator_is_reported_with_a_similar_name(onnxopt):
    answer = onnxopt("show", "Softmx")
    assert answer.code == 2
    assert "did you mean Softmax?" in answer.err
