"""The first record of a log, which identifies the run and its shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import RunConfig, Shard
from onnxopt_cli.core.record import PROCESSOR, BackendIdentity, require_once
from onnxopt_cli.core.text import printable
from onnxopt_cli.run.log.log_contents import Contents, FileSnapshot

#: The version that a log's header states.
SCHEMA = "onnxopt.log/1"


@dataclass(frozen=True, slots=True)
class CaseList:
    """The number of cases, and a hash of them."""

    count: int
    hash: str

    @classmethod
    def of(cls, cases: Sequence[Case], snapshot: FileSnapshot) -> CaseList:
        """Identify cases by their ids and the contents of their files.

        The folders of the files are ignored, because shards may run on several machines. Cases that
        are part of onnx or onnxopt are identified by the version of the package.

        Raises:
            UsageError: if a file has changed since the cases were found.
        """
        digest = blake2b(digest_size=16)
        for case in cases:
            case_digest = blake2b(digest_size=16)
            case_digest.update(case.id.encode("utf-8", "surrogatepass") + b"\0")
            case_digest.update(case.source.encode("utf-8", "surrogatepass"))
            # If files cannot be listed, an error is reported when the case is loaded.
            with suppress(OSError):
                for path, seen in case.files().items():
                    file_name = PurePath(path).name
                    case_digest.update(file_name.encode("utf-8", "surrogateescape") + b"\0")
                    case_digest.update(snapshot.digest(path, seen))
            digest.update(case_digest.digest())
        return cls(len(cases), digest.hexdigest())

    def __str__(self) -> str:
        return f"{self.count} with hash {self.hash[:8]}"


@dataclass(frozen=True, slots=True)
class Header:
    """Description of a run: cases, backends, versions and options.

    Attributes:
        started: start time in UTC, as in ``2026-01-31T23:59:59.012345Z``; older logs omit the
            fraction.
        versions: versions of onnxopt, Python and relevant packages, and the machine.
        backends: the backends under test.
        cases: the selected cases of all shards.
        shard: the part of the cases that runs; None for all.
        expectations: a hash of the expectation files; empty without them.
        options: the settings of the run in the form of RunConfig.to_json.
        hostname: name of the machine; empty in older logs.
        contents: digests of the files of backends and cases.
        left_out: for each excluded capability, the number of cases that need it and the reason.
        origin: commit, branch and job on a CI server; empty elsewhere and in older logs.
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
    origin: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record."""
        return {"record": "header", "schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Header:
        """Return the header of a record that conforms to the schema.

        Raises:
            ValueError: if the shard or the backends are invalid.
        """
        shard = data["shard"]
        if shard is not None and shard["index"] > shard["count"]:
            raise ValueError(f"found shard {shard['index']} of {shard['count']}")
        require_once(backend["name"] for backend in data["backends"])
        return cls(
            started=data["started"],
            versions=data["versions"],
            expectations=data["expectations"],
            options=data["options"],
            backends=tuple(BackendIdentity(**backend) for backend in data["backends"]),
            cases=CaseList(**data["cases"]),
            shard=None if shard is None else Shard(**shard),
            # Older logs lack these fields.
            left_out=data.get("left_out", {}),
            hostname=data.get("hostname", ""),
            origin=data.get("origin", {}),
            contents=Contents(**data.get("contents", {})),
        )

    def differences(self, other: Header) -> list[str]:
        """List the differences from the header of another run, except the shard."""
        differences = _change("the cases", self.cases, other.cases)
        if self.backends != other.backends:
            differences.append(f"the backends ({_backends(self)}, now {_backends(other)})")
        elif self.contents.backends != other.contents.backends:
            differences.append("the files of the backends")
        if differences:
            differences += self.contents.differences(other.contents)
        if self.expectations != other.expectations:
            differences.append("the content of the expectation files")
        # Every entry of the versions except the processor may affect a verdict.
        for name in sorted((self.versions.keys() | other.versions.keys()) - {PROCESSOR}):
            versions = (header.versions.get(name, "none") for header in (self, other))
            differences += _change(name, *versions)
        settings = RunConfig.declared()
        flags = {setting.name: setting.option.flag for setting in settings}
        may_differ = {setting.name for setting in settings if setting.option.may_differ}
        for name in sorted((self.options.keys() | other.options.keys()) - may_differ):
            option = f"the option {flags.get(name, name)}"
            differences += _change(option, self.options.get(name), other.options.get(name))
        return [printable(text) for text in differences]


def _change(name: str, before: object, now: object) -> list[str]:
    return [] if before == now else [f"{name} ({before}, now {now})"]


def _backends(header: Header) -> str:
    return ", ".join(f"{backend.name} [{backend.version}]" for backend in header.backends)
