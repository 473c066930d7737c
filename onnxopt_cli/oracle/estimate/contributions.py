"""The share of each node in the tolerance or the error of a model's outputs.

To first order, roundings move an output by the sum of c_i over all nodes i, where c_i is the
movement that the roundings of node i cause if no other node rounds. Run k multiplies the roundings
of node i by a random sign s_ik. The output then moves by

    y_k = sum_i s_ik c_i

The mean over k != l of s_ik s_il <y_k, y_l> estimates |c_i|^2, for all nodes from the same runs.
For each node with one of the largest estimates, a further run injects only the roundings of this
node, and measures c_i. The share of a node is |c_i|^2 / sum_j |c_j|^2.

The shares in the error of a backend are defined in the same way. In this case, c_i is the movement
that the error of the backend in node i causes if the backend has no error in other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.oracle.estimate.evaluations import visited_node
from onnxopt_cli.oracle.estimate.reference_values import (
    NoReferenceError,
    prepared_model,
    reference_failure,
)
from onnxopt_cli.oracle.evaluator import Compute, ReferenceModel
from onnxopt_cli.oracle.patching import corrected
from onnxopt_cli.oracle.rounding.injection import Injector, RoundingSite, SiteRecorder, VisitedNode
from onnxopt_cli.oracle.stacked import Stacked, array_of, compute_stacked, outputs_of_runs
from onnxopt_cli.oracle.widen import is_wide, widened_value

# The number of runs. The standard deviation of an estimate is sqrt(2) / 12 of the total.
_RUNS = 12
# The largest number of nodes, in total over all outputs, for which a further run injects only the
# roundings of the node.
_MAX_ALONE = 4
_SEED = 42


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of a node to the tolerance or error of an output.

    Attributes:
        output: the output.
        node: the name of the node; if it has none, the name of its first output.
        share: the share of the node in the squared movement of the output, from 0 to 1.
    """

    output: str
    node: str
    share: float


class _SignedInjector(Injector):
    """Injects the same roundings in each run, multiplied by a factor for each node and run.

    Args:
        sites: the nodes of the exact run.
        step: the size of an injected rounding, in roundings of the model's types.
        factors: the factor of each node in each run, one row per run.
        firsts: for each node, the number of elements that earlier nodes move. The first run of the
            model fills this list. In all later runs, each node has the same roundings as in the
            first run.
    """

    def __init__(
        self,
        sites: Sequence[RoundingSite],
        step: float,
        factors: Array,
        firsts: list[int],
    ) -> None:
        super().__init__(sites, step, range(len(factors)))
        self._factors, self._firsts = factors, firsts
        self._index = 0

    def __call__(
        self, node: Any, compute: Compute, operands: Sequence[Any], index: int
    ) -> Sequence[Any]:
        self._index = index
        if index == len(self._firsts):
            self._firsts.append(self._moved_elements)
        self._moved_elements = self._firsts[index]
        if index >= self._factors.shape[1] or not self._factors[:, index].any():
            return compute_stacked(node, compute, operands, len(self._factors))
        return super().__call__(node, compute, operands, index)

    def _roundings(self, value: Any) -> Array:
        values = super()._roundings_of_run(0, value)
        return np.multiply.outer(self._factors[:, self._index], values)

    def _roundings_of_run(self, run: int, value: Any) -> Array:
        return super()._roundings_of_run(0, value) * self._factors[run, self._index]


def node_error_contributions(
    model: onnx.ModelProto, inputs: Mapping[str, Value], returned: Mapping[str, Array]
) -> list[Contribution]:
    """Return the largest contributions of nodes to the error of a backend in each output.

    Args:
        model: the model.
        inputs: its inputs.
        returned: by name, outputs of nodes that a backend ran one at a time.

    Raises:
        NoReferenceError: if onnx's reference cannot run the model.
    """
    model = prepared_model(model, inputs)
    with corrected():
        try:
            return _error_contributions(model, inputs, returned)
        except Exception as error:
            raise NoReferenceError(reference_failure(error)) from error


def node_contributions(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Contribution]:
    """Return the largest contributions of nodes to the tolerance of each output.

    Raises:
        NoReferenceError: if onnx's reference cannot run the model.
    """
    model = prepared_model(model, inputs)
    visited: list[VisitedNode] = []

    def record(
        node: Any, compute: Compute, operands: Sequence[Any], _index: int
    ) -> tuple[Any, ...]:
        outputs = compute(*operands)
        visited.append(visited_node(node, operands, outputs))
        return outputs

    with corrected():
        try:
            native_model = ReferenceModel(model)
            native_model.run(inputs, record)
            return _contributions(model, native_model, inputs, visited)
        except Exception as error:
            raise NoReferenceError(reference_failure(error)) from error


def _contributions(
    model: onnx.ModelProto,
    native_model: ReferenceModel,
    inputs: Mapping[str, Value],
    visited: Sequence[VisitedNode],
) -> list[Contribution]:
    """Return the largest contributions to the tolerance of each output, largest first.

    Args:
        model: the model, as the reference runs it.
        native_model: the model in its own types.
        inputs: its inputs.
        visited: its nodes, as they ran in the model's own types.
    """
    names: list[str] = []
    recorder = SiteRecorder(visited, "")

    def record(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        names.append(_name_of(node))
        return recorder(node, compute, operands, index)

    wide_model = ReferenceModel(model, wide=True, like=native_model)
    doubles = {name: widened_value(value) for name, value in inputs.items()}
    exact = wide_model.run(doubles, record)
    sites = recorder.sites
    rounding = [index for index, site in enumerate(sites) if site.roundoff]
    firsts: list[int] = []

    run_bytes = wide_model.visits.peak_bytes + recorder.largest_node_bytes

    def movements(factors: Array) -> list[list[Array | None]]:
        def run(runs: Sequence[int]) -> Sequence[Any]:
            injector = _SignedInjector(sites, recorder.step, factors[runs], firsts)
            return wide_model.run(doubles, injector)

        results = outputs_of_runs(run, len(factors), run_bytes)
        return [[*map(_movement, outputs, exact)] for outputs in results]

    return _largest_shares(model, names, rounding, movements)


def _error_contributions(
    model: onnx.ModelProto, inputs: Mapping[str, Value], returned: Mapping[str, Array]
) -> list[Contribution]:
    """Return the largest contributions to the error of each output, largest first.

    A backend ran each node as a model of its own, with operands rounded to the model's types. The
    error of a node is the difference between the outputs of the backend and the outputs in double
    for the same operands. The share of the node is the part of an output's movement that this error
    causes.

    Args:
        model: the model, as the reference runs it.
        inputs: its inputs.
        returned: by name, outputs of nodes that a backend ran one at a time.

    Returns:
        The contributions. Empty if a returned output belongs to a node that the reference does not
        run, because other operators have replaced it.
    """
    wide_model = ReferenceModel(model, wide=True)
    doubles = {name: widened_value(value) for name, value in inputs.items()}
    names: list[str] = []
    errors: list[dict[int, Array]] = []
    measured: set[str] = set()

    def measure(node: Any, compute: Compute, operands: Sequence[Any], _index: int) -> Sequence[Any]:
        outputs = [*compute(*operands)]
        names.append(_name_of(node))
        errors.append({})
        for place, (name, exact) in enumerate(zip(node.output, outputs, strict=False)):
            measured.add(name)
            output = returned.get(name)
            if output is None or not is_wide(exact) or output.shape != exact.shape:
                continue
            difference = output.astype(exact.dtype) - exact
            errors[-1][place] = np.nan_to_num(difference, posinf=0.0, neginf=0.0)
            outputs[place] = exact.astype(output.dtype).astype(exact.dtype)
        return outputs

    with np.errstate(all="ignore"):
        wide_model.run(doubles, measure)
    if returned.keys() - measured:
        return []
    exact_outputs = wide_model.run(doubles)

    run_bytes = wide_model.visits.peak_bytes

    def movements(factors: Array) -> list[list[Array | None]]:
        def run(runs: Sequence[int]) -> Sequence[Any]:
            return wide_model.run(doubles, partial(move, factors[runs]))

        results = outputs_of_runs(run, len(factors), run_bytes)
        return [[*map(_movement, outputs, exact_outputs)] for outputs in results]

    def move(
        factors: Array, node: Any, compute: Compute, operands: Sequence[Any], index: int
    ) -> Sequence[Any]:
        count = len(factors)
        outputs = [*compute_stacked(node, compute, operands, count)]
        for place, error in errors[index].items() if index < len(errors) else ():
            output = array_of(outputs[place])
            if outputs[place].shape == error.shape:
                moved = Stacked(output + np.multiply.outer(factors[:, index], error))
                outputs[place] = moved if count > 1 else moved.of_run(0)
        return outputs

    candidates = [index for index, error in enumerate(errors) if any(map(np.any, error.values()))]
    return _largest_shares(model, names, candidates, movements)


def _name_of(node: Any) -> str:
    """Return the name of a visited node; if it has none, the name of its first output."""
    return str(node.onnx_node.name or next(filter(None, node.output), node.op_type))


def _largest_shares(
    model: onnx.ModelProto,
    names: Sequence[str],
    candidates: Sequence[int],
    movements: Callable[[Array], list[list[Array | None]]],
) -> list[Contribution]:
    """Return the nodes that move each output most, with their shares in descending order.

    Args:
        model: the model.
        names: the names of its nodes in the order of visits.
        candidates: the indices of nodes that move the outputs.
        movements: takes a factor for each run and node, with one row per run. Returns the movements
            of the outputs in each run if the error of each node is multiplied by its factor.
    """
    if not candidates:
        return []
    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], (_RUNS, len(names)))
    runs = movements(signs)
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
        estimates += [(squares[i] / (totals[-1] or 1.0), output, i) for i in candidates]
    by_estimate = dict.fromkeys(index for _, _, index in sorted(estimates, reverse=True))
    largest = [*by_estimate][:_MAX_ALONE]
    for index, moved_alone in zip(largest, movements(np.eye(len(names))[largest]), strict=True):
        for info, movement, total in zip(model.graph.output, moved_alone, totals, strict=True):
            if movement is not None and total:
                share = min(1.0, float(movement @ movement) / total)
                found.append(Contribution(info.name, names[index], share))
    return sorted(found, key=lambda entry: -entry.share)


def _movement(moved: Any, exact: Any) -> Array | None:
    """Return a vector of the differences between a moved output and an exact output.

    A complex difference is replaced by its magnitude with the sign of its real part. The result is
    None if the output is discrete or empty, or if its shape has changed.
    """
    if not is_wide(exact) or np.shape(moved) != exact.shape or not exact.size:
        return None
    difference = np.abs(np.asarray(moved) - exact) * np.sign(np.real(moved - exact))
    return np.nan_to_num(difference.real.ravel(), posinf=0.0, neginf=0.0)
