"""Ownership of files: without consent, code runs only if no other user can have written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from onnxopt_cli.core.text import printable

_WRITABLE_BY_ALL = stat.S_IWOTH
# A device such as /dev/null keeps nothing that is written to it.
_HOLD_CODE = {stat.S_IFREG, stat.S_IFDIR}


def foreign(path: Path) -> str:
    """Return the reason why another user may have written a file; empty if none can have.

    The file, links to it and the folders of both must belong to this user or root. The file must
    not be writable by all users, nor must its folder, unless that has the sticky bit (as ``/tmp``)
    and the file is not a hard link, which every user can create. A folder whose content counts must
    not be writable by all users.

    Args:
        path: the file or folder; the result is empty if it does not exist.
    """
    if not hasattr(os, "geteuid"):
        return ""
    for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
        try:
            file, folder = place.lstat(), place.parent.stat()
        except OSError:
            return ""
        if owner := _other_owner(file):
            return f"it belongs to {owner}"
        if owner := _other_owner(folder):
            return f"its folder belongs to {owner}"
        if stat.S_IFMT(file.st_mode) in _HOLD_CODE and file.st_mode & _WRITABLE_BY_ALL:
            return "everybody may write to it"
        if folder.st_mode & _WRITABLE_BY_ALL:
            if not folder.st_mode & stat.S_ISVTX:
                return "everybody may write to its folder"
            if stat.S_ISREG(file.st_mode) and file.st_nlink > 1:
                return "it is a hard link in a folder to which everybody may write"
    return ""


def _other_owner(status: os.stat_result) -> str:
    """Return the name of an owner other than this user and root; empty for these two."""
    if status.st_uid in {0, os.geteuid()}:
        return ""
    return user_name(status.st_uid)


def user_name(number: int) -> str:
    """Return ``alice (uid 1000)``, or ``uid 1000`` for a user without a name here."""
    import pwd

    try:
        return f"{printable(pwd.getpwuid(number).pw_name)} (uid {number})"
    except (KeyError, OverflowError):
        return f"uid {number}"
