"""Of outputs that ours and ONNX's tolerance judge otherwise mpmath says who is right."""

import json
import runpy
from collections import defaultdict

import pytest
from places import REPOSITORY

from onnxopt_cli.cases.onnx.corpora import corpus
from onnxopt_cli.readings.conditioned.conditioned import condition
from onnxopt_cli.readings.conditioned.distributions import drawn

RECORDED = json.loads((REPOSITORY / "scripts" / "verdicts.json").read_text())


@pytest.fixture(scope="module")
def decide():
    return runpy.run_path(str(REPOSITORY / "scripts" / "exact_by_mpmath.py"))["main"]


def test_mpmath_bears_out_each_verdict_of_ours(decide, capsys):
    assert decide() == 0
    assert f"{len(RECORDED['rows'])} outputs, 0 verdicts" in capsys.readouterr().out


def test_mpmath_bears_out_no_verdict_that_is_turned_round(decide, tmp_path):
    turned = {"pass": "fail", "fail": "pass"}
    rows = [row | {"ours": turned[row["ours"]]} for row in RECORDED["rows"]]
    (tmp_path / "turned.json").write_text(json.dumps(RECORDED | {"rows": rows}))
    assert decide(str(tmp_path / "turned.json")) == len(rows)


@pytest.mark.slow
def test_the_recorded_verdicts_are_those_of_today():
    rows = defaultdict(list)
    for row in RECORDED["rows"]:
        rows[row["case"]].append(row)
    for case in corpus("onnx-node")[0]:
        if case.id not in rows:
            continue
        content = case.read()
        if drawn(content.model, content.inputs):
            continue
        names = [output.name for output in content.model.graph.output]
        found = condition(content.model, content.inputs)
        for row in rows[case.id]:
            right = found[names.index(row["output"])]
            passes = [_right(right, tuple(index), came) for index, came in row["came"]]
            assert all(passes) == (row["ours"] == "pass"), row


def _right(judgement, index, came):
    value = float.fromhex(came) if isinstance(came, str) else came
    pairs = judgement.right
    near = (abs(float(expected[index]) - value) <= limit[index] for expected, limit in pairs)
    return any(near)
