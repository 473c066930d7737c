"""Select the cases of the suite ``operators`` and write their seeds to the package.

    python scripts/select_operator_cases.py [OPERATOR...] [--jobs N]

Without operators all are selected anew, otherwise only those named; the other entries of
``onnxopt_cli/suites/operators/selected_seeds.json`` are kept. For each version of an operator, the
nodes of the first seeds are drawn. Those that onnx's check, its strict shape inference or the
condition estimate refuse are dropped, and so are those most of whose elements are inconclusive. Of
the remaining ones, cases are selected greedily until no other one kills a further mutant or covers
a further feature; then more seeds are tried for the mutants that survive.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.core.values import Value, dtype_name
from onnxopt_cli.mutation.node_mutants import NodeMutant, node_mutants
from onnxopt_cli.operators import native_onnx
from onnxopt_cli.oracle.condition_estimate import NoReferenceError, Reading, all_readings
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.patching import replaced, replacements
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.generators import FAMILIES, draw_seeded, schemas
from onnxopt_cli.suites.operators.node_draft import Unsuitable

TARGET = Path(__file__).parents[1] / "onnxopt_cli/suites/operators/selected_seeds.json"
# Nodes drawn for the newest version of an operator, and for each older one.
CANDIDATES, OLDER_CANDIDATES = 28, 8
# Further nodes drawn for the mutants that survive; the search ends after as many without a kill.
MORE_CANDIDATES, MOST_IN_VAIN = 120, 20
# Cases that only cover a feature, at most.
MAX_FEATURE_CASES, MAX_OLDER_FEATURE_CASES = 10, 2
# An element with a wider relative tolerance distinguishes little.
MAX_RELATIVE_TOLERANCE = 0.01


@dataclass(frozen=True)
class Candidate:
    """A valid node that may become a case.

    Attributes:
        seed: its seed.
        features: what the node covers.
        size: the number of elements of its inputs.
        problem: its problem.
        readings: its expected values.
    """

    seed: int
    features: frozenset[Hashable]
    size: int
    problem: Problem
    readings: Sequence[Reading]


@dataclass(frozen=True)
class Selection:
    """The selected seeds of one version of an operator, and its mutants that survive."""

    operator: str
    version: int
    seeds: list[int]
    mutants: int
    survivors: list[str]


def main() -> int:
    """Select the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = options.operators or [name for family in FAMILIES.values() for name in family]
    seeds = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    if not options.operators:
        seeds = {name: selected for name, selected in seeds.items() if name in names}
    with ProcessPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(select, name) for name in names]):
            selections = future.result()
            name = selections[0].operator
            seeds[name] = {str(entry.version): entry.seeds for entry in selections if entry.seeds}
            for entry in selections:
                killed_count = entry.mutants - len(entry.survivors)
                score = f"{killed_count} of {entry.mutants} mutants"
                text = f"{len(entry.seeds)} cases, {score}; {', '.join(entry.survivors)}"
                print(f"{name}-{entry.version}: {text}", flush=True)
            lines = [f"{json.dumps(name)}: {json.dumps(seeds[name])}" for name in sorted(seeds)]
            TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


def select(operator: str) -> list[Selection]:
    """Return the selected cases of an operator, by version."""
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    native_onnx.die_with_models()
    with replaced(*replacements()), np.errstate(all="ignore"):
        return [
            select_version(schema, is_newest=place == 0)
            for place, schema in enumerate(schemas(operator))
        ]


def select_version(schema: onnx.defs.OpSchema, *, is_newest: bool) -> Selection:
    """Select cases of one version of an operator."""
    count = CANDIDATES if is_newest else OLDER_CANDIDATES
    imported = max(schema.since_version, 7) if not schema.domain else schema.since_version
    mutants = list(node_mutants(schema.domain, schema.name, imported))
    candidates = list(valid_candidates(schema, range(count)))
    kills = {
        candidate.seed: {mutant.name for mutant in mutants if kills_mutant(candidate, mutant)}
        for candidate in candidates
    }
    seeds: list[int] = []
    killed: set[str] = set()
    covered: set[Hashable] = set()
    feature_cases = 0
    remaining = list(candidates)
    while remaining:
        best = max(
            remaining,
            key=lambda candidate: (
                len(kills[candidate.seed] - killed),
                len(candidate.features - covered),
                -candidate.size,
                -candidate.seed,
            ),
        )
        if not kills[best.seed] - killed:
            limit = MAX_FEATURE_CASES if is_newest else MAX_OLDER_FEATURE_CASES
            if not best.features - covered or feature_cases >= limit:
                break
            feature_cases += 1
        seeds.append(best.seed)
        killed |= kills[best.seed]
        covered |= best.features
        remaining.remove(best)
    alive = [mutant for mutant in mutants if mutant.name not in killed]
    in_vain = 0
    further = range(count, count + (MORE_CANDIDATES if is_newest else 0))
    for candidate in valid_candidates(schema, further) if alive else ():
        newly_killed = [mutant for mutant in alive if kills_mutant(candidate, mutant)]
        in_vain = 0 if newly_killed else in_vain + 1
        if newly_killed:
            seeds.append(candidate.seed)
            alive = [mutant for mutant in alive if mutant not in newly_killed]
        if not alive or in_vain >= MOST_IN_VAIN:
            break
    names = [mutant.name for mutant in alive]
    return Selection(schema.name, schema.since_version, sorted(seeds), len(mutants), names)


def kills_mutant(candidate: Candidate, mutant: NodeMutant) -> bool:
    """Return whether a case rejects a mutant; one that raises an error is rejected."""
    problem = candidate.problem
    try:
        outputs = mutant.outputs(problem.model, problem.inputs, reference)
    except Exception:  # noqa: BLE001 - an error on a valid node is a failure
        return True
    if outputs is None:
        return False
    return not any(accepts(reading, problem, outputs) for reading in candidate.readings)


def reference(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Any]:
    """Return the outputs of onnx's corrected reference."""
    outputs = ReferenceModel(model).run(inputs)
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in outputs]


def accepts(reading: Reading, problem: Problem, outputs: Sequence[Value]) -> bool:
    """Return whether outputs agree with a reading."""
    stored_outputs = (problem.stored or {}).values()
    pairs = zip(reading.conditioned_outputs, stored_outputs, outputs, strict=False)
    for conditioned, stored, actual in pairs:
        if not conditioned.right:
            if not same_value(stored, actual):
                return False
            continue
        expected = conditioned.right[0][0]
        if not isinstance(actual, np.ndarray) or actual.dtype != expected.dtype:
            return False
        if actual.shape != expected.shape:
            return False
        agrees = np.zeros(expected.shape, bool)
        for value, tolerance in conditioned.right:
            agrees |= same_elements(value, actual, tolerance)
        if not agrees.all():
            return False
    return True


def same_elements(value: np.ndarray, actual: np.ndarray, tolerance: np.ndarray) -> np.ndarray:
    """Return which elements agree."""
    equal = np.asarray(value == actual)
    if value.dtype == object or value.dtype.kind in "biu" or "float" not in value.dtype.name:
        return equal
    a, b = value.astype(np.float64), actual.astype(np.float64)
    return equal | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance)


def same_value(stored: Value, actual: Value) -> bool:
    """Return whether two values that are not single tensors are equal."""
    if isinstance(stored, list):
        if not isinstance(actual, list) or len(actual) != len(stored):
            return False
        return all(same_value(*pair) for pair in zip(stored, actual, strict=True))
    if isinstance(stored, np.ndarray) and isinstance(actual, np.ndarray):
        same = stored.dtype == actual.dtype and stored.shape == actual.shape
        return same and np.array_equal(stored, actual, equal_nan=stored.dtype.kind == "f")
    return stored is None and actual is None


def valid_candidates(schema: onnx.defs.OpSchema, seeds: Sequence[int]) -> Iterator[Candidate]:
    """Yield the suitable nodes of some seeds."""
    for seed in seeds:
        try:
            node = draw_seeded(schema, seed)
            problem = node.problem
            if model_fault(problem.model):
                continue
            readings = all_readings(problem.model, problem.inputs)
        except (Unsuitable, NoReferenceError):
            continue
        except Exception as error:  # noqa: BLE001 - the reference does not implement the node
            print(f"{schema.name}-{schema.since_version} {seed}: {error!r}"[:200], flush=True)
            continue
        if is_conclusive(readings):
            arrays = [value for value in node.inputs.values() if isinstance(value, np.ndarray)]
            size = sum(array.size for array in arrays)
            yield Candidate(seed, frozenset(features(node)), size, problem, readings)


def is_conclusive(readings: list[Reading]) -> bool:
    """Return whether most elements of the outputs have a tight tolerance, and there is one."""
    tight = total = 0
    for output in readings[0].conditioned_outputs:
        if not output.right:
            # Sequences and strings are compared exactly.
            return True
        value, tolerance = output.right[0]
        total += value.size
        if tolerance.any():
            size = np.abs(value.astype(np.complex128))
            # A zero is as conclusive as the largest element.
            size = np.where(size == 0, size[np.isfinite(size)].max(initial=0.0), size)
            with np.errstate(all="ignore"):
                tight += int(np.sum(~(tolerance > MAX_RELATIVE_TOLERANCE * size)))
        else:
            tight += value.size
    return total == 0 or 2 * tight > total


def features(node: GeneratedNode) -> Iterator[Hashable]:
    """Yield the features that a node covers: attribute values, types, ranks and omitted inputs."""
    single: list[tuple[Hashable, ...]] = []
    for name in node.schema.attributes:
        value = node.attributes.get(name)
        single.append((name, _bucket(value)))
    for place, value in enumerate(node.values):
        if isinstance(value, np.ndarray):
            single.append((place, dtype_name(value.dtype)))
            single.append((place, "rank", value.ndim))
            if value.size == 0:
                single.append((place, "empty"))
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                single.append((place, "not finite"))
        else:
            single.append((place, "omitted" if value is None else "sequence"))
    single.append(("inputs", len(node.values)))
    single.append(("outputs", tuple(node.requested)))
    yield from single


def _bucket(value: object) -> Hashable:
    if isinstance(value, list | tuple):
        varied = len(set(value)) > 1
        return "list", varied, any(isinstance(x, int) and x < 0 for x in value)
    if isinstance(value, onnx.GraphProto):
        return tuple(node.op_type for node in value.node)
    if isinstance(value, onnx.TensorProto):
        return value.data_type
    return repr(value)


if __name__ == "__main__":
    sys.exit(main())
