"""Generators of attention and of rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape

_TYPES = ("float32", "float64", "float16")
_STYLES = ("plain", "halves", "wide", "plain", "halves", "wide", "nan")
_MASK_STYLES = ("plain", "halves", "wide", "masked")
#: The position of the input nonpad_kv_seqlen of Attention.
_PLACE_OF_LENGTHS = 6


def _attention(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    batch, key_heads = draft.size(1, 2), draft.size(1, 2)
    query_heads = key_heads * draft.choice((1, 2))
    rows, columns = draft.size(1, 3), draft.size(1, 4)
    width, value_width = draft.size(1, 4), draft.size(1, 3)
    is_flat = draft.maybe()

    def packed(heads: int, length: int, size: int) -> Shape:
        return (batch, length, heads * size) if is_flat else (batch, heads, length, size)

    if is_flat:
        draft.set("q_num_heads", query_heads)
        draft.set("kv_num_heads", key_heads)
    scales = (0.25, 1.0, 2.0)
    # In the function body of the specification, the default scale (an inverse square root) is
    # computed in float32, which is too inexact for double inputs.
    draft.float_attribute("scale", scales if dtype == np.float64 else (None, *scales))
    draft.float_attribute("softcap", (None, 2.0, 0.5))
    draft.attribute("is_causal", (None, 1, 0))
    if draft.has("left_window_size"):
        draft.attribute("left_window_size", (None, None, 0, 1, 2, -1))
        draft.attribute("right_window_size", (None, None, 0, 1, 2, -1))
    past = draft.size(1, 2) if draft.maybe(3) else 0
    total = past + columns
    # The input nonpad_kv_seqlen states the number of valid keys of each batch. If nonpad_kv_seqlen
    # is present, the keys include the earlier keys, so the node has no past.
    has_lengths = len(draft.schema.inputs) > _PLACE_OF_LENGTHS and not past and draft.maybe(3)
    draft.add(draft.tensor(dtype, packed(query_heads, rows, width), styles=_STYLES))
    draft.add(draft.tensor(dtype, packed(key_heads, columns, width), styles=_STYLES))
    value_type = draft.dtype(2, _TYPES) if draft.maybe(4) else dtype
    draft.add(draft.tensor(value_type, packed(key_heads, columns, value_width), styles=_STYLES))
    _add_mask(draft, dtype, (batch, query_heads, rows, total))
    if past:
        draft.add(draft.tensor(dtype, (batch, key_heads, past, width), styles=_STYLES))
        draft.add(draft.tensor(value_type, (batch, key_heads, past, value_width), styles=_STYLES))
        draft.outputs = [True, True, True]
    else:
        draft.outputs = [True]
    if has_lengths:
        draft.inputs += [None] * (_PLACE_OF_LENGTHS - len(draft.inputs))
        draft.add(np.array([draft.integer(1, total) for _ in range(batch)], np.int64))
    # A softmax that is computed in float32 loses digits of doubles.
    precisions = (None, 11) if dtype == np.float64 else (None, None, 1, 11)
    draft.attribute("softmax_precision", precisions)
    mode = draft.choice((None, None, 0, 1, 2, 3))
    if mode is not None or draft.maybe():
        draft.outputs = [*draft.outputs, *[False] * (3 - len(draft.outputs)), True]
        draft.set("qk_matmul_output_mode", mode)
        # The text and the function body of the specification disagree on the order of softcap and
        # the other steps.
        draft.attributes.pop("softcap", None)
    if past and rows != columns:
        # If there is a past, the specification describes the causal mask only for equal numbers of
        # new keys and queries.
        draft.attributes.pop("is_causal", None)


def _add_mask(draft: NodeDraft, dtype: np.dtype[Any], shape: Shape) -> None:
    """Draw a mask that can be broadcast to a shape, or omit the mask."""
    form = draft.choice(("none", "bool", "float"))
    batch, heads, rows, total = shape
    # A mask may be shorter than the keys. In this case, the remaining keys are masked.
    length = draft.integer(1, total) if draft.maybe(4) else total
    shapes: tuple[Shape, ...] = (
        (rows, length),
        (batch, 1, rows, length),
        (batch, heads, rows, length),
        (1, heads, rows, length),
        (1, 1, rows, length),
    )
    mask_shape = draft.choice(shapes)
    if form == "none":
        draft.omit()
    elif form == "bool":
        mask = draft.tensor(np.dtype(bool), mask_shape)
        # The first key is usually not masked, so that a row attends to at least one key, even with
        # a causal mask.
        mask[..., 0] |= not draft.maybe(4)
        draft.add(mask)
    else:
        draft.add(draft.tensor(dtype, mask_shape, styles=_MASK_STYLES))


def _rotary_embedding(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    batch, length, heads = draft.size(1, 2), draft.size(1, 3), draft.size(1, 2)
    half = draft.size(1, 2)
    rotated = 2 * half
    width = rotated + 2 * draft.choice((0, 1))
    if width > rotated:
        draft.set("rotary_embedding_dim", rotated)
    draft.attribute("interleaved", (None, 1, 0))
    if draft.maybe():
        draft.set("num_heads", heads)
        shape: Shape = (batch, length, heads * width)
    else:
        shape = (batch, heads, length, width)
    draft.add(draft.tensor(dtype, shape, styles=_STYLES))
    by_position = draft.maybe()
    rows = draft.size(2, 5)
    cache: Shape = (rows, half) if by_position else (batch, length, half)
    angles = draft.tensor(np.dtype(np.float64), cache, low=-3.0, high=3.0)
    # The specification does not limit the elements of the caches to cosines and sines.
    factor = draft.choice((1.0, 1.0, 8.0))
    draft.add((np.cos(angles) * factor).astype(dtype))
    draft.add((np.sin(angles) * factor).astype(dtype))
    if by_position:
        draft.add(draft.state().randint(0, rows, (batch, length)).astype(np.int64))


def _linear_attention(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    rule = draft.choice((None, "linear", "gated", "delta", "gated_delta"))
    draft.set("update_rule", rule)
    rule = rule or "gated_delta"
    key_heads = draft.size(1, 2)
    query_heads = key_heads * draft.choice((1, 2))
    draft.set("q_num_heads", query_heads)
    draft.set("kv_num_heads", key_heads)
    draft.float_attribute("scale", (None, 0.5, 2.0))
    draft.attribute("chunk_size", (None, 2))
    batch, length = draft.size(1, 2), draft.size(1, 3)
    width, value_width = draft.size(1, 3), draft.size(1, 3)
    for heads, size in ((query_heads, width), (key_heads, width), (key_heads, value_width)):
        draft.add(draft.tensor(dtype, (batch, length, heads * size), styles=_STYLES))
    state_type = draft.dtype(3, _TYPES)
    state: Shape = (batch, key_heads, width, value_width)
    draft.optional(lambda: draft.tensor(state_type, state, styles=_STYLES))
    if "gated" in rule:
        per_head = draft.choice((key_heads, key_heads * width))
        draft.add(draft.tensor(dtype, (batch, length, per_head), low=-2.0, high=0.0))
    else:
        draft.omit()
    if "delta" in rule:
        per_token = draft.choice((key_heads, 1))
        draft.add(draft.tensor(dtype, (batch, length, per_token), low=0.0, high=1.0))
    draft.outputs = [True, True]


#: Generators by operator.
ATTENTION: Mapping[str, Callable[[NodeDraft], None]] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary_embedding,
    "LinearAttention": _linear_attention,
}
