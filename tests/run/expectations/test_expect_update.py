"""``--update-expect``: an expectation file that says what a run has shown."""

from __future__ import annotations

import pytest
from demo import run_arguments, write_demo
from places import PLUGINS

FILE = "e.yaml"
HEAD = "onnxopt-expect: 1\nexpect:\n"


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


@pytest.fixture
def update(demo, onnxopt):
    """Update an expectation file of a text by a run on a backend; return what it is then."""

    def call(name, text=None, *more):
        if text is not None:
            (demo / FILE).write_text(text)
        answer = onnxopt(*run_arguments(name, "--update-expect", FILE, *more))
        assert answer.code in {0, 1}, answer.err
        return (demo / FILE).read_text()

    return call


def test_a_new_file_makes_the_same_run_green(update, demo, onnxopt):
    text = update("RaisesAtB")
    assert text == HEAD + (
        '  - case: demo/demo/b\n    backend: "python:vendor.py:RaisesAtB"\n    outcome: error\n'
        '  - case: demo/demo/c\n    backend: "python:vendor.py:RaisesAtB"\n    outcome: fail\n'
    )
    assert onnxopt(*run_arguments("RaisesAtB", "--expect", FILE)).code == 0


def test_an_up_to_date_file_is_left_alone(update, demo):
    text = f"# hand made\n{HEAD}- {{case: demo/demo/c, outcome: fail}} # so\n\n"
    assert update("OffAtC", text) == text


MADE_BY_HAND = """\
# What is known of us.

onnxopt-expect:   1   # version

must-pass:
- demo/demo/a

expect:
# Fixed by now.
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


def test_what_stays_keeps_reason_comments_order_and_form(update):
    before = MADE_BY_HAND.format("case: demo/demo/d\n  outcome: pass")
    assert (
        update("OffAtC", before)
        == """\
# What is known of us.

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
        # A glob of which one case passes now stays, and that case gets an entry of its own.
        (
            GLOB,
            f"{GLOB}  - case: demo/demo/b\n    backend: {OFF_AT_C}\n    outcome: pass\n",
        ),
        # A list loses what is stale.
        (
            "  - case:\n      - demo/demo/c\n      - gone\n    outcome: fail\n",
            "  - case: demo/demo/c\n    outcome: fail\n",
        ),
        # A repetition goes.
        (
            "  - case: demo/demo/c\n    outcome: fail\n  - case: demo/demo/c\n    outcome: error\n",
            "  - case: demo/demo/c\n    outcome: fail\n",
        ),
        # What has expired loses its date if it is still needed.
        (
            "  - case: demo/demo/c\n    expires: 2020-01-01\n    outcome: fail\n",
            "  - case: demo/demo/c\n    outcome: fail\n",
        ),
        ("  - case: demo/demo/a\n    expires: 2020-01-01\n    outcome: fail\n", None),
        # Entries for other backends are none of our business.
        (OTHER_FILE, OTHER_FILE),
    ],
)
def test_entries_change_as_little_as_makes_them_true(update, onnxopt, before, after):
    text = update("OffAtC", HEAD + before)
    if after is None:
        after = f"  - case: demo/demo/c\n    backend: {OFF_AT_C}\n    outcome: fail\n"
    assert text == HEAD + after
    assert onnxopt(*run_arguments("OffAtC", "--expect", FILE)).code == 0


def test_an_earlier_layer_stays_and_is_overridden(update, demo, onnxopt):
    (demo / "base.yaml").write_text(f"{HEAD}  - {{case: demo/demo/a, outcome: fail}}\n")
    base = (demo / "base.yaml").read_text()
    text = update("OffAtC", None, "--expect", "base.yaml")
    assert "case: demo/demo/a" in text
    assert "outcome: pass" in text
    assert (demo / "base.yaml").read_text() == base
    answer = onnxopt(*run_arguments("OffAtC", "--expect", "base.yaml", "--expect", FILE))
    assert answer.code == 0


def test_nothing_excuses_what_must_pass(update, onnxopt):
    text = "onnxopt-expect: 1\nmust-pass: [demo/demo/c]\n"
    assert update("OffAtC", text) == text
    assert onnxopt(*run_arguments("OffAtC", "--expect", FILE)).code == 1


@pytest.mark.parametrize(("more", "code"), [(["-x"], 1), (["broken.yaml"], 2)])
def test_a_run_that_is_not_complete_writes_nothing(demo, onnxopt, more, code):
    (demo / "broken.yaml").write_text("onnxopt: 1\ncases: []\n")
    answer = onnxopt(*run_arguments("Off", *more, "--update-expect", FILE))
    assert answer.code == code
    assert "e.yaml is not written: not every case could be run" in answer.out
    assert not (demo / FILE).exists()


def test_what_a_backend_does_at_its_end_can_be_expected(demo, onnxopt):
    run = ("run", "demo.yaml", "-b", f"python:{PLUGINS}/hostile.py:DiesAtTeardown")
    assert onnxopt(*run, "--update-expect", FILE).code == 1
    assert "case: worker/teardown" in (demo / FILE).read_text()
    assert onnxopt(*run, "--expect", FILE).code == 0
    assert "is up to date" in onnxopt(*run, "--update-expect", FILE).out
    (demo / FILE).write_text(HEAD + "  - case: worker/teardwn\n    outcome: crash\n")
    answer = onnxopt(*run, "--expect", FILE)
    assert (answer.code, "stale: no case is worker/teardwn" in answer.text) == (1, True)


def test_line_ends_stay_as_they_are(demo, onnxopt):
    (demo / FILE).write_bytes(b"onnxopt-expect: 1\r\n# known\r\nexpect:\r\n")
    onnxopt(*run_arguments("OffAtC", "--update-expect", FILE))
    text = (demo / FILE).read_bytes()
    assert b"demo/demo/c" in text
    assert text.count(b"\n") == text.count(b"\r\n") > 3


def test_a_shard_writes_nothing(demo, onnxopt):
    answer = onnxopt(*run_arguments("Off", "--shard", "1/2", "--update-expect", FILE))
    assert (answer.code, "--update-expect needs a whole run" in answer.err) == (2, True)
    assert not (demo / FILE).exists()


def test_entries_on_one_line_that_need_a_change_are_refused(demo, onnxopt):
    text = "onnxopt-expect: 1\nexpect: [{case: demo/demo/c, outcome: error}]\n"
    (demo / FILE).write_text(text)
    answer = onnxopt(*run_arguments("OffAtC", "--update-expect", FILE))
    assert (answer.code, "must stand on lines of their own" in answer.err) == (2, True)
    assert "1 fail" in answer.out
    assert (demo / FILE).read_text() == text


def test_a_missing_folder_is_created(demo, onnxopt):
    answer = onnxopt(*run_arguments("OffAtC", "--update-expect", "new/folder/e.yaml"))
    assert (demo / "new/folder/e.yaml").is_file(), answer.err
