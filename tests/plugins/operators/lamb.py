"""An operator file as a user may write it, for an operator with norms of tensors."""

import numpy as np

from onnxopt_cli.operators.operator import (
    FLOATS,
    Attribute,
    Operator,
    Scalar,
)


def lamb(R, T, X, G, V, H, *, alpha, beta, epsilon, decay):
    """One step of LAMB."""
    V_new = alpha * V + (1 - alpha) * G
    H_new = beta * H + (1 - beta) * (G * G)
    V_hat = V_new / np.where(T > 0, 1 - alpha**T, 1)
    H_hat = H_new / np.where(T > 0, 1 - beta**T, 1)
    update = V_hat / (np.sqrt(H_hat) + epsilon) + decay * X
    weight_norm = np.sqrt(np.sum(X * X))
    update_norm = np.sqrt(np.sum(update * update))
    trust = np.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1)
    return X - R * trust * update, V_new, H_new


LAMB = Operator(
    name="Lamb",
    domain="my.optimizers",
    version=1,
    formula=lamb,
    scalars=(Scalar("R", FLOATS), Scalar("T", ("int64",))),
    tensors=("X", "G", "V", "H"),
    outputs={"X_new": "X", "V_new": "V", "H_new": "H"},
    attributes=(
        Attribute("alpha", 0.9),
        Attribute("beta", 0.999),
        Attribute("epsilon", 1e-6),
        Attribute("decay", 0.01),
    ),
    about="One step of LAMB.",
    source="https://arxiv.org/abs/1904.00962",
)
