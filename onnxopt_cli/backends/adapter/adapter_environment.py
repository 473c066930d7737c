"""The environment of an adapter: a Python environment with the adapter's packages, in the cache.

The adapter's requirements and lock, the version of the runtime and the interpreter identify an
environment: if any of these changes, another environment is used. The environment is created in a
temporary folder beside its final location, and the folder is renamed when the environment is
complete. The process that creates the environment holds a lock on the parent folder; other
processes wait for the lock. If the installation fails, the temporary folder and its parent are
removed. If the process is killed, the next process removes the temporary folder.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from onnxopt_cli.backends.adapter.adapter_file import (
    ATTRIBUTE,
    NPM_PREFIX,
    Adapter,
    adapter_source,
    lock_path,
    read_adapter,
)
from onnxopt_cli.backends.adapter.installation import (
    Interpreter,
    NotInstalled,
    find_interpreter,
    install,
    install_npm,
    move_scripts,
    npm_lock_of,
    python_of,
)
from onnxopt_cli.backends.protocol import misused, unavailable
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.cache import CACHE_VARIABLE, cache_folder, exposure, make_private_folder
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.locks import locked
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.text import command_line, printable, some_of
from onnxopt_cli.core.untrusted_files import Malformed, is_private, read_regular_file
from onnxopt_cli.errors import BackendUnavailable

# Version of the layout of environments. Increment the version with every change of the layout.
_FORMAT = 1
_ENVIRONMENT = "environment"
_NEW = "new"
_MANIFEST = "onnxopt.json"
_MAX_MANIFEST_BYTES = 1 << 20
# A process that installs a large runtime over a slow network may hold the lock for hours.
_LOCK_SECONDS = 24 * 3600.0
# An environment may contain the package pip, which no adapter pins.
_INSTALLER = "pip"
_REQUIRED = ("numpy", "onnx")
_MAX_NAMED = 6


@dataclass(frozen=True)
class AdapterEnvironment:
    """The location of an adapter's environment. The environment need not exist.

    Attributes:
        specification: the backend as the user specified it.
        adapter: the adapter.
        interpreter: the interpreter for which the environment is made.
        folder: the folder of the environment and of its lock.
    """

    specification: Specification
    adapter: Adapter
    interpreter: Interpreter
    folder: Path

    @classmethod
    def of(cls, specification: Specification) -> AdapterEnvironment:
        """Return the environment of the adapter that a specification names.

        Raises:
            UsageError: if the adapter does not exist, or its file is malformed.
            BackendUnavailable: if the adapter's file does not exist, or no interpreter is suitable.
        """
        return cls.for_adapter(specification, read_adapter(specification))

    @classmethod
    def for_adapter(cls, specification: Specification, adapter: Adapter) -> AdapterEnvironment:
        """Return the environment of an adapter, given the content of the adapter's file.

        Raises:
            BackendUnavailable: if no interpreter is suitable.
        """
        interpreter = find_interpreter(specification.text, adapter.python)
        version = specification.adapter_version
        identity = [
            _FORMAT,
            adapter.requirements(version),
            adapter.constraints(version),
            [*adapter.runtimes],
            interpreter.implementation,
            interpreter.version,
            interpreter.machine,
            sys.platform,
        ]
        if adapter.npm:
            identity += [adapter.npm_packages(version), adapter.npm_lock]
        digest = sha256(json.dumps(identity).encode()).hexdigest()
        path = adapter.path
        name = path.absolute().parent.name if path.stem == "__init__" else path.stem
        folder_name = "-".join(filter(None, (name, version, digest[:16])))
        folder = (cache_folder() / "adapters" / folder_name).absolute()
        return cls(specification, adapter, interpreter, folder)

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return python_of(self.folder / _ENVIRONMENT)

    def packages(self) -> Mapping[str, str] | None:
        """Return the versions of the installed packages; None if the environment is missing."""
        environment = self.folder / _ENVIRONMENT
        try:
            if (
                exposure(self.folder)
                or not is_private(environment.lstat())
                or not self.python.exists()
            ):
                return None
            manifest = read_json(read_regular_file(environment / _MANIFEST, _MAX_MANIFEST_BYTES))
            return {str(name): str(version) for name, version in manifest["packages"].items()}
        except (OSError, Malformed, ValueError, TypeError, LookupError, AttributeError):
            return None

    def runnable(self) -> Specification:
        """Return the specification that runs the adapter's plugin in the environment.

        Raises:
            UsageError: if the user gave the option ``python``.
            BackendUnavailable: if the environment does not exist.
        """
        options = self.specification.options
        if "python" in options:
            hint = "the adapter has an interpreter of its own"
            raise misused(self.specification.text, " has no option python", hint)
        if self.packages() is None:
            raise unavailable(self.specification.text, " is not installed", self.install_hint)
        source = adapter_source(self.specification)
        if self.adapter.is_program:
            return replace(self.specification, command=(str(self.python), source))
        return replace(
            self.specification,
            options={**options, "python": str(self.python)},
            source=source,
            attribute=ATTRIBUTE,
            runtimes=[*self.adapter.runtimes],
        )

    @property
    def install_hint(self) -> str:
        """A hint with the command that installs the adapter."""
        text = self.specification.text.partition(",")[0]
        return f"install it: {command_line(['onnxopt', 'backends', 'install', text])}"

    def locked_packages(self) -> dict[str, str]:
        """Return the versions of the installed packages except pip, which locks do not pin."""
        packages = sorted((self.packages() or {}).items())
        return {name: version for name, version in packages if name != _INSTALLER}

    def npm_lock(self) -> str:
        """Return the lock of the installed npm packages; empty without npm packages."""
        return npm_lock_of(self.folder / _ENVIRONMENT) if self.adapter.npm else ""

    def unpinned(self) -> str:
        """Return ``not pinned: NAMES`` with the unpinned packages; empty if all are pinned."""
        pinned = self._pinned()
        names = [
            name
            for name, version in self.locked_packages().items()
            if not _is(version, pinned.get(name, ""))
        ]
        return f"not pinned: {some_of(names, _MAX_NAMED)}" if names else ""

    def _pinned(self) -> Mapping[str, str]:
        return self.adapter.pinned(self.specification.adapter_version, self.interpreter.version)

    def create(self, open_progress: OpenProgress = hide_progress) -> None:
        """Create the environment unless it exists.

        If another process is creating the environment, wait for that process.

        Args:
            open_progress: opens a progress display.

        Raises:
            BackendUnavailable: if the packages cannot be installed, or the cache cannot be written.
        """
        if self.packages() is not None:
            return
        try:
            while not self._create_once(open_progress):
                pass
        except OSError as error:
            where = printable(str(error.filename or self.folder))
            raise unavailable(
                self.specification.text,
                f" cannot be installed: {error.strerror or error} ({where})",
                f"{CACHE_VARIABLE}=FOLDER names another place",
            ) from error

    def _create_once(self, open_progress: OpenProgress) -> bool:
        """Create the environment; return False if another process has removed the folder.

        If an installation fails, its process removes the folder, although other processes may be
        waiting for the lock of the folder.
        """
        make_private_folder(self.folder)
        with self._locked(open_progress) as held:
            if not self.folder.exists():
                return False
            try:
                if self.packages() is None:
                    self._create(open_progress, held=held)
            finally:
                with suppress(OSError):
                    # The call rmdir succeeds only if the folder is empty.
                    self.folder.rmdir()
        return True

    @contextmanager
    def _locked(self, open_progress: OpenProgress) -> Iterator[bool]:
        """Hold a lock on the folder; yield False if the system does not support such locks."""
        with locked(self.folder) as held:
            if held:
                yield held
                return
        with (
            open_progress(f"waiting for another run that installs {self._title}", "packages"),
            locked(self.folder, _LOCK_SECONDS) as held,
        ):
            yield held

    @property
    def _title(self) -> str:
        return printable(self.specification.text.partition(",")[0])

    def _create(self, open_progress: OpenProgress, *, held: bool) -> None:
        """Create the environment in a temporary folder, and rename the folder."""
        if held:
            # No other process uses the temporary folders, so they were left by killed processes.
            for folder in self.folder.glob(f"{_NEW}*"):
                shutil.rmtree(folder)
        work = Path(tempfile.mkdtemp(dir=self.folder, prefix=_NEW))
        try:
            new = work / _ENVIRONMENT
            # Without a lock file, the total number of packages is unknown. The installer reports a
            # package before it installs the package, so the last package is complete only when the
            # installer has ended.
            count = len(self._pinned()) if self.adapter.lock else None
            with open_progress(f"installing {self._title}", "packages") as tick:
                packages = self._install(
                    new, lambda done: tick(min(done, count - 1) if count else done, count)
                )
            self._require(packages)
            manifest = {"adapter": self.adapter.path.name, "packages": packages}
            (new / _MANIFEST).write_text(json.dumps(manifest))
            new.chmod(0o700)
            place = self.folder / _ENVIRONMENT
            move_scripts(new, place)
            if os.path.lexists(place):
                # The existing environment is unusable: its interpreter was removed, or its manifest
                # is damaged.
                place.rename(work / "unusable")
            new.rename(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _install(self, new: Path, tick: Callable[[int], object]) -> dict[str, str]:
        """Install the packages; ignore the lock file if it excludes the chosen version."""
        version = self.specification.adapter_version
        requirements = self.adapter.requirements(version)
        constraints = self.adapter.constraints(version)
        npm_packages = self.adapter.npm_packages(version)
        try:
            try:
                packages = install(new, self.interpreter, requirements, constraints, tick)
            except NotInstalled as failure:
                if failure.offline or not version or not constraints:
                    raise
                shutil.rmtree(new, ignore_errors=True)
                packages = install(new, self.interpreter, requirements, "", tick)
            if npm_packages:
                packages |= install_npm(new, npm_packages, self.adapter.npm_lock, tick)
        except NotInstalled as failure:
            raise self._not_installed(failure) from failure
        return packages

    def _not_installed(self, failure: NotInstalled) -> BackendUnavailable:
        pinned = self._pinned()
        needed = [f"{name}=={version}" for name, version in pinned.items()]
        needed += [
            text
            for text in self.adapter.requirements(self.specification.adapter_version)
            if canonicalize_name(Requirement(text).name) not in pinned
        ]
        reason = printable(failure.reason, lines=True)
        if not failure.offline:
            packages = self.system_hint
            return unavailable(
                self.specification.text, f" cannot be installed:\n{reason}", packages
            )
        listed = [text for text in needed if not text.startswith(NPM_PREFIX)]
        if self.adapter.lock:
            listed = ["-r", str(lock_path(self.adapter.path))]
        elif len(listed) > _MAX_NAMED:
            listed = ["PACKAGE..."]
        hint = (
            "run the command again with a network, or download the packages on another machine "
            f"({command_line(['pip', 'download', *listed, '-d', 'FOLDER'])}) and set "
            "PIP_FIND_LINKS=FOLDER PIP_NO_INDEX=1, or for uv UV_FIND_LINKS=FOLDER UV_NO_INDEX=1"
        )
        if self.adapter.npm:
            hint += "; npm reads its cache with npm_config_cache=FOLDER npm_config_offline=true"
        problem = (
            f" cannot be installed, because no package index was reached; missing packages: "
            f"{some_of(needed, _MAX_NAMED)}\n{reason}"
        )
        return unavailable(self.specification.text, problem, hint)

    def _require(self, packages: Mapping[str, str]) -> None:
        """Reject an environment without the runtime, or without numpy and onnx."""
        required = () if self.adapter.is_program else _REQUIRED
        for name in (*required, *self.adapter.runtimes):
            if self.adapter.package_name(name) not in packages:
                problem = (
                    f": {printable(str(self.adapter.path))} does not install {printable(name)}"
                )
                raise unavailable(self.specification.text, problem, "add it to its dependencies")

    @property
    def system_hint(self) -> str:
        """Return a hint that names the system packages which the adapter needs; may be empty."""
        listed = [
            f"{printable(system)}: {printable(' '.join(packages))}"
            for system, packages in self.adapter.system_packages.items()
        ]
        return f"it needs packages of the operating system ({'; '.join(listed)})" if listed else ""


def _is(version: str, pin: str) -> bool:
    """Return whether a version is the pinned version.

    A local part such as ``+cpu`` is ignored.
    """
    if not pin:
        return False
    return version == pin or version.partition("+")[0] == pin
