"""Selects cases by pattern, tag, operator, required capabilities, and failures in earlier runs."""

from __future__ import annotations

import json
import math
import os
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
from onnxopt_cli.config.run_config import Filters
from onnxopt_cli.core.cache import cache_folder, write_cached
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.files import working_folder
from onnxopt_cli.core.result import (
    OUTSIDE_IDS,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import (
    abbreviated,
    nearest,
    printable,
    some_of,
)
from onnxopt_cli.core.untrusted_files import Malformed, is_owned, read_regular_file
from onnxopt_cli.core.values import Value, dtype_name
from onnxopt_cli.errors import (
    InvalidCase,
    NodeError,
    NothingSelected,
    OnnxoptError,
    UsageError,
)
from onnxopt_cli.operators.nodes import operator_names

# The file in the cache that stores the last failures for --lf and --ff. The file never makes a run
# fail: if it is missing, damaged, not writable or owned by another user, it is treated as empty.
_FAILURES_FILE = "last-failures.json"
_MAX_FILE_BYTES = 4 << 20
# The hint about an unknown tag or operator lists at most this number of existing ones.
_MAX_SHOWN_NAMES = 8
# Number of most recently used folders whose failures the file keeps.
_MAX_FOLDERS = 20
# For each folder, number of most recently used backends whose failures the file keeps.
_MAX_BACKENDS = 10

#: For each backend, the ids of the cases that failed in their last run.
_Failures = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class FailedLast:
    """States how to treat the cases that failed in their last run in this folder.

    Attributes:
        backends: the backends whose failures count.
        only: whether to select only the cases that failed; otherwise the cases that failed run
            first.
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
    required: bool = False,
) -> tuple[list[Case], dict[str, str]]:
    """Select cases; all comparisons ignore letter case.

    Args:
        cases: the cases to select from.
        filters: the filters of the command line; an empty filter selects every case.
        tell: called with each notice for the user. A notice names a word that matches no case, or
            states why all cases run although --lf was given.
        without: capabilities to exclude in addition to those in the filters, each with the reason.
        failed: how to use earlier failures; None ignores them.
        required: whether at least one case must be selected.

    Returns:
        Two items. The first is the list of selected cases, in their original order unless failed
        cases run first. The second contains, by excluded capability, a text that states how many
        cases need the capability and why it is excluded.

    Raises:
        UsageError: if no case has a given operator or tag, a capability is unknown, or a pattern
            has a syntax error.
        NothingSelected: if a case is required and none is selected; the hint names each word that
            matches no case.
    """
    chosen = list(cases)
    ids = [case.id for case in cases]
    patterns = [_Pattern(pattern, ids) for pattern in filters.patterns]
    if patterns:
        matching = set[str]().union(*(pattern.matching for pattern in patterns))
        chosen = [case for case in cases if case.id in matching]
    if filters.tags:
        chosen = _having("tag", filters.tags, chosen, cases, lambda case: case.tags)
    if filters.operators:
        chosen = _having("operator", filters.operators, chosen, cases, operators_of)
    notices = []
    for word in sorted({word for pattern in patterns for word in pattern.unmatched}):
        hint = _similar_id(word, ids)
        notices.append(f"no case's id matches -k {abbreviated(word)}{'; ' * bool(hint)}{hint}")
    reason = ""
    if failed is not None:
        chosen, reason = _failed_last(chosen, failed)
    names = {**dict.fromkeys(filters.without, ""), **without}
    chosen, left_out = _leave_out(chosen, names) if names else (chosen, {})
    if required and not chosen:
        raise NothingSelected(
            f"no case is selected, of {len(cases)} found",
            hint="\n".join([*notices, "onnxopt list shows the ids that -k matches"]),
        )
    for notice in filter(None, [*notices, reason]):
        tell(notice)
    return chosen, left_out


def _similar_id(word: str, ids: Sequence[str]) -> str:
    """Return a hint with the part of an id that is similar to a word, or an empty string."""
    pieces = {piece.lower(): piece for name in ids for piece in (*name.split("/"), name)}
    if hint := nearest(word, pieces.values()):
        return hint
    for end in range(len(word) - 1, 1, -1):
        for piece in sorted(pieces):
            if piece.startswith(word[:end].lower()):
                return f"did you mean {pieces[piece]}?"
    return ""


def _failed_last(cases: list[Case], wanted: FailedLast) -> tuple[list[Case], str]:
    """Return the cases that failed in their last run, and, unless ``wanted.only``, all others.

    If none of the cases failed, or a backend has no earlier run, all cases and the reason are
    returned.
    """
    failures = _read(cache_folder() / _FAILURES_FILE).get(working_folder(), {})
    unknown = [name for name in wanted.backends if name not in failures]
    if unknown:
        return cases, f"no earlier run on {unknown[0]} in this folder is known: all cases run"
    ids = {case for name in wanted.backends for case in failures[name]}
    failed = [case for case in cases if case.id in ids]
    if not failed:
        return cases, "none of the cases failed in its last run: all cases run"
    return failed + ([] if wanted.only else [case for case in cases if case.id not in ids]), ""


def remember(results: Sequence[Result]) -> None:
    """Store which cases failed, for --lf and --ff; a case that did not run keeps its state."""
    path = cache_folder() / _FAILURES_FILE
    if not os.path.lexists(path) and all(result.conforms for result in results):
        return
    folders = _read(path)
    before = folders.pop(working_folder(), {})
    failures = {**before}
    conforms: dict[str, dict[str, bool]] = {}
    for result in results:
        if result.outcome is not Outcome.NOT_RUN and result.case not in OUTSIDE_IDS:
            conforms.setdefault(result.backend, {})[result.case] = result.conforms
    for backend, cases in conforms.items():
        not_run = [case for case in failures.pop(backend, ()) if case not in cases]
        failures[backend] = not_run + [case for case, passed in cases.items() if not passed]
    if failures == before:
        return
    folders[working_folder()] = dict([*failures.items()][-_MAX_BACKENDS:])
    with suppress(OSError, OnnxoptError):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        data = json.dumps(dict([*folders.items()][-_MAX_FOLDERS:])).encode()
        write_cached(path, data if len(data) <= _MAX_FILE_BYTES else b"{}")


def operators_of(case: Case) -> tuple[str, ...]:
    """Return the names of the operators in a case's model; empty if the case is invalid."""
    if case.operators is not None:
        return case.operators
    try:
        return operator_names(case.load().model)
    except InvalidCase:
        return ()


_TOKEN = re.compile(r"[()]|[^\s()]+")
_MAX_DEPTH = 100


class _Pattern:
    """A pattern of -k, matched against ids.

    A text that matches an id literally is not parsed as an expression, because ids may contain
    parentheses or blanks. A single word is not parsed as an expression either: ``and`` selects the
    cases of the operator And.

    Args:
        text: the text of the pattern.
        ids: the ids of all cases.

    Attributes:
        matching: the ids that match.
        unmatched: the words of the pattern that match no id.

    Raises:
        UsageError: if the expression has a syntax error; the message gives the position of the
            error.
    """

    def __init__(self, text: str, ids: Sequence[str]) -> None:
        self._text, self._ids = text, ids
        self.unmatched: list[str] = []
        self.matching = set(_matching(text, ids))
        self._tokens = [(match[0], match.start()) for match in _TOKEN.finditer(text)]
        if self.matching or len(self._tokens) < 2:  # noqa: PLR2004 - a single word
            self.unmatched = [] if self.matching else [text]
            return
        self.matching = self._disjunction(0)
        if self._tokens:
            self._fail('"and" or "or"')

    def _disjunction(self, depth: int) -> set[str]:
        matching = self._conjunction(depth)
        while self._accept("or"):
            matching |= self._conjunction(depth)
        return matching

    def _conjunction(self, depth: int) -> set[str]:
        matching = self._operand(depth)
        while self._accept("and"):
            matching &= self._operand(depth)
        return matching

    def _operand(self, depth: int) -> set[str]:
        if depth > _MAX_DEPTH:
            self._fail("fewer parentheses")
        if self._accept("not"):
            return set(self._ids) - self._operand(depth + 1)
        if self._accept("("):
            matching = self._disjunction(depth + 1)
            if not self._accept(")"):
                self._fail('")"')
            return matching
        if not self._tokens or self._tokens[0][0] in {"and", "or", ")"}:
            self._fail("a word")
        word, _ = self._tokens.pop(0)
        matching = set(_matching(word, self._ids))
        if not matching:
            self.unmatched.append(word)
        return matching

    def _accept(self, token: str) -> bool:
        """Consume the next token if it equals the given text."""
        if self._tokens and self._tokens[0][0] == token:
            self._tokens.pop(0)
            return True
        return False

    def _fail(self, expected: str) -> NoReturn:
        token, start = self._tokens[0] if self._tokens else ("", len(self._text))
        actual = f'"{printable(token)}"' if token else "the end"
        before = printable(self._text[:start])
        raise UsageError(
            f"-k: found {actual} at character {start + 1}, expected {expected}",
            hint=f"{before}{printable(self._text[start:])}\n{' ' * len(before)}^",
        )


def _matching(pattern: str, ids: Sequence[str]) -> list[str]:
    """Return the ids that a single word matches; a complete id matches only itself."""
    if pattern in ids:
        return [pattern]
    lowered = pattern.lower()
    glob = lowered if set(lowered) & set("*?[") else f"*{lowered}*"
    return [name for name in ids if fnmatchcase(name.lower(), glob)]


def _having(
    kind: str,
    wanted: tuple[str, ...],
    chosen: Sequence[Case],
    cases: Sequence[Case],
    words_of: Callable[[Case], tuple[str, ...]],
) -> list[Case]:
    """Return the chosen cases that have one of the wanted words.

    Raises:
        UsageError: if a word does not occur in any case, chosen or not.
    """
    pairs = [(case, words_of(case)) for case in chosen]
    existing = {word.lower(): word for _, words in pairs for word in words}
    if any(word.lower() not in existing for word in wanted):
        existing = {word.lower(): word for case in cases for word in words_of(case)}
    for word in wanted:
        if cases and word.lower() not in existing:
            listing = some_of([*existing.values()], _MAX_SHOWN_NAMES) or "none"
            hint = nearest(word, existing.values(), f"the {kind}s are: {listing}")
            raise UsageError(f"no case has the {kind} {word!r}", hint=hint)
    lowered = {word.lower() for word in wanted}
    return [case for case, words in pairs if lowered & {word.lower() for word in words}]


def _leave_out(
    cases: Sequence[Case], without: Mapping[str, str]
) -> tuple[list[Case], dict[str, str]]:
    """Exclude the cases that need one of some capabilities; count these cases by capability."""
    for name in without:
        if name not in CAPABILITIES:
            hint = nearest(name, CAPABILITIES, f"the capabilities are {', '.join(CAPABILITIES)}")
            raise UsageError(f"unknown capability {printable(name)!r}", hint=hint)
    needs = [set(capabilities_of(case)) for case in cases]
    left_out = {}
    for name, reason in without.items():
        count = sum(name in need for need in needs)
        left_out[name] = f"{count} case{'s' * (count != 1)}{': ' * bool(reason)}{reason}"
    selected = [case for case, need in zip(cases, needs, strict=True) if need.isdisjoint(without)]
    return selected, left_out


#: The capabilities and their descriptions, in display order.
CAPABILITIES = {
    "double": "tensors of doubles",
    "mixed-types": "floating-point inputs of different types",
    "many-tensors": "several optimized tensors in a node",
    "broadcasting": "tensors that broadcast to the shape of the first one",
    "refusals": "rejection of nodes that break the operator's signature",
    "not-finite": "NaN and infinity in inputs, attributes or stored outputs",
    "large-counts": "counts beyond 2^24, which float32 cannot hold",
    "empty": "tensors without elements",
    "large": "more than 10,000 elements",
}
_EXACT_COUNT = 2**24
_LARGE_ELEMENTS = 10_000


def capabilities(problem: Problem) -> tuple[str, ...]:
    """Return the capabilities that a case needs, in the order of :data:`CAPABILITIES`."""
    trajectory = problem.trajectory
    inputs: list[Value] = [*problem.inputs.values()]
    if trajectory is not None:
        inputs += trajectory.series.values()
    stored = [*(problem.stored or {}).values()]
    for values in (inputs, stored):
        # The loop also visits the elements of sequences and maps, because it appends them to the
        # list.
        for value in values:
            if isinstance(value, (list, dict)):
                values.extend(value.values() if isinstance(value, dict) else value)
    input_arrays = [value for value in inputs if isinstance(value, np.ndarray)]
    arrays = input_arrays + [value for value in stored if isinstance(value, np.ndarray)]
    floats = [array for array in arrays if "float" in dtype_name(array.dtype)]
    float_types = {array.dtype for array in floats}
    input_types = {dtype_name(array.dtype) for array in input_arrays}
    types = input_types & {dtype_name(dtype) for dtype in float_types}
    attributes = (attribute.f for node in problem.model.graph.node for attribute in node.attribute)
    counts = [array for array in input_arrays if array.dtype == np.int64 and array.size == 1]
    call = None if problem.must_reject else problem.call
    groups = call.groups if call else ()
    needed = {
        "double": np.dtype(np.float64) in float_types,
        "mixed-types": len(types) > 1,
        "many-tensors": len(groups) > 1,
        "broadcasting": any(array.shape != group[0].shape for group in groups for array in group),
        "refusals": problem.must_reject,
        "not-finite": not (
            all(map(math.isfinite, attributes))
            and all(np.isfinite(array).all() for array in floats)
        ),
        "large-counts": any(abs(int(count.item())) > _EXACT_COUNT for count in counts),
        "empty": any(array.size == 0 for array in input_arrays),
        "large": sum(array.size for array in input_arrays) > _LARGE_ELEMENTS,
    }
    return tuple(name for name in CAPABILITIES if needed[name])


def capabilities_of(case: Case) -> tuple[str, ...]:
    """Return the capabilities that a case needs; empty if the case is invalid."""
    try:
        return capabilities(case.load())
    except (InvalidCase, NodeError, MemoryError):
        # The run reports the error of the case.
        return ()


def _read(path: Path) -> dict[str, _Failures]:
    try:
        if not is_owned(path.lstat()):
            return {}
        document = read_json(read_regular_file(path, _MAX_FILE_BYTES))
        return {
            folder: {backend: [*map(str, cases)] for backend, cases in backends.items()}
            for folder, backends in document.items()
        }
    except (OSError, Malformed, ValueError, TypeError, AttributeError):
        return {}
