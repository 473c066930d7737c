"""``--update-expect`` updates an expectation file to match the results of a run."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
import yaml
from demo import CASE, run_arguments, write_demo
from hypothesis import example, given
from hypothesis import strategies as st
from places import PLUGINS

from onnxopt_cli.run.expectations.expectation_update import MIN_MATCHES, covering_globs

FILE = "e.yaml"
HEAD = "onnxopt-expect: 1\nexpect:\n"
WORD = st.sampled_from(["a", "b", "[ab]", "*", ""])
# There are few different ids, so a glob often matches both chosen ids and other ids.
IDS = st.builds("{}/{}_{}".format, WORD, WORD, WORD) | st.just("_".join("a" * 40))


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


@pytest.fixture
def update(demo, onnxopt):
    """Return a function that runs the demo, updates an expectation file, and returns its text."""

    def call(name, text=None, *options):
        if text is not None:
            (demo / FILE).write_text(text)
        answer = onnxopt(*run_arguments(name, "--update-expect", FILE, *options))
        assert answer.code in {0, 1}, answer.err
        return (demo / FILE).read_text()

    return call


def test_run_conforms_to_its_new_expectation_file(update, demo, onnxopt):
    text = update("RaisesAtB")
    assert text == HEAD + (
        '  - case: demo/demo/b\n    backend: "python:vendor.py:RaisesAtB"\n    outcome: error\n'
        '    reason: "Momentum: error: ValueError: no luck"\n'
        '  - case: demo/demo/c\n    backend: "python:vendor.py:RaisesAtB"\n    outcome: fail\n'
        '    outputs: X_new\n    reason: "Momentum: X_new off"\n'
    )
    assert onnxopt(*run_arguments("RaisesAtB", "--expect", FILE)).code == 0
    assert "is up to date" in onnxopt(*run_arguments("RaisesAtB", "--update-expect", FILE)).out


OFF_OR_RAISES = """

class OffOrRaises(Right):
    def answer(self, first, outputs):
        if first in (2, 4):
            raise ValueError("no luck")
        return outputs if first == 5 else off(outputs)
"""
MANY_CASES = """\
onnxopt: 1
suite: many
operator: Momentum
cases:
"""


def test_causes_become_entries_with_globs_that_match_no_other_case(demo, onnxopt):
    with (demo / "vendor.py").open("a") as file:
        file.write(OFF_OR_RAISES)
    values = {"plain_1": 1, "plain_2": 1, "plain_3": 3, "odd_1": 2, "odd_2": 4, "odd_3": 5,
              "odd_4": 1, "late_1": 2, "late_2": 2, "late_3": 2}  # fmt: skip
    cases = (CASE.format(name=name, place=place) for name, place in values.items())
    (demo / "demo.yaml").write_text(MANY_CASES + "".join(cases))
    onnxopt(*run_arguments("OffOrRaises", "--update-expect", FILE))
    backend = '    backend: "python:vendor.py:OffOrRaises"\n'
    assert (demo / FILE).read_text() == HEAD + (
        f'  - case: ["many/demo/plain_*", many/demo/odd_4]\n{backend}    outcome: fail\n'
        '    outputs: X_new\n    reason: "Momentum: X_new off"\n'
        '  - case: [many/demo/odd_1, many/demo/odd_2, "many/demo/late_*"]\n'
        f'{backend}    outcome: error\n    reason: "Momentum: error: ValueError: no luck"\n'
    )
    assert onnxopt(*run_arguments("OffOrRaises", "--expect", FILE)).code == 0


# A backend with a known mistake: in the mode standard, it updates X with V instead of V_new.
OLD_V = """

class OldV:
    def run(self, model, inputs):
        node = model.graph.node[0]
        outputs = NUMPY.prepare(model).run(inputs)
        values = [inputs[name] for name in node.input]
        count = len(outputs) // 2
        if any(attribute.s == b"standard" for attribute in node.attribute):
            for place in range(count):
                x, v = values[2 + place], values[2 + 2 * count + place]
                outputs[place] = x - x.dtype.type(values[0]) * v
        return outputs
"""


def test_failures_of_a_known_mistake_are_expected_by_its_name(demo, onnxopt):
    with (demo / "vendor.py").open("a") as file:
        file.write(OLD_V)
    run = [word for word in run_arguments("OldV") if word != "--no-explain"]
    onnxopt(*run, "--update-expect", FILE, "--explain-time", "60")
    entry = yaml.safe_load((demo / FILE).read_text())["expect"][0]
    reason = entry.pop("reason")
    assert entry == {
        "case": "demo/demo/*",
        "backend": "python:vendor.py:OldV",
        "outcome": "fail",
        "mistake": "step with the old V",
    }
    assert reason.startswith("Momentum: consistent with 'step with the old V'")
    assert onnxopt(*run, "--expect", FILE).code == 0


def test_up_to_date_file_is_not_changed(update, demo):
    text = f"# hand made\n{HEAD}- {{case: demo/demo/c, outcome: fail}} # so\n\n"
    assert update("OffAtC", text) == text


MADE_BY_HAND = """\
# Known failures.

onnxopt-expect:   1   # version

must-pass:
- demo/demo/a

expect:
# Fixed meanwhile.
- case: demo/demo/b
  outcome: fail
  reason: >
    long
    ago

# Still wrong,
# and why.
- case:    'demo/demo/c'      # the third
  reason:  "rounding"   # really
  outcome: error        # or so
  issue:   https://example.org/3

# About two.
- {0}
- case: demo/demo/gone
  outcome: fail
# The end.
"""


def test_update_preserves_reasons_comments_order_and_format(update):
    before = MADE_BY_HAND.format("case: demo/demo/d\n  outcome: pass")
    assert (
        update("OffAtC", before)
        == """\
# Known failures.

onnxopt-expect:   1   # version

must-pass:
- demo/demo/a

expect:

# Still wrong,
# and why.
- case:    'demo/demo/c'      # the third
  reason:  "rounding"   # really
  outcome: fail        # or so
  issue:   https://example.org/3

# About two.
- case: demo/demo/d
  outcome: pass
# The end.
"""
    )


OFF_AT_C = '"python:vendor.py:OffAtC"'
GLOB = "  - case: 'demo/demo/[bc]'\n    outcome: fail\n"
OTHER_FILE = """\
  - case: gone
    outcome: fail
    backend: other
  - case: demo/demo/c
    outcome: fail
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # If a case that a glob matches passes now, the glob is kept, and the case gets an entry.
        (
            GLOB,
            f"{GLOB}  - case: demo/demo/b\n    backend: {OFF_AT_C}\n    outcome: pass\n",
        ),
        # Stale ids are removed from a list.
        (
            "  - case:\n      - demo/demo/c\n      - gone\n    outcome: fail\n",
            "  - case: demo/demo/c\n    outcome: fail\n",
        ),
        # Duplicates are removed.
        (
            "  - case: demo/demo/c\n    outcome: fail\n  - case: demo/demo/c\n    outcome: error\n",
            "  - case: demo/demo/c\n    outcome: fail\n",
        ),
        # An expired entry loses its date if it is still needed.
        (
            "  - case: demo/demo/c\n    expires: 2020-01-01\n    outcome: fail\n",
            "  - case: demo/demo/c\n    outcome: fail\n",
        ),
        ("  - case: demo/demo/a\n    expires: 2020-01-01\n    outcome: fail\n", None),
        # An id or glob is removed from a list if all its cases pass.
        (
            "  - case: [demo/demo/c, demo/demo/d]\n    outcome: fail\n",
            "  - case: demo/demo/c\n    outcome: fail\n",
        ),
        # An entry is replaced if it describes another failure than the present one.
        (
            "  - case: demo/demo/c\n    outcome: fail\n    outputs: V_new\n    reason: old\n",
            None,
        ),
        # Entries for other backends are not changed.
        (OTHER_FILE, OTHER_FILE),
    ],
)
def test_update_changes_only_faulty_entries(update, onnxopt, before, after):
    text = update("OffAtC", HEAD + before)
    if after is None:
        after = (
            f"  - case: demo/demo/c\n    backend: {OFF_AT_C}\n    outcome: fail\n"
            '    outputs: X_new\n    reason: "Momentum: X_new off"\n'
        )
    assert text == HEAD + after
    assert onnxopt(*run_arguments("OffAtC", "--expect", FILE)).code == 0


def test_earlier_file_is_overridden_and_not_changed(update, demo, onnxopt):
    (demo / "base.yaml").write_text(f"{HEAD}  - {{case: demo/demo/a, outcome: fail}}\n")
    base = (demo / "base.yaml").read_text()
    text = update("OffAtC", None, "--expect", "base.yaml")
    assert "case: demo/demo/a" in text
    assert "outcome: pass" in text
    assert (demo / "base.yaml").read_text() == base
    answer = onnxopt(*run_arguments("OffAtC", "--expect", "base.yaml", "--expect", FILE))
    assert answer.code == 0


def test_case_that_must_pass_gets_no_entry(update, onnxopt):
    text = "onnxopt-expect: 1\nmust-pass: [demo/demo/c]\n"
    assert update("OffAtC", text) == text
    assert onnxopt(*run_arguments("OffAtC", "--expect", FILE)).code == 1


@pytest.mark.parametrize(("options", "code"), [(["-x"], 1), (["broken.yaml"], 2)])
def test_incomplete_run_writes_no_file(demo, onnxopt, options, code):
    (demo / "broken.yaml").write_text("onnxopt: 1\ncases: []\n")
    answer = onnxopt(*run_arguments("Off", *options, "--update-expect", FILE))
    assert answer.code == code
    assert "e.yaml is not written: not every case could be run" in answer.out
    assert not (demo / FILE).exists()


@pytest.mark.isolated
def test_failure_at_teardown_can_be_expected(demo, onnxopt):
    run = ("run", "demo.yaml", "-b", f"python:{PLUGINS}/hostile.py:DiesAtTeardown")
    assert onnxopt(*run, "--update-expect", FILE).code == 1
    assert "case: worker/teardown" in (demo / FILE).read_text()
    assert onnxopt(*run, "--expect", FILE).code == 0
    (demo / FILE).write_text(HEAD + "  - case: worker/teardwn\n    outcome: crash\n")
    answer = onnxopt(*run, "--expect", FILE)
    assert (answer.code, "stale: no case is worker/teardwn" in answer.text) == (1, True)


def test_line_ends_are_preserved(demo, onnxopt):
    (demo / FILE).write_bytes(b"onnxopt-expect: 1\r\n# known\r\nexpect:\r\n")
    onnxopt(*run_arguments("OffAtC", "--update-expect", FILE))
    text = (demo / FILE).read_bytes()
    assert b"demo/demo/c" in text
    assert text.count(b"\n") == text.count(b"\r\n") > 3


def test_shard_cannot_update_expectations(demo, onnxopt):
    answer = onnxopt(*run_arguments("Off", "--shard", "1/2", "--update-expect", FILE))
    assert (answer.code, "--update-expect requires a whole run" in answer.err) == (2, True)
    assert not (demo / FILE).exists()


def test_entries_that_share_a_line_cannot_be_changed(demo, onnxopt):
    text = "onnxopt-expect: 1\nexpect: [{case: demo/demo/c, outcome: error}]\n"
    (demo / FILE).write_text(text)
    answer = onnxopt(*run_arguments("OffAtC", "--update-expect", FILE))
    assert (answer.code, "several entries or fields share a line" in answer.err) == (2, True)
    assert "1 fail" in answer.out
    assert (demo / FILE).read_text() == text


def test_missing_folder_is_created(demo, onnxopt):
    answer = onnxopt(*run_arguments("OffAtC", "--update-expect", "folder/e.yaml"))
    assert (demo / "folder/e.yaml").is_file(), answer.err


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
