"""Changes of a single property of a node, such as an attribute, a type, a length or a value class.

Each change leaves everything else equal. The changed nodes need not be valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from onnx import defs

from onnxopt_cli.analysis.counterfactuals import SingleChange
from onnxopt_cli.core.values import Array
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.node_mutants import FLAGS, choices

_Changes: TypeAlias = Iterator[SingleChange[BoundNode]]
_OPTION = defs.OpSchema.FormalParameterOption
#: The name of an input in statements about all inputs.
ANY_INPUT = "any input"
# The names of axes in statements, by index.
_AXES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
# Types to which inputs are converted.
_TYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8")
# Limits of magnitudes by their texts, the weakest change first.
_LARGEST_MAGNITUDES = {"2^53": 2.0**53, "2^24": 2.0**24, "1000": 1000.0, "10": 10.0, "1": 1.0}
_SMALLEST_MAGNITUDES = {"0.001": 1e-3, "0.1": 0.1, "1": 1.0}
_LENGTHS = (64, 16, 4, 2)
# Largest number of inputs that are changed separately.
_MAX_CHANGED = 6
# Largest numbers of inputs of an operator with any number of inputs.
_COUNTS = (3, 2, 1)
# An input with at most _MAX_PARAMETERS integers is probably a parameter, such as axes or sizes.
_MAX_PARAMETERS = 16


def single_changes(node: BoundNode) -> _Changes:
    """Yield the changes of a node, the most specific first."""
    with np.errstate(all="ignore"):
        few = _tensors(node)[:_MAX_CHANGED]
        for place, name, array in few:
            for text, changed in without_values(array):
                if not is_same(changed, array):
                    yield SingleChange(text, text.format(name), node.with_operand(place, changed))
        yield from _relations(node)
        yield from _attributes(node)
        yield from _parameters(node)
        yield from _inputs(node)
        yield from _types(node)
        for place, name, array in few:
            for aspect, text, changed in limited_magnitudes(name, array):
                yield SingleChange(aspect, text, node.with_operand(place, changed))
        yield from _in_several_inputs(node)
        yield from _shapes(node)
        yield from _sequences(node)
        for place, name, array in few:
            for text, changed in constants(array):
                if not is_same(changed, array):
                    new = node.with_operand(place, changed)
                    yield SingleChange(f"constant {name}", text.format(name), new)


def _tensors(node: BoundNode) -> list[tuple[int, str, Array]]:
    """Return the inputs that are tensors with elements: the position, the name and the value."""
    formals = [formal.name for formal in node.schema.inputs]
    last = len(formals) - 1
    return [
        (place, formals[place] if place <= last else f"{formals[last]}_{place - last}", array)
        for place in range(len(node.names))
        if (array := node.operand(place)) is not None and array.size and formals
    ]


def _is_float(array: Array) -> bool:
    return "float" in array.dtype.name


def is_same(first: Array, second: Array) -> bool:
    """Return whether two tensors are equal, including the signs of zeros and NaN."""
    if first.dtype == object:
        return first.shape == second.shape and first.tolist() == second.tolist()
    return (first.dtype, first.shape, first.tobytes()) == (
        second.dtype, second.shape, second.tobytes())  # fmt: skip


# Values -------------------------------------------------------------------------------------------


def without_values(array: Array) -> Iterator[tuple[str, Array]]:
    """Yield copies of a tensor without one class of values; {} in the text is its name."""
    if array.dtype == object:
        yield from _strings(array)
    elif array.dtype == bool:
        yield "all elements of {} are true", np.ones_like(array)
        yield "all elements of {} are false", np.zeros_like(array)
    elif _is_float(array) or array.dtype.kind in "iu":
        if _is_float(array):
            yield from _floats(array)
        yield "no element of {} is 0", np.where(array == 0, array.dtype.type(1), array)
        yield "all elements of {} are different", _distinct(array)
        if array.dtype.kind != "u":
            # NaN and zeros keep their signs.
            yield "no element of {} is negative", np.where(array < 0, -array, array)
            yield "no element of {} is positive", np.where(array > 0, -array, array)
        if not _is_float(array):
            yield "no element of {} is odd", array - array % 2


def _floats(array: Array) -> Iterator[tuple[str, Array]]:
    wide = array.astype(np.float64)
    is_nan, is_negative = np.isnan(wide), np.signbit(wide)
    replaced: tuple[tuple[str, Array, Any], ...] = (
        ("no NaN of {} has a sign bit", is_nan & is_negative, np.nan),
        ("no element of {} is NaN", is_nan, 1.5),
        ("no element of {} is a negative zero", (wide == 0) & is_negative, 0.0),
        ("no element of {} is infinite", np.isinf(wide), 3.5 * np.sign(wide)),
        ("no element of {} is halfway between integers", np.abs(wide % 1) == 0.5,  # noqa: PLR2004
         wide + 0.25),
    )  # fmt: skip
    for text, mask, values in replaced:
        yield text, np.where(mask, np.asarray(values).astype(array.dtype), array)
    yield "all elements of {} are integers", np.asarray(np.rint(wide)).astype(array.dtype)


def _strings(array: Array) -> Iterator[tuple[str, Array]]:
    changes: dict[str, Callable[[str], str]] = {
        "no character of {} is outside ASCII": lambda text: (
            text.encode("ascii", "replace").decode().replace("?", "q")
        ),
        "no letter of {} is in upper case": str.lower,
        "no element of {} is empty": lambda text: text or "q",
        "no element of {} is longer than one character": lambda text: text[:1],
    }
    elements = [str(element) for element in array.reshape(-1)]
    for text, change in changes.items():
        yield text, np.array([*map(change, elements)], object).reshape(array.shape)
    numbered = [f"{element}{number}" for number, element in enumerate(elements)]
    if len({*elements}) < len(elements):
        yield "all elements of {} are different", np.array(numbered, object).reshape(array.shape)


def _distinct(array: Array) -> Array:
    """Replace elements that are equal to an earlier element by unused small integers.

    The tensor is returned unchanged if its type has too few integers.
    """
    flat = array.reshape(-1)
    values, first = np.unique(flat.astype(np.float64), return_index=True)
    repeated = np.setdiff1d(np.arange(flat.size), first)
    unused = np.setdiff1d(np.arange(1, 2 * flat.size + 1), values)[: repeated.size]
    numbers = unused.astype(array.dtype)
    if not np.array_equal(numbers.astype(np.float64), unused):
        return array
    changed = np.array(flat)
    changed[repeated] = numbers
    return changed.reshape(array.shape)


def constants(array: Array) -> Iterator[tuple[str, Array]]:
    """Yield tensors of equal numbers, with the type and shape of a tensor."""
    if _is_float(array) or array.dtype.kind in "iu":
        yield "all elements of {} are 0", np.zeros_like(array)
        yield "all elements of {} are 1", np.ones_like(array)


def _relations(node: BoundNode) -> _Changes:
    """Yield changes after which the elements of two inputs are nowhere equal."""
    numeric = [item for item in _tensors(node) if item[2].dtype.kind in "fiu"]
    for (_, first, left), (place, second, right) in combinations(numeric[:3], 2):
        if left.dtype != right.dtype:
            continue
        try:
            is_equal = np.broadcast_to(left, right.shape) == right
        except ValueError:
            continue
        if is_equal.any():
            moved = np.where(is_equal, right + right.dtype.type(1), right).astype(right.dtype)
            text = f"no element of {second} equals that of {first}"
            yield SingleChange(text, text, node.with_operand(place, moved))


def _in_several_inputs(node: BoundNode) -> _Changes:
    """Yield changes after which no input has values of a class, or large or small numbers."""
    changed_nodes: dict[str, SingleChange[BoundNode]] = {}
    tensors = _tensors(node)[:_MAX_CHANGED]
    for place, _, array in tensors if len(tensors) > 1 else ():
        for aspect, text, changed in changes_without(ANY_INPUT, array):
            if not is_same(changed, array):
                earlier = changed_nodes[text].changed if text in changed_nodes else node
                new = earlier.with_operand(place, changed)
                changed_nodes[text] = SingleChange(aspect, text, new)
    yield from changed_nodes.values()


def changes_without(name: str, array: Array) -> Iterator[tuple[str, str, Array]]:
    """Yield copies of a tensor without a class of values, or without large or small numbers.

    The arguments and the results are those of :func:`limited_magnitudes`.
    """
    for text, changed in without_values(array):
        if text.startswith("no "):
            yield text, text.format(name), changed
    yield from limited_magnitudes(name, array)


def limited_magnitudes(name: str, array: Array) -> Iterator[tuple[str, str, Array]]:
    """Yield copies of a tensor in which the magnitudes of numbers are limited.

    Args:
        name: the name of the tensor.
        array: the tensor.

    Yields:
        The changed property, the property after the change, and the changed tensor.
    """
    if not (_is_float(array) or array.dtype.kind in "iu"):
        return
    wide = array.astype(np.float64)
    size, signs = np.abs(wide), np.sign(wide)
    finite = np.isfinite(wide)
    fractions = np.linspace(0.5, 1, array.size).reshape(array.shape)
    limited: list[tuple[str, str, Array, Array]] = []
    for words, limit in _LARGEST_MAGNITUDES.items():
        values = signs * limit * fractions
        text = f"no magnitude of {name} exceeds {words}"
        limited.append(("large", text, finite & (size > limit), values))
    for words, limit in _SMALLEST_MAGNITUDES.items() if _is_float(array) else ():
        values = signs * limit / fractions
        text = f"no magnitude of {name} is below {words}"
        limited.append(("small", text, finite & (size > 0) & (size < limit), values))
    for aspect, text, mask, values in limited:
        if mask.any():
            new_values = values if _is_float(array) else np.trunc(values)
            changed = np.array(array)
            changed[mask] = new_values[mask].astype(array.dtype)
            yield aspect, text, changed


# Attributes and parameters ------------------------------------------------------------------------


def _attributes(node: BoundNode) -> _Changes:
    first = node.operand(0)
    for name, entry in sorted(node.schema.attributes.items()):
        kind, value = attribute_type(entry), node.attribute(name)
        if "GRAPH" in kind:
            continue
        if kind == "STRING":
            for choice in choices(node.node.op_type, name):
                if choice.encode() != value and choice != value:
                    changed = node.with_attribute(name, choice.encode())
                    yield SingleChange(name, f"{name} is {choice}", changed)
        elif value is not None:
            rank = first.ndim if first is not None else 0
            for text, new in _numbers(name, kind, value, rank):
                if new != value:
                    yield SingleChange(name, text, node.with_attribute(name, new))
        if name in node.attributes and not entry.required:
            yield SingleChange(name, f"{name} is omitted", node.with_attribute(name, None))


def _numbers(name: str, kind: str, value: Any, rank: int) -> Iterator[tuple[str, Any]]:
    """Yield other values of a numeric attribute, each with a statement that holds for it."""
    is_axis = name in {"axis", "axes", "batch_axis", "time_axis"}
    match kind:
        case "INT":
            if is_axis:
                yield f"{name} is not negative", value + rank * (value < 0)
                yield f"{name} is negative", value - rank * (value >= 0)
            numbers = (1 - value,) if name in FLAGS and value in (0, 1) else (0, 1)
            yield from ((f"{name} is {number}", number) for number in numbers)
        case "FLOAT":
            yield f"{name} is not negative", abs(value)
            yield from ((f"{name} is {number:g}", number) for number in (0.0, 1.0))
        case "INTS":
            yield from _lists(name, [*value], rank, is_axis=is_axis)
        case "FLOATS" if value:
            yield f"all values of {name} are equal", [value[0]] * len(value)
            for number in (0.0, 1.0):
                yield f"all values of {name} are {number:g}", [number] * len(value)


def _lists(
    name: str, values: list[int], rank: int, *, is_axis: bool
) -> Iterator[tuple[str, list[int]]]:
    """Yield other lists of integers, each with a statement that holds for it."""
    if not values:
        return
    if is_axis:
        yield f"no value of {name} is negative", [v + rank * (v < 0) for v in values]
        yield f"all values of {name} are negative", [v - rank * (v >= 0) for v in values]
    yield f"the values of {name} are sorted", sorted(values)
    yield f"{name} has one value", values[:1]
    yield f"all values of {name} are equal", [values[0]] * len(values)
    for number in (0, 1):
        yield f"all values of {name} are {number}", [number] * len(values)


def _parameters(node: BoundNode) -> _Changes:
    """Yield changes of short inputs of integers, such as axes and sizes."""
    first = node.operand(0)
    rank = first.ndim if first is not None else 0
    for place, name, array in _tensors(node):
        is_short = array.size <= _MAX_PARAMETERS and array.ndim <= 1
        if not place or not is_short or array.dtype not in (np.int32, np.int64):
            continue
        values = array.reshape(-1).tolist()
        for text, new in _lists(name, values, rank, is_axis=name in {"axis", "axes"}):
            if new != values:
                shape = array.shape if len(new) == len(values) else (len(new),)
                changed = np.array(new, array.dtype).reshape(shape)
                yield SingleChange(f"values of {name}", text, node.with_operand(place, changed))


# Inputs and types ---------------------------------------------------------------------------------


def _inputs(node: BoundNode) -> _Changes:
    """Yield changes that omit optional inputs, or inputs after the first few."""
    formals = list(node.schema.inputs)
    for place, name, _ in _tensors(node):
        if place < len(formals) and formals[place].option == _OPTION.Optional:
            names = [*node.names[:place], "", *node.names[place + 1 :]]
            yield SingleChange(name, f"{name} is omitted", node.with_names(names))
    if formals and formals[-1].option == _OPTION.Variadic:
        for count in _COUNTS:
            if count < len(node.names):
                text = f"there are no more than {count} inputs"
                yield SingleChange("number of inputs", text, node.with_names(node.names[:count]))


def _types(node: BoundNode) -> _Changes:
    """Yield changes of the type of an input and of all inputs that must have the same type."""
    formals = list(node.schema.inputs)
    seen: set[str] = set()
    for place, name, array in _tensors(node):
        type_str = formals[min(place, len(formals) - 1)].type_str
        if type_str in seen or array.dtype == object:
            continue
        seen.add(type_str)
        allowed = {
            name
            for constraint in node.schema.type_constraints
            if constraint.type_param_str == type_str
            for name in constraint.allowed_type_strs
        }
        for type_name in _TYPES:
            if f"tensor({_onnx_name(type_name)})" not in allowed or array.dtype.name == type_name:
                continue
            changed = node
            for other_place, _, value in _tensors(node):
                if formals[min(other_place, len(formals) - 1)].type_str == type_str:
                    converted = value.astype(type_name)
                    is_kept = np.array_equal(converted.astype(value.dtype), value, equal_nan=True)
                    if not is_kept and not (_is_float(value) and _is_float(converted)):
                        break
                    changed = changed.with_operand(other_place, converted)
            else:
                yield SingleChange(f"type of {name}", f"{name} is {type_name}", changed)


def _onnx_name(type_name: str) -> str:
    return {"float32": "float", "float64": "double"}.get(type_name, type_name)


# Shapes -------------------------------------------------------------------------------------------


def _shapes(node: BoundNode) -> _Changes:
    tensors = _tensors(node)
    yield from _full_shapes(node)
    for place, name, array in tensors[:_MAX_CHANGED]:
        for axis in range(min(array.ndim, len(_AXES))):
            length = array.shape[axis]
            if length == 1:
                continue
            text = f"the {_AXES[axis]} axis of {name} has length 1"
            changed = node.with_operand(place, array.take([0], axis))
            yield SingleChange(f"axis {axis} of {name}", text, changed)
            everywhere = _with_lengths(node, partial(_one_instead, length))
            text = f"the {_AXES[axis]} axis of {name} and all axes of its length have length 1"
            yield SingleChange(f"axis {axis} of {name}", text, everywhere)
    for _, name, array in tensors[:1]:
        if array.ndim > 2:  # noqa: PLR2004 - at least two axes remain
            merged = array.reshape(*array.shape[:-2], -1)
            text = f"the last two axes of {name} are merged"
            yield SingleChange(f"rank of {name}", text, _reshaped(node, array, merged.shape))
        if array.ndim > 1:
            text = f"{name} has one axis"
            yield SingleChange(f"rank of {name}", text, _reshaped(node, array, (-1,)))
    for limit in _LENGTHS:
        if any(length > limit for _, _, array in tensors for length in array.shape):
            text = f"no axis is longer than {limit}"
            changed = _with_lengths(node, partial(min, limit))
            yield SingleChange("lengths", text, changed)


def _full_shapes(node: BoundNode) -> _Changes:
    """Yield changes that broadcast an input to the common shape of all inputs."""
    tensors = _tensors(node)
    try:
        shape = np.broadcast_shapes(*(array.shape for _, _, array in tensors))
    except ValueError:
        return
    for place, name, array in tensors[:_MAX_CHANGED]:
        if array.shape != shape:
            full = np.ascontiguousarray(np.broadcast_to(array, shape))
            text = f"{name} has the shape to which it is broadcast"
            yield SingleChange(f"shape of {name}", text, node.with_operand(place, full))


def _with_lengths(node: BoundNode, new_length: Callable[[int], int]) -> BoundNode:
    """Shorten the axes of all inputs."""
    for place, _, array in _tensors(node):
        slices = tuple(slice(new_length(length)) for length in array.shape)
        if array.ndim:
            node = node.with_operand(place, np.ascontiguousarray(array[slices]))
    return node


def _sequences(node: BoundNode) -> _Changes:
    """Yield changes that shorten a sequence of tensors."""
    for place, value in enumerate(node.operands):
        for count in _COUNTS:
            if isinstance(value, list) and count < len(value):
                name = node.schema.inputs[place].name
                text = f"{name} has no more than {count} elements"
                changed = node.with_operand(place, value[:count])
                yield SingleChange(f"length of {name}", text, changed)


def _one_instead(replaced: int, length: int) -> int:
    return 1 if length == replaced else length


def _reshaped(node: BoundNode, like: Array, shape: tuple[int, ...]) -> BoundNode:
    """Reshape all inputs that have the shape of ``like``."""
    same = [place for place, _, array in _tensors(node) if array.shape == like.shape]
    return reduce(
        lambda changed, place: changed.with_operand(place, _operand(node, place).reshape(shape)),
        same,
        node,
    )


def _operand(node: BoundNode, place: int) -> Array:
    array = node.operand(place)
    assert array is not None  # noqa: S101 - the input is a tensor
    return array
