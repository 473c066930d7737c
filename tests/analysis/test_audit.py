"""``onnxopt audit``: suites reject mutants, but not reformulations."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import contextmanager

import pytest
from places import REPOSITORY

from onnxopt_cli import UsageError, audit
from onnxopt_cli.cases.case import Case
from onnxopt_cli.core.result import Location

INCONCLUSIVE = """\
onnxopt: 1
suite: weak
operator: AdmmPenalty
cases:
  - name: first
    attributes: {rho: 0.5}
    inputs: {loss: 1.0, W: [1.0], Z: [0.5], U: [0.25]}
  - name: again
    attributes: {rho: 0.5}
    inputs: {loss: 1.0, W: [1.0], Z: [0.5], U: [0.25]}
"""
# The square of W overflows.
BEYOND = """\
  - name: beyond
    attributes: {rho: 0.01}
    inputs: {loss: 1.0, W: [3e+19], Z: [0.5], U: [0.25]}
"""
UNEVEN = (
    INCONCLUSIVE.replace("[1.0]", "[0.1, 0.7, 1.3, 4.7]")
    .replace("[0.5]", "[0.3, 0.1, 0.7, 9.1]")
    .replace("[0.25]", "[0.9, 0.2, 0.6, 0.3]")
    .replace("loss: 1.0", "loss: 0.37")
)


@pytest.mark.slow
def test_suite_rejects_every_mutant_and_no_reformulation(onnxopt, monkeypatch, tmp_path):
    # One operator is enough here: .ci/run audits all operators, which takes minutes.
    arguments = ("cases/", "--operator", "AdmmGradient")
    monkeypatch.chdir(REPOSITORY)
    answer = onnxopt("audit", *arguments, "--json", tmp_path / "audit.json")
    assert answer.code == 0, answer.out
    (score,) = json.loads((tmp_path / "audit.json").read_text())["operators"]
    assert score["survivors"] == score["false_alarms"] == []
    assert len(score["named"]) > 10
    assert len(score["automatic"]) > 50
    assert len(score["right"]) > 5
    # Reformulations stay far below the tolerance.
    assert all(verdict["largest_share_of_limit"] <= 0.5 for verdict in score["right"])


def test_survivors_are_reported_with_an_input_that_distinguishes_them(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(INCONCLUSIVE)
    answer = onnxopt("audit", "weak.yaml", "-v", "-j", "1")
    assert answer.code == 1
    assert "survives" in answer.out
    assert re.search(r"an input that kills it in float64: rho -?[\d.]+,", answer.out)
    redundant = (
        "redundant, because other cases kill the same mutants: weak/weak/first, weak/weak/again"
    )
    assert redundant in " ".join(answer.out.split())


def test_joined_shards_equal_the_complete_audit(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(INCONCLUSIVE + BEYOND)
    complete = onnxopt("audit", "weak.yaml", "-v", "-j", "1", "--json", "complete.json")
    assert "inconclusive: 1 of loss_new: weak/weak/beyond" in complete.out
    parts = []
    for part in (1, 2, 3):
        answer = onnxopt("audit", "weak.yaml", "-v", "-j", "1", "--shard", f"{part}/3",
                         "--json", f"{part}.json")  # fmt: skip
        assert answer.code == 1
        parts += ["--join", f"{part}.json"]
    joined = onnxopt("audit", "weak.yaml", "-v", *parts, "--json", "joined.json")
    assert (joined.code, joined.out) == (1, complete.out)
    joined_json, complete_json = (
        (workplace / f"{name}.json").read_bytes() for name in ("joined", "complete")
    )
    assert joined_json == complete_json

    shard = json.loads((workplace / "1.json").read_text())
    shard["versions"]["numpy"] = "0.0.1"
    (workplace / "old.json").write_text(json.dumps(shard))
    old = onnxopt("audit", "weak.yaml", "--join", "old.json", *parts[2:])
    assert (old.code, "old.json was made with other versions: numpy (0.0.1, here" in old.err) == (
        2, True,
    )  # fmt: skip
    lacking = onnxopt("audit", "weak.yaml", *parts[:4])
    assert lacking.code == 2
    assert "no shard contains the result of AdmmPenalty" in lacking.err
    (workplace / "weak.yaml").write_text(UNEVEN)
    other_cases = onnxopt("audit", "weak.yaml", *parts)
    assert other_cases.code == 2
    assert "of other cases or other expected outputs" in other_cases.err
    not_a_shard = onnxopt("audit", "weak.yaml", "--join", "complete.json")
    assert not_a_shard.code == 2
    assert "complete.json is not a shard of an audit\n" in not_a_shard.err


def test_a_file_that_is_not_a_shard_is_reported_before_cases_are_loaded(tmp_path):
    loaded_cases = []
    case = Case("suite/case", Location(tmp_path), lambda: loaded_cases.append("suite/case"))
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a shard of an audit"):
        audit([case], join=[tmp_path / "notes.json"])
    assert not loaded_cases


@pytest.mark.slow
def test_redundant_cases_are_reported_with_verbose_and_verdicts_are_the_same(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(UNEVEN)
    scores = []
    for options in ((), ("-v",)):
        onnxopt("audit", "weak.yaml", "-j", "1", "--json", "audit.json", *options)
        scores += json.loads((workplace / "audit.json").read_text())["operators"]
    verdicts, redundant = zip(
        *(
            (
                [
                    (verdict["name"], verdict["rejected"], verdict["equivalent"])
                    for verdict in score["named"] + score["automatic"] + score["right"]
                ],
                score["redundant"],
            )
            for score in scores
        ),
        strict=True,
    )
    assert verdicts[0] == verdicts[1]
    assert redundant == (None, ["weak/weak/first", "weak/weak/again"])


THRESHOLD = '''\
import numpy as np

from onnxopt_cli.operators.operator import Attribute, Operator


def shrink(X, S, *, weight, kind):
    """Set small elements to zero, and shrink those that are less than twice as large."""
    t = weight * S
    if kind == "hard":
        Y = np.where(np.abs(X) > S, weight * X, 0)
    else:
        Y = np.where(
            np.abs(X) <= t, 0, np.where(np.abs(X) <= 2 * t, np.sign(X) * (2 * (np.abs(X) - t)), X)
        )
    return (Y,)


SHRINKAGE = Operator(
    name="Shrinkage", domain="company.threshold", version=1, formula=shrink,
    scalars=(), tensors=("X", "S"), outputs={"Y": "X"},
    attributes=(Attribute("weight", 0.3), Attribute("kind", choices=("hard", "firm"))),
    about="Shrinkage.", source="here",
)
'''


@pytest.mark.slow
def test_suite_of_a_user_operator_with_modes_and_thresholds_has_no_survivors(workplace, onnxopt):
    (workplace / "shrink.py").write_text(THRESHOLD)
    answer = onnxopt("audit", "threshold", "--operators", "shrink.py", "-j", "1")
    assert answer.code == 0, answer.out
    assert "survives" not in answer.out


def test_survivors_can_be_allowed_by_name(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(INCONCLUSIVE)
    assert onnxopt("audit", "weak.yaml", "--allow", "*").code == 0
    assert onnxopt("audit", "weak.yaml", "--allow", "none of this name").code == 1


def test_rejected_reformulation_is_a_false_alarm(workplace, onnxopt):
    strict = UNEVEN.replace("cases:\n", "tolerance: {rtol: 0, atol: 0}\ncases:\n")
    (workplace / "strict.yaml").write_text(strict)
    answer = onnxopt("audit", "strict.yaml", "--allow", "*")
    assert answer.code == 1
    assert "false alarm" in answer.out


def test_more_mutants_survive_onnx_tolerance_than_the_error_bound(workplace, onnxopt):
    (workplace / "uneven.yaml").write_text(UNEVEN)

    def survivors(*options):
        onnxopt("audit", "uneven.yaml", "--json", "audit.json", *options)
        (score,) = json.loads((workplace / "audit.json").read_text())["operators"]
        return len(score["survivors"])

    assert survivors("--tolerance", "onnx") > survivors()


def test_cases_of_random_operators_cannot_be_audited(workplace, onnxopt):
    answer = onnxopt("audit", "onnx-node", "--operator", "Bernoulli")
    assert answer.code == 5
    assert "a single deterministic node" in answer.err


def test_signal_leaves_the_scores_of_finished_implementations(workplace, onnxopt, monkeypatch):
    @contextmanager
    def send_signal_at_third_step(*_):
        yield lambda done, total: total and done == 3 and os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("onnxopt_cli.cli.audit_command.show_progress", send_signal_at_third_step)
    (workplace / "weak.yaml").write_text(INCONCLUSIVE)
    answer = onnxopt("audit", "weak.yaml", "-j", "1", "--json", "audit.json")
    assert answer.code == 128 + signal.SIGTERM
    assert "AdmmPenalty" in answer.out
    assert "the scores count only the implementations that are finished" in answer.err
    assert not (workplace / "audit.json").exists()
