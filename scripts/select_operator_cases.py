"""Select the cases of the suite ``operators`` and write their seeds to the package.

    python scripts/select_operator_cases.py [OPERATOR...] [--jobs N]

Without operators all are selected anew, otherwise only those named; the other entries of
``onnxopt_cli/suites/operators/selected_seeds.json`` are kept. For each version of an operator, the
nodes of the first seeds are drawn. Those that onnx's check, its strict shape inference or the
condition estimate refuse are dropped, and so are those whose elements are all inconclusive. Of the
remaining ones, cases are selected greedily until no other one kills a further mutant or covers a
further feature.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Hashable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.operators import native_onnx
from onnxopt_cli.oracle.condition_estimate import NoReferenceError, Reading, all_readings
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.generators import FAMILIES, draw_seeded, schemas
from onnxopt_cli.suites.operators.node_draft import Unsuitable

TARGET = Path(__file__).parents[1] / "onnxopt_cli/suites/operators/selected_seeds.json"
# Nodes drawn for the newest version of an operator, and for each older one.
CANDIDATES, OLDER_CANDIDATES = 150, 40
# Cases selected at most.
MAX_CASES, MAX_OLDER_CASES = 14, 3
# An element with a wider relative tolerance distinguishes little.
MAX_RELATIVE_TOLERANCE = 0.01


@dataclass(frozen=True)
class Candidate:
    """A valid node that may become a case.

    Attributes:
        seed: its seed.
        features: what the node covers.
        size: the number of elements of its inputs.
    """

    seed: int
    features: frozenset[Hashable]
    size: int


def main() -> int:
    """Select the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = options.operators or [name for family in FAMILIES.values() for name in family]
    kept = json.loads(TARGET.read_text()) if options.operators and TARGET.exists() else {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, selected in zip(names, pool.map(select, names), strict=True):
            kept[name] = selected
            count = sum(map(len, selected.values()))
            print(f"{name}: {count} cases", file=sys.stderr)
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept) if kept[name]]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


def select(operator: str) -> dict[int, list[int]]:
    """Return the seeds of the selected cases of an operator, by version."""
    warnings.simplefilter("ignore")
    native_onnx.die_with_models()
    selected: dict[int, list[int]] = {}
    for place, schema in enumerate(schemas(operator)):
        count = OLDER_CANDIDATES if place else CANDIDATES
        candidates = list(valid_candidates(schema, count))
        seeds = greedy(candidates, MAX_OLDER_CASES if place else MAX_CASES)
        if seeds:
            selected[schema.since_version] = seeds
    return selected


def valid_candidates(schema: onnx.defs.OpSchema, count: int) -> Iterator[Candidate]:
    """Yield the suitable nodes among those of the first seeds."""
    for seed in range(count):
        try:
            node = draw_seeded(schema, seed)
            problem = node.problem
            if model_fault(problem.model):
                continue
            readings = all_readings(problem.model, problem.inputs)
        except (Unsuitable, NoReferenceError):
            continue
        except Exception as error:  # noqa: BLE001 - the reference does not implement the node
            print(
                f"{schema.name}-{schema.since_version}: {node.about}: {error!r}"[:200],
                file=sys.stderr,
            )
            continue
        if is_conclusive(readings):
            arrays = [value for value in node.inputs.values() if isinstance(value, np.ndarray)]
            yield Candidate(seed, frozenset(features(node)), sum(a.size for a in arrays))


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
            with np.errstate(all="ignore"):
                tight += int(np.sum(~(tolerance > MAX_RELATIVE_TOLERANCE * size)))
        else:
            tight += value.size
    return total == 0 or 2 * tight > total


def features(node: GeneratedNode) -> Iterator[Hashable]:
    """Yield what a node covers: attribute values, types, ranks, omitted inputs, and pairs."""
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
    names = [item for item in single if item[0] in node.schema.attributes]
    for first in names:
        for second in names:
            if str(first) < str(second):
                yield (first, second)


def _bucket(value: object) -> Hashable:
    if isinstance(value, list | tuple):
        varied = len(set(value)) > 1
        return "list", varied, any(isinstance(x, int) and x < 0 for x in value)
    if isinstance(value, onnx.GraphProto):
        return tuple(node.op_type for node in value.node)
    if isinstance(value, onnx.TensorProto):
        return value.data_type
    return repr(value)


def greedy(candidates: list[Candidate], most: int) -> list[int]:
    """Return the seeds of a small set of candidates that covers their features."""
    remaining = sorted(candidates, key=lambda item: item.seed)
    covered: set[Hashable] = set()
    chosen: list[int] = []
    while remaining and len(chosen) < most:
        best = max(
            remaining, key=lambda item: (len(item.features - covered), -item.size, -item.seed)
        )
        if not best.features - covered:
            break
        covered |= best.features
        chosen.append(best.seed)
        remaining.remove(best)
    return sorted(chosen)


if __name__ == "__main__":
    sys.exit(main())
