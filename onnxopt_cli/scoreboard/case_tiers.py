"""The cases of a scoreboard: all of the suites, or a small part that covers every operator."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.select import operators_of
from onnxopt_cli.scoreboard.scoreboard_file import Tier

#: The number of cases of the quick tier, or the number of pairs of suite and operator if larger.
QUICK_CASES = 470
#: Row of the cases whose model has several operators.
SEVERAL_OPERATORS = "models of several operators"
#: Row of the cases whose model is invalid or has no node.
NO_OPERATOR = "no operator"
# onnx's cases of an operator with a function body have a second form, with the nodes of the body;
# this is the end of its name.
_EXPANDED = re.compile(r"_expanded(_ver\d+)?(?=/|$)")


def operator_rows(cases: Sequence[Case]) -> dict[str, str]:
    """Return for each case the row of the scoreboard to which it belongs.

    The row is the operator of the case's model. A case of onnx that consists of the function body
    of an operator belongs to that operator.
    """
    operators = {case.id: tuple(dict.fromkeys(operators_of(case))) for case in cases}
    rows = {}
    for case, names in operators.items():
        unexpanded = operators.get(_EXPANDED.sub("", case), ())
        subject = unexpanded if len(names) > 1 and len(unexpanded) == 1 else names
        several = SEVERAL_OPERATORS if subject else NO_OPERATOR
        rows[case] = subject[0] if len(subject) == 1 else several
    return rows


def tier_cases(cases: Sequence[Case], tier: Tier, rows: dict[str, str]) -> list[Case]:
    """Return the cases of a tier, in their original order.

    The quick tier has one case of each pair of suite and operator, then a second case of each pair,
    and so on up to :data:`QUICK_CASES`. The cases of a pair are ordered by a hash of their ids. The
    choice therefore depends only on the ids, and a new case displaces few other cases.

    Args:
        cases: all cases.
        tier: the tier.
        rows: the row of each case, from :func:`operator_rows`.
    """
    if tier is Tier.FULL or len(cases) <= QUICK_CASES:
        return [*cases]
    groups: defaultdict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda case: _digest(case.id)):
        groups[case.suite, rows[case.id]].append(case)
    ranked = [
        (rank, _digest(case.id), case.id)
        for group in groups.values()
        for rank, case in enumerate(group)
    ]
    count = max(QUICK_CASES, len(groups))
    chosen = {name for _, _, name in sorted(ranked)[:count]}
    return [case for case in cases if case.id in chosen]


def _digest(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
