"""A plugin for another interpreter: Python 3.9 with NumPy and onnx, without onnxopt."""

import os
import sys

import numpy as np

__version__ = "1.5"
print("standard output is not the protocol's")  # noqa: T201 - to test the output


class Copies:
    """A backend that computes Identity, and prints the versions of Python and NumPy."""

    unsupported = "no kernel"

    def run(self, model, inputs):
        (node,) = model.graph.node
        if node.op_type != "Identity":
            raise NotImplementedError(node.op_type)
        print("hello from", sys.version, np.__version__)  # noqa: T201 - as above
        return [self.copy(inputs[node.input[0]])]

    def copy(self, x):
        return x.copy()


class AnotherRuntime(Copies):
    """A backend that requires NumPy 1 and an old ONNX Runtime."""

    def run(self, model, inputs):
        import onnxruntime

        if onnxruntime.__version__ > "1.17" or np.__version__ > "2":
            raise RuntimeError(f"ONNX Runtime {onnxruntime.__version__}, NumPy {np.__version__}")
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return session.run(None, dict(inputs))


class WritesIntoItsInput(Copies):
    def copy(self, x):
        copy = x.copy()
        x[...] = 0
        return copy


class ReturnsLists(Copies):
    def copy(self, x):
        return x.tolist()


class LacksAKernel(Copies):
    def copy(self, x):
        raise RuntimeError("no kernel for this")


class Exits(Copies):
    def copy(self, x):
        sys.exit(0)


class Dies(Copies):
    def copy(self, x):
        os._exit(7)


class Raises(Copies):
    def copy(self, x):
        raise ValueError("odd \x1b[31m")


class RunsOutOfMemory(Copies):
    def copy(self, x):
        raise MemoryError


class SeesOurs(Copies):
    """A backend that reports which modules of onnxopt it can import."""

    def copy(self, x):
        import importlib.util

        names = ("click", "psutil", "ml_dtypes", "other_interpreter", "codec")
        raise ValueError([name for name in names if importlib.util.find_spec(name)])
