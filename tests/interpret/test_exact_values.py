"""Exact results by mpmath confirm verdicts where conditioned and ONNX tolerances disagree."""

import json
import runpy
from collections import defaultdict

import pytest
from places import REPOSITORY

from onnxopt_cli.cases.onnx.corpora import corpus
from onnxopt_cli.oracle.distributions import drawn
from onnxopt_cli.oracle.estimate.condition_estimate import condition

RECORDED = json.loads((REPOSITORY / "scripts" / "disputed_verdicts.json").read_text())


@pytest.fixture(scope="module")
def check():
    return runpy.run_path(str(REPOSITORY / "scripts" / "disputed_verdicts.py"))["check"]


def test_mpmath_confirms_each_verdict(check, capsys):
    assert check() == 0
    assert f"{len(RECORDED['rows'])} outputs, 0 verdicts" in capsys.readouterr().out


def test_mpmath_confirms_no_inverted_verdict(check, tmp_path):
    inverted = {"pass": "fail", "fail": "pass"}
    rows = [row | {"verdict": inverted[row["verdict"]]} for row in RECORDED["rows"]]
    path = tmp_path / "inverted.json"
    path.write_text(json.dumps(RECORDED | {"rows": rows}))
    assert check(path) == len(rows)


@pytest.mark.slow
def test_recorded_verdicts_are_reproduced():
    rows = defaultdict(list)
    for row in RECORDED["rows"]:
        rows[row["case"]].append(row)
    for case in corpus("onnx-node")[0]:
        if case.id not in rows:
            continue
        content = case.load()
        if drawn(content.model, content.inputs):
            continue
        names = [output.name for output in content.model.graph.output]
        derived_outputs = condition(content.model, content.inputs)
        for row in rows[case.id]:
            derived_output = derived_outputs[names.index(row["output"])]
            accepted = [
                _accepts(derived_output, tuple(index), element)
                for index, element in row["elements"]
            ]
            assert all(accepted) == (row["verdict"] == "pass"), row


def _accepts(derived_output, index, element):
    value = float.fromhex(element) if isinstance(element, str) else element
    pairs = derived_output.right
    near = (abs(float(expected[index]) - value) <= limit[index] for expected, limit in pairs)
    return any(near)
