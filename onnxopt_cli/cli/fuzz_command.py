"""``onnxopt fuzz``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt_cli.cli.completion import complete_our_operator
from onnxopt_cli.cli.console import note, show_progress
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
from onnxopt_cli.core.files import require_output_folder
from onnxopt_cli.errors import NothingSelected, UsageError
from onnxopt_cli.workers.interruption import interruptible

if TYPE_CHECKING:
    from onnxopt_cli.fuzz.search import Chosen

#: Number of examples to try if neither --examples nor --time is given.
_EXAMPLES = 2000
#: The default time limit of an example in seconds. The limit is short, because examples are small.
#: Furthermore, if an example hangs, each step of shrinking takes as long as the limit.
_TIMEOUT = 10.0
#: The default time limit of the search for an explanation in seconds; a search usually takes less.
#: Failures with the same explanation are grouped. If a search is stopped early, the findings for a
#: seed may therefore change.
_EXPLAIN_TIME = 60.0


@click.command("fuzz", context_settings={"default_map": {"timeout": _TIMEOUT}})
@option_of(
    RunConfig,
    "backends",
    "The backend to test.",
    "backend",
    required=True,
    multiple=False,
    default=None,
)
@option_of(
    Filters,
    "operators",
    "Only this operator of onnxopt or ONNX. May be given several times.",
    shell_complete=complete_our_operator,
)
@option(
    "--exclude-operator NAME",
    "Exclude this operator. May be given several times.",
    "excluded",
    multiple=True,
    shell_complete=complete_our_operator,
)
@option(
    "--single-nodes",
    "Generate only models of one node, for a backend that runs nodes one by one.",
    is_flag=True,
)
@option(
    "--graphs",
    "Generate only random graphs of 2 to 18 common ONNX operators.",
    is_flag=True,
)
@option(
    "--examples N",
    f"Number of examples.  [default: {_EXAMPLES}; no limit with --time]",
    type=click.IntRange(min=1),
)
@option(
    "--time SECONDS",
    "Time limit of the search.",
    "seconds",
    type=FiniteNumber(min=0, min_open=True),
)
@option("--seed N", "Seed of the examples.", type=click.IntRange(min=0), default=0)
@option(
    "-o, --output DIR",
    "Folder where failures are kept as cases; cases of earlier searches run first.",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("fuzz"),
)
@option_of(RunConfig, "explain")
@option_of(
    RunConfig,
    "explain_time",
    f"Time limit of the search for causes.  [default: {_EXPLAIN_TIME:g} for each failure]",
)
@option_of(Execution, "lowering")
@option_of(RunConfig, "shard", "Only part I of N of the examples.")
@option_of(Execution, "isolation")
@options_of(Limits)
@options_of(ClusterConfig)
def command(operators: tuple[str, ...], excluded: tuple[str, ...], **options: Any) -> int:
    """Search for examples on which a backend fails.

    Attributes, shapes, types and values are random; some examples are invalid, and a correct
    backend must reject them. A failure is shrunk, explained and kept as a case; then the search
    continues for failures of other kinds.

    \b
    onnxopt fuzz -b onnxruntime --examples 10000
    onnxopt fuzz -b python:my_backend.py:Backend --operator Adam --time 600
    onnxopt fuzz -b onnxruntime --graphs
    onnxopt run fuzz -b python:my_backend.py:Backend

    Exits with 1 if an example fails, or if the backend fails outside of the examples.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli._api import Shard
    from onnxopt_cli.cli.fuzz_display import FuzzDisplay
    from onnxopt_cli.fuzz.driver import Task
    from onnxopt_cli.fuzz.findings import keep
    from onnxopt_cli.fuzz.search import open_search
    from onnxopt_cli.report.view.result_view import headline

    if not options["backend"]:
        raise UsageError("no backend to test", hint="name one: -b onnxruntime")
    chosen = _chosen(operators, excluded, options)
    require_output_folder("-o", options["output"])
    examples = options["examples"]
    if examples is None and options["seconds"] is None:
        examples = _EXAMPLES
    source = _command_line(operators, excluded, options)
    seconds = _EXPLAIN_TIME if options["explain_time"] is None else options["explain_time"]
    shard = Shard.parse(options["shard"]) if options["shard"] else None
    with (
        interruptible() as interruption,
        opened_cluster(ClusterConfig.of(options), interruption, "hypothesis") as cluster,
    ):
        display = FuzzDisplay(examples, options["seconds"], cluster)
        task = Task(
            chosen.operators,
            options["backend"],
            Execution.of(options),
            cluster=cluster,
            seed=options["seed"],
            examples=examples,
            seconds=options["seconds"],
            memory=options["output"] / ".examples",
            generated=chosen.generated,
            single_nodes=options["single_nodes"],
            graphs=options["graphs"],
            shard=shard,
            explain_time=seconds if options["explain"] else 0.0,
            tried=display.tried,
            shrinking=display.shrinking,
        )
        with open_search(task, interruption, note, show_progress) as search, display:
            for finding in search.run():
                broken = finding.trial.example.breach
                title = ": ".join(filter(None, (headline(finding.result), broken)))
                display.found(finding, title, keep(finding, options["output"], title, source))
            incidents = search.outside()
            for incident in incidents:
                display.outside(incident)
    display.finish(search.tried, options, interrupted=bool(interruption.signal))
    failed = interruption.exit_code or int(bool(search.findings.all or incidents))
    # A shard may be empty if there are few examples.
    if not (failed or search.tried or shard):
        raise NothingSelected("no example was tried", hint="--time is too short")
    return failed


def _chosen(
    operators: Sequence[str], excluded: Sequence[str], options: Mapping[str, Any]
) -> Chosen:
    """Return the operators to test; none for random graphs, which contain any operators."""
    # Imported late, because the import is slow, and help and completion do not need it.
    from onnxopt_cli.fuzz.search import Chosen, chosen_operators

    if not options["graphs"]:
        return chosen_operators(operators, excluded)
    if operators or excluded or options["single_nodes"]:
        raise UsageError(
            "--graphs chooses operators by itself",
            hint="omit --operator, --exclude-operator and --single-nodes",
        )
    return Chosen([], [])


def _command_line(
    operators: Sequence[str], excluded: Sequence[str], options: Mapping[str, Any]
) -> str:
    """Return the command that repeats the search; stored cases state it as their source."""
    words = ["onnxopt fuzz"]
    words += [f"--operator {name}" for name in operators]
    words += [f"--exclude-operator {name}" for name in excluded]
    words += ["--graphs"] * options["graphs"]
    words += ["--single-nodes"] * options["single_nodes"]
    words.append(f"-b {options['backend']} --seed {options['seed']}")
    return " ".join(words)
