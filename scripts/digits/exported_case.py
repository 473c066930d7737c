"""A step of the training as an ONNX test directory, which any backend can be held to."""

from __future__ import annotations

from pathlib import Path

from digits.data import Images
from digits.network import initial_parameters
from digits.optimizers import ADAM
from digits.prepared_model import PreparedModel
from digits.training import Trainer
from digits.training_step import training_step
from onnxopt_cli.backends.protocol import Backend
from onnxopt_cli.cases.onnx.data_set import write_directory
from onnxopt_cli.core.case import Content

NAME = "test_digits_adam"
_BATCH = 16


def write_step(folder: Path, backend: Backend, images: Images, seed: int) -> None:
    """Write the first step of the second epoch under Adam, on the first images, to a new folder.

    There the states are not zero, and T is not 1. It has no tolerance of its own: what rounding
    does to the gradients near zero of so few images, 1e-8, is a tenth of ONNX's default absolute
    one.

    Raises:
        UsageError: if the folder is not empty or cannot be written.
    """
    trainer = Trainer(backend, ADAM)
    state = trainer.train(initial_parameters(seed), images, 1, seed)
    model = training_step(ADAM, _BATCH)
    batch = Images(images.pixels[:_BATCH], images.labels[:_BATCH])
    values = trainer.inputs(state.tensors, state.steps, batch)
    inputs = {value.name: values[value.name] for value in model.graph.input}
    write_directory(folder, Content(model, inputs, PreparedModel(backend, model).run(inputs)))
