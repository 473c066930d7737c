"""The conditioned reading: what is right of each output of a model, and how far off it may be.

``docs/conditioned.md`` gives the reasons of every rule.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnxopt_cli.core.text import clipped, exception_text
from onnxopt_cli.core.values import Array, Value, describe
from onnxopt_cli.formula.nodes import all_nodes, operator_names
from onnxopt_cli.readings.conditioned.body import published_body
from onnxopt_cli.readings.conditioned.coordinates import GRIDS, moved_coordinates, sizes
from onnxopt_cli.readings.conditioned.evaluator import Compute, Evaluated, sums_in_order
from onnxopt_cli.readings.conditioned.rows import DEFINED, PRODUCTS, Rounds, Site, floats, site
from onnxopt_cli.readings.conditioned.widen import (
    ROUNDOFF,
    is_wide,
    smallest_normal,
    widened_value,
)

#: By how much declared mathematics rounds: operands of products, or sums.
MATH = {"tf32": 2.0**-11, "bf16": 2.0**-8, "float16-sums": 2.0**-11}
#: How many units an output may be off.
UNITS = 16.0
# A right form that is further off measures nothing; it is one more right answer where it overflows.
_FORM_UNITS = 64.0
# A sum of n terms moves by sqrt(n) / 4 roundings, where that is more than one: a sequential sum of
# 10^6 terms is 400 off.
_SUM = 4.0
# Of equal terms each may be rounded the same way. Sums added up in order may be so many roundings
# off, and others twice as far as they are.
_IN_ORDER = 2.0**14
_FINER = 64.0
# Moved in double by its own roundoff nothing could be seen.
_DOUBLE = 2.0**-53
_STEP = 2.0**27
_MOST_VISITS = 20_000
_LONGEST = 200
_TRAINING = "ai.onnx.preview.training"
# Any two of these columns have all four pairs of signs; in the first row all are alike.
_CHOSEN = tuple(combinations(range(1, 8), 3))
_DESIGN = np.array([[1.0 if row in {0, *it} else -1.0 for it in _CHOSEN] for row in range(8)])


class CannotAskError(Exception):
    """The model cannot be asked, in words why."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is right of one output.

    Attributes:
        expected: the exact value, rounded to the output's dtype; for what is discrete, what the
            reference computes.
        limit: how far off it may be, as float64; zero for what is discrete.
        others: what is right as well, each element on its own, with limits.
        reason: why nothing is known of this output; empty if it is.
    """

    expected: Array | None
    limit: Array | None = None
    others: tuple[tuple[Array, Array], ...] = ()
    reason: str = ""

    @property
    def discrete(self) -> bool:
        """Whether the output is not a float of 16 bits or more."""
        return self.expected is not None and self.expected.dtype not in ROUNDOFF


@dataclass(slots=True)
class _Measured:
    """One form of a model, run.

    Attributes:
        own: its outputs in its own types.
        exact: its outputs in double.
        draws: its outputs in double with roundings put in, each time others.
        finer: the same with much smaller ones, where that was needed.
        in_order: its outputs in its own types with long sums added up one term after the other.
        step: by how much the roundings put in were larger than those of the types.
        touched: False if nothing in the model rounds but what yields its outputs.
    """

    own: list[Any]
    exact: list[Any]
    draws: list[list[Any]] = field(default_factory=list)
    finer: list[list[Any]] = field(default_factory=list)
    in_order: list[Any] = field(default_factory=list)
    step: float = 1.0
    rounds: bool = False


def condition(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str = ""
) -> list[Judgement]:
    """Ask a model how far its outputs move.

    Args:
        model: a model whose operators onnx's reference implements.
        inputs: a value for every input of the graph that must be fed.
        math: one of :data:`MATH` where a backend declares that it rounds products or sums; or
            empty.

    Raises:
        CannotAskError: if it cannot be asked.
    """
    try:
        if {node.op_type for node in all_nodes(model)} <= DEFINED:
            return [_defined(it) for it in Evaluated(model).run(inputs)]
        measured = _measure(model, inputs, math)
    except (CannotAskError, MemoryError):
        raise
    except Exception as error:
        # It may list all the operators that it knows.
        said = exception_text(error).split("\n", 1)[0]
        why = f"onnx's reference does not run it in double: {clipped(said, _LONGEST)}"
        raise CannotAskError(why) from error
    body = _measured_body(model, inputs, math)
    found = [_judgement(measured, body, place) for place in range(len(measured.own))]
    if operator_names(model) == ("Attention",):
        return list(map(_with_lowest, found))
    return found


def _defined(output: Any) -> Judgement:
    if not isinstance(output, np.ndarray):
        return Judgement(None, reason="it is not a tensor")
    return Judgement(output, np.zeros(output.shape))


def _with_lowest(judgement: Judgement) -> Judgement:
    """Let the lowest number stand for a masked score of -inf."""
    expected, limit = judgement.expected, judgement.limit
    if expected is None or limit is None or judgement.discrete or not np.isneginf(expected).any():
        return judgement
    lowest = float(ml_dtypes.finfo(expected.dtype).min)  # type: ignore[no-untyped-call]
    masked = np.isneginf(expected)
    other = np.where(masked, lowest, expected).astype(expected.dtype)
    # A bias may have been added to it.
    near = np.where(masked, UNITS * ROUNDOFF[expected.dtype] * -lowest, limit)
    return replace(judgement, others=(*judgement.others, (other, near)))


def _measured_body(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str
) -> _Measured | None:
    """Run the function body that ONNX publishes for a model's only node; None if there is none."""
    try:
        body = published_body(model, inputs)
        return None if body is None else _measure(body, inputs, math)
    except MemoryError:
        # Limits would be too narrow without it.
        raise
    except Exception:  # noqa: BLE001 - onnx's reference may lack what the body needs
        return None


def _measure(model: onnx.ModelProto, inputs: Mapping[str, Value], math: str) -> _Measured:
    roundoffs: list[tuple[str, float, bool]] = []

    def note(node: Any, compute: Compute, given: Sequence[Any]) -> tuple[Any, ...]:
        outputs = compute(*given)
        before, after = _coarsest(given), _coarsest(outputs)
        narrows = after > before > 0
        # Of these R may be float32 beside tensors of doubles, and what comes from R alone, too.
        mixed = node.onnx_node.domain == _TRAINING
        roundoffs.append((node.op_type, max(before, after) if mixed else after or before, narrows))
        if len(roundoffs) > _MOST_VISITS:
            raise CannotAskError(f"it runs more than {_MOST_VISITS} nodes")
        return outputs

    own = Evaluated(model).run(inputs, note)
    wide = Evaluated(model, wide=True)
    visits: list[_Visit] = []
    known: dict[object, Site] = {}
    coarsest = max((it for _, it, _ in roundoffs), default=0.0)

    def ask(node: Any, compute: Compute, given: Sequence[Any]) -> tuple[Any, ...]:
        outputs = compute(*given)
        at = len(visits)
        alike = at < len(roundoffs) and roundoffs[at][0] == node.op_type
        roundoff, narrows = roundoffs[at][1:] if alike else (coarsest, False)
        key = (node.onnx_node.SerializeToString(), *(describe(it) for it in given))
        if key not in known:
            known[key] = site(node, compute, given, outputs)
        found = known[key]
        if narrows and found.row is Rounds.EXACT and len(roundoffs) > 1:
            found = Site(Rounds.ELEMENT)
        inner = _inner(node.op_type, found, roundoff, math)
        scales = compute(np.abs(given[0]), *given[1:]) if found.row is Rounds.COORDINATES else ()
        visits.append(_Visit(node.op_type, found, roundoff, inner, given, outputs, scales))
        return outputs

    measured = _Measured(own, wide.run(inputs, ask))
    rounding = [it for it in visits if it.site.row is not Rounds.EXACT and it.roundoff]
    measured.rounds = bool(rounding)
    if not rounding or (len(visits) == 1 and rounding[0].site.row is Rounds.ELEMENT):
        return measured
    measured.step = _STEP if coarsest == _DOUBLE else 1.0
    measured.draws = [wide.run(inputs, _Noise(visits, it, measured.step)) for it in _DESIGN]
    if any(_leaps(measured, place) for place in range(len(own))):
        step = measured.step / _FINER
        measured.finer = [wide.run(inputs, _Noise(visits, it, step)) for it in _DESIGN]
    measured.in_order = _summed_in_order(model, inputs, rounding)
    return measured


def _summed_in_order(
    model: onnx.ModelProto, inputs: Mapping[str, Value], rounding: Sequence[_Visit]
) -> list[Any]:
    """Return outputs as of runtimes that add up in order; empty if no sum is long."""
    if all(_root(it.site) == 1 for it in rounding):
        return []
    with sums_in_order():
        return Evaluated(model).run(inputs)


def _inner(op_type: str, found: Site, roundoff: float, math: str) -> float:
    """Return by how much a node rounds its operands: a root of their number, or as declared."""
    root = _root(found)
    if math == "float16-sums" and found.length > 1 and roundoff > _DOUBLE:
        return max(roundoff, MATH[math]) * root
    products = math and op_type in PRODUCTS and roundoff == ROUNDOFF[np.dtype(np.float32)]
    return max(roundoff * root, MATH[math] if products and math != "float16-sums" else 0.0)


def _root(found: Site) -> float:
    return max(1.0, found.length**0.5 / _SUM)


def _coarsest(values: Sequence[Any]) -> float:
    arrays = [it for it in values if isinstance(it, np.ndarray)]
    return max((ROUNDOFF.get(it.dtype, 0.0) for it in arrays), default=0.0)


@dataclass(frozen=True, slots=True)
class _Visit:
    """A node that ran in double, without roundings put in."""

    op_type: str
    site: Site
    roundoff: float
    inner: float
    inputs: Sequence[Any]
    outputs: tuple[Any, ...]
    scales: tuple[Any, ...]


class _Noise:
    """Puts a rounding, by a row of a balanced design, wherever a model may round."""

    def __init__(self, visits: Sequence[_Visit], row: Array, step: float) -> None:
        self._visits = visits
        self._row = row
        self._step = step
        self._count = 0
        self._elements = 0

    def __call__(self, node: Any, compute: Compute, given: Sequence[Any]) -> tuple[Any, ...]:
        at = self._count
        self._count += 1
        if at >= len(self._visits) or self._visits[at].op_type != node.op_type:
            return compute(*given)
        visit = self._visits[at]
        found, roundoff = visit.site, visit.roundoff * self._step
        if found.row is Rounds.EXACT or not roundoff:
            same = all(map(operator.is_, given, visit.inputs))
            return visit.outputs if same else compute(*given)
        moved, picks = list(given), found.row is Rounds.PICKS
        if found.moved:
            for place in floats(node.op_type, given):
                step = visit.inner * self._step * self._signs(given[place])
                if place == GRIDS.get(node.op_type):
                    moved[place] = given[place] + step * sizes(node.op_type, given[place])
                elif not picks:
                    moved[place] = np.asarray(given[place] * (1 + step))
        with moved_coordinates(lambda it: roundoff * self._signs(it) * it, picks=picks):
            outputs = compute(*moved)
        # Of two long sums each has errors of its own, whatever moves the terms of both.
        several = found.row is Rounds.COMBINE and len(self._visits) > 1
        if several or found.row is Rounds.PRODUCT:
            roundoff *= _root(found)
        scales = visit.scales or (0.0,) * len(outputs)
        return tuple(
            self._rounded(it, found, roundoff, scale) if is_wide(it) and it.size else it
            for it, scale in zip(outputs, scales, strict=True)
        )

    def _rounded(self, output: Array, found: Site, roundoff: float, scale: Any) -> Array:
        signs = self._signs(output)
        error: Array = np.abs(output) + np.abs(scale)
        if found.row is Rounds.MIX:
            error = error + _largest(output)
        elif found.row is Rounds.GATES:
            error = error + max(1.0, _largest(output))
        elif found.row is Rounds.PICKS:
            return output
        moved: Array = np.asarray(
            output + signs * roundoff * np.where(np.isfinite(error), error, 0)
        )
        return moved

    def _signs(self, array: Array) -> Array:
        """Return 1 or -1 for each element, so that elements that cancel move apart once."""
        numbers = np.arange(self._elements, self._elements + array.size)
        self._elements += array.size
        count = self._row.size
        # Elements that far apart have other columns, too.
        columns = (numbers + numbers // count + numbers // count**2) % count
        return self._row[columns].reshape(array.shape)


def _largest(array: Any) -> float:
    if not is_wide(array):
        return 0.0
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _moves(measured: Sequence[list[Any]], exact: Array, place: int) -> list[Array]:
    """Return how far an output moved each time; nothing where it changed its shape."""
    outputs = [it[place] for it in measured]
    return [
        _distance(it, exact)
        for it in outputs
        if isinstance(it, np.ndarray) and it.shape == exact.shape
    ]


def _distance(moved: Array, exact: Array) -> Array:
    with np.errstate(all="ignore"):
        distance = np.abs(moved - exact).astype(np.float64)
    same = (moved == exact) | (np.isnan(moved) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _leaps(measured: _Measured, place: int) -> bool:
    """Tell whether an output moved so far that it may have leapt."""
    own, exact = measured.own[place], measured.exact[place]
    if not is_wide(exact) or getattr(own, "dtype", None) not in ROUNDOFF:
        return False
    far = min(4096 * ROUNDOFF[own.dtype] * measured.step, 0.02) * _largest(exact)
    return any((it > far).any() for it in _moves(measured.draws, exact, place))


def _judgement(measured: _Measured, body: _Measured | None, place: int) -> Judgement:
    own, exact = measured.own[place], measured.exact[place]
    if not isinstance(own, np.ndarray) or not isinstance(exact, np.ndarray):
        return Judgement(None, reason="it is not a tensor")
    if own.shape != exact.shape:
        return Judgement(None, reason="its shape depends on the type that it is computed in")
    forms = [measured] if body is None else [measured, body]
    if measured.draws and not _moves(measured.draws, exact, place):
        return Judgement(None, reason="its shape depends on roundings")
    if own.dtype not in ROUNDOFF:
        return Judgement(own, np.zeros(own.shape), tuple(_neighbours(forms, own, place)))
    return _of_floats(forms, own, exact, place)


def _neighbours(
    forms: Sequence[_Measured], own: Array, place: int
) -> Iterator[tuple[Array, Array]]:
    """Yield what a discrete output is where roundings on the way decide it."""
    if own.dtype == object:
        return
    found = [own]
    for form in forms:
        for outputs in (form.own, form.exact, *form.draws):
            other = outputs[place] if place < len(outputs) else None
            if not isinstance(other, np.ndarray) or other.dtype != own.dtype:
                continue
            if other.shape == own.shape and not any(np.array_equal(other, it) for it in found):
                found.append(other)
    yield from ((it, np.zeros(own.shape)) for it in found[1:])


def _of_floats(forms: Sequence[_Measured], own: Array, exact: Array, place: int) -> Judgement:
    roundoff, tiny = ROUNDOFF[own.dtype], smallest_normal(own.dtype)
    with np.errstate(all="ignore"):
        expected = exact.astype(own.dtype)
        rounding = np.nan_to_num(roundoff * np.abs(exact).astype(np.float64), posinf=0.0)
    others: list[Array] = []
    unit = np.zeros(exact.shape)
    touched = False
    for form in forms:
        moved, leaps = _unit(form, exact, place)
        touched |= form.rounds and (not form.draws or bool((moved > 0).any()))
        unit = np.maximum(unit, moved)
        others += leaps
    if touched:
        unit = np.maximum(unit, rounding)
        for value in (it[place] for form in forms for it in (form.own, form.exact)):
            wide: Any = widened_value(value)
            if not is_wide(wide) or wide.shape != exact.shape:
                continue
            distance = _distance(wide, exact)
            close = distance <= _FORM_UNITS * np.maximum(unit, rounding) + tiny
            unit = np.where(close, np.maximum(unit, distance), unit)
            overflow = np.isfinite(exact) & ~np.isfinite(wide)
            if overflow.any():
                others.append(np.where(overflow, wide, exact))
        for summed in (it.in_order[place] for it in forms if it.in_order):
            wide = widened_value(summed)
            if is_wide(wide) and wide.shape == exact.shape:
                distance = _distance(wide, exact)
                near = np.where(distance <= _IN_ORDER * rounding, distance, 0.0)
                unit = np.maximum(unit, near * 2 / UNITS)
    limit = UNITS * unit + tiny
    return Judgement(expected, limit, tuple(_branch(it, limit, own.dtype) for it in others))


def _branch(value: Array, limit: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return another right value, with its limit."""
    with np.errstate(all="ignore"):
        own = UNITS * ROUNDOFF[dtype] * np.abs(value)
        return value.astype(dtype), np.maximum(limit, np.where(np.isfinite(own), own, 0.0))


def _unit(form: _Measured, exact: Array, place: int) -> tuple[Array, list[Array]]:
    """Return how far one rounding moves each element, and the values beyond leaps."""
    none = np.zeros(exact.shape)
    if not form.draws or place >= len(form.exact) or not isinstance(form.exact[place], np.ndarray):
        return none, []
    center = form.exact[place]
    if center.shape != exact.shape:
        return none, []
    moves = _moves(form.draws, center, place)
    if not moves:
        return none, []
    largest = np.max(moves, axis=0)
    finer = _moves(form.finer, center, place)
    if not finer:
        return np.where(np.isfinite(largest), largest, 0.0) / form.step, []
    least = np.max(finer, axis=0)
    # A smooth function moves in proportion.
    leap = (least > largest / 8) | (least < largest / (8 * _FINER))
    leap &= largest > 0
    near = [np.where(leap & (it > largest / 4), 0.0, it) for it in (*moves,)]
    unit = np.max(near, axis=0)
    found: list[Array] = []
    for outputs, move in zip(form.draws, moves, strict=True):
        far = leap & (move > largest / 4)
        if far.any():
            value = np.where(far, outputs[place], exact)
            if not any(np.array_equal(value, it, equal_nan=True) for it in found):
                found.append(value)
    return np.where(np.isfinite(unit), unit, 0.0) / form.step, found
