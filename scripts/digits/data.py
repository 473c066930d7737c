"""scikit-learn's handwritten digits, split the same way every time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from digits.network import Array

_TRAINING_IMAGES = 1437
_SPLIT_SEED = 0


@dataclass(frozen=True, slots=True)
class Images:
    """Images and what they show.

    Attributes:
        pixels: float32 of shape [count, 64], from 0 to 1.
        labels: int64 of shape [count], from 0 to 9.
    """

    pixels: Array
    labels: Array

    def batches(self, size: int, seed: int, epoch: int) -> Iterator[Images]:
        """Yield the images of an epoch in a random order; those that fill no batch are left out."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self.labels))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield Images(self.pixels[chosen], self.labels[chosen])


def training_and_test_images() -> tuple[Images, Images]:
    """Return four fifths of the 1,797 images to train with and the others to test with."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    pixels = (pixels / 16).astype(np.float32)
    parts = np.split(order, [_TRAINING_IMAGES])
    training, test = (Images(pixels[part], labels[part].astype(np.int64)) for part in parts)
    return training, test
