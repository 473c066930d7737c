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
from typing import TYPE_CHECKING, Any
from unittest import SkipTest
from unittest.mock import patch

from onnxopt_cli.errors import UsageError
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.fuzz.choices import Source
from onnxopt_cli.fuzz.findings import FailureKind
from onnxopt_cli.fuzz.graph_example import Example, draw_graph
from onnxopt_cli.fuzz.node_example import breaches, draw_node

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase


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
        ways = breaches(operator, node.attributes, node.inputs)
        yield node, [replace(node, breach=breach) for breach in ways]


class Failure(Exception):
    """An example failed; hypothesis tells failures apart by their class."""


class RoundOver(BaseException):
    """The round ends here; not an Exception, which hypothesis would take for a failure."""


class Abort(BaseException):
    """The whole search ends here."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


@cache
def _failure_class(kind: FailureKind) -> type[Failure]:
    return type("Failure", (Failure,), {"__doc__": kind.what})


def failure(kind: FailureKind) -> Failure:
    """Return what to raise where an example fails in this way."""
    return _failure_class(kind)(kind.what)


@dataclass(frozen=True, slots=True)
class Driver:
    """Calls functions with examples.

    Attributes:
        backend: its name; failures are remembered by backend.
        operators: whose examples are drawn.
        seed: of all choices.
        memory: the folder in which failures are remembered from run to run.
        single_nodes: whether all models have one node.
    """

    backend: str
    operators: tuple[Operator, ...]
    seed: int
    memory: Path
    single_nodes: bool

    def drive(
        self, attempted: Callable[[Example], None], most: int, number: int
    ) -> tuple[bool, bool]:
        """Call a function with examples, and where it raises a failure with smaller ones.

        Args:
            attempted: the function; it may raise a failure, RoundOver or Abort.
            most: number of examples until one fails.
            number: of the round; each has other examples, and round 0 the failures of earlier runs.

        Returns:
            Whether it ended by itself, and whether failures failed every time.

        Raises:
            UsageError: if no example says anything.
        """
        import hypothesis
        from hypothesis import HealthCheck, Phase, Verbosity
        from hypothesis.errors import Flaky, Unsatisfiable

        phases = [Phase.generate, Phase.shrink] if number else [Phase.reuse]
        settings = hypothesis.settings(
            max_examples=most,
            phases=phases,
            database=self._database(),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=not number,
            print_blob=False,
        )

        def test(example: Example) -> None:
            # The database knows a test by its source, which must be one for all phases.
            attempted(example)

        seed = hypothesis.seed(_mixed(self.seed, number))
        # A seed turns the database off; settings that come after it turn it on again.
        given: Callable[[Any], Any] = hypothesis.given(examples(self.operators, self.single_nodes))
        driven = settings(seed(given(test)))
        try:
            with _at_home_in(self.memory), _blind_to_sources(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                driven()
        except RoundOver:
            return False, True
        except Abort as abort:
            raise abort.reason from None
        except Flaky:
            return False, False
        except Unsatisfiable:
            names = ", ".join(it.name for it in self.operators)
            raise UsageError(f"found no inputs of {names} with a finite result") from None
        except (Failure, SkipTest):
            # Skipped is what has nothing to replay.
            return True, True
        except ExceptionGroup as group:
            if group.split((Failure, Flaky))[1] is not None:
                raise
        return True, True

    def _database(self) -> ExampleDatabase:
        from hypothesis.database import DirectoryBasedExampleDatabase

        # Choices mean something only for the same operators.
        names = [self.backend, *(it.qualified_name for it in self.operators)]
        digest = blake2b("\n".join(names).encode("utf-8", "replace"), digest_size=8).hexdigest()
        return DirectoryBasedExampleDatabase(self.memory / digest)


@contextmanager
def _at_home_in(folder: Path) -> Iterator[None]:
    """Let hypothesis leave its own notes in a folder, and nowhere else."""
    from hypothesis.configuration import set_hypothesis_home_dir

    set_hypothesis_home_dir(folder)
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)


@contextmanager
def _blind_to_sources() -> Iterator[None]:
    """Let a seed draw the same wherever this runs.

    Hypothesis draws some numbers out of the sources of the modules that are loaded, where these are
    of a checkout, and has no setting for that.
    """
    with ExitStack() as stack:
        # Versions that do not do so lack these names.
        with suppress(ImportError, AttributeError):
            providers: Any = import_module("hypothesis.internal.conjecture.providers")
            replaced = patch.multiple(
                providers.HypothesisProvider, _local_constants=providers.Constants()
            )
            stack.enter_context(replaced)
            stack.enter_context(patch.multiple(providers, CONSTANTS_CACHE={}))
        yield


def _mixed(seed: int, rounds: int) -> int:
    """Return a seed of its own for each round."""
    return int.from_bytes(blake2b(f"{seed}/{rounds}".encode(), digest_size=8).digest(), "big")
