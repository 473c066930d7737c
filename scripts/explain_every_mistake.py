"""Take every named wrong implementation as a backend and see whether its failures are explained.

    python scripts/explain_every_mistake.py [--sample N] [--seed N] [OPERATOR ...]

Each is put to the suites of its operator; what it fails is handed to the explanation as if a
backend had returned it. Prints for how many the explanation has their own name, or that of one that
does the same in every case. Those that only refuse cases count as not named: nothing explains that.
All mistakes of all operators take an hour; a sample has so many of each operator.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from random import Random

from onnxopt_cli.analysis.audit import AuditedCase, find_trials
from onnxopt_cli.analysis.explain import explain
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.record import UNEXPLAINED
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.known_mistakes import known_mistakes
from onnxopt_cli.operators.registry import OPERATORS
from onnxopt_cli.suites.catalogue import suite_cases
from onnxopt_cli.workers.parallel import parallel

#: What judges the operators of training and of pruning.
_SUITES = ("conformance", "pruning")
#: The share of a registry that must be explained by its own name, or by an equal one.
_WANTED = 0.97


def main() -> int:
    """Explain all, or a sample; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = Random(options.seed)  # noqa: S311 - no secret
    cases = {case.id: case for suite in _SUITES for case in suite_cases(suite)}
    trials, _ = find_trials(list(cases.values()), Judging())
    total = named_well = different = 0
    for operator in OPERATORS:
        if options.operators and operator.name not in options.operators:
            continue
        known = list(known_mistakes(operator))
        by_name = {it.name: it for it in known}
        if options.sample is not None:
            known = random.sample(known, min(options.sample, len(known)))
        mine = trials[operator.name]

        def named(
            mistake: Implementation, mine: Sequence[AuditedCase] = mine
        ) -> tuple[tuple[str, ...], bool]:
            results = [_result(mistake, trial, cases[trial.case].location) for trial in mine]
            found = explain(results, cases)
            whole = bool(found) and not found[0].others.get(UNEXPLAINED)
            return found[0].known_mistakes if found else (), whole

        own = equal = 0
        explained = parallel(named, known, available_jobs(), 1)
        for mistake, (found, whole) in zip(known, explained, strict=True):
            if found == (mistake.name,):
                own += 1
                continue
            if not found and not _returns_where_it_fails(mistake, mine):
                print(f"  {mistake.name}: not explained, as it only refuses")
                continue
            alike = (
                whole
                and len(found) == 1
                and found[0] in by_name
                and _failing(by_name[found[0]], mine) == _failing(mistake, mine)
            )
            equal += alike
            different += not alike
            what = "which returns the same in the same cases" if alike else "ANOTHER"
            print(f"  {mistake.name}: {', '.join(found) or 'not explained'}, {what}", flush=True)
        print(f"{operator.name}: of {len(known)} {own} by their own name, {equal} by an equal one")
        total += len(known)
        named_well += own + equal
    print(f"{named_well} of {total} ({named_well / total:.1%}), {different} by another or by none")
    return int(named_well < _WANTED * total)


def _failing(mistake: Implementation, trials: Sequence[AuditedCase]) -> set[str]:
    """Return the cases that it fails; what explains it returns there what it does."""
    return {it.case for it in trials if it.excess(mistake.run(it.call)) > 1}


def _returns_where_it_fails(mistake: Implementation, trials: Sequence[AuditedCase]) -> bool:
    """Tell whether it returns something in a case that it fails."""
    failing = _failing(mistake, trials)
    return any(mistake.run(it.call) for it in trials if it.case in failing)


def _result(mistake: Implementation, trial: AuditedCase, location: Location) -> Result:
    outputs = mistake.run(trial.call)
    passes = bool(outputs) and trial.excess(outputs) <= 1
    outcome = Outcome.PASS if passes else Outcome.FAIL if outputs else Outcome.ERROR
    returned = () if passes else tuple(outputs)
    operators = (trial.call.operator.name,)
    return Result(trial.case, location, operators, mistake.name, outcome, returned=returned)


if __name__ == "__main__":
    sys.exit(main())
