"""Take every named wrong implementation as a backend and see whether its failures are explained.

    python scripts/explain_every_deviation.py

Each is put to the suites of its operator; what it fails is handed to the explanation as if a
backend had returned it. Prints for how many the explanation has their own name; the others must be
named as one that does the same in every case, or only refuse cases, which nothing explains.
"""

from __future__ import annotations

import sys

from onnxopt_cli.cases.suites.suites import suite_cases
from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.core.case import Location
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.grade.audit import AuditedCase, find_trials
from onnxopt_cli.grade.explain import explain
from onnxopt_cli.grade.parallel import parallel
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.readings.implementation import Implementation
from onnxopt_cli.readings.mistakes.deviate import deviations
from onnxopt_cli.run.answer_key import JudgeOptions

#: What judges the operators of training and of pruning.
_SUITES = ("conformance", "pruning")
#: The share of a registry that must be explained by its own name.
_WANTED = 0.95


def main() -> int:
    """Explain all; return the exit code."""
    cases = {case.id: case for suite in _SUITES for case in suite_cases(suite)}
    trials, _ = find_trials(list(cases.values()), JudgeOptions())
    total = all_own = different = 0
    for operator in OPERATORS:
        known = deviations(operator)
        mine = trials[operator.name]

        def named(deviation: Implementation, mine: list[AuditedCase] = mine) -> tuple[str, ...]:
            results = [_result(deviation, trial, cases[trial.case].location) for trial in mine]
            found = explain(results, cases)
            return found[0].deviations if found else ()

        names = parallel(named, known, available_jobs())
        own = sum(found == (it.name,) for it, found in zip(known, names, strict=True))
        print(f"{operator.name}: {own} of {len(known)} by their own name")
        by_name = {it.name: it for it in known}
        for deviation, found in zip(known, names, strict=True):
            refuses = not found and not _returns_where_it_fails(deviation, mine)
            if refuses:
                print(f"  {deviation.name}: not explained, as it only refuses")
            elif found != (deviation.name,):
                alike = len(found) == 1 and _failing(by_name[found[0]], mine) == _failing(
                    deviation, mine
                )
                different += not alike
                what = "which returns the same in the same cases" if alike else "ANOTHER"
                print(f"  {deviation.name}: {', '.join(found) or 'not explained'}, {what}")
        total += len(known)
        all_own += own
    print(f"{all_own} of {total} ({all_own / total:.1%}), {different} of the others by another")
    return int(all_own < _WANTED * total or different > 0)


def _failing(deviation: Implementation, trials: list[AuditedCase]) -> set[str]:
    """Return the cases that it fails; what explains it returns there what it does."""
    return {it.case for it in trials if it.excess(deviation.run(it.call)) > 1}


def _returns_where_it_fails(deviation: Implementation, trials: list[AuditedCase]) -> bool:
    """Tell whether it returns something in a case that it fails."""
    failing = _failing(deviation, trials)
    return any(deviation.run(it.call) for it in trials if it.case in failing)


def _result(deviation: Implementation, trial: AuditedCase, location: Location) -> Result:
    outputs = deviation.run(trial.call)
    passes = bool(outputs) and trial.excess(outputs) <= 1
    outcome = Outcome.PASS if passes else Outcome.FAIL if outputs else Outcome.ERROR
    returned = () if passes else tuple(outputs)
    operators = (trial.call.operator.name,)
    return Result(trial.case, location, operators, deviation.name, outcome, returned=returned)


if __name__ == "__main__":
    sys.exit(main())
