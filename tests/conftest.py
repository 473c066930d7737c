"""Fixtures that call the command in process, and settings that make the tests faster."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from commands import Output
from hypothesis import HealthCheck, settings

from onnxopt_cli.cli import main
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.run import executors
from onnxopt_cli.suites import catalogue

# A violated property usually fails for many inputs, so a few examples are sufficient. Quick runs
# try even fewer.
for profile, max_examples in (("few", 25), ("fewer", 10)):
    settings.register_profile(
        profile,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        max_examples=max_examples,
    )

# If the tests were started with & or nohup, some signals are ignored, and child processes inherit
# this. They do not inherit handlers, so a handler restores the default for child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_configure(config):
    """Load the profile of hypothesis, and speed up the processes that the tests start.

    - Bytecode is cached, because compiling takes a third of the time of a command. If the
      environment disables the cache beside the sources, the cache is a folder of pytest's cache.
    - BLAS uses one thread, because the tests already use all processors.
    - Dask measures its workers less often, because the measurements take 5 % of a processor for
      each worker.
    """
    settings.load_profile("fewer" if config.option.markexpr in {"not slow", "quick"} else "few")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
    for name in ("TICK", "SYSTEM_MONITOR"):
        os.environ.setdefault(f"DASK_DISTRIBUTED__ADMIN__{name}__INTERVAL", "2s")
    if sys.dont_write_bytecode and hasattr(config, "cache"):
        folder = config.cache.mkdir("bytecode")
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# In these packages, tests that start processes are marked as slow; all other tests are quick.
_QUICK_PACKAGES = frozenset(
    {
        "cases",
        "core",
        "expectations",
        "interpret",
        "log",
        "mutation",
        "operators",
        "oracle",
        "report",
        "suites",
    }
)


def pytest_collection_modifyitems(items):
    """Mark quick tests, which take a minute, start no processes, and can run after every edit."""
    for item in items:
        if item.path.parent.name in _QUICK_PACKAGES and not item.get_closest_marker("slow"):
            item.add_marker("quick")


@dataclass(frozen=True)
class Answer:
    """The exit code and output of a command."""

    code: int
    out: Output
    err: Output

    @property
    def text(self) -> Output:
        return Output(self.out + self.err)


@pytest.fixture(scope="session", autouse=True)
def _suites_are_written_once():
    """Cache suites, because creating a large suite such as pairwise takes two seconds."""
    write = catalogue.yaml_files
    cached_write = cache(lambda name, *_: write(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            catalogue, "yaml_files", lambda name: cached_write(name, *registry().operators)
        )
        template_functions = (
            catalogue.conformance, catalogue.pairwise, catalogue.beyond_pairs, catalogue.large,
            catalogue.many_sizes,
        )  # fmt: skip
        for function in template_functions:
            cached = cache(lambda operator, function=function: tuple(function(operator)))
            patch.setattr(catalogue, function.__name__, cached)
        yield


@pytest.fixture(autouse=True)
def _same_path_afterwards(monkeypatch):
    """Restore ``sys.path`` after each test, because plugins of different tests share names."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def onnxopt(request, capsys, monkeypatch):
    """Return a function that calls ``onnxopt`` with arguments and returns exit code and output.

    Backends run in this process, as on a system without workers, because starting workers takes
    most of the time of a run. Backends run in workers if the test has the marker ``isolated`` or
    passes ``--isolation process``. There is one worker, unless ``-j`` is given.
    """
    monkeypatch.setattr("onnxopt_cli.core.blocks.available_jobs", lambda: 1)
    if not request.node.get_closest_marker("isolated"):
        # Patch the module object, because the dotted name onnxopt_cli.run refers to a function.
        monkeypatch.setattr(executors, "HAS_WORKERS", False)

    def call(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        answer = Answer(int(exit_info.value.code or 0), Output(captured.out), Output(captured.err))
        assert "Traceback (most recent call last)" not in answer.text
        assert "internal error" not in answer.text
        return answer

    return call


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Make an empty folder the current folder, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
