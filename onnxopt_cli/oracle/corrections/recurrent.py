"""Corrections of operators on sequences: recurrent operators, causal convolution, attention.

onnx's reference ignores ``sequence_lens``, ``clip``, ``input_forget`` and most ``activations`` of
RNN, GRU and LSTM, and does not compute sequences without steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import replaces

#: An activation function of x and its parameters alpha and beta.
_Activation = Callable[[Array, float, float], Array]

_FUNCTIONS: dict[str, _Activation] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, _: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "hardsigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "leakyrelu": lambda x, alpha, _: np.where(x >= 0, x, alpha * x),
    "relu": lambda x, *_: np.maximum(x, 0),
    "scaledtanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "sigmoid": lambda x, *_: 1 / (1 + np.exp(-x)),
    "softplus": lambda x, *_: np.logaddexp(x, 0),
    "softsign": lambda x, *_: x / (1 + np.abs(x)),
    "tanh": lambda x, *_: np.tanh(x),
    "thresholdedrelu": lambda x, alpha, _: np.where(x >= alpha, x, 0),
}
# For each activation, the defaults of alpha and beta, with None for a parameter that the activation
# does not have. An activation has the same defaults as the operator of the same name. There are no
# operators named scaledtanh and affine. The defaults of these two activations neither scale nor
# shift.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "scaledtanh": (1.0, 1.0),
    "thresholdedrelu": (1.0, None),
}
# The default activations f, g, h for one direction.
_USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_MAX_INPUTS = 8
# The index of sequence_lens among the inputs.
_SEQUENCE_LENS = 4
_IGNORED = frozenset({"activations", "activation_alpha", "activation_beta", "clip", "input_forget"})
_SHORT_TYPES = frozenset({"float16", "bfloat16"})


@replaces("op_causal_conv_with_state.CausalConvWithState._run")
def _convolved_causally(
    node: Any,
    original: Any,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    **attributes: Any,
) -> Any:
    """Convolve a sequence. A sequence without steps leaves the state unchanged."""
    if x.shape[2]:
        return original(node, x, weights, bias, past_state, **attributes)
    if past_state is None:
        past_state = np.zeros((*x.shape[:2], weights.shape[2] - 1), x.dtype)
    return x, past_state


@replaces("op_attention._compute_attention")
def _attended(
    original: Any, q: Array, k: Array, v: Array, *operands: Any, **attributes: Any
) -> Any:
    """Compute attention, and also support queries of rank 3 that have no elements."""
    if q.ndim != 3 or q.size:  # noqa: PLR2004 - batch, sequence, heads and their elements
        return original(q, k, v, *operands, **attributes)
    q_heads, kv_heads = attributes.pop("q_num_heads"), attributes.pop("kv_num_heads")
    by_head = (_by_head(q, q_heads), _by_head(k, kv_heads), _by_head(v, kv_heads))
    y, *further = original(*by_head, *operands, **attributes)
    return np.zeros((*q.shape[:2], y.shape[1] * y.shape[3]), y.dtype), *further


def _by_head(x: Array, heads: int) -> Array:
    batch, steps, elements = x.shape
    return x.reshape(batch, steps, heads, elements // heads).swapaxes(1, 2)


def recurrent_operators() -> list[type]:
    """Return the classes of RNN, GRU and LSTM, for every version.

    A node runs on onnx's reference if the reference supports all attributes and inputs of the node.
    """
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import op_gru, op_lstm, op_rnn

    modules: dict[str, Any] = {"RNN": op_rnn, "GRU": op_gru, "LSTM": op_lstm}

    def corrected(name: str, base: Any) -> type:
        def initialize(node: Any, onnx_node: onnx.NodeProto, run_params: Any) -> None:
            # The base class refuses activations that the reference does not implement.
            initial = base if _is_plain(onnx_node) else OpRun
            initial.__init__(node, onnx_node, run_params)

        def run(node: Any, *operands: Array | None, **attributes: Any) -> tuple[Array, ...]:
            # The reference raises an error for sequences without steps.
            if _is_plain(node.onnx_node) and operands[0] is not None and operands[0].size:
                outputs: tuple[Array, ...] = base._run(node, *operands, **attributes)  # noqa: SLF001
                return outputs
            return _run(name, len(node.onnx_node.output), operands, attributes)

        return type(name, (base,), {"__init__": initialize, "_run": run})

    return [corrected(name, getattr(module, f"Common{name}")) for name, module in modules.items()]


def _is_plain(node: onnx.NodeProto) -> bool:
    """Return whether onnx's reference supports all attributes and inputs of a node."""
    lengths = node.input[_SEQUENCE_LENS : _SEQUENCE_LENS + 1]
    return not any(lengths) and not any(entry.name in _IGNORED for entry in node.attribute)


@dataclass(frozen=True)
class _Cell:
    """One direction of a recurrent node.

    Attributes:
        kind: the operator.
        activations: f, g, h, including the clipping of their arguments.
        w: the transposed weights of the input, one matrix per gate.
        r: the transposed weights of the state, one matrix per gate.
        wb: the biases of the input, one vector per gate.
        rb: the biases of the state, one vector per gate.
        peepholes: the peephole weights of the gates i, o, f of an LSTM.
        linear: whether a GRU applies the reset gate after the product with the weights.
        coupled: whether the forget gate of an LSTM is 1 - i.
    """

    kind: str
    activations: Sequence[Callable[[Array], Array]]
    w: Sequence[Array]
    r: Sequence[Array]
    wb: Sequence[Array]
    rb: Sequence[Array]
    peepholes: Sequence[Array]
    linear: bool
    coupled: bool

    def step(
        self, fed: Sequence[Array], biases: Sequence[Array], h: Array, c: Array
    ) -> tuple[Array, Array]:
        """Return the next hidden state, and the next state of the cell.

        Args:
            fed: the products of the input and the weights, one per gate.
            biases: the sums of the biases of input and state, one per gate.
            h: the hidden state.
            c: the state of the cell.
        """
        f, *further = self.activations
        if self.kind == "RNN":
            return f(fed[0] + h @ self.r[0] + biases[0]), c
        if self.kind == "GRU":
            z, r = (f(fed[gate] + h @ self.r[gate] + biases[gate]) for gate in (0, 1))
            if self.linear:
                hidden = fed[2] + r * (h @ self.r[2] + self.rb[2]) + self.wb[2]
            else:
                hidden = fed[2] + (r * h) @ self.r[2] + self.wb[2] + self.rb[2]
            return (1 - z) * further[0](hidden) + z * h, c
        i, o, forget, cell = (fed[gate] + h @ self.r[gate] + biases[gate] for gate in range(4))
        p_i, p_o, p_f = self.peepholes
        i = f(i + p_i * c)
        forget = 1 - i if self.coupled else f(forget + p_f * c)
        c = forget * c + i * further[0](cell)
        return f(o + p_o * c) * further[1](c), c

    def run(self, x: Array, h: Array, c: Array, lengths: Array, *, reverse: bool) -> list[Array]:
        """Return the hidden states of all steps, and the last states of each sequence.

        All states after the end of a sequence are zero.
        """
        steps, sequences = np.arange(len(x))[:, None], np.arange(x.shape[1])
        runs = steps < lengths
        places = np.where(runs, lengths - 1 - steps if reverse else steps, 0)
        fed = [x[places, sequences] @ w for w in self.w]
        biases = [wb + rb for wb, rb in zip(self.wb, self.rb, strict=True)]
        hidden = np.zeros((*x.shape[:2], h.shape[-1]), x.dtype)
        for step, running in enumerate(runs[:, :, None]):
            new_h, new_c = self.step([product[step] for product in fed], biases, h, c)
            if running.all():
                h, c = new_h, new_c
            else:
                h, c = np.where(running, new_h, h), np.where(running, new_c, c)
            hidden[step] = h
        states = np.zeros_like(hidden)
        step_of, sequence_of = np.nonzero(runs)
        states[places[runs], sequence_of] = hidden[step_of, sequence_of]
        return [states, h, c]


def _run(
    kind: str, output_count: int, operands: Sequence[Array | None], attributes: dict[str, Any]
) -> tuple[Array, ...]:
    places: list[Array | None] = [*operands, *[None] * (_MAX_INPUTS - len(operands))]
    x, w, r, b, lengths, initial_h, initial_c, p = places
    assert x is not None  # noqa: S101 - a required input
    assert w is not None  # noqa: S101 - a required input
    assert r is not None  # noqa: S101 - a required input
    dtype = x.dtype
    wide = np.dtype(np.float32) if dtype.name in _SHORT_TYPES else dtype
    batch_first = bool(attributes.get("layout"))
    x = np.swapaxes(x, 0, 1) if batch_first else x
    direction = attributes.get("direction") or "forward"
    directions = 2 if direction == "bidirectional" else 1
    hidden, gates = r.shape[-1], w.shape[1] // r.shape[-1]
    if w.shape[0] != directions or r.shape[1] != gates * hidden:
        raise ValueError(f"{kind} of direction {direction} with weights of shape {w.shape}")

    def state(initial: Array | None) -> Array:
        if initial is None:
            return np.zeros((directions, x.shape[1], hidden), wide)
        return np.swapaxes(initial, 0, 1) if batch_first else initial

    h, c = state(initial_h).astype(wide), state(initial_c).astype(wide)
    biases = np.zeros((directions, 2 * gates * hidden), wide) if b is None else b.astype(wide)
    peepholes = np.zeros((directions, 3 * hidden), wide) if p is None else p.astype(wide)
    ends = np.full(x.shape[1], len(x)) if lengths is None else lengths
    all_activations = list(_activations(kind, directions, attributes))
    per_direction = len(_USUAL[kind])
    results = []
    for place in range(directions):
        split_biases = np.split(biases[place], 2 * gates)
        cell = _Cell(
            kind,
            all_activations[place * per_direction : (place + 1) * per_direction],
            [part.T for part in np.split(w[place].astype(wide), gates)],
            [part.T for part in np.split(r[place].astype(wide), gates)],
            split_biases[:gates],
            split_biases[gates:],
            np.split(peepholes[place], 3),
            bool(attributes.get("linear_before_reset")),
            bool(attributes.get("input_forget")),
        )
        reverse = direction == "reverse" or place == 1
        results.append(cell.run(x.astype(wide), h[place], c[place], ends, reverse=reverse))
    states, last_h, last_c = zip(*results, strict=True)
    y = np.stack(states, axis=1)
    outputs = [y.transpose(2, 0, 1, 3) if batch_first else y]
    outputs += [np.stack(last, axis=1 if batch_first else 0) for last in (last_h, last_c)]
    return tuple(output.astype(dtype) for output in outputs[:output_count])


def _activations(
    kind: str, directions: int, attributes: dict[str, Any]
) -> Iterator[Callable[[Array], Array]]:
    """Yield the activations of all directions.

    An activation with parameters takes the next values of ``activation_alpha`` and
    ``activation_beta``. If no values are left, the activation uses its defaults.
    """
    stated = attributes.get("activations") or ()
    usual = _USUAL[kind] * directions
    # For RNN, the specification states a default with two names per direction, although RNN has one
    # activation per direction.
    names = list(stated) if len(stated) == len(usual) else usual
    alphas = iter(attributes.get("activation_alpha") or ())
    betas = iter(attributes.get("activation_beta") or ())
    clip = attributes.get("clip")
    for name in map(str.lower, names):
        alpha, beta = default_parameters(name)
        alpha = None if alpha is None else float(next(alphas, alpha))
        beta = None if beta is None else float(next(betas, beta))
        yield _clipped(name, alpha or 0.0, beta or 0.0, clip)


def default_parameters(name: str) -> tuple[float | None, float | None]:
    """Return the defaults of alpha and beta; None for a parameter that the activation lacks."""
    return _PARAMETERS.get(name, (None, None))


def _clipped(name: str, alpha: float, beta: float, clip: float | None) -> Callable[[Array], Array]:
    """Return an activation that clips its argument."""
    if clip is None:
        return lambda x: activated(name, x, alpha, beta)
    return lambda x: activated(name, np.clip(x, -clip, clip), alpha, beta)


def activated(name: str, x: Array, alpha: float, beta: float) -> Array:
    """Return an activation function of x.

    Args:
        name: the name of the function in lower case.
        x: the argument.
        alpha: its first parameter; ignored if the function has none.
        beta: its second parameter.
    """
    return _FUNCTIONS[name](x, alpha, beta)
