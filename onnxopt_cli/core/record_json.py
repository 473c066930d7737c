"""Results and explanations as JSON objects and back, for logs and reports.

What is read was checked by the schema of logs, and this adds what a schema cannot say. A library
such as msgspec would not make it shorter: it takes a field that stands twice in an object, has no
numbers that are written as text, and its classes would stand beside ours and the schema.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from onnxopt_cli.core.codec import ValueReader, ValueWriter
from onnxopt_cli.core.compare import spent
from onnxopt_cli.core.diff import Diff, Element
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import (
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.tolerance import (
    Drawn,
    Provenance,
    Relative,
    Tolerance,
    Ulps,
)
from onnxopt_cli.core.values import STRING, Value
from onnxopt_cli.errors import ProtocolBreach, UnusableOutput

# A file has many cases.
_path = lru_cache(Path)
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number_to_json(number: object) -> Any:
    """Return a number, bool or string as JSON has it."""
    if isinstance(number, complex) or (isinstance(number, float) and not math.isfinite(number)):
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


# Fields of a Result that JSON has as they are.
_RESULT = (
    "case", "backend", "operators", "capabilities", "outcome", "lowered", "message", "printed",
    "flaky", "standing", "expectation", "note",
)  # fmt: skip
# Those that are read as they are.
_TEXTS = ("case", "backend", "lowered", "message", "printed", "flaky", "expectation")
_DIFF = [it.name for it in fields(Diff) if it.name != "accepted"]
_ELEMENT = [it.name for it in fields(Element)]
_LIMITS = ("rtol", "atol", "ulp", "factor", "distribution")
_of_result, _of_diff, _of_element = (attrgetter(*it) for it in (_RESULT, _DIFF, _ELEMENT))
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
    }


def result_from_json(data: Any) -> Result:
    """Return the result that :func:`result_to_json` was given; limits keep only their factor.

    Args:
        data: checked by the schema.

    Raises:
        ValueError: if they are not what it returns.
    """
    try:
        return Result(
            **{name: data[name] for name in _TEXTS},
            location=Location(_path(data["path"]), data["line"]),
            operators=tuple(data["operators"]),
            # Older logs lack them.
            capabilities=tuple(data.get("capabilities", ())),
            note=data.get("note", ""),
            outcome=Outcome(data["outcome"]),
            standing=None if data["standing"] is None else Standing(data["standing"]),
            seconds=float(data["seconds"]),
            curve={int(step): number_from_json(share) for step, share in data["curve"]},
            diffs=tuple(map(_diff_from_json, data["outputs"])),
            returned=tuple(map(value_from_json, data["returned"])),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a result: {error}") from error


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON object, with what others read off it."""
    read_off = {name: getattr(explanation, name) for name in ("text", "known_mistakes", "cases")}
    # A Counter counts what it is made of, the pairs that asdict makes it of.
    others = {what: dict(kinds) for what, kinds in explanation.others.items()}
    return {**asdict(explanation), **read_off, "others": others}


def explanation_from_json(data: Any) -> Explanation:
    """Return the explanation that :func:`explanation_to_json` was given; checked by the schema."""
    causes = (
        Cause(it["found"], tuple(it["cases"]), tuple(it["known_mistakes"])) for it in data["causes"]
    )
    rest = {name: data[name] for name in ("backend", "operator", "others", "note", "complete")}
    return Explanation(**rest, causes=tuple(causes))


def _diff_to_json(diff: Diff) -> dict[str, Any]:
    return {
        **dict(zip(_DIFF, map(number_to_json, _of_diff(diff)), strict=True)),
        "agrees": diff.agrees,
        "tolerance": _tolerance_to_json(diff.tolerance),
        "worst": [
            dict(zip(_ELEMENT, map(number_to_json, _of_element(it)), strict=True))
            for it in diff.worst
        ],
    }


def _diff_from_json(data: Any) -> Diff:
    # By place, as a log has very many.
    name, kind, structure, tolerance, *numbers, counts, worst = _from_diff(data)
    if str in map(type, numbers):
        numbers = list(map(number_from_json, numbers))
    parts: tuple[Any, ...] = (
        *(name, kind, structure, _tolerance_from_json(tolerance)),
        *numbers,
        tuple(map(int, counts)),
        tuple([_element_from_json(element, kind) for element in worst]),
    )
    return Diff(*parts)


def _element_from_json(data: Any, kind: str) -> Element:
    index, *sides, absolute, relative, ulp, limit, wrong = _from_element(data)
    if not kind.startswith(STRING):
        # Of strings, the text "nan" is no number.
        sides = list(map(number_from_json, sides))
    off = map(number_from_json, (absolute, relative, ulp, limit))
    parts: tuple[Any, ...] = (tuple(index), *sides, *off, wrong)
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
    if "rtol" in data:
        return Relative(data["rtol"], data["atol"], provenance, data.get("reason", ""))
    if "ulp" in data:
        return Ulps(data["ulp"], provenance)
    if "distribution" in data:
        return Drawn(data["distribution"], lambda _sample: "", provenance)
    return spent(float(data["factor"]), provenance)
