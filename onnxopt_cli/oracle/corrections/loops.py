"""Loop and Scan as the specification has them, also where their bodies never run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.corrections.replacements import instead_of

# Until then Scan took batches, each of a length of its own.
_UNBATCHED = 9


@instead_of("op_loop.Loop._run")
def _looped(
    loop: Any,
    _kept: Any,
    trips: Any,
    condition: Any,
    *states: Any,
    context: Any = None,
    body: Any = None,  # noqa: ARG001 - what evaluates it is the node's
    **rest: Any,
) -> Any:
    """Run the body as long as it says so; without a condition, at first it does."""
    inputs, carried = loop.body.input_names, list(states)
    found: list[list[Any]] = [[] for _ in range(loop.K)]
    numbers: Iterator[int] = (
        count() if trips is None else iter(range(int(np.asarray(trips).item())))
    )
    going = condition is None or bool(np.asarray(condition).item())
    for number in numbers:
        if not going:
            break
        fed = dict(context or {})
        fed.update(zip(inputs, [np.array(number), np.array(going), *carried], strict=True))
        outputs = loop._run_body(fed, **rest)  # noqa: SLF001 - as the reference calls it
        going = bool(np.asarray(outputs[0]).item())
        carried = list(outputs[1 : 1 + loop.N])
        for values, value in zip(found, outputs[1 + loop.N :], strict=True):
            values.append(value)
    declared = loop.body.proto_.output[1 + loop.N :]
    stacked = [_stacked(*it) for it in zip(found, declared, strict=True)]
    return loop._check_and_fix_outputs((*carried, *stacked))  # noqa: SLF001


def _stacked(values: Sequence[Array], declared: onnx.ValueInfoProto, axis: int = 0) -> Array:
    """Return what iterations yielded, along a new axis; of none what the body declares.

    Raises:
        ValueError: if the body never ran, and does not say of what shape its output is.
    """
    if values:
        return np.stack(values, axis)
    tensor = declared.type.tensor_type
    lengths = [it.dim_value for it in tensor.shape.dim if it.HasField("dim_value")]
    if not tensor.HasField("shape") or len(lengths) < len(tensor.shape.dim):
        raise ValueError(f"a body that never runs does not declare the shape of {declared.name!r}")
    lengths.insert(axis % (len(lengths) + 1), 0)
    return np.empty(lengths, helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def scan_class() -> type:
    """Return Scan along any axes and in any directions, of which the reference knows the first."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import op_scan

    class Scan(op_scan.Scan):
        """See the specification."""

        def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
            # The reference's refuses all that it does not know.
            OpRun.__init__(self, onnx_node, run_params)

        # What evaluates the body is an attribute of that name.
        _run_body: Any

        def _run(self, *given: Any, context: Any = None, bindings: Any = None, **_: Any) -> Any:
            def run(fed: dict[str, Any]) -> list[Any]:
                return list(self._run_body(dict(context or {}) | fed, bindings=bindings))

            if self.run_params["opsets"][""] >= _UNBATCHED:
                return self._check_and_fix_outputs(tuple(_scanned(self, run, given)))
            lengths, *batches = given
            if lengths is not None:
                raise NotImplementedError("Scan of batches of different lengths")
            found = [_scanned(self, run, it) for it in zip(*batches, strict=True)]
            return tuple(map(np.stack, zip(*found, strict=True)))

    return Scan


def _scanned(
    scan: Any, run: Callable[[dict[str, Any]], list[Any]], given: Sequence[Any]
) -> list[Any]:
    inputs, outputs = scan.body.input_names, scan.body.output_names
    sliced = scan.num_scan_inputs
    states = list(given[: len(given) - sliced])

    def listed(name: str, length: int) -> list[int]:
        return list(getattr(scan, name, None) or [0] * length)

    directions = listed("scan_input_directions", 0) or listed("directions", sliced)
    axes = listed("scan_input_axes", sliced)
    slices = [np.moveaxis(it, axis, 0) for it, axis in zip(given[-sliced:], axes, strict=True)]
    slices = [it[::-1] if back else it for it, back in zip(slices, directions, strict=True)]
    found: list[list[Any]] = [[] for _ in outputs[len(states) :]]
    for parts in zip(*slices, strict=True):
        values = run(dict(zip(inputs, [*states, *map(np.asarray, parts)], strict=True)))
        for several, value in zip(found, values[len(states) :], strict=True):
            several.append(value)
        states = values[: len(states)]
    declared = scan.body.proto_.output[len(states) :]
    backward = listed("scan_output_directions", len(found))
    axes = listed("scan_output_axes", len(found))
    for several, info, reverse, axis in zip(found, declared, backward, axes, strict=True):
        states.append(_stacked(several[::-1] if reverse else several, info, axis))
    return states
