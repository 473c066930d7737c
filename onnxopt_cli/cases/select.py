"""Choosing among cases by what the user asked for, and by what they ask of a backend."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np

from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.corpora import cache_folder, is_ours
from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.config.run_config import Filters
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.files import working_folder, write_atomically
from onnxopt_cli.core.result import (
    OUTSIDE_IDS,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import (
    nearest,
    printable,
    some_of,
)
from onnxopt_cli.core.values import Value, dtype_name
from onnxopt_cli.errors import (
    InvalidCase,
    NodeError,
    OnnxoptError,
    UsageError,
)
from onnxopt_cli.operators.nodes import operator_names

# What failed last, for --lf and --ff, is kept in the cache, and never in the way of a run: a file
# that is not there, damaged, of another user or cannot be written is as if nothing were known.
_MEMORY = "last-failures.json"
_MOST_BYTES = 4 << 20
# Tags or operators that are named where one is not there.
_MAX_SHOWN_NAMES = 8
# The folders, and backends in each, that were used last.
_FOLDERS = 20
_BACKENDS = 10

#: By backend the ids of the cases that failed when they last ran.
_Failures = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class FailedLast:
    """What to do about cases that failed when they last ran here.

    Attributes:
        backends: on which they failed.
        only: whether only these are chosen; otherwise they come first.
    """

    backends: tuple[str, ...]
    only: bool


def choose(
    cases: Sequence[Case],
    filters: Filters,
    tell: Callable[[str], None] = lambda _: None,
    *,
    without: Mapping[str, str] = MappingProxyType({}),
    failed: FailedLast | None = None,
) -> tuple[list[Case], dict[str, str]]:
    """Choose among cases; letter case never matters.

    Args:
        cases: to choose among.
        filters: an empty one lets everything through.
        tell: called with what the user should know: which word of a pattern matches nothing,
            why all cases run though only those that failed are asked for.
        without: more capabilities to leave out, and why.
        failed: whether and how earlier failures count; None if they do not.

    Returns:
        The selected cases in their order; and for each capability that is left out how many
        cases need it, and why they are.

    Raises:
        UsageError: if an operator or a tag occurs in none of the cases, there is no such
            capability, or a pattern cannot be read.
    """
    chosen = list(cases)
    ids = [case.id for case in cases]
    patterns = [_Pattern(pattern, ids) for pattern in filters.patterns]
    if patterns:
        matching = set[str]().union(*(pattern.matching for pattern in patterns))
        chosen = [case for case in cases if case.id in matching]
    if filters.tags:
        chosen = _having("tag", filters.tags, [(case, case.tags) for case in chosen])
    if filters.operators:
        pairs = [(case, operators_of(case)) for case in chosen]
        chosen = _having("operator", filters.operators, pairs)
    for word in sorted({word for pattern in patterns for word in pattern.unmatched}):
        template = _template(word, ids)
        tell(f"no case's id matches -k {word}{'; ' * bool(template)}{template}")
    if failed is not None:
        chosen, why = _failed_last(chosen, failed)
        if why:
            tell(why)
    names = {**dict.fromkeys(filters.without, ""), **without}
    return _leave_out(chosen, names) if names else (chosen, {})


def _template(word: str, ids: Sequence[str]) -> str:
    """Ask for the piece of an id most like a word, or that begins so; empty if there is none."""
    pieces = {piece.lower(): piece for name in ids for piece in (*name.split("/"), name)}
    if template := nearest(word, pieces.values()):
        return template
    for end in range(len(word) - 1, 1, -1):
        for piece in sorted(pieces):
            if piece.startswith(word[:end].lower()):
                return f"did you mean {pieces[piece]}?"
    return ""


def _failed_last(cases: list[Case], wanted: FailedLast) -> tuple[list[Case], str]:
    """Return the cases that failed last, unless only they count the others too, or why all run."""
    known = _read(cache_folder() / _MEMORY).get(working_folder(), {})
    unknown = [name for name in wanted.backends if name not in known]
    if unknown:
        return cases, f"no earlier run on {unknown[0]} is known here: all cases run"
    ids = {case for name in wanted.backends for case in known[name]}
    failed = [case for case in cases if case.id in ids]
    if not failed:
        return cases, "none of the cases failed last: all run"
    return failed + ([] if wanted.only else [case for case in cases if case.id not in ids]), ""


def remember(results: Sequence[Result]) -> None:
    """Remember which cases failed; of those that did not run what was known before stays."""
    path = cache_folder() / _MEMORY
    if not path.exists() and all(result.conforms for result in results):
        return
    folders = _read(path)
    before = folders.pop(working_folder(), {})
    known = {**before}
    now: dict[str, dict[str, bool]] = {}
    for result in results:
        if result.outcome is not Outcome.NOT_RUN and result.case not in OUTSIDE_IDS:
            now.setdefault(result.backend, {})[result.case] = result.conforms
    for backend, cases in now.items():
        others = [case for case in known.pop(backend, ()) if case not in cases]
        known[backend] = others + [case for case, conforms in cases.items() if not conforms]
    if known == before:
        return
    folders[working_folder()] = dict([*known.items()][-_BACKENDS:])
    with suppress(OSError, OnnxoptError):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        data = json.dumps(dict([*folders.items()][-_FOLDERS:])).encode()
        write_atomically(path, data if len(data) <= _MOST_BYTES else b"{}")


def operators_of(case: Case) -> tuple[str, ...]:
    """Return the names of the operators of a case's model; none if it cannot be read."""
    if case.operators is not None:
        return case.operators
    try:
        return operator_names(case.load().model)
    except InvalidCase:
        return ()


_TOKEN = re.compile(r"[()]|[^\s()]+")
_DEEPEST = 100


class _Pattern:
    """A pattern, matched against ids.

    What matches as it is, and a single word, is no expression: an id may hold a parenthesis or a
    blank, and an operator may be called And.

    Args:
        text: of the pattern.
        ids: of all cases.

    Attributes:
        matching: the ids that it matches.
        unmatched: its words that match no id.

    Raises:
        UsageError: if it is an expression that cannot be read; says where.
    """

    def __init__(self, text: str, ids: Sequence[str]) -> None:
        self._text, self._ids = text, ids
        self.unmatched: list[str] = []
        self.matching = set(_matching(text, ids))
        self._tokens = [(match[0], match.start()) for match in _TOKEN.finditer(text)]
        if self.matching or len(self._tokens) < 2:  # noqa: PLR2004 - a word is no expression
            self.unmatched = [] if self.matching else [text]
            return
        self.matching = self._any(0)
        if self._tokens:
            self._fail('"and" or "or"')

    def _any(self, depth: int) -> set[str]:
        found = self._all(depth)
        while self._next("or"):
            found |= self._all(depth)
        return found

    def _all(self, depth: int) -> set[str]:
        found = self._one(depth)
        while self._next("and"):
            found &= self._one(depth)
        return found

    def _one(self, depth: int) -> set[str]:
        if depth > _DEEPEST:
            self._fail("fewer parentheses")
        if self._next("not"):
            return set(self._ids) - self._one(depth + 1)
        if self._next("("):
            found = self._any(depth + 1)
            if not self._next(")"):
                self._fail('")"')
            return found
        if not self._tokens or self._tokens[0][0] in {"and", "or", ")"}:
            self._fail("a word")
        word, _ = self._tokens.pop(0)
        found = set(_matching(word, self._ids))
        if not found:
            self.unmatched.append(word)
        return found

    def _next(self, token: str) -> bool:
        """Take the next token if it is this one."""
        if self._tokens and self._tokens[0][0] == token:
            self._tokens.pop(0)
            return True
        return False

    def _fail(self, expected: str) -> NoReturn:
        found, place = self._tokens[0] if self._tokens else ("", len(self._text))
        what = f'"{printable(found)}"' if found else "the end"
        before = printable(self._text[:place])
        raise UsageError(
            f"-k: found {what} at character {place + 1}, expected {expected}",
            hint=f"{before}{printable(self._text[place:])}\n{' ' * len(before)}^",
        )


def _matching(pattern: str, ids: Sequence[str]) -> list[str]:
    """Return the ids that one word matches; a whole id matches that id alone."""
    if pattern in ids:
        return [pattern]
    lowered = pattern.lower()
    glob = lowered if set(lowered) & set("*?[") else f"*{lowered}*"
    return [name for name in ids if fnmatchcase(name.lower(), glob)]


def _having(
    what: str, wanted: tuple[str, ...], pairs: list[tuple[Case, tuple[str, ...]]]
) -> list[Case]:
    """Keep the cases that have one of the wanted words; a word that none has is a mistake."""
    known = {word.lower(): word for _, words in pairs for word in words}
    for word in wanted:
        if pairs and word.lower() not in known:
            there = f"the {what}s are: {some_of([*known.values()], _MAX_SHOWN_NAMES) or 'none'}"
            hint = nearest(word, known.values(), there)
            raise UsageError(f"no selected case has the {what} {word!r}", hint=hint)
    lowered = {word.lower() for word in wanted}
    return [case for case, words in pairs if lowered & {word.lower() for word in words}]


def _leave_out(
    cases: Sequence[Case], without: Mapping[str, str]
) -> tuple[list[Case], dict[str, str]]:
    """Leave out the cases that need a capability; say how many need each."""
    for name in without:
        if name not in CAPABILITIES:
            hint = nearest(name, CAPABILITIES, f"there are {', '.join(CAPABILITIES)}")
            raise UsageError(f"there is no capability {printable(name)!r}", hint=hint)
    needs = [set(capabilities_of(case)) for case in cases]
    left_out = {}
    for name, why in without.items():
        count = sum(name in need for need in needs)
        left_out[name] = f"{count} case{'s' * (count != 1)}{': ' * bool(why)}{why}"
    kept = [case for case, it in zip(cases, needs, strict=True) if it.isdisjoint(without)]
    return kept, left_out


#: The capabilities, in the order in which they are shown.
CAPABILITIES = {
    "double": "tensors of doubles",
    "mixed-types": "floating-point inputs of unlike types",
    "many-tensors": "several optimized tensors in a node",
    "broadcasting": "tensors of a shape unlike the first one's",
    "refusals": "refusing what breaks the signature",
    "not-finite": "NaN and infinity in inputs, attributes or stored outputs",
    "large-counts": "counts beyond 2^24, which float32 cannot hold",
    "empty": "tensors without elements",
    "large": "more than 10,000 elements",
}
_EXACT_COUNT = 2**24
_LARGE_ELEMENTS = 10_000


def capabilities(problem: Problem) -> tuple[str, ...]:
    """Return the capabilities that a case needs, in the order of :data:`CAPABILITIES`."""
    course, inputs = problem.trajectory, problem.inputs
    given: list[Value] = [*inputs.values()]
    if course is not None:
        given += course.series.values()
        first = course.inputs(
            1, course.state, lambda array: array, lambda it, like: like.astype(it.dtype)
        )
        inputs = first
    stored = [*(problem.stored or {}).values()]
    for values in (given, stored):
        # It grows by what sequences and maps hold.
        for value in values:
            if isinstance(value, (list, dict)):
                values.extend(value.values() if isinstance(value, dict) else value)
    mine = [it for it in given if isinstance(it, np.ndarray)]
    arrays = mine + [it for it in stored if isinstance(it, np.ndarray)]
    floats = [array for array in arrays if "float" in dtype_name(array.dtype)]
    types = {dtype_name(it.dtype) for it in mine} & {dtype_name(it.dtype) for it in floats}
    attributes = (it.f for node in problem.model.graph.node for it in node.attribute)
    counts = [it for it in mine if it.dtype == np.int64 and it.size == 1]
    call = None if problem.must_reject else problem.call
    groups = call.groups if call else ()
    needed = {
        "double": any(it.dtype == np.float64 for it in floats),
        "mixed-types": len(types) > 1,
        "many-tensors": len(groups) > 1,
        "broadcasting": any(it.shape != group[0].shape for group in groups for it in group),
        "refusals": problem.must_reject,
        "not-finite": not (
            all(map(math.isfinite, attributes)) and all(np.isfinite(it).all() for it in floats)
        ),
        "large-counts": any(abs(int(count.item())) > _EXACT_COUNT for count in counts),
        "empty": any(it.size == 0 for it in mine),
        "large": sum(it.size for it in mine) > _LARGE_ELEMENTS,
    }
    return tuple(name for name in CAPABILITIES if needed[name])


def capabilities_of(case: Case) -> tuple[str, ...]:
    """Return the capabilities that a case needs; none if it cannot be read."""
    try:
        return capabilities(case.load())
    except (InvalidCase, NodeError, MemoryError):
        # Running it says so.
        return ()


def _read(path: Path) -> dict[str, _Failures]:
    try:
        found = read_json(read_regular_file(path, _MOST_BYTES)) if is_ours(path.lstat()) else {}
        return {
            folder: {backend: [*map(str, cases)] for backend, cases in backends.items()}
            for folder, backends in found.items()
        }
    except (OSError, Malformed, ValueError, TypeError, AttributeError):
        return {}
