"""Calls of the ADMM operators, with given or random inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from onnxopt_cli.mutation.known_mistakes import all_known_mistakes
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import FLOATS
from onnxopt_cli.operators.registry import registry

PRUNING = tuple(
    operator for operator in registry().operators if operator.domain == "onnxopt.pruning"
)


def call_of(name, *inputs, dtype="float32", **attributes):
    """Return a call; inputs that are not arrays are converted to arrays of ``dtype``."""
    operator = registry().named(name)
    arrays = [
        value if isinstance(value, np.ndarray) else np.array(value, dtype) for value in inputs
    ]
    return bind(operator, arrays, complete_attributes(operator, attributes))


def deviating(call, name):
    """Return the outputs of a call that is computed with the known mistake ``name``."""
    return next(
        known_mistake
        for known_mistake in all_known_mistakes(call.operator)
        if known_mistake.name == name
    ).run(call)


@st.composite
def calls(draw, operator, *, special=False, dtypes=FLOATS):
    """Draw a call of one to three layers, in which elements may tie and ranks may be integers."""
    groups = draw(st.integers(1, 3))
    attributes = {}
    for attribute in operator.attributes:
        if attribute.each:
            count = draw(st.sampled_from([1, groups]))
            percents = st.sampled_from([0, 25, 50, 60, 75, 80, 100]) | st.floats(0, 100, width=32)
            attributes[attribute.name] = [draw(percents) for _ in range(count)]
        else:
            attributes[attribute.name] = draw(st.sampled_from([0, 0.5, 0.01, -1.3, 100]))
    shapes = [
        draw(st.sampled_from([(), (1,), (5,), (2, 3), (0,), (9,), (64,), (2, 0), (300,)]))
        for _ in range(groups)
    ]
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    inputs = [
        np.asarray(draw(st.sampled_from([0.0, 1.5, -0.7])), draw(st.sampled_from(dtypes)))
        for _ in operator.scalars
    ]
    for position, _ in enumerate(operator.tensors):
        for shape in shapes:
            tensor_shape = shape
            if position and shape and draw(st.booleans()):
                tensor_shape = (1,) * len(shape)
            inputs.append(
                draw(_tensors(random, tensor_shape, special)).astype(draw(st.sampled_from(dtypes)))
            )
    return bind(operator, inputs, complete_attributes(operator, attributes))


@st.composite
def _tensors(draw, random, shape, special):
    values = random.normal(size=shape) * 10.0 ** draw(st.sampled_from([0, 0, -3, 4]))
    kind = draw(st.sampled_from(["plain", "plain", "ties", "zeros"]))
    if kind == "ties":
        values = np.round(values * 4) / 4
    if kind == "zeros":
        values = values * 0
    values = np.asarray(values)
    if special and values.size and draw(st.booleans()):
        values.flat[random.integers(values.size)] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return values
