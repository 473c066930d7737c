"""Globs that match a set of case ids and no other id.

A glob consists of a prefix, one ``*`` and possibly a suffix, as in ``conformance/adam/*_double``.
The prefix ends, and the suffix begins, with a separator of words. All globs of this form that match
an id can be listed, which is faster than comparing every glob with every id.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape

#: The least number of ids that a glob must match. Fewer ids are clearer than a glob.
MIN_MATCHES = 3
_SEPARATOR = re.compile(r"[/_.\-]")
# No globs are listed for an id with more separators: their number grows quadratically.
_MAX_SEPARATORS = 24


def covering_globs(ids: Sequence[str], others: Collection[str]) -> list[str]:
    """Return globs and ids that together match the given ids and no other ids.

    Args:
        ids: the ids to match.
        others: ids that no pattern may match, unless they are among ``ids``.

    Returns:
        The patterns, in the order of the first id that each of them matches; special characters of
        ids are escaped.
    """
    places = {case: place for place, case in enumerate(ids)}
    matched: dict[str, set[str]] = defaultdict(set)
    for case in places:
        for glob in _globs(case):
            matched[glob].add(case)
    matched = {glob: cases for glob, cases in matched.items() if len(cases) >= MIN_MATCHES}
    for case in others:
        if case not in places:
            # An id with too many separators is compared with every glob.
            for glob in _globs(case) or [glob for glob in matched if fnmatchcase(case, glob)]:
                matched.pop(glob, None)
    patterns: dict[str, int] = {}
    uncovered = set(places)
    while matched:
        # Among globs that match the same number of ids, the longest is the most specific.
        glob = max(matched, key=lambda glob: (len(matched[glob]), len(glob), glob))
        patterns[glob] = min(map(places.__getitem__, matched[glob]))
        uncovered -= matched[glob]
        unmatched = {glob: cases & uncovered for glob, cases in matched.items()}
        matched = {glob: cases for glob, cases in unmatched.items() if len(cases) >= MIN_MATCHES}
    patterns |= {escape(case): places[case] for case in uncovered}
    return sorted(patterns, key=patterns.__getitem__)


def _globs(case: str) -> list[str]:
    """Return all globs of the module's form that match an id; none if there are too many."""
    places = [match.start() for match in _SEPARATOR.finditer(case)]
    return [*_at(case, places)] if len(places) <= _MAX_SEPARATORS else []


def _at(case: str, places: Sequence[int]) -> Iterator[str]:
    """Yield the globs of an id, given the places of its separators."""
    for number, start in enumerate(places):
        prefix = f"{escape(case[: start + 1])}*"
        yield prefix
        for end in places[number + 1 :]:
            yield prefix + escape(case[end:])
