"""What an outcome means to whoever runs the cases: as expected or not."""

from __future__ import annotations

from enum import StrEnum


class Standing(StrEnum):
    """An outcome beside what was expected of the case.

    Where no entry of an expectation file speaks of a case, it is expected to pass.
    """

    EXPECTED = "expected"
    UNEXPECTED_FAIL = "unexpected-fail"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a word of conformance testing, no password
    CHANGED = "changed"
    FLAKY = "flaky"
