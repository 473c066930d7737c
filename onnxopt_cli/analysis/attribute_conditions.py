"""Conditions on attributes that hold in failing cases of an operator, but in no passing case.

Operators without a formula have no known mistakes. Their failures are explained by the attributes
of their nodes, including defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

import onnx
from onnx import AttributeProto, helper

from onnxopt_cli.cases.case import Case
from onnxopt_cli.core.record import (
    UNEXPLAINED,
    Cause,
    Explanation,
)
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import clipped
from onnxopt_cli.errors import InvalidCase
from onnxopt_cli.operators.nodes import imported_versions

#: The failures of an operator with more cases are not explained.
MAX_CASES = 500
MAX_CONDITIONS = 2
MAX_VALUE_CHARS = 200
#: A single failing case has many attributes of its own by chance.
MIN_CASES = 2
_UNREADABLE_TYPES = frozenset(
    {
        AttributeProto.GRAPH,
        AttributeProto.GRAPHS,
        AttributeProto.TENSOR,
        AttributeProto.TENSORS,
        AttributeProto.SPARSE_TENSOR,
        AttributeProto.SPARSE_TENSORS,
    }
)
_Condition: TypeAlias = frozenset[str]


def explain_by_attributes(
    results: Sequence[Result], cases: Mapping[str, Case], formulas: Iterable[str]
) -> list[Explanation]:
    """Return the attributes that distinguish failing from passing cases, by backend and operator.

    Args:
        results: all results of a run.
        cases: the cases by id.
        formulas: names of the operators with a formula, which are skipped.
    """
    with_formula = frozenset(formulas)
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        judged = result.outcome is Outcome.PASS or (result.outcome is Outcome.FAIL and result.diffs)
        skipped = len(result.operators) != 1 or with_formula.intersection(result.operators)
        if judged and not skipped:
            groups.setdefault((result.backend, result.operators[0]), []).append(result)
    explanations = []
    for (backend, operator), group in groups.items():
        failing = sum(result.outcome is Outcome.FAIL for result in group)
        if MIN_CASES <= failing < len(group) <= MAX_CASES and (causes := _causes(group, cases)):
            remaining = failing - sum(len(cause.cases) for cause in causes)
            unexplained = {UNEXPLAINED: {"fail": remaining}} if remaining else {}
            explanations.append(Explanation(backend, operator, causes, unexplained))
    return explanations


def _causes(group: Sequence[Result], cases: Mapping[str, Case]) -> tuple[Cause, ...]:
    """Return conditions that together hold in as many failing cases as possible, largest first."""
    settings = {result.case: _settings(cases.get(result.case)) for result in group}
    passing = [settings[result.case] for result in group if result.outcome is Outcome.PASS]
    failing = [result.case for result in group if result.outcome is Outcome.FAIL]
    if any(settings[result.case] is None for result in group):
        return ()
    causes = []
    while failing:
        condition = _best_condition([settings[case] for case in failing], passing)
        if condition is None:
            break
        held = tuple(case for case in failing if condition <= (settings[case] or frozenset()))
        words = " and ".join(sorted(condition))
        causes.append(Cause(f"wrong in each judged case with {words}", held))
        failing = [case for case in failing if case not in held]
    return tuple(causes)


def _best_condition(
    failing: Sequence[_Condition | None], passing: Sequence[_Condition | None]
) -> _Condition | None:
    """Return the condition that holds in most failing cases and in no passing one, if any does."""
    for count in range(1, MAX_CONDITIONS + 1):
        met = [
            (sum(condition <= case for case in filter(None, failing)), condition)
            for condition in _conditions(filter(None, failing), count)
            if not any(condition <= case for case in filter(None, passing))
        ]
        best = max(met, key=_most_cases_and_plainest, default=None)
        if best is not None and best[0] >= MIN_CASES:
            return best[1]
    return None


def _most_cases_and_plainest(pair: tuple[int, _Condition]) -> tuple[int, int, list[str]]:
    count, condition = pair
    return count, sum("=" in words for words in condition), sorted(condition)


def _conditions(failing: Iterable[_Condition], count: int) -> Iterator[_Condition]:
    """Yield each combination of a number of attributes of a failing case once."""
    yielded = set()
    for case in failing:
        for words in combinations(sorted(case), count):
            if words not in yielded:
                yielded.add(words)
                yield frozenset(words)


def _settings(case: Case | None) -> _Condition | None:
    """Return the attributes of a case's only node as words, defaults included; None if unknown."""
    if case is None:
        return None
    try:
        model = case.load().model
    except InvalidCase:
        return None
    if len(model.graph.node) != 1:
        return None
    node = model.graph.node[0]
    defaults: dict[str, str] = {}
    version = imported_versions(model).get(node.domain, 0)
    if version and onnx.defs.has(node.op_type, version, node.domain):
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        for name, declared in schema.attributes.items():
            if declared.default_value.type:
                defaults[name] = _value(declared.default_value)
    values = {
        attribute.name: _value(attribute)
        for attribute in node.attribute
        if attribute.type not in _UNREADABLE_TYPES
    }
    words = [f"{name}={value}" for name, value in (defaults | values).items()]
    for name, value in values.items():
        if name not in defaults:
            words.append(f"{name} given")
        elif value != defaults[name]:
            words.append(f"{name} other than {defaults[name]}")
    return frozenset(words)


def _value(attribute: AttributeProto) -> str:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return clipped(value.decode("utf-8", "replace"), MAX_VALUE_CHARS)
    if isinstance(value, float):
        return f"{value:g}"
    return clipped(str(value), MAX_VALUE_CHARS)
