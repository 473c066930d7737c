"""Proofs that mutants equal their operator on every valid input.

A proof covers all mutants whose names match its pattern, on operators that meet its condition.
Mutants with a proof are not generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from onnx import defs

_Option = defs.OpSchema.FormalParameterOption
#: Integer attributes that may be negative. All other attributes are counts, sizes or flags.
SIGNED_ATTRIBUTES = frozenset({
    "axes", "axis", "cats_int64s", "classlabels_int64s", "classlabels_ints",
    "default_int64", "end", "ends", "ignore_index", "imputed_value_int64s", "int64_vocabulary", "k",
    "keys_int64s", "left_window_size", "nodes_truenodeids", "paddings", "pads", "pool_int64s",
    "replaced_value_int64", "right_window_size", "scan_input_axes", "scan_output_axes", "shape",
    "start", "starts", "value_int", "value_ints", "values_int64s",
})  # fmt: skip
# Inputs that have only one element, by name or by operator and name.
_SINGLE_VALUES = frozenset({
    "axis", "depth", "dft_length", "frame_length", "frame_step", "BlackmanWindow.size", "Clip.max",
    "Clip.min", "ConvInteger.x_zero_point", "Dropout.ratio", "Dropout.training_mode",
    "HammingWindow.size", "HannWindow.size",
    "If.cond", "Loop.M", "Loop.cond", "QLinearConv.x_scale", "QLinearConv.x_zero_point",
    "QLinearConv.y_scale", "QLinearConv.y_zero_point", "Range.delta", "Range.limit", "Range.start",
    "SequenceAt.position", "SequenceErase.position", "SequenceInsert.position", "TopK.K", "Trilu.k",
    "constant_value", "iou_threshold", "lower_edge_hertz", "max_output_boxes_per_class",
    "num_mel_bins", "sample_rate", "score_threshold", "upper_edge_hertz",
})  # fmt: skip
# Inputs that have at most one axis.
_VECTORS = frozenset({
    "axes", "batch_indices", "block_shape", "ends", "image_shape", "input_mean", "input_var",
    "nonpad_kv_seqlen", "pads", "repeats", "roi", "scales", "sequence_lens", "shape", "sizes",
    "split", "starts", "steps", "write_indices", "AffineGrid.size", "BatchNormalization.B",
    "BatchNormalization.mean", "BatchNormalization.scale", "BatchNormalization.var",
    "CausalConvWithState.bias", "Compress.condition", "ConstantOfShape.input", "Conv.B",
    "ConvInteger.w_zero_point", "ConvTranspose.B", "DeformConv.B", "GroupNormalization.bias",
    "GroupNormalization.scale", "InstanceNormalization.B", "InstanceNormalization.scale",
    "MaxUnpool.output_shape", "NegativeLogLikelihoodLoss.weight", "OneHot.values", "QLinearConv.B",
    "QLinearConv.w_scale", "QLinearConv.w_zero_point", "STFT.window",
    "SoftmaxCrossEntropyLoss.weights",
})  # fmt: skip
# Inputs that have at least two axes.
_MATRICES = frozenset({
    "attn_mask", "boxes", "cos_cache", "initial_c", "initial_h", "offset", "past_cache", "past_key",
    "past_state", "past_value", "rois", "scores", "sin_cache", "theta", "Attention.K",
    "Attention.Q", "Attention.V", "BatchNormalization.X", "CausalConvWithState.input",
    "CausalConvWithState.weight", "Col2Im.input", "Conv.W", "Conv.X", "ConvInteger.w",
    "ConvInteger.x", "ConvTranspose.W", "ConvTranspose.X", "DeformConv.W", "DeformConv.X",
    "DeformConv.mask", "GRU.B", "GRU.R", "GRU.W", "GRU.X", "GridSample.X", "GridSample.grid",
    "GroupNormalization.X", "InstanceNormalization.input", "LSTM.B", "LSTM.P", "LSTM.R", "LSTM.W",
    "LSTM.X", "LinearAttention.key", "LinearAttention.query", "LinearAttention.value",
    "MaxUnpool.I", "MaxUnpool.X", "QLinearConv.w", "QLinearConv.x", "RNN.B", "RNN.R", "RNN.W",
    "RNN.X", "RoiAlign.X", "RotaryEmbedding.X", "RotaryEmbedding.position_ids", "STFT.signal",
    "TensorScatter.update",
})  # fmt: skip
# Inputs that contain positions and have several axes.
_MATRIX_PARAMETERS = frozenset({"MaxUnpool.I", "RotaryEmbedding.position_ids"})
# Inputs that must not be negative.
_COUNTS = frozenset({
    "batch_indices", "block_shape", "dft_length", "frame_length", "frame_step", "image_shape",
    "nonpad_kv_seqlen", "num_mel_bins", "position_ids", "repeats", "sample_rate", "sequence_lens",
    "sizes", "split", "AffineGrid.size", "BlackmanWindow.size", "CenterCropPad.shape",
    "ConstantOfShape.input", "Expand.shape", "HammingWindow.size", "HannWindow.size",
    "MaxUnpool.I", "MaxUnpool.output_shape", "TopK.K", "TopK.k",
})  # fmt: skip
#: Inputs that must be finite and positive, by name or by operator and name.
POSITIVE_INPUTS = frozenset({"a_scale", "b_scale", "scales", "w_scale", "x_scale", "y_scale"})
#: Inputs that must be finite and not negative, by name or by operator and name.
NONNEGATIVE_INPUTS = frozenset({"Normalizer.X", "input_var", "iou_threshold", "var"})
# Inputs whose values have no effect on the result. Only their type or shape has an effect.
_UNREAD = frozenset({
    "CastLike.target_type", "EyeLike.input", "OptionalHasElement.input", "Shape.data", "Size.data",
})  # fmt: skip
# Operators whose outputs are -1, 0 and 1.
_SMALL_OUTPUTS = frozenset({"Binarizer", "EyeLike", "Hardmax", "OneHotEncoder", "Sign"})
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
# Operators that do not depend on the order of their inputs.
_COMMUTATIVE = frozenset({
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul",
    "Or", "Sum", "Xor",
})  # fmt: skip
# Beginnings of the names of operators for which the order of the axes has no effect.
_SETS_OF_AXES = ("MeanVarianceNormalization", "Reduce", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof of equivalence.

    Attributes:
        reason: the proof, in a sentence.
        pattern: matches the names of the mutants.
        condition: given a schema and the match of a name, returns whether the proof holds.
    """

    reason: str
    pattern: re.Pattern[str]
    condition: Callable[[defs.OpSchema, re.Match[str]], bool]


def _has_one_input(schema: defs.OpSchema, _: re.Match[str]) -> bool:
    return len(schema.inputs) == 1 and schema.inputs[0].option != _Option.Variadic


def _is_unsigned_attribute(schema: defs.OpSchema, match: re.Match[str]) -> bool:
    name = match[1] or match[2]
    is_window_pads = name == "pads" and schema.name != "Pad"
    return name in schema.attributes and (name not in SIGNED_ATTRIBUTES or is_window_pads)


def has_single_value(op_type: str, name: str) -> bool:
    """Return whether an input of an operator has only one element."""
    return is_listed(_SINGLE_VALUES, op_type, name)


def is_listed(names: AbstractSet[str], op_type: str, name: str) -> bool:
    """Return whether names contain an input, either by name or by operator and name."""
    return name in names or f"{op_type}.{name}" in names


def _input_among(names: AbstractSet[str]) -> Callable[[defs.OpSchema, re.Match[str]], bool]:
    """Return a condition: the first group of the match must be an input that ``names`` lists."""

    def condition(schema: defs.OpSchema, match: re.Match[str]) -> bool:
        is_input = any(formal.name == match[1] for formal in schema.inputs)
        return is_input and is_listed(names, schema.name, match[1])

    return condition


def _named(*op_types: str) -> Callable[[defs.OpSchema, re.Match[str]], bool]:
    """Return a condition: the name of the operator must be one of ``op_types``."""
    return lambda schema, _: schema.name in op_types


def _is_among_vectors(schema: defs.OpSchema, match: re.Match[str]) -> bool:
    if any(formal.option == _Option.Variadic for formal in schema.inputs):
        return False
    other_names = [formal.name for formal in schema.inputs if formal.name != match[1]]
    return len(other_names) < len(schema.inputs) and all(
        is_listed(_VECTORS | _SINGLE_VALUES, schema.name, name) for name in other_names
    )


def _reads_a_set(schema: defs.OpSchema, _: re.Match[str]) -> bool:
    return schema.name.startswith(_SETS_OF_AXES)


def _is_matrix_parameter(schema: defs.OpSchema, match: re.Match[str]) -> bool:
    # Except for alignment, only mutants of parameters are proven equivalent. Mutants of data inputs
    # have the same names, but may change arrays of any rank.
    is_alignment = match[2].startswith("aligned")
    is_parameter = f"{schema.name}.{match[1]}" in _MATRIX_PARAMETERS
    return _input_among(_MATRICES)(schema, match) and (is_alignment or is_parameter)


def _is_commutative(schema: defs.OpSchema, _: re.Match[str]) -> bool:
    # In early versions, which have the attribute ``broadcast``, only the second input is broadcast.
    return schema.name in _COMMUTATIVE and "broadcast" not in schema.attributes


PROOFS: Sequence[Proof] = (
    Proof(
        "The mutant aligns a vector with another input, but the operator has only one input.",
        re.compile(r"\w+ aligned to the first axis"),
        _has_one_input,
    ),
    Proof(
        "The mutant aligns a vector with an input of several axes, but no other input has several "
        "axes.",
        re.compile(r"(\w+) aligned to the first axis"),
        _is_among_vectors,
    ),
    Proof(
        "The mutant changes only a vector or a scalar, but the input has at least two axes.",
        re.compile(
            r"(\w+) (aligned to the first axis|reversed|sorted|rotated by one|first value for all|"
            r"last value for all|halves (exchanged|interleaved)|first half for both|"
            r"last value omitted|only the last value|one too (large|small)|with the opposite sign|"
            r"without its sign|doubled)"
        ),
        _is_matrix_parameter,
    ),
    Proof(
        "The input has only one element, so it has no order, no batches and no other elements.",
        re.compile(
            r"(\w+) (first (batch|element|value) for all|last value for all|only the last value|"
            r"reversed( along the (first|last) axis)?|last axes exchanged|sorted|rotated by one|"
            r"halves (exchanged|interleaved)|first half for both|aligned to the first axis)"
        ),
        _input_among(_SINGLE_VALUES),
    ),
    Proof(
        "The specification allows no negative value of this attribute.",
        re.compile(r"(\w+) without its sign|negative (\w+) off by one"),
        _is_unsigned_attribute,
    ),
    Proof(
        "The specification allows no negative value of this input.",
        re.compile(r"(\w+) (without (its )?sign|without negative values|of the other sign)"),
        _input_among(_COUNTS),
    ),
    Proof(
        "The input must be finite, and must not be negative.",
        re.compile(r"(\w+) without (sign|negative values|NaN|infinity)"),
        _input_among(POSITIVE_INPUTS | NONNEGATIVE_INPUTS),
    ),
    Proof(
        "The input must not be 0.",
        re.compile(r"(\w+) zero read as 1"),
        _input_among(POSITIVE_INPUTS),
    ),
    Proof(
        "The input is a vector, so it has neither batches nor two axes.",
        re.compile(r"(\w+) (first batch for all|last axes exchanged)"),
        _input_among(_VECTORS),
    ),
    Proof(
        "Every type can represent an axis, because the magnitude of an axis is at most the rank.",
        re.compile(r"(\w+) in (float32|32 bits|8 bits)"),
        _input_among(frozenset({"axes", "axis"})),
    ),
    Proof(
        "The result does not depend on the values of the input.",
        re.compile(
            r"(\w+) (rounded to (16 bits|float32|integers)|in (float32|32 bits|8 bits)|truncated|"
            r"of the other sign|without (sign|negative values|NaN|infinity)|clamped to [16]|"
            r"with the opposite sign|zero read as 1|read as 0|negated|"
            r"first (batch|element) for all|reversed along the (first|last) axis|"
            r"last axes exchanged|aligned to the first axis)"
        ),
        _input_among(_UNREAD),
    ),
    Proof(
        "Every output is -1, 0 or 1, and every type can represent these numbers.",
        re.compile(r"(integer )?outputs in (16 bits|float32|8 bits)"),
        _named(*_SMALL_OUTPUTS),
    ),
    Proof(
        "The result does not depend on the sign of the input.",
        re.compile(r"\w+ (without sign|with the opposite sign)"),
        _named("Abs", "Cos", "Cosh", "IsNaN", "NonZero"),
    ),
    Proof(
        "NaN remains NaN, and no other element becomes NaN.",
        re.compile(
            r"X (rounded to (16 bits|float32|integers)|truncated|"
            r"without (negative values|infinity)|clamped to [16]|zero read as 1)"
        ),
        _named("IsNaN"),
    ),
    Proof(
        "The function is undefined for the old and the new value: both results are NaN.",
        re.compile(r"\w+ (without infinity|clamped to 6)"),
        _named("Acos", "Asin", "Atanh"),
    ),
    Proof(
        "The rounded results for the largest number and for infinity are the same.",
        re.compile(r"\w+ without infinity"),
        _named("Atan", "Cosh", "Erf", "Exp", "Sigmoid", "Sign", "Sinh", "Tanh"),
    ),
    Proof(
        "The attribute may affect the speed, but not the result.",
        re.compile(r"(nodes_hitrates|nodes_hitrates_as_tensor|chunk_size) .*"),
        lambda schema, match: match[1] in schema.attributes,
    ),
    Proof(
        "The shapes of the weights determine the number of hidden units.",
        re.compile(r"hidden_size .*"),
        _named(*_RECURRENT),
    ),
    Proof(
        "The seed affects only random outputs, which are not compared.",
        re.compile(r"seed .*"),
        _named("Dropout"),
    ),
    Proof(
        "The stopwords are a set, so their order has no effect.",
        re.compile(r"stopwords (reversed|sorted|rotated by one|halves (exchanged|interleaved))"),
        _named("StringNormalizer"),
    ),
    Proof(
        "The axes are a set, so their order has no effect.",
        re.compile(
            r"axes (reversed|sorted|rotated by one|halves exchanged|halves interleaved|"
            r"reversed along the (first|last) axis)"
        ),
        _reads_a_set,
    ),
    Proof(
        "The operator is commutative.",
        re.compile(r"A and B exchanged|data_0 (exchanged|reversed)"),
        _is_commutative,
    ),
)


def proof_of(schema: defs.OpSchema, name: str) -> Proof | None:
    """Return a proof that a mutant equals its operator; None if no proof is known."""
    for proof in PROOFS:
        match = proof.pattern.fullmatch(name)
        if match is not None and proof.condition(schema, match):
            return proof
    return None
