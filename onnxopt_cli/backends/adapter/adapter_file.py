"""Adapter files: a plugin whose first comment states the packages it needs (PEP 723).

::

    # /// script
    # requires-python = ">=3.11,<3.14"
    # dependencies = ["openvino==2026.4.1", "numpy", "onnx"]
    #
    # [tool.onnxopt]
    # runtime = "openvino"
    # unsupported = ["regular expression"]
    # system-packages = { debian = ["libvulkan1"] }
    # ///

``docs/adapters.md`` describes the fields. The file ``locks/NAME.txt`` beside an adapter pins the
versions of all packages, transitive ones included, in the format of pip's requirements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from onnxopt_cli.backends.protocol import misused, unavailable
from onnxopt_cli.backends.specification import ADAPTER, Specification, is_path
from onnxopt_cli.backends.unsupported import compile_pattern
from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.text import nearest, printable

#: Folder of the adapters that are a part of onnxopt.
SHIPPED = Path(__file__).parents[2] / "adapters"
#: The attribute of the plugin's file that implements the backend.
ATTRIBUTE = "Backend"

_MAX_FILE_BYTES = 1 << 20
_FIELDS = ("dependencies", "requires-python", "tool")
_OWN_FIELDS = ("runtime", "unsupported", "system-packages")
# The regular expression of PEP 723.
_BLOCK = re.compile(
    r"^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$", re.MULTILINE
)
_EXAMPLE = '# dependencies = ["acme==1.2", "numpy", "onnx"] between "# /// script" and "# ///"'


@dataclass(frozen=True)
class Adapter:
    """An adapter, as its file describes it.

    Attributes:
        path: the file.
        dependencies: the packages that it needs.
        python: the versions of Python that it needs.
        runtimes: the distributions whose versions identify the backend; ``@VERSION`` sets the
            version of the first.
        unsupported: regular expressions that match errors about unsupported features.
        system_packages: packages of operating systems that it needs, by the system.
        lock: the content of the lock file; empty without one.
    """

    path: Path
    dependencies: Sequence[str] = ()
    python: SpecifierSet = field(default_factory=SpecifierSet)
    runtimes: Sequence[str] = ()
    unsupported: Sequence[str] = ()
    system_packages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lock: str = ""

    def requirements(self, version: str) -> list[str]:
        """Return the packages to install.

        Args:
            version: the version of the first runtime; empty for that of the file.
        """
        if not version:
            return [*self.dependencies]
        runtime = canonicalize_name(self.runtimes[0])
        needed = [Requirement(text) for text in self.dependencies]
        other_needs = [str(entry) for entry in needed if canonicalize_name(entry.name) != runtime]
        for requirement in needed:
            if canonicalize_name(requirement.name) == runtime:
                requirement.url, requirement.specifier = None, SpecifierSet(f"=={version}")
                return [str(requirement), *other_needs]
        return [f"{self.runtimes[0]}=={version}", *other_needs]

    def constraints(self, version: str) -> str:
        """Return the lock's requirements, without the runtime if its version is chosen."""
        runtime = canonicalize_name(self.runtimes[0]) if version else ""
        return "".join(
            f"{requirement}\n"
            for requirement in self._locked
            if canonicalize_name(requirement.name) != runtime
        )

    def pinned(self, version: str, python: str) -> Mapping[str, str]:
        """Return the versions that requirements and lock pin, by the packages' normalised names.

        Args:
            version: the version of the first runtime; empty for that of the file.
            python: the version of the interpreter, such as 3.12.1, on which markers may depend.
        """
        requirements = [*self._locked, *map(Requirement, self.requirements(version))]
        minor = ".".join(python.split(".")[:2])
        markers = {"python_full_version": python, "python_version": minor}
        return {
            canonicalize_name(requirement.name): pin
            for requirement in requirements
            if (pin := _pin(requirement))
            and (not requirement.marker or requirement.marker.evaluate(markers))
        }

    @cached_property
    def _locked(self) -> list[Requirement]:
        return [*_requirements(self.lock)]


def _pin(requirement: Requirement) -> str:
    """Return the only version that a requirement admits; empty if it admits several."""
    specifiers = [*requirement.specifier]
    if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="}:
        return ""
    version = specifiers[0].version
    return "" if version.endswith("*") else version


def _requirements(lock: str) -> Iterator[Requirement]:
    for line in lock.splitlines():
        if text := re.sub(r"(^|\s)#.*", "", line).strip():
            yield Requirement(text)


def shipped_adapters() -> list[str]:
    """Return the names of the adapters that are a part of onnxopt."""
    return sorted(path.stem.replace("_", "-") for path in SHIPPED.glob("*.py"))


def adapter_source(specification: Specification) -> str:
    """Return the path of an adapter's file; a user's file need not exist, and is named as written.

    Raises:
        UsageError: if no adapter has this name.
    """
    name = specification.adapter
    if is_path(name):
        return name
    names = shipped_adapters()
    if name.replace("_", "-") not in names:
        bare_name, _, rest = name.partition(",")
        if rest:
            raise misused(specification.text, f": {printable(rest)!r} is not an option")
        listed = f"known are {', '.join(names)}; a file is written {ADAPTER}./file.py"
        hint = nearest(bare_name, names, listed)
        raise misused(specification.text, f": unknown adapter {printable(name)!r}", hint)
    return str(SHIPPED / f"{name.replace('-', '_')}.py")


def lock_path(path: Path) -> Path:
    """Return the lock file of an adapter's file, which need not exist."""
    return path.parent / "locks" / f"{path.stem}.txt"


def read_adapter(specification: Specification) -> Adapter:
    """Read the adapter that a specification names.

    Raises:
        UsageError: if no adapter has this name, or its file, its lock or the version is malformed.
        BackendUnavailable: if the file does not exist or cannot be read.
    """
    path = Path(adapter_source(specification))
    text = _read(specification, path)
    lock = lock_path(path)
    try:
        adapter = _parsed(path, text)
        if specification.adapter_version:
            Version(specification.adapter_version)
            if not adapter.runtimes:
                raise ValueError("names no runtime, so no version of it can be chosen")  # noqa: TRY301
    except InvalidVersion:
        problem = f": {printable(specification.adapter_version)!r} is not a version"
        raise misused(specification.text, problem) from None
    except ValueError as error:
        raise misused(specification.text, f": {printable(str(path))} {error}") from None
    if lock.exists():
        content = _read(specification, lock)
        try:
            [*_requirements(content)]
        except InvalidRequirement as error:
            problem = f": {printable(str(lock))} is not a list of requirements: {error}"
            raise misused(specification.text, printable(problem)) from None
        adapter = replace(adapter, lock=content)
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
                hint = nearest(key, known, f"known are {', '.join(known)}")
                raise ValueError(f"has no field {prefix}{printable(key)}: {hint}")
    dependencies = _texts(document, "dependencies")
    try:
        names = [Requirement(dependency).name for dependency in dependencies]
        python = document.get("requires-python", "")
        if not isinstance(python, str):
            raise ValueError("has a field requires-python that is not a text")  # noqa: TRY004 - one kind
        admitted = SpecifierSet(python)
    except (InvalidRequirement, InvalidSpecifier) as error:
        raise ValueError(f"has an invalid requirement: {printable(str(error))}") from None
    unsupported = _texts(own_fields, "unsupported")
    for pattern in unsupported:
        try:
            compile_pattern(pattern)
        except ValueError as error:
            raise ValueError(f"has unsupported = {printable(pattern)!r}, which {error}") from None
    systems = _table(own_fields, "system-packages", "tool.onnxopt.")
    return Adapter(
        path,
        dependencies,
        admitted,
        _texts(own_fields, "runtime") or names[:1],
        unsupported,
        {system: _texts(systems, system) for system in systems},
    )


def _metadata(text: str) -> dict[str, Any]:
    """Return the metadata of a file.

    Raises:
        ValueError: if it has no such block or several, or the block is not TOML.
    """
    import tomllib

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
        raise ValueError(f"has a field {prefix}{key} that is not a table")  # noqa: TRY004 - one kind
    return value


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    """Return the texts of a field that is a text or a list of texts."""
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"has a field {printable(key)} that is not a list of texts")
    return texts
