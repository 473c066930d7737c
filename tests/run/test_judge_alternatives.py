"""Outputs that match an alternative right result are judged by this alternative."""

from pathlib import Path

import numpy as np
from onnx import helper

from onnxopt_cli.backends.host import Response
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.result import Location, Outcome
from onnxopt_cli.core.tolerance import Branch, ErrorBound, Provenance
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.judge import judge


def expected(values, limits, **more):
    right, limit = np.array(values, np.float32), np.array(limits, np.float64)
    tolerance = ErrorBound(Branch(right, limit).at, 16.0, Provenance.CONDITIONED)
    return Expected({"y": right}, {"y": tolerance}, **more)


def test_inconclusive_elements_of_a_matching_alternative_are_counted():
    info = helper.make_tensor_value_info("y", 1, None)
    node = helper.make_node("Relu", ["x"], ["y"])
    problem = Problem(helper.make_model(helper.make_graph([node], "g", [], [info])), {}, None)
    case = Case("suite/case", Location(Path("case.yaml")), lambda: problem)
    alternative = expected([1.0, 2.0, 3.0], [0.1, 4.0, 0.1], note="reading 2 of 2")
    first = expected([5.0, 6.0], [9.0, 9.0], alternatives=(alternative,))
    response = Response([np.array([1.0, 2.5, 3.0], np.float32)])
    result = judge(case, problem, first, "backend", response, Judging())
    assert result.outcome is Outcome.PASS
    note = "inconclusive: the tolerance reaches half of the value in 1 of 3 elements"
    assert note in result.note
