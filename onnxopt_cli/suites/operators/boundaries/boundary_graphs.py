"""Scans, maps and sequences of several values, along several axes and of several types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.values import Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    fixed_node,
)

# Vectors that narrower types cannot represent.
_VECTORS: Mapping[str, Array] = {
    "int64": np.array([2**40 + 1, 300], np.int64),
    "uint8": np.array([200, 3], np.uint8),
    "float64": np.array([1 / 3, 1e300]),
    "float32": np.array([np.nan, np.inf], np.float32),
    "bool": np.array([True, False]),
}


def boundary_graphs() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _scans()
    yield from _maps()
    yield from _loops()
    yield from _branches()


def _declared(name: str, value: Array) -> ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, dtype, value.shape)


def _copied(names: Sequence[str], values: Sequence[Array]) -> GraphProto:
    """Return a graph that returns its inputs."""
    nodes: list[NodeProto] = [
        helper.make_node("Identity", [name], [f"{name}_out"]) for name in names
    ]
    inputs = [_declared(name, value) for name, value in zip(names, values, strict=True)]
    outputs = [_declared(f"{name}_out", value) for name, value in zip(names, values, strict=True)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def _scans() -> Iterator[tuple[str, str, Generator]]:
    cube = distinct(3, 3, 3)
    cubes = [cube * factor for factor in (1, -2, 3, 5)]
    names = ["a", "b", "c", "d"]
    for stem, count, attributes in (
        ("cube_last_axis", 2, {"scan_input_axes": [-1, 0], "scan_output_axes": [-1, -2]}),
        ("cube_inner_axis", 2, {"scan_input_axes": [2, -2], "scan_output_axes": [0, 1]}),
        (
            "four_cubes",
            4,
            {
                "scan_input_axes": [0, 1, 2, 1],
                "scan_output_axes": [0, 1, 2, 0],
                "scan_input_directions": [0, 1, 0, 0],
                "scan_output_directions": [0, 0, 1, 0],
            },
        ),
    ):
        arguments: dict[str, Any] = dict(attributes)
        body = _copied(names[:count], [cube[0]] * count)
        scan = fixed_node(
            *cubes[:count], body=body, num_scan_inputs=count, outputs=count, **arguments
        )
        yield "Scan", stem, scan
    for dtype, state in _VECTORS.items():
        body = _copied(["state", "element"], [state, state])
        elements = np.stack([state, state[::-1]])
        scan = fixed_node(state, elements, body=body, num_scan_inputs=1, outputs=2)
        yield "Scan", f"copied_{dtype}", scan
    states = [np.array([k, -2 * k], np.float32) for k in (1, 2, 3)]
    body = _copied(["a", "b", "c", "element", "other"], [states[0]] * 5)
    scan = fixed_node(
        *states, distinct(4, 2), distinct(4, 2) - 9, body=body, num_scan_inputs=2, outputs=5
    )
    yield "Scan", "three_states_two_elements", scan
    # No element is scanned, so the scanned output has an axis of length 0.
    empty = np.zeros((2, 3, 0), np.float32)
    body = _copied(["state", "element"], [states[0], distinct(2, 3)])
    for axis in (0, -1, -2):
        stem = f"no_elements_axis_{axis}".replace("-", "minus_")
        axes: dict[str, Any] = {"scan_input_axes": [-1], "scan_output_axes": [axis]}
        scan = fixed_node(states[0], empty, body=body, num_scan_inputs=1, outputs=2, **axes)
        yield "Scan", stem, scan


def _maps() -> Iterator[tuple[str, str, Generator]]:
    items: list[Any] = [np.array([k, -k], np.float32) for k in (1, 2, 3)]
    for dtype, shared in _VECTORS.items():
        body = _copied(["item", "shared"], [items[0], shared])
        yield "SequenceMap", f"shared_{dtype}", fixed_node(items, shared, body=body, outputs=2)
    further = [items[0] * 5, items[0] * 7, items[0] * 9]
    body = _copied(["item", "a", "b", "c"], [items[0]] * 4)
    yield "SequenceMap", "three_shared", fixed_node(items, *further, body=body, outputs=4)
    double = _VECTORS["float64"]
    doubles: list[Any] = [double, -double]
    yield "SequenceInsert", "float64", fixed_node(doubles, double / 7, np.array(1))


def _loops() -> Iterator[tuple[str, str, Generator]]:
    """Yield loops that copy states of several types, and loops without trips."""
    number, flag = np.array(0), np.array(True)
    for dtype, state in _VECTORS.items():
        copied = _loop(np.array(2), state, state[:1].copy())
        yield "Loop", f"copied_{dtype}", copied
    cubes = [distinct(3), distinct(3, 3), distinct(1), distinct(2)]
    yield "Loop", "four_states", _loop(np.array(8), *cubes)
    inputs = [
        *(_declared("iteration", number), _declared("go", flag)),
        _declared("state", cubes[0]),
    ]
    outputs = [
        *(_declared("goes_on", flag), _declared("kept", cubes[0])),
        _declared("scanned", number),
    ]
    nodes = [
        helper.make_node("Identity", [name], [result])
        for name, result in (("go", "goes_on"), ("state", "kept"), ("iteration", "scanned"))
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    for stem, trips in (("no", 0), ("negative", -3), ("eight", 8)):
        scanned = fixed_node(np.array(trips), flag, cubes[0], body=body, outputs=2)
        yield "Loop", f"{stem}_trips_scanned_scalar", scanned
    yield "Loop", "zero_state", _loop(np.array(2), np.zeros(2, np.float32))


def _loop(trips: Array, *states: Array) -> Generator:
    """Return a loop that returns its states."""
    names = [f"state{place}" for place in range(len(states))]
    body = _copied(["go", *names], [np.array(True), *states])
    body.input.insert(0, _declared("iteration", np.array(0)))
    return fixed_node(trips, np.array(True), *states, body=body, outputs=len(states))


def _branches() -> Iterator[tuple[str, str, Generator]]:
    """Yield branches that return doubles which float32 rounds."""
    value = _VECTORS["float64"]
    graphs = [
        helper.make_graph(
            [helper.make_node("Constant", [], ["value"], value=tensor_of(chosen))],
            "branch",
            [],
            [_declared("value", chosen)],
        )
        for chosen in (value, -value)
    ]
    branches = dict(zip(("then_branch", "else_branch"), graphs, strict=True))
    yield "If", "constant_float64", fixed_node(np.array(True), **branches)
