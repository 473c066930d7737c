"""What random operators may yield: type and shape, and a test of the distribution.

A right sample is rejected with a probability below 1e-9 for each output.
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
from onnxopt_cli.operators.functions import with_bound_functions
from onnxopt_cli.operators.nodes import all_nodes, imported_versions
from onnxopt_cli.oracle.widen import ROUNDOFF, smallest_normal

_RANDOM = frozenset({"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "Dropout"})
# Of each of at most three tests of an output.
_FALSE_ALARM = 3e-10
_INVERSE = NormalDist().inv_cdf
_LEAST_LEVEL = 2.0**-40
# Numbers of few digits move means by some of their distances.
_GRAINS = 8
# No sum that is at most four deviations off is unlikely.
_NEAR_VARIANCES = 16
# A scaled element that was kept is off by a few roundings.
_ROUNDINGS = 16
# From this version on, a Dropout without the input training_mode drops nothing.
_NEVER_TRAINS, _MAY_TRAIN = 7, 12
_RATIO, _TRAINING = 1, 2


def drawn(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> dict[str, Drawn]:
    """Return by what to judge the outputs of a model that draws numbers; empty if it draws none.

    Where several nodes make an output, only its type and shape are judged.
    """
    # What no node calls draws nothing; what is wrong with functions is said when they are asked.
    with suppress(NodeError):
        model = with_bound_functions(model)
    version = imported_versions(model).get("", 0)
    nodes = list(all_nodes(model))
    names = [output.name for output in model.graph.output]
    if len(nodes) == 1 and nodes[0].op_type == "TopK":
        # Whoever asks next says what is wrong with the node.
        with suppress(IndexError, ValueError, TypeError):
            return {name: law for name, law in _top(nodes[0], inputs) if name in names}
    undefined = len(nodes) == 1 and nodes[0].op_type == "ReduceMean" and not _size(nodes[0], inputs)
    if not undefined and not any(_is_random(node, version, inputs) for node in nodes):
        return {}
    laws = dict.fromkeys(names, Drawn("any values of this type and shape", lambda _sample: ""))
    if len(nodes) == 1:
        laws |= {name: law for name, law in _laws(nodes[0], inputs) if name in laws}
    return laws


def _size(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> int:
    first = inputs.get(node.input[0]) if node.input else None
    return first.size if isinstance(first, np.ndarray) else 1


def _is_random(node: onnx.NodeProto, version: int, inputs: Mapping[str, Value]) -> bool:
    if node.op_type.removesuffix("Like") not in _RANDOM or node.domain not in {"", "ai.onnx"}:
        return False
    if node.op_type != "Dropout":
        return True
    if version < _MAY_TRAIN:
        return version < _NEVER_TRAINS and not any(
            it.name == "is_test" and it.i for it in node.attribute
        )
    if len(node.input) <= _TRAINING or not node.input[_TRAINING]:
        return False
    training = inputs.get(node.input[_TRAINING])
    return not isinstance(training, np.ndarray) or bool(training.any())


def _laws(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> Iterator[tuple[str, Drawn]]:
    given = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
    first: Any = inputs.get(node.input[0]) if node.input else None
    test: Callable[[Array], str]
    if node.op_type.startswith("RandomNormal"):
        mean, scale = given.get("mean", 0.0), given.get("scale", 1.0)
        law = f"normal, mean {mean:g}, deviation {scale:g}"
        test = partial(_test_continuous, _normal, mean, scale)
    elif node.op_type.startswith("RandomUniform"):
        low, high = given.get("low", 0.0), given.get("high", 1.0)
        law = f"uniform from {low:g} to {high:g}"
        test = partial(_test_continuous, np.asarray, low, high - low)
    elif node.op_type == "ReduceMean" or not isinstance(first, np.ndarray):
        return
    elif node.op_type == "Bernoulli":
        chances = first.astype(np.float64)
        law, test = "1 with the given chances, else 0", partial(_test_chances, chances)
    elif node.op_type == "Multinomial":
        law, test = "classes with the given chances", partial(_test_classes, first)
    else:
        # Once it was an attribute, and what the mask holds was not said.
        early = len(node.input) <= _RATIO
        stated = "" if early else node.input[_RATIO]
        ratio = inputs.get(stated) if stated else np.asarray(given.get("ratio", 0.5))
        if not isinstance(ratio, np.ndarray) or not 0 <= float(ratio.reshape(-1)[0]) < 1:
            return
        kept = 1 - float(ratio.reshape(-1)[0])
        law, test = f"each element is kept with chance {kept:g}", partial(_test_kept, first, kept)
        if len(node.output) > 1 and not early:
            mask = partial(_test_chances, np.full(first.shape, kept))
            beside = partial(_test_mask, first, *node.output[:2])
            yield node.output[1], Drawn(f"true with chance {kept:g}", mask, beside=beside)
    yield node.output[0], Drawn(law, test)


def _top(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> Iterator[tuple[str, Drawn]]:
    """Let the largest or least elements, and where they are, come in any order if that is open."""
    given = {"axis": -1, "largest": 1, "sorted": 1}
    given |= {it.name: it.i for it in node.attribute}
    x, count = (np.asarray(inputs.get(name)) for name in node.input)
    axis = given["axis"]
    if given["sorted"]:
        return
    # The first of equal elements counts.
    order = np.argsort(x, axis, "stable")
    if given["largest"]:
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
    return "" if same else "has other elements, whatever their order"


def _test_places(
    x: Array, axis: int, values: str, places: str, outputs: Mapping[str, Value]
) -> str:
    found, at = outputs.get(values), outputs[places]
    right = np.take_along_axis(x, np.asarray(at), axis)
    wrong = isinstance(found, np.ndarray) and not np.array_equal(found, right, equal_nan=True)
    return f"is not where the elements of {printable(values)} are" if wrong else ""


def _normal(values: Array) -> Array:
    return np.array([0.5 * erfc(-it / sqrt(2)) for it in values])


def _test_continuous(
    law: Callable[[Array], Array], origin: float, scale: float, sample: Array
) -> str:
    """Test a sample of numbers that are all as likely as any other, as levels from 0 to 1.

    Their distances from the law (Dvoretzky, Kiefer, Wolfowitz), and, as numbers of the normal
    distribution, their mean and the mean of their squares (Chernoff).

    Args:
        law: makes levels of numbers that are neither moved nor stretched.
        origin: by how much these are moved.
        scale: by how much they are stretched.
        sample: the numbers.
    """
    numbers = sample.astype(np.float64).reshape(-1)
    if not scale:
        wrong = numbers != np.asarray(origin, sample.dtype)
        return f"has elements that are not {origin:g}" if wrong.any() else ""
    # So far apart levels may lie for want of digits.
    grain = (
        2 * ROUNDOFF[sample.dtype] * max(1.0, max(abs(origin), abs(origin + scale)) / abs(scale))
    )
    levels = np.sort(law((numbers - origin) / scale))
    count = levels.size
    if not count:
        return ""
    if not ((levels >= -grain) & (levels <= 1 + grain)).all():
        return "has elements beyond the range of the distribution"
    bound, steps = log(2 / _FALSE_ALARM), np.arange(count + 1) / count
    distance = max(np.max(steps[1:] - levels), np.max(levels - steps[:-1])) - grain
    if distance > sqrt(bound / (2 * count)):
        return f"does not have the distribution: its levels are off by {distance:.2g}"
    least = max(grain / 2, _LEAST_LEVEL)
    scores = np.array([_INVERSE(it) for it in np.clip(levels, least, 1 - least)])
    mean, square = float(scores.mean()), float((scores**2).mean())
    if abs(mean) > sqrt(2 * bound / count) + _GRAINS * grain:
        return f"does not have the distribution: its mean is off by {mean:.3g} deviations"
    ratio = 1 + np.sign(square - 1) * max(0.0, abs(square - 1) - _GRAINS * grain)
    if count * (ratio - 1 - log(ratio)) > 2 * bound:
        return f"does not have the distribution: its variance is {square:.3g} of what it should be"
    return ""


def _test_chances(chances: Array, sample: Array, alarm: float = _FALSE_ALARM) -> str:
    """Test a sample of zeros and ones by their number, and whether they are where chances are."""
    values = sample.astype(np.float64)
    if not np.isin(values, (0.0, 1.0)).all():
        return "has elements that are neither 0 nor 1"
    certain = (chances <= 0) & (values != 0) | (chances >= 1) & (values != 1)
    if certain.any():
        return "has elements that have no chance"
    inner = np.clip(chances, 0, 1)
    if _is_unlikely(np.ones(inner.shape), inner, values, alarm):
        return f"has {values.sum():g} ones where {inner.sum():.4g} are to be expected"
    if inner.size and _is_unlikely(inner - inner.mean(), inner, values, alarm):
        return "has ones where they are not to be expected"
    return ""


def _is_unlikely(weights: Array, chances: Array, values: Array, alarm: float) -> bool:
    """Tell whether a weighted sum of zeros and ones is as far off with less than a chance.

    Any exponent yields a bound (Chernoff); those near that of a normal distribution are tried.
    """
    off = float((weights * (values - chances)).sum())
    variance = float((weights**2 * chances * (1 - chances)).sum())
    if off * off <= _NEAR_VARIANCES * variance:
        return False
    for power in range(-32, 9):
        with np.errstate(all="ignore"):
            exponent = off / variance * 2 ** (power / 4)
            moment = np.log1p(chances * np.expm1(exponent * weights)) - exponent * weights * chances
        if float(moment.sum()) - exponent * off < log(alarm / 2):
            return True
    return False


def _test_classes(logits: Array, sample: Array) -> str:
    """Test each class in each row, and in all rows together."""
    logits = logits.astype(np.float64)
    rows, classes = logits.shape[0], logits.shape[-1]
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    if not ((sample >= 0) & (sample < classes)).all():
        return "has elements that are not classes"
    drawn_classes = sample.reshape(rows, -1)
    alarm = _FALSE_ALARM / (classes * (rows + 1))
    for one in range(classes):
        found = (drawn_classes == one).astype(np.float64)
        expected = np.broadcast_to(chances[:, one, None], found.shape)
        parts = [("", expected, found)]
        off, variance = (found - expected).sum(axis=1), (expected * (1 - expected)).sum(axis=1)
        far = np.flatnonzero(off * off > _NEAR_VARIANCES * variance)
        parts += [(f" of row {at}", expected[at], found[at]) for at in far]
        for where, likely, values in parts:
            wrong = _test_chances(likely, values, alarm)
            if wrong:
                return f"class {one}{where} {wrong}"
    return ""


def _test_kept(given: Array, kept: float, sample: Array) -> str:
    wide, found = given.astype(np.float64), sample.astype(np.float64)
    ulp = np.spacing(np.abs(wide / kept).astype(sample.dtype)).astype(np.float64)
    scaled = np.abs(found - wide / kept) <= _ROUNDINGS * ulp
    # Infinities stay, and what is dropped of what is not finite may be NaN.
    scaled |= ~np.isfinite(wide) & ((found == wide) | np.isnan(found))
    if not (scaled | (found == 0)).all():
        return f"has elements that are neither 0 nor scaled by {1 / kept:g}"
    sure = _surely_seen(given)
    return _test_chances(np.full(int(sure.sum()), kept), (found != 0)[sure])


def _surely_seen(given: Array) -> Array:
    """Tell which elements are not zero, however they are flushed, nor NaN if they are dropped."""
    return np.isfinite(given) & (np.abs(given) >= smallest_normal(given.dtype))


def _test_mask(given: Array, kept: str, mask: str, outputs: Mapping[str, Value]) -> str:
    found, at = outputs.get(kept), outputs[mask]
    if not isinstance(found, np.ndarray) or found.shape != given.shape:
        return ""
    wrong = _surely_seen(given) & ((found != 0) != np.asarray(at))
    return f"is not what {printable(kept)} has kept" if wrong.any() else ""
