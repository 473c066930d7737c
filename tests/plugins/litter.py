"""A backend that leaves temporary files behind. The input R selects how its process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import time
from pathlib import Path

from onnxopt_cli.backends.resolve import resolve_backend

ENDS = {
    0.5: lambda: ctypes.string_at(0),
    0.25: lambda: time.sleep(300),
    0.125: lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(300)),
    0.0625: lambda: None,
}


class Backend:
    """A backend that writes a temporary file, and a temporary folder that cannot be read."""

    def run(self, model, inputs):
        os.close(tempfile.mkstemp()[0])
        folder = Path(tempfile.mkdtemp(), "deep", "deeper")
        folder.mkdir(parents=True)
        (folder / "file").touch()
        folder.parent.chmod(0)
        ENDS[float(inputs["R"])]()
        return resolve_backend("numpy").prepare(model).run(inputs)
