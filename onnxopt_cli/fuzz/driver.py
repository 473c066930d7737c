"""Drive hypothesis, which draws examples and shrinks failing examples."""

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

from onnxopt_cli.config.run_config import Execution, Shard
from onnxopt_cli.errors import UsageError
from onnxopt_cli.fuzz.choices import Source
from onnxopt_cli.fuzz.drawn_examples import Example, breaches, draw_generated, draw_graph, draw_node
from onnxopt_cli.fuzz.findings import FailureKind
from onnxopt_cli.fuzz.random_graph import draw_random_graph
from onnxopt_cli.operators.operator import Operator

if TYPE_CHECKING:
    from onnxopt_cli.workers.cluster.dask_client import Cluster

# One in _EXAMPLES_PER_GRAPH examples is a model with several nodes.
_EXAMPLES_PER_GRAPH = 10


@cache
def examples(
    operators: tuple[Operator, ...],
    generated: tuple[str, ...],
    single_nodes: bool,
    graphs: bool,
) -> Any:
    """Return a hypothesis strategy that draws examples of some operators.

    Args:
        operators: the operators under test with a formula.
        generated: names of the operators under test without a formula.
        single_nodes: whether every example is a single node.
        graphs: whether every example is a random graph of ONNX operators.
    """
    from hypothesis import strategies

    @strategies.composite
    def drawn(draw: Callable[[Any], Any]) -> Example:
        source = Source(draw)
        if graphs:
            return draw_random_graph(source)
        subjects: tuple[Operator | str, ...] = (*operators, *generated)
        subject = source.choice(subjects)
        if isinstance(subject, str):
            return draw_generated(source, subject)
        if not single_nodes and source.rarely(_EXAMPLES_PER_GRAPH):
            return draw_graph(source, operators)
        return draw_node(source, subject)

    return drawn()


def refusals(operators: Sequence[Operator]) -> Iterator[tuple[Example, list[Example]]]:
    """Yield a simple node of each operator, and nodes that violate the operator's signature.

    All known ways to violate the signature are tried, because there are only a few.
    """
    for operator in operators:
        node = draw_node(Source(), operator)
        yield node, [replace(node, breach=breach) for breach in breaches(node)]


class Failure(Exception):
    """Base class for failures of examples. Hypothesis tells failures apart by their class."""


class RoundOver(BaseException):
    """Raised to end the round.

    The class does not derive from Exception, because hypothesis would treat an Exception as a
    failure.
    """


class Abort(BaseException):
    """Raised to end the search. Like RoundOver, the class does not derive from Exception.

    Attributes:
        reason: the error that ends the search.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


@cache
def failure(kind: FailureKind) -> type[Failure]:
    """Return the exception class for failures of one kind."""
    return type("Failure", (Failure,), {"__doc__": kind.description})


@dataclass(frozen=True, slots=True)
class Task:
    """The examples, the backend and the limits of a search.

    Attributes:
        operators: the operators under test with a formula.
        backend: specification of the backend under test.
        execution: settings of the backend's worker.
        seed: seed of all choices.
        examples: number of examples to try; None for no limit.
        seconds: duration of the search; None for no limit.
        memory: the folder that keeps failing examples for later runs.
        generated: names of the operators under test without a formula.
        single_nodes: whether all models have a single node.
        graphs: whether all models are random graphs of ONNX operators.
        shard: the shard of the examples to try; None for all.
        cluster: the machines on which the search runs; None for this machine.
        explain_time: seconds to spend on explaining a finding; 0 for no explanation.
        tried: called after each example with the number of examples tried.
        shrinking: called with a new kind of failure before the failure is shrunk.
    """

    operators: Sequence[Operator]
    backend: str
    execution: Execution
    seed: int
    examples: int | None
    seconds: float | None
    memory: Path
    generated: Sequence[str] = ()
    single_nodes: bool = False
    graphs: bool = False
    shard: Shard | None = None
    cluster: Cluster | None = None
    explain_time: float = 0.0
    tried: Callable[[int], None] = lambda _: None
    shrinking: Callable[[FailureKind], None] = lambda _: None


def drive(
    task: Task, attempted: Callable[[Example], None], most: int, number: int
) -> tuple[bool, bool]:
    """Call a function with the examples of a round, and shrink an example for which the call fails.

    Args:
        task: the search.
        attempted: the function. It returns if the example passes; otherwise, it raises a failure,
            RoundOver or Abort.
        most: maximum number of examples without a failure.
        number: number of the round, which determines its examples. Round 0 replays the failures of
            earlier runs.

    Returns:
        Two values: whether the round was completed, and whether its failures were reproducible.

    Raises:
        UsageError: if no example has a finite result.
        Abort: if the function raises Abort.
    """
    import hypothesis
    from hypothesis import HealthCheck, Phase, Verbosity
    from hypothesis.database import DirectoryBasedExampleDatabase
    from hypothesis.errors import Flaky, Unsatisfiable

    operators, generated = tuple(task.operators), tuple(task.generated)
    # Failures are stored as choices, and the meaning of choices depends on the operators.
    # Therefore, failures are stored separately for each backend and each list of operators.
    subjects = [*(operator.qualified_name for operator in operators), *generated]
    subjects += ["graphs"] * task.graphs
    names = "\n".join([task.backend, *subjects])
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
        # The database of hypothesis identifies a test by the source code of a function. Therefore,
        # all rounds use the same function.
        attempted(example)

    mixed = blake2b(f"{task.seed}/{number}".encode(), digest_size=8).digest()
    seed = hypothesis.seed(int.from_bytes(mixed, "big"))
    # hypothesis.seed disables the database. The settings are applied afterwards, and enable the
    # database again.
    with_examples: Callable[[Any], Any] = hypothesis.given(
        examples(operators, generated, task.single_nodes, task.graphs)
    )
    run_round = settings(seed(with_examples(test)))
    try:
        # If there is nothing to replay, hypothesis raises SkipTest.
        with _undisturbed(task.memory), suppress(Failure, SkipTest):
            run_round()
    except RoundOver:
        return False, True
    except Flaky:
        return False, False
    except Unsatisfiable:
        listed = ", ".join([*(operator.name for operator in operators), *generated])
        raise UsageError(f"found no inputs of {listed} with a finite result") from None
    except ExceptionGroup as group:
        if group.split((Failure, Flaky))[1] is not None:
            raise
    return True, True


@contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    """Silence the warnings of hypothesis, redirect its files, and make its draws reproducible.

    Hypothesis also draws constants that occur in the source of local modules. The examples would
    then depend on which modules are loaded. No setting prevents this, so the set of constants is
    replaced by an empty set.
    """
    from hypothesis.configuration import set_hypothesis_home_dir

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.callback(set_hypothesis_home_dir, None)
        set_hypothesis_home_dir(folder)
        # Some versions of hypothesis draw no constants from source code. These versions lack the
        # patched names.
        with suppress(ImportError, AttributeError):
            providers: Any = import_module("hypothesis.internal.conjecture.providers")
            provider, none = providers.HypothesisProvider, providers.Constants()
            stack.enter_context(patch.object(provider, "_local_constants", none))
            stack.enter_context(patch.object(providers, "CONSTANTS_CACHE", {}))
        yield
