"""Compute a node in several runs of a model by one call of its operator, where possible.

For a small tensor, calling an operator of the reference takes longer than the arithmetic. The
perturbed runs of a model therefore visit its nodes together. If a tensor differs between the runs,
its values are stacked along a new first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import reference_modules

# Operators without attributes that refer to axes. Each output element is computed from the elements
# at the same place of the operands, after broadcasting.
_ELEMENTWISE = frozenset(
    {"Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Equal", "Erf", "Exp", "Floor"}
    | {"Greater", "GreaterOrEqual", "HardSigmoid", "Identity", "LeakyRelu", "Less", "LessOrEqual"}
    | {"Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round"}
    | {"Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Tanh", "Where", "Xor"}
)
# Operators that return the elements of their first operand in the same order.
_RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
# Operators that select and reorder elements of their first operand.
_MOVING = frozenset({"Expand", "Gather", "GatherElements", "Slice", "Split", "Tile", "Transpose"})
# Operators that compute each output channel from the same channel of the first operand. Any other
# operands have one axis, with one element per channel.
_BY_CHANNEL = frozenset(
    {"AveragePool", "BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "MaxPool"}
)
# One call computes a convolution in all runs if its windows have at most this number of elements,
# over all runs.
_MAX_WINDOW_ELEMENTS = 1 << 20
# A tensor with more than _MAX_MOVED_ELEMENTS elements is moved in each run separately, because
# looking up single elements is slow.
_MAX_MOVED_ELEMENTS = 1 << 12
_MATRIX_RANK = 2
# Matrix products with at least this number of multiplications, over all runs, are computed from the
# differences between the runs.
_LARGE_PRODUCT = 1 << 22
# The limits of the largest magnitude of a matrix whose products single precision represents.
_SINGLE_RANGE = (2.0**-100, 2.0**100)
# Runs that visit the nodes together may use at most this number of bytes in total, for intermediate
# results and perturbed operands.
_MAX_STACKED_BYTES = 32 << 20
# Names of the default domain, to which all listed operators belong.
_DEFAULT_DOMAIN = ("", "ai.onnx")

Compute = Callable[..., Sequence[Any]]


class Stacked:
    """The values of a tensor in several runs.

    Attributes:
        values: an array with the runs along its first axis; a list with one value per run if the
            types or shapes differ, or if the values are not tensors.
    """

    __slots__ = ("values",)

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, *_: Any, **__: Any) -> Array:
        """Prevent NumPy from treating the values as an array of objects."""
        raise TypeError("the values of several runs are not one array")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor in each run."""
        return tuple(self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tensor in each run."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor in all runs."""
        parts = [self.values] if isinstance(self.values, np.ndarray) else self.values
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    @property
    def array(self) -> Array:
        """The values as one array.

        Raises:
            TypeError: if the values are not tensors of one type and shape.
        """
        if not isinstance(self.values, np.ndarray):
            raise TypeError("the types or shapes of a tensor differ between runs")
        return self.values

    def of_run(self, run: int) -> Any:
        """Return the value in one run."""
        return self.values[run, ...] if isinstance(self.values, np.ndarray) else self.values[run]


def value_of_run(value: Any, run: int) -> Any:
    """Return the value in one run; a value that is not stacked is the same in all runs."""
    return value.of_run(run) if isinstance(value, Stacked) else value


def values_of_runs(value: Any, count: int) -> list[Any]:
    """Return a list of the values in all runs, given the number of runs."""
    return [value_of_run(value, run) for run in range(count)]


def array_of(value: Any) -> Any:
    """Return the values in all runs as one array; a value that is not stacked is returned as is.

    Raises:
        TypeError: if the types or shapes of the values differ between runs.
    """
    return value.array if isinstance(value, Stacked) else value


def compute_in_each_run(compute: Compute, operands: Sequence[Any], count: int) -> list[Any]:
    """Compute a node in each run separately, and return its outputs in all runs."""
    return stacked_outputs(
        [compute(*[value_of_run(operand, run) for operand in operands]) for run in range(count)]
    )


def compute_stacked(
    node: Any, compute: Compute, operands: Sequence[Any], count: int
) -> Sequence[Any]:
    """Compute a node in all runs, by a single call if its operator allows it.

    Args:
        node: the node, as the evaluator prepares it.
        compute: computes the node in one run.
        operands: its operands; each operand that differs between runs is :class:`Stacked`.
        count: the number of runs.

    Returns:
        The outputs; each output that may differ between runs is :class:`Stacked`.
    """
    stacks = [operand for operand in operands if isinstance(operand, Stacked)]
    if not stacks:
        return compute(*operands)
    outputs = None
    if (
        count > 1
        and node.onnx_node.domain in _DEFAULT_DOMAIN
        and all(isinstance(stack.values, np.ndarray) for stack in stacks)
    ):
        outputs = _computed_at_once(node, compute, operands, stacks, count)
    return compute_in_each_run(compute, operands, count) if outputs is None else outputs


def _computed_at_once(
    node: Any, compute: Compute, operands: Sequence[Any], stacks: Sequence[Stacked], count: int
) -> list[Any] | None:
    """Return a node's outputs in all runs, computed by one call; None if one call cannot do it.

    Args:
        node: the node.
        compute: computes the node in one run.
        operands: its operands.
        stacks: the operands that differ between runs, each with values of one type and shape.
        count: the number of runs.
    """
    op_type = node.op_type
    if op_type == "MatMul":
        return _multiplied(compute, operands)
    if op_type in _ELEMENTWISE:
        return _shared([Stacked(output) for output in compute(*_aligned(operands))])
    if op_type in _BY_CHANNEL and len(node.output) == 1 and isinstance(operands[0], Stacked):
        if len(operands[0].shape) < _MATRIX_RANK:
            return None
        images, *statistics = compute(*[_in_channels(operand, count) for operand in operands])
        # In training mode, BatchNormalization returns statistics even if the node has one output.
        return None if statistics else [Stacked(_from_channels(images, count))]
    if op_type == "Conv" and not node.has_linked_attribute:
        windows = prod(operands[0].shape) * prod(operands[1].shape[2:])
        if windows * count <= _MAX_WINDOW_ELEMENTS:
            return [_convolved(node, operands, count)]
    if len(stacks) == 1 and stacks[0] is operands[0]:
        if op_type in _RESHAPING:
            (first,) = compute(stacks[0].of_run(0), *operands[1:])
            return [Stacked(stacks[0].values.reshape(count, *first.shape))]
        if op_type in _MOVING and stacks[0].values.size <= count * _MAX_MOVED_ELEMENTS:
            return _moved(compute, stacks[0], operands[1:])
    return None


def outputs_of_runs(
    run: Callable[[Sequence[int]], Sequence[Any]], count: int, run_bytes: int
) -> list[list[Any]]:
    """Return the outputs of a model in each of a number of runs.

    The runs are divided into groups, as large as a memory limit allows. The runs of a group visit
    the nodes together. If a group fails, for example because a shape differs between its runs, then
    its runs and all later runs visit the nodes one after the other.

    Args:
        run: takes the indices of runs, and returns the outputs of the model. An output that differs
            between several runs is :class:`Stacked`.
        count: the number of runs.
        run_bytes: the bytes of the intermediate results and perturbed operands of one run.
    """
    together = max(1, min(count, _MAX_STACKED_BYTES // max(1, run_bytes)))
    results: list[list[Any]] = []
    while len(results) < count:
        runs = range(len(results), min(len(results) + together, count))
        if len(runs) > 1:
            try:
                outputs = run(runs)
            except Exception:  # noqa: BLE001 - an error of a single run occurs again below
                together = 1
                continue
            results += [
                [value_of_run(output, place) for output in outputs] for place in range(len(runs))
            ]
        else:
            results.append([*run(runs)])
    return results


def _aligned(operands: Sequence[Any]) -> list[Any]:
    """Return the operands as arrays whose axes broadcast.

    If an operand differs between runs, the runs lie along an additional first axis.
    """
    rank = max(len(operand.shape) for operand in operands if operand is not None)
    aligned = []
    for operand in operands:
        if not isinstance(operand, Stacked):
            aligned.append(operand)
            continue
        array = operand.values
        missing = rank + 1 - array.ndim
        aligned.append(
            array.reshape(len(array), *[1] * missing, *array.shape[1:]) if missing else array
        )
    return aligned


def _in_channels(value: Any, count: int) -> Any:
    """Return a tensor that contains the channels of all runs, one run after the other.

    Args:
        value: the values of a tensor. Its channels lie along its second axis, or along its only
            axis.
        count: the number of runs.
    """
    if value is None:
        return None
    array = (
        value.values
        if isinstance(value, Stacked)
        else np.broadcast_to(value, (count, *value.shape))
    )
    if array.ndim == _MATRIX_RANK:
        return array.reshape(-1)
    images = np.moveaxis(array, 0, 1)
    return images.reshape(len(images), count * images.shape[2], *images.shape[3:])


def _from_channels(images: Array, count: int) -> Array:
    """Return the values in all runs; the inverse of :func:`_in_channels`."""
    channels = images.shape[1] // count
    return np.moveaxis(images.reshape(len(images), count, channels, *images.shape[2:]), 1, 0)


def _multiplied(compute: Compute, operands: Sequence[Any]) -> list[Any] | None:
    """Return the output of a ``MatMul`` in all runs; None if one of the operands is a vector."""
    if any(len(operand.shape) < _MATRIX_RANK for operand in operands):
        return None
    factors, matrix = operands
    product = None
    if not isinstance(matrix, Stacked) and matrix.ndim == _MATRIX_RANK:
        product = _products_with(compute, factors.array, matrix)
    if product is None:
        (product,) = compute(*_aligned(operands))
    return _shared([Stacked(product)])


def _products_with(compute: Compute, factors: Array, matrix: Array) -> Array | None:
    """Return the products of the factors of all runs with one matrix.

    The factors of two runs differ by roundings. Single precision therefore suffices for the
    products of the differences from the first run. It takes half the time of double precision.

    Args:
        compute: computes a product.
        factors: the first factors, with the runs along the first axis.
        matrix: the second factor.

    Returns:
        The products; None if the factors are not doubles, if the products are small, or if numbers
        may leave the range of single precision.
    """
    length = factors.shape[-1]
    is_small = factors.size * matrix.shape[-1] < _LARGE_PRODUCT
    if is_small or not factors.dtype == matrix.dtype == np.float64:
        return None
    single = matrix.astype(np.float32)
    largest = max(float(single.max()), -float(single.min()))
    differences = (factors[1:] - factors[:1]).reshape(-1, length)
    # The numbers of each row are scaled to the range from -1 to 1.
    sizes = np.maximum(differences.max(axis=1), -differences.min(axis=1))
    if not _SINGLE_RANGE[0] < largest < _SINGLE_RANGE[1] / length or not isfinite(sizes.sum()):
        return None
    sizes[sizes == 0] = 1.0
    differences /= sizes[:, np.newaxis]
    moved = differences.astype(np.float32) @ single
    (first,) = compute(factors[0], matrix)
    products = np.empty((len(factors), *first.shape))
    products[0] = first
    np.multiply(moved, sizes[:, np.newaxis], out=products[1:].reshape(moved.shape))
    products[1:] += first
    return products


def _convolved(node: Any, operands: Sequence[Any], count: int) -> Stacked:
    """Return the output of a convolution in all runs.

    One call computes all runs, each in its own groups of channels.
    """
    x, w, b = [*operands, None][:3]
    settings = {
        attribute.name: helper.get_attribute_value(attribute)
        for attribute in node.onnx_node.attribute
    }
    kernels = w.values if isinstance(w, Stacked) else np.broadcast_to(w, (count, *w.shape))
    images = reference_modules().op_conv._conv_implementation(  # noqa: SLF001
        _in_channels(x, count),
        kernels.reshape(-1, *w.shape[1:]),
        _in_channels(b, count),
        settings.get("auto_pad", b"NOTSET").decode(),
        settings.get("dilations"),
        settings.get("group", 1) * count,
        settings.get("kernel_shape"),
        settings.get("pads"),
        settings.get("strides"),
    )
    return Stacked(_from_channels(images, count))


def _moved(compute: Compute, stack: Stacked, operands: Sequence[Any]) -> list[Any]:
    """Return the outputs of a node that moves elements of its first operand."""
    # The node moves the indices of the elements instead of the elements. The reference's operators
    # move numbers of any type, and doubles represent the indices exactly.
    numbers = np.arange(stack.values[0].size, dtype=np.float64).reshape(stack.shape)
    flat = stack.values.reshape(len(stack.values), -1)
    return [Stacked(flat[:, places.astype(np.intp)]) for places in compute(numbers, *operands)]


def stacked_outputs(outputs_of_runs: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the outputs of a node in all runs, given its outputs in each run."""
    return _shared([_joined(values) for values in zip(*outputs_of_runs, strict=True)])


def _joined(values: Sequence[Any]) -> Stacked:
    first = values[0]
    if not isinstance(first, np.ndarray) or any(
        not isinstance(value, np.ndarray)
        or value.shape != first.shape
        or value.dtype != first.dtype
        for value in values
    ):
        return Stacked([*values])
    joined = np.empty((len(values), *first.shape), first.dtype)
    for run, value in enumerate(values):
        joined[run] = value
    return Stacked(joined)


def _shared(outputs: Sequence[Stacked]) -> list[Any]:
    """Return the outputs; an integer or boolean output that is equal in all runs is not stacked."""
    return [
        output.of_run(0)
        if isinstance(output.values, np.ndarray)
        and output.values.dtype.kind in "biu"
        and (output.values == output.values[:1]).all()
        else output
        for output in outputs
    ]
