"""Backends that compute nothing, so their passes are vacuous, and backends for comparison."""

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from onnxopt_cli.operators.call import sole_call


def _like_output(value, inputs):
    """Return the input that is most similar to an output, broadcast to the output's shape."""
    tensor = value.type.tensor_type
    dtype = tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = tuple(dim.dim_value for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    stem = value.name.removesuffix("_new")
    arrays = [*([inputs[stem]] if stem in inputs else []), *inputs.values()]
    arrays = [array for array in arrays if isinstance(array, np.ndarray)]
    if shape is not None:
        fitting = [array for array in arrays if array.dtype == dtype and array.shape == shape]
        if fitting:
            return fitting[0]
    for array in arrays:
        if array.dtype == dtype:
            try:
                return np.array(np.broadcast_to(array, array.shape if shape is None else shape))
            except ValueError:
                continue
    return np.zeros(shape or (), dtype)


class Echo:
    """A backend that returns its inputs."""

    def run(self, model, inputs):
        return [_like_output(value, inputs) for value in model.graph.output]


class Zeros:
    """A backend that returns zeros in the right shape."""

    number = 0.0

    def run(self, model, inputs):
        outputs = Echo().run(model, inputs)
        return [np.full(output.shape, self.number).astype(output.dtype) for output in outputs]


class NaNs(Zeros):
    """A backend that returns NaN in the right shape."""

    number = np.nan


class Ones(Zeros):
    """A backend that returns ones in the right shape."""

    number = 1.0


class Nothing:
    """A backend that returns no output."""

    def run(self, model, inputs):
        return []


class RaisesAtEverything:
    """A backend that rejects every model with a plausible message."""

    def run(self, model, inputs):
        message = "not a valid model"
        raise ValueError(message)


class SaysSkip:
    """A backend that raises NotApplicable, which only the lowering should raise."""

    def run(self, model, inputs):
        from onnxopt_cli.errors import NotApplicable

        message = "onnxopt's lowering rejects the node, so the backend did not run it"
        raise NotApplicable(message)


class WrongAdam:
    """A backend that computes Adam as PyTorch does, which is wrong.

    It rejects exactly the invalid models.
    """

    def run(self, model, inputs):
        node = model.graph.node[0]
        # Raise an exception if the node contradicts the signature of its operator.
        sole_call(model, inputs)
        defaults = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6}
        attributes = defaults | {"norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
        attributes |= {
            attribute.name: onnx.helper.get_attribute_value(attribute)
            for attribute in node.attribute
        }
        rate, count, *tensors = inputs.values()
        if len(tensors) % 4:
            message = "every parameter needs a gradient and two states"
            raise ValueError(message)
        size = len(tensors) // 4
        # If alpha or beta is 1, the following computation divides by 0.
        with np.errstate(all="ignore"):
            groups = [self._step(attributes, rate, count, *tensors[i::size]) for i in range(size)]
        return [output for outputs in zip(*groups, strict=True) for output in outputs]

    @staticmethod
    def _step(attributes, rate, count, x, g, v, h):
        if not x.shape == g.shape == v.shape == h.shape:
            message = "a state must have the shape of its parameter"
            raise ValueError(message)
        v = attributes["alpha"] * v + (1 - attributes["alpha"]) * g
        h = attributes["beta"] * h + (1 - attributes["beta"]) * g * g
        corrected = np.sqrt(h / (1 - attributes["beta"] ** max(count, 1))) + attributes["epsilon"]
        step = rate * v / (1 - attributes["alpha"] ** max(count, 1)) / corrected
        return [output.astype(x.dtype) for output in (x - step.reshape(x.shape), v, h)]


class RefusesDoubles(WrongAdam):
    """A backend like WrongAdam that also rejects all models with doubles, even valid ones."""

    def run(self, model, inputs):
        if any(value.dtype == np.float64 for value in inputs.values()):
            message = "only float32 is implemented"
            raise TypeError(message)
        return super().run(model, inputs)


class Relu:
    """A backend that supports only Relu of float32."""

    def run(self, model, inputs):
        (value,) = inputs.values()
        if model.graph.node[0].op_type != "Relu" or value.dtype != np.float32:
            message = "no kernel"
            raise RuntimeError(message)
        return [np.maximum(value, 0)]
