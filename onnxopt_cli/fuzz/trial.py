"""Running an example and judging what came back, as ``onnxopt run`` would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnxopt_cli.core.case import Case, Location
from onnxopt_cli.core.outcome import HARMLESS, Outcome
from onnxopt_cli.core.result import Result
from onnxopt_cli.fuzz.example import NAME, SUITE, Example
from onnxopt_cli.isolation.response import Order
from onnxopt_cli.run.executors import Executor
from onnxopt_cli.run.expectation import Judging
from onnxopt_cli.run.judge import judge, read_question

_COSTLY = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM, Outcome.PROTOCOL, Outcome.LEAK})


@dataclass(frozen=True, slots=True)
class Trial:
    """An example that was put to a backend.

    Attributes:
        example: the example.
        case: it, as a case.
        result: what came of it.
    """

    example: Example
    case: Case
    result: Result

    @property
    def failed(self) -> bool:
        """True if the result speaks against the backend."""
        outcome = self.result.outcome
        # What a backend does not know, it has refused.
        refused = outcome is Outcome.UNSUPPORTED and bool(self.example.breach)
        return outcome not in HARMLESS and not refused

    @property
    def accepted_a_breach(self) -> bool:
        """True if the backend computed what it should have refused."""
        return bool(self.example.breach) and self.result.outcome is Outcome.FAIL

    @property
    def is_costly(self) -> bool:
        """True if the example cost a process or the timeout."""
        return self.result.outcome in _COSTLY

    @property
    def size(self) -> tuple[int, int]:
        """How large the example is: number of elements, and length of its files."""
        content = self.case.read()
        elements = sum(getattr(value, "size", 0) for value in content.inputs.values())
        return elements, sum(map(len, self.example.files(NAME, "", "").values()))


class SearchInterrupted(Exception):
    """The user wants the run to end."""


def attempt(example: Example, executor: Executor) -> Trial:
    """Run an example; what is expected of it is computed while the backend is at work.

    Raises:
        Interrupted: if the user wants the run to end.
        BackendUnavailable: if the backend cannot be started any more.
    """
    content = example.content()
    case = Case(f"{SUITE}/{NAME}", Location(Path(f"{NAME}.yaml")), lambda: content)
    pending = executor.submit(Order(content.model, content.inputs))
    judging = Judging()
    question = read_question(case, judging)
    # An invalid example is a defect of the strategies.
    assert not question.invalid, question.invalid  # noqa: S101 - as said
    response = pending()
    if isinstance(response, str):
        raise SearchInterrupted(response)
    return Trial(example, case, judge(question, executor.name, response, judging))
