"""Whose a file is: code is run unasked only where nobody but this user and root can have put it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from onnxopt_cli.core.text import printable

_WRITABLE_BY_ALL = stat.S_IWOTH
# A device such as /dev/null keeps nothing that is written to it.
_HOLD_CODE = {stat.S_IFREG, stat.S_IFDIR}


def foreign(path: Path) -> str:
    """Say who else can have written a file; empty if only this user and root can.

    The file, each link to it and the folders of both must belong to one of them. Not everybody may
    write to the file; nor to a folder, unless that keeps files of other users in place (the sticky
    bit, as in ``/tmp``), and then the file may not be a hard link, which anybody can make of it.
    To a folder whose content counts nobody else may add anything.

    Args:
        path: the file or folder. One that is not there is no one's.
    """
    if not hasattr(os, "geteuid"):
        return ""
    for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
        try:
            file, folder = place.lstat(), place.parent.stat()
        except OSError:
            return ""
        if who := _other_owner(file):
            return f"it belongs to {who}"
        if who := _other_owner(folder):
            return f"its folder belongs to {who}"
        if stat.S_IFMT(file.st_mode) in _HOLD_CODE and file.st_mode & _WRITABLE_BY_ALL:
            return "everybody may write to it"
        if folder.st_mode & _WRITABLE_BY_ALL:
            if not folder.st_mode & stat.S_ISVTX:
                return "everybody may write to its folder"
            if stat.S_ISREG(file.st_mode) and file.st_nlink > 1:
                return "it is a hard link in a folder to which everybody may write"
    return ""


def _other_owner(status: os.stat_result) -> str:
    """Return the name of an owner who is neither this user nor root; empty for these."""
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
