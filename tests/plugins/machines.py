"""A backend that kills the Dask worker of its machine."""

import os
import signal
from pathlib import Path

from hostile import BAD, Well


def _dask_worker():
    """Return the id of the Dask worker, the parent of the topmost process of the sidecar."""
    process, worker = os.getpid(), None
    while process > 1:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        process = int(fields[1])
        if b"onnxopt_cli.workers.cluster.sidecar" in command:
            worker = process
    return worker


class KillsTheMachine(Well):
    """A backend that kills the Dask worker if ``R`` is at least BAD."""

    def run(self, model, inputs):
        if inputs["R"] >= BAD:
            os.kill(_dask_worker(), signal.SIGKILL)
            signal.pause()
        return super().run(model, inputs)
