"""Run a model and its reformulations, to estimate the condition of the model.

The model runs in its own types (:class:`FirstRun`), in double, and in double with injected
roundings. Depending on the nodes that ran, the model also runs in its own types with sequential
sums, with subnormal numbers flushed to zero, and with NaN or infinity spread by fast algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.tolerance import SHORT_UNITS
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.operators.nodes import all_nodes
from onnxopt_cli.oracle.corrections.contested import questions_at
from onnxopt_cli.oracle.corrections.corrected_reference import INTERPOLATING
from onnxopt_cli.oracle.estimate.activation_limits import outputs_at_limits
from onnxopt_cli.oracle.estimate.conditioned_outputs import FINER, Evaluation, may_have_jumped
from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError
from onnxopt_cli.oracle.estimate.shared_prefix import SharedPrefix
from onnxopt_cli.oracle.evaluator import (
    Compute,
    ReferenceModel,
    Visitor,
    compute_only,
    sequential_sums,
)
from onnxopt_cli.oracle.excluded_inputs import excluded_input
from onnxopt_cli.oracle.rounding.exponentials import OPERATORS, in_one_pass
from onnxopt_cli.oracle.rounding.injection import (
    SINGLE_ROUNDOFF,
    Injector,
    RoundingSite,
    SiteRecorder,
    VisitedNode,
    has_long_sums,
    is_short_product,
)
from onnxopt_cli.oracle.rounding.intermediate_values import GRIDS
from onnxopt_cli.oracle.rounding.node_kinds import NodeClass
from onnxopt_cli.oracle.rounding.operator_identities import WITHIN
from onnxopt_cli.oracle.rounding.perturbations import RUNS
from onnxopt_cli.oracle.rounding.scales import mixes_infinite, spread
from onnxopt_cli.oracle.rounding.short_floats import dtypes_of, requests_short_sums
from onnxopt_cli.oracle.rounding.special_pixels import interpolates_special, with_special_pixels
from onnxopt_cli.oracle.rounding.sums import MEANS, may_overflow, with_flushed_root, with_overflow
from onnxopt_cli.oracle.stacked import (
    compute_stacked,
    outputs_of_runs,
    stacked_outputs,
    value_of_run,
)
from onnxopt_cli.oracle.widen import ROUNDOFF, flushed_value, widened_value

_MAX_VISITS = 20_000
# Events in which an intermediate result of a model leaves the range of its type. The first two
# names are those by which NumPy reports the events.
_OVERFLOW, _UNDERFLOW, _SUBNORMAL = "overflow", "underflow", "subnormal"
# The event that a fast algorithm mixes NaN or infinity with other elements.
_SPREADS = "spreads"
# The event that a node interpolates between pixels of which some are NaN or infinite.
_SPECIAL_PIXELS = "special pixels"
# The event that a sum may overflow if its terms are added in another order.
_REORDERED = "reordered"
# The contested question that is recorded if a node interpolates between integers.
INTEGERS = "integers"
# Normalizations with the attribute ``stash_type``, each with the opset version that introduced the
# attribute. The default of ``stash_type`` is float32.
_STASHING = {"GroupNormalization": 21, "LayerNormalization": 17}
_SPECIALS = (np.nan, np.inf, -np.inf)
# If the products of a model whose sums are short have more multiplications than this in total,
# these sums are not computed sequentially, because this would take as long as several runs.
_MAX_SHORT_MULTIPLICATIONS = 1 << 20
_TRAINING_DOMAIN = "ai.onnx.preview.training"


@dataclass(slots=True)
class SharedState:
    """The state that the evaluations of a model and its reformulations share.

    Attributes:
        math: the declared arithmetic; empty if none.
        encountered: receives the contested questions that the nodes of the model raise.
        prefix: the results of the nodes before the first reformulated node.
        classes: the classes of the nodes that ran, by node and types of the operands.
        unchanged: all reference models without replaced operators. Each entry has the ONNX model,
            whether the reference model runs in double, and the reference model.
    """

    math: str
    encountered: set[str]
    prefix: SharedPrefix = field(default_factory=lambda: SharedPrefix({}))
    classes: dict[object, NodeClass] = field(default_factory=dict)
    unchanged: list[tuple[onnx.ModelProto, bool, ReferenceModel]] = field(default_factory=list)
    run_bytes: int = 0

    def reference_model(
        self,
        model: onnx.ModelProto,
        expanded: Sequence[str],
        functions: Mapping[str, onnx.FunctionProto] | None,
        *,
        wide: bool = False,
    ) -> ReferenceModel:
        """Return a reference model that shares initializers and nodes with earlier ones.

        See :class:`~onnxopt_cli.oracle.evaluator.ReferenceModel` for the arguments.
        """
        earlier = {in_double: like for proto, in_double, like in self.unchanged if proto is model}
        like = earlier.get(wide) or next(iter(earlier.values()), None)
        created = ReferenceModel(model, expanded, functions, wide=wide, like=like)
        if not expanded and not functions:
            self.unchanged.append((model, wide, created))
        return created


@dataclass
class FirstRun:
    """The visitor of the first run of a model, in the model's own types.

    Attributes:
        shared: the state that the evaluations of the model and its reformulations share.
        is_model: whether the model itself runs, not a reformulation.
        is_node: whether the model consists of one node.
        visited: the nodes that ran.
        types: the dtypes of the outputs of each of these nodes.
        range_events: the ways in which intermediate results leave the range of their types.
        special_events: other ways in which outputs may become NaN or infinite. A fast algorithm may
            mix NaN or infinity with other elements, an interpolation may multiply NaN or infinity
            by 0, or a sum may overflow if its terms are added in another order.
    """

    shared: SharedState
    is_model: bool
    is_node: bool
    visited: list[VisitedNode] = field(default_factory=list)
    types: list[list[np.dtype[Any] | None]] = field(default_factory=list)
    range_events: set[str] = field(default_factory=set)
    special_events: set[str] = field(default_factory=set)

    def __call__(
        self, node: Any, compute: Compute, operands: Sequence[Any], _index: int
    ) -> tuple[Any, ...]:
        """Compute a node and record it.

        Raises:
            NoReferenceError: if the inputs of the node are excluded, or if too many nodes run.
        """
        is_complete = not node.has_linked_attribute
        if is_complete:
            why = excluded_input(node.onnx_node, operands, opset=node.opset, is_model=self.is_node)
            if why:
                raise NoReferenceError(why)
        self.shared.encountered.update(questions_at(node, operands))
        self.shared.encountered.update([INTEGERS] * _interpolates_integers(node, operands))
        outputs = compute(*operands)
        self.range_events.update(_range_events(operands, outputs))
        self.special_events.update([_SPREADS] * mixes_infinite(node, operands))
        self.special_events.update([_SPECIAL_PIXELS] * interpolates_special(node, operands))
        self.special_events.update([_REORDERED] * may_overflow(node.op_type, operands))
        self.visited.append(visited_node(node, operands, outputs))
        self.types.append(dtypes_of(outputs))
        if self.is_model:
            self.shared.prefix.observe(node, operands, outputs)
        if len(self.visited) > _MAX_VISITS:
            raise NoReferenceError(f"it runs more than {_MAX_VISITS} nodes")
        return outputs


def evaluate_model(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    shared: SharedState,
    expanded: Sequence[str] = (),
    functions: Mapping[str, onnx.FunctionProto] | None = None,
    name: str = "",
) -> list[Evaluation]:
    """Run a model in its own types, in double, and in double with injected roundings.

    Args:
        model: the model.
        inputs: its inputs.
        shared: the state that the evaluations of the model and its reformulations share.
        expanded: operators that are replaced by their published function bodies.
        functions: functions that replace operators.
        name: the name of a reformulation of the graph; empty for the model itself.

    Returns:
        One evaluation per output.
    """
    is_node = len(list(all_nodes(model))) == 1
    first_run = FirstRun(shared, is_model=not name, is_node=is_node)
    range_events = first_run.range_events
    reference_model = partial(shared.reference_model, model, expanded, functions)
    native_model = reference_model()
    with _numpy_range_events(range_events):
        native = native_model.run(inputs, first_run)
    if not name:
        shared.prefix.observe_end(native)
    run = partial(shared.prefix.run, name)
    wide_model = reference_model(wide=True)
    doubles = {key: widened_value(value) for key, value in inputs.items()}
    create_recorder = partial(SiteRecorder, first_run.visited, shared.math, shared.classes)
    exact, recorder = run("exact", wide_model, doubles, create_recorder)
    in_short = requests_short_sums(model)
    visitor = compute_only if in_short else recorder.native_visitor(first_run.types)
    if visitor is not compute_only:
        native = _run_with_range_events(native_model, inputs, visitor, range_events)
    run_bytes = wide_model.visits.peak_bytes + recorder.largest_node_bytes
    shared.run_bytes = max(shared.run_bytes, run_bytes)
    perturbed_outputs = partial(
        _perturbed_outputs,
        run,
        wide_model,
        doubles,
        recorder.sites,
        run_bytes=shared.run_bytes,
    )
    perturbed = perturbed_outputs(recorder.step) if recorder.has_movements else [()] * len(native)
    columns = zip(native, exact, perturbed, strict=True)
    evaluations = [Evaluation(*column, step=recorder.step) for column in columns]
    # Subnormal numbers are rounded to few distinct values, which act like discontinuities.
    rounds_coarsely = not range_events.isdisjoint({_UNDERFLOW, _SUBNORMAL})
    if (recorder.may_jump or rounds_coarsely) and any(map(may_have_jumped, evaluations)):
        finely_perturbed = perturbed_outputs(recorder.step / FINER)
        for evaluation, outputs in zip(evaluations, finely_perturbed, strict=True):
            evaluation.finely_perturbed = outputs
    sequential = _sequential_outputs(
        run, native_model, inputs, recorder, visitor, run_bytes=shared.run_bytes
    )
    if recorder.direct_bound is not None:
        roundoff = recorder.sites[0].roundoff
        evaluations[0].direct_bound = roundoff * recorder.direct_bound
    events = range_events | first_run.special_events
    out_of_range = [
        *_out_of_range_outputs(native_model, inputs, native, events, visitor),
        *outputs_at_limits(model, inputs, native),
    ]
    if _REORDERED in events:
        visitors = [_overflowing(visitor, recorder.sites, special) for special in _SPECIALS]
        reordered = [native_model.run(inputs, overflowing) for overflowing in visitors]
        out_of_range += [outputs for outputs in reordered if not _same_outputs(outputs, native)]
    for index, evaluation in enumerate(evaluations):
        evaluation.sequential = [outputs[index] for outputs in sequential]
        evaluation.elementwise = recorder.elementwise
        evaluation.accumulation = None if visitor is compute_only else recorder.accumulation
        evaluation.overflows = _OVERFLOW in range_events
        evaluation.underflows = _UNDERFLOW in range_events
        evaluation.out_of_range = [outputs[index] for outputs in out_of_range]
        # 16-bit outputs are computed in float32 and rounded a few times.
        if (
            coarsest_roundoff([evaluation.native]) > SINGLE_ROUNDOFF
            and shared.math != "float16-sums"
        ):
            evaluation.units = SHORT_UNITS
    return evaluations


def visited_node(node: Any, operands: Sequence[Any], outputs: Sequence[Any]) -> VisitedNode:
    """Describe a node that ran in the model's own types, with the unit roundoff of these types."""
    before, after = coarsest_roundoff(operands), coarsest_roundoff(outputs)
    # The input R of a training operator, and values that depend only on R, may be float32 although
    # the tensors are doubles.
    mixed = node.onnx_node.domain == _TRAINING_DOMAIN
    roundoff = max(before, after) if mixed else after or before
    if node.op_type in GRIDS:
        # If the grid is float32, the positions have roundings of float32. In comparison, roundings
        # of double have no visible effect.
        roundoff = max(roundoff, min(before, SINGLE_ROUNDOFF))
    if _normalizes_in_single(node):
        roundoff = max(roundoff, SINGLE_ROUNDOFF)
    if node.onnx_node.name == WITHIN:
        roundoff = min(roundoff, SINGLE_ROUNDOFF)
    # Positions that are read from a grid may be computed in the type of the grid. Other positions
    # follow from scales, which are float32.
    position_roundoff = (
        max(before, after) if node.op_type in GRIDS else min(roundoff, SINGLE_ROUNDOFF)
    )
    return VisitedNode(node.op_type, roundoff, position_roundoff, narrows=after > before > 0)


def _normalizes_in_single(node: Any) -> bool:
    """Return whether the ``stash_type`` of a node requests statistics in float32."""
    if node.opset < _STASHING.get(node.op_type, node.opset + 1):
        return False
    stated = [item.i for item in node.onnx_node.attribute if item.name == "stash_type"]
    return not stated or stated[0] == onnx.TensorProto.FLOAT


def coarsest_roundoff(values: Sequence[Any]) -> float:
    """Return the largest unit roundoff of the types of values; 0 if all values are discrete."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    return max((ROUNDOFF.get(array.dtype, 0.0) for array in arrays), default=0.0)


def _perturbed_outputs(
    run: Callable[..., tuple[list[Any], Visitor]],
    wide_model: ReferenceModel,
    inputs: Mapping[str, Value],
    sites: Sequence[RoundingSite],
    step: float,
    *,
    run_bytes: int,
) -> list[tuple[Any, ...]]:
    """Return the values of each output in all perturbed runs."""

    def outputs(runs: Sequence[int]) -> list[Any]:
        create_injector = partial(Injector, sites, step, runs)
        return run((step, tuple(runs)), wide_model, inputs, create_injector)[0]

    return [*zip(*outputs_of_runs(outputs, RUNS, run_bytes), strict=True)]


def _sequential_outputs(
    run: Callable[..., tuple[list[Any], Visitor]],
    native_model: ReferenceModel,
    inputs: Mapping[str, Value],
    recorder: SiteRecorder,
    visitor: Visitor,
    *,
    run_bytes: int,
) -> list[list[Any]]:
    """Return the outputs of a model if its long sums are added by each sequential algorithm.

    Args:
        run: runs a model, see :meth:`SharedPrefix.run`.
        native_model: the model in its own types.
        inputs: its inputs.
        recorder: the visitor of the exact run.
        visitor: the visitor of runs in the model's own types.
        run_bytes: the bytes of the intermediate results of one run.
    """
    short_products = recorder.short_multiplications <= _MAX_SHORT_MULTIPLICATIONS
    in_single = visitor is not compute_only
    adding_sites = {
        index: site
        for index, site in enumerate(recorder.sites)
        if has_long_sums(site)
        and (short_products or not is_short_product(site))
        # If a model accumulates sums in a 16-bit type, sequential sums in float32 are irrelevant.
        and (site.roundoff <= SINGLE_ROUNDOFF or in_single)
    }
    algorithms = _sequential_algorithms(
        {site.op_type for site in adding_sites.values()}, short_products=short_products
    )

    def outputs(names: Sequence[str]) -> list[Any]:
        def visit(
            node: Any, compute: Compute, operands: Sequence[Any], index: int
        ) -> Sequence[Any]:
            site = adding_sites.get(index)
            if not in_single and (site is None or site.op_type != node.op_type):
                return compute_stacked(node, compute, operands, len(names))
            results = []
            for place, name in enumerate(names):
                with algorithms[name]():
                    values = [value_of_run(operand, place) for operand in operands]
                    results.append(visitor(node, compute, values, index))
            return stacked_outputs(results) if len(names) > 1 else results[0]

        return run(tuple(names), native_model, inputs, lambda: visit)[0]

    names = [*algorithms]
    return outputs_of_runs(
        lambda runs: outputs([names[place] for place in runs]), len(names), run_bytes
    )


def _sequential_algorithms(
    operators: Collection[str], *, short_products: bool
) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """Return algorithms that add sequentially, by name.

    An algorithm is a function that returns a context manager. In the ``with`` block, the algorithm
    computes the sums of NumPy.

    Args:
        operators: the operators of the nodes with long sums. Without such nodes, no algorithms
            are returned.
        short_products: whether products whose sums are short are computed sequentially.
    """
    if not operators:
        return {}
    in_order = partial(sequential_sums, short_products=short_products)
    algorithms: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "from the first term": in_order,
        "from the last term": partial(in_order, from_last=True),
    }
    if not MEANS.isdisjoint(operators):
        algorithms["of scaled terms"] = partial(in_order, scaled=True)
        algorithms["updated"] = partial(in_order, updated=True)
        algorithms["updated from the last term"] = partial(in_order, updated=True, from_last=True)
    if not OPERATORS.isdisjoint(operators):
        blocks = in_one_pass(of_logarithms="ReduceLogSumExp" in operators)
        algorithms |= {f"in one pass, {place}": block for place, block in enumerate(blocks)}
    return algorithms


def _numpy_range_events(events: set[str]) -> AbstractContextManager[Any]:
    """Return a context manager that records the overflows and underflows that NumPy reports."""
    return np.errstate(over="call", under="call", call=lambda event, _: events.add(event))


def _range_events(operands: Sequence[Any], outputs: Sequence[Any]) -> Iterator[str]:
    """Yield the ways in which a node's outputs leave the range of their types."""
    tensors = _float_tensors(outputs)
    if any(flushed_value(tensor) is not tensor for tensor in tensors):
        yield _SUBNORMAL
    # Examine the outputs first, because outputs are seldom infinite.
    if any(np.isinf(tensor).any() for tensor in tensors) and all(
        np.isfinite(operand).all() for operand in _float_tensors(operands)
    ):
        yield _OVERFLOW


def _float_tensors(values: Sequence[Any]) -> list[Array]:
    return [v for v in values if isinstance(v, np.ndarray) and v.dtype in ROUNDOFF]


def _run_with_range_events(
    native_model: ReferenceModel, inputs: Mapping[str, Value], visitor: Visitor, events: set[str]
) -> list[Any]:
    """Return the outputs of a run, and replace the contents of ``events`` by the run's events."""
    events.clear()

    def record(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        outputs = visitor(node, compute, operands, index)
        events.update(_range_events(operands, outputs))
        return outputs

    with _numpy_range_events(events):
        return native_model.run(inputs, record)


def _out_of_range_outputs(
    native_model: ReferenceModel,
    inputs: Mapping[str, Value],
    native: list[Any],
    events: set[str],
    visitor: Visitor,
) -> list[list[Any]]:
    """Return further outputs of a model if intermediate results may leave the range of the type."""
    small = not events.isdisjoint({_SUBNORMAL, _UNDERFLOW})
    results = [native] if small or _OVERFLOW in events else []
    if small:
        results.append(native_model.run(inputs, _flushing(visitor)))
    if _SPREADS in events:
        visitors = [_spreading(visitor, special) for special in _SPECIALS]
        results += [native_model.run(inputs, spreading) for spreading in visitors]
    if _SPECIAL_PIXELS in events:
        visitors = [_interpolating(visitor, skips=skips) for skips in (False, True)]
        results += [native_model.run(inputs, interpolating) for interpolating in visitors]
    return results


def _flushing(visitor: Visitor) -> Visitor:
    """Return a visitor that flushes subnormal numbers to zero."""

    def visit(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        outputs = visitor(node, compute, operands, index)
        return [flushed_value(with_flushed_root(node, operands, output)) for output in outputs]

    return visit


def _spreading(visitor: Visitor, special: float) -> Visitor:
    """Return a visitor that inserts a special value wherever NaN or infinity may spread."""

    def visit(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        outputs = visitor(node, compute, operands, index)
        if not mixes_infinite(node, operands):
            return outputs
        return [spread(node, operands, outputs[0], special), *outputs[1:]]

    return visit


def _interpolating(visitor: Visitor, *, skips: bool) -> Visitor:
    """Return a visitor that skips special pixels of weight 0, or returns NaN for all of them."""

    def visit(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        outputs = visitor(node, compute, operands, index)
        if not interpolates_special(node, operands):
            return outputs
        return [with_special_pixels(node, compute, operands, outputs[0], skips=skips)]

    return visit


def _overflowing(visitor: Visitor, sites: Sequence[RoundingSite], special: float) -> Visitor:
    """Return a visitor that replaces each sum that may overflow by a special value."""

    def visit(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        outputs = visitor(node, compute, operands, index)
        same_node = index < len(sites) and sites[index].op_type == node.op_type
        if not same_node or not may_overflow(node.op_type, operands):
            return outputs
        node_class = sites[index].node_class
        changed = with_overflow(node, node_class, compute, operands, outputs[0], special)
        return [changed, *outputs[1:]]

    return visit


def _same_outputs(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether all tensors in two lists of outputs are equal; other values are ignored."""
    return all(
        np.array_equal(a, b, equal_nan=a.dtype in ROUNDOFF)
        for a, b in zip(first, second, strict=True)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    )


def _interpolates_integers(node: Any, operands: Sequence[Any]) -> bool:
    return node.op_type in INTERPOLATING and operands[0].dtype.kind in "iu"
