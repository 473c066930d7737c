"""Shell completion of the values of arguments and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from onnxopt_cli.errors import OnnxoptError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


def _offering(words: Callable[[click.Context], Iterable[str]]) -> _Completer:
    """Return a completer that offers the words which begin with the typed text."""
    return lambda context, _parameter, typed: _beginning(words(context), typed)


def _beginning(words: Iterable[str], typed: str) -> list[str]:
    return [word for word in words if word.lower().startswith(typed.lower())]


def complete_target(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem] | list[str]:
    """Offer suites, and files in the current folder; if no suite matches, offer any paths."""
    from onnxopt_cli.suites.catalogue import suite_names

    suite, slash, _ = typed.partition("/")
    if slash and suite in suite_names() and not Path(suite).exists():
        return _beginning(_ids([suite]), typed)
    if not _beginning(suite_names(), typed):
        return click.Path().shell_complete(context, parameter, typed)
    files = [f"{path.name}/" if path.is_dir() else path.name for path in Path().iterdir()]
    return _beginning([*suite_names(), *sorted(files)], typed)


def complete_subject(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem] | list[str]:
    """Offer operators or, if none matches, suites and paths."""
    operators = complete_operator(context, parameter, typed)
    return operators or complete_target(context, parameter, typed)


@_offering
def complete_pattern(context: click.Context) -> Iterable[str]:
    """Offer case ids, from the targets that precede the option on the command line."""
    return _ids(context.params.get("targets") or ())


def _ids(targets: Sequence[str]) -> list[str]:
    from onnxopt_cli.suites.collect import collect

    try:
        return [case.id for case in collect(targets).cases]
    except OnnxoptError:
        return []


@_offering
def complete_suite(_context: click.Context) -> Iterable[str]:
    """Offer suites that can be written as files."""
    from onnxopt_cli.suites.catalogue import written_suites

    return written_suites()


@_offering
def complete_our_operator(_context: click.Context) -> Iterable[str]:
    """Offer operators with a formula."""
    from onnxopt_cli.operators.registry import registry

    return [operator.name for operator in registry().operators]


@_offering
def complete_operator(_context: click.Context) -> Iterable[str]:
    """Offer operators with a schema or a formula."""
    from onnx.defs import get_all_schemas

    from onnxopt_cli.operators.registry import registry

    names = {schema.name for schema in get_all_schemas()}
    return sorted(names | {operator.name for operator in registry().operators})


@_offering
def complete_backend(context: click.Context) -> Iterable[str]:
    """Offer named backends: built in, installed, or from the configuration file."""
    from onnxopt_cli.backends.adapter.adapter_file import shipped_adapters
    from onnxopt_cli.backends.resolve import known_backends
    from onnxopt_cli.backends.specification import ADAPTER
    from onnxopt_cli.cli.configured_defaults import configuration_here

    configured: Iterable[str] = ()
    # Completion cannot report an invalid configuration file.
    with suppress(OnnxoptError):
        configuration = configuration_here(context)
        configured = configuration.backends if configuration else ()
    adapters = [f"{ADAPTER}{name}" for name in shipped_adapters()]
    names = [backend.name for backend in known_backends()]
    return [*configured, *names, *adapters, "python:", "exec:", ADAPTER]


@_offering
def complete_capability(_context: click.Context) -> Iterable[str]:
    """Offer the capabilities that cases can need."""
    from onnxopt_cli._api import CAPABILITIES

    return CAPABILITIES


@_offering
def complete_report(_context: click.Context) -> Iterable[str]:
    """Offer formats of reports."""
    from onnxopt_cli.config.run_config import REPORT_FORMATS

    return [f"{name}=" for name in REPORT_FORMATS]
