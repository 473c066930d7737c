"""``onnxopt audit``."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from onnxopt_cli.cli.completion import complete_our_operator
from onnxopt_cli.cli.shared_options import (
    jobs_option,
    operator_option,
    profile_option,
    targets_argument,
    tolerance_option,
)


@click.command("audit")
@targets_argument
@operator_option(complete_our_operator)
@tolerance_option
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="GLOB",
    help="Let wrong implementations of this name survive.",
)
@jobs_option
@profile_option
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all of it as JSON.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also list redundant and weak cases; slow.")
def command(targets: tuple[str, ...], operators: tuple[str, ...], **options: Any) -> int:
    """Grade cases: which wrong implementations do they reject?

    Every case is put to named wrong implementations and to automatic mutants of the formula, which
    it should reject, and to right implementations that round differently, which it must not.

    \b
    onnxopt audit cases/
    onnxopt audit spec --tolerance onnx

    Exits with 1 if a wrong implementation survives or a right one is rejected.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.collect import collect
    from onnxopt_cli.cli.console import Ticker, stderr, stdout
    from onnxopt_cli.cli.environment import go_on_without_reader
    from onnxopt_cli.core.files import write_atomically
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.errors import NothingSelected
    from onnxopt_cli.grade.audit import audit, find_trials
    from onnxopt_cli.report.audit_report import audit_json, audit_page
    from onnxopt_cli.run.answer_key import JudgeOptions, ToleranceRule
    from onnxopt_cli.run.select import Selection

    rule, json_path, allowed = options["rule"], options["json_path"], options["allowed"]
    if json_path is not None:
        go_on_without_reader()
    collection = collect(targets)
    chosen, _ = Selection(operators=operators).choose(collection.cases)
    trials, problems = find_trials(chosen, JudgeOptions(rule=ToleranceRule(rule) if rule else None))
    problems = [*collection.problems, *problems]
    for problem in problems:
        stderr().print(f"invalid {printable(str(problem))}")
    if not any(trials.values()):
        raise NothingSelected(
            f"none of {len(chosen)} cases is one node of an operator with a formula"
        )
    doing = "putting every implementation to every case"
    with stderr().status(doing) as status:
        tick = Ticker(doing, status.update)
        grades = audit(trials, options["jobs"], tick, thorough=options["verbose"])
    for grade in grades:
        for renderable in audit_page(grade, verbose=options["verbose"]):
            stdout().print(renderable)
    if json_path is not None:
        write_atomically(json_path, audit_json(grades).encode())
    survivors = {survivor.name for grade in grades for survivor in grade.survivors}
    wrong = {name for name in survivors if not any(fnmatchcase(name, it) for it in allowed)}
    return 2 if problems else int(bool(wrong) or any(grade.false_alarms for grade in grades))
