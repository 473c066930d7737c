"""For authors of backends: skeletons in Python, C++ and shell, and the protocol of commands."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path

from onnxopt_cli.core.files import create_last_folder
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError

# The word that is replaced with the name of the new backend, in the files and in their names.
_PLACEHOLDER = "my_backend"
# Names of the files that are made executable.
_EXECUTABLE = frozenset({"adapter"})


def protocol_document() -> str:
    """Return the specification of the protocol of commands as Markdown."""
    return files("onnxopt_cli.backends.exec").joinpath("protocol.md").read_text(encoding="utf-8")


def write_skeleton(folder: Path, language: str) -> tuple[list[Path], list[str]]:
    """Write the skeleton of a backend. The backend is named after the folder.

    Args:
        folder: a new or empty folder.
        language: ``python``, ``cpp`` or ``shell``.

    Returns:
        The files that were written, and commands that build and check the backend. For Python,
        there are two commands; the second one runs the backend in an environment of its own.

    Raises:
        UsageError: if the folder is not empty, cannot be written, or has a name that a Python
            package cannot have.
    """
    name = _package_name(folder)
    source = Path(__file__).parent / "skeletons" / language
    written = []
    try:
        create_last_folder(folder)
        if any(folder.iterdir()):
            raise UsageError(
                f"{printable(str(folder))} is not empty", hint="name a new or an empty folder"
            )
        for path in sorted(source.rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            target = folder / str(path.relative_to(source)).replace(_PLACEHOLDER, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8")
            target.write_text(text.replace(_PLACEHOLDER, name), encoding="utf-8")
            if target.name in _EXECUTABLE:
                target.chmod(target.stat().st_mode | 0o111)
            written.append(target)
    except OSError as error:
        raise UsageError(
            f"{printable(str(folder))} cannot be written: {error.strerror or error}"
        ) from error
    return written, _check_commands(folder, name, language)


def _package_name(folder: Path) -> str:
    name = re.sub(r"[\s.-]+", "_", folder.resolve().name).lower()
    # Matches names that are valid for pip, Python and a shell.
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) or iskeyword(name):
        raise UsageError(
            f"{printable(folder.name)!r} cannot be the name of a backend",
            hint="begin with a letter, and use letters, digits and underscores",
        )
    return name


def _check_commands(folder: Path, name: str, language: str) -> list[str]:
    if language == "python":
        file = folder / name / "__init__.py"
        backends = [f"python:{file}:Backend", f"adapter:{file}"]
    else:
        backends = [f"exec:{shlex.quote(str(folder.resolve() / 'adapter'))}"]
    build = f"make -C {shlex.quote(str(folder))} && " if language == "cpp" else ""
    return [f"{build}onnxopt backends check {shlex.quote(backend)}" for backend in backends]
