"""The training and pruning of a network for digits: its graphs, and the script that runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from places import REPOSITORY

# To import them takes seconds, also of whoever runs none of these tests.
if not all(map(find_spec, ("sklearn", "matplotlib", "onnxruntime"))):
    pytest.skip("needs sklearn, matplotlib and onnxruntime", allow_module_level=True)

sys.path.append(str(REPOSITORY / "scripts"))

from digits.agreement import largest_share
from digits.carried_budget import carried_step, exactly, optimizer_step
from digits.data import Images, training_and_test_images
from digits.network import SHAPES, WEIGHTS, initial_parameters
from digits.optimizers import OPTIMIZERS
from digits.prepared_model import PreparedModel
from digits.pruning import Pruner
from digits.settings import QUICK
from digits.training import Trainer
from digits.training_step import Regime, training_step

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
    training, _ = training_and_test_images()
    return training


@pytest.fixture(scope="module")
def batch(images):
    return Images(images.pixels[:BATCH], images.labels[:BATCH])


def step_inputs(batch, optimizer=MOMENTUM):
    """Return the inputs of a first step whose states are zero, and those of every regime."""
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
    """Return what the first step of momentum at rate 1 has subtracted, without weight decay."""
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
        drawn = generator.integers(0, gradient.size, 25)
        for place in (*largest, *drawn):
            index = np.unravel_index(place, shape)
            losses = []
            for shift in (1e-6, -1e-6):
                moved = {**parameters, name: parameters[name].copy()}
                moved[name][index] += shift
                losses.append(loss_in_double(moved, batch))
            difference = (losses[0] - losses[1]) / 2e-6
            assert gradient[index] == pytest.approx(difference, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda it: it.name)
def test_a_step_stays_within_its_budget_and_a_slightly_wrong_one_does_not(
    backend, images, optimizer
):
    trainer = Trainer(backend, optimizer)
    some = Images(images.pixels[:640], images.labels[:640])
    start = trainer.train(initial_parameters(3), some, 1, 0)
    batch = Images(images.pixels[:BATCH], images.labels[:BATCH])
    inputs = trainer.inputs(start.tensors, start.steps, batch)
    model = PreparedModel(backend, training_step(optimizer, BATCH))
    exact = {name: exactly(value) for name, value in start.tensors.items()}
    whole = carried_step(optimizer, exact, start.steps, batch)
    outputs = model.run(inputs)
    given = {name: exactly(value) for name, value in outputs.items()}
    node = optimizer_step(optimizer, exact, given, start.steps)
    assert largest_share(outputs, node) <= 1
    assert largest_share(outputs, whole) <= 1
    faster = model.run({**inputs, "R": inputs["R"] * np.float32(1.0001)})
    assert largest_share(faster, node) > 1
    brighter = model.run({**inputs, "images": inputs["images"] * np.float32(1.01)})
    assert largest_share(brighter, whole) > 1


def test_under_admm_the_optimizer_is_given_the_gradient_of_loss_and_penalty(backend, batch):
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


def test_what_the_mask_removes_neither_moves_nor_enters_the_momentum(backend, batch):
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


@pytest.mark.parametrize("percent", [50, 95])
def test_as_many_weights_are_zero_after_finetuning_as_were_asked_for(backend, images, percent):
    pruner = Pruner(backend, OPTIMIZERS[0], percent)
    some = Images(images.pixels[:96], images.labels[:96])
    for pruned in (
        pruner.one_shot(initial_parameters(3), some, 0, QUICK),
        pruner.admm(initial_parameters(3), some, 0, QUICK),
    ):
        for name in WEIGHTS:
            size = pruned.finetuned[name].size
            zeros = np.count_nonzero(pruned.finetuned[name] == 0)
            assert zeros == int(np.ceil((size - 1) * percent / 100))
            np.testing.assert_array_equal(pruned.finetuned[name] == 0, pruned.parameters[name] == 0)
            assert not np.array_equal(pruned.finetuned[name], pruned.parameters[name])


def test_the_loss_falls_under_every_optimizer(backend, images):
    some = Images(images.pixels[:640], images.labels[:640])
    for optimizer in OPTIMIZERS:
        losses = Trainer(backend, optimizer).train(initial_parameters(0), some, 3, 0).losses
        assert losses[0] > losses[1] > losses[2], optimizer.name


def test_the_script_prints_its_tables_and_draws_its_pictures(tmp_path):
    command = [
        sys.executable,
        REPOSITORY / "scripts" / "train_digits.py",
        "--quick",
        "-o",
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for optimizer in OPTIMIZERS:
        assert len(re.findall(rf"^\| {optimizer.name} ", done.stdout, re.MULTILINE)) == 2
    rows = re.findall(r"^\| 80 % .*$", done.stdout, re.MULTILINE)
    assert len(rows) == 2
    sparsity_and_accuracy = [float(share) for share in re.findall(r"([\d.]+) %", rows[0])[1:]]
    *zeros, dense, one_shot, _, _, finetuned = sparsity_and_accuracy
    assert zeros == [80.0, 79.9, 80.0, 80.0]
    assert dense > 90
    assert finetuned > one_shot
    for name in ("losses", "accuracies", "weights_80"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_exported_step_is_the_committed_case_and_passes(onnxopt, tmp_path):
    command = [sys.executable, REPOSITORY / "scripts" / "train_digits.py", "--export", tmp_path]
    subprocess.run(command, check=True, timeout=300)
    committed = REPOSITORY / "cases" / "onnx" / "workload" / "test_digits_adam"
    exported = tmp_path / "test_digits_adam"
    assert (exported / "model.onnx").read_bytes() == (committed / "model.onnx").read_bytes()
    for folder in (committed, exported):
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 200_000
        backends = ("-b", "numpy", "-b", "onnxruntime", "--isolation", "none")
        assert onnxopt("run", folder, *backends).code == 0
