"""Generators of operators for sequences and optionals, and of control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxopt_cli.core.values import DTYPES, Array, Value
from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape

_TYPES = ("float32", "int64", "float64", "int32", "string", "bool", "uint8")
_STYLES = ("plain", "special")


def _tensors(draft: NodeDraft, count: int, *, shape: Shape | None = None) -> list[Array]:
    dtype = draft.dtype(0, _TYPES) if _takes_tensors(draft) else _element_dtype(draft)
    return [
        draft.tensor(dtype, draft.shape(0, 3) if shape is None else shape, styles=_STYLES)
        for _ in range(count)
    ]


def _takes_tensors(draft: NodeDraft) -> bool:
    return bool(draft.schema.inputs) and any(
        text.startswith("tensor(") for text in draft.schema.inputs[0].types
    )


def _element_dtype(draft: NodeDraft) -> np.dtype[Any]:
    return DTYPES[draft.choice(_TYPES)]


def _sequence(draft: NodeDraft, count: int) -> list[Value]:
    return list(_tensors(draft, count))


def _sequence_construct(draft: NodeDraft) -> None:
    for tensor in _tensors(draft, draft.choice((2, 1, 3))):
        draft.add(tensor)


def _sequence_at(draft: NodeDraft) -> None:
    count = draft.size(1, 4)
    draft.add(_sequence(draft, count))
    draft.add(np.array(draft.integer(-count, count - 1), np.int64))


def _sequence_insert(draft: NodeDraft) -> None:
    count = draft.size(1, 3)
    *items, new = _tensors(draft, count + 1)
    draft.add(list(items))
    draft.add(new)
    if draft.maybe(3):
        return
    draft.add(np.array(draft.integer(-count, count), np.int64))


def _sequence_erase(draft: NodeDraft) -> None:
    count = draft.size(2, 4)
    draft.add(_sequence(draft, count))
    if draft.maybe(3):
        return
    draft.add(np.array(draft.integer(-count, count - 1), np.int64))


def _sequence_length(draft: NodeDraft) -> None:
    draft.add(_sequence(draft, draft.size(1, 4)))


def _concat_from_sequence(draft: NodeDraft) -> None:
    shape = list(draft.shape(1, 3))
    count = draft.size(1, 3)
    new_axis = draft.attribute("new_axis", (None, 1, 0))
    rank = len(shape) + bool(new_axis)
    axis = draft.axis(rank)
    dtype = _element_dtype(draft)
    items: list[Value] = []
    for _ in range(count):
        if not new_axis:
            shape[axis] = draft.size(1, 3)
        items.append(draft.tensor(dtype, tuple(shape), styles=_STYLES))
    draft.set("axis", axis)
    draft.add(items)


def _split_to_sequence(draft: NodeDraft) -> None:
    shape = draft.shape(1, 3)
    axis = draft.axis(len(shape))
    draft.add(draft.tensor(draft.dtype(0, _TYPES), shape, styles=_STYLES))
    draft.set("axis", axis if axis or draft.maybe() else None)
    form = draft.choice(("omitted", "size", "sizes"))
    index = draft.dtype(1, ("int64", "int32"))
    if form == "omitted":
        draft.attribute("keepdims", (None, 0, 1))
    elif form == "size":
        draft.add(np.array(draft.integer(1, shape[axis]), index))
    else:
        first = draft.integer(0, shape[axis])
        draft.add(np.array([first, shape[axis] - first], index))


def _sequence_empty(draft: NodeDraft) -> None:
    # The element type of the empty sequence is float, because a case cannot state another type.
    draft.attribute("dtype", (None, TensorProto.FLOAT))


def _optional(draft: NodeDraft) -> None:
    draft.add(_tensors(draft, 1)[0] if draft.maybe() else _sequence(draft, draft.size(1, 3)))


def _optional_element(draft: NodeDraft) -> None:
    _optional(draft)


def _type_of(value: Value) -> onnx.TypeProto:
    if isinstance(value, list):
        return helper.make_sequence_type_proto(_untyped_shape(value[0]))
    assert isinstance(value, np.ndarray)  # noqa: S101 - control flow takes tensors and sequences
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _untyped_shape(value: Value) -> onnx.TypeProto:
    assert isinstance(value, np.ndarray)  # noqa: S101 - all sequences contain tensors
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), None)


def _info(name: str, elem_type: int, shape: Sequence[int | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def _constant(name: str, value: Array) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def _if(draft: NodeDraft) -> None:
    condition = draft.maybe()
    draft.add(np.array(condition) if draft.maybe() else np.array([condition]))
    outputs = draft.choice((1, 2))
    # In early versions, Constant does not allow integers.
    dtypes = (np.float32,) if not draft.since(11) else (np.float32, np.int64)
    dtype = np.dtype(draft.choice(dtypes))
    shape = draft.shape(0, 2)
    for branch in ("then_branch", "else_branch"):
        nodes, infos = [], []
        for place in range(outputs):
            value = draft.tensor(dtype, shape)
            name = f"{branch}_{place}"
            nodes += [_constant(f"{name}_value", value)]
            nodes += [helper.make_node("Add", [f"{name}_value"] * 2, [name])]
            infos.append(_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape))
        draft.set(branch, helper.make_graph(nodes, branch, [], infos))
    draft.outputs = [True] * outputs


def _loop(draft: NodeDraft) -> None:
    draft.require(draft.since(11))
    shape = draft.shape(0, 2)
    trips = draft.integer(1, 5)
    by_condition = draft.choice(("count", "condition", "both"))
    draft.add(np.array(trips, np.int64) if by_condition != "condition" else None)
    draft.add(np.array(True) if by_condition != "count" or draft.maybe() else None)
    state = draft.tensor(np.dtype(np.float32), shape)
    draft.add(state)
    scans = draft.choice((1, 0))
    last = draft.integer(0, 3)
    nodes = [
        helper.make_node("Cast", ["iteration"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["state_in", "number"], ["state_out"]),
    ]
    if by_condition == "count":
        nodes.append(helper.make_node("Identity", ["condition_in"], ["condition_out"]))
    else:
        nodes += [
            _constant("last", np.array(last, np.int64)),
            helper.make_node("Less", ["iteration", "last"], ["condition_out"]),
        ]
    outputs = [
        _info("condition_out", TensorProto.BOOL, []),
        _info("state_out", TensorProto.FLOAT, shape),
    ]
    if scans:
        nodes.append(helper.make_node("Mul", ["state_out", "number"], ["scanned"]))
        outputs.append(_info("scanned", TensorProto.FLOAT, shape))
    inputs = [
        _info("iteration", TensorProto.INT64, []),
        _info("condition_in", TensorProto.BOOL, []),
        _info("state_in", TensorProto.FLOAT, shape),
    ]
    draft.set("body", helper.make_graph(nodes, "body", inputs, outputs))
    draft.outputs = [True] * (1 + scans)


def _scan(draft: NodeDraft) -> None:
    draft.require(draft.since(9))
    shape = draft.shape(1, 2)
    length = draft.size(1, 4)
    axis = draft.integer(0, len(shape)) if draft.maybe() else 0
    out_axis = draft.integer(0, len(shape)) if draft.maybe() else 0
    draft.add(draft.tensor(np.dtype(np.float32), shape))
    scanned = (*shape[:axis], length, *shape[axis:])
    draft.add(draft.tensor(np.dtype(np.float32), scanned))
    nodes = [
        helper.make_node("Mul", ["state_in", "element"], ["product"]),
        helper.make_node("Add", ["product", "element"], ["state_out"]),
        helper.make_node("Sub", ["state_out", "element"], ["result"]),
    ]
    names = ["state_in", "element"]
    inputs = [_info(name, TensorProto.FLOAT, shape) for name in names]
    outputs = [_info(name, TensorProto.FLOAT, shape) for name in ("state_out", "result")]
    draft.set("body", helper.make_graph(nodes, "body", inputs, outputs))
    draft.set("num_scan_inputs", 1)
    draft.attribute("scan_input_directions", (None, [1], [0]))
    draft.attribute("scan_output_directions", (None, [1], [0]))
    draft.set("scan_input_axes", [axis] if axis or draft.maybe() else None)
    draft.set("scan_output_axes", [out_axis] if out_axis or draft.maybe() else None)
    draft.outputs = [True, True]


def _sequence_map(draft: NodeDraft) -> None:
    count = draft.size(1, 3)
    shape = draft.shape(1, 2)
    items: list[Value] = [draft.tensor(np.dtype(np.float32), shape) for _ in range(count)]
    draft.add(items)
    form = draft.choice(("none", "tensor", "sequence"))
    names = ["element"]
    if form != "none":
        names.append("other")
        others: list[Value] = [draft.tensor(np.dtype(np.float32), shape) for _ in range(count)]
        draft.add(others if form == "sequence" else others[0])
    nodes = [helper.make_node("Mul", [names[0], names[-1]], ["result"])]
    inputs = [_info(name, TensorProto.FLOAT, shape) for name in names]
    graph = helper.make_graph(nodes, "body", inputs, [_info("result", TensorProto.FLOAT, shape)])
    draft.set("body", graph)
    draft.outputs = [True]


#: Generators by operator.
SEQUENCE: Mapping[str, Callable[[NodeDraft], None]] = {
    "SequenceConstruct": _sequence_construct,
    "SequenceAt": _sequence_at,
    "SequenceInsert": _sequence_insert,
    "SequenceErase": _sequence_erase,
    "SequenceLength": _sequence_length,
    "SequenceEmpty": _sequence_empty,
    "ConcatFromSequence": _concat_from_sequence,
    "SplitToSequence": _split_to_sequence,
    "OptionalHasElement": _optional_element,
    "OptionalGetElement": _optional_element,
}
#: Generators of operators with subgraphs.
CONTROL_FLOW: Mapping[str, Callable[[NodeDraft], None]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
