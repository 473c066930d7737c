"""The closed set of things that can happen to a case."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What happened to a case on a backend."""

    PASS = "pass"  # noqa: S105 - the word of conformance testing, no password
    FAIL = "fail"
    UNPROVEN = "unproven"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    PROTOCOL = "protocol"
    LEAK = "leak"
    INVALID = "invalid"
    SKIP = "skip"
    NOT_RUN = "not-run"


#: Outcomes that say nothing against the backend.
HARMLESS = frozenset({Outcome.PASS, Outcome.SKIP})
#: Outcomes that say something against the case file or the run.
NOT_ITS_FAULT = frozenset({Outcome.INVALID, Outcome.NOT_RUN})
#: Outcomes that running the case again cannot change, so that it is never tried.
SETTLED = frozenset({Outcome.UNSUPPORTED, Outcome.INVALID, Outcome.SKIP, Outcome.NOT_RUN})
