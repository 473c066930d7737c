"""Results and explanations as JSON objects and back, for logs and reports."""

from __future__ import annotations

import math
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from onnxopt_cli.core.case import Location
from onnxopt_cli.core.codec import ValueReader, ValueWriter
from onnxopt_cli.core.compare import spent
from onnxopt_cli.core.diff import Diff, Element
from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import Outcome, Result, Standing
from onnxopt_cli.core.tolerance import (
    Budget,
    Drawn,
    Provenance,
    Relative,
    Tolerance,
    Ulps,
)
from onnxopt_cli.core.values import STRING, Value
from onnxopt_cli.errors import Problem, ProtocolBreach, UnusableOutput

# A file has many cases.
_path = lru_cache(Path)
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number_to_json(number: object) -> Any:
    """Return a number, bool or string as JSON has it."""
    if number is None or type(number) is int:
        return number
    if isinstance(number, complex):
        return str(number)
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number


def number_from_json(data: Any) -> Any:
    """Return what :func:`number_to_json` was given, a complex number as its text."""
    return _SPECIAL.get(data, data) if isinstance(data, str) else data


def value_to_json(value: Value) -> Any:
    """Return a value as JSON; null for one of an element type that nothing can hold."""
    try:
        return ValueWriter(inline=True).put(value)
    except UnusableOutput:
        # It has failed, and the comparison says what it is.
        return None


def value_from_json(data: Any) -> Value:
    """Return what :func:`value_to_json` was given.

    Raises:
        ValueError: if the data are not what it returns.
    """
    try:
        return ValueReader().value(data)
    except ProtocolBreach as error:
        raise ValueError(f"not a value: {error.message}") from None


# Fields of a Diff that are plain or numbers, in the order in which they are written, and stand in
# the class, where the tolerance comes before the numbers.
_DIFF = (
    "name",
    "kind",
    "structure",
    "elements",
    "mismatches",
    "max_absolute",
    "max_relative",
    "max_ulp",
    "needed_rtol",
    "needed_atol",
    "budget_used",
    "budget_median",
    "weak",
)
_parts = attrgetter(*_DIFF)
_numbers = itemgetter(*_DIFF[3:])
_ELEMENT = ("expected", "actual", "absolute", "relative", "ulp", "limit", "wrong")


def result_to_json(result: Result) -> dict[str, Any]:
    """Return a result as a JSON object."""
    return {
        "case": result.case,
        "path": str(result.location.path),
        "line": result.location.line,
        "operators": list(result.operators),
        "capabilities": list(result.capabilities),
        "backend": result.backend,
        "outcome": result.outcome.value,
        "lowered": result.lowered,
        "message": result.message,
        "printed": result.printed,
        "flaky": result.flaky,
        "standing": None if result.standing is None else result.standing.value,
        "expectation": result.expectation,
        "seconds": round(result.seconds, 6),
        "curve": [[step, number_to_json(share)] for step, share in result.curve.items()],
        "outputs": [_diff_to_json(diff) for diff in result.diffs],
        "returned": [value_to_json(value) for value in result.returned],
    }


def result_from_json(data: Any) -> Result:
    """Return the result that :func:`result_to_json` was given; limits keep only their factor.

    Raises:
        ValueError: if the data are not what it returns.
    """
    try:
        return Result(
            case=str(data["case"]),
            location=Location(_path(data["path"]), data["line"]),
            operators=tuple(map(str, data["operators"])),
            backend=str(data["backend"]),
            outcome=Outcome(data["outcome"]),
            lowered=bool(data["lowered"]),
            message=str(data["message"]),
            diffs=tuple(_diff_from_json(diff) for diff in data["outputs"]),
            seconds=float(data["seconds"]),
            curve={int(step): number_from_json(share) for step, share in data["curve"]},
            returned=tuple(value_from_json(value) for value in data["returned"]),
            printed=str(data["printed"]),
            flaky=str(data["flaky"]),
            standing=None if data["standing"] is None else Standing(data["standing"]),
            expectation=str(data["expectation"]),
            capabilities=tuple(map(str, data.get("capabilities", ()))),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a result: {error}") from error


def problem_to_json(problem: Problem) -> dict[str, str]:
    """Return a problem of a case or expectation file as a JSON object."""
    return {"where": problem.where, "what": problem.what}


def problem_from_json(data: Any) -> Problem:
    """Return the problem that :func:`problem_to_json` was given.

    Raises:
        ValueError: if the data are not what it returns.
    """
    try:
        return Problem(str(data["where"]), str(data["what"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a problem: {error}") from error


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON object."""
    return {
        "backend": explanation.backend,
        "operator": explanation.operator,
        "text": explanation.text,
        "deviations": list(explanation.deviations),
        "cases": list(explanation.cases),
        "causes": [
            {"found": it.found, "deviations": list(it.deviations), "cases": list(it.cases)}
            for it in explanation.causes
        ],
        "others": {what: dict(kinds) for what, kinds in explanation.others.items()},
        "note": explanation.note,
        "complete": explanation.complete,
    }


def explanation_from_json(data: Any) -> Explanation:
    """Return the explanation that :func:`explanation_to_json` was given.

    Raises:
        ValueError: if the data are not what it returns.
    """
    try:
        return Explanation(
            str(data["backend"]),
            str(data["operator"]),
            tuple(
                Cause(
                    str(it["found"]),
                    tuple(map(str, it["cases"])),
                    tuple(map(str, it["deviations"])),
                )
                for it in data["causes"]
            ),
            {
                str(what): {str(kind): int(count) for kind, count in kinds.items()}
                for what, kinds in data["others"].items()
            },
            str(data["note"]),
            bool(data["complete"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not an explanation: {error}") from error


def _diff_to_json(diff: Diff) -> dict[str, Any]:
    fields = dict(zip(_DIFF, map(number_to_json, _parts(diff)), strict=True))
    return fields | {
        "agrees": diff.agrees,
        "tolerance": _tolerance_to_json(diff.tolerance),
        "ulp_counts": list(diff.ulp_counts),
        "worst": [_element_to_json(element) for element in diff.worst],
    }


def _diff_from_json(data: Any) -> Diff:
    numbers = _numbers(data)
    if str in map(type, numbers):
        numbers = tuple(map(number_from_json, numbers))
    # By place, as a log has very many.
    parts: tuple[Any, ...] = (
        data["name"],
        data["kind"],
        data["structure"],
        _tolerance_from_json(data["tolerance"]),
        *numbers,
        tuple(map(int, data["ulp_counts"])),
        tuple([_element_from_json(element, data["kind"]) for element in data["worst"]]),
    )
    return Diff(*parts)


def _element_to_json(element: Element) -> dict[str, Any]:
    fields = {name: number_to_json(getattr(element, name)) for name in _ELEMENT}
    return {"index": list(element.index), **fields}


def _element_from_json(data: Any, kind: str) -> Element:
    fields = {name: number_from_json(data[name]) for name in _ELEMENT}
    if kind.startswith(STRING):
        # The text "nan" is no number.
        fields |= {name: data[name] for name in ("expected", "actual")}
    return Element(tuple(data["index"]), **fields)


def _tolerance_to_json(tolerance: Tolerance | None) -> dict[str, Any] | None:
    match tolerance:
        case None:
            return None
        case Relative(rtol=rtol, atol=atol, reason=reason):
            limits: dict[str, Any] = {"rtol": rtol, "atol": atol}
            limits |= {"reason": reason} if reason else {}
        case Ulps(ulp=ulp):
            limits = {"ulp": ulp}
        case Budget(factor=factor):
            limits = {"factor": factor}
        case Drawn(law=law):
            limits = {"law": law}
    return {"from": tolerance.provenance.value, **limits}


def _tolerance_from_json(data: Any) -> Tolerance | None:
    if data is None:
        return None
    provenance = Provenance(data["from"])
    if "rtol" in data:
        return Relative(data["rtol"], data["atol"], provenance, data.get("reason", ""))
    if "ulp" in data:
        return Ulps(data["ulp"], provenance)
    if "law" in data:
        return Drawn(data["law"], lambda _sample: "", provenance)
    return spent(float(data["factor"]), provenance)
