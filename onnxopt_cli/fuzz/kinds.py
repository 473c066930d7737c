"""Telling failures apart, so that each is shown once."""

from __future__ import annotations

import re

from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.fuzz.trial import Trial

#: The kind of failures in which nothing but numbers is wrong.
VALUES = "wrong numbers"

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)")
_LONGEST = 120


def kinds_of(trial: Trial) -> tuple[str, ...]:
    """Say of what kinds a failure is, without what differs from example to example.

    Outputs with a wrong type and a wrong shape are of two kinds, whose causes may be two.
    """
    result = trial.result
    if trial.accepted_a_breach:
        return (f"accepted though {trial.example.breach}",)
    if result.outcome is not Outcome.FAIL:
        # When it does not return, the message says only for how long it did not.
        said = "" if result.outcome is Outcome.TIMEOUT else f": {_general(result.message)}"
        return (f"{result.outcome}{said}",)
    structures = [diff for diff in result.diffs if diff.structure is not None]
    if structures:
        return tuple(dict.fromkeys(kind for diff in structures for kind in _structure(diff)))
    if any(diff.mismatches for diff in result.diffs):
        return (VALUES,)
    return ("inputs changed",)


def _structure(diff: Diff) -> list[str]:
    expected_type, _, expected_shape = diff.kind.partition("[")
    found = str(diff.structure).removeprefix("is ")
    actual_type, bracket, actual_shape = found.partition("[")
    if not bracket:
        return [f"an output {_general(str(diff.structure))}"]
    said = [] if actual_type == expected_type else [f"{actual_type} for {expected_type}"]
    said += [] if actual_shape == expected_shape else ["another shape"]
    return said


def _general(message: str) -> str:
    first = message.partition("\n")[0]
    return _NUMBER.sub("#", _QUOTED.sub("...", first))[:_LONGEST]
