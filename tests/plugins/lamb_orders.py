"""LAMB in float32, with sums in several orders.

The names of correct backends end with ``_right``, and those of wrong backends with ``_wrong``.
"""

from __future__ import annotations

import numpy as np


def in_order(values):
    return np.add.accumulate(values)[-1]


def in_blocks(size):
    return lambda values: in_order(
        np.array([in_order(values[at : at + size]) for at in range(0, len(values), size)])
    )


def in_double(values):
    return values.sum(dtype=np.float64).astype(np.float32)


class Backend:
    def __init__(self, add_up, weight=1.0, update=1.0):
        self.add_up, self.errors = add_up, (np.float32(weight), np.float32(update))

    def __call__(self):
        return self

    def norm(self, values, error):
        return np.sqrt(self.add_up((values * values).ravel())) * error

    def run(self, model, inputs):
        R, T, X, G, V, H = inputs.values()
        attributes = {
            attribute.name: np.float32(attribute.f) for attribute in model.graph.node[0].attribute
        }
        unity = np.float32(1)
        V = attributes["alpha"] * V + (unity - attributes["alpha"]) * G
        H = attributes["beta"] * H + (unity - attributes["beta"]) * (G * G)
        V_hat = V / (unity - attributes["alpha"] ** np.float32(T))
        H_hat = H / (unity - attributes["beta"] ** np.float32(T))
        step = V_hat / (np.sqrt(H_hat) + attributes["epsilon"]) + attributes["decay"] * X
        weight, update = (
            self.norm(values, error) for values, error in zip((X, step), self.errors, strict=True)
        )
        return [X - R * (weight / update) * step, V, H]


in_order_right = Backend(in_order)
pairwise_right = Backend(np.sum)
blocks_of_32_right = Backend(in_blocks(32))
blocks_of_256_right = Backend(in_blocks(256))
blocks_of_4096_right = Backend(in_blocks(4096))
double_right = Backend(in_double)
weight_norm_wrong = Backend(np.sum, weight=1 + 1e-4)
update_norm_wrong = Backend(np.sum, update=1 - 1e-4)
tail_wrong = Backend(lambda values: np.sum(values[: len(values) - len(values) % 16]))
