"""If a backend lacks an operator, the model is lowered to primitive operators and run again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from backend_models import (
    ADAM_INPUTS,
    ADAM_X_NEW,
    TRAINING,
    adam,
    adam_in_branch,
    adam_in_function,
    doubled_adam,
    one_node,
)
from numpy.testing import assert_allclose
from onnx.reference import ReferenceEvaluator

from onnxopt_cli.backends.host import ModelRunner
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.config.run_config import LoweringMode
from onnxopt_cli.errors import (
    NotApplicable,
    Unsupported,
    UnusableOutput,
)

ADAM = f"{TRAINING}:Adam"


class Returned(NamedTuple):
    """The outputs of a run, and whether the model was lowered."""

    outputs: list
    lowered: bool


class Fake:
    """A backend that lacks Adam, and records the operators of each prepared model."""

    name = "fake"
    version = ""

    def __init__(self, *, names=True, late=False):
        self.names = names
        self.late = late
        self.prepared_models = []

    def prepare(self, model):
        operators = [node.op_type for node in model.graph.node]
        self.prepared_models.append(operators)
        self.model = model
        self.refuses = "Adam" in operators
        if not self.late:
            self.refuse()
        return self

    def run(self, inputs):
        self.refuse()
        return ReferenceEvaluator(self.model).run(None, dict(inputs))

    def refuse(self):
        if self.refuses:
            raise Unsupported("no Adam here", operator=ADAM if self.names else "")

    @property
    def unlowered(self):
        return sum("Adam" in operators for operators in self.prepared_models)


class Raising(Fake):
    """A backend that raises the same exception for every model."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def prepare(self, model):
        self.prepared_models.append(model)
        raise self.error


def run(backend, model=None, lowering=LoweringMode.AUTO, inputs=ADAM_INPUTS):
    return run_with(ModelRunner(backend, lowering), model or adam(), inputs)


def run_with(runner, model, inputs=ADAM_INPUTS):
    return Returned(*runner.run(model, inputs))


@pytest.mark.parametrize("late", [False, True], ids=["in prepare", "in run"])
def test_backend_without_the_operator_runs_the_lowered_model(late):
    returned = run(Fake(late=late))
    assert returned.lowered
    assert_allclose(returned.outputs[0], ADAM_X_NEW, rtol=1e-6)


def test_named_unsupported_operator_is_remembered():
    backend = Fake()
    runner = ModelRunner(backend, LoweringMode.AUTO)
    assert run_with(runner, adam()).lowered
    assert run_with(runner, adam()).lowered
    assert backend.unlowered == 1


def test_unnamed_unsupported_operator_is_tried_each_time():
    backend = Fake(names=False)
    runner = ModelRunner(backend, LoweringMode.AUTO)
    assert run_with(runner, adam()).lowered
    assert run_with(runner, adam()).lowered
    assert backend.unlowered == 2


def test_unsupported_operators_are_remembered_per_backend():
    run(Fake())
    second = Fake()
    run(second)
    assert second.unlowered == 1


def test_operator_is_unsupported_without_lowering():
    with pytest.raises(Unsupported, match=r"^no Adam here$"):
        run(Fake(), lowering=LoweringMode.NEVER)


def test_lowered_model_runs_first_if_requested():
    backend = Fake()
    assert run(backend, lowering=LoweringMode.ALWAYS).lowered
    assert backend.unlowered == 0


@pytest.mark.parametrize("lowering", list(LoweringMode))
def test_model_without_formula_operators_is_never_lowered(lowering):
    returned = run(Fake(), one_node("Neg"), lowering, {"x": np.ones(3, np.float32)})
    assert not returned.lowered


@pytest.mark.parametrize("lowering", [LoweringMode.AUTO, LoweringMode.NEVER])
def test_numpy_runs_lowered_models_only_on_request(lowering):
    assert not run(resolve_backend("numpy"), doubled_adam(), lowering).lowered


def test_lowering_does_not_help_if_another_operator_is_missing():
    backend = Raising(Unsupported("no Foo", operator="ai.onnx:Foo"))
    with pytest.raises(Unsupported, match=r"^no Foo$"):
        run(backend)
    assert len(backend.prepared_models) == 1


def test_repeated_refusal_is_reported_once():
    with pytest.raises(Unsupported, match=r"^IR version 99$"):
        run(Raising(Unsupported("IR version 99")))


def test_both_refusals_are_reported():
    class Poor(Fake):
        def prepare(self, model):
            super().prepare(model)
            raise Unsupported("no Sqrt", operator="ai.onnx:Sqrt")

    with pytest.raises(Unsupported) as caught:
        run(Poor())
    assert caught.value.message == "no Adam here; of the lowered model: no Sqrt"
    assert caught.value.operator == "ai.onnx:Sqrt"


@pytest.mark.parametrize("lowering", list(LoweringMode))
def test_failing_model_is_not_lowered(lowering):
    backend = Raising(ZeroDivisionError("broken"))
    with pytest.raises(ZeroDivisionError):
        run(backend, lowering=lowering)
    assert len(backend.prepared_models) == 1


@pytest.mark.parametrize("lowering", [LoweringMode.AUTO, LoweringMode.ALWAYS])
def test_node_that_breaks_its_signature_is_rejected(lowering):
    wide = {**ADAM_INPUTS, "G": np.ones((3, 2), np.float32)}
    model = adam()
    model.graph.input[3].type.tensor_type.shape.dim.add().dim_value = 3
    with pytest.raises(NotApplicable, match="the backend did not run it"):
        run(Fake(), model, lowering, wide)


def test_unlowerable_model_is_unsupported_with_both_reasons():
    model = adam()
    model.opset_import[0].version = 9
    with pytest.raises(Unsupported, match=r"^no Adam here; it cannot be lowered: .*version 9"):
        run(Fake(), model)


def test_invalid_output_is_reported():
    class Talker(Fake):
        def run(self, _inputs):
            return "done"

    with pytest.raises(UnusableOutput, match="returned a str"):
        run(Talker(), one_node("Neg"))


@pytest.mark.parametrize(
    "model",
    [
        adam(),
        doubled_adam(),
        adam_in_branch(),
        adam_in_function({"rate": 0.9}, attributes=["rate"]),
    ],
    ids=["alone", "between others", "in a branch", "in a function"],
)
def test_onnxruntime_runs_the_lowered_model_and_agrees_with_numpy(model):
    pytest.importorskip("onnxruntime")
    numpy_outputs = run(resolve_backend("numpy"), model)
    lowered_outputs = run(resolve_backend("onnxruntime"), model)
    assert lowered_outputs.lowered
    assert_allclose(lowered_outputs.outputs[0], numpy_outputs.outputs[0], rtol=1e-5, atol=1e-6)
    assert lowered_outputs.outputs[0].dtype == np.float32


def test_onnxruntime_names_the_unsupported_operator_without_lowering():
    pytest.importorskip("onnxruntime")
    with pytest.raises(Unsupported) as caught:
        run(resolve_backend("onnxruntime"), lowering=LoweringMode.NEVER)
    assert caught.value.operator == ADAM
