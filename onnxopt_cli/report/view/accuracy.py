"""Accuracy of a backend over all cases: error / tolerance, bits lost, distribution of errors.

Every output that is compared with a tolerance is included. If a tolerance is derived, the error is
the distance from the correctly rounded result of the formula; otherwise the error is the distance
from the oracle's result. Outputs whose computation preserves only absolute accuracy have separate
rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from statistics import median

from onnxopt_cli.core.result import ABSOLUTE_ONLY, Diff, Result, short_count, short_error
from onnxopt_cli.core.tolerance import Drawn, NumberText, Provenance
from onnxopt_cli.operators.registry import registry


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of an output of an operator on a backend, summarized over all cases.

    Attributes:
        backend: the backend's name.
        operator: the operator's name.
        output: the name of the output in the specification; several tensors of a node may have the
            same name. If the backend uses an algebraic identity that loses relative accuracy, a
            remark is added to the name.
        provenance: the source of the tolerance.
        tensors: number of judged tensors.
        elements: number of their elements.
        tolerance_used_most: largest error / tolerance of an element; 1.0 is the limit.
        tolerance_used_median: the median over all tensors, where each tensor counts with the median
            error / tolerance of its elements.
        max_ulp: largest distance to the correctly rounded result, in ulp.
        ulp_counts: a histogram of the distances in ulp, as in Diff.
    """

    backend: str
    operator: str
    output: str
    provenance: Provenance
    tensors: int
    elements: int
    tolerance_used_most: float
    tolerance_used_median: float
    max_ulp: int
    ulp_counts: tuple[int, ...]

    @classmethod
    def of(
        cls, backend: str, operator: str, output: str, provenance: Provenance, diffs: Sequence[Diff]
    ) -> Accuracy:
        """Summarize the comparisons of an output in all cases; ``diffs`` must not be empty."""
        return cls(
            backend,
            operator,
            output,
            provenance,
            tensors=len(diffs),
            elements=sum(diff.elements for diff in diffs),
            tolerance_used_most=max(diff.tolerance_used for diff in diffs),
            tolerance_used_median=median(diff.tolerance_used_median for diff in diffs),
            max_ulp=max(diff.max_ulp or 0 for diff in diffs),
            ulp_counts=merged_counts(diffs),
        )

    @property
    def not_finite(self) -> int:
        """The number of elements whose distance to the expected value is not finite."""
        return self.elements - sum(self.ulp_counts)

    @property
    def bits_lost(self) -> float:
        """``log2(1 + max_ulp)``; infinite if :attr:`not_finite` is positive."""
        return math.inf if self.not_finite else math.log2(1 + self.max_ulp)

    def ulp_within(self, share: float) -> int | None:
        """Return the smallest distance in ulp that a share of the elements does not exceed.

        The distance is rounded up to ``2**b - 1``, but not beyond :attr:`max_ulp`. The result is
        None if the share of elements with a finite distance is too small.
        """
        cumulative = accumulate(self.ulp_counts)
        enough = (bits for bits, count in enumerate(cumulative) if count >= share * self.elements)
        return next((min(2**bits - 1, self.max_ulp) for bits in enough), None)


def accuracy(results: Iterable[Result]) -> tuple[Accuracy, ...]:
    """Return the accuracy by backend, operator, output and provenance of the tolerance.

    Backends are in the order of the results.
    """
    groups: defaultdict[tuple[str, str, str, Provenance], list[Diff]] = defaultdict(list)
    backends: dict[str, int] = {}
    for result in results:
        backends.setdefault(result.backend, len(backends))
        for operator, output, diff in _judged(result):
            # Neither a random output nor a text has a numerical error.
            if diff.tolerance is not None and not isinstance(diff.tolerance, Drawn | NumberText):
                key = result.backend, operator, output, diff.tolerance.provenance
                groups[key].append(diff)
    rows = [Accuracy.of(*key, diffs) for key, diffs in groups.items()]
    return tuple(sorted(rows, key=lambda row: (backends[row.backend], row.operator)))


def merged_counts(rows: Iterable[Accuracy | Diff]) -> tuple[int, ...]:
    """Return the sums of the ``ulp_counts`` of several outputs."""
    return tuple(map(sum, zip_longest(*(row.ulp_counts for row in rows), fillvalue=0)))


def _judged(result: Result) -> Iterable[tuple[str, str, Diff]]:
    """Yield the operator, the output and the diff of each tensor whose values were compared.

    If a result passes only because an algebraic identity is accepted, a remark is added to the name
    of the output.
    """
    operator = registry().named(result.operators[0]) if len(result.operators) == 1 else None
    subject = result.operators[0] if len(result.operators) == 1 else "(several)"
    absolute = result.note.startswith(ABSOLUTE_ONLY)
    # The outputs of a node are ordered as X1_new, X2_new, ..., V1_new, V2_new, ...
    names = list(operator.outputs) if operator else []
    groups = max(1, len(result.diffs) // len(names)) if names else 1
    # All parts of a sequence are considered one output.
    stems = list(dict.fromkeys(diff.name.partition("[")[0] for diff in result.diffs))
    for position, diff in enumerate(result.diffs):
        if diff.structure is not None or not diff.elements:
            continue
        if absolute:
            output = f"{diff.name}, {ABSOLUTE_ONLY}"
        elif names:
            if position >= groups * len(names):
                break
            output = names[position // groups]
        else:
            # The names of a model's outputs are arbitrary. Number the outputs instead.
            number = stems.index(diff.name.partition("[")[0]) + 1
            output = f"output {number}" if len(stems) > 1 else "output"
        yield subject, output, diff


#: The titles of the columns of :func:`accuracy_rows`.
COLUMNS = (
    *("backend", "operator", "output", "tolerance"),
    *("error / tolerance", "median", "bits lost", "99% ulp"),
)


def accuracy_rows(rows: Iterable[Accuracy]) -> list[tuple[str, ...]]:
    """Return the accuracy by backend and output as rows of text for :data:`COLUMNS`."""
    return [
        (
            *(row.backend, row.operator, row.output, row.provenance.value),
            short_error(row.tolerance_used_most),
            short_error(row.tolerance_used_median),
            f"{row.bits_lost:.1f}" if row.ulp_counts else "-",
            short_count(row.ulp_within(0.99)),
        )
        for row in rows
    ]
