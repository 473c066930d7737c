"""What a shell offers while a command is typed, beside commands and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onnxopt_cli.errors import OnnxoptError

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

_Completer: TypeAlias = Callable[["click.Context", "click.Parameter", str], "list[CompletionItem]"]


def _offering(words: Callable[[], Iterable[str]], *, or_paths: bool = False) -> _Completer:
    """Return what offers words as they begin with what is typed.

    Args:
        words: looked up when they are asked for.
        or_paths: whether it leaves paths to the shell where no word fits.
    """

    def complete(
        _context: click.Context, _parameter: click.Parameter, typed: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        fitting = [word for word in words() if word.lower().startswith(typed.lower())]
        if or_paths and not fitting:
            return [CompletionItem(typed, type="file")]
        return [CompletionItem(word) for word in fitting]

    return complete


def complete_target(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer suites and, beside a suite, what is here; other paths are for the shell to complete."""
    from onnxopt_cli.cases.suites.suites import suite_names

    suite, slash, _ = typed.partition("/")
    if slash and suite in suite_names() and not Path(suite).exists():
        return _offering(lambda: _ids([suite]))(context, parameter, typed)
    if not _offering(suite_names)(context, parameter, typed):
        return complete_path(context, parameter, typed)
    here = [f"{path.name}/" if path.is_dir() else path.name for path in Path().iterdir()]
    return _offering(lambda: [*suite_names(), *sorted(here)])(context, parameter, typed)


def complete_subject(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer operators with a formula, suites and paths."""
    operators = complete_our_operator(context, parameter, typed)
    return operators or complete_target(context, parameter, typed)


def complete_pattern(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer the ids of the cases that the targets before it name."""
    return _offering(lambda: _ids(context.params.get("targets") or ()))(context, parameter, typed)


def complete_backend(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer backends that have a name, here or in the configuration file."""
    return _offering(lambda: _backends(context))(context, parameter, typed)


def _ids(targets: Sequence[str]) -> list[str]:
    from onnxopt_cli.cases.collect import collect

    try:
        return [case.id for case in collect(targets).cases]
    except OnnxoptError:
        return []


def _suites() -> list[str]:
    from onnxopt_cli.cases.suites.suites import suites

    return [*suites(), "onnx-node"]


def _our_operators() -> list[str]:
    from onnxopt_cli.operators import OPERATORS

    return [operator.name for operator in OPERATORS]


def _operators() -> list[str]:
    from onnx.defs import get_all_schemas

    return sorted({schema.name for schema in get_all_schemas()}.union(_our_operators()))


def _backends(context: click.Context) -> list[str]:
    from onnxopt_cli.backends.resolve import known_backends
    from onnxopt_cli.cli.configuration import configuration_here

    mine: Iterable[str] = ()
    # A shell has no use for what is wrong with a file.
    with suppress(OnnxoptError):
        found = configuration_here(context)
        mine = found.backends if found else ()
    return [*mine, *(backend.name for backend in known_backends()), "python:", "exec:"]


def _capabilities() -> Iterable[str]:
    from onnxopt_cli.api import CAPABILITIES

    return CAPABILITIES


def _reports() -> list[str]:
    from onnxopt_cli.report.files import FORMATS

    return [f"{form}=" for form in FORMATS]


#: Suites that can be written as files; operators with a formula, and with a schema; what cases can
#: need; formats of reports; paths, which the shell completes.
complete_suite = _offering(_suites)
complete_our_operator = _offering(_our_operators)
complete_operator = _offering(_operators)
complete_capability = _offering(_capabilities)
complete_report = _offering(_reports)
complete_path = _offering(tuple, or_paths=True)
