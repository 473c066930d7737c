"""Discrete Fourier transforms in float32: all common algorithms pass, at any length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from test_fast_algorithms import error_shares, model_of

import onnxopt_cli as onnxopt
from onnxopt_cli.core.result import Outcome

REPOSITORY = Path(__file__).parents[2]
LENGTHS = [2, 3, 4, 5, 7, 8, 9, 11, 12, 16, 17, 31, 32, 50, 64, 97, 100, 127, 128, 256, 257, 512]


def roots_of_unity(count):
    return np.exp(-2j * np.pi * np.arange(count) / count).astype(np.complex64)


def roots_by_float32_angles(count):
    angles = np.float32(-2 * np.pi) * np.arange(count).astype(np.float32) / np.float32(count)
    return (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)


def by_sums(x, roots=roots_of_unity):
    """Compute the transform by sequential sums of products."""
    count = x.shape[-1]
    places = np.arange(count)
    total = np.zeros(x.shape, np.complex64)
    for at in range(count):
        total += x[..., at : at + 1] * roots(count)[at * places % count]
    return total


def by_matrix(x, roots=roots_of_unity):
    count = x.shape[-1]
    return x @ roots(count)[np.outer(np.arange(count), np.arange(count)) % count]


def by_radix(x, roots=roots_of_unity):
    """Compute the transform recursively; divide the length by its smallest prime factor."""
    count = x.shape[-1]
    if count == 1:
        return x
    radix = next(factor for factor in range(2, count + 1) if count % factor == 0)
    twiddles, places = roots(count), np.arange(count)
    total = np.zeros(x.shape, np.complex64)
    for part in range(radix):
        spectrum = by_radix(x[..., part::radix], roots)
        repeated = np.concatenate([spectrum] * radix, axis=-1)
        total += twiddles[part * places % count] * repeated
    return total


def by_chirp(x, roots=roots_of_unity):
    """Compute the transform by Bluestein's algorithm: a convolution with a chirp.

    The convolution is computed by transforms whose length is a power of two.
    """
    count = x.shape[-1]
    chirp = roots(2 * count)[np.arange(count) ** 2 % (2 * count)]
    size = 1 << (2 * count - 1).bit_length()
    kernel = np.zeros(size, np.complex64)
    kernel[:count] = chirp.conj()
    kernel[size - count + 1 :] = chirp.conj()[1:][::-1]
    padded = np.zeros((*x.shape[:-1], size), np.complex64)
    padded[..., :count] = x * chirp
    product = by_radix(padded, roots) * by_radix(kernel, roots)
    result = by_radix(product.conj(), roots).conj() / np.float32(size)
    return result[..., :count] * chirp


ALGORITHMS = {"sums": by_sums, "matrix": by_matrix, "radix": by_radix, "chirp": by_chirp}


def lines(count):
    """Return signals: noise, noise with a large mean, a ramp, a tone and an impulse."""
    random = np.random.default_rng(count)
    noise = random.standard_normal((2, count)) + 1j * random.standard_normal((2, count))
    tone = np.cos(2 * np.pi * np.arange(count) * (count // 3) / count)
    impulse = np.arange(count) == min(3, count - 1)
    signals = [*noise, 100 + noise[0].real, np.arange(count) + 7.0, tone, 0.7 * impulse]
    return np.array(signals).astype(np.complex64)


def in_pairs(spectrum):
    assert spectrum.dtype == np.complex64
    return np.stack([spectrum.real, spectrum.imag], -1)


def model_and_inputs(x):
    inputs = {"x": in_pairs(x)}
    return model_of("DFT", inputs, opset=19, axis=1), inputs


@pytest.mark.parametrize("count", LENGTHS)
def test_common_algorithms_pass_and_ten_times_their_errors_fail(count):
    x = lines(count)
    model, inputs = model_and_inputs(x)
    exact = np.fft.fft(x.astype(complex))
    largest = np.zeros((len(x), 1))
    for name, algorithm in ALGORITHMS.items():
        if name == "chirp" and count & (count - 1) == 0:
            continue
        value = algorithm(x)
        # If the roots of unity are correctly rounded, errors are at most half of the tolerance.
        assert error_shares(model, inputs, in_pairs(value)).max() <= 0.5
        by_float32 = algorithm(x, roots_by_float32_angles)
        assert error_shares(model, inputs, in_pairs(by_float32)).max() <= 1
        for spectrum in (value, by_float32):
            largest = np.maximum(largest, np.abs(spectrum - exact).max(1, keepdims=True))
    if count < 5:
        # Short transforms have hardly any rounding errors, so ten times their errors may pass.
        return
    for direction in (1, -1, 1j, -1j):
        wrong = in_pairs((exact + 10 * direction * largest).astype(np.complex64))
        part = error_shares(model, inputs, wrong)[..., int(direction.imag != 0)]
        assert (part > 1)[largest[:, 0] > 0].mean() >= 0.8


@pytest.mark.parametrize("count", [1009, 1024])
@pytest.mark.parametrize("name", ["sums", "radix"])
def test_long_transforms_pass_with_correctly_rounded_twiddle_factors(name, count):
    x = lines(count)
    model, inputs = model_and_inputs(x)
    assert error_shares(model, inputs, in_pairs(ALGORITHMS[name](x))).max() <= 0.6


@pytest.mark.parametrize("count", [31, 128, 360, 512])
def test_sequential_sums_of_equal_terms_pass(count):
    x = np.full((1, count), 0.3, np.complex64)
    model, inputs = model_and_inputs(x)
    assert error_shares(model, inputs, in_pairs(by_sums(x))).max() <= 1


@pytest.mark.parametrize("count", [10, 16, 31, 64])
def test_relative_errors_of_elements_that_do_not_cancel_fail(count):
    x = lines(count)
    model, inputs = model_and_inputs(x)
    spectrum = np.fft.fft(x.astype(complex))
    mean_square = np.mean(np.abs(spectrum) ** 2, axis=1)[:, None, None]
    exact = in_pairs(spectrum.astype(np.complex64))
    shares = error_shares(model, inputs, exact * np.float32(1 + 1e-5))
    assert (shares > 1)[np.abs(exact) >= 0.25 * np.sqrt(mean_square)].mean() > 0.95


# Bluestein's algorithm with a chirp in float32. The chirp's errors at one large element affect all
# elements of the output.
BLUESTEIN = """
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
def test_chirp_in_float32_passes_and_larger_error_fails(tmp_path, backend, outcome):
    (tmp_path / "vendor.py").write_text(BLUESTEIN)
    cases = onnxopt.load_cases("onnx-node/test_dft")
    run = onnxopt.run(
        cases,
        f"python:{tmp_path}/vendor.py:{backend}",
        execution=onnxopt.Execution(isolation=onnxopt.Isolation.NONE),
    )
    assert [result.outcome for result in run] == [Outcome(outcome)] * len(cases)


@pytest.mark.parametrize("operator", ["BlackmanWindow", "HammingWindow", "HannWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("count", [3, 10, 101, 1024])
def test_windows_by_angles_in_float32_pass_and_larger_errors_fail(operator, periodic, count):
    coefficients = {
        "BlackmanWindow": (0.42, -0.5, 0.08),
        "HammingWindow": (25 / 46, 25 / 46 - 1),
        "HannWindow": (0.5, -0.5),
    }[operator]
    inputs = {"size": np.array(count)}
    node = helper.make_node(operator, ["size"], ["y"], periodic=periodic)
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("size", 7, [])], [info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    places, period = np.arange(count).astype(np.float32), np.float32(count - 1 + periodic)
    circle = np.float32(2 * np.pi)
    for angles in (circle * places / period, places * (circle / period)):
        cosines = [c * np.cos(np.float32(m) * angles) for m, c in enumerate(coefficients)]
        value = sum(np.asarray(term, np.float32) for term in cosines)
        assert error_shares(model, inputs, value).max() <= 0.5
    wrong = value + np.float32(24 * 2**-24) * (1 + np.abs(angles * np.sin(angles)))
    assert error_shares(model, inputs, wrong).min() > 1
    if count == 10:
        inner = slice(1, count - 1 + periodic)
        wrong = value * np.float32(1 + 1e-5)
        assert error_shares(model, inputs, wrong)[inner].min() > 1


@pytest.mark.slow
def test_reformulations_are_accepted_by_the_command():
    script = REPOSITORY / "scripts" / "right_forms.py"
    command = [sys.executable, script, "Det", "Gelu", "MeanVarianceNormalization"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
