"""ONNX Runtime and onnx's reference as plainly as onnx's own test runner can be given them."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime
from onnx.backend.base import Backend, BackendRep
from onnx.reference import ReferenceEvaluator


class OnnxRuntimeBackend(Backend):  # type: ignore[misc]
    """ONNX Runtime, single-threaded."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:
        """Make a single-threaded session."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=[f"{device}ExecutionProvider"]
        )
        names = [it.name for it in session.get_inputs()]
        return _Prepared(lambda inputs: session.run(None, dict(zip(names, inputs, strict=False))))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tell that only the CPU is used."""
        return device == "CPU"


class ReferenceBackend(OnnxRuntimeBackend):
    """onnx's ReferenceEvaluator."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:  # noqa: ARG003
        """Make an evaluator."""
        evaluator = ReferenceEvaluator(model)
        names = [it.name for it in model.graph.input]
        return _Prepared(lambda inputs: evaluator.run(None, dict(zip(names, inputs, strict=False))))


class _Prepared(BackendRep):  # type: ignore[misc]
    def __init__(self, run: Any) -> None:
        self._run = run

    def run(self, inputs: Any, **_: Any) -> Any:
        return self._run(inputs)
