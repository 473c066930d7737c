"""Corrections of SequenceMap, Loop and Scan, including loops whose bodies never run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.oracle.patching import replaces
from onnxopt_cli.oracle.stacked import Stacked

# From this version on, Scan has neither a batch axis nor a length for each batch.
_UNBATCHED_VERSION = 9


@replaces("op_loop.Loop._run")
def _looped(
    loop: Any,
    _original: Any,
    trips: Any,
    condition: Any,
    *states: Any,
    context: Any = None,
    body: Any = None,  # noqa: ARG001 - the node itself evaluates the body
    **kwargs: Any,
) -> Any:
    """Run the body while the condition holds. An omitted condition is initially true."""
    inputs, carried = loop.body.input_names, list(states)
    scanned: list[list[Any]] = [[] for _ in range(loop.K)]
    iterations: Iterator[int] = (
        count() if trips is None else iter(range(int(np.asarray(trips).item())))
    )
    continues = condition is None or bool(np.asarray(condition).item())
    for iteration in iterations:
        if not continues:
            break
        fed = dict(context or {})
        body_inputs = [np.array(iteration), np.array(continues), *carried]
        fed.update(zip(inputs, body_inputs, strict=True))
        outputs = loop._run_body(fed, **kwargs)  # noqa: SLF001 - as the reference calls it
        continues = bool(np.asarray(outputs[0]).item())
        carried = list(outputs[1 : 1 + loop.N])
        for values, value in zip(scanned, outputs[1 + loop.N :], strict=True):
            values.append(value)
    declared = loop.body.proto_.output[1 + loop.N :]
    stacked = [_stacked(values, info) for values, info in zip(scanned, declared, strict=True)]
    return loop._check_and_fix_outputs((*carried, *stacked))  # noqa: SLF001


def _stacked(values: Sequence[Any], declared: onnx.ValueInfoProto, axis: int = 0) -> Any:
    """Stack the values of all iterations along a new axis.

    If any value is a `Stacked`, which holds the values of several runs, the result is a `Stacked`
    too. If the loop has no iteration, the shape and dtype are those that the body declares.

    Raises:
        NotImplementedError: if the body never ran and does not declare the shape of its output.
    """
    stacks = [value for value in values if isinstance(value, Stacked)]
    if stacks:
        runs = len(stacks[0].array)
        arrays = [
            value.array
            if isinstance(value, Stacked)
            else np.broadcast_to(value, (runs, *value.shape))
            for value in values
        ]
        return Stacked(np.stack(arrays, axis if axis < 0 else 1 + axis))
    if values:
        return np.stack(values, axis)
    tensor = declared.type.tensor_type
    lengths = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
    if not tensor.HasField("shape") or len(lengths) < len(tensor.shape.dim):
        undeclared = f"does not declare the shape of {declared.name!r}"
        raise NotImplementedError(f"a body that never runs {undeclared}")
    lengths.insert(axis % (len(lengths) + 1), 0)
    return np.empty(lengths, helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def scan_class() -> type:
    """Return a class of Scan with all axes and directions, some of which the reference lacks."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import op_scan

    class Scan(op_scan.Scan):
        """Scan with all attributes of the specification."""

        def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
            # The reference's own constructor rejects attributes that it does not support.
            OpRun.__init__(self, onnx_node, run_params)

        # A function that evaluates the body. The reference sets this attribute.
        _run_body: Any

        def _run(self, *operands: Any, context: Any = None, bindings: Any = None, **_: Any) -> Any:
            def run(fed: dict[str, Any]) -> list[Any]:
                return list(self._run_body(dict(context or {}) | fed, bindings=bindings))

            if self.run_params["opsets"][""] >= _UNBATCHED_VERSION:
                return self._check_and_fix_outputs(tuple(_scanned(self, run, operands)))
            lengths, *batches = operands
            if lengths is not None:
                raise NotImplementedError("Scan of batches of different lengths")
            results = [_scanned(self, run, batch) for batch in zip(*batches, strict=True)]
            return tuple(map(np.stack, zip(*results, strict=True)))

    return Scan


def _scanned(
    scan: Any, run: Callable[[dict[str, Any]], list[Any]], operands: Sequence[Any]
) -> list[Any]:
    """Return the final states and the stacked outputs of one batch."""
    inputs, outputs = scan.body.input_names, scan.body.output_names
    scan_count = scan.num_scan_inputs
    states = list(operands[: len(operands) - scan_count])

    def attribute(name: str, length: int) -> list[int]:
        return list(getattr(scan, name, None) or [0] * length)

    directions = attribute("scan_input_directions", 0) or attribute("directions", scan_count)
    axes = attribute("scan_input_axes", scan_count)
    slices = [_slices(x, axis) for x, axis in zip(operands[-scan_count:], axes, strict=True)]
    slices = [x[::-1] if reverse else x for x, reverse in zip(slices, directions, strict=True)]
    scanned: list[list[Any]] = [[] for _ in outputs[len(states) :]]
    for elements in zip(*slices, strict=True):
        results = run(dict(zip(inputs, [*states, *elements], strict=True)))
        for values, value in zip(scanned, results[len(states) :], strict=True):
            values.append(value)
        states = results[: len(states)]
    declared = scan.body.proto_.output[len(states) :]
    directions = attribute("scan_output_directions", len(scanned))
    axes = attribute("scan_output_axes", len(scanned))
    for values, info, reverse, axis in zip(scanned, declared, directions, axes, strict=True):
        states.append(_stacked(values[::-1] if reverse else values, info, axis))
    return states


def _slices(value: Any, axis: int) -> list[Any]:
    """Return the slices of a tensor along an axis; the slices of a `Stacked` are `Stacked`."""
    if isinstance(value, Stacked):
        runs_first = value.array
        along = np.moveaxis(runs_first, axis if axis < 0 else 1 + axis, 0)
        return [Stacked(part) for part in along]
    return [np.asarray(part) for part in np.moveaxis(value, axis, 0)]


@replaces("op_sequence_map.SequenceMap._run")
def _mapped(
    _node: Any,
    _original: Any,
    items: Sequence[Any],
    *additional: Any,
    body: Any = None,
    attributes: Any = None,
) -> tuple[list[Any], ...]:
    """Run the body for the elements at each position of the sequences; pass tensors unchanged.

    The reference takes the elements of an additional sequence only if the node has exactly one
    additional input.
    """
    mapped: list[list[Any]] = [[] for _ in body.output_names]
    for place, item in enumerate(items):
        other_values = [value[place] if isinstance(value, list) else value for value in additional]
        fed = dict(zip(body.input_names, [item, *other_values], strict=True))
        outputs = body.run(None, fed, attributes=attributes)
        for values, value in zip(mapped, outputs, strict=True):
            values.append(value)
    return tuple(mapped)
