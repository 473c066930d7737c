"""One of several parts of a list of cases, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from onnxopt_cli.core.case import Case
from onnxopt_cli.errors import UsageError

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``count``, counted from 1.

    A case's part depends on nothing but its id: cases that come or go move no other one.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``I/N``.

        Raises:
            UsageError: if it is not two whole numbers of which 1 <= I <= N.
        """
        first, slash, second = text.partition("/")
        numbers = slash and first.isdecimal() and second.isdecimal() and first + second
        if not numbers or not numbers.isascii() or len(numbers) > 2 * len(str(_MOST)):
            raise UsageError(f"--shard takes I/N, as in 1/4, not {text!r}")
        index, count = int(first), int(second)
        if not 1 <= index <= count <= _MOST:
            raise UsageError(f"--shard {text} is no part: I goes from 1 to N, N to {_MOST}")
        return cls(index, count)

    def holds(self, case: str) -> bool:
        """Tell whether the case of this id belongs here."""
        name = case.encode("utf-8", "surrogatepass")
        digest = blake2b(name, digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.index - 1

    def choose(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases that belong here, in their order."""
        return [case for case in cases if self.holds(case.id)]

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
