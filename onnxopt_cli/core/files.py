"""Writing files so that nobody ever sees half of one, naming them as others do, running them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType

from onnxopt_cli.errors import UsageError

# How long a pipe may be without a reader.
_READER_SECONDS = 5.0
_LOOK_SECONDS = 0.05


def write_atomically(path: Path, data: bytes | Iterable[bytes], *, new: bool = False) -> None:
    """Write a file whole or not at all, with the permissions of a new file.

    What is there already and is no regular file, such as a pipe or ``/dev/stderr``, is written to
    and not replaced. A pipe has a moment to find a reader.

    Args:
        path: of the file.
        data: its content, whole or in pieces.
        new: whether what is there already is kept.

    Raises:
        FileExistsError: if it is to be new, and something is there already.
        UsageError: if it cannot be written; says why.
    """
    pieces = [data] if isinstance(data, bytes) else data
    temporary = path.parent / f".{path.name}.{os.urandom(4).hex()}"
    try:
        if not new and path.exists() and not path.is_file():
            with os.fdopen(_open_special(path), "wb") as file:
                file.writelines(pieces)
            return
        try:
            _write(temporary, pieces)
            if new:
                os.link(temporary, path)
            else:
                os.replace(temporary, path)  # noqa: PTH105 - says what it does
        finally:
            # Ctrl-C leaves nothing either.
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        if new and isinstance(error, FileExistsError):
            raise
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def require_place(option: str, path: Path) -> None:
    """Refuse a path at which no file can be written, before there is something to write.

    Raises:
        UsageError: naming the option, if the path is a folder, or in one that does not exist.
    """
    if path.is_dir():
        raise UsageError(f"{option} cannot write {path}: it is a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} cannot write {path}: the folder must exist")


def shown_path(path: Path) -> str:
    """Return a path relative to the working directory if it lies in there, or as it is.

    Readers of reports take the working directory for the top of a repository.
    """
    here = working_folder()
    return _shown_from(path, here) if here else str(path)


def working_folder() -> str:
    """Return the current folder; empty if it is gone."""
    with contextlib.suppress(OSError):
        # A report may ask for 100,000 cases, and pathlib takes the name apart each time.
        return os.getcwd()  # noqa: PTH109
    return ""


# A file has many cases.
@lru_cache
def _shown_from(path: Path, here: str) -> str:
    for absolute in (os.path.abspath, os.path.realpath):
        # A path in a log may be no path.
        with contextlib.suppress(OSError, ValueError):
            inner = os.path.relpath(absolute(path), here)
            if inner.split(os.sep, 1)[0] != os.pardir:
                return inner
    return str(path)


def run_file(path: Path, name: str) -> ModuleType:
    """Return a Python file as the module of a name; it runs once, unless it raises something."""
    if name not in sys.modules:
        loader = SourceFileLoader(name, str(path))
        module = module_from_spec(spec_from_loader(name, loader))  # type: ignore[arg-type]
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _open_special(path: Path) -> int:
    flags = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    deadline = monotonic() + _READER_SECONDS
    while True:
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if monotonic() > deadline:
                raise OSError(errno.ENXIO, "nobody reads this pipe") from None
            sleep(_LOOK_SECONDS)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a new file that has no name until it is whole, where the system has such files."""
    descriptors = Path("/proc/self/fd")
    try:
        nameless = os.O_TMPFILE if descriptors.exists() else os.O_CREAT | os.O_EXCL
        descriptor = os.open(path.parent, nameless | os.O_RDWR, 0o666)
    except (AttributeError, OSError):
        with path.open("xb") as file:
            file.writelines(pieces)
        return
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(pieces)
        file.flush()
        # With a folder for relative paths, of which this is none, links are followed.
        with contextlib.suppress(OSError):
            os.link(descriptors / str(descriptor), path, src_dir_fd=descriptor)
            return
        # The file system or the container gives no name to what had none.
        os.lseek(descriptor, 0, os.SEEK_SET)
        copy = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        with os.fdopen(copy, "wb") as named, os.fdopen(os.dup(descriptor), "rb") as whole:
            shutil.copyfileobj(whole, named)
