"""Backends whose outputs are wrong, or right in an unusual container; each says how."""

from __future__ import annotations

import os

import numpy as np

from onnxopt_cli.backends.resolve import resolve_backend

NUMPY = resolve_backend("numpy")


class Faulty:
    """Computes the right outputs, and returns them modified."""

    def __init__(self, change):
        self.change = change

    def run(self, model, inputs):
        return self.change(NUMPY.prepare(model).run(inputs))


def first(change):
    """A backend that modifies only the first output."""
    return Faulty(lambda outputs: [change(outputs[0]), *outputs[1:]])


def each(change):
    """A backend that modifies every output."""
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
    """Acts as the backend at the position in WAYS that the rate states."""

    def run(self, model, inputs):
        name = os.environ["WAYS"].split()[int(inputs["R"])]
        return globals()[name].run(model, inputs)
