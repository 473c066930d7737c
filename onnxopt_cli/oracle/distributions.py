"""Tests of the outputs of random operators: type, shape and distribution.

The probability that a correct output is rejected is below 1e-9. This module also tests the outputs
of ``TopK`` with ``sorted=0``, which may have any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import erfc, log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.text import printable
from onnxopt_cli.core.tolerance import Drawn
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.nodes import all_nodes, imported_versions, with_bound_functions
from onnxopt_cli.oracle.widen import ROUNDOFF, largest_finite, smallest_normal

_RANDOM = frozenset({"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "Dropout"})
# The probability that one test rejects a correct output. An output has at most three tests.
_FALSE_ALARM = 3e-10
_INVERSE = NormalDist().inv_cdf
_MIN_LEVEL = 2.0**-40
# The accepted error of the mean and of the mean square in :func:`_test_continuous`. That function
# defines the level of a number. The unit is the difference between the levels of two neighbouring
# representable numbers. The error occurs because the numbers of a sample are rounded to its dtype.
_GRAINS = 8
# The square of four standard deviations, in units of the variance. Smaller deviations need no test.
_LIKELY_VARIANCES = 16
# The factor 1 / (1 - ratio) may be computed in the type of the ratio. A scaled element may
# therefore have an error of _SCALING_ULPS ulps, or of _FACTOR_ROUNDINGS roundings in the type of
# the ratio, whichever is larger.
_SCALING_ULPS, _FACTOR_ROUNDINGS = 16, 3
# Dropout has an attribute is_test before version 7, and an input training_mode from version 12 on.
# In between, Dropout has neither of them and drops no element.
_INFERENCE_VERSION, _TRAINING_MODE_VERSION = 7, 12
# Indices of the inputs ratio and training_mode of Dropout.
_RATIO, _TRAINING = 1, 2


def drawn(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> dict[str, Drawn]:
    """Return a test for each output of a model, by name; empty if no operator is random.

    If the model has several nodes, only the types and shapes of its outputs are tested.
    """
    # A function that no node calls draws no numbers. If a function has an error, the run of the
    # model reports it.
    with suppress(NodeError):
        model = with_bound_functions(model)
    version = imported_versions(model).get("", 0)
    nodes = list(all_nodes(model))
    names = [output.name for output in model.graph.output]
    if len(nodes) == 1 and nodes[0].op_type == "TopK":
        # If the node has an error, the run of the model reports it.
        with suppress(IndexError, ValueError, TypeError):
            return {name: law for name, law in _top(nodes[0], inputs) if name in names}
    undefined = len(nodes) == 1 and nodes[0].op_type == "ReduceMean" and not _size(nodes[0], inputs)
    if not undefined and not any(is_random(node, version, inputs) for node in nodes):
        return {}
    laws = dict.fromkeys(names, Drawn("any values of this type and shape", lambda _sample: ""))
    if len(nodes) == 1:
        laws |= {name: law for name, law in _laws(nodes[0], inputs) if name in laws}
    return laws


def _size(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> int:
    first = inputs.get(node.input[0]) if node.input else None
    return first.size if isinstance(first, np.ndarray) else 1


def is_random(node: onnx.NodeProto, version: int, inputs: Mapping[str, Value]) -> bool:
    """Return whether a node draws random numbers.

    Args:
        node: the node.
        version: the opset version of the default domain.
        inputs: the values of inputs by name.
    """
    if node.op_type.removesuffix("Like") not in _RANDOM or node.domain not in {"", "ai.onnx"}:
        return False
    if node.op_type != "Dropout":
        return True
    if version < _TRAINING_MODE_VERSION:
        is_test = any(entry.name == "is_test" and entry.i for entry in node.attribute)
        return version < _INFERENCE_VERSION and not is_test
    if len(node.input) <= _TRAINING or not node.input[_TRAINING]:
        return False
    training = inputs.get(node.input[_TRAINING])
    return not isinstance(training, np.ndarray) or bool(training.any())


def _laws(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> Iterator[tuple[str, Drawn]]:
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    first: Any = inputs.get(node.input[0]) if node.input else None
    test: Callable[[Array], str]
    if node.op_type.startswith("RandomNormal"):
        mean, scale = attributes.get("mean", 0.0), attributes.get("scale", 1.0)
        law = f"normal, mean {mean:g}, deviation {scale:g}"
        test = partial(_test_continuous, _normal, mean, scale)
    elif node.op_type.startswith("RandomUniform"):
        low, high = attributes.get("low", 0.0), attributes.get("high", 1.0)
        law = f"uniform from {low:g} to {high:g}"
        test = partial(_test_continuous, np.asarray, low, high - low)
    elif node.op_type == "ReduceMean" or not isinstance(first, np.ndarray):
        return
    elif node.op_type == "Bernoulli":
        chances = first.astype(np.float64)
        law, test = "1 with the given probabilities, else 0", partial(_test_bernoulli, chances)
    elif node.op_type == "Multinomial":
        law, test = "classes with the given probabilities", partial(_test_classes, first)
    else:
        # In early versions, the ratio is an attribute, and the mask is not specified.
        early = len(node.input) <= _RATIO
        ratio_name = "" if early else node.input[_RATIO]
        stated = np.asarray(attributes.get("ratio", 0.5), np.float32)
        ratio = inputs.get(ratio_name) if ratio_name else stated
        if not isinstance(ratio, np.ndarray) or ratio.size != 1 or ratio.dtype not in ROUNDOFF:
            return
        if not 0 <= float(ratio.item()) < 1:
            return
        keep = 1 - float(ratio.item())
        law = f"each element is kept with probability {keep:g}"
        test = partial(_test_dropout, first, keep, _FACTOR_ROUNDINGS * ROUNDOFF[ratio.dtype])
        if len(node.output) > 1 and not early:
            mask = partial(_test_bernoulli, np.full(first.shape, keep))
            beside = partial(_test_mask, first, *node.output[:2])
            yield node.output[1], Drawn(f"true with probability {keep:g}", mask, beside=beside)
    yield node.output[0], Drawn(law, test)


def _top(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> Iterator[tuple[str, Drawn]]:
    """Yield tests that accept the results of ``TopK`` in any order if ``sorted`` is 0."""
    attributes = {"axis": -1, "largest": 1, "sorted": 1}
    attributes |= {entry.name: entry.i for entry in node.attribute}
    x, count = (np.asarray(inputs.get(name)) for name in node.input)
    axis = attributes["axis"]
    if attributes["sorted"]:
        return
    # Of equal elements, the element with the lower index is selected first.
    order = np.argsort(x, axis, "stable")
    if attributes["largest"]:
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, "stable"), axis)
    chosen = np.moveaxis(np.moveaxis(order, axis, 0)[: int(count.reshape(-1)[0])], 0, axis)
    values, places = (
        Drawn("these elements in any order", partial(_test_elements, np.sort(right, axis), axis))
        for right in (np.take_along_axis(x, chosen, axis), chosen)
    )
    values_name, places_name = node.output
    yield values_name, values
    yield places_name, replace(places, beside=partial(_test_places, x, axis, *node.output))


def _test_elements(right: Array, axis: int, sample: Array) -> str:
    same = np.array_equal(np.sort(sample, axis), right, equal_nan=True)
    return "" if same else "has other elements"


def _test_places(
    x: Array, axis: int, values: str, places: str, outputs: Mapping[str, Value]
) -> str:
    sample = outputs.get(values)
    right = np.take_along_axis(x, np.asarray(outputs[places]), axis)
    wrong = isinstance(sample, np.ndarray) and not np.array_equal(sample, right, equal_nan=True)
    return f"is not where the elements of {printable(values)} are" if wrong else ""


def _normal(values: Array) -> Array:
    return np.array([0.5 * erfc(-value / sqrt(2)) for value in values])


def _test_continuous(
    law: Callable[[Array], Array], origin: float, scale: float, sample: Array
) -> str:
    """Return why a sample does not have a continuous distribution; empty if it passes the tests.

    The distribution function maps each number of the sample to a level. The levels are then uniform
    from 0 to 1. The test bounds the distance between the empirical distribution of the levels and
    the uniform distribution (Dvoretzky, Kiefer, Wolfowitz). The test also transforms the levels to
    a standard normal distribution, and bounds the mean and the mean square of the results
    (Chernoff).

    Args:
        law: the distribution function of (x - origin) / scale.
        origin: the origin of the distribution.
        scale: the scale of the distribution.
        sample: the numbers.
    """
    numbers = sample.astype(np.float64).reshape(-1)
    if not scale:
        wrong = numbers != np.asarray(origin, sample.dtype)
        return f"has elements that are not {origin:g}" if wrong.any() else ""
    # An upper bound on the difference between the levels of two neighbouring representable numbers.
    magnitude = max(abs(origin), abs(origin + scale)) / abs(scale)
    grain = 2 * ROUNDOFF[sample.dtype] * max(1.0, magnitude)
    levels = np.sort(law((numbers - origin) / scale))
    count = levels.size
    if not count:
        return ""
    if not ((levels >= -grain) & (levels <= 1 + grain)).all():
        return "has elements beyond the range of the distribution"
    bound, steps = log(2 / _FALSE_ALARM), np.arange(count + 1) / count
    distance = max(np.max(steps[1:] - levels), np.max(levels - steps[:-1])) - grain
    if distance > sqrt(bound / (2 * count)):
        return f"does not have the distribution: its distribution function is off by {distance:.2g}"
    lowest = max(grain / 2, _MIN_LEVEL)
    scores = np.array([_INVERSE(level) for level in np.clip(levels, lowest, 1 - lowest)])
    mean, square = float(scores.mean()), float((scores**2).mean())
    if abs(mean) > sqrt(2 * bound / count) + _GRAINS * grain:
        return f"does not have the distribution: its mean is off by {mean:.3g} standard deviations"
    ratio = 1 + np.sign(square - 1) * max(0.0, abs(square - 1) - _GRAINS * grain)
    if count * (ratio - 1 - log(ratio)) > 2 * bound:
        return (
            f"does not have the distribution: its variance is {square:.3g} times the expected one"
        )
    return ""


def _test_bernoulli(chances: Array, sample: Array, alarm: float = _FALSE_ALARM) -> str:
    """Return why zeros and ones do not have given probabilities; empty if they pass the tests."""
    values = sample.astype(np.float64)
    if not np.isin(values, (0.0, 1.0)).all():
        return "has elements that are neither 0 nor 1"
    certain = (chances <= 0) & (values != 0) | (chances >= 1) & (values != 1)
    if certain.any():
        return "has elements whose probability is 0"
    inner = np.clip(chances, 0, 1)
    if _is_unlikely(np.ones(inner.shape), inner, values, alarm):
        return f"has {values.sum():g} ones where {inner.sum():.4g} are expected"
    if inner.size and _is_unlikely(inner - inner.mean(), inner, values, alarm):
        return "has ones where they are unlikely"
    return ""


def _is_unlikely(weights: Array, chances: Array, values: Array, alarm: float) -> bool:
    """Return whether the deviation of a weighted sum of zeros and ones is improbable.

    Each exponent yields a Chernoff bound on the probability. The exponents that are tried are near
    the best exponent for a normal distribution.
    """
    deviation = float((weights * (values - chances)).sum())
    variance = float((weights**2 * chances * (1 - chances)).sum())
    if deviation * deviation <= _LIKELY_VARIANCES * variance:
        return False
    for power in range(-32, 9):
        with np.errstate(all="ignore"):
            exponent = deviation / variance * 2 ** (power / 4)
            moment = np.log1p(chances * np.expm1(exponent * weights)) - exponent * weights * chances
        if float(moment.sum()) - exponent * deviation < log(alarm / 2):
            return True
    return False


def _test_classes(logits: Array, sample: Array) -> str:
    """Return which class has a wrong frequency, in one row or overall; empty if none has."""
    logits = logits.astype(np.float64)
    rows, classes = logits.shape[0], logits.shape[-1]
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    if not ((sample >= 0) & (sample < classes)).all():
        return "has elements that are not classes"
    drawn_classes = sample.reshape(rows, -1)
    alarm = _FALSE_ALARM / (classes * (rows + 1))
    for class_index in range(classes):
        occurs = (drawn_classes == class_index).astype(np.float64)
        expected = np.broadcast_to(chances[:, class_index, None], occurs.shape)
        parts = [("", expected, occurs)]
        deviations = (occurs - expected).sum(axis=1)
        variances = (expected * (1 - expected)).sum(axis=1)
        suspicious = np.flatnonzero(deviations * deviations > _LIKELY_VARIANCES * variances)
        parts += [(f" of row {row}", expected[row], occurs[row]) for row in suspicious]
        for place, row_chances, row_occurs in parts:
            wrong = _test_bernoulli(row_chances, row_occurs, alarm)
            if wrong:
                return f"class {class_index}{place} {wrong}"
    return ""


def _test_dropout(x: Array, keep: float, factor_error: float, sample: Array) -> str:
    """Return why an output of Dropout is wrong; empty if it passes the tests.

    Args:
        x: the input.
        keep: the probability that an element is kept.
        factor_error: the relative error of the factor that scales the kept elements.
        sample: the output.
    """
    wide, values = x.astype(np.float64), sample.astype(np.float64)
    right, largest = wide / keep, largest_finite(sample.dtype)
    # At the largest number, np.spacing is infinite. Therefore use twice the spacing at half of the
    # magnitude.
    half = (np.minimum(np.abs(right), largest) / 2).astype(sample.dtype)
    error_limit = _SCALING_ULPS * 2 * np.spacing(half).astype(np.float64)
    error_limit = np.maximum(error_limit, factor_error * np.minimum(np.abs(right), largest))
    scaled = np.abs(values - right) <= error_limit
    # A scaled element may overflow. A dropped element may then become NaN, because infinity is
    # multiplied by 0.
    overflows = np.abs(right) > largest - error_limit
    scaled |= overflows & ((values == np.copysign(np.inf, right)) | np.isnan(values))
    # If an infinity is kept, it stays infinite. A dropped NaN or infinity may become NaN, because
    # it is multiplied by 0.
    scaled |= ~np.isfinite(wide) & ((values == wide) | np.isnan(values))
    if not (scaled | (values == 0)).all():
        return f"has elements that are neither 0 nor scaled by {1 / keep:g}"
    decisive = _decisive(x) & ~overflows
    return _test_bernoulli(np.full(int(decisive.sum()), keep), (values != 0)[decisive])


def _decisive(x: Array) -> Array:
    """Return a mask of finite, normal elements, whose outputs show whether they are dropped."""
    return np.isfinite(x) & (np.abs(x) >= smallest_normal(x.dtype))


def _test_mask(x: Array, output: str, mask: str, outputs: Mapping[str, Value]) -> str:
    """Return why a ``Dropout`` mask is wrong; empty if it is true exactly at nonzero outputs."""
    values = outputs.get(output)
    if not isinstance(values, np.ndarray) or (values.shape, values.dtype) != (x.shape, x.dtype):
        return ""
    # A dropped element may be NaN if its scaled value overflows.
    decisive = _decisive(x) & ~np.isnan(values)
    wrong = decisive & ((values != 0) != np.asarray(outputs[mask]))
    return f"is not the mask of {printable(output)}" if wrong.any() else ""
