"""Arrays as the text of a case file, such that reading it gives the same bits.

Text comes as tokens that may be separated by spaces or by line ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxopt_cli.cases.values.tensor_random import RandomTensor
from onnxopt_cli.cases.yaml.scalars import plain_scalar
from onnxopt_cli.core.values import STRING, Array, dtype_name

# From here on nested lists are harder to read than a flat one, and the depth of a file is limited.
_DEEPEST_NESTING = 6
_SHORT_RANGE = (1e-4, 1e6)
_PLAIN = re.compile(r"[A-Za-z_](?:[A-Za-z0-9 _.()/+*=^<>'-]*[A-Za-z0-9_.)])?")
_ESCAPES = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r", "\0": r"\0"}


def tensor_tokens(tensor: Array | RandomTensor, default: np.dtype[Any]) -> list[str]:
    """Write a tensor: as nested lists where these say its shape, its dtype where it is unlike.

    NaN is written without its sign and payload.

    Args:
        tensor: the array, or what to draw.
        default: the element type that a reader takes where none is written.
    """
    fields: dict[str, list[str]] = {}
    if tensor.dtype != default and not (_is_text(tensor.dtype) and _is_text(default)):
        fields["dtype"] = [dtype_name(tensor.dtype)]
    if isinstance(tensor, RandomTensor):
        fields["shape"] = list_tokens([[str(size)] for size in tensor.shape])
        return mapping_tokens({"random": _random_tokens(tensor), **fields})
    nested = tensor.ndim <= _DEEPEST_NESTING and 0 not in tensor.shape[:-1]
    if not nested:
        fields["shape"] = list_tokens([[str(size)] for size in tensor.shape])
    data = _nested_tokens(tensor if nested else tensor.reshape(-1))
    return mapping_tokens({**fields, "data": data}) if fields else data


def number_text(value: float, dtype: np.dtype[Any] | None = None) -> str:
    """Write a number with the fewest digits that a reader rounds to it.

    Args:
        value: the number; an integer stays one.
        dtype: the element type that it is rounded to; float64 if left out.
    """
    if isinstance(value, int):
        return str(value)
    if value != value:  # noqa: PLR0124 - the definition of NaN
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    digits = _digits(value, dtype or np.dtype(np.float64))
    smallest, largest = _SHORT_RANGE
    if value == 0 or smallest <= abs(value) < largest:
        return repr(float(f"{value:.{digits}g}"))
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def text_token(text: str, *, in_block: bool = False) -> str:
    """Write text, in quotes where it would be taken for something else.

    Args:
        text: the text.
        in_block: it stands outside of all brackets, where a comma ends nothing.
    """
    bare = text.replace(",", "") if in_block else text
    if _PLAIN.fullmatch(bare) and plain_scalar(text) == text:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def list_tokens(items: Sequence[Sequence[str]]) -> list[str]:
    """Write a flow list of items."""
    return _enclosed("[", items, "]")


def mapping_tokens(fields: Mapping[str, Sequence[str]]) -> list[str]:
    """Write a flow mapping of names to values."""
    return _enclosed(
        "{", [(f"{name}: {value[0]}", *value[1:]) for name, value in fields.items()], "}"
    )


def _enclosed(opening: str, items: Iterable[Sequence[str]], closing: str) -> list[str]:
    tokens: list[str] = []
    for item in items:
        if tokens:
            tokens[-1] += ","
        tokens += item
    if not tokens:
        return [opening + closing]
    tokens[0] = opening + tokens[0]
    tokens[-1] += closing
    return tokens


def _random_tokens(tensor: RandomTensor) -> list[str]:
    parameters = {name: [number_text(value)] for name, value in tensor.parameters.items()}
    return mapping_tokens(
        {tensor.distribution: mapping_tokens(parameters), "seed": [str(tensor.seed)]}
    )


def _nested_tokens(array: Array) -> list[str]:
    if array.ndim:
        # The ellipsis keeps the parts arrays, also those that hold a single Python object.
        return list_tokens([_nested_tokens(array[index, ...]) for index in range(len(array))])
    return [_element_text(array[()], array.dtype)]


def _element_text(value: Any, dtype: np.dtype[Any]) -> str:
    name = dtype_name(dtype)
    if name == STRING:
        return text_token(value)
    if name == "bool":
        return "true" if value else "false"
    if "int" in name:
        return str(int(value))
    if name.startswith("complex"):
        return f'"{_component(value.real)}{_component(value.imag, sign=True)}j"'
    return number_text(float(value), dtype)


def _component(value: Any, *, sign: bool = False) -> str:
    text = number_text(float(value), value.dtype).replace(".nan", "nan").replace(".inf", "inf")
    return text if text.startswith("-") or not sign else f"+{text}"


def _digits(value: float, dtype: np.dtype[Any]) -> int:
    """Return the least number of significant digits that give the value back."""
    exact = 17
    # A type without infinity refuses what is above its largest number, and so what rounds to it.
    if dtype_name(dtype).endswith(("fn", "fnuz", "fnu")):
        return len(repr(value).partition("e")[0].replace(".", "").strip("-0")) or 1
    with np.errstate(over="ignore", under="ignore"):
        for digits in range(1, exact):
            if float(np.float64(f"{value:.{digits}g}").astype(dtype)) == value:
                return digits
    return exact


def _is_text(dtype: np.dtype[Any]) -> bool:
    return dtype_name(dtype) == STRING


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}"
