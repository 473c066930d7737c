"""The digits network as ONNX graphs: the classifier, a whole training step, and pruning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]

TRAINING_DOMAIN = "ai.onnx.preview.training"
PRUNING_DOMAIN = "onnxopt.pruning"
OPSETS = {"": 17, TRAINING_DOMAIN: 1, PRUNING_DOMAIN: 1}
IR_VERSION = 8

#: The numbers of pixels, of units in the first and second hidden layer, and of classes.
SIZES = (64, 48, 24, 10)
LAYERS = tuple(range(1, len(SIZES)))
WEIGHTS = tuple(f"W{layer}" for layer in LAYERS)
#: The shape of each parameter by name.
SHAPES: Mapping[str, tuple[int, ...]] = {
    name: shape
    for layer in LAYERS
    for name, shape in (
        (f"W{layer}", (SIZES[layer - 1], SIZES[layer])),
        (f"b{layer}", (SIZES[layer],)),
    )
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A training operator and its settings.

    Attributes:
        name: name in tables.
        op_type: operator of the node.
        attributes: attributes of the node.
        states: states of each parameter in the operator's order: V, H or both.
        rate: the learning rate R.
        first_count: T in the first step: 1 for Adam, 0 for the other operators.
    """

    name: str
    op_type: str
    attributes: Mapping[str, Any]
    states: tuple[str, ...]
    rate: float
    first_count: int = 0


def _momentum(mode: str) -> Mapping[str, Any]:
    return {"alpha": 0.9, "beta": 1.0, "mode": mode, "norm_coefficient": 1e-4}


ADAM = Optimizer("Adam", "Adam", {}, ("V", "H"), rate=0.003, first_count=1)
OPTIMIZERS = (
    ADAM,
    Optimizer("Adagrad", "Adagrad", {"decay_factor": 1e-3}, ("H",), rate=0.03),
    Optimizer("Momentum", "Momentum", _momentum("standard"), ("V",), rate=0.03),
    Optimizer("Nesterov", "Momentum", _momentum("nesterov"), ("V",), rate=0.03),
)


class Regime(StrEnum):
    """The constraint on the weights in training: none, ADMM's penalty, or a mask."""

    DENSE = "dense"
    ADMM = "ADMM"
    MASKED = "masked"


class GraphBuilder:
    """A builder that collects the nodes of a graph. The names of values state their meaning."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(
        self, name: str, shape: Sequence[int | str], dtype: type[np.generic] = np.float32
    ) -> str:
        """Declare an input of the graph and return its name."""
        self._inputs.append(_value_info(name, shape, dtype))
        return name

    def output(self, name: str, shape: Sequence[int | str]) -> None:
        """Declare a float32 output of the graph."""
        self._outputs.append(_value_info(name, shape, np.float32))

    def constant(self, name: str, value: Array) -> str:
        """Add an initializer and return its name."""
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op_type: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Add a node of ONNX's domain with one output and return the name of the output."""
        return self.nodes(op_type, inputs, [name], attributes)[0]

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
        domain: str = "",
    ) -> list[str]:
        """Add a node with any number of outputs and return their names."""
        self._nodes.append(
            helper.make_node(op_type, list(inputs), list(outputs), domain=domain, **attributes)
        )
        return list(outputs)

    def model(self) -> onnx.ModelProto:
        """Return the model of the collected nodes, after onnx's check."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._constants
        )
        domains = sorted({node.domain for node in self._nodes} | {""})
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, OPSETS[domain]) for domain in domains],
            ir_version=IR_VERSION,
            producer_name="onnxopt",
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def _value_info(
    name: str, shape: Sequence[int | str], dtype: type[np.generic]
) -> onnx.ValueInfoProto:
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element_type, list(shape))


def initial_parameters(seed: int) -> dict[str, Array]:
    """Draw weights by the method of He and others (2015) and set biases to zero."""
    generator = np.random.default_rng(seed)
    return {
        name: generator.normal(0, np.sqrt(2 / shape[0]), shape).astype(np.float32)
        if name in WEIGHTS
        else np.zeros(shape, np.float32)
        for name, shape in SHAPES.items()
    }


def classifier() -> onnx.ModelProto:
    """Return the model of the forward pass: images and parameters in, logits out."""
    graph = GraphBuilder("classifier")
    images = graph.input("images", ["batch", SIZES[0]])
    for name, shape in SHAPES.items():
        graph.input(name, shape)
    _add_forward(graph, images)
    graph.output("logits", ["batch", SIZES[-1]])
    return graph.model()


def admm_update(percent: float) -> onnx.ModelProto:
    """Return the model that projects all layers and updates their dual variables."""
    inputs = [*WEIGHTS, *_prefixed("Z", WEIGHTS), *_prefixed("U", WEIGHTS)]
    outputs = [f"{name}_new" for name in inputs if name not in WEIGHTS]
    return _pruning_model("AdmmUpdate", inputs, outputs, percent)


def magnitude_prune(percent: float) -> onnx.ModelProto:
    """Return the model that prunes all layers and returns their masks."""
    outputs = [*(f"{name}_new" for name in WEIGHTS), *_prefixed("mask", WEIGHTS)]
    return _pruning_model("MagnitudePrune", WEIGHTS, outputs, percent)


def _pruning_model(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], percent: float
) -> onnx.ModelProto:
    graph = GraphBuilder(op_type)
    shapes = [SHAPES[name] for name in WEIGHTS]
    for position, name in enumerate(inputs):
        graph.input(name, shapes[position % len(shapes)])
    graph.nodes(op_type, inputs, outputs, {"percent": [float(percent)]}, PRUNING_DOMAIN)
    for position, name in enumerate(outputs):
        graph.output(name, shapes[position % len(shapes)])
    return graph.model()


def training_step(
    optimizer: Optimizer, batch: int, regime: Regime = Regime.DENSE, rho: float = 0.0
) -> onnx.ModelProto:
    """Return the model of a whole step: forward pass, loss, backward pass, optimizer.

    The inputs are R, T, ``images`` [batch, 64], ``labels`` [batch], each parameter, and the states
    of each parameter, such as ``V_W1``. With ADMM, each weight such as W1 has the additional inputs
    ``Z_W1`` and ``U_W1``. With a mask, each weight has the additional input ``mask_W1``. The
    outputs are ``loss``, each parameter and state with the suffix ``_new``, and gradients such as
    ``gradient_W1``, before a penalty or a mask is applied.

    Args:
        optimizer: the operator whose single node updates all parameters.
        batch: number of images.
        regime: ADMM adds a penalty to the loss and to the gradients of the weights. A mask
            multiplies the gradients of the weights and their new values.
        rho: factor of the penalty.
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
    logits = _add_forward(graph, images)
    loss, logits_gradient = _add_loss(graph, logits, labels, batch)
    gradients = _add_backward(graph, images, logits_gradient)
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


def _add_forward(graph: GraphBuilder, images: str) -> str:
    """Add the values ``sum_i`` and ``hidden_i`` of each hidden layer i; return the logits."""
    hidden = images
    for layer in LAYERS[:-1]:
        total = _add_layer(graph, layer, hidden, name=f"sum_{layer}")
        hidden = graph.node("Relu", total, name=f"hidden_{layer}")
    return _add_layer(graph, LAYERS[-1], hidden, name="logits")


def _add_layer(graph: GraphBuilder, layer: int, below: str, *, name: str) -> str:
    product = graph.node("MatMul", below, f"W{layer}", name=f"product_{layer}")
    return graph.node("Add", product, f"b{layer}", name=name)


def _add_loss(graph: GraphBuilder, logits: str, labels: str, batch: int) -> tuple[str, str]:
    """Add the mean cross-entropy.

    Returns:
        The name of the loss, and the name of its gradient with respect to the logits.
    """
    depth = graph.constant("classes", np.array(SIZES[-1], np.int64))
    off_on = graph.constant("off_on", np.array([0, 1], np.float32))
    size = graph.constant("batch", np.array(batch, np.float32))
    one_hot = graph.node("OneHot", labels, depth, off_on, name="wanted")
    logarithms = graph.node("LogSoftmax", logits, name="log_probabilities", axis=1)
    chosen = graph.node("Mul", one_hot, logarithms, name="log_probabilities_wanted")
    likelihood = graph.node("ReduceSum", chosen, name="log_likelihood", keepdims=0)
    mean = graph.node("Div", likelihood, size, name="mean_log_likelihood")
    loss = graph.node("Neg", mean, name="cross_entropy")
    probabilities = graph.node("Softmax", logits, name="probabilities", axis=1)
    excess = graph.node("Sub", probabilities, one_hot, name="probabilities_excess")
    return loss, graph.node("Div", excess, size, name="gradient_logits")


def _add_backward(graph: GraphBuilder, images: str, logits_gradient: str) -> dict[str, str]:
    """Add the backward pass; return the name of each parameter's gradient."""
    gradients: dict[str, str] = {}
    gradient = logits_gradient
    for layer in reversed(LAYERS):
        below = f"hidden_{layer - 1}" if layer > 1 else images
        transposed = graph.node("Transpose", below, name=f"{below}_transposed", perm=[1, 0])
        name = f"gradient_W{layer}"
        gradients[f"W{layer}"] = graph.node("MatMul", transposed, gradient, name=name)
        rows = graph.constant(f"rows_{layer}", np.array([0], np.int64))
        name = f"gradient_b{layer}"
        gradients[f"b{layer}"] = graph.node("ReduceSum", gradient, rows, name=name, keepdims=0)
        if layer > 1:
            gradient = _add_backward_activation(graph, layer, gradient)
    return {name: gradients[name] for name in SHAPES}


def _add_backward_activation(graph: GraphBuilder, layer: int, gradient: str) -> str:
    """Propagate a gradient back through the weights of a layer and the ReLU before the weights."""
    below = layer - 1
    weights = graph.node("Transpose", f"W{layer}", name=f"W{layer}_transposed", perm=[1, 0])
    hidden = graph.node("MatMul", gradient, weights, name=f"gradient_hidden_{below}")
    zero = graph.constant(f"zero_{below}", np.array(0, np.float32))
    positive = graph.node("Greater", f"sum_{below}", zero, name=f"positive_{below}")
    slope = graph.node("Cast", positive, name=f"slope_{below}", to=onnx.TensorProto.FLOAT)
    return graph.node("Mul", hidden, slope, name=f"gradient_sum_{below}")


def _add_penalty(graph: GraphBuilder, loss: str, gradients: dict[str, str], rho: float) -> str:
    """Add ADMM's penalty to the loss, and its gradient to the entries of ``gradients``."""
    operands = [*WEIGHTS, *_prefixed("Z", WEIGHTS), *_prefixed("U", WEIGHTS)]
    (penalized_loss,) = graph.nodes(
        "AdmmPenalty", [loss, *operands], ["penalized_loss"], {"rho": rho}, PRUNING_DOMAIN
    )
    weight_gradients = [gradients[name] for name in WEIGHTS]
    results = _prefixed("penalized_gradient", WEIGHTS)
    graph.nodes(
        "AdmmGradient", [*weight_gradients, *operands], results, {"rho": rho}, PRUNING_DOMAIN
    )
    gradients.update(zip(WEIGHTS, results, strict=True))
    return penalized_loss


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
        TRAINING_DOMAIN,
    )
    if masked:
        for name in WEIGHTS:
            graph.node("Mul", f"{name}_updated", f"mask_{name}", name=f"{name}_new")
    for name, shape in SHAPES.items():
        graph.output(f"{name}_new", shape)
    for state in optimizer.states:
        for name, shape in SHAPES.items():
            graph.output(f"{state}_{name}_new", shape)


def _prefixed(prefix: str, names: Sequence[str]) -> list[str]:
    return [f"{prefix}_{name}" for name in names]
