"""Roundings injected at the nodes of a model that runs in double.

The exact run of the model injects no roundings; perturbed runs inject them. :class:`SiteRecorder`
visits the exact run and records a :class:`RoundingSite` for each node. A site holds the kind of the
node, the unit roundoff u of its types, and the scale s of its absolute error. :class:`Injector`
visits a perturbed run. At each site, it moves the operands x and the outputs y:

    x (1 + theta u_x),    u_x = u max(1, sqrt(n) / 4) in sums of n terms
    y + theta u (|y| + s)

Here, n is the number of terms of a sum, and theta is the rounding of an element in this run,
between -1 and 1 (:mod:`~onnxopt_cli.oracle.rounding.perturbations`). The scale s is 0 unless the
error of an element depends on the size of other elements, as in fast algorithms.
``docs/conditioned.md`` lists the kinds of nodes, and the reason for each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod
from operator import is_
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from onnxopt_cli.core.tolerance import SHORT_UNITS
from onnxopt_cli.core.values import Array, describe, total_bytes
from onnxopt_cli.oracle.evaluator import SHORT_SUM, Compute, Visitor, compute_only
from onnxopt_cli.oracle.rounding.device_functions import DEVICE_FUNCTIONS, device_error
from onnxopt_cli.oracle.rounding.exponentials import SHARES, moved_logarithms
from onnxopt_cli.oracle.rounding.intermediate_values import (
    GRIDS,
    OFFSETS,
    coordinate_errors,
    moved_activations,
    moved_coordinates,
    moved_weights,
    offset_coordinates,
    rounds_partial_sums,
)
from onnxopt_cli.oracle.rounding.node_kinds import (
    PRODUCTS,
    NodeClass,
    NodeKind,
    classify,
    listed_kind,
    may_jump,
    movable_operands,
)
from onnxopt_cli.oracle.rounding.normalizations import (
    AverageErrors,
    ErrorModel,
    moved_averages,
)
from onnxopt_cli.oracle.rounding.perturbations import roundings, sum_roundings
from onnxopt_cli.oracle.rounding.scales import (
    convolution_scale,
    determinant_scale,
    transform_scale,
    window_scale,
)
from onnxopt_cli.oracle.rounding.short_floats import (
    ADDEND,
    CHAINED,
    WITH_ADDEND,
    InSingle,
    accumulates_in_single,
    takes_exact_operands,
)
from onnxopt_cli.oracle.rounding.sums import (
    cumulative_product_scale,
    cumulative_sum_scale,
    direct_bound,
    flushed_error,
    product_of_factors_scale,
    product_scale,
)
from onnxopt_cli.oracle.stacked import (
    Stacked,
    array_of,
    compute_stacked,
    stacked_outputs,
    value_of_run,
    values_of_runs,
)
from onnxopt_cli.oracle.widen import ROUNDOFF, is_wide, smallest_normal

#: For each arithmetic that a backend may declare, its unit roundoff. The unit roundoff of tf32 and
#: bf16 applies to the operands of products, and the unit roundoff of float16-sums applies to sums.
MATH = {"tf32": 2.0**-11, "bf16": 2.0**-8, "float16-sums": 2.0**-11}
#: The tolerance in units. One unit is the largest movement of an element by a rounding.
UNITS = 16.0
DOUBLE_ROUNDOFF, SINGLE_ROUNDOFF = 2.0**-53, 2.0**-24

# A model of doubles is perturbed by 2^27 roundings of double, that is, by 2^-26. The effect of a
# single rounding of double would be lost among the roundings of the runs themselves.
_DOUBLE_STEP = 2.0**27
# If a tolerance of 16 roundings would be too wide, the unit is a share of a rounding, as follows.
#
# The tolerance of a mean or variance is 16 units, that is, 8 roundings. In all observed
# reformulations, the errors of these statistics are below 4 roundings.
_STATISTICS_SHARE = 1 / 2
# A coordinate is computed in at most 6 steps. The interpolation between two terms takes at most 8
# steps along each axis. The tolerance is 16 units of half a rounding, that is, 8 roundings.
_COORDINATES_SHARE = 1 / 2
# The error of a gate is relative to the range of its activation function. The tolerance is 16 units
# of a quarter of a rounding, that is, 4 roundings.
_GATES_SHARE = 1 / 4
# The logarithm of a sum of exponentials is added to the largest operand, and the size of this
# operand determines the size of the rounding. The tolerance is 16 units of a quarter of a rounding,
# that is, 4 roundings.
_LARGEST_SHARE = 1 / 4
# The inputs and outputs of exact nodes are kept up to this total number of elements. The number is
# limited, because a loop may have many iterations.
_MAX_KEPT_ELEMENTS = 1 << 24
# For each unit roundoff, the largest rounding error of a subnormal number of the type.
_SUBNORMAL_ERRORS = {
    roundoff: float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2  # type: ignore[no-untyped-call]
    for dtype, roundoff in ROUNDOFF.items()
}
# For each unit roundoff, the smallest normal number of the type in which a node computes.
_SMALLEST_NORMAL = {
    roundoff: smallest_normal(np.dtype(dtype))
    for roundoff, dtype in ((SINGLE_ROUNDOFF, np.float32), (DOUBLE_ROUNDOFF, np.float64))
}
# The rounding error of a subnormal number is negligible beside numbers that are larger than the
# error by this factor.
_VISIBLE = 2.0**60
# The axes of an image: batch, channel, row and column.
_IMAGE_RANK = 4
# Products of two matrices, and the indices of the matrices among the operands.
_MATRIX_PRODUCTS, _FACTORS = frozenset({"Gemm", "MatMul"}), (0, 1)
# The indices of the scale and the bias among the operands of a normalization.
_SCALE_AND_BIAS = (1, 2)
# The values of the attribute post_transform that select the logistic function. TreeEnsemble uses
# numbers for this attribute.
_LOGISTIC = (b"LOGISTIC", 2)
_SCALES_OF_OPERATORS = {
    "CumProd": cumulative_product_scale,
    "CumSum": cumulative_sum_scale,
    "Gemm": product_scale,
    "MatMul": product_scale,
    "ReduceProd": product_of_factors_scale,
}
_SCALES_OF_KINDS = {
    NodeKind.CONVOLVE: convolution_scale,
    NodeKind.DETERMINANT: determinant_scale,
    NodeKind.TRANSFORM: transform_scale,
}


class DifferingRunsError(Exception):
    """Raised if runs that visit the nodes together inject different numbers of roundings."""


@dataclass(frozen=True, slots=True)
class VisitedNode:
    """A node that ran in the model's own types.

    Attributes:
        op_type: its operator.
        roundoff: the unit roundoff of its outputs, or of its inputs if its outputs are discrete.
        position_roundoff: the unit roundoff of the positions at which the node interpolates.
        narrows: whether the type of its outputs is coarser than the type of its inputs.
    """

    op_type: str
    roundoff: float
    position_roundoff: float
    narrows: bool


@dataclass(frozen=True, slots=True)
class RoundingSite:
    """A node of the exact run, and how it rounds.

    Attributes:
        op_type: its operator.
        node_class: its kind, and the number of terms that its outputs combine.
        roundoff: the unit roundoff of its outputs; 0 if the node is exact.
        position_roundoff: the unit roundoff of the positions at which the node interpolates.
        operand_roundoff: the unit roundoff by which its operands are perturbed.
        scales: for each output, the scale of its absolute error; empty if each perturbed run
            derives the scales from its own outputs.
        flushed: for each output, the scale of its error on a device that flushes subnormal terms to
            zero.
        average_errors: for a normalization, the errors of its statistics by sequential algorithms.
        exact_run: the inputs and outputs of an exact node. A perturbed run reuses the outputs if
            the inputs do not move. None if the node rounds, or if too many elements are kept
            already.
    """

    op_type: str
    node_class: NodeClass
    roundoff: float
    position_roundoff: float
    operand_roundoff: float
    scales: Sequence[Any]
    flushed: Sequence[Any]
    average_errors: AverageErrors
    exact_run: tuple[Sequence[Any], Sequence[Any]] | None


class SiteRecorder:
    """The visitor of the exact run, which records a rounding site for each node.

    Args:
        visited: the nodes that ran in the model's own types.
        math: the declared arithmetic, see :data:`MATH` and :data:`DEVICE_FUNCTIONS`; empty if none.
        classes: the classes of nodes that are known already; new classes are added. The
            reformulations of a model share this dict.
    """

    def __init__(
        self,
        visited: Sequence[VisitedNode],
        math: str,
        classes: dict[object, NodeClass] | None = None,
    ) -> None:
        self._visited = visited
        self._math = math
        self._coarsest = max((node.roundoff for node in visited), default=0.0)
        #: The size of an injected rounding, in roundings of the model's types.
        self.step = _DOUBLE_STEP if self._coarsest == DOUBLE_ROUNDOFF else 1.0
        self.sites: list[RoundingSite] = []
        #: If the model is a single float32 or double node, the largest error of its direct
        #: evaluations, in units of its unit roundoff. None if this error is not bounded.
        self.direct_bound: Array | None = None
        #: Whether any node is discontinuous, so that outputs may jump.
        self.may_jump = False
        #: The number of bytes of the operands and outputs of the largest node.
        self.largest_node_bytes = 0
        #: The number of multiplications in all products whose sums are short.
        self.short_multiplications = 0.0
        self._classes = {} if classes is None else classes
        self._kept_elements = 0

    @property
    def elementwise(self) -> bool:
        """Whether the model is a single node that rounds each element of its outputs once."""
        site = self.sites[0] if len(self._visited) == 1 else None
        return (
            site is not None
            and not site.scales
            and bool(site.roundoff)
            and site.node_class.kind is NodeKind.ELEMENTWISE
        )

    @property
    def accumulation(self) -> tuple[str, NodeKind] | None:
        """The operator and kind if the model is one node that accumulates in float32, else None."""
        nodes = [(site.op_type, site.node_class.kind) for site in self.sites]
        single = len(self._visited) == 1 and accumulates_in_single(*nodes[0])
        return nodes[0] if single else None

    @property
    def has_movements(self) -> bool:
        """Whether any perturbed run would differ from the exact run."""
        return not self.elementwise and any(site.roundoff for site in self.sites)

    def native_visitor(self, types: Sequence[Sequence[np.dtype[Any] | None]]) -> Visitor:
        """Return a visitor that computes 16-bit sums in float32, for runs in the model's own types.

        Args:
            types: the dtypes of the outputs of each visited node.
        """
        if self._coarsest <= SINGLE_ROUNDOFF or self._math == "float16-sums":
            return compute_only
        return InSingle([(site.op_type, site.node_class.kind) for site in self.sites], types)

    def __call__(
        self, node: Any, compute: Compute, operands: Sequence[Any], index: int
    ) -> Sequence[Any]:
        """Compute a node and record its rounding site."""
        outputs = compute(*operands)
        self.may_jump = self.may_jump or may_jump(node, operands, outputs)
        node_bytes = total_bytes((*operands, *outputs))
        self.largest_node_bytes = max(self.largest_node_bytes, node_bytes)
        site = self._site(node, compute, operands, outputs, index)
        self.sites.append(site)
        if is_short_product(site):
            self.short_multiplications += site.node_class.terms * np.size(outputs[0])
        if len(self._visited) == 1 and not self._math and 0 < site.roundoff <= SINGLE_ROUNDOFF:
            flushes = not all(map(_is_zero, site.flushed))
            bound = direct_bound(node, site.node_class, compute, operands, outputs[0])
            self.direct_bound = None if flushes else bound
        return outputs

    def state(self) -> Any:
        """Return the sites of the visited nodes, and the totals over all visited nodes."""
        totals = self.may_jump, self.largest_node_bytes, self.short_multiplications
        return [*self.sites], *totals, self._kept_elements

    def resume(self, state: Any) -> None:
        """Continue after the nodes that another recorder has visited, given its state."""
        sites, *totals, self._kept_elements = state
        self.may_jump, self.largest_node_bytes, self.short_multiplications = totals
        self.sites = [*sites]

    def _site(
        self,
        node: Any,
        compute: Compute,
        operands: Sequence[Any],
        outputs: Sequence[Any],
        index: int,
    ) -> RoundingSite:
        # Control flow may depend on the types. A different node may therefore have run at this
        # index in the model's own types.
        same_node = index < len(self._visited) and self._visited[index].op_type == node.op_type
        visited = self._visited[index] if same_node else None
        roundoff = visited.roundoff if visited else self._coarsest
        node_class = self._node_class(node, compute, operands, outputs)
        if (
            visited
            and visited.narrows
            and node_class.kind is NodeKind.EXACT
            and len(self._visited) > 1
        ):
            node_class = NodeClass(NodeKind.ELEMENTWISE)
        if node_class.kind is NodeKind.EXACT:
            roundoff = 0.0
        operand_roundoff = _operand_roundoff(node.op_type, node_class, roundoff, self._math)
        scales = self._scales(node, node_class, compute, operands, outputs, roundoff)
        exact_run = None
        if not roundoff:
            arrays = [v for v in (*operands, *outputs) if isinstance(v, np.ndarray)]
            self._kept_elements += sum(array.size for array in arrays)
            if self._kept_elements <= _MAX_KEPT_ELEMENTS:
                exact_run = (operands, outputs)
        average_errors = AverageErrors()
        if node_class.kind is NodeKind.NORMALIZE and roundoff >= SINGLE_ROUNDOFF:
            with average_errors.observing():
                compute(*operands)
        return RoundingSite(
            op_type=node.op_type,
            node_class=node_class,
            roundoff=roundoff,
            position_roundoff=visited.position_roundoff if visited else roundoff,
            operand_roundoff=operand_roundoff,
            scales=scales,
            flushed=[
                _flushed_scale(node, node_class, compute, operands, output, roundoff)
                for output in outputs
            ],
            average_errors=average_errors,
            exact_run=exact_run,
        )

    def _node_class(
        self, node: Any, compute: Compute, operands: Sequence[Any], outputs: Sequence[Any]
    ) -> NodeClass:
        """Return the class of a node; equal nodes with equal types are classified once."""
        if listed_kind(node.op_type) in (NodeKind.EXACT, NodeKind.ELEMENTWISE):
            return classify(node, compute, operands, outputs)
        key = (node.onnx_node.SerializeToString(), node.opset, *map(describe, operands))
        if key not in self._classes:
            self._classes[key] = classify(node, compute, operands, outputs)
        return self._classes[key]

    def _scales(
        self,
        node: Any,
        node_class: NodeClass,
        compute: Compute,
        operands: Sequence[Any],
        outputs: Sequence[Any],
        roundoff: float,
    ) -> Sequence[Any]:
        """Return the scale of each output's error; empty if perturbed runs compute the scales."""
        kind = node_class.kind
        if _is_logistic(node):
            # For a negative score, the output is 1 - z with z near 1. The error of the output is
            # relative to 1, as for gates.
            return [np.full(np.shape(output), _GATES_SHARE) for output in outputs]
        if kind is NodeKind.COORDINATES:
            outputs_of_magnitudes = compute(np.abs(operands[0]), *operands[1:])
            return [_COORDINATES_SHARE * np.abs(output) for output in outputs_of_magnitudes]
        if self._math in DEVICE_FUNCTIONS and roundoff == SINGLE_ROUNDOFF:
            error = device_error(self._math, node.op_type, [*operands], outputs[0])
            if error is not None:
                return [np.maximum(0.0, error / (UNITS * roundoff) - np.abs(outputs[0]))]
        if node.op_type in CHAINED and roundoff > SINGLE_ROUNDOFF:
            units = UNITS if self._math == "float16-sums" else SHORT_UNITS
            return [_partial_sums_error(compute, operands, outputs[0]) / units]
        addend_error = 0.0
        if node.op_type in WITH_ADDEND and roundoff > SINGLE_ROUNDOFF:
            units = UNITS if self._math == "float16-sums" else SHORT_UNITS
            addend_error = _addend_error(node, compute, operands, outputs[0]) / units
        scale = _SCALES_OF_OPERATORS.get(node.op_type) or _SCALES_OF_KINDS.get(kind)
        if kind is NodeKind.WINDOW:
            scale = partial(window_scale, roundoff=roundoff)
        if scale is None or not outputs[0].size or not is_wide(outputs[0]):
            return ()
        # The injector multiplies the scale by the number of roundings of the output. Divide the
        # scale by this number here.
        share = 1 / _output_roundings(node_class, roundoff, in_graph=len(self._visited) > 1)
        if roundoff > SINGLE_ROUNDOFF and self._math != "float16-sums":
            # 16-bit operands are accumulated in float32.
            share *= SINGLE_ROUNDOFF / roundoff * UNITS / SHORT_UNITS
        return [share * scale(node, operands, outputs[0]) + addend_error]


class Injector:
    """The visitor of perturbed runs, which injects a rounding at each site.

    Several runs may visit the nodes together, with stacked values
    (:mod:`~onnxopt_cli.oracle.stacked`). A single run has ordinary values.

    Args:
        sites: the nodes of the exact run.
        step: the size of an injected rounding, in roundings of the model's types.
        runs: the indices of the perturbed runs, see
            :func:`~onnxopt_cli.oracle.rounding.perturbations.roundings`.
    """

    def __init__(self, sites: Sequence[RoundingSite], step: float, runs: Sequence[int]) -> None:
        self._sites, self._step, self._runs = sites, step, runs
        self._moved_elements = 0

    def __call__(
        self, node: Any, compute: Compute, operands: Sequence[Any], index: int
    ) -> Sequence[Any]:
        """Compute a node with injected roundings."""
        site = self._sites[index] if index < len(self._sites) else None
        count = len(self._runs)
        if not site or site.op_type != node.op_type:
            return compute_stacked(node, compute, operands, count)
        if site.exact_run and all(map(is_, operands, site.exact_run[0])):
            # No operand differs from the exact run.
            return site.exact_run[1]
        if not site.roundoff:
            return compute_stacked(node, compute, operands, count)
        outputs = self._perturbed(node, compute, operands, site)
        return outputs if count > 1 else [value_of_run(output, 0) for output in outputs]

    def state(self) -> int:
        """Return the number of elements that each run has moved."""
        return self._moved_elements

    def resume(self, state: int) -> None:
        """Continue after another injector, given the number of elements that each run has moved."""
        self._moved_elements = state

    def _perturbed(
        self, node: Any, compute: Compute, operands: Sequence[Any], site: RoundingSite
    ) -> Sequence[Any]:
        """Compute a node with roundings of its operands, intermediate values and outputs."""
        kind, roundoff = site.node_class.kind, site.roundoff * self._step
        moved = self._moved_operands(node, operands, site)
        if kind in (NodeKind.SELECT, NodeKind.COORDINATES):
            selects = kind is NodeKind.SELECT
            share = 1.0 if selects else _COORDINATES_SHARE
            position_error = share * site.position_roundoff * self._step
            outputs = self._computed(
                compute,
                moved,
                lambda draw: moved_coordinates(
                    lambda size: position_error * draw(size) * size, selects=selects
                ),
            )
            if selects:
                return outputs
        elif kind is NodeKind.NORMALIZE and _averages(node, site.node_class):
            outputs = self._computed(
                compute, moved, lambda draw: moved_averages(self._error_model(site, draw))
            )
        elif _moves_activations(node, site.roundoff):
            outputs = self._computed(
                compute,
                moved,
                lambda draw: moved_activations(
                    site.roundoff, lambda value: roundoff * draw(np.asarray(value))
                ),
            )
        elif kind is NodeKind.TREES and rounds_partial_sums(node.onnx_node):
            weight_error = site.operand_roundoff * self._step
            outputs = self._computed(
                compute,
                moved,
                lambda draw: moved_weights(
                    node.op_type, lambda weights: weight_error * draw(weights) * weights
                ),
            )
        elif node.op_type in SHARES:
            inner = roundoff if site.roundoff <= SINGLE_ROUNDOFF else SINGLE_ROUNDOFF
            outputs = self._computed(
                compute,
                moved,
                lambda draw: moved_logarithms(
                    lambda largest: inner * draw(largest) * _LARGEST_SHARE * largest
                ),
            )
        else:
            outputs = [*compute_stacked(node, compute, moved, len(self._runs))]
        flushed = [error * roundoff for error in site.flushed]
        in_graph = len(self._sites) > 1
        roundoff *= _output_roundings(site.node_class, site.roundoff, in_graph=in_graph)
        subnormal_error = _SUBNORMAL_ERRORS[site.roundoff] * self._step
        rounded = partial(_rounded, subnormal_error=subnormal_error, step=self._step)
        results = []
        for place, (output, error) in enumerate(zip(outputs, flushed, strict=True)):
            array = array_of(output)
            if not is_wide(array) or not array.size:
                results.append(output)
                continue
            scale = (
                site.scales[place]
                if site.scales
                else self._mixing_scales(node, kind, output, site.roundoff)
            )
            moves = self._roundings(output)
            array = np.broadcast_to(array, moves.shape)
            results.append(Stacked(rounded(array, moves, roundoff, scale, error)))
        return results

    def _computed(
        self,
        compute: Compute,
        operands: Sequence[Any],
        perturb: Callable[[Callable[[Array], Array]], AbstractContextManager[None]],
    ) -> list[Any]:
        """Compute a node in one run after the other, with roundings of intermediate results.

        Args:
            compute: computes the node.
            operands: its operands.
            perturb: takes a function that returns the next roundings of a run, and returns a
                context manager that injects these roundings.
        """
        first, results = self._moved_elements, []
        ends = set()
        for place, run in enumerate(self._runs):
            self._moved_elements = first
            with perturb(partial(self._roundings_of_run, run)):
                results.append(compute(*[value_of_run(operand, place) for operand in operands]))
            ends.add(self._moved_elements)
        if len(ends) > 1:
            raise DifferingRunsError
        return stacked_outputs(results)

    def _moved_operands(self, node: Any, operands: Sequence[Any], site: RoundingSite) -> list[Any]:
        moved, kind = list(operands), site.node_class.kind
        if not site.node_class.moves_operands:
            return moved
        arrays = [*map(array_of, operands)]
        places = movable_operands(node.op_type, arrays)
        moves_factors = node.op_type in _MATRIX_PRODUCTS and {*_FACTORS} <= {*places}
        for place in places:
            operand = arrays[place]
            if moves_factors and place == _FACTORS[1]:
                # The first factor is moved by the roundings of both factors.
                continue
            # A scale or bias of 16 bits is perturbed by a rounding of its own type. Operands that
            # are accumulated in float32 are perturbed by roundings of float32.
            parameter = kind is NodeKind.NORMALIZE and place in _SCALE_AND_BIAS
            if parameter and site.roundoff > SINGLE_ROUNDOFF:
                operand_roundoff = site.roundoff * self._step
            elif place == GRIDS.get(node.op_type):
                operand_roundoff = max(site.operand_roundoff, site.position_roundoff) * self._step
            else:
                operand_roundoff = site.operand_roundoff * self._step
            # Change large arrays in place, because allocation takes longer than the arithmetic.
            errors = self._roundings(operands[place])
            if node.op_type == "DeformConv" and place == OFFSETS:
                weights, offsets = (value_of_run(operands[i], 0) for i in (1, OFFSETS))
                sizes = self._offset_errors(node, weights, offsets, site)
                moved[place] = Stacked(operand + errors * sizes)
                continue
            errors *= operand_roundoff
            if place == GRIDS.get(node.op_type):
                errors = errors * coordinate_errors(node.op_type, operand)
                moved[place] = Stacked(operand + errors)
            elif kind is not NodeKind.SELECT:
                errors += 1
                if moves_factors and place == _FACTORS[0]:
                    errors *= 1 + operand_roundoff * self._roundings_of_rows(node, operands[place])
                moved[place] = Stacked(
                    np.asarray(np.multiply(operand, errors, out=_reused(errors, operand)))
                )
        return moved

    def _roundings_of_rows(self, node: Any, factor: Any) -> Array:
        """Return the next roundings of the rows of the second factor of a matrix product.

        In each run, all elements of a row have the same rounding. Moving a row has the same effect
        on the product as moving a column of the first factor. The roundings are returned in a shape
        that broadcasts with the first factor.

        Args:
            node: a ``Gemm`` or ``MatMul``, as the evaluator prepares it.
            factor: the first factor.
        """
        transposed = any(item.name == "transA" and item.i for item in node.onnx_node.attribute)
        # The terms of a sum lie along this axis of the first factor.
        axis = 0 if transposed else len(factor.shape) - 1
        lengths = [size if place == axis else 1 for place, size in enumerate(factor.shape)]
        return self._roundings(value_of_run(factor, 0)[tuple(map(slice, lengths))])

    def _offset_errors(
        self, node: Any, weights: Array, offsets: Array, site: RoundingSite
    ) -> Array:
        """Return the largest errors of the offsets of DeformConv.

        The sum of an offset and a regular coordinate has a rounding error relative to the sum.
        """
        attributes = {
            item.name: helper.get_attribute_value(item) for item in node.onnx_node.attribute
        }
        errors: Array = site.operand_roundoff * self._step * np.abs(offsets)
        if weights.ndim != _IMAGE_RANK:
            return errors
        units = UNITS if site.roundoff <= SINGLE_ROUNDOFF else SHORT_UNITS
        roundoff = _COORDINATES_SHARE * site.position_roundoff * UNITS / units * self._step
        coordinates = offset_coordinates(attributes, weights, offsets)
        return np.maximum(errors, roundoff * coordinates)

    def _error_model(self, site: RoundingSite, draw: Callable[[Array], Array]) -> ErrorModel:
        """Return the errors of the averages of a normalization.

        Args:
            site: the normalization.
            draw: returns the next roundings of a run.
        """
        units = UNITS if site.roundoff <= SINGLE_ROUNDOFF else SHORT_UNITS
        return ErrorModel(
            roundoff=units * site.operand_roundoff,
            observed=site.average_errors,
            # A mean is computed in float32 or a wider type.
            mean_roundoff=UNITS * _STATISTICS_SHARE * min(site.roundoff, SINGLE_ROUNDOFF),
            roundings=draw,
            step=self._step / units,
        )

    def _mixing_scales(self, node: Any, kind: NodeKind, output: Any, roundoff: float) -> Any:
        """Return the scale of an output's error in each run, see :func:`_mixing_scale`."""
        if kind not in (NodeKind.GATES, NodeKind.MIX) or not isinstance(output, Stacked):
            return _mixing_scale(node, kind, output, roundoff)
        scales = [
            _mixing_scale(node, kind, value, roundoff)
            for value in values_of_runs(output, len(self._runs))
        ]
        if all(map(_is_zero, scales)):
            return 0.0
        ones = [1] * len(output.shape)
        return np.stack([scale if np.ndim(scale) else np.reshape(scale, ones) for scale in scales])

    def _roundings(self, value: Any) -> Array:
        """Return the next roundings of all runs, with the runs along the first axis.

        Args:
            value: the tensor whose elements are rounded; stacked, or equal in all runs.
        """
        shape = value.shape
        size = prod(shape)
        values = np.empty((len(self._runs), size))
        for place, run in enumerate(self._runs):
            roundings(run, self._moved_elements, size, out=values[place])
        self._moved_elements += size
        return values.reshape(len(self._runs), *shape)

    def _roundings_of_run(self, run: int, value: Any) -> Array:
        """Return the next roundings of one run, see :meth:`_roundings`."""
        size = prod(value.shape)
        values = roundings(run, self._moved_elements, size)
        self._moved_elements += size
        return values.reshape(value.shape)


def _partial_sums_error(compute: Compute, operands: Sequence[Any], output: Array) -> Array:
    """Return the error of a sum of n tensors, added one by one, in units of the unit roundoff.

    The n - 2 partial sums before the output are rounded. The magnitude of each partial sum is at
    most the sum of the magnitudes of all terms. For large n, the error is taken to be proportional
    to sqrt(n).
    """
    count = len(operands)
    partial_sums = min(max(0, count - 2), UNITS * sum_roundings(count))
    (magnitudes,) = compute(*map(np.abs, operands))
    return np.asarray(partial_sums * np.where(np.isfinite(output), magnitudes, 0.0))


def _addend_error(node: Any, compute: Compute, operands: Sequence[Any], output: Array) -> Any:
    """Return the error if a product is rounded before C or the bias is added.

    The product is also rounded before it is multiplied by alpha, and C after it is multiplied by
    beta. The error is in units of the unit roundoff.
    """
    if len(operands) <= ADDEND or operands[ADDEND] is None:
        return 0.0
    factors = {item.name: item.f for item in node.onnx_node.attribute}
    (product,) = compute(*operands[:ADDEND])
    error = np.abs(product) * (1 + (factors.get("alpha", 1.0) != 1))
    if factors.get("beta", 1.0) != 1:
        error += np.abs(output - product)
    return np.where(np.isfinite(error), error, 0.0)


def _operand_roundoff(op_type: str, node_class: NodeClass, roundoff: float, math: str) -> float:
    """Return the size of the relative perturbation of a node's operands."""
    if node_class.kind is NodeKind.NORMALIZE:
        # 16-bit tensors are normalized in float32, so implementations differ only by roundings of
        # float32.
        wider = SINGLE_ROUNDOFF * UNITS / SHORT_UNITS
        computed = wider if roundoff > SINGLE_ROUNDOFF else roundoff
        in_short = math == "float16-sums" and roundoff > DOUBLE_ROUNDOFF
        declared = MATH[math] if in_short else 0.0
        # A node that takes its statistics as inputs computes no averages.
        averages = node_class.terms > 1 and roundoff <= SINGLE_ROUNDOFF
        return max(computed, declared) * (_STATISTICS_SHARE if averages else 1.0)
    if math == "float16-sums" and node_class.terms > 1 and roundoff > DOUBLE_ROUNDOFF:
        return max(roundoff, MATH[math]) * _accumulated(node_class, SINGLE_ROUNDOFF)
    if roundoff > SINGLE_ROUNDOFF and takes_exact_operands(op_type, node_class.kind):
        return SINGLE_ROUNDOFF * _accumulated(node_class, SINGLE_ROUNDOFF) * UNITS / SHORT_UNITS
    if node_class.kind is NodeKind.COORDINATES:
        return roundoff * _COORDINATES_SHARE
    # An operand of an exponential is rounded once, because it is scaled to compute a power of two.
    # The error of the sum is not attributed to the operands, because exponentials are positive and
    # do not cancel.
    sums = node_class.kind is not NodeKind.EXPONENTIALS
    computed = roundoff * (_accumulated(node_class, roundoff) if sums else 1.0)
    products = math in MATH and op_type in PRODUCTS and roundoff == SINGLE_ROUNDOFF
    return max(computed, MATH[math] if products and math != "float16-sums" else 0.0)


def _accumulated(node_class: NodeClass, roundoff: float) -> float:
    """Return the error of a node's sums, in roundings; 1 for 16-bit outputs."""
    return 1.0 if roundoff > SINGLE_ROUNDOFF else sum_roundings(node_class.terms)


def _output_roundings(node_class: NodeClass, roundoff: float, *, in_graph: bool) -> float:
    """Return the error of a node's outputs, in roundings."""
    kind = node_class.kind
    # In a graph, two long sums have independent errors even if both have the same terms.
    independent_sums = in_graph and kind is NodeKind.COMBINE
    if independent_sums or kind in (NodeKind.PRODUCT, NodeKind.EXPONENTIALS):
        return _accumulated(node_class, roundoff)
    return 1.0


def has_long_sums(site: RoundingSite) -> bool:
    """Return whether a node has sums whose error may exceed one rounding if they are sequential.

    Sums of 16-bit operands are accumulated in float32, and their error is in roundings of float32.
    """
    return bool(site.roundoff) and sum_roundings(site.node_class.terms) > 1


def is_short_product(site: RoundingSite) -> bool:
    """Return whether a node computes products whose sums have at most ``SHORT_SUM`` terms."""
    return site.op_type in PRODUCTS and site.node_class.terms <= SHORT_SUM


def _flushed_scale(
    node: Any,
    node_class: NodeClass,
    compute: Compute,
    operands: Sequence[Any],
    output: Any,
    roundoff: float,
) -> Any:
    """Return the scale of an output's error on a device that flushes subnormal terms to zero."""
    if not roundoff or not is_wide(output) or not output.size:
        return 0.0
    units = UNITS if roundoff <= SINGLE_ROUNDOFF else SHORT_UNITS
    tiny = _SMALLEST_NORMAL[min(roundoff, SINGLE_ROUNDOFF)]
    error = flushed_error(node, node_class, compute, operands, output, tiny)
    return error / (units * roundoff)


def _rounded(
    output: Array,
    moves: Array,
    roundoff: float,
    scale: Any,
    flushed: Any,
    *,
    subnormal_error: float,
    step: float,
) -> Array:
    """Return an output with each element perturbed. A subnormal element does not cross zero.

    Args:
        output: the output.
        moves: the roundings, between -1 and 1; overwritten.
        roundoff: the relative size of a rounding.
        scale: the scale of the absolute error, zero or positive.
        flushed: the error on a device that flushes subnormal terms to zero; zero or positive.
        subnormal_error: the size of a rounding of a subnormal number.
        step: the size of an injected rounding, in roundings of the model's types.
    """
    magnitude: Array = np.asarray(np.abs(output))
    size = magnitude if _is_zero(scale) else np.asarray(magnitude + scale)
    if not isfinite(size.max()):
        size = np.where(np.isfinite(size), size, 0.0)
    # For larger elements, the rounding error of a subnormal number is negligible.
    visible = _VISIBLE * subnormal_error
    small = None
    if not magnitude.min() >= visible:
        small = (magnitude < visible) & (magnitude > 0)
        small_moves, limit = moves[small] * subnormal_error, magnitude[small]
        # A number below half of the smallest subnormal number is rounded to zero. An element that
        # results from cancellation is an exception, because its error is proportional to its terms.
        vanishes = size[small] < subnormal_error / step
        toward_zero = -np.sign(np.real(output[small])) * np.abs(small_moves)
    flushed_moves = None if _is_zero(flushed) else moves * flushed
    moves *= roundoff
    moves *= size
    if small is not None:
        moves[small] += np.clip(small_moves, -limit, limit)
        moves[small] = np.where(vanishes, np.clip(toward_zero, -limit, limit), moves[small])
        if _is_zero(scale):
            # Without this limit, the sum of the absolute error and the relative error could move an
            # element across zero.
            moves[small] = np.clip(moves[small], -limit, limit)
    if flushed_moves is not None:
        moves += flushed_moves
    return np.asarray(np.add(output, moves, out=_reused(moves, output)))


def _is_zero(scale: Any) -> bool:
    """Return whether a scale is the number 0 rather than an array."""
    return not isinstance(scale, np.ndarray) and not scale


def _reused(array: Array, operand: Array) -> Array | None:
    """Return an array that a result may overwrite, if it has the operand's type; else None."""
    return array if operand.dtype == array.dtype else None


def _is_logistic(node: Any) -> bool:
    """Return whether a node of ai.onnx.ml applies the logistic function to its scores."""
    transforms = (
        helper.get_attribute_value(attribute)
        for attribute in node.onnx_node.attribute
        if attribute.name == "post_transform"
    )
    return next(transforms, None) in _LOGISTIC


def _averages(node: Any, node_class: NodeClass) -> bool:
    """Return whether a normalization computes its statistics; otherwise, they are operands."""
    return node.op_type != "BatchNormalization" or node_class.terms > 1


def _moves_activations(node: Any, roundoff: float) -> bool:
    """Return whether the activations of a node are perturbed instead of its outputs."""
    return bool(node.op_type == "GRU" and roundoff <= SINGLE_ROUNDOFF)


def _mixing_scale(node: Any, kind: NodeKind, output: Array, roundoff: float) -> Any:
    """Return the scale of an output's absolute error, such as its largest magnitude.

    The scale is 0 if the error of each element is relative to the magnitude of the element itself.
    """
    if kind is NodeKind.GATES:
        if _moves_activations(node, roundoff):
            return 0.0
        # In 16 bits, states and gates are rounded to the model's type at each step.
        share = 1.0 if roundoff > SINGLE_ROUNDOFF else _GATES_SHARE
        return share * max(1.0, largest_magnitude(output))
    if kind is NodeKind.EXPONENTIALS:
        # The sum of exponentials is at least 1. A rounding of the sum therefore moves its logarithm
        # by at most a rounding of 1.
        return 0.0 if node.op_type == "Softmax" else 1.0
    if kind is not NodeKind.MIX:
        return 0.0
    size = np.where(np.isfinite(output), np.abs(output), 0.0)
    if node.op_type == "DeformConv":
        if roundoff <= SINGLE_ROUNDOFF:
            return 0.0
        # In 16 bits, interpolated elements may be rounded to the model's type. No algorithm mixes
        # different images, or different groups of channels.
        integers = {attribute.name: attribute.i for attribute in node.onnx_node.attribute}
        parts = size.reshape(len(output), integers.get("group", 1), -1)
        return np.broadcast_to(parts.max(-1, keepdims=True), parts.shape).reshape(size.shape)
    return size.max(keepdims=True)


def largest_magnitude(array: Any) -> float:
    """Return the largest finite magnitude of a tensor of doubles; 0 if no element is finite."""
    if not is_wide(array):
        return 0.0
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
