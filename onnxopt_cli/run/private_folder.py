"""A folder for the temporary files of one worker, so that a worker that is killed leaves none."""

from __future__ import annotations

import os


def name_folder() -> str:
    """Return the path of a folder that is not there yet, where temporary files belong.

    Where nothing takes temporary files it is empty, and there will be no folder.
    """
    # The worker's keeper, which uses this file too, has no use for it.
    import tempfile

    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return ""
    return os.path.join(tempfile.gettempdir(), f"onnxopt-{os.urandom(8).hex()}")  # noqa: PTH118 - a string to pass on


def enter_folder(folder: str) -> None:
    """Make the folder, and let this process and those it starts put temporary files there.

    Where it cannot be made, temporary files go where they always go.
    """
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102 - pathlib costs a worker's start time
    except OSError:
        return
    os.environ["TMPDIR"] = folder


def remove_folder(folder: str) -> None:
    """Remove the folder with all that is in it, as far as that is possible."""
    try:
        os.rmdir(folder)  # noqa: PTH106 - as above
    except FileNotFoundError:
        return
    except OSError:
        # Most are empty, and need no import.
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
