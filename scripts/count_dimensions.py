"""Count the cases of each operator that cover a dimension of its inputs, such as high ranks.

The result is a table of docs/mutation-analysis.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.cases.onnx.node_model import PLAIN_WIRING
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.catalogue import suites

PAGE, MANY_TENSORS, HIGH_RANK, LONG_ROW = 4096, 256, 9, 1024
BEYOND_PAGES = range(4225, 16384)
LARGE_NUMBER, SMALL_PERCENT = 1e30, 1e-5


def _tensors(case: CaseTemplate) -> list[TemplateInput]:
    return [*case.inputs.values()][len(case.operator.scalars) :]


def _shapes(case: CaseTemplate) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in _tensors(case)]


def _numbers(case: CaseTemplate) -> list[object]:
    numbers: list[object] = []
    for value in case.attributes.values():
        numbers += value if isinstance(value, tuple) else [value]
    return numbers


def _sizes(case: CaseTemplate) -> list[float]:
    return [abs(number) for number in _numbers(case) if isinstance(number, float)]


def _count(case: CaseTemplate) -> int:
    if not case.operator.counts or case.rejects:
        return 0
    return int(np.reshape(np.asarray(case.inputs["T"]), -1)[0])


def _types(case: CaseTemplate) -> set[np.dtype[Any]]:
    return {value.dtype for value in case.inputs.values() if value.dtype.kind == "f"}


def _is_special(case: CaseTemplate) -> bool:
    tensors = (tensor for tensor in _tensors(case) if isinstance(tensor, np.ndarray))
    return not case.rejects and any(not np.isfinite(tensor).all() for tensor in tensors)


#: The dimensions by their names in the table. A function returns whether a case covers the
#: dimension.
DIMENSIONS: Mapping[str, Callable[[CaseTemplate], bool]] = {
    "names, orders and initializers of the graph": lambda case: case.wiring is not PLAIN_WIRING,
    "one value for two inputs": lambda case: any(
        name in case.inputs and name not in case.wiring.names for name in case.wiring.names.values()
    ),
    "refusals": lambda case: case.rejects,
    "counts beyond 2^32 + 1": lambda case: abs(_count(case)) > 2**32 + 1,
    "odd counts of at least 2^31, with an attribute of -1": lambda case: (
        _count(case) > 2**31 and _count(case) % 2 == 1 and -1.0 in _numbers(case)
    ),
    "attributes beyond 1e30 or percents below 1e-5": lambda case: any(
        size > LARGE_NUMBER
        or (0 < size < SMALL_PERCENT and bool(case.operator.attributes[0].limits))
        for size in _sizes(case)
    ),
    "whole pages of 4096": lambda case: any(
        prod(shape) and not prod(shape) % PAGE for shape in _shapes(case)
    ),
    "between 4224 and 16384 elements": lambda case: any(
        prod(shape) in BEYOND_PAGES for shape in _shapes(case)
    ),
    "several rows longer than 1024": lambda case: any(
        len(shape) > 1 and shape[0] > 1 and shape[-1] > LONG_ROW for shape in _shapes(case)
    ),
    "rank 9 and more": lambda case: any(len(shape) >= HIGH_RANK for shape in _shapes(case)),
    "more than 256 tensors": lambda case: (
        len(_tensors(case)) > MANY_TENSORS * len(case.operator.tensors)
    ),
    "floats beside doubles": lambda case: len(_types(case)) > 1 and not case.rejects,
    "doubles alone": lambda case: _types(case) == {np.dtype(np.float64)} and not case.rejects,
    "NaN or infinity": _is_special,
    "NaN or infinity beside an attribute that is 0": lambda case: (
        _is_special(case) and 0.0 in _numbers(case)
    ),
    "large last elements": lambda case: any(
        getattr(tensor, "tail", ()) for tensor in _tensors(case)
    ),
    "a product of T and an attribute that is -1": lambda case: any(
        size and _count(case) * -size == -1 for size in _sizes(case)
    ),
}
#: Dimensions that only operators with an input T have.
DIMENSIONS_OF_T = {name for name in DIMENSIONS if "count" in name or " T " in name}


def counts() -> dict[str, dict[str, tuple[int, int]]]:
    """Count the cases that cover a dimension of an operator, in ``cases/`` and in other suites."""
    covering: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in DIMENSIONS}
    for operator in registry().operators:
        committed = list(suites()[operator.suite_name].templates(operator))
        generated = [
            template
            for suite in ("pairwise", "large")
            for template in suites()[suite].templates(operator)
        ]
        for name, covers in DIMENSIONS.items():
            if name not in DIMENSIONS_OF_T or operator.counts:
                numbers = sum(map(covers, committed)), sum(map(covers, generated))
                covering[name][operator.name] = numbers
    return covering


def table() -> str:
    """Return the table as Markdown."""
    names = [operator.name for operator in registry().operators]
    lines = [f"| dimension | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for dimension, by_operator in counts().items():
        cells = (by_operator.get(name) for name in names)
        row = " | ".join("" if cell is None else f"{cell[0]} + {cell[1]}" for cell in cells)
        lines.append(f"| {dimension} | {row} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
