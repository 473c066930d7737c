"""Select the seeds of directed draws and write them to the package.

    python scripts/select_directed_draws.py [OPERATOR...] [--kind KIND]... [--jobs N]

The script selects new seeds for the given operators, or for all operators if none is given. With
``--kind``, only the seeds of the given kinds are replaced. A directed draw is a random node with
one prescribed property: an element type, a long axis, a rank over 4, or a batch without elements
(``onnxopt_cli/suites/operators/boundaries/directed_draws.py``). A node is valid if onnx's check and
the condition estimate accept it, and if most of its output elements have a narrow tolerance.

- Element types: the mutants of the operator's schema run on valid draws, and on the suite's cases
  of the newest version. Draws of a type are selected greedily, until the cases of this type kill
  the mutants that cases of other types kill.
- Long axes: draws are selected until each input and output has a long first, last and inner axis in
  at least one case. A long axis exceeds the blocks of vectorized and parallel loops.
- High ranks and empty batches: one valid draw is selected, unless another case of the operator has
  a tensor of this kind. Of the valid draws among the first seeds, the one with the most distinct
  outputs is selected.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onnxopt_cli.analysis.node_audit import NodeOperator, mutant_forms
from onnxopt_cli.analysis.node_search import prepared, search_nodes
from onnxopt_cli.analysis.node_variations import Variation
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.values import Array, Value, dtype_name, structure_of
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mutants import node_mutants
from onnxopt_cli.operators import native_onnx
from onnxopt_cli.oracle.estimate.condition_estimate import Reading, all_readings
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.suites.operators.boundaries.directed_draws import (
    SEEDS,
    directed_draws,
    directed_generator,
)
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.generators import FAMILIES, GENERATORS, draw_with, schemas
from onnxopt_cli.suites.operators.node_draft import SeededChoices, Unsuitable, tensor_types
from onnxopt_cli.suites.operators.operator_suite import selected_nodes, selected_seeds

TARGET = Path(__file__).parents[1] / "onnxopt_cli/suites/operators/boundaries" / SEEDS
# The kinds of directed draws.
KINDS = ("type", "long", "deep", "empty")
# Largest number of seeds that are tried for a draw.
MAX_SEEDS = 24
# Largest number of valid nodes that are compared for each prescribed property.
MAX_VALID = 2
# Largest number of valid draws of an element type that are compared.
MAX_TYPED = 8
# Largest number of draws of an element type that are selected.
MAX_SELECTED = 2
# A draw is selected only if it kills at least MIN_KILLS more mutants, or if it is the first case of
# its type.
MIN_KILLS = 3
# An operator with at least this number of cases gets at most one draw of each type.
MAX_CASES = 30
# Lengths of a long axis. The script uses the first of these lengths for which the node is computed
# within the time limit. After a draw has been selected, the first length is not tried again.
LENGTHS = (1031, 259, 67)
# An axis counts as long if it has more than BLOCK elements.
BLOCK = 64
# Number of positions of the long axis that are tried.
PLACES = 8
# Largest number of draws with a long axis for an operator.
MAX_LONG_DRAWS = 4
# Seconds of processor time that a draw may take.
MAX_SECONDS = 0.3
MIN_DEEP_RANK = 5
# A tolerance is narrow if it is at most this share of the element. It then detects most mistakes.
MAX_RELATIVE_TOLERANCE = 0.05
# For an element near zero, a tolerance is narrow if it is at most this share of the largest
# element.
MAX_SHARE_OF_LARGEST = 1e-3
# Types that are drawn only for the operators that convert elements.
RARE_TYPES = ("float8", "float6", "float4", "int2", "uint2", "complex")
CONVERSIONS = ("Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear")
# If a number is beyond the range of one of these types, correct runtimes convert it differently.
NARROW_TARGETS = ("int2", "uint2", "int4", "uint4", "float8_e8m0fnu")
# At most MAX_DISTINCT distinct elements are counted. Nodes with more are not preferred.
MAX_DISTINCT = 12


def main() -> int:
    """Select the seeds, and write them to the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=KINDS, dest="kinds")
    options = parser.parse_args()
    names = options.operators or list(selected_seeds())
    kinds = options.kinds or KINDS
    seeds = json.loads(TARGET.read_text())
    with ProcessPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(select, name, kinds) for name in names]):
            name, selected = future.result()
            kept_seeds = {
                stem: own
                for stem, own in seeds.get(name, {}).items()
                if stem.partition(":")[0] not in kinds
            }
            seeds[name] = selected | kept_seeds
            print(f"{name}: {', '.join(selected)}", flush=True)
            lines = [f"{json.dumps(name)}: {json.dumps(seeds[name])}" for name in sorted(seeds)]
            write_atomically(TARGET, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return 0


@dataclass(frozen=True)
class Draw:
    """A valid directed draw.

    Attributes:
        seed: the seed of the draw.
        node: the node.
        distinct: the number of distinct output elements with a narrow tolerance.
    """

    seed: int
    node: GeneratedNode
    distinct: int


def select(operator: str, kinds: Sequence[str]) -> tuple[str, dict[str, list[int]]]:
    """Return the operator's name, and the seeds of its directed draws of the given kinds."""
    warnings.simplefilter("ignore")
    native_onnx.die_with_models()
    directed_names = {stem for name, stem, _ in directed_draws(GENERATORS) if name == operator}
    nodes = [
        node
        for name, node in selected_nodes(operator)
        if name.partition("_")[2] not in directed_names
    ]
    selected: dict[str, list[int]] = {}
    with np.errstate(all="ignore"):
        if "type" in kinds:
            add_typed(selected, operator, nodes)
        if "long" in kinds:
            add_long(selected, operator, nodes)
        if "deep" in kinds and not any(is_deep(node, node.problem) for node in nodes):
            add_best(selected, operator, "deep", is_deep)
        if "empty" in kinds and not any(
            value.size == 0 for node in nodes for value in tensors(node.values)
        ):
            add_best(selected, operator, "empty", returns_nothing)
    return operator, selected


def add_typed(
    selected: dict[str, list[int]], operator: str, nodes: Sequence[GeneratedNode]
) -> None:
    """Add draws until the cases of each element type kill all mutants that other cases kill."""
    version = schemas(operator)[0].since_version
    cases = [node for node in nodes if node.schema.since_version == version]
    shown_by_name = dict(type_draws(operator))
    draws = {
        name: list(islice(valid_draws(operator, name, shows), MAX_TYPED))
        for name, shows in shown_by_name.items()
    }
    drawn = [draw for entries in draws.values() for draw in entries]
    kills = kills_by_node(operator, [*cases, *(draw.node for draw in drawn)])
    for rank in range(MAX_SELECTED):
        for name, shows in shown_by_name.items():
            if rank and len(nodes) + sum(map(len, selected.values())) >= MAX_CASES:
                return
            chosen = selected.get(name, [])
            own_nodes = [node for node in cases if shows(node, node.problem)]
            own_nodes += [draw.node for draw in draws[name] if draw.seed in chosen]
            covered: set[str] = set().union(*(kills[id(node)] for node in own_nodes))
            gains = {
                draw.seed: (len(kills[id(draw.node)] - covered), draw.distinct)
                for draw in draws[name]
                if draw.seed not in chosen
            }
            best = max(gains, key=gains.__getitem__, default=None)
            if best is not None and (not own_nodes or gains[best][0] >= MIN_KILLS):
                selected[name] = [*chosen, best]


def kills_by_node(operator: str, nodes: Sequence[GeneratedNode]) -> dict[int, set[str]]:
    """For each node, by its ``id()``, return the mutants of the operator's schema that it kills."""
    domain = schemas(operator)[0].domain
    variations = [
        Variation(
            node.version,
            node.problem.model,
            node.problem.inputs,
            native_outputs(node.problem.model, node.problem.inputs),
            BoundNode.of(node.problem.model, node.problem.inputs),
        )
        for node in nodes
    ]
    opsets = {variation.opset for variation in variations}
    names = [
        *dict.fromkeys(
            mutant.name for opset in opsets for mutant in node_mutants(domain, operator, opset)
        )
    ]
    forms = mutant_forms(names, NodeOperator(domain, operator), variations)
    evaluators = prepared(variation.model for variation in variations)
    results = search_nodes(forms, variations, evaluators, lambda: "", len(nodes))
    kills: dict[int, set[str]] = {id(node): set() for node in nodes}
    for name, result in zip(names, results, strict=True):
        for index in result.nodes:
            kills[id(nodes[index])].add(name)
    return kills


def add_long(selected: dict[str, list[int]], operator: str, nodes: Sequence[GeneratedNode]) -> None:
    """Add draws until each axis of the inputs and outputs is long in at least one case."""
    covered: set[Hashable] = set()
    for node in nodes:
        covered |= long_axes(node, node.problem)
    # One long axis is sufficient for an operator that computes each element independently.
    max_draws = 1 if operator in FAMILIES["elementwise"] else MAX_LONG_DRAWS
    lengths: Sequence[int] = LENGTHS
    count = 0
    for place in range(PLACES):
        for length in lengths:
            if count == max_draws:
                return
            name = f"long:{length}:{place}"
            shows = partial(has_other_long_axis, covered=covered)
            draws = list(islice(valid_draws(operator, name, shows), MAX_VALID))
            if draws:
                best = max(draws, key=lambda draw: draw.distinct)
                selected[name] = [best.seed]
                covered |= long_axes(best.node, best.node.problem)
                lengths = LENGTHS[1:]
                count += 1
                break


def add_best(
    selected: dict[str, list[int]],
    operator: str,
    name: str,
    shows: Callable[[GeneratedNode, Problem], bool],
) -> None:
    """Add the valid draw with the most distinct outputs, if any draw is valid."""
    draws = list(islice(valid_draws(operator, name, shows), MAX_VALID))
    if draws:
        selected[name] = [max(draws, key=lambda draw: draw.distinct).seed]


def valid_draws(
    operator: str, name: str, shows: Callable[[GeneratedNode, Problem], bool]
) -> Iterator[Draw]:
    """Yield the valid draws among the first seeds."""
    schema = schemas(operator)[0]
    generate = GENERATORS[operator]
    for seed in range(MAX_SEEDS):
        try:
            with limited_time():
                directed = directed_generator(generate, name, seed)
                node = draw_with(schema, directed, SeededChoices(""))
                problem = node.problem
                if not shows(node, problem) or model_fault(problem.model) or wraps(node):
                    continue
                if not has_only_texts(problem):
                    continue
                distinct = judged_elements(problem, may_be_empty=name == "empty")
        except Unsuitable:
            continue
        except OutOfTime:
            return
        except Exception as error:  # noqa: BLE001 - the reference does not implement the node
            print(f"{operator} {name} {seed}: {error!r}"[:200], flush=True)
            continue
        if distinct >= 0:
            yield Draw(seed, node, distinct)


def has_only_texts(problem: Problem) -> bool:
    """Return whether each element of each tensor of texts is a text.

    An element may be a number if the generator or onnx's reference fills a tensor with zeros.
    """
    return all(
        isinstance(element, str)
        for value in (*problem.inputs.values(), *(problem.stored or {}).values())
        if isinstance(value, np.ndarray) and value.dtype == object
        for element in value.ravel()
    )


def wraps(node: GeneratedNode) -> bool:
    """Return whether an integer overflows; the specification does not define the result.

    The outputs are compared with the outputs of the same node in double.
    """
    outputs = outputs_of(node, node.problem)
    variables = {
        formal.type_str
        for formal, value in zip(node.schema.outputs, outputs, strict=False)
        if is_integer(value) and "(" not in formal.type_str
    }
    if not variables:
        return False
    last = len(node.schema.inputs) - 1
    values = [
        value.astype(np.float64)
        if node.schema.inputs[min(place, last)].type_str in variables
        and isinstance(value, np.ndarray)
        else value
        for place, value in enumerate(node.values)
    ]
    try:
        in_double = outputs_of(node, replace(node, values=values).problem)
    except Exception:  # noqa: BLE001 - an operator of integers alone does not overflow
        return False
    return any(
        isinstance(value, np.ndarray)
        and isinstance(exact, np.ndarray)
        and is_integer(value)
        and value.shape == exact.shape
        and bool((np.abs(value.astype(np.float64) - exact) > 1 + np.abs(exact) * 1e-9).any())
        for value, exact in zip(outputs, in_double, strict=True)
    )


def is_integer(value: Value) -> bool:
    """Return whether a value is a tensor of integers."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu"


class OutOfTime(BaseException):
    """Raised if a draw takes too long.

    The class does not derive from Exception, because condition estimates ignore an Exception that a
    reformulation raises.
    """


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise OutOfTime after MAX_SECONDS of processor time in a ``with`` block."""

    def stop(_number: int, _frame: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def judged_elements(problem: Problem, *, may_be_empty: bool) -> int:
    """Return the number of distinct output elements, at most MAX_DISTINCT; -1 for a bad case.

    A node is a bad case if the specification can be read in several ways, if ONNX Runtime returns
    another output, or if at most half of the elements have a narrow tolerance.
    """
    readings = all_readings(problem.model, problem.inputs)
    if len(readings) != 1:
        return -1
    # If ONNX Runtime raises an error for an empty batch, the batch may be invalid.
    if not agrees_on_onnxruntime(problem, readings[0], must_run=may_be_empty):
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


def agrees_on_onnxruntime(problem: Problem, reading: Reading, *, must_run: bool) -> bool:
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
    """Return whether a tensor equals another tensor within tolerances."""
    if not isinstance(actual, np.ndarray) or actual.shape != expected.shape:
        return False
    equal = np.asarray(expected == actual)
    if "float" in dtype_name(expected.dtype):
        first, second = expected.astype(np.float64), actual.astype(np.float64)
        equal |= (np.isnan(first) & np.isnan(second)) | (np.abs(first - second) <= tolerance)
    return bool(equal.all())


def judges(expected: Array, tolerance: Array) -> Array:
    """Return a mask of the elements that have a narrow tolerance."""
    if "float" not in dtype_name(expected.dtype):
        return np.ones(expected.shape, bool)
    wide = expected.astype(np.float64)
    sizes = np.abs(np.where(np.isfinite(wide), wide, 0))
    limits = MAX_RELATIVE_TOLERANCE * sizes + MAX_SHARE_OF_LARGEST * sizes.max(initial=0)
    return np.asarray(tolerance <= limits) & ~np.isnan(wide)


def type_draws(
    operator: str,
) -> Iterator[tuple[str, Callable[[GeneratedNode, Problem], bool]]]:
    """Yield the name of each draw of a type, and a function that tests if a node has the type."""
    schema = schemas(operator)[0]
    places: dict[str, list[Callable[[GeneratedNode, Problem], set[str]]]] = {}
    types: dict[str, set[str]] = {}
    for formals, values_of in ((schema.inputs, inputs_of), (schema.outputs, outputs_of)):
        for place, formal in enumerate(formals):
            # A parameter with a fixed type, such as tensor(int64), has no type variable.
            if "(" not in formal.type_str:
                types_of = partial(types_at, values_of=values_of, place=place, count=len(formals))
                places.setdefault(formal.type_str, []).append(types_of)
                types.setdefault(formal.type_str, set()).update(tensor_types(formal))
    for variable, names in types.items():
        for name in sorted(names):
            if name.startswith(RARE_TYPES) and operator not in CONVERSIONS:
                continue
            if variable == "T2" and name in NARROW_TARGETS and "Cast" in operator:
                continue
            yield f"type:{variable}:{name}", partial(shows_type, name=name, at=places[variable])


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
    at: Sequence[Callable[[GeneratedNode, Problem], set[str]]],
) -> bool:
    """Return whether at least one parameter of a node has the element type ``name``."""
    return any(name in types_of(node, problem) for types_of in at)


def types_at(
    node: GeneratedNode,
    problem: Problem,
    *,
    values_of: Callable[[GeneratedNode, Problem], list[Value]],
    place: int,
    count: int,
) -> set[str]:
    """Return the element types of the parameter at ``place``, if the node has ``count`` parameters.

    The last parameter may be variadic. Therefore, it includes all values after it.
    """
    values = values_of(node, problem)
    own_values = values[place:] if place == count - 1 else values[place : place + 1]
    return {dtype_name(value.dtype) for value in tensors(own_values)}


def tensors(values: Any) -> Iterator[Array]:
    """Yield the tensors among values, including tensors in sequences."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, list):
            yield from tensors(value)


def long_axes(node: GeneratedNode, problem: Problem) -> set[Hashable]:
    """Return the long axes of the inputs and outputs, named as first, last or inner axes."""
    axes: set[Hashable] = set()
    for direction, values in enumerate((node.values, outputs_of(node, problem))):
        for place, value in enumerate(values):
            for tensor in tensors([value]):
                axes |= {
                    (direction, place, "last" if axis == tensor.ndim - 1 else min(axis, 1))
                    for axis, length in enumerate(tensor.shape)
                    if length > BLOCK
                }
    return axes


def has_other_long_axis(node: GeneratedNode, problem: Problem, *, covered: set[Hashable]) -> bool:
    """Return whether a node has a long axis that no other case has."""
    return bool(long_axes(node, problem) - covered)


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
