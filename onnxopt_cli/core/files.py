"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from onnxopt_cli.errors import UsageError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, with the permissions of a new file.

    What is there already and is no regular file, such as a pipe or ``/dev/stderr``, is written to
    and not replaced.

    Raises:
        UsageError: if it cannot be written; says why.
    """
    temporary = path.parent / f".{path.name}.{os.urandom(4).hex()}"
    try:
        if path.exists() and not path.is_file():
            with path.open("wb", buffering=0) as file:
                file.write(data)
            return
        try:
            _write(temporary, data)
            os.replace(temporary, path)  # noqa: PTH105 - says what it does
        finally:
            # Ctrl-C leaves nothing either.
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _write(path: Path, data: bytes) -> None:
    """Write a new file that has no name until it is whole, where the system has such files."""
    descriptors = Path("/proc/self/fd")
    try:
        nameless = os.O_TMPFILE if descriptors.exists() else os.O_CREAT | os.O_EXCL
        descriptor = os.open(path.parent, nameless | os.O_WRONLY, 0o666)
    except (AttributeError, OSError):
        with path.open("xb") as file:
            file.write(data)
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        # With a folder for relative paths, of which this is none, links are followed.
        os.link(descriptors / str(descriptor), path, src_dir_fd=descriptor)
