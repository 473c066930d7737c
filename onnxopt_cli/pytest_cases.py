"""The hooks that the pytest plugin uses with ``--onnxopt``; each case becomes a pytest item."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from onnxopt_cli import _api as api
from onnxopt_cli.backends.configuration import find_configuration, require_installed
from onnxopt_cli.backends.specification import backend_name
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.select import CAPABILITIES, capabilities_of
from onnxopt_cli.core.record import result_from_json, result_to_json
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable, without_ci_commands
from onnxopt_cli.errors import OnnxoptError
from onnxopt_cli.pytest_plugin import MARKER
from onnxopt_cli.report.terminal import explanation_lines
from onnxopt_cli.run.executors import distinct_specifications
from onnxopt_cli.run.expectations.expectations import Expectations
from onnxopt_cli.suites.collect import suite_versions

_Selection: TypeAlias = tuple[Sequence[Case], Sequence[str], Mapping[str, str]]
_SELECTION: pytest.StashKey[_Selection] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of capabilities, and check the options early; a hook of pytest."""
    for name, about in CAPABILITIES.items():
        config.addinivalue_line("markers", f"{name}: a case of onnxopt that needs {about}")
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):
        # With xdist, the workers collect the tests but cannot report usage errors. The options are
        # therefore checked in the controller.
        _select(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the cases before pytest applies -k and -m; a hook of pytest."""
    root = _Cases.from_parent(session, name=MARKER, nodeid=MARKER, selection=_select(config))
    items += session.genitems(root)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the result of a case to its report; xdist sends reports to the main process."""
    report = yield
    if isinstance(item, CaseItem) and item.result and call.when == "call":
        report.onnxopt_result = json.dumps(result_to_json(item.result))  # type: ignore[attr-defined]
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Explain the failures of all cases together; a hook of pytest."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    saved = [report.onnxopt_result for report in reports if hasattr(report, "onnxopt_result")]
    if not saved:
        return

    results = [result_from_json(json.loads(text)) for text in saved]
    if any(result.failing for result in results):
        explanations = api.explain(results, _select(config)[0], seconds=None)
        if explanations:
            terminalreporter.section("causes of onnxopt failures")
        for line in explanation_lines(explanations):
            terminalreporter.write_line(without_ci_commands(line.plain))


def _select(config: pytest.Config) -> _Selection:
    """Return the selected cases and backends, and the excluded capabilities with reasons.

    Raises:
        pytest.UsageError: if an option is invalid.
    """
    if _SELECTION not in config.stash:
        config.stash[_SELECTION] = _read_selection(config)
    return config.stash[_SELECTION]


def _read_selection(config: pytest.Config) -> _Selection:
    expect = config.getoption("--onnxopt-expect")
    typed = config.getoption("--onnxopt-backend")
    written = typed or config.getini("onnxopt_backend") or ["numpy"]
    backends = written
    try:
        if find_configuration():
            configuration = api.load_configuration()
            api.add_operators(*configuration.operators)
            backends = [*map(configuration.backend, written)]
        for backend in backends:
            if backend not in (typed or ()):
                require_installed(backend, "a configuration file")
        # A backend may be named both in addopts and on the command line.
        backends = [*dict.fromkeys(backends)]
        distinct_specifications(backends)
        cases = api.load_cases(*config.getoption("--onnxopt"))
        expectations = Expectations.read(tuple(map(Path, expect)))
        expectations.require_suites(suite_versions(cases))
    except api.OnnxoptError as error:
        raise pytest.UsageError(f"--onnxopt: {_in_words(error)}") from None
    return cases, backends, expectations.without


def _in_words(error: OnnxoptError) -> str:
    return printable("; ".join(filter(None, (error.message, error.hint))), lines=True)


class _Cases(pytest.Collector):
    """Collects a test for each selected case on each backend."""

    def __init__(self, *, selection: _Selection, **others: Any) -> None:
        super().__init__(**others)
        self.cases, self._backends, self._without = selection

    def collect(self) -> Iterator[CaseItem]:
        """Yield an item for each case on each backend; overrides a method of pytest."""
        for case in self.cases:
            needs = capabilities_of(case)
            for backend in self._backends:
                on = f"[{backend_name(backend)}]" if len(self._backends) > 1 else ""
                # pytest prints names without escaping them.
                name = printable(f"{case.id}{on}")
                item = CaseItem.from_parent(self, name=name, case=case, backend=backend)
                for marker in (MARKER, *needs):
                    item.add_marker(marker)
                for need in needs:
                    if need in self._without:
                        reason = printable(f"without {need}: {self._without[need]}")
                        item.add_marker(pytest.mark.skip(reason))
                yield item


class CaseItem(pytest.Item):
    """A case on a backend."""

    parent: _Cases

    def __init__(self, *, case: Case, backend: str, **others: Any) -> None:
        super().__init__(**others)
        self._case = case
        self._backend = backend
        self.result: Result | None = None
        self.keywords.update(dict.fromkeys((*(case.operators or ()), *case.tags), True))

    def runtest(self) -> None:
        """Run the case; overrides a method of pytest."""
        try:
            expect = self.config.getoption("--onnxopt-expect")
            result = self.result = api.check(self._case, self._backend, expect=expect)
        except api.NotConformingError as error:
            self.result = error.result
            raise
        except api.OnnxoptError as error:
            message = f"{printable(backend_name(self._backend))}: {_in_words(error)}"
            if hasattr(self.config, "workerinput"):
                pytest.fail(message, pytrace=False)
            pytest.exit(message, returncode=error.exit_code)
        if result.outcome is api.Outcome.SKIP:
            pytest.skip(printable(result.message, lines=True))
        if result.failing or result.outcome is api.Outcome.UNSUPPORTED:
            pytest.xfail(printable(result.expectation or result.message, lines=True))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the differences; overrides a method of pytest."""
        error = excinfo.value
        if not isinstance(error, api.NotConformingError):
            return super().repr_failure(excinfo, style)
        return str(error)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return the location of the case; overrides a method of pytest."""
        location = self._case.location
        # pytest counts lines from 0, and requires a line for skipped items.
        return printable(str(location.path)), (location.line or 1) - 1, self.name
