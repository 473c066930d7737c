"""Select the seeds of directed draws and write them to the package.

    python scripts/select_directed_draws.py [OPERATOR...] [--jobs N]

Without operators, all are selected anew, otherwise only those named. A draw is directed by one
given choice: an element type that no other case of the operator has, a long axis, a rank over 4, or
a batch without elements (``onnxopt_cli/suites/operators/boundaries/directed_draws.py``). Of the
first seeds whose nodes are valid, the one with the most distinct outputs is selected. A node is
valid if onnx's check and the condition estimate accept it, and most of its output elements have a
narrow tolerance.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.values import Array, Value, dtype_name, structure_of
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.operators import native_onnx
from onnxopt_cli.oracle.condition_estimate import Reading, all_readings
from onnxopt_cli.suites.operators.boundaries.directed_draws import (
    SEEDS,
    directed_draws,
    directed_generator,
)
from onnxopt_cli.suites.operators.choices_source import SeededChoices
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.generators import FAMILIES, GENERATORS, draw_with, schemas
from onnxopt_cli.suites.operators.node_draft import Unsuitable, tensor_types
from onnxopt_cli.suites.operators.operator_suite import selected_nodes, selected_seeds

TARGET = Path(__file__).parents[1] / "onnxopt_cli/suites/operators/boundaries" / SEEDS
# Number of seeds that are tried for a draw, and of valid nodes that are compared.
MAX_SEEDS, MAX_VALID = 12, 2
# Lengths of a long axis, of which the first that is computed in time is used.
LENGTHS = (1031, 259, 67)
# Places of an axis that are tried, and the most draws with a long axis of an operator.
PLACES, MAX_LONG_DRAWS = 5, 2
# Processor time of a draw.
MAX_SECONDS = 0.3
MIN_DEEP_RANK = 5
# An element with a larger relative tolerance detects few mistakes.
MAX_RELATIVE_TOLERANCE = 0.05
# These types are drawn only for the operators that convert elements.
RARE_TYPES = ("float8", "float6", "float4", "int2", "uint2", "complex")
CONVERSIONS = ("Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear")
# Right runtimes convert numbers beyond the range of these types to different values.
NARROW_TARGETS = ("int2", "uint2", "int4", "uint4", "float8_e8m0fnu")
# More distinct elements than this number do not make a node better.
MAX_DISTINCT = 12


def main() -> int:
    """Select the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = options.operators or list(selected_seeds())
    seeds = json.loads(TARGET.read_text()) if options.operators else {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(select, name) for name in names]):
            name, selected = future.result()
            seeds[name] = selected
            print(f"{name}: {', '.join(selected)}", flush=True)
            lines = [f"{json.dumps(name)}: {json.dumps(seeds[name])}" for name in sorted(seeds)]
            write_atomically(TARGET, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return 0


def select(operator: str) -> tuple[str, dict[str, int]]:
    """Return an operator, and the seeds of its directed draws."""
    warnings.simplefilter("ignore")
    native_onnx.die_with_models()
    directed_names = {stem for name, stem, _ in directed_draws(GENERATORS) if name == operator}
    nodes = [
        node
        for name, node in selected_nodes(operator)
        if name.partition("_")[2] not in directed_names
    ]
    # One long axis suffices for an operator that computes each element alone, and for reductions,
    # whose boundaries include a long axis.
    is_simple = operator in FAMILIES["elementwise"] or operator.startswith("Reduce")
    max_long_draws = 1 if is_simple else MAX_LONG_DRAWS
    selected: dict[str, int] = {}
    with np.errstate(all="ignore"):
        for name, shows in type_draws(operator, nodes):
            add_seed(selected, operator, name, shows)
        for length in LENGTHS:
            for place in range(PLACES):
                if sum(name.startswith("long") for name in selected) < max_long_draws:
                    add_seed(selected, operator, f"long:{length}:{place}", has_length(length))
            if any(name.startswith("long") for name in selected):
                break
        add_seed(selected, operator, "deep", is_deep)
        if not any(value.size == 0 for node in nodes for value in tensors(node.values)):
            add_seed(selected, operator, "empty", returns_nothing)
    return operator, selected


def add_seed(
    selected: dict[str, int],
    operator: str,
    name: str,
    shows: Callable[[GeneratedNode, Problem], bool],
) -> None:
    """Add the best seed of a draw, if there is a valid one."""
    schema = schemas(operator)[0]
    generate = GENERATORS[operator]
    best = -1
    valid_count = 0
    for seed in range(MAX_SEEDS):
        try:
            with limited_time():
                directed = directed_generator(generate, name, seed)
                node = draw_with(schema, directed, SeededChoices(""))
                problem = node.problem
                if not shows(node, problem) or model_fault(problem.model):
                    continue
                distinct = judged_elements(problem, may_be_empty=name == "empty")
        except Unsuitable:
            continue
        except TimeoutError:
            break
        except Exception as error:  # noqa: BLE001 - the reference does not implement the node
            print(f"{operator} {name} {seed}: {error!r}"[:200], flush=True)
            continue
        if distinct > best:
            selected[name], best = seed, distinct
        if distinct >= 0:
            valid_count += 1
        if valid_count == MAX_VALID or best >= MAX_DISTINCT:
            break


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise TimeoutError when the context has used MAX_SECONDS of processor time."""

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def judged_elements(problem: Problem, *, may_be_empty: bool) -> int:
    """Return the number of distinct output elements, at most MAX_DISTINCT; -1 for a bad case.

    A node is a bad case if it has several readings, if ONNX Runtime returns another output, or if
    at most half of the elements have a narrow tolerance.
    """
    readings = all_readings(problem.model, problem.inputs)
    if len(readings) != 1 or not agrees_on_onnxruntime(problem, readings[0], may_be_empty):
        return -1
    judged = total = distinct = 0
    for conditioned in readings[0].conditioned_outputs:
        if not conditioned.right:
            continue
        expected, tolerance = conditioned.right[0]
        total += expected.size
        distinct = max(distinct, len({*map(repr, expected.ravel().tolist()[:100])}))
        judged += int(judges(expected, tolerance).sum())
    if total == 0:
        has_tensor = any(output.right for output in readings[0].conditioned_outputs)
        return -1 if has_tensor and not may_be_empty else 0
    return min(distinct, MAX_DISTINCT) if 2 * judged > total else -1


def agrees_on_onnxruntime(problem: Problem, reading: Reading, must_run: bool) -> bool:
    """Return whether ONNX Runtime returns the expected outputs, or does not compute the node.

    Args:
        problem: the node.
        reading: its expected outputs.
        must_run: whether an error counts as a difference.
    """
    try:
        actual = resolve_backend("onnxruntime").prepare(problem.model).run(problem.inputs)
    except Unsupported:
        return True
    except Exception:  # noqa: BLE001 - ONNX Runtime raises exceptions of many types
        return not must_run
    for conditioned, stored, value in zip(
        reading.conditioned_outputs, (problem.stored or {}).values(), actual, strict=True
    ):
        if not conditioned.right:
            if structure_of(stored) != structure_of(value):
                return False
        elif not any(within(right, value, tolerance) for right, tolerance in conditioned.right):
            return False
    return True


def within(expected: Array, actual: Value, tolerance: Array) -> bool:
    """Return whether a tensor equals another one within tolerances."""
    if not isinstance(actual, np.ndarray) or actual.shape != expected.shape:
        return False
    equal = np.asarray(expected == actual)
    if "float" in dtype_name(expected.dtype):
        first, second = expected.astype(np.float64), actual.astype(np.float64)
        equal |= (np.isnan(first) & np.isnan(second)) | (np.abs(first - second) <= tolerance)
    return bool(equal.all())


def judges(expected: Array, tolerance: Array) -> Array:
    """Return which elements have a narrow tolerance."""
    if "float" not in dtype_name(expected.dtype):
        return np.ones(expected.shape, bool)
    wide = expected.astype(np.float64)
    limits = MAX_RELATIVE_TOLERANCE * np.abs(np.nan_to_num(wide)) + 1e-6
    return np.asarray(tolerance <= limits) & ~np.isnan(wide)


def type_draws(
    operator: str, nodes: list[GeneratedNode]
) -> Iterator[tuple[str, Callable[[GeneratedNode, Problem], bool]]]:
    """Yield draws of element types that no node has, and whether a node shows the type."""
    schema = schemas(operator)[0]
    newest = [node for node in nodes if node.schema.since_version == schema.since_version]
    for formals, values_of in ((schema.inputs, inputs_of), (schema.outputs, outputs_of)):
        for place, formal in enumerate(formals):
            if "(" in formal.type_str:
                # The schema fixes the type, such as tensor(int64).
                continue
            covered: set[str] = set()
            for node in newest:
                covered |= dtypes_at(values_of(node, node.problem), place, len(formals))
            for name in sorted(tensor_types(formal) - covered):
                if name.startswith(RARE_TYPES) and operator not in CONVERSIONS:
                    continue
                if formal.type_str == "T2" and name in NARROW_TARGETS and "Cast" in operator:
                    continue
                shows = partial(
                    shows_type, name=name, values_of=values_of, place=place, count=len(formals)
                )
                yield f"type:{formal.type_str}:{name}", shows


def inputs_of(node: GeneratedNode, _problem: Problem) -> list[Value]:
    """Return the inputs of a node."""
    return list(node.values)


def outputs_of(_node: GeneratedNode, problem: Problem) -> list[Value]:
    """Return the outputs of a node."""
    return list((problem.stored or {}).values())


def shows_type(
    node: GeneratedNode,
    problem: Problem,
    *,
    name: str,
    values_of: Callable[[GeneratedNode, Problem], list[Value]],
    place: int,
    count: int,
) -> bool:
    """Return whether a parameter of a node has an element type."""
    return name in dtypes_at(values_of(node, problem), place, count)


def dtypes_at(values: list[Value], place: int, count: int) -> set[str]:
    """Return the element types of the parameter at a place, one of ``count``.

    The last parameter may be variadic, so it includes all further values.
    """
    own_values = values[place:] if place == count - 1 else values[place : place + 1]
    return {dtype_name(value.dtype) for value in tensors(own_values)}


def tensors(values: Any) -> Iterator[Array]:
    """Yield the tensors among values, and those in sequences."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, list):
            yield from tensors(value)


def has_length(length: int) -> Callable[[GeneratedNode, Problem], bool]:
    """Return whether a node has an axis of a length."""

    def shows(node: GeneratedNode, problem: Problem) -> bool:
        outputs = (problem.stored or {}).values()
        return any(length in value.shape for value in tensors([*node.values, *outputs]))

    return shows


def is_deep(node: GeneratedNode, _problem: Problem) -> bool:
    """Return whether an input has a high rank."""
    return any(value.ndim >= MIN_DEEP_RANK for value in tensors(node.values))


def returns_nothing(node: GeneratedNode, problem: Problem) -> bool:
    """Return whether a node has an empty input, and only empty outputs."""
    outputs = list(tensors((problem.stored or {}).values()))
    has_empty_input = any(value.size == 0 for value in tensors(node.values))
    return has_empty_input and all(value.size == 0 for value in outputs)


if __name__ == "__main__":
    sys.exit(main())
