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
from onnxopt_cli.core.tolerance import Relative, Ulps
from onnxopt_cli.core.values import STRING, Array, dtype_name
from onnxopt_cli.formula.operator import AttributeValue, Operator

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class WrittenCase:
    """A case of an operator with a formula, to be written.

    Attributes:
        name: unique in its file.
        inputs: by the operator's names; random data stay a notation.
        attributes: those that the node has; floats are written as the float32 they become.
        outputs: what is expected; None leaves it to the formula.
        about: what the case asks, one sentence.
        source: where the numbers come from.
        tags: words to select by.
        tolerance: for all outputs; None leaves it to be derived.
        rejects: True if a right backend must refuse the case.
        notes: a comment above the case.
        steps: of a trajectory; None for a single step.
    """

    name: str
    inputs: Mapping[str, Array | RandomTensor]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    outputs: Mapping[str, Array] | None = None
    about: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    tolerance: Relative | Ulps | None = None
    rejects: bool = False
    notes: str = ""
    steps: WrittenSteps | None = None


def yaml_text(
    cases: Sequence[WrittenCase],
    *,
    suite: str,
    operator: Operator,
    about: str = "",
    notes: str = "",
) -> str:
    """Write a case file; reading it gives the same cases, every array to the last bit.

    Args:
        cases: in the order of the file, at least one.
        suite: first part of their ids.
        operator: of all of them.
        about: what the file is for.
        notes: a comment at the top.
    """
    lines = [
        *comment(notes, ""),
        "onnxopt: 1",
        f"suite: {suite}",
        f"operator: {operator.name}",
        *words("", "about", about),
        "cases:",
    ]
    for number, case in enumerate(cases):
        lines += [""] * (number > 0)
        lines += _case_lines(case, operator)
    return "\n".join(lines) + "\n"


def _case_lines(case: WrittenCase, operator: Operator) -> list[str]:
    indent = " " * 4
    lines = [
        *comment(case.notes, "  "),
        f"  - name: {case.name}",
        *words(indent, "about", case.about),
        *words(indent, "source", case.source),
    ]
    if case.tags:
        lines += wrapped(f"{indent}tags: ", list_tokens([[tag] for tag in case.tags]))
    if case.rejects:
        lines.append(f"{indent}rejects: true")
    if case.attributes:
        fields = {name: _attribute_tokens(value) for name, value in case.attributes.items()}
        lines += wrapped(f"{indent}attributes: ", mapping_tokens(fields))
    lines += _tensor_lines(
        "inputs", case.inputs, {name: default_dtype(operator, name) for name in case.inputs}
    )
    if case.steps is not None:
        lines += _steps_lines(case.steps)
    if case.outputs is not None:
        lines += _tensor_lines("outputs", case.outputs, _output_dtypes(case, operator))
    if case.tolerance is not None:
        lines += wrapped(f"{indent}tolerance: ", tolerance_tokens(case.tolerance))
    return lines


def _tensor_lines(
    title: str,
    tensors: Mapping[str, Array | RandomTensor],
    defaults: Mapping[str, np.dtype[Any]],
) -> list[str]:
    lines = [f"    {title}:"]
    for name, tensor in tensors.items():
        lines += wrapped(f"      {name}: ", tensor_tokens(tensor, defaults[name]))
    return lines


def _steps_lines(steps: WrittenSteps) -> list[str]:
    lines = ["    steps:", f"      count: {steps.count}", "      inputs:"]
    for name, notation in steps.inputs.items():
        lines += wrapped(f"        {name}: ", notation_tokens(notation))
    return lines


def _output_dtypes(case: WrittenCase, operator: Operator) -> dict[str, np.dtype[Any]]:
    groups = group_count(operator, case.inputs)
    names = operator.input_names(groups)
    return {
        name: case.inputs[names[like]].dtype
        for name, (like, _) in zip(
            operator.output_names(groups), operator.places(groups), strict=True
        )
    }


def _attribute_tokens(value: AttributeValue) -> list[str]:
    if isinstance(value, tuple):
        return list_tokens([[_attribute_text(item)] for item in value])
    return [_attribute_text(value)]


def _attribute_text(value: float | str) -> str:
    if isinstance(value, str):
        return text_token(value)
    return number_text(value if isinstance(value, int) else float(_FLOAT.type(value)), _FLOAT)


@dataclass(frozen=True, slots=True)
class WrittenModelCase:
    """A case of a model file, to be written.

    Attributes:
        name: unique in its file.
        model: the model's file, in the folder of the case file.
        inputs: by the names of the graph.
        outputs: likewise, what is expected.
        tolerances: for each output.
        about: what the case asks, one sentence.
        source: where the numbers come from.
    """

    name: str
    model: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    tolerances: Mapping[str, Relative]
    about: str = ""
    source: str = ""


def model_yaml_text(case: WrittenModelCase, *, suite: str) -> str:
    """Write a case file of one case; reading it gives the same case, every array to the last bit.

    Args:
        case: the case.
        suite: first part of its id.
    """
    lines = ["onnxopt: 1", f"suite: {suite}", "cases:", f"  - name: {case.name}"]
    lines += words("    ", "about", case.about)
    lines += words("    ", "source", case.source)
    lines.append(f"    model: {case.model}")
    for title, tensors in (("inputs", case.inputs), ("outputs", case.outputs)):
        lines.append(f"    {title}:")
        for name, tensor in tensors.items():
            # The model declares the element types.
            lines += wrapped(f"      {name}: ", tensor_tokens(tensor, tensor.dtype))
    limits = {name: tolerance_tokens(limit) for name, limit in case.tolerances.items()}
    return "\n".join([*lines, *wrapped("    tolerance: ", mapping_tokens(limits))]) + "\n"


_WIDTH = 100


def tolerance_tokens(tolerance: Relative | Ulps) -> list[str]:
    """Write a tolerance for all outputs, or for one of them."""
    if isinstance(tolerance, Ulps):
        return mapping_tokens({"ulp": [str(tolerance.ulp)]})
    return mapping_tokens(
        {"rtol": [number_text(tolerance.rtol)], "atol": [number_text(tolerance.atol)]}
    )


def words(indent: str, name: str, text: str) -> list[str]:
    """Write a field of words, folded where it is long; nothing where it is empty."""
    if not text:
        return []
    line = f"{indent}{name}: {text_token(text, in_block=True)}"
    # Folding gives back single spaces between words only.
    if len(line) < _WIDTH or text != " ".join(text.split()) or not text.isprintable():
        return [line]
    return [f"{indent}{name}: >-", *_filled(text, f"{indent}  ")]


def comment(text: str, indent: str) -> list[str]:
    """Write a comment."""
    return [
        line
        for part in text.splitlines()
        for line in _filled(part, f"{indent}# ") or [f"{indent}#"]
    ]


def wrapped(start: str, tokens: Sequence[str]) -> list[str]:
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


def _filled(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH - 1,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


_FLOAT32 = np.dtype(np.float32)

#: What stands for an input of each step: random data, numbers in nested lists, or a mapping such as
#: ``{"quadratic": {"center": (1.0, 2.0)}}``.
Notation: TypeAlias = "RandomTensor | float | tuple[Notation, ...] | Mapping[str, Notation]"


@dataclass(frozen=True, slots=True)
class WrittenSteps:
    """What a case says of its steps.

    Attributes:
        count: number of steps.
        inputs: inputs that change and are not fed back.
    """

    count: int
    inputs: Mapping[str, Notation]


def notation_tokens(notation: Notation) -> list[str]:
    """Write an input of each step; numbers with as many digits as a double needs."""
    if isinstance(notation, RandomTensor):
        return tensor_tokens(notation, _FLOAT32)
    if isinstance(notation, Mapping):
        return mapping_tokens({name: notation_tokens(it) for name, it in notation.items()})
    if isinstance(notation, tuple):
        return list_tokens([notation_tokens(it) for it in notation])
    return [number_text(notation)]


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
