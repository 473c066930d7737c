"""Find failure conditions that agree with the results of a backend on all known inputs.

A path consists of one or two conditions, as in a decision tree of depth two. A path agrees with a
failing input if at least one wrong element meets all conditions of the path. A path disagrees with
a passing input if an element meets all conditions and the fault would be visible in this element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxopt_cli.analysis.explanation.features import (
    WRONG,
    Condition,
    feature_list,
    features,
    fitted_conditions,
    fixed_conditions,
)
from onnxopt_cli.analysis.explanation.samples import Sample, always_wrong, common_effects
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.implementation import Implementation

#: A failure condition must account for at least MIN_CASES_SHARE of the run's failing cases.
MIN_CASES_SHARE = 0.25
#: Number of first conditions to which a second condition is added.
BEAM_WIDTH = 40
#: Largest number of condition paths that are kept: those with the simplest conditions.
MAX_PATHS = 200


@dataclass(frozen=True, slots=True, eq=False)
class ConditionPath:
    """One or two conditions that agree with the samples.

    Attributes:
        conditions: the parts.
        cost: the path with the smallest cost, called the plainest path, is reported.
        disagreement: how badly the conditions predict which elements are wrong. For each failing
            sample, two shares are added: the share of wrong elements that do not meet the
            conditions, and the share of right elements among the elements that meet them. The
            disagreement is the mean of these sums.
        reach: number of failing samples that the path explains.
    """

    conditions: tuple[Condition, ...]
    cost: float
    disagreement: float
    reach: int


class ConditionFitting:
    """The known inputs of one operator, and the paths that agree with them.

    Args:
        samples: nodes of the operator, failing ones first.
        mistake: the known mistake whose condition is sought; None for any fault.
    """

    def __init__(self, samples: Sequence[Sample], mistake: Implementation | None) -> None:
        self._samples, self._mistake = list(samples), mistake
        self._given = sum(each.failed for each in samples)
        self._features = feature_list(samples[0].call, samples[0].expected)
        self._fixed = [
            condition
            for index, feature in enumerate(self._features)
            for condition in fixed_conditions(index, feature)
        ]
        # The features that conditions compare with fitted thresholds.
        self._numeric = [
            index for index, feature in enumerate(self._features) if feature.kind != "flag"
        ]
        self._effects: dict[str, int] = {}
        self._always: frozenset[str] = frozenset()
        self._tables: dict[Sample, tuple[Array, Array]] = {}
        self._partial = False
        self._paths: list[ConditionPath] = []

    def _fit(self) -> None:
        """Find the paths that agree with all samples, the plainest first."""
        self._update_effects()
        failing = [each for each in self._samples if each.failed]
        passing = [each for each in self._samples if not each.failed]
        wrong, self._wrong_owners = self._joined(failing, lambda labels: labels == WRONG)
        right, self._right_owners = self._joined(passing, lambda labels: labels > 0)
        self._paths = []
        if not wrong.size or not failing:
            return
        self._wrong, self._right = wrong, right
        self._right_orders = {index: np.argsort(right[index]) for index in self._numeric}
        self._fixed_wrong = meeting_columns(self._fixed, wrong)
        self._fixed_right = meeting_columns(self._fixed, right)
        first = self._level(np.ones(wrong.shape[1], bool), np.ones(right.shape[1], bool))
        with_reach: list[tuple[tuple[Condition, ...], int]] = [
            ((first.conditions[at],), int(first.reach[at]))
            for at in first.consistent(self._least())
        ]
        # For a known mistake, only single conditions are tried, because the search must try several
        # mistakes. For any other fault, pairs are tried even if a single condition agrees with all
        # samples. Generated inputs must then show whether the pair or the single condition is
        # wrong.
        parents = [] if self._mistake else first.promising(self._least(), partial=self._partial)
        for at in parents:
            second = self._level(first.wrong[at], first.right[at], first.conditions[at])
            with_reach += [
                ((first.conditions[at], second.conditions[index]), int(second.reach[index]))
                for index in second.consistent(self._least())
            ]
        self._paths = self._ranked(with_reach, failing)

    def _least(self) -> int:
        """Return the number of failing samples that a path must explain."""
        if not self._partial:
            return len({*self._wrong_owners.tolist()})
        return max(1, int(np.ceil(MIN_CASES_SHARE * self._given)))

    def _level(self, wrong: Array, right: Array, parent: Condition | None = None) -> _Level:
        """Return all conditions on the elements of one branch of the tree.

        Args:
            wrong: a mask of the wrong elements of the branch.
            right: a mask of the right elements of the branch.
            parent: the condition of the branch; None at the root.
        """
        wrong_columns, right_columns = np.flatnonzero(wrong), np.flatnonzero(right)
        own_wrong = {index: self._wrong[index, wrong_columns] for index in self._numeric}
        own_right = {index: self._right[index, right_columns] for index in self._numeric}
        fitted = [
            condition
            for index in self._numeric
            for condition in fitted_conditions(
                index, self._features[index], own_wrong[index], self._sorted_right(index, right)
            )
            if not parent or condition.text != parent.text
        ]
        fixed = [
            index
            for index, condition in enumerate(self._fixed)
            if not parent or condition.text != parent.text
        ]
        conditions = [*(self._fixed[index] for index in fixed), *fitted]
        fixed_rows = np.array(fixed, int)
        holds_wrong = np.concatenate(
            [
                self._fixed_wrong[np.ix_(fixed_rows, wrong_columns)],
                meeting_columns(fitted, own_wrong, wrong_columns.size),
            ]
        )
        holds_right = np.concatenate(
            [
                self._fixed_right[np.ix_(fixed_rows, right_columns)],
                meeting_columns(fitted, own_right, right_columns.size),
            ]
        )
        owners = self._wrong_owners[wrong]
        met = _met(holds_wrong, owners)
        columns_given = np.unique(owners) < self._given if self._partial else slice(None)
        return _Level(
            conditions,
            met[:, columns_given].sum(axis=1),
            _met(holds_right, self._right_owners[right]).sum(axis=1),
            holds_wrong,
            holds_right,
        )

    def _sorted_right(self, index: int, right: Array) -> Array:
        """Return a feature's values at the right elements of a mask, in ascending order."""
        order = self._right_orders[index]
        return np.asarray(self._right[index, order[right[order]]])

    def _ranked(
        self, with_reach: Sequence[tuple[tuple[Condition, ...], int]], failing: Sequence[Sample]
    ) -> list[ConditionPath]:
        """Return the paths with the simplest conditions, in ascending order of their costs.

        The cost of a path includes its disagreement.
        """
        plain = sorted(with_reach, key=lambda pair: _cost(pair[0]))[:MAX_PATHS]
        if self._partial and plain:
            most = max(reach for _, reach in plain)
            plain = [pair for pair in plain if pair[1] == most]
        tables = [self._table(each) for each in failing]
        columns = np.concatenate([table for table, _ in tables], axis=1)
        labels = np.concatenate([own for _, own in tables])
        owners = np.repeat(np.arange(len(tables)), [own.size for _, own in tables])
        wrong = labels == WRONG
        totals = np.bincount(owners, wrong, len(tables))
        paths: list[ConditionPath] = []
        for conditions, meets in meeting_elements([pair[0] for pair in plain], columns):
            met = np.bincount(owners, meets & wrong, len(tables))
            more = np.bincount(owners, meets & ~wrong, len(tables))
            shares = 1 - met / np.maximum(1, totals) + more / np.maximum(1, met + more)
            disagreement = float(np.mean(shares))
            reach = int(np.sum(met > 0))
            cost = _cost(conditions) + disagreement
            paths.append(ConditionPath(conditions, cost, disagreement, reach))
        paths.sort(key=lambda path: path.cost)
        # If paths differ only in their thresholds, the path of the least cost is kept.
        unique = {frozenset(part.key for part in path.conditions): path for path in paths[::-1]}
        return sorted(unique.values(), key=lambda path: path.cost)

    def _update_effects(self) -> None:
        effects, always = common_effects(self._samples), always_wrong(self._samples)
        if (effects, always) != (self._effects, self._always):
            self._effects, self._always = effects, always
            self._tables.clear()

    def _table(self, each: Sample) -> tuple[Array, Array]:
        """Return features and labels of the elements of a sample."""
        if each not in self._tables:
            self._tables[each] = features(
                each.call, each.expected, each.labels(self._effects, self._always)
            )
        return self._tables[each]

    def _joined(
        self, samples: Sequence[Sample], chosen: Callable[[Array], Array]
    ) -> tuple[Array, Array]:
        """Return the features of selected elements, and for each element the index of its sample.

        Args:
            samples: the samples.
            chosen: returns a mask of the selected elements, given the labels of all elements.
        """
        tables = [np.empty((len(self._features), 0))]
        owners = [np.empty(0, int)]
        for number, each in enumerate(samples):
            table, labels = self._table(each)
            tables.append(table[:, chosen(labels)])
            owners.append(np.full(tables[-1].shape[1], number))
        return np.concatenate(tables, axis=1), np.concatenate(owners)

    def _meets(self, conditions: Sequence[Condition], each: Sample) -> bool:
        table, _ = self._table(each)
        return bool(meeting_columns(conditions, table).all(axis=0).any())


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Conditions on the elements of one branch.

    Attributes:
        conditions: the conditions.
        reach: for each condition, the number of failing samples in which a wrong element meets the
            condition.
        contradictions: for each condition, the number of passing samples in which an element meets
            the condition.
        wrong: for each condition, a mask of the wrong elements that meet the condition.
        right: for each condition, a mask of the right elements that meet the condition.
    """

    conditions: list[Condition]
    reach: Array
    contradictions: Array
    wrong: Array
    right: Array

    def consistent(self, least: int) -> list[int]:
        """Return the indices of the conditions that no passing sample contradicts.

        Conditions that fewer than ``least`` failing samples meet are left out.
        """
        return np.flatnonzero((self.reach >= least) & (self.contradictions == 0)).tolist()

    def promising(self, least: int, *, partial: bool) -> list[int]:
        """Return the indices of the conditions to which a second condition is added.

        Conditions that the fewest passing samples contradict come first. Conditions that fewer than
        ``least`` failing samples meet are left out. With ``partial``, conditions that many failing
        samples meet are also preferred.
        """
        usable = np.flatnonzero((self.reach >= least) & (self.contradictions > 0))
        costs = np.array([condition.cost for condition in self.conditions])
        score = self.contradictions / max(1, self.contradictions.max(initial=0))
        if partial:
            score = score - self.reach / max(1, self.reach.max(initial=0))
        return usable[np.argsort((score + 0.02 * costs)[usable], kind="stable")][
            :BEAM_WIDTH
        ].tolist()


def _cost(conditions: Sequence[Condition]) -> float:
    return sum(condition.cost for condition in conditions) + 0.5 * (len(conditions) - 1)


def meeting_columns(
    conditions: Sequence[Condition], table: Array | Mapping[int, Array], columns: int | None = None
) -> Array:
    """For each condition, return a mask of the table columns in which the condition holds.

    Args:
        conditions: the conditions.
        table: the values of each feature in all columns, by the index of the feature.
        columns: the number of columns; required if the table is not an array.
    """
    width = table.shape[1] if isinstance(table, np.ndarray) else columns or 0
    holds = np.empty((len(conditions), width), bool)
    with np.errstate(all="ignore"):
        for row, condition in zip(holds, conditions, strict=True):
            row[:] = condition.test(table[condition.feature])
    return holds


def meeting_elements(
    paths: Sequence[tuple[Condition, ...]], columns: Array
) -> Iterator[tuple[tuple[Condition, ...], Array]]:
    """For each path, yield its conditions and a mask of the elements that meet all of them.

    A condition that several paths share is evaluated only once.

    Args:
        paths: the conditions of each path.
        columns: the values of the features, with one column for each element.
    """
    parts = list({id(part): part for conditions in paths for part in conditions}.values())
    holds = dict(zip(map(id, parts), meeting_columns(parts, columns), strict=True))
    for conditions in paths:
        yield conditions, np.logical_and.reduce([holds[id(part)] for part in conditions])


def _met(holds: Array, owners: Array) -> Array:
    """For each condition and each sample, return whether any element meets the condition.

    Args:
        holds: for each condition, a mask of the elements that meet the condition.
        owners: for each element, the index of its sample, in ascending order.
    """
    if not owners.size:
        return np.zeros((len(holds), 0), bool)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.asarray(np.logical_or.reduceat(holds, starts, axis=1))
