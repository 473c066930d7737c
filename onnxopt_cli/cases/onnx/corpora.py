"""The test cases that come with the installed onnx package, by name.

onnx holds its node cases in memory only. The first use writes them as directories to the user's
cache. A cache is used only if this version of onnxopt wrote it on this machine for this user:

- The folder is owned by the user and not accessible to others.
- A manifest lists the size, times and SHA-256 of every file. A file whose size or times differ must
  have the listed digest.
- Folders must have the listed times, which copying or unpacking cannot preserve; a copied cache is
  therefore rebuilt.
- Every test named in onnx's sources must be present.

The checks do not protect against programs that run as the same user.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxopt_cli import __version__
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.data_set import write_directory
from onnxopt_cli.cases.onnx.directory import find_directories
from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.cases.tensors.tensor_data import array_of
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.locks import locked
from onnxopt_cli.core.progress import Telling, silently
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Provenance,
    Relative,
)
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import Fault, UsageError
from onnxopt_cli.operators.nodes import operator_names

_NODE = "onnx-node"
_PREFIX = "onnx-"

#: The corpora with their descriptions.
CORPORA = {
    _NODE: "every operator by itself: onnx's node tests",
    "onnx-simple": "small models: sequences, functions, shape inference, sign of zero",
    "onnx-pytorch-operator": "single PyTorch operators, as exported",
    "onnx-pytorch-converted": "PyTorch modules, as converted through Caffe2",
    "onnx-light": "nine image classifiers with constants for weights",
}


def corpus(name: str, telling: Telling = silently) -> tuple[list[Case], list[Fault]]:
    """Find the cases of a corpus.

    Args:
        name: one of :data:`CORPORA`.
        telling: opens a progress display while the cases are made.

    Returns:
        The cases, ``<corpus>/<test>/<data set>``, and the faults of the installed files.

    Raises:
        UsageError: if the name is unknown.
    """
    if name not in CORPORA:
        raise UsageError(f"unknown corpus {name!r}", hint=f"the corpora are {', '.join(CORPORA)}")
    if name == _NODE:
        cases, problems = node_cases(telling)
    else:
        data = Path(onnx.__file__).parent / "backend" / "test" / "data"
        cases, problems = find_directories(data / name.removeprefix(_PREFIX))
    version = onnx.__version__
    cases = [replace(case, source=f"onnx {version}", suite_version=version) for case in cases]
    return cases, problems


#: Overrides the folder of the cache.
CACHE_VARIABLE = "ONNXOPT_CACHE_DIR"

# Incremented when the content of the cache changes.
_FORMAT = 3
_MANIFEST = "manifest.json"
_MANIFEST_LIMIT = 16 << 20
_FOLDER = "node"
_SOURCES = Path(onnx.__file__).parent / "backend" / "test" / "case" / "node"
# A test whose name is a literal in the source; other names are composed at run time.
_NAMED = re.compile(rb'\bname="(test_\w+)"\s*[,)]')
# Unusable caches; each is tried, and a warning about it logged, only once.
_unusable: set[Path] = set()


def node_cases(telling: Telling = silently) -> tuple[list[Case], list[Fault]]:
    """Find onnx's node cases in the cache, or make them if they are missing.

    Concurrent runs may share the cache, since it is renamed into place when it is complete. If it
    cannot be used, the cases are held in memory and a warning is logged.
    """
    folder = cache_folder() / f"onnx-node-{onnx.__version__}-{_origin()[0][:16]}"
    if folder in _unusable:
        return _in_memory(), []
    cases = _cached(folder)
    if cases is None:
        reason = "its content changes after it is written"
        with telling("making onnx's node cases", "files") as tick:
            _make(tick)
        try:
            _write(folder)
        except OSError as error:
            reason = error.strerror or str(error)
        except UsageError as error:
            reason = error.message
        cases = _cached(folder)
    if cases is None:
        import logging

        _unusable.add(folder)
        logging.getLogger(__name__).warning(
            "onnx's node cases are made without a cache, which takes longer: cannot use %s: %s\n"
            "  %s=DIR names another place",
            printable(str(folder)),
            printable(reason),
            CACHE_VARIABLE,
        )
        cases = _in_memory()
    return cases, []


def cache_folder() -> Path:
    """Return the folder of onnxopt's cache, which need not exist."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    import platformdirs

    return platformdirs.user_cache_path("onnxopt")


def _cached(folder: Path) -> list[Case] | None:
    """Return the cases of a cache, or None if it is missing or invalid."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or not is_private(status):
            return None
        manifest = json.loads(read_regular_file(folder / _MANIFEST, _MANIFEST_LIMIT))
        if manifest["origin"] != _origin()[0] or not _is_as_written(folder, manifest["entries"]):
            return None
        cases, problems = find_directories(folder / _FOLDER)
        operators = {name: tuple(map(str, used)) for name, used in manifest["operators"].items()}
        cases = [replace(case, operators=operators[case.id.split("/")[1]]) for case in cases]
    except (OSError, Malformed, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    names = {case.id.split("/")[1] for case in cases}
    complete = len(cases) == manifest["count"] and not problems and _origin()[1] <= names
    return cases if complete else None


def _make(tick: Callable[[int, int], object]) -> None:
    """Import onnx's modules of node cases, which creates the cases, in onnx's order."""
    modules = [*walk_packages([str(_SOURCES)], "onnx.backend.test.case.node.")]
    for done, module in enumerate(modules, start=1):
        with _quietly():
            import_module(module.name)
        tick(done, len(modules))


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the output and warnings of onnx."""
    sink = io.StringIO()
    with warnings.catch_warnings(action="ignore"), redirect_stdout(sink), redirect_stderr(sink):
        yield


def _write(folder: Path) -> None:
    # Create missing parent folders, accessible to this user only.
    for missing in reversed([parent for parent in folder.parents if not parent.exists()]):
        missing.mkdir(0o700, exist_ok=True)
    with temporary_folder(folder.parent, f".{folder.name}-") as temporary:
        new = temporary / "new"
        new.mkdir(0o700)
        digests, operators = write_node_corpus(new)
        paths = {str(parent): "" for file in digests for parent in Path(file).parents[:-1]}
        entries = {
            path: [*_signature((new / path).lstat()), digest]
            for path, digest in {**paths, **digests}.items()
        }
        manifest = {
            "origin": _origin()[0],
            "count": len(operators),
            "operators": operators,
            "entries": entries,
        }
        (new / _MANIFEST).write_text(json.dumps(manifest))
        if os.path.lexists(folder) and _cached(folder) is None:
            # Move it away first, so that no run finds a mixture of both.
            folder.rename(temporary / "damaged")
        try:
            new.rename(folder)
        except OSError:
            # Another run may have created the same cache in the meantime.
            if not os.path.lexists(folder):
                raise


def is_private(status: os.stat_result) -> bool:
    """Return whether a file is owned by this user and not accessible to others."""
    return is_ours(status) and (os.name != "posix" or not status.st_mode & 0o077)


def is_ours(status: os.stat_result) -> bool:
    """Return whether a file is owned by this user."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _signature(status: os.stat_result) -> list[int]:
    """Return size, modification time and change time; no program can set the change time."""
    # The size of a folder depends on the file system.
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return [size, status.st_mtime_ns, status.st_ctime_ns]


def _is_as_written(folder: Path, entries: dict[str, Any]) -> bool:
    """Return whether a cache has the content of its manifest, in regular files and folders."""
    if entries[_FOLDER][-1]:
        return False
    for path, (*signature, digest) in entries.items():
        name = f"{folder}/{path}"
        status = os.lstat(name)
        regular = stat.S_ISREG(status.st_mode)
        if not is_ours(status) or (regular and status.st_nlink > 1):
            return False
        if signature != _signature(status):
            # A folder's digest is empty.
            if not regular or not digest or status.st_size != signature[0]:
                return False
            if sha256(read_regular_file(name, status.st_size)).hexdigest() != digest:
                return False
    return True


@cache
def _origin() -> tuple[str, frozenset[str]]:
    """Return a digest of all inputs to the cases, and the tests named in onnx's sources."""
    versions = (_FORMAT, __version__, onnx.__version__, np.__version__, sys.version)
    digest = sha256(repr((*versions, platform.machine())).encode())
    names: set[str] = set()
    for path in sorted(_SOURCES.rglob("*.py")):
        source = path.read_bytes()
        digest.update(sha256(source).digest())
        names |= {name.decode() for name in _NAMED.findall(source)}
    return digest.hexdigest(), frozenset(names)


def _in_memory() -> list[Case]:
    location = Location(_SOURCES)
    # The default argument binds the current problem.
    return [
        Case(
            f"onnx-node/{name}/0",
            location,
            lambda problem=problem: problem,  # type: ignore[misc]
            operators=operator_names(problem.model),
        )
        for name, problem in node_contents()
    ]


def node_contents() -> Iterator[tuple[str, Problem]]:
    """Collect onnx's node cases, without onnx's warnings; takes seconds.

    Yields:
        The name of a test (``test_abs``) and its problem.
    """
    with _quietly():
        # The import of these modules creates the cases.
        from onnx.backend.test.case.node import collect_testcases

        cases: list[Any] = collect_testcases()
    for case in cases:
        graph = case.model.graph
        tolerance = None
        if (case.rtol, case.atol) != (ONNX_DEFAULT.rtol, ONNX_DEFAULT.atol):
            tolerance = Relative(case.rtol, case.atol, Provenance.DIRECTORY)
        # onnx allows several data sets, but a node test has exactly one.
        ((inputs, outputs),) = case.data_sets
        named_inputs, named_outputs = _by_name(graph.input, inputs), _by_name(graph.output, outputs)
        yield case.name, Problem(case.model, named_inputs, named_outputs, tolerance)


def write_node_corpus(folder: Path) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Write all node cases of the installed onnx to ``<folder>/node/test_<name>``.

    Returns:
        The SHA-256 of each file by its path in the folder, and the operators of each test.

    Raises:
        UsageError: if a directory exists already or cannot be written.
    """
    digests: dict[str, str] = {}
    operators: dict[str, tuple[str, ...]] = {}
    for name, problem in node_contents():
        operators[name] = operator_names(problem.model)
        for path, data in write_directory(folder / "node" / name, problem).items():
            digests[f"node/{name}/{path}"] = sha256(data).hexdigest()
    return digests, operators


def _by_name(declared: Any, values: Any) -> dict[str, Value]:
    pairs = zip(declared, values, strict=True)
    return {info.name: _normal(value) for info, value in pairs}


def _normal(value: Any) -> Value:
    """Convert a value of onnx, possibly a message, NumPy scalar or tuple, to that of a case."""
    if value is None:
        return None
    if isinstance(value, TensorProto):
        return array_of(value)
    if isinstance(value, (list, tuple)):
        return [_normal(element) for element in value]
    if isinstance(value, dict):
        return {key: _normal(element) for key, element in value.items()}
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


# Time limit for a lock. Processes hold it while they remove old folders; a hung one never ends.
_LOCK_SECONDS = 3.0


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a temporary folder and remove it at the end; also remove those of killed processes.

    A process holds a lock on its folder while it runs, so that an unlocked folder is abandoned. The
    folders of other processes are kept if the system has no such locks, or if the lock on the
    parent is not available in time.

    Args:
        parent: the folder to make it in; every name with the prefix there must be temporary.
        prefix: the beginning of its name.

    Raises:
        OSError: if the folder cannot be made.
    """
    with ExitStack() as stack:
        with locked(parent, _LOCK_SECONDS) as held:
            for old_folder in parent.glob(f"{prefix}*") if held else ():
                with locked(old_folder) as abandoned:
                    if abandoned:
                        _remove(old_folder)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            stack.enter_context(locked(folder, _LOCK_SECONDS))
            stack.callback(_remove, folder)
        yield folder


def _remove(folder: Path) -> None:
    # Deeply nested folders may exceed Python's recursion limit.
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
