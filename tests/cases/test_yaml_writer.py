"""Written case files can be read, and their values are the written values bit for bit."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from yaml_files import read_text

from onnxopt_cli.cases.tensors.declared import RandomTensor, made
from onnxopt_cli.cases.yaml.case_fields import declare_value
from onnxopt_cli.cases.yaml.case_writer import (
    CaseTemplate,
    number_text,
    tensor_flow,
    text_token,
    yaml_text,
)
from onnxopt_cli.cases.yaml.yaml_syntax import parse_yaml
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.operators.registry import registry

F32 = np.dtype(np.float32)
ADAGRAD = registry().named("Adagrad")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def array(values, dtype="f4"):
    return np.array(values, dtype)


def adagrad_inputs(**changes):
    inputs = {"R": array(0.1), "T": array(0, "i8"), "X": array(1), "G": array(2), "H": array(3)}
    return inputs | changes


def written(*cases, **options):
    return yaml_text(cases, suite="s", **options)


@st.composite
def arrays(draw):
    """Draw arrays of all element types with any bits, except that all NaNs are alike."""
    name = draw(st.sampled_from([name for name in DTYPES if name != "string"]))
    dtype = DTYPES[name]
    shape = draw(SHAPES)
    size = math.prod(shape) * dtype.itemsize
    if name == "bool":
        return draw(hnp.arrays(bool, shape))
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    if name.startswith("complex"):
        parts = data.reshape(-1).view(data.real.dtype)
        parts = np.where(np.isnan(parts), parts.dtype.type("nan"), parts)
        return parts.view(dtype).reshape(shape)
    if "int" in name:
        # A byte may be invalid for a type with fewer than 8 bits, so the bytes are converted.
        return data if dtype.kind in "iu" else data.astype(np.int8).astype(dtype)
    if name.startswith(("float4_", "float6_")):
        return data.astype(np.float32).astype(dtype)
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(data.astype(float)), dtype.type("nan"), data)


def read_back(tokens, default):
    root, errors = parse_yaml("\n  ".join(tokens))
    assert errors == []
    return made(declare_value(root, Path(), lambda _kinds: default))


@given(arrays(), st.sampled_from([F32, np.dtype(np.float64)]))
def test_arrays_of_all_dtypes_read_back_bit_for_bit(expected, default):
    actual = read_back(tensor_flow(expected, default), default)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


@given(hnp.arrays(object, SHAPES, elements=TEXT))
def test_text_reads_back_with_any_line_breaks(expected):
    actual = read_back(tensor_flow(expected, expected.dtype), expected.dtype)
    assert actual.shape == expected.shape
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "f4", "0.1"),
        (float(np.float32(0.1)), "f4", "0.1"),
        (float(np.float32(0.1)), "f8", "0.10000000149011612"),
        (1.0, "f4", "1.0"),
        (1e-7, "f8", "1e-7"),
        (1.5e20, "f8", "1.5e20"),
        (123456.0, "f8", "123456.0"),
        (-0.0, "f8", "-0.0"),
        (float(np.finfo("f4").max), "f4", "3.4028235e38"),
        (float(np.finfo("f4").smallest_subnormal), "f4", "1e-45"),
        (5e-324, "f8", "5e-324"),
        (float(ml_dtypes.bfloat16(0.1)), ml_dtypes.bfloat16, "0.1"),
        (math.nan, "f8", ".nan"),
        (-math.inf, "f8", "-.inf"),
        (7, "f8", "7"),
    ],
)
def test_numbers_have_the_fewest_digits_that_read_back(value, dtype, text):
    assert number_text(value, np.dtype(dtype)) == text


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("plain words", "plain words"),
        ("true", '"true"'),
        ("1", '"1"'),
        ("a, b", '"a, b"'),
        ("a: b", '"a: b"'),
        ("a # b", '"a # b"'),
        (" a", '" a"'),
        ("", '""'),
        ("*a", '"*a"'),
        ("\x1b\u202e", '"\\U0000001b\\U0000202e"'),
        ('"\\\n', '"\\"\\\\\\n"'),
    ],
)
def test_text_is_quoted_only_if_necessary(text, token):
    assert text_token(text) == token


def test_written_file_is_readable():
    case = CaseTemplate(
        name="first",
        operator=ADAGRAD,
        inputs=adagrad_inputs(X=array([1.2, 2.8]), G=array([-0.94, -2.5]), H=array([0.1, 1e-7])),
        attributes={"norm_coefficient": 0.001, "epsilon": 1e-5},
        outputs={"X_new": array([1, 2]), "H_new": array([3, math.nan])},
        about="One tensor, first iteration: nothing decays.",
        source='documentation, example "adagrad"',
        tags=("published", "small"),
        notes="Printed as\nin the source.",
    )
    random = RandomTensor("normal", 7, (3,), np.dtype("f8"), {"mean": 1.0})
    second = CaseTemplate("second", ADAGRAD, adagrad_inputs(X=random, G=random))

    text = written(case, second, notes="Made by a program.", about="Two cases.")

    assert (
        text
        == """\
# Made by a program.
onnxopt: 1
suite: s
operator: Adagrad
about: Two cases.
cases:
  # Printed as
  # in the source.
  - name: first
    about: "One tensor, first iteration: nothing decays."
    source: "documentation, example \\"adagrad\\""
    tags: [published, small]
    attributes: {norm_coefficient: 0.001, epsilon: 1e-5}
    inputs:
      R: 0.1
      T: 0
      X: [1.2, 2.8]
      G: [-0.94, -2.5]
      H: [0.1, 1e-7]
    outputs:
      X_new: [1.0, 2.0]
      H_new: [3.0, .nan]

  - name: second
    inputs:
      R: 0.1
      T: 0
      X: {random: {normal: {mean: 1.0}, seed: 7}, dtype: float64, shape: [3]}
      G: {random: {normal: {mean: 1.0}, seed: 7}, dtype: float64, shape: [3]}
      H: 3.0
"""
    )


def test_written_cases_read_back_as_equal_cases(tmp_path):
    values = np.random.RandomState(3).standard_normal((4, 30)).astype(np.float32)
    random = RandomTensor("lognormal", 9, (4, 30), F32, {"scale": 2.0})
    case = CaseTemplate(
        name="c",
        operator=ADAGRAD,
        inputs=adagrad_inputs(
            R=array([0.1], "f8"), X=values.astype("f8"), G=values, H=random, T=array([3], "i8")
        ),
        attributes={"epsilon": np.float32(0.1), "decay_factor": 1},
        outputs={"X_new": values.astype("f8"), "H_new": values},
        about="A long sentence, " * 20 + "ends: here.",
        source="two  spaces keep " * 10,
        tags=("a",),
    )

    text = written(case)
    (actual,), problems = read_text(tmp_path, text)
    content = actual.load()

    assert problems == []
    assert actual.id == "s/file/c"
    assert actual.about == case.about
    assert actual.source == case.source.strip()
    assert actual.tags == ("a",)
    assert content.model.graph.node[0].attribute[1].f == np.float32(0.1)
    for name, tensor in case.inputs.items():
        expected = tensor.make() if isinstance(tensor, RandomTensor) else tensor
        assert content.inputs[name].tobytes() == expected.tobytes()
        assert content.inputs[name].dtype == expected.dtype
    for name, tensor in case.outputs.items():
        assert content.stored[name].tobytes() == tensor.tobytes()
        assert content.stored[name].dtype == tensor.dtype
    assert max(len(line) for line in text.splitlines() if "spaces" not in line) < 100


def test_dtype_is_written_only_if_it_differs_from_the_default():
    double = array([0.5], "f8")
    case = CaseTemplate(
        "c", ADAGRAD, adagrad_inputs(X=double), outputs={"X_new": double, "H_new": array([0.5])}
    )
    text = written(case)
    assert text.count("dtype") == 1
    assert "X: {dtype: float64, data: [0.5]}" in text
    assert "X_new: [0.5]" in text


def test_case_that_must_be_rejected_reads_back(tmp_path):
    case = CaseTemplate("c", ADAGRAD, {"R": array(1), "odd": array([1], "i4")}, rejects=True)
    (actual,), problems = read_text(tmp_path, written(case))
    assert problems == []
    assert actual.load().must_reject
    assert actual.load().inputs["odd"].dtype == np.int32
