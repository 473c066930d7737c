"""Rewriting formulas by replacing expressions."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from onnxopt_cli.operators.rewrite import rewrite


def hypotenuse(a, b, *, scale=1.0):
    """Return the scaled length of the hypotenuse."""
    square = a * a + b * b
    if scale > 2:
        square = a * a
    return scale * np.sqrt(square)


def test_every_occurrence_of_an_expression_is_exchanged():
    rewritten = rewrite(hypotenuse, {"a * a": "2 * a"})
    assert rewritten(8.0, 3.0) == 5.0
    assert rewritten(8.0, 3.0, scale=3) == 12.0


def test_original_is_not_changed():
    rewrite(hypotenuse, {"a * a": "2 * a"})
    assert hypotenuse(3.0, 4.0) == 5.0


def test_formatting_of_the_old_expression_does_not_matter():
    assert rewrite(hypotenuse, {"( b*b )": "0"})(3.0, 4.0) == 3.0


def test_expression_is_matched_by_structure_and_not_by_its_text():
    # "a + b * b" occurs in the source, but is not an expression of the formula.
    with pytest.raises(ValueError, match=r"hypotenuse has no 'a \+ b \* b'"):
        rewrite(hypotenuse, {"a + b * b": "0"})


def test_statement_may_become_several_statements_or_none():
    several = rewrite(
        hypotenuse, {"square = a * a + b * b": "square = a\nsquare = square + b\nsquare *= square"}
    )
    assert several(3.0, 4.0) == 7.0
    without = rewrite(hypotenuse, {"if scale > 2:\n    square = a * a": ""})
    assert without(3.0, 4.0, scale=3) == 15.0


def test_assigned_name_is_not_an_occurrence_of_the_expression():
    assert rewrite(hypotenuse, {"square": "square / 4"})(6.0, 8.0) == 5.0


def test_replacements_refer_to_the_original_formula():
    exchanged = rewrite(hypotenuse, {"a": "b", "b": "a"})
    assert exchanged(3.0, 4.0, scale=3) == 12.0


def test_larger_of_two_overlapping_expressions_is_replaced():
    rewritten = rewrite(hypotenuse, {"a * a + b * b": "a", "a * a": "b"})
    assert rewritten(16.0, 9.0) == 4.0
    assert rewritten(16.0, 9.0, scale=3) == 9.0


def test_rewritten_formula_keeps_name_signature_and_docstring():
    rewritten = rewrite(hypotenuse, {"a * a": "a"})
    assert inspect.signature(rewritten) == inspect.signature(hypotenuse)
    assert rewritten.__name__ == "hypotenuse"
    assert rewritten.__doc__ == hypotenuse.__doc__


def test_rewritten_formula_can_be_rewritten():
    once = rewrite(hypotenuse, {"a * a": "a"})
    assert rewrite(once, {"a + b * b": "b"})(0.0, 4.0) == 2.0
    with pytest.raises(ValueError, match=r"has no 'a \* a'"):
        rewrite(once, {"a * a": "b"})


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({"c": "a", "d * d": "b", "a": "b"}, r"hypotenuse has no 'c' and no 'd \* d'"),
        ({"a *": "b"}, r"'a \*' is not Python"),
        ({"a": "b *"}, r"'b \*' is not Python"),
        ({"a": "b = 1"}, "'b = 1' is not an expression"),
        ({"a": ""}, "'' is not an expression"),
        ({"a; b": "b"}, "'a; b' is not one expression or statement"),
        ({"": "b"}, "'' is not one expression or statement"),
    ],
)
def test_missing_expression_is_an_error_that_names_it(replace, message):
    with pytest.raises(ValueError, match=message):
        rewrite(hypotenuse, replace)


@pytest.mark.parametrize("formula", [np.sqrt, lambda a: a])
def test_only_plain_functions_with_source_can_be_rewritten(formula):
    with pytest.raises(ValueError, match="not"):
        rewrite(formula, {"a": "b"})


def test_closure_cannot_be_rewritten():
    factor = 2

    def scaled(a):
        return a * factor

    with pytest.raises(ValueError, match="uses variables of an enclosing function"):
        rewrite(scaled, {"a": "1"})
