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
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, Scalar, abbreviated, number, unexpected
from onnxopt_cli.core.values import DTYPES, STRING, Array, dtype_name, dtype_named

#: Chooses the element type of a value that does not say it, from the types that its bare values
#: have by themselves (``int64``, ``float32``, ``bool``, ``string``); empty if there are none.
ChooseDtype: TypeAlias = Callable[[frozenset[str]], np.dtype[Any]]

#: Reads a value as :func:`declare_value` does, in the folder of the case.
DeclareValue: TypeAlias = Callable[[Node, ChooseDtype | None], Declared]


def declare_value(node: Node, folder: Path, choose: ChooseDtype | None = None) -> Declared:
    """Read a value: literal data whole, of random data and files only type and shape.

    Args:
        node: the value.
        folder: where the case file stands; files are looked for there.
        choose: the element type where none is given; float32 where a float occurs, otherwise that
            of the bare values, if left out.

    Raises:
        FormatError: at the first thing that is wrong with it.
    """
    return _declare(node, folder, _given_dtype(node), choose or natural_dtype)


def untyped_kinds(node: Node) -> frozenset[str]:
    """Return the types that bare values have by themselves; empty where the value says its own."""
    return frozenset() if node.field("dtype") or node.field("file") else _kinds(node)


def has_dtype(node: Node) -> bool:
    """Tell whether a value says its element type, or a file that it names does."""
    if node.field("dtype") or node.field("file"):
        return True
    inner = node.field("optional") or node.field("sequence")
    if inner is None:
        return False
    parts = inner.items if node.field("sequence") else [inner]
    return bool(parts) and any(has_dtype(part) for part in parts or ())


def natural_dtype(kinds: frozenset[str]) -> np.dtype[Any]:
    """Return the element type that bare values have by themselves, float32 if there are none."""
    return DTYPES["float32" if "float32" in kinds else max(kinds, default="float32")]


def always(dtype: np.dtype[Any]) -> ChooseDtype:
    """Return the choice that is made already."""
    return lambda _kinds: dtype


def _kinds(node: Node) -> frozenset[str]:
    if node.items is not None:
        return frozenset().union(*map(_kinds, node.items))
    if node.fields is None:
        return frozenset() if node.scalar is None else frozenset({element_kind(node.scalar)})
    random = node.field("random")
    if random is not None:
        return frozenset({"int64" if random.field("integers") else "float32"})
    for name in ("data", "sequence", "optional"):
        inner = node.field(name)
        if inner is not None:
            return untyped_kinds(inner)
    return frozenset()


def _given_dtype(node: Node) -> np.dtype[Any] | None:
    name = node.field("dtype")
    if name is None:
        return None
    dtype = dtype_named(str(name.scalar))
    if dtype is None:
        raise unexpected(name, f"one of {', '.join(DTYPES)}")
    return dtype


def _declare(
    node: Node, folder: Path, dtype: np.dtype[Any] | None, choose: ChooseDtype
) -> Declared:
    if node.fields is None:
        return _literal(node, None, dtype or choose(_kinds(node)))
    if node.field("file"):
        _refuse_shape(node)
        return _from_file(node, folder, dtype)
    if node.field("random"):
        return _random(node, dtype or choose(_kinds(node)))
    data = node.field("data")
    if data is not None:
        return _literal(data, node.field("shape"), dtype or choose(_kinds(data)))
    _refuse_shape(node)
    sequence = node.field("sequence")
    if sequence is not None:
        return _sequence(sequence, folder, dtype, choose)
    return _optional(node.fields["optional"], folder, dtype, choose)


def _refuse_shape(node: Node) -> None:
    shape = node.field("shape")
    if shape is not None:
        raise FormatError(shape, "found a shape, expected it only beside data or random")


def _sequence(
    node: Node, folder: Path, dtype: np.dtype[Any] | None, choose: ChooseDtype
) -> DeclaredSequence:
    items = node.items or []
    typed = {
        index: _declare(item, folder, _given_dtype(item), choose)
        for index, item in enumerate(items)
        if has_dtype(item)
    }
    common = dtype or (next(iter(typed.values())).dtype if typed else choose(_kinds(node)))
    declared = tuple(
        typed.get(index) or _declare(item, folder, common, choose)
        for index, item in enumerate(items)
    )
    for item, value in zip(items, declared, strict=True):
        _require_dtype(item, value, common)
    return DeclaredSequence(common, declared)


def _optional(
    node: Node, folder: Path, dtype: np.dtype[Any] | None, choose: ChooseDtype
) -> DeclaredOptional:
    if node.fields is None and node.items is None and node.scalar is None:
        return DeclaredOptional(dtype or choose(frozenset()), None)
    value = _declare(node, folder, _given_dtype(node) or dtype, choose)
    _require_dtype(node, value, dtype or value.dtype)
    return DeclaredOptional(value.dtype, value)


def _require_dtype(node: Node, value: Declared, dtype: np.dtype[Any]) -> None:
    if value.dtype != dtype:
        raise FormatError(
            node, f"found {dtype_name(value.dtype)}, expected {dtype_name(dtype)} as around it"
        )


def _from_file(node: Node, folder: Path, dtype: np.dtype[Any] | None) -> DeclaredTensor:
    from onnxopt_cli.cases.values.tensor_file import declare_file

    file, key = (node.fields or {})["file"], node.field("key")
    name = str(file.scalar)
    with _naming(file, name):
        path = contained_path(folder, name)
        declared = declare_file(path, None if key is None else str(key.scalar), dtype)

    def make() -> Array:
        with _naming(file, name):
            return declared.make()

    return DeclaredTensor(declared.dtype, declared.shape, make)


@contextmanager
def _naming(node: Node, name: str) -> Iterator[None]:
    """Turn what is wrong with a file into an error at the node that names it."""
    try:
        yield
    except Malformed as error:
        raise FormatError(node, f"the file {abbreviated(name)} {error}") from None


def _random(node: Node, dtype: np.dtype[Any]) -> DeclaredTensor:
    random = (node.fields or {})["random"]
    (distribution,) = set(random.fields or {}) - {"seed"}
    parameters = (random.fields or {})[distribution].fields or {}
    shape = _shape((node.fields or {})["shape"])
    try:
        tensor = RandomTensor(
            distribution,
            seed=_integer_at((random.fields or {})["seed"]),
            shape=shape,
            dtype=dtype,
            parameters={name: number(value) for name, value in parameters.items()},
        )
    except ValueError as error:
        raise FormatError(random, f"found {error}") from None

    def make() -> Array:
        try:
            return tensor.make()
        except ValueError as error:
            raise FormatError(random, f"found {error}") from None

    return DeclaredTensor(dtype, shape, make)


def _literal(node: Node, shape: Node | None, dtype: np.dtype[Any]) -> DeclaredTensor:
    found, leaves = _leaves(node)
    dimensions = found if shape is None else _shape(shape)
    if shape is not None:
        oversize = too_large(dimensions)
        if oversize:
            raise FormatError(shape, f"found {oversize}")
        fits = found == dimensions or (len(found) == 1 and len(leaves) == math.prod(dimensions))
        if not fits:
            raise FormatError(
                node,
                f"found {len(leaves)} elements in the shape {list(found)}, expected "
                f"{list(dimensions)}, or {math.prod(dimensions)} in a flat list",
            )
    array = element_array(leaves, dtype).reshape(dimensions)
    return DeclaredTensor(dtype, dimensions, array.copy)


def _leaves(node: Node) -> tuple[tuple[int, ...], list[Node]]:
    """Return the shape of nested lists and what is in the innermost ones.

    Raises:
        FormatError: at the first list or value that is not as its first sibling is.
    """
    shape: list[int] = []
    level = [node]
    while level and level[0].items is not None:
        size = len(level[0].items)
        for item in level:
            if item.items is None or len(item.items) != size:
                raise unexpected(item, f"a list of {size} as the first one here is")
        shape.append(size)
        level = [inner for item in level for inner in item.items or ()]
    for item in level:
        if item.items is not None or item.fields is not None:
            raise unexpected(item, "a single value as the first one here is")
    return tuple(shape), level


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(_integer_at(size) for size in node.items or ())


def _integer_at(node: Node) -> int:
    # To JSON Schema, 2.0 is an integer.
    return int(number(node))


# It has no type information.
_finfo: Any = ml_dtypes.finfo

_COMPLEX = re.compile(r"[-+0-9.eEjJinfaINFA]+")


def element_array(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    """Return the values of nodes as a one-dimensional array.

    A decimal was read as the nearest double; it is rounded to the element type from there.

    Raises:
        FormatError: at the first value that the element type cannot hold.
    """
    name = dtype_name(dtype)
    if name == STRING:
        return np.array(_checked(nodes, lambda value: isinstance(value, str), "text"), dtype)
    if name == "bool":
        expected = "true or false"
        return np.array(_checked(nodes, lambda value: isinstance(value, bool), expected), dtype)
    if "int" in name:
        return _integers(nodes, dtype)
    if name.startswith("complex"):
        return _complex_numbers(nodes, dtype)
    return _floats(nodes, dtype)


def element_kind(value: Scalar) -> str:
    """Return the name of the element type that a bare value of a file has by itself."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64"
    return "float32" if isinstance(value, float) else STRING


def _unfit(wide: Array, narrow: Array) -> Array:
    """Tell which doubles an element type could not hold, given what they became in it.

    Rounding is no failure; turning infinite, finite, zero or NaN is, and so is saturating.
    """
    info = _finfo(narrow.dtype)
    back = narrow.astype(np.float64)
    saturated = (back == float(info.max)) & (wide > back) & ~_has_infinity(narrow.dtype)
    saturated |= (back == float(info.min)) & (wide < back) & ~_has_infinity(narrow.dtype)
    lost: Array = (
        saturated
        | (np.isfinite(wide) != np.isfinite(back))
        | (np.isnan(wide) != np.isnan(back))
        | ((wide == 0) != (back == 0))
    )
    return lost


def _has_infinity(dtype: np.dtype[Any]) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.array(np.inf).astype(dtype).astype(np.float64)))


def _checked(nodes: Sequence[Node], fits: Callable[[Scalar], bool], expected: str) -> list[Any]:
    values = [node.scalar for node in nodes]
    if not all(map(fits, values)):
        wrong = next(node for node in nodes if not fits(node.scalar))
        raise unexpected(wrong, expected + _hint(wrong.scalar))
    return values


def _hint(value: Scalar) -> str:
    if isinstance(value, str) and value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return " (.nan, .inf and -.inf are numbers)"
    return ""


def _integers(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    low, high = integer_range(dtype)

    def fits(value: Scalar) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    values = _checked(nodes, fits, f"an integer from {low} to {high} ({dtype_name(dtype)})")
    wide = dtype if dtype.kind in "iu" else np.dtype(np.int64)
    return np.array(values, wide).astype(dtype)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _floats(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    values = _checked(nodes, _is_number, f"a number ({dtype_name(dtype)})")
    wide = np.array(values, np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    lost = _unfit(wide, narrow)
    if lost.any():
        raise unexpected(nodes[int(lost.argmax())], _range(dtype))
    return narrow


def _range(dtype: np.dtype[Any]) -> str:
    info = _finfo(dtype)
    smallest, largest = float(info.smallest_subnormal), float(info.max)
    return (
        f"a number that {dtype_name(dtype)} can hold (magnitudes {smallest:.4g} to {largest:.4g})"
    )


def _complex_numbers(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    values = [_complex_number(node) for node in nodes]
    wide = np.array(values, np.complex128)
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    lost = _unfit(wide.real, narrow.real) | _unfit(wide.imag, narrow.imag)
    if lost.any():
        raise unexpected(nodes[int(lost.argmax())], _range(narrow.real.dtype))
    return narrow


def _complex_number(node: Node) -> complex:
    value = node.scalar
    if isinstance(value, str) and _COMPLEX.fullmatch(value):
        try:
            return complex(value)
        except ValueError:
            pass
    elif _is_number(value):
        return complex(value)  # type: ignore[arg-type]
    raise unexpected(node, 'a complex number such as "1+2j"')
