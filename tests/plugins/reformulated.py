"""Adam in the reformulations of public libraries, and wrong variants.

The reformulations add epsilon where ONNX adds it, and are correct. They return NaN where the
library computes Inf - Inf.
"""

from __future__ import annotations

import math

import numpy as np
from onnx.numpy_helper import to_array

from onnxopt_cli.operators.call import bind, node_attributes, sole_call
from onnxopt_cli.operators.registry import registry

_BETWEEN = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Identity": np.copy,
    "Transpose": np.transpose,
    "Reshape": np.reshape,
}


class _Adam:
    """A backend that computes tensors in their own types, and scalars from R and T in double."""

    def run(self, model, inputs):
        if len(model.graph.node) == 1:
            results = self.optimized(sole_call(model, inputs))
            named = dict(zip(model.graph.node[0].output, results, strict=True))
            return [named[value.name] for value in model.graph.output]
        values = {tensor.name: to_array(tensor) for tensor in model.graph.initializer} | dict(
            inputs
        )
        for node in model.graph.node:
            operands = [values[name] for name in node.input]
            if node.op_type in _BETWEEN:
                results = [_BETWEEN[node.op_type](*operands)]
            else:
                operator = registry().named(node.op_type)
                call = bind(operator, operands, node_attributes(operator, node), len(node.output))
                results = self.optimized(call)
            values |= dict(zip(node.output, results, strict=True))
        return [values[value.name] for value in model.graph.output]

    def optimized(self, call):
        R, T = (scalar.reshape(()).item() for scalar in call.scalars)
        with np.errstate(all="ignore"):
            results = [self.step(R, T, *group, **call.attributes) for group in call.groups]
            return [
                np.broadcast_to(output, group[0].shape).astype(like.dtype)
                for place, column in enumerate(zip(*results, strict=True))
                for output, group in zip(column, call.groups, strict=True)
                for like in [group[0] if place == 0 else group[place + 1]]
            ]

    def step(self, R, T, X, G, V, H, *, alpha, beta, epsilon, norm_coefficient, **post):
        G = norm_coefficient * X + G
        V, H = self.averages(G, V, H, alpha, beta)
        rate = R * np.sqrt(self.rest(beta, T)) / self.rest(alpha, T) if T > 0 else R
        return self.decayed(self.moved(X, rate, V, np.sqrt(H) + epsilon), **post), V, H

    def rest(self, decay, T):
        return 1 - np.power(decay, T)

    def averages(self, G, V, H, alpha, beta):
        return alpha * V + (1 - alpha) * G, beta * H + (1 - beta) * (G * G)

    def moved(self, X, rate, V, root):
        return X - rate * V / root

    def decayed(self, X, norm_coefficient_post):
        return (1 - norm_coefficient_post) * X


class PyTorch(_Adam):
    """Adam as PyTorch computes it with ``lerp_``, ``addcmul_`` and ``addcdiv_``."""

    def averages(self, G, V, H, alpha, beta):
        return lerp(V, G, 1 - alpha), beta * H + (1 - beta) * G * G

    def moved(self, X, rate, V, root):
        return X + -rate * V / root


class PyTorchWithTensorRates(PyTorch):
    """The branch of PyTorch's Adam in which the rate and the betas are tensors."""

    def averages(self, G, V, H, alpha, beta):
        return lerp(V, G, 1 - alpha), lerp(H, G * G, 1 - beta)

    def moved(self, X, rate, V, root):
        return X + V / (root / -rate)


class TensorFlow(_Adam):
    """Adam that computes the averages as ``m += (g - m) * (1 - beta1)``."""

    def averages(self, G, V, H, alpha, beta):
        return V + (G - V) * (1 - alpha), H + (G * G - H) * (1 - beta)


class TensorFlowBesideInfinity(_Adam):
    """Adam that uses TensorFlow's formula of the averages only if an operand is infinite."""

    def averages(self, G, V, H, alpha, beta):
        pairs = zip(
            super().averages(G, V, H, alpha, beta),
            TensorFlow.averages(self, G, V, H, alpha, beta),
            ((V, G), (H, G)),
            strict=True,
        )
        return [
            np.where(np.isinf(old) | np.isinf(new), moved, plain)
            for plain, moved, (old, new) in pairs
        ]


class Keras(TensorFlow):
    """Adam that computes the averages as ``m.assign_add((g - m) * (1 - beta_1))``.

    The decay is X - X * norm_coefficient_post, unless the coefficient is near 1.
    """

    def decayed(self, X, norm_coefficient_post):
        if abs(1 - norm_coefficient_post) < 0.5:
            return super().decayed(X, norm_coefficient_post)
        return X - X * norm_coefficient_post


class Logarithmic(_Adam):
    """Adam with the bias correction ``-expm1(T * log(beta))``, which is -0 if beta is 1."""

    def rest(self, decay, T):
        return -np.expm1(T * np.log(decay)) if decay > 0 else super().rest(decay, T)


class Fused(_Adam):
    """Adam that computes the decay as ``fma(-p, x, x)``, and the averages by fma as well."""

    def averages(self, G, V, H, alpha, beta):
        return (
            fused(1 - alpha, G, fused(-(1 - alpha), V, V)),
            fused(1 - beta, G * G, fused(-(1 - beta), H, H)),
        )

    def decayed(self, X, norm_coefficient_post):
        return fused(-norm_coefficient_post, X, X)


def fused(a, b, c):
    """Return a * b + c with a single rounding."""
    b, c = np.broadcast_arrays(b, c)
    dtype = np.result_type(b, c)
    if dtype == np.float32:
        return np.asarray(np.float64(a) * b + c, dtype)
    sums = [_exact(a, *pair) for pair in zip(b.ravel(), c.ravel(), strict=True)]
    return np.array(sums, dtype).reshape(b.shape)


def _exact(a, b, c):
    if not (math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    # Dividing two integers rounds the exact quotient once. Fraction would also reduce the quotient,
    # which is slow.
    (a_top, a_bottom), (b_top, b_bottom), (c_top, c_bottom) = (
        float(number).as_integer_ratio() for number in (a, b, c)
    )
    product = a_top * b_top * c_bottom
    return (product + c_top * a_bottom * b_bottom) / (a_bottom * b_bottom * c_bottom)


def lerp(start, end, weight):
    """Interpolate as ATen/native/Lerp.h does."""
    if abs(weight) < 0.5:
        return start + weight * (end - start)
    return end - (end - start) * (1 - weight)


class ForgetsSmall(_Adam):
    """Wrong: averages ignore the gradient."""

    def averages(self, G, V, H, alpha, beta):
        return super().averages(G * 0, V, H, alpha, beta)


class AlwaysNan(_Adam):
    """Wrong: every element of X_new is NaN."""

    def decayed(self, X, norm_coefficient_post):
        return X * np.nan


class NanForInfinity(_Adam):
    """Wrong: if any input has an infinite element, all elements of all outputs are NaN."""

    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        infinite = any(np.isinf(value).any() for value in inputs.values())
        return [output * np.nan if infinite else output for output in outputs]


class NanForInfiniteGradient(_Adam):
    """Wrong: V_new is NaN where the gradient is infinite; no reformulation has this result."""

    def averages(self, G, V, H, alpha, beta):
        V, H = super().averages(G, V, H, alpha, beta)
        return np.where(np.isinf(G), np.nan, V), H


class ZeroForInfinity(_Adam):
    """Wrong: zeros replace infinite values in the outputs."""

    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        return [np.where(np.isinf(output), 0, output).astype(output.dtype) for output in outputs]
