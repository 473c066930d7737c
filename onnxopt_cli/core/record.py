"""A run as data, from which all reports are rendered, and its JSON in logs and reports.

This module expects JSON that the schema of logs has validated. It adds the checks that a schema
cannot express.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from onnxopt_cli.core.codec import ValueReader, ValueWriter
from onnxopt_cli.core.compare import bound_without_limits
from onnxopt_cli.core.result import (
    CaseContent,
    Diff,
    Element,
    Location,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.tolerance import (
    Drawn,
    NumberText,
    Provenance,
    Relative,
    Tolerance,
    Ulps,
)
from onnxopt_cli.core.values import STRING, Value
from onnxopt_cli.errors import Fault, ProtocolBreach, UnusableOutput


@dataclass(frozen=True, slots=True)
class BackendIdentity:
    """A backend under test.

    Attributes:
        name: the user's name for the backend, or its specification: ``onnxruntime``,
            ``python:my.module:Backend``.
        version: the version that the backend reported: ``onnxruntime 1.31.1``; empty if unknown.
        specification: the specification of the backend; empty if it is the name.
    """

    name: str
    version: str
    specification: str = ""

    @property
    def text(self) -> str:
        """The backend as an argument of ``-b``."""
        return f"{self.name}={self.specification}" if self.specification else self.name


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failures of a backend in an operator.

    Attributes:
        found: description of the cause, without a count.
        cases: ids of the failing cases that the cause explains.
        known_mistakes: names of the known mistakes that together reproduce the failures; empty for
            a failure condition.
    """

    found: str
    cases: tuple[str, ...]
    known_mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a backend's failures in an operator.

    Attributes:
        backend: the backend's name.
        operator: the operator's name.
        causes: the causes; each cause lists the failing cases that no earlier cause explains.
        others: number of failing cases without a cause. The outer keys are states (``not
            explained``, ``not tried``), and the inner keys are kinds of cases (``trajectory``).
        note: remark on an unsuccessful or interrupted search; may be empty.
        complete: False if the time limit ended the search.
    """

    backend: str
    operator: str
    causes: tuple[Cause, ...] = ()
    others: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    note: str = ""
    complete: bool = True

    @property
    def known_mistakes(self) -> tuple[str, ...]:
        """The names of all known mistakes."""
        names = (name for cause in self.causes for name in cause.known_mistakes)
        return tuple(dict.fromkeys(names))

    @property
    def cases(self) -> tuple[str, ...]:
        """Ids of the failing cases that known mistakes reproduce."""
        return tuple(case for cause in self.causes if cause.known_mistakes for case in cause.cases)

    @property
    def is_unexamined(self) -> bool:
        """Whether the search ended before any known mistake was tried."""
        return not self.causes and not self.complete and self.others.keys() == {NOT_TRIED}

    @property
    def text(self) -> str:
        """One sentence for a reader; its counts add up to the number of failing cases."""
        counts_of_others = {state: kinds for state, kinds in self.others.items() if kinds}
        total = sum(len(cause.cases) for cause in self.causes)
        total += sum(sum(kinds.values()) for kinds in counts_of_others.values())
        counts = [(f"{cause.found}:", len(cause.cases)) for cause in self.causes]
        if total == 1:
            # The cause of a single failing case needs no count.
            counts = [(cause.found, 0) for cause in self.causes]
        if self.causes and self.causes[0].known_mistakes:
            counts[0] = (f"consistent with {counts[0][0]}", counts[0][1])
        if not self.causes and (self.note or UNEXPLAINED in counts_of_others):
            # In the sentence, the note takes the place of a cause.
            counts = [(self.note, sum(counts_of_others.pop(UNEXPLAINED, {}).values()))]
        parts: list[str] = []
        for words, count in counts:
            if not count:
                parts.append(words)
            elif parts:
                parts.append(f"{words} {count}")
            elif total > 1:
                parts.append(f"{words} {count} of {total} failing cases")
            else:
                parts.append(f"{words} the failing case")
        parts += [f"{state}: {_listed(kinds)}" for state, kinds in counts_of_others.items()]
        if self.causes and self.note:
            parts.append(self.note)
        return "; ".join(parts)


#: The state of failing cases that no known mistake reproduces.
UNEXPLAINED = "not explained"
#: The state of failing cases on which no known mistake was tried.
NOT_TRIED = "not tried"

# Maximum number of kinds of cases that a sentence lists.
_MAX_KINDS = 4


def _listed(kinds: Mapping[str, int]) -> str:
    """Return counts as text (``1 large, 6 trajectories``); the total of rare kinds is last."""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    named = ordered if len(ordered) <= _MAX_KINDS else ordered[: _MAX_KINDS - 1]
    remaining = sum(count for _, count in ordered[len(named) :])
    plurals = {"trajectory": "trajectories"}
    parts = [f"{count} {plurals.get(kind, kind) if count > 1 else kind}" for kind, count in named]
    return ", ".join([*parts, f"{remaining} others"] if remaining else parts)


#: In ``RunRecord.versions``, the prefix of keys that name suites.
SUITE = "suite "
#: In ``RunRecord.versions``, the key of the processor's model.
PROCESSOR = "processor"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, which may be unfinished.

    Attributes:
        versions: versions of onnxopt, Python, relevant packages and suites, and the machine.
        backends: the backends under test.
        options: settings of the run, from ``RunConfig.to_json``.
        results: results in the order of their arrival.
        problems: faults of case files from which no case could be loaded.
        findings: entries of expectation files that no longer apply, because they are stale, expired
            or duplicate.
        explanations: explanations of failures.
        exit_code: the exit code; None for an unfinished run.
        started: start in UTC: ``2026-01-31T23:59:59.012345Z``; empty if unknown.
        ended: end in UTC, in the form of ``started``; empty if the run is unfinished or the end is
            unknown.
        hostname: name of the machine; empty if unknown.
        origin: commit, branch and job of a run on a CI server; may be empty.
        left_out: for each excluded capability, the number of cases that need the capability, and
            why it is excluded.
        digests: a short digest of each file of backends and cases, by displayed path; empty if
            unknown.

    Raises:
        ValueError: if two results have the same case and backend, or if two backends have the same
            name. A report could not distinguish them.
    """

    versions: Mapping[str, str]
    backends: tuple[BackendIdentity, ...]
    options: Mapping[str, Any]
    results: tuple[Result, ...]
    problems: tuple[Fault, ...] = ()
    findings: tuple[Fault, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    exit_code: int | None = None
    started: str = ""
    ended: str = ""
    hostname: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_once(backend.name for backend in self.backends)
        require_once((result.case, result.backend) for result in self.results)


def require_once(keys: Iterable[object]) -> None:
    """Check that keys are unique.

    Raises:
        ValueError: if a key occurs twice; the message names the first duplicate.
    """
    unique: set[object] = set()
    for key in keys:
        if key in unique:
            raise ValueError(f"found {printable(str(key))} twice")
        unique.add(key)


# Results are cached, because many cases have the same path.
_path = lru_cache(Path)
# Matches a description of a tensor, such as `float32[2,3]`, and captures the shape.
_SHAPE = re.compile(r"\w+\[([0-9,]{0,400})\]")
# Names of the counts that :func:`_contradiction` compares with the number of elements of an output.
_QUANTITIES = ("mismatches", "inconclusive elements", "counts of distances", "worst elements")
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number_to_json(number: object) -> Any:
    """Return a number, bool or string as a JSON value."""
    if isinstance(number, complex) or (isinstance(number, float) and not math.isfinite(number)):
        return str(number)
    return number


def number_from_json(data: Any) -> Any:
    """Return the number from which :func:`number_to_json` made the data.

    A complex number remains text.
    """
    return _SPECIAL.get(data, data) if isinstance(data, str) else data


def value_to_json(value: Value) -> Any:
    """Return a value as JSON; None if its element type has no JSON form."""
    try:
        return ValueWriter(inline=True).put(value)
    except UnusableOutput:
        # If an output has no JSON form, the case fails, and the output's Diff states the type.
        return None


def value_from_json(data: Any) -> Value:
    """Return the value from which :func:`value_to_json` made the data.

    Raises:
        ValueError: if the data are invalid.
    """
    try:
        return ValueReader().value(data)
    except ProtocolBreach as error:
        raise ValueError(f"not a value: {error.message}") from None


# Fields of a Result that are copied to JSON unchanged.
_RESULT = (
    "case", "backend", "operators", "capabilities", "outcome", "lowered", "message", "printed",
    "flaky", "standing", "expectation", "note",
)  # fmt: skip
# Fields of a Result that are copied from JSON unchanged.
_TEXTS = ("case", "backend", "lowered", "message", "printed", "flaky", "expectation")
_DIFF = [item.name for item in fields(Diff) if item.name != "accepted"]
_ELEMENT = [item.name for item in fields(Element)]
_LIMITS = ("rtol", "atol", "ulp", "factor", "distribution", "text_of")
_of_result, _of_diff, _of_element = (attrgetter(*names) for names in (_RESULT, _DIFF, _ELEMENT))
_from_diff, _from_element = itemgetter(*_DIFF), itemgetter(*_ELEMENT)


def result_to_json(result: Result) -> dict[str, Any]:
    """Return a result as a JSON object."""
    return {
        **dict(zip(_RESULT, _of_result(result), strict=True)),
        "path": str(result.location.path),
        "line": result.location.line,
        "seconds": round(result.seconds, 6),
        "curve": [[step, number_to_json(share)] for step, share in result.curve.items()],
        "outputs": [_diff_to_json(diff) for diff in result.diffs],
        "returned": [value_to_json(value) for value in result.returned],
        **({"content": asdict(result.content)} if result.content else {}),
        **({"opset": result.opset} if result.opset else {}),
        **({"batch": result.batch} if result.batch else {}),
    }


def result_from_json(data: Any) -> Result:
    """Return the result from which :func:`result_to_json` made the data.

    The result can be shown but not judged again: its error bounds have the factor that the JSON
    contains, but not the limits of the elements, which the JSON lacks.

    Args:
        data: a JSON object that conforms to the schema.

    Raises:
        ValueError: if the data are invalid.
    """
    try:
        return Result(
            **{name: data[name] for name in _TEXTS},
            location=Location(_path(data["path"]), data["line"]),
            operators=tuple(data["operators"]),
            # Older logs lack the fields capabilities and note.
            capabilities=tuple(data.get("capabilities", ())),
            note=data.get("note", ""),
            outcome=Outcome(data["outcome"]),
            standing=None if data["standing"] is None else Standing(data["standing"]),
            seconds=float(data["seconds"]),
            curve={int(step): number_from_json(share) for step, share in data["curve"]},
            diffs=tuple(map(_diff_from_json, data["outputs"])),
            returned=tuple(map(value_from_json, data["returned"])),
            content=_content_from_json(data.get("content")),
            opset=data.get("opset", 0),
            batch=data.get("batch", 0),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a result: {error}") from error


def _content_from_json(data: Any) -> CaseContent | None:
    # Logs omit the content of passing cases. Logs of older versions omit the content of all cases.
    if data is None:
        return None
    nodes = ((str(name), str(attributes)) for name, attributes in data["nodes"])
    inputs = ((str(name), str(kind), str(text)) for name, kind, text in data["inputs"])
    return CaseContent(data["about"], tuple(nodes), tuple(inputs))


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON object, including derived fields for other programs."""
    derived = {name: getattr(explanation, name) for name in ("text", "known_mistakes", "cases")}
    # asdict would convert a Counter to a Counter of its pairs.
    other_counts = {reason: dict(kinds) for reason, kinds in explanation.others.items()}
    return {**asdict(explanation), **derived, "others": other_counts}


def explanation_from_json(data: Any) -> Explanation:
    """Return the explanation from which :func:`explanation_to_json` made the validated data."""
    causes = (
        Cause(cause["found"], tuple(cause["cases"]), tuple(cause["known_mistakes"]))
        for cause in data["causes"]
    )
    names = ("backend", "operator", "others", "note", "complete")
    explanation = Explanation(**{name: data[name] for name in names}, causes=tuple(causes))
    for name in ("known_mistakes", "cases"):
        if tuple(data.get(name, getattr(explanation, name))) != getattr(explanation, name):
            raise ValueError(f"an explanation of {explanation.operator} contradicts its {name}")
    return explanation


def _diff_to_json(diff: Diff) -> dict[str, Any]:
    return {
        **dict(zip(_DIFF, map(number_to_json, _of_diff(diff)), strict=True)),
        "agrees": diff.agrees,
        "tolerance": _tolerance_to_json(diff.tolerance),
        "worst": [
            dict(zip(_ELEMENT, map(number_to_json, _of_element(element)), strict=True))
            for element in diff.worst
        ],
    }


def _diff_from_json(data: Any) -> Diff:
    # A log may have very many diffs, and positional arguments are faster than keywords.
    name, kind, structure, tolerance, *numbers, counts, worst = _from_diff(data)
    if str in map(type, numbers):
        numbers = list(map(number_from_json, numbers))
    parts: tuple[Any, ...] = (
        *(name, kind, structure, _tolerance_from_json(tolerance)),
        *numbers,
        tuple(map(int, counts)),
        tuple([_element_from_json(element, kind) for element in worst]),
    )
    diff = Diff(*parts)
    if contradiction := _contradiction(diff):
        raise ValueError(f"the output {printable(name)} {contradiction}")
    if data["agrees"] is not diff.agrees:
        raise ValueError(f"the output {printable(name)} contradicts its field 'agrees'")
    return diff


def _contradiction(diff: Diff) -> str:
    """Describe a contradiction between the fields of a Diff; empty if they agree."""
    counts = diff.mismatches, diff.inconclusive, sum(diff.ulp_counts), len(diff.worst)
    if max(counts) > diff.elements:
        count, quantity = max(zip(counts, _QUANTITIES, strict=True))
        return f"has {count} {quantity} of {diff.elements} elements"
    if diff.structure is not None:
        return "was not compared, but has mismatches" if diff.mismatches else ""
    sizes = _sizes(diff.kind)
    if sizes is None:
        return ""
    if math.prod(sizes) != diff.elements:
        return f"is {diff.kind}, but has {diff.elements} elements"
    for element in diff.worst:
        inside = (0 <= index < size for index, size in zip(element.index, sizes, strict=False))
        if len(element.index) != len(sizes) or not all(inside):
            return f"is {diff.kind}, but has an element at {list(element.index)}"
    return ""


@lru_cache
def _sizes(kind: str) -> tuple[int, ...] | None:
    """Return the shape that a description such as ``float32[2,3]`` states; None without a shape."""
    shape = _SHAPE.fullmatch(kind)
    if shape is None:
        return None
    return tuple(map(int, filter(None, shape[1].split(","))))


def _element_from_json(data: Any, kind: str) -> Element:
    index, *values, absolute, relative, ulp, limit, wrong = _from_element(data)
    if not kind.startswith(STRING):
        # The elements of a string tensor remain texts: "nan" is not read as the number NaN.
        values = list(map(number_from_json, values))
    measures = map(number_from_json, (absolute, relative, ulp, limit))
    parts: tuple[Any, ...] = (tuple(index), *values, *measures, wrong)
    return Element(*parts)


def _tolerance_to_json(tolerance: Tolerance | None) -> dict[str, Any] | None:
    if tolerance is None:
        return None
    limits = {name: getattr(tolerance, name) for name in _LIMITS if hasattr(tolerance, name)}
    reason = getattr(tolerance, "reason", "")
    return {"from": tolerance.provenance, **limits, **({"reason": reason} if reason else {})}


def _tolerance_from_json(data: Any) -> Tolerance | None:
    if data is None:
        return None
    provenance = Provenance(data["from"])
    if "text_of" in data:
        return NumberText(data["text_of"], rtol=data["rtol"], provenance=provenance)
    if "rtol" in data:
        return Relative(data["rtol"], data["atol"], provenance, data.get("reason", ""))
    if "ulp" in data:
        return Ulps(data["ulp"], provenance)
    if "distribution" in data:
        return Drawn(data["distribution"], lambda _sample: "", provenance)
    return bound_without_limits(float(data["factor"]), provenance)
