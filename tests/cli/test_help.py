"""The help of every command."""

from __future__ import annotations

import click
import pytest

from onnxopt_cli.analysis.explanation.explain import QUERY_SECONDS, least_seconds
from onnxopt_cli.analysis.explanation.explain_nodes import OPERATOR_LIMIT
from onnxopt_cli.cli import console, group


def commands(command, words=()):
    """Yield the words that call each command and each group of commands."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*words, name))


COMMANDS = list(commands(group))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_has_an_example_and_fits_80_columns(onnxopt, monkeypatch, words, option):
    monkeypatch.setenv("COLUMNS", "200")
    answer = onnxopt(*words, option)
    assert answer.code == 0
    assert answer.err == ""
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [line.strip() for line in lines if line.startswith("  onnxopt ")]
    assert any(example.startswith(" ".join(["onnxopt", *words])) for example in examples)
    # The name of the argument occurs only in the usage line.
    assert answer.out.count("[PATH|SUITE|ID]...") <= 1


@pytest.mark.parametrize("command", ["run", "explain", "scoreboard"])
def test_help_states_the_time_limits_of_explanations(onnxopt, command):
    answer = onnxopt(command, "--help")
    longest = f"{least_seconds(0):g} or, if longer, a fifth of the run"
    assert f"default: {longest} for known mistakes" in answer.out
    assert f"; {QUERY_SECONDS:g} for each operator for other causes" in answer.out
    limit = OPERATOR_LIMIT.seconds
    assert f"; {limit:g} for each operator without a formula, {2 * limit:g} for all" in answer.out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_unknown_option_points_to_help(onnxopt, words):
    answer = onnxopt(*words, "--no-such-option")
    assert answer.code == 2
    assert answer.out == ""
    assert f"Try '{' '.join(['onnxopt', *words])} --help' for help." in answer.err
    assert "No such option" in answer.err


@pytest.mark.parametrize(("columns", "width"), [("132", 132), ("", 80), ("wide", 80), ("0", 20)])
def test_variable_columns_sets_the_width_in_a_pipe(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    console._console.cache_clear()
    assert console.stdout().width == width
    console._console.cache_clear()
