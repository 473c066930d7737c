"""``onnxopt audit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt_cli.cli.completion import complete_our_operator
from onnxopt_cli.cli.shared_options import (
    jobs_option,
    operator_option,
    profile_option,
    targets_argument,
    tolerance_option,
)

if TYPE_CHECKING:
    from onnxopt_cli.cases.collect import Collection
    from onnxopt_cli.core.case import Case


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
@click.option(
    "--planted",
    is_flag=True,
    help="Put errors into right outputs instead, of any operators, and show what each tolerance "
    "catches.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also list redundant and weak cases; slow.")
def command(targets: tuple[str, ...], operators: tuple[str, ...], **options: Any) -> int:
    """Grade cases: which wrong implementations do they reject?

    Every case is put to named wrong implementations and to automatic mutants of the formula, which
    it should reject, and to right implementations that round differently, which it must not.

    \b
    onnxopt audit cases/
    onnxopt audit spec --tolerance onnx
    onnxopt audit onnx-node --planted   what do ONNX's tolerance and ours catch?

    Exits with 1 if a wrong implementation survives or a right one is rejected; with --planted, if
    neighbours may be exchanged in an output that has to be exact.
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
    if options["planted"]:
        return _planted(collection, chosen, options)
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


def _planted(collection: Collection, chosen: Sequence[Case], options: Mapping[str, Any]) -> int:
    from onnxopt_cli.cli.console import Ticker, stderr, stdout
    from onnxopt_cli.core.files import write_atomically
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.errors import NothingSelected
    from onnxopt_cli.grade.planted import EXCHANGED, plant
    from onnxopt_cli.report.audit_report import planted_json, planted_page

    for problem in collection.problems:
        stderr().print(f"invalid {printable(str(problem))}")
    doing = "putting errors into the outputs of every case"
    with stderr().status(doing) as status:
        found = plant(chosen, options["jobs"], Ticker(doing, status.update))
    if not found:
        raise NothingSelected(f"none of {len(chosen)} cases has outputs to put errors into")
    for renderable in planted_page(found):
        stdout().print(renderable)
    missed = [it for it in found if it.moves and it.error == EXCHANGED and not it.conditioned]
    for it in missed:
        stdout().print(f"not caught: {it.error} in {printable(it.case)}", soft_wrap=True)
    if options["json_path"] is not None:
        write_atomically(options["json_path"], planted_json(found).encode())
    return 2 if collection.problems else int(bool(missed))
