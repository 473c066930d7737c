"""Reads the log of a finished or unfinished run, and checks that its records fit together.

The checks detect the log of a run that was killed, a truncated log, and mixed logs. They cannot
detect a log whose results were forged consistently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxopt_cli.cases.yaml.yaml_syntax import packaged_schema
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.process_control import losing_exceptions
from onnxopt_cli.core.record import Explanation, RunRecord, explanation_from_json, result_from_json
from onnxopt_cli.core.result import (
    HARMLESS,
    OUTSIDE_IDS,
    SETTLED,
    WRONG_RESULTS,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import Fault, UsageError
from onnxopt_cli.run.expectations.expectations import exit_code
from onnxopt_cli.run.log.log_header import SCHEMA, Header
from onnxopt_cli.run.log.log_writer import MAX_BYTES, SPOILED

if TYPE_CHECKING:
    import jsonschema_rs

# The first bytes of every log. A shorter file that is a prefix of these bytes also counts as a log.
_BEGINNING = f'{{"record":"header","schema":"{SCHEMA}",'.encode()

#: The key of a result: the id of a case, and the name of a backend.
Key: TypeAlias = tuple[str, str]
# The exit codes of runs that were not interrupted.
_ENDS = frozenset({0, 1, 2, 5})
# Outcomes of results that may have wrong outputs. The wrong outputs come from the backend or, if
# the case is invalid, from the case.
_WITH_WRONG_OUTPUTS = frozenset({Outcome.FAIL, Outcome.INVALID})
# Outcomes of cases whose outputs were compared.
_COMPARED = HARMLESS | WRONG_RESULTS | {Outcome.INVALID, Outcome.LEAK}
# Outcomes of cases that may not have started.
_NOT_SUBMITTED = frozenset({Outcome.INVALID, Outcome.OOM, Outcome.NOT_RUN, Outcome.SKIP})


@dataclass(slots=True)
class Log:
    """The contents of a log; the log may be incomplete.

    Attributes:
        path: the file.
        header: description of the run.
        results: results by case id and backend name, in the order of the log.
        rerun: keys of the results that come from a rerun.
        footer: the last record of the run; None if the run did not finish.
        size: the number of bytes up to the end of the last complete record.
        digest: a digest of the first ``size`` bytes.
        lines: by key, the lines of results that do not come from a rerun; empty if lines are not
            kept.
    """

    path: Path
    header: Header
    results: dict[Key, Result] = field(default_factory=dict)
    rerun: set[Key] = field(default_factory=set)
    footer: dict[str, Any] | None = None
    size: int = 0
    digest: bytes = b""
    lines: dict[Key, bytes] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True if the run was completed."""
        return self.footer is not None and self.footer["exit_code"] in _ENDS

    @property
    def case_ids(self) -> list[str]:
        """The ids of the cases with a result, in the order of the log."""
        ids = dict.fromkeys(case for case, _ in self.results)
        return [case for case in ids if case not in OUTSIDE_IDS]

    @property
    def record(self) -> RunRecord:
        """The run that the log records, as data."""
        footer = self.footer or {}
        return RunRecord(
            versions=self.header.versions,
            backends=self.header.backends,
            options=self.header.options,
            left_out=self.header.left_out,
            results=tuple(self.results.values()),
            problems=tuple(Fault(**fault) for fault in footer.get("problems", ())),
            findings=tuple(Fault(**fault) for fault in footer.get("findings", ())),
            explanations=tuple(map(explanation_from_json, footer.get("explanations", ()))),
            exit_code=footer.get("exit_code"),
            started=self.header.started,
            ended=footer.get("ended", ""),
            hostname=self.header.hostname,
            origin=self.header.origin,
            digests=self.header.contents.files,
        )


def read_log(path: Path, *, keep_lines: bool = False) -> Log | None:
    """Read a log, finished or not.

    A last line without a line end is ignored: the run was killed while it wrote this line.

    Args:
        path: the file.
        keep_lines: whether to keep the lines of results.

    Returns:
        The log, or None if not even its header was written.

    Raises:
        UsageError: if the file cannot be read or is not a log. The message names the first invalid
            line.
    """
    try:
        data = read_regular_file(path, MAX_BYTES)
    except Malformed as error:
        raise UsageError(
            f"the log {printable(str(path))} {error}", hint="onnxopt run --log FILE writes a log"
        ) from error
    if b'\n{"record":"%s"' % SPOILED.encode() in data:
        raise UsageError(
            f"{printable(str(path))} is unreliable: another program wrote to it during the run",
            hint="run again with another log",
        )
    complete_lines = data[: data.rfind(b"\n") + 1]
    if not complete_lines:
        if data.startswith(_BEGINNING) or _BEGINNING.startswith(data):
            return None
        raise _malformed(path, 1, "found no log, expected a header")
    lines = BytesIO(complete_lines)
    number = 0
    kept: dict[Key, bytes] = {}

    def parsed() -> Iterator[Any]:
        nonlocal number
        for line in lines:
            number += 1
            try:
                record = read_json(line.removesuffix(b"\n"))
            except ValueError as error:
                raise ValueError(f"found {error}") from None
            yield record
            # The generator resumes here only after its consumer has accepted the record.
            if keep_lines and record["record"] == "end":
                kept[record["result"]["case"], record["result"]["backend"]] = line

    try:
        log = log_of(path, parsed())
    except ValueError as error:
        raise _malformed(path, number, str(error)) from error
    log.size, log.digest = len(complete_lines), blake2b(complete_lines).digest()
    log.lines = {key: line for key, line in kept.items() if key not in log.rerun}
    return log


def log_of(path: Path, records: Iterator[Any]) -> Log:
    """Return a log that consists of the given records.

    Args:
        path: the file.
        records: the parsed lines.

    Raises:
        ValueError: if a record is invalid or out of place. The message describes the first such
            record.
    """
    first = next(records)
    kind = _check_record(first)
    if kind != "header":
        raise ValueError(f"found {kind}, expected the header")
    log = Log(path, Header.from_json(first))
    rules = _Rules(log.header, log.results)
    for record in records:
        _take(log, rules, _check_record(record), record)
    return log


def read_record(path: Path) -> RunRecord:
    """Read the run that a log records, finished or not.

    Raises:
        UsageError: if the file cannot be read, is not a log, or has no complete record. The message
            names the first invalid line.
    """
    log = read_log(path)
    if log is None:
        raise UsageError(f"the log {printable(str(path))} has no record")
    return log.record


def _take(log: Log, rules: _Rules, kind: str, record: dict[str, Any]) -> None:
    """Add a record that follows the header.

    Raises:
        ValueError: if the record is out of place.
    """
    match kind:
        case "resume" if not log.finished:
            log.footer = None
            rules.resume()
        case _ if log.footer is not None:
            raise ValueError(f"found {kind} after the footer")
        case "header":
            raise ValueError("found a second header")
        case "start":
            rules.start((record["case"], record["backend"]))
        case "footer":
            log.footer = record
            rules.footer(record, finished=log.finished)
        case _:
            result = result_from_json(record["result"])
            if kind == "rerun":
                rules.rerun(result)
                log.rerun.add((result.case, result.backend))
            else:
                rules.end(result)
                log.rerun.discard((result.case, result.backend))
            log.results[result.case, result.backend] = result


def _malformed(path: Path, line: int, what: str) -> UsageError:
    return UsageError(
        f"{printable(str(path))}:{line}: {printable(what)}",
        hint="onnxopt run --log FILE writes a log",
    )


def _check_record(record: object) -> str:
    """Check one record, and return the kind of record.

    Raises:
        ValueError: if a field contradicts the schema. The message names the field.
    """
    kinds = _validators()
    kind = record.get("record") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"found no record of a log, expected one of {', '.join(kinds)}")
    validator = kinds[kind]
    with losing_exceptions():
        # is_valid is faster than iter_errors, and most records have no errors.
        error = None if validator.is_valid(record) else next(validator.iter_errors(record), None)
    if error is not None:
        field = ".".join(map(str, error.instance_path)) or kind
        raise ValueError(printable(f"{field}: {error.message[:200]}"))
    return kind


@cache
def _validators() -> dict[str, jsonschema_rs.Validator]:
    with losing_exceptions():
        import jsonschema_rs

        schema = {**packaged_schema("onnxopt_cli.run.log")}
        # Each kind of record has its own validator, because an error of "oneOf" would not name the
        # field.
        kinds = {kind["$ref"].rpartition("/")[2]: kind for kind in schema.pop("oneOf")}
        validator = partial(jsonschema_rs.validator_for, validate_formats=True)
        return {name: validator(schema | kind) for name, kind in kinds.items()}


class _Rules:
    """Checks whether a record may follow the records before it.

    Args:
        header: the header of the log.
        results: the previous results by case and backend. The caller adds to them.
    """

    def __init__(self, header: Header, results: dict[Key, Result]) -> None:
        self._header = header
        self._backends = [backend.name for backend in header.backends]
        self._results = results
        self._started: set[Key] = set()
        self._closed: set[Key] = set()
        self._cases: set[str] = set()
        self._rerun: set[Key] = set()

    def start(self, key: Key) -> None:
        """Check the record of the start of a case.

        Raises:
            ValueError: if the record contradicts the records before it.
        """
        self._require_known(key)
        if key in self._closed:
            raise ValueError(f"found a start of {key[0]} on {key[1]} after its result")
        self._started.add(key)

    def end(self, result: Result) -> None:
        """Check a result.

        Raises:
            ValueError: if the case already has a result, or has not started.
        """
        key = result.case, result.backend
        self._require_known(key)
        if key in self._closed:
            raise ValueError(f"found a second result of {key[0]} on {key[1]}")
        outside = key[0] in OUTSIDE_IDS
        if not outside and key not in self._started and result.outcome not in _NOT_SUBMITTED:
            raise ValueError(f"found a result of {key[0]} on {key[1]}, which has not started")
        self._require_possible(result)
        self._closed.add(key)

    def rerun(self, result: Result) -> None:
        """Check the result of a rerun.

        A rerun of a flaky case is recorded with the outcome of the run, and marked as flaky.

        Raises:
            ValueError: if the run has no reruns, or the case was not selected for one; or if the
                outcome or the facts of the case are not those of the run.
        """
        key = result.case, result.backend
        self._require_known(key)
        earlier = self._results.get(key)
        if earlier is None or earlier.conforms or earlier.outcome in SETTLED or key in self._rerun:
            raise ValueError(f"unexpected rerun record for {key[0]} on {key[1]}")
        if not self._header.options.get("rerun"):
            raise ValueError(f"found a rerun of {key[0]} on {key[1]}, without the option --rerun")
        if result.outcome is not earlier.outcome:
            outcomes = f"{result.outcome} instead of {earlier.outcome}"
            raise ValueError(f"found a rerun of {key[0]} on {key[1]} with the outcome {outcomes}")
        if _facts(result) != _facts(earlier):
            raise ValueError(f"found a rerun of {key[0]} on {key[1]} with other facts of the case")
        self._require_possible(result)
        self._rerun.add(key)

    def resume(self) -> None:
        """Allow new results for cases that do not have a result on every backend."""
        rows = [complete_row(self._results, case, self._backends) for case in self._cases]
        self._closed = {(result.case, result.backend) for row in rows for result in row}

    def footer(self, record: dict[str, Any], *, finished: bool) -> None:
        """Check the footer.

        Raises:
            ValueError: if the footer contradicts the results.
        """
        counts = Counter(result.outcome.value for result in self._results.values())
        if dict(counts) != record["counts"]:
            raise ValueError("found a footer whose counts are not those of the results")
        faults = [[Fault(**fault) for fault in record[name]] for name in ("problems", "findings")]
        results = tuple(self._results.values())
        code = exit_code(results, *faults, part=self._header.shard is not None)
        if record["exit_code"] in _ENDS and record["exit_code"] != code:
            raise ValueError("found a footer whose exit code contradicts the results")
        self._explanations(map(explanation_from_json, record["explanations"]))
        if not finished:
            return
        count = self._header.cases.count
        if self._header.shard is None and len(self._cases) != count:
            raise ValueError(f"found results of {len(self._cases)} cases, but the run has {count}")
        for case in self._cases:
            for backend in self._backends:
                if (case, backend) not in self._results:
                    raise ValueError(f"found no result of {case} on {backend}")

    def _explanations(self, explanations: Iterable[Explanation]) -> None:
        failing = {key for key, result in self._results.items() if result.failing}
        on_backend = Counter(backend for _, backend in failing)
        for explanation in explanations:
            backend, operator = explanation.backend, explanation.operator
            cases = [case for cause in explanation.causes for case in cause.cases]
            remaining = sum(sum(kinds.values()) for kinds in explanation.others.values())
            if not {(case, backend) for case in cases} <= failing:
                raise ValueError(f"found an explanation of a case of {operator} that does not fail")
            if len(cases) + remaining > on_backend[backend]:
                raise ValueError(f"found more explanations than failing cases of {operator}")

    def _require_possible(self, result: Result) -> None:
        """Check that a result has only those fields that a run records for its outcome."""
        where = f"found a result of {result.case} on {result.backend}"
        outcome, diffs = result.outcome, result.diffs
        if diffs and outcome not in _COMPARED:
            raise ValueError(f"{where} that is {outcome} and has compared outputs")
        if outcome not in _WITH_WRONG_OUTPUTS and not all(diff.agrees for diff in diffs):
            raise ValueError(f"{where} that is {outcome} with a wrong output")
        if result.returned and outcome is not Outcome.FAIL:
            raise ValueError(f"{where} that is {outcome} and has the outputs of a failure")
        if outcome in HARMLESS and (result.printed or result.content):
            raise ValueError(f"{where} that is {outcome} and has details of a failure")
        if not self._header.expectations and result.standing not in {None, Standing.FLAKY}:
            raise ValueError(f"{where} that is {result.standing}, without an expectation file")

    def _require_known(self, key: Key) -> None:
        case, backend = key
        if backend not in self._backends:
            raise ValueError(f"found the backend {backend!r}, which the header lacks")
        if case not in self._cases and case not in OUTSIDE_IDS:
            self._cases.add(case)
            count = self._header.cases.count
            if len(self._cases) > count:
                raise ValueError(f"found {case}, one case more than the {count} of the run")


def _facts(result: Result) -> tuple[object, ...]:
    """Return those fields of a result that depend only on the case."""
    return result.operators, result.capabilities, result.location


def complete_row(
    results: Mapping[Key, Result], case: str, backends: Collection[str]
) -> list[Result]:
    """Return a case's results on all backends; empty if the case lacks a result on any backend."""
    row = [results[case, name] for name in backends if (case, name) in results]
    ran = [result for result in row if result.outcome is not Outcome.NOT_RUN]
    return ran if len(ran) == len(backends) else []
