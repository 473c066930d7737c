"""Backends that raise errors of their own for unknown operators."""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np

from onnxopt_cli.backends.resolve import resolve_backend

NUMPY = resolve_backend("numpy")
TRAINING = {"Adam", "Adagrad", "Momentum"}


class RuntimeFault(Exception):
    pass


class Panic(BaseException):
    """An error that does not derive from Exception, like those of panics in Rust."""


class NoTraining:
    """A backend that supports all operators except the training operators."""

    fault = RuntimeFault

    def run(self, model, inputs):
        for node in model.graph.node:
            if node.op_type in TRAINING:
                raise self.fault(f"step 3 of 9\nno kernel for {node.op_type}, it's not 'known'")
        return NUMPY.prepare(model).run(inputs)


class States(NoTraining):
    unsupported = r"no kernel for \w+"


class StatesCompiled(NoTraining):
    unsupported = re.compile("NO KERNEL", re.IGNORECASE)


class StatesNonsense(NoTraining):
    unsupported = "no (kernel"


class StatesATuple(NoTraining):
    unsupported = ("no kernel",)


class HasAMethod(NoTraining):
    def unsupported(self):
        return []


class LacksHalfOfIt(NoTraining):
    """A backend that reports an unknown operator only if the rate is 0.5."""

    def run(self, model, inputs):
        if inputs.get("R") == np.float32(0.5):
            return super().run(model, inputs)
        return NUMPY.prepare(model).run(inputs)


class Panics(NoTraining):
    fault = Panic


class RunsOutOfMemory(NoTraining):
    fault = MemoryError


class EndsTheInterpreter(NoTraining):
    fault = SystemExit


class SaysBadAlloc:
    def run(self, _model, _inputs):
        raise RuntimeError("no kernel: std::bad_alloc")


class Floods:
    def run(self, _model, _inputs):
        raise RuntimeError("a" * 1_000_000 + " no kernel")


class Dies:
    unsupported = "."

    def run(self, _model, _inputs):
        os.kill(os.getpid(), signal.SIGKILL)


class Sleeps:
    unsupported = "."

    def run(self, _model, _inputs):
        time.sleep(60)


class NeedsDefaultDomain:
    """A backend that rejects models which do not import the domain ai.onnx."""

    def run(self, model, inputs):
        if not any(opset.domain in {"", "ai.onnx"} for opset in model.opset_import):
            raise RuntimeFault("no opset of ai.onnx")
        return NUMPY.prepare(model).run(inputs)


class Only:
    """A backend that supports one operator, one element type and one rank.

    Subclasses define the error for other operators.
    """

    operator = "Identity"
    dtype = np.dtype(np.float32)
    rank = 1

    def run(self, model, inputs):
        (node,) = model.graph.node
        if node.op_type != self.operator:
            self.refuse(node.op_type)
        tensors = [array for array in inputs.values() if array.ndim]
        if any(array.dtype != self.dtype or array.ndim != self.rank for array in tensors):
            raise RuntimeFault("tensor of the wrong kind")
        if not set(node.input) <= set(inputs) or node.input[0] == "nowhere":
            raise RuntimeFault(f"no such tensor: {node.input[0]}")
        return NUMPY.prepare(model).run(inputs)

    def refuse(self, operator):
        raise RuntimeFault(
            f"line {len(operator)}: translation of the operator {operator} is missing"
        )


class OnlyAdam(Only):
    operator = "Adam"


class OnlyGemmInDouble(Only):
    operator = "Gemm"
    dtype = np.dtype(np.float64)
    rank = 2


class OnlyNotOfBooleans(Only):
    operator = "Not"
    dtype = np.dtype(bool)


class SaysTheSameOfAll(Only):
    def refuse(self, operator):
        raise RuntimeFault(f"no such tensor: {operator}")


class SaysItByType(Only):
    def refuse(self, _operator):
        raise type("OperatorIsMissing", (Exception,), {})("sorry")


class SaysTwoThings(Only):
    def run(self, model, inputs):
        domain = model.graph.node[0].domain
        if domain:
            raise RuntimeFault(f"the domain {domain} has no dialect")
        return super().run(model, inputs)


class NamesTheDomain(Only):
    """A backend whose error begins with fixed words and names the domain, even the default one."""

    def run(self, model, inputs):
        self.domain = model.graph.node[0].domain or "ai.onnx"
        return super().run(model, inputs)

    def refuse(self, operator):
        raise RuntimeFault(f"Unsupported op {self.domain}.{operator}")


class NamesTheTensor(Only):
    """A backend whose error names the output of the unknown operator, as OpenCV's error does."""

    def run(self, model, inputs):
        self.output = model.graph.node[0].output[0]
        return super().run(model, inputs)

    def refuse(self, operator):
        layer = f'create layer "node_output_0!{self.output}" of type "{operator}"'
        raise RuntimeFault(f"Can't {layer} in function 'getLayerInstance'")


class LacksAdamInOtherWords(Only):
    """A backend with another error for the training operators than for other operators."""

    def refuse(self, operator):
        if operator in TRAINING:
            raise RuntimeFault(f"cannot lower {operator} to machine code")
        super().refuse(operator)


class BreaksInAdam(Only):
    def refuse(self, operator):
        if operator == "Adam":
            raise RuntimeFault("the shapes of V and H contradict each other in Adam")
        raise NotImplementedError(operator)


class RefusesEverything:
    def run(self, model, _inputs):
        raise ValueError(f"cannot run the operator {model.graph.node[0].op_type}")
