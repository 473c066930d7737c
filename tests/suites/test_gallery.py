"""The gallery of defects: its rows, and the suite that shows the defects."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from gallery_backends import expected_outputs, gallery_oracle, gallery_rows
from places import REPOSITORY

import onnxopt_cli
from onnxopt_cli.suites.gallery.gallery_suite import own_cases, runtimes, targets_for

PLUGIN = REPOSITORY / "tests" / "suites" / "gallery_backends.py"
REFERENCE_ROWS = [
    f"gallery/onnx-reference/{row.name}"
    for runtime in runtimes()
    if runtime.adapter == "onnx-reference"
    for row in runtime.defects
]
SHOWN_BY = {"onnx-node", "conformance", "operators", "fuzz", "locate", "gallery"}


def test_gallery_has_hundreds_of_rows():
    assert sum(len(runtime.defects) for runtime in runtimes()) >= 200
    assert len(runtimes()) >= 20


@pytest.mark.parametrize("runtime", runtimes(), ids=lambda runtime: runtime.adapter)
def test_rows_are_complete(runtime):
    names = Counter(row.name for row in runtime.defects)
    assert max(names.values()) == 1
    for row in runtime.defects:
        assert row.defect.endswith("."), row
        assert row.name.startswith(f"{row.operator.lower()}_"), row
        assert isinstance(row.wrong, dict) == isinstance(row.right, dict), row
        assert str(row.wrong) != str(row.right), row
        assert set(row.found_by) <= SHOWN_BY, row
        assert "http" in row.upstream or row.upstream in {"not searched", "searched, not found"}, (
            row
        )


@pytest.mark.parametrize("runtime", runtimes(), ids=lambda runtime: runtime.adapter)
def test_right_values_are_published_or_computed_independently(runtime):
    for row, case in gallery_rows():
        if row not in runtime.defects:
            continue
        problem = case.load()
        assert (problem.stored is None) == row.case.startswith("conformance/"), row
        if problem.must_reject:
            assert row.right == {"text": "an error"}, row
            continue
        right = row.observe(expected_outputs(problem)[row.output])
        if right is None:
            assert "text" in row.right, row
        elif isinstance(right, float):
            same = math.isnan(right) and math.isnan(row.right)
            assert same or math.isclose(right, row.right, rel_tol=1e-6), row
        else:
            assert right == row.right, row


def test_outputs_of_own_cases_are_right():
    # The cases are not parameters of the test, because every process that collects tests would then
    # read the cases.
    for case in own_cases():
        assert gallery_oracle.case_difference(case) <= 1.0, case.id


def test_oracle_rejects_a_wrong_output():
    problem = own_cases()[0].load()
    (right,) = gallery_oracle.right_outputs(problem.model, problem.inputs).values()
    wrong = right.astype(np.float32)
    wrong.flat[0] = np.nextafter(wrong.flat[0], np.float32(9), dtype=np.float32) + np.float32(1e-6)
    assert gallery_oracle.greatest_difference(right, wrong) > 1


def test_backend_runs_the_rows_of_its_runtime(onnxopt):
    answer = onnxopt("run", "gallery", "-b", "onnx-reference", "-q", "--explain-time", "0")
    assert answer.code == 1
    assert all(f" {name}\n" in answer.out for name in REFERENCE_ROWS)
    assert answer.out.count("gallery/") == len(REFERENCE_ROWS)


def test_other_backend_runs_all_rows(onnxopt):
    answer = onnxopt("run", "gallery", "-b", f"python:{PLUGIN}:Right", "--operator", "EyeLike")
    assert answer.code == 0
    assert f"1 of {len(gallery_rows())} cases from gallery" in answer.out


def test_rows_of_another_runtime_can_be_named(onnxopt):
    assert onnxopt("run", "gallery/onnxruntime-ggml", "-b", "numpy").code == 0
    answer = onnxopt("run", "gallery/none", "-b", "numpy")
    assert answer.code == 2
    assert "the suite gallery has no case gallery/none" in answer.err


def test_list_names_all_rows(onnxopt):
    listed = onnxopt("list", "gallery").out.split()
    assert listed == [case.id for _, case in gallery_rows()]
    assert onnxopt("list", "gallery/onnx-reference").out.split() == REFERENCE_ROWS


@pytest.mark.parametrize(
    ("target", "backends", "expected"),
    [
        ("gallery", ["adapter:tract"], ["gallery/tract"]),
        ("gallery@1", ["adapter:tract@0.23.8,threads=2"], ["gallery@1/tract"]),
        ("gallery", ["adapter:tvm", "numpy", "tinygrad"], ["gallery/tvm", "gallery/tinygrad"]),
        ("gallery", ["adapter:./tract.py"], ["gallery"]),
        ("gallery", ["python:my_backend.py:Backend"], ["gallery"]),
        ("gallery/opencv", ["adapter:tract"], ["gallery/opencv"]),
        ("spec", ["adapter:tract"], ["spec"]),
    ],
)
def test_targets_follow_from_backends(target, backends, expected):
    assert sorted(targets_for([target], backends)) == sorted(expected)


# Cases for which the plugin returns no outputs, because they are random or must be rejected.
NOT_RETURNED = {"dropout_training_mode", "pad_negative", "adagrad_enlarging_operands"}
# Cases whose published outputs are rounded to four digits.
ROUNDED = {"averagepool_ceil_window_in_padding", "gridsample_bicubic"}


@pytest.mark.parametrize(
    ("backend", "outcome", "exceptions"),
    [("Right", "pass", NOT_RETURNED | ROUNDED), ("Defective", "fail", NOT_RETURNED)],
)
def test_cases_distinguish_right_from_wrong(backend, outcome, exceptions):
    cases = list({row.case: case for row, case in reversed(gallery_rows())}.values())
    isolation = onnxopt_cli.Execution(isolation=onnxopt_cli.Isolation.NONE)
    results = onnxopt_cli.run(cases, f"python:{PLUGIN}:{backend}", execution=isolation)
    different = {result.case: result.outcome for result in results if result.outcome != outcome}
    assert {case.rpartition("/")[2] for case in different} == exceptions, different


def test_corrected_backend_passes(onnxopt):
    rows = ("run", "gallery/onnx-reference", "-k", "lrn", "--explain-time", "0")
    assert onnxopt(*rows, "-b", "onnx-reference").code == 1
    assert onnxopt(*rows, "-b", f"python:{PLUGIN}:Right").code == 0


@pytest.mark.parametrize("runtime", runtimes(), ids=lambda runtime: runtime.adapter)
def test_versions_are_those_that_the_adapters_pin(runtime):
    file = runtime.adapter.replace("-", "_") + ".py"
    adapter = REPOSITORY / "onnxopt_cli" / "adapters" / file
    pin = f'"{runtime.distribution}=={runtime.version}"'
    assert pin.lower() in adapter.read_text()


def test_document_is_up_to_date(monkeypatch, tmp_path, capsys):
    import write_gallery_document

    assert write_gallery_document.main(["--check"]) == 0
    monkeypatch.setattr(write_gallery_document, "DOCUMENT", tmp_path / "gallery.md")
    assert write_gallery_document.main(["--check"]) == 1
    assert "is not up to date" in capsys.readouterr().out
    assert write_gallery_document.main([]) == 0
    assert write_gallery_document.main(["--check"]) == 0


def reference_with_wrong_value(wrong):
    """Return the runtime onnx-reference with one row: that of LRN, with another wrong value."""
    (runtime,) = (runtime for runtime in runtimes() if runtime.adapter == "onnx-reference")
    (row,) = (row for row in runtime.defects if row.operator == "LRN")
    return replace(runtime, defects=(replace(row, wrong=wrong),))


@pytest.mark.parametrize(
    ("wrong", "backend", "state"),
    [
        (4.0, "onnx-reference", "reproduced"),
        pytest.param(4.2, "onnx-reference", "reproduced", marks=pytest.mark.slow),
        pytest.param(3.0, "onnx-reference", "different", marks=pytest.mark.slow),
        (4.0, f"python:{PLUGIN}:Right", "fixed"),
        (4.0, f"python:{PLUGIN}:Unimplemented", "different"),
    ],
)
def test_check_states_whether_a_defect_is_reproduced(wrong, backend, state):
    from check_gallery import check_runtime, lines

    runtime = reference_with_wrong_value(wrong)
    version, checked = check_runtime(runtime, backend)
    (line,) = lines(runtime, version, checked)
    assert line.startswith(state)
