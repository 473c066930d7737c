"""The oracles of a run, tried in order: the formula, onnx's reference, the stored outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.cases.onnx.node_model import tensor_info
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.errors import UsageError
from onnxopt_cli.oracle.expected import (
    Expected,
    FormulaOracle,
    Oracle,
    PendingExpected,
    StoredOracle,
)
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle


@dataclass(frozen=True)
class Oracles:
    """The oracles of a run: the formula, the reference and the stored outputs, in this order.

    Attributes:
        judging: how outputs are judged.
        reference: the reference oracle. If None, stored outputs are accepted without consulting
            onnx's reference.
        bound_once: see :class:`FormulaOracle`.
    """

    judging: Judging
    reference: ReferenceOracle | None = None
    bound_once: bool = False

    def expected(self, problem: Problem, math: str = "") -> Expected | PendingExpected:
        """Return the first result that an oracle has, or a function that waits for the result."""
        if problem.must_reject:
            return _rejection(problem)
        oracles: list[Oracle] = [FormulaOracle(self.judging, self.bound_once)]
        oracles += [self.reference] if self.reference else []
        oracles.append(StoredOracle(self.judging))
        for oracle in oracles:
            expected = oracle.expected(problem, math)
            if expected is not None:
                return expected
        reason = "the outputs are missing, and the model is not one node with a formula"
        return Expected({}, {}, unknown=reason)

    def known(self, problem: Problem) -> Expected | None:
        """Return the result of the reference oracle if its estimate is cached; otherwise None."""
        return self.reference.known(problem) if self.reference else None


def resolved(expected: Expected | PendingExpected) -> Expected:
    """Return an expected result, after waiting for it if it is pending."""
    return expected if isinstance(expected, Expected) else expected()


def with_expected_outputs(problem: Problem, oracles: Oracles) -> Problem:
    """Return a case's content with expected outputs, as an ONNX test directory can store them.

    Stored outputs are kept. Outputs that are not stored are computed by the formula or by onnx's
    reference.

    Raises:
        UsageError: if the outputs cannot be computed, or contradict the formula.
    """
    oracle = oracles if problem.stored is None else replace(oracles, reference=None)
    expected = resolved(oracle.expected(problem))
    if expected.unusable:
        raise UsageError(expected.unusable)
    # A test directory can state only one tolerance, for all outputs.
    tolerance = problem.tolerance if isinstance(problem.tolerance, Relative) else None
    return replace(problem, stored=expected.outputs, tolerance=tolerance, output_tolerances={})


def _rejection(problem: Problem) -> Expected:
    """Return the expected result of a model that must be rejected."""
    reason = ""
    if _is_valid(problem):
        reason = "expects a rejection, but its node and inputs match the operator's signature"
        reason += ": the case is wrong, not the backend"
    return Expected({}, {}, reason)


def _is_valid(problem: Problem) -> bool:
    """Return whether a model is one valid node with a formula, and has valid inputs."""
    graph = problem.model.graph
    call = problem.call
    if call is None or model_fault(problem.model):
        return False
    # The types that a graph declares may differ from the types of the actual inputs and outputs.
    arrays = {name: np.asarray(value) for name, value in problem.inputs.items()}
    declared = [tensor_info(name, array.dtype, array.shape) for name, array in arrays.items()]
    output_types = [output.type.tensor_type.elem_type for output in graph.output]
    correct_types = [helper.np_dtype_to_tensor_dtype(like.dtype) for like, _ in call.sources]
    return [*graph.input] == declared and output_types == correct_types
