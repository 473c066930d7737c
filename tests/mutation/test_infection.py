"""Infection: an input infects a mutant if the mutated expression has another value."""

from __future__ import annotations

from copy import deepcopy
from itertools import product

import numpy as np
import pytest

from onnxopt_cli.mutation.code_mutants import code_mutants, patched
from onnxopt_cli.mutation.infection import InfectionRecorder


def clamp(value, low=0, high=10):
    """Return a value limited to a range."""
    if value < low:
        return low
    return min(value, high)


def padded(values, width):
    total = np.zeros(width)
    large = [item for item in values if item > 1]
    for place, value in enumerate(large):
        total[place] += value
    large.append(0)
    total = np.maximum(total, large[0])
    return total.reshape(-1)[: max(width - 1, 1)]


def aliased(x):
    y = np.array(x)
    y[0] = 7
    return x + y


def sometimes_aliased(x):
    y = x if x[0] > 2 else x + 0
    y[0] = 7
    return x + y


def sometimes_aliased_list(x):
    y = x if x[0] > 2 else [*x]
    y[0] = 7
    return x + y


def infected(function, *arguments):
    """Return the mutants by name, the names of the infected mutants, and the function's result."""
    mutants = {mutant.name: mutant for mutant in code_mutants(function)}
    recorder = InfectionRecorder({name: [mutant] for name, mutant in mutants.items()})
    with recorder.recording():
        result = function(*arguments)
    return mutants, recorder.infected | recorder.unknown, result


INPUTS = [
    *((clamp, (value, low)) for value, low in product((-1, 0, 5, 10, 11), (0, 5))),
    *((padded, (values, 4)) for values in ([], [1.0], [2.0, 3.0], [0.5, 2.0, -1.0])),
    *((aliased, (np.array(values),)) for values in ([1.0, 2.0], [7.0])),
    *((sometimes_aliased, (np.array(values),)) for values in ([1.0, 2.0], [5.0, 2.0])),
    *((sometimes_aliased_list, (values,)) for values in ([1.0, 2.0], [5.0, 2.0])),
]


@pytest.mark.parametrize(("function", "arguments"), INPUTS)
def test_mutant_that_an_input_does_not_infect_has_the_same_result(function, arguments):
    mutants, names, result = infected(function, *deepcopy(arguments))
    expected = repr(function(*deepcopy(arguments)))
    assert repr(result) == expected
    assert names <= mutants.keys()
    for name in mutants.keys() - names:
        with patched(mutants[name].function, mutants[name].code):
            assert repr(function(*deepcopy(arguments))) == expected


def test_reached_expression_with_another_value_is_infected():
    _, names, _ = infected(clamp, 0)
    assert "clamp: if value <= low, not if value < low" in names
    _, names, _ = infected(clamp, 5)
    assert "clamp: if value <= low, not if value < low" not in names
    assert "clamp: return max(value, high), not return min(value, high)" in names


def test_functions_are_restored_after_a_recording():
    code, names = clamp.__code__, {*clamp.__globals__}
    infected(clamp, 5)
    assert clamp.__code__ is code
    assert {*clamp.__globals__} == names
