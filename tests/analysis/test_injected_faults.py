"""Suites reject nearly all random faults that a script injects."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxopt_cli.operators.builtin.adam import ADAM
from onnxopt_cli.operators.builtin.magnitude_prune import MAGNITUDE_PRUNE
from onnxopt_cli.suites.pairwise import large, pairwise

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "injected_faults.py"

SIGNED = '''\
from onnxopt_cli.operators.operator import FLOATS, Attribute, Operator, Scalar


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
    """Return the share of faults that the suites reject, and the output of the script."""
    run = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    last = re.search(r"^all .*?([\d.]+)%", run.stdout, re.MULTILINE)
    assert last, run.stdout + run.stderr
    return float(last[1]) / 100, run.stdout


FEW_FAULTS = ("--seed", "11", "--faults", "4", "--draws", "150")


@pytest.mark.slow
def test_suites_reject_random_faults():
    suites = ("conformance/momentum", "pairwise/momentum")
    share, output = rejected(*suites, *FEW_FAULTS, "--operator", "Momentum")
    assert share >= 0.9, output


@pytest.mark.slow
def test_published_cases_miss_half_of_the_random_faults():
    share, output = rejected("spec", *FEW_FAULTS, "--operator", "Momentum")
    assert share <= 0.5, output


@pytest.mark.slow
def test_generated_suites_reject_faults_in_a_user_operator(tmp_path):
    path = tmp_path / "signed.py"
    path.write_text(SIGNED)
    suites = ("test/signed", "pairwise/signed")
    share, output = rejected(*suites, *FEW_FAULTS, "--operators", path, "--operator", "Signed")
    assert share >= 0.9, output


@pytest.mark.slow
@pytest.mark.parametrize("operator", [ADAM, MAGNITUDE_PRUNE], ids=lambda operator: operator.name)
def test_suites_are_reproducible(operator):
    for write_suite in (pairwise, large):
        first, second = list(write_suite(operator)), list(write_suite(operator))
        assert [case.name for case in first] == [case.name for case in second]
        for case, repeated in list(zip(first, second, strict=True))[::40]:
            pairs = zip(case.inputs.values(), repeated.inputs.values(), strict=True)
            for value, repeated_value in pairs:
                assert made(value).tobytes() == made(repeated_value).tobytes(), case.name


def made(value):
    return value if isinstance(value, np.ndarray) else value.make()
