"""What tells one list of cases from another: their ids, and what their files hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePath

from onnxopt_cli.core.case import Case
from onnxopt_cli.log.contents import Witness


@dataclass(frozen=True, slots=True)
class CaseList:
    """How many cases there are, and a hash of them."""

    count: int
    hash: str

    @classmethod
    def of(cls, cases: Sequence[Case], witness: Witness) -> CaseList:
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
            for path, seen in _files(case).items():
                one.update(PurePath(path).name.encode("utf-8", "surrogateescape") + b"\0")
                one.update(witness.digest(path, seen))
            digest.update(one.digest())
        return cls(len(cases), digest.hexdigest())


def _files(case: Case) -> dict[str, object]:
    try:
        return dict(case.files())
    except OSError:
        # Reading the case says so.
        return {}
