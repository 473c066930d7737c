"""Recognising implementations that equal the formula, and what tells the others apart."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import WIDE
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.probes import (
    Probe,
    probe_of,
    probes,
)
from onnxopt_cli.operators.call import Attributes, Call
from onnxopt_cli.operators.operator import Operator

#: What another order of operations in the wide type and one rounding stay far below, by item size.
_RTOL = {4: 1e-5, 8: 1e-9}
#: From this relative difference on a smaller input is the better example.
_PLAIN_DIFFERENCE = 0.1
#: What exact cancellation may leave, as a share of the largest input.
_RESIDUE = 1e-15


def equivalent(operator: Operator, implementation: Implementation) -> bool:
    """Tell whether an implementation equals the formula on all probes.

    Finite inputs for which the formula has no value, such as a negative second moment, are not
    compared: what differs only there is equivalent, since the specification does not say.
    """
    return all(
        _agrees(_differences(probe, implementation.run(probe.call))) for probe in probes(operator)
    )


def distinguishing_input(
    operator: Operator, implementation: Implementation
) -> tuple[Attributes, dict[str, Array]] | None:
    """Return a small input on which an implementation differs from the formula, None if none does.

    Returns:
        The attributes that the node gives, and its inputs by name. It is the single element with
        the largest relative difference in any probe; where the elements of the optimized tensor
        depend on each other, or the structure is wrong and no element plainly is, it is a whole
        probe: the smallest of those where the difference is plain.
    """
    wholes: list[tuple[float, int, Call[Array]]] = []
    elements: list[tuple[float, int, Call[Array]]] = []
    # Of the smallest probe where the difference is plain: a larger one is no better example.
    enough = float("inf")
    for index, probe in enumerate(probes(operator)):
        if not probe.dense and probe.call.size >= enough:
            continue
        differences = _differences(probe, implementation.run(probe.call))
        if _agrees(differences):
            continue
        far = max(
            (float(np.max(difference, initial=0)) for difference in differences or ()),
            default=_PLAIN_DIFFERENCE,
        )
        wholes.append((-min(far, _PLAIN_DIFFERENCE), probe.call.size, probe.call))
        if far >= _PLAIN_DIFFERENCE:
            enough = min(enough, probe.call.size)
        by_element = {difference.shape for difference in differences or ()} == {
            probe.call.groups[0][0].shape
        }
        if probe.dense and by_element and differences is not None:
            difference = np.ravel(np.max(differences, axis=0))
            element = int(np.argmax(difference))
            call = probe.call.at(slice(element, element + 1))
            elements.append((float(difference[element]), -index, call))
    plain = any(far <= -_PLAIN_DIFFERENCE for far, _, _ in wholes)
    for far, _, call in sorted(elements, key=lambda item: item[:2], reverse=True):
        if plain and far < _PLAIN_DIFFERENCE:
            break
        differences = _differences(probe_of(call), implementation.run(call))
        if differences is not None and not _agrees(differences):
            return _described(call)
    return _described(min(wholes, key=lambda item: item[:2])[2]) if wholes else None


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
        distance = np.abs(output.astype(WIDE) - expected.astype(WIDE))
        relative = distance / np.maximum(np.abs(output), np.abs(expected))
    # A value that is not finite on one side is as far off as a wrong sign.
    relative = np.where(np.isfinite(relative), relative, 2)
    agrees |= (relative <= _RTOL[expected.itemsize]) | (distance <= residue)
    return np.where(agrees, 0, relative).astype(np.float64)


def _described(call: Call[Array]) -> tuple[Attributes, dict[str, Array]]:
    attributes = {
        name: value for name, value in call.attributes.items() if name not in call.omitted
    }
    names = call.operator.input_names(len(call.groups))
    return attributes, dict(zip(names, call.inputs, strict=True))
