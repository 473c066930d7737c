"""Operators whose step depends on norms of tensors, such as LAMB."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from commands import run_command
from places import PLUGINS

from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.mutation.equivalence import equivalent
from onnxopt_cli.mutation.mutants import mutants
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator_file import read_operators
from onnxopt_cli.suites.conformance import conformance

LAMB = PLUGINS / "operators" / "lamb.py"
ORDERS = PLUGINS / "lamb_orders.py"
RIGHT = ("in_order", "pairwise", "blocks_of_32", "blocks_of_256", "blocks_of_4096", "double")


def run_large(*backends):
    done = run_command(
        *("run", "optimizers", "--operators", LAMB),
        *("-k", "large_float32", "-k", "large_sparse"),
        *("-q", "--isolation", "none", "--no-explain"),
        *(word for name in backends for word in ("-b", f"python:{ORDERS}:{name}")),
        env={**os.environ, "COLUMNS": "80"},
    )
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    return done


@pytest.mark.slow
def test_no_order_of_summation_is_rejected_at_a_hundred_thousand_elements():
    done = run_large(*(f"{name}_right" for name in RIGHT))
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert text.count("conforms: 2 pass") == len(RIGHT), done.stdout


@pytest.mark.slow
def test_relative_error_of_1e_4_in_a_norm_of_100000_elements_is_rejected():
    names = ("weight_norm", "update_norm")
    done = run_large(*(f"{name}_wrong" for name in names))
    assert done.returncode == 1, done.stdout + done.stderr
    for name in names:
        failed = [line for line in done.stdout.splitlines() if "FAIL" in line and name in line]
        assert any("norms_large_sparse" in line for line in failed), done.stdout


@pytest.mark.slow
def test_norm_may_be_compared_with_zero_only():
    (lamb,) = read_operators(LAMB, [])
    calls = [
        bind(lamb, list(template.inputs.values()), complete_attributes(lamb, template.attributes))
        for template in conformance(lamb)
        if "small" in template.name
    ]
    judged = [(call, bound(call)) for call in calls]
    wrong = [
        mutant
        for mutant in mutants(lamb)
        if mutant.name.startswith("trust = ")
        and re.fullmatch(r"0 became ([\d.-]+|R|T|alpha|beta|epsilon|decay)\.", mutant.about)
    ]
    assert len(wrong) == 20
    for mutant in wrong:
        rejected = any(
            np.any(np.abs(output - right.expected) > right.limit)
            for call, answers in judged
            for output, right in zip(mutant.run(call), answers, strict=True)
        )
        assert rejected or equivalent(lamb, mutant), mutant.name
