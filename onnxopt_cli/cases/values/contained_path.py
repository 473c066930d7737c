"""Paths in a case file, which may lead nowhere but into the file's own folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from onnxopt_cli.cases.values.malformed import Malformed


def contained_path(folder: Path, text: str) -> Path:
    """Return the file that a relative path names, with every symbolic link followed.

    Args:
        folder: where the case file stands.
        text: the path as the case file has it, with ``/`` between its parts.

    Raises:
        Malformed: if it is no relative path, goes up, or a link on it leads out of the folder.
    """
    parts = PurePosixPath(text).parts
    if not parts or "\0" in text or "\\" in text or ".." in parts or _is_absolute(text):
        raise Malformed("is no path inside the folder of the case file")
    root = folder.resolve()
    try:
        path = root.joinpath(*parts).resolve()
    except (OSError, RuntimeError) as error:
        raise Malformed(f"cannot be followed: {error}") from None
    if not path.is_relative_to(root):
        raise Malformed("leads out of the folder of the case file through a symbolic link")
    return path


def _is_absolute(text: str) -> bool:
    return PurePosixPath(text).is_absolute() or bool(PureWindowsPath(text).anchor)
