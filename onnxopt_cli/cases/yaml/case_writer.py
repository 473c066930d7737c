"""Writes cases as the text of a YAML case file; reading the text gives the same cases, bit for bit.

The functions represent a value as a list of tokens; between two tokens, the text may have a blank
or a line break.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.cases.onnx.node_model import PLAIN_WIRING, Wiring
from onnxopt_cli.cases.tensors.declared import Declared, DeclaredGroup, RandomTensor
from onnxopt_cli.cases.yaml.formula_case import default_dtype, group_count
from onnxopt_cli.cases.yaml.yaml_syntax import number_token, plain_scalar
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.operators.operator import AttributeValue, Operator

#: A tensor, or a description of random data.
TemplateInput: TypeAlias = Array | RandomTensor

#: An input under ``steps``: random data, numbers in nested lists, or a mapping such as
#: ``{"quadratic": {"center": (1.0, 2.0)}}``.
Notation: TypeAlias = "RandomTensor | float | tuple[Notation, ...] | Mapping[str, Notation]"

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_WIDTH = 100
# The largest number of dimensions of a tensor that is written as nested lists; flat lists are
# easier to read for more dimensions.
_MAX_NESTING = 6
_SHORT_RANGE = (1e-4, 1e6)
_PLAIN_TEXT = re.compile(r"[A-Za-z_](?:[A-Za-z0-9 _.()/+*=^<>'-]*[A-Za-z0-9_.)])?")
_ESCAPES = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r", "\0": r"\0"}


@dataclass(frozen=True, slots=True)
class TypedAttribute:
    """An attribute whose type differs from the signature, in a case with ``rejects``.

    Attributes:
        type: the name of an ``AttributeProto.AttributeType``: ``INT``, ``FLOATS``, ...
        value: a value of that type.
    """

    type: str
    value: float | str | tuple[float | str, ...]


@dataclass(frozen=True, slots=True)
class CaseTemplate:
    """A case of an operator with a formula, in a form that can be written to a file.

    Attributes:
        name: unique in its file.
        operator: the operator.
        inputs: inputs by the operator's names, in the specification's order; random data are
            written as their description.
        attributes: the attributes of the node; floats are rounded to float32.
        outputs: the stored outputs; None to compute the expected outputs by the formula.
        about: what the case tests, in one sentence.
        source: the origin of the numbers.
        tags: words that select the case.
        rejects: True if a correct backend must reject the case.
        notes: a comment above the case.
        onnx_names: names of the node's inputs in an ONNX directory, if they differ.
        wiring: the graph around the node.
        steps: number of steps of a trajectory; 0 for a case without steps.
        changing: the inputs of a trajectory, stated under ``steps``, that change between steps
            although no output is fed back to them.
    """

    name: str
    operator: Operator
    inputs: Mapping[str, TemplateInput]
    attributes: Mapping[str, AttributeValue | TypedAttribute] = field(default_factory=dict)
    outputs: Mapping[str, Array] | None = None
    about: str = ""
    source: str = ""
    tags: Sequence[str] = ()
    rejects: bool = False
    notes: str = ""
    onnx_names: Sequence[str] = ()
    wiring: Wiring = PLAIN_WIRING
    steps: int = 0
    changing: Mapping[str, Notation] = field(default_factory=dict)


def yaml_text(
    cases: Sequence[CaseTemplate], *, suite: str, about: str = "", notes: str = ""
) -> str:
    """Return the text of a case file.

    Args:
        cases: one or more cases of the same operator, in the order of the file.
        suite: the first part of their ids, with a version if there is one: ``conformance@2``.
        about: the purpose of the file.
        notes: a comment at the top.
    """
    head = {"onnxopt": ["1"], "suite": [suite], "operator": [cases[0].operator.name]}
    lines = [*_comment(notes, ""), *_lines({**head, "about": about}), "cases:"]
    for number, case in enumerate(cases):
        lines += [""] * (number > 0) + _comment(case.notes, "  ") + _item(_case_fields(case))
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
    """Return the text of a case file with one case that has a model file.

    Args:
        name: the name of the case.
        suite: the first part of its id.
        model: the model's file, in the folder of the case file.
        inputs: inputs by the names of the graph.
        outputs: stored outputs by the names of the graph.
        tolerances: a tolerance for each output.
        about: what the case tests, in one sentence.
        source: the origin of the numbers.
    """
    fields = {
        "name": [name],
        "about": about,
        "source": source,
        "model": [model],
        # The model declares the element types.
        "inputs": _tensors(inputs, {name: value.dtype for name, value in inputs.items()}),
        "outputs": _tensors(outputs, {name: value.dtype for name, value in outputs.items()}),
        "tolerance": flow(
            {
                name: {"rtol": tolerance.rtol, "atol": tolerance.atol}
                for name, tolerance in tolerances.items()
            }
        ),
    }
    lines = [*_lines({"onnxopt": ["1"], "suite": [suite]}), "cases:", *_item(fields)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class NodeCase:
    """A case of an operator without a formula, as its file describes it.

    Attributes:
        name: the name of the case, unique in its file.
        version: the version of the operator's domain.
        inputs: the inputs by name.
        outputs: the expected outputs by name.
        attributes: the attributes of the node; a tensor is an array.
        model: the path of the model's file, relative to that of the case file; empty for a case
            that describes its node.
        about: what the case tests, in one sentence.
        tags: words that select the case.
        source: the origin of the numbers.
    """

    name: str
    version: int
    inputs: Mapping[str, Declared]
    outputs: Mapping[str, Declared]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    about: str = ""
    tags: Sequence[str] = ()
    source: str = ""


def node_yaml_text(
    cases: Sequence[NodeCase],
    *,
    suite: str,
    operator: str,
    domain: str = "",
    about: str = "",
    notes: str = "",
) -> str:
    """Write a case file with cases of an operator without a formula.

    Args:
        cases: the cases in the order of the file, at least one.
        suite: the first part of their ids, with its version: ``operators@2``.
        operator: the operator's name.
        domain: the operator's domain; empty for ai.onnx.
        about: the purpose of the file.
        notes: a comment at the top.
    """
    head: dict[str, Any] = {"onnxopt": ["1"], "suite": [suite], "about": about}
    lines = [*_comment(notes, ""), *_lines(head), "cases:"]
    for number, case in enumerate(cases):
        fields: dict[str, Any] = {
            "name": [case.name],
            "about": case.about,
            "source": case.source,
            "tags": flow(case.tags) if case.tags else None,
        }
        if case.model:
            fields["model"] = [case.model]
        else:
            fields["operator"] = [operator]
            fields["domain"] = [domain] if domain else None
            fields["version" if domain else "opset"] = [str(case.version)]
            attributes = {name: _node_attribute(value) for name, value in case.attributes.items()}
            fields["attributes"] = _in_braces(attributes) if attributes else None
        inputs = {name: _value_flow(value) for name, value in case.inputs.items()}
        fields["inputs"] = inputs or ["{}"]
        fields["outputs"] = {name: _value_flow(value) for name, value in case.outputs.items()}
        lines += [""] * (number > 0) + _item(fields)
    return "\n".join(lines) + "\n"


def _node_attribute(value: Any) -> list[str]:
    return _value_flow(value) if isinstance(value, np.ndarray) else flow(value, _FLOAT32)


def _value_flow(value: Declared) -> list[str]:
    """Return a tensor, sequence or optional as tokens, including its element type."""
    if isinstance(value, DeclaredGroup):
        items = [_value_flow(item) for item in value.items]
        if value.kind == "seq":
            empty = {} if items else {"dtype": [dtype_name(value.dtype)]}
            return _in_braces({**empty, "sequence": _bracketed("[]", items)})
        return _in_braces({"optional": items[0] if items else ["null"]})
    return _typed_tensor(value if isinstance(value, np.ndarray) else value.make())


def _typed_tensor(tensor: Array) -> list[str]:
    named = {"dtype": [dtype_name(tensor.dtype)]}
    if tensor.ndim > _MAX_NESTING or 0 in tensor.shape[:-1]:
        named["shape"] = flow(tensor.shape)
        tensor = tensor.reshape(-1)
    return _in_braces({**named, "data": flow(tensor.tolist(), tensor.dtype)})


def _case_fields(case: CaseTemplate) -> dict[str, Any]:
    groups = group_count(case.operator, case.inputs)
    names = case.operator.input_names(groups)
    places = zip(case.operator.output_names(groups), case.operator.places(groups), strict=True)
    defaults = {name: default_dtype(case.operator, name) for name in case.inputs}
    output_defaults = {
        name: case.inputs[names[like]].dtype for name, (like, _) in places if case.outputs
    }
    changing = {name: flow(notation) for name, notation in case.changing.items()}
    return {
        "name": [case.name],
        "about": case.about,
        "source": case.source,
        "tags": flow(case.tags) if case.tags else None,
        "rejects": ["true"] if case.rejects else None,
        "attributes": flow(case.attributes, _FLOAT32) if case.attributes else None,
        "inputs": _tensors(case.inputs, defaults),
        "graph": _graph(case.wiring) or None,
        "steps": {"count": [str(case.steps)], "inputs": changing} if case.steps else None,
        "outputs": _tensors(case.outputs, output_defaults),
    }


def _graph(wiring: Wiring) -> dict[str, list[str]]:
    fields = {
        "names": wiring.names,
        "inputs": wiring.inputs,
        "outputs": wiring.outputs,
        "initializers": wiring.initializers,
        "attributes": wiring.attributes,
    }
    return {key: flow(value) for key, value in fields.items() if value}


def _tensors(
    tensors: Mapping[str, TemplateInput] | None, defaults: Mapping[str, np.dtype[Any]]
) -> dict[str, list[str]] | None:
    if tensors is None:
        return None
    return {name: tensor_flow(tensor, defaults[name]) for name, tensor in tensors.items()}


def _item(fields: Mapping[str, Any]) -> list[str]:
    """Return the lines of a list item."""
    first, *following = _lines(fields, " " * 4)
    return [f"  - {first[4:]}", *following]


def _lines(fields: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return the lines of a mapping; fields with the value None are omitted.

    A value is a list of tokens, a text of words, or a nested mapping.
    """
    lines: list[str] = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_lines(value, f"{indent}  ")]
        elif isinstance(value, str):
            lines += _words(indent, name, value)
        elif value is not None:
            lines += _wrapped(f"{indent}{name}: ", value)
    return lines


def _words(indent: str, name: str, text: str) -> list[str]:
    """Return the lines of a field whose value is text.

    A long field is folded; an empty field has no lines.
    """
    if not text:
        return []
    line = f"{indent}{name}: {text_token(text, in_block=True)}"
    # When a folded text is read back, its words are separated by single spaces.
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
    """Return the lines of a value; lines after the first are indented."""
    indent = " " * (len(start) - len(start.lstrip()) + 2)
    lines, line = [], start.rstrip()
    for token in tokens:
        if len(line) + 1 + len(token) < _WIDTH or line == start.rstrip():
            line = f"{line} {token}"
        else:
            lines.append(line)
            line = indent + token
    return [*lines, line]


def tensor_flow(tensor: TemplateInput, default: np.dtype[Any]) -> list[str]:
    """Return a tensor in YAML's flow style, as a list of tokens.

    The shape and element type of the tensor are stated only if necessary. NaN is written without
    its sign and payload.

    Args:
        tensor: the array, or the description of random data.
        default: the element type that a reader assumes if none is stated.
    """
    name, shape = dtype_name(tensor.dtype), flow(tensor.shape)
    dtype_field = {} if name == dtype_name(default) else {"dtype": [name]}
    if isinstance(tensor, RandomTensor):
        tail = {"tail": tensor.tail} if tensor.tail else {}
        random = flow({tensor.distribution: tensor.parameters, "seed": tensor.seed, **tail})
        return _in_braces({"random": random, **dtype_field, "shape": shape})
    if tensor.ndim > _MAX_NESTING or 0 in tensor.shape[:-1]:
        data = flow(tensor.reshape(-1).tolist(), tensor.dtype)
        return _in_braces({**dtype_field, "shape": shape, "data": data})
    data = flow(tensor.tolist(), tensor.dtype)
    return _in_braces({**dtype_field, "data": data}) if dtype_field else data


def flow(value: Any, dtype: np.dtype[Any] = _FLOAT64) -> list[str]:
    """Return a value in YAML's flow style, as a list of tokens.

    Numbers have the fewest digits from which a reader recovers their value in the element type.
    """
    if isinstance(value, RandomTensor):
        return tensor_flow(value, _FLOAT32)
    if isinstance(value, TypedAttribute):
        return flow({"type": value.type, "data": value.value}, dtype)
    if isinstance(value, Mapping):
        return _in_braces({name: flow(item, dtype) for name, item in value.items()})
    if isinstance(value, (list, tuple)):
        return _bracketed("[]", [flow(item, dtype) for item in value])
    return [_scalar(value, dtype)]


def _scalar(value: Any, dtype: np.dtype[Any]) -> str:
    if isinstance(value, str):
        return text_token(value)
    if isinstance(value, complex):
        part = np.empty(0, dtype).real.dtype
        real, imaginary = (
            number_text(component, part).replace(".nan", "nan").replace(".inf", "inf")
            for component in (value.real, value.imag)
        )
        return f'"{real}{"" if imaginary.startswith("-") else "+"}{imaginary}j"'
    return number_text(value, dtype)


def number_text(value: float, dtype: np.dtype[Any] = _FLOAT64) -> str:
    """Return the text of a number with the fewest digits from which a reader recovers it exactly.

    Args:
        value: the number; a float is first rounded to the element type.
        dtype: the element type.
    """
    if isinstance(value, int):
        return number_token(value)
    value = float(np.float64(value).astype(dtype))
    if not math.isfinite(value):
        return number_token(value)
    digits = _digits(value, dtype)
    smallest, largest = _SHORT_RANGE
    if value == 0 or smallest <= abs(value) < largest:
        return repr(float(f"{value:.{digits}g}"))
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _digits(value: float, dtype: np.dtype[Any]) -> int:
    """Return the least number of significant digits from which a reader recovers the value."""
    max_digits = 17
    # If a type has no infinity, readers reject every number above its largest number, although some
    # of these numbers would round to the largest. Therefore, all digits are written.
    if dtype_name(dtype).endswith(("fn", "fnuz", "fnu")):
        return len(repr(value).partition("e")[0].replace(".", "").strip("-0")) or 1
    with np.errstate(over="ignore", under="ignore"):
        for digits in range(1, max_digits):
            if float(np.float64(f"{value:.{digits}g}").astype(dtype)) == value:
                return digits
    return max_digits


def text_token(text: str, *, in_block: bool = False) -> str:
    """Return text as a token.

    The text is quoted if YAML would otherwise read another value.

    Args:
        text: the text.
        in_block: whether the token is outside all brackets, where a comma needs no quotes.
    """
    bare = text.replace(",", "") if in_block else text
    if _PLAIN_TEXT.fullmatch(bare) and plain_scalar(text) == text:
        return text
    escaped = (
        _ESCAPES.get(character)
        or (character if character.isprintable() else f"\\U{ord(character):08x}")
        for character in text
    )
    return '"' + "".join(escaped) + '"'


def _in_braces(fields: Mapping[str, list[str]]) -> list[str]:
    return _bracketed(
        "{}", [[f"{name}: {tokens[0]}", *tokens[1:]] for name, tokens in fields.items()]
    )


def _bracketed(brackets: str, items: list[list[str]]) -> list[str]:
    for item in items[:-1]:
        item[-1] += ","
    tokens = [token for item in items for token in item] or [""]
    tokens[0] = brackets[0] + tokens[0]
    tokens[-1] += brackets[1]
    return tokens
