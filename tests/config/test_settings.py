"""Each setting is declared once; its option, its JSON form and its checks follow from this."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import click
import pytest
from click.core import ParameterSource
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from onnxopt_cli.cli import group
from onnxopt_cli.cli.shared_options import options_of
from onnxopt_cli.config.run_config import (
    ClusterConfig,
    Execution,
    Filters,
    Judging,
    Limits,
    RunConfig,
    Shard,
)
from onnxopt_cli.config.settings import (
    Number,
    OneOf,
    Settings,
    setting,
)
from onnxopt_cli.errors import UsageError

WORDS = st.text("abc/_*", min_size=1, max_size=5)
PATHS = WORDS.map(lambda word: Path("somewhere") / word.strip("/*_a") / "file")
SECONDS = st.floats(1e-3, 1e6)


def several(values):
    return st.lists(values, max_size=2).map(tuple)


FILTERS = st.builds(
    Filters, several(WORDS), several(WORDS), several(WORDS), several(st.just("double"))
)
EXECUTIONS = st.builds(
    Execution,
    st.sampled_from(["auto", "never", "always"]),
    st.sampled_from([None, "process", "none"]),
    st.builds(Limits, SECONDS, SECONDS, st.sampled_from([0, 64 << 20, 3 << 30])),
    st.integers(1, 1024),
)
JUDGINGS = st.one_of(
    st.builds(Judging, tolerance=st.sampled_from(["derived", "onnx"])),
    st.builds(Judging, rtol=st.floats(0, 1e9), error_bound=st.floats(0, 10)),
    st.builds(Judging, ulp=st.integers(0, 9), signed_zeros=st.booleans()),
)
CONFIGS = st.builds(
    RunConfig,
    targets=several(WORDS),
    filters=FILTERS,
    failed_first=st.booleans(),
    shard=st.sampled_from([None, Shard(2, 3)]),
    backends=st.sampled_from([("numpy",), ("numpy", "exec:./a b")]),
    execution=EXECUTIONS,
    machines=st.sampled_from([ClusterConfig(), ClusterConfig("local:2", insecure=True)]),
    judging=JUDGINGS,
    expect=several(PATHS),
    max_fail=st.sampled_from([None, 1, 7]),
    log=st.none() | PATHS,
    verbose=st.booleans(),
    explain=st.booleans(),
    explain_time=st.none() | SECONDS,
    reports=several(st.just("json=out.json")),
)


ROOT = group.make_context("onnxopt", ["run"])


def command():
    return group.get_command(ROOT, "run")


def parsed(words):
    return RunConfig.of(command().make_context("run", list(words), parent=ROOT).params)


@given(CONFIGS)
def test_configuration_is_restored_from_arguments_and_json(config):
    assert parsed(config.argv()) == config
    stored = json.loads(json.dumps(config.to_json()))
    assert RunConfig.from_json(stored) == config


def test_empty_command_line_is_the_default_configuration():
    config = parsed(["-j", "1"])
    assert config == RunConfig()
    assert config.argv() == ["--jobs", "1"]


def test_options_of_a_run_are_the_declared_settings():
    declared = {option.name: option for option in RunConfig.declared()}
    assert len(declared) == len(RunConfig.declared())
    names = {parameter.name for parameter in command().params}
    # The options excluded here choose a profile or code to load, which are not settings of a run.
    assert names - {"profile", "operator_files"} == {*declared}
    assert all(option.section for option in declared.values())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Execution(isolation="nome"), "isolation='nome': expected process or none"),
        (lambda: Limits(timeout=0), "timeout=0: expected a number above 0"),
        (lambda: Limits(timeout=float("nan")), "timeout=nan"),
        (lambda: Limits(memory=True), "memory=True"),
        (lambda: Limits(memory=1), "memory=1: expected a number of bytes: 0, or at least 64 MiB"),
        (lambda: Judging(ulp=10**400), "expected a whole number of at least 0"),
        (lambda: Judging(rtol="1"), "rtol='1'"),
        (lambda: Judging(rtol=1.0, ulp=1), "exclude each other"),
        (lambda: ClusterConfig(insecure=True), "require --cluster"),
        (lambda: RunConfig(shard="3/2"), "invalid --shard 3/2"),
        (lambda: RunConfig(shard=Shard(1, 2), update_expect="e"), "requires a whole run"),
        (lambda: RunConfig(log="a", resume="b"), "--log names another"),
        (lambda: RunConfig(verbose=1), "verbose=1: expected true or false"),
    ],
)
def test_invalid_values_are_rejected_by_name(make, expected):
    with pytest.raises(UsageError) as caught:
        make()
    assert expected in caught.value.message


@pytest.mark.parametrize("value", [[], {}, "x", -1, 1e400, True, None, "--operators"])
def test_json_may_contain_anything(value):
    data = dict.fromkeys((option.name for option in RunConfig.declared()), value)
    config = RunConfig.from_json(data)
    assert RunConfig.from_json(config.to_json()) == config
    assert RunConfig.from_json({"rtol": 1, "ulp": 1, "nothing": 1}) == RunConfig()


class Pace(StrEnum):
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True)
class OneMore(Settings):
    pace: Pace = setting(Pace.SLOW, "--pace", "How fast.", OneOf(members=Pace), repeated=True)
    pause: float | None = setting(None, "--pause SECONDS", "How long.", Number(most=9))


def test_setting_needs_one_declaration():
    @click.command()
    @options_of(OneMore)
    @click.pass_context
    def some(context, **options):
        assert context.get_parameter_source("pause") is ParameterSource.COMMANDLINE
        config = OneMore.of(options)
        click.echo(json.dumps([config.to_json(), config.argv()]))

    def run(*words):
        return CliRunner().invoke(some, words)

    assert json.loads(run("--pace", "fast", "--pause", "2").output) == [
        {"pace": "fast", "pause": 2.0},
        ["--pace", "fast", "--pause", "2"],
    ]
    assert run("--pause", "10").exit_code == run("--pace", "lazy").exit_code == 2
    assert "[slow|fast]" in run("--help").output
    assert replace(OneMore(), pace="fast").pace is Pace.FAST
