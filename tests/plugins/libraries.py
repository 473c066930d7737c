"""Adam, Adagrad and SGD as public libraries write them, behind an adapter to ONNX's nodes.

Each step is transcribed from a library. The adapter passes the attributes of the node, and passes T
as the library's count of steps. Attributes without a corresponding argument are ignored. Tensors
are computed in their own types, and scalars that depend on rates and counts in double.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from onnxopt_cli.operators.call import sole_call

_DEFAULTS = {
    "Adam": {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6},
    "Adagrad": {"decay_factor": 0.0, "epsilon": 1e-6},
    "Momentum": {},
}
_FIXED_ATTRIBUTES = {"norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
_STATES = {"Adam": 2, "Adagrad": 1, "Momentum": 1}


class _Library:
    """An adapter that splits the inputs of a node into groups and assembles the outputs."""

    operator = "Adam"
    defaults = MappingProxyType({})

    def run(self, model, inputs):
        (node,) = model.graph.node
        if node.op_type != self.operator:
            raise NotImplementedError(node.op_type)
        # Raise an exception if the node contradicts the signature of its operator.
        sole_call(model, inputs)
        attributes = {
            name: float(np.float32(value)) for name, value in _DEFAULTS[self.operator].items()
        } | _FIXED_ATTRIBUTES
        attributes |= self.defaults
        names = {*attributes, "alpha", "beta", "mode"}
        for attribute in node.attribute:
            if attribute.name not in names:
                raise ValueError(f"unknown attribute {attribute.name}")
            attributes[attribute.name] = onnx.helper.get_attribute_value(attribute)
        if self.operator == "Momentum" and attributes["mode"] not in (b"standard", b"nesterov"):
            raise ValueError("unknown mode")
        values = {each.name: to_array(each) for each in model.graph.initializer} | dict(inputs)
        R, T, *tensors = (values[name] for name in node.input)
        size = 2 + _STATES[self.operator]
        groups, rest = divmod(len(tensors), size)
        if rest or not groups or any(tensor.dtype.kind != "f" for tensor in tensors):
            raise ValueError("wrong inputs")
        columns = [[] for _ in range(size - 1)]
        for place in range(groups):
            X, *further = tensors[place::groups]
            if np.broadcast_shapes(*(tensor.shape for tensor in (X, *further))) != X.shape:
                raise ValueError("X would grow")
            with np.errstate(all="ignore"):
                results = self.step(R.item(), T.item(), X, *further, **attributes)
            types = (X, *further[1:])
            for column, result, like in zip(columns, results, types, strict=True):
                with np.errstate(all="ignore"):
                    column.append(np.broadcast_to(result, X.shape).astype(like.dtype))
        results = [output for column in columns for output in column]
        named = dict(zip(node.output, results, strict=True))
        return [named[value.name] for value in model.graph.output]


def lerp(start, end, weight):
    """Interpolate as ATen/native/Lerp.h does."""
    if abs(weight) < 0.5:
        return start + weight * (end - start)
    return end - (end - start) * (1 - weight)


def power(base, exponent):
    return float(np.power(np.float64(base), np.float64(exponent)))


class PyTorchAdam(_Library):
    """``torch.optim.adam._single_tensor_adam``; as in ONNX, the decay follows the step."""

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        g = g + norm_coefficient * p
        m = lerp(m, g, 1 - alpha)
        v = v * beta + (1 - beta) * g * g
        first, second = (1 - power(alpha, T), 1 - power(beta, T)) if T > 0 else (1.0, 1.0)
        denominator = np.sqrt(v) / np.sqrt(second) + epsilon
        p = p + -(R / first) * (m / denominator)
        return p * (1 - more["norm_coefficient_post"]), m, v


class ApexAdam(PyTorchAdam):
    """``csrc/multi_tensor_adam.cu``, mode 0, which corrects both moments before it divides them."""

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        g = g + norm_coefficient * p
        m = alpha * m + (1 - alpha) * g
        v = beta * v + (1 - beta) * g * g
        first, second = (1 - power(alpha, T), 1 - power(beta, T)) if T > 0 else (1.0, 1.0)
        update = (m / first) / (np.sqrt(v / second) + epsilon)
        return (p - R * update) * (1 - more["norm_coefficient_post"]), m, v


class DeepSpeedAdam(_Library):
    """``csrc/adam/cpu_adam_impl.cpp``: AdamW, computed in float32 for tensors of all types."""

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        single = np.float32
        p, g, m, v = (array.astype(single) for array in (p, g, m, v))
        g = g + single(norm_coefficient) * p
        m = m * single(alpha) + g * single(1 - alpha)
        v = v * single(beta) + g * g * single(1 - beta)
        first, second = (1 - power(alpha, T), 1 - power(beta, T)) if T > 0 else (1.0, 1.0)
        denominator = np.sqrt(v) * single(1 / np.sqrt(second)) + single(epsilon)
        p = p + single(-R * more["norm_coefficient_post"]) * p
        return p + m / denominator * single(-R / first), m, v


class TinygradAdam(_Library):
    """Adam of ``tinygrad.nn.onnx``, which calls ``nn.optim.LAMB``.

    Powers are computed in float32, and the defaults of attributes differ from ONNX's.
    """

    defaults = MappingProxyType({"alpha": 0.9, "beta": 0.999, "epsilon": 0.0})

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        single = np.float32
        g = norm_coefficient * p + g
        m = alpha * m + (1 - alpha) * g
        v = beta * v + (1 - beta) * (g * g)
        first, second = (
            single(1) - single(power(decay, T - 1)) * single(decay) if T else single(1)
            for decay in (alpha, beta)
        )
        update = (m / first) / (np.sqrt(v / second) + epsilon)
        return (1 - more["norm_coefficient_post"]) * (p - R * update), m, v


class OptaxAdam(_Library):
    """``optax.scale_by_adam``, which has no decay; T is the count before the step."""

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        m = (1 - alpha) * g + alpha * m
        v = (1 - beta) * g**2 + beta * v
        m_hat = m / (1 - power(alpha, T + 1))
        v_hat = v / (1 - power(beta, T + 1))
        return p - R * (m_hat / (np.sqrt(v_hat) + epsilon)), m, v


class KerasAdam(_Library):
    """``keras.optimizers.Adam.update_step``; T is ``iterations + 1``."""

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        first, second = (np.float64(1 - power(decay, T)) for decay in (alpha, beta))
        rate = float(np.float64(R) * np.sqrt(second) / first)
        m = m + (g - m) * (1 - alpha)
        v = v + (np.square(g) - v) * (1 - beta)
        return p - (m * rate) / (np.sqrt(v) + epsilon), m, v


class TensorFlowAdam(_Library):
    """``ApplyAdam`` of TensorFlow, with ONNX's decays added; it conforms."""

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        g = g + norm_coefficient * p
        rate = R * np.sqrt(1 - power(beta, T)) / (1 - power(alpha, T)) if T > 0 else R
        m = alpha * m + (1 - alpha) * g
        v = beta * v + (1 - beta) * np.square(g)
        p = p - (rate * m) / (np.sqrt(v) + epsilon)
        return (1 - more["norm_coefficient_post"]) * p, m, v


class PyTorchAdamW(_Library):
    """``torch.optim.AdamW``, which applies the decay first, multiplied by the rate."""

    def step(self, R, T, p, g, m, v, *, alpha, beta, epsilon, norm_coefficient=0, **more):
        g = g + norm_coefficient * p
        p = p * (1 - R * more["norm_coefficient_post"])
        m = lerp(m, g, 1 - alpha)
        v = v * beta + (1 - beta) * g * g
        first, second = (1 - power(alpha, T), 1 - power(beta, T)) if T > 0 else (1.0, 1.0)
        return p - (R / first) * (m / (np.sqrt(v) / np.sqrt(second) + epsilon)), m, v


class PyTorchAdagrad(_Library):
    """``torch.optim.adagrad._single_tensor_adagrad`` with the step T + 1, which conforms."""

    operator = "Adagrad"

    def step(self, R, T, p, g, h, *, decay_factor, epsilon, norm_coefficient, **_):
        g = g + norm_coefficient * p
        rate = float(R / np.float64(1 + (T + 1 - 1) * decay_factor))
        h = h + g * g
        return p + -rate * (g / (np.sqrt(h) + epsilon)), h


class OptaxAdagrad(_Library):
    """``optax.scale_by_rss``, whose step is zero where the sum of squares is zero."""

    operator = "Adagrad"

    def step(self, R, T, p, g, h, *, decay_factor, epsilon, norm_coefficient, **_):
        h = g * g + h
        inverse = np.where(h > 0, 1 / np.sqrt(h + epsilon), 0.0).astype(h.dtype)
        return p - R * (inverse * g), h


class KerasAdagrad(_Library):
    """``keras.optimizers.Adagrad.update_step``."""

    operator = "Adagrad"

    def step(self, R, T, p, g, h, *, decay_factor, epsilon, norm_coefficient, **_):
        h = h + np.square(g)
        return p - R * g / np.sqrt(h + epsilon), h


class TensorFlowAdagrad(_Library):
    """``ApplyAdagrad`` of TensorFlow, which has no epsilon."""

    operator = "Adagrad"

    def step(self, R, T, p, g, h, *, decay_factor, epsilon, norm_coefficient, **_):
        h = h + np.square(g)
        return p - g * R * (1 / np.sqrt(h)), h


class ApexAdagrad(_Library):
    """``csrc/multi_tensor_adagrad.cu``, mode 0, which does not decay the rate."""

    operator = "Adagrad"

    def step(self, R, T, p, g, h, *, decay_factor, epsilon, norm_coefficient, **_):
        g = g + norm_coefficient * p
        h = h + g * g
        return p - R * (g / (np.sqrt(h) + epsilon)), h


class PyTorchSGD(_Library):
    """``torch.optim.sgd._single_tensor_sgd`` with the dampening 1 - beta."""

    operator = "Momentum"

    def step(self, R, T, p, g, v, *, alpha, beta, mode, norm_coefficient, **_):
        g = g + norm_coefficient * p
        v = g if T <= 0 else alpha * v + (1 - (1 - beta)) * g
        return p - R * (g + alpha * v if mode == b"nesterov" else v), v


class KerasSGD(_Library):
    """``keras.optimizers.SGD.update_step``, which has neither dampening nor decay."""

    operator = "Momentum"

    def step(self, R, T, p, g, v, *, alpha, beta, mode, norm_coefficient, **_):
        v = v * alpha - g * R
        return p + (v * alpha - g * R if mode == b"nesterov" else v), v


class OptaxSGD(_Library):
    """``optax.trace``, which never dampens the gradient."""

    operator = "Momentum"

    def step(self, R, T, p, g, v, *, alpha, beta, mode, norm_coefficient, **_):
        g = g + norm_coefficient * p
        v = g + alpha * v
        return p - R * (g + alpha * v if mode == b"nesterov" else v), v


class TensorFlowSGD(_Library):
    """``ApplyMomentum`` of TensorFlow with ``use_nesterov``, without dampening and decay."""

    operator = "Momentum"

    def step(self, R, T, p, g, v, *, alpha, beta, mode, norm_coefficient, **_):
        v = v * alpha + g
        return p - (g * R + v * alpha * R if mode == b"nesterov" else v * R), v
