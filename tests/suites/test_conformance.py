"""The suite ``conformance`` varies each dimension of the inputs of every operator."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from made_operators import operator_of

from onnxopt_cli.interpret.evaluate import evaluate, nonnegative_tensors
from onnxopt_cli.operators.call import sole_call
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.collect import collect

# Properties on which the correctness of a backend may depend, as predicates of a call and a group.
DIMENSIONS = {
    **{f"rank {rank}": lambda _, group, rank=rank: group[0].ndim == rank for rank in range(8)},
    "one element": lambda _, group: group[0].shape == (1,),
    "one row and column": lambda _, group: group[0].shape == (1, 1),
    "more than 256 rows": lambda _, group: group[0].ndim == 2 and len(group[0]) > 256,
    "more than 256 columns": lambda _, group: group[0].ndim == 2 and group[0].shape[1] > 256,
    "64 rows": lambda _, group: group[0].ndim == 2 and len(group[0]) == 64,
    "128 columns": lambda _, group: group[0].ndim == 2 and group[0].shape[1] == 128,
    "a multiple of 1024": lambda _, group: group[0].size and not group[0].size % 1024,
    "one element beyond a vector": lambda _, group: group[0].shape == (33,),
    "from the ninth tensor on": lambda call, _: len(call.groups) > 8,
    "from the 65th tensor on": lambda call, _: len(call.groups) > 64,
    "a scalar operand": lambda _, group: broadcasts_to_square(group, ()),
    "an operand of lower rank": lambda _, group: broadcasts_to_square(group, (3,)),
    "an operand of one row": lambda _, group: broadcasts_to_square(group, (1, 3)),
    "an operand of one column": lambda _, group: broadcasts_to_square(group, (3, 1)),
    "an operand with a row of zeros": lambda _, group: any(
        x.ndim == 2 and x.any() and not x.any(axis=1).all() for x in group[1:]
    ),
    "beyond float32": lambda _, group: any(np.any(abs(x) == np.float64(1e60)) for x in group),
}  # fmt: skip


def broadcasts_to_square(group, shape):
    """Return whether the first tensor is a 3-by-3 matrix, and another one has the given shape."""
    return group[0].shape == (3, 3) and any(array.shape == shape for array in group[1:])


@pytest.fixture(scope="module")
def tested_dimensions():
    """Return, by operator, the dimensions that any case with a nonzero result tests."""
    dimensions = defaultdict(set)
    for case in collect(["conformance", "pruning"]).cases:
        content = case.load()
        call = None if content.must_reject else sole_call(content.model, content.inputs)
        if call is None or call.groups[0][0].size > 100_000:
            continue
        outputs, count = evaluate(call), len(call.groups)
        for place, group in enumerate(call.groups):
            if any(output.any() for output in outputs[place % len(outputs) :: count]):
                dimensions[call.operator].update(
                    name for name, applies in DIMENSIONS.items() if applies(call, group)
                )
    return dimensions


@pytest.mark.parametrize("operator", registry().operators, ids=lambda item: item.name)
def test_each_dimension_is_tested_where_it_affects_the_result(operator, tested_dimensions):
    of_operands = {name for name in DIMENSIONS if "operand" in name}
    has_one_tensor = len(operator.tensors) == 1
    expected = set(DIMENSIONS) - (of_operands if has_one_tensor else set())
    assert tested_dimensions[operator] >= expected


def test_a_percentage_is_not_of_each_row():
    cases = {case.id: case for case in collect(["pruning"]).cases}
    content = cases["pruning/magnitudeprune/percent_rows_of_four"].load()
    _, mask = evaluate(sole_call(content.model, content.inputs))
    assert mask.mean(axis=1).tolist() == [0, 1]


def test_state_under_a_root_is_not_negative_in_first_step_cases():
    made = operator_of(lambda T, X, Y: (X - np.sqrt((1 - 1 / T) * Y + X * X),), 1)
    assert nonnegative_tensors(made) == ("Y",)
