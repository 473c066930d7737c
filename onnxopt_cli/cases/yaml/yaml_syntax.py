"""Parses untrusted YAML text into nodes with line numbers, and validates it against a JSON Schema.

The parser works on PyYAML's event stream: it rejects aliases, anchors, tags and deep nesting before
it builds anything from them. Errors after which parsing can continue are collected, not raised.
Plain scalars follow YAML 1.2, extended by C's hexadecimal floats. PyYAML itself follows YAML 1.1,
where ``1e-7`` is text, ``010`` is eight and ``no`` is false.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from onnxopt_cli.core.process_control import losing_exceptions
from onnxopt_cli.core.text import abbreviated, listed, nearest, printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import Fault, InvalidCase

if TYPE_CHECKING:
    import jsonschema_rs

#: Largest number of bytes of a YAML or JSON file.
MAX_BYTES = 16 * 2**20
# Matches two escaped surrogates in a JSON string, after any number of escaped backslashes.
_ESCAPED_PAIR = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u(d[89ab][\da-f]{2})\\u(d[c-f][\da-f]{2})", re.IGNORECASE
)
#: The depth to which mappings and lists may be nested. libyaml recurses, and crashes at a depth of
#: about 10^5.
MAX_DEPTH = 20
_TOO_DEEP = f"found nesting deeper than {MAX_DEPTH}, expected less"
#: Largest number of values in a file, because reading more values takes seconds. Large tensors
#: should be stored in files of their own. The files of the suite ``operators`` have up to 410,000.
MAX_NODES = 500_000

# The parser of libyaml is ten times faster, but PyYAML may have been built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Scalar: TypeAlias = bool | int | float | str | None

_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}
# Describes the expected content for violations of schema keywords that have no errorMessage.
_EXPECTED = {
    "const": "{expected_value!r}",
    "minimum": "at least {limit}",
    "maximum": "at most {limit}",
    "minItems": "at least {limit} of them",
    "maxItems": "at most {limit} of them",
    "uniqueItems": "each item once",
    "minLength": "a text of at least {limit} characters",
    "maxLength": "a text of at most {limit} characters",
}
# Describes the expected content for violations of all other schema keywords.
_EXPECTED_BY_SCHEMA = "what onnxopt schema prints"
# The largest number of unknown keys of a mapping that are reported one by one.
_MAX_UNKNOWN = 20
# Similar keys are suggested only for a mapping with at most this number of valid keys, because
# comparing 500,000 unknown keys with 500,000 valid keys would take too long.
_MAX_COMPARED = 1000
_SECOND_DOCUMENT = "found a second YAML document, expected one document per file"
# If a key has only these characters, the validator may turn it into a list index; see _marked().
_INDEX_CHARS = "\0+0123456789"
# The depth of a case, which is an item of the list under the key "cases".
_CASE_DEPTH = 2

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
# Matches an integer; the group matches if the integer has a prefix for its base.
_INTEGER = re.compile(r"[-+]?(?:[0-9]+|(0x[0-9a-fA-F]+|0o[0-7]+))")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_HEXADECIMAL = re.compile(
    r"[-+]?0[xX](\.[0-9a-fA-F]+|[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?)[pP][-+]?[0-9]+"
)
# Larger integers are rejected. Every accepted integer is below 2^1023, so that each can be
# converted to a double without overflow.
_MAX_DIGITS = 300
_MAX_BITS = 1023


@dataclass(slots=True, eq=False)
class Node:
    """A value of a YAML or JSON file, and its position.

    Attributes:
        line: line of the value's key, or of the value if it has no key; counted from 1.
        parent: the mapping or list that contains the value.
        key: its key or index in the parent.
        scalar: the value, unless it is a mapping or a list.
        fields: the values of a mapping by key.
        items: the values of a list in order.
    """

    line: int
    parent: Node | None = None
    key: str | int = ""
    scalar: Scalar = None
    fields: dict[str, Node] | None = None
    items: list[Node] | None = None

    @property
    def path(self) -> tuple[str | int, ...]:
        """Keys and indices that lead from the top of the file to this node."""
        return tuple(node.key for node in self.lineage() if node.parent is not None)[::-1]

    def lineage(self) -> Iterator[Node]:
        """Yield this node and its ancestors, from this node to the top of the file."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def field(self, name: str) -> Node | None:
        """Return the value of a key; None if this node is not a mapping or lacks the key."""
        return self.fields.get(name) if self.fields else None

    def __str__(self) -> str:
        """Describe the value for messages: ``2.5``, ``"text"``, ``a list of 3``."""
        if self.fields is not None:
            return f"a mapping with {', '.join(self.fields)}" if self.fields else "an empty mapping"
        if self.items is not None:
            return f"a list of {len(self.items)}" if self.items else "an empty list"
        if self.scalar is None:
            return "nothing"
        return f'"{self.scalar}"' if isinstance(self.scalar, str) else number_token(self.scalar)


def number_token(value: float) -> str:
    """Return a number or a truth value in the syntax of YAML."""
    words = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf", "True": "true", "False": "false"}
    return words.get(repr(value), repr(value))


class FormatError(Exception):
    """A value of a file is invalid.

    Args:
        node: the value.
        message: ``found ..., expected ...``.
        line: the line to report, if it is not the node's own.
    """

    def __init__(self, node: Node, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.message = message
        self.line = line or node.line


def unexpected(node: Node, expected: str) -> FormatError:
    """Return an error that states the actual and the expected value of a node."""
    return FormatError(node, f"found {abbreviated(str(node))}, expected {expected}")


def number(node: Node) -> float:
    """Return the number at a node; an integer stays an exact int.

    Raises:
        FormatError: if the value is not a number.
    """
    if isinstance(node.scalar, (int, float)):
        return node.scalar
    raise unexpected(node, "a number")


def located_fault(path: Path, error: FormatError) -> Fault:
    """Return an error with its location as shown to users: ``case adam: inputs.X[1]: ...``."""
    keys, where = error.node.path, ""
    if len(keys) >= _CASE_DEPTH and keys[0] == "cases" and isinstance(keys[1], int):
        case = next(node for node in error.node.lineage() if len(node.path) == _CASE_DEPTH)
        name = case.field("name")
        case_name = name.scalar if name is not None and isinstance(name.scalar, str) else ""
        where = f"case {abbreviated(case_name) if case_name else f'#{keys[1] + 1}'}: "
        keys = keys[_CASE_DEPTH:]
    parts = (f"[{key}]" if isinstance(key, int) else f".{abbreviated(key)}" for key in keys)
    field = "".join(parts).removeprefix(".")
    return Fault(f"{path}:{error.line}", f"{where}{f'{field}: ' * bool(field)}{error.message}")


def read_source(path: Path) -> str:
    """Return the text of an untrusted YAML or JSON file.

    Raises:
        InvalidCase: if the file cannot be read, is larger than MAX_BYTES, or is not in UTF-8.
    """
    try:
        text = read_regular_file(path, MAX_BYTES).decode("utf-8-sig")
        if path.suffix.lower() != ".json":
            return text
        # JSON may be indented with tabs, which YAML does not allow; JSON strings cannot contain
        # tabs. JSON escapes a character beyond 16 bits as two surrogates, which YAML does not
        # allow.
        return _ESCAPED_PAIR.sub(_character_of_pair, text.replace("\t", " "))
    except Malformed as error:
        raise InvalidCase([Fault(str(path), f"the file {error}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = "found bytes that are not UTF-8, expected UTF-8 text"
        raise InvalidCase([Fault(f"{path}:{line}", message)]) from error


def _character_of_pair(match: re.Match[str]) -> str:
    backslashes, high, low = match.groups()
    units = bytes.fromhex(high + low)
    return f"{backslashes}{units.decode('utf-16-be')}"


@cache
def packaged_schema(package: str) -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) in a package; callers must not modify it."""
    text = resources.files(package).joinpath("schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def read_document(text: str, package: str, version: str) -> tuple[Node | None, list[FormatError]]:
    """Parse a file of one YAML document and validate it against a schema.

    Args:
        text: the text of the file.
        package: the package that contains the schema.
        version: the field that states the version of the format.

    Returns:
        The document and its errors. The document is None if the text cannot be parsed to its end,
        or has no version or an unknown version. An unknown version is reported as the only error.
    """
    root, errors = parse_yaml(text)
    if root is None:
        return None, errors
    invalid_nodes = {id(error.node) for error in errors}
    instance = _instance(root)
    with losing_exceptions():
        violations = [*_validator(package).iter_errors(instance)]
    for violation in violations:
        violation_errors = _format_errors(packaged_schema(package), root, violation)
        errors += [error for error in violation_errors if id(error.node) not in invalid_nodes]
    version_node = root.field(version)
    if version_node is None:
        return None, [error for error in errors if len(error.node.path) <= 1]
    # The schema is meant for the known version, so further errors of a file with another version
    # would be misleading.
    version_errors = [error for error in errors if error.node is version_node]
    return (None, version_errors) if version_errors else (root, errors)


# Creating a validator takes longer than reading a file.
@cache
def _validator(package: str) -> jsonschema_rs.Validator:
    import jsonschema_rs

    return jsonschema_rs.validator_for(packaged_schema(package))


def _instance(node: Node) -> object:
    """Return the value of a node as JSON data."""
    if node.fields is not None:
        return {_marked(key): _instance(value) for key, value in node.fields.items()}
    if node.items is not None:
        return [_instance(item) for item in node.items]
    if isinstance(node.scalar, float) and node.scalar - node.scalar != 0:
        # JSON has no numbers for infinity and NaN, so they are validated as text. The schemas
        # accept text in tensors and attributes, and reject it wherever only a number is valid.
        return str(node)
    if isinstance(node.scalar, int):
        # The validator does not support integers with more than 64 bits.
        return max(-(2**63), min(node.scalar, 2**64 - 1))
    return node.scalar


def _format_errors(
    schema: dict[str, Any], root: Node, violation: jsonschema_rs.ValidationError
) -> Iterator[FormatError]:
    """Convert an error of the schema validator to one or more errors of onnxopt."""
    node = _node_at(root, violation.instance_path)
    part: Any = schema
    for step in violation.schema_path[:-1]:
        part = part[step]
    details = violation.kind.as_dict()
    match violation.kind.name:
        case "additionalProperties":
            unexpected_names = [*map(_unmarked, details["unexpected"])]
            yield from unknown_names(node, unexpected_names, list(part["properties"]), "field")
        case "required":
            yield FormatError(node, f"found no {details['property']}, expected this field")
        case kind:
            expected = part.get("errorMessage")
            if expected is None and kind == "type":
                expected = " or ".join(_TYPES[name] for name in details["types"])
            elif expected is None:
                expected = _EXPECTED.get(kind, _EXPECTED_BY_SCHEMA).format(**details)
            yield unexpected(node, expected)


def unknown_names(
    mapping: Node, names: Sequence[str], valid: Collection[str], kind: str
) -> Iterator[FormatError]:
    """Yield errors about the unknown keys of a mapping.

    Each of the first 20 keys has its own error. If there are more, one error states their number.

    Args:
        mapping: the mapping.
        names: the unknown keys.
        valid: the valid keys.
        kind: the noun for a key: ``input``, ``field``.
    """
    for name in names[:_MAX_UNKNOWN]:
        yield unknown_name(mapping, name, valid, kind)
    if len(names) > _MAX_UNKNOWN:
        omitted = len(names) - _MAX_UNKNOWN
        yield FormatError(mapping, f"found {omitted} more unknown {kind}s, expected none")


def unknown_name(mapping: Node, name: str, valid: Collection[str], kind: str) -> FormatError:
    """Return the error about an unknown key of a mapping; its message suggests a similar key.

    Args:
        mapping: the mapping.
        name: the unknown key.
        valid: the valid keys.
        kind: the noun for a key: ``input``, ``field``.
    """
    expected = f"one of {listed(valid)}" if valid else "none"
    hint = nearest(name, valid) if len(valid) <= _MAX_COMPARED else ""
    message = f"found an unknown {kind}, expected {expected}{'; ' * bool(hint)}{hint}"
    return FormatError(mapping.field(name) or mapping, message)


def _node_at(root: Node, path: list[str | int]) -> Node:
    node = root
    for step in path:
        if isinstance(step, int):
            node = (node.items or [])[step]
        else:
            node = (node.fields or {})[_unmarked(step)]
    return node


def _marked(key: str) -> str:
    # The validator's paths turn keys such as "0" and "+7" into indices and omit an empty key.
    return key if key.strip(_INDEX_CHARS) else f"\0{key}"


def _unmarked(key: str) -> str:
    return key if key.strip(_INDEX_CHARS) else key[1:]


def parse_yaml(text: str) -> tuple[Node | None, list[FormatError]]:
    """Parse a file of one YAML document.

    Returns:
        The document and its errors. The document is None if the text cannot be parsed to its end.
        Errors are invalid syntax, anchors, aliases, tags, repeated keys, numbers out of range, and
        excessive depth.
    """
    errors: list[FormatError] = []
    try:
        builder = _Builder(iter(_Loader(text).get_event, None), errors)
        root = None
        for event in builder.events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise FormatError(Node(line), _SECOND_DOCUMENT)  # noqa: TRY301 - as in _Builder
                root = builder.node(next(builder.events), Node(line=1), 0)
        return root or Node(line=1), errors
    except FormatError as error:
        return None, [*errors, error]
    except yaml.YAMLError as error:
        return None, [*errors, _syntax_error(error, text)]


@dataclass
class _Builder:
    """Builds nodes from the parser's events; collects errors after which parsing can continue."""

    events: Iterator[Any]
    errors: list[FormatError]
    count: int = 0

    def node(self, event: Any, node: Node, depth: int) -> Node:
        """Fill a node from its event and, if it is a collection, from the events of its items."""
        self.count += 1
        if self.count > MAX_NODES:
            line = event.start_mark.line + 1
            expected = "expected large tensors as {random: ...} or {file: ...}"
            raise FormatError(Node(line), f"found over {MAX_NODES} values, {expected}")
        kind = type(event)
        alias = kind is yaml.AliasEvent
        if event.anchor is not None or event.tag is not None:
            line = event.start_mark.line + 1
            mark = f"the anchor &{event.anchor}" if event.anchor else f"the tag {event.tag}"
            mark = abbreviated(f"the alias *{event.anchor}" if alias else mark)
            expected = "expected plain values (anchors, aliases and tags are not allowed)"
            self.errors.append(FormatError(node, f"found {mark}, {expected}", line=line))
        if kind is yaml.ScalarEvent:
            node.scalar = event.value
            if event.implicit[0] and event.tag is None:
                try:
                    node.scalar = plain_scalar(event.value)
                except ValueError as error:
                    self.errors.append(FormatError(node, f"found {error}"))
        elif not alias and depth == MAX_DEPTH:
            raise FormatError(Node(event.start_mark.line + 1), _TOO_DEEP)
        elif kind is yaml.SequenceStartEvent:
            items = node.items = []
            while type(event := next(self.events)) is not yaml.SequenceEndEvent:
                item = Node(event.start_mark.line + 1, node, len(items))
                items.append(self.node(event, item, depth + 1))
        elif kind is yaml.MappingStartEvent:
            self.mapping(node, depth + 1)
        return node

    def mapping(self, node: Node, depth: int) -> None:
        """Read the keys and values of a mapping."""
        fields = node.fields = {}
        while type(event := next(self.events)) is not yaml.MappingEndEvent:
            line = event.start_mark.line + 1
            plain = type(event) is yaml.ScalarEvent and event.anchor is event.tag is None
            if plain and event.value[:1].isalpha():
                # Nearly all keys are plain names that begin with a letter; such keys need no
                # checks.
                self.count += 1
            else:
                name = self.node(event, Node(line, node, "(key)"), depth)
                if not isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent)):
                    message = f"found {name} as a key, expected a name"
                    self.errors.append(FormatError(name, message))
            key = event.value if isinstance(event, yaml.ScalarEvent) else "(key)"
            value = self.node(next(self.events), Node(line, node, key), depth)
            first = fields.setdefault(key, value)
            if first is not value:
                message = f"found this key again, expected it once (line {first.line})"
                self.errors.append(FormatError(value, message))


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar: null, a truth value, a number, or text.

    A decimal fraction becomes the nearest double; an integer stays exact.

    Raises:
        ValueError: if a fraction is out of the range of a double, or an integer has over 300
            digits; the message follows ``found``.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    match = _DECIMAL.fullmatch(text) if "." in text else None
    if match is None:
        if integer := _INTEGER.fullmatch(text):
            return _integer(text, 0 if integer[1] else 10)
        match = _DECIMAL.fullmatch(text) or _HEXADECIMAL.fullmatch(text)
        if match is None:
            return text
    try:
        value = float(text) if match.re is _DECIMAL else float.fromhex(text)
    except OverflowError:
        value = math.inf
    if math.isinf(value):
        raise ValueError(f"{text[:40]}, expected a number in the range of a double, or .inf")
    if value == 0 and match[1].strip("0."):
        raise ValueError(f"{text[:40]}, expected a number that does not underflow to zero")
    return value


def _integer(text: str, base: int) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, expected at most {_MAX_DIGITS}")
    value = int(text, base)
    if value.bit_length() > _MAX_BITS:
        raise ValueError(f"{text[:40]}, expected an integer in the range of a double")
    return value


def _syntax_error(error: yaml.YAMLError, text: str) -> FormatError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.count("\n")) + 1 if mark else 1
        words = " ".join(part for part in (error.problem, error.context) if part)
    elif isinstance(error, yaml.reader.ReaderError):
        # The position counts bytes of UTF-8 in libyaml, and characters in PyYAML's own parser.
        units = text if error.encoding == "unicode" else text.encode().decode("latin-1")
        line = units.count("\n", 0, error.position) + 1
        words = error.reason
    else:
        line, words = 1, str(error)
    content = text.split("\n")[line - 1] if text else ""
    if content.lstrip(" ").startswith("\t"):
        return FormatError(Node(line), "found a line indented with a tab, expected spaces")
    # libyaml 0.2.6 scans a thousand brackets ahead, and rejects deep nesting before it emits an
    # event for the first bracket.
    too_deep = "maximum nesting depth" in words
    return FormatError(
        Node(line), _TOO_DEEP if too_deep else f"found invalid YAML: {printable(words)}"
    )
