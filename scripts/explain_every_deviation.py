"""Take every named wrong implementation as a backend and see whether its failures are explained.

    python scripts/explain_every_deviation.py

Each is put to the suites of its operator; what it fails is handed to the explanation as if a
backend had returned it. Prints for how many the explanation has their own name, and the others.
"""

from __future__ import annotations

import sys

from onnxopt_cli.cases.suites import suite_cases
from onnxopt_cli.core.case import Location
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.result import Result
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.readings.deviate import deviations
from onnxopt_cli.readings.implementation import Implementation
from onnxopt_cli.run.audit import Trial, find_trials
from onnxopt_cli.run.expectation import Judging
from onnxopt_cli.run.explain import explain
from onnxopt_cli.run.parallel import available_jobs, parallel

#: What judges the operators of training and of pruning.
_SUITES = ("conformance", "pruning")
#: The share of a registry that must be explained by its own name.
_WANTED = 0.95


def main() -> int:
    """Explain all; return the exit code."""
    cases = {case.id: case for suite in _SUITES for case in suite_cases(suite)}
    trials, _ = find_trials(list(cases.values()), Judging())
    code = 0
    for operator in OPERATORS:
        known = deviations(operator)

        def named(
            deviation: Implementation, mine: list[Trial] = trials[operator.name]
        ) -> tuple[str, ...]:
            results = [_result(deviation, trial, cases[trial.case].location) for trial in mine]
            found = explain(results, cases)
            return found[0].deviations if found else ()

        names = parallel(named, known, available_jobs())
        own = sum(found == (it.name,) for it, found in zip(known, names, strict=True))
        print(f"{operator.name}: {own} of {len(known)} by their own name ({own / len(known):.1%})")
        for deviation, found in zip(known, names, strict=True):
            if found != (deviation.name,):
                print(f"  {deviation.name}: {', '.join(found) or 'not explained'}")
        code |= own < _WANTED * len(known)
    return code


def _result(deviation: Implementation, trial: Trial, location: Location) -> Result:
    outputs = deviation.run(trial.call)
    passes = bool(outputs) and trial.excess(outputs) <= 1
    outcome = Outcome.PASS if passes else Outcome.FAIL if outputs else Outcome.ERROR
    returned = () if passes else tuple(outputs)
    return Result(trial.case, location, (), deviation.name, outcome, returned=returned)


if __name__ == "__main__":
    sys.exit(main())
