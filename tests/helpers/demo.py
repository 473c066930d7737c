"""A file of small cases, and backends with scripted behaviour, for tests of complete runs."""

from __future__ import annotations

import json
from pathlib import Path

NAMES = ("a", "b", "c", "d", "e", "f")

_HEAD = "onnxopt: 1\nsuite: demo\noperator: Momentum\ncases:\n"
#: The text of a case; its name and the first element of X are inserted.
CASE = """\
  - name: {name}
    attributes: {{alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}}
    inputs: {{R: 0.1, T: 1, X: [{place}.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}}
"""

_BACKENDS = '''\
import os
import time

import numpy as np

from onnxopt_cli.backends.resolve import resolve_backend

__version__ = "1.5.0"
NUMPY = resolve_backend("numpy")


class Right:
    """Correct; `seen` lists the first elements of X of all requests."""

    def __init__(self):
        self.seen = []

    def run(self, model, inputs):
        first = float(inputs["X"].reshape(-1)[0])
        outputs = self.answer(first, NUMPY.prepare(model).run(inputs))
        self.seen.append(first)
        return outputs

    def answer(self, first, outputs):
        return outputs


def off(outputs):
    return [outputs[0] + np.float32(0.25), *outputs[1:]]


class Off(Right):
    def answer(self, first, outputs):
        return off(outputs)


class OffAtC(Right):
    def answer(self, first, outputs):
        return off(outputs) if first == 3 else outputs


class RaisesAtB(Right):
    def answer(self, first, outputs):
        if first == 2:
            raise ValueError("no luck")
        return off(outputs) if first == 3 else outputs


class UnsupportedAtB(Right):
    def answer(self, first, outputs):
        if first == 2:
            raise NotImplementedError("not here")
        return outputs


class FailsAfterB(Right):
    """Case e fails if case b has run before in this process."""

    culprit = 2

    def answer(self, first, outputs):
        return off(outputs) if first == 5 and self.culprit in self.seen else outputs


class FailsAfterD(FailsAfterB):
    culprit = 4


class PassesAfterB(Right):
    """Case e fails unless case b has run in this process; case d ends the process."""

    def answer(self, first, outputs):
        if first == 4:
            os._exit(3)
        return off(outputs) if first == 5 and 2 not in self.seen else outputs


class NowAndThen(Right):
    """Every second response to case c is wrong, across all processes."""

    def answer(self, first, outputs):
        if first != 3:
            return outputs
        with open("answers", "a") as file:
            file.write("x")
        return off(outputs) if os.path.getsize("answers") % 2 else outputs


class SlowAtD(Right):
    def answer(self, first, outputs):
        if first == 4 and not os.path.exists("go"):
            time.sleep(60)
        with open("ran", "a") as file:
            file.write("abcdef"[int(first) - 1])
        return outputs
'''


def write_demo(folder: Path) -> Path:
    """Write ``vendor.py``, and ``demo.yaml`` with cases ``demo/demo/a`` to ``demo/demo/f``."""
    cases = (CASE.format(name=name, place=place) for place, name in enumerate(NAMES, start=1))
    (folder / "demo.yaml").write_text(_HEAD + "".join(cases))
    (folder / "vendor.py").write_text(_BACKENDS)
    return folder


def backend(name: str) -> str:
    """Return the specification of a backend in ``vendor.py``."""
    return f"python:vendor.py:{name}"


def records(path: Path) -> list[dict]:
    """Return the records of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_arguments(name: str, *more: str) -> tuple[str, ...]:
    """Return the arguments that run the demo in this process, without explanations."""
    target = name if name == "numpy" else backend(name)
    return ("run", "demo.yaml", "-b", target, "--isolation", "none", "--no-explain", *more)
