"""Backends that take the machine of a cluster with them, by killing the Dask worker there."""

import os
import signal
from pathlib import Path

from hostile import BAD, Well


def _dask_worker():
    process = os.getpid()
    while process > 1:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        process = int(fields[1])
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        if b"dask_worker" in command:
            return process
    raise LookupError


class KillsTheMachine(Well):
    """Kills the Dask worker in a bad case."""

    def run(self, model, inputs):
        if inputs["R"] >= BAD:
            os.kill(_dask_worker(), signal.SIGKILL)
            signal.pause()
        return super().run(model, inputs)
