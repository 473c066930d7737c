"""``onnxopt locate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onnxopt_cli.cli.completion import complete_target
from onnxopt_cli.cli.shared_options import options_of
from onnxopt_cli.config.run_config import LocateConfig

if TYPE_CHECKING:
    from onnxopt_cli.cases.case import Case


@click.command("locate")
@click.argument("target", metavar="MODEL|CASE", shell_complete=complete_target)
@options_of(LocateConfig)
def command(target: str, **options: Any) -> int:
    """Find the nodes of a model that a backend computes wrongly.

    Each node is judged alone, on inputs from onnx's reference. If all are right, but the model is
    not, the smallest subgraph that fails is found.

    \b
    onnxopt locate model.onnx -b onnxruntime --dim batch=1
    onnxopt locate model.onnx -b python:my_backend.py:Backend --json located.json

    Exits with 0 if the model conforms, 1 if a node or subgraph is wrong.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.cli.console import stdout, ticking
    from onnxopt_cli.errors import UsageError
    from onnxopt_cli.report.located_nodes import (
        exit_code,
        location_lines,
        write_json,
        write_reproductions,
    )
    from onnxopt_cli.workers.interruption import interruptible

    config = LocateConfig.of(options)
    if not config.backends:
        raise UsageError("no backend to test", hint="name one: -b onnxruntime")
    case = _case(target, config)
    with interruptible() as interruption:
        located = api.locate(
            case,
            *config.backends,
            execution=config.execution,
            judging=config.judging,
            interruption=interruption,
            telling=ticking,
        )
    folders = write_reproductions(config.output, located)
    if config.json:
        write_json(config.json, located, folders)
    if str(config.json) != "-":
        for line in location_lines(located, folders, config.backends):
            stdout().print_line(line)
    return interruption.exit_code or exit_code(located)


def _case(target: str, config: LocateConfig) -> Case:
    """Return the only selected case of a target.

    Raises:
        InvalidCase: if the target has faults.
        NothingSelected: if no case is selected.
        UsageError: if several are.
    """
    from onnxopt_cli.cases.select import choose
    from onnxopt_cli.cli.console import note
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.errors import InvalidCase, NothingSelected, UsageError
    from onnxopt_cli.suites.collect import collect

    collection = collect([target], model_inputs=config.model_inputs)
    if collection.problems:
        raise InvalidCase(collection.problems)
    cases, _ = choose(collection.cases, config.filters, note)
    if not cases:
        raise NothingSelected(f"none of {len(collection.cases)} cases is selected")
    if len(cases) > 1:
        raise UsageError(
            f"{printable(target)} has {len(cases)} cases, expected one",
            hint=f"choose one of them, as with -k {cases[0].id}",
        )
    return cases[0]
