"""``onnxopt audit``: what a suite rejects, and what it must not."""

from __future__ import annotations

import json
import re

import pytest
from places import REPOSITORY

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
# The squares leave the type's range on the way.
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
def test_the_suite_rejects_every_wrong_implementation_and_no_right_one(
    onnxopt, monkeypatch, tmp_path
):
    # Of all operators it takes minutes; .ci/run does that.
    asked = ("cases/", "--operator", "AdmmGradient")
    monkeypatch.chdir(REPOSITORY)
    answer = onnxopt("audit", *asked, "--json", tmp_path / "audit.json")
    assert answer.code == 0, answer.out
    (score,) = json.loads((tmp_path / "audit.json").read_text())["operators"]
    assert score["survivors"] == score["false_alarms"] == []
    assert len(score["named"]) > 10
    assert len(score["automatic"]) > 50
    assert len(score["right"]) > 5
    # Right implementations stay far below the limit, wrong ones far above it.
    assert all(it["largest_share_of_limit"] <= 0.5 for it in score["right"])


def test_a_suite_with_gaps_names_survivors_and_the_input_that_would_show_them(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(INCONCLUSIVE)
    answer = onnxopt("audit", "weak.yaml", "-v", "-j", "1")
    assert answer.code == 1
    assert "survives" in answer.out
    assert re.search(r"would show in float64 at rho -?[\d.]+,", answer.out)
    assert "reject nothing that others do not: weak/weak/first, weak/weak/again" in " ".join(
        answer.out.split()
    )


def test_shards_of_an_audit_join_to_the_whole(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(INCONCLUSIVE + BEYOND)
    whole = onnxopt("audit", "weak.yaml", "-v", "-j", "1", "--json", "whole.json")
    assert "inconclusive: 1 of loss_new: weak/weak/beyond" in whole.out
    parts = []
    for part in (1, 2, 3):
        answer = onnxopt("audit", "weak.yaml", "-v", "-j", "1", "--shard", f"{part}/3",
                         "--json", f"{part}.json")  # fmt: skip
        assert answer.code == 1
        parts += ["--join", f"{part}.json"]
    joined = onnxopt("audit", "weak.yaml", "-v", *parts, "--json", "joined.json")
    assert (joined.code, joined.out) == (1, whole.out)
    written = [(workplace / f"{it}.json").read_bytes() for it in ("joined", "whole")]
    assert written[0] == written[1]

    shard = json.loads((workplace / "1.json").read_text())
    shard["versions"]["numpy"] = "0.0.1"
    (workplace / "old.json").write_text(json.dumps(shard))
    old = onnxopt("audit", "weak.yaml", "--join", "old.json", *parts[2:])
    assert (old.code, "old.json was made with other versions: numpy (0.0.1, here" in old.err) == (
        2, True,
    )  # fmt: skip
    lacking = onnxopt("audit", "weak.yaml", *parts[:4])
    assert lacking.code == 2
    assert "no shard says what becomes of AdmmPenalty" in lacking.err
    (workplace / "weak.yaml").write_text(UNEVEN)
    other = onnxopt("audit", "weak.yaml", *parts)
    assert other.code == 2
    assert "of other cases, or of other outputs" in other.err
    none = onnxopt("audit", "weak.yaml", "--join", "whole.json")
    assert none.code == 2
    assert "whole.json is not a shard of an audit" in none.err


def test_redundant_cases_are_looked_for_only_with_v_and_no_verdict_depends_on_it(
    workplace, onnxopt
):
    (workplace / "weak.yaml").write_text(UNEVEN)
    scores = []
    for options in ((), ("-v",)):
        onnxopt("audit", "weak.yaml", "-j", "1", "--json", "audit.json", *options)
        scores += json.loads((workplace / "audit.json").read_text())["operators"]
    found, redundant = zip(
        *(
            (
                [
                    (it["name"], it["rejected"], it["equivalent"])
                    for it in score["named"] + score["automatic"] + score["right"]
                ],
                score["redundant"],
            )
            for score in scores
        ),
        strict=True,
    )
    assert found[0] == found[1]
    assert redundant == (None, ["weak/weak/first", "weak/weak/again"])


THRESHOLD = '''\
import numpy as np

from onnxopt_cli.operators.operator import Attribute, Operator


def shrink(X, S, *, weight, kind):
    """Set what is small to zero, and shrink what is less than twice as large."""
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
def test_modes_and_thresholds_of_a_user_s_operator_leave_no_gap(workplace, onnxopt):
    (workplace / "shrink.py").write_text(THRESHOLD)
    answer = onnxopt("audit", "threshold", "--operators", "shrink.py", "-j", "1")
    assert answer.code == 0, answer.out
    assert "survives" not in answer.out


def test_survivors_can_be_allowed_by_name(workplace, onnxopt):
    (workplace / "weak.yaml").write_text(INCONCLUSIVE)
    assert onnxopt("audit", "weak.yaml", "--allow", "*").code == 0
    assert onnxopt("audit", "weak.yaml", "--allow", "none of this name").code == 1


def test_a_tolerance_that_rejects_right_implementations_is_a_false_alarm(workplace, onnxopt):
    strict = UNEVEN.replace("cases:\n", "tolerance: {rtol: 0, atol: 0}\ncases:\n")
    (workplace / "strict.yaml").write_text(strict)
    answer = onnxopt("audit", "strict.yaml", "--allow", "*")
    assert answer.code == 1
    assert "false alarm" in answer.out


def test_onnx_s_tolerance_lets_more_survive_than_the_derived_one(workplace, onnxopt):
    (workplace / "uneven.yaml").write_text(UNEVEN)

    def survivors(*options):
        onnxopt("audit", "uneven.yaml", "--json", "audit.json", *options)
        (score,) = json.loads((workplace / "audit.json").read_text())["operators"]
        return len(score["survivors"])

    assert survivors("--tolerance", "onnx") > survivors()


def test_cases_of_other_operators_cannot_be_audited(workplace, onnxopt):
    answer = onnxopt("audit", "onnx-simple")
    assert answer.code == 5
    assert "an operator with a formula" in answer.err
