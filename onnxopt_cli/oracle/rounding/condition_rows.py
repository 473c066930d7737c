"""What a node does with numbers: the rows of the table in ``docs/conditioned.md``.

The row is found by asking: the node is run again with inputs that are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.rounding.exponentials import OPERATORS
from onnxopt_cli.oracle.rounding.normalizations import NORMALIZE
from onnxopt_cli.oracle.widen import is_wide


class Rounds(Enum):
    """What a node does with numbers."""

    EXACT = auto()
    ELEMENT = auto()
    COMBINE = auto()
    MIX = auto()
    CONVOLVE = auto()
    TRANSFORM = auto()
    COORDINATES = auto()
    PICKS = auto()
    PRODUCT = auto()
    GATES = auto()
    EXPONENTIALS = auto()
    NORMALIZE = auto()
    DETERMINANT = auto()


@dataclass(frozen=True, slots=True)
class Site:
    """A node that rounds.

    Attributes:
        row: its row.
        length: how many terms an output combines, on average.
        moved: whether the inputs of the node are moved, beside its outputs.
    """

    row: Rounds
    length: float = 1.0

    @property
    def moved(self) -> bool:
        """Whether a node's inputs are moved, beside its outputs."""
        return self.row not in (Rounds.EXACT, Rounds.ELEMENT, Rounds.PRODUCT, Rounds.TRANSFORM)


# What is not found by asking, each with its reason in docs/conditioned.md.
#: Operators whose results are defined to the bit.
DEFINED = frozenset(
    {"BitCast", "Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", "Identity", "MaxPool"}
)
_LISTED = {
    # Rounding to another type is defined to the bit, and so is a constant.
    **dict.fromkeys(DEFINED, Rounds.EXACT),
    # Most nodes are of these. Asking would find the same, and takes long.
    **dict.fromkeys(("Concat", "Expand", "Flatten", "Gather", "Reshape", "Slice"), Rounds.EXACT),
    **dict.fromkeys(("Split", "Squeeze", "Transpose", "Unsqueeze", "Where"), Rounds.EXACT),
    **dict.fromkeys(("Add", "Div", "Exp", "Log", "Mul", "Pow", "Sqrt", "Sub"), Rounds.ELEMENT),
    # Fast algorithms: a zero that comes from cancellation is zero only to the scale.
    **dict.fromkeys(("Conv", "ConvTranspose"), Rounds.CONVOLVE),
    **dict.fromkeys(("DFT", "STFT"), Rounds.TRANSFORM),
    "DeformConv": Rounds.MIX,
    # One minus a gate that is nearly open is right only to the range of an activation, which is 1.
    **dict.fromkeys(("GRU", "LSTM", "RNN"), Rounds.GATES),
    # Their terms are exponentials, which do not move with their operands.
    **dict.fromkeys(OPERATORS, Rounds.EXPONENTIALS),
    # A mean that is off moves all elements alike, which elements that move do not show.
    **dict.fromkeys(NORMALIZE, Rounds.NORMALIZE),
    # A sum of products that cancel where the rank is low.
    "Det": Rounds.DETERMINANT,
    # Differences of cosines, triangles of differences: zero only to the scale.
    **dict.fromkeys(
        ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "AffineGrid"),
        Rounds.MIX,
    ),
    # They compute coordinates, which round whatever the data are.
    **dict.fromkeys(("Resize", "Upsample", "GridSample", "RoiAlign"), Rounds.COORDINATES),
    # Integers come from rounding a quotient, which the node computes itself.
    **dict.fromkeys(
        ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"), Rounds.COMBINE
    ),
    # They divide or take powers, which rounds even where an output depends on one element alone.
    **dict.fromkeys(
        ("GlobalLpPool", "LpNormalization", "LpPool", "Normalizer", "ReduceL2"), Rounds.COMBINE
    ),
    # Elementwise, yet sums of many terms.
    **dict.fromkeys(("Sum", "Mean"), Rounds.COMBINE),
}

#: Float inputs that decide shapes; they are never moved.
FIXED = {"Resize": {1, 2}, "Upsample": {1}, "Range": {0, 1, 2}}

# The operands by which integers are divided and multiplied.
_SCALES = {"QuantizeLinear": (1,), "QLinearMatMul": (1, 4, 6), "QLinearConv": (1, 4, 6)}

# Their outputs of floats leap where an input passes some point; all others' are continuous, but at
# poles. MaxRoiPool and MelWeightMatrix round coordinates.
_LEAPING = frozenset(
    {"Ceil", "Compress", "Floor", "Hardmax", "MaxRoiPool", "MelWeightMatrix", "Mod", "Round"}
    | {"Shrink", "Sign", "ThresholdedRelu", "Unique"}
    | {"Resize", "Upsample", "GridSample", "RoiAlign"}
)
# Trees and classifiers choose.
_CLASSIC = "ai.onnx.ml"
_OF_SHAPES = frozenset({"Shape", "Size"})

#: Operators whose products tensor units compute from rounded operands.
PRODUCTS = frozenset(
    {"MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "DeformConv", "Attention", "GRU", "LSTM"}
    | {"RNN", "LinearAttention", "CausalConvWithState"}
)

_MOST_OPERANDS = 2
_SAME_SHARE = 1e-9
_WHOLE = 2.0**40
_FEW_ELEMENTS = 1000
_GOLDEN = 0.6180339887498949
# Elements of an input that are looked at until so many are seen to matter.
_LOOK_COUNT, _ENOUGH_LOOKS = 8, 2


def floats(op_type: str, inputs: Sequence[Any]) -> list[int]:
    """Return the places of the float inputs that may be moved."""
    # A quotient by a power of two is exact, and so is its tie.
    scales = [np.abs(np.frexp(inputs[at])[0]) for at in _SCALES.get(op_type, ())]
    if scales and all((it == 0.5).all() for it in scales):  # noqa: PLR2004
        return []
    fixed = FIXED.get(op_type, ())
    return [at for at, it in enumerate(inputs) if is_wide(it) and it.size and at not in fixed]


def site(
    node: Any, compute: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> Site:
    """Return what a node is to the numbers that it was given.

    Args:
        node: the node, as onnx's reference has it.
        compute: runs it with other inputs.
        inputs: as it was run with, floats as doubles.
        outputs: what it returned.
    """
    places = floats(node.op_type, inputs)
    results = [it for it in outputs if is_wide(it) and it.size]
    listed = _LISTED.get(node.op_type)
    if listed is Rounds.EXACT or (not results and listed in (None, Rounds.ELEMENT)):
        return Site(Rounds.EXACT)
    if not places or listed is Rounds.ELEMENT:
        return Site(listed or Rounds.ELEMENT)
    if listed in {None, Rounds.COORDINATES} and _moves(node, compute, inputs, outputs):
        return Site(Rounds.EXACT if listed is None else Rounds.PICKS)
    length, product = _length(compute, inputs, outputs, places) if results else (1.0, False)
    if listed is not None:
        return Site(listed, length)
    if length <= 1 and len(places) <= _MOST_OPERANDS:
        return Site(Rounds.ELEMENT)
    return Site(Rounds.PRODUCT if product else Rounds.COMBINE, length)


def leaps(node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Tell whether outputs of a node may leap: it makes something discrete of floats, or choices.

    Args:
        node: the node, as onnx's reference has it.
        inputs: as it was run with, floats as doubles.
        outputs: what it returned.
    """
    if node.op_type in _OF_SHAPES or not any(map(is_wide, inputs)):
        return False
    discrete = any(isinstance(it, np.ndarray) and not is_wide(it) for it in outputs)
    return discrete or node.op_type in _LEAPING or node.onnx_node.domain == _CLASSIC


def _moves(
    node: Any, compute: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> bool:
    """Tell whether a node's outputs are its inputs or constants, up to sign, wherever it is asked.

    It is asked where it ran, and at two generic points: near its inputs, and much nearer to zero.
    """
    given = [it.f for it in node.onnx_node.attribute] + [
        number for it in node.onnx_node.attribute for number in it.floats
    ]
    places = floats(node.op_type, inputs)
    known = 0
    for scale in (0.0, 1.0, 2.0**-7):
        moved = list(inputs)
        for at in places if scale else ():
            moved[at] = _generic(inputs[at], at, scale)
        try:
            found = compute(*moved) if scale else outputs
        except Exception:  # noqa: BLE001, S112 - it may not be defined there
            continue
        wide = [it for it in found if is_wide(it) and it.size]
        finite = all(np.isfinite(moved[at]).all() for at in places)
        # Where all is zero, or overflows, nothing is to be learnt.
        if any(not it.any() or (finite and np.isinf(it).any()) for it in wide):
            continue
        known += scale > 0
        allowed = np.sort(
            np.concatenate([*(np.abs(moved[at]).ravel() for at in places), [0.0], np.abs(given)])
        )
        for output in wide:
            size = np.abs(output[np.isfinite(output)])
            # What is rounded to an integer is exact, too; what is as large always is one.
            size = size[(size != np.floor(size)) | (size > _WHOLE)]
            # Where some are not, a few of the first mostly show it.
            for seen in (size[:_FEW_ELEMENTS], size[_FEW_ELEMENTS:]):
                nearest = allowed[np.searchsorted(allowed, seen).clip(max=allowed.size - 1)]
                if (nearest != seen).any():
                    return False
    return known > 0


def _generic(array: Array, at: int, scale: float) -> Array:
    """Return an array of numbers near those of another, or so much nearer to zero."""
    steps = (np.arange(array.size) * _GOLDEN + 0.37 * at) % 1.0
    factors = (scale * (1.01 + 0.3 * steps)).reshape(array.shape)
    # A zero would stay one.
    moved: Array = np.where(array == 0, 0.013 * factors, array * factors)
    return moved


def _length(
    compute: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    places: Sequence[int],
) -> tuple[float, bool]:
    """Return how many elements of an input an element of the outputs is made of, on average.

    And whether it is their product. One element is moved, of each input; what else moves is looked
    at, and if nothing does, as where it meets a zero or a pool leaves it out, at another one.
    """
    size = sum(it.size for it in outputs if is_wide(it))
    longest, product = 1.0, True
    for at in places:
        touched = []
        for element in _some_places(inputs[at].size):
            moved = list(inputs)
            moved[at] = inputs[at].copy()
            flat, before = moved[at].reshape(-1), inputs[at].reshape(-1)[element]
            flat[element] = before * 1.37 + 0.11
            try:
                others = compute(*moved)
            except Exception:  # noqa: BLE001, S112 - it may not be defined there
                continue
            count = 0
            for mine, theirs in zip(outputs, others, strict=True):
                if is_wide(mine) and is_wide(theirs) and mine.shape == theirs.shape:
                    changed = ~((mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))
                    count += int(np.count_nonzero(changed))
                    if product:
                        scaled = mine[changed] * (flat[element] / before)
                        off = np.abs(theirs[changed] - scaled)
                        product = bool((off <= _SAME_SHARE * np.abs(scaled)).all())
            touched += [count] * bool(count)
            if len(touched) == _ENOUGH_LOOKS:
                break
        if touched:
            longest = max(longest, inputs[at].size * float(np.mean(touched)) / size)
    return longest, product


@lru_cache(1024)
def _some_places(size: int) -> list[int]:
    """Return places that are generic along each axis, each second one opposite of the first."""
    steps = (np.arange(1, 1 + _LOOK_COUNT // 2) * _GOLDEN) % 1.0
    near = np.rint((size - 1) * np.stack([steps, 1 - steps], 1)).astype(int)
    return list(dict.fromkeys(near.ravel().tolist()))
