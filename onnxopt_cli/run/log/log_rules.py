"""What a run writes to its log and what it never does: the schema, and what may follow what.

These rules find what was added to a log, taken out or changed in one place. They are no seal: who
writes a whole log that keeps to them has written a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from onnxopt_cli.backends.lowering import REFUSED_BY_LOWERING
from onnxopt_cli.cases.yaml.yaml_syntax import packaged_schema
from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.core.helper_process import losing_exceptions
from onnxopt_cli.core.record_json import result_to_json
from onnxopt_cli.core.result import (
    HARMLESS,
    OUTSIDE_IDS,
    SETTLED,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.run.expectations.expectation_file import FLAKY
from onnxopt_cli.run.log.log_header import Header

if TYPE_CHECKING:
    import jsonschema_rs


def check_record(record: object) -> str:
    """Check one record, and return its kind.

    Raises:
        ValueError: saying what contradicts the schema, and in which field.
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
    # One by one, as what breaks all of them has no reason to show.
    kinds = {it["$ref"].rpartition("/")[2]: it for it in schema.pop("oneOf")}
    validator = partial(jsonschema_rs.validator_for, validate_formats=True)
    return {name: validator(schema | kind) for name, kind in kinds.items()}


Key = tuple[str, str]

# Results that a case can have without having been started.
_UNASKED = frozenset({Outcome.INVALID, Outcome.OOM, Outcome.NOT_RUN})
# What running again may change in a result.
_REVIEWED = ("flaky", "standing", "expectation")


class Rules:
    """What may stand in a log after the records so far.

    Args:
        header: the log's.
        results: the results so far, by case and backend; changed by the caller.
    """

    def __init__(self, header: Header, results: dict[Key, Result]) -> None:
        self._header = header
        self._backends = [it.name for it in header.backends]
        self._results = results
        self._started: set[Key] = set()
        self._closed: set[Key] = set()
        self._cases: set[str] = set()
        self._rerun: set[Key] = set()

    def start(self, key: Key) -> None:
        """Allow the start of a case.

        Raises:
            ValueError: if it cannot start here.
        """
        self._require_known(key)
        if key in self._closed:
            raise ValueError(f"found a start of {key[0]} on {key[1]} after its result")
        self._started.add(key)

    def end(self, result: Result) -> None:
        """Allow a result.

        Raises:
            ValueError: if there is one already, it has not started, or it contradicts itself.
        """
        key = result.case, result.backend
        self._require_known(key)
        if key in self._closed:
            raise ValueError(f"found a second result of {key[0]} on {key[1]}")
        outside = key[0] in OUTSIDE_IDS
        if outside and result.outcome is Outcome.PASS:
            raise ValueError(f"found a pass of {key[0]}, which is not a case")
        if not outside and key not in self._started and result.outcome not in _UNASKED:
            raise ValueError(f"found a result of {key[0]} on {key[1]}, which has not started")
        self._require_consistent(result)
        self._closed.add(key)

    def rerun(self, result: Result) -> None:
        """Allow what running again has shown.

        Raises:
            ValueError: if nothing was to run again, or not this, or it says more than that.
        """
        key = result.case, result.backend
        self._require_known(key)
        earlier = self._results.get(key)
        if RunConfig.from_json(self._header.options).rerun is None:
            raise ValueError("found a rerun, but the run has none: it had no --rerun")
        if earlier is None or earlier.conforms or earlier.outcome in SETTLED or key in self._rerun:
            raise ValueError(f"found a rerun of {key[0]} on {key[1]}, which was none to run again")
        if _lasting(result) != _lasting(earlier):
            raise ValueError(f"found a rerun of {key[0]} on {key[1]} that is another result")
        self._require_consistent(result)
        self._rerun.add(key)

    def resume(self) -> None:
        """Allow results of what has none on some backend, or did not run."""
        rows = [whole_row(self._results, case, self._backends) for case in self._cases]
        self._closed = {(it.case, it.backend) for row in rows for it in row}

    def footer(self, record: dict[str, Any], *, finished: bool) -> None:
        """Allow the last record; that its exit code is right is for the caller to see.

        Raises:
            ValueError: if it contradicts the results.
        """
        counts = Counter(result.outcome.value for result in self._results.values())
        if dict(counts) != record["counts"]:
            raise ValueError("found a footer whose counts are not those of the results")
        if not finished:
            return
        count = self._header.cases.count
        if self._header.shard is None and len(self._cases) != count:
            raise ValueError(f"found results of {len(self._cases)} cases, the run has {count}")
        for case in self._cases:
            for backend in self._backends:
                if (case, backend) not in self._results:
                    raise ValueError(f"found no result of {case} on {backend}")

    def _require_known(self, key: Key) -> None:
        case, backend = key
        if backend not in self._backends:
            raise ValueError(f"found the backend {backend!r}, which the header lacks")
        if case not in self._cases and case not in OUTSIDE_IDS:
            self._cases.add(case)
            count = self._header.cases.count
            if len(self._cases) > count:
                raise ValueError(f"found {case}, one case more than the {count} of the run")

    def _require_consistent(self, result: Result) -> None:
        wrong = contradiction(result) or self._wrong_standing(result)
        if wrong:
            raise ValueError(f"found a result of {result.case} on {result.backend} {wrong}")

    def _wrong_standing(self, result: Result) -> str:
        """Say why a result cannot stand so to what this run expected; empty if it can."""
        if result.outcome is Outcome.NOT_RUN:
            fits = result.standing is None and not result.flaky
        elif self._header.expectations:
            fits = result.standing is not None
        else:
            fits = result.standing is (Standing.FLAKY if result.flaky else None)
        return "" if fits else "that stands otherwise to what was expected"


def whole_row(results: Mapping[Key, Result], case: str, backends: Collection[str]) -> list[Result]:
    """Return a case's results; none if it has not run on each of the backends."""
    row = [results[case, name] for name in backends if (case, name) in results]
    ran = [it for it in row if it.outcome is not Outcome.NOT_RUN]
    return ran if len(ran) == len(backends) else []


def contradiction(result: Result) -> str:
    """Say in which way a result contradicts itself; empty if it does not."""
    if result.outcome is Outcome.PASS:
        if result.wrong:
            return "that passes with outputs that differ"
        if result.returned:
            return "that passes with what explains a failure"
        if not result.diffs and not result.message:
            return "that passes without an output or a refusal"
    if result.outcome is Outcome.SKIP and (result.diffs or result.message != REFUSED_BY_LOWERING):
        return "that was skipped without the reason for which a case may be"
    if result.standing is Standing.EXPECTED and not _is_allowed(result):
        return "that is expected, but not by what it names"
    return ""


def _is_allowed(result: Result) -> bool:
    """Tell whether the entry that speaks of an expected result allows it."""
    if not result.expectation or result.expectation.startswith("must pass ("):
        return result.outcome in HARMLESS and not result.flaky
    head = result.expectation.removeprefix("expected ").partition(" (")[0]
    words = head.split(" or ")
    return FLAKY in words or result.outcome.value in words


def _lasting(result: Result) -> dict[str, Any]:
    data = result_to_json(result)
    return {name: value for name, value in data.items() if name not in _REVIEWED}
