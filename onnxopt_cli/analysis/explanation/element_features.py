"""Features of the elements of an output: statements that hold for some elements and not for others.

A feature describes one of the following: the position of the element, its right value, the position
of its window, or the values of the input elements from which it is computed. Conditions on elements
consist of features, just as conditions on nodes consist of traits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.analysis.explanation.features import are_inexact_in_float32
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.node_mutants import FLAGS

#: The largest number of elements of an examined output.
MAX_OUTPUT_ELEMENTS = 1 << 12
# Largest number of inputs whose elements are examined. A limit is needed, because an operator such
# as Sum may have many inputs, and every pair of inputs has features.
_MAX_OPERANDS = 8
# Position of the first spatial axis, after the batch and the channels.
_SPATIAL = 2
# Vector units compute blocks of this number of elements. The elements after the last full block
# are often computed separately.
_BLOCK_SIZES = (4, 8, 16)
# The names of axes in statements, by the index of the axis.
_PLACES = {0: "first", 1: "second", -1: "last"}
# Operators that compute each element from a window of the input.
_WINDOWED = frozenset({
    "AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv",
})  # fmt: skip


@dataclass(slots=True)
class ElementFeatures:
    """The features of the elements of one output of a node.

    Attributes:
        size: the number of elements.
        flags: for each statement, a flat mask of the elements for which the statement holds.
        numbers: for each name, such as "the right value", a number for each element in flat order;
            NaN if an element has no such number.
        operands: for each input's name, the input element that belongs to each output element.
        undecided: for some statements, a flat mask of the elements in which a fault would be
            invisible.
    """

    size: int
    flags: dict[str, Array] = field(default_factory=dict)
    numbers: dict[str, Array] = field(default_factory=dict)
    operands: dict[str, Array] = field(default_factory=dict)
    undecided: dict[str, Array] = field(default_factory=dict)


def element_features(node: BoundNode, right: Array) -> ElementFeatures:
    """Return the features of the elements of an output.

    Args:
        node: the node with its inputs.
        right: the right output.
    """
    features = ElementFeatures(right.size)
    with np.errstate(all="ignore"):
        features.flags.update(_positions(node, right.shape))
        _add_values(features, "the right value", right)
        for name, values in _aligned_operands(node, right.shape):
            features.operands[name] = values.reshape(-1)
            _add_values(features, f"the element of {name}", values)
            features.flags.update(_comparisons_with_attributes(node, name, values))
        features.flags.update(_comparisons(features.operands))
        features.flags.update(_reduced(node, right.shape))
        features.flags.update(_windows(node, right.shape))
        features.flags.update(_borders(node, right.shape))
    features.flags = {text: mask.reshape(-1) for text, mask in features.flags.items()}
    return features


def _positions(node: BoundNode, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield statements about the index of an element along an axis."""
    indices = np.indices(shape, sparse=True)
    named = [(place, f"the {word} axis") for place, word in _PLACES.items()]
    axis, x = node.attribute("axis"), node.operand(0)
    # If output and input differ in rank, the output may lack the axis that the attribute names.
    if isinstance(axis, int) and x is not None and x.ndim == len(shape):
        named.append((axis, "the axis that the attribute names"))
    for place, words in named:
        if not -len(shape) <= place < len(shape):
            continue
        index, length = indices[place], shape[place]
        for text, holds in (
            ("is 0", index == 0),
            ("is not 0", index > 0),
            ("is the last one", index == length - 1),
            ("is not the last one", index < length - 1),
            ("is odd", index % 2 == 1),
            ("is even", index % 2 == 0),
        ):
            yield f"the index along {words} {text}", np.broadcast_to(holds, shape)
    for name, entry in node.schema.attributes.items():
        value = node.attribute(name)
        if attribute_type(entry) == "INT" and name not in FLAGS and value and shape:
            index = indices[-1]
            yield (
                f"the index along the last axis is at least {name}",
                np.broadcast_to(index >= value, shape),
            )
            yield (
                f"the index along the last axis is less than {name}",
                np.broadcast_to(index < value, shape),
            )
    size = math.prod(shape)
    for block in _BLOCK_SIZES:
        if size > block and size % block:
            tail = np.arange(size).reshape(shape) >= size - size % block
            yield f"the element is among the last n mod {block} of n elements", tail
    if len(shape) > 1 and shape[-1] == shape[-2]:
        rows, columns = indices[-2], indices[-1]
        yield "the element is above the diagonal", np.broadcast_to(columns > rows, shape)
        yield "the element is below the diagonal", np.broadcast_to(columns < rows, shape)


def _add_values(features: ElementFeatures, name: str, values: Array) -> None:
    """Add the statements about the values of elements, and the values as numbers."""
    if values.dtype == bool:
        features.flags[f"{name} is true"] = values
        features.flags[f"{name} is false"] = ~values
        return
    if not _is_numeric(values):
        return
    is_float = "float" in values.dtype.name
    wide = values.astype(np.float64)
    statements: dict[str, Array] = {
        "is negative": wide < 0,
        "is 0": wide == 0,
        "is positive": wide > 0,
        "is not positive": wide <= 0,
        "is not negative": wide >= 0,
    }
    if is_float:
        statements |= {
            "is NaN": np.isnan(wide),
            "is infinite": np.isinf(wide),
            "is not finite": ~np.isfinite(wide),
            "is a negative zero": (wide == 0) & np.signbit(wide),
            "is halfway between integers": np.abs(wide % 1) == 0.5,  # noqa: PLR2004 - a half
            "is not an integer": np.isfinite(wide) & (wide != np.round(wide)),
        }
        # Few faults are visible in zeros, infinities and NaN.
        silent = (wide == 0) | ~np.isfinite(wide)
        features.undecided[f"{name} is not an integer"] = silent.reshape(-1)
    else:
        limits = np.iinfo(values.dtype)
        statements |= {
            "is odd": values % 2 == 1,
            "is the smallest value of its type": values == limits.min,
            "is the largest value of its type": values == limits.max,
            "is the smallest or largest value of its type": (values == limits.min)
            | (values == limits.max),
            "is not exact in float32": are_inexact_in_float32(values),
        }
    features.flags.update({f"{name} {text}": holds for text, holds in statements.items()})
    features.numbers[name] = wide.reshape(-1)
    features.numbers[f"the magnitude of {name}"] = np.abs(wide).reshape(-1)


def _aligned_operands(node: BoundNode, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Broadcast inputs to the shape of an output; yield their names and the broadcast inputs.

    Inputs that cannot be broadcast are skipped. Only the first _MAX_OPERANDS inputs are tried.
    """
    formals = list(node.schema.inputs)
    for place, value in enumerate(node.operands[:_MAX_OPERANDS]):
        if not isinstance(value, np.ndarray) or not formals:
            continue
        formal = formals[min(place, len(formals) - 1)].name
        beyond = place - len(formals) + 1
        try:
            yield f"{formal}_{beyond}" if beyond > 0 else formal, np.broadcast_to(value, shape)
        except ValueError:
            continue


def _comparisons_with_attributes(
    node: BoundNode, name: str, values: Array
) -> Iterator[tuple[str, Array]]:
    """Yield comparisons of the elements of an input with those attributes that are floats."""
    if not _is_numeric(values):
        return
    for attribute, entry in node.schema.attributes.items():
        value = node.attribute(attribute)
        if attribute_type(entry) != "FLOAT" or value is None:
            continue
        limit = np.asarray(value).astype(values.dtype).astype(np.float64)
        wide = values.astype(np.float64)
        yield f"the element of {name} equals {attribute}", wide == limit
        yield f"the element of {name} is above {attribute}", wide > limit
        yield f"the element of {name} is below {attribute}", wide < limit
        yield f"the magnitude of the element of {name} is above {attribute}", np.abs(wide) > limit
        yield (
            f"the magnitude of the element of {name} is at most {attribute}",
            np.abs(wide) <= limit,
        )


def _comparisons(operands: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield comparisons of the elements of two inputs."""
    # Integers are not converted, because different integers may become equal as doubles.
    numeric = {
        name: values if values.dtype.kind in "iu" else values.astype(np.float64)
        for name, values in operands.items()
        if _is_numeric(values)
    }
    for (first, left), (second, right) in combinations(numeric.items(), 2):
        words = f"the element of {first} {{}} that of {second}"
        yield words.format("is above"), left > right
        yield words.format("is below"), left < right
        yield words.format("equals"), left == right
        yield (
            f"the elements of {first} and {second} have opposite signs",
            np.sign(left) * np.sign(right) < 0,
        )
        yield f"the elements of {first} and {second} are negative", (left < 0) & (right < 0)


def axes_of(node: BoundNode) -> tuple[int, ...] | None:
    """Return the axes along which a node reduces; None if the node does not name axes."""
    first = node.operand(0)
    if first is None or not first.ndim:
        return None
    axes: Any = node.attribute("axes")
    for place, formal in enumerate(node.schema.inputs):
        operand = node.operand(place)
        if formal.name in {"axes", "axis"} and operand is not None and operand.dtype.kind == "i":
            axes = operand.reshape(-1).tolist()
    if axes is None and isinstance(node.attribute("axis"), int):
        axes = [node.attribute("axis")]
    is_reduction = node.node.op_type.startswith("Reduce")
    if is_reduction and not axes and not node.attribute("noop_with_empty_axes"):
        axes = list(range(first.ndim))
    if not axes or not all(-first.ndim <= axis < first.ndim for axis in axes):
        return None
    return tuple(dict.fromkeys(axis % first.ndim for axis in axes))


def _reduced(node: BoundNode, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield statements about the input elements that a reduction combines into one element.

    Only the elements of the first input are examined.
    """
    x, axes = node.operand(0), axes_of(node)
    if x is None or axes is None or not x.size:
        return
    if not _is_numeric(x):
        return
    is_float = "float" in x.dtype.name
    wide = x.astype(np.float64)
    largest = np.asarray(wide.max(axes, keepdims=True))
    smallest = np.asarray(wide.min(axes, keepdims=True))
    along = "along the axis" if len(axes) == 1 else "along the axes"
    statements: dict[str, Any] = {
        "are all negative": largest < 0,
        "include a negative one": smallest < 0,
        "include a zero": (wide == 0).any(axes, keepdims=True),
        "are all 0": (wide == 0).all(axes, keepdims=True),
        "are all equal": largest == smallest,
        "include their maximum twice": (wide == largest).sum(axes, keepdims=True) > 1,
        "include their minimum twice": (wide == smallest).sum(axes, keepdims=True) > 1,
    }
    if is_float:
        statements |= {
            "include a NaN": np.isnan(wide).any(axes, keepdims=True),
            "include an infinity": np.isinf(wide).any(axes, keepdims=True),
        }
    name = node.schema.inputs[0].name
    for text, holds in statements.items():
        squeezed = tuple(length for axis, length in enumerate(holds.shape) if axis not in axes)
        mask = holds.reshape(shape) if squeezed == shape else holds
        if mask.ndim != len(shape):
            # The node inserts axes, as Gather does. Broadcasting would then align the wrong axes.
            return
        try:
            yield f"the elements of {name} {along} {text}", np.broadcast_to(mask, shape)
        except ValueError:
            return


def _windows(node: BoundNode, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield statements about the window of an element of a convolution or pooling."""
    x = node.operand(0)
    if node.node.op_type not in _WINDOWED or x is None or x.ndim != len(shape):
        return
    rank = x.ndim - _SPATIAL
    kernel = node.attribute("kernel_shape")
    weights = node.operand(3 if node.node.op_type == "QLinearConv" else 1)
    if kernel is None and weights is not None:
        kernel = list(weights.shape[_SPATIAL:])
    if rank < 1 or kernel is None or len(kernel) != rank:
        return
    strides = node.attribute("strides") or [1] * rank
    dilations = node.attribute("dilations") or [1] * rank
    pads = _begin_pads(node, shape, kernel, strides, dilations)
    before, after, beyond = (np.zeros(shape, bool) for _ in range(3))
    stated = node.attribute("pads") or [0] * (2 * rank)
    has_stated = node.attribute("auto_pad") in (None, b"NOTSET", b"VALID")
    for place in range(rank):
        axis = place + _SPATIAL
        start = np.arange(shape[axis]) * strides[place] - pads[place]
        end = start + (kernel[place] - 1) * dilations[place]
        like = [1] * len(shape)
        like[axis] = -1
        before |= (start < 0).reshape(like)
        after |= (end >= x.shape[axis]).reshape(like)
        if has_stated:
            beyond |= (end >= x.shape[axis] + stated[rank + place]).reshape(like)
    yield "the window begins before the input", before
    yield "the window ends after the input", after
    yield "the window leaves the input", before | after
    yield "the window is inside the input", ~(before | after)
    yield "the window ends after the padding", beyond


def _begin_pads(
    node: BoundNode,
    shape: tuple[int, ...],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
) -> list[int]:
    """Return the padding at the beginning of each spatial axis."""
    rank = len(kernel)
    auto_pad = node.attribute("auto_pad")
    x = node.operand(0)
    if auto_pad in (None, b"NOTSET") or x is None:
        return list(node.attribute("pads") or [0] * rank)[:rank]
    if auto_pad == b"VALID":
        return [0] * rank
    pads = []
    for place in range(rank):
        axis = place + _SPATIAL
        span = (kernel[place] - 1) * dilations[place] + 1
        total = max(0, (shape[axis] - 1) * strides[place] + span - x.shape[axis])
        pads.append((total + (auto_pad == b"SAME_LOWER")) // 2)
    return pads


def _borders(node: BoundNode, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield statements about the border that Pad adds."""
    x, pads = node.operand(0), node.operand(1)
    if node.node.op_type != "Pad" or x is None or x.ndim != len(shape):
        return
    widths: Any = node.attribute("pads") if pads is None else pads.tolist()
    axes = node.operand(3)
    named = list(range(x.ndim)) if axes is None else [int(axis) % x.ndim for axis in axes]
    if not widths or len(widths) != 2 * len(named):
        return
    before, after = np.zeros(shape, bool), np.zeros(shape, bool)
    for place, axis in enumerate(named):
        index = np.arange(shape[axis])
        like = [1] * len(shape)
        like[axis] = -1
        before |= (index < widths[place]).reshape(like)
        after |= (index >= shape[axis] - widths[len(named) + place]).reshape(like)
    yield "the element is in the border", before | after
    yield "the element is in the border at the beginning of an axis", before
    yield "the element is in the border at the end of an axis", after


# Contents -----------------------------------------------------------------------------------------

# A content is a statement about wrong elements or about a wrong output.

#: The statement about an output with the right elements in the wrong places.
REORDERED = "has the right elements in another order"
# Statements about the length of an axis of a wrong output; {} is the axis.
_TOO_SHORT, _TOO_LONG = "has a {} axis that is too short", "has a {} axis that is too long"
#: Statements that are used only if no other statement about the output holds.
BROAD_CONTENTS = frozenset(
    text.format(word) for text in (_TOO_SHORT, _TOO_LONG) for word in _PLACES.values()
)
#: Statements that hold for the outputs of many mistakes.
WEAK_CONTENTS = frozenset({"are too large", "are too small"})
# If wrong elements are described as a multiple of the right elements, they may differ from the
# multiple by _CONTENT_ROUNDINGS machine epsilons.
_CONTENT_ROUNDINGS = 64
# In types of few digits, this relative difference is limited to _MAX_CONTENT_RTOL or to
# _MIN_ROUNDINGS machine epsilons, whichever is larger. It never exceeds _LARGEST_RTOL, so that
# different multiples can be distinguished.
_MAX_CONTENT_RTOL, _MIN_ROUNDINGS, _LARGEST_RTOL = 0.01, 4, 0.1
# Integers of more bytes than this may differ although they are the same double.
_EXACT_INTEGER_BYTES = 4
# A wrong order of the right elements may be a coincidence if the right output has at most
# _MIN_DISTINCT different values.
_MIN_DISTINCT = 3


def wrong_content(
    features: ElementFeatures, right: Array, returned: Value, wrong: Array | None
) -> frozenset[str]:
    """Return the statements that hold for all wrong elements of an output, or for the whole output.

    A statement about the elements begins with "are". A statement about the output begins with
    "has".

    Args:
        features: the features of the elements of the right output.
        right: the right output.
        returned: the output of the backend.
        wrong: the wrong elements; None if the type or shape is wrong.
    """
    if not isinstance(returned, np.ndarray):
        return frozenset()
    if wrong is None:
        return frozenset(_structures(right, returned))
    with np.errstate(all="ignore"):
        return frozenset(_contents(features, right, returned, wrong))


def _structures(right: Array, returned: Array) -> Iterator[str]:
    """Yield statements about an output of a wrong type or shape."""
    if returned.dtype != right.dtype:
        if returned.shape == right.shape:
            yield f"has the type {returned.dtype.name}"
        return
    is_flat = returned.ndim == 1 and returned.size == right.size
    is_squeezed = _without_ones(returned) == _without_ones(right)
    statements = {
        "has the right number of elements in another shape": returned.size == right.size,
        "has a single axis": is_flat,
        "has the right shape with the axes in reverse order": returned.shape == right.shape[::-1],
        "has axes of the right lengths in another order": sorted(returned.shape)
        == sorted(right.shape),
        "lacks axes of length 1": is_squeezed and returned.ndim < right.ndim,
        "has additional axes of length 1": is_squeezed and returned.ndim > right.ndim,
    }
    if returned.ndim == right.ndim:
        steps = np.subtract(returned.shape, right.shape)
        changed = steps[steps != 0]
        statements["has axes that are one element too long"] = (changed == 1).all()
        statements["has axes that are one element too short"] = (changed == -1).all()
        statements |= _lengths(right, returned)
    yield from (text for text, holds in statements.items() if holds)


def _lengths(right: Array, returned: Array) -> dict[str, Any]:
    """Return statements about the axes of an output that are too short or too long."""
    statements: dict[str, Any] = {}
    for place, word in _PLACES.items():
        if not -right.ndim <= place < right.ndim:
            continue
        step = returned.shape[place] - right.shape[place]
        statements[_TOO_SHORT.format(word)] = step < 0
        statements[_TOO_LONG.format(word)] = step > 0
        text = f"has the right values without some indices of the {word} axis"
        statements[text] = step < 0 and _is_part(returned, right, place)
    return statements


def _is_part(part: Array, whole: Array, axis: int) -> bool:
    """Return whether a nonempty part equals the whole tensor without some indices of an axis."""
    if not part.size or any(np.delete(part.shape, axis) != np.delete(whole.shape, axis)):
        return False
    slices = iter(np.moveaxis(whole, axis, 0))
    return all(
        any(_equal(kept_slice, whole_slice).all() for whole_slice in slices)
        for kept_slice in np.moveaxis(part, axis, 0)
    )


def _without_ones(array: Array) -> tuple[int, ...]:
    return tuple(length for length in array.shape if length != 1)


def _contents(
    features: ElementFeatures, right: Array, returned: Array, wrong: Array
) -> Iterator[str]:
    """Yield statements about the values of wrong elements."""
    if not wrong.any():
        return
    if _in_order(right) == _in_order(returned):
        yield REORDERED
    if right.dtype == bool:
        values = returned.reshape(-1)[wrong]
        yield from [
            text for text, holds in (("are true", values), ("are false", ~values)) if holds.all()
        ]
    if not _is_numeric(right):
        return
    before, after = right.reshape(-1)[wrong], returned.reshape(-1)[wrong]
    statements = {**_changes(before, after), **_moves(right, before, after, wrong)}
    for name, values in features.operands.items():
        if values.dtype == right.dtype:
            statements[f"are the elements of {name}"] = _equal(after, values[wrong])
    yield from (text for text, holds in statements.items() if holds.all())


def _in_order(array: Array) -> list[str]:
    """Return the elements of a tensor as sorted strings; NaN cannot be sorted as a number."""
    return sorted(map(str, array.reshape(-1).tolist()))


def _changes(before: Array, after: Array) -> dict[str, Array]:
    """Return statements that compare wrong elements with the right elements."""
    is_integer = before.dtype.kind in "iu"
    # Integers of 64 bits are compared as Python's integers, because doubles would round them.
    kind = object if is_integer and before.dtype.itemsize > _EXACT_INTEGER_BYTES else np.float64
    old, new = before.astype(kind), after.astype(kind)
    difference = new - old
    is_negative = old < 0 if is_integer else np.signbit(old)
    epsilon = _epsilon(before)
    rtol_of_few_digits = max(_MAX_CONTENT_RTOL, _MIN_ROUNDINGS * epsilon)
    rtol = min(_CONTENT_ROUNDINGS * epsilon, rtol_of_few_digits, _LARGEST_RTOL)
    statements = {
        "are 0": after == 0,
        "are 1": after == 1,
        "are the right values with the opposite sign": _near(new, -old, rtol),
        # Only negative values can lose their sign. A positive value may differ merely by roundings.
        "are the right values without their signs": _near(new, np.abs(old), rtol) & is_negative,
        "are twice the right values": _near(new, 2 * old, rtol) & (old != 0),
        "are half the right values": _near(2 * new, old, rtol) & (old != 0),
        "are 1 away from the right values": np.abs(difference) == 1,
        "are too large by 1": difference == 1,
        "are too small by 1": difference == -1,
        "are too large": new > old,
        "are too small": new < old,
    }
    if is_integer:
        limits = np.iinfo(before.dtype)
        statements["are the largest value of their type"] = after == limits.max
        statements["are the smallest value of their type"] = after == limits.min
    else:
        statements["are NaN"] = np.isnan(new)
        statements["are infinite"] = np.isinf(new)
    return {text: np.asarray(holds, bool) for text, holds in statements.items()}


def _near(first: Array, second: Array, rtol: float) -> Array:
    if first.dtype == object:
        return np.asarray(first == second, bool)
    return np.asarray(np.isclose(first, second, rtol=rtol, atol=0))


def _moves(right: Array, before: Array, after: Array, wrong: Array) -> dict[str, Array]:
    """Return statements that wrong elements equal the right element at a neighbouring index.

    The result maps each statement to a mask of the wrong elements for which it holds.
    """
    statements = {}
    for place, word in _PLACES.items():
        if not -right.ndim <= place < right.ndim:
            continue
        for step, neighbour in ((1, "preceding"), (-1, "following")):
            moved = np.roll(right, step, place).reshape(-1)[wrong]
            text = f"are the right values of the {neighbour} index along the {word} axis"
            statements[text] = _equal(moved, after) & ~_equal(moved, before)
    return statements


def _equal(first: Array, second: Array) -> Array:
    """Return a mask of the elements that are equal or both NaN."""
    return np.asarray((first == second) | ((first != first) & (second != second)))  # noqa: PLR0124


def is_varied(right: Array) -> bool:
    """Return whether an output has enough different elements to show a wrong order."""
    return _is_numeric(right) and np.unique(right).size > _MIN_DISTINCT


def _epsilon(array: Array) -> float:
    """Return the machine epsilon of a tensor's type; 0 for integers."""
    if array.dtype.kind in "iu":
        return 0.0
    return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]


def _is_numeric(array: Array) -> bool:
    """Return whether the elements of a tensor are integers or floats."""
    return array.dtype.kind in "iu" or "float" in array.dtype.name
