"""The values of a case file: what type they have, and the promise of their data.

``[1.2, 2.8]``, ``{dtype: double, shape: [2], data: ...}``, ``{random: ...}``, ``{file: x.npy}``,
``{sequence: [...]}``, ``{optional: ...}``; the schema has made sure of their structure.
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
from onnxopt_cli.cases.tensors.regular_file import Malformed, contained_path
from onnxopt_cli.cases.tensors.tensor_file import declare_file
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    abbreviated,
    number,
    unexpected,
)
from onnxopt_cli.core.text import nearest
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    dtype_name,
    dtype_named,
)

#: The element type of a value that does not say it; or what chooses it, from the types that its
#: bare values have by themselves (``int64``, ``float32``, ``bool``, ``string``) if there are any.
ChooseDtype: TypeAlias = np.dtype[Any] | Callable[[frozenset[str]], np.dtype[Any]]

#: The name of the element type that a bare value of a file has by itself, by its Python type.
BARE_DTYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float32",
    str: STRING,
    type(None): STRING,
}

T = TypeVar("T")

# It has no type information.
_finfo: Any = ml_dtypes.finfo
# The smallest and the largest normal number.
_NORMAL = {
    np.dtype(it): (float(_finfo(it).smallest_normal), float(_finfo(it).max))
    for it in (np.float32, np.float64)
}

_COMPLEX = re.compile(r"[-+0-9.eEjJinfaINFA]+")


def natural_dtype(kinds: frozenset[str]) -> np.dtype[Any]:
    """Return the element type that bare values have by themselves, float32 if there are none."""
    return DTYPES["float32" if "float32" in kinds else max(kinds, default="float32")]


def _chosen(choose: ChooseDtype, node: Node) -> np.dtype[Any]:
    return choose if isinstance(choose, np.dtype) else choose(untyped_kinds(node))


def declare_value(
    node: Node,
    folder: Path,
    choose: ChooseDtype = natural_dtype,
    dtype: np.dtype[Any] | None = None,
) -> Declared:
    """Read a value: literal data whole, of random data and files only type and shape.

    Args:
        node: the value.
        folder: where the case file stands; files are looked for there.
        choose: the element type where none is given; float32 where a float occurs, otherwise that
            of the bare values, if left out.
        dtype: the element type of what is around the value, if that is known.

    Raises:
        FormatError: at the first thing that is wrong with it.
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


def _stated_dtype(node: Node, field: Node, around: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the element type that a value says, which must be that around it, if there is one."""
    dtype = dtype_named(str(field.scalar))
    if dtype is None:
        hint = nearest(str(field.scalar), DTYPES)
        raise unexpected(field, f"one of {', '.join(DTYPES)}{'; ' * bool(hint)}{hint}")
    if around is not None and around != dtype:
        expected = f"expected {dtype_name(around)} as around it"
        raise FormatError(node, f"found {dtype_name(dtype)}, {expected}")
    return dtype


def has_dtype(node: Node) -> bool:
    """Tell whether a value says its element type, or a file that it names does."""
    fields = node.fields or {}
    if "dtype" in fields or "file" in fields:
        return True
    if "sequence" in fields:
        return any(map(has_dtype, fields["sequence"].items or ()))
    return "optional" in fields and has_dtype(fields["optional"])


def untyped_kinds(node: Node) -> frozenset[str]:
    """Return the types that bare values have by themselves; empty where the value says its own."""
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
    inner = (node.fields.get(name) for name in ("data", "sequence", "optional"))
    return next((untyped_kinds(it) for it in inner if it is not None), frozenset())


def _sequence(
    node: Node, folder: Path, choose: ChooseDtype, dtype: np.dtype[Any] | None
) -> DeclaredGroup:
    items = node.items or []
    typed = (declare_value(item, folder, choose).dtype for item in items if has_dtype(item))
    common = dtype or next(typed, None) or _chosen(choose, node)
    values = (declare_value(item, folder, choose, common) for item in items)
    return DeclaredGroup("seq", common, tuple(values))


def _promised(
    node: Node, declare: Callable[[], PromisedTensor | RandomTensor], what: str = "found"
) -> DeclaredTensor:
    """Declare a tensor; say of a node what is wrong with it, now and when it is made."""

    def blaming(function: Callable[[], T]) -> T:
        try:
            return function()
        except (Malformed, ValueError) as error:
            raise FormatError(node, f"{what} {error}") from None

    declared = blaming(declare)
    return PromisedTensor(declared.dtype, declared.shape, lambda: blaming(declared.make))


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
    last = fields.pop("tail", None)
    tail = tuple(number(item) for item in (last.items or ())) if last is not None else ()
    ((distribution, given),) = fields.items()
    parameters = {name: number(value) for name, value in (given.fields or {}).items()}
    tensor = partial(RandomTensor, distribution, seed, _shape(shape), dtype, parameters, tail)
    return _promised(random, tensor)


def _shape(node: Node) -> tuple[int, ...]:
    # To JSON Schema, 2.0 is an integer.
    return tuple(int(number(size)) for size in node.items or ())


def _literal(node: Node, shape: Node | None, dtype: np.dtype[Any]) -> DeclaredTensor:
    """Read nested lists of elements.

    Raises:
        FormatError: at the first list or value that is not as its first sibling is, or if the
            shape is another one than that of the lists.
    """
    sizes: list[int] = []
    level = [node]
    while level and level[0].items is not None:
        size = len(level[0].items)
        for item in level:
            if item.items is None or len(item.items) != size:
                raise unexpected(item, f"a list of {size} as the first one here is")
        sizes.append(size)
        level = [inner for item in level for inner in item.items or ()]
    for item in level:
        if item.items is not None or item.fields is not None:
            raise unexpected(item, "a single value as the first one here is")
    found = dimensions = tuple(sizes)
    if shape is not None:
        dimensions = _shape(shape)
        if oversize := too_large(dimensions):
            raise FormatError(shape, f"found {oversize}")
        count = math.prod(dimensions)
        if found != dimensions and (len(found) != 1 or len(level) != count):
            raise FormatError(
                node,
                f"found {len(level)} elements in the shape {list(found)}, expected "
                f"{list(dimensions)}, or {count} in a flat list",
            )
    array = element_array(level, dtype)
    if array.shape != dimensions:
        # A copy, as a view would keep two objects for each of many cases.
        array = array.reshape(dimensions).copy()
    return array


def element_array(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    """Return the values of nodes as a one-dimensional array.

    A decimal was read as the nearest double; it is rounded to the element type from there.

    Raises:
        FormatError: at the first value that the element type cannot hold.
    """
    values: list[Any] = [node.scalar for node in nodes]
    if dtype in _NORMAL and values and set(map(type, values)) <= {int, float}:
        # What most cases hold: numbers in the range of normal ones, of which none can be lost.
        sizes = list(map(abs, values))
        least, largest = _NORMAL[dtype]
        if min(sizes) >= least and max(sizes) <= largest:
            return np.array(values, np.float64).astype(dtype)
    name = dtype_name(dtype)
    fits, expected = _rule(dtype)
    for node in nodes:
        if not fits(node.scalar):
            words = str(node.scalar).lower().lstrip("+-") if isinstance(node.scalar, str) else ""
            hint = " (.nan, .inf and -.inf are numbers)" * (words in ("nan", "inf", "infinity"))
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
        expected = f"a number that {dtype_name(part)} can hold {limits}"
        raise unexpected(nodes[int(lost.argmax())], expected)
    return narrow


def _rule(dtype: np.dtype[Any]) -> tuple[Callable[[Any], bool], str]:
    """Return what tells whether a scalar can be an element, and what is expected in words."""
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
    """Tell which doubles an element type could not hold, given what they became in it.

    Rounding is no failure; turning infinite, finite, zero or NaN is, and so is saturating.
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
