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
    if "error" in answer:
        _raise_failure(answer)
    optional = ("unsupported",) if "unsupported" in answer else ()
    _require_fields(answer, (*_HELLO, *optional))
    if answer["protocol"] != PROTOCOL:
        found = printable(str(answer["protocol"]))
        raise ProtocolBreach(f"the command speaks the protocol {found}, expected {PROTOCOL}")
    return Hello(
        _name(answer, "name"),
        _name(answer, "version"),
        _domains(answer["domains"]),
        _dtypes(answer["dtypes"]),
        tuple(_names(answer["devices"], "devices")),
        _pattern(answer) if optional else "",
    )


def read_run(line: bytes, number: int) -> tuple[str, ...]:
    """Return the files that a command names as outputs in answer to ``run``.

    Raises:
        Unsupported: if it answers that it does not know something.
        BackendFailure: if it answers that it failed.
        ProtocolBreach: if it breaks the protocol.
    """
    answer = _answer(line, number)
    if "error" in answer:
        _raise_failure(answer)
    if "unsupported" in answer:
        optional = ("operator",) if "operator" in answer else ()
        _require_fields(answer, ("unsupported", *optional))
        operator = _name(answer, "operator") if optional else ""
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
    return answer


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a field stands twice in one object")
    return mapping


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _raise_failure(answer: dict[str, Any]) -> None:
    _require_fields(answer, ("error",))
    raise BackendFailure(_text(answer, "error"))


def _require_fields(answer: Mapping[str, object], fields: tuple[str, ...]) -> None:
    expected = {"id", *fields}
    unknown = [field for field in answer if field not in expected]
    if unknown:
        listed = ", ".join(_shown(field) for field in unknown)
        raise ProtocolBreach(f"the command's answer has the unknown field {listed}")
    missing = [field for field in fields if field not in answer]
    if missing:
        raise ProtocolBreach(f"the command's answer lacks {', '.join(missing)}")


def _text(answer: Mapping[str, object], field: str) -> str:
    text = answer[field]
    if not isinstance(text, str) or not text.strip():
        raise ProtocolBreach(f'the command\'s "{field}" is {_shown(text)}, expected a text')
    return printable(text, lines=True)


def _pattern(answer: Mapping[str, object]) -> str:
    written = answer["unsupported"]
    if not isinstance(written, str):
        raise ProtocolBreach(
            f'the command\'s "unsupported" is {_shown(written)}, expected a regular expression'
        )
    try:
        compile_pattern(written)
    except ValueError as error:
        raise ProtocolBreach(f'the command\'s "unsupported", {_shown(written)}, {error}') from None
    return written


def _name(answer: Mapping[str, object], field: str) -> str:
    return _names([answer[field]], field)[0]


def _names(names: object, field: str) -> list[str]:
    if not isinstance(names, list) or not names:
        raise ProtocolBreach(f'the command\'s "{field}" are {_shown(names)}, expected a list')
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise ProtocolBreach(f'the command\'s "{field}" has {_shown(name)}, expected a name')
    return [printable(name) for name in names]


def _domains(domains: object) -> dict[str, tuple[int, int]]:
    if not isinstance(domains, dict) or not domains:
        raise ProtocolBreach(
            f'the command\'s "domains" are {_shown(domains)}, expected versions by domain'
        )
    ranges = {}
    for domain, versions in domains.items():
        whole = isinstance(versions, list) and all(type(version) is int for version in versions)
        if not domain or not whole or len(versions) != 2 or not 1 <= versions[0] <= versions[1]:  # noqa: PLR2004
            raise ProtocolBreach(
                f'the command\'s "domains" give {_shown(domain)} the versions {_shown(versions)}, '
                "expected [lowest, highest]"
            )
        ranges["" if domain == _DOMAIN else domain] = (versions[0], versions[1])
    return ranges


def _dtypes(dtypes: object) -> frozenset[int]:
    names = _names(dtypes, "dtypes")
    unknown = [name for name in names if name not in _TYPES]
    if unknown:
        raise ProtocolBreach(
            f'the command\'s "dtypes" have {unknown[0]}, which is no name of TensorProto.DataType'
        )
    return frozenset(onnx.TensorProto.DataType.Value(name) for name in names)


def _shown(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False)[:80])
