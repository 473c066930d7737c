"""The commands as functions: the public ones, and those that only the command line needs.

The public names are those of :data:`onnxopt_cli.__all__`.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onnxopt_cli.backends.configuration import (
    Configuration,
    known_configuration,
    read_configuration,
)
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.select import CAPABILITIES, choose
from onnxopt_cli.cases.tensors.declared import USUAL_MEMORY
from onnxopt_cli.config.run_config import (
    Execution,
    Filters,
    Isolation,
    Judging,
    Limits,
    LoweringMode,
    RunConfig,
    Shard,
    ToleranceRule,
)
from onnxopt_cli.core.progress import Telling, silently
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import (
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.tolerance import Tolerance
from onnxopt_cli.errors import (
    BackendUnavailable,
    Fault,
    InvalidCase,
    NothingSelected,
    OnnxoptError,
    UsageError,
)
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.report.diff_text import failure_text, headline
from onnxopt_cli.run.runner import run as run_plan
from onnxopt_cli.run.runner import run_case
from onnxopt_cli.run.session import Session, open_session
from onnxopt_cli.suites.collect import (
    Collection,
    collect,
    find_again,
    suite_versions,
)
from onnxopt_cli.workers.interruption import Interruption

if TYPE_CHECKING:
    from onnxopt_cli.analysis.audit import MutationScore
    from onnxopt_cli.analysis.injected_errors import InjectedErrors
    from onnxopt_cli.fuzz.findings import Finding
    from onnxopt_cli.run.expectations.expectation_update import update_expectations
    from onnxopt_cli.run.log.log_merge import merge_logs
    from onnxopt_cli.run.log.log_reader import read_log
    from onnxopt_cli.workers.cluster.dask_client import Cluster

__all__ = [
    "CAPABILITIES",
    "BackendUnavailable",
    "Case",
    "Collection",
    "Configuration",
    "Execution",
    "Explanation",
    "Finding",
    "InjectedErrors",
    "Interruption",
    "InvalidCase",
    "Isolation",
    "Judging",
    "Limits",
    "LoweringMode",
    "MutationScore",
    "NotConformingError",
    "NothingSelected",
    "OnnxoptError",
    "Outcome",
    "Result",
    "RunConfig",
    "Session",
    "Shard",
    "Standing",
    "Tolerance",
    "ToleranceRule",
    "UsageError",
    "add_operators",
    "audit",
    "check",
    "explain",
    "explain_session",
    "fuzz",
    "generate",
    "inject_errors",
    "load_cases",
    "load_configuration",
    "merge_logs",
    "open_session",
    "read_log",
    "run",
    "update_expectations",
]

# Imported on first use: a run that passes needs none of them, and importing them takes a while.
_LAZY_NAMES = {
    "Finding": "fuzz.findings",
    "MutationScore": "analysis.audit",
    "InjectedErrors": "analysis.injected_errors",
    "merge_logs": "run.log.log_merge",
    "read_log": "run.log.log_reader",
    "update_expectations": "run.expectations.expectation_update",
}
T = TypeVar("T")
_Problems: TypeAlias = list[Fault] | tuple[Fault, ...]
_EXECUTION, _JUDGING = Execution(), Judging()


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onnxopt_cli.{_LAZY_NAMES[name]}"), name)


def _ignore(*_: object) -> None:
    """Take no note of progress."""


def _refuse(problems: _Problems) -> None:
    raise InvalidCase(problems)


def _all(kind: type[T], values: Iterable[T], which: str) -> tuple[T, ...]:
    """Return values; a TypeError says which are wanted where one is of another kind."""
    found = tuple(values)
    for value in found:
        if not isinstance(value, kind):
            raise TypeError(f"expected {which}, found {type(value).__name__}")
    return found


def _cases(cases: Iterable[Case]) -> tuple[Case, ...]:
    return _all(Case, cases, "cases that load_cases() has returned")


def _backends(backends: Iterable[str]) -> tuple[str, ...]:
    return _all(str, backends, "a backend as a string, as after -b")


def _several(items: Any) -> tuple[Any, ...]:
    """Return names or paths, of which one alone may be given."""
    return (items,) if isinstance(items, str | Path) else tuple(items)


class NotConformingError(AssertionError):
    """A case does not conform; the message has the differences.

    Attributes:
        result: the result of the case.
    """

    def __init__(self, result: Result) -> None:
        words = f"{result.case} on {result.backend}: {headline(result) or result.outcome}"
        super().__init__(f"{words}\n{failure_text(result)}".rstrip())
        self.result = result


def load_cases(
    *targets: str | Path,
    patterns: Sequence[str] = (),
    operators: Sequence[str] = (),
    tags: Sequence[str] = (),
    without: Sequence[str] = (),
    memory: int = USUAL_MEMORY,
    invalid: Callable[[_Problems], object] = _refuse,
    tell: Callable[[str], None] = _ignore,
    telling: Telling = silently,
) -> list[Case]:
    """Return the cases of files, folders, suites and ids, in a stable order.

    Args:
        targets: by default the folder ``cases`` or, if it does not exist, the suites of onnxopt.
        patterns: ids, globs or pieces of ids, one of which a case must match.
        operators: names, one of which the model of a case must contain.
        tags: words, one of which a case must carry.
        without: capabilities that no case may need.
        memory: bytes that a case of a case file may take; 0 for no limit.
        invalid: called with the faults of case files, which are left out.
        tell: called with a message on each pattern without a match.
        telling: opens a display of progress.

    Raises:
        InvalidCase: with the faults of case files, unless ``invalid`` handles them.
        UsageError: if a target, an operator, a tag or a capability does not exist.
        NothingSelected: if no case is selected, and all files are valid.
    """
    collection = collect([str(target) for target in targets], memory, telling=telling)
    filters = Filters(*map(_several, (patterns, operators, tags, without)))
    selected, _ = choose(collection.cases, filters, tell)
    if collection.problems:
        invalid(collection.problems)
    elif not selected:
        raise NothingSelected(f"none of {len(collection.cases)} cases is selected")
    return selected


def run(
    cases: Iterable[Case],
    *backends: str,
    execution: Execution = _EXECUTION,
    judging: Judging = _JUDGING,
    expect: Sequence[Path | str] = (),
) -> Iterator[Result]:
    """Yield the results of cases, those of a case on all backends together, in order.

    Failures of backends outside of any case are yielded last, as results of the suite ``worker``.
    The backends end when the iterator ends or is closed.

    Args:
        cases: from :func:`load_cases`.
        backends: as after ``-b``; none means ``numpy``.
        execution: where and within which limits backends run.
        judging: how outputs are judged.
        expect: expectation files, later ones before earlier ones; results then have a standing.

    Raises:
        UsageError: if a backend, an expectation file or a setting is wrong.
        BackendUnavailable: if no backend starts; cases of one that does not are not run.
        TypeError: if an argument is not a case, or not a backend.
    """
    found, named = Collection(_cases(cases), ()), _backends(backends) or ("numpy",)
    config = RunConfig(backends=named, execution=execution, judging=judging, expect=_files(expect))
    with open_session(config, lambda: found, Interruption()) as session:
        for row in run_plan(session.plan):
            yield from row


def check(
    case: Case,
    backend: str = "numpy",
    *,
    execution: Execution = _EXECUTION,
    judging: Judging = _JUDGING,
    expect: Sequence[Path | str] = (),
) -> Result:
    """Run one case, for use in a test; the backend stays ready for the next call.

    Returns:
        The result, which conforms.

    Raises:
        NotConformingError: if it does not; with ``expect``, if that was not expected.
        UsageError: if the backend, an expectation file or a setting is wrong.
        BackendUnavailable: if the backend does not start.
        TypeError: if an argument is not a case, or not a backend.
    """
    __tracebackhide__ = True  # pytest shows the line of the test.
    (one,), (name,) = _cases([case]), _backends([backend])
    config = RunConfig(
        backends=(name,), execution=execution, judging=judging, expect=_files(expect)
    )
    session = _kept(config)
    session.expectations.require_suites(suite_versions([one]))
    (result,) = run_case(session.plan, one)
    if not result.conforms:
        raise NotConformingError(result)
    return result


@cache
def _kept(config: RunConfig) -> Session:
    """Open a backend until this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(open_session(config, lambda: Collection((), ()), Interruption()))


def _files(paths: Sequence[Path | str]) -> tuple[Path, ...]:
    return tuple(map(Path, _several(paths)))


def explain(
    results: Iterable[Result],
    cases: Iterable[Case] | None = None,
    *,
    judging: Judging = _JUDGING,
    seconds: float | None = 10.0,
    progress: Callable[[str], None] = _ignore,
) -> list[Explanation]:
    """Return which known mistakes reproduce the failures among results.

    Args:
        results: of a run, passing ones too: a mistake that fails a passing case is ruled out.
        cases: the cases that ran; None to load them again from their locations.
        judging: how the run judged them.
        seconds: how long to look; None for a fifth of the run's time, 10 at least.
        progress: called with the current step of the search.
    """
    from onnxopt_cli.analysis.attribute_conditions import explain_by_attributes
    from onnxopt_cli.analysis.explain import explain, least_seconds

    results = _all(Result, results, "results that run() has yielded")
    cases_by_id = {case.id: case for case in cases or ()}
    if cases is None:
        cases_by_id = find_again({result.case: result.location for result in results})
    if seconds is None:
        seconds = least_seconds(sum(it.seconds for it in results))
    explanations = explain(results, cases_by_id, judging, seconds=seconds, progress=progress)
    return [*explanations, *explain_by_attributes(results, cases_by_id, _formula_names())]


def explain_session(
    session: Session,
    seconds: float | None = None,
    progress: Callable[[str], None] = _ignore,
) -> list[Explanation]:
    """Return which known mistakes reproduce the failures of a session, which may ask its backends.

    Args:
        session: which has run.
        seconds: how long to look; None for a fifth of the time that it took, 10 at least.
        progress: called with the current step of the search.
    """
    from onnxopt_cli.analysis.attribute_conditions import explain_by_attributes
    from onnxopt_cli.analysis.explain import explain, least_seconds
    from onnxopt_cli.run.rerun import questioning

    if seconds is None:
        seconds = least_seconds(perf_counter() - session.began)
    plan = session.plan
    cases = {case.id: case for case in plan.cases}
    results = [*session.results.values()]
    with questioning(plan.interruption, session.config.execution, session.cluster) as ask:
        explanations = explain(
            results, cases, plan.judging, seconds=seconds, progress=progress, ask=ask
        )
    return [*explanations, *explain_by_attributes(results, cases, _formula_names())]


def _formula_names() -> list[str]:
    return [operator.name for operator in registry().operators]


def audit(
    cases: Iterable[Case],
    *,
    judging: Judging = _JUDGING,
    jobs: int = 1,
    thorough: bool = True,
    progress: Callable[[int, int], None] = _ignore,
    invalid: Callable[[_Problems], object] = _refuse,
    cluster: Cluster | None = None,
    shard: Shard | None = None,
    join: Sequence[Path] = (),
) -> list[MutationScore]:
    """Return which wrong implementations cases catch, a grade for each operator with a formula.

    Args:
        cases: from :func:`load_cases`.
        judging: how outputs are judged.
        jobs: number of processes.
        thorough: whether to look for redundant cases, too, which takes many times as long.
        progress: called with how many implementations are done, and how many there are.
        invalid: called with the faults of cases, which are left out.
        cluster: the machines that do it; None for this one.
        shard: the part of the implementations to look at; None for all.
        join: what audits of all shards have written: nothing else is looked at.

    Raises:
        InvalidCase: if a case contradicts itself or the formula, and nothing else is to be done.
        UsageError: if what is to be joined is not of these cases, or not all.
        BackendUnavailable: if the cluster is lost.
    """
    from onnxopt_cli.analysis.audit import audit, find_trials

    cases = _cases(cases)
    trials, problems = find_trials(cases, judging)
    if problems:
        invalid(problems)
    elsewhere: Callable[..., Iterator[Any]] | None = None
    if join:
        from onnxopt_cli.analysis.audit_in_parts import joined

        elsewhere = partial(joined, join, trials)
    elif cluster is not None:
        from onnxopt_cli.analysis.audit_in_parts import outcomes

        elsewhere = partial(outcomes, cluster, cases, trials, judging, thorough=thorough)
    return audit(trials, jobs, progress, thorough=thorough, shard=shard, elsewhere=elsewhere)


def inject_errors(
    cases: Iterable[Case], *, jobs: int = 1, progress: Callable[[int, int], None] = _ignore
) -> list[InjectedErrors]:
    """Return which errors, put into right outputs of cases of any operators, tolerances catch."""
    from onnxopt_cli.analysis.injected_errors import inject_errors

    return inject_errors(_cases(cases), jobs, progress)


def fuzz(
    backend: str,
    *,
    operators: Sequence[str] = (),
    seed: int = 0,
    examples: int = 1000,
    seconds: float | None = None,
    execution: Execution = _EXECUTION,
) -> Iterator[Finding]:
    """Yield failures of a backend on drawn examples, each of another kind and as small as found.

    Args:
        backend: as after ``-b``.
        operators: names; none means all with a formula.
        seed: of all choices.
        examples: how many to try.
        seconds: how long to search; None for no limit.
        execution: where and within which limits the backend runs.

    Raises:
        UsageError: if the backend or a number is wrong, or hypothesis is not installed.
        NothingSelected: if an operator has no formula.
        BackendUnavailable: if the backend does not start.
    """
    from onnxopt_cli.fuzz.cluster_search import open_search
    from onnxopt_cli.fuzz.driver import Task
    from onnxopt_cli.fuzz.search import chosen_operators

    if examples < 1 or seed < 0:
        raise UsageError(f"examples={examples}, seed={seed}: expected 1 or more, and 0 or more")
    chosen = chosen_operators(_several(operators))
    (backend,) = _backends([backend])
    with tempfile.TemporaryDirectory() as memory:
        task = Task(chosen, backend, execution, seed, examples, seconds, Path(memory))
        with open_search(task, Interruption()) as search:
            yield from search.run()


def load_configuration(path: Path | str | None = None) -> Configuration:
    """Return the content of a configuration file, which does not affect other functions.

    Args:
        path: of the file; None for that of the current folder, or in a repository of the nearest
            above it.

    Raises:
        UsageError: with all faults of the file, if there is no file, or if another user may have
            written it and it is not named explicitly.
    """
    found = known_configuration() if path is None else read_configuration(Path(path))
    if found is None:
        raise UsageError("there is no configuration file here")
    return found


def add_operators(*paths: Path | str) -> list[Operator]:
    """Make the operators of files known, here and to the processes to come; return the new ones.

    Args:
        paths: Python files; their code runs.

    Raises:
        UsageError: naming file and line, if one defines no operator, or one that is wrong.
    """
    from onnxopt_cli.suites.case_template import unreadable

    for path in map(os.path.realpath, paths):
        if os.pathsep in path:
            raise UsageError(f"{printable(path)}: its path must not have {os.pathsep}")
    known = registry()
    added = [operator for path in paths for operator in known.add_file(Path(path))]
    known.export()
    # Those of the files that the variable names are checked, too.
    of_files = [operator for operator in known.operators if operator.file in known.files]
    for wrong in filter(None, map(unreadable, of_files)):
        hint = "a formula takes tensors of any rank; functions of whole tensors take no axis"
        raise UsageError(wrong, hint=hint)
    return added


def generate(suite: str, form: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a suite, relative path and content; ``form`` is ``yaml`` or ``onnx``.

    Raises:
        UsageError: if there is no such suite, or it is not written in that form.
    """
    from onnxopt_cli.suites.catalogue import suite_files

    if form not in {None, "yaml", "onnx"}:
        raise UsageError(f"form={form!r}: expected yaml or onnx")
    return iter(suite_files(suite, form).files.items())
