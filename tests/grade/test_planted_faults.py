"""Faults that nobody has listed: conditions on the space of inputs, planted by a script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxopt_cli.cases.suites.space import large, space
from onnxopt_cli.operators.adam import ADAM
from onnxopt_cli.operators.magnitude_prune import MAGNITUDE_PRUNE

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "planted_faults.py"

SIGNED = '''\
from onnxopt_cli.formula.operator import FLOATS, Attribute, Operator, Scalar


def signed(R, X, G, *, weight):
    """Move against the gradient and its weighted copy."""
    return (X - R * (G + weight * X),)


SIGNED = Operator(
    name="Signed", domain="company.test", version=1, formula=signed,
    scalars=(Scalar("R", FLOATS),), tensors=("X", "G"), outputs={"X_new": "X"},
    attributes=(Attribute("weight"),), about="A step.", source="here",
)
'''


def rejected(*arguments):
    """Return the share of planted faults that the suites reject, and what was printed."""
    run = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    last = re.search(r"^all .*?([\d.]+)%", run.stdout, re.MULTILINE)
    assert last, run.stdout + run.stderr
    return float(last[1]) / 100, run.stdout


FEW = ("--seed", "11", "--faults", "4", "--draws", "150")


@pytest.mark.slow
def test_the_suites_reject_faults_that_nobody_listed():
    own = ("conformance/momentum", "space/momentum")
    share, told = rejected(*own, *FEW, "--operator", "Momentum")
    assert share >= 0.9, told


@pytest.mark.slow
def test_the_published_cases_do_not():
    share, told = rejected("spec", *FEW, "--operator", "Momentum")
    assert share <= 0.5, told


@pytest.mark.slow
def test_an_operator_that_a_user_brings_gets_the_same_suite(tmp_path):
    path = tmp_path / "signed.py"
    path.write_text(SIGNED)
    own = ("test/signed", "space/signed")
    share, told = rejected(*own, *FEW, "--operators", path, "--operator", "Signed")
    assert share >= 0.9, told


@pytest.mark.parametrize("operator", [ADAM, MAGNITUDE_PRUNE], ids=lambda it: it.name)
def test_a_suite_is_the_same_each_time_it_is_made(operator):
    for ask in (space, large):
        once, again = list(ask(operator)), list(ask(operator))
        assert [one.name for one in once] == [other.name for other in again]
        for one, other in list(zip(once, again, strict=True))[::40]:
            for left, right in zip(one.inputs.values(), other.inputs.values(), strict=True):
                assert made(left).tobytes() == made(right).tobytes(), one.name


def made(value):
    return value if isinstance(value, np.ndarray) else value.make()
