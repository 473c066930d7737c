"""Random calls of the training operators, and the ratio error / bound of their outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from onnxopt_cli.interpret.evaluate import WIDEST_TYPE, evaluate
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import FLOATS
from onnxopt_cli.operators.registry import registry

#: The operators of ai.onnx.preview.training that have the inputs R and T.
TRAINING = tuple(operator for operator in registry().operators if operator.counts)
each_training_operator = pytest.mark.parametrize(
    "operator", TRAINING, ids=lambda operator: operator.name
)

WEIGHTS = (0, 0.1, 0.5, 0.9, 0.95, 0.999, 0.9999, 1, 1.5)
COUNTS = (0, 1, 2, 3, 10, 1000, 10**6, 2**24 + 1, 2**31 + 5, -1)
EXPONENTS = (0, -3, -8, -12, -17, -25, -36, 6, 12, 17, 30, 37)


def call_of(operator, size=500, dtype=np.float32, count=3, **attributes):
    """Return a call of one group; its tensors are random, but equal in all runs."""
    random = np.random.default_rng(0)
    inputs = [np.asarray(0.1, dtype), np.asarray(count)]
    for name in operator.tensors:
        values = random.normal(size=(size,)).astype(dtype)
        inputs.append(np.abs(values) if name == "H" else values)
    defaults = {
        attribute.name: attribute.choices[-1] if attribute.choices else 0.3
        for attribute in operator.attributes
    }
    return bind(operator, inputs, complete_attributes(operator, defaults | attributes))


@st.composite
def calls(draw, operator, *, dtypes=FLOATS, exponents=EXPONENTS, counts=COUNTS):
    """Draw a call of one or two groups with finite inputs."""
    attributes = {}
    for attribute in operator.attributes:
        if attribute.choices:
            attributes[attribute.name] = draw(st.sampled_from(attribute.choices))
        elif attribute.required or draw(st.booleans()):
            attributes[attribute.name] = draw(
                st.sampled_from(WEIGHTS) | st.floats(0, 1, width=32, allow_subnormal=False)
            )
    groups = draw(st.integers(1, 2))
    shapes = [draw(st.sampled_from([(9,), (2, 3), (), (1, 4, 1)])) for _ in range(groups)]
    dtype = st.sampled_from(dtypes)
    common = draw(dtype | st.none())
    exponent = draw(st.sampled_from(exponents))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    inputs = [
        np.asarray(draw(st.sampled_from([0.1, 1e-3, 1.0, 0.7, 1e3])), draw(dtype)),
        np.asarray(draw(st.sampled_from(counts))),
    ]
    for name in operator.tensors:
        tensor_dtype = common or draw(dtype)
        shift = draw(st.sampled_from([0, 0, 0, -3, 3]))
        # H accumulates squares, so its exponent is twice that of the other tensors.
        size = exponent * (1 + (name == "H")) + shift
        inputs += [_tensor(random, tensor_dtype, shape, size, name == "H") for shape in shapes]
    call = bind(operator, inputs, complete_attributes(operator, attributes))
    return _nearly_cancelled(call) if draw(st.booleans()) else call


def shares(derived_output, output):
    """Return error / bound of each element; it is inf if an expected NaN or infinity is missing."""
    assert output.dtype == derived_output.expected.dtype
    assert output.shape == derived_output.expected.shape
    as_expected = (output == derived_output.expected) | (
        np.isnan(output) & np.isnan(derived_output.expected)
    )
    with np.errstate(all="ignore"):
        share = np.abs(output.astype(WIDEST_TYPE) - derived_output.value) / derived_output.error
    share = np.where(np.isnan(share), np.inf, share).astype(np.float64)
    exact = as_expected & ((derived_output.error == 0) | ~np.isfinite(derived_output.expected))
    used = np.where(exact | np.isinf(derived_output.error), 0.0, share)
    # An element may have a second right value, such as NaN or the opposite infinity.
    return (
        used
        if derived_output.otherwise is None
        else np.minimum(used, shares(derived_output.otherwise, output))
    )


def _tensor(random, dtype, shape, exponent, positive):
    values = random.normal(size=shape) * 10.0 ** random.uniform(exponent - 2, exponent + 2, shape)
    kind = random.integers(5)
    if kind == 0:
        values = values * (random.random(shape) < 0.6)
    if kind == 1:
        values = 10.0**exponent * np.round(random.normal(size=shape) * 4) / 4
    # Values beyond the range of float32 become ±3e38.
    values = np.clip(np.abs(values) if positive else values, -3e38, 3e38)
    return np.asarray(values).astype(dtype)


def _nearly_cancelled(call):
    """Return a copy of a call in which X almost equals the step, so that X_new is almost zero."""
    groups = []
    for group, moved in zip(call.groups, evaluate(call), strict=False):
        with np.errstate(all="ignore"):
            step = (group[0].astype(WIDEST_TYPE) - moved).astype(group[0].dtype)
        groups.append((np.where(np.isfinite(step), step, group[0]), *group[1:]))
    return replace(call, groups=tuple(groups))
