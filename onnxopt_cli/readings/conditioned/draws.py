"""What random operators may yield: type and shape, and a test of the distribution.

A right sample is rejected with a probability below 1e-9 for each output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import erf, log, sqrt
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.tolerance import Drawn
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.formula.nodes import all_nodes

_NORMAL = frozenset({"RandomNormal", "RandomNormalLike"})
_UNIFORM = frozenset({"RandomUniform", "RandomUniformLike"})
_RANDOM = _NORMAL | _UNIFORM | {"Bernoulli", "Multinomial", "Dropout"}
_FALSE_ALARM = 1e-10
# A scaled element that was kept is off by a few roundings.
_ROUNDINGS = 16
# From this version on, a Dropout without the input training_mode drops nothing.
_NEVER_TRAINS, _MAY_TRAIN = 7, 12
_RATIO, _TRAINING = 1, 2


def drawn(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> dict[str, Drawn]:
    """Return by what to judge the outputs of a model that draws numbers; empty if it draws none.

    Where several nodes make an output, only its type and shape are judged.
    """
    versions = {it.domain: it.version for it in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 0))
    nodes = list(all_nodes(model))
    if not any(_is_random(node, version, inputs) for node in nodes):
        return {}
    names = [output.name for output in model.graph.output]
    laws = dict.fromkeys(names, Drawn("any values of this type and shape", lambda _sample: ""))
    if len(nodes) == 1:
        laws |= {name: law for name, law in _laws(nodes[0], inputs) if name in laws}
    return laws


def _is_random(node: onnx.NodeProto, version: int, inputs: Mapping[str, Value]) -> bool:
    if node.op_type not in _RANDOM or node.domain not in {"", "ai.onnx"}:
        return False
    if node.op_type != "Dropout":
        return True
    if version < _MAY_TRAIN:
        return version < _NEVER_TRAINS
    if len(node.input) <= _TRAINING or not node.input[_TRAINING]:
        return False
    training = inputs.get(node.input[_TRAINING])
    return not isinstance(training, np.ndarray) or bool(training.any())


def _laws(node: onnx.NodeProto, inputs: Mapping[str, Value]) -> Iterator[tuple[str, Drawn]]:
    given = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
    first: Any = inputs.get(node.input[0]) if node.input else None
    test: Callable[[Array], str]
    if node.op_type in _NORMAL:
        mean, scale = given.get("mean", 0.0), given.get("scale", 1.0)
        law = f"normal, mean {mean:g}, deviation {scale:g}"
        test = partial(_test_continuous, lambda it: _normal((it - mean) / scale))
    elif node.op_type in _UNIFORM:
        low, high = given.get("low", 0.0), given.get("high", 1.0)
        law = f"uniform from {low:g} to {high:g}"
        test = partial(_test_continuous, lambda it: (it - low) / (high - low))
    elif not isinstance(first, np.ndarray):
        return
    elif node.op_type == "Bernoulli":
        chances = first.astype(np.float64)
        law, test = "1 with the given chances, else 0", partial(_test_chances, chances)
    elif node.op_type == "Multinomial":
        law, test = "classes with the given chances", partial(_test_classes, first)
    else:
        ratio = inputs.get(node.input[_RATIO]) if node.input[_RATIO] else np.asarray(0.5)
        if not isinstance(ratio, np.ndarray) or not 0 <= float(ratio.reshape(-1)[0]) < 1:
            return
        kept = 1 - float(ratio.reshape(-1)[0])
        law, test = f"each element is kept with chance {kept:g}", partial(_test_kept, first, kept)
        if len(node.output) > 1:
            chances = np.full(first.shape, kept)
            yield (
                node.output[1],
                Drawn(f"true with chance {kept:g}", partial(_test_chances, chances)),
            )
    yield node.output[0], Drawn(law, test)


def _normal(values: Array) -> Array:
    return np.array([0.5 + 0.5 * erf(it / sqrt(2)) for it in values])


def _test_continuous(distribution: Callable[[Array], Array], sample: Array) -> str:
    """Test a sample by the distance of distributions (Dvoretzky, Kiefer, Wolfowitz) and its mean.

    Both are tested on what the distribution function makes of the sample: numbers from 0 to 1, all
    as likely as any other.
    """
    levels = np.sort(distribution(sample.astype(np.float64).reshape(-1)))
    count = levels.size
    if not count:
        return ""
    if not ((levels >= 0) & (levels <= 1)).all():
        return "has elements beyond the range of the distribution"
    steps = np.arange(count + 1) / count
    distance = max(np.max(steps[1:] - levels), np.max(levels - steps[:-1]))
    if distance > sqrt(log(2 / _FALSE_ALARM) / (2 * count)):
        return f"does not have the distribution: its levels are off by {distance:.2g}"
    mean = float(levels.mean())
    if abs(mean - 0.5) > _allowed(np.full(count, 1 / 12)) / count:
        return f"does not have the distribution: the mean of its levels is {mean:.3g}, not 0.5"
    return ""


def _allowed(variances: Array) -> float:
    """Return how far a sum of numbers, each within 1 of its mean, may be off (Bernstein)."""
    bound = log(2 / _FALSE_ALARM)
    total = float(variances.sum())
    return bound / 3 + sqrt(bound * bound / 9 + 2 * bound * total)


def _test_chances(chances: Array, sample: Array) -> str:
    values = sample.astype(np.float64)
    if not np.isin(values, (0.0, 1.0)).all():
        return "has elements that are neither 0 nor 1"
    certain = (chances <= 0) & (values != 0) | (chances >= 1) & (values != 1)
    if certain.any():
        return "has elements that have no chance"
    inner = np.clip(chances, 0, 1)
    off = abs(float((values - inner).sum()))
    if off > _allowed(inner * (1 - inner)):
        return f"has {values.sum():g} ones where {inner.sum():.4g} are to be expected"
    return ""


def _test_classes(logits: Array, sample: Array) -> str:
    logits = logits.astype(np.float64)
    classes = logits.shape[-1]
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    if not ((sample >= 0) & (sample < classes)).all():
        return "has elements that are not classes"
    for row, drawn_classes in enumerate(sample.reshape(len(logits), -1)):
        for one in range(classes):
            found = (drawn_classes == one).astype(np.float64)
            wrong = _test_chances(np.full(found.shape, chances[row, one]), found)
            if wrong:
                return f"class {one} of row {row} {wrong}"
    return ""


def _test_kept(given: Array, kept: float, sample: Array) -> str:
    wide, found = given.astype(np.float64), sample.astype(np.float64)
    ulp = np.spacing(np.abs(wide / kept).astype(sample.dtype)).astype(np.float64)
    scaled = np.abs(found - wide / kept) <= _ROUNDINGS * ulp
    if not (scaled | (found == 0)).all():
        return f"has elements that are neither 0 nor scaled by {1 / kept:g}"
    sure = wide != 0
    return _test_chances(np.full(int(sure.sum()), kept), (found != 0)[sure])
