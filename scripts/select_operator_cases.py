"""Select cases of the suite ``operators`` and write their seeds to the package.

    python scripts/select_operator_cases.py [--anew] [--audit DIR] [--candidates N]
        [--jobs N] [OPERATOR...]
    python scripts/select_operator_cases.py --older [OPERATOR...]

For each operator, the mutants of ``onnxopt audit`` run on the suite's cases. Then nodes are drawn
from new seeds to kill the survivors. A small set of nodes that kills as many survivors as possible
becomes cases. Nodes at boundaries are always cases. All other cases of the suite are kept, unless
``--anew`` is given. ``--anew`` is necessary after a change of the operator's generator. It begins
with the nodes that cover the most features: values of attributes, types, ranks and omitted inputs.

With ``--audit DIR``, the survivors are read from the results of ``scripts/audit_operators.py`` in
that folder. This saves most of the time.

With ``--older``, only the cases of older versions are selected. No mutants run; the cases that
cover the most features are kept. If successive versions differ only in their types, the oldest of
them keeps at most ``MAX_EQUAL_CASES`` cases, and the versions between the oldest and the newest
keep none. A version with other parameters keeps at most ``MAX_OTHER_CASES`` cases, and gets at most
``MAX_FURTHER_CASES`` new cases. The new cases cover the values of attributes. Their tensors have
several axes of different lengths, because a wrong or ignored axis would not change a small tensor.

A node is dropped if onnx's check or strict shape inference refuses it, or if onnx's reference does
not compute it. The seeds of other operators in ``onnxopt_cli/suites/operators/selected_seeds.json``
are not changed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import onnx
from onnx.defs import OpSchema

from onnxopt_cli.analysis.node_audit import (
    NodeOperator,
    NodeTrial,
    find_node_trials,
    implementation_names,
    mutant_forms,
    outcomes_on_trials,
    reference_state,
)
from onnxopt_cli.analysis.node_search import prepared, search_nodes
from onnxopt_cli.analysis.node_variations import Variation
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.oracle.excluded_inputs import excluded_input
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.generators import (
    EXCEPTIONAL_SEEDS,
    GENERATORS,
    boundaries,
    draw_boundary,
    draw_seeded,
    schemas,
)
from onnxopt_cli.suites.operators.node_draft import Unsuitable

TARGET = Path(__file__).parents[1] / "onnxopt_cli/suites/operators/selected_seeds.json"
# The first seed. Smaller seeds belong to earlier versions of the suite, which had other generators.
FIRST_SEED = 1000
# Number of nodes drawn for the newest version of an operator.
CANDIDATES = 300
# For each older version, the number of drawn nodes is divided by this factor.
OLDER_SHARE = 5
# One in EXCEPTIONAL_PERIOD nodes has exceptional values: NaN, infinities or integers that overflow.
EXCEPTIONAL_PERIOD = 2
# Operators whose correct implementations differ on NaN, infinity and overflow of integers. For
# example, some implementations multiply an exceptional value by a weight of 0, and others skip it.
WITHOUT_EXCEPTIONS = frozenset({
    "AffineGrid", "BatchNormalization", "Binarizer", "DynamicQuantizeLinear", "GridSample",
    "LinearClassifier", "ReduceProd", "ReduceSumSquare", "Resize", "RoiAlign", "SVMClassifier",
    "ScatterElements", "ScatterND", "Upsample",
})  # fmt: skip
# For each mutant, the script searches for this number of nodes that kill it. The cases are chosen
# among these nodes.
KILLS_OF_A_MUTANT = 3
# Largest number of cases of the newest version that are selected because of their features.
MAX_FEATURE_CASES = 8
# Largest number of cases of each older version that are selected because of their features.
MAX_OLDER_FEATURE_CASES = 2
# An older version with the same parameters as the next version keeps at most this number of cases.
MAX_EQUAL_CASES = 1
# An older version with other parameters keeps at most this number of cases.
MAX_OTHER_CASES = 1
# An older version with other parameters gets at most this number of new cases.
MAX_FURTHER_CASES = 4
# Number of seeds that are tried for the new cases of an older version.
FURTHER_SEEDS = 60


@dataclass(frozen=True)
class Candidate:
    """A valid node that may become a case."""

    version: int
    seed: int
    node: GeneratedNode
    variation: Variation

    @property
    def size(self) -> int:
        """The number of elements of the node's inputs."""
        return self.variation.size


@dataclass(frozen=True)
class Selection:
    """The selected seeds of an operator by version, and its mutants that survive."""

    operator: str
    seeds: dict[int, list[int]]
    mutants: int
    survivors_before: int
    survivors: list[str]


def main() -> int:
    """Select the cases, and write their seeds to the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--anew", action="store_true", help="keep none of the present seeds")
    parser.add_argument("--older", action="store_true", help="only select cases of older versions")
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = options.operators or list(GENERATORS)
    if options.older:
        for name in names:
            write_seeds(name, with_older(name, json.loads(TARGET.read_text())[name]))
        return 0
    with ProcessPoolExecutor(options.jobs) as pool:
        present = json.loads(TARGET.read_text())
        work = partial(
            select,
            present=present,
            anew=options.anew,
            audit=options.audit,
            count=options.candidates,
        )
        for future in as_completed([pool.submit(work, name) for name in names]):
            selection = future.result()
            write_seeds(selection.operator, selection.seeds)
            count = sum(map(len, selection.seeds.values()))
            print(
                f"{selection.operator}: {count} seeds, of {selection.mutants} mutants "
                f"{len(selection.survivors)} survive (before {selection.survivors_before})",
                flush=True,
            )
    return 0


def write_seeds(operator: str, chosen: Mapping[int, Sequence[int]]) -> None:
    """Write the seeds of an operator to the package."""
    seeds = json.loads(TARGET.read_text())
    seeds[operator] = {str(version): sorted(own) for version, own in chosen.items() if own}
    lines = [f"{json.dumps(name)}: {json.dumps(seeds[name])}" for name in sorted(seeds)]
    write_atomically(TARGET, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def with_older(operator: str, present: Mapping[str, Sequence[int]]) -> dict[int, list[int]]:
    """Return the seeds of an operator. The seeds of older versions are selected by features."""
    seeds = {int(version): list(chosen) for version, chosen in present.items()}
    # Whether an older version with the same parameters already has a case.
    is_covered = False
    for newer, older in reversed(list(pairwise(schemas(operator)))):
        version = older.since_version
        own_nodes = {seed: draw_seeded(older, seed) for seed in seeds.get(version, [])}
        if parameters(newer) == parameters(older):
            seeds[version] = [] if is_covered else covering(own_nodes, MAX_EQUAL_CASES)
            is_covered = is_covered or bool(seeds[version])
            continue
        is_covered = False
        kept_seeds = covering(own_nodes, MAX_OTHER_CASES)
        range_of_seeds = range(FIRST_SEED, FIRST_SEED + FURTHER_SEEDS)
        drawn = {
            candidate.seed: candidate.node
            for candidate in valid_nodes(
                older, [seed for seed in range_of_seeds if seed not in own_nodes]
            )
        }
        drawn = {seed: node for seed, node in drawn.items() if has_uneven_axes(node)} or drawn
        covered = {
            value
            for seed in kept_seeds
            if has_uneven_axes(own_nodes[seed])
            for value in attribute_values(own_nodes[seed])
        }
        further = covering(drawn, MAX_FURTHER_CASES, attribute_values, covered, prefer=size_of)
        seeds[version] = [*kept_seeds, *further]
    return seeds


def has_uneven_axes(node: GeneratedNode) -> bool:
    """Return whether a tensor has several axes that are longer than 1 and differ in length."""
    return any(
        isinstance(value, np.ndarray) and len({*value.shape} - {0, 1}) > 1 and value.size
        for value in node.values
    )


def parameters(schema: OpSchema) -> Hashable:
    """Return the attributes of a version with their defaults, its inputs and its outputs."""
    attributes = {
        name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }
    formals = [
        (direction, formal.name, formal.option)
        for direction, own in enumerate((schema.inputs, schema.outputs))
        for formal in own
    ]
    return tuple(sorted(attributes.items())), tuple(formals)


def select(
    operator: str, present: Mapping[str, Any], *, anew: bool, audit: Path | None, count: int
) -> Selection:
    """Return the selected cases of an operator.

    Args:
        operator: the operator.
        present: the seeds of the suite by operator and version.
        anew: whether to discard all present seeds.
        audit: the folder of an audit from which the survivors are read; None to run the mutants.
        count: number of nodes that are drawn for the newest version.
    """
    warnings.simplefilter("ignore")
    seeds: dict[int, list[int]] = {schema.since_version: [] for schema in schemas(operator)}
    if not anew:
        own_seeds = present.get(operator, {})
        seeds |= {int(version): list(chosen) for version, chosen in own_seeds.items()}
    candidates = list(valid_candidates(operator, count))
    if anew or operator not in present:
        for place, version in enumerate(seeds):
            drawn = {entry.seed: entry.node for entry in candidates if entry.version == version}
            seeds[version] = covering(
                drawn, MAX_OLDER_FEATURE_CASES if place else MAX_FEATURE_CASES
            )
    trials = suite_trials(operator, seeds)
    names = implementation_names("automatic", trials)
    if audit is None:
        outcomes = outcomes_on_trials(names, "automatic", trials, thorough=False)
        alive = [name for name, entry in zip(names, outcomes, strict=True) if entry.survives]
    else:
        alive = [name for name in survivors_in(audit, operator) if name in names]
    variations = [candidate.variation for candidate in candidates]
    check = partial(reference_state, trials, prepared(trial.model for trial in trials))
    forms = mutant_forms(alive, NodeOperator(schemas(operator)[0].domain, operator), variations)
    evaluators = prepared(variation.model for variation in variations)
    results = search_nodes(forms, variations, evaluators, check, KILLS_OF_A_MUTANT)
    kills = [result.nodes for result in results]
    for index in fewest(kills, [candidate.size for candidate in candidates]):
        seeds[candidates[index].version].append(candidates[index].seed)
    survivors = [name for name, nodes in zip(alive, kills, strict=True) if not nodes]
    return Selection(operator, seeds, len(names), len(alive), survivors)


def survivors_in(audit: Path, operator: str) -> Sequence[str]:
    """Return the mutants of an operator that survive in an audit and are not equivalent."""
    path = audit / f"{operator}.json"
    scores = json.loads(path.read_text())["operators"] if path.exists() else []
    return [
        mutant["name"]
        for score in scores
        for mutant in score["automatic"]
        if not (mutant["rejected"] or mutant["stillborn"] or mutant["equivalent"])
    ]


def suite_trials(operator: str, seeds: dict[int, list[int]]) -> Sequence[NodeTrial]:
    """Return the nodes of an operator's seeds and boundaries as trials of an audit."""
    draws: dict[str, Callable[[], GeneratedNode]] = {}
    for schema in schemas(operator):
        for seed in seeds[schema.since_version]:
            draws[f"v{schema.since_version}_{seed}"] = partial(draw_seeded, schema, seed)
        for name in boundaries(operator, schema.since_version):
            draw = partial(draw_boundary, operator, name, schema.since_version)
            draws[f"v{schema.since_version}_{name}"] = draw
    cases = [
        Case(
            f"{operator}/{name}",
            Location(Path(operator)),
            partial(problem_of, draw),
            operators=(operator,),
        )
        for name, draw in draws.items()
    ]
    trials, faults = find_node_trials(cases, Judging(), 1, lambda *_: None, [operator])
    for fault in faults:
        print(fault, flush=True)
    return trials.get(operator, [])


def problem_of(draw: Callable[[], GeneratedNode]) -> Problem:
    """Return a node as the content of a case."""
    return draw().problem


def valid_candidates(operator: str, newest_count: int) -> Iterator[Candidate]:
    """Yield valid nodes from new seeds."""
    for place, schema in enumerate(schemas(operator)):
        count = newest_count // OLDER_SHARE if place else newest_count
        has_exceptions = operator not in WITHOUT_EXCEPTIONS
        yield from valid_nodes(
            schema,
            [
                number
                + (
                    EXCEPTIONAL_SEEDS[0]
                    if has_exceptions and number % EXCEPTIONAL_PERIOD == 0
                    else FIRST_SEED
                )
                for number in range(count)
            ],
        )


def valid_nodes(schema: OpSchema, seeds: Sequence[int]) -> Iterator[Candidate]:
    """Yield the nodes of given seeds that onnx's checks and reference accept."""
    for seed in seeds:
        try:
            node = draw_seeded(schema, seed)
            problem = node.problem
            bound = BoundNode.of(problem.model, problem.inputs)
            if model_fault(problem.model) or excluded_input(
                bound.node, bound.operands, opset=bound.opset, is_model=True
            ):
                continue
            outputs = native_outputs(problem.model, problem.inputs)
        except Unsuitable:
            continue
        except Exception as error:  # noqa: BLE001 - the reference does not implement the node
            print(f"{schema.name}-{schema.since_version} {seed}: {error!r}"[:200], flush=True)
            continue
        variation = Variation(node.version, problem.model, problem.inputs, outputs, bound)
        yield Candidate(schema.since_version, seed, node, variation)


def size_of(node: GeneratedNode) -> int:
    """Return the number of elements of a node's inputs."""
    return sum(value.size for value in node.values if isinstance(value, np.ndarray))


def fewest(kills: Sequence[Sequence[int]], sizes: Sequence[int]) -> Iterator[int]:
    """Choose nodes greedily until they kill every mutant that any node kills.

    Args:
        kills: for each mutant, the nodes that kill it.
        sizes: the sizes of the nodes.
    """
    alive = [set(nodes) for nodes in kills if nodes]
    while alive:
        nodes = sorted(set.union(*alive))
        best = max(nodes, key=lambda node: (sum(node in kill for kill in alive), -sizes[node]))
        yield best
        alive = [kill for kill in alive if best not in kill]


def attribute_values(node: GeneratedNode) -> Iterator[Hashable]:
    """Yield the values of attributes that are texts or zeros, and the kinds of all other values."""
    for name in node.schema.attributes:
        value = node.attributes.get(name)
        if isinstance(value, int | float) and value:
            yield name, math.copysign(1, value)
        else:
            yield name, _bucket(value)


def features(node: GeneratedNode) -> Iterator[Hashable]:
    """Yield the features of a node: attribute values, types, ranks and omitted inputs."""
    for name in node.schema.attributes:
        yield name, _bucket(node.attributes.get(name))
    for place, value in enumerate(node.values):
        if isinstance(value, np.ndarray):
            yield place, dtype_name(value.dtype)
            yield place, "rank", value.ndim
            if value.size == 0:
                yield place, "empty"
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                yield place, "not finite"
        else:
            yield place, "omitted" if value is None else "sequence"
    yield "inputs", len(node.values)
    yield "outputs", tuple(node.requested)


def _bucket(value: object) -> Hashable:
    if isinstance(value, list | tuple):
        varied = len(set(value)) > 1
        return "list", varied, any(isinstance(x, int) and x < 0 for x in value)
    if isinstance(value, onnx.GraphProto):
        return tuple(node.op_type for node in value.node)
    if isinstance(value, onnx.TensorProto):
        return value.data_type
    return repr(value)


def covering(
    nodes: Mapping[int, GeneratedNode],
    limit: int,
    features_of: Callable[[GeneratedNode], Iterable[Hashable]] = features,
    present: AbstractSet[Hashable] = frozenset(),
    prefer: Callable[[GeneratedNode], float] = lambda node: -size_of(node),
) -> list[int]:
    """Choose up to ``limit`` seeds greedily, so that their nodes cover many features.

    Args:
        nodes: the nodes of an operator's version by seed.
        limit: the largest number of seeds.
        features_of: returns the features of a node.
        present: the features that other cases already cover.
        prefer: if several nodes have the same number of new features, the node for which this
            function returns the largest value is chosen. By default, the smallest node is chosen.
    """
    remaining = dict(nodes)
    covered = {*present}
    seeds: list[int] = []
    while remaining and len(seeds) < limit:
        new = {seed: {*features_of(node)} - covered for seed, node in remaining.items()}
        best = max(remaining, key=lambda seed: (len(new[seed]), prefer(remaining[seed])))
        if not new[best]:
            break
        covered |= new[best]
        seeds.append(best)
        del remaining[best]
    return seeds


if __name__ == "__main__":
    sys.exit(main())
