"""The network: three dense layers with ReLU between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from digits.graph import GraphBuilder

Array = np.ndarray[Any, Any]

SIZES = (64, 48, 24, 10)
LAYERS = tuple(range(1, len(SIZES)))
WEIGHTS = tuple(f"W{layer}" for layer in LAYERS)
#: Shape of every parameter by its name.
SHAPES: Mapping[str, tuple[int, ...]] = {
    name: shape
    for layer in LAYERS
    for name, shape in (
        (f"W{layer}", (SIZES[layer - 1], SIZES[layer])),
        (f"b{layer}", (SIZES[layer],)),
    )
}


def initial_parameters(seed: int) -> dict[str, Array]:
    """Draw weights as He et al. 2015 do; biases are zero."""
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
    add_forward(graph, images)
    graph.output("logits", ["batch", SIZES[-1]])
    return graph.model()


def add_forward(graph: GraphBuilder, images: str) -> str:
    """Add the forward pass; layer i computes ``sum_i``, and ``hidden_i`` but for the last.

    Returns:
        The name of the logits.
    """
    hidden = images
    for layer in LAYERS[:-1]:
        added = _add_layer(graph, layer, hidden, name=f"sum_{layer}")
        hidden = graph.node("Relu", added, name=f"hidden_{layer}")
    return _add_layer(graph, LAYERS[-1], hidden, name="logits")


def add_backward(graph: GraphBuilder, images: str, logits_gradient: str) -> dict[str, str]:
    """Add the backward pass.

    Returns:
        The name of each parameter's gradient.
    """
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


def _add_layer(graph: GraphBuilder, layer: int, below: str, *, name: str) -> str:
    product = graph.node("MatMul", below, f"W{layer}", name=f"product_{layer}")
    return graph.node("Add", product, f"b{layer}", name=name)


def _add_backward_activation(graph: GraphBuilder, layer: int, gradient: str) -> str:
    """Pass a gradient through a layer's weights and the ReLU below them."""
    below = layer - 1
    weights = graph.node("Transpose", f"W{layer}", name=f"W{layer}_transposed", perm=[1, 0])
    hidden = graph.node("MatMul", gradient, weights, name=f"gradient_hidden_{below}")
    zero = graph.constant(f"zero_{below}", np.array(0, np.float32))
    positive = graph.node("Greater", f"sum_{below}", zero, name=f"positive_{below}")
    slope = graph.node("Cast", positive, name=f"slope_{below}", to=onnx.TensorProto.FLOAT)
    return graph.node("Mul", hidden, slope, name=f"gradient_sum_{below}")
