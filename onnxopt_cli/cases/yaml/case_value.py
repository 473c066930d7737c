"""Read the values of a case file: their element types, shapes and data.

The forms are ``[1.2, 2.8]``, ``{dtype: double, shape: [2], data: ...}``, ``{random: ...}``,
``{file: x.npy}``, ``{sequence: [...]}`` and ``{optional: ...}``. The JSON Schema has validated
their structure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import ml_dtypes
import numpy as np

from onnxopt_cli.cases.tensors.declared import (
    Declared,
    DeclaredGroup,
    DeclaredTensor,
    PromisedTensor,
    RandomTensor,
    integer_range,
    too_large,
)
from onnxopt_cli.cases.tensors.tensor_file import declare_file
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    abbreviated,
    number,
    unexpected,
)
from onnxopt_cli.core.text import nearest
from onnxopt_cli.core.untrusted_files import Malformed, contained_path
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    dtype_name,
    dtype_named,
)

#: The element type of a value that does not state one; or a function that chooses it, given the
#: natural types of its bare values (``int64``, ``float32``, ``bool``, ``string``).
ChooseDtype: TypeAlias = np.dtype[Any] | Callable[[frozenset[str]], np.dtype[Any]]

#: The natural element type of a bare value of a file, by its Python type.
BARE_DTYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float32",
    str: STRING,
    type(None): STRING,
}

T = TypeVar("T")

# finfo of ml_dtypes lacks type annotations.
_finfo: Any = ml_dtypes.finfo
# The smallest and the largest normal number of common types.
_NORMAL_RANGES = {
    np.dtype(scalar): (float(_finfo(scalar).smallest_normal), float(_finfo(scalar).max))
    for scalar in (np.float32, np.float64)
}

_COMPLEX = re.compile(r"[-+0-9.eEjJinfaINFA]+")


def natural_dtype(kinds: frozenset[str]) -> np.dtype[Any]:
    """Return the common element type of values with these natural types; by default float32."""
    return DTYPES["float32" if "float32" in kinds else max(kinds, default="float32")]


def _chosen(choose: ChooseDtype, node: Node) -> np.dtype[Any]:
    return choose if isinstance(choose, np.dtype) else choose(untyped_kinds(node))


def declare_value(
    node: Node,
    folder: Path,
    choose: ChooseDtype = natural_dtype,
    dtype: np.dtype[Any] | None = None,
) -> Declared:
    """Read a value: all elements of literal data, but only type and shape of random data and files.

    Args:
        node: the value.
        folder: the folder of the case file; paths of data files are relative to it.
        choose: the element type if the value states none. By default it is float32 if a float
            occurs, and otherwise the natural type of the bare values.
        dtype: the element type of the enclosing value, if it is known.

    Raises:
        FormatError: at the first error.
    """
    fields = node.fields
    if fields is None:
        return _literal(node, None, dtype or _chosen(choose, node))
    if "dtype" in fields:
        dtype = _stated_dtype(node, fields["dtype"], dtype)
    shape = fields.get("shape")
    if "random" in fields:
        return _random(fields["random"], fields["shape"], dtype or _chosen(choose, node))
    if "data" in fields:
        data = fields["data"]
        return _literal(data, shape, dtype or _chosen(choose, data))
    if shape is not None:
        raise FormatError(shape, "found a shape, expected it only beside data or random")
    if "file" in fields:
        return _from_file(fields["file"], fields.get("key"), folder, dtype)
    if "sequence" in fields:
        return _sequence(fields["sequence"], folder, choose, dtype)
    inner = fields["optional"]
    if inner.fields is None and inner.items is None and inner.scalar is None:
        return DeclaredGroup("optional", dtype or _chosen(choose, inner))
    value = declare_value(inner, folder, choose, dtype)
    return DeclaredGroup("optional", value.dtype, (value,))


def _stated_dtype(node: Node, field: Node, enclosing: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the element type that a value states; it must equal that of an enclosing value."""
    dtype = dtype_named(str(field.scalar))
    if dtype is None:
        hint = nearest(str(field.scalar), DTYPES)
        raise unexpected(field, f"one of {', '.join(DTYPES)}{'; ' * bool(hint)}{hint}")
    if enclosing is not None and enclosing != dtype:
        expected = f"expected {dtype_name(enclosing)}, the type of the enclosing value"
        raise FormatError(node, f"found {dtype_name(dtype)}, {expected}")
    return dtype


def has_dtype(node: Node) -> bool:
    """Return whether a value states its element type, directly or by naming a file."""
    fields = node.fields or {}
    if "dtype" in fields or "file" in fields:
        return True
    if "sequence" in fields:
        return any(map(has_dtype, fields["sequence"].items or ()))
    return "optional" in fields and has_dtype(fields["optional"])


def untyped_kinds(node: Node) -> frozenset[str]:
    """Return the natural types of bare values; an empty set if the value states its type."""
    if node.items is not None:
        types = {type(item.scalar) for item in node.items} - {type(None)}
        nested = (untyped_kinds(item) for item in node.items if item.scalar is None)
        return frozenset(BARE_DTYPES[type_name] for type_name in types).union(*nested)
    if node.scalar is not None:
        return frozenset({BARE_DTYPES[type(node.scalar)]})
    if node.fields is None or "dtype" in node.fields or "file" in node.fields:
        return frozenset()
    random = node.field("random")
    if random is not None:
        return frozenset({"int64" if random.field("integers") else "float32"})
    contents = (node.fields.get(name) for name in ("data", "sequence", "optional"))
    return next((untyped_kinds(item) for item in contents if item is not None), frozenset())


def _sequence(
    node: Node, folder: Path, choose: ChooseDtype, dtype: np.dtype[Any] | None
) -> DeclaredGroup:
    items = node.items or []
    typed = (declare_value(item, folder, choose).dtype for item in items if has_dtype(item))
    common = dtype or next(typed, None) or _chosen(choose, node)
    values = (declare_value(item, folder, choose, common) for item in items)
    return DeclaredGroup("seq", common, tuple(values))


def _promised(
    node: Node, declare: Callable[[], PromisedTensor | RandomTensor], prefix: str = "found"
) -> DeclaredTensor:
    """Declare a tensor; report errors at a node, both now and when the data are created or read."""

    def located(function: Callable[[], T]) -> T:
        try:
            return function()
        except (Malformed, ValueError) as error:
            raise FormatError(node, f"{prefix} {error}") from None

    declared = located(declare)
    return PromisedTensor(declared.dtype, declared.shape, lambda: located(declared.make))


def _from_file(
    node: Node, key: Node | None, folder: Path, dtype: np.dtype[Any] | None
) -> DeclaredTensor:
    def declare() -> PromisedTensor:
        path = contained_path(folder, str(node.scalar))
        return declare_file(path, None if key is None else str(key.scalar), dtype)

    return _promised(node, declare, f"the file {abbreviated(str(node.scalar))}")


def _random(random: Node, shape: Node, dtype: np.dtype[Any]) -> DeclaredTensor:
    fields = dict(random.fields or {})
    seed = int(number(fields.pop("seed")))
    tail_node = fields.pop("tail", None)
    tail = tuple(number(item) for item in (tail_node.items or ())) if tail_node is not None else ()
    ((distribution, parameter_node),) = fields.items()
    parameters = {name: number(value) for name, value in (parameter_node.fields or {}).items()}
    tensor = partial(RandomTensor, distribution, seed, _shape(shape), dtype, parameters, tail)
    return _promised(random, tensor)


def _shape(node: Node) -> tuple[int, ...]:
    # JSON Schema accepts 2.0 as an integer.
    return tuple(int(number(size)) for size in node.items or ())


def _literal(node: Node, shape: Node | None, dtype: np.dtype[Any]) -> DeclaredTensor:
    """Read nested lists of elements.

    Raises:
        FormatError: at the first list or value that differs in length or depth from its first
            sibling, or if the stated shape differs from that of the lists.
    """
    sizes: list[int] = []
    level = [node]
    while level and level[0].items is not None:
        size = len(level[0].items)
        for item in level:
            if item.items is None or len(item.items) != size:
                raise unexpected(item, f"a list of {size}, like the first one at this depth")
        sizes.append(size)
        level = [inner for item in level for inner in item.items or ()]
    for item in level:
        if item.items is not None or item.fields is not None:
            raise unexpected(item, "a single value, like the first one at this depth")
    nested = dimensions = tuple(sizes)
    if shape is not None:
        dimensions = _shape(shape)
        if oversize := too_large(dimensions):
            raise FormatError(shape, f"found {oversize}")
        count = math.prod(dimensions)
        if nested != dimensions and (len(nested) != 1 or len(level) != count):
            raise FormatError(
                node,
                f"found {len(level)} elements in the shape {list(nested)}, expected "
                f"{list(dimensions)}, or {count} in a flat list",
            )
    array = element_array(level, dtype)
    if array.shape != dimensions:
        # A view would keep both itself and its base alive in each of many cases, so copy.
        array = array.reshape(dimensions).copy()
    return array


def element_array(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    """Return the values of nodes as a one-dimensional array.

    Decimal fractions have been read as the nearest double, which is rounded to the element type.

    Raises:
        FormatError: at the first value that the element type cannot represent.
    """
    values: list[Any] = [node.scalar for node in nodes]
    if dtype in _NORMAL_RANGES and values and set(map(type, values)) <= {int, float}:
        # Fast path for the most common data: no normal number overflows or underflows.
        magnitudes = list(map(abs, values))
        smallest, largest = _NORMAL_RANGES[dtype]
        if min(magnitudes) >= smallest and max(magnitudes) <= largest:
            return np.array(values, np.float64).astype(dtype)
    name = dtype_name(dtype)
    fits, expected = _rule(dtype)
    for node in nodes:
        if not fits(node.scalar):
            word = str(node.scalar).lower().lstrip("+-") if isinstance(node.scalar, str) else ""
            hint = " (.nan, .inf and -.inf are numbers)" * (word in ("nan", "inf", "infinity"))
            raise unexpected(node, expected + hint)
    if name in (STRING, "bool"):
        return np.array(values, dtype)
    if "int" in name:
        return np.array(values, dtype if dtype.kind in "iu" else np.int64).astype(dtype)
    if dtype.kind == "c":
        values = list(map(complex, values))
    wide = np.array(values, np.complex128 if dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    lost = _lost(wide.real, narrow.real)
    if dtype.kind == "c":
        lost |= _lost(wide.imag, narrow.imag)
    if lost.any():
        part = narrow.real.dtype
        smallest, largest = float(_finfo(part).smallest_subnormal), float(_finfo(part).max)
        limits = f"(magnitudes {smallest:.4g} to {largest:.4g})"
        expected = f"a number in the range of {dtype_name(part)} {limits}"
        raise unexpected(nodes[int(lost.argmax())], expected)
    return narrow


def _rule(dtype: np.dtype[Any]) -> tuple[Callable[[Any], bool], str]:
    """Return a predicate for valid scalars of an element type, and its description."""
    name = dtype_name(dtype)
    if name == STRING:
        return lambda item: isinstance(item, str), "text"
    if name == "bool":
        return lambda item: isinstance(item, bool), "true or false"
    if "int" in name:
        low, high = integer_range(dtype)
        expected = f"an integer from {low} to {high} ({name})"
        return lambda item: type(item) is int and low <= item <= high, expected
    if dtype.kind == "c":
        return _is_complex, 'a complex number such as "1+2j"'
    return lambda item: type(item) in (int, float), f"a number ({name})"


def _is_complex(value: Any) -> bool:
    if isinstance(value, str) and _COMPLEX.fullmatch(value):
        with suppress(ValueError):
            complex(value)
            return True
    return type(value) in (int, float)


def _lost(wide: Array, narrow: Array) -> Array:
    """Return which doubles are out of the range of an element type.

    Rounding is acceptable. A change to or from infinity, NaN or zero is not, nor is saturation.

    Args:
        wide: the doubles.
        narrow: the doubles converted to the element type.
    """
    back = narrow.astype(np.float64)
    lost: Array = (
        (np.isfinite(wide) != np.isfinite(back))
        | (np.isnan(wide) != np.isnan(back))
        | ((wide == 0) != (back == 0))
    )
    with np.errstate(all="ignore"):
        infinity = np.array(np.inf).astype(narrow.dtype).astype(np.float64)
    if not np.isinf(infinity):
        largest, least = float(_finfo(narrow.dtype).max), float(_finfo(narrow.dtype).min)
        lost |= ((back == largest) & (wide > back)) | ((back == least) & (wide < back))
    return lost
