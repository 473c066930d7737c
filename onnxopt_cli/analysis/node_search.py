"""The search for nodes that distinguish mutants from their operator.

Mutants run on the evaluator of the reference oracle, with its corrections, in forked processes. A
mutant of code runs only on nodes that infect it: nodes on which the changed expression has another
value than the original expression.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeAlias, TypeVar

import numpy as np
import onnx

from onnxopt_cli.analysis.node_reformulations import NodeReformulation
from onnxopt_cli.analysis.node_variations import Variation, copied
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.compare import compare_outputs, largest_share
from onnxopt_cli.core.values import Value
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.infection import InfectionRecorder
from onnxopt_cli.mutation.node_mutants import Compute, NodeMutant
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.patching import replaced, replacements
from onnxopt_cli.oracle.reference_oracle import estimated_here
from onnxopt_cli.workers.forked_processes import (
    ProcessLostError,
    TimeLimitError,
    isolated,
    time_limit,
)

#: Seconds that the evaluation of one node may take.
EVALUATION_SECONDS = 2.0
#: The description of the failure of a mutant that exceeds its time limit.
TIMEOUT = "timeout"
#: Seconds after which a mutant fails on a node.
MUTANT_SECONDS = 0.5
#: A mutant that exceeds its time limit on MAX_TIMEOUTS nodes no longer runs.
MAX_TIMEOUTS = 2
# Largest number of bytes that a mutant may allocate.
_EVALUATION_BYTES = 1 << 30
# The number of small differences of a mutant, within the tolerance, after which no further
# difference is judged. Judging a difference needs a slow condition estimate.
_MAX_CONFIRMATIONS = 12
# Seconds between two reports of progress. A search process that reports nothing is killed as
# inactive.
_REPORT_SECONDS = 0.5
# The smallest possible tolerance, in units in the last place.
_LEAST_ULPS = 4

T = TypeVar("T")
NodeImplementation: TypeAlias = NodeMutant | NodeReformulation


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search for nodes that distinguish a mutant.

    Attributes:
        nodes: the indices of nodes that distinguish it.
        examined: number of examined nodes. Nodes on which a difference was not judged do not count.
    """

    nodes: Sequence[int]
    examined: int


@dataclass(frozen=True, slots=True)
class _Progress:
    """A report of progress: the number of nodes that a search has examined."""

    examined: int


class _Judge:
    """Judges the outputs of mutants on nodes.

    Args:
        candidates: the nodes.
    """

    def __init__(self, candidates: Sequence[Variation]) -> None:
        self._candidates = candidates
        self._expected: dict[int, Expected | None] = {}

    def rejects(self, index: int, outputs: Sequence[Value]) -> bool | None:
        """Return whether a node rejects outputs; None if the node cannot be judged."""
        if index not in self._expected:
            self._expected[index] = _estimated(self._candidates[index])
        expected = self._expected[index]
        return None if expected is None else excess(expected, outputs) > 1


def search_nodes(
    mutants: Mapping[str, Mapping[int, NodeMutant | None]],
    candidates: Sequence[Variation],
    evaluators: Mapping[int, ReferenceModel],
    check: Callable[[], str],
    limit: int = 1,
) -> list[SearchResult]:
    """Search for nodes that distinguish each mutant from its operator.

    Args:
        mutants: for each name of a mutant, the mutant by the opset version of the node; None for a
            version in which the mutant does not exist.
        candidates: nodes of the operator.
        evaluators: the result of :func:`prepared` for the nodes.
        check: returns a description of the reference's state, which no mutant may change.
        limit: the search for a mutant ends after this number of distinguishing nodes.
    """
    judge = _Judge(candidates)
    infected = _infected_nodes(mutants, candidates, evaluators)

    def search(name: str) -> Iterator[int | _Progress]:
        forms = mutants[name]
        compute = _node_computer(evaluators, forms)
        confirmations = distinctions = timeouts = unjudged = 0
        last_report = monotonic()
        for index in infected[name]:
            variation = candidates[index]
            outputs, failure = _run_mutant(forms[variation.opset], variation, compute)
            timeouts += failure == TIMEOUT
            if timeouts >= MAX_TIMEOUTS:
                yield index
                distinctions = limit
            elif (
                failure != TIMEOUT
                and outputs is not None
                and may_differ(variation.outputs, outputs)
            ):
                is_rejected = (
                    judge.rejects(index, outputs) if confirmations < _MAX_CONFIRMATIONS else None
                )
                if is_rejected:
                    yield index
                    distinctions += 1
                confirmations += not is_rejected
                unjudged += is_rejected is None
            if distinctions >= limit:
                yield _Progress(index + 1 - unjudged)
                return
            if monotonic() > last_report + _REPORT_SECONDS:
                last_report = monotonic()
                yield _Progress(index - unjudged)
        yield _Progress(len(candidates) - unjudged)

    results: list[SearchResult] = []
    for events, _ in run_in_turn([*mutants], search, 15 * EVALUATION_SECONDS, check):
        nodes = [event for event in events if isinstance(event, int)]
        examined = [event.examined for event in events if isinstance(event, _Progress)]
        results.append(SearchResult(nodes, max(examined, default=0)))
    return results


def _infected_nodes(
    mutants: Mapping[str, Mapping[int, NodeMutant | None]],
    candidates: Sequence[Variation],
    evaluators: Mapping[int, ReferenceModel],
) -> Mapping[str, Sequence[int]]:
    """Return, for each mutant, the indices of the nodes that may distinguish it.

    For a mutant of code, these are the nodes that infect it. For a mutant of another kind, these
    are all nodes.
    """
    every_node = range(len(candidates))
    codes = {
        name: [form.code for form in forms.values() if form is not None and form.code]
        for name, forms in mutants.items()
    }
    codes = {name: changes for name, changes in codes.items() if changes}
    infected: dict[str, list[int]] = {name: [] for name in codes}

    def record() -> Iterator[Sequence[str]]:
        recorder = InfectionRecorder(codes)
        at_preparation: dict[int, set[str]] = {}
        with recorder.recording():
            for variation in candidates:
                model = variation.model
                try:
                    with time_limit(EVALUATION_SECONDS):
                        recorder.infected.clear()
                        if id(model) not in at_preparation:
                            ReferenceModel(model)
                            at_preparation[id(model)] = {*recorder.infected}
                        evaluator = evaluators[id(model)]
                        inputs = {name: copied(value) for name, value in variation.inputs.items()}
                        outputs = evaluator.run(inputs)
                    names = recorder.infected | at_preparation[id(model)] | recorder.unknown
                    is_valid = not may_differ(variation.outputs, outputs)
                except (Exception, TimeLimitError):  # noqa: BLE001 - instrumentation may interfere
                    is_valid = False
                yield [*names] if is_valid else [*codes]

    if codes:
        try:
            by_node = [*on_corrected_reference(record, 15 * EVALUATION_SECONDS)]
        except ProcessLostError:
            by_node = []
        for index in every_node:
            for name in by_node[index] if index < len(by_node) else codes:
                infected[name].append(index)
    return {name: infected.get(name, every_node) for name in mutants}


def _node_computer(
    evaluators: Mapping[int, ReferenceModel], forms: Mapping[int, NodeMutant | None]
) -> Callable[[Variation, BoundNode], Sequence[Value]]:
    """Return a function that computes a node, or a changed node, on the corrected reference.

    If two changed nodes differ only in their values, they share an evaluator. Nothing is shared if
    the mutant changes how an evaluator is prepared.
    """
    is_prepared = not any(form is not None and form.at_preparation for form in forms.values())
    kept: dict[tuple[int, Hashable], ReferenceModel] = {}

    def compute(variation: Variation, node: BoundNode) -> Sequence[Value]:
        model, values = variation.model, variation.inputs
        evaluator = evaluators.get(id(model)) if is_prepared else None
        if node is not variation.bound:
            key = id(model), node.structure()
            evaluator = kept.get(key)
            values = {name: node.values[name] for name in node.names if name}
            if evaluator is None:
                model, values = node.as_model()
                if values.keys() <= {*node.names}:
                    evaluator = kept[key] = ReferenceModel(model)
        evaluator = evaluator or ReferenceModel(model)
        return evaluator.run({name: copied(value) for name, value in values.items()})

    return compute


def _run_mutant(
    form: NodeMutant | None,
    variation: Variation,
    compute: Callable[[Variation, BoundNode], Sequence[Value]],
) -> tuple[Sequence[Value] | None, str]:
    """Return the outputs of a mutant and the kind of its failure; see :func:`attempted`.

    The outputs are None if the mutant has no effect.
    """
    if form is None:
        return None, ""
    return attempted(lambda: form.outputs_of(variation.bound, partial(compute, variation)))


def excess(expected: Expected, outputs: Sequence[Value]) -> float:
    """Return the largest error / tolerance of outputs.

    If several results are accepted, the one with the smallest error / tolerance counts.
    """
    accepted = [expected, *expected.alternatives]
    return min(_excess(result, outputs) for result in accepted)


def _excess(expected: Expected, outputs: Sequence[Value]) -> float:
    tolerance_of = expected.tolerances.__getitem__
    if all(isinstance(value, np.ndarray) for value in expected.outputs.values()):
        return largest_share(expected.outputs, outputs, tolerance_of)
    if len(outputs) != len(expected.outputs):
        return float("inf")
    diffs = compare_outputs(expected.outputs, outputs, tolerance_of)
    return 0.0 if all(diff.agrees for diff in diffs) else float("inf")


def run_in_turn(
    items: Sequence[str],
    work: Callable[[str], Iterator[T]],
    silence: float,
    check: Callable[[], str],
) -> list[tuple[list[T], bool]]:
    """Return the results of a function for each item, and whether the item ended the process.

    One forked process handles all items, because starting a process takes longer than running most
    mutants. If the first item of a process ends the process, a new process handles the remaining
    items. If a later item ends the process, or if an item changes the process's state, all items
    are processed again in several processes. Therefore, no item affects the results of another.

    Args:
        items: the items.
        work: yields results for an item.
        silence: seconds without a result after which the process is killed.
        check: returns a description of the state that no item may change.
    """
    results: list[tuple[list[T], bool]] = []
    events: list[T] = []

    def run(remaining: Sequence[str]) -> Iterator[T | bool | None]:
        before = check()
        for item in remaining:
            yield from work(item)
            yield None
        # The last result states whether the state is unchanged.
        yield check() == before

    while len(results) < len(items):
        events = []
        begun = len(results)
        is_changed = False
        try:
            for event in on_corrected_reference(partial(run, items[begun:]), silence):
                if event is None:
                    results.append((events, False))
                    events = []
                elif isinstance(event, bool):
                    is_changed = not event
                else:
                    events.append(event)
        except ProcessLostError:
            if len(results) == begun:
                results.append((events, True))
            else:
                # An earlier item may have caused the end of this process.
                is_changed = True
        if is_changed and len(items) > 1:
            middle = len(items) // 2
            return [
                *run_in_turn(items[:middle], work, silence, check),
                *run_in_turn(items[middle:], work, silence, check),
            ]
    return results


def on_corrected_reference(work: Callable[[], Iterator[T]], silence: float) -> Iterator[T]:
    """Run a generator in a forked process with the corrected reference, and yield its items."""

    def corrected() -> Iterator[T]:
        with replaced(*replacements()), np.errstate(all="ignore"):
            yield from work()

    with closing(isolated(corrected, silence, _EVALUATION_BYTES)) as items:
        yield from items


def prepared(models: Iterable[onnx.ModelProto]) -> dict[int, ReferenceModel]:
    """Return evaluators of models, by the ``id`` of the model."""
    evaluators: dict[int, ReferenceModel] = {}
    with replaced(*replacements()):
        for model in models:
            if id(model) in evaluators:
                continue
            # A model that the reference cannot run has no evaluator.
            with suppress(Exception):
                evaluators[id(model)] = ReferenceModel(model)
    return evaluators


def computing(
    evaluators: Mapping[int, ReferenceModel], entries: Mapping[int, NodeImplementation | None]
) -> Compute:
    """Return a function that computes models on the corrected reference.

    Prepared evaluators are reused, because preparation takes most of the time. They are not reused
    for a mutant that changes how an evaluator is prepared. The caller must have corrected the
    reference.
    """
    if any(isinstance(entry, NodeMutant) and entry.at_preparation for entry in entries.values()):
        evaluators = {}

    def compute(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Sequence[Value]:
        evaluator = evaluators.get(id(model)) or ReferenceModel(model)
        # All mutants have the same inputs. Each gets a copy, because it may overwrite the inputs.
        return evaluator.run({name: copied(value) for name, value in inputs.items()})

    return compute


def run_implementation(
    entry: NodeImplementation | None,
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    compute: Compute,
) -> tuple[Sequence[Value] | None, str]:
    """Return the outputs of an implementation and the kind of its failure; see :func:`attempted`.

    The outputs are None if the implementation has no effect.
    """
    return attempted(lambda: entry.outputs(model, inputs, compute)) if entry else (None, "")


def attempted(run: Callable[[], Sequence[Value] | None]) -> tuple[Sequence[Value] | None, str]:
    """Return the result of a function, and the kind of its failure: empty, "error" or TIMEOUT.

    A function that fails has no outputs.
    """
    try:
        with time_limit(MUTANT_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(), ""
    except TimeLimitError:
        return [], TIMEOUT
    except (Exception, SystemExit):  # noqa: BLE001 - a mutant may raise any exception
        return [], "error"


def may_differ(expected: Sequence[Value], actual: Sequence[Value]) -> bool:
    """Return whether outputs differ by more than the smallest possible tolerance."""
    if len(expected) != len(actual):
        return True
    for right, output in zip(expected, actual, strict=True):
        if not isinstance(right, np.ndarray) or not isinstance(output, np.ndarray):
            if repr(right) != repr(output):
                return True
            continue
        if right.shape != output.shape or right.dtype != output.dtype:
            return True
        if right.dtype.kind not in "fc":
            if right.dtype == object or right.dtype.kind in "iub":
                differs = not np.array_equal(right, output)
            else:
                differs = right.tobytes() != output.tobytes()
            if differs:
                return True
            continue
        with np.errstate(all="ignore"):
            close = np.abs(right - output) <= _LEAST_ULPS * np.spacing(np.abs(right))
        if not (close | (right == output) | (np.isnan(right) & np.isnan(output))).all():
            return True
    return False


def _estimated(variation: Variation) -> Expected | None:
    """Return the expected outputs of a varied node; None without a condition estimate."""
    names = [output.name for output in variation.model.graph.output]
    stored = dict(zip(names, variation.outputs, strict=True))
    problem = Problem(variation.model, variation.inputs, stored)
    try:
        with time_limit(4 * EVALUATION_SECONDS):
            expected = estimated_here(problem)
    except (TimeLimitError, Exception):  # noqa: BLE001 - the node cannot be judged
        return None
    return None if expected.contradictions else expected
