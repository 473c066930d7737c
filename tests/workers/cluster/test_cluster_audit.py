"""Audits on a cluster come out as on one machine."""

import re

import pytest

from onnxopt_cli.cli import console

# One case alone leaves survivors, which are to be told from the formula.
GRADIENT = """\
onnxopt: 1
operator: AdmmGradient
cases:
  - name: first
    attributes: {rho: 0.01}
    inputs: {G: [1.0], W: [2.0], Z: [0.5], U: [0.25]}
"""
# It cannot be judged: the squares leave the type's range on the way.
PENALTY = """\
onnxopt: 1
operator: AdmmPenalty
cases:
  - name: beyond
    attributes: {rho: 0.01}
    inputs: {loss: 1.0, W: [3e+19], Z: [0.5], U: [0.25]}
"""


@pytest.mark.slow
def test_an_audit_by_two_workers_is_the_one_of_this_machine(two, tmp_path, onnxopt, monkeypatch):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    files = tmp_path / "gradient.yaml", tmp_path / "penalty.yaml"
    for file, text in zip(files, (GRADIENT, PENALTY), strict=True):
        file.write_text(text)
    said = []
    for options in ((), ("--cluster", two.address)):
        path = tmp_path / f"{len(said)}.json"
        answer = onnxopt("audit", *files, "--json", path, *options)
        said.append((answer.code, answer.out, path.read_text()))
    assert said[0] == said[1]
    line = r"auditing: (\d+) of \1, [\d.e+-]+ implementations/s, workers: [12], 0 s left"
    assert re.search(f"^{line}$", answer.err, re.MULTILINE), answer.err
    assert "would show" in said[0][1]
    assert '"output": "loss_new"' in said[0][2]


def test_injected_errors_stay_here(onnxopt):
    answer = onnxopt("audit", "spec", "--injected", "--cluster", "local:2")
    assert answer.code == 2
    assert "no --cluster" in answer.text
