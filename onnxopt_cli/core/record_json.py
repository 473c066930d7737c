"""Convert results and explanations to JSON objects and back, for logs and reports.

The schema of logs has validated the data that is read here; this module adds the checks that a
schema cannot express.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, fields
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from onnxopt_cli.core.codec import ValueReader, ValueWriter
from onnxopt_cli.core.compare import bound_without_limits
from onnxopt_cli.core.diff import Diff, Element
from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import (
    CaseContent,
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
from onnxopt_cli.errors import ProtocolBreach, UnusableOutput

# Cached, since a file has many cases.
_path = lru_cache(Path)
# The shape in the description of a tensor, as in `float32[2,3]`.
_SHAPE = re.compile(r"\w+\[([0-9,]{0,400})\]")
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number_to_json(number: object) -> Any:
    """Return a number, bool or string as a JSON value."""
    if isinstance(number, complex) or (isinstance(number, float) and not math.isfinite(number)):
        return str(number)
    return number


def number_from_json(data: Any) -> Any:
    """Return the argument of :func:`number_to_json`; a complex number remains text."""
    return _SPECIAL.get(data, data) if isinstance(data, str) else data


def value_to_json(value: Value) -> Any:
    """Return a value as JSON; null for an element type without a JSON form."""
    try:
        return ValueWriter(inline=True).put(value)
    except UnusableOutput:
        # The output is a failure, and its Diff states the element type.
        return None


def value_from_json(data: Any) -> Value:
    """Return the argument of :func:`value_to_json`.

    Raises:
        ValueError: if the data are invalid.
    """
    try:
        return ValueReader().value(data)
    except ProtocolBreach as error:
        raise ValueError(f"not a value: {error.message}") from None


# Fields of a Result that are written unchanged.
_RESULT = (
    "case", "backend", "operators", "capabilities", "outcome", "lowered", "message", "printed",
    "flaky", "standing", "expectation", "note",
)  # fmt: skip
# Fields of a Result that are read unchanged.
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
    """Return the argument of :func:`result_to_json`; error bounds keep only their factor.

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
            # Older logs lack these two fields.
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
    # Passes, and failures in older logs, have no content.
    if data is None:
        return None
    nodes = ((str(name), str(attributes)) for name, attributes in data["nodes"])
    inputs = ((str(name), str(kind), str(text)) for name, kind, text in data["inputs"])
    return CaseContent(data["about"], tuple(nodes), tuple(inputs))


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON object, with derived fields for other readers."""
    derived = {name: getattr(explanation, name) for name in ("text", "known_mistakes", "cases")}
    # asdict would build a Counter from pairs, and so count the pairs.
    other_counts = {reason: dict(kinds) for reason, kinds in explanation.others.items()}
    return {**asdict(explanation), **derived, "others": other_counts}


def explanation_from_json(data: Any) -> Explanation:
    """Return the argument of :func:`explanation_to_json`; the schema has validated the data."""
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
        raise ValueError(f"the output {printable(name)} contradicts its field agrees")
    return diff


def _contradiction(diff: Diff) -> str:
    """Return which statements about an output exclude each other; empty if none do."""
    counts = {
        "mismatches": diff.mismatches,
        "inconclusive elements": diff.inconclusive,
        "counts of distances": sum(diff.ulp_counts),
        "worst elements": len(diff.worst),
    }
    for quantity, count in counts.items():
        if count > diff.elements:
            return f"has {count} {quantity} of {diff.elements} elements"
    if diff.structure is not None and diff.mismatches:
        return "was not compared, but has mismatches"
    shape = _SHAPE.fullmatch(diff.kind)
    if shape is None or diff.structure is not None:
        return ""
    sizes = tuple(map(int, filter(None, shape[1].split(","))))
    if math.prod(sizes) != diff.elements:
        return f"is {diff.kind}, but has {diff.elements} elements"
    for element in diff.worst:
        inside = (0 <= index < size for index, size in zip(element.index, sizes, strict=False))
        if len(element.index) != len(sizes) or not all(inside):
            return f"is {diff.kind}, but has an element at {list(element.index)}"
    return ""


def _element_from_json(data: Any, kind: str) -> Element:
    index, *values, absolute, relative, ulp, limit, wrong = _from_element(data)
    if not kind.startswith(STRING):
        # The element "nan" of a string tensor is not a number.
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
