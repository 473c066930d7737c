"""The command under test, in process, and places for it to work in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from onnxopt_cli.cli import main
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites import catalogue

# What breaks a property breaks it for most inputs of a class, and each class is drawn often; CI
# looks for rarer ones.
_PATIENT_SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("default", _PATIENT_SETTINGS, max_examples=25)
settings.register_profile("ci", _PATIENT_SETTINGS, max_examples=50)
settings.load_profile("ci" if "CI" in os.environ else "default")

# What starts the tests may have them ignore signals, as & and nohup do, and so would the commands
# that they start; those do not inherit a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_configure(config):
    """Compile each module once, also for the processes that the tests start.

    Compiling is a third of what a command costs. Whoever wants no bytecode among the sources gets
    it elsewhere. The threads of BLAS would only wait for each other, busily. What Dask measures of
    itself while it waits takes it a twentieth of a processor in each process.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
    for name in ("TICK", "SYSTEM_MONITOR"):
        os.environ.setdefault(f"DASK_DISTRIBUTED__ADMIN__{name}__INTERVAL", "2s")
    if sys.dont_write_bytecode and hasattr(config, "cache"):
        folder = config.cache.mkdir("bytecode")
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# Packages whose tests start processes only where they are marked slow.
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

# Packages whose tests take longest, in the order in which they run.
_LONGEST_PACKAGES = {"cluster": 0, "isolation": 1}


def pytest_ignore_collect(collection_path, config):
    """Leave packages without quick tests unread: to make their tests takes seconds, too."""
    other = collection_path.suffix == ".py" and collection_path.parent.name not in _QUICK_PACKAGES
    return True if other and config.option.markexpr == "quick" else None


def pytest_collection_modifyitems(items):
    """Mark what is worth running at every save: a minute of properties and messages, no processes.

    What takes longest comes first, so that no process has it left when all others are at their end,
    and none takes over half of a file whose tests share what takes long to make.
    """
    items.sort(
        key=lambda item: _LONGEST_PACKAGES.get(item.path.parent.name, len(_LONGEST_PACKAGES))
    )
    for item in items:
        if item.path.parent.name in _QUICK_PACKAGES and not item.get_closest_marker("slow"):
            item.add_marker("quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let tests of a file share what is made for all of them, and no worker be idle in the end."""
    if config.option.dist != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@dataclass(frozen=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


@pytest.fixture(scope="session", autouse=True)
def _suites_are_written_once():
    """To write conformance or make pairwise takes two seconds, and many tests need some of it."""
    write = catalogue.yaml_files
    written = cache(lambda name, *_: write(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "yaml_files", lambda name: written(name, *registry().operators))
        asks = (
            catalogue.conformance, catalogue.pairwise, catalogue.beyond_pairs, catalogue.large,
            catalogue.many_sizes,
        )  # fmt: skip
        for ask in asks:
            asked = cache(lambda operator, ask=ask: tuple(ask(operator)))
            patch.setattr(catalogue, ask.__name__, asked)
        yield


# Their tests are about how workers start, end and are found.
_STARTS_WORKERS = frozenset(
    {"test_isolation_survivors", "test_other_systems", "test_signals", "test_temporary_files"}
)


@pytest.fixture(scope="module", autouse=True)
def _workers_are_forked(request):
    """To start a worker takes half a second."""
    # Not before the environment is as it stays.
    from forked import fork_or_start

    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux" and request.path.stem not in _STARTS_WORKERS:
            patch.setattr(subprocess, "_fork_exec", fork_or_start)
        yield


@pytest.fixture(autouse=True)
def _same_path_afterwards(monkeypatch):
    """Which of two plugins of one name is imported must not depend on the tests before."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def onnxopt(capsys, monkeypatch):
    """Call ``onnxopt`` with arguments and return its exit code and output.

    Where ``-j`` says nothing else there is one worker, as starting another would take most of the
    time.
    """
    monkeypatch.setattr("onnxopt_cli.core.blocks.available_jobs", lambda: 1)

    def call(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        answer = Answer(int(ended.value.code or 0), captured.out, captured.err)
        assert "Traceback" not in answer.text
        assert "internal error" not in answer.text
        return answer

    return call


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
