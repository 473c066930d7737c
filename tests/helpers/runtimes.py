"""The two runtimes on which lowered models must run."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

NEWEST = onnx.defs.onnx_opset_version()


def run_reference(model, inputs):
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in model.graph.input]
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))


def run_onnxruntime(model, inputs):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in model.graph.input]
    return session.run(None, dict(zip(names, inputs, strict=True)))


RUNTIMES = {"reference": run_reference, "onnxruntime": run_onnxruntime}
runtimes = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES.keys())


@cache
def newest_opset(runtime):
    """Return the newest opset that a runtime loads; it may be older than that of onnx."""
    text = '<ir_version: 8, opset_import: ["": 13]> one (float X) => (float Y) { Y = Abs (X) }'
    model = onnx.parser.parse_model(text)
    for opset in range(NEWEST, 18, -1):
        model.opset_import[0].version = opset
        try:
            runtime(model, [np.zeros((), np.float32)])
        except Exception:  # noqa: BLE001, S112 - the runtime rejects the opset
            continue
        return opset
    raise AssertionError("not even a model of opset 19 runs")
