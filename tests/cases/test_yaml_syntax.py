"""Hostile YAML is rejected while PyYAML parses it, before a tree of nodes is built."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from onnxopt_cli.cases.yaml import yaml_syntax
from onnxopt_cli.cases.yaml.yaml_syntax import (
    MAX_DEPTH,
    parse_yaml,
    plain_scalar,
    read_source,
)


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request, monkeypatch):
    """Run the test with each of PyYAML's two parsers: libyaml, and the parser in Python."""
    monkeypatch.setattr(yaml_syntax, "_Loader", getattr(yaml, request.param))
    return request.param


def first_error(text):
    _, errors = parse_yaml(text)
    return f"{errors[0].line}: {errors[0].message}"


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: &x 1", "2: found the anchor &x, expected plain values"),
        ("a: &x [1]\nb: *x", "1: found the anchor &x, expected plain values"),
        ("a: *x", "1: found the alias *x, expected plain values"),
        ("*x : 1", "1: found the alias *x, expected plain values"),
        ("a: 1\nb: !!python/object:os.system 1", "2: found the tag tag:yaml.org,2002:python/obj"),
        ("a: !!str 1", "1: found the tag tag:yaml.org,2002:str"),
        ("a: !mine {b: 1}", "1: found the tag !mine"),
        ("a: 1\nb: 2\na: 3", "3: found this key again, expected it once (line 1)"),
        ("a: {b: 1, b: 1}", "1: found this key again"),
        ("a: 1\n---\nb: 1", "2: found a second YAML document"),
        ("? [a]\n: 1", "1: found a list of 1 as a key, expected a name"),
        ("? {a: 1}\n: 1", "1: found a mapping with a as a key, expected a name"),
        ("a: 1e400", "1: found 1e400, expected a number in the range of a double, or .inf"),
        ("a: 0x1p9999", "1: found 0x1p9999, expected a number in the range of a double"),
        ("a: 1e-400", "1: found 1e-400, expected a number that does not underflow"),
        ("a: 0x1p-9999", "1: found 0x1p-9999, expected a number that does not underflow"),
        ("a: " + "9" * 5000, "1: found an integer of 5000 digits, expected at most 300"),
        ("a: [1, 2", "1: found invalid YAML"),
        ("a: 1\nb: é\nc: \x01", "3: found invalid YAML"),
        ("a:\n\t- 1", "2: found a line indented with a tab, expected spaces"),
        ('a: "\\q"', "1: found invalid YAML"),
        ("a: 1\n...\nb", "3: found invalid YAML"),
        ("a:\n  - 1\n b: 2", "3: found invalid YAML"),
    ],
)
def test_rejected_syntax_is_reported_with_its_line(text, message):
    assert first_error(text).startswith(message)


def test_alias_bomb_is_rejected_without_expansion():
    levels = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for name, other in zip("bcdefghi", "abcdefgh", strict=True):
        levels.append(f"{name}: &{name} [{', '.join([f'*{other}'] * 10)}]")
    _, errors = parse_yaml("\n".join(levels))
    assert len(errors) == 9 + 80


# A parser without a depth limit would crash on this text, so a separate process parses the text.
NESTED = """
import sys, yaml
from onnxopt_cli.cases.yaml import yaml_syntax as syntax
syntax._Loader = getattr(yaml, sys.argv[1])
for unit in sys.argv[2:]:
    root, errors = syntax.parse_yaml(unit * 1_000_000)
    print(unit, root, errors[0].line, errors[0].message, flush=True)
"""


@pytest.mark.slow
def test_deep_nesting_is_rejected_at_the_limit(loader):
    units = ["[", "{a: ", "- ", "? ", "[{a: "]
    done = subprocess.run(
        [sys.executable, "-c", NESTED, loader, *units], capture_output=True, text=True, check=False
    )
    message = f"None 1 found nesting deeper than {MAX_DEPTH}, expected less"
    assert done.stdout.splitlines() == [f"{unit} {message}" for unit in units], done.stderr


@pytest.mark.usefixtures("loader")
def test_nesting_up_to_the_limit_is_read():
    assert parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)[1] == []
    assert parse_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))[1] != []


def test_number_of_values_is_limited(monkeypatch):
    monkeypatch.setattr(yaml_syntax, "MAX_NODES", 100)
    assert parse_yaml("[" + "1," * 90 + "]")[1] == []
    assert first_error("[" + "1," * 100 + "]").startswith("1: found over 100 values")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-7", 1e-7),
        ("1E5", 1e5),
        ("-1.5e+3", -1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("0x1.8p-3", 0.1875),
        ("-0X1P+2", -4.0),
        ("0x.8p1", 1.0),
        ("0x1F", 31),
        ("-0x10", -16),
        ("0o17", 15),
        ("010", 10),
        ("18446744073709551615", 18446744073709551615),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("no", "no"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("1e", "1e"),
        ("0e0", 0.0),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text, value):
    scalar = plain_scalar(text)
    assert scalar == value
    assert type(scalar) is type(value)


def test_a_negative_zero_keeps_its_sign():
    assert math.copysign(1, plain_scalar("-0.0")) == -1


def test_a_quoted_number_stays_text():
    root, _ = parse_yaml('a: "1"')
    assert root.field("a").scalar == "1"


@given(st.text(alphabet="[]{}:,-?*&!|>'\"% \n\tab1.#~\0é"))
def test_arbitrary_text_raises_no_exception(text):
    root, errors = parse_yaml(text)
    assert root is not None or errors


def test_json_may_escape_characters_beyond_16_bits(tmp_path):
    texts = ["\U0001f600\U0001f601", "\\\U0001f600", "\\ud83d\\ude00", "\\\\ud83d\\\\ude00"]
    path = tmp_path / "case.json"
    path.write_text(json.dumps(texts))
    root, errors = parse_yaml(read_source(path))
    assert not errors
    assert [item.scalar for item in root.items] == texts
