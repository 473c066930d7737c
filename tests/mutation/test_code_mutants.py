"""Mutants of Python functions."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt_cli.mutation.code_mutants import code_mutants, patched


def clamp(value, low=0, high=10):
    """Return a value limited to a range."""
    if low > high:
        raise ValueError("no limits")
    if value < low:
        return low
    return min(value, high)


def scaled(factor):
    def scale(value):
        return factor * value + 1

    return scale


class Parent:
    def total(self, values):
        return sum(values)


class Child(Parent):
    def total(self, values):
        return super().total(values) - 1


def maximum_of_power(value, exponent):
    return np.maximum(value, np.power(value, exponent))


def mutant_of(function, part):
    (mutant,) = [mutant for mutant in code_mutants(function) if part in mutant.name]
    return mutant


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("value <= low", -1, 0),
        ("value >= low", 5, 0),
        ("return max(value, high)", 3, 10),
        ("clamp: nothing, not if value < low", -1, -1),
    ],
)
def test_mutant_computes_the_change_that_its_name_states(part, value, expected):
    mutant = mutant_of(clamp, part)
    correct = clamp(value)
    with patched(mutant.function, mutant.code):
        assert clamp(value) == expected
    assert clamp(value) == correct


def test_checks_that_only_raise_are_not_mutated():
    names = [mutant.name for mutant in code_mutants(clamp)]
    assert len(set(names)) == len(names) > 4
    assert not any("low > high" in name or "ValueError" in name for name in names)


def test_functions_with_closures_and_super_are_mutated():
    scale = scaled(3)
    mutant = mutant_of(scale, "factor * value - 1")
    with patched(mutant.function, mutant.code):
        assert scale(2) == 5
    assert scale(2) == 7
    mutant = mutant_of(Child.total, "super().total(values) + 1")
    with patched(mutant.function, mutant.code):
        assert Child().total([1, 2]) == 4
    assert Child().total([1, 2]) == 2


def test_original_code_returns_after_an_exception():
    original = clamp.__code__
    mutant = mutant_of(clamp, "return max")
    with pytest.raises(TypeError), patched(mutant.function, mutant.code):
        clamp("text")
    assert clamp.__code__ is original


def test_arguments_of_commutative_functions_are_not_exchanged():
    names = [mutant.name for mutant in code_mutants(maximum_of_power)]
    assert any("np.power(exponent, value)" in name for name in names)
    assert not any("np.maximum(np.power(value, exponent), value)" in name for name in names)
