"""A trajectory as one model, whose ``Loop`` runs all steps and stacks what each returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.cases.onnx.node_model import tensor_info, whole_model
from onnxopt_cli.core.trajectory import Trajectory
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.interpret.lower.lower_model import OLDEST_OPSET, UniqueNames
from onnxopt_cli.interpret.lower.symbol import (
    Recorder,
    Symbol,
    as_dtype,
)

_INT64, _BOOL = DTYPES["int64"], DTYPES["bool"]
_ITERATION, _GOING, _GOES_ON = "iteration", "going", "goes_on"


def loop_model(trajectory: Trajectory) -> onnx.ModelProto:
    """Build a model of primitive operators around the node, which is in the body of the loop.

    Its inputs are those of :func:`loop_inputs`; its outputs have the node's names, and a leading
    dimension for the recorded steps.
    """
    step = trajectory.model
    node = step.graph.node[0]
    count = trajectory.count
    chosen = trajectory.recorded != tuple(range(1, count + 1))
    finals = [f"{name}_last" for name in trajectory.feedback.values()]
    scalars = [value.name for value in step.graph.output if not value.type.tensor_type.shape.dim]
    stacked = [f"{name}_all" if chosen or name in scalars else name for name in node.output]
    constants: dict[str, Any] = {"count": np.int64(count), "always": np.bool_(True)}
    if chosen:
        constants["recorded"] = np.array(trajectory.recorded, np.int64) - 1
    if scalars:
        constants["vector"] = np.array([len(trajectory.recorded)], np.int64)
    loop = helper.make_node(
        "Loop",
        ["count", "always", *trajectory.feedback.values()],
        [*finals, *stacked],
        body=_body(trajectory),
    )
    nodes = [loop]
    for every, name in zip(stacked, node.output, strict=True):
        rows = f"{name}_rows" if name in scalars else name
        if chosen:
            nodes.append(helper.make_node("Gather", [every, "recorded"], [rows], axis=0))
        if name in scalars:
            # onnx's reference evaluator stacks scalars to a column.
            nodes.append(helper.make_node("Reshape", [rows if chosen else every, "vector"], [name]))
    graph = helper.make_graph(
        nodes,
        step.graph.name,
        [tensor_info(name, it.dtype, it.shape) for name, it in loop_inputs(trajectory).items()],
        [_with_shape(value, value.name, [len(trajectory.recorded)]) for value in step.graph.output],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    own = ((it.domain, it.version) for it in step.opset_import)
    return whole_model(graph, [("", OLDEST_OPSET), *own])


def loop_inputs(trajectory: Trajectory) -> dict[str, Array]:
    """Return what the model is fed: first values, and those of all steps stacked."""
    known = {**trajectory.start, **trajectory.series}
    return {name: known[name] for name in trajectory.names if name in known}


def _body(trajectory: Trajectory) -> onnx.GraphProto:
    """Build the graph of one step; its names are unlike those around it."""
    step = trajectory.model
    node = step.graph.node[0]
    fresh = UniqueNames(step)
    fed_back = trajectory.feedback.values()
    anew = {*trajectory.counted, *trajectory.series, *trajectory.derived, *fed_back}
    changing = [name for name in node.input if name in anew]
    inside = {name: fresh(f"{name}_now") for name in (*changing, *node.output)}
    nodes = list(_inputs_of_step(trajectory, inside, fresh))
    own = onnx.NodeProto()
    own.CopyFrom(node)
    own.input[:] = [inside.get(name, name) for name in node.input]
    own.output[:] = [inside[name] for name in node.output]
    nodes += [own, helper.make_node("Identity", [_GOING], [_GOES_ON])]
    declared = {value.name: value for value in (*step.graph.input, *step.graph.output)}
    carried = [
        helper.make_node("Identity", [inside[name]], [fresh(f"{taken}_next")])
        for name, taken in trajectory.feedback.items()
    ]
    state = [tensor_info(_ITERATION, _INT64, ()), tensor_info(_GOING, _BOOL, ())]
    return helper.make_graph(
        [*nodes, *carried],
        "step",
        [*state, *(_with_shape(declared[name], inside[name]) for name in fed_back)],
        [
            tensor_info(_GOES_ON, _BOOL, ()),
            *(
                _with_shape(declared[taken], it.output[0])
                for it, taken in zip(carried, fed_back, strict=True)
            ),
            *(_with_shape(declared[name], inside[name]) for name in node.output),
        ],
        value_info=[
            _with_shape(declared[name], inside[name]) for name in changing if name not in fed_back
        ],
    )


def _inputs_of_step(
    trajectory: Trajectory, inside: dict[str, str], fresh: UniqueNames
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that make a step's inputs of the iteration and of what is fed back."""
    for name in trajectory.series:
        yield helper.make_node("Gather", [name, _ITERATION], [inside[name]], axis=0)
    for name in sorted(trajectory.counted):
        yield helper.make_node("Add", [name, _ITERATION], [inside[name]])
    for name, derived in trajectory.derived.items():
        recorder = Recorder(fresh)
        like = trajectory.start[derived.of]
        operand = Symbol(recorder, inside[derived.of], like.dtype, like.shape)
        result = as_dtype(recorder, derived.formula(operand), derived.dtype)
        yield from recorder.finish({inside[name]: result.name})


def _with_shape(
    value: onnx.ValueInfoProto, name: str, leading: Sequence[int] = ()
) -> onnx.ValueInfoProto:
    """Return a declared tensor under another name, with dimensions before its own."""
    tensor = value.type.tensor_type
    shape = [*leading, *(size.dim_value for size in tensor.shape.dim)]
    return helper.make_tensor_value_info(name, tensor.elem_type, shape)
