"""One whole training step as a graph: forward, loss, backward, optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
import onnx

from digits.graph import GraphBuilder
from digits.network import SHAPES, SIZES, WEIGHTS, add_backward, add_forward
from digits.optimizers import DOMAIN, Optimizer

PRUNING_DOMAIN = "onnxopt.pruning"
_CLASSES = SIZES[-1]


class Regime(StrEnum):
    """What a step does beside minimising the loss."""

    DENSE = "dense"
    ADMM = "ADMM"
    MASKED = "masked"


def training_step(
    optimizer: Optimizer, batch: int, regime: Regime = Regime.DENSE, rho: float = 0.0
) -> onnx.ModelProto:
    """Build the graph of a step.

    Inputs are R, T, ``images`` [batch, 64], ``labels`` [batch], every parameter by its name and its
    states as ``V_W1``; under ADMM ``Z_W1`` and ``U_W1`` of every weight, masked ``mask_W1``.
    Outputs are ``loss``, every parameter and state with ``_new`` behind its name, and the gradients
    that the optimizer is given, ``gradient_W1`` before a penalty's or a mask's part.

    Args:
        optimizer: whose node updates all parameters at once.
        batch: number of images.
        regime: under ADMM the penalty is part of the loss and its gradient of the weights'; masked,
            the mask multiplies the weights' gradients and what the optimizer makes of the weights.
        rho: weight of ADMM's penalty.
    """
    graph = GraphBuilder(f"{optimizer.name.lower()}_step")
    graph.input("R", [])
    graph.input("T", [], np.int64)
    images = graph.input("images", [batch, SIZES[0]])
    labels = graph.input("labels", [batch], np.int64)
    for name, shape in SHAPES.items():
        graph.input(name, shape)
    for state in optimizer.states:
        for name, shape in SHAPES.items():
            graph.input(f"{state}_{name}", shape)
    for kind in {Regime.ADMM: ("Z", "U"), Regime.MASKED: ("mask",)}.get(regime, ()):
        for name in WEIGHTS:
            graph.input(f"{kind}_{name}", SHAPES[name])
    logits = add_forward(graph, images)
    loss, logits_gradient = _add_loss(graph, logits, labels, batch)
    gradients = add_backward(graph, images, logits_gradient)
    for name in SHAPES:
        graph.output(f"gradient_{name}", SHAPES[name])
    if regime is Regime.ADMM:
        loss = _add_penalty(graph, loss, gradients, rho)
    graph.node("Identity", loss, name="loss")
    graph.output("loss", [])
    if regime is Regime.MASKED:
        for name in WEIGHTS:
            masked = f"masked_gradient_{name}"
            gradients[name] = graph.node("Mul", gradients[name], f"mask_{name}", name=masked)
    _add_optimizer(graph, optimizer, gradients, masked=regime is Regime.MASKED)
    return graph.model()


def _add_loss(graph: GraphBuilder, logits: str, labels: str, batch: int) -> tuple[str, str]:
    """Add the mean cross-entropy and its gradient with respect to the logits."""
    depth = graph.constant("classes", np.array(_CLASSES, np.int64))
    off_on = graph.constant("off_on", np.array([0, 1], np.float32))
    size = graph.constant("batch", np.array(batch, np.float32))
    wanted = graph.node("OneHot", labels, depth, off_on, name="wanted")
    logarithms = graph.node("LogSoftmax", logits, name="log_probabilities", axis=1)
    chosen = graph.node("Mul", wanted, logarithms, name="log_probabilities_wanted")
    likelihood = graph.node("ReduceSum", chosen, name="log_likelihood", keepdims=0)
    mean = graph.node("Div", likelihood, size, name="mean_log_likelihood")
    loss = graph.node("Neg", mean, name="cross_entropy")
    probabilities = graph.node("Softmax", logits, name="probabilities", axis=1)
    excess = graph.node("Sub", probabilities, wanted, name="probabilities_excess")
    return loss, graph.node("Div", excess, size, name="gradient_logits")


def _add_penalty(graph: GraphBuilder, loss: str, gradients: dict[str, str], rho: float) -> str:
    """Add ADMM's penalty to the loss, and its gradients to the weights' gradients, in place."""
    tensors = [WEIGHTS, _named("Z", WEIGHTS), _named("U", WEIGHTS)]
    flat = [name for group in tensors for name in group]
    (penalized,) = graph.nodes(
        "AdmmPenalty", [loss, *flat], ["penalized_loss"], {"rho": rho}, PRUNING_DOMAIN
    )
    given = [gradients[name] for name in WEIGHTS]
    results = _named("penalized_gradient", WEIGHTS)
    graph.nodes("AdmmGradient", [*given, *flat], results, {"rho": rho}, PRUNING_DOMAIN)
    gradients.update(zip(WEIGHTS, results, strict=True))
    return penalized


def _add_optimizer(
    graph: GraphBuilder, optimizer: Optimizer, gradients: Mapping[str, str], *, masked: bool
) -> None:
    states = [f"{state}_{name}" for state in optimizer.states for name in SHAPES]
    updated = [
        f"{name}_updated" if masked and name in WEIGHTS else f"{name}_new" for name in SHAPES
    ]
    graph.nodes(
        optimizer.op_type,
        ["R", "T", *SHAPES, *gradients.values(), *states],
        [*updated, *(f"{state}_new" for state in states)],
        optimizer.attributes,
        DOMAIN,
    )
    if masked:
        for name in WEIGHTS:
            graph.node("Mul", f"{name}_updated", f"mask_{name}", name=f"{name}_new")
    for name, shape in SHAPES.items():
        graph.output(f"{name}_new", shape)
    for state in optimizer.states:
        for name, shape in SHAPES.items():
            graph.output(f"{state}_{name}_new", shape)


def _named(prefix: str, names: Sequence[str]) -> list[str]:
    return [f"{prefix}_{name}" for name in names]
