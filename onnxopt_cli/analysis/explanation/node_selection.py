"""Select the generated nodes that test a hypothesis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from onnxopt_cli.analysis.explanation.hypotheses import Hypothesis
from onnxopt_cli.analysis.explanation.node_samples import JudgedNode, NodeSample
from onnxopt_cli.analysis.explanation.node_traits import (
    IGNORED,
    Trait,
    node_numbers,
    traits_of_parameters,
    traits_of_values,
)
from onnxopt_cli.analysis.node_variations import Variation
from onnxopt_cli.core.values import Value
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.node_mutants import FLAGS, NodeMutant

#: Number of generated nodes that are submitted in a round.
NODES_PER_ROUND = 40
#: Largest number of nodes that are generated in a round; at most NODES_PER_ROUND are submitted.
MAX_ATTEMPTS = 240
# Largest number of known nodes from which new nodes are generated.
_MAX_BASES = 24

# The kind of a generated node that meets the condition and is independent of failing nodes.
_INDEPENDENT = "independent"
# The kind of a generated node states what the node tests. The kind is a rival if the node
# distinguishes this rival from the mistake of the hypothesis. It is _INDEPENDENT for an independent
# test of the condition. Otherwise, it is the set of parts of the condition that the node meets.
_NodeKind: TypeAlias = NodeMutant | str | frozenset[Trait]


def select_nodes(
    variations: Iterable[Variation | None], hypothesis: Hypothesis, rivals: Sequence[NodeMutant]
) -> Iterator[Variation | None]:
    """Yield the nodes of a round that test a hypothesis, and None in place of other nodes.

    A hypothesis needs several kinds of nodes, and each kind may be rare among random nodes:

    - Some nodes meet all parts of the condition, and other nodes lack exactly one part. The mistake
      must have an effect on all of these nodes.
    - Of the nodes that meet all parts, some must be independent of failing nodes.
    - For each rival, some nodes must distinguish the rival from the mistake.

    Args:
        variations: random nodes; None in place of an invalid one.
        hypothesis: the hypothesis.
        rivals: other mistakes that explain the same nodes as the hypothesis.
    """
    parts = frozenset(hypothesis.traits)
    kinds: set[_NodeKind] = {*rivals}
    if parts or hypothesis.mistake is not None:
        kinds |= {_INDEPENDENT, parts, *(parts - {part} for part in parts)}
    needed = dict.fromkeys(kinds, NODES_PER_ROUND // (len(kinds) + 1))
    # The remaining nodes need not test this hypothesis. They may support another hypothesis.
    needed_others = NODES_PER_ROUND - sum(needed.values())
    for variation in islice(variations, MAX_ATTEMPTS):
        if variation is None:
            yield None
            continue
        node_kinds = _kinds_of_node(variation, hypothesis, rivals)
        needed_kinds = [kind for kind in node_kinds if needed.get(kind)]
        if needed_kinds:
            needed[needed_kinds[0]] -= 1
        elif needed_others:
            needed_others -= 1
        else:
            yield None
            continue
        yield variation
        if not needed_others and not any(needed.values()):
            return


def _kinds_of_node(
    variation: Variation, hypothesis: Hypothesis, rivals: Sequence[NodeMutant]
) -> list[_NodeKind]:
    """Return the kinds to which a node belongs.

    If the mistake of the hypothesis has no effect on a node, the node does not test the condition.
    """
    sample = generated_sample(variation, None)
    judge = JudgedNode(sample, variation.outputs, frozenset(), {})
    mistake = hypothesis.mistake
    kinds: list[_NodeKind] = []
    if mistake is not None:
        kinds += [rival for rival in rivals if judge.distinguishes(mistake, rival)]
        if not judge.may_show(mistake):
            return kinds
    _add_traits(sample, variation, hypothesis.traits)
    met = frozenset(part for part in hypothesis.traits if sample.has(part))
    if variation.is_independent and len(met) == len(hypothesis.traits):
        kinds.append(_INDEPENDENT)
    return [*kinds, met]


def _add_traits(sample: NodeSample, variation: Variation, stated: Sequence[Trait]) -> None:
    """Find only those traits and numbers that decide whether a node meets a condition.

    Finding all traits would take most of the time that is needed to generate a node.
    """
    node, names = variation.bound, [output.name for output in variation.model.graph.output]
    outputs = dict(zip(names, variation.outputs, strict=True))
    if any(trait.limits for trait in stated):
        sample.numbers = node_numbers(node)
    if any(trait.is_parameter and not trait.limits for trait in stated):
        sample.traits |= traits_of_parameters(node, outputs)
    if any(not trait.is_parameter and not trait.limits for trait in stated):
        sample.traits |= traits_of_values(node, outputs)


def generated_sample(variation: Variation, returned: Sequence[Value] | None) -> NodeSample:
    """Return a generated node with the outputs of a backend; the outputs are not judged yet."""
    right, inputs = variation.outputs, variation.inputs
    is_independent = variation.is_independent
    return NodeSample(
        "", variation.model, inputs, right, returned, None, is_independent=is_independent
    )


def sample_for_errors(variation: Variation, *, is_raised: bool) -> NodeSample:
    """Return a generated node of a search for the causes of errors.

    Args:
        variation: the node.
        is_raised: whether the backend raised an error.
    """
    right, inputs = variation.outputs, variation.inputs
    return NodeSample(
        "",
        variation.model,
        inputs,
        right,
        None,
        is_raised,
        is_for_errors=True,
        is_independent=variation.is_independent,
    )


def small_nodes(samples: Iterable[NodeSample]) -> list[BoundNode]:
    """Return small nodes from which new nodes are generated; the nodes of cases come first."""
    ordered = sorted(samples, key=lambda sample: (not sample.case, sample.size))
    return [BoundNode.of(sample.model, sample.inputs) for sample in ordered[:_MAX_BASES]]


def integer_attributes(hypothesis: Hypothesis, node: BoundNode) -> list[str]:
    """Return the integer attributes of a node on which a condition depends."""
    names = [
        trait.ignoring.removesuffix(IGNORED)
        for trait in hypothesis.traits
        if trait.ignoring.endswith(IGNORED)
    ]
    entries = node.schema.attributes
    return [
        name
        for name in dict.fromkeys(names)
        if name in entries and attribute_type(entries[name]) == "INT" and name not in FLAGS
    ]
