"""The files that a project needs to test its backend: settings, a workflow, expected failures."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePath

from onnxopt_cli import __version__
from onnxopt_cli.backends.adapter.adapter_file import adapter_source
from onnxopt_cli.backends.configuration import has_settings, searched_folders
from onnxopt_cli.backends.resolve import require_known_name
from onnxopt_cli.backends.specification import (
    ENVIRONMENT,
    Specification,
    is_label,
    is_path,
    parse_specification,
)
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import UsageError

_SETTINGS = "onnxopt.toml"
_EXPECTED = "onnxopt-expected.yaml"
_REPORT = "onnxopt-report"
_WORKFLOW = ".github/workflows/onnxopt.yml"
#: The command that creates or updates the expectation file.
UPDATE_COMMAND = f"onnxopt run --profile ci --update-expect {_EXPECTED}"
# Options of a specification that have separate keys in the table of a backend.
_OWN_KEYS = ("python", "math", "unsupported")
# The backend in the settings until the user names another one.
_REFERENCE = "numpy"
# Matches keys of TOML that need no quotes.
_KEY = re.compile(r"[A-Za-z0-9_-]+")

_SETTINGS_TEXT = """\
# Settings of onnxopt for this project; `onnxopt config --profile ci` shows them.
backend = [{quoted}]
targets = ["spec", "conformance"]

{note}[backends.{name}]
{table}

# `onnxopt run --profile ci` runs the suites of this profile, as the workflow does.
[profiles.ci]
targets = ["spec", "conformance", "pairwise", "large"]
expect = [{expected}]
"""
_REFERENCE_NOTE = """\
# numpy is onnxopt's own reference, which conforms. Replace it by the backend under test, such as
# "python:my_backend.py:Backend", "exec:./adapter" or "onnxruntime".
"""
_EXPECTED_TEXT = f"""\
# The cases that do not pass, with reasons. This command adds an entry for each cause of failure:
#   {UPDATE_COMMAND}
onnxopt-expect: 1
expect: []
"""
_WORKFLOW_TEXT = """\
name: onnxopt
on:
  push:
  pull_request:
permissions:
  contents: read
jobs:
  onnxopt:
    runs-on: ubuntu-latest
    timeout-minutes: 60
{defaults}    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install onnxopt and the backend
        run: |
{note}          python -m pip install {requirements}
{build}      - name: Run onnxopt
        env:
          # The file that this variable names may belong to another user, and may name an adapter.
          ONNXOPT_CONFIG: {settings}
        run: >-
          onnxopt run --profile ci
          --log onnxopt-report/log.jsonl
          --report html=onnxopt-report/report.html
          --report junit=onnxopt-report/junit.xml
          --report github=-
          --artifacts onnxopt-report/failing
      - name: Upload the report
        if: always()
        uses: actions/upload-artifact@v4
        with:
          name: onnxopt-report
          path: {report}
          if-no-files-found: ignore
"""
_DEFAULTS_TEXT = """\
    defaults:
      run:
        working-directory: {folder}
"""
_UNPUBLISHED_NOTE = """\
          # The onnxopt that wrote this file did not come from a package index. If the index does
          # not have this version, replace the requirement.
"""
_BUILD_TEXT = """\
      # Add steps here that build the command of the backend.
"""


def write_project_files(
    folder: Path, backend: str, name: str, requirements: Sequence[str], *, force: bool
) -> list[Path]:
    """Write settings, an expectation file and a GitHub workflow, and return their paths.

    The workflow is written to the root of the repository that contains the folder.

    Args:
        folder: the folder of the project, to which paths in the specification are relative.
        backend: the specification of the backend under test; if it is empty, the settings name
            ``numpy``, with a note to replace it.
        name: the name of the backend in the settings; if it is empty, the name is derived from the
            specification.
        requirements: requirements of the backend, which the workflow installs with pip.
        force: whether existing files are replaced.

    Raises:
        UsageError: if an argument is invalid, a file exists, a symbolic link leads out of the
            project, or a file cannot be written. New files are then removed.
    """
    specification = parse_specification(backend or _REFERENCE)
    _require_known(specification)
    name = name or specification.label or (_short_name(specification) if backend else "mine")
    if not (_KEY.fullmatch(name) and is_label(name)):
        hint = "use letters, digits, hyphens and underscores; begin with a letter"
        raise UsageError(f"{printable(name)!r} cannot be the name of a backend", hint=hint)
    root = [*searched_folders(folder.absolute())][-1]
    texts = {
        folder / _SETTINGS: _settings(specification, name, is_example=not backend),
        folder / _EXPECTED: _EXPECTED_TEXT,
        root / _WORKFLOW: _workflow(folder, root, specification, requirements),
    }
    for path in texts:
        _require_within(root, path.parent)
    existing = [*filter(os.path.lexists, texts)]
    if has_settings(folder / "pyproject.toml"):
        existing.append(folder / "pyproject.toml")
    if existing and not force:
        names = ", ".join(printable(os.path.relpath(path)) for path in existing)
        hint = "--force replaces these files; onnxopt.toml takes precedence over pyproject.toml"
        raise UsageError(f"the project has settings or a workflow: {names}", hint=hint)
    try:
        for path, text in texts.items():
            _write(path, text)
    except UsageError:
        for path in texts.keys() - existing:
            # The folder of a file may not exist, or may be a file.
            with suppress(OSError):
                path.unlink()
        raise
    return [Path(os.path.relpath(path)) for path in texts]


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parent = printable(os.path.relpath(path.parent))
        raise UsageError(f"cannot create {parent}: {error.strerror or error}") from error
    write_atomically(path, text.encode())


def missing_file(backend: str) -> str:
    """Return the path of a specification's plugin or adapter if the file does not exist.

    If the file exists, the result is empty.
    """
    specification = parse_specification(backend or _REFERENCE)
    path = specification.source or specification.adapter
    return path if is_path(path) and not os.path.lexists(path) else ""


def _require_within(root: Path, folder: Path) -> None:
    """Require that a folder of a project is within the project after symbolic links are resolved.

    Raises:
        UsageError: if a symbolic link leads out of the project.
    """
    real_folder = folder.resolve()
    if not real_folder.is_relative_to(root.resolve()):
        link = printable(os.path.relpath(folder))
        raise UsageError(
            f"{link} is outside of the project: {printable(str(real_folder))}",
            hint="replace the symbolic link by a folder",
        )


def _require_known(specification: Specification) -> None:
    """Require that a backend or an adapter exists if the user gave its name.

    Raises:
        UsageError: if the backend or adapter does not exist.
    """
    if specification.adapter:
        adapter_source(specification)
    require_known_name(specification)


def _short_name(specification: Specification) -> str:
    """Return a name for the settings: the name of the file, module, command or adapter."""
    source = specification.source or specification.adapter or specification.name
    if specification.command:
        source = specification.command[0]
    last = re.split(r"[/\\]", source)[-1].removesuffix(".py")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", last).strip("_")
    return name if is_label(name) else "backend"


def _settings(specification: Specification, name: str, *, is_example: bool) -> str:
    options = specification.options
    rows = {"backend": _toml(_without_options(specification))}
    rows |= {key: _toml(options[key]) for key in ("python", "math") if key in options}
    environment = {
        key.removeprefix(ENVIRONMENT): value
        for key, value in options.items()
        if key.startswith(ENVIRONMENT)
    }
    other_options = {
        key: value
        for key, value in options.items()
        if key not in _OWN_KEYS and not key.startswith(ENVIRONMENT)
    }
    for key, table in (("environment", environment), ("options", other_options)):
        if table:
            pairs = (f"{_toml(option)} = {_toml(value)}" for option, value in table.items())
            rows[key] = f"{{{', '.join(pairs)}}}"
    if "unsupported" in options:
        rows["unsupported"] = _toml(options["unsupported"])
    return _SETTINGS_TEXT.format(
        name=name,
        quoted=_toml(name),
        note=_REFERENCE_NOTE if is_example else "",
        table="\n".join(f"{key} = {value}" for key, value in rows.items()),
        expected=_toml(_EXPECTED),
    )


def _toml(text: str) -> str:
    """Return text as a basic string of TOML, which has the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _without_options(specification: Specification) -> str:
    """Return the part of a specification that precedes its options."""
    text = specification.text.strip()
    bare = replace(specification, options={}, label="")
    for match in re.finditer(",", text):
        with suppress(UsageError):
            if parse_specification(text[: match.start()]) == bare:
                return text[: match.start()]
    return text


def _workflow(
    folder: Path, root: Path, specification: Specification, requirements: Sequence[str]
) -> str:
    for requirement in requirements:
        if printable(requirement) != requirement:
            raise UsageError(f"{printable(repr(requirement))} is not a requirement for pip")
    inner = PurePath(os.path.relpath(folder.absolute(), root)).as_posix()
    is_root = inner == "."
    extra = ""
    if specification.adapter:
        extra = "[adapters]"
    elif specification.name == "onnxruntime":
        extra = "[ort]"
    # The version is pinned, because the suites of another version may have other cases.
    packages = [f"onnxopt{extra}=={__version__}"]
    if _is_package(folder):
        packages.append(".")
    packages += requirements
    return _WORKFLOW_TEXT.format(
        note="" if _is_from_index() else _UNPUBLISHED_NOTE,
        defaults="" if is_root else _DEFAULTS_TEXT.format(folder=json.dumps(inner)),
        requirements=shlex.join(packages),
        build=_BUILD_TEXT if specification.command else "",
        settings=_SETTINGS,
        report=json.dumps(_REPORT if is_root else f"{inner}/{_REPORT}"),
    )


def _is_from_index() -> bool:
    """Return whether onnxopt was installed from a package index.

    Source: https://packaging.python.org/en/latest/specifications/direct-url
    """
    with suppress(PackageNotFoundError):
        return distribution("onnxopt").read_text("direct_url.json") is None
    return False


def _is_package(folder: Path) -> bool:
    """Return whether pip can install a folder."""
    if (folder / "setup.py").is_file():
        return True
    with suppress(Malformed, ValueError):
        document = tomllib.loads(read_regular_file(folder / "pyproject.toml").decode("utf-8-sig"))
        return "project" in document or "build-system" in document
    return False
