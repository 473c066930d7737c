"""How much of the tolerance of a model's outputs the roundings of each node cause.

To first order, an output moves by the sum of c_i, where c_i is its movement by the roundings of
node i alone. Run k multiplies the roundings of node i by a random sign s_ik, so that it yields

    y_k = sum_i s_ik c_i        and        mean over k != l of s_ik s_il <y_k, y_l>

estimates |c_i|^2 for all nodes at once. The nodes with the largest estimates then run alone, which
measures their movements. The share of a node is |c_i|^2 / sum_j |c_j|^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.oracle.evaluator import Compute, ReferenceModel
from onnxopt_cli.oracle.rounding.injection import (
    Injector,
    RoundingSite,
    SiteRecorder,
    VisitedNode,
)
from onnxopt_cli.oracle.widen import is_wide, widened_value

# The estimates have a standard deviation of 1.4 / 12 of the total.
_RUNS = 12
# Nodes that run alone, for all outputs together.
_MAX_ALONE = 4
_SEED = 42


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of a node to the tolerance of an output.

    Attributes:
        output: the output.
        node: the name of the node or, if it has none, of its first output.
        share: the share of the squared movement of the output, from 0 to 1.
    """

    output: str
    node: str
    share: float


class _SignedInjector(Injector):
    """Injects the same roundings in each run, multiplied by a factor for each node."""

    def __init__(
        self, sites: Sequence[RoundingSite], step: float, factors: Sequence[float]
    ) -> None:
        super().__init__(sites, step, 0)
        self._factors = factors
        self._factor = 1.0

    def __call__(
        self, node: Any, compute: Compute, operands: Sequence[Any], index: int
    ) -> Sequence[Any]:
        self._factor = self._factors[index] if index < len(self._factors) else 0.0
        return super().__call__(node, compute, operands, index)

    def _roundings(self, array: Array) -> Array:
        return self._factor * super()._roundings(array)


def contributions(
    model: onnx.ModelProto, inputs: Mapping[str, Value], visited: Sequence[VisitedNode]
) -> list[Contribution]:
    """Return the largest contributions to the tolerance of each output, largest first.

    Args:
        model: the model, as the reference runs it.
        inputs: its inputs.
        visited: its nodes, as they ran in the model's own types.
    """
    names: list[str] = []
    recorder = SiteRecorder(visited, "")

    def record(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        names.append(node.onnx_node.name or next(filter(None, node.output), node.op_type))
        return recorder(node, compute, operands, index)

    wide_model = ReferenceModel(model, wide=True)
    doubles = {name: widened_value(value) for name, value in inputs.items()}
    exact = wide_model.run(doubles, record)
    sites = recorder.sites
    rounding = [index for index, site in enumerate(sites) if site.roundoff]
    if not rounding:
        return []

    def movements(factors: Sequence[float]) -> list[Array | None]:
        injector = _SignedInjector(sites, recorder.step, factors)
        return [*map(_movement, wide_model.run(doubles, injector), exact)]

    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], (_RUNS, len(sites)))
    runs = [movements(row) for row in signs]
    found: list[Contribution] = []
    estimates: list[tuple[float, int, int]] = []
    totals: list[float] = []
    for output, moved in enumerate(zip(*runs, strict=True)):
        arrays = [array for array in moved if array is not None]
        if len(arrays) < _RUNS:
            totals.append(0.0)
            continue
        stacked = np.stack(arrays)
        gram = stacked @ stacked.T
        totals.append(float(np.trace(gram)) / _RUNS)
        np.fill_diagonal(gram, 0.0)
        squares = np.einsum("ki,kl,li->i", signs, gram, signs) / (_RUNS * (_RUNS - 1))
        estimates += [(squares[i] / (totals[-1] or 1.0), output, i) for i in rounding]
    by_estimate = dict.fromkeys(index for _, _, index in sorted(estimates, reverse=True))
    for index in [*by_estimate][:_MAX_ALONE]:
        factors = [float(place == index) for place in range(len(sites))]
        for info, movement, total in zip(
            model.graph.output, movements(factors), totals, strict=True
        ):
            if movement is not None and total:
                share = min(1.0, float(movement @ movement) / total)
                found.append(Contribution(info.name, names[index], share))
    return sorted(found, key=lambda entry: -entry.share)


def _movement(moved: Any, exact: Any) -> Array | None:
    """Return the movement of an output, scaled by its size; None unless it is comparable."""
    if not is_wide(exact) or np.shape(moved) != exact.shape or not exact.size:
        return None
    difference = np.abs(np.asarray(moved) - exact) * np.sign(np.real(moved - exact))
    return np.nan_to_num(difference.real.ravel(), posinf=0.0, neginf=0.0)
