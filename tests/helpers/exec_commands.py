"""Specifications of backends that are commands, by default of ``tests/plugins/exec/command.py``."""

from __future__ import annotations

import shlex
import sys

from places import PLUGINS

COMMAND = PLUGINS / "exec" / "command.py"


def spec(*arguments, command=COMMAND, **options):
    """Return the specification of a Python command with arguments, and with options of ``exec``."""
    words = shlex.join(map(str, (sys.executable, command, *arguments)))
    return f"exec:{words}" + "".join(f",{name}={value}" for name, value in options.items())
