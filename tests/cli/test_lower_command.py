"""The command ``onnxopt lower`` writes a complete model file, or no file if an error occurs."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from lowered_models import CALLING, HEADER, VALUES, momentum, parsed
from onnx import numpy_helper, parser
from runtimes import run_reference

from onnxopt_cli.interpret.lower.lower_model import formula_operators

TEXT = f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y, W = MOMENTUM (R, T, X, G, V) }}"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(parsed(TEXT), path)
    return path


def test_lowered_model_is_written_with_a_summary(onnxopt, source, tmp_path):
    target = tmp_path / "lowered.onnx"
    answer = onnxopt("lower", source, "-o", target)
    model = onnx.load(target)
    assert answer.code == 0
    assert answer.out == ""
    nodes = len(model.graph.node)
    assert answer.err == f"lowered 1 node (Momentum 1) with {nodes} primitive nodes, opset 15\n"
    assert not formula_operators(model)
    np.testing.assert_array_equal(run_reference(model, VALUES)[0], momentum(*VALUES)[0])


def test_inlined_function_counts_once_for_each_call(onnxopt, tmp_path):
    onnx.save(parsed(CALLING), tmp_path / "model.onnx")
    answer = onnxopt("lower", tmp_path / "model.onnx", "-o", tmp_path / "lowered.onnx")
    assert answer.err.startswith("lowered 2 nodes (Momentum 2) with ")


def test_model_without_operators_to_lower_is_written_unchanged(onnxopt, tmp_path):
    model = parsed(f"{HEADER} g (INPUTS) => (float[2] Y) {{ Y = Neg (X) }}")
    onnx.save(model, tmp_path / "model.onnx")
    answer = onnxopt("lower", tmp_path / "model.onnx", "-o", tmp_path / "lowered.onnx")
    assert answer.code == 0
    assert answer.err.startswith("nothing to lower")
    assert onnx.load(tmp_path / "lowered.onnx") == model


def test_external_data_are_stored_in_the_lowered_model(onnxopt, tmp_path):
    model = parsed(TEXT)
    del model.graph.input[4]
    model.graph.initializer.append(numpy_helper.from_array(VALUES[4], "V"))
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "lowered.onnx"
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    answer = onnxopt("lower", tmp_path / "model.onnx", "-o", target)
    assert answer.code == 0
    assert [path.name for path in target.parent.iterdir()] == ["lowered.onnx"]
    got = run_reference(onnx.load(target), VALUES[:4])[0]
    np.testing.assert_array_equal(got, momentum(*VALUES)[0])


@pytest.mark.parametrize("content", [None, b"", b"no model", b"\x08\x07"])
def test_file_that_is_not_a_model_is_named(onnxopt, tmp_path, content):
    source, target = tmp_path / "model.onnx", tmp_path / "lowered.onnx"
    if content is not None:
        source.write_bytes(content)
    answer = onnxopt("lower", source, "-o", target)
    assert answer.code == 2
    assert str(source) in answer.err
    assert not target.exists()


def test_model_that_onnx_rejects_is_rejected(onnxopt, source, tmp_path):
    model = onnx.load(source)
    model.graph.node[0].input[2] = "nowhere"
    onnx.save(model, source)
    answer = onnxopt("lower", source, "-o", tmp_path / "lowered.onnx")
    assert answer.code == 2
    assert f"{source}: does not pass onnx's check" in answer.err
    assert "nowhere" in answer.err


def test_exponentially_growing_functions_are_rejected_at_once(onnxopt, tmp_path):
    levels = "".join(
        f'<domain: "f", opset_import: ["" : 15, "f" : 1]> f{level} (a) => (b) '
        f"{{ c = f.f{level + 1} (a) b = f.f{level + 1} (c) }} "
        for level in range(40)
    )
    last = '<domain: "f", opset_import: ["" : 15]> f40 (a) => (b) { b = Neg (a) }'
    header = '<ir_version: 8, opset_import: ["" : 15, "f" : 1]>'
    main = "g (float[2] X) => (float[2] Y) { Y = f.f0 (X) }"
    model = parser.parse_model(f"{header} {main} {levels} {last}")
    onnx.save(model, tmp_path / "model.onnx")
    answer = onnxopt("lower", tmp_path / "model.onnx", "-o", tmp_path / "lowered.onnx")
    assert answer.code == 2
    assert f"the model's functions amount to {2**40} nodes once inlined" in answer.err


def test_node_that_cannot_be_lowered_leaves_no_file(onnxopt, source, tmp_path):
    model = onnx.load(source)
    model.graph.node[0].name = "red\x1b[31m"
    model.graph.node[0].attribute[2].s = b"bogus"
    onnx.save(model, source)
    answer = onnxopt("lower", source, "-o", tmp_path / "lowered.onnx")
    assert answer.code == 2
    assert f"{source}: node red\\x1b[31m: Momentum: attribute mode is 'bogus'" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("make", ["itself", "link", "hard link", "pipe", "folder", "no folders"])
def test_output_that_must_not_be_replaced_is_rejected(onnxopt, source, tmp_path, make):
    target = tmp_path / "lowered.onnx"
    if make == "itself":
        target = source
    elif make == "link":
        target.symlink_to(source)
    elif make == "hard link":
        target.hardlink_to(source)
    elif make == "pipe":
        os.mkfifo(target)
    elif make == "folder":
        target.mkdir()
    else:
        target = tmp_path / "missing" / "folder" / "lowered.onnx"
    before = source.read_bytes()
    names = sorted(tmp_path.iterdir())
    answer = onnxopt("lower", source, "-o", target)
    assert answer.code == 2
    assert source.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == names
    assert make != "pipe" or target.is_fifo()


def test_earlier_output_is_replaced_through_a_link(onnxopt, source, tmp_path):
    earlier, link = tmp_path / "earlier.onnx", tmp_path / "link.onnx"
    earlier.write_bytes(b"earlier")
    link.symlink_to(earlier)
    assert onnxopt("lower", source, "-o", link).code == 0
    assert link.is_symlink()
    assert not formula_operators(onnx.load(earlier))


def test_usage_is_shown_without_an_output(onnxopt, source):
    answer = onnxopt("lower", source)
    assert answer.code == 2
    assert "--output" in answer.err
