"""The suite ``spec``: the seven cases that the operators' documentation publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxopt_cli.cases.yaml.writer import WrittenCase
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.operators.adagrad import ADAGRAD
from onnxopt_cli.operators.adam import ADAM
from onnxopt_cli.operators.momentum import MOMENTUM

Attributes = dict[str, float | str]

_ERRATUM = (
    "Erratum: older documentation leaves epsilon out of this node but computes its outputs with "
    "1e-2, so that they contradict the formula. Here the node gives it, as onnx does by now."
)


def published() -> list[WrittenCase]:
    """Return the published cases, in the order of the documentation."""
    adam: Attributes = {"norm_coefficient": 0.001, "alpha": 0.95, "beta": 0.1, "epsilon": 1e-7}
    adagrad: Attributes = {"norm_coefficient": 0.001, "epsilon": 1e-5, "decay_factor": 0.1}
    momentum: Attributes = {
        "norm_coefficient": 0.001,
        "alpha": 0.95,
        "beta": 0.1,
        "mode": "standard",
    }
    pair = {"X": [1.2, 2.8], "G": [-0.94, -2.5], "V": [1.7, 3.6]}
    first = {"X": [1.0], "G": [-1.0]}
    second = {"X": [1.0, 2.0], "G": [-1.0, -3.0]}
    return [
        _question(ADAM, "adam", "One tensor, first step.", adam, [pair | {"H": [0.1, 0.1]}]),
        _question(
            ADAM,
            "adam_multiple",
            "Two tensors of unlike shapes, first step.",
            adam | {"beta": 0.85, "epsilon": 1e-2},
            [first | {"V": [2.0], "H": [0.5]}, second | {"V": [4.0, 1.0], "H": [1.0, 10.0]}],
            notes=_ERRATUM,
        ),
        _question(ADAGRAD, "adagrad", "One tensor, first step.", adagrad, [first | {"H": [2.0]}]),
        _question(
            ADAGRAD,
            "adagrad_multiple",
            "Two tensors of unlike shapes, first step.",
            adagrad,
            [first | {"H": [2.0]}, second | {"H": [4.0, 1.0]}],
        ),
        _question(MOMENTUM, "momentum", "Standard momentum, first step.", momentum, [pair]),
        _question(
            MOMENTUM,
            "nesterov_momentum",
            "Nesterov's momentum, first step.",
            momentum | {"norm_coefficient": 0.01, "beta": 1.0, "mode": "nesterov"},
            [pair],
        ),
        _question(
            MOMENTUM,
            "momentum_multiple",
            "Standard momentum of two tensors of unlike shapes, first step.",
            momentum | {"beta": 0.85},
            [first | {"V": [2.0]}, second | {"V": [4.0, 1.0]}],
            # The published node calls the momenta H.
            onnx_names=("R", "T", "X1", "X2", "G1", "G2", "H1", "H2"),
        ),
    ]


def _question(
    operator: Operator,
    name: str,
    about: str,
    attributes: Attributes,
    groups: Sequence[Mapping[str, Sequence[float]]],
    *,
    notes: str = "",
    onnx_names: Sequence[str] = (),
) -> WrittenCase:
    tensors: list[Array] = [np.array(0.1, np.float32), np.array(0, np.int64)]
    for tensor in operator.tensors:
        tensors += [np.array(group[tensor], np.float32) for group in groups]
    return WrittenCase(
        name=name,
        about=about,
        operator=operator,
        inputs=dict(zip(operator.input_names(len(groups)), tensors, strict=True)),
        attributes=attributes,
        source=f'ONNX operator documentation, {operator.name}, example "{name}"',
        tags=("published",),
        notes=notes,
        onnx_names=onnx_names,
    )
