"""Backends with wrong outputs, or with right outputs in an unusual container."""

from __future__ import annotations

import os

import numpy as np
from onnx import helper

from onnxopt_cli.backends.resolve import resolve_backend

NUMPY = resolve_backend("numpy")


class Faulty:
    """A backend that computes the right outputs and returns them with a change."""

    def __init__(self, change):
        self.change = change

    def run(self, model, inputs):
        return self.change(NUMPY.prepare(model).run(inputs))


def first(change):
    """Return a backend that changes only the first output."""
    return Faulty(lambda outputs: [change(outputs[0]), *outputs[1:]])


def each(change):
    """Return a backend that changes every output."""
    return Faulty(lambda outputs: [change(output) for output in outputs])


def with_first_element(value):
    def change(output):
        output = output.copy()
        output.flat[0] = value
        return output

    return change


def strided(output):
    wide = np.zeros((*output.shape, 3), output.dtype)
    wide[..., 1] = output
    return wide[..., 1]


def read_only(output):
    output = output.copy()
    output.flags.writeable = False
    return output


wrong_value = first(lambda output: output + np.float32(0.25))
wrong_shape = first(lambda output: output[np.newaxis])
broadcast = first(lambda output: np.repeat(output[np.newaxis], 3, axis=0))
too_short = first(lambda output: output[:1])
wrong_dtype = first(lambda output: output.astype(np.float64))
missing = Faulty(lambda outputs: outputs[:1])
nothing = Faulty(lambda _outputs: [])
none = first(lambda _output: None)
extra = Faulty(lambda outputs: [*outputs, outputs[0]])
nan = first(with_first_element(np.nan))
infinity = first(with_first_element(np.inf))
all_nan = each(lambda output: np.full_like(output, np.nan))

lists = each(np.ndarray.tolist)
as_tuple = Faulty(tuple)
views = each(lambda output: np.concatenate([output, output])[: len(output)])
reversed_views = each(lambda output: output[::-1].copy()[::-1])
strided_views = each(strided)
read_only_arrays = each(read_only)


class InTurn:
    """A backend that imitates the backend whose name has the index R in WAYS."""

    def run(self, model, inputs):
        name = os.environ["WAYS"].split()[int(inputs["R"])]
        return globals()[name].run(model, inputs)


def unpacked(x, heads):
    """Return rows in which the heads are packed, with a separate axis for the heads."""
    batch, length, size = x.shape
    return x.reshape(batch, length, heads, size // heads).swapaxes(1, 2)


class SharedHeads:
    """A backend that computes attention correctly for the inputs query, keys and values."""

    def key_heads(self, heads, count):
        """Return the index of the key head for each query head."""
        return heads // (len(heads) // count)

    def run(self, model, inputs):
        (node,) = model.graph.node
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        query_heads, key_heads = (attributes.pop(f"{x}_num_heads", None) for x in ("q", "kv"))
        is_linear = attributes == {"update_rule": b"linear"}
        if len(node.input) > 3 or (attributes and not is_linear):
            raise NotImplementedError
        query, key, value = (inputs[name].astype(np.float64) for name in node.input)
        if is_packed := query.ndim == 3:
            query = unpacked(query, query_heads)
            key, value = unpacked(key, key_heads), unpacked(value, key_heads)
        assigned = self.key_heads(np.arange(query.shape[1]), key.shape[1])
        scores = query @ key[:, assigned].swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        if is_linear:
            weights = np.tril(scores)
        else:
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            weights = powers / powers.sum(-1, keepdims=True)
        y = weights @ value[:, assigned]
        if is_packed:
            y = y.swapaxes(1, 2).reshape(len(y), y.shape[2], -1)
        outputs = [y, key.swapaxes(-1, -2) @ value] if is_linear else [y]
        return [output.astype(inputs[node.input[0]].dtype) for output in outputs]


class HeadsModulo(SharedHeads):
    """A backend that uses key head i mod n for query head i, where n is the number of key heads."""

    def key_heads(self, heads, count):
        return heads % count


class HeadsByKeyHeads(SharedHeads):
    """A backend that uses key head i // n for query head i, where n is the number of key heads."""

    def key_heads(self, heads, count):
        return np.minimum(heads // count, count - 1)


class HeadsByTwo(SharedHeads):
    """A backend that uses key head i // 2 for query head i, for all numbers of heads."""

    def key_heads(self, heads, count):
        return heads // 2 % count if len(heads) > count else heads


class SumsInSingle:
    """A backend that adds the terms of ReduceSum and MatMul one by one, in float32."""

    def sum_type(self, operand):
        return np.float32

    def run(self, model, inputs):
        (node,) = model.graph.node
        x, y = (inputs[name] for name in node.input)
        sum_type = self.sum_type(x)
        terms = x.astype(sum_type)
        if node.op_type == "MatMul":
            terms = terms[:, :, np.newaxis] * y.astype(sum_type)
        total = terms[:, 0]
        for place in range(1, terms.shape[1]):
            total = total + terms[:, place]
        return [total.astype(x.dtype)]


class SumsInOwnType(SumsInSingle):
    """A backend that adds the terms one by one, in the type of the operands."""

    def sum_type(self, operand):
        return operand.dtype
