"""The digits workload: its gradients, its pruning, and the script that prints its tables."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from places import REPOSITORY

if not all(map(find_spec, ("sklearn", "onnxruntime"))):
    pytest.skip("needs sklearn and onnxruntime", allow_module_level=True)

sys.path.append(str(REPOSITORY / "scripts"))

from digits_network import (
    OPTIMIZERS,
    SHAPES,
    WEIGHTS,
    Regime,
    initial_parameters,
    training_step,
)
from train_digits import QUICK, Images, PreparedModel, Pruner, Trainer, load_images

from onnxopt_cli.backends.resolve import resolve_backend

pytestmark = pytest.mark.slow

MOMENTUM = next(optimizer for optimizer in OPTIMIZERS if optimizer.name == "Momentum")
BATCH = 8
RHO = 0.25


@pytest.fixture(scope="module", params=["numpy", "onnxruntime"])
def backend(request):
    return resolve_backend(request.param)


@pytest.fixture(scope="module")
def images():
    training, _ = load_images()
    return training


@pytest.fixture(scope="module")
def batch(images):
    return Images(images.pixels[:BATCH], images.labels[:BATCH])


def step_inputs(batch, optimizer=MOMENTUM):
    """Return the inputs of a first step for all regimes; the states are zero."""
    generator = np.random.default_rng(5)
    values = {
        "R": np.array(1, np.float32),
        "T": np.array(optimizer.first_count, np.int64),
        "images": batch.pixels,
        "labels": batch.labels,
        **initial_parameters(3),
    }
    for name, shape in SHAPES.items():
        values |= {f"{state}_{name}": np.zeros(shape, np.float32) for state in optimizer.states}
    for name in WEIGHTS:
        shape = SHAPES[name]
        values[f"Z_{name}"] = generator.normal(size=shape).astype(np.float32)
        values[f"U_{name}"] = generator.normal(size=shape).astype(np.float32)
        values[f"mask_{name}"] = (generator.random(shape) < 0.5).astype(np.float32)
    return values


def loss_in_double(parameters, batch):
    hidden = batch.pixels.astype(np.float64)
    for layer in (1, 2, 3):
        hidden = hidden @ parameters[f"W{layer}"] + parameters[f"b{layer}"]
        if layer < 3:
            hidden = np.where(hidden > 0, hidden, 0)
    probabilities = np.exp(hidden) / np.exp(hidden).sum(axis=1, keepdims=True)
    return -np.log(probabilities[np.arange(len(batch.labels)), batch.labels]).mean()


def descent(outputs, inputs, name):
    """Return the amount by which the first step reduces a parameter, without the weight decay.

    The rate is 1, so the amount is the gradient of the loss.
    """
    decay = np.float64(np.float32(1e-4)) * inputs[name]
    return np.float64(inputs[name]) - outputs[f"{name}_new"] - decay


def test_gradients_are_finite_differences_of_the_loss(backend, batch):
    inputs = step_inputs(batch)
    outputs = PreparedModel(backend, training_step(MOMENTUM, BATCH)).run(inputs)
    parameters = {name: inputs[name].astype(np.float64) for name in SHAPES}
    assert outputs["loss"] == pytest.approx(loss_in_double(parameters, batch), rel=1e-6)
    generator = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        gradient = outputs[f"gradient_{name}"]
        largest = np.argsort(np.abs(gradient), axis=None)[-5:]
        random_places = generator.integers(0, gradient.size, 25)
        for place in (*largest, *random_places):
            index = np.unravel_index(place, shape)
            losses = []
            for shift in (1e-6, -1e-6):
                moved = {**parameters, name: parameters[name].copy()}
                moved[name][index] += shift
                losses.append(loss_in_double(moved, batch))
            difference = (losses[0] - losses[1]) / 2e-6
            assert gradient[index] == pytest.approx(difference, rel=1e-4, abs=1e-7)


def test_admm_adds_the_penalty_to_the_loss_and_to_the_gradients_of_weights(backend, batch):
    inputs = step_inputs(batch)
    model = training_step(MOMENTUM, BATCH, Regime.ADMM, RHO)
    outputs = PreparedModel(backend, model).run(inputs)
    penalty = 0.0
    for name in SHAPES:
        expected = np.float64(outputs[f"gradient_{name}"])
        if name in WEIGHTS:
            residual = np.float64(inputs[name]) - inputs[f"Z_{name}"] + inputs[f"U_{name}"]
            penalty += RHO / 2 * np.sum(residual**2)
            expected = expected + RHO * residual
        np.testing.assert_allclose(descent(outputs, inputs, name), expected, rtol=1e-5, atol=1e-6)
    parameters = {name: inputs[name].astype(np.float64) for name in SHAPES}
    loss = loss_in_double(parameters, batch) + penalty
    assert outputs["loss"] == pytest.approx(loss, rel=1e-5)


def test_masked_weights_stay_zero_and_do_not_affect_the_momentum(backend, batch):
    inputs = step_inputs(batch)
    model = training_step(MOMENTUM, BATCH, Regime.MASKED)
    outputs = PreparedModel(backend, model).run(inputs)
    for name in WEIGHTS:
        mask = inputs[f"mask_{name}"]
        assert not np.any(outputs[f"{name}_new"][mask == 0])
        gradient = np.float64(outputs[f"gradient_{name}"])
        np.testing.assert_allclose(
            descent(outputs, inputs, name)[mask == 1], gradient[mask == 1], rtol=1e-4, atol=1e-6
        )
        momentum = outputs[f"V_{name}_new"] - np.float32(1e-4) * inputs[name]
        np.testing.assert_allclose(momentum, mask * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["prune_once", "prune_by_admm"])
def test_pruned_weights_stay_zero_while_the_others_are_finetuned(backend, images, method):
    percent = 95
    small_set = Images(images.pixels[:96], images.labels[:96])
    pruned = getattr(Pruner(backend, percent), method)(initial_parameters(3), small_set, 0, QUICK)
    for name in WEIGHTS:
        zeros = pruned.finetuned[name] == 0
        assert np.count_nonzero(zeros) == np.ceil((zeros.size - 1) * percent / 100)
        np.testing.assert_array_equal(zeros, pruned.parameters[name] == 0)
        assert not np.array_equal(pruned.finetuned[name], pruned.parameters[name])


def test_loss_falls_with_every_optimizer(backend, images):
    subset = Images(images.pixels[:320], images.labels[:320])
    for optimizer in OPTIMIZERS:
        losses = Trainer(backend, optimizer).train(initial_parameters(0), subset, 3, 0).losses
        assert losses[0] > losses[1] > losses[2], optimizer.name


def test_script_prints_its_tables():
    command = [sys.executable, REPOSITORY / "scripts" / "train_digits.py", "--quick"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    for optimizer in OPTIMIZERS:
        assert completed.stdout.count(f"| {optimizer.name} |") == 1
    (row,) = re.findall(r"^\| 80 % .*$", completed.stdout, re.MULTILINE)
    zeros, dense, one_shot, _, _, finetuned = map(float, re.findall(r"([\d.]+) %", row)[1:])
    assert zeros == 80.0
    assert dense > 90
    assert finetuned > one_shot


def test_exported_step_equals_the_committed_case_and_passes(onnxopt, tmp_path):
    command = [sys.executable, REPOSITORY / "scripts" / "train_digits.py", "--export", tmp_path]
    subprocess.run(command, check=True, timeout=300)
    committed = REPOSITORY / "cases" / "onnx" / "workload" / "test_digits_adam"
    exported = tmp_path / "test_digits_adam"
    assert (exported / "model.onnx").read_bytes() == (committed / "model.onnx").read_bytes()
    for folder in (committed, exported):
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 200_000
        backends = ("-b", "numpy", "-b", "onnxruntime", "--isolation", "none")
        assert onnxopt("run", folder, *backends).code == 0
