"""Cases as the text of a YAML case file: reading it gives the same cases, to the last bit.

Values come as tokens that may be separated by spaces or by line ends.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.cases.values.declared import RandomTensor
from onnxopt_cli.cases.yaml.formula_case import default_dtype, group_count
from onnxopt_cli.cases.yaml.syntax import plain_scalar
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.core.values import STRING, Array, dtype_name
from onnxopt_cli.formula.operator import AttributeValue, Operator

#: A tensor, or how to draw one.
Given: TypeAlias = Array | RandomTensor

#: What stands for an input of each step: random data, numbers in nested lists, or a mapping such as
#: ``{"quadratic": {"center": (1.0, 2.0)}}``.
Notation: TypeAlias = "RandomTensor | float | tuple[Notation, ...] | Mapping[str, Notation]"

_FLOAT32 = np.dtype(np.float32)
_WIDTH = 100
# From here on nested lists are harder to read than a flat one, and the depth of a file is limited.
_DEEPEST_NESTING = 6
_SHORT_RANGE = (1e-4, 1e6)
_PLAIN = re.compile(r"[A-Za-z_](?:[A-Za-z0-9 _.()/+*=^<>'-]*[A-Za-z0-9_.)])?")
_ESCAPES = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r", "\0": r"\0"}


@dataclass(frozen=True, slots=True)
class WrittenCase:
    """A case of an operator with a formula, as its author writes it down.

    Attributes:
        name: unique in its file.
        operator: the operator.
        inputs: by the operator's names, in the specification's order; random data stay a notation.
        attributes: those that the node has; floats are written as the float32 they become.
        outputs: what is expected; None leaves it to the formula.
        about: what the case asks, one sentence.
        source: where the numbers come from.
        tags: words to select by.
        rejects: True if a right backend must refuse the case.
        notes: a comment above the case.
        onnx_names: names of the node's inputs in an ONNX directory, where they are other ones.
        steps: number of steps of a trajectory; 0 for a case of one step.
        changing: the inputs of a trajectory that change and are not fed back.
    """

    name: str
    operator: Operator
    inputs: Mapping[str, Given]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    outputs: Mapping[str, Array] | None = None
    about: str = ""
    source: str = ""
    tags: Sequence[str] = ()
    rejects: bool = False
    notes: str = ""
    onnx_names: Sequence[str] = ()
    steps: int = 0
    changing: Mapping[str, Notation] = field(default_factory=dict)


def yaml_text(cases: Sequence[WrittenCase], *, suite: str, about: str = "", notes: str = "") -> str:
    """Write a case file; reading it gives the same cases, every array to the last bit.

    Args:
        cases: in the order of the file, at least one, all of one operator.
        suite: first part of their ids.
        about: what the file is for.
        notes: a comment at the top.
    """
    lines = [
        *_comment(notes, ""),
        "onnxopt: 1",
        f"suite: {suite}",
        f"operator: {cases[0].operator.name}",
        *_words("", "about", about),
        "cases:",
    ]
    for number, case in enumerate(cases):
        lines += [""] * (number > 0)
        lines += _case_lines(case)
    return "\n".join(lines) + "\n"


def model_yaml_text(
    name: str,
    *,
    suite: str,
    model: str,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    tolerances: Mapping[str, Relative],
    about: str = "",
    source: str = "",
) -> str:
    """Write a case file of one case of a model; reading it gives the same, to the last bit.

    Args:
        name: of the case.
        suite: first part of its id.
        model: the model's file, in the folder of the case file.
        inputs: by the names of the graph.
        outputs: likewise, what is expected.
        tolerances: for each output.
        about: what the case asks, one sentence.
        source: where the numbers come from.
    """
    lines = ["onnxopt: 1", f"suite: {suite}", "cases:", f"  - name: {name}"]
    lines += _words("    ", "about", about)
    lines += _words("    ", "source", source)
    lines.append(f"    model: {model}")
    for title, tensors in (("inputs", inputs), ("outputs", outputs)):
        # The model declares the element types.
        lines += _tensor_lines(title, tensors, {name: it.dtype for name, it in tensors.items()})
    limits = {
        name: mapping_tokens({"rtol": [number_text(it.rtol)], "atol": [number_text(it.atol)]})
        for name, it in tolerances.items()
    }
    return "\n".join([*lines, *_wrapped("    tolerance: ", mapping_tokens(limits))]) + "\n"


def _case_lines(case: WrittenCase) -> list[str]:
    indent = " " * 4
    operator = case.operator
    lines = [
        *_comment(case.notes, "  "),
        f"  - name: {case.name}",
        *_words(indent, "about", case.about),
        *_words(indent, "source", case.source),
    ]
    if case.tags:
        lines += _wrapped(f"{indent}tags: ", list_tokens([[tag] for tag in case.tags]))
    if case.rejects:
        lines.append(f"{indent}rejects: true")
    if case.attributes:
        fields = {
            name: list_tokens([[_attribute_text(item)] for item in value])
            if isinstance(value, tuple)
            else [_attribute_text(value)]
            for name, value in case.attributes.items()
        }
        lines += _wrapped(f"{indent}attributes: ", mapping_tokens(fields))
    defaults = {name: default_dtype(operator, name) for name in case.inputs}
    lines += _tensor_lines("inputs", case.inputs, defaults)
    if case.steps:
        lines += ["    steps:", f"      count: {case.steps}", "      inputs:"]
        for name, notation in case.changing.items():
            lines += _wrapped(f"        {name}: ", _notation_tokens(notation))
    if case.outputs is not None:
        groups = group_count(operator, case.inputs)
        names = operator.input_names(groups)
        places = zip(operator.output_names(groups), operator.places(groups), strict=True)
        defaults = {name: case.inputs[names[like]].dtype for name, (like, _) in places}
        lines += _tensor_lines("outputs", case.outputs, defaults)
    return lines


def _tensor_lines(
    title: str, tensors: Mapping[str, Given], defaults: Mapping[str, np.dtype[Any]]
) -> list[str]:
    lines = [f"    {title}:"]
    for name, tensor in tensors.items():
        lines += _wrapped(f"      {name}: ", tensor_tokens(tensor, defaults[name]))
    return lines


def _attribute_text(value: float | str) -> str:
    if isinstance(value, str):
        return text_token(value)
    return number_text(value if isinstance(value, int) else float(_FLOAT32.type(value)), _FLOAT32)


def _words(indent: str, name: str, text: str) -> list[str]:
    """Write a field of words, folded where it is long; nothing where it is empty."""
    if not text:
        return []
    line = f"{indent}{name}: {text_token(text, in_block=True)}"
    # Folding gives back single spaces between words only.
    if len(line) < _WIDTH or text != " ".join(text.split()) or not text.isprintable():
        return [line]
    return [f"{indent}{name}: >-", *_filled(text, f"{indent}  ")]


def _comment(text: str, indent: str) -> list[str]:
    return [
        line
        for part in text.splitlines()
        for line in _filled(part, f"{indent}# ") or [f"{indent}#"]
    ]


def _filled(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH - 1,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrapped(start: str, tokens: Sequence[str]) -> list[str]:
    """Join tokens to lines, those after the first indented below it."""
    indent = " " * (len(start) - len(start.lstrip()) + 2)
    lines, line = [], start.rstrip()
    for token in tokens:
        if len(line) + 1 + len(token) < _WIDTH or line == start.rstrip():
            line = f"{line} {token}"
        else:
            lines.append(line)
            line = indent + token
    return [*lines, line]


def tensor_tokens(tensor: Given, default: np.dtype[Any]) -> list[str]:
    """Write a tensor: as nested lists where these say its shape, its dtype where it is unlike.

    NaN is written without its sign and payload.

    Args:
        tensor: the array, or what to draw.
        default: the element type that a reader takes where none is written.
    """
    fields: dict[str, list[str]] = {}
    nested = False
    if isinstance(tensor, RandomTensor):
        parameters = {name: [number_text(value)] for name, value in tensor.parameters.items()}
        drawn = {tensor.distribution: mapping_tokens(parameters), "seed": [str(tensor.seed)]}
        fields["random"] = mapping_tokens(drawn)
    else:
        nested = tensor.ndim <= _DEEPEST_NESTING and 0 not in tensor.shape[:-1]
    if dtype_name(tensor.dtype) != dtype_name(default):
        fields["dtype"] = [dtype_name(tensor.dtype)]
    if not nested:
        fields["shape"] = list_tokens([[str(size)] for size in tensor.shape])
    if isinstance(tensor, RandomTensor):
        return mapping_tokens(fields)
    data = _nested_tokens(tensor if nested else tensor.reshape(-1))
    return mapping_tokens({**fields, "data": data}) if fields else data


def _nested_tokens(array: Array) -> list[str]:
    if array.ndim:
        # The ellipsis keeps the parts arrays, also those that hold a single Python object.
        return list_tokens([_nested_tokens(array[index, ...]) for index in range(len(array))])
    value: Any = array[()]
    name = dtype_name(array.dtype)
    if name == STRING:
        return [text_token(value)]
    if name == "bool":
        return ["true" if value else "false"]
    if "int" in name:
        return [str(int(value))]
    if name.startswith("complex"):
        parts = [number_text(float(part), part.dtype) for part in (value.real, value.imag)]
        real, imaginary = (part.replace(".nan", "nan").replace(".inf", "inf") for part in parts)
        return [f'"{real}{"" if imaginary.startswith("-") else "+"}{imaginary}j"']
    return [number_text(float(value), array.dtype)]


def _notation_tokens(notation: Notation) -> list[str]:
    """Write an input of each step; numbers with as many digits as a double needs."""
    if isinstance(notation, RandomTensor):
        return tensor_tokens(notation, _FLOAT32)
    if isinstance(notation, Mapping):
        return mapping_tokens({name: _notation_tokens(it) for name, it in notation.items()})
    if isinstance(notation, tuple):
        return list_tokens([_notation_tokens(it) for it in notation])
    return [number_text(notation)]


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


def text_token(text: str, *, in_block: bool = False) -> str:
    """Write text, in quotes where it would be taken for something else.

    Args:
        text: the text.
        in_block: it stands outside of all brackets, where a comma ends nothing.
    """
    bare = text.replace(",", "") if in_block else text
    if _PLAIN.fullmatch(bare) and plain_scalar(text) == text:
        return text
    escaped = (_ESCAPES.get(it) or (it if it.isprintable() else f"\\U{ord(it):08x}") for it in text)
    return '"' + "".join(escaped) + '"'


def list_tokens(items: Sequence[Sequence[str]]) -> list[str]:
    """Write a flow list of items."""
    return _enclosed("[", items, "]")


def mapping_tokens(fields: Mapping[str, Sequence[str]]) -> list[str]:
    """Write a flow mapping of names to values."""
    items = ([f"{name}: {value[0]}", *value[1:]] for name, value in fields.items())
    return _enclosed("{", items, "}")


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
