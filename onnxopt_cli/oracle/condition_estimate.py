"""The conditioned reading: what is right of each output of a model, and how far off it may be.

``docs/conditioned.md`` gives the reasons of every rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.text import clipped, exception_text
from onnxopt_cli.core.values import (
    Array,
    Value,
    describe,
    structure_of,
)
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.functions import with_bound_functions
from onnxopt_cli.operators.nodes import all_nodes, operator_names
from onnxopt_cli.oracle.corrections.contested import (
    CONTESTED,
    met_at,
    second_readings,
)
from onnxopt_cli.oracle.corrections.corrected_reference import wrong_about
from onnxopt_cli.oracle.corrections.replacements import (
    INTERPOLATING,
    ROUNDING,
    functions,
    whole_numbers,
)
from onnxopt_cli.oracle.evaluator import (
    Compute,
    Evaluated,
    Visitor,
    sums_in_order,
)
from onnxopt_cli.oracle.function_body import (
    CALLED,
    published_body,
    subtracting,
)
from onnxopt_cli.oracle.rounding.condition_rows import (
    DEFINED,
    PRODUCTS,
    Rounds,
    Site,
    floats,
    leaps,
    site,
)
from onnxopt_cli.oracle.rounding.coordinates import (
    GRIDS,
    moved_coordinates,
    sizes,
)
from onnxopt_cli.oracle.rounding.determinants import determinant_scale
from onnxopt_cli.oracle.rounding.exponentials import (
    OPERATORS,
    SHARES,
    in_one_pass,
    moved_logarithms,
)
from onnxopt_cli.oracle.rounding.fast_algorithms import (
    convolution_scale,
    mixes_infinite,
    spread,
    transform_scale,
)
from onnxopt_cli.oracle.rounding.normalizations import moved_averages
from onnxopt_cli.oracle.rounding.operator_identities import (
    WITHIN,
    identities,
    identities_in,
)
from onnxopt_cli.oracle.rounding.patched_functions import replaced
from onnxopt_cli.oracle.rounding.perturbations import RUNS, roundings
from onnxopt_cli.oracle.rounding.short_floats import (
    SHIFTED,
    InSingle,
    adds_up,
    asks_for_short_sums,
    dtypes_of,
    takes_exact_operands,
)
from onnxopt_cli.oracle.widen import (
    ROUNDOFF,
    SINGLE,
    is_short,
    is_wide,
    single_value,
    smallest_normal,
    widened,
    widened_value,
)

#: By how much declared mathematics rounds: operands of products, or sums.
MATH = {"tf32": 2.0**-11, "bf16": 2.0**-8, "float16-sums": 2.0**-11}
#: How many units an output may be off.
UNITS = 16.0
# A right form that is further off measures nothing; it is one more right answer where it overflows.
_REFORMULATION_UNITS = 64.0
# Of 16 bits a form need not be 16 times as good as others, nor a single node 16 roundings off.
_FEW_UNITS = 4.0
# A sum of n terms moves by sqrt(n) / 4 roundings, where that is more than one: a sequential sum of
# 10^6 terms is 400 off.
_SUM = 4.0
# Means and variances are off by less than what moves all of their terms: no right form was seen to
# be off by half of 8 roundings, so that 8 are allowed.
_STATISTICS = 1 / 2
# Of equal terms each may be rounded the same way. Sums added up in order may be so many roundings
# off, and others twice as far as they are. Beyond that share of the largest output, theirs is one
# more right answer.
_IN_ORDER, _IN_ORDER_SHARE = 2.0**14, 16
_FINER = 64.0
# Moved in double by its own roundoff nothing could be seen.
_DOUBLE, _SINGLE = 2.0**-53, 2.0**-24
_STEP = 2.0**27
_MOST_VISITS = 20_000
# So many elements of what nodes yield are kept: those of all iterations of a loop may be many.
_MOST_KEPT = 1 << 24
# How a type's range is left on the way; NumPy says the first two so.
_OVERFLOW, _UNDERFLOW, _SUBNORMAL = "overflow", "underflow", "subnormal"
# NaN or infinity enters what a fast algorithm mixes.
_SPREADS = "spreads"
# By how much what is subnormal is rounded, by the roundoff of its type.
_LEAST_STEPS = {
    roundoff: float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2  # type: ignore[no-untyped-call]
    for dtype, roundoff in ROUNDOFF.items()
}
# 16 units of this share of an activation's range make 4 roundings.
_SHARE_OF_GATES = 1 / 4
# Adding the logarithm of a sum of exponentials to the largest operand rounds to that operand. 16
# units of this share of it make 4 roundings.
_SHARE_OF_LARGEST = 1 / 4
# Operators that average, and may scale each term before they add up.
_MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
_MAX_MESSAGE_CHARS = 200
# What is met where integers are interpolated.
_INTEGERS = "integers"
# What is said where these results are accepted.
_OUT_OF_RANGE = "the result in the model's own types, whose range something leaves on the way"
_FLUSHED = "the result with zeros for subnormal numbers"
_ADDED_IN_ORDER = "the result of sums that are added up one term after the other"
_LOWEST = "the lowest number for a masked score"
# Of so many contested questions in one model all combinations are tried.
_MOST_CONTESTED = 2
_TRAINING = "ai.onnx.preview.training"


# To what outputs are right of a node that computes in one of several ways.
_SCALES = {
    Rounds.CONVOLVE: convolution_scale,
    Rounds.DETERMINANT: determinant_scale,
    Rounds.TRANSFORM: transform_scale,
}


class NoReferenceError(Exception):
    """The model cannot be asked, in words why."""


@dataclass(frozen=True, slots=True)
class ConditionedOutput:
    """What is right of one output.

    Attributes:
        right: right values, each element on its own, and how far off each may be, float64. The
            first is the exact one, rounded to the output's dtype; for what is discrete, what the
            reference computes, and its limits are zero. Empty if nothing is known.
        reformulated: the same where operators are computed by identities that keep absolute
            accuracy alone; empty if they change nothing.
        reason: why nothing is known of this output; empty if it is.
        units: how many times what one rounding moves the limits are; 0 if they are all zero.
        labels: what is said of each of ``right``; empty, or missing at the end, if nothing is.
        structure: what it consists of, see :func:`structure_of`; None if that is unknown.
    """

    right: tuple[tuple[Array, Array], ...] = ()
    reformulated: tuple[tuple[Array, Array], ...] = ()
    reason: str = ""
    units: float = 0.0
    structure: Any = None
    labels: tuple[str, ...] = ()

    def beside(self, other: ConditionedOutput, label: str) -> ConditionedOutput:
        """Return a judgement by which what another one says is right, too."""
        labels = [*self.labels, *[""] * (len(self.right) - len(self.labels)), label]
        labels += [it or label for it in other.labels[1:]]
        return replace(self, right=self.right + other.right, labels=tuple(labels))


@dataclass(frozen=True, slots=True)
class Reading:
    """What is right of all outputs, where contested questions are read in one way.

    Attributes:
        second: the questions, by name, of which the second reading is taken.
        conditioned_outputs: one an output.
        identities_used: the identities that operators may be computed by, where that makes a
            difference.
    """

    second: tuple[str, ...]
    conditioned_outputs: list[ConditionedOutput]
    identities_used: tuple[str, ...] = ()


@dataclass
class _Form:
    """One output of one form of a model, run.

    Attributes:
        own: it, in its own type.
        exact: it in double.
        draws: it in double with roundings put in, each time others; empty if they do not reach it.
        finer: the same with much smaller ones, where that was needed.
        in_order: it in its own type with long sums added up one term after the other, in each way
            that they may be; empty if no sum is long.
        beyond: it in its own type where something leaves that type's range on the way: as it is,
            and with zeros for all that is subnormal.
        underflows: whether something within a node underflows on the way.
        step: by how much the roundings put in were larger than those of the types.
        overflows: whether something overflows on the way.
        adds: the operator and row of a model's only node, if it adds up operands of 16 bits.
        alone: whether nothing in the model rounds but what yields its outputs, each element once.
        units: how many units it may be off.
    """

    own: Any
    exact: Any
    draws: Sequence[Any]
    finer: Sequence[Any] = ()
    in_order: list[Any] = field(default_factory=list)
    beyond: list[Any] = field(default_factory=list)
    underflows: bool = False
    step: float = 1.0
    overflows: bool = False
    adds: tuple[str, Rounds] | None = None
    alone: bool = False
    units: float = UNITS

    @cached_property
    def moves(self) -> list[tuple[Array, Array]]:
        """How far each draw is off, and it."""
        return [*_distances(self.draws, self.exact)]


def all_readings(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str = ""
) -> list[Reading]:
    """Ask a model how far its outputs move, by each reading of what is contested in it.

    Args:
        model: a model whose operators onnx's reference implements.
        inputs: a value for every input of the graph that must be fed.
        math: one of :data:`MATH` where a backend declares that it rounds products or sums; or
            empty.

    Returns:
        The first readings of all questions; behind it others, if they yield something else.

    Raises:
        NoReferenceError: if it cannot be asked.
    """
    met: set[str] = set()
    found = [_reading(model, inputs, math, met=met)]
    names = [it.name for it in CONTESTED if it.name in met]
    # Every combination of few; of many each question alone.
    most = len(names) if len(names) <= _MOST_CONTESTED else 1
    for count in range(1, most + 1):
        for second in combinations(names, count):
            # Another reading may not be possible at all.
            with suppress(NoReferenceError):
                other = _reading(model, inputs, math, second)
                if not any(_same(other, it) for it in found):
                    found.append(other)
    return found


def condition(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str = ""
) -> list[ConditionedOutput]:
    """Ask a model how far its outputs move, by the first readings; see :func:`all_readings`."""
    return _reading(model, inputs, math).conditioned_outputs


def _reading(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    second: Sequence[str] = (),
    met: set[str] | None = None,
) -> Reading:
    try:
        model = with_bound_functions(model)
    except NodeError as error:
        raise NoReferenceError(error.message) from error
    with np.errstate(all="ignore"), replaced(*functions()), replaced(*second_readings(second)):
        found = _conditioned(model, inputs, math, set() if met is None else met)
    identities_used: tuple[str, ...] = ()
    if any(it.reformulated for it in found):
        identities_used = tuple(
            it.identity_name for it in identities_in(published_body(model, inputs) or model)
        )
    return Reading(tuple(second), found, identities_used)


def _same(one: Reading, other: Reading) -> bool:
    """Tell whether two readings allow the same outputs, to the bit."""
    return all(
        mine.reason == theirs.reason
        and _alike(mine.right, theirs.right)
        and _alike(mine.reformulated, theirs.reformulated)
        for mine, theirs in zip(one.conditioned_outputs, other.conditioned_outputs, strict=True)
    )


def _alike(one: Sequence[tuple[Array, Array]], other: Sequence[tuple[Array, Array]]) -> bool:
    """Tell whether right values and their limits are the same, to the bit."""
    return len(one) == len(other) and all(
        np.array_equal(mine, theirs, equal_nan=mine.dtype != object)
        for pairs in zip(one, other, strict=True)
        for mine, theirs in zip(*pairs, strict=True)
    )


def _conditioned(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str, met: set[str]
) -> list[ConditionedOutput]:
    nodes = list(all_nodes(model))
    if why := next(filter(None, (wrong_about(it, inputs) for it in nodes)), ""):
        raise NoReferenceError(f"onnx's reference {why}")
    try:
        if {node.op_type for node in nodes} <= DEFINED:
            return [_defined(it) for it in Evaluated(model).run(inputs)]
        forms = _measure(model, inputs, math, met)
    except (NoReferenceError, MemoryError):
        raise
    except Exception as error:
        if any(map(is_short, inputs.values())) and len(nodes) == 1:
            # Some published bodies have constants of float32 beside operands of any type.
            return _of_single(model, inputs, math, met)
        # It may list all the operators that it knows.
        said = exception_text(error).split("\n", 1)[0]
        why = f"onnx's reference does not run it in double: {clipped(said, _MAX_MESSAGE_CHARS)}"
        raise NoReferenceError(why) from error
    bodies = _measured_body(model, inputs, math, met, forms[0].adds)
    known = list(zip(forms, bodies, strict=True) if bodies else zip(forms))
    found = list(map(_conditioned_output, known))
    for at, form in enumerate(_reformulated(model, inputs, math, met)):
        wider = _conditioned_output((*known[at], form)).right
        if not _alike(found[at].right, wider):
            found[at] = replace(found[at], reformulated=wider)
    if operator_names(model) == ("Attention",):
        found = list(map(_with_lowest, found))
    if _INTEGERS in met:
        found = _with_either_integer(model, inputs, found)
    return _with_flushed(model, inputs, math, met, found)


def _with_flushed(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    met: set[str],
    found: list[ConditionedOutput],
) -> list[ConditionedOutput]:
    """Let zeros stand for subnormal inputs."""
    flushed = {name: _flushed(it) for name, it in inputs.items()}
    if all(it is inputs[name] for name, it in flushed.items()):
        return found
    others = _conditioned(model, flushed, math, met)
    return [
        replace(
            it.beside(other, _FLUSHED),
            reformulated=it.reformulated and it.reformulated + (other.reformulated or other.right),
        )
        for it, other in zip(found, others, strict=True)
    ]


def _of_single(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str, met: set[str]
) -> list[ConditionedOutput]:
    """Judge the only node of a model in float32, and round what it yields to 16 bits."""
    single = {name: single_value(it) for name, it in inputs.items()}
    found = _conditioned(widened(model, SINGLE), single, math, met)
    return [
        _narrowed(conditioned_output, output.type.tensor_type.elem_type)
        for conditioned_output, output in zip(found, model.graph.output, strict=True)
    ]


def _narrowed(conditioned_output: ConditionedOutput, elem_type: int) -> ConditionedOutput:
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    if not conditioned_output.right or ROUNDOFF.get(dtype, 0) <= _SINGLE:
        return conditioned_output
    right = [
        _branch(value.astype(np.float64), _FEW_UNITS * ROUNDOFF[dtype], limit, dtype)
        for value, limit in conditioned_output.right
    ]
    return replace(conditioned_output, right=tuple(right))


def _flushed(value: Value) -> Value:
    """Return a tensor with zeros for what is subnormal, as devices take it; itself without any."""
    if not isinstance(value, np.ndarray) or value.dtype not in ROUNDOFF:
        return value
    small = (value != 0) & (np.abs(value) < smallest_normal(value.dtype))
    return np.where(small, value.dtype.type(0), value) if small.any() else value


def _defined(output: Any) -> ConditionedOutput:
    if not isinstance(output, np.ndarray):
        return ConditionedOutput(reason="it is not a tensor", structure=structure_of(output))
    exact, flushed = np.zeros(output.shape), np.asarray(_flushed(output))
    right = ConditionedOutput(((output, exact),))
    other = ConditionedOutput(((flushed, exact),))
    return right if flushed is output else right.beside(other, _FLUSHED)


def _interpolates_integers(node: Any, given: Sequence[Any]) -> bool:
    return node.op_type in INTERPOLATING and given[0].dtype.kind in "iu"


def _with_either_integer(
    model: onnx.ModelProto, inputs: Mapping[str, Value], found: Sequence[ConditionedOutput]
) -> list[ConditionedOutput]:
    """Let what is interpolated between integers be rounded to either neighbour."""
    others = []
    for toward in (np.floor, np.ceil):
        with (
            replaced((ROUNDING, "toward", toward)),
            replaced((onnx.numpy_helper, "saturate_cast", whole_numbers)),
        ):
            others.append(Evaluated(model).run(inputs))
    return [
        it
        if it.reason
        else replace(it, right=it.right + tuple((other, np.zeros(other.shape)) for other in values))
        for it, *values in zip(found, *others, strict=True)
    ]


def _with_lowest(conditioned_output: ConditionedOutput) -> ConditionedOutput:
    """Let the lowest number stand for a masked score of -inf."""
    for expected, limit in conditioned_output.right[:1]:
        masked = np.isneginf(expected) if expected.dtype in ROUNDOFF else np.zeros(1)
        if masked.any():
            lowest = float(ml_dtypes.finfo(expected.dtype).min)  # type: ignore[no-untyped-call]
            other = np.where(masked, lowest, expected).astype(expected.dtype)
            # A bias may have been added to it.
            near = np.where(masked, UNITS * ROUNDOFF[expected.dtype] * -lowest, limit)
            return replace(
                conditioned_output.beside(ConditionedOutput(((other, near),)), _LOWEST), units=UNITS
            )
    return conditioned_output


def _measured_body(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    met: set[str],
    adds: tuple[str, Rounds] | None,
) -> list[_Form]:
    """Run the function bodies that ONNX publishes for a model's nodes; empty if there are none."""
    try:
        if adds:
            return _measured_in_single(model, inputs, math, met, adds)
        if body := published_body(model, inputs):
            return _measure(body, inputs, math, met, CALLED)
        looked_into = subtracting(model)
        return _measure(model, inputs, math, met, looked_into) if looked_into else []
    except MemoryError:
        # Limits would be too narrow without it.
        raise
    except Exception:  # noqa: BLE001 - onnx's reference may lack what the body needs
        return []


def _reformulated(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str, met: set[str]
) -> list[_Form]:
    """Run a model by the identities that are accepted for its nodes; empty if there are none."""
    try:
        model = published_body(model, inputs) or model
        if not (entries := identities_in(model)):
            return []
        looked_into = [name for it in entries for name in it.within]
        forms = _measure(model, inputs, math, met, looked_into, identities())
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as of published bodies
        return []
    for form in forms:
        if _coarsest([form.own]) > _SINGLE:
            # An identity of 16 bits is computed in float32, and not as it was run.
            form.own = form.exact
    return forms


def _measured_in_single(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    met: set[str],
    adds: tuple[str, Rounds],
) -> list[_Form]:
    """Run the published body of a node that adds up operands of 16 bits; empty if it has none."""
    if takes_exact_operands(*adds) and adds[0] not in SHIFTED:
        single = {name: single_value(it) for name, it in inputs.items()}
        body = published_body(widened(model, SINGLE), single)
        forms = _measure(body, single, math, met, CALLED) if body else []
        for form in forms:
            # As many of its roundings are allowed as of a model of float32.
            form.step *= _FEW_UNITS / UNITS
        return forms
    body = published_body(model, inputs)
    forms = _measure(body, inputs, math, met, CALLED) if body else []
    for form in forms:
        # That the body overflows in its own type is no evidence.
        form.own, form.beyond = form.exact, []
    return forms


def _measure(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    met: set[str],
    looked_into: Sequence[str] = (),
    instead: Mapping[str, onnx.FunctionProto] | None = None,
) -> list[_Form]:
    kinds: list[tuple[str, float, bool]] = []
    beyond: set[str] = set()
    spreads: set[str] = set()
    types: list[list[np.dtype[Any] | None]] = []

    def note(node: Any, compute: Compute, given: Sequence[Any], _at: int) -> tuple[Any, ...]:
        met.update(met_at(node, given))
        met.update([_INTEGERS] * _interpolates_integers(node, given))
        outputs = compute(*given)
        beyond.update(_left_range(given, outputs))
        spreads.update([_SPREADS] * mixes_infinite(node, given))
        kinds.append(_kind(node, given, outputs))
        types.append(dtypes_of(outputs))
        if len(kinds) > _MOST_VISITS:
            raise NoReferenceError(f"it runs more than {_MOST_VISITS} nodes")
        return outputs

    narrow = Evaluated(model, looked_into, instead)
    with np.errstate(over="call", under="call", call=lambda what, _: beyond.add(what)):
        own = narrow.run(inputs, note)
    wide = Evaluated(model, looked_into, instead, wide=True)
    asking = _Probe(kinds, math)
    doubles = {name: widened_value(it) for name, it in inputs.items()}
    exact = wide.run(doubles, asking)
    computed = _plainly if asks_for_short_sums(model) else asking.computed(types)
    own = _run_noting(narrow, inputs, computed, beyond) if computed is not _plainly else own
    draws = _drawn(wide, doubles, asking.places, asking.step) if asking.moves else [()] * len(own)
    forms = [_Form(*it, step=asking.step) for it in zip(own, exact, draws, strict=True)]
    # What is subnormal is rounded to few numbers, which are leaps apart.
    choices = asking.leaps or not beyond.isdisjoint({_UNDERFLOW, _SUBNORMAL})
    if choices and any(map(_jumps, forms)):
        finer = _drawn(wide, doubles, asking.places, asking.step / _FINER)
        for form, it in zip(forms, finer, strict=True):
            form.finer = it
    for way in _in_order(asking.places):
        with way:
            summed = Evaluated(model, looked_into, instead).run(inputs)
        for form, it in zip(forms, summed, strict=True):
            form.in_order.append(it)
    tried = _beyond(narrow, inputs, own, beyond | spreads, computed)
    adds = asking.adds if computed is not _plainly else None
    for at, form in enumerate(forms):
        form.alone, form.adds, form.overflows = asking.alone, adds, _OVERFLOW in beyond
        # What has 16 bits is computed in float32: but for a few roundings it is exact.
        if _coarsest([form.own]) > _SINGLE and math != "float16-sums":
            form.units = _FEW_UNITS
        form.beyond = [it[at] for it in tried]
        form.underflows = _UNDERFLOW in beyond
    return forms


def _beyond(
    narrow: Evaluated,
    inputs: Mapping[str, Value],
    own: list[Any],
    beyond: set[str],
    computed: Visitor,
) -> list[list[Any]]:
    """Return what else a model yields where something leaves the range of its type on the way."""
    found = [own] if _OVERFLOW in beyond else []
    if _SUBNORMAL in beyond:
        found.append(narrow.run(inputs, partial(_flushing, computed)))
    if _SPREADS in beyond:
        specials = (np.nan, np.inf, -np.inf)
        found += [narrow.run(inputs, partial(_spreading, computed, it)) for it in specials]
    return found


def _in_order(places: Sequence[_Place]) -> list[AbstractContextManager[None]]:
    """Return in which ways long sums are added up in order; empty if no sum is long."""
    if not any(it.roundoff and _root(it.site, it.roundoff) > 1 for it in places):
        return []
    operators = {it.op_type for it in places}
    ways = [sums_in_order()]
    if not operators.isdisjoint(_MEANS):
        ways.append(sums_in_order(scaled=True))
    if not operators.isdisjoint(OPERATORS):
        ways += in_one_pass(of_logarithms="ReduceLogSumExp" in operators)
    return ways


def _kind(node: Any, given: Sequence[Any], outputs: Sequence[Any]) -> tuple[str, float, bool]:
    """Return a node's operator, by how much it rounds, and whether it narrows."""
    before, after = _coarsest(given), _coarsest(outputs)
    # Of these R may be float32 beside tensors of doubles, and what comes from R alone, too.
    mixed = node.onnx_node.domain == _TRAINING
    roundoff = max(before, after) if mixed else after or before
    if node.onnx_node.name == WITHIN:
        roundoff = min(roundoff, _SINGLE)
    return node.op_type, roundoff, after > before > 0


def _drawn(
    wide: Evaluated, inputs: Mapping[str, Value], places: Sequence[_Place], step: float
) -> list[tuple[Any, ...]]:
    """Return each output with roundings put in, in all runs."""
    draws = [wide.run(inputs, _Drawing(places, step, run)) for run in range(RUNS)]
    return list(zip(*draws, strict=True))


def _left_range(given: Sequence[Any], outputs: Sequence[Any]) -> Iterator[str]:
    """Yield how a node's outputs left the range of their type, if they did."""
    tensors = [it for it in outputs if isinstance(it, np.ndarray) and it.dtype in ROUNDOFF]
    if any(_flushed(it) is not it for it in tensors):
        yield _SUBNORMAL
    known = (it for it in given if isinstance(it, np.ndarray) and it.dtype in ROUNDOFF)
    if any(np.isinf(it).any() for it in tensors) and all(np.isfinite(it).all() for it in known):
        yield _OVERFLOW


def _spreading(
    computed: Visitor,
    special: float,
    node: Any,
    compute: Compute,
    given: Sequence[Any],
    at: int,
) -> Sequence[Any]:
    outputs = computed(node, compute, given, at)
    if not mixes_infinite(node, given):
        return outputs
    return [spread(node, given, outputs[0], special), *outputs[1:]]


def _plainly(_node: Any, compute: Compute, given: Sequence[Any], _at: int) -> Sequence[Any]:
    return compute(*given)


def _flushing(
    computed: Visitor, node: Any, compute: Compute, given: Sequence[Any], at: int
) -> list[Any]:
    return [_flushed(it) for it in computed(node, compute, given, at)]


def _run_noting(
    model: Evaluated, inputs: Mapping[str, Value], computed: Visitor, beyond: set[str]
) -> list[Any]:
    """Run a model by a visitor, and note how the range of its types is left, and nothing else."""
    beyond.clear()

    def note(node: Any, compute: Compute, given: Sequence[Any], at: int) -> Sequence[Any]:
        outputs = computed(node, compute, given, at)
        beyond.update(_left_range(given, outputs))
        return outputs

    with np.errstate(over="call", under="call", call=lambda what, _: beyond.add(what)):
        return model.run(inputs, note)


def _inner(op_type: str, found: Site, roundoff: float, math: str) -> float:
    """Return by how much a node rounds its operands: a root of their number, or as declared."""
    if found.row is Rounds.NORMALIZE:
        # What has 16 bits is normalized in float32, some of whose roundings it may be off.
        fine = _SINGLE * UNITS if roundoff > _SINGLE else roundoff
        declared = MATH[math] if math == "float16-sums" and roundoff > _DOUBLE else 0.0
        # By given statistics, of which each element has its own share, nothing is averaged.
        averages = found.length > 1 and roundoff <= _SINGLE
        return max(fine, declared) * (_STATISTICS if averages else 1.0)
    if math == "float16-sums" and found.length > 1 and roundoff > _DOUBLE:
        return max(roundoff, MATH[math]) * _root(found, _SINGLE)
    if roundoff > _SINGLE and takes_exact_operands(op_type, found.row):
        return _SINGLE * _root(found, _SINGLE) * UNITS / _FEW_UNITS
    products = math and op_type in PRODUCTS and roundoff == _SINGLE
    # An operand of an exponential may be scaled for a power of two; what is added up has no sign.
    several = found.row is not Rounds.EXPONENTIALS
    return max(
        roundoff * (_root(found, roundoff) if several else 1.0),
        MATH[math] if products and math != "float16-sums" else 0.0,
    )


def _root(found: Site, roundoff: float) -> float:
    # What has 16 bits is to be added up in float32.
    return 1.0 if roundoff > _SINGLE else _root_of(found.length)


def _root_of(terms: float) -> float:
    return max(1.0, terms**0.5 / _SUM)


def _coarsest(values: Sequence[Any]) -> float:
    arrays = [it for it in values if isinstance(it, np.ndarray)]
    return max((ROUNDOFF.get(it.dtype, 0.0) for it in arrays), default=0.0)


@dataclass(frozen=True, slots=True)
class _Place:
    """A node that ran in double, and how it rounds: by nothing if it is exact.

    Attributes:
        op_type: its operator.
        site: what it does with numbers.
        roundoff: by how much it rounds its outputs.
        inner: by how much it rounds its operands.
        scales: to what its outputs are right, if it computes coordinates or determinants, or by a
            fast algorithm.
        ran: its inputs and outputs; None if it rounds, or all of them take too much room.
    """

    op_type: str
    site: Site
    roundoff: float
    inner: float
    scales: Sequence[Any]
    ran: tuple[Sequence[Any], Sequence[Any]] | None


class _Probe:
    """Asks each node what it does, where the model is run as it is.

    Args:
        kinds: of each node that is visited: operator, roundoff, whether it narrows.
        math: the mathematics that is declared.
    """

    def __init__(self, kinds: Sequence[tuple[str, float, bool]], math: str) -> None:
        self._kinds = kinds
        self._math = math
        self._coarsest = max((it for _, it, _ in kinds), default=0.0)
        self.step = _STEP if self._coarsest == _DOUBLE else 1.0
        self.places: list[_Place] = []
        #: Whether any node makes choices.
        self.leaps = False
        self._known: dict[object, Site] = {}
        self._room = _MOST_KEPT

    @property
    def alone(self) -> bool:
        """Whether nothing rounds but one node, each element of its outputs once."""
        place = self.places[0] if len(self._kinds) == 1 else None
        return place is not None and bool(place.roundoff) and place.site.row is Rounds.ELEMENT

    @property
    def adds(self) -> tuple[str, Rounds] | None:
        """The operator and row of the only node, if it adds up."""
        rows = [(it.op_type, it.site.row) for it in self.places]
        return rows[0] if len(self._kinds) == 1 and adds_up(*rows[0]) else None

    def computed(self, types: Sequence[Sequence[np.dtype[Any] | None]]) -> Visitor:
        """Return how nodes compute in the model's own types: of 16 bits what adds up in float32.

        Args:
            types: of what nodes have yielded.
        """
        if self._coarsest <= _SINGLE or self._math == "float16-sums":
            return _plainly
        return InSingle([(it.op_type, it.site.row) for it in self.places], types)

    @property
    def moves(self) -> bool:
        """Whether anything moves where roundings are put in."""
        return not self.alone and any(place.roundoff for place in self.places)

    def __call__(self, node: Any, compute: Compute, given: Sequence[Any], at: int) -> Sequence[Any]:
        outputs = compute(*given)
        self.leaps = self.leaps or leaps(node, given, outputs)
        self.places.append(self._place(node, compute, given, outputs, at))
        return outputs

    def _place(
        self, node: Any, compute: Compute, given: Sequence[Any], outputs: Sequence[Any], at: int
    ) -> _Place:
        alike = at < len(self._kinds) and self._kinds[at][0] == node.op_type
        roundoff, narrows = self._kinds[at][1:] if alike else (self._coarsest, False)
        key = (node.onnx_node.SerializeToString(), *(describe(it) for it in given))
        if key not in self._known:
            self._known[key] = site(node, compute, given, outputs)
        found = self._known[key]
        if narrows and found.row is Rounds.EXACT and len(self._kinds) > 1:
            found = Site(Rounds.ELEMENT)
        if found.row is Rounds.EXACT:
            roundoff = 0.0
        inner = _inner(node.op_type, found, roundoff, self._math)
        scales = self._scales(node, found.row, compute, given, outputs, roundoff)
        arrays = [it for it in (*given, *outputs) if isinstance(it, np.ndarray)]
        self._room -= 0 if roundoff else sum(it.size for it in arrays)
        ran = None if roundoff or self._room < 0 else (given, outputs)
        return _Place(node.op_type, found, roundoff, inner, scales, ran)

    def _scales(
        self,
        node: Any,
        row: Rounds,
        compute: Compute,
        given: Sequence[Any],
        outputs: Sequence[Any],
        roundoff: float,
    ) -> Sequence[Any]:
        """Return to what outputs are right, beside their own size; empty if draws have to say."""
        if row is Rounds.COORDINATES:
            return compute(np.abs(given[0]), *given[1:])
        of = _SCALES.get(row)
        if of is None or not outputs[0].size:
            return ()
        # What has 16 bits is added up in float32.
        share = 1.0 if self._math == "float16-sums" else min(1.0, _SINGLE / roundoff)
        return [share * of(node, given, outputs[0])]


class _Drawing:
    """Puts roundings in at each node.

    Args:
        places: what is known of the nodes.
        step: how large the roundings are, of those of the types.
        run: which run of the design it is.
    """

    def __init__(self, places: Sequence[_Place], step: float, run: int) -> None:
        self._places, self._step, self._run = places, step, run
        self._elements = 0

    def __call__(self, node: Any, compute: Compute, given: Sequence[Any], at: int) -> Sequence[Any]:
        place = self._places[at] if at < len(self._places) else None
        if not place or place.op_type != node.op_type:
            return compute(*given)
        if place.ran and [*map(id, given)] == [*map(id, place.ran[0])]:
            # Nothing that it takes has moved.
            return place.ran[1]
        return self._moved(node, compute, given, place) if place.roundoff else compute(*given)

    def _moved(
        self, node: Any, compute: Compute, given: Sequence[Any], place: _Place
    ) -> Sequence[Any]:
        found, roundoff = place.site, place.roundoff * self._step
        moved, picks = list(given), found.row is Rounds.PICKS
        if found.moved:
            for operand in floats(node.op_type, given):
                # Of 16 bits only what is added up is known more precisely than it is stored.
                stored = found.row is Rounds.NORMALIZE and operand > 0 and place.roundoff > _SINGLE
                inner = roundoff if stored else place.inner * self._step
                step = inner * self._roundings(given[operand])
                if operand == GRIDS.get(node.op_type):
                    moved[operand] = given[operand] + step * sizes(node.op_type, given[operand])
                elif not picks:
                    moved[operand] = np.asarray(given[operand] * (1 + step))
        if picks or found.row is Rounds.COORDINATES:
            with moved_coordinates(lambda it: roundoff * self._roundings(it) * it, picks=picks):
                outputs = compute(*moved)
        elif found.row is Rounds.NORMALIZE:
            moving = partial(self._of_averages, place.inner * self._step)
            with moved_averages(moving, partial(_uncertain, place.roundoff)):
                outputs = compute(*moved)
        elif node.op_type in SHARES:
            inner = roundoff if place.roundoff <= _SINGLE else _SINGLE
            with moved_logarithms(lambda it: inner * self._roundings(it) * _SHARE_OF_LARGEST * it):
                outputs = compute(*moved)
        else:
            outputs = compute(*moved)
        if picks:
            return outputs
        # Of two long sums each has errors of its own, whatever moves the terms of both.
        several = found.row is Rounds.COMBINE and len(self._places) > 1
        if several or found.row in (Rounds.PRODUCT, Rounds.EXPONENTIALS):
            roundoff *= _root(found, place.roundoff)
        scales = place.scales or [
            _scale(node, found.row, it, place.roundoff) if is_wide(it) and it.size else 0.0
            for it in outputs
        ]
        least = _LEAST_STEPS[place.roundoff] * self._step
        return [
            np.asarray(it + _error(it, self._roundings(it), roundoff, scale, least))
            if is_wide(it) and it.size
            else it
            for it, scale in zip(outputs, scales, strict=True)
        ]

    def _of_averages(self, inner: float, found: Array, spread: Array, count: int) -> Array:
        """Return how far averages are off, one near zero by a share of what its terms differ."""
        size = _root_of(count) * np.abs(found) + spread
        return inner * self._roundings(found) * np.where(np.isfinite(size), size, 0.0)

    def _roundings(self, array: Array) -> Array:
        """Return a rounding for each element, so that elements that cancel move apart once."""
        found = roundings(self._run, self._elements, array.size)
        self._elements += array.size
        return found.reshape(array.shape)


def _uncertain(roundoff: float, mean: Array) -> Array:
    """Return how far means may be off that are computed in float32 at least."""
    far = UNITS * _STATISTICS * min(roundoff, _SINGLE) * np.abs(mean)
    return np.asarray(np.where(np.isfinite(far), far, 0.0))


def _error(output: Array, moves: Array, roundoff: float, scale: Any, least: float) -> Array:
    """Return how far roundings move each element; one that is subnormal not beyond zero."""
    size: Array = np.abs(output)
    error = size + abs(scale)
    error = np.where(np.isfinite(error), error, 0.0)
    return np.asarray(moves * roundoff * error + np.clip(moves * least, -size, size))


def _scale(node: Any, row: Rounds, output: Array, roundoff: float) -> Any:
    """Return to what an output is right, beside its own size: the largest that is mixed with it."""
    if row is Rounds.GATES:
        # In 16 bits, states and gates are rounded to the model's type at each step.
        share = 1.0 if roundoff > _SINGLE else _SHARE_OF_GATES
        return share * max(1.0, _largest(output))
    if row is Rounds.EXPONENTIALS:
        # The sum is 1 or more before its logarithm is taken.
        return 0.0 if node.op_type == "Softmax" else 1.0
    if row is not Rounds.MIX:
        return 0.0
    size = np.where(np.isfinite(output), np.abs(output), 0.0)
    integers = {it.name: it.i for it in node.onnx_node.attribute}
    if node.op_type == "DeformConv":
        # No algorithm mixes images, or groups of channels.
        parts = size.reshape(len(output), integers.get("group", 1), -1)
        return np.broadcast_to(parts.max(-1, keepdims=True), parts.shape).reshape(size.shape)
    return size.max(keepdims=True)


def _largest(array: Any) -> float:
    if not is_wide(array):
        return 0.0
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _distance(moved: Array, exact: Array) -> Array:
    distance = np.abs(moved - exact).astype(np.float64)
    same = (moved == exact) | (np.isnan(moved) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _jumps(form: _Form) -> bool:
    """Tell whether an output moved so far that it may have leapt."""
    own, exact = form.own, form.exact
    if not is_wide(exact) or getattr(own, "dtype", None) not in ROUNDOFF:
        return False
    far = min(4096 * ROUNDOFF[own.dtype] * form.step, 0.02) * _largest(exact)
    return any((it > far).any() for it, _ in form.moves)


def _conditioned_output(forms: Sequence[_Form]) -> ConditionedOutput:
    form = forms[0]
    own, exact = form.own, form.exact
    if not isinstance(own, np.ndarray) or not isinstance(exact, np.ndarray):
        return ConditionedOutput(reason="it is not a tensor", structure=structure_of(own))
    if own.shape != exact.shape:
        return ConditionedOutput(reason="its shape depends on the type that it is computed in")
    if form.draws and all(np.shape(it) != exact.shape for it in form.draws):
        return ConditionedOutput(reason="its shape depends on roundings")
    if own.dtype not in ROUNDOFF:
        return ConditionedOutput(tuple(_neighbours(forms, own)))
    return _of_floats(forms, own, exact)


def _neighbours(forms: Sequence[_Form], own: Array) -> Iterator[tuple[Array, Array]]:
    """Yield what a discrete output is, then what where roundings on the way decide it."""
    found: list[Array] = []
    for other in (it for form in forms for it in (form.own, form.exact, *form.draws)):
        if found and (own.dtype == object or getattr(other, "dtype", None) != own.dtype):
            continue
        if other.shape == own.shape and not any(np.array_equal(other, it) for it in found):
            found.append(other)
            yield other, np.zeros(own.shape)


def _of_floats(forms: Sequence[_Form], own: Array, exact: Array) -> ConditionedOutput:
    roundoff, tiny = ROUNDOFF[own.dtype], smallest_normal(own.dtype)
    expected = exact.astype(own.dtype)
    rounding = np.nan_to_num(roundoff * np.abs(exact).astype(np.float64), posinf=0.0)
    others: list[tuple[Array, str]] = []
    unit = np.zeros(exact.shape)
    touched = False
    for form in forms:
        moved, leaps = _unit(form, exact)
        touched |= form.alone or bool((moved > 0).any())
        unit = np.maximum(unit, moved)
        others += [(it, "") for it in leaps]
    units = forms[0].units
    if touched:
        unit = np.maximum(unit, rounding)
        for distance, wide in _distances(
            [it for form in forms for it in (form.own, form.exact)], exact
        ):
            close = distance <= _REFORMULATION_UNITS * np.maximum(unit, rounding) + tiny
            if any(form.underflows for form in forms):
                # Of squares that are subnormal few digits are left.
                close |= distance <= np.abs(exact) / _REFORMULATION_UNITS
            unit = np.where(close, np.maximum(unit, distance), unit)
            # Forms overflow, and underflow.
            infinite = ~np.isfinite(wide) & any(form.overflows for form in forms)
            lost = np.isfinite(exact) & (infinite | ((wide == 0) & (exact != 0)))
            if lost.any():
                others.append((np.where(lost, wide, exact), _OUT_OF_RANGE))
        for distance, wide in _distances([it for form in forms for it in form.beyond], exact):
            far = distance > _REFORMULATION_UNITS * np.maximum(unit, rounding) + tiny
            if far.any():
                others.append((np.where(far, wide, exact), _OUT_OF_RANGE))
        for distance, wide in _distances([it for form in forms for it in form.in_order], exact):
            # What is normalized is off by as many units of its mean, whatever it is itself.
            share = np.minimum(_IN_ORDER * unit, _largest(exact) / _IN_ORDER_SHARE)
            near = distance <= np.maximum(_IN_ORDER * rounding, share)
            beyond = ~near & (distance <= _IN_ORDER * unit)
            if beyond.any():
                others.append((np.where(beyond, wide, exact), _ADDED_IN_ORDER))
            unit = np.maximum(unit, np.where(near, distance, 0.0) * 2 / units)
    limit = units * unit
    # What may be subnormal may be flushed to zero.
    limit = limit + np.where(np.abs(exact) - limit < tiny, tiny, 0.0)
    branches = (_branch(it, units * roundoff, limit, own.dtype) for it, _ in others)
    right = ((expected, limit), *branches)
    judged = units if any(own.any() for _, own in right) else 0.0
    return ConditionedOutput(right, units=judged, labels=("", *(label for _, label in others)))


def _distances(values: Sequence[Any], exact: Array) -> Iterator[tuple[Array, Array]]:
    """Yield how far right values are off, and they in double; leave out those of other shapes."""
    for value in values:
        wide: Any = widened_value(value)
        if is_wide(wide) and wide.shape == exact.shape:
            yield _distance(wide, exact), wide


def _branch(value: Array, share: float, limit: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return another right value, with its limit: that share of it, or that of the exact one."""
    own = share * np.abs(value)
    return value.astype(dtype), np.maximum(limit, np.where(np.isfinite(own), own, 0.0))


def _unit(form: _Form, exact: Array) -> tuple[Array, list[Array]]:
    """Return how far one rounding moves each element, and the values beyond leaps."""
    unit = np.zeros(exact.shape)
    if np.shape(form.exact) != exact.shape:
        return unit, []
    # Where a draw overflows, or has no root, the others say how far it is. No root is right then.
    moves, finer = (
        [(np.where(np.isfinite(move), move, 0.0), it) for move, it in some]
        for some in (form.moves, _distances(form.finer, form.exact))
    )
    largest, least = (
        reduce(np.maximum, (move for move, _ in some), unit) for some in (moves, finer)
    )
    # A smooth function moves in proportion, by the square where it is even, or by the root.
    leap = ((least > largest / 4) | (least < largest / (8 * _FINER**2))) & (largest > 0)
    leap &= bool(finer)
    rootless = reduce(np.logical_or, (np.isnan(it) for _, it in moves), np.zeros(exact.shape, bool))
    found: list[Array] = []
    if (rootless & np.isfinite(exact)).any():
        found.append(np.where(rootless, np.nan, exact))
    for move, value in moves:
        far = leap & (move > largest / 4)
        unit = np.maximum(unit, np.where(far, 0.0, move))
        beyond = np.where(far, value, exact)
        if far.any() and not any(np.array_equal(beyond, it, equal_nan=True) for it in found):
            found.append(beyond)
    return unit / form.step, found
