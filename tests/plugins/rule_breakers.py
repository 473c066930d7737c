"""Plugins that support Identity; each breaks one of the rules for plugins."""

from __future__ import annotations

import os
import signal
import time
from itertools import count

import numpy as np


class Keeps:
    """A plugin that follows all rules."""

    def run(self, model, inputs):
        (node,) = model.graph.node
        if node.op_type != "Identity":
            raise NotImplementedError(node.op_type)
        return [inputs[node.input[0]].copy()]


class Nothing:
    pass


class Bare(Keeps):
    def run(self, model, inputs):
        return super().run(model, inputs)[0]


class Scribbles(Keeps):
    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        inputs["x"][...] = 0
        return outputs


class AcceptsAll(Keeps):
    def run(self, model, inputs):
        if model.graph.node[0].input[0] == "nowhere":
            return [inputs["x"]]
        return super().run(model, inputs)


class FailsForUnknown(Keeps):
    def run(self, model, inputs):
        try:
            return super().run(model, inputs)
        except NotImplementedError:
            raise ValueError("unrecognised") from None


class Doubles(Keeps):
    def run(self, model, inputs):
        return [output.astype(np.float64) for output in super().run(model, inputs)]


class Counts(Keeps):
    calls = count()

    def run(self, model, inputs):
        return [
            output + output.dtype.type(next(self.calls)) for output in super().run(model, inputs)
        ]


class EndsOnEmpty(Keeps):
    def run(self, model, inputs):
        if any(not array.size for array in inputs.values()):
            os._exit(3)
        return super().run(model, inputs)


class CrashesOnLarge(Keeps):
    def run(self, model, inputs):
        if any(array.nbytes > 1 << 20 for array in inputs.values()):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().run(model, inputs)


class CrashesOnNames(Keeps):
    def run(self, model, inputs):
        if not all(name.isascii() for name in inputs):
            os.abort()
        return super().run(model, inputs)


class Sleeps(Keeps):
    def run(self, _model, _inputs):
        time.sleep(60)


class Prints(Keeps):
    def run(self, model, inputs):
        os.write(1, b"running\n")
        return super().run(model, inputs)
