"""What came out of running cases."""

from __future__ import annotations

from dataclasses import dataclass

from onnxopt_cli.core.case import Location
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """One case on one backend.

    Attributes:
        case: the case's id.
        location: where the case stands.
        operators: names of the operators in the model.
        backend: the backend's name as the user gave it.
        outcome: what happened.
        lowered: True if the backend was given primitive operators instead of the operator.
        message: why, in words, for everything but a plain pass or fail.
        diffs: the outputs, judged; empty if the backend returned none.
        seconds: wall time in the backend.
    """

    case: str
    location: Location
    operators: tuple[str, ...]
    backend: str
    outcome: Outcome
    lowered: bool = False
    message: str = ""
    diffs: tuple[Diff, ...] = ()
    seconds: float = 0.0
