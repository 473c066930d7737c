"""Every known mistake computes the outputs of an example that was computed by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.mutation.known_mistakes import named
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import registry
from tests.operators import mistake_examples as examples

TABLES = {
    "Adagrad": examples.ADAGRAD + examples.ROOT_AND_EPSILON + examples.REGULARIZED_GRADIENT,
    "Adam": examples.ADAM + examples.ROOT_AND_EPSILON + examples.REGULARIZED_GRADIENT,
    "Momentum": examples.MOMENTUM + examples.REGULARIZED_GRADIENT,
    "AdmmGradient": examples.ADMM_GRADIENT,
    "AdmmPenalty": examples.ADMM_PENALTY,
    "AdmmUpdate": examples.ADMM_UPDATE + examples.THRESHOLDS,
    "MagnitudePrune": examples.MAGNITUDE_PRUNE + examples.THRESHOLDS,
}
F4, F8 = np.dtype("float32"), np.dtype("float64")
#: Examples of mistakes in types and shapes. All tensors of the examples have rank 0. Each example
#: states the shape of the scalar inputs, the value of integer inputs such as T, the type of other
#: inputs such as R, the type of the tensors, the number of groups, and the resulting type and shape
#: of the first output.
OF_TYPES = {
    "X_new returned in double for T > 0": [
        ((), 1, F4, F4, 1, (F8, ())), ((), 0, F4, F4, 1, (F4, ())),
    ],
    "several tensors returned in float32": [
        ((), 0, F8, F8, 2, (F4, ())), ((), 0, F8, F8, 1, (F8, ())),
    ],
    "types and shapes promoted by NumPy": [((1,), 0, F8, F4, 1, (F8, (1,)))],
    "shapes broadcast by NumPy": [((1,), 0, F8, F4, 1, (F4, (1,)))],
    "shapes broadcast by NumPy, several tensors in float32": [
        ((1,), 0, F8, F4, 1, (F8, (1,))), ((1,), 0, F8, F8, 2, (F4, (1,))),
    ],
}  # fmt: skip


def test_every_operator_has_a_table_of_examples():
    assert TABLES.keys() == {operator.name for operator in registry().operators}


def tolerance(mistake):
    """Return the relative tolerance of an example; it is larger for defaults rounded to float32."""
    return 2e-8 if mistake.startswith("epsilon defaults to") else 1e-12


def number(text):
    return float(Fraction(text)) if "/" in text else float(text)


def fields(text):
    """Return the values in a text such as ``R=1/2 X=[1,2]``, by name."""
    examples = {}
    for field in text.split():
        name, _, value = field.partition("=")
        if value.startswith("["):
            examples[name] = [number(word) for word in value[1:-1].split(",")]
        else:
            examples[name] = value if value in ("-", "standard", "nesterov") else number(value)
    return examples


def rows(operator):
    """Yield the name of the mistake, the inputs and the results of each example of an operator."""
    base = {}
    for line in filter(None, TABLES[operator].splitlines()):
        name, given, results = (part.strip() for part in line.split("|"))
        if name == "base":
            base = fields(given)
        elif name:
            yield name, base | fields(given), fields(results)


def node(operator, given):
    inputs = [
        np.array(given[scalar.name], np.int64 if "int64" in scalar.dtypes else np.float64)
        for scalar in operator.scalars
    ]
    tensors = [np.array(given[name], np.float64) for name in operator.tensors]
    shape = tensors[0].shape
    attributes = {}
    for attribute in operator.attributes:
        if given[attribute.name] != "-":
            attributes[attribute.name] = (
                (given[attribute.name],) if attribute.each else given[attribute.name]
            )
    omitted = frozenset(attribute.name for attribute in operator.attributes) - attributes.keys()
    complete = complete_attributes(operator, attributes)
    call = bind(operator, [*inputs, *tensors], complete, omitted=omitted)
    assert call.groups[0][0].shape == shape
    return call


def expected(operator, results):
    """Return the results by output, also if a line states the result of a shared expression."""
    if "G_regularized" in results:
        value = np.array(results["G_regularized"])
        return {"H_new": value * value} if operator.name == "Adagrad" else {"V_new": value}
    if "pruned" in results:
        return {next(iter(operator.outputs)): results["pruned"]}
    return results


CASES = [(operator, *row) for operator in TABLES for row in rows(operator)]


@pytest.mark.parametrize(
    ("name", "mistake", "inputs", "results"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_mistake_agrees_with_its_example(name, mistake, inputs, results):
    operator = registry().named(name)
    if "G_regularized" in results:
        inputs = inputs | {"alpha": 0.0, "beta": 1.0 if name == "Momentum" else 0.0}
    if "pruned" in results:
        inputs = inputs | {"Z": 0.0, "U": 0.0}
    call = node(operator, inputs)
    implementation = named(operator, mistake)
    assert implementation is not None
    returned = dict(zip(operator.outputs, implementation.run(call), strict=True))
    with np.errstate(all="ignore"):
        right = dict(zip(operator.outputs, evaluate(call), strict=True))
    expected_outputs = expected(operator, results)
    rtol = tolerance(mistake)
    for output, value in expected_outputs.items():
        np.testing.assert_allclose(returned[output], value, rtol=rtol, atol=0)
    # The formula computes other outputs, so the example shows the mistake.
    assert any(
        not np.allclose(right[name], expected_outputs[name], rtol=rtol, atol=0)
        for name in expected_outputs
    )


@pytest.mark.parametrize("name", TABLES)
def test_every_mistake_has_an_example(name):
    listed = [mistake for mistake, *_ in rows(name)]
    mistakes = {known_mistake.name for known_mistake in registry().named(name).known_mistakes}
    assert set(listed) == mistakes - set(OF_TYPES)
    assert len(listed) == len(set(listed))


OF_TYPES_CASES = [
    (operator.name, mistake, *row)
    for operator in registry().operators
    for mistake, table in OF_TYPES.items()
    if mistake in {known_mistake.name for known_mistake in operator.known_mistakes}
    for row in table
]


def test_every_example_of_types_belongs_to_a_mistake_of_an_operator():
    assert {mistake for _, mistake, *_ in OF_TYPES_CASES} == OF_TYPES.keys()


@pytest.mark.parametrize(
    ("name", "mistake", "shape", "step", "rate", "dtype", "number_of_tensors", "kind"),
    OF_TYPES_CASES,
)
def test_mistake_in_types_agrees_with_its_example(
    name, mistake, shape, step, rate, dtype, number_of_tensors, kind
):
    operator = registry().named(name)
    scalars = [
        np.full(shape, step, np.int64) if "int64" in scalar.dtypes else np.ones(shape, rate)
        for scalar in operator.scalars
    ]
    tensors = [np.ones((), dtype)] * number_of_tensors * len(operator.tensors)
    numbers = dict.fromkeys(
        (
            attribute.name
            for attribute in operator.attributes
            if attribute.default is None and not attribute.choices
        ),
        0.5,
    )
    words = {
        attribute.name: attribute.choices[0]
        for attribute in operator.attributes
        if attribute.choices
    }
    call = bind(operator, [*scalars, *tensors], complete_attributes(operator, numbers | words))
    first, *_ = named(operator, mistake).run(call)
    assert (first.dtype, first.shape) == kind
