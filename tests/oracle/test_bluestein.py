"""Bluestein's algorithm with a chirp in float32 passes even if one element of a line dominates."""

from __future__ import annotations

import pytest

import onnxopt_cli as onnxopt
from onnxopt_cli.core.result import Outcome

BACKEND = """
import numpy as np
from onnx import helper


def transform(x, sign):
    # Lines along the last axis; the angles of the chirp are not reduced.
    n = x.shape[-1]
    at = np.arange(n, dtype=np.float32)
    chirp = np.exp(1j * np.float32(sign * np.pi) * at * at / np.float32(n)).astype(np.complex64)
    size = 1 << (2 * n - 1).bit_length()
    kernel = np.zeros(size, np.complex64)
    kernel[:n] = chirp.conj()
    kernel[size - n + 1 :] = chirp.conj()[1:][::-1]
    spectrum = np.fft.fft(np.pad(x * chirp, [(0, 0)] * (x.ndim - 1) + [(0, size - n)]))
    product = (spectrum * np.fft.fft(kernel)).astype(np.complex64)
    return (np.fft.ifft(product)[..., :n] * chirp).astype(np.complex64)


class Bluestein:
    factor = 1

    def run(self, model, inputs):
        (node,) = model.graph.node
        x, axis = inputs["x"], int(inputs["axis"])
        lines = np.moveaxis(x[..., 0].astype(np.complex64), axis, -1)
        y = np.moveaxis(transform(lines, -1), -1, axis) * np.complex64(self.factor)
        return [np.stack([y.real, y.imag], -1).astype(np.float32)]


class Inaccurate(Bluestein):
    factor = 1 + 1e-4
"""


@pytest.mark.parametrize(("backend", "outcome"), [("Bluestein", "pass"), ("Inaccurate", "fail")])
def test_chirp_of_float32_passes_and_larger_error_fails(tmp_path, backend, outcome):
    (tmp_path / "vendor.py").write_text(BACKEND)
    cases = onnxopt.load_cases("onnx-node/test_dft")
    run = onnxopt.run(
        cases,
        f"python:{tmp_path}/vendor.py:{backend}",
        execution=onnxopt.Execution(isolation=onnxopt.Isolation.NONE),
    )
    assert [result.outcome for result in run] == [Outcome(outcome)] * len(cases)
