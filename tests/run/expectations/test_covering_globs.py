"""Globs of ``--update-expect``: they match the chosen ids, and no other id."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import example, given
from hypothesis import strategies as st

from onnxopt_cli.run.expectations.covering_globs import MIN_MATCHES, covering_globs

WORD = st.sampled_from(["a", "b", "[ab]", "*", ""])
# There are few ids, so a glob often matches ids that were chosen and ids that were not.
IDS = st.builds("{}/{}_{}".format, WORD, WORD, WORD) | st.just("_".join("a" * 40))


@example(cases={"s/a_1": True, "s/a_2": True, "s/a_3": True, "s/a_4": False})
@given(cases=st.dictionaries(IDS, st.booleans(), max_size=30))
def test_patterns_match_the_chosen_ids_and_no_other(cases):
    chosen = [case for case, is_chosen in cases.items() if is_chosen]
    patterns = covering_globs(chosen, list(cases))
    matches = {
        pattern: {case for case in cases if fnmatchcase(case, pattern)} for pattern in patterns
    }
    assert set().union(*matches.values()) == set(chosen)
    assert all(len(matched) == 1 or len(matched) >= MIN_MATCHES for matched in matches.values())


def test_ids_of_one_operator_become_one_glob():
    ids = [f"suite/{name}/{case}" for name in ("adam", "sgd") for case in "abc"]
    assert covering_globs(ids[:3], ids) == ["suite/adam/*"]
    assert covering_globs(ids[::-1], ids) == ["suite/*"]
    double = [f"suite/adam/{word}_double" for word in ("one", "two", "three")]
    assert covering_globs(double, [*ids, *double]) == ["suite/adam/*_double"]
