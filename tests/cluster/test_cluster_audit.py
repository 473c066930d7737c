"""Audits on a cluster come out as on one machine."""

import pytest
from places import REPOSITORY


@pytest.mark.slow
def test_an_audit_by_two_workers_is_the_one_of_this_machine(two, tmp_path, onnxopt):
    # Its cases are all of T = 0, so that there are survivors to be told from the formula.
    file = REPOSITORY / "cases" / "spec" / "adagrad.yaml"
    said = []
    for options in ((), ("--cluster", two.address)):
        path = tmp_path / f"{len(said)}.json"
        answer = onnxopt("audit", file, "--json", path, *options)
        said.append((answer.code, answer.out, path.read_text()))
    assert said[0] == said[1]
    assert "would show" in said[0][1]


def test_planted_errors_stay_here(onnxopt):
    answer = onnxopt("audit", "spec", "--planted", "--cluster", "local:2")
    assert answer.code == 2
    assert "no --cluster" in answer.text
