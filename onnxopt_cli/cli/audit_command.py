"""``onnxopt audit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt_cli.cli.completion import complete_our_operator
from onnxopt_cli.cli.shared_options import (
    opened_cluster,
    option,
    option_of,
    options_of,
    targets_argument,
)
from onnxopt_cli.config.run_config import (
    ClusterConfig,
    Execution,
    Filters,
    Judging,
    RunConfig,
)

if TYPE_CHECKING:
    from onnxopt_cli.cases.case import Case
    from onnxopt_cli.errors import Fault


@click.command("audit")
@targets_argument
@option_of(
    Filters,
    "operators",
    "Only this operator. Given several times: any of them.",
    shell_complete=complete_our_operator,
)
@option_of(Judging, "tolerance")
@option("--allow GLOB", "Let wrong implementations of this name survive.", "allowed", multiple=True)
@option_of(Execution, "jobs")
@option_of(
    RunConfig,
    "shard",
    "Only part I of N of the implementations; --json writes what --join takes.",
)
@option(
    "--join JSON",
    "Take the verdicts of this shard; give it for each.",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
)
@options_of(ClusterConfig)
@option(
    "--json",
    "Also write all of it as JSON.",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
)
@option(
    "--injected",
    "Put errors into right outputs instead, of any operators, and show what each tolerance "
    "catches.",
    is_flag=True,
)
@option("-v, --verbose", "Also list redundant and inconclusive cases; slow.", is_flag=True)
def command(targets: tuple[str, ...], operators: tuple[str, ...], **options: Any) -> int:
    """Grade cases: which wrong implementations do they reject?

    Every case is put to named wrong implementations and to automatic mutants of the formula, which
    it should reject, and to right implementations that round differently, which it must not.

    \b
    onnxopt audit cases/
    onnxopt audit spec --tolerance onnx
    onnxopt audit onnx-node --injected   what do ONNX's tolerance and ours catch?

    Exits with 1 if a wrong implementation survives or a right one is rejected; with --injected, if
    neighbours may be exchanged in an output that has to be exact.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.cli.console import tell_problems, ticking
    from onnxopt_cli.cli.environment import silence_output
    from onnxopt_cli.core.files import require_place, write_atomically

    if options["json_path"] is not None:
        require_place("--json", options["json_path"])
        silence_output()
    problems: list[Fault] = []
    chosen = api.load_cases(*targets, operators=operators, invalid=problems.extend, telling=ticking)
    tell_problems(problems)
    if not chosen:
        return 2
    if options["injected"]:
        if options["cluster"] or options["shard"] or options["join"]:
            raise click.UsageError("--injected is done here: no --cluster, --shard or --join")
        wrong, document = _injected(chosen, options)
    else:
        wrong, document = _scored(chosen, options, problems)
    if options["json_path"] is not None:
        write_atomically(options["json_path"], document.encode())
    return 2 if problems else wrong


def _scored(
    chosen: Sequence[Case], options: Mapping[str, Any], problems: list[Fault]
) -> tuple[int, str]:
    """Show what implementations become of; return the exit code, and all of it as JSON."""
    from onnxopt_cli import _api as api
    from onnxopt_cli.cli.console import (
        stdout,
        tell_problems,
        ticking,
    )
    from onnxopt_cli.errors import NothingSelected
    from onnxopt_cli.report.audit_report import audit_json, audit_page
    from onnxopt_cli.workers.interruption import Interruption

    shard = api.Shard.parse(options["shard"]) if options["shard"] else None
    verbose, known = options["verbose"], len(problems)
    with (
        opened_cluster(ClusterConfig.of(options), Interruption()) as cluster,
        ticking("auditing", "implementations", cluster) as tick,
    ):
        scores = api.audit(
            chosen,
            judging=Judging.of(options),
            jobs=options["jobs"],
            thorough=verbose,
            progress=tick,
            invalid=problems.extend,
            cluster=cluster,
            shard=shard,
            join=options["join"],
        )
    tell_problems(problems[known:])
    if not scores:
        raise NothingSelected(
            f"none of {len(chosen)} cases is one node of an operator with a formula"
        )
    for score in scores:
        for renderable in audit_page(score, verbose=verbose):
            stdout().print(renderable)
    survivors = {survivor.name for score in scores for survivor in score.survivors}
    wrong = {it for it in survivors if not any(fnmatchcase(it, g) for g in options["allowed"])}
    code = int(bool(wrong) or any(score.false_alarms for score in scores))
    return code, audit_json(scores, shard)


def _injected(chosen: Sequence[Case], options: Mapping[str, Any]) -> tuple[int, str]:
    """Show which errors in right outputs are caught; return as :func:`_scored` does."""
    from onnxopt_cli import _api as api
    from onnxopt_cli.cli.console import stdout, ticking
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.errors import NothingSelected
    from onnxopt_cli.report.audit_report import injected_json, injected_page

    with ticking("injecting errors", "cases") as tick:
        found = api.inject_errors(chosen, jobs=options["jobs"], progress=tick)
    if not found:
        raise NothingSelected(f"none of {len(chosen)} cases has outputs to put errors into")
    for renderable in injected_page(found):
        stdout().print(renderable)
    missed = [it for it in found if it.exchange_missed]
    for it in missed:
        stdout().print(f"not caught: {it.error} in {printable(it.case)}", soft_wrap=True)
    return int(bool(missed)), injected_json(found)
