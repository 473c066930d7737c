"""The JSON Schema of case files: printed for editors, and what files are validated by."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from onnxopt_cli.cases.yaml.syntax import FormatError, Node, abbreviated, unexpected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import jsonschema_rs

_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}
_AMBIGUOUS = "\0+0123456789"


@cache
def case_schema() -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) of case files; it is not to be changed."""
    text = resources.files(__package__).joinpath("schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def structure_errors(root: Node, schema: Callable[[], dict[str, Any]]) -> list[FormatError]:
    """Return everything about a file that contradicts its schema, in the order of its lines.

    Args:
        root: of the file.
        schema: returns the schema, always the same.
    """
    errors = [
        ours
        for theirs in _validator(schema).iter_errors(_instance(root))
        for ours in _ours(schema(), root, theirs)
    ]
    return sorted(errors, key=lambda error: error.line)


# Making one takes longer than reading a file.
@cache
def _validator(schema: Callable[[], dict[str, Any]]) -> jsonschema_rs.Validator:
    import jsonschema_rs

    return jsonschema_rs.validator_for(schema())


def _instance(node: Node) -> object:
    """Return what stands at a node as JSON has it."""
    if node.fields is not None:
        return {_marked(key): _instance(value) for key, value in node.fields.items()}
    if node.items is not None:
        return [_instance(item) for item in node.items]
    if isinstance(node.scalar, float) and node.scalar - node.scalar != 0:
        # JSON has neither infinity nor NaN. As text they pass where text may stand, which is in
        # tensors and attributes, and fail where only a number may.
        return str(node)
    if isinstance(node.scalar, int):
        # The validator knows no integers of more than 64 bits.
        return max(-(2**63), min(node.scalar, 2**64 - 1))
    return node.scalar


def _ours(
    schema: dict[str, Any], root: Node, theirs: jsonschema_rs.ValidationError
) -> Iterator[FormatError]:
    """Say a validation error in the words of this package."""
    node = _at(root, theirs.instance_path)
    part: Any = schema
    for step in theirs.schema_path[:-1]:
        part = part[step]
    details = theirs.kind.as_dict()
    match theirs.kind.name:
        case "additionalProperties":
            for name in map(_unmarked, details["unexpected"]):
                yield unknown_name(node, name, list(part["properties"]), "field")
        case "required":
            yield FormatError(node, f"found no {details['property']}, expected this field")
        case kind:
            yield unexpected(node, part.get("errorMessage") or _expected(kind, details))


def _expected(kind: str, details: dict[str, Any]) -> str:
    match kind:
        case "type":
            return " or ".join(_TYPES[name] for name in details["types"])
        case "const":
            return repr(details["expected_value"])
        case "minimum":
            return f"at least {details['limit']}"
        case "maximum":
            return f"at most {details['limit']}"
        case "minItems":
            return f"at least {details['limit']} of them"
        case "maxItems":
            return f"at most {details['limit']} of them"
        case _:
            raise AssertionError(f"the schema uses {kind} without an errorMessage")


def unknown_name(mapping: Node, name: str, known: list[str], what: str) -> FormatError:
    """Return the error that a mapping has a key it should not have, with the nearest known one."""
    expected = f"one of {listed(known)}" if known else "none"
    node = mapping.field(name) or mapping
    return FormatError(node, f"found an unknown {what}, expected {expected}{nearest(name, known)}")


def listed(names: Iterable[str]) -> str:
    """Return names as a message lists them."""
    return abbreviated(", ".join(names), longest=200)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the known name most like one, empty if none is."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _at(root: Node, path: list[str | int]) -> Node:
    node = root
    for step in path:
        if isinstance(step, int):
            node = (node.items or [])[step]
        else:
            node = (node.fields or {})[_unmarked(step)]
    return node


def _marked(key: str) -> str:
    # The validator's paths turn keys such as "0" and "+7" into indices and leave out an empty one.
    return key if key.strip(_AMBIGUOUS) else f"\0{key}"


def _unmarked(key: str) -> str:
    return key if key.strip(_AMBIGUOUS) else key[1:]
