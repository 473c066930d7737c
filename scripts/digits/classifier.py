"""How many images a network tells apart, on a backend."""

from __future__ import annotations

import numpy as np

from digits.data import Images
from digits.network import classifier
from digits.prepared_model import PreparedModel, Tensors
from onnxopt_cli.backends.protocol import Backend


class Classifier:
    """The forward pass on a backend."""

    def __init__(self, backend: Backend) -> None:
        self._model = PreparedModel(backend, classifier())

    def accuracy(self, parameters: Tensors, images: Images) -> float:
        """Return the share of images whose largest logit is that of their label."""
        logits = self._model.run({**parameters, "images": images.pixels})["logits"]
        return float(np.mean(np.argmax(logits, axis=1) == images.labels))
