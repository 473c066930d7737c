"""The Python API, and further functions that the commands call to do their work.

The names in :data:`onnxopt_cli.__all__` are public.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from importlib import import_module
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onnxopt_cli.backends.configuration import (
    Configuration,
    known_configuration,
    read_configuration,
)
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.onnx.data_set import directory_files
from onnxopt_cli.cases.select import CAPABILITIES, choose
from onnxopt_cli.cases.tensors.declared import DEFAULT_MEMORY
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
from onnxopt_cli.core.progress import OpenProgress, hide_progress
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
from onnxopt_cli.oracle.oracles import with_expected_outputs
from onnxopt_cli.report.view.result_view import failure_text, headline
from onnxopt_cli.run.runner import open_plan, run_case
from onnxopt_cli.run.runner import run as run_plan
from onnxopt_cli.run.session import Session, open_session
from onnxopt_cli.suites.collect import (
    Collection,
    collect,
    find_again,
    suite_versions,
)
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.private_folder import temporary_folder

if TYPE_CHECKING:
    from onnxopt_cli.analysis.audit import MutationScore
    from onnxopt_cli.analysis.injected_errors import InjectedErrors
    from onnxopt_cli.analysis.locate import Located
    from onnxopt_cli.fuzz.findings import Finding
    from onnxopt_cli.run.expectations.expectation_update import update_expectations
    from onnxopt_cli.run.log.log_header import changed_files
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
    "changed_files",
    "check",
    "explain",
    "explain_session",
    "fuzz",
    "generate",
    "inject_errors",
    "load_cases",
    "load_configuration",
    "locate",
    "merge_logs",
    "open_session",
    "read_log",
    "run",
    "update_expectations",
]

# Names that are imported on first use. Their modules are slow to import, and a run without failures
# does not need them.
_LAZY_NAMES = {
    "Finding": "fuzz.findings",
    "MutationScore": "analysis.audit",
    "InjectedErrors": "analysis.injected_errors",
    "changed_files": "run.log.log_header",
    "merge_logs": "run.log.log_merge",
    "read_log": "run.log.log_reader",
    "update_expectations": "run.expectations.expectation_update",
}
T = TypeVar("T")
_Problems: TypeAlias = list[Fault] | tuple[Fault, ...]
# The smallest number of operators in a model whose first wrong node is sought.
_MIN_OPERATORS = 2
_EXECUTION, _JUDGING = Execution(), Judging()


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onnxopt_cli.{_LAZY_NAMES[name]}"), name)


def _ignore(*_: object) -> None:
    """Ignore messages and progress."""


def _refuse(problems: _Problems) -> None:
    raise InvalidCase(problems)


def _all(kind: type[T], values: Iterable[T], expected: str) -> tuple[T, ...]:
    """Return the values as a tuple; raise a TypeError if a value is not of the type ``kind``."""
    checked = tuple(values)
    for value in checked:
        if not isinstance(value, kind):
            raise TypeError(f"expected {expected}, found {type(value).__name__}")
    return checked


def _cases(cases: Iterable[Case]) -> tuple[Case, ...]:
    return _all(Case, cases, "cases that load_cases() has returned")


def _backends(backends: Iterable[str]) -> tuple[str, ...]:
    return _all(str, backends, "a backend as text, in the form of the option -b")


def _several(items: Any) -> tuple[Any, ...]:
    """Return names or paths as a tuple; the argument may be a sequence or a single item."""
    return (items,) if isinstance(items, str | Path) else tuple(items)


class NotConformingError(AssertionError):
    """Raised if a case does not conform; the message contains the differences.

    Attributes:
        result: the result of the case.
    """

    def __init__(self, result: Result) -> None:
        subject = printable(f"{result.case} on {result.backend}")
        title = f"{subject}: {headline(result) or result.outcome}"
        super().__init__(f"{title}\n{failure_text(result)}".rstrip())
        self.result = result


def load_cases(
    *targets: str | Path,
    patterns: Sequence[str] = (),
    operators: Sequence[str] = (),
    tags: Sequence[str] = (),
    without: Sequence[str] = (),
    memory: int = DEFAULT_MEMORY,
    invalid: Callable[[_Problems], object] = _refuse,
    tell: Callable[[str], None] = _ignore,
    open_progress: OpenProgress = hide_progress,
) -> list[Case]:
    """Return the cases that files, folders, names of suites and ids select, in a stable order.

    Args:
        targets: files, folders, names of suites, and ids. The default is the folder ``cases`` or,
            if this folder does not exist, the suites of the operators with a formula, except
            ``pairwise`` and ``large``.
        patterns: ids, globs or parts of ids; a case must match at least one of them.
        operators: names of operators; the model of a case must contain at least one of them.
        tags: tags; a case must have at least one of them.
        without: capabilities; cases that need one of them are excluded.
        memory: limit in bytes on the memory of each case in a case file; 0 for no limit.
        invalid: called with the faults of case files; the invalid cases are left out.
        tell: called with a message about each pattern that matches no case.
        open_progress: opens a progress display.

    Raises:
        InvalidCase: if case files have faults and ``invalid`` is not given.
        UsageError: if a target, an operator, a tag or a capability does not exist.
        NothingSelected: if no case is selected, and all files are valid.
    """
    collection = collect([str(target) for target in targets], memory, open_progress=open_progress)
    filters = Filters(*map(_several, (patterns, operators, tags, without)))
    selected, _ = choose(collection.cases, filters, tell, required=not collection.problems)
    if collection.problems:
        invalid(collection.problems)
    return selected


def run(
    cases: Iterable[Case],
    *backends: str,
    execution: Execution = _EXECUTION,
    judging: Judging = _JUDGING,
    expect: Sequence[Path | str] = (),
) -> Iterator[Result]:
    """Yield results in the order of the cases, and for each case in the order of the backends.

    The last results belong to the suite ``worker``. They are failures that occurred outside of any
    case. The backends end when the iterator ends or is closed.

    Args:
        cases: from :func:`load_cases`.
        backends: specifications as for ``-b``; by default ``numpy``.
        execution: where and within which limits backends run.
        judging: how outputs are judged.
        expect: expectation files; later files take precedence. With expectation files, each result
            states whether it was expected.

    Raises:
        UsageError: if a backend, an expectation file or a setting is invalid.
        BackendUnavailable: if no backend starts. If only some backends start, cases on the other
            backends have the outcome ``not-run``.
        TypeError: if an argument is not a case, or not a backend.
    """
    collection = Collection(_cases(cases), ())
    names = _backends(backends) or ("numpy",)
    config = RunConfig(backends=names, execution=execution, judging=judging, expect=_files(expect))
    with open_session(config, lambda: collection, Interruption()) as session:
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
    """Run one case, for use in a test; the backend keeps running for the next call.

    Returns:
        The result of the case, if it conforms.

    Raises:
        NotConformingError: if the outcome is not a pass or a skip. With files in ``expect``, if the
            outcome is not the expected outcome.
        UsageError: if the backend, an expectation file or a setting is invalid.
        BackendUnavailable: if the backend does not start.
        TypeError: if an argument is not a case, or not a backend.
    """
    __tracebackhide__ = True  # Tracebacks of pytest omit this function.
    (case,), (name,) = _cases([case]), _backends([backend])
    config = RunConfig(
        backends=(name,), execution=execution, judging=judging, expect=_files(expect)
    )
    session = _cached_session(config)
    session.expectations.require_suites(suite_versions([case]))
    (result,) = run_case(session.plan, case)
    if not result.conforms:
        raise NotConformingError(result)
    return result


@cache
def _cached_session(config: RunConfig) -> Session:
    """Return a session that stays open until this process ends."""
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
    """Return explanations of failures: known mistakes that reproduce failures, and conditions.

    Args:
        results: the results of a run. Include the passes, because they rule out mistakes.
        cases: the cases that ran; None to load them again from their locations.
        judging: how the run judged outputs.
        seconds: time limit of each of three searches: for known mistakes in operators with a
            formula, for other causes in these operators, and for causes in operators without a
            formula. None for the default limits, which depend on the run's time and on the number
            of operators.
        progress: called with the current step of the search.
    """
    from onnxopt_cli.analysis.explanation.explain import explain, least_seconds
    from onnxopt_cli.analysis.explanation.explain_nodes import explain_nodes

    results = _all(Result, results, "results that run() has yielded")
    cases_by_id = {case.id: case for case in cases or ()}
    if cases is None:
        cases_by_id = find_again({result.case: result.location for result in results})
    formula_seconds = seconds
    if formula_seconds is None:
        formula_seconds = least_seconds(sum(result.seconds for result in results))
    explanations = explain(
        results,
        cases_by_id,
        judging,
        seconds=formula_seconds,
        query_seconds=seconds,
        progress=progress,
    )
    explanations += explain_nodes(
        results, cases_by_id, _formula_names(), seconds=seconds, progress=progress
    )
    return explanations


def explain_session(
    session: Session,
    seconds: float | None = None,
    progress: Callable[[str], None] = _ignore,
) -> list[Explanation]:
    """Return explanations of a session's failures; the search may run further models on backends.

    Args:
        session: a session whose cases have run.
        seconds: time limits; see :func:`explain`.
        progress: called with the current step of the search.
    """
    from onnxopt_cli.analysis.explanation.explain import explain, least_seconds
    from onnxopt_cli.analysis.explanation.explain_nodes import explain_nodes
    from onnxopt_cli.run.executors import open_model_runner

    formula_seconds = seconds
    if formula_seconds is None:
        formula_seconds = least_seconds(perf_counter() - session.began)
    plan = session.plan
    cases = {case.id: case for case in plan.cases}
    results = [*session.results.values()]
    runner = open_model_runner(
        plan.backends, session.config.execution, plan.interruption, session.cluster
    )
    with runner as ask:
        explanations = explain(
            results,
            cases,
            plan.judging,
            seconds=formula_seconds,
            query_seconds=seconds,
            progress=progress,
            ask=ask,
        )
        # If a backend declares reduced-precision arithmetic, it runs no generated nodes, because
        # these are judged without regard to the declaration.
        declaring = [backend.name for backend in plan.backends if backend.specification.math]
        explanations += explain_nodes(
            results,
            cases,
            _formula_names(),
            seconds=seconds,
            progress=progress,
            ask=ask,
            cases_only=declaring,
            known_result=plan.oracle.known,
        )
    return explanations


def locate(
    case: Case,
    *backends: str,
    execution: Execution = _EXECUTION,
    judging: Judging = _JUDGING,
    interruption: Interruption | None = None,
    open_progress: OpenProgress = hide_progress,
) -> Located:
    """Find the nodes of a model that backends compute wrongly.

    Args:
        case: the model with its inputs; stored outputs are ignored.
        backends: specifications as for ``-b``.
        execution: where and within which limits backends run. The memory limit also applies to the
            intermediate values that this process computes.
        judging: how outputs are judged.
        interruption: set when the user interrupts the command.
        open_progress: opens a progress display.

    Raises:
        InvalidCase: if the case cannot be loaded.
        UsageError: if a backend or a setting is invalid.
        BackendUnavailable: if a backend does not start.
        TypeError: if an argument is not a case, or not a backend.
    """
    from onnxopt_cli.analysis.locate import locate

    (case,), names = _cases([case]), _backends(backends)
    opened = open_plan(
        names, execution, judging, interruption or Interruption(), open_progress=open_progress
    )
    with opened as plan:
        for executor in plan.backends:
            executor.ready()
        return locate(case, plan, execution.limits, open_progress)


def first_wrong_nodes(session: Session, seconds: float) -> Iterator[tuple[Result, str]]:
    """Find the first wrong node of the first failing model on each backend.

    Models of a single node are left out.

    Args:
        session: a session whose cases have run.
        seconds: the time limit for each backend.

    Yields:
        The result of the model, and a text that names the node, its operator and the cause.
    """
    config, plan = session.config, session.plan
    cases = {case.id: case for case in plan.cases}
    first_failures: dict[str, Result] = {}
    for result in session.results.values():
        has_nodes = result.case in cases and len(result.operators) >= _MIN_OPERATORS
        if has_nodes and result.outcome is Outcome.FAIL:
            first_failures.setdefault(result.backend, result)
    if not first_failures:
        return
    # The import is late, because few runs have a failing model of several operators.
    from onnxopt_cli.analysis.locate import first_wrong_node

    texts = {executor.name: executor.specification.given for executor in plan.backends}
    for backend, result in first_failures.items():
        # The backend is started again, because the workers of the session have ended.
        opened = open_plan([texts[backend]], config.execution, plan.judging, plan.interruption)
        with suppress(OnnxoptError), opened as restarted:
            restarted.backends[0].ready()
            node = first_wrong_node(cases[result.case], restarted, seconds)
            if node is not None:
                yield result, f"{node.node} ({node.operator}): {node.cause}"


def _formula_names() -> list[str]:
    return [operator.name for operator in registry().operators]


def audit(
    cases: Iterable[Case],
    *,
    judging: Judging = _JUDGING,
    operators: Sequence[str] = (),
    jobs: int = 1,
    thorough: bool = True,
    progress: Callable[[int, int], None] = _ignore,
    preparing: Callable[[int, int], None] = _ignore,
    invalid: Callable[[_Problems], object] = _refuse,
    cluster: Cluster | None = None,
    shard: Shard | None = None,
    join: Sequence[Path] = (),
    inputs: int | None = None,
    seconds: float = inf,
    interruption: Interruption | None = None,
) -> list[MutationScore]:
    """Return the mutation score of cases for each operator.

    Cases of an operator without a formula are audited if their model is a single node.

    Args:
        cases: from :func:`load_cases`.
        judging: how outputs are judged.
        operators: names of the operators without a formula to audit; empty for all that occur in
            the cases. Operators with a formula are always audited.
        jobs: number of processes.
        thorough: whether the audit also looks for redundant cases; the audit then takes many times
            as long.
        progress: called with the number of finished implementations (mutants, known mistakes and
            reformulations) and the total number.
        preparing: called with the number of prepared cases and the total number, before the first
            call of ``progress``.
        invalid: called with the faults of cases; the invalid cases are left out.
        cluster: cluster that runs the audit of operators with a formula; None for this machine.
        shard: the part of the implementations that the audit tests; None for all.
        join: JSON files of the audits of all shards. If files are given, no audit runs, and the
            result is merged from the files.
        inputs: number of random nodes for mutants of operators without a formula. A mutant that
            survives all cases runs on these nodes, which show whether it is equivalent. None for
            the default.
        seconds: limit in seconds of processor time for each operator. After this time, no further
            nodes are drawn.
        interruption: records a signal of the user. After a signal, the audit returns the scores of
            the finished implementations. If None, a signal raises KeyboardInterrupt.

    Raises:
        InvalidCase: if a case contradicts itself or the formula, unless ``invalid`` handles it.
        UsageError: if a file in ``join`` belongs to an audit of other cases, or a shard is missing.
        BackendUnavailable: if the connection to the cluster is lost.
    """
    from onnxopt_cli.analysis.audit import audit, find_trials
    from onnxopt_cli.analysis.node_audit import EQUIVALENCE_INPUTS, find_node_trials

    if join:
        from onnxopt_cli.analysis.audit_in_parts import joined, read_shards

        # The shards are read before the cases, which take longer.
        shards = read_shards(join)
    cases = _cases(cases)
    trials, problems = find_trials(cases, judging)
    node_trials, contradictions = find_node_trials(cases, judging, jobs, preparing, operators)
    problems += contradictions
    if problems:
        invalid(problems)
    elsewhere: Callable[..., Iterator[Any]] | None = None
    if join:
        elsewhere = partial(joined, shards, trials, node_trials=node_trials)
    elif cluster is not None:
        from onnxopt_cli.analysis.audit_in_parts import outcomes

        elsewhere = partial(outcomes, cluster, cases, trials, judging, thorough=thorough)
    return audit(
        trials,
        jobs,
        progress,
        thorough=thorough,
        shard=shard,
        elsewhere=elsewhere,
        node_trials=node_trials,
        elsewhere_nodes=bool(join),
        inputs=EQUIVALENCE_INPUTS if inputs is None else inputs,
        seconds=seconds,
        interruption=interruption,
    )


def inject_errors(
    cases: Iterable[Case], *, jobs: int = 1, progress: Callable[[int, int], None] = _ignore
) -> list[InjectedErrors]:
    """Inject errors into correct outputs, and return how many errors the tolerances detect.

    The operators of the cases may or may not have a formula.
    """
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
    """Search for failures of a backend; yield one failure of each kind, with a minimal example.

    Args:
        backend: specification as for ``-b``.
        operators: names of operators; by default all operators with a formula.
        seed: seed of the random examples.
        examples: number of examples.
        seconds: time limit of the search; None for no limit.
        execution: where and within which limits the backend runs.

    Raises:
        UsageError: if the backend or a number is invalid, if an operator has neither a formula nor
            a generator, or if hypothesis is not installed.
        BackendUnavailable: if the backend does not start.
    """
    from onnxopt_cli.fuzz.driver import Task
    from onnxopt_cli.fuzz.search import chosen_operators, open_search

    if examples < 1 or seed < 0:
        raise UsageError(f"examples={examples}, seed={seed}: expected examples >= 1, seed >= 0")
    chosen = chosen_operators(_several(operators))
    (backend,) = _backends([backend])
    with temporary_folder() as memory:
        task = Task(
            chosen.operators,
            backend,
            execution,
            seed,
            examples,
            seconds,
            Path(memory),
            chosen.generated,
        )
        with open_search(task, Interruption()) as search:
            yield from search.run()


def load_configuration(path: Path | str | None = None) -> Configuration:
    """Return the content of a configuration file; no other function of the API reads the file.

    Args:
        path: path of the file. None for the file in the current folder or, within a repository, in
            the nearest folder above that has a file.

    Raises:
        UsageError: if the file does not exist; if it has faults, all of which the message lists; or
            if ``path`` is None and another user may have written the file.
    """
    configuration = known_configuration() if path is None else read_configuration(Path(path))
    if configuration is None:
        raise UsageError("no configuration file found")
    return configuration


def add_operators(*paths: Path | str) -> list[Operator]:
    """Register the operators in files, for this process and its future children; return them.

    Args:
        paths: Python files; their code is executed.

    Raises:
        UsageError: if a file defines no operator, or an invalid operator. The message names the
            file and the line.
    """
    from onnxopt_cli.cases.case_template import unreadable

    for path in map(os.path.realpath, paths):
        if os.pathsep in path:
            raise UsageError(f"{printable(path)}: the path must not contain {os.pathsep}")
    operators = registry()
    added = [operator for path in paths for operator in operators.add_file(Path(path))]
    operators.export()
    # The operators of the files in the variable ONNXOPT_OPERATORS are checked as well.
    of_files = [operator for operator in operators.operators if operator.file in operators.files]
    for message in filter(None, map(unreadable, of_files)):
        hint = "a formula must accept tensors of any rank, and reduce whole tensors without an axis"
        raise UsageError(message, hint=hint)
    return added


def directories(
    cases: Sequence[Case], interruption: Interruption
) -> Iterator[tuple[Case, dict[str, bytes]]]:
    """Yield each case, and the files of its test directory: their contents by relative path.

    If a case stores no outputs, the formula or onnx's reference computes them.

    Args:
        cases: the cases.
        interruption: set when the user interrupts the command.

    Raises:
        InvalidCase: if a case cannot be loaded.
        UsageError: if a test directory cannot represent a case; the message names the first
            such case.
    """
    with open_plan((), _EXECUTION, _JUDGING, interruption) as plan:
        for case in cases:
            try:
                yield case, directory_files(with_expected_outputs(case.load(), plan.oracle))
            except UsageError as error:
                message = f"{printable(case.id)}: {error.message}"
                raise UsageError(message, hint=error.hint) from error


def generate(suite: str, form: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield the relative path and content of each file of a suite.

    Args:
        suite: name of the suite.
        form: ``yaml``, ``onnx``, or None for the default form of the suite.

    Raises:
        UsageError: if the suite does not exist, or cannot be written in this form.
    """
    from onnxopt_cli.suites.catalogue import suite_files

    if form not in {None, "yaml", "onnx"}:
        raise UsageError(f"form={form!r}: expected yaml or onnx")
    return iter(suite_files(suite, form).files.items())
