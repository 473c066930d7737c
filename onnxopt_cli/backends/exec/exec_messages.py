"""Strict parsers of a command's responses; :file:`protocol.md` is their specification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from onnxopt_cli.backends.unsupported import compile_pattern
from onnxopt_cli.core.codec import PROTOCOL, ValueReader
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import DTYPES, Value
from onnxopt_cli.errors import (
    BackendFailure,
    ProtocolBreach,
    Unsupported,
)
from onnxopt_cli.operators.nodes import plain_domain

_MAX_NAME_CHARS = 200
_REQUIRED_FIELDS = ("protocol", "name", "version")
_OPTIONAL_FIELDS = ("domains", "dtypes", "devices", "form", "unsupported")


@dataclass(frozen=True, slots=True)
class Hello:
    """The response of a command to ``hello``.

    Attributes:
        name: name of the implementation.
        version: version of the implementation.
        domains: lowest and highest opset version by domain; the default domain is ``""``. None for
            a command that accepts models of all domains and versions.
        dtypes: names of the supported element types.
        devices: names of the devices; the first is the default.
        unsupported: a regular expression that matches errors about unsupported features; may be
            empty.
        nodes: whether the command receives single nodes as JSON instead of models.
    """

    name: str
    version: str
    domains: Mapping[str, tuple[int, int]] | None
    dtypes: frozenset[str]
    devices: tuple[str, ...]
    unsupported: str = ""
    nodes: bool = False


def protocol_document() -> str:
    """Return the specification of the protocol as Markdown."""
    return (files(__package__) / "protocol.md").read_text(encoding="utf-8")


def read_hello(response: dict[str, Any], payload: memoryview) -> Hello:
    """Parse the response to ``hello``.

    Raises:
        BackendFailure: if the command responds with an error.
        ProtocolBreach: if it implements another protocol, or violates this one.
    """
    _require_success(response, payload)
    ValueReader(payload).end()
    protocol = response.get("protocol", PROTOCOL)
    if protocol != PROTOCOL:
        raise ProtocolBreach(
            f"implements the protocol {_as_json(protocol)}; this version of onnxopt implements "
            f"{PROTOCOL}, which onnxopt backends protocol describes"
        )
    _require_fields(response, _REQUIRED_FIELDS, _OPTIONAL_FIELDS)
    pattern = response.get("unsupported", "")
    if "unsupported" in response:
        _require(isinstance(pattern, str), '"unsupported" is', pattern, "a regular expression")
        try:
            compile_pattern(pattern)
        except ValueError as error:
            raise ProtocolBreach(
                f'sent a response in which "unsupported" is {_as_json(pattern)}, which {error}'
            ) from None
    form = response.get("form", "model")
    _require(form in ("model", "node"), '"form" is', form, '"model" or "node"')
    dtypes = _names(response.get("dtypes", [*DTYPES]), "dtypes")
    for name in dtypes:
        _require(name in DTYPES, '"dtypes" have', name, "a name such as float32")
    name, version = _name(response, "name"), _name(response, "version")
    domains = _domains(response["domains"]) if "domains" in response else None
    devices = tuple(_names(response.get("devices", ["CPU"]), "devices"))
    return Hello(name, version, domains, frozenset(dtypes), devices, pattern, form == "node")


def read_outputs(response: dict[str, Any], payload: memoryview) -> tuple[list[Value], list[str]]:
    """Parse the response to ``run``; return the outputs and the names of modified inputs.

    Raises:
        Unsupported: if the command responds that a feature is unsupported.
        BackendFailure: if it responds with an error.
        ProtocolBreach: if it violates the protocol.
    """
    _require_success(response, payload)
    reader = ValueReader(payload)
    if "unsupported" in response:
        _require_fields(response, ("unsupported",), ("operator",))
        reader.end()
        operator = _name(response, "operator") if "operator" in response else ""
        raise Unsupported(_text(response, "unsupported"), operator=operator)
    _require_fields(response, ("outputs",), ("changed",))
    changed = response.get("changed", [])
    are_names = isinstance(changed, list) and all(isinstance(name, str) for name in changed)
    _require(are_names, '"changed" are', changed, "a list of names")
    _require(isinstance(response["outputs"], list), '"outputs" are', response["outputs"], "a list")
    values = [reader.value(described) for described in response["outputs"]]
    reader.end()
    return values, changed


def _require_success(response: dict[str, Any], payload: memoryview) -> None:
    if "error" in response:
        _require_fields(response, ("error",))
        ValueReader(payload).end()
        raise BackendFailure(_text(response, "error"))


def _require_fields(
    response: Mapping[str, object], fields: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    unknown = [_as_json(field) for field in response if field not in {*fields, *optional}]
    if unknown:
        raise ProtocolBreach(f"sent a response with the unknown field {', '.join(unknown)}")
    missing = [field for field in fields if field not in response]
    if missing:
        raise ProtocolBreach(f"sent a response that lacks {', '.join(missing)}")


def _require(holds: bool, place: str, value: object, expected: str) -> None:
    if not holds:
        raise ProtocolBreach(
            f"sent a response in which {place} {_as_json(value)}, expected {expected}"
        )


def _text(response: Mapping[str, object], field: str) -> str:
    text = response[field]
    _require(isinstance(text, str) and bool(text.strip()), f'"{field}" is', text, "a text")
    return printable(str(text), lines=True)


def _name(response: Mapping[str, object], field: str) -> str:
    return _names([response[field]], field)[0]


def _names(names: Any, field: str) -> list[str]:
    _require(isinstance(names, list) and bool(names), f'"{field}" are', names, "a list")
    for name in names:
        is_name = isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS
        _require(is_name, f'"{field}" has', name, "a name")
    return list(map(printable, names))


def _domains(domains: Any) -> dict[str, tuple[int, int]]:
    is_mapping = isinstance(domains, dict) and bool(domains)
    _require(is_mapping, '"domains" are', domains, "versions by domain")
    ranges: dict[str, tuple[int, int]] = {}
    for domain, versions in domains.items():
        are_two = isinstance(versions, list) and list(map(type, versions)) == [int, int]
        is_range = bool(domain) and are_two and 1 <= versions[0] <= versions[1]
        place = f'"domains" give {_as_json(domain)} the versions'
        _require(is_range, place, versions, "[lowest, highest]")
        ranges[plain_domain(domain)] = versions[0], versions[1]
    return ranges


def _as_json(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False)[:80])
