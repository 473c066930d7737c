"""What a command may answer, and nothing else; :file:`exec_protocol.md` says it in prose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import onnx

from onnxopt_cli.backends.unsupported import compile_pattern
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendFailure, ProtocolBreach, Unsupported

#: The protocol and its version.
PROTOCOL = "onnxopt-exec/1"

_DOMAIN = "ai.onnx"
_LONGEST_NAME = 200
_HELLO = ("protocol", "name", "version", "domains", "dtypes", "devices")
_TYPES = frozenset(onnx.TensorProto.DataType.keys()) - {"UNDEFINED"}


@dataclass(frozen=True, slots=True)
class Hello:
    """What a command says of itself.

    Attributes:
        name: of the implementation.
        version: of the implementation.
        domains: lowest and highest opset version by domain; the default domain is ``""``.
        dtypes: numbers of TensorProto.DataType.
        devices: names; the first is the default.
        unsupported: a regular expression for errors that say "not supported"; empty for none.
    """

    name: str
    version: str
    domains: Mapping[str, tuple[int, int]]
    dtypes: frozenset[int]
    devices: tuple[str, ...]
    unsupported: str = ""


def protocol_document() -> str:
    """Return the protocol in prose, as Markdown."""
    return (files(__package__) / "protocol.md").read_text(encoding="utf-8")


def request_line(number: int, request: str, **fields: object) -> bytes:
    """Return a request: one line of ASCII, its ``id`` and ``request`` first."""
    return json.dumps({"id": number, "request": request, **fields}).encode() + b"\n"


def read_hello(line: bytes, number: int) -> Hello:
    """Return what a command says of itself in answer to ``hello``.

    Raises:
        BackendFailure: if it answers that it cannot.
        ProtocolBreach: if it speaks another protocol, or breaks this one.
    """
    answer = _answer(line, number)
    _require_fields(answer, _HELLO, ("unsupported",))
    if answer["protocol"] != PROTOCOL:
        found = printable(str(answer["protocol"]))
        raise ProtocolBreach(f"the command speaks the protocol {found}, expected {PROTOCOL}")
    pattern = answer.get("unsupported", "")
    if "unsupported" in answer:
        _require(isinstance(pattern, str), '"unsupported" is', pattern, "a regular expression")
        try:
            compile_pattern(pattern)
        except ValueError as error:
            raise ProtocolBreach(
                f'the command\'s "unsupported", {_shown(pattern)}, {error}'
            ) from None
    dtypes = _names(answer["dtypes"], "dtypes")
    for name in dtypes:
        if name not in _TYPES:
            raise ProtocolBreach(
                f'the command\'s "dtypes" have {name}, which is no name of TensorProto.DataType'
            )
    return Hello(
        _name(answer, "name"),
        _name(answer, "version"),
        _domains(answer["domains"]),
        frozenset(map(onnx.TensorProto.DataType.Value, dtypes)),
        tuple(_names(answer["devices"], "devices")),
        pattern,
    )


def read_run(line: bytes, number: int) -> tuple[str, ...]:
    """Return the files that a command names as outputs in answer to ``run``.

    Raises:
        Unsupported: if it answers that it does not know something.
        BackendFailure: if it answers that it failed.
        ProtocolBreach: if it breaks the protocol.
    """
    answer = _answer(line, number)
    if "unsupported" in answer:
        _require_fields(answer, ("unsupported",), ("operator",))
        operator = _name(answer, "operator") if "operator" in answer else ""
        raise Unsupported(_text(answer, "unsupported"), operator=operator)
    _require_fields(answer, ("outputs",))
    outputs = answer["outputs"]
    if not isinstance(outputs, list) or not all(isinstance(file, str) for file in outputs):
        raise ProtocolBreach('the command\'s "outputs" are no list of file names')
    return tuple(outputs)


def _answer(line: bytes, number: int) -> dict[str, Any]:
    try:
        answer = json.loads(
            line.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        shown = printable(line[:80].decode("utf-8", "backslashreplace"))
        raise ProtocolBreach(
            f"the command's answer is no line of JSON: {shown!r} ({printable(str(error))})"
        ) from None
    if not isinstance(answer, dict):
        raise ProtocolBreach(f"the command's answer is a JSON {type(answer).__name__}, no object")
    found = answer.get("id")
    if type(found) is not int or found != number:
        raise ProtocolBreach(
            f"the command answered the request {_shown(found)}, but was asked {number}"
        )
    if "error" in answer:
        _require_fields(answer, ("error",))
        raise BackendFailure(_text(answer, "error"))
    return answer


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a field stands twice in one object")
    return mapping


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _require_fields(
    answer: Mapping[str, object], fields: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    unknown = [_shown(field) for field in answer if field not in {"id", *fields, *optional}]
    if unknown:
        raise ProtocolBreach(f"the command's answer has the unknown field {', '.join(unknown)}")
    missing = [field for field in fields if field not in answer]
    if missing:
        raise ProtocolBreach(f"the command's answer lacks {', '.join(missing)}")


def _require(holds: bool, place: str, found: object, expected: str) -> None:
    if not holds:
        raise ProtocolBreach(f"the command's {place} {_shown(found)}, expected {expected}")


def _text(answer: Mapping[str, object], field: str) -> str:
    text = answer[field]
    _require(isinstance(text, str) and bool(text.strip()), f'"{field}" is', text, "a text")
    return printable(str(text), lines=True)


def _name(answer: Mapping[str, object], field: str) -> str:
    return _names([answer[field]], field)[0]


def _names(names: Any, field: str) -> list[str]:
    _require(isinstance(names, list) and bool(names), f'"{field}" are', names, "a list")
    for name in names:
        is_name = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME
        _require(is_name, f'"{field}" has', name, "a name")
    return list(map(printable, names))


def _domains(domains: Any) -> dict[str, tuple[int, int]]:
    is_mapping = isinstance(domains, dict) and bool(domains)
    _require(is_mapping, '"domains" are', domains, "versions by domain")
    for domain, versions in domains.items():
        are_two = isinstance(versions, list) and list(map(type, versions)) == [int, int]
        is_range = bool(domain) and are_two and 1 <= versions[0] <= versions[1]
        place = f'"domains" give {_shown(domain)} the versions'
        _require(is_range, place, versions, "[lowest, highest]")
    return {
        "" if domain == _DOMAIN else domain: (lowest, highest)
        for domain, (lowest, highest) in domains.items()
    }


def _shown(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False)[:80])
