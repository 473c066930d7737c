"""The values of a case file: what type they have, and the promise of their data.

``[1.2, 2.8]``, ``{dtype: double, shape: [2], data: ...}``, ``{random: ...}``, ``{file: x.npy}``,
``{sequence: [...]}``, ``{optional: ...}``; the schema has made sure of their structure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from onnxopt_cli.cases.values.declared import (
    Declared,
    DeclaredOptional,
    DeclaredSequence,
    DeclaredTensor,
    RandomTensor,
    integer_range,
    too_large,
)
from onnxopt_cli.cases.values.regular_file import Malformed, contained_path
from onnxopt_cli.cases.values.tensor_file import declare_file
from onnxopt_cli.cases.yaml.syntax import (
    FormatError,
    Node,
    Scalar,
    abbreviated,
    number,
    unexpected,
)
from onnxopt_cli.core.values import DTYPES, STRING, Array, dtype_name, dtype_named

#: Chooses the element type of a value that does not say it, from the types that its bare values
#: have by themselves (``int64``, ``float32``, ``bool``, ``string``); empty if there are none.
ChooseDtype: TypeAlias = Callable[[frozenset[str]], np.dtype[Any]]

#: The name of the element type that a bare value of a file has by itself, by its Python type.
BARE_DTYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float32",
    str: STRING,
    type(None): STRING,
}

# It has no type information.
_finfo: Any = ml_dtypes.finfo

_COMPLEX = re.compile(r"[-+0-9.eEjJinfaINFA]+")


def natural_dtype(kinds: frozenset[str]) -> np.dtype[Any]:
    """Return the element type that bare values have by themselves, float32 if there are none."""
    return DTYPES["float32" if "float32" in kinds else max(kinds, default="float32")]


def always(dtype: np.dtype[Any]) -> ChooseDtype:
    """Return the choice that is made already."""
    return lambda _kinds: dtype


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
        return _literal(node, None, dtype or choose(untyped_kinds(node)))
    if "dtype" in fields:
        dtype = dtype_named(str(fields["dtype"].scalar))
        if dtype is None:
            raise unexpected(fields["dtype"], f"one of {', '.join(DTYPES)}")
    shape = fields.get("shape")
    if "random" in fields:
        return _random(node, dtype or choose(untyped_kinds(node)))
    if "data" in fields:
        data = fields["data"]
        return _literal(data, shape, dtype or choose(untyped_kinds(data)))
    if shape is not None:
        raise FormatError(shape, "found a shape, expected it only beside data or random")
    if "file" in fields:
        return _from_file(fields["file"], fields.get("key"), folder, dtype)
    if "sequence" in fields:
        return _sequence(fields["sequence"], folder, choose, dtype)
    inner = fields["optional"]
    if inner.fields is None and inner.items is None and inner.scalar is None:
        return DeclaredOptional(dtype or choose(frozenset()), None)
    value = declare_value(inner, folder, choose, dtype)
    _require_dtype(inner, value, dtype or value.dtype)
    return DeclaredOptional(value.dtype, value)


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
        return frozenset().union(*map(untyped_kinds, node.items))
    if node.fields is None:
        return frozenset() if node.scalar is None else frozenset({BARE_DTYPES[type(node.scalar)]})
    random = node.field("random")
    if "dtype" in node.fields or "file" in node.fields:
        return frozenset()
    if random is not None:
        return frozenset({"int64" if random.field("integers") else "float32"})
    inner = (node.fields.get(name) for name in ("data", "sequence", "optional"))
    return next((untyped_kinds(it) for it in inner if it is not None), frozenset())


def _sequence(
    node: Node, folder: Path, choose: ChooseDtype, dtype: np.dtype[Any] | None
) -> DeclaredSequence:
    items = node.items or []
    typed = {
        index: declare_value(item, folder, choose)
        for index, item in enumerate(items)
        if has_dtype(item)
    }
    first = next(iter(typed.values()), None)
    common = dtype or (first.dtype if first else choose(untyped_kinds(node)))
    values = [
        typed.get(index) or declare_value(item, folder, choose, common)
        for index, item in enumerate(items)
    ]
    for item, value in zip(items, values, strict=True):
        _require_dtype(item, value, common)
    return DeclaredSequence(common, tuple(values))


def _require_dtype(node: Node, value: Declared, dtype: np.dtype[Any]) -> None:
    if value.dtype != dtype:
        raise FormatError(
            node, f"found {dtype_name(value.dtype)}, expected {dtype_name(dtype)} as around it"
        )


def _from_file(
    node: Node, key: Node | None, folder: Path, dtype: np.dtype[Any] | None
) -> DeclaredTensor:
    @contextmanager
    def named() -> Iterator[None]:
        try:
            yield
        except Malformed as error:
            text = f"the file {abbreviated(str(node.scalar))} {error}"
            raise FormatError(node, text) from None

    def make() -> Array:
        with named():
            return declared.make()

    with named():
        path = contained_path(folder, str(node.scalar))
        declared = declare_file(path, None if key is None else str(key.scalar), dtype)
    return DeclaredTensor(declared.dtype, declared.shape, make)


def _random(node: Node, dtype: np.dtype[Any]) -> DeclaredTensor:
    fields = node.fields or {}
    random = fields["random"]
    (distribution,) = set(random.fields or {}) - {"seed"}
    parameters = (random.fields or {})[distribution].fields or {}

    def make() -> Array:
        try:
            return tensor.make()
        except ValueError as error:
            raise FormatError(random, f"found {error}") from None

    try:
        tensor = RandomTensor(
            distribution,
            seed=int(number((random.fields or {})["seed"])),
            shape=_shape(fields["shape"]),
            dtype=dtype,
            parameters={name: number(value) for name, value in parameters.items()},
        )
    except ValueError as error:
        raise FormatError(random, f"found {error}") from None
    return DeclaredTensor(dtype, tensor.shape, make)


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
        oversize = too_large(dimensions)
        if oversize:
            raise FormatError(shape, f"found {oversize}")
        count = math.prod(dimensions)
        if found != dimensions and (len(found) != 1 or len(level) != count):
            raise FormatError(
                node,
                f"found {len(level)} elements in the shape {list(found)}, expected "
                f"{list(dimensions)}, or {count} in a flat list",
            )
    array = element_array(level, dtype).reshape(dimensions)
    return DeclaredTensor(dtype, dimensions, array.copy)


def element_array(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    """Return the values of nodes as a one-dimensional array.

    A decimal was read as the nearest double; it is rounded to the element type from there.

    Raises:
        FormatError: at the first value that the element type cannot hold.
    """
    name = dtype_name(dtype)
    if name == STRING:
        return np.array(_values(nodes, lambda it: isinstance(it, str), "text"), dtype)
    if name == "bool":
        return np.array(_values(nodes, lambda it: isinstance(it, bool), "true or false"), dtype)
    if "int" in name:
        low, high = integer_range(dtype)
        values = _values(
            nodes,
            lambda it: type(it) is int and low <= it <= high,
            f"an integer from {low} to {high} ({name})",
        )
        return np.array(values, dtype if dtype.kind in "iu" else np.int64).astype(dtype)
    if name.startswith("complex"):
        wide = np.array([_complex_number(node) for node in nodes], np.complex128)
    else:
        wide = np.array(
            _values(nodes, lambda it: type(it) in (int, float), f"a number ({name})"), np.float64
        )
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    part = narrow.real.dtype if dtype.kind == "c" else dtype
    if dtype.kind == "c":
        lost = _lost(wide.real, narrow.real) | _lost(wide.imag, narrow.imag)
    else:
        lost = _lost(wide, narrow)
    if lost.any():
        smallest, largest = float(_finfo(part).smallest_subnormal), float(_finfo(part).max)
        limits = f"(magnitudes {smallest:.4g} to {largest:.4g})"
        expected = f"a number that {dtype_name(part)} can hold {limits}"
        raise unexpected(nodes[int(lost.argmax())], expected)
    return narrow


def _values(nodes: Sequence[Node], fits: Callable[[Scalar], bool], expected: str) -> list[Any]:
    for node in nodes:
        if not fits(node.scalar):
            words = str(node.scalar).lower().lstrip("+-") if isinstance(node.scalar, str) else ""
            special = words in ("nan", "inf", "infinity")
            hint = " (.nan, .inf and -.inf are numbers)" if special else ""
            raise unexpected(node, expected + hint)
    return [node.scalar for node in nodes]


def _complex_number(node: Node) -> complex:
    value = node.scalar
    if isinstance(value, str) and _COMPLEX.fullmatch(value):
        try:
            return complex(value)
        except ValueError:
            pass
    elif type(value) in (int, float):
        return complex(value)  # type: ignore[arg-type]
    raise unexpected(node, 'a complex number such as "1+2j"')


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
