"""``onnxopt fuzz``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from onnxopt_cli.cli.completion import complete_our_operator
from onnxopt_cli.cli.shared_options import (
    FiniteNumber,
    opened_cluster,
    option,
    option_of,
    options_of,
)
from onnxopt_cli.config.run_config import (
    ClusterConfig,
    Execution,
    Filters,
    Limits,
    RunConfig,
)
from onnxopt_cli.errors import NothingSelected, UsageError

#: Tried where neither a number nor a time is given.
_EXAMPLES = 2000
#: An example is small, and a hang is waited for many times over to make it smaller.
_TIMEOUT = 10.0
#: More than a finding takes; what explains one decides which failures are like it, so that the same
#: seed gives the same findings only where the time is enough.
_EXPLAIN_TIME = 60.0


@click.command("fuzz", context_settings={"default_map": {"timeout": _TIMEOUT}})
@option_of(
    RunConfig,
    "backends",
    "What to test.",
    "backend",
    required=True,
    multiple=False,
    default=None,
)
@option_of(
    Filters,
    "operators",
    "Only this operator. Given several times: any of them.",
    shell_complete=complete_our_operator,
)
@option(
    "--exclude-operator NAME",
    "Not this operator.",
    "excluded",
    multiple=True,
    shell_complete=complete_our_operator,
)
@option(
    "--single-nodes",
    "Draw no models of several nodes: for a backend that runs nodes one by one.",
    is_flag=True,
)
@option(
    "--examples N",
    f"Try so many examples.  [default: {_EXAMPLES}, or no limit beside --time]",
    type=click.IntRange(min=1),
)
@option("--time SECONDS", "Search for so long.", "seconds", type=FiniteNumber(min=0, min_open=True))
@option("--seed", "The same seed tries the same examples.", type=click.IntRange(min=0), default=0)
@option(
    "-o, --output DIR",
    "Where failures are kept, as cases; those of earlier runs are replayed first.",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("fuzz"),
)
@option_of(RunConfig, "explain")
@option_of(
    RunConfig,
    "explain_time",
    f"Time limit of the search for known mistakes.  [default: {_EXPLAIN_TIME:g} for each failure]",
)
@option_of(Execution, "lowering")
@option_of(RunConfig, "shard", "Only part I of N of the examples.")
@option_of(Execution, "isolation")
@options_of(Limits)
@options_of(ClusterConfig)
def command(operators: tuple[str, ...], excluded: tuple[str, ...], **options: Any) -> int:
    """Look for examples on which a backend fails.

    Attributes, shapes, types and numbers are drawn, also such that a right backend must refuse. A
    failure is made as small as possible, explained and kept as a case; then the search goes on for
    failures of other kinds.

    \b
    onnxopt fuzz -b onnxruntime --examples 10000
    onnxopt fuzz -b python:my_backend.py:Backend --operator Adam --time 600
    onnxopt run fuzz -b python:my_backend.py:Backend

    Exits with 1 if there are failures, or the backend fails outside of the examples.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli._api import Shard
    from onnxopt_cli.cli.console import note
    from onnxopt_cli.cli.fuzz_display import FuzzDisplay
    from onnxopt_cli.fuzz.cluster_search import open_search
    from onnxopt_cli.fuzz.driver import Task
    from onnxopt_cli.fuzz.kept_cases import keep
    from onnxopt_cli.fuzz.search import chosen_operators
    from onnxopt_cli.report.diff_text import headline
    from onnxopt_cli.workers.interruption import interruptible

    chosen = chosen_operators(operators, excluded)
    _require_folder(options["output"])
    examples = options["examples"]
    if examples is None and options["seconds"] is None:
        examples = _EXAMPLES
    only = [f"--operator {name}" for name in operators]
    only += [f"--exclude-operator {name}" for name in excluded]
    only += ["--single-nodes"] * options["single_nodes"]
    source = " ".join(["onnxopt fuzz", *only, f"-b {options['backend']} --seed {options['seed']}"])
    seconds = _EXPLAIN_TIME if options["explain_time"] is None else options["explain_time"]
    shard = Shard.parse(options["shard"]) if options["shard"] else None
    with (
        interruptible() as interruption,
        opened_cluster(ClusterConfig.of(options), interruption, "hypothesis") as cluster,
    ):
        display = FuzzDisplay(examples, options["seconds"], cluster)
        task = Task(
            chosen,
            options["backend"],
            Execution.of(options),
            cluster=cluster,
            seed=options["seed"],
            examples=examples,
            seconds=options["seconds"],
            memory=options["output"] / ".examples",
            single_nodes=options["single_nodes"],
            shard=shard,
            explain_time=seconds if options["explain"] else 0.0,
            tried=display.tried,
            shrinking=display.shrinking,
        )
        with open_search(task, interruption, note) as search, display:
            for finding in search.run():
                broken = finding.trial.example.breach
                said = ": ".join(filter(None, (headline(finding.result), broken)))
                display.found(finding, said, keep(finding, options["output"], said, source))
            incidents = search.outside()
            for incident in incidents:
                display.outside(incident)
    display.finish(search.tried, options)
    failed = interruption.exit_code or int(bool(search.findings.all or incidents))
    # A shard of few examples may have none, as one of few cases.
    if not (failed or search.tried or shard):
        raise NothingSelected("no example was tried", hint="--time is too short")
    return failed


def _require_folder(folder: Path) -> None:
    """Refuse a folder in which no failure could be kept, before one is looked for."""
    above = next(it for it in (folder.absolute(), *folder.absolute().parents) if it.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"-o {folder}: nothing can be written in {above}")
