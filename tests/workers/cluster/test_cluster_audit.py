"""Audits on a cluster have the same results as audits on one machine."""

import re

import pytest

from onnxopt_cli.cli import console

# A single case, so some mutants survive.
GRADIENT = """\
onnxopt: 1
operator: AdmmGradient
cases:
  - name: first
    attributes: {rho: 0.01}
    inputs: {G: [1.0], W: [2.0], Z: [0.5], U: [0.25]}
"""
# An inconclusive case: the square of W overflows.
PENALTY = """\
onnxopt: 1
operator: AdmmPenalty
cases:
  - name: beyond
    attributes: {rho: 0.01}
    inputs: {loss: 1.0, W: [3e+19], Z: [0.5], U: [0.25]}
"""


@pytest.mark.slow
def test_audit_by_two_workers_equals_that_of_one_machine(two, tmp_path, onnxopt, monkeypatch):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    files = tmp_path / "gradient.yaml", tmp_path / "penalty.yaml"
    for file, text in zip(files, (GRADIENT, PENALTY), strict=True):
        file.write_text(text)
    audits = []
    for options in ((), ("--cluster", two.address)):
        path = tmp_path / f"{len(audits)}.json"
        answer = onnxopt("audit", *files, "--json", path, *options)
        audits.append((answer.code, answer.out, path.read_text()))
    assert audits[0] == audits[1]
    line = r"auditing: (\d+) of \1, [\d.e+-]+ steps/s, workers: [12], 0 s left"
    assert re.search(f"^{line}$", answer.err, re.MULTILINE), answer.err
    assert "an input that kills it" in audits[0][1]
    assert '"output": "loss_new"' in audits[0][2]


def test_audit_of_injected_errors_cannot_run_on_a_cluster(onnxopt):
    answer = onnxopt("audit", "spec", "--injected", "--cluster", "local:2")
    assert answer.code == 2
    assert "--injected excludes --cluster" in answer.text
