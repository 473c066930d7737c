"""What a shell offers while a command is typed, beside commands and options."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem


def complete_target(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer suites and what is here; all other paths are for the shell to complete."""
    from onnxopt_cli.cases.suites.suites import NAMES

    suites = _beginning(typed, NAMES)
    if not suites:
        return _paths(typed)
    here = [f"{path.name}/" if path.is_dir() else path.name for path in Path().iterdir()]
    return _items([*suites, *_beginning(typed, sorted(here))])


def complete_subject(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer operators with a formula, suites and paths."""
    operators = complete_our_operator(context, parameter, typed)
    return operators or complete_target(context, parameter, typed)


def complete_suite(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer the suites that can be written as files."""
    from onnxopt_cli.cases.suites.suites import SUITES

    return _items(_beginning(typed, (*SUITES, "onnx-node")))


def complete_our_operator(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer the operators with a formula."""
    from onnxopt_cli.operators import OPERATORS

    return _items(_beginning(typed, [operator.name for operator in OPERATORS]))


def complete_operator(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer every operator that has a schema."""
    from onnx.defs import get_all_schemas

    from onnxopt_cli.operators import OPERATORS

    names = {schema.name for schema in get_all_schemas()} | {it.name for it in OPERATORS}
    return _items(_beginning(typed, sorted(names)))


def complete_backend(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer the backends that have a name, and how the others begin."""
    from onnxopt_cli.backends.resolve import known_backends

    names = [backend.name for backend in known_backends()]
    return _items(_beginning(typed, [*names, "python:", "exec:"]))


def complete_report(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer formats of reports."""
    from onnxopt_cli.report.files import FORMATS

    return _items(_beginning(typed, [f"{form}=" for form in FORMATS]))


def complete_path(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Leave it to the shell."""
    return _paths(typed)


def _beginning(typed: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.lower().startswith(typed.lower())]


def _items(words: Iterable[str]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word) for word in words]


def _paths(typed: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]
