"""Atomic writing of files, checks of output paths, and running Python files as modules."""

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
from tempfile import NamedTemporaryFile
from time import monotonic, sleep
from types import ModuleType
from unicodedata import normalize

from onnxopt_cli.errors import UsageError

# Number of seconds for which opening a pipe waits for a reader.
_READER_SECONDS = 5.0
_POLL_SECONDS = 0.05


def write_atomically(path: Path, data: bytes | Iterable[bytes], *, new: bool = False) -> None:
    """Write a file completely or not at all, with the permissions of a new file.

    If the path is an existing pipe or device, such as ``/dev/stderr``, the data are written to it,
    and it is not replaced. If a pipe has no reader, the function waits for a reader for up to 5
    seconds.

    Args:
        path: path of the file.
        data: content of the file, as bytes or as several pieces.
        new: whether the file must not exist yet.

    Raises:
        FileExistsError: if ``new`` is true and the path exists.
        UsageError: if the file cannot be written.
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
                os.replace(temporary, path)  # noqa: PTH105 - a counterpart to os.link
        finally:
            # The temporary file is also removed after Ctrl-C.
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        if new and isinstance(error, FileExistsError):
            raise
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def require_unused(outputs: Iterable[tuple[str, Path]], files: Iterable[Path]) -> None:
    """Check that no output replaces another output or a file that the command uses.

    Args:
        outputs: for each output, the option as the user wrote it, and the path.
        files: other files that the command reads or writes; some may not exist.

    Raises:
        UsageError: if an output would replace a file; the message names the first such output.
    """
    identities = set(map(_identity, files))
    for option, path in outputs:
        if _identity(path) in identities:
            raise UsageError(
                f"{option} would replace another file that the command uses",
                hint="give the output another path",
            )
        identities.add(_identity(path))


def _identity(path: Path) -> str:
    """Return the same text for all paths of a file, even if the file system ignores case."""
    return normalize("NFC", os.path.realpath(path)).casefold()


def require_writable_file(option: str, path: Path) -> None:
    """Check, before the work begins, that a file can be written, and create its folder.

    Raises:
        UsageError: if the path is a folder, if its folder cannot be created (see
            :func:`create_last_folder`), or if a file cannot be created in its folder. The message
            names the option.
    """
    if path.is_dir():
        raise UsageError(f"{option} cannot write {path}: it is a folder")
    folder = path.absolute().parent
    try:
        create_last_folder(folder)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{option} cannot write {path}: {reason}") from None
    if path.exists() and not path.is_file():
        # Opening a pipe or a device could block.
        return
    try:
        NamedTemporaryFile(dir=folder, prefix=f".{path.name}.").close()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{option} cannot write {path}: {reason}") from None


def require_output_folder(option: str, folder: Path) -> None:
    """Check that files can be written to a folder, which may not exist yet; do not create it.

    Raises:
        UsageError: if the folder cannot be created (see :func:`create_last_folder`), or if files
            cannot be written to it. The message names the option.
    """
    path = folder.absolute()
    try:
        _require_folder_above(path)
    except OSError as error:
        raise UsageError(f"{option} {folder}: {error.strerror}") from None
    existing = path if path.exists() else path.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot write in {existing}")


def create_last_folder(folder: Path) -> None:
    """Create a folder for output if it is missing; the folder above it must exist.

    If several folders of a path are missing, the path is most likely mistyped.

    Raises:
        OSError: if the folder cannot be created, or the folder above it does not exist.
    """
    _require_folder_above(folder)
    if folder.exists() and not folder.is_dir():
        raise OSError(errno.ENOTDIR, f"{folder} is not a folder")
    folder.mkdir(exist_ok=True)


def _require_folder_above(folder: Path) -> None:
    above = folder.absolute().parent
    if not above.exists():
        raise OSError(errno.ENOENT, f"the folder {above} does not exist")


def shown_path(path: Path) -> str:
    """Return a path relative to the working directory, or an outside path unchanged.

    Readers of reports assume that the working directory is the root of a repository.
    """
    directory = working_folder()
    return _shown_from(path, directory) if directory else str(path)


def working_folder() -> str:
    """Return the working directory; empty if it no longer exists."""
    with contextlib.suppress(OSError):
        # A report may call this function for 100,000 cases. pathlib would parse the path each time.
        return os.getcwd()  # noqa: PTH109
    return ""


# Results are cached, because many cases have the same path.
@lru_cache
def _shown_from(path: Path, directory: str) -> str:
    for absolute in (os.path.abspath, os.path.realpath):
        # A path from a log may be invalid.
        with contextlib.suppress(OSError, ValueError):
            inner = os.path.relpath(absolute(path), directory)
            if inner.split(os.sep, 1)[0] != os.pardir:
                return inner
    return str(path)


def run_file(path: Path, name: str) -> ModuleType:
    """Return a Python file as a module.

    The file runs only in the first call with this name. If it raises an exception, the next call
    runs it again.
    """
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
                raise OSError(errno.ENXIO, "this pipe has no reader") from None
            sleep(_POLL_SECONDS)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a new file.

    If the system supports unnamed files, the file has no name until it is complete.
    """
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
        # Python follows the link /proc/self/fd/N only if src_dir_fd is given.
        with contextlib.suppress(OSError):
            os.link(descriptors / str(descriptor), path, src_dir_fd=descriptor)
            return
        # The file system or the container does not allow giving a name to an unnamed file.
        os.lseek(descriptor, 0, os.SEEK_SET)
        copy = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        with os.fdopen(copy, "wb") as named, os.fdopen(os.dup(descriptor), "rb") as unnamed:
            shutil.copyfileobj(unnamed, named)
