"""``onnxopt locate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from onnxopt_cli.cli.completion import complete_target
from onnxopt_cli.cli.console import note, show_progress, stdout
from onnxopt_cli.cli.shared_options import PATH, option, options_of, require_built_in
from onnxopt_cli.config.run_config import (
    Execution,
    Judging,
    LocateConfig,
    ModelInputs,
    RunConfig,
)
from onnxopt_cli.core.files import require_output_folder, require_unused, require_writable_file
from onnxopt_cli.core.text import nearest, printable, some_of
from onnxopt_cli.errors import InvalidCase, UsageError
from onnxopt_cli.workers.interruption import interruptible

if TYPE_CHECKING:
    from onnxopt_cli.cases.case import Case
    from onnxopt_cli.core.result import Result

# Maximum number of failing cases that a message names.
_MAX_NAMED_CASES = 5


@click.command("locate")
@click.argument("target", metavar="[MODEL|CASE]", required=False, shell_complete=complete_target)
@option(
    "--log LOG",
    "Examine a failing case of this log or JSON report, with the settings of its run.",
    "saved",
    type=PATH,
)
@options_of(LocateConfig)
@click.pass_context
def command(
    context: click.Context, /, target: str | None, saved: Path | None, **options: Any
) -> int:
    """Find the nodes of a model that a backend computes wrongly.

    Each node runs alone, on inputs that onnx's reference computes, and is judged. If every node is
    right but the model is wrong, the command finds the smallest subgraph that fails.

    \b
    onnxopt locate model.onnx -b onnxruntime --dim batch=1
    onnxopt locate model.onnx -b python:my_backend.py:Backend --json located.json
    onnxopt locate --log run.jsonl onnx-real/test_resnet50/0 -b onnxruntime

    Exits with 0 if the model conforms, with 1 if a node or subgraph is wrong.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.cases.case import files_of
    from onnxopt_cli.report.located_nodes import (
        exit_code,
        location_lines,
        write_json,
        write_located_page,
        write_reproductions,
    )

    if saved:
        case, config = _failing_case(context, saved, target, options)
    elif target is None:
        raise UsageError("no model to examine", hint="name a model, a case, or --log LOG")
    else:
        config = LocateConfig.of(options)
        case = _case(target, config)
    if not config.backends:
        raise UsageError("no backend to test", hint="name one: -b onnxruntime")
    named = (("--json", config.json), ("--html", config.html))
    outputs = [(name, path) for name, path in named if path is not None and str(path) != "-"]
    for name, path in outputs:
        require_writable_file(name, path)
    require_output_folder("-o", config.output)
    used = {*files_of([case]), *filter(None, [saved])}
    require_unused(((f"{name} {path}", path) for name, path in outputs), used)
    with interruptible() as interruption:
        located = api.locate(
            case,
            *config.backends,
            execution=config.execution,
            judging=config.judging,
            interruption=interruption,
            open_progress=show_progress,
        )
    folders = write_reproductions(config.output, located)
    if config.json:
        write_json(config.json, located, folders)
    if config.html:
        write_located_page(config.html, located, folders, config.backends, case.load().model)
    if str(config.json) != "-":
        for line in location_lines(located, folders, config.backends):
            stdout().print_wrapped(line)
    return interruption.exit_code or exit_code(located)


def _failing_case(
    context: click.Context, saved: Path, case_id: str | None, options: Mapping[str, Any]
) -> tuple[Case, LocateConfig]:
    """Return a failing case of a saved run, and the settings for the search.

    The settings are those of the run, unless options on the command line override them. The saved
    run is not trusted: it cannot select code to run, and cannot weaken the isolation.

    Args:
        context: the context of the command.
        saved: the log or JSON report.
        case_id: the id of the case; None if only one case failed.
        options: the options of the command.

    Raises:
        UsageError: if the file cannot be read; if the case did not fail in the run, or no longer
            exists; if no case is named although several cases failed; or if the file names a
            backend that is not built in and the command line names no backend.
    """
    from onnxopt_cli.core.result import OUTSIDE_IDS
    from onnxopt_cli.report.saved_run import read_saved_run
    from onnxopt_cli.suites.collect import find_again

    record = read_saved_run(saved)
    failing: dict[str, list[Result]] = {}
    for result in record.results:
        if result.failing and result.case not in OUTSIDE_IDS:
            failing.setdefault(result.case, []).append(result)
    path = printable(str(saved))
    if not failing:
        raise UsageError(f"{path} has no failing case")
    if case_id is None and len(failing) > 1:
        listed = some_of([*failing], _MAX_NAMED_CASES)
        raise UsageError(f"{path} has {len(failing)} failing cases; name one", hint=listed)
    case_id = case_id or next(iter(failing))
    if case_id not in failing:
        listed = some_of([*failing], _MAX_NAMED_CASES)
        message = f"{printable(case_id)} is not a failing case of {path}"
        raise UsageError(message, hint=nearest(case_id, failing, listed))
    results = failing[case_id]
    run_values = RunConfig.from_json(record.options).values()
    shared_names = {
        declared.name
        for group in (Judging, Execution, ModelInputs)
        for declared in group.declared()
        if declared.option.from_log
        and context.get_parameter_source(declared.name) is not ParameterSource.COMMANDLINE
    }
    values = {**options, **{name: run_values[name] for name in shared_names}}
    if not options["backends"]:
        failing_names = {result.backend for result in results}
        backends = [backend for backend in record.backends if backend.name in failing_names]
        require_built_in(backends)
        values["backends"] = tuple(backend.text for backend in backends)
    config = LocateConfig.of(values)
    places = {case_id: results[0].location}
    case = find_again(places, config.model_inputs).get(case_id)
    if case is None:
        raise UsageError(f"{printable(case_id)} is no longer at {printable(str(places[case_id]))}")
    return case, config


def _case(target: str, config: LocateConfig) -> Case:
    """Return the single case that a target and the filters select.

    Raises:
        InvalidCase: if the target has faults.
        NothingSelected: if no case is selected.
        UsageError: if several cases are selected.
    """
    from onnxopt_cli.cases.select import choose
    from onnxopt_cli.suites.collect import collect

    collection = collect([target], model_inputs=config.model_inputs)
    if collection.problems:
        raise InvalidCase(collection.problems)
    cases, _ = choose(collection.cases, config.filters, note, required=True)
    if len(cases) > 1:
        raise UsageError(
            f"{printable(target)} has {len(cases)} cases, expected one",
            hint=f"choose one of them, as with -k {cases[0].id}",
        )
    return cases[0]
