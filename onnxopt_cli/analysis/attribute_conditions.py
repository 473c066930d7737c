"""Which attributes the failing cases of an operator have that its passing cases lack.

Operators without a formula have no known mistakes. Their failures are told apart by the attributes
of their nodes, defaults included: each condition holds in failing cases of the run and in none of
its passing cases.
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

# Cases of one operator beyond which attributes are not looked at.
_MAX_CASES = 500
_MAX_CONDITIONS = 2
_MAX_VALUE_CHARS = 200
# One failing case has many attributes of its own by chance.
_MIN_CASES = 2
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
    """Return the attributes that tell failing cases from passing ones, by backend and operator.

    Args:
        results: all results of a run.
        cases: the cases by id.
        formulas: names of the operators that have a formula, which are left out.
    """
    known = frozenset(formulas)
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        judged = result.outcome is Outcome.PASS or (result.outcome is Outcome.FAIL and result.diffs)
        if judged and len(result.operators) == 1 and not known.intersection(result.operators):
            groups.setdefault((result.backend, result.operators[0]), []).append(result)
    explanations = []
    for (backend, operator), group in groups.items():
        failing = sum(result.outcome is Outcome.FAIL for result in group)
        if _MIN_CASES <= failing < len(group) <= _MAX_CASES and (causes := _causes(group, cases)):
            left = failing - sum(len(cause.cases) for cause in causes)
            others = {UNEXPLAINED: {"fail": left}} if left else {}
            explanations.append(Explanation(backend, operator, causes, others))
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
    """Return the condition of the most failing cases that no passing case meets; None if none."""
    for count in range(1, _MAX_CONDITIONS + 1):
        met = [
            (sum(condition <= case for case in filter(None, failing)), condition)
            for condition in _conditions(filter(None, failing), count)
            if not any(condition <= case for case in filter(None, passing))
        ]
        best = max(met, key=_most_cases_and_plainest, default=None)
        if best is not None and best[0] >= _MIN_CASES:
            return best[1]
    return None


def _most_cases_and_plainest(pair: tuple[int, _Condition]) -> tuple[int, int, list[str]]:
    count, condition = pair
    return count, sum("=" in words for words in condition), sorted(condition)


def _conditions(failing: Iterable[_Condition], count: int) -> Iterator[_Condition]:
    seen = set()
    for case in failing:
        for words in combinations(sorted(case), count):
            if words not in seen:
                seen.add(words)
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
        return clipped(value.decode("utf-8", "replace"), _MAX_VALUE_CHARS)
    if isinstance(value, float):
        return f"{value:g}"
    return clipped(str(value), _MAX_VALUE_CHARS)
