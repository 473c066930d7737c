"""Messages with the same cause have the same pattern, even if names, numbers or shapes differ."""

from __future__ import annotations

import pytest

from onnxopt_cli.report.view.causes import merged_patterns, message_pattern


@pytest.mark.parametrize(
    ("messages", "pattern"),
    [
        (
            [
                "RuntimeError: node 0 (\"\", op '::BitShift', [Int32] [[3]]) failed: perm rank 2",
                "RuntimeError: node 12 (\"y\", op '::Cast', [] [[1, 4], [2]]) failed: perm rank 3",
            ],
            "RuntimeError: node … failed: perm rank …",
        ),
        (
            [
                "Error: cannot load /tmp/a_1/m.onnx at 0x7f00",
                "Error: cannot load C:\\models\\b.onnx at 0x1",
            ],
            "Error: cannot load … at …",
        ),
        (
            ["no kernel for Gelu of float16", "no kernel for Add of bool"],
            "no kernel for … of …",
        ),
        (
            ["Tensor { dims: [1, 2], kind: (a", "Tensor { dims: []"],
            "Tensor …",
        ),
        (
            ["RunError: ('Conv', 22, 'only 2 axes')", "RunError: ('Gelu', 20, 'only 3 axes')"],
            "RunError: only … axes",
        ),
        (["KeyError: 'x'", "KeyError: 'weight'"], "KeyError: …"),
        (["shape of X is 3x4", "shape of q is 12x1"], "shape of … is …"),
    ],
)
def test_pattern_does_not_contain_names_numbers_and_shapes(messages, pattern):
    operators = {"BitShift", "Cast", "Gelu", "Add"}
    assert {message_pattern(message, operators) for message in messages} == {pattern}


@pytest.mark.parametrize(
    ("first_message", "second_message"),
    [
        ("ValueError: rank mismatch", "TypeError: rank mismatch"),
        ("the kernel is missing", "the kernel is broken"),
        ("it doesn't run", "it doesn't load"),
    ],
)
def test_different_causes_have_different_patterns(first_message, second_message):
    patterns = [message_pattern(first_message), message_pattern(second_message)]
    assert len({*merged_patterns(patterns).values()}) == 2


def test_patterns_that_differ_only_in_a_name_are_merged():
    names = ["start", "limit", "delta"]
    patterns = [message_pattern(f"ValueError: input {name}: rank mismatch") for name in names]
    assert {*merged_patterns(patterns).values()} == {"ValueError: input …: rank mismatch"}
    beside_placeholder = [
        "ValueError: input …: rank mismatch",
        "ValueError: input start: rank mismatch",
    ]
    assert len({*merged_patterns(beside_placeholder).values()}) == 1


@pytest.mark.parametrize("suffix", [f"n{letter}" for letter in "abcdefgh"])
def test_pattern_belongs_to_the_largest_group(suffix):
    ambiguous = f"E: no kernel{suffix}"
    larger = [f"E: {word} kernel{suffix}" for word in ("one", "two", "three", "four")]
    smaller = [f"E: no {word}{suffix}" for word in ("graph", "device")]
    assert merged_patterns([ambiguous, *larger, *smaller])[ambiguous] == f"E: … kernel{suffix}"


@pytest.mark.parametrize(
    "text", ["a" * 50_000, "[" * 50_000, "a_" * 9_999, "'" * 9_999, "a.B" * 999]
)
def test_pattern_of_a_hostile_message_is_short(text):
    assert len(message_pattern(text)) <= 600
