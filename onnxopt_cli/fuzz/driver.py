"""Hypothesis, which makes the choices of an example, and smaller ones where it fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

from onnxopt_cli.errors import UsageError
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.fuzz.choices import Source
from onnxopt_cli.fuzz.findings import FailureKind
from onnxopt_cli.fuzz.graph_example import Example, draw_graph
from onnxopt_cli.fuzz.node_example import breaches, draw_node
from onnxopt_cli.log.header import Shard
from onnxopt_cli.run.executors import Setting

#: About one example in so many has several nodes.
_GRAPHS = 10


@cache
def examples(operators: tuple[Operator, ...], single_nodes: bool) -> Any:
    """Return a hypothesis strategy of examples of some operators, all of one node or not."""
    from hypothesis import strategies

    @strategies.composite
    def drawn(draw: Callable[[Any], Any]) -> Example:
        source = Source(draw)
        if not single_nodes and source.rarely(_GRAPHS):
            return draw_graph(source, operators)
        return draw_node(source, source.choice(operators))

    return drawn()


def refusals(operators: Sequence[Operator]) -> Iterator[tuple[Example, list[Example]]]:
    """Yield a simple node of each operator, and with it each way to break its signature once.

    They are too few to be left to chance.
    """
    for operator in operators:
        node = draw_node(Source(), operator)
        yield node, [replace(node, breach=breach) for breach in breaches(node)]


class Failure(Exception):
    """An example failed; hypothesis tells failures apart by their class."""


class RoundOver(BaseException):
    """The round ends here; not an Exception, which hypothesis would take for a failure."""


class Abort(BaseException):
    """The whole search ends here; for the same reason not an Exception.

    Attributes:
        reason: what ends it.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


@cache
def failure(kind: FailureKind) -> type[Failure]:
    """Return what to raise where an example fails in this way."""
    return type("Failure", (Failure,), {"__doc__": kind.what})


@dataclass(frozen=True, slots=True)
class Task:
    """What to search, and for how long.

    Attributes:
        operators: whose examples are drawn.
        backend: what is tested, as the user asks for it.
        setting: how it is run.
        seed: of all choices.
        examples: how many to try; None for no limit.
        seconds: how long to search; None for no limit.
        memory: the folder in which failures are remembered from run to run.
        single_nodes: whether all models have one node.
        shard: the part of the examples that is tried; None for all.
        explain_time: for how many seconds to look for what explains a finding; 0 for not at all.
        tried: called after each example with the number of examples so far.
        shrinking: called with a new kind of failure, before it is made smaller.
    """

    operators: Sequence[Operator]
    backend: str
    setting: Setting
    seed: int
    examples: int | None
    seconds: float | None
    memory: Path
    single_nodes: bool = False
    shard: Shard | None = None
    explain_time: float = 0.0
    tried: Callable[[int], None] = lambda _: None
    shrinking: Callable[[FailureKind], None] = lambda _: None


def drive(
    task: Task, attempted: Callable[[Example], None], most: int, number: int
) -> tuple[bool, bool]:
    """Call a function with examples, and where it raises a failure with smaller ones.

    Args:
        task: what to search.
        attempted: the function; it may raise a failure, RoundOver or Abort.
        most: number of examples until one fails.
        number: of the round; each has other examples, and round 0 the failures of earlier runs.

    Returns:
        Whether it ended by itself, and whether failures failed every time.

    Raises:
        UsageError: if no example says anything.
        Abort: if the function does.
    """
    import hypothesis
    from hypothesis import HealthCheck, Phase, Verbosity
    from hypothesis.database import DirectoryBasedExampleDatabase
    from hypothesis.errors import Flaky, Unsatisfiable

    operators = tuple(task.operators)
    # Failures are remembered by backend; choices mean something only for the same operators.
    names = "\n".join([task.backend, *(it.qualified_name for it in operators)])
    digest = blake2b(names.encode("utf-8", "replace"), digest_size=8).hexdigest()
    settings = hypothesis.settings(
        max_examples=most,
        phases=[Phase.generate, Phase.shrink] if number else [Phase.reuse],
        database=DirectoryBasedExampleDatabase(task.memory / digest),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=not number,
        print_blob=False,
    )

    def test(example: Example) -> None:
        # The database knows a test by its source, which must be one for all phases.
        attempted(example)

    # A seed of its own for each round.
    mixed = blake2b(f"{task.seed}/{number}".encode(), digest_size=8).digest()
    seed = hypothesis.seed(int.from_bytes(mixed, "big"))
    # A seed turns the database off; settings that come after it turn it on again.
    given: Callable[[Any], Any] = hypothesis.given(examples(operators, task.single_nodes))
    driven = settings(seed(given(test)))
    try:
        # Skipped is what has nothing to replay.
        with _undisturbed(task.memory), suppress(Failure, SkipTest):
            driven()
    except RoundOver:
        return False, True
    except Flaky:
        return False, False
    except Unsatisfiable:
        said = ", ".join(it.name for it in operators)
        raise UsageError(f"found no inputs of {said} with a finite result") from None
    except ExceptionGroup as group:
        if group.split((Failure, Flaky))[1] is not None:
            raise
    return True, True


@contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    """Let hypothesis warn of nothing, leave its notes in a folder, and draw the same anywhere.

    It draws some numbers out of the sources of the modules that are loaded, where these are of a
    checkout, and has no setting for that.
    """
    from hypothesis.configuration import set_hypothesis_home_dir

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.callback(set_hypothesis_home_dir, None)
        set_hypothesis_home_dir(folder)
        # Versions that do not draw so lack these names.
        with suppress(ImportError, AttributeError):
            providers: Any = import_module("hypothesis.internal.conjecture.providers")
            provider, none = providers.HypothesisProvider, providers.Constants()
            stack.enter_context(patch.object(provider, "_local_constants", none))
            stack.enter_context(patch.object(providers, "CONSTANTS_CACHE", {}))
        yield
