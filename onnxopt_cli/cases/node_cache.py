"""onnx's node cases as directories in the user's cache, written when they are first asked for."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import onnx
import platformdirs

from onnxopt_cli.cases.node_corpus import node_contents, write_node_corpus
from onnxopt_cli.cases.onnx_directory import find_directories
from onnxopt_cli.cases.temporary_folder import temporary_folder
from onnxopt_cli.core.case import Case, Content, Location
from onnxopt_cli.errors import Problem, UsageError

#: Overrides the folder of the cache.
CACHE_VARIABLE = "ONNXOPT_CACHE_DIR"

# Counts up when directories are written in another way than before.
_FORMAT = 1
_COUNT_FILE = "count"


def node_cases() -> tuple[list[Case], list[Problem]]:
    """Find onnx's node cases, from the cache if they are there, else making them.

    Runs may share the cache: it is renamed into place when it is whole. Where it cannot be written,
    the cases are held in memory.
    """
    folder = cache_folder() / f"onnx-node-{onnx.__version__}-{_FORMAT}"
    found = _cached(folder)
    if found is None:
        try:
            _write(folder)
        except (OSError, UsageError):
            return _in_memory(), []
        found = _cached(folder)
    return (_in_memory() if found is None else found), []


def cache_folder() -> Path:
    """Return the folder of onnxopt's cache, which need not exist."""
    folder = os.environ.get(CACHE_VARIABLE)
    return Path(folder) if folder else platformdirs.user_cache_path("onnxopt")


def _cached(folder: Path) -> list[Case] | None:
    """Return the cases of a cache, or None if there is none or something was deleted from it."""
    try:
        count = int((folder / _COUNT_FILE).read_text())
    except (OSError, ValueError):
        return None
    cases, problems = find_directories(folder / "node")
    return cases if len(cases) == count and not problems else None


def _write(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder.parent, f".{folder.name}-") as temporary:
        count = write_node_corpus(temporary)
        (temporary / _COUNT_FILE).write_text(f"{count}\n")
        if folder.exists() and _cached(folder) is None:
            # Out of the way first, so that no run ever finds half of each.
            folder.rename(temporary / "damaged")
        with contextlib.suppress(OSError):
            # Fails if another run has just put its own there, which is as good.
            temporary.rename(folder)


def _in_memory() -> list[Case]:
    place = Location(Path(onnx.__file__).parent / "backend" / "test" / "case" / "node")

    def case(name: str, content: Content) -> Case:
        return Case(f"onnx-node/{name}/0", place, lambda: content)

    return [case(*found) for found in node_contents()]
