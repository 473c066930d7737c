"""Count the cases of each operator by dimension: the table in docs/mutation-analysis.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.cases.onnx.node_model import PLAIN_WIRING
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, Given
from onnxopt_cli.operators.registry import OPERATORS
from onnxopt_cli.suites.catalogue import suites

PAGE, MANY_TENSORS, HIGH_RANK, LONG_ROW = 4096, 256, 9, 1024
BEYOND_PAGES = range(4225, 16384)
LARGE_NUMBER, SMALL_PERCENT = 1e30, 1e-5


def _tensors(case: CaseTemplate) -> list[Given]:
    return [*case.inputs.values()][len(case.operator.scalars) :]


def _shapes(case: CaseTemplate) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in _tensors(case)]


def _numbers(case: CaseTemplate) -> list[float | str]:
    values = case.attributes.values()
    return [it for value in values for it in (value if isinstance(value, tuple) else (value,))]


def _sizes(case: CaseTemplate) -> list[float]:
    return [abs(it) for it in _numbers(case) if isinstance(it, float)]


def _count(case: CaseTemplate) -> int:
    if not case.operator.counts or case.rejects:
        return 0
    return int(np.reshape(np.asarray(case.inputs["T"]), -1)[0])


def _types(case: CaseTemplate) -> set[np.dtype[Any]]:
    return {value.dtype for value in case.inputs.values() if value.dtype.kind == "f"}


def _is_special(case: CaseTemplate) -> bool:
    tensors = (tensor for tensor in _tensors(case) if isinstance(tensor, np.ndarray))
    return not case.rejects and any(not np.isfinite(tensor).all() for tensor in tensors)


#: A dimension, and whether a case asks for it.
DIMENSIONS: Mapping[str, Callable[[CaseTemplate], bool]] = {
    "names, orders and initializers of the graph": lambda it: it.wiring is not PLAIN_WIRING,
    "one value for two inputs": lambda it: any(
        name in it.inputs and name not in it.wiring.names for name in it.wiring.names.values()
    ),
    "refusals": lambda it: it.rejects,
    "counts beyond 2^32 + 1": lambda it: abs(_count(it)) > 2**32 + 1,
    "odd counts from 2^31 on, an attribute -1": lambda it: (
        _count(it) > 2**31 and _count(it) % 2 == 1 and -1.0 in _numbers(it)
    ),
    "attributes beyond 1e30 or percents below 1e-5": lambda it: any(
        size > LARGE_NUMBER or (0 < size < SMALL_PERCENT and bool(it.operator.attributes[0].limits))
        for size in _sizes(it)
    ),
    "whole pages of 4096": lambda it: any(
        prod(shape) and not prod(shape) % PAGE for shape in _shapes(it)
    ),
    "between 4224 and 16384 elements": lambda it: any(
        prod(shape) in BEYOND_PAGES for shape in _shapes(it)
    ),
    "several rows longer than 1024": lambda it: any(
        len(shape) > 1 and shape[0] > 1 and shape[-1] > LONG_ROW for shape in _shapes(it)
    ),
    "rank 9 and more": lambda it: any(len(shape) >= HIGH_RANK for shape in _shapes(it)),
    "more than 256 tensors": lambda it: len(_tensors(it)) > MANY_TENSORS * len(it.operator.tensors),
    "floats beside doubles": lambda it: len(_types(it)) > 1 and not it.rejects,
    "doubles alone": lambda it: _types(it) == {np.dtype(np.float64)} and not it.rejects,
    "NaN or infinity": _is_special,
    "NaN or infinity beside an attribute that is 0": lambda it: (
        _is_special(it) and 0.0 in _numbers(it)
    ),
    "large last elements": lambda it: any(getattr(each, "tail", ()) for each in _tensors(it)),
    "a product of T and an attribute that is -1": lambda it: any(
        size and _count(it) * -size == -1 for size in _sizes(it)
    ),
}
#: What asks for T, in operators that have one.
OF_COUNTS = {it for it in DIMENSIONS if "count" in it or " T " in it}


def counts() -> dict[str, dict[str, tuple[int, int]]]:
    """Return by dimension and operator how many cases ask for it: in ``cases/``, and elsewhere."""
    found: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in DIMENSIONS}
    for operator in OPERATORS:
        files = list(suites()[operator.suite_name].templates(operator))
        others = [it for name in ("pairwise", "large") for it in suites()[name].templates(operator)]
        for name, asks in DIMENSIONS.items():
            if name not in OF_COUNTS or operator.counts:
                found[name][operator.name] = sum(map(asks, files)), sum(map(asks, others))
    return found


def table() -> str:
    """Return the table as Markdown."""
    names = [operator.name for operator in OPERATORS]
    lines = [f"| dimension | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for dimension, by_operator in counts().items():
        cells = (by_operator.get(name) for name in names)
        shown = " | ".join("" if cell is None else f"{cell[0]} + {cell[1]}" for cell in cells)
        lines.append(f"| {dimension} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
