"""Recognize equivalent mutants, and find inputs that distinguish the others from the formula."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.probes import (
    Probe,
    probe_of,
    probes,
)
from onnxopt_cli.operators.call import Attributes, Call
from onnxopt_cli.operators.operator import Operator

#: Relative tolerance by item size. The error of another order of operations in the wide type, with
#: one rounding of the result, is far smaller.
_RTOL = {4: 1e-5, 8: 1e-9}
#: Examples with at least this relative difference are clear. The smallest of them is preferred.
_CLEAR_DIFFERENCE = 0.1
#: Residue that an exact cancellation may leave, relative to the largest input.
_RESIDUE = 1e-15


def equivalent(operator: Operator, implementation: Implementation) -> bool:
    """Return whether an implementation equals the formula on all probes.

    Elements for which the formula yields NaN from finite inputs, such as a negative second moment,
    are not compared, since the specification does not define them.
    """
    return all(
        _agrees(_differences(probe, implementation.run(probe.call))) for probe in probes(operator)
    )


def distinguishing_input(
    operator: Operator, implementation: Implementation
) -> tuple[Attributes, dict[str, Array]] | None:
    """Return a small input that distinguishes an implementation from the formula, or None.

    Returns:
        The attributes of the node, and its inputs by name. If possible, the input is the single
        element with the largest relative difference in any probe. If elements depend on each other,
        or only the structure is wrong, it is the smallest probe with a clear difference.
    """
    whole_probes: list[tuple[float, int, Call[Array]]] = []
    elements: list[tuple[float, int, Call[Array]]] = []
    # Size of the smallest probe with a clear difference; larger probes are worse examples.
    smallest_clear = float("inf")
    for index, probe in enumerate(probes(operator)):
        if not probe.dense and probe.call.size >= smallest_clear:
            continue
        differences = _differences(probe, implementation.run(probe.call))
        if _agrees(differences):
            continue
        largest = max(
            (float(np.max(difference, initial=0)) for difference in differences or ()),
            default=_CLEAR_DIFFERENCE,
        )
        whole_probes.append((-min(largest, _CLEAR_DIFFERENCE), probe.call.size, probe.call))
        if largest >= _CLEAR_DIFFERENCE:
            smallest_clear = min(smallest_clear, probe.call.size)
        by_element = {difference.shape for difference in differences or ()} == {
            probe.call.groups[0][0].shape
        }
        if probe.dense and by_element and differences is not None:
            difference = np.ravel(np.max(differences, axis=0))
            element = int(np.argmax(difference))
            call = probe.call.at(slice(element, element + 1))
            elements.append((float(difference[element]), -index, call))
    has_clear_probe = any(negated <= -_CLEAR_DIFFERENCE for negated, _, _ in whole_probes)
    for largest, _, call in sorted(elements, key=lambda item: item[:2], reverse=True):
        if has_clear_probe and largest < _CLEAR_DIFFERENCE:
            break
        differences = _differences(probe_of(call), implementation.run(call))
        if differences is not None and not _agrees(differences):
            return _described(call)
    return _described(min(whole_probes, key=lambda item: item[:2])[2]) if whole_probes else None


def _agrees(differences: list[Array] | None) -> bool:
    return differences is not None and not any(map(np.any, differences))


def _differences(probe: Probe, outputs: list[Array]) -> list[Array] | None:
    """Return each output's relative differences, 0 where it agrees; None for a wrong structure."""
    same = len(outputs) == len(probe.expected) and all(
        output.dtype == expected.dtype and output.shape == expected.shape
        for output, expected in zip(outputs, probe.expected, strict=True)
    )
    if not same:
        return None
    residue = _RESIDUE * probe.largest
    return [
        _relative(output, expected, residue, finite=probe.finite)
        for output, expected in zip(outputs, probe.expected, strict=True)
    ]


def _relative(output: Array, expected: Array, residue: float, *, finite: bool) -> Array:
    agrees = (output == expected) | np.isnan(expected) & (finite | np.isnan(output))
    if np.all(agrees):
        return np.zeros(expected.shape)
    with np.errstate(all="ignore"):
        distance = np.abs(output.astype(WIDEST_TYPE) - expected.astype(WIDEST_TYPE))
        relative = distance / np.maximum(np.abs(output), np.abs(expected))
    # If only one of two values is finite, they differ as much as values of opposite signs.
    relative = np.where(np.isfinite(relative), relative, 2)
    agrees |= (relative <= _RTOL[expected.itemsize]) | (distance <= residue)
    return np.where(agrees, 0, relative).astype(np.float64)


def _described(call: Call[Array]) -> tuple[Attributes, dict[str, Array]]:
    attributes = {
        name: value for name, value in call.attributes.items() if name not in call.omitted
    }
    names = call.operator.input_names(len(call.groups))
    return attributes, dict(zip(names, call.inputs, strict=True))
