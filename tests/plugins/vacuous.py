"""Backends that compute nothing: whatever they pass, they have not earned."""

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from onnxopt_cli.interpret.single_node import sole_call


def _like_output(value, inputs):
    """Return the input that an output most resembles, broadcast to its shape if it is known."""
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
    """Returns its inputs."""

    def run(self, model, inputs):
        return [_like_output(value, inputs) for value in model.graph.output]


class Zeros:
    """Returns zeros of the right shape."""

    number = 0.0

    def run(self, model, inputs):
        outputs = Echo().run(model, inputs)
        return [np.full(output.shape, self.number).astype(output.dtype) for output in outputs]


class NaNs(Zeros):
    """Returns NaN of the right shape."""

    number = np.nan


class Ones(Zeros):
    """Returns ones of the right shape."""

    number = 1.0


class Nothing:
    """Returns no output at all."""

    def run(self, model, inputs):
        return []


class RaisesAtEverything:
    """Refuses everything, as if it knew what is wrong."""

    def run(self, model, inputs):
        message = "not a valid model"
        raise ValueError(message)


class SaysSkip:
    """Says to the runner that the case does not apply, as only our own lowering may."""

    def run(self, model, inputs):
        from onnxopt_cli.errors import NotApplicable

        message = "our own lowering refuses the node before the backend is asked"
        raise NotApplicable(message)


class WrongAdam:
    """PyTorch's Adam: wrong in its numbers, right in what it refuses."""

    def run(self, model, inputs):
        node = model.graph.node[0]
        # Raises for whatever breaks the operator's signature.
        sole_call(model, inputs)
        defaults = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6}
        given = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
        known = defaults | {"norm_coefficient": 0.0, "norm_coefficient_post": 0.0} | given
        rate, count, *tensors = inputs.values()
        if len(tensors) % 4:
            message = "every parameter needs a gradient and two states"
            raise ValueError(message)
        size = len(tensors) // 4
        # With an attribute of 1 it divides by 0.
        with np.errstate(all="ignore"):
            groups = [self._step(known, rate, count, *tensors[i::size]) for i in range(size)]
        return [output for outputs in zip(*groups, strict=True) for output in outputs]

    @staticmethod
    def _step(known, rate, count, x, g, v, h):
        if not x.shape == g.shape == v.shape == h.shape:
            message = "a state must have the shape of its parameter"
            raise ValueError(message)
        v = known["alpha"] * v + (1 - known["alpha"]) * g
        h = known["beta"] * h + (1 - known["beta"]) * g * g
        corrected = np.sqrt(h / (1 - known["beta"] ** max(count, 1))) + known["epsilon"]
        step = rate * v / (1 - known["alpha"] ** max(count, 1)) / corrected
        return [it.astype(x.dtype) for it in (x - step.reshape(x.shape), v, h)]


class RefusesDoubles(WrongAdam):
    """Runs float32 alone, so that it refuses doubles whatever else is wrong."""

    def run(self, model, inputs):
        if any(it.dtype == np.float64 for it in inputs.values()):
            message = "only float32 is implemented"
            raise TypeError(message)
        return super().run(model, inputs)


class Relu:
    """Knows Relu of float32 and nothing else."""

    def run(self, model, inputs):
        (value,) = inputs.values()
        if model.graph.node[0].op_type != "Relu" or value.dtype != np.float32:
            message = "no kernel"
            raise RuntimeError(message)
        return [np.maximum(value, 0)]
