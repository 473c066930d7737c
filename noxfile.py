"""Checks that developers and CI share: ``nox --list`` names them, ``nox -s lint types`` runs two.

Most sessions run in the environment in which nox is installed. The extra ``dev`` provides nox.
``oldest``, ``newest`` and ``plugin_python`` create environments of their own and keep them: ``nox
-R`` reuses them without an update.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement

PROJECT = nox.project.load_toml("pyproject.toml")
SUPPORTED_PYTHONS = nox.project.python_versions(PROJECT)
#: The oldest Python in which `python=` runs a plugin, and the oldest packages that it needs.
PLUGIN_PYTHON = "3.9"
PLUGIN_PACKAGES = ("numpy==1.24.*", "onnx==1.14.*", "onnxruntime==1.16.*")

#: The packages of tests whose results may depend on the Python version. The code that these
#: packages test parses source code, or reads and writes files. All other packages test computations
#: with NumPy, or take long.
VERSION_DEPENDENT_TESTS = (
    "cases", "core", "mutation", "operators", "report", "run/expectations", "run/log",
)  # fmt: skip

#: These options run tests on all processors; an idle process takes tests from the other processes.
PARALLEL = ("-n", "auto", "--dist", "worksteal")

nox.options.sessions = ["lint", "types", "tests", "docs"]
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "uv|virtualenv"


def find_python(version: str) -> str | None:
    """Return an interpreter of a version that can create environments, if there is one."""
    pyenv = Path.home() / ".pyenv" / "versions"
    candidates = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in filter(shutil.which, candidates):
        command = [candidate, "-c", "import ensurepip"]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return candidate
    return None


def newest_python() -> str | None:
    """Return the newest supported interpreter, unless this interpreter runs nox."""
    for version in reversed(SUPPORTED_PYTHONS):
        if tuple(map(int, version.split("."))) <= sys.version_info[:2]:
            return None
        if python := find_python(version):
            return python
    return None


def oldest_dependencies(*extras: str) -> list[str]:
    """Return a pin to the lower bound of each dependency of the package and of some extras."""
    project = PROJECT["project"]
    optional = project["optional-dependencies"]
    required = [*project["dependencies"], *(text for extra in extras for text in optional[extra])]
    return [text.replace(">=", "==") for text in required if Requirement(text).name != "onnxopt"]


def run_module(session: nox.Session, module: str, *arguments: str, **options: Any) -> None:
    """Run a module with the Python that runs nox."""
    session.run(sys.executable, "-m", module, *arguments, **options)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    run_module(session, "ruff", "check")
    run_module(session, "ruff", "format", "--check")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types in the package, the tests and the scripts."""
    run_module(session, "mypy")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the tests that are not slow; arguments after ``--`` replace pytest's arguments."""
    run_module(session, "pytest", *(session.posargs or (*PARALLEL, "-m", "not slow")))


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """Run the tests that take more than a second each."""
    run_module(session, "pytest", *PARALLEL, "-m", "slow", *session.posargs)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Check the links, commands and tables of the documents."""
    run_module(session, "pytest", "tests/test_documents.py")


@nox.session(venv_backend="none")
def audit(session: nox.Session) -> None:
    """Check that the committed suites reject every mutant."""
    run_module(session, "onnxopt_cli", "audit", "cases/")


@nox.session(venv_backend="none")
@nox.parametrize("target", ["files", "backends"], ids=["files", "backends"])
def fuzz(session: nox.Session, target: str) -> None:
    """Fuzz the readers of case files, or the two backends that must not fail."""
    if target == "files":
        session.run(sys.executable, "scripts/fuzz_files.py", "--count", "120")
        return
    failures = session.cache_dir / "fuzz"
    failures.mkdir(parents=True, exist_ok=True)
    for backend, examples in (
        ("onnxruntime,graph_optimization_level=disable_all", 500),
        ("numpy", 1000),
    ):
        run_module(
            session, "onnxopt_cli", "fuzz", "-b", backend, "--examples", str(examples),
            "-o", str(failures / backend.partition(",")[0]),
        )  # fmt: skip


@nox.session
def oldest(session: nox.Session) -> None:
    """Run the suites and the fuzzer with the oldest supported version of every dependency."""
    session.install(*oldest_dependencies("ort", "fuzz"))
    session.install("--no-deps", ".")
    # A quarter of the cases covers every operator and kind of case.
    written = sorted(folder.name for folder in Path("cases").iterdir() if folder.name != "onnx")
    suites = (*written, "--shard", "1/4")
    session.run("onnxopt", "run", *suites, "-q", "-b", "numpy", "-b", "onnxruntime")
    session.run("onnxopt", "show", "Adam", silent=True)
    failures = session.cache_dir / "fuzz"
    failures.mkdir(parents=True, exist_ok=True)
    folder = str(failures / "oldest")
    session.run("onnxopt", "fuzz", "-b", "numpy", "--examples", "50", "-o", folder)


@nox.session(python=newest_python())
def newest(session: nox.Session) -> None:
    """Run quick tests and a suite with the newest supported Python that is installed."""
    if session.python is None:
        session.skip("no supported Python newer than the one that runs nox")
    session.install("-e", ".[ort,fuzz]", "pytest")
    folders = [f"tests/{name}" for name in VERSION_DEPENDENT_TESTS]
    session.run("python", "-m", "pytest", "-m", "quick", *folders)
    session.run("onnxopt", "run", "spec", "-q", "-b", "numpy", "-b", "onnxruntime")


@nox.session(python=find_python(PLUGIN_PYTHON))
def plugin_python(session: nox.Session) -> None:
    """Run plugins in the oldest Python that ``python=`` supports, with the oldest packages."""
    if session.python is None:
        session.skip(f"Python {PLUGIN_PYTHON} is not installed")
    session.install(*PLUGIN_PACKAGES)
    run_module(
        session, "pytest", "tests/backends/test_other_interpreter.py",
        external=True,
        env={"ONNXOPT_OLDEST_PYTHON": str(Path(session.bin, "python"))},
    )  # fmt: skip


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Measure which lines of the package the tests reach, in all processes that they start."""
    run_module(session, "coverage", "erase")
    run_module(
        session, "coverage", "run", "-m", "pytest", *(session.posargs or PARALLEL),
        success_codes=[0, 1],
    )  # fmt: skip
    run_module(session, "coverage", "combine", "--quiet")
    run_module(session, "coverage", "report", "--skip-covered", "--sort=cover")
