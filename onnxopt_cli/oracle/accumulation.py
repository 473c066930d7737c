"""Systematic errors of sums of products: accumulators that truncate, or that have too few bits.

If the accumulator of a matrix product truncates or has too few bits, each element may still be
within its tolerance. The errors of many elements together reveal the defect. Let u be the unit
roundoff, n the number of products in a sum, and r the error of a sum in units of u sum|ab|. If the
digits of the operands are random, each rounding of a correct algorithm has an error of mean 0
between -u|s| and u|s|, where s is a partial sum. Then r is sub-Gaussian with a variance of at most
n + 2, for any order of the sum, with or without FMA. For T elements, each of the following bounds
holds with a probability of at least 1 - p:

    |mean r| <= sqrt(2 ln(2/p) (n + 2) / T)             (Hoeffding's inequality)
    mean r^2 <= a (n + 2),  T (a - 1 - ln a) = 2 ln(1/p)     (Chernoff's bound)

Terms that are much smaller than the sum are lost systematically, and so is a small addend such as
Gemm's C. The two bounds above are therefore increased by a bound on this loss. Equal sums, for
example of repeated rows, have equal errors. T is therefore not the number of elements, but the
effective number (sum c)^2 / sum c^2. Both sums run over the distinct significands of the outputs,
and c is the number of elements that share a significand.

16-bit outputs are accumulated in float32 and rounded once. For these outputs, r is measured in
units of u|y|, and its variance is at most 2 instead of n + 2. Subnormal outputs are left out,
because their errors are not proportional to |y|.

If the digits of the operands are related, as in an arithmetic progression, even correct algorithms
have systematic errors. A finding is therefore dropped if a correct algorithm fails the same tests
with the same operands. The correct algorithms are sequential sums in float32 or, for 16-bit
outputs, correctly rounded sums.

TOSA's conformance tests examine the mean and the variance of dot products in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, log2, prod, sqrt
from string import ascii_letters
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.oracle.patching import one_blas_thread
from onnxopt_cli.oracle.widen import ROUNDOFF

#: Operators whose outputs are examined.
EXAMINED = frozenset({"MatMul", "Gemm", "Einsum", "ReduceSum", "ReduceMean", "Conv"})
# The probability that a correct algorithm fails one test. An output has four tests, so a correct
# algorithm fails any of them with a probability below 1e-9.
_FALSE_ALARM = 1e-10
# A finding is reported if a correct algorithm yields it with a probability below this limit. A
# finding is a failure only if that probability is below 1e-9.
_FINDING_PROBABILITY = 1e-4
# Outputs with fewer elements are not examined, because the tests would be too weak.
_MIN_ELEMENTS = 256
# The largest total number of products in the sums of an examined output.
_MAX_PRODUCTS = 1 << 24
# The smallest nonzero magnitude and the largest magnitude of examined operands.
_MIN_MAGNITUDE, _MAX_MAGNITUDE = 2.0**-30, 2.0**30
# The digits of an operand appear random if at least this share of its elements is distinct. In
# float32, at least this share of the elements must also have a nonzero last byte.
_RANDOM_SHARE = 0.9
# A 16-bit element is not examined if its terms cancel by more than this factor.
_MAX_CANCELLATION = 64.0
# A term may be lost systematically if it is smaller than _SMALL_TERM times u sum|ab|.
_SMALL_TERM = 8.0
# The number of randomly drawn products from which the loss of small terms is estimated.
_DRAWN_TERMS = 4096
_SINGLE = np.dtype(np.float32)
_SINGLE_BITS = 24
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
_VARIANCE_OF_SUM = 1 / 9
# A message about an excessive mean square error also states the mean error if that error exceeds
# this number of standard errors.
_SIGNIFICANT = 7.0


@dataclass(frozen=True, slots=True)
class AccumulationFinding:
    """A systematic error of the sums of an output.

    Attributes:
        text: a description.
        fails: whether a correct algorithm yields the finding with a probability below 1e-9.
    """

    text: str
    fails: bool


@dataclass(frozen=True, slots=True)
class _Operation:
    """Sums of products, as a node computes them.

    Attributes:
        equation: the sums in the notation of Einsum, such as ``ij,jk->ik``.
        factors: the operands of the equation in double.
        addend: an operand in double that is added to the sums; None if nothing is added.
    """

    equation: str
    factors: Sequence[Array]
    addend: Array | None = None

    @property
    def lengths(self) -> dict[str, int] | None:
        """The length of the axis of each letter in the equation; None if the lengths conflict."""
        lengths: dict[str, int] = {}
        terms = self.equation.partition("->")[0].split(",")
        if [len(term) for term in terms] != [factor.ndim for factor in self.factors]:
            return None
        shapes = [length for factor in self.factors for length in factor.shape]
        for letter, length in zip("".join(terms), shapes, strict=True):
            if lengths.setdefault(letter, length) != length:
                return None
        return lengths

    @property
    def summed_lengths(self) -> dict[str, int]:
        """The length of each summed axis, by its letter in the equation."""
        kept_letters = self.equation.partition("->")[2]
        lengths = self.lengths or {}
        return {letter: length for letter, length in lengths.items() if letter not in kept_letters}

    @property
    def count(self) -> int:
        """The number of products in each sum."""
        return prod(self.summed_lengths.values())

    def sums(self) -> _Sums:
        """Return the sums of the node, computed in double, with the sums of magnitudes."""
        # In small products, several threads would mostly wait for each other.
        with one_blas_thread():
            exact = np.einsum(self.equation, *self.factors, optimize=True)
            magnitudes = np.einsum(self.equation, *map(np.abs, self.factors), optimize=True)
        terms = np.ones(_DRAWN_TERMS)
        for seed, factor in enumerate(self.factors, start=1):
            # Different seeds, because the factors of a product must be drawn independently.
            generator = np.random.default_rng(seed)
            terms *= np.abs(generator.choice(factor.reshape(-1), _DRAWN_TERMS))
        if self.addend is None:
            return _Sums(exact, magnitudes, self.count, terms, np.zeros(0))
        addend = np.abs(self.addend)
        return _Sums(exact + self.addend, magnitudes + addend, self.count + 1, terms, addend)

    def sequential_sums(self, *, from_last: bool) -> Array:
        """Return the sums, computed by a sequential loop in float32.

        Args:
            from_last: whether the loop begins with the last product.
        """
        operands, _, kept_letters = self.equation.partition("->")
        summed = self.summed_lengths
        factors = [factor.astype(_SINGLE) for factor in self.factors]
        products = np.einsum(f"{operands}->{''.join(summed)}{kept_letters}", *factors)
        products = products.reshape(-1, *products.shape[len(summed) :])
        total = np.zeros(products.shape[1:], _SINGLE)
        for product in products[:: -1 if from_last else 1]:
            total += product
        return total if self.addend is None else total + self.addend.astype(_SINGLE)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of products, computed in double.

    Attributes:
        exact: the sums.
        magnitudes: the sums of the magnitudes.
        count: the number of terms in each sum.
        terms: magnitudes of some of the products, drawn at random.
        addend: the magnitudes of the terms that are added to the sums of products; may be empty.
    """

    exact: Array
    magnitudes: Array
    count: int
    terms: Array
    addend: Array

    def lost(self, roundoff: float) -> float:
        """Return a bound on the systematic loss of small terms in a sum, in units of u sum|ab|.

        If a term is below half an ulp of the partial sum, the term is lost completely, and its
        rounding error is not random.
        """
        if not self.magnitudes.any():
            return 0.0
        unit = roundoff * float(np.median(self.magnitudes[self.magnitudes > 0]))
        return self.count * _mean_loss(self.terms, unit) + _mean_loss(self.addend, unit)


def _mean_loss(terms: Array, unit: float) -> float:
    """Return a bound on the average systematic loss per term, in multiples of ``unit``."""
    if not terms.size:
        return 0.0
    small = terms < _SMALL_TERM * unit
    return float(np.mean(np.minimum(terms, unit) * small)) / unit


def accumulation_finding(
    model: onnx.ModelProto, inputs: Mapping[str, Value], outputs: Sequence[Value]
) -> AccumulationFinding | None:
    """Return a systematic error of the sums of a node; None if the tests find no error.

    Args:
        model: the model. It is examined only if it is a single node whose operands have random
            digits.
        inputs: its inputs.
        outputs: the outputs of a backend.
    """
    if len(model.graph.node) != 1 or model.functions or len(outputs) != 1:
        return None
    node, actual = model.graph.node[0], outputs[0]
    if node.op_type not in EXAMINED or node.domain not in {"", "ai.onnx"}:
        return None
    if not isinstance(actual, np.ndarray) or not _MIN_ELEMENTS <= actual.size <= _MAX_PRODUCTS:
        return None
    if actual.dtype != _SINGLE and actual.dtype.name not in _SMALLEST_NORMAL:
        return None
    operands = _operands(model, inputs)
    if not operands or not all(_is_suitable(operand, actual.dtype) for operand in operands):
        return None
    operation = _operation(node, operands)
    if operation is None or actual.size * operation.count > _MAX_PRODUCTS:
        return None
    sums = operation.sums()
    if sums.exact.size != actual.size or not np.isfinite(sums.exact).all():
        return None
    finding = _finding_of(actual, sums)
    if finding and any(
        _finding_of(output, sums) for output in _correct_outputs(operation, sums, actual.dtype)
    ):
        return None
    return finding


def _operands(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Array] | None:
    """Return the operands of a node; None if any operand is empty, sparse or missing."""
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    values = [{**constants, **inputs}.get(name) for name in model.graph.node[0].input if name]
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.size]
    return arrays if len(arrays) == len(values) else None


def _correct_outputs(operation: _Operation, sums: _Sums, dtype: np.dtype[Any]) -> list[Array]:
    """Return the outputs that correct algorithms compute for a node, one array per algorithm."""
    if dtype != _SINGLE:
        with np.errstate(over="ignore"):
            return [sums.exact.astype(dtype)]
    return [operation.sequential_sums(from_last=from_last) for from_last in (False, True)]


def _finding_of(output: Array, sums: _Sums) -> AccumulationFinding | None:
    """Return a systematic error of an output, given the exact sums; None if none is found."""
    if not np.isfinite(output).all():
        return None
    is_short, roundoff = output.dtype != _SINGLE, ROUNDOFF[output.dtype]
    wide = output.astype(np.float64).reshape(sums.exact.shape)
    usable = sums.magnitudes > 0
    unit, variance = roundoff * sums.magnitudes, sums.count + 2.0
    if is_short:
        usable &= np.abs(sums.exact) * _MAX_CANCELLATION > sums.magnitudes
        usable &= np.abs(sums.exact) >= _SMALLEST_NORMAL[output.dtype.name]
        unit, variance = roundoff * np.abs(sums.exact), 2.0
    exact = sums.exact[usable]
    errors = (wide[usable] - exact) / unit[usable]
    independent = _effective_count(exact)
    if independent < _MIN_ELEMENTS:
        return None
    lost = 0.0 if is_short else sums.lost(roundoff)
    sample = _Sample(errors, np.sign(exact), independent, sums.count)
    return _tested(sample, variance, lost, short=is_short)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Rounding errors of the examined sums of an output.

    Attributes:
        errors: the errors, in units of u sum|ab|, or of u|y| for 16-bit outputs.
        signs: the signs of the exact sums.
        independent: the effective number of independent errors.
        count: the number of products in a sum.
    """

    errors: Array
    signs: Array
    independent: int
    count: int


def _effective_count(exact: Array) -> int:
    """Return the effective number of sums whose errors are independent.

    Sums that differ only in sign, or by a power of two, have equal relative errors.
    """
    significands = np.abs(np.frexp(exact)[0]).astype(np.float32)
    counts = np.unique(significands, return_counts=True)[1].astype(np.float64)
    return int(counts.sum() ** 2 / np.sum(counts**2)) if counts.size else 0


def _tested(
    sample: _Sample, variance: float, lost: float, *, short: bool
) -> AccumulationFinding | None:
    """Return a systematic error, given the errors of sums; None if the tests find no error.

    Args:
        sample: the errors.
        variance: the largest variance that a correct algorithm has.
        lost: the largest systematic error that a correct algorithm has.
        short: whether the sums are rounded to 16 bits.
    """
    errors, signs, independent = sample.errors, sample.signs, sample.independent
    mean, toward = float(errors.mean()), float((errors * signs).mean())
    largest, square = max(abs(mean), abs(toward)), float((errors**2).mean())
    certain, likely = (
        lost + sqrt(2 * log(2 / probability) * variance / independent)
        for probability in (_FALSE_ALARM, _FINDING_PROBABILITY)
    )
    direction = "away from zero"
    if abs(toward) < abs(mean):
        direction = "down" if mean < 0 else "up"
    elif toward < 0:
        direction = "toward zero"
    bias = f"rounds {direction}: mean error {largest:.2g} roundings"
    of_elements = f"over {errors.size} elements"
    most_square = (sqrt(_largest_ratio(independent) * variance) + lost) ** 2
    if square > most_square:
        # The error of a sequential sum of n positive terms has a variance of n / 9.
        typical = 1 / 3 if short else max(1.0, _VARIANCE_OF_SUM * sample.count)
        deviation = sqrt(max(0.0, square - largest**2))
        bits = max(1, round(_SINGLE_BITS - log2(sqrt(square / typical))))
        precision = "rounds coarsely" if short else f"accumulates in about {bits} bits"
        text = f"{precision}: root mean square error {sqrt(square):.2g} roundings {of_elements}, "
        text += f"at most {sqrt(most_square):.2g} by chance"
        if largest > _SIGNIFICANT * deviation / sqrt(independent):
            text = f"{bias}; {text}"
        return AccumulationFinding(text, fails=True)
    if largest <= likely:
        return None
    fails = largest > certain
    text = f"{bias} {of_elements}" + f", at most {certain:.2g} by chance" * fails
    return AccumulationFinding(text, fails)


def _largest_ratio(elements: int) -> float:
    """Return the ratio a of Chernoff's bound in the module's docstring, for T = ``elements``."""
    ratio = 1.0
    while elements * (ratio - 1 - log(ratio)) < 2 * log(1 / _FALSE_ALARM):
        ratio += 1 / 64
    return ratio


def _is_suitable(operand: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether an operand is integer, or of the output's type with random-looking digits."""
    if operand.dtype.kind in "iu":
        return True
    return operand.dtype == dtype and (operand.ndim < 1 or _has_random_digits(operand))


def _has_random_digits(array: Array) -> bool:
    """Return whether the magnitudes of an operand are moderate, and its digits appear random."""
    wide = np.abs(array.astype(np.float64))
    numbers = wide[wide > 0]
    if not numbers.size or numbers.min() < _MIN_MAGNITUDE or numbers.max() > _MAX_MAGNITUDE:
        return False
    # If all terms of a sum are equal, all its partial sums may be rounded in the same direction.
    if array.dtype != _SINGLE:
        return np.unique(array).size > 1
    if np.unique(array).size < _RANDOM_SHARE * array.size:
        return False
    last = np.ascontiguousarray(array).view(np.uint32) & 0xFF
    return bool(np.count_nonzero(last) >= _RANDOM_SHARE * array.size)


def _operation(node: onnx.NodeProto, operands: Sequence[Array]) -> _Operation | None:
    """Return the sums of products that a node computes; None if it computes something else."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    arrays = [operand.astype(np.float64) for operand in operands]
    if node.op_type in {"ReduceSum", "ReduceMean"}:
        return _reduction(node, arrays, attributes)
    equation = _equation(node, arrays, attributes)
    if equation is None:
        return None
    left, right, *further = arrays
    addend = further[0] if further else None
    if node.op_type == "Conv":
        right = right.reshape(right.shape[:2])
        if addend is not None:
            addend = addend.reshape(-1, *[1] * (left.ndim - 2))
    operation = _Operation(equation, (left, right), addend)
    return operation if operation.lengths else None


def _equation(
    node: onnx.NodeProto, arrays: Sequence[Array], attributes: Mapping[str, object]
) -> str | None:
    """Return the sums of a node in the notation of Einsum; None if they are not supported."""
    ranks = [array.ndim for array in arrays]
    match node.op_type:
        case "MatMul" if ranks == [2, 2]:
            return "ik,kj->ij"
        case "MatMul" if ranks == [3, 3] and arrays[0].shape[0] == arrays[1].shape[0]:
            return "bik,bkj->bij"
        case "Gemm" if {attributes.get("alpha", 1.0), attributes.get("beta", 1.0)} == {1.0}:
            first = "ki" if attributes.get("transA") else "ik"
            second = "jk" if attributes.get("transB") else "kj"
            return f"{first},{second}->ij"
        case "Conv" if arrays[1].size == np.prod(arrays[1].shape[:2]):
            # Fast algorithms may compute convolutions whose kernels have several elements. Such
            # convolutions, and those with pads or strides, are not examined.
            if {"pads", "strides", "auto_pad"} & {*attributes} or attributes.get("group", 1) != 1:
                return None
            spatial = "xyzw"[: ranks[0] - 2]
            return f"bc{spatial},oc->bo{spatial}"
        case "Einsum" if len(arrays) == 2:  # noqa: PLR2004 - two factors
            stated = attributes.get("equation", b"")
            equation = stated.decode().replace(" ", "") if isinstance(stated, bytes) else ""
            terms = equation.split("->")[0].split(",")
            is_plain = all(len({*term}) == len(term) and term.isalpha() for term in terms)
            return equation if "->" in equation and is_plain else None
    return None


def _reduction(
    node: onnx.NodeProto, arrays: Sequence[Array], attributes: Mapping[str, object]
) -> _Operation | None:
    """Return the sums of a ReduceSum or ReduceMean node; None if they are not supported."""
    x = arrays[0]
    stated = arrays[1].astype(int).tolist() if len(arrays) > 1 else attributes.get("axes")
    if not isinstance(stated, list) or not stated:
        return None
    axes = {int(axis) % x.ndim for axis in stated}
    letters = ascii_letters[: x.ndim]
    kept_letters = "".join(letter for axis, letter in enumerate(letters) if axis not in axes)
    operation = _Operation(f"{letters}->{kept_letters}", (x,))
    if node.op_type == "ReduceSum":
        return operation
    # A mean may be computed as a product with the reciprocal of the count. Unless the count is a
    # power of two, the reciprocal is rounded, and all means share the error of this rounding.
    is_power_of_two = operation.count & (operation.count - 1) == 0
    return replace(operation, factors=(x / operation.count,)) if is_power_of_two else None
