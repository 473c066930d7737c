"""An operator file as a user may write it, for an operator with the root of a clipped value."""

import numpy as np

from onnxopt_cli.operators.operator import (
    FLOATS,
    Attribute,
    Operator,
    Scalar,
)


def rmsprop(R, X, G, S, A, M, *, rho, momentum, epsilon):
    """One step of RMSprop with centring."""
    S_new = rho * S + (1 - rho) * (G * G)
    A_new = rho * A + (1 - rho) * G
    step = G / np.sqrt(np.maximum(S_new - np.square(A_new), 0) + epsilon)
    M_new = momentum * M + R * step
    return X - M_new, S_new, A_new, M_new


RMSPROP = Operator(
    name="RMSpropCentred",
    domain="my.optimizers",
    version=1,
    formula=rmsprop,
    scalars=(Scalar("R", FLOATS),),
    tensors=("X", "G", "S", "A", "M"),
    outputs={"X_new": "X", "S_new": "S", "A_new": "A", "M_new": "M"},
    attributes=(Attribute("rho", 0.9), Attribute("momentum", 0.0), Attribute("epsilon", 1e-7)),
    about="RMSprop with centring.",
    source="https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
)
