"""Rules for the records of a log: their schema and their order.

The rules detect the log of a run that was killed, a log that was truncated, and logs that were
mixed. They cannot detect results that were forged consistently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from onnxopt_cli.cases.yaml.yaml_syntax import packaged_schema
from onnxopt_cli.core.helper_process import losing_exceptions
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.record_json import explanation_from_json
from onnxopt_cli.core.result import (
    HARMLESS,
    OUTSIDE_IDS,
    SETTLED,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Fault
from onnxopt_cli.run.expectations.expectations import exit_code
from onnxopt_cli.run.log.log_header import Header

if TYPE_CHECKING:
    import jsonschema_rs


def check_record(record: object) -> str:
    """Check one record, and return its kind.

    Raises:
        ValueError: naming the field that contradicts the schema.
    """
    with losing_exceptions():
        kinds = _validators()
    kind = record.get("record") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"found no record of a log, expected one of {', '.join(kinds)}")
    with losing_exceptions():
        error = next(kinds[kind].iter_errors(record), None)
    if error is not None:
        field = ".".join(map(str, error.instance_path)) or kind
        raise ValueError(printable(f"{field}: {error.message[:200]}"))
    return kind


@cache
def _validators() -> dict[str, jsonschema_rs.Validator]:
    import jsonschema_rs

    schema = {**packaged_schema("onnxopt_cli.run.log")}
    # Each kind of record has a validator, because an error of "oneOf" would not name the field.
    kinds = {kind["$ref"].rpartition("/")[2]: kind for kind in schema.pop("oneOf")}
    validator = partial(jsonschema_rs.validator_for, validate_formats=True)
    return {name: validator(schema | kind) for name, kind in kinds.items()}


Key = tuple[str, str]

#: The exit codes of a run that was not interrupted.
ENDS = frozenset({0, 1, 2, 5})
# The outcomes with differences: those of the backend's outputs, or of invalid stored outputs.
_WITH_WRONG_OUTPUTS = frozenset({Outcome.FAIL, Outcome.INVALID})
# The outcomes with outputs that were compared.
_COMPARED = _WITH_WRONG_OUTPUTS | {Outcome.PASS, Outcome.VACUOUS, Outcome.SKIP, Outcome.LEAK}
# The outcomes that a case can have although it was not started.
_NOT_SUBMITTED = frozenset({Outcome.INVALID, Outcome.OOM, Outcome.NOT_RUN, Outcome.SKIP})


class Rules:
    """Checks whether a record may follow the previous ones.

    Args:
        header: the header of the log.
        results: the previous results by case and backend; the caller adds to them.
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
        """Check the start of a case.

        Raises:
            ValueError: if the case cannot start here.
        """
        self._require_known(key)
        if key in self._closed:
            raise ValueError(f"found a start of {key[0]} on {key[1]} after its result")
        self._started.add(key)

    def end(self, result: Result) -> None:
        """Check a result.

        Raises:
            ValueError: if it is a second result, or its case has not started.
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

        Raises:
            ValueError: if the case was not to be run again.
        """
        key = result.case, result.backend
        self._require_known(key)
        earlier = self._results.get(key)
        if earlier is None or earlier.conforms or earlier.outcome in SETTLED or key in self._rerun:
            raise ValueError(f"unexpected rerun record for {key[0]} on {key[1]}")
        self._require_possible(result)
        self._rerun.add(key)

    def resume(self) -> None:
        """Allow results again for cases that did not run on every backend."""
        rows = [complete_row(self._results, case, self._backends) for case in self._cases]
        self._closed = {(result.case, result.backend) for row in rows for result in row}

    def footer(self, record: dict[str, Any], *, finished: bool) -> None:
        """Check the last record.

        Raises:
            ValueError: if it contradicts the results.
        """
        counts = Counter(result.outcome.value for result in self._results.values())
        if dict(counts) != record["counts"]:
            raise ValueError("found a footer whose counts are not those of the results")
        faults = [[Fault(**fault) for fault in record[name]] for name in ("problems", "findings")]
        results = tuple(self._results.values())
        code = exit_code(results, *faults, part=self._header.shard is not None)
        if record["exit_code"] in ENDS and record["exit_code"] != code:
            raise ValueError("found a footer whose exit code contradicts the results")
        self._explanations(map(explanation_from_json, record["explanations"]))
        if not finished:
            return
        count = self._header.cases.count
        if self._header.shard is None and len(self._cases) != count:
            raise ValueError(f"found results of {len(self._cases)} cases, the run has {count}")
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
                raise ValueError(f"found explanations of more cases of {operator} than fail")

    def _require_possible(self, result: Result) -> None:
        """Check that a result has only fields that a run records for its outcome."""
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


def complete_row(
    results: Mapping[Key, Result], case: str, backends: Collection[str]
) -> list[Result]:
    """Return a case's results on all backends; empty if it did not run on each of them."""
    row = [results[case, name] for name in backends if (case, name) in results]
    ran = [result for result in row if result.outcome is not Outcome.NOT_RUN]
    return ran if len(ran) == len(backends) else []
