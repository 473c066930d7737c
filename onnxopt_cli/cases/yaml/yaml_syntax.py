"""YAML text to a tree of nodes that know their lines, held against a schema; safe on hostile text.

Works on the parser's event stream: aliases, anchors, tags and deep nesting are refused before
anything is built from them. Problems that leave the rest readable are collected, not raised. Plain
scalars follow YAML 1.2, with C's hexadecimal floats; PyYAML resolves by YAML 1.1, where ``1e-7``
is text, ``010`` is eight and ``no`` is false.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.helper_process import losing_exceptions
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import Fault, InvalidCase

if TYPE_CHECKING:
    import jsonschema_rs

#: Larger files are not read.
MAX_BYTES = 16 * 2**20
#: Deeper nesting is refused; libyaml's own recursion ends in a crash at some 10^5.
MAX_DEPTH = 20
_TOO_DEEP = f"found nesting deeper than {MAX_DEPTH}, expected less"
#: More values are refused: reading them would take seconds. Large tensors belong into files.
MAX_NODES = 200_000

# libyaml's parser where PyYAML was built with it; it is ten times faster.
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
# What is expected where a keyword of the schema is broken that has no errorMessage.
_EXPECTED = {
    "const": "{expected_value!r}",
    "minimum": "at least {limit}",
    "maximum": "at most {limit}",
    "minItems": "at least {limit} of them",
    "maxItems": "at most {limit} of them",
}
_SECOND = "found a second YAML document, expected one a file"
_AMBIGUOUS = "\0+0123456789"
# A case is an item of the list under the key "cases".
_CASE_DEPTH = 2

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
# Its group is there if the integer says its base.
_INTEGER = re.compile(r"[-+]?(?:[0-9]+|(0x[0-9a-fA-F]+|0o[0-7]+))")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_HEXADECIMAL = re.compile(
    r"[-+]?0[xX](\.[0-9a-fA-F]+|[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?)[pP][-+]?[0-9]+"
)
# Below the largest double, so that every integer of a file can also become a float.
_MOST_DIGITS = 300
_MOST_BITS = 1023


@dataclass(slots=True, eq=False)
class Node:
    """A value of the file and where it stands.

    Attributes:
        line: line of the value, or of its key where it has one; counted from 1.
        parent: the mapping or list that it stands in.
        key: its key or index there.
        scalar: the value, if it is neither mapping nor list.
        fields: the values by key, if it is a mapping.
        items: the values in order, if it is a list.
    """

    line: int
    parent: Node | None = None
    key: str | int = ""
    scalar: Scalar = None
    fields: dict[str, Node] | None = None
    items: list[Node] | None = None

    @property
    def path(self) -> tuple[str | int, ...]:
        """Keys and indices that lead here from the top of the file."""
        return tuple(node.key for node in self.lineage() if node.parent is not None)[::-1]

    def lineage(self) -> Iterator[Node]:
        """Yield this node, its parent and so on to the top."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def field(self, name: str) -> Node | None:
        """Return the value of a key, None if this is no mapping or does not have it."""
        return self.fields.get(name) if self.fields else None

    def __str__(self) -> str:
        """What stands here, for messages: ``2.5``, ``"text"``, ``a list of 3``."""
        if self.fields is not None:
            return f"a mapping with {', '.join(self.fields)}" if self.fields else "an empty mapping"
        if self.items is not None:
            return f"a list of {len(self.items)}" if self.items else "an empty list"
        if self.scalar is None:
            return "nothing"
        return f'"{self.scalar}"' if isinstance(self.scalar, str) else number_token(self.scalar)


def number_token(value: float) -> str:
    """Write a number or a truth value as YAML has it."""
    words = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf", "True": "true", "False": "false"}
    return words.get(repr(value), repr(value))


class FormatError(Exception):
    """One value of a file is not as it has to be.

    Args:
        node: the value.
        what: ``found ..., expected ...``.
        line: where to point, if not at the value.
    """

    def __init__(self, node: Node, what: str, *, line: int | None = None) -> None:
        super().__init__(what)
        self.node = node
        self.what = what
        self.line = line or node.line


def unexpected(node: Node, expected: str) -> FormatError:
    """Return the error that says what a node is and what it should be."""
    return FormatError(node, f"found {abbreviated(str(node))}, expected {expected}")


def number(node: Node) -> float:
    """Return the number at a node, an integer as an exact int.

    Raises:
        FormatError: if something else stands there.
    """
    if isinstance(node.scalar, (int, float)):
        return node.scalar
    raise unexpected(node, "a number")


def abbreviated(text: str, longest: int = 80) -> str:
    """Return text from a file as it can be quoted in a message: printable and short."""
    return printable(text if len(text) <= longest else f"{text[:longest]}...")


def problem_of(path: Path, error: FormatError) -> Fault:
    """Return an error of a file as users see it, with its place: ``case adam: inputs.X[1]``."""
    keys, where = error.node.path, ""
    if len(keys) >= _CASE_DEPTH and keys[0] == "cases" and isinstance(keys[1], int):
        case = next(node for node in error.node.lineage() if len(node.path) == _CASE_DEPTH)
        name = case.field("name")
        known = name is not None and isinstance(name.scalar, str) and name.scalar
        where = f"case {abbreviated(str(known)) if known else f'#{keys[1] + 1}'}: "
        keys = keys[_CASE_DEPTH:]
    parts = (f"[{key}]" if isinstance(key, int) else f".{abbreviated(key)}" for key in keys)
    field = "".join(parts).removeprefix(".")
    return Fault(f"{path}:{error.line}", f"{where}{f'{field}: ' * bool(field)}{error.what}")


def yaml_text(path: Path) -> str:
    """Return the text of a file, which may be any file.

    Raises:
        InvalidCase: if it cannot be read, is larger than MAX_BYTES, or is not in UTF-8.
    """
    try:
        text = read_regular_file(path, MAX_BYTES).decode("utf-8-sig")
        # Tabs indent JSON, and may not stand in its strings; YAML does not take them.
        return text.replace("\t", " ") if path.suffix.lower() == ".json" else text
    except Malformed as error:
        raise InvalidCase([Fault(str(path), f"the file {error}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        what = "found bytes that are not UTF-8, expected UTF-8 text"
        raise InvalidCase([Fault(f"{path}:{line}", what)]) from error


@cache
def packaged_schema(package: str) -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) that stands in a package; it is not to be changed."""
    text = resources.files(package).joinpath("schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def read_document(text: str, package: str, version: str) -> tuple[Node | None, list[FormatError]]:
    """Parse a file of one YAML document and hold it against a schema.

    Args:
        text: of the file.
        package: where the schema stands.
        version: the field that says the version of the format.

    Returns:
        The document, None if it could not be read to its end or is of another version; and
        everything that is wrong with it, of another version that alone.
    """
    root, errors = parse_yaml(text)
    if root is None:
        return None, errors
    seen = {id(error.node) for error in errors}
    instance = _instance(root)
    with losing_exceptions():
        violations = [*_validator(package).iter_errors(instance)]
    for theirs in violations:
        ours = _ours(packaged_schema(package), root, theirs)
        errors += [error for error in ours if id(error.node) not in seen]
    found = root.field(version)
    if found is None:
        return None, [error for error in errors if len(error.node.path) <= 1]
    # The rules of another version are not known here.
    wrong = [error for error in errors if error.node is found]
    return (None, wrong) if wrong else (root, errors)


# Making one takes longer than reading a file.
@cache
def _validator(package: str) -> jsonschema_rs.Validator:
    import jsonschema_rs

    return jsonschema_rs.validator_for(packaged_schema(package))


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
            expected = part.get("errorMessage")
            if expected is None and kind == "type":
                expected = " or ".join(_TYPES[name] for name in details["types"])
            yield unexpected(node, expected or _EXPECTED[kind].format(**details))


def unknown_name(mapping: Node, name: str, known: Collection[str], what: str) -> FormatError:
    """Return the error that a mapping has a key it should not have, with the nearest known one."""
    expected = f"one of {listed(known)}" if known else "none"
    hint = nearest(name, known)
    what = f"found an unknown {what}, expected {expected}{'; ' * bool(hint)}{hint}"
    return FormatError(mapping.field(name) or mapping, what)


def listed(names: Iterable[str]) -> str:
    """Return names as a message lists them."""
    return abbreviated(", ".join(names), longest=200)


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


def parse_yaml(text: str) -> tuple[Node | None, list[FormatError]]:
    """Parse a file of one YAML document.

    Returns:
        The document, None if it could not be read to its end; and everything that is refused:
        syntax errors, anchors, aliases, tags, repeated keys, numbers out of range, too much depth.
    """
    errors: list[FormatError] = []
    try:
        builder = _Builder(iter(_Loader(text).get_event, None), errors)
        root = None
        for event in builder.events:
            here = Node(event.start_mark.line + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise FormatError(here, _SECOND)  # noqa: TRY301 - as those of the builder
                root = builder.node(next(builder.events), Node(line=1), 0)
        return root or Node(line=1), errors
    except FormatError as error:
        return None, [*errors, error]
    except yaml.YAMLError as error:
        return None, [*errors, _syntax_error(error, text)]


@dataclass
class _Builder:
    """Builds nodes from the events of the parser; collects what need not stop it."""

    events: Iterator[Any]
    errors: list[FormatError]
    count: int = 0

    def node(self, event: Any, node: Node, depth: int) -> Node:
        """Fill a node from an event and, for a collection, those that follow it."""
        self.count += 1
        if self.count > MAX_NODES:
            line = event.start_mark.line + 1
            large = "expected large tensors as {random: ...} or {file: ...}"
            raise FormatError(Node(line), f"found over {MAX_NODES} values, {large}")
        kind = type(event)
        alias = kind is yaml.AliasEvent
        if event.anchor is not None or event.tag is not None:
            line = event.start_mark.line + 1
            named = f"the anchor &{event.anchor}" if event.anchor else f"the tag {event.tag}"
            found = abbreviated(f"the alias *{event.anchor}" if alias else named)
            what = f"found {found}, expected plain values (anchors, aliases and tags "
            error = FormatError(node, f"{what}are not allowed)", line=line)
            self.errors.append(error)
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
                # Nearly all are; nothing can be wrong with such a key alone.
                self.count += 1
            else:
                name = self.node(event, Node(line, node, "(key)"), depth)
                if not isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent)):
                    what = f"found {name} as a key, expected a name"
                    self.errors.append(FormatError(name, what))
            key = event.value if isinstance(event, yaml.ScalarEvent) else "(key)"
            value = self.node(next(self.events), Node(line, node, key), depth)
            first = fields.setdefault(key, value)
            if first is not value:
                what = f"found this key again, expected it once (line {first.line})"
                self.errors.append(FormatError(value, what))


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar; text that is nothing else stands for itself.

    A decimal becomes the nearest double, an integer stays exact.

    Raises:
        ValueError: if the text is a number that neither a double nor 300 digits can hold.
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
        raise ValueError(f"{text[:40]}, expected a number that a double can tell from zero")
    return value


def _integer(text: str, base: int) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, expected at most {_MOST_DIGITS}")
    value = int(text, base)
    if value.bit_length() > _MOST_BITS:
        raise ValueError(f"{text[:40]}, expected an integer in the range of a double")
    return value


def _syntax_error(error: yaml.YAMLError, text: str) -> FormatError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.count("\n")) + 1 if mark else 1
        words = " ".join(part for part in (error.problem, error.context) if part)
    elif isinstance(error, yaml.reader.ReaderError):
        # libyaml gives the position in bytes of UTF-8, PyYAML in characters.
        units = text if error.encoding == "unicode" else text.encode().decode("latin-1")
        line = units.count("\n", 0, error.position) + 1
        words = error.reason
    else:
        line, words = 1, str(error)
    content = text.split("\n")[line - 1] if text else ""
    if content.lstrip(" ").startswith("\t"):
        return FormatError(Node(line), "found a line indented with a tab, expected spaces")
    # libyaml 0.2.6 reads a thousand brackets ahead, and refuses them before it says of the first.
    too_deep = "maximum nesting depth" in words
    return FormatError(
        Node(line), _TOO_DEEP if too_deep else f"found no valid YAML: {printable(words)}"
    )
