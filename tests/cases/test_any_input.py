"""An error in reading a case makes only that case invalid; other cases run."""

from __future__ import annotations

import errno
import os
import random
import struct
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_directories import identity, make_directory, tensor, tensor_type
from places import REPOSITORY

from onnxopt_cli.errors import InvalidCase, OnnxoptError
from onnxopt_cli.suites.collect import collect

sys.path.append(str(REPOSITORY / "scripts"))
from hostile_files import hostile_directories, hostile_yaml, write_seed
from mutate_files import mutate

CASE = """\
  - name: {name}
    operator: Momentum
    attributes: {{alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}}
    inputs: {{R: {rate}, T: 1, X: {x}, G: [0.5, -0.5], V: [0.25, 0.0]}}
"""
RIGHT = CASE.format(name="right", rate=0.1, x="[1.0, 2.0]")
RANDOM = "{random: {normal: {}, seed: 1}, shape: [2]}"
HEAD = "onnxopt: 1\nsuite: s\ncases:\n"
ERRORS = [
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    OverflowError("int too large to convert to float"),
    OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)),
    OSError(errno.EIO, os.strerror(errno.EIO)),
    OSError(errno.ELOOP, os.strerror(errno.ELOOP)),
    ValueError("Exceeds the limit (4300 digits) for integer string conversion"),
    TypeError("an integer is required"),
    AssertionError(),
    KeyError("\x1b[31m"),
    ZeroDivisionError("division by zero"),
]


def raising(error):
    def call(*_given, **_named):
        raise error

    return call


def requires_one_pass_and_an_invalid_case(answer, name):
    assert answer.code == 2
    output = " ".join(answer.text.replace("│", " ").split())
    assert name in output
    assert "\x1b[31m" not in output
    assert "1 pass" in output


@pytest.mark.parametrize("error", ERRORS, ids=lambda item: type(item).__name__)
@pytest.mark.parametrize(
    ("raises", "x"),
    [
        ("onnxopt_cli.cases.yaml.case_fields.declare_file", "{file: x.npy}"),
        ("onnxopt_cli.cases.tensors.declared.RandomTensor.make", RANDOM),
    ],
    ids=["while the file is read", "while the case is loaded"],
)
def test_exception_in_one_case_makes_only_that_case_invalid(
    workplace, onnxopt, monkeypatch, error, raises, x
):
    np.save(workplace / "x.npy", np.float32([1, 2]))
    (workplace / "some.yaml").write_text(HEAD + CASE.format(name="odd", rate=0.1, x=x) + RIGHT)
    monkeypatch.setattr(raises, raising(error))
    requires_one_pass_and_an_invalid_case(onnxopt("run", "some.yaml"), "odd")


@pytest.mark.parametrize("error", ERRORS, ids=lambda item: type(item).__name__)
def test_exception_in_one_directory_makes_only_that_case_invalid(
    workplace, onnxopt, monkeypatch, error
):
    from onnxopt_cli.cases.onnx import data_set

    value = tensor(np.float32([1, 2]))
    for name in ("odd", "right"):
        make_directory(workplace / "some" / name, identity({"x": tensor_type()}), [value], [value])
    read_model = data_set.read_model

    def odd(path, **how):
        if "odd" in str(path):
            raise error
        return read_model(path, **how)

    monkeypatch.setattr(data_set, "read_model", odd)
    answer = onnxopt("run", "some", "--isolation", "none", "-b", "onnx-reference")
    requires_one_pass_and_an_invalid_case(answer, "some/odd/0")


def npy(header: str) -> bytes:
    line = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + b"\0\0\x80?"


@pytest.mark.parametrize(
    "given",
    [
        {"rate": "0x" + "f" * 257},
        {"rate": "-0x" + "f" * 297},
        {"rate": "9" * 4000},
        {"x": "{file: %s.npy}" % ("x" * 5000)},
        {"x": "{file: true.npy}"},
        {"x": "{file: float.npy}"},
        {"x": "{file: huge.npy}"},
        {"name": "n" * 5000},
    ],
    ids=["hex", "negative hex", "digits", "name", "True", "float", "huge", "own name"],
)
def test_case_with_unusual_numbers_names_or_arrays_alone_is_invalid(workplace, onnxopt, given):
    (workplace / "true.npy").write_bytes(
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }")
    )
    (workplace / "float.npy").write_bytes(
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,), }")
    )
    (workplace / "huge.npy").write_bytes(
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }" % ("9" * 40))
    )
    fields = {"name": "odd", "rate": 0.1, "x": "[1.0, 2.0]", **given}
    (workplace / "some.yaml").write_text(HEAD + CASE.format(**fields) + RIGHT)
    answer = onnxopt("run", "some.yaml")
    assert answer.code == 2
    assert "1 pass" in answer.out
    assert "some.yaml:4" in answer.err or "some.yaml:7" in answer.err


def test_invalid_file_name_is_reported(onnxopt):
    answer = onnxopt("run", "x" * 5000)
    assert answer.code == 2
    assert "File name too long" in answer.err
    assert len(answer.err) < 500


@pytest.fixture(scope="module")
def hostile_seeds():
    return [*hostile_yaml(), *hostile_directories()]


@given(st.integers(0, 2**32))
def test_damaged_files_make_only_their_case_invalid(tmp_path_factory, hostile_seeds, number):
    generator = random.Random(number)  # noqa: S311 - must repeat
    files = mutate(generator.choice(hostile_seeds), generator.choice(hostile_seeds), generator)
    folder = tmp_path_factory.mktemp("damaged")
    write_seed(folder, files)
    try:
        collected = collect([str(folder)], memory=64 << 20)
    except OnnxoptError:
        return
    for case in collected.cases:
        with suppress(InvalidCase):
            case.load()
