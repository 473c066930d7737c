"""The kind of a node, which decides where roundings are injected.

``docs/conditioned.md`` has a table of the kinds. This module lists the kinds of some operators. For
all other operators, the kind is determined by running the node again with other inputs.
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
from onnxopt_cli.oracle.rounding.intermediate_values import summed_weights
from onnxopt_cli.oracle.rounding.normalizations import NORMALIZE
from onnxopt_cli.oracle.rounding.product_effects import ProductEffects
from onnxopt_cli.oracle.rounding.scales import WINDOWS
from onnxopt_cli.oracle.widen import is_wide


class NodeKind(Enum):
    """Kinds of computations, which decide where the roundings of a node are injected."""

    #: Moves data: each output is bitwise an input or a constant.
    EXACT = auto()
    #: Computes each output element from one element of each operand.
    ELEMENTWISE = auto()
    #: Sums terms, which may cancel.
    COMBINE = auto()
    #: Mixes terms by an algorithm whose error is relative to the largest term.
    MIX = auto()
    #: Convolves, possibly by Winograd's or Fourier's algorithm.
    CONVOLVE = auto()
    #: Computes a Fourier transform.
    TRANSFORM = auto()
    #: Computes coordinates, and interpolates at them.
    COORDINATES = auto()
    #: Computes coordinates, and selects the elements at these coordinates.
    SELECT = auto()
    #: Multiplies: each operand only scales the output, and nothing cancels.
    PRODUCT = auto()
    #: Computes a recurrent cell with gates.
    GATES = auto()
    #: Divides by a sum of exponentials, or takes its logarithm.
    EXPONENTIALS = auto()
    #: Subtracts a mean and divides by a deviation.
    NORMALIZE = auto()
    #: Computes a determinant.
    DETERMINANT = auto()
    #: Computes a window by cosines.
    WINDOW = auto()
    #: Adds weights of trees. The operands only choose the weights.
    TREES = auto()


_UNMOVED_OPERANDS = frozenset(
    {NodeKind.EXACT, NodeKind.ELEMENTWISE, NodeKind.PRODUCT, NodeKind.TRANSFORM, NodeKind.TREES}
)


@dataclass(frozen=True, slots=True)
class NodeClass:
    """The kind of a node for given inputs.

    Attributes:
        kind: its kind.
        terms: the average number of input elements on which an output element depends.
    """

    kind: NodeKind
    terms: float = 1.0

    @property
    def moves_operands(self) -> bool:
        """Whether the operands of the node are perturbed in addition to its outputs."""
        return self.kind not in _UNMOVED_OPERANDS


#: Operators that have exactly one correct result for given operands.
DEFINED = frozenset(
    {"BitCast", "Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", "Identity", "MaxPool"}
)
# Kinds of operators for which running the node again would give no clear result, or would be slow.
# docs/conditioned.md gives the reasons.
_LISTED = {
    **dict.fromkeys(DEFINED, NodeKind.EXACT),
    # The following operators are most frequent in networks. Running their nodes again would give
    # the same kinds, but would take long.
    **dict.fromkeys(("Abs", "Clip", "Concat", "Expand", "Flatten", "Gather"), NodeKind.EXACT),
    **dict.fromkeys(("Neg", "Pad", "Relu", "Reshape", "Slice", "Split"), NodeKind.EXACT),
    **dict.fromkeys(("Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"), NodeKind.EXACT),
    **dict.fromkeys(
        ("Add", "Div", "Exp", "Log", "Mul", "Pow", "Sqrt", "Sub"), NodeKind.ELEMENTWISE
    ),
    # The error of fast algorithms is relative to the scale, even where the exact result is zero.
    **dict.fromkeys(("Conv", "ConvTranspose"), NodeKind.CONVOLVE),
    **dict.fromkeys(("DFT", "STFT"), NodeKind.TRANSFORM),
    "DeformConv": NodeKind.MIX,
    # If a gate z is near 1, the error of 1 - z is relative to the range of the activation, which is
    # 1.
    **dict.fromkeys(("GRU", "LSTM", "RNN"), NodeKind.GATES),
    # The terms of the sum are exponentials. Their movements are not proportional to the roundings
    # of the operand.
    **dict.fromkeys(OPERATORS, NodeKind.EXPONENTIALS),
    # An error of the mean moves all elements alike. Moving single elements does not reveal such an
    # error.
    **dict.fromkeys(NORMALIZE, NodeKind.NORMALIZE),
    # A determinant is a sum of products, which cancel if the rank of the matrix is low.
    "Det": NodeKind.DETERMINANT,
    # Window operators subtract cosines. Their errors are relative to the cosines, not to the
    # difference.
    **dict.fromkeys(WINDOWS, NodeKind.WINDOW),
    # Some operators subtract coordinates. Their errors are relative to the coordinates, not to the
    # difference.
    **dict.fromkeys(("MelWeightMatrix", "AffineGrid"), NodeKind.MIX),
    # The coordinates are rounded even if each output element is an element of the input.
    **dict.fromkeys(("Resize", "Upsample", "GridSample", "RoiAlign"), NodeKind.COORDINATES),
    # The outputs are integers, but they result from rounding a quotient that the node computes.
    **dict.fromkeys(
        ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
        NodeKind.COMBINE,
    ),
    # Division and powers are rounded even if an output depends on a single element.
    **dict.fromkeys(
        ("GlobalLpPool", "LpNormalization", "LpPool", "Normalizer", "ReduceL2"), NodeKind.COMBINE
    ),
    # These nodes compute sums, although an output depends on only one element of each operand. For
    # a single feature, linear models and support vector machines add a product and a constant.
    **dict.fromkeys(("Sum", "Mean"), NodeKind.COMBINE),
    **dict.fromkeys(("LinearClassifier", "LinearRegressor"), NodeKind.COMBINE),
    **dict.fromkeys(("SVMClassifier", "SVMRegressor"), NodeKind.COMBINE),
    # If an operand is equal to a threshold, perturbing the operand would cross the threshold.
    **dict.fromkeys(
        ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), NodeKind.TREES
    ),
}

#: For each operator, the indices of floating-point inputs that determine shapes, and that are never
#: perturbed.
SHAPE_INPUTS = {"Resize": {1, 2}, "Upsample": {1}, "Range": {0, 1, 2}}

# For each operator whose specification states how ties are rounded, the indices of the scales by
# which numbers are divided and multiplied. The specification of QLinearConv does not state this.
_SCALES = {"QuantizeLinear": (1,), "QLinearMatMul": (1, 4, 6)}

# Operators whose floating-point outputs are discontinuous. Operators that are not listed are
# continuous except at poles. MaxRoiPool and MelWeightMatrix round coordinates.
_DISCONTINUOUS = frozenset(
    {"Ceil", "Compress", "Floor", "Hardmax", "MaxRoiPool", "MelWeightMatrix", "Mod", "Round"}
    | {"Shrink", "Sign", "ThresholdedRelu", "Unique"}
    | {"Resize", "Upsample", "GridSample", "RoiAlign"}
)
# The domain of trees and classifiers, which are discontinuous.
_CLASSIC_DOMAIN = "ai.onnx.ml"
_SHAPE_OPERATORS = frozenset({"Shape", "Size"})

#: Operators whose products a matrix unit (tensor core) may compute from rounded operands.
PRODUCTS = frozenset(
    {"MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "DeformConv", "Attention", "GRU", "LSTM"}
    | {"RNN", "LinearAttention", "CausalConvWithState"}
)

_MAX_ELEMENTWISE_OPERANDS = 2
_PROPORTION_TOLERANCE = 1e-9
# A double above this limit may be an integer by chance, because its last digits are rounded off.
_MAX_INTEGER = 2.0**40
# This number of elements of an output is compared first. Comparing all elements requires sorting,
# which is slower.
_FIRST_ELEMENTS = 4
# The version of BatchNormalization in which the number of outputs replaces the attribute is_test.
_FIRST_WITHOUT_TEST_MODE = 7
_GOLDEN_RATIO = 0.6180339887498949
# The largest number of elements of an input that are moved, one after the other.
_MAX_MOVED_ELEMENTS = 8
# No further element is moved once this number of elements had an effect on an output.
_ENOUGH_EFFECTS = 2


def listed_kind(op_type: str) -> NodeKind | None:
    """Return the kind of an operator's nodes; None if each node must be examined."""
    return _LISTED.get(op_type)


def movable_operands(op_type: str, inputs: Sequence[Any]) -> list[int]:
    """Return the indices of a node's floating-point inputs that may be perturbed."""
    # If all scales are powers of two, the quotient is exact. A perturbation could wrongly break a
    # tie.
    scales = [np.abs(np.frexp(inputs[index])[0]) for index in _SCALES.get(op_type, ())]
    if scales and all((mantissa == 0.5).all() for mantissa in scales):  # noqa: PLR2004
        return []
    shapes = SHAPE_INPUTS.get(op_type, ())
    return [
        index
        for index, operand in enumerate(inputs)
        if is_wide(operand) and operand.size and index not in shapes
    ]


def classify(
    node: Any, compute: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> NodeClass:
    """Return the kind of a node at its inputs.

    Args:
        node: the node, as the evaluator prepares it.
        compute: runs it with other inputs.
        inputs: its inputs, floats as doubles.
        outputs: its outputs.
    """
    places = movable_operands(node.op_type, inputs)
    results = [output for output in outputs if is_wide(output) and output.size]
    listed = _LISTED.get(node.op_type)
    may_be_empty = listed in {None, NodeKind.ELEMENTWISE, NodeKind.TREES}
    if listed is NodeKind.EXACT or (not results and may_be_empty):
        return NodeClass(NodeKind.EXACT)
    terms: float = summed_weights(node.onnx_node) if listed is NodeKind.TREES else 1.0
    if not places or listed is NodeKind.ELEMENTWISE:
        return NodeClass(listed or NodeKind.ELEMENTWISE, terms)
    may_move = listed in {None, NodeKind.COORDINATES, NodeKind.TREES}
    if (
        may_move
        and not _multiplies_matrices(node, inputs)
        and _moves_data(node, compute, inputs, outputs)
    ):
        return NodeClass(NodeKind.SELECT if listed is NodeKind.COORDINATES else NodeKind.EXACT)
    if listed is NodeKind.TREES:
        return NodeClass(listed, terms)
    if _normalizes_by_operands(node):
        return NodeClass(NodeKind.NORMALIZE)
    terms, product = _terms(node, compute, inputs, outputs, places) if results else (1.0, False)
    if listed is not None:
        return NodeClass(listed, terms)
    if terms <= 1 and len(places) <= _MAX_ELEMENTWISE_OPERANDS:
        return NodeClass(NodeKind.ELEMENTWISE)
    return NodeClass(NodeKind.PRODUCT if product else NodeKind.COMBINE, terms)


def _multiplies_matrices(node: Any, inputs: Sequence[Any]) -> bool:
    """Return whether each output element contains products of two operands.

    Such a node never moves data, because a product of generic numbers is equal to neither factor.
    """
    if node.op_type == "Gemm":
        is_zero = any(item.name == "alpha" and not item.f for item in node.onnx_node.attribute)
        return not is_zero and all(operand.size for operand in inputs[:2])
    return bool(node.op_type == "MatMul")


def _normalizes_by_operands(node: Any) -> bool:
    """Return whether a ``BatchNormalization`` takes its statistics as operands.

    Each element of its output then depends on one element of each operand.
    """
    if node.op_type != "BatchNormalization" or node.opset < _FIRST_WITHOUT_TEST_MODE:
        return False
    is_training = any(item.name == "training_mode" and item.i for item in node.onnx_node.attribute)
    return not is_training and len(node.output) == 1


def may_jump(node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Return whether a node is discontinuous in its floating-point operands.

    Args:
        node: the node, as the evaluator prepares it.
        inputs: its inputs, floats as doubles.
        outputs: its outputs.
    """
    if node.op_type in _SHAPE_OPERATORS or not any(map(is_wide, inputs)):
        return False
    discrete = any(isinstance(output, np.ndarray) and not is_wide(output) for output in outputs)
    classic = node.onnx_node.domain == _CLASSIC_DOMAIN
    return discrete or node.op_type in _DISCONTINUOUS or classic


def _moves_data(
    node: Any, compute: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> bool:
    """Return whether each output element of a node is an input element, a constant or an integer.

    Signs are ignored. The node runs at its inputs and at two sets of generic inputs: one near the
    inputs, and one near zero.
    """
    attributes = node.onnx_node.attribute
    constants = [attribute.f for attribute in attributes]
    constants += [number for attribute in attributes for number in attribute.floats]
    places = movable_operands(node.op_type, inputs)
    generic_points = 0
    for scale in (0.0, 1.0, 2.0**-7):
        moved = list(inputs)
        for place in places if scale else ():
            moved[place] = _generic(inputs[place], place, scale)
        try:
            results = compute(*moved) if scale else outputs
        except Exception:  # noqa: BLE001, S112 - the node may reject these operands
            continue
        wide = [result for result in results if is_wide(result) and result.size]
        finite = all(np.isfinite(moved[place]).all() for place in places)
        # An output that overflows, or that consists of zeros, does not reveal the kind of the node.
        if any(not result.any() or (finite and np.isinf(result).any()) for result in wide):
            continue
        generic_points += scale > 0
        magnitudes = [np.abs(moved[place]) for place in places]
        allowed = [*(size.ravel() for size in magnitudes), np.zeros(1), np.abs(constants)]
        if not all(_are_among(_unexplained(result, magnitudes), allowed) for result in wide):
            return False
    return generic_points > 0


def _unexplained(result: Array, magnitudes: Sequence[Array]) -> Array:
    """Return the magnitudes of those elements of a result that must be sought among the inputs.

    Other elements need no search: infinities, NaN, elements that equal an input element at the same
    index, and integers (because rounding to integers is also exact).
    """
    size = np.abs(result)
    unexplained = np.isfinite(result)
    unexplained &= (size != np.floor(size)) | (size > _MAX_INTEGER)
    for magnitude in magnitudes:
        if magnitude.shape == size.shape:
            unexplained &= size != magnitude
    return size[unexplained]


def _are_among(values: Array, arrays: Sequence[Array]) -> bool:
    """Return whether each value occurs in any of the arrays."""
    for value in values[:_FIRST_ELEMENTS]:
        if not any((array == value).any() for array in arrays):
            return False
    if values.size <= _FIRST_ELEMENTS:
        return True
    allowed = np.sort(np.concatenate(arrays))
    nearest = allowed[np.searchsorted(allowed, values).clip(max=allowed.size - 1)]
    return bool((nearest == values).all())


def _generic(array: Array, place: int, scale: float) -> Array:
    """Return the elements of an operand, multiplied by a scale and by distinct factors near 1."""
    steps = (np.arange(array.size) * _GOLDEN_RATIO + 0.37 * place) % 1.0
    factors = (scale * (1.01 + 0.3 * steps)).reshape(array.shape)
    # A factor would not change a zero, so zeros are replaced.
    moved: Array = np.where(array == 0, 0.013 * factors, array * factors)
    return moved


def _terms(
    node: Any,
    compute: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    places: Sequence[int],
) -> tuple[float, bool]:
    """Return how many input elements affect an output element, and whether a node is a product.

    In a product, each input element scales the output elements that it affects. A few elements of
    each input are moved, one at a time, and the output elements that change are counted. An element
    without an effect, for example because it is multiplied by zero, is ignored.
    """
    output_size = sum(output.size for output in outputs if is_wide(output))
    most_terms, product = 1.0, True
    effects = ProductEffects(node, inputs, outputs)
    for place in places:
        counts = []
        for element in _generic_elements(inputs[place].size):
            number = inputs[place].flat[element]
            moved = number * 1.37 + 0.11
            factors = effects.factors(place, element, moved - number)
            effect = (
                _measured_effect(compute, inputs, outputs, place, element, moved)
                if factors is None
                else _effect_of_factors(number, moved, *factors)
            )
            if effect is None:
                continue
            count, scales = effect
            product = product and scales
            counts += [count] * bool(count)
            if len(counts) == _ENOUGH_EFFECTS:
                break
        if counts:
            terms = inputs[place].size * float(np.mean(counts)) / output_size
            most_terms = max(most_terms, terms)
        if most_terms >= effects.terms and not product:
            # The other operands change neither result.
            break
    return most_terms, product


def _measured_effect(
    compute: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    place: int,
    element: int,
    number: float,
) -> tuple[int, bool] | None:
    """Replace an element of an input by a number, and count the output elements that change.

    Returns:
        The number of output elements that change, and whether the element only scales them; None
        if the node is not defined at the moved element.
    """
    moved = list(inputs)
    moved[place] = inputs[place].copy()
    flat = moved[place].reshape(-1)
    previous = flat[element]
    flat[element] = number
    try:
        results = compute(*moved)
    except Exception:  # noqa: BLE001 - the node may reject these operands
        return None
    count, product = 0, True
    for old, new in zip(outputs, results, strict=True):
        if is_wide(old) and is_wide(new) and old.shape == new.shape:
            changed = ~((old == new) | (np.isnan(old) & np.isnan(new)))
            count += int(np.count_nonzero(changed))
            if product:
                product = _is_scaled(old[changed], new[changed], number / previous)
    return count, product


def _effect_of_factors(
    number: float, moved: float, factors: Array, results: Array
) -> tuple[int, bool]:
    """Return the result of :func:`_measured_effect` for an element of a product.

    Args:
        number: the element.
        moved: the number that replaces it.
        factors: the factors by which the node multiplies it, none of which is zero.
        results: the output elements to which these products are added.
    """
    moved_results = results + (moved - number) * factors
    return factors.size, _is_scaled(results, moved_results, moved / number)


def _is_scaled(old: Array, new: Array, ratio: float) -> bool:
    """Return whether new output elements are old ones, multiplied by a ratio."""
    scaled = old * ratio
    return bool((np.abs(new - scaled) <= _PROPORTION_TOLERANCE * np.abs(scaled)).all())


@lru_cache(1024)
def _generic_elements(size: int) -> list[int]:
    """Return indices at irrational fractions of a size, each followed by its mirror image."""
    steps = (np.arange(1, 1 + _MAX_MOVED_ELEMENTS // 2) * _GOLDEN_RATIO) % 1.0
    near = np.rint((size - 1) * np.stack([steps, 1 - steps], 1)).astype(int)
    return list(dict.fromkeys(near.ravel().tolist()))
