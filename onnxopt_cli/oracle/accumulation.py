"""Systematic errors of sums of products: accumulators that truncate, or that are too short.

Each element of a matrix product may be within its limit although the accumulator rounds toward zero
or has too few bits. The errors of many elements together reveal such a defect. If the digits of the
operands are random, each rounding of a correct algorithm has an error of mean 0 between -u|s| and
u|s|, where s is a partial sum. In units of u sum|ab|, the error r of an element of n products is
then sub-Gaussian with a variance of at most n + 2, for any order of the sum, with or without FMA.
For T elements and a probability p,

    |mean r| <= sqrt(2 ln(2/p) (n + 2) / T)             (Hoeffding's inequality)
    mean r^2 <= a (n + 2),  T (a - 1 - ln a) = 2 ln(1/p)     (Chernoff's bound)

Terms that are small compared with the sum are lost systematically, also those of an addend such as
Gemm's C; a bound of this loss is added to both limits. Equal sums, as of repeated rows, have equal
errors. T is therefore an effective number of elements: (sum c)^2 / sum c^2, where c elements have
the same significand.
Digits that are related, as in an arithmetic progression, make the errors of right algorithms
systematic. A finding is therefore dropped if sequential sums, or correctly rounded outputs of 16
bits, yield one for the same operands.
Outputs of 16 bits are accumulated in float32 and rounded once: r is in units of u|y|, and n + 2
becomes 2. Subnormal outputs are left out, since their errors are not in proportion to them. TOSA's
conformance tests examine the mean and the variance of dot products in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log2, sqrt
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.oracle.evaluator import ReferenceModel, sequential_sums
from onnxopt_cli.oracle.widen import ROUNDOFF

#: Operators whose outputs are examined.
EXAMINED = frozenset({"MatMul", "Gemm", "Einsum", "ReduceSum", "ReduceMean", "Conv"})
#: Probability that a correct algorithm fails one of the four tests of an output; together, the
#: probability is below 1e-9.
FALSE_ALARM = 1e-10
#: The probability of each test for a finding that is reported without a failure.
FINDING_PROBABILITY = 1e-4
#: Smaller outputs are not examined: the tests would be too weak.
MIN_ELEMENTS = 256
# Outputs with more products are not examined.
_MAX_PRODUCTS = 1 << 24
# Nonzero operands must have magnitudes in this range, and this share of them a nonzero last byte.
_MIN_MAGNITUDE, _MAX_MAGNITUDE, _RANDOM_SHARE = 2.0**-30, 2.0**30, 0.9
# 16-bit elements whose terms cancel by a larger factor are left out.
_MAX_CANCELLATION = 64.0
# Terms below this number of units of a sum are rounded systematically; number of terms drawn.
_SMALL_TERM, _DRAWN_TERMS = 8.0, 4096
_SINGLE = np.dtype(np.float32)
_SINGLE_BITS = 24
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
_VARIANCE_OF_SUM = 1 / 9
# A mean error is stated beside a large mean square if it exceeds this number of standard errors.
_SIGNIFICANT = 7.0


@dataclass(frozen=True, slots=True)
class AccumulationFinding:
    """A systematic error of the sums of an output.

    Attributes:
        text: a description.
        fails: whether the probability of the finding for a correct algorithm is below 1e-9.
    """

    text: str
    fails: bool


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of products, computed in double.

    Attributes:
        exact: the sums.
        magnitudes: the sums of the magnitudes.
        count: the number of products in each sum.
        terms: magnitudes of some of the products, drawn at random.
        addend: magnitudes of the terms that are added to sums of products.
    """

    exact: Array
    magnitudes: Array
    count: int
    terms: Array
    addend: Array = field(default_factory=lambda: np.zeros(0))

    def lost(self, roundoff: float) -> float:
        """Return a bound of the systematic loss of small terms in a sum, in units.

        A term below half a digit of the partial sum is lost completely: the error is not random.
        """
        if not self.terms.size or not self.magnitudes.any():
            return 0.0
        unit = roundoff * float(np.median(self.magnitudes[self.magnitudes > 0]))

        def mean_loss(terms: Array) -> float:
            small = terms < _SMALL_TERM * unit
            return float(np.mean(np.minimum(terms, unit) * small)) / unit if terms.size else 0.0

        return self.count * mean_loss(self.terms) + mean_loss(self.addend)


def accumulation_finding(
    model: onnx.ModelProto, inputs: Mapping[str, Value], outputs: Sequence[Value]
) -> AccumulationFinding | None:
    """Return a systematic error of the sums of a node; None if the tests find no error.

    Args:
        model: a model, which is examined if it is a single node with operands of random digits.
        inputs: its inputs.
        outputs: the outputs of a backend.
    """
    if len(model.graph.node) != 1 or model.functions or len(outputs) != 1:
        return None
    node, actual = model.graph.node[0], outputs[0]
    if node.op_type not in EXAMINED or node.domain not in {"", "ai.onnx"}:
        return None
    if not isinstance(actual, np.ndarray) or not MIN_ELEMENTS <= actual.size <= _MAX_PRODUCTS:
        return None
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    values = {**constants, **inputs}
    operands = [values.get(name) for name in node.input]
    dtype = actual.dtype
    is_short = dtype.name in {"float16", "bfloat16"}
    if dtype != _SINGLE and not is_short:
        return None
    factors = [value for value in operands if isinstance(value, np.ndarray) and value.size]
    is_prepared = all(
        value.dtype == dtype and (value.ndim < 1 or _has_random_digits(value))
        for value in factors
        if value.dtype.kind not in "iu"
    )
    sums = _sums(node, operands) if is_prepared else None
    if sums is None or sums.exact.shape != actual.shape or not np.isfinite(sums.exact).all():
        return None
    roundoff, wide = ROUNDOFF[dtype], actual.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    finding = _finding_of(wide, sums, roundoff, dtype)
    if finding is None:
        return None
    # Where the digits of the operands are related, right algorithms have systematic errors, too.
    controls = [sums.exact.astype(dtype)] if is_short else _sequential_outputs(model, inputs)
    if any(_finding_of(control.astype(np.float64), sums, roundoff, dtype) for control in controls):
        return None
    return finding


def _sequential_outputs(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Array]:
    """Return the output of a model of float32 with sums from the first and from the last term."""
    outputs = []
    for from_last in (False, True):
        with np.errstate(all="ignore"), sequential_sums(from_last=from_last):
            outputs.append(np.asarray(ReferenceModel(model).run(inputs)[0]))
    return outputs


def _finding_of(
    wide: Array, sums: _Sums, roundoff: float, dtype: np.dtype[Any]
) -> AccumulationFinding | None:
    """Test the values of an output against the exact sums."""
    is_short = dtype != _SINGLE
    usable = sums.magnitudes > 0
    unit, variance = roundoff * sums.magnitudes, sums.count + 2.0
    if is_short:
        usable &= np.abs(sums.exact) * _MAX_CANCELLATION > sums.magnitudes
        usable &= np.abs(sums.exact) >= _SMALLEST_NORMAL[dtype.name]
        unit, variance = roundoff * np.abs(sums.exact), 2.0
    exact = sums.exact[usable]
    errors = (wide[usable] - exact) / unit[usable]
    independent = _effective_count(exact)
    if independent < MIN_ELEMENTS:
        return None
    lost = 0.0 if is_short else sums.lost(roundoff)
    sample = _Sample(errors, np.sign(exact), independent, sums.count)
    return _tested(sample, variance, lost, short=is_short)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The errors of sums, in units.

    Attributes:
        errors: the errors.
        signs: the signs of the exact sums.
        independent: the effective number of independent errors.
        count: the number of products in a sum.
    """

    errors: Array
    signs: Array
    independent: int
    count: int


def _effective_count(exact: Array) -> int:
    """Return the number of independent errors among those of some sums.

    Sums that differ in sign or by a power of two alone have the same relative error.
    """
    significands = np.abs(np.frexp(exact)[0]).astype(np.float32)
    counts = np.unique(significands, return_counts=True)[1].astype(np.float64)
    return int(counts.sum() ** 2 / np.sum(counts**2)) if counts.size else 0


def _tested(
    sample: _Sample, variance: float, lost: float, *, short: bool
) -> AccumulationFinding | None:
    """Test the errors of sums.

    Args:
        sample: the errors.
        variance: the largest variance of a correct algorithm.
        lost: the largest systematic error of a correct algorithm.
        short: whether the sums are rounded to 16 bits.
    """
    errors, signs, independent = sample.errors, sample.signs, sample.independent
    mean, toward = float(errors.mean()), float((errors * signs).mean())
    largest, square = max(abs(mean), abs(toward)), float((errors**2).mean())
    certain, likely = (
        lost + sqrt(2 * log(2 / probability) * variance / independent)
        for probability in (FALSE_ALARM, FINDING_PROBABILITY)
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
        # A sequential sum of positive terms has a variance of n / 9.
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
    """Return the ratio a > 1 that mean squares exceed with the probability FALSE_ALARM."""
    ratio = 1.0
    while elements * (ratio - 1 - log(ratio)) < 2 * log(1 / FALSE_ALARM):
        ratio += 1 / 64
    return ratio


def _has_random_digits(array: Array) -> bool:
    """Return whether the last digits of operands appear random, without extreme magnitudes."""
    wide = np.abs(array.astype(np.float64))
    numbers = wide[wide > 0]
    if not numbers.size or numbers.min() < _MIN_MAGNITUDE or numbers.max() > _MAX_MAGNITUDE:
        return False
    # Equal terms are rounded in the same direction.
    if array.dtype != _SINGLE:
        return np.unique(array).size > 1
    if np.unique(array).size < _RANDOM_SHARE * array.size:
        return False
    last = np.ascontiguousarray(array).view(np.uint32) & 0xFF
    return bool(np.count_nonzero(last) >= _RANDOM_SHARE * array.size)


def _sums(node: onnx.NodeProto, operands: Sequence[Value]) -> _Sums | None:
    """Return the sums of products that a node computes; None if it computes something else."""
    arrays = [v.astype(np.float64) for v in operands if isinstance(v, np.ndarray)]
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if node.op_type in {"ReduceSum", "ReduceMean"}:
        return _reduction(node, arrays, attributes)
    equation = _equation(node, arrays, attributes)
    if equation is None:
        return None
    left, right, *further = arrays
    if node.op_type == "Conv":
        right = right.reshape(right.shape[:2])
    try:
        exact, magnitudes = (
            np.einsum(equation, change(left), change(right), optimize=True)
            for change in (np.asarray, np.abs)
        )
    except ValueError:
        return None
    count = _summed(equation, left, right)
    if exact.size * count > _MAX_PRODUCTS:
        return None
    addend = np.zeros(0)
    if further:
        bias = further[0]
        if node.op_type == "Conv":
            bias = bias.reshape(-1, *[1] * (left.ndim - 2))
        addend = np.abs(bias)
        exact, magnitudes = exact + bias, magnitudes + addend
    terms = _drawn(left, 1) * _drawn(right, 2)
    return _Sums(exact, magnitudes, count + len(further), terms, addend)


def _summed(equation: str, left: Array, right: Array) -> int:
    """Return the number of products in each sum of an equation of two operands."""
    terms, _, kept = equation.partition("->")
    first, _, second = terms.partition(",")
    lengths = dict(zip(first + second, left.shape + right.shape, strict=True))
    return round(np.prod([length for name, length in lengths.items() if name not in kept]))


def _equation(
    node: onnx.NodeProto, arrays: Sequence[Array], attributes: Mapping[str, object]
) -> str | None:
    """Return the sums of a node as an equation of Einsum; None if it is not a supported sum."""
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
            # Fast algorithms compute larger kernels. Pads and strides are not supported.
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
) -> _Sums | None:
    x = arrays[0]
    stated = arrays[1].astype(int).tolist() if len(arrays) > 1 else attributes.get("axes")
    if not isinstance(stated, list) or not stated:
        return None
    axes = tuple(int(axis) % x.ndim for axis in stated)
    keeps = bool(attributes.get("keepdims", 1))
    exact, magnitudes = (np.sum(array, axes, keepdims=keeps) for array in (x, np.abs(x)))
    count = round(x.size / max(1, exact.size))
    if node.op_type == "ReduceMean":
        # The reciprocal of any other number has a rounding error that all means share.
        if count & (count - 1):
            return None
        exact, magnitudes, x = exact / count, magnitudes / count, x / count
    return _Sums(exact, magnitudes, count, _drawn(x, 1))


def _drawn(array: Array, seed: int) -> Array:
    """Return magnitudes of elements drawn at random, the same from the same seed."""
    generator = np.random.default_rng(seed)
    return np.abs(generator.choice(array.reshape(-1), _DRAWN_TERMS))
