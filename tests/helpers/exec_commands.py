"""Specifications of the command in tests/plugins, and of other commands in Python."""

from __future__ import annotations

import shlex
import sys

from places import PLUGINS

COMMAND = PLUGINS / "exec" / "command.py"


def spec(*arguments, command=COMMAND, **options):
    """Return the specification of a backend that is a command."""
    words = shlex.join(map(str, (sys.executable, command, *arguments)))
    return f"exec:{words}" + "".join(f",{name}={value}" for name, value in options.items())
