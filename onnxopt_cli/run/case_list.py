"""What tells one list of cases from another: its ids, and the files that the cases stand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

from onnxopt_cli.core.case import Case

# Of larger files only the size counts, so that the hash costs little beside the run.
_LARGE = 16 * 2**20

_blake2b = partial(blake2b, digest_size=16)


@dataclass(frozen=True, slots=True)
class CaseList:
    """How many cases there are, and a hash of them."""

    count: int
    hash: str

    @classmethod
    def of(cls, cases: Sequence[Case]) -> CaseList:
        """Describe cases by id and content.

        The content is that of the file where the case stands; of a folder, that of the files in it
        and of the model beside it. External data of a model are not looked at.
        """
        digest = _blake2b()
        known: dict[Path, bytes] = {}
        for case in cases:
            path = case.location.path
            if path not in known:
                known[path] = _content(path)
            digest.update(_blake2b(case.id.encode("utf-8", "surrogatepass")).digest())
            digest.update(known[path])
        return cls(len(cases), digest.hexdigest())


def _content(path: Path) -> bytes:
    """Return a hash of a place; where nothing stands, as for a suite of ours, that of nothing."""
    digest = _blake2b()
    try:
        files = [path.parent / "model.onnx", *sorted(path.iterdir())] if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                digest.update(file.name.encode("utf-8", "surrogateescape"))
                size = file.stat().st_size
                digest.update(b"\0%d\0" % size)
                digest.update(file.read_bytes() if size <= _LARGE else b"")
    except OSError as error:
        # The case itself will say so when it is read.
        digest.update(str(error.errno).encode())
    return digest.digest()
