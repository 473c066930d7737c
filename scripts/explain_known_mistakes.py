"""Run every known mistake as a backend, and check that the explanation names the mistake.

    python scripts/explain_known_mistakes.py [--sample N] [--seed N] [OPERATOR ...]

Each mistake runs the suite of its operator, and its failures are explained like the failures of a
backend. The script counts the mistakes that are explained by their own name or by the name of an
equivalent mistake. A mistake that only rejects valid cases is not explained, because errors can
have many causes. A run on all mistakes of all operators takes an hour. With ``--sample``, only N
mistakes of each operator run. The script exits with 1 if less than 97 % of the mistakes are
explained correctly.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from onnxopt_cli.analysis.audit import AuditedCase, find_trials
from onnxopt_cli.analysis.explanation.explain import explain
from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.core.record import UNEXPLAINED
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.known_mistakes import known_mistakes
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.catalogue import conformance_suites, suite_cases
from onnxopt_cli.workers.forked_processes import parallel

REQUIRED_SHARE = 0.97


def main() -> int:
    """Explain all mistakes or a sample; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = Random(options.seed)  # noqa: S311 - not for secrets
    cases = {case.id: case for suite in conformance_suites() for case in suite_cases(suite)}
    trials, _ = find_trials(list(cases.values()), Judging())
    totals: Counter[str] = Counter()
    for operator in registry().operators:
        if options.operators and operator.name not in options.operators:
            continue
        mistakes = {mistake.name: mistake for mistake in known_mistakes(operator)}
        sample = list(mistakes.values())
        if options.sample is not None:
            sample = random.sample(sample, min(options.sample, len(sample)))
        operator_trials = trials[operator.name]
        explain_one = partial(explain_mistake, operator_trials, cases)
        counts: Counter[str] = Counter()
        explanations = parallel(explain_one, sample, available_jobs(), 1)
        for mistake, (names, is_complete) in zip(sample, explanations, strict=True):
            if names == (mistake.name,):
                verdict = "own name"
            elif not names and not returns_wrong_outputs(mistake, operator_trials):
                verdict = "only rejects"
            elif is_complete and len(names) == 1 and names[0] in mistakes and failing_cases(
                mistakes[names[0]], operator_trials
            ) == failing_cases(mistake, operator_trials):  # fmt: skip
                verdict = "equivalent"
            else:
                verdict = "WRONG"
            counts[verdict] += 1
            if verdict != "own name":
                print(f"  {mistake.name}: {', '.join(names) or 'not explained'} ({verdict})",
                      flush=True)  # fmt: skip
        print(f"{operator.name}: of {len(sample)} mistakes, {counts['own name']} by their own name,"
              f" {counts['equivalent']} by an equivalent one")  # fmt: skip
        totals.update(counts)
    correct, total = totals["own name"] + totals["equivalent"], totals.total()
    print(f"{correct} of {total} ({correct / total:.1%}), {totals['WRONG']} wrong or missing")
    return int(correct < REQUIRED_SHARE * total)


def explain_mistake(
    trials: Sequence[AuditedCase], cases: Mapping[str, Case], mistake: Implementation
) -> tuple[tuple[str, ...], bool]:
    """Return the mistakes that the explanation names, and whether they explain all failures."""
    explanations = explain([run_trial(mistake, trial, cases) for trial in trials], cases)
    if not explanations:
        return (), False
    explanation = explanations[0]
    return explanation.known_mistakes, not explanation.others.get(UNEXPLAINED)


def run_trial(mistake: Implementation, trial: AuditedCase, cases: Mapping[str, Case]) -> Result:
    """Run a mistake on a case as if it were a backend."""
    outputs = mistake.run(trial.call)
    passes = bool(outputs) and trial.excess(outputs) <= 1
    outcome = Outcome.PASS if passes else Outcome.FAIL if outputs else Outcome.ERROR
    returned = () if passes else tuple(outputs)
    location, operators = cases[trial.case].location, (trial.call.operator.name,)
    return Result(trial.case, location, operators, mistake.name, outcome, returned=returned)


def failing_cases(mistake: Implementation, trials: Sequence[AuditedCase]) -> set[str]:
    """Return the cases that a mistake fails."""
    return {trial.case for trial in trials if trial.excess(mistake.run(trial.call)) > 1}


def returns_wrong_outputs(mistake: Implementation, trials: Sequence[AuditedCase]) -> bool:
    """Return whether a mistake returns outputs in at least one case that it fails."""
    failing = failing_cases(mistake, trials)
    return any(mistake.run(trial.call) for trial in trials if trial.case in failing)


if __name__ == "__main__":
    sys.exit(main())
