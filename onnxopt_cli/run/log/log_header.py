"""The first record of a log: what runs, which part of it, and whether another run is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import RunConfig, Shard
from onnxopt_cli.core.record import BackendIdentity, require_once
from onnxopt_cli.core.text import printable
from onnxopt_cli.run.log.log_contents import Contents, FileSnapshot

#: The version that a log's header states.
SCHEMA = "onnxopt.log/1"


@dataclass(frozen=True, slots=True)
class CaseList:
    """How many cases there are, and a hash of them."""

    count: int
    hash: str

    @classmethod
    def of(cls, cases: Sequence[Case], snapshot: FileSnapshot) -> CaseList:
        """Describe cases by their ids and by all files that they are read from.

        Where the files stand does not count, so that shards may run on several machines. Cases
        that come with onnx or with onnxopt count with the version of those.

        Raises:
            UsageError: if a file has changed since the cases were found.
        """
        digest = blake2b(digest_size=16)
        for case in cases:
            one = blake2b(digest_size=16)
            one.update(case.id.encode("utf-8", "surrogatepass") + b"\0")
            one.update(case.source.encode("utf-8", "surrogatepass"))
            # Of files that cannot be looked for, reading the case says so.
            with suppress(OSError):
                for path, seen in case.files().items():
                    one.update(PurePath(path).name.encode("utf-8", "surrogateescape") + b"\0")
                    one.update(snapshot.digest(path, seen))
            digest.update(one.digest())
        return cls(len(cases), digest.hexdigest())

    def __str__(self) -> str:
        return f"{self.count} with hash {self.hash[:8]}"


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
        options: the settings of the run, as RunConfig.to_json writes them.
        hostname: of the machine that runs it; empty in older logs.
        contents: what the files of the backends and the cases held.
        left_out: for each capability that is left out, how many cases need it, and why.
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
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record."""
        return {"record": "header", "schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Header:
        """Return the header that a record, checked by the schema, holds.

        Raises:
            ValueError: if it says what no header can say.
        """
        shard = data["shard"]
        if shard is not None and shard["index"] > shard["count"]:
            raise ValueError(f"found shard {shard['index']} of {shard['count']}")
        require_once(it["name"] for it in data["backends"])
        as_they_are = ("started", "versions", "expectations", "options")
        return cls(
            **{name: data[name] for name in as_they_are},
            backends=tuple(BackendIdentity(**it) for it in data["backends"]),
            cases=CaseList(**data["cases"]),
            shard=None if shard is None else Shard(**shard),
            # Older logs lack them.
            left_out=data.get("left_out", {}),
            hostname=data.get("hostname", ""),
            contents=Contents(**data.get("contents", {})),
        )

    def differences(self, other: Header) -> list[str]:
        """Say in what another run is not this one; nothing about their shards."""
        found = _change("the cases", self.cases, other.cases)
        if self.backends != other.backends:
            found.append(f"the backends ({_backends(self)}, now {_backends(other)})")
        elif self.contents.backends != other.contents.backends:
            found.append("the files of the backends")
        if found:
            found += self.contents.differences(other.contents)
        if self.expectations != other.expectations:
            found.append("the content of the expectation files")
        # Each of them may move a verdict. Only the host may be another one.
        for what in sorted(self.versions.keys() | other.versions.keys()):
            versions = (it.versions.get(what, "none") for it in (self, other))
            found += _change(what, *versions)
        flags = {it.name: it.option.flag for it in RunConfig.declared()}
        may_differ = {it.name for it in RunConfig.declared() if it.option.may_differ}
        for name in sorted((self.options.keys() | other.options.keys()) - may_differ):
            what = f"the option {flags.get(name, name)}"
            found += _change(what, self.options.get(name), other.options.get(name))
        return [printable(text) for text in found]


def _change(what: str, before: object, now: object) -> list[str]:
    return [] if before == now else [f"{what} ({before}, now {now})"]


def _backends(header: Header) -> str:
    return ", ".join(f"{it.name} [{it.version}]" for it in header.backends)
