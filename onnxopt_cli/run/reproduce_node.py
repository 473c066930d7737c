"""Comparison of a backend with a known mistake of an operator without a formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.compare import absolute_distance
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import nearest
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.node_mistakes import node_mistakes
from onnxopt_cli.mutation.node_mutants import NodeMutant
from onnxopt_cli.operators.nodes import imported_versions, plain_domain
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.patching import replaced, replacements
from onnxopt_cli.workers.isolated import ProcessLostError, TimeLimitError, isolated, time_limit

#: A mistake must reproduce this number of wrong elements, or be confirmed by generated nodes. An
#: element of a boolean output counts as a quarter of an element.
MIN_ELEMENTS_ALIKE = 3.0
# Limits of the process that computes a mistake.
_SECONDS, _BYTES = 10.0, 1 << 30
# A mistake reproduces a wrong element if it differs from it by less than this share of the error of
# the element.
_NEAR_SHARE = 0.02
# The type in which a mistake computes, by the name of the mistake; only coarser types are listed.
_COARSE: Mapping[str, np.dtype[Any]] = {
    "outputs in float32": np.dtype(np.float32),
    "outputs in 16 bits": np.dtype(np.float16),
}


def unlike_node_mistake(result: Result, problem: Problem, names: Sequence[str]) -> str:
    """Return how a failure differs from that of a known mistake; empty if it reproduces it.

    The mistake is computed by onnx's corrected reference in a forked process, since a model is not
    trusted.

    Args:
        result: a failure.
        problem: its case, a model of one node of an operator of ONNX without a formula.
        names: the name of one known mistake; mistakes of these operators cannot act together.
    """
    (node,) = problem.model.graph.node
    domain = plain_domain(node.domain)
    opset = imported_versions(problem.model)[domain]
    mistakes = node_mistakes(domain, node.op_type, opset)
    for name in names:
        if name not in mistakes:
            message = f"{node.op_type} has no known mistake {name!r}"
            return "; ".join(filter(None, (message, nearest(name, [*mistakes]))))
    if len(names) > 1:
        return f"known mistakes of {node.op_type} cannot be combined"
    if not result.returned:
        return "no known mistake can be compared with it: not kept"
    mistake = mistakes[names[0]]

    def work() -> Iterator[float]:
        def compute(model: Any, inputs: Mapping[str, Value]) -> Sequence[Value]:
            return ReferenceModel(model).run(inputs)

        with replaced(*replacements()), np.errstate(all="ignore"):
            try:
                with time_limit(_SECONDS):
                    outputs = mistake.outputs(problem.model, problem.inputs, compute)
                    right = compute(problem.model, problem.inputs)
            except (TimeLimitError, Exception):  # noqa: BLE001 - any exception of the reference
                return
            yield elements_alike(mistake, outputs or (), result.returned, right)

    alike = None
    with suppress(ProcessLostError), closing(isolated(work, _SECONDS, _BYTES)) as counts:
        alike = next(counts, None)
    if alike is None:
        return "the known mistake cannot be computed in this case"
    return "" if alike else "the known mistake would return other outputs"


def elements_alike(
    mistake: NodeMutant,
    outputs: Sequence[Value],
    returned: Sequence[Value],
    right: Sequence[Value],
) -> float:
    """Return the number of wrong elements that a mistake and a backend share; 0 if they differ.

    Args:
        mistake: the mistake.
        outputs: the outputs of the mistake.
        returned: the outputs of the backend.
        right: the correct outputs.
    """
    coarse = _COARSE.get(mistake.name)
    if len(outputs) != len(returned) or len(right) != len(returned):
        return 0.0
    counts = [
        _shared(mistaken, actual, correct, coarse)
        for mistaken, actual, correct in zip(outputs, returned, right, strict=True)
    ]
    return 0.0 if None in counts else float(sum(filter(None, counts)))


def _shared(
    mistaken: Value, actual: Value, correct: Value, coarse: np.dtype[Any] | None
) -> float | None:
    """Return the number of wrong elements that two outputs share; None if the outputs differ."""
    if not isinstance(mistaken, np.ndarray) or not isinstance(actual, np.ndarray):
        return 0.0 if repr(mistaken) == repr(actual) else None
    if (mistaken.dtype, mistaken.shape) != (actual.dtype, actual.shape):
        return None
    comparable = None
    if isinstance(correct, np.ndarray) and (correct.dtype, correct.shape) == (
        mistaken.dtype,
        mistaken.shape,
    ):
        comparable = correct
    if mistaken.dtype.kind == "f" or mistaken.dtype.name == "bfloat16":
        with np.errstate(all="ignore"):
            alike = _floats_alike(mistaken, actual, comparable, coarse)
    elif not np.array_equal(mistaken, actual):
        alike = None
    else:
        wrong = (
            0 if comparable is None else int(np.count_nonzero(np.asarray(mistaken != comparable)))
        )
        alike = wrong / 4 if mistaken.dtype == bool else float(wrong)
    if alike is None or comparable is not None:
        return alike
    return alike + MIN_ELEMENTS_ALIKE


def _floats_alike(
    mistaken: Array, actual: Array, correct: Array | None, coarse: np.dtype[Any] | None
) -> float | None:
    """Return the number of wrong elements that two outputs share; None if the outputs differ."""
    epsilon = float(ml_dtypes.finfo(mistaken.dtype).eps)  # type: ignore[no-untyped-call]
    roundings = 64 if mistaken.dtype.itemsize > 2 else 4  # noqa: PLR2004 - types of 16 bits
    wide, returned = mistaken.astype(np.float64), actual.astype(np.float64)
    if coarse is not None and coarse.itemsize < mistaken.dtype.itemsize:
        if not np.array_equal(actual.astype(coarse).astype(mistaken.dtype), actual, equal_nan=True):
            return None
        epsilon, roundings = float(np.finfo(coarse).eps), 16
    finite = np.abs(wide[np.isfinite(wide)])
    # The median, because a few large elements do not determine the roundings of the others.
    scale = float(np.median(finite)) if finite.size else 0.0
    limit = roundings * epsilon * (np.abs(wide) + scale)
    distance = absolute_distance(wide, returned)
    agrees = (distance == 0) | (distance <= limit)
    if correct is None:
        return float(mistaken.size) if agrees.all() else None
    error = absolute_distance(correct.astype(np.float64), returned)
    if coarse is not None:
        wrong = error > 0
    else:
        least = 2 * epsilon * np.abs(wide)
        limit = np.minimum(limit, np.maximum(_NEAR_SHARE * error, least))
        # Nearly correct elements do not count, because many mistakes reproduce them.
        wrong = (error > least / _NEAR_SHARE) | ((error > 0) & (distance == 0))
    agrees = (distance == 0) | (distance <= limit)
    return float(np.count_nonzero(wrong)) if agrees.all() else None
