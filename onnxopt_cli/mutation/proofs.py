"""Proofs that mutants of a node equal their operator on every valid input.

A proof holds for all mutants whose name matches its pattern, on operators for which its condition
holds. Mutants with a proof are not generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx import defs

_Option = defs.OpSchema.FormalParameterOption
#: Integer attributes that may be negative; counts, sizes and flags may not.
SIGNED_ATTRIBUTES = frozenset({
    "axes", "axis", "batch_axis", "cats_int64s", "classlabels_int64s", "classlabels_ints",
    "default_int64", "end", "ends", "ignore_index", "imputed_value_int64s", "int64_vocabulary", "k",
    "keys_int64s", "left_window_size", "nodes_truenodeids", "paddings", "pads", "pool_int64s",
    "replaced_value_int64", "right_window_size", "scan_input_axes", "scan_output_axes", "shape",
    "start", "starts", "time_axis", "value_int", "value_ints", "values_int64s",
})  # fmt: skip
# Inputs that have a single value, by name or by operator and name.
_SINGLE_VALUES = frozenset({
    "axis", "depth", "dft_length", "frame_length", "frame_step", "Clip.max", "Clip.min",
    "Dropout.ratio", "Dropout.training_mode", "Range.delta", "Range.limit", "Range.start", "TopK.K",
    "Trilu.k", "iou_threshold", "max_output_boxes_per_class", "score_threshold",
})  # fmt: skip
# Operators that do not depend on the order of their two inputs.
_COMMUTATIVE = frozenset({
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Mul", "Or", "Xor",
})  # fmt: skip
# Operators for which the order of their axes has no effect.
_SETS_OF_AXES = ("MeanVarianceNormalization", "Reduce", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof of equivalence.

    Attributes:
        reason: the proof, in a sentence.
        pattern: matches the names of the mutants.
        condition: whether the proof holds for an operator and a name that matches.
    """

    reason: str
    pattern: re.Pattern[str]
    condition: Callable[[defs.OpSchema, re.Match[str]], bool]


def _has_one_input(schema: defs.OpSchema, _: re.Match[str]) -> bool:
    return len(schema.inputs) == 1 and schema.inputs[0].option != _Option.Variadic


def _is_unsigned_attribute(schema: defs.OpSchema, match: re.Match[str]) -> bool:
    return match[1] in schema.attributes and match[1] not in SIGNED_ATTRIBUTES


def has_single_value(op_type: str, name: str) -> bool:
    """Return whether an input of an operator has a single value."""
    return name in _SINGLE_VALUES or f"{op_type}.{name}" in _SINGLE_VALUES


def _is_single_value(schema: defs.OpSchema, match: re.Match[str]) -> bool:
    is_input = any(formal.name == match[1] for formal in schema.inputs)
    return is_input and has_single_value(schema.name, match[1])


def _has_axes_input(schema: defs.OpSchema, _: re.Match[str]) -> bool:
    return any(formal.name == "axes" for formal in schema.inputs)


def _reads_a_set(schema: defs.OpSchema, _: re.Match[str]) -> bool:
    return schema.name.startswith(_SETS_OF_AXES)


def _is_commutative(schema: defs.OpSchema, _: re.Match[str]) -> bool:
    # In early versions, the attribute broadcast enables the broadcasting of the second input, but
    # not of the first.
    return schema.name in _COMMUTATIVE and "broadcast" not in schema.attributes


PROOFS: Sequence[Proof] = (
    Proof(
        "The mutant aligns a vector with a second input, but the operator has only one input.",
        re.compile(r"\w+ aligned to the first axis"),
        _has_one_input,
    ),
    Proof(
        "The input has a single value: it has neither an order nor a batch nor another element.",
        re.compile(
            r"(\w+) (first (batch|element|value) for all|last value for all|only the last value|"
            r"reversed( along the (first|last) axis)?|last axes exchanged|sorted|rotated by one|"
            r"halves (exchanged|interleaved)|first half for both)"
        ),
        _is_single_value,
    ),
    Proof(
        "The specification allows no negative value of this attribute.",
        re.compile(r"(\w+) without its sign"),
        _is_unsigned_attribute,
    ),
    Proof(
        "The input axes is a vector: it has no batches, and no two axes.",
        re.compile(r"axes (first batch for all|last axes exchanged)"),
        _has_axes_input,
    ),
    Proof(
        "Axes lie between minus the rank and the rank, which every type of integers holds.",
        re.compile(r"axes in (float32|32 bits|8 bits)"),
        _has_axes_input,
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
        re.compile(r"A and B exchanged"),
        _is_commutative,
    ),
)


def proof_of(schema: defs.OpSchema, name: str) -> Proof | None:
    """Return the proof that a mutant equals its operator; None without a proof."""
    for proof in PROOFS:
        match = proof.pattern.fullmatch(name)
        if match is not None and proof.condition(schema, match):
            return proof
    return None
