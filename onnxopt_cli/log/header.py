"""The first record of a log: what runs, and whether another run is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from onnxopt_cli.core.record import BackendIdentity, require_once
from onnxopt_cli.core.text import printable
from onnxopt_cli.log.case_list import CaseList
from onnxopt_cli.log.contents import Contents
from onnxopt_cli.log.schema import SCHEMA
from onnxopt_cli.log.shard import Shard

# Options that say what is shown, written or selected, or how fast; what was selected, the backends
# and the expectations are compared themselves.
_OTHER = frozenset(
    {
        "artifacts",
        "backends",
        "explain",
        "explain_time",
        "expect",
        "jobs",
        "log",
        "operators",
        "pattern",  # of logs from before there could be several
        "patterns",
        "quiet",
        "reports",
        "resume",
        "shard",
        "tags",
        "targets",
        "update_expect",
        "verbose",
    }
)


@dataclass(frozen=True, slots=True)
class Header:
    """What runs, on what, and how.

    Attributes:
        started: when, in UTC: ``2026-01-31T23:59:59.012345Z``; by the second in older logs.
        versions: of onnxopt, Python, the packages that matter, and the machine.
        backends: what is under test.
        cases: the selected cases, those of other shards too.
        shard: which part of them runs; None for all.
        expectations: a hash of the expectation files; empty if there are none.
        options: the command's options by name, as JSON has them.
        hostname: of the machine that runs it; empty in older logs.
        contents: what the files of the backends and the cases held.
    """

    started: str
    versions: Mapping[str, str]
    backends: tuple[BackendIdentity, ...]
    cases: CaseList
    shard: Shard | None
    expectations: str
    options: Mapping[str, Any]
    hostname: str = ""
    contents: Contents = field(default_factory=Contents)

    def to_json(self) -> dict[str, Any]:
        """Return the record."""
        shard = self.shard
        return {
            "record": "header",
            "schema": SCHEMA,
            "started": self.started,
            "hostname": self.hostname,
            "versions": dict(self.versions),
            "backends": [{"name": it.name, "version": it.version} for it in self.backends],
            "cases": {"count": self.cases.count, "hash": self.cases.hash},
            "shard": None if shard is None else {"index": shard.index, "count": shard.count},
            "expectations": self.expectations,
            "options": dict(self.options),
            "contents": {
                "backends": self.contents.backends,
                "files": dict(self.contents.files),
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Header:
        """Return the header that a record, checked by the schema, holds.

        Raises:
            ValueError: if it says what no header can say.
        """
        shard = data["shard"]
        require_moment(data["started"])
        if shard is not None and shard["index"] > shard["count"]:
            raise ValueError(f"found shard {shard['index']} of {shard['count']}")
        if not data["backends"]:
            raise ValueError("found no backend")
        require_once(it["name"] for it in data["backends"])
        contents = data.get("contents", {"backends": "", "files": {}})
        return cls(
            data["started"],
            data["versions"],
            tuple(BackendIdentity(it["name"], it["version"]) for it in data["backends"]),
            CaseList(data["cases"]["count"], data["cases"]["hash"]),
            None if shard is None else Shard(shard["index"], shard["count"]),
            data["expectations"],
            data["options"],
            data.get("hostname", ""),
            Contents(contents["backends"], contents["files"]),
        )

    def differences(self, other: Header) -> list[str]:
        """Say in what another run is not this one; nothing about their shards."""
        found = []
        if self.cases != other.cases:
            found.append(f"the cases ({_cases(self)}, now {_cases(other)})")
        if self.backends != other.backends:
            found.append(f"the backends ({_backends(self)}, now {_backends(other)})")
        elif self.contents.backends != other.contents.backends:
            found.append("the files of the backends")
        if found:
            found += self.contents.differences(other.contents)
        if self.expectations != other.expectations:
            found.append("the content of the expectation files")
        mine, theirs = self.versions["onnxopt"], other.versions["onnxopt"]
        if mine != theirs:
            found.append(f"onnxopt ({mine}, now {theirs})")
        for name in sorted((self.options.keys() | other.options.keys()) - _OTHER):
            before, now = self.options.get(name), other.options.get(name)
            if before != now:
                found.append(f"the option {name} ({before}, now {now})")
        return [printable(text) for text in found]


def require_moment(text: str) -> None:
    """Refuse a time that is none.

    Raises:
        ValueError: if it is none, or not in UTC as a log has it.
    """
    try:
        utc = datetime.fromisoformat(text).utcoffset() == timedelta(0)
    except ValueError:
        utc = False
    if not utc:
        raise ValueError(f"found the time {text!r}, which is not a valid one")


def _cases(header: Header) -> str:
    return f"{header.cases.count} with hash {header.cases.hash[:8]}"


def _backends(header: Header) -> str:
    return ", ".join(f"{it.name} [{it.version}]" for it in header.backends)
