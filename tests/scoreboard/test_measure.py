"""The cases of a scoreboard's quick tier, and the row of the scoreboard to which a case belongs."""

from __future__ import annotations

import pytest

from onnxopt_cli.scoreboard.measure import (
    QUICK_CASES,
    SEVERAL_OPERATORS,
    operator_rows,
    tier_cases,
)
from onnxopt_cli.scoreboard.scoreboard_file import Tier
from onnxopt_cli.suites.collect import collect


@pytest.fixture(scope="module")
def cases():
    return collect(["onnx-node", "operators"]).cases


def test_quick_tier_covers_every_operator_of_every_suite(cases):
    rows = operator_rows(cases)
    chosen = tier_cases(cases, Tier.QUICK, rows)
    covered = {(case.suite, rows[case.id]) for case in chosen}
    assert covered == {(case.suite, rows[case.id]) for case in cases}
    assert len(chosen) == QUICK_CASES
    assert [case for case in cases if case in chosen] == chosen


def test_quick_tier_does_not_depend_on_the_order_of_cases(cases):
    rows = operator_rows(cases)
    forward = {case.id for case in tier_cases(cases, Tier.QUICK, rows)}
    backward = {case.id for case in tier_cases(cases[::-1], Tier.QUICK, rows)}
    assert forward == backward


def test_new_case_displaces_at_most_one_case(cases):
    fewer = [case for case in cases if case.id != "operators/abs/v13_12"]
    chosen = {case.id for case in tier_cases(cases, Tier.QUICK, operator_rows(cases))}
    before = {case.id for case in tier_cases(fewer, Tier.QUICK, operator_rows(fewer))}
    assert len(chosen - before) <= 1


def test_full_tier_has_all_cases(cases):
    assert tier_cases(cases, Tier.FULL, operator_rows(cases)) == [*cases]


def test_expanded_function_body_belongs_to_its_operator(cases):
    rows = operator_rows(cases)
    assert rows["onnx-node/test_softmax_example/0"] == "Softmax"
    assert rows["onnx-node/test_softmax_example_expanded/0"] == "Softmax"
    several = [row for row in rows.values() if row == SEVERAL_OPERATORS]
    assert 0 < len(several) < 100
