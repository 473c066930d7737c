"""``onnxopt audit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt_cli.cli.completion import complete_operator
from onnxopt_cli.cli.console import note, show_progress, stdout, tell_problems
from onnxopt_cli.cli.environment import silence_output
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
from onnxopt_cli.core.files import require_unused, require_writable_file, write_atomically
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import NothingSelected
from onnxopt_cli.workers.interruption import INTERRUPTED, interruptible

if TYPE_CHECKING:
    from onnxopt_cli.cases.case import Case
    from onnxopt_cli.errors import Fault


@click.command("audit")
@targets_argument
@option_of(
    Filters,
    "operators",
    "Only this operator. May be given several times.",
    shell_complete=complete_operator,
)
@option_of(Judging, "tolerance")
@option(
    "--allow GLOB", "Accept surviving mutants whose name matches GLOB.", "allowed", multiple=True
)
@option_of(Execution, "jobs")
@option_of(
    RunConfig,
    "shard",
    "Only part I of N of the implementations; merge the JSON files with --join.",
)
@option(
    "--join JSON",
    "Merge the JSON file of this shard; give the option for each shard.",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
)
@option(
    "--inputs N",
    "Run surviving mutants of operators without a formula on N further nodes.  [default: 300]",
    type=click.IntRange(min=1),
)
@options_of(ClusterConfig)
@option(
    "--json",
    "Also write the results as JSON.",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
)
@option(
    "--injected",
    "Inject errors into correct outputs of any operators, and show which tolerances detect them.",
    is_flag=True,
)
@option("-v, --verbose", "Also list redundant and inconclusive cases; slow.", is_flag=True)
def command(targets: tuple[str, ...], operators: tuple[str, ...], **options: Any) -> int:
    """Show which wrong implementations the cases reject.

    Every case runs on known mistakes and mutants of its operator, which the case should reject. It
    also runs on reformulations (correct implementations that round differently), which the case
    must accept. For operators without a formula, mutants are derived from the schema and from the
    code of onnx's reference.

    \b
    onnxopt audit cases/
    onnxopt audit spec --tolerance onnx
    onnxopt audit onnx-node --operator Conv
    onnxopt audit onnx-node --injected   compare ONNX's tolerance with ours

    Exits with 1 if a mutant survives or a reformulation is rejected. With --injected, exits with 1
    if an exchange of neighbouring elements is not detected in an output that must be exact.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.cases.case import files_of

    if options["json_path"] is not None:
        require_writable_file("--json", options["json_path"])
        silence_output()
    problems: list[Fault] = []
    chosen = api.load_cases(
        *targets, operators=operators, invalid=problems.extend, open_progress=show_progress
    )
    tell_problems(problems)
    if not chosen:
        return 2
    if (path := options["json_path"]) is not None:
        require_unused([(f"--json {path}", path)], {*files_of(chosen), *options["join"]})
    if options["injected"]:
        if options["cluster"] or options["shard"] or options["join"]:
            raise click.UsageError("--injected excludes --cluster, --shard and --join")
        code, document = _injected(chosen, options)
    else:
        code, document = _scored(chosen, operators, options, problems)
    if code in INTERRUPTED:
        return code
    if options["json_path"] is not None:
        write_atomically(options["json_path"], document.encode())
    return 2 if problems else code


def _scored(
    chosen: Sequence[Case],
    operators: Sequence[str],
    options: Mapping[str, Any],
    problems: list[Fault],
) -> tuple[int, str]:
    """Print the mutation scores; return the exit code and the JSON document.

    After a signal, the scores count only the implementations that are finished.
    """
    from onnxopt_cli import _api as api
    from onnxopt_cli.report.audit_report import audit_json, audit_page

    shard = api.Shard.parse(options["shard"]) if options["shard"] else None
    verbose, known = options["verbose"], len(problems)
    with (
        interruptible() as interruption,
        interruption.at_once(),
        opened_cluster(ClusterConfig.of(options), interruption) as cluster,
        # The progress first counts prepared cases, then judged implementations.
        show_progress("auditing", "steps", cluster) as tick,
    ):
        scores = api.audit(
            chosen,
            judging=Judging.of(options),
            operators=operators,
            jobs=options["jobs"],
            thorough=verbose,
            progress=tick,
            preparing=tick,
            invalid=problems.extend,
            cluster=cluster,
            shard=shard,
            join=options["join"],
            inputs=options["inputs"],
            interruption=interruption,
        )
    tell_problems(problems[known:])
    if not scores and not interruption.signal:
        raise NothingSelected("no case is a single deterministic node, which an audit requires")
    for score in scores:
        stdout().print_page(audit_page(score, verbose=verbose))
    if interruption.signal:
        note("interrupted: the scores count only the implementations that are finished")
        return interruption.exit_code, ""
    survivors = {survivor.name for score in scores for survivor in score.survivors}
    disallowed = {
        name
        for name in survivors
        if not any(fnmatchcase(name, glob) for glob in options["allowed"])
    }
    code = int(bool(disallowed) or any(score.false_alarms for score in scores))
    return code, audit_json(scores, shard)


def _injected(chosen: Sequence[Case], options: Mapping[str, Any]) -> tuple[int, str]:
    """Print which injected errors are detected; return the exit code and the JSON document."""
    from onnxopt_cli import _api as api
    from onnxopt_cli.report.audit_report import injected_json, injected_page

    with show_progress("injecting errors", "cases") as tick:
        injections = api.inject_errors(chosen, jobs=options["jobs"], progress=tick)
    if not injections:
        raise NothingSelected("no case has outputs to inject errors into")
    stdout().print_page(injected_page(injections))
    missed = [injection for injection in injections if injection.exchange_missed]
    for injection in missed:
        line = f"not caught: {injection.error} in {printable(injection.case)}"
        stdout().print_wrapped(line)
    return int(bool(missed)), injected_json(injections)
