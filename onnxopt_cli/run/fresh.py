"""Running cases in an order of their own on a backend that has seen no case yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from onnxopt_cli.core.case import Case
from onnxopt_cli.core.result import Result
from onnxopt_cli.run.executors import Setting, open_executors
from onnxopt_cli.run.rerun import Fresh
from onnxopt_cli.run.runner import Plan, run_case


class RunInterrupted(Exception):
    """The user wants the run to end."""


@contextmanager
def fresh_backend(plan: Plan, backend: str, setting: Setting) -> Iterator[Fresh]:
    """Yield a function that runs cases one after the other on a backend begun anew each time.

    The function raises Interrupted where the user wants the run to end.

    Args:
        plan: how to judge, and what interrupts.
        backend: the backend as the user asked for it.
        setting: how to run it.

    Raises:
        BackendUnavailable: if the backend does not start again.
    """
    with open_executors([backend], replace(setting, jobs=1), plan.interruption) as executors:
        executors[0].ready()
        alone = Plan(
            (),
            executors,
            judging=plan.judging,
            interruption=plan.interruption,
            evidence=plan.evidence,
        )

        def fresh(cases: Sequence[Case]) -> list[Result]:
            executors[0].renew()
            results = [run_case(alone, case)[0] for case in cases]
            if plan.interruption.signal:
                raise RunInterrupted
            return results

        yield fresh
