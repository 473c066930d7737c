"""What a log that a run goes on with says of how it is to run.

Anybody may have written the log. So it chooses no code that runs: no backend but a built-in one by
its bare name, no operators, no weaker isolation, and no file that is written. What it does choose
is parsed as if the user had typed it, and shown.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxopt_cli.cli.console import stderr
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.log.reader import read_log

_BUILT_IN = frozenset({"numpy", "onnxruntime", "onnx-reference"})
_TAKEN = (
    "patterns", "operators", "tags", "rule", "rtol", "atol", "ulp", "budget", "signed_zeros",
    "lower", "timeout", "startup_timeout", "memory", "max_fail", "rerun", "expect",
    "without",
)  # fmt: skip


def said_by_log(context: click.Context, path: Path) -> dict[str, Any]:
    """Return the options that a log says and the command line does not.

    Args:
        context: of the command ``run``, without targets.
        path: the log.

    Raises:
        UsageError: if it cannot be read, says what no option can be, or is of a backend that it
            must not choose.
    """
    log = read_log(path)
    if log is None:
        return {}
    given = {
        parameter.name
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    header = log.header
    taken: dict[str, Any] = {name: header.options.get(name) for name in _TAKEN}
    taken["shard"] = None if header.shard is None else str(header.shard)
    taken["backends"] = [backend.name for backend in header.backends]
    taken = {name: value for name, value in taken.items() if name not in given}
    for name in taken.get("backends", ()):
        if name not in _BUILT_IN:
            raise UsageError(
                f"the log is of the backend {printable(name)}, which runs code that a log must "
                "not choose",
                hint="name it again, if you trust it: -b BACKEND",
            )
    targets = header.options.get("targets")
    words = [*_words(context.command, taken), "--"]
    words += map(str, targets) if isinstance(targets, list) else ()
    stderr().print(f"as the log says: onnxopt run {printable(shlex.join(words))}", soft_wrap=True)
    try:
        said = context.command.make_context("run", words, parent=context.parent).params
    except click.UsageError as error:
        raise UsageError(f"{printable(str(path))}: {printable(error.message)}") from error
    return {name: said[name] for name in [*taken, "targets"]}


def _words(command: click.Command, taken: Mapping[str, Any]) -> Iterator[str]:
    """Yield options as they are typed."""
    # Of two with one name, as -x and --max-fail, the last one takes a value.
    parameters = {parameter.name: parameter for parameter in command.params}
    for name, value in taken.items():
        parameter = parameters[name]
        option = max(parameter.opts, key=len)
        if isinstance(parameter, click.Option) and parameter.is_flag:
            if value is True:
                yield option
        elif name == "memory" and value == 0:
            yield from (option, "none")
        elif value is not None:
            for it in value if isinstance(value, (list, dict)) else [value]:
                yield from (option, str(it))
