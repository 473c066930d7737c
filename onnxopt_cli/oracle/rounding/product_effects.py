"""The output elements that an element of a matrix product or convolution affects.

Moving an element of an operand by d moves each output element by d f, where f is the factor by
which the node multiplies the element. The output elements that change are therefore those with a
factor that is not zero, unless a rounding absorbs the product d f.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.rounding.scales import along, paddings

# A product is too large to be absorbed by a rounding in double if it exceeds this share of an upper
# bound on the partial sums. The share is 2^12 machine epsilons of double.
_VISIBLE_SHARE = 2.0**-40
_MATRIX_RANK = 2
# The index of the operand that is added to the products.
_ADDEND = 2

# Takes the index of an operand and the index of one of its elements. Returns the factors by which
# the node multiplies the element, and the output elements to which these products are added. The
# factors broadcast with the output elements.
_FactorsOf = Callable[[int, int], tuple[Any, Array]]


class ProductEffects:
    """The effects of single elements of the operands of a node on its output.

    Args:
        node: the node, as the evaluator prepares it.
        inputs: its inputs, floats as doubles.
        outputs: its outputs.

    Attributes:
        terms: the number of terms of a sum; infinite if the factors are unknown. On average,
            an output element depends on at most this number of elements of any operand but the
            first.
    """

    def __init__(self, node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._factors_of: _FactorsOf | None = None
        self._least_product = self.terms = np.inf
        create = _OPERATORS.get(node.op_type)
        arrays = [*inputs, *outputs]
        if create is None or any(getattr(v, "dtype", None) != np.float64 for v in arrays):
            return
        attributes = {item.name: item for item in node.onnx_node.attribute}
        created = create(attributes, inputs, outputs[0])
        if created is not None:
            self._factors_of, self.terms = created
            # The norm of an operand bounds its elements, and takes less time than the largest one.
            first, second, *addends = (float(np.linalg.norm(operand)) for operand in inputs)
            alpha, beta = _alpha_and_beta(attributes)
            largest_sum = abs(alpha) * self.terms * first * second + abs(beta) * sum(addends)
            self._least_product = _VISIBLE_SHARE * largest_sum

    def factors(self, place: int, element: int, distance: float) -> tuple[Array, Array] | None:
        """Return the factors of an element of an operand, and the output elements that it affects.

        Args:
            place: the index of the operand.
            element: the index of the element.
            distance: the distance by which the element is moved.

        Returns:
            The factors that are not zero, and the output elements to which the products of these
            factors are added. None if they are unknown, or if a rounding may absorb a product.
        """
        if self._factors_of is None:
            return None
        factors, results = self._factors_of(place, element)
        factors = np.broadcast_to(factors, results.shape)
        affected = factors != 0
        factors, results = factors[affected], results[affected]
        if not (np.abs(distance * factors) > self._least_product).all():
            return None
        return factors, results


def _alpha_and_beta(attributes: Mapping[str, Any]) -> list[float]:
    """Return the factor of the products and the factor of the addend."""
    return [attributes[name].f if name in attributes else 1.0 for name in ("alpha", "beta")]


def _of_matrices(
    attributes: Mapping[str, Any], inputs: Sequence[Array], output: Array
) -> tuple[_FactorsOf, int] | None:
    """Return the factors of elements of a ``MatMul`` or ``Gemm``, and the number of terms of a sum.

    The result is None if an operand is not a matrix.
    """
    if any(operand.ndim != _MATRIX_RANK for operand in inputs[:_ADDEND]):
        return None
    alpha, beta = _alpha_and_beta(attributes)
    transposed = [name in attributes and attributes[name].i for name in ("transA", "transB")]
    a, b = (
        x.T if is_transposed else x for x, is_transposed in zip(inputs, transposed, strict=False)
    )
    added = inputs[_ADDEND] if len(inputs) > _ADDEND else np.empty(())
    addend_shape = (1,) * (_MATRIX_RANK - added.ndim) + added.shape

    def factors_of(place: int, element: int) -> tuple[Any, Array]:
        if place == _ADDEND:
            place_of = np.unravel_index(element, addend_shape)
            part = tuple(
                slice(None) if size == 1 else slice(index, index + 1)
                for index, size in zip(place_of, addend_shape, strict=True)
            )
            return beta, output[part]
        row, column = np.unravel_index(element, inputs[place].shape)
        if transposed[place]:
            row, column = column, row
        if place == 0:
            return alpha * b[column], output[row]
        return alpha * a[:, row], output[:, column]

    return factors_of, a.shape[1]


def _of_convolution(
    attributes: Mapping[str, Any], inputs: Sequence[Array], output: Array
) -> tuple[_FactorsOf, int]:
    """Return the factors of elements of a ``Conv``, and the number of terms of a sum."""
    x, w = inputs[:_ADDEND]
    strides, dilations = (along(attributes, name, x.ndim - 2) for name in ("strides", "dilations"))
    pads = paddings(x, w, attributes)[0].tolist()
    group = attributes["group"].i if "group" in attributes else 1
    outputs_of_group, channels_of_group = len(w) // group, w.shape[1]
    # For each spatial axis: the lengths of the input, output and kernel, the stride, the dilation
    # and the padding.
    shapes = (array.shape[2:] for array in (x, output, w))
    axes = [*zip(*shapes, strides, dilations, pads, strict=True)]

    def factors_of(place: int, element: int) -> tuple[Any, Array]:
        if place == _ADDEND:
            return 1.0, output[:, element]
        first, second, *index = map(int, np.unravel_index(element, inputs[place].shape))
        if place == 0:
            group_start = second // channels_of_group * outputs_of_group
            members = np.arange(group_start, group_start + outputs_of_group)
            kernel = [_places_in_kernel(at, *axis) for at, axis in zip(index, axes, strict=True)]
            columns, rows = np.ix_(members, *(k for k, _ in kernel)), (o for _, o in kernel)
            factors = w[:, second % channels_of_group][columns]
            return factors, output[first][np.ix_(members, *rows)]
        channel = first // outputs_of_group * channels_of_group + second
        windows = [_window(at, *axis) for at, axis in zip(index, axes, strict=True)]
        read: tuple[Any, ...] = (slice(None), channel, *(read for read, _ in windows))
        written: tuple[Any, ...] = (slice(None), first, *(written for _, written in windows))
        return x[read], output[written]

    return factors_of, w[0].size


def _places_in_kernel(
    at: int, _length: int, size: int, kernel: int, stride: int, dilation: int, padding: int
) -> tuple[Array, Array]:
    """Return the kernel elements that an input element is multiplied by, along one spatial axis.

    Also return the output elements to which these products are added.

    Args:
        at: the index of the input element along the axis.
        size: the length of the output.
        kernel: the length of the kernel.
        stride: the stride.
        dilation: the dilation.
        padding: the padding before the input.
    """
    places = np.arange(kernel)
    outputs, remainders = np.divmod(at + padding - places * dilation, stride)
    valid = (remainders == 0) & (outputs >= 0) & (outputs < size)
    return places[valid], outputs[valid]


def _window(
    at: int, length: int, size: int, _kernel: int, stride: int, dilation: int, padding: int
) -> tuple[slice, slice]:
    """Return the input elements that a kernel element is multiplied by, along one spatial axis.

    Also return the output elements to which these products are added.

    Args:
        at: the index of the kernel element along the axis.
        length: the length of the input.
        size: the length of the output.
        stride: the stride.
        dilation: the dilation.
        padding: the padding before the input.
    """
    shift = at * dilation - padding
    first, end = max(0, -(shift // stride)), min(size, (length - 1 - shift) // stride + 1)
    end = max(first, end)
    return slice(first * stride + shift, max(0, end * stride + shift), stride), slice(first, end)


_OPERATORS = {"Conv": _of_convolution, "Gemm": _of_matrices, "MatMul": _of_matrices}
