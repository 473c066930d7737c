"""Generators of recurrent operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from onnxopt_cli.suites.operators.node_draft import NodeDraft

_TYPES = ("float32", "float64", "float16")
#: The number of gates of each kind of cell.
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
#: The activations of a cell, in the order of the attribute ``activations``.
_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_FURTHER_ACTIVATIONS = (
    "Tanh",
    "Sigmoid",
    "Relu",
    "Softsign",
    "HardSigmoid",
    "LeakyRelu",
    "Elu",
    "Softplus",
    "ScaledTanh",
    "Affine",
)
#: The parameters alpha and beta of each activation; None if the activation lacks the parameter.
_PARAMETERS = {
    "HardSigmoid": (0.25, 0.625),
    "LeakyRelu": (0.125, None),
    "Elu": (0.75, None),
    "ScaledTanh": (1.25, 0.75),
    "Affine": (0.75, 0.125),
}


def _activations(draft: NodeDraft, operator: str, directions: int) -> None:
    """Choose activations; each direction has its own."""
    if not draft.maybe():
        return
    names: list[str] = []
    for _ in range(directions):
        usual = _ACTIVATIONS[operator]
        names += [draft.choice(_FURTHER_ACTIVATIONS) if draft.maybe() else name for name in usual]
    draft.set("activations", names)
    pairs = [_PARAMETERS.get(name, (None, None)) for name in names]
    # Each list has one entry for each activation with the parameter, in the order of the
    # activations.
    alphas = [alpha for alpha, _ in pairs if alpha is not None]
    betas = [beta for _, beta in pairs if beta is not None]
    draft.set("activation_alpha", alphas or None)
    draft.set("activation_beta", betas or None)


def _recurrent(draft: NodeDraft, *, operator: str) -> None:
    dtype = draft.dtype(0, _TYPES)
    gates = _GATES[operator]
    direction = draft.attribute("direction", (None, "reverse", "bidirectional", "forward"))
    directions = 2 if direction == "bidirectional" else 1
    length, batch = draft.size(1, 4), draft.size(1, 3)
    inputs, hidden = draft.size(1, 3), draft.size(1, 3)
    draft.set("hidden_size", hidden)
    layout = draft.attribute("layout", (None, 1, 0)) or 0
    _activations(draft, operator, directions)
    if draft.maybe(4):
        draft.float_attribute("clip", (1.0, 0.5))
    draft.attribute("linear_before_reset", (None, 1, 0))
    if operator == "LSTM" and draft.maybe(4):
        draft.set("input_forget", 1)

    # If the node has clip or unusual activations, the weights are small. With large weights,
    # unbounded activations could overflow and lead to NaN, for which neither clip nor Relu is
    # specified.
    is_usual = draft.attributes.keys().isdisjoint(("clip", "activations"))

    def weights(*shape: int) -> np.ndarray:
        largest = draft.choice((1.0, 1.0, 1.0, 9.0 if is_usual else 1.0))
        return draft.tensor(dtype, shape, low=-largest, high=largest)

    def values(*shape: int) -> np.ndarray:
        if is_usual and draft.maybe(8):
            return draft.tensor(dtype, shape, styles=("exceptional",))
        return weights(*shape)

    def state() -> np.ndarray:
        return values(*((batch, directions) if layout else (directions, batch)), hidden)

    draft.add(values(*((batch, length) if layout else (length, batch)), inputs))
    draft.add(weights(directions, gates * hidden, inputs))
    draft.add(weights(directions, gates * hidden, hidden))
    draft.optional(lambda: weights(directions, 2 * gates * hidden))
    lengths = [draft.integer(1, length) for _ in range(batch)] if draft.maybe(3) else None
    draft.add(None if lengths is None else np.array(lengths, np.int32))
    draft.optional(state)
    if operator == "LSTM":
        draft.optional(state)
        draft.optional(lambda: weights(directions, 3 * hidden))
    outputs = ([True, True], [True, False], [False, True])
    # The specification does not say what Y contains beyond the end of a sequence.
    chosen = draft.choice(outputs if lengths is None else outputs[2:])
    draft.outputs = [*chosen, draft.maybe()] if operator == "LSTM" else chosen
    while not draft.outputs[-1]:
        draft.outputs = draft.outputs[:-1]


#: Generators by operator.
RECURRENT: Mapping[str, Callable[[NodeDraft], None]] = {
    operator: partial(_recurrent, operator=operator) for operator in _GATES
}
